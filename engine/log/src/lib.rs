//! The journal of a core: batches, segments, checkpoints and recovery, as a state machine over a disk seam.
//!
//! Read [`disk`] (the seam), then the formats from the smallest up ([`record`], [`batch`], [`segment`],
//! [`checkpoint`]), then [`Journal`] (writing) and [`Recovery`] (opening). Everything is deterministic: operations go
//! out, completions come in, nothing else. [`lanes`] keeps blocks of cold messages in files of its own; [`examine`] looks
//! through a folder for operators.

pub mod batch;
pub mod checkpoint;
mod config;
pub mod disk;
mod error;
pub mod examine;
pub mod header;
mod index;
mod inventory;
mod journal;
pub mod lanes;
mod layout;
mod load;
pub mod mark;
pub mod record;
mod recovery;
mod replay;
mod scan;
mod scrub;
pub mod segment;
mod segments;
#[cfg(test)]
mod tests;
mod writer;

pub use config::{BatchNumber, JournalConfig, segment_bytes_min};
pub use error::{JournalError, RESTORE};
pub use journal::{CheckpointWritten, Completed, EntryRead, Journal, JournalUsage, ReadError};
pub use layout::{Field, contiguous, field, layout, layout_of};
pub use record::Record;
pub use recovery::{Recovered, Recovery, RecoveryReport};
pub use replay::{CheckpointFound, RecoveredEntry, RecoveredShard};
pub use scan::CutTail;
pub use scrub::Scrubbed;
