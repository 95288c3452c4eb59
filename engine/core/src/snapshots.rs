//! Replicas that are rebuilt from another one: those that lack more than the logs of the others reach back to.
//!
//! A snapshot is the state of a shard at one index of its log, as a checkpoint has it, and the older log entries that the
//! state refers to. It travels in *parts* that the replica which is rebuilt asks for one by one: first the entries, up to
//! where the log is by then (they are the same on every replica and never change, so what has arrived is of use whoever
//! sends the rest), then the state at the index where the entries end, then the blocks of cold messages that the state names
//! and the replica lacks (also the same everywhere). `give` is the side that has it, `take` the other.
//!
//! Only one part is under way at a time, the next one is asked for when this one is durable, and none is given while the
//! giver's own journal has much to write: live traffic comes first.

mod give;
mod take;

use crate::cluster::Address;
use overtake_base::hash::Map;
use overtake_base::{BlockId, ShardId};
use overtake_replication::types::LogEntry;
use std::collections::{BTreeMap, VecDeque};

/// Nobody asked for so long, in nanoseconds: a snapshot that was given is not kept any more, nor the log after it.
const KEEP_NS: u64 = 10_000_000_000;

/// A part of a snapshot.
#[derive(Clone, Debug)]
pub enum SnapshotPart {
    /// Entries without a gap; the snapshot needs those from `first` on.
    Entries { first: u64, entries: Vec<LogEntry> },
    /// Some bytes of the state.
    State(StatePart),
    /// Some bytes of a block.
    Block(BlockBytes),
}

/// Some bytes of a block of cold messages.
#[derive(Clone, Debug)]
pub struct BlockBytes {
    /// Which.
    pub block: BlockId,
    /// Length of its records, which come first.
    pub records: u64,
    /// Length of all of it.
    pub length: u64,
    /// Where the bytes belong.
    pub offset: u64,
    /// The bytes.
    pub bytes: bytes::Bytes,
}

/// Some bytes of a state.
#[derive(Clone, Debug)]
pub struct StatePart {
    /// The state's.
    pub head: StateHead,
    /// Where they belong.
    pub offset: u64,
    /// The bytes.
    pub bytes: bytes::Bytes,
}

/// A state, as its parts name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateHead {
    /// Last entry that it contains.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The oldest entry that it refers to; one more than `index` where there is none.
    pub first: u64,
    /// Its length.
    pub bytes: u64,
    /// Its checksum.
    pub checksum: u64,
}

/// What a replica that is rebuilt has, and so which part it wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotAsk {
    /// The shard.
    pub shard: ShardId,
    /// Names the part in the answer.
    pub number: u64,
    /// First and last of the entries that it holds beside its log.
    pub staged: Option<(u64, u64)>,
    /// The index of the state of which it has so many bytes.
    pub state: Option<(u64, u64)>,
    /// The block that it lacks, once it has the whole state, and of which it has so many bytes.
    pub block: Option<(u64, u64)>,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Snapshots {
    outgoing: BTreeMap<ShardId, give::Outgoing>,
    asks: VecDeque<(Address, SnapshotAsk)>,
    /// Entries that are being read for a part.
    readings: Map<u64, give::Reading>,
    /// Blocks that are being read for a part.
    block_readings: Map<u64, (Address, SnapshotAsk)>,
    /// Until then no more messages are taken out of memory, so that a state can be taken that only knows durable blocks.
    hold_spills_ns: u64,
    next_part_ns: u64,
    wake_ns: Option<u64>,
    incoming: BTreeMap<ShardId, take::Incoming>,
    /// Replicas of this core that were rebuilt.
    pub(crate) rebuilt: u64,
}

impl Snapshots {
    /// The first entry of a shard that must be kept for whoever is being rebuilt.
    pub(crate) fn first_kept(&self, shard: ShardId) -> u64 {
        self.outgoing.get(&shard).map_or(u64::MAX, give::Outgoing::first_kept)
    }

    /// What comes in and goes out of a shard, in words.
    pub(crate) fn in_words(&self, shard: ShardId) -> String {
        let incoming = self.incoming.get(&shard).map(take::Incoming::in_words).unwrap_or_default();
        let gives = if self.outgoing.contains_key(&shard) { ", gives a snapshot" } else { "" };
        format!("{incoming}{gives}")
    }

    /// The shard is not here any more.
    pub(crate) fn forget(&mut self, shard: ShardId) {
        self.outgoing.remove(&shard);
        self.incoming.remove(&shard);
        self.asks.retain(|(_, ask)| ask.shard != shard);
    }

    /// Blocks of the shard must be kept for whoever is being rebuilt.
    pub(crate) fn keeps_blocks(&self, shard: ShardId) -> bool {
        self.outgoing.contains_key(&shard)
    }

    /// No more messages are to be taken out of memory now.
    pub(crate) fn holds_spills(&self, now_ns: u64) -> bool {
        now_ns < self.hold_spills_ns
    }

    /// When something is to be done though nothing happened.
    pub(crate) fn next_wake(&self) -> Option<u64> {
        self.wake_ns
    }
}
