//! The words of replication, free of the consensus library's own types: those never leave this crate.

use crate::membership::Membership;
use bytes::Bytes;
use overtake_base::{NodeId, ShardId};

/// Who a group is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupConfig {
    /// The shard.
    pub shard: ShardId,
    /// This node.
    pub node: NodeId,
    /// The voters of a group that has no log yet. None for a replica that comes to a group which exists: it is in no group
    /// and promises nothing before it was given a snapshot.
    pub voters: Vec<NodeId>,
    /// Seed of the election time-outs.
    pub seed: u64,
}

/// One entry of a group's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// Term of the leader that proposed it.
    pub term: u64,
    /// Its place, from 1.
    pub index: u64,
    /// What it is.
    pub kind: EntryKind,
    /// The proposal's bytes, never looked into here. Empty for a new leader's first entry.
    pub data: Bytes,
}

/// Kinds of log entry; the number is the disk's and the wire's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EntryKind {
    /// A proposal (or empty).
    Normal = 0,
    /// A change of membership.
    Membership = 1,
}

/// What a group must remember of its votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HardState {
    /// Newest term seen.
    pub term: u64,
    /// Whom this node voted for in it; 0 = nobody.
    pub vote: u64,
    /// Known to be committed.
    pub commit: u64,
}

/// What a group finds on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveredGroup {
    /// The last one written.
    pub hard_state: HardState,
    /// Index and term that the state machine's checkpoint stands for; 0, 0 = none.
    pub checkpoint: (u64, u64),
    /// Who is in the group, as the checkpoint says; none = the voters of the configuration.
    pub membership: Option<Membership>,
    /// Entries after the checkpoint, without gaps.
    pub entries: Vec<LogEntry>,
    /// What the journal still holds of the entries up to the checkpoint, without gaps: first index and term of each run
    /// of entries of one term. [`GroupOutput::wanted`] asks for them.
    pub older: Vec<(u64, u64)>,
}

/// What a group wants done, taken once a turn. Fill order is meaning: append `entries` and `hard_state` to the journal,
/// send `messages` at once, `messages_after_sync` once the journal batch is durable; apply `committed`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupOutput {
    /// Names this output to [`crate::Group::persisted`]; set where something must become durable.
    pub persist: Option<u64>,
    /// To append; an entry replaces those at its index and after.
    pub entries: Vec<LogEntry>,
    /// To append.
    pub hard_state: Option<HardState>,
    /// Encoded messages to peers.
    pub messages: Vec<(NodeId, Bytes)>,
    /// Encoded messages to peers that promise durability.
    pub messages_after_sync: Vec<(NodeId, Bytes)>,
    /// To apply, in order.
    pub committed: Vec<LogEntry>,
    /// Reads that may be answered once the state machine has applied an index: their numbers, and the index.
    pub reads: Vec<(u64, u64)>,
    /// First indexes of stretches of entries that a follower needs and that are not in memory; to be answered by
    /// [`crate::Group::older_read`].
    pub wanted: Vec<u64>,
    /// The leader has not the entries any more that this follower lacks: it is to be rebuilt from a snapshot.
    pub offer: Option<SnapshotOffer>,
}

/// A leader's offer of a snapshot. Fetching it is not this crate's part; a group that begins anew from it is
/// [`crate::Group::new`], as after a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotOffer {
    /// The leader.
    pub from: NodeId,
    /// Its term.
    pub term: u64,
    /// The snapshot holds this entry at least.
    pub index: u64,
}
