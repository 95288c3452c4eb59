//! The blocks of a shard: which there are, what of them is needed, which run of cold messages each holds, and when a run
//! must be looked at. What a block's bytes are and where they stand on a disk is not known here.
//!
//! A block is made by one spill and named by the index of its log entry. It holds payloads, and where it was made of a
//! lane or of delayed messages also their records: a *run*. While the run is cold all of the block is needed; afterwards
//! as much of it as there are messages in memory whose payloads stand in it. A block that nothing needs is gone.

use crate::answer::PayloadRef;
use crate::run::{Run, RunKind};
use bytes::Bytes;
use overtake_base::limits::BLOCK_PAYLOAD_PREFIX_BYTES;
use overtake_base::{BlockId, QueueId, UnixMillis};
use std::collections::{BTreeMap, BTreeSet};

/// What is to be written as a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockDraft {
    /// Its name.
    pub block: BlockId,
    /// The records of its run; empty where it only holds payloads.
    pub records: Bytes,
    /// Where its payloads stand now, in their order in the block. The first one begins at
    /// [`BLOCK_PAYLOAD_PREFIX_BYTES`], each following one so many bytes behind the end of the one before.
    pub payloads: Vec<PayloadRef>,
}

/// What is known of a block.
pub(crate) struct Block {
    pub(crate) queue: QueueId,
    /// Bytes of all its payloads.
    pub(crate) bytes: u64,
    /// Payloads that are needed, and their bytes.
    pub(crate) live: u32,
    pub(crate) live_bytes: u64,
    /// The run, while its messages are not in memory.
    pub(crate) run: Option<Box<Run>>,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Blocks {
    pub(crate) blocks: BTreeMap<BlockId, Block>,
    /// Runs by when the first of their messages expires or is due.
    pub(crate) starts: BTreeSet<(UnixMillis, BlockId)>,
    /// Runs of visible messages by when the last of their messages expires, and that one's place among timers of the same
    /// millisecond.
    pub(crate) ends: BTreeSet<(UnixMillis, u64, BlockId)>,
    /// Blocks that nothing needs any more, until someone asks.
    pub(crate) gone: Vec<BlockId>,
    /// Blocks to be written, until someone asks.
    pub(crate) drafts: Vec<BlockDraft>,
    /// Messages in runs.
    pub(crate) cold: u64,
    /// The newest block: an entry makes one at most.
    last_made: BlockId,
}

/// Where the payload comes to stand that is put behind `bytes` of others.
pub(crate) fn next_offset(at: u32, length: u32) -> u32 {
    at.saturating_add(length).saturating_add(BLOCK_PAYLOAD_PREFIX_BYTES)
}

impl Blocks {
    pub(crate) fn get(&self, block: BlockId) -> Option<&Block> {
        self.blocks.get(&block)
    }

    /// The block's run, while it is cold.
    pub(crate) fn run(&self, block: BlockId) -> Option<&Run> {
        self.blocks.get(&block)?.run.as_deref()
    }

    /// Whether the entry of this index may make a block.
    pub(crate) fn may_make(&self, id: BlockId) -> bool {
        self.last_made < id
    }

    /// A new block; payloads are still to come where it has no run.
    pub(crate) fn add(&mut self, id: BlockId, queue: QueueId, bytes: u64, run: Option<Box<Run>>) {
        let mut block = Block { queue, bytes, live: 0, live_bytes: 0, run: None };
        if let Some(run) = run {
            block.live = run.count;
            block.live_bytes = bytes;
            self.cold += u64::from(run.count);
            self.starts.insert((run.starts_at(), id));
            if matches!(run.kind, RunKind::Visible(_)) {
                self.ends.insert((run.expires.1, run.last_order, id));
            }
            block.run = Some(run);
        }
        self.last_made = self.last_made.max(id);
        self.blocks.insert(id, block);
    }

    /// Takes the run out of its block. All payloads of it are unneeded until someone says otherwise.
    pub(crate) fn take_run(&mut self, id: BlockId) -> Option<Box<Run>> {
        let block = self.blocks.get_mut(&id)?;
        let run = block.run.take()?;
        block.live = 0;
        block.live_bytes = 0;
        self.cold -= u64::from(run.count);
        self.starts.remove(&(run.starts_at(), id));
        self.ends.remove(&(run.expires.1, run.last_order, id));
        Some(run)
    }

    /// Forgets the block if nothing in it is needed.
    pub(crate) fn forget_if_unneeded(&mut self, id: BlockId) {
        if self.blocks.get(&id).is_some_and(|block| block.live == 0) {
            self.blocks.remove(&id);
            self.gone.push(id);
        }
    }

    pub(crate) fn payload_here(&mut self, id: BlockId, length: u32) {
        if let Some(block) = self.blocks.get_mut(&id) {
            block.live += 1;
            block.live_bytes += u64::from(length);
        }
    }

    pub(crate) fn payload_gone(&mut self, id: BlockId, length: u32) {
        if let Some(block) = self.blocks.get_mut(&id) {
            block.live -= 1;
            block.live_bytes -= u64::from(length);
            self.forget_if_unneeded(id);
        }
    }

    /// Little of the block is needed, and that is in memory: moving it is worth it.
    pub(crate) fn is_sparse(&self, id: BlockId) -> bool {
        self.blocks.get(&id).is_some_and(|block| block.run.is_none() && block.live_bytes * 2 < block.bytes)
    }
}
