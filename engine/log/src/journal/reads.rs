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
        if self.position(place) >= self.writer.durable_end() {
            self.waiting_reads.push(WaitingRead { token, shard, index });
            return true;
        }
        match self.read_of(place) {
            Some((file, kind)) => self.start(Purpose::Read { file, token, shard, index, place }, kind, out),
            None => self.waiting_reads.push(WaitingRead { token, shard, index }),
        }
        true
    }

    /// The file that an entry stands in, and how to read it.
    pub(super) fn read_of(&mut self, place: Place) -> Option<(u32, DiskOperationKind)> {
        let at = self.position(place);
        let file = self.segments.get_mut(at.sequence)?.file?;
        let start = at.offset - at.offset % BLOCK_BYTES as u64;
        let end = at.offset + (record::HEADER_BYTES + place.data_bytes as usize) as u64;
        // Bounded by the segment's length, which is below 4 GiB.
        let length = (end.next_multiple_of(BLOCK_BYTES as u64) - start) as u32;
        Some((file, DiskOperationKind::Read { file: FileName::Segment(file), offset: start, length }))
    }

    /// Starts the reads that waited for their entry to become durable; answers those whose entry is gone.
    pub(super) fn start_waiting_reads(&mut self, completed: &mut Completed, out: &mut Vec<DiskOperation>) {
        for WaitingRead { token, shard, index } in std::mem::take(&mut self.waiting_reads) {
            if !self.read_entry(shard, index, token, out) {
                completed.reads.push(EntryRead { token, shard, index, result: Err(ReadError::Gone) });
            }
        }
    }

    /// What was read of an entry. Where it was moved meanwhile it is read again: then there is nothing to say yet.
    pub(super) fn entry_read(
        &mut self,
        file: u32,
        (token, shard, index, place): (u64, ShardId, u64, Place),
        result: Result<DiskDone, DiskError>,
        out: &mut Vec<DiskOperation>,
    ) -> Option<EntryRead> {
        let now = self.shards.get(&shard).and_then(|shard| shard.get(index)).copied();
        if now.is_some_and(|now| now != place && now.term == place.term)
            && self.read_entry(shard, index, token, out)
        {
            return None;
        }
        // A released entry's segment may have been written anew while the read was under way.
        let result = match now {
            Some(now) if now == place => at_place(file, shard, index, place, result).map(|(_, data)| data),
            _ => Err(ReadError::Gone),
        };
        Some(EntryRead { token, shard, index, result })
    }

    pub(super) fn position(&self, place: Place) -> Position {
        Position {
            sequence: self.segments.full_sequence(place.sequence_low),
            offset: u64::from(place.offset),
        }
    }
}

/// Kind and data of the entry that was read at its place.
pub(super) fn at_place(
    file: u32,
    shard: ShardId,
    index: u64,
    place: Place,
    result: Result<DiskDone, DiskError>,
) -> Result<(u8, Bytes), ReadError> {
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
