//! What a journal is told when it is made.

use crate::batch::whole_blocks;
use crate::disk::BLOCK_BYTES;
use crate::error::JournalError;
use crate::{batch, record};
use overtake_base::CoreId;

/// Number of a batch, from 1, without gaps.
pub type BatchNumber = u64;

/// How a core's journal is laid out and paced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalConfig {
    /// Identity of the data folder; it is in every header.
    pub store: u128,
    /// The core.
    pub core: CoreId,
    /// A journal was begun in this folder before: a folder without one has lost it, and is not new.
    pub begun: bool,
    /// Length of a segment in bytes: a multiple of [`BLOCK_BYTES`], [`segment_bytes_min`] at least, below 4 GiB. It
    /// cannot be changed for a folder that holds a journal.
    pub segment_bytes: u64,
    /// Batches under way at the same time, 1 at least.
    pub writes_in_flight_max: usize,
    /// Longest data of one record, at most [`record::DATA_BYTES_MAX`]. Shorter records allow shorter segments.
    pub record_bytes_max: usize,
    /// A batch is closed before it grows past this many bytes; one record larger than this is a batch of its own.
    pub batch_bytes_max: usize,
    /// Segments kept ready beyond the reserve of one.
    pub segments_ahead: u32,
    /// Segments that are not needed any more and are kept to be written again, unless the disk is full: more come free at
    /// a time where checkpoints are far apart, and a new file costs as many bytes as are written into it.
    pub segments_free_max: u32,
}

/// Shortest segment that holds a record of `record_bytes` of data.
#[must_use]
pub const fn segment_bytes_min(record_bytes: usize) -> u64 {
    (BLOCK_BYTES + whole_blocks(batch::HEADER_BYTES + record::HEADER_BYTES + record_bytes)) as u64
}

impl JournalConfig {
    /// Fails with the value that cannot work.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        let error = |detail: String| Err(JournalError::Config(detail));
        if self.record_bytes_max > record::DATA_BYTES_MAX {
            return error(format!(
                "records of {} bytes; {} at most",
                self.record_bytes_max,
                record::DATA_BYTES_MAX
            ));
        }
        let min = segment_bytes_min(self.record_bytes_max);
        if self.segment_bytes < min
            || self.segment_bytes > u64::from(u32::MAX)
            || !self.segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
        {
            return error(format!(
                "a segment of {} bytes; it must be a multiple of {BLOCK_BYTES}, from {min} to {}",
                self.segment_bytes,
                u32::MAX
            ));
        }
        if self.writes_in_flight_max == 0 {
            return error("at least one write must be allowed in flight".into());
        }
        if self.batch_bytes_max < BLOCK_BYTES {
            return error(format!(
                "a batch of at most {} bytes; {BLOCK_BYTES} at least",
                self.batch_bytes_max
            ));
        }
        Ok(())
    }
}
