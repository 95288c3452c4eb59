//! What the journal answers: outcomes of reads and checkpoints, and figures.

use crate::error::JournalError;
use crate::scrub::Scrubbed;
use bytes::Bytes;
use overtake_base::ShardId;

/// Why an entry could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// The entry was released or replaced in the meantime.
    Gone,
    /// What the disk answered is not what was written: the shard's replica here must not be trusted any more.
    Damaged(JournalError),
}

/// The answer to [`Journal::read_entry`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryRead {
    /// The caller's.
    pub token: u64,
    /// The shard.
    pub shard: ShardId,
    /// The entry's index.
    pub index: u64,
    /// What it is.
    pub kind: u8,
    /// The entry's data.
    pub result: Result<Bytes, ReadError>,
}

/// The answer to [`Journal::write_checkpoint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointWritten {
    /// The shard.
    pub shard: ShardId,
    /// Index of the checkpoint.
    pub index: u64,
    /// False: the disk is full; the checkpoint before is still the newest.
    pub written: bool,
}

/// What one completion brought.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Completed {
    /// [`Journal::durable`] has moved.
    pub durable_moved: bool,
    /// Entries read.
    pub reads: Vec<EntryRead>,
    /// A checkpoint that is written, or found no room.
    pub checkpoint: Option<CheckpointWritten>,
    /// What came of a piece of the scrub.
    pub scrubbed: Option<Scrubbed>,
}

/// Figures for metrics and for deciding about checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalUsage {
    /// Segments that hold what is needed.
    pub segments_live: usize,
    /// Segments ready to be written.
    pub segments_ready: usize,
    /// Files that are not needed.
    pub segments_free: usize,
    /// Length of all segment files, in bytes.
    pub file_bytes: u64,
    /// Bytes written as batches since a segment was last freed.
    pub bytes_since_recycle: u64,
    /// Bytes written as batches since the journal was opened.
    pub bytes_written: u64,
    /// Batches of those.
    pub batches_written: u64,
    /// Entries in the index.
    pub index_entries: usize,
    /// Bytes appended that are not durable yet.
    pub backlog_bytes: usize,
    /// Batches being written.
    pub writes_in_flight: usize,
}
