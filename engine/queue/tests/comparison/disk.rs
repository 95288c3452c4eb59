//! Where a pair's blocks are: the leader's part in a test. It writes what spills draft, reads what reads need, and thaws
//! before a batch whatever of runs the batch comes across, so that all answers are those of a machine without runs.

use super::{Difference, EVERYTHING, Pair, hold, same};
use bytes::Bytes;
use overtake_base::limits::BLOCK_PAYLOAD_PREFIX_BYTES;
use overtake_base::{BlockId, MessageId, QueueId, UnixMillis};
use overtake_queue::answer::{Answer, DeadLetterView, MessageView, PayloadRef, Place};
use overtake_queue::cold::{Loaded, NeedsBlocks};
use overtake_queue::command::Command;
use overtake_queue::machine::{Machine, PeekFilter};
use std::collections::BTreeMap;

struct Stored {
    records: Bytes,
    /// Each payload's place in the block, and where it stood when its message was enqueued.
    payloads: BTreeMap<u32, PayloadRef>,
}

#[derive(Default)]
pub struct Disk {
    blocks: BTreeMap<BlockId, Stored>,
    /// What was done, so that a test can see that it was.
    pub spilled: u64,
    pub moved: u64,
    pub thawed: u64,
}

impl Disk {
    /// Writes what was drafted.
    pub fn take_drafts(&mut self, machine: &mut Machine) {
        machine.drain_drafts(|draft| {
            let mut payloads = BTreeMap::new();
            let mut offset = BLOCK_PAYLOAD_PREFIX_BYTES;
            for payload in &draft.payloads {
                payloads.insert(offset, self.origin(*payload).expect("a payload is somewhere"));
                offset += payload.length + BLOCK_PAYLOAD_PREFIX_BYTES;
            }
            *if draft.records.is_empty() { &mut self.moved } else { &mut self.spilled } +=
                payloads.len() as u64;
            self.blocks.insert(draft.block, Stored { records: draft.records, payloads });
        });
    }

    /// Drops what the machine does not need any more; nothing else is unneeded then.
    pub fn drop_gone(&mut self, machine: &mut Machine) -> Result<(), Difference> {
        let mut all_there = true;
        machine.drain_gone_blocks(|block| all_there &= self.blocks.remove(&block).is_some());
        hold("a block is gone once", all_there)?;
        let kept: Vec<BlockId> = self.blocks.keys().copied().collect();
        same("blocks", &machine.blocks().collect(), &kept)
    }

    /// Where the payload stood when its message was enqueued.
    fn origin(&self, payload: PayloadRef) -> Result<PayloadRef, Difference> {
        let Place::Block(block) = payload.place else { return Ok(payload) };
        let found = self.blocks.get(&block).and_then(|stored| stored.payloads.get(&payload.offset));
        match found {
            Some(origin) if origin.length == payload.length => Ok(*origin),
            _ => Err(format!("nothing stands at {payload:?}")),
        }
    }

    pub fn resolve_answers(&self, answers: &mut [Answer]) -> Result<(), Difference> {
        for answer in answers {
            if let Answer::Leased(deliveries) = answer {
                for delivery in deliveries {
                    delivery.payload = self.origin(delivery.payload)?;
                }
            }
        }
        Ok(())
    }

    /// Reads, with one block more at each try, as a core does.
    pub fn read<T>(
        &self,
        machine: &Machine,
        read: impl Fn(&Machine, &Loaded) -> Result<T, NeedsBlocks>,
    ) -> T {
        let mut loaded = Loaded::default();
        loop {
            match read(machine, &loaded) {
                Ok(found) => return found,
                Err(NeedsBlocks(blocks)) => self.load(machine, &blocks, &mut loaded),
            }
        }
    }

    fn load(&self, machine: &Machine, blocks: &[BlockId], loaded: &mut Loaded) {
        assert!(!blocks.is_empty(), "a read needs nothing and fails");
        for block in blocks {
            machine.load(*block, &self.blocks[block].records, |_| true, loaded).expect("records are whole");
        }
    }

    /// The lowest log index of an entry with a payload that is needed.
    pub fn oldest_entry(&self, machine: &Machine) -> Option<u64> {
        let of_queue = |queue| {
            let views = self
                .read(machine, |machine, loaded| machine.peek(queue, EVERYTHING, None, usize::MAX, loaded));
            let dead = machine.dead_letters(queue, None, usize::MAX);
            let payloads = views.into_iter().map(|view| view.payload);
            payloads.chain(dead.into_iter().map(|view| view.payload)).collect::<Vec<_>>()
        };
        let index = |payload: PayloadRef| match payload.place {
            Place::Entry(index) => Some(index),
            Place::Block(_) => None,
        };
        machine.queues().flat_map(of_queue).filter_map(index).min()
    }

    fn thaw(&self, machine: &Machine, block: BlockId) -> Command {
        let queue = machine.queue_of_run(block).expect("a run is needed that is there");
        Command::Thaw { queue, block, records: self.blocks[&block].records.clone() }
    }
}

impl Pair {
    /// When something happens by itself, in memory or in a run.
    pub fn deadline(&self) -> UnixMillis {
        self.machine.next_deadline().min(self.machine.next_due_run())
    }

    pub fn peek(
        &self,
        queue: QueueId,
        filter: PeekFilter,
        after: Option<MessageId>,
        limit: usize,
    ) -> Vec<MessageView> {
        let read = |machine: &Machine, loaded: &Loaded| machine.peek(queue, filter, after, limit, loaded);
        let mut views = self.disk.read(&self.machine, read);
        for view in &mut views {
            view.payload = self.disk.origin(view.payload).expect("a viewed payload is somewhere");
        }
        views
    }

    pub fn inspect(&self, queue: QueueId, id: MessageId) -> Option<MessageView> {
        let mut view = self.disk.read(&self.machine, |machine, loaded| machine.inspect(queue, id, loaded))?;
        view.payload = self.disk.origin(view.payload).expect("a viewed payload is somewhere");
        Some(view)
    }

    pub fn dead_letters(
        &self,
        queue: QueueId,
        after: Option<MessageId>,
        limit: usize,
    ) -> Vec<DeadLetterView> {
        let mut views = self.machine.dead_letters(queue, after, limit);
        for view in &mut views {
            view.payload = self.disk.origin(view.payload).expect("a viewed payload is somewhere");
        }
        views
    }

    /// Before time goes on: runs of which a part, not all, is over by then.
    pub fn thaw_due(&mut self, time: UnixMillis) -> Result<(), Difference> {
        let blocks: Vec<BlockId> = self.machine.due_runs(time.max(self.now()), 0).collect();
        self.thaw_blocks(self.now(), &blocks)
    }

    /// Before a batch, at its time: runs that its commands come across.
    pub fn thaw_needed(&mut self, time: UnixMillis, commands: &[Command]) -> Result<(), Difference> {
        if self.machine.cold_messages() == 0 {
            return Ok(());
        }
        // Leases and cancels of the batch take from what is in memory.
        let taken = |command: &Command| match command {
            Command::Lease { lease, .. } => u64::from(lease.max),
            Command::Cancel { .. } => 1,
            _ => 0,
        };
        let ahead = commands.iter().map(taken).sum();
        if ahead > 0 {
            // What time takes away is gone before it is counted.
            self.thaw_blocks(time, &[])?;
        }
        let mut loaded = Loaded::default();
        loop {
            let (mut read, mut thaw) = (Vec::new(), Vec::new());
            for command in commands {
                let needs = self.machine.needs(command, ahead, &loaded);
                read.extend(needs.read);
                thaw.extend(needs.thaw);
            }
            if read.is_empty() && thaw.is_empty() {
                return Ok(());
            }
            if !read.is_empty() {
                self.disk.load(&self.machine, &read, &mut loaded);
            }
            if !thaw.is_empty() {
                thaw.sort_unstable();
                thaw.dedup();
                self.thaw_blocks(time, &thaw)?;
            }
        }
    }

    /// An entry of thaws only; to the model a tick.
    pub fn thaw_blocks(&mut self, time: UnixMillis, blocks: &[BlockId]) -> Result<(), Difference> {
        if blocks.is_empty() && time <= self.now() {
            return Ok(());
        }
        let thaws: Vec<Command> = blocks.iter().map(|block| self.disk.thaw(&self.machine, *block)).collect();
        self.disk.thawed += thaws.len() as u64;
        let (answers, expected) = self.apply_only(time, &thaws)?;
        same("answers to thaws", &answers, &expected)?;
        let cold = |block: &BlockId| self.machine.queue_of_run(*block).is_some();
        hold("a thawed run is cold", !blocks.iter().any(cold))
    }

    /// Any run that is cold, for a thaw that nothing needs.
    pub fn some_run(&self, pick: usize) -> Option<BlockId> {
        let runs: Vec<BlockId> =
            self.machine.blocks().filter(|block| self.machine.queue_of_run(*block).is_some()).collect();
        (!runs.is_empty()).then(|| runs[pick % runs.len()])
    }

    /// A thaw with records that are not the run's changes nothing.
    pub fn thaw_wrongly(&mut self, block: BlockId) -> Result<(), Difference> {
        let Command::Thaw { queue, records, .. } = self.disk.thaw(&self.machine, block) else {
            return Ok(());
        };
        let other = QueueId(queue.0 + 1_000);
        let commands = [
            Command::Thaw { queue, block, records: records.slice(..records.len() - 1) },
            Command::Thaw { queue: other, block, records: records.clone() },
            Command::Thaw { queue, block: BlockId(block.0 + 1_000_000), records },
        ];
        let runs_before = self.machine.cold_messages();
        self.apply_only(self.now(), &commands)?;
        same("messages in runs", &self.machine.cold_messages(), &runs_before)
    }
}
