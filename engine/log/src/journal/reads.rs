//! Reading entries back. A read names its place; the record there must be the entry, or the disk is not to be trusted.

use super::{Completed, EntryRead, Journal, Purpose, ReadError};
use crate::disk::{BLOCK_BYTES, DiskDone, DiskError, DiskOperation, DiskOperationKind, FileName};
use crate::error::JournalError;
use crate::index::{Place, Position};
use crate::record::{self, Record};
use bytes::Bytes;
use overtake_base::{Reader, ShardId, codec};

/// A read of an entry that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRead {
    token: u64,
    shard: ShardId,
    index: u64,
}

impl Journal {
    /// Asks for an entry's data; [`Completed::reads`] brings it, with the token. False: the entry is not in the
    /// journal. An entry that is not durable yet is read when it is.
    pub fn read_entry(
        &mut self,
        shard: ShardId,
        index: u64,
        token: u64,
        out: &mut Vec<DiskOperation>,
    ) -> bool {
        let Some(place) = self.shards.get(&shard).and_then(|shard| shard.get(index)).copied() else {
            return false;
        };
        let at = self.position(place);
        let live = if at < self.writer.durable_end() { self.segments.get_mut(at.sequence) } else { None };
        let Some(file) = live.and_then(|live| live.file) else {
            self.waiting_reads.push(WaitingRead { token, shard, index });
            return true;
        };
        let start = at.offset - at.offset % BLOCK_BYTES as u64;
        let end = at.offset + (record::HEADER_BYTES + place.data_bytes as usize) as u64;
        // Bounded by the segment's length, which is below 4 GiB.
        let length = (end.next_multiple_of(BLOCK_BYTES as u64) - start) as u32;
        let kind = DiskOperationKind::Read { file: FileName::Segment(file), offset: start, length };
        self.start(Purpose::Read { file, token, shard, index, place }, kind, out);
        true
    }

    /// Whether the entry is durable; none where the journal does not hold it.
    #[must_use]
    pub fn is_durable(&self, shard: ShardId, index: u64) -> Option<bool> {
        let place = self.shards.get(&shard)?.get(index)?;
        Some(self.position(*place) < self.writer.durable_end())
    }

    /// Starts the reads that waited for their entry to become durable; answers those whose entry is gone.
    pub(super) fn start_waiting_reads(&mut self, completed: &mut Completed, out: &mut Vec<DiskOperation>) {
        for WaitingRead { token, shard, index } in std::mem::take(&mut self.waiting_reads) {
            if !self.read_entry(shard, index, token, out) {
                completed.reads.push(EntryRead {
                    token,
                    shard,
                    index,
                    kind: 0,
                    result: Err(ReadError::Gone),
                });
            }
        }
    }

    /// The entry in what was read.
    pub(super) fn entry_read(
        &self,
        file: u32,
        shard: ShardId,
        index: u64,
        place: Place,
        result: Result<DiskDone, DiskError>,
    ) -> Result<(u8, Bytes), ReadError> {
        // A released entry's segment may have been written anew while the read was under way.
        if self.shards.get(&shard).and_then(|shard| shard.get(index)) != Some(&place) {
            return Err(ReadError::Gone);
        }
        let block = match result {
            Ok(DiskDone::Read(block)) => block,
            Ok(_) => return Err(ReadError::Damaged(JournalError::Disk("a read answered no bytes".into()))),
            Err(error) => return Err(ReadError::Damaged(JournalError::Disk(error.detail))),
        };
        let damaged = |what: &str| {
            ReadError::Damaged(JournalError::Damaged {
                file: FileName::Segment(file),
                offset: u64::from(place.offset),
                detail: format!("entry {index} of shard {shard}: {what}"),
            })
        };
        let skip = (place.offset as usize % BLOCK_BYTES).min(block.len());
        let mut reader = Reader::new(&block[skip..]);
        match Record::decode(&mut reader) {
            Ok(
                Record::Entry { shard: found, index: at, term, kind, data }
                | Record::Staged { shard: found, index: at, term, kind, data },
            ) if (found, at, term) == (shard, index, place.term) => Ok((kind, codec::share(&block, data))),
            Ok(_) => Err(damaged("another record is in its place")),
            Err(malformed) => Err(damaged(malformed.0)),
        }
    }

    fn position(&self, place: Place) -> Position {
        Position {
            sequence: self.segments.full_sequence(place.sequence_low),
            offset: u64::from(place.offset),
        }
    }
}
