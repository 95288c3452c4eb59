//! Replicas that are rebuilt from another one: those that lack more than the logs of the others reach back to.
//!
//! A snapshot is the state of a shard at one index of its log, as a checkpoint has it, and the older log entries that the
//! state refers to. It travels in *parts* that the replica which is rebuilt asks for one by one: first the entries, up to
//! where the log is by then (they are the same on every replica and never change, so what has arrived is of use whoever
//! sends the rest), then the state at the index where the entries end. `give` is the side that has it, `take` the other.
//!
//! Only one part is under way at a time, the next one is asked for when this one is durable, and none is given while the
//! giver's own journal has much to write: live traffic comes first.

mod give;
mod take;

use crate::cluster::Address;
use overtake_base::ShardId;
use overtake_base::hash::Map;
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
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Snapshots {
    outgoing: BTreeMap<ShardId, give::Outgoing>,
    asks: VecDeque<(Address, SnapshotAsk)>,
    /// Entries that are being read for a part.
    readings: Map<u64, give::Reading>,
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

    /// When something is to be done though nothing happened.
    pub(crate) fn next_wake(&self) -> Option<u64> {
        self.wake_ns
    }
}
