//! Taking messages out of memory and payloads out of the log, and bringing them back. None of it changes anything that
//! can be asked: counts, order, deadlines and answers are the same before and after.

use crate::answer::{PayloadRef, Place, Spilled};
use crate::blocks::{BlockDraft, next_offset};
use crate::command::{Spill, SpillWhat};
use crate::message::{Extra, Message, NO_SEQUENCE};
use crate::queue::Queue;
use crate::run::{Run, RunKind, read_records};
use crate::shared::Shared;
use overtake_base::limits::BLOCK_PAYLOAD_PREFIX_BYTES;
use overtake_base::{BlockId, Level, MessageId};
use std::collections::BTreeMap;

/// Chooses messages for a block while there is room.
struct Chosen {
    slots: Vec<u32>,
    bytes: u64,
    messages_max: usize,
    bytes_max: u64,
}

impl Chosen {
    fn new(spill: &Spill) -> Self {
        // Offsets in a block are 32 bits; the bound leaves room for one more payload and all prefixes.
        let bytes_max = spill.bytes_max.min(u64::from(u32::MAX / 4));
        Self { slots: Vec::new(), bytes: 0, messages_max: spill.messages_max as usize, bytes_max }
    }

    /// False where the block has no room for the message; one always fits. Texts that are kept with it count, they can be
    /// longer than its payload; the rest of a record is small and does not.
    fn take(&mut self, shared: &Shared, slot: u32) -> bool {
        let texts = shared.messages.extra(slot).map_or(0, Extra::text_bytes);
        let bytes =
            u64::from(shared.messages[slot].payload.length + BLOCK_PAYLOAD_PREFIX_BYTES) + texts as u64;
        let fits = self.slots.len() < self.messages_max
            && (self.slots.is_empty() || self.bytes + bytes <= self.bytes_max);
        if fits {
            self.slots.push(slot);
            self.bytes += bytes;
        }
        fits
    }
}

impl Queue {
    /// Makes a block, if there is enough for one.
    pub(crate) fn spill(&mut self, shared: &mut Shared, block: BlockId, spill: &Spill) -> Spilled {
        match spill.what {
            SpillWhat::Lane { level, keep } if level.0 < self.config.levels => {
                let slots = self.lane_messages(shared, spill, level, keep as usize);
                self.set_aside(shared, block, spill, slots, RunKind::Visible(level))
            }
            SpillWhat::Lane { .. } => Spilled::default(),
            SpillWhat::Delayed => {
                let slots = self.delayed_messages(shared, spill);
                let mut levels: BTreeMap<Level, u32> = BTreeMap::new();
                for slot in &slots {
                    *levels.entry(shared.messages[*slot].level).or_default() += 1;
                }
                self.set_aside(shared, block, spill, slots, RunKind::Delayed(levels.into_iter().collect()))
            }
            SpillWhat::Payloads { dead, after } => self.move_payloads(shared, block, spill, dead, after),
        }
    }

    /// Messages behind the lane's runs, or behind its first ones; where those are not enough, messages between two of its
    /// runs: a request that named one of them brought them back, and they may leave again.
    fn lane_messages(&self, shared: &Shared, spill: &Spill, level: Level, keep: usize) -> Vec<u32> {
        let lane = &self.lanes[usize::from(level.0)];
        let end_of = |block: &BlockId| shared.blocks.run(*block).map(|run| run.last);
        let Some((_, last_run)) = lane.runs.last_key_value() else {
            return self.part_of_lane(shared, spill, level, None, None, keep);
        };
        let behind = self.part_of_lane(shared, spill, level, end_of(last_run), None, 0);
        if behind.len() >= spill.messages_min as usize {
            return behind;
        }
        let between = lane.runs.values().zip(lane.runs.keys().skip(1)).find_map(|(run, next)| {
            let part = self.part_of_lane(shared, spill, level, end_of(run), Some(*next), 0);
            (part.len() >= spill.messages_min as usize).then_some(part)
        });
        between.unwrap_or_default()
    }

    /// Messages of a lane between two sequences, but for the first ones, without those that expire soon: they go by
    /// themselves, and a run that holds one would have to come back at once. There may be many of them: the walk ends after
    /// as many as would fill the block.
    fn part_of_lane(
        &self,
        shared: &Shared,
        spill: &Spill,
        level: Level,
        after: Option<u64>,
        before: Option<u64>,
        keep: usize,
    ) -> Vec<u32> {
        let mut chosen = Chosen::new(spill);
        let mut passed_over = 0;
        let key_of = |slot: u32| shared.messages[slot].sequence.0;
        for slot in self.lanes[usize::from(level.0)].ready.iter_after(after, key_of).skip(keep) {
            let message = &shared.messages[slot];
            if before.is_some_and(|before| message.sequence.0 >= before) {
                break;
            }
            if message.expires_at() <= shared.time || message.expires_at() < spill.horizon {
                passed_over += 1;
                if passed_over >= spill.messages_max {
                    break;
                }
            } else if !may_move(message, spill) || !chosen.take(shared, slot) {
                break;
            }
        }
        chosen.slots
    }

    /// The messages that are due last, in the order in which they are.
    fn delayed_messages(&self, shared: &Shared, spill: &Spill) -> Vec<u32> {
        let mut chosen = Chosen::new(spill);
        for slot in self.waiting.iter_back() {
            let message = &shared.messages[slot];
            if message.due < spill.horizon || message.due <= shared.time {
                break;
            }
            if may_move(message, spill) && !chosen.take(shared, slot) {
                break;
            }
        }
        chosen.slots.reverse();
        chosen.slots
    }

    /// The messages leave memory as a run.
    fn set_aside(
        &mut self,
        shared: &mut Shared,
        block: BlockId,
        spill: &Spill,
        slots: Vec<u32>,
        kind: RunKind,
    ) -> Spilled {
        if slots.is_empty() || slots.len() < spill.messages_min as usize {
            return Spilled::default();
        }
        let payloads: Vec<PayloadRef> = slots.iter().map(|slot| shared.messages[*slot].payload).collect();
        let bytes = payloads.iter().map(|payload| u64::from(payload.length)).sum();
        let (run, records) = Run::of(shared, kind, &slots);
        // The run is counted before its messages leave: a lane never looks empty in between.
        self.count_run(&run, block, true);
        for slot in &slots {
            self.leave(shared, *slot);
            self.unlist(shared, *slot);
            shared.free(*slot);
        }
        shared.blocks.add(block, self.id, bytes, Some(Box::new(run)));
        shared.blocks.drafts.push(BlockDraft { block, records: records.into(), payloads });
        Spilled { payloads: slots.len() as u32, next: None }
    }

    /// Adds a run to what the queue knows, or takes it out.
    pub(crate) fn count_run(&mut self, run: &Run, block: BlockId, there: bool) {
        let add = |count: &mut u64, n: u64| *count = if there { *count + n } else { *count - n };
        let count = u64::from(run.count);
        add(&mut self.cold, count);
        add(&mut self.cold_body_bytes, run.body_bytes);
        match &run.kind {
            RunKind::Visible(level) => {
                let lane = self.lane(*level);
                add(&mut lane.cold, count);
                if there {
                    lane.runs.insert(run.first, block);
                } else {
                    lane.runs.remove(&run.first);
                }
            }
            RunKind::Delayed(levels) => {
                for (level, count) in levels {
                    add(&mut self.lane(*level).cold_delayed, u64::from(*count));
                }
                if there {
                    self.delayed_runs.insert((run.first, block));
                } else {
                    self.delayed_runs.remove(&(run.first, block));
                }
            }
        }
    }

    /// Payloads move, records stay: those in old log entries, and those in blocks of which little is needed.
    fn move_payloads(
        &mut self,
        shared: &mut Shared,
        block: BlockId,
        spill: &Spill,
        dead: bool,
        after: Option<MessageId>,
    ) -> Spilled {
        let mut chosen = Chosen::new(spill);
        let mut next = None;
        let list = if dead { &self.dead } else { &self.ids };
        let key_of = |slot: u32| shared.messages[slot].id().0;
        let mut seen = after;
        for (looked, slot) in list.iter_after(after.map(|id| id.0), key_of).enumerate() {
            let message = &shared.messages[slot];
            let wanted = match message.payload.place {
                Place::Entry(index) => index <= spill.up_to_index,
                Place::Block(block) => shared.blocks.is_sparse(block),
            };
            if looked >= spill.messages_max as usize || wanted && !chosen.take(shared, slot) {
                next = seen;
                break;
            }
            seen = Some(message.id());
        }
        if chosen.slots.is_empty() {
            return Spilled { payloads: 0, next };
        }
        let payloads: Vec<PayloadRef> =
            chosen.slots.iter().map(|slot| shared.messages[*slot].payload).collect();
        let bytes = payloads.iter().map(|payload| u64::from(payload.length)).sum();
        shared.blocks.add(block, self.id, bytes, None);
        let mut offset = BLOCK_PAYLOAD_PREFIX_BYTES;
        for (slot, PayloadRef { length, .. }) in chosen.slots.iter().zip(&payloads) {
            shared.move_payload(*slot, PayloadRef { place: Place::Block(block), offset, length: *length });
            offset = next_offset(offset, *length);
        }
        shared.blocks.drafts.push(BlockDraft { block, records: bytes::Bytes::new(), payloads });
        Spilled { payloads: chosen.slots.len() as u32, next }
    }

    /// The messages of a run come back into memory; false where the records are not the run's.
    pub(crate) fn thaw(&mut self, shared: &mut Shared, block: BlockId, records: &[u8]) -> bool {
        let Some(run) = shared.blocks.get(block).filter(|block| block.queue == self.id) else { return false };
        let Some(Ok(messages)) = run.run.as_ref().map(|run| read_records(records, block, self.id, run))
        else {
            return false;
        };
        let Some(run) = shared.blocks.take_run(block) else { return false };
        for (message, extra) in messages {
            self.admit(shared, message, extra);
        }
        // Only now: a lane never looks empty in between.
        self.count_run(&run, block, false);
        true
    }

    /// The messages of a run are no more; gives how many there were.
    pub(crate) fn drop_run(&mut self, shared: &mut Shared, block: BlockId) -> u64 {
        let Some(run) = shared.blocks.take_run(block) else { return 0 };
        shared.blocks.forget_if_unneeded(block);
        self.count_run(&run, block, false);
        if let RunKind::Visible(level) = run.kind {
            self.look_at_lane(shared, level);
        }
        self.mark_changed(shared);
        u64::from(run.count)
    }

    /// All messages in runs are no more; gives how many there were.
    pub(crate) fn drop_runs(&mut self, shared: &mut Shared) -> u64 {
        let of_lanes = self.lanes.iter().flat_map(|lane| lane.runs.values().copied());
        let blocks: Vec<BlockId> =
            of_lanes.chain(self.delayed_runs.iter().map(|(_, block)| *block)).collect();
        blocks.into_iter().map(|block| self.drop_run(shared, block)).sum()
    }

    /// Whether a visible message in a run has this sequence.
    pub(crate) fn is_cold(&self, shared: &Shared, sequence: u64) -> bool {
        sequence != NO_SEQUENCE.0
            && self.lanes.iter().any(|lane| {
                let before = lane.runs.range(..=sequence).next_back();
                before
                    .and_then(|(_, block)| shared.blocks.run(*block))
                    .is_some_and(|run| run.has_sequence(sequence))
            })
    }
}

/// A payload that is not on its way through the log while the leader decides.
fn may_move(message: &Message, spill: &Spill) -> bool {
    match message.payload.place {
        Place::Entry(index) => index <= spill.up_to_index,
        Place::Block(_) => true,
    }
}
