//! The journal's part of the scrub: batch after batch of the live segments, from the oldest to the newest durable one.

use super::{Completed, Journal, Purpose};
use crate::batch::{BatchHeader, SealedHeader};
use crate::disk::{BLOCK_BYTES, DiskDone, DiskError, DiskOperation, DiskOperationKind, FileName};
use crate::error::JournalError;
use crate::index::Position;
use crate::scrub::Scrubbed;

/// A piece being read: a batch's first block, and then all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ScrubRead {
    file: u32,
    at: Position,
    length: u32,
}

impl Journal {
    /// Reads the next batch to see whether it is still what was written; [`Completed::scrubbed`] tells. False: the last
    /// one has been read, and the next call begins anew. One at a time.
    pub fn scrub(&mut self, out: &mut Vec<DiskOperation>) -> bool {
        let first = Position { sequence: self.segments.oldest_sequence(), offset: BLOCK_BYTES as u64 };
        // Segments may have been freed since.
        let at = self.scrub_at.filter(|at| *at >= first).unwrap_or(first);
        self.scrub_at = Some(at);
        let more = at < self.writer.durable_end() && self.start_scrub(at, BLOCK_BYTES as u32, out);
        if !more {
            self.scrub_at = None;
        }
        more
    }

    fn start_scrub(&mut self, at: Position, length: u32, out: &mut Vec<DiskOperation>) -> bool {
        let Some(file) = self.segments.get_mut(at.sequence).and_then(|live| live.file) else { return false };
        let kind = DiskOperationKind::Read { file: FileName::Segment(file), offset: at.offset, length };
        self.start(Purpose::Scrub(ScrubRead { file, at, length }), kind, out);
        true
    }

    /// What a piece was read as.
    pub(super) fn scrub_read(
        &mut self,
        read: ScrubRead,
        result: Result<DiskDone, DiskError>,
        completed: &mut Completed,
        out: &mut Vec<DiskOperation>,
    ) -> Result<(), JournalError> {
        let ScrubRead { file, at, length } = read;
        let live = self.segments.get_mut(at.sequence).filter(|live| live.file == Some(file));
        let Some(last_batch) = live.map(|live| live.last_batch) else {
            // It was freed meanwhile, and may be another one by now.
            completed.scrubbed = Some(Scrubbed { bytes: 0, damage: None });
            return Ok(());
        };
        let bytes = match result {
            Ok(DiskDone::Read(bytes)) => bytes,
            Ok(_) => return Err(JournalError::Disk("a read answered no bytes".into())),
            Err(error) => return Err(JournalError::Disk(error.detail)),
        };
        let next_segment = Position { sequence: at.sequence + 1, offset: BLOCK_BYTES as u64 };
        let damage = match self.scrub_header(at, &bytes) {
            // The batches after it in this segment cannot be found without it.
            Err(detail) => {
                self.scrub_at = Some(next_segment);
                Some(detail)
            }
            Ok(sealed) => {
                let whole = sealed.header.batch_bytes();
                if whole > bytes.len() && whole <= self.config.segment_bytes as usize {
                    // Bounded by the segment's length, which is below 4 GiB.
                    self.start_scrub(at, whole as u32, out);
                    return Ok(());
                }
                let next = Position { offset: at.offset + whole as u64, ..at };
                self.scrub_at = Some(if sealed.header.number >= last_batch { next_segment } else { next });
                sealed.payload(&bytes).err().map(|malformed| malformed.0)
            }
        };
        let named = |detail: &str| JournalError::Damaged {
            file: FileName::Segment(file),
            offset: at.offset,
            detail: detail.into(),
        };
        completed.scrubbed = Some(Scrubbed { bytes: u64::from(length), damage: damage.map(named) });
        Ok(())
    }

    fn scrub_header(&self, at: Position, bytes: &[u8]) -> Result<SealedHeader, &'static str> {
        let sealed = BatchHeader::decode(bytes).map_err(|malformed| malformed.0)?;
        let BatchHeader { core, store, sequence, offset, .. } = sealed.header;
        let here = (core, store, sequence, offset);
        if here == (self.config.core, self.config.store, at.sequence, at.offset) {
            Ok(sealed)
        } else {
            Err("another batch is in its place")
        }
    }
}
