//! Reading blocks back: whole, only their records, or one payload. What comes must be what was written, or the disk is
//! not to be trusted.

use crate::disk::{BLOCK_BYTES, DiskCompletion, DiskDone, DiskOperation, DiskOperationKind, FileName};
use crate::error::JournalError;
use crate::lanes::block::{self, BlockHeader, payload_checksum};
use crate::lanes::store::{Key, Lanes, LanesCompleted, Location};
use crate::scrub::Scrubbed;
use bytes::Bytes;
use core::ops::Bound;
use overtake_base::limits::BLOCK_PAYLOAD_PREFIX_BYTES;
use overtake_base::{BlockId, Malformed, ShardId};

/// What of a block is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockPart {
    /// Records and payloads.
    Whole,
    /// Only the records.
    Records,
    /// The payload that begins at this byte of the payloads and has so many bytes.
    Payload { offset: u32, length: u32 },
}

/// A read that ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockRead {
    /// The caller's.
    pub token: u64,
    /// Whose block it is.
    pub shard: ShardId,
    /// Which.
    pub block: BlockId,
    /// The records, where they were asked for.
    pub records: Bytes,
    /// The payloads with their checksums, or the one payload that was asked for.
    pub payloads: Bytes,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRead {
    pub(super) key: Key,
    pub(super) header: BlockHeader,
    pub(super) file: u32,
    /// First byte that was asked for, in the block.
    start: u64,
    wanted: Wanted,
}

#[derive(Clone, Copy, Debug)]
enum Wanted {
    Part { token: u64, part: BlockPart },
    Copy(Location),
    Scrub,
}

impl Lanes {
    /// Asks for a part of a block; [`LanesCompleted::reads`] brings it, with the token. False: it is not on disk.
    pub fn read(
        &mut self,
        shard: ShardId,
        block: BlockId,
        part: BlockPart,
        token: u64,
        out: &mut Vec<DiskOperation>,
    ) -> bool {
        let Some(location) = self.blocks.get(&(shard, block)).copied() else { return false };
        let records_end = (block::HEADER_BYTES + location.records_bytes as usize) as u64;
        let (first, end) = match part {
            BlockPart::Whole => (0, location.padded()),
            BlockPart::Records => (0, records_end),
            BlockPart::Payload { offset, length } => {
                let prefix = u64::from(BLOCK_PAYLOAD_PREFIX_BYTES);
                let at = records_end + u64::from(offset);
                (at.saturating_sub(prefix), at + u64::from(length))
            }
        };
        // One that is not in the block is refused when it has been read.
        let end = end.min(location.padded()).max(first + 1);
        self.start_read((shard, block), location, (first, end), Wanted::Part { token, part }, out);
        true
    }

    /// Reads a whole block to copy it.
    pub(super) fn read_to_copy(&mut self, key: Key, location: Location, out: &mut Vec<DiskOperation>) {
        self.start_read(key, location, (0, location.padded()), Wanted::Copy(location), out);
    }

    /// Reads the next block to see whether it is still what was written; [`LanesCompleted::scrubbed`] tells. False: the
    /// last one has been read, and the next call begins anew. One at a time.
    pub fn scrub(&mut self, out: &mut Vec<DiskOperation>) -> bool {
        let after = self.scrubbed.map_or(Bound::Unbounded, Bound::Excluded);
        let next =
            self.blocks.range((after, Bound::Unbounded)).next().map(|(key, location)| (*key, *location));
        self.scrubbed = next.map(|(key, _)| key);
        if let Some((key, location)) = next {
            self.start_read(key, location, (0, location.padded()), Wanted::Scrub, out);
        }
        next.is_some()
    }

    fn start_read(
        &mut self,
        key: Key,
        location: Location,
        (first, end): (u64, u64),
        wanted: Wanted,
        out: &mut Vec<DiskOperation>,
    ) {
        let unit = BLOCK_BYTES as u64;
        let start = first - first % unit;
        let sequence = self.files.get_mut(&location.file).map_or(0, |file| {
            file.readers += 1;
            file.sequence
        });
        let header = BlockHeader {
            core: self.config.core,
            store: self.config.store,
            shard: key.0,
            sequence,
            offset: location.offset,
            block: key.1,
            records_bytes: location.records_bytes,
            payloads_bytes: location.payloads_bytes,
            records_checksum: location.records_checksum,
            payloads_checksum: location.payloads_checksum,
        };
        let kind = DiskOperationKind::Read {
            file: FileName::Lane(location.file),
            offset: location.offset + start,
            // Shorter than a file, which is shorter than 4 GiB.
            length: (end.next_multiple_of(unit) - start) as u32,
        };
        let id = self.start(kind, out);
        self.reads.insert(id, PendingRead { key, header, file: location.file, start, wanted });
    }

    pub(super) fn read_done(
        &mut self,
        completion: DiskCompletion,
        completed: &mut LanesCompleted,
    ) -> Result<(), JournalError> {
        let Some(read) = self.reads.remove(&completion.id) else {
            return Err(JournalError::Disk(format!("completion {} belongs to no operation", completion.id)));
        };
        if let Some(file) = self.files.get_mut(&read.file) {
            file.readers -= 1;
        }
        self.free_if_unneeded(read.file);
        let bytes = match completion.result {
            Ok(DiskDone::Read(bytes)) => bytes,
            Ok(_) => return Err(JournalError::Disk("a read answered no bytes".into())),
            Err(error) => return Err(JournalError::Disk(error.detail)),
        };
        let (shard, block) = read.key;
        let damaged = |malformed: Malformed| JournalError::Damaged {
            file: FileName::Lane(read.file),
            offset: read.header.offset,
            detail: format!("block {block} of shard {shard}: {}", malformed.0),
        };
        match read.wanted {
            Wanted::Scrub => {
                let damage = read.header.content(&bytes).err().map(damaged);
                completed.scrubbed = Some(Scrubbed { bytes: read.header.padded(), damage });
            }
            Wanted::Copy(from) => {
                let (records, payloads) = read.header.content(&bytes).map_err(damaged)?;
                self.cleaning.read(read.header, vec![records, payloads], from);
            }
            Wanted::Part { token, part } => {
                let (records, payloads) = read.part(part, &bytes).map_err(damaged)?;
                completed.reads.push(BlockRead { token, shard, block, records, payloads });
            }
        }
        Ok(())
    }
}

impl PendingRead {
    /// Takes what was asked for out of what was read.
    fn part(&self, part: BlockPart, bytes: &Bytes) -> Result<(Bytes, Bytes), Malformed> {
        let records_end = block::HEADER_BYTES + self.header.records_bytes as usize;
        match part {
            BlockPart::Whole => self.header.content(bytes),
            BlockPart::Records => {
                if BlockHeader::decode(bytes)? != self.header {
                    return Err(Malformed("another block is in its place"));
                }
                let records =
                    bytes.get(block::HEADER_BYTES..records_end).ok_or(Malformed("it ends early"))?;
                if block::records_checksum(records) != self.header.records_checksum {
                    return Err(Malformed("the checksum of the block's records does not fit"));
                }
                Ok((bytes.slice_ref(records), Bytes::new()))
            }
            BlockPart::Payload { offset, length } => {
                let prefix = BLOCK_PAYLOAD_PREFIX_BYTES as usize;
                let at = records_end.saturating_add(offset as usize).checked_sub(self.start as usize);
                let range =
                    at.and_then(|at| Some((at.checked_sub(prefix)?, at, at.checked_add(length as usize)?)));
                let found = range.and_then(|(from, at, to)| Some((bytes.get(from..at)?, bytes.get(at..to)?)));
                let Some((sum, payload)) = found else {
                    return Err(Malformed("a payload outside of it was asked for"));
                };
                if payload_checksum(self.header.block, offset, payload).to_le_bytes() != sum {
                    return Err(Malformed("the checksum of a payload does not fit"));
                }
                Ok((Bytes::new(), bytes.slice_ref(payload)))
            }
        }
    }
}
