//! Runs from the outside: reads that may have to look into them, and which runs must come back into memory, for a
//! command or because their time comes. Whoever hosts the machine reads blocks; nothing here waits for anything.
//!
//! A read is tried with what has been read so far. Where that is not enough it says which blocks it needs, and is tried
//! again with them.

use crate::answer::{MessageView, Place, ViewState};
use crate::command::{Command, LevelChoice};
use crate::life_cycle::State;
use crate::machine::{Machine, PeekFilter};
use crate::message::{Extra, Message, NO_SEQUENCE, last_error};
use crate::queue::Queue;
use crate::run::{Run, RunKind, Thawed, read_records};
use crate::shared::Shared;
use overtake_base::{BlockId, Level, Malformed, MessageId, QueueId, UnixMillis};
use std::collections::BTreeMap;

/// Records of runs that were read, for one request.
#[derive(Default)]
pub struct Loaded(BTreeMap<BlockId, Vec<Thawed>>);

/// Blocks whose records must be read first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeedsBlocks(pub Vec<BlockId>);

/// What must come before a command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Read these blocks and ask again.
    pub read: Vec<BlockId>,
    /// Thaw the runs of these blocks, each with its queue.
    pub thaw: Vec<BlockId>,
}

impl Needs {
    /// The command can go into the log as it is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read.is_empty() && self.thaw.is_empty()
    }
}

impl Machine {
    /// Messages and dead letters in memory.
    #[must_use]
    pub fn hot_messages(&self) -> usize {
        self.shared.messages.len()
    }

    /// Messages in runs.
    #[must_use]
    pub fn cold_messages(&self) -> u64 {
        self.shared.blocks.cold
    }

    /// The blocks that are needed, whether or not their runs are cold.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.shared.blocks.blocks.keys().copied()
    }

    /// Tells `f` each block that nothing needs any more since the last drain.
    pub fn drain_gone_blocks(&mut self, f: impl FnMut(BlockId)) {
        self.shared.blocks.gone.drain(..).for_each(f);
    }

    /// Log entries that no message in memory has its payload in any more, since the last time.
    pub fn take_emptied_entries(&mut self) -> Vec<u64> {
        self.shared.payloads.take_emptied()
    }

    /// Bytes of payloads that stand in log entries.
    #[must_use]
    pub fn log_payload_bytes(&self) -> u64 {
        self.shared.log_payload_bytes
    }

    /// Whether a message has its payload there.
    #[must_use]
    pub fn holds_payloads(&self, place: Place) -> bool {
        match place {
            Place::Entry(index) => self.shared.payloads.has(index),
            Place::Block(block) => self.shared.blocks.get(block).is_some(),
        }
    }

    /// Tells `f` what is to be written since the last drain.
    pub fn drain_drafts(&mut self, f: impl FnMut(crate::blocks::BlockDraft)) {
        self.shared.blocks.drafts.drain(..).for_each(f);
    }

    /// The queue of a block whose run is cold.
    #[must_use]
    pub fn queue_of_run(&self, block: BlockId) -> Option<QueueId> {
        self.shared.blocks.get(block).filter(|block| block.run.is_some()).map(|block| block.queue)
    }

    /// Adds those of a run's records that a request asks for to what is known to it: it waits with them for other blocks,
    /// and many requests may. A run that is not cold any more adds nothing.
    pub fn load(
        &self,
        block: BlockId,
        records: &[u8],
        wanted: impl Fn(MessageId) -> bool,
        loaded: &mut Loaded,
    ) -> Result<(), Malformed> {
        let Some(found) = self.shared.blocks.get(block) else { return Ok(()) };
        if let Some(run) = &found.run {
            let mut messages = read_records(records, block, found.queue, run)?;
            messages.retain(|(message, _)| wanted(message.id()));
            messages.shrink_to_fit();
            loaded.0.insert(block, messages);
        }
        Ok(())
    }

    /// Up to `limit` messages that `filter` lets through, with ids above `after`, in the order of their ids.
    pub fn peek(
        &self,
        queue: QueueId,
        filter: PeekFilter,
        after: Option<MessageId>,
        limit: usize,
        loaded: &Loaded,
    ) -> Result<Vec<MessageView>, NeedsBlocks> {
        let Some(queue) = self.queues.get(&queue) else { return Ok(Vec::new()) };
        queue.peek(&self.shared, filter, after, limit, loaded)
    }

    /// The message or dead letter with this id.
    pub fn inspect(
        &self,
        queue: QueueId,
        id: MessageId,
        loaded: &Loaded,
    ) -> Result<Option<MessageView>, NeedsBlocks> {
        let Some(queue) = self.queues.get(&queue) else { return Ok(None) };
        let shared = &self.shared;
        if let Some(slot) = queue.find(shared, id) {
            return Ok(Some(queue.view_with_rank(
                shared,
                &shared.messages[slot],
                shared.messages.extra(slot),
            )));
        }
        let found = loaded.find(queue.runs(shared).filter(|(_, run)| run.spans(id)), id)?;
        Ok(found.map(|(_, (message, extra))| queue.view_with_rank(shared, message, extra.as_ref())))
    }

    /// Whether a message with this id lives (a dead letter does) or its window does at `now`. In runs only ids that a client made
    /// are looked for: one that was made here is never made again.
    pub fn id_lookup(
        &self,
        queue: QueueId,
        id: MessageId,
        now: UnixMillis,
        loaded: &Loaded,
    ) -> Result<bool, NeedsBlocks> {
        let Some(queue) = self.queues.get(&queue) else { return Ok(false) };
        let shared = &self.shared;
        if queue.dedup.has_id(id, now.max(shared.time)) || queue.find(shared, id).is_some() {
            return Ok(true);
        }
        Ok(loaded.find(queue.runs(shared).filter(|(_, run)| run.may_hold(id)), id)?.is_some())
    }

    /// What must come before a command: runs that hold a message which it names, and, for leases, those in front of the
    /// first `ahead` messages of each lane that may be asked: with as many as the lease is for it is never short, which
    /// shares and the order over several shards rely on.
    #[must_use]
    pub fn needs(&self, command: &Command, ahead: u64, loaded: &Loaded) -> Needs {
        let mut needs = Needs::default();
        if self.shared.blocks.cold == 0 {
            return needs;
        }
        let (Command::Lease { queue, .. }
        | Command::Cancel { queue, .. }
        | Command::Enqueue { queue, .. }
        | Command::StoreClaimed { queue, .. }) = command
        else {
            return needs;
        };
        let Some(queue) = self.queues.get(queue).filter(|queue| queue.cold > 0) else { return needs };
        let shared = &self.shared;
        let mut by_id = |id: MessageId, may_hold: fn(&Run, MessageId) -> bool| {
            if queue.find(shared, id).is_none() {
                let runs = queue.runs(shared).filter(|(_, run)| may_hold(run, id));
                match loaded.find(runs, id) {
                    Ok(Some((block, _))) => needs.thaw.push(block),
                    Ok(None) => {}
                    Err(NeedsBlocks(blocks)) => needs.read.extend(blocks),
                }
            }
        };
        match command {
            Command::Cancel { id, .. } => by_id(*id, Run::spans),
            // Also those whose windows run: they may have ended when the command is applied.
            Command::Enqueue { messages, .. } => messages
                .iter()
                .filter(|message| message.client_made_id)
                .for_each(|message| by_id(message.id, Run::may_hold)),
            Command::StoreClaimed { message, .. } => by_id(message.id, Run::may_hold),
            Command::Lease { lease, .. } => {
                for level in queue.visible.up_to(queue.least_urgent(&lease.choice)).iter() {
                    needs.thaw.extend(queue.runs_ahead(shared, level, ahead));
                }
            }
            _ => {}
        }
        for list in [&mut needs.read, &mut needs.thaw] {
            list.sort_unstable();
            list.dedup();
        }
        needs
    }

    /// Whether a lease finds `ahead` messages in memory in front of the first run of each level that must be whole for it.
    /// That is the one that it begins with: where it comes to a run of another it ends. A part of a receive over several
    /// shards must not end early where other parts go on to less urgent levels: it needs every level that was picked.
    #[must_use]
    pub fn may_begin(&self, command: &Command, ahead: u64) -> bool {
        let Command::Lease { queue, lease } = command else { return false };
        let Some(queue) = self.queues.get(queue) else { return false };
        let is_whole = |level| queue.runs_ahead(&self.shared, level, ahead).is_empty();
        let picked = match &lease.choice {
            LevelChoice::Picks { picks, .. } => &picks[..],
            LevelChoice::Scheduled | LevelChoice::UpTo(_) => &[],
        };
        queue.first_level(&self.shared, &lease.choice).is_some_and(is_whole)
            && picked.iter().all(|pick| is_whole(queue.level(pick.level)))
    }

    /// Runs that must come back because messages in them expire or are due up to `until`. Those that are over as a whole
    /// within `slack_ms` are left to end as a whole, unless the queue keeps what expires.
    pub fn due_runs(&self, until: UnixMillis, slack_ms: u64) -> impl Iterator<Item = BlockId> + '_ {
        let starts = self.shared.blocks.starts.iter().take_while(move |(at, _)| *at <= until);
        starts.map(|(_, block)| *block).filter(move |block| self.must_thaw(*block, until, slack_ms))
    }

    fn must_thaw(&self, block: BlockId, until: UnixMillis, slack_ms: u64) -> bool {
        let Some(found) = self.shared.blocks.get(block) else { return false };
        let Some(run) = &found.run else { return false };
        let keeps = self.queues.get(&found.queue).is_some_and(|queue| queue.config.dead_letter_expired);
        let (first, last) = run.expires;
        let ends_whole = last <= until || last.since(first) <= slack_ms;
        keeps || !ends_whole || matches!(run.kind, RunKind::Delayed(_))
    }

    /// When the first message in a run expires or is due.
    #[must_use]
    pub fn next_due_run(&self) -> UnixMillis {
        self.shared.blocks.starts.first().map_or(UnixMillis::NEVER, |(at, _)| *at)
    }

    /// When the first message in a run expires or is due, of those that do after `time`.
    #[must_use]
    pub fn next_due_run_after(&self, time: UnixMillis) -> UnixMillis {
        let after = self.shared.blocks.starts.range((time.plus_ms(1), BlockId(0))..).next();
        after.map_or(UnixMillis::NEVER, |(at, _)| *at)
    }

    /// Whether a message in memory has an id that the command names: a spill on its way could take it.
    #[must_use]
    pub fn names_message_in_memory(&self, command: &Command) -> bool {
        let has = |queue: &QueueId, id: MessageId| {
            self.queues.get(queue).is_some_and(|queue| queue.find(&self.shared, id).is_some())
        };
        match command {
            Command::Cancel { queue, id } => has(queue, *id),
            Command::Enqueue { queue, messages } => {
                messages.iter().any(|message| message.client_made_id && has(queue, message.id))
            }
            Command::StoreClaimed { queue, message, .. } => has(queue, message.id),
            _ => false,
        }
    }

    /// Bytes of payloads in blocks whose messages are gone.
    #[must_use]
    pub fn unneeded_bytes(&self) -> u64 {
        let blocks = self.shared.blocks.blocks.iter().filter(|(id, _)| self.shared.blocks.is_sparse(**id));
        blocks.map(|(_, block)| block.bytes - block.live_bytes).sum()
    }

    /// Runs that stand in front of the first `ahead` messages of the queue's lanes.
    #[must_use]
    pub fn runs_ahead(&self, queue: QueueId, ahead: u64) -> Vec<BlockId> {
        let Some(queue) = self.queues.get(&queue).filter(|queue| queue.cold > 0) else { return Vec::new() };
        queue.visible.iter().flat_map(|level| queue.runs_ahead(&self.shared, level, ahead)).collect()
    }

    /// The lane with the most visible messages in memory behind its first run, or behind its first `keep`, and how many. Of
    /// lanes that `may` lets through.
    #[must_use]
    pub fn longest_lane(
        &self,
        keep: u64,
        may: impl Fn(QueueId, Level) -> bool,
    ) -> Option<(QueueId, Level, u64)> {
        let lanes = self.queues.values().flat_map(|queue| {
            queue.visible.iter().map(|level| (queue.id, level, queue.behind(&self.shared, level, keep)))
        });
        lanes
            .filter(|(queue, level, count)| *count > 0 && may(*queue, *level))
            .max_by_key(|(.., count)| *count)
    }

    /// The queue with the most messages in memory that wait for their first visibility, and how many. Of queues that
    /// `may` lets through.
    #[must_use]
    pub fn most_delayed(&self, may: impl Fn(QueueId) -> bool) -> Option<(QueueId, u64)> {
        let queues = self.queues.values().map(|queue| (queue.id, queue.waiting.len() as u64));
        queues.filter(|(queue, count)| *count > 0 && may(*queue)).max_by_key(|(_, count)| *count)
    }
}

impl Loaded {
    /// Messages that were read.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Nothing can be known of this block: its messages are left out.
    pub fn leave_out(&mut self, block: BlockId) {
        self.0.insert(block, Vec::new());
    }

    /// The message with this id, in any of these runs.
    fn find<'a, 'r>(
        &'a self,
        runs: impl Iterator<Item = (BlockId, &'r Run)>,
        id: MessageId,
    ) -> Result<Option<(BlockId, &'a Thawed)>, NeedsBlocks> {
        let mut missing = Vec::new();
        for (block, _) in runs {
            match self.0.get(&block) {
                Some(messages) => {
                    if let Some(found) = messages.iter().find(|(message, _)| message.id() == id) {
                        return Ok(Some((block, found)));
                    }
                }
                None => missing.push(block),
            }
        }
        if missing.is_empty() { Ok(None) } else { Err(NeedsBlocks(missing)) }
    }
}

impl Queue {
    /// The queue's runs: of each lane by sequence, then delayed ones by due time.
    fn runs<'a>(&'a self, shared: &'a Shared) -> impl Iterator<Item = (BlockId, &'a Run)> {
        let of_lanes = self.lanes.iter().flat_map(|lane| lane.runs.values());
        let blocks = of_lanes.chain(self.delayed_runs.iter().map(|(_, block)| block));
        blocks.filter_map(|block| Some((*block, shared.blocks.run(*block)?)))
    }

    /// The lane's first runs, so that `ahead` messages in memory stand before the next one.
    fn runs_ahead(&self, shared: &Shared, level: Level, ahead: u64) -> Vec<BlockId> {
        let lane = &self.lanes[usize::from(level.0)];
        let mut blocks = Vec::new();
        let mut thawed = 0;
        let key_of = |slot: u32| shared.messages[slot].sequence.0;
        for (first, block) in &lane.runs {
            if thawed + lane.ready.rank(*first, key_of) as u64 >= ahead {
                break;
            }
            thawed += shared.blocks.run(*block).map_or(0, |run| u64::from(run.count));
            blocks.push(*block);
        }
        blocks
    }

    /// How many visible messages in memory stand behind the lane's first run, or behind its first `keep`.
    fn behind(&self, shared: &Shared, level: Level, keep: u64) -> u64 {
        let lane = &self.lanes[usize::from(level.0)];
        let key_of = |slot: u32| shared.messages[slot].sequence.0;
        let first_run = lane.runs.first_key_value();
        let before = first_run.map_or(keep, |(first, _)| lane.ready.rank(*first, key_of) as u64);
        (lane.ready.len() as u64).saturating_sub(before)
    }

    fn peek(
        &self,
        shared: &Shared,
        filter: PeekFilter,
        after: Option<MessageId>,
        limit: usize,
        loaded: &Loaded,
    ) -> Result<Vec<MessageView>, NeedsBlocks> {
        let fits = |message: &Message| {
            let state = match message.state {
                State::Visible => filter.visible,
                State::Delayed => filter.delayed,
                State::Leased => filter.leased,
                State::Dead | State::Gone => false,
            };
            state
                && filter.priority.is_none_or(|level| level == message.level)
                && after.is_none_or(|after| message.id() > after)
        };
        let key_of = |slot: u32| shared.messages[slot].id().0;
        let hot = self.ids.iter_after(after.map(|id| id.0), key_of);
        let hot = hot.filter(|slot| fits(&shared.messages[*slot])).take(limit);
        let mut views: Vec<MessageView> =
            hot.map(|slot| view(&shared.messages[slot], shared.messages.extra(slot), None)).collect();
        let may_have = |run: &Run| match &run.kind {
            RunKind::Visible(level) => filter.visible && filter.priority.is_none_or(|only| only == *level),
            RunKind::Delayed(levels) => {
                filter.delayed
                    && filter.priority.is_none_or(|only| levels.iter().any(|(level, _)| only == *level))
            }
        };
        let mut runs: Vec<(MessageId, BlockId)> = self
            .runs(shared)
            .filter(|(_, run)| may_have(run) && after.is_none_or(|after| run.ids.1 > after))
            .map(|(block, run)| (run.ids.0, block))
            .collect();
        runs.sort_unstable();
        for (lowest, block) in runs {
            // All that follow begin even later.
            if limit == 0 || views.get(limit - 1).is_some_and(|last| last.id < lowest) {
                break;
            }
            let Some(messages) = loaded.0.get(&block) else { return Err(NeedsBlocks(vec![block])) };
            let found = messages.iter().filter(|(message, _)| fits(message));
            views.extend(found.map(|(message, extra)| view(message, extra.as_ref(), None)));
            views.sort_unstable_by_key(|view| view.id);
            views.truncate(limit);
        }
        Ok(views)
    }

    fn view_with_rank(&self, shared: &Shared, message: &Message, extra: Option<&Extra>) -> MessageView {
        let visible = message.state == State::Visible;
        let last_error = extra.and_then(last_error).map(Into::into);
        MessageView { last_error, ..view(message, extra, visible.then(|| self.rank(shared, message))) }
    }

    /// Visible messages of more urgent levels, and of its own level before it.
    fn rank(&self, shared: &Shared, message: &Message) -> u64 {
        let (level, sequence) = (usize::from(message.level.0), message.sequence.0);
        let more_urgent: u64 = self.lanes[..level].iter().map(crate::lane::Lane::visible).sum();
        let lane = &self.lanes[level];
        let hot = lane.ready.rank(sequence, |slot| shared.messages[slot].sequence.0) as u64;
        let runs = lane.runs.range(..sequence).filter_map(|(_, block)| shared.blocks.run(*block));
        more_urgent + hot + runs.map(|run| run.rank(sequence)).sum::<u64>()
    }
}

fn view(message: &Message, extra: Option<&Extra>, ahead: Option<u64>) -> MessageView {
    let worker = || extra.and_then(|extra| extra.worker.as_deref()).map(Into::into);
    MessageView {
        id: message.id(),
        priority: message.level,
        state: match message.state {
            State::Visible => ViewState::Visible { ahead },
            State::Delayed => ViewState::Delayed { until: message.due },
            State::Leased => ViewState::Leased { expires_at: message.due, worker: worker() },
            State::Dead | State::Gone => ViewState::Dead,
        },
        deliveries: message.deliveries,
        enqueued_at: message.enqueued_at,
        sequence: (message.sequence != NO_SEQUENCE).then_some(message.sequence),
        last_error: None,
        payload: message.payload,
    }
}
