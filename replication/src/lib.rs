//! Raft groups. A [`Group`] is one replica of one replicated log: entries are proposed to it, ticks and peers'
//! messages are stepped into it, and once a turn it says what to write, send and apply. It never looks inside an entry.
//!
//! Consensus itself is the `raft` crate's; its types never leave this crate. What is ours around it:
//!
//! * [`types`]: the words (what a group is told and what it wants done);
//! * `recovery`: refuses what was read from disk where consensus could not go on from it;
//! * `tail`: the part of the log that is kept in memory; `older`: the part that is not;
//! * `snapshot`: what a leader and a follower say to each other where the log does not reach back far enough;
//! * `membership`: who votes, and changes of that;
//! * `message`: the bytes of peers' messages;
//! * `guard`: refuses peers' messages that consensus would panic on;
//! * `group`: the turn: inputs in, one output out, several outputs on their way to the disk at once.
//!
//! Deterministic: time is a count of ticks, and election time-outs come from a seeded stream.

mod error;
mod group;
mod guard;
mod membership;
mod message;
mod older;
mod recovery;
mod snapshot;
mod tail;
pub mod types;

pub use error::GroupError;
pub use group::{ELECTION_TICKS, ENTRY_BYTES_MAX, Group, HEARTBEAT_TICKS, UNCOMMITTED_BYTES_MAX};
pub use membership::{Membership, MembershipChange, Role};
pub use types::{EntryKind, GroupConfig, GroupOutput, HardState, LogEntry, RecoveredGroup, SnapshotOffer};

/// Terms and log places stay below this, whatever a disk or a peer says, so that adding to them never overflows.
const NUMBER_MAX: u64 = 1 << 62;
