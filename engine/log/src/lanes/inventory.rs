//! Opens a core's lane files: reads their headers, hops from block to block, and hands over what there is. The last block
//! of the newest file may be torn, because blocks are written one at a time: then it is cut off, and its header erased.
//! Any other block that does not fit is damage, and named.
//!
//! What was written last, that block or the header of a file without one, may also be whole and yet not durable: it is
//! written again where it stands before it is believed, or anything is put behind it.

use crate::disk::{BLOCK_BYTES, DiskCompletion, DiskDone, DiskOperation, DiskOperationKind, FileName};
use crate::error::JournalError;
use crate::header::NotAHeader;
use crate::lanes::block::BlockHeader;
use crate::lanes::file::{LaneFileHeader, VERSION};
use crate::lanes::store::{Key, LaneFile, Lanes, Location};
use crate::lanes::{LANES_OPERATION, LanesConfig};
use bytes::Bytes;
use overtake_base::hash::Map;
use std::collections::BTreeMap;

/// Bytes of one read of a file's rest.
const PART_BYTES: u64 = 1 << 20;

/// What an operation is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    List,
    Header {
        file: u32,
        bytes: u64,
    },
    Hop {
        file: u32,
    },
    /// A part of what stands behind the last block of a file.
    Rest {
        file: u32,
        from: u64,
    },
    Last {
        file: u32,
    },
    Rewrite,
    Remove,
}

/// A file that is looked at.
#[derive(Debug)]
struct Found {
    sequence: u64,
    /// What its header says of the file of the sequence before.
    previous_end: u64,
    /// Where the next header should stand.
    end: u64,
    blocks: Vec<BlockHeader>,
}

/// The recovery of one core's lane files, as a state machine over the disk seam.
#[derive(Debug)]
pub struct LanesRecovery {
    config: LanesConfig,
    next_operation: u64,
    under_way: Map<u64, Purpose>,
    files: BTreeMap<u32, Found>,
    free: Vec<u32>,
    unreadable: Vec<FileName>,
    last_looked_at: bool,
}

impl LanesRecovery {
    /// A recovery that has not begun.
    #[must_use]
    pub fn new(config: LanesConfig) -> Self {
        Self {
            config,
            next_operation: 1,
            under_way: Map::default(),
            files: BTreeMap::new(),
            free: Vec::new(),
            unreadable: Vec::new(),
            last_looked_at: false,
        }
    }

    /// Puts out the first operation.
    pub fn start(&mut self, out: &mut Vec<DiskOperation>) {
        self.operation(Purpose::List, DiskOperationKind::List, out);
    }

    /// Takes what became of an operation. Answers the lanes when all is known; later completions go to them. After an
    /// error the recovery is over.
    pub fn complete(
        &mut self,
        completion: DiskCompletion,
        out: &mut Vec<DiskOperation>,
    ) -> Result<Option<Lanes>, JournalError> {
        let Some(purpose) = self.under_way.remove(&completion.id) else {
            return Err(JournalError::Disk(format!("completion {} belongs to no operation", completion.id)));
        };
        let done = completion.result.map_err(|error| JournalError::Disk(error.detail))?;
        match (purpose, done) {
            (Purpose::List, DiskDone::Listed(files)) => self.listed(files, out)?,
            (Purpose::Header { file, bytes }, DiskDone::Read(block)) => {
                self.file_header(file, bytes, &block, out)?;
            }
            (Purpose::Hop { file }, DiskDone::Read(block)) => self.hop(file, &block, out),
            (Purpose::Rest { file, from }, DiskDone::Read(bytes)) => self.rest(file, from, &bytes, out)?,
            (Purpose::Last { file }, DiskDone::Read(bytes)) => self.last(file, bytes, out),
            (Purpose::Rewrite | Purpose::Remove, _) => {}
            _ => return Err(JournalError::Disk("an operation answered something else".into())),
        }
        if !self.under_way.is_empty() {
            return Ok(None);
        }
        if !core::mem::replace(&mut self.last_looked_at, true) {
            self.check_ends()?;
            if self.look_at_last(out) {
                return Ok(None);
            }
        }
        Ok(Some(self.open()))
    }

    fn operation(&mut self, purpose: Purpose, kind: DiskOperationKind, out: &mut Vec<DiskOperation>) {
        let id = self.next_operation | LANES_OPERATION;
        self.next_operation += 1;
        self.under_way.insert(id, purpose);
        out.push(DiskOperation { id, kind });
    }

    fn listed(
        &mut self,
        files: Vec<(FileName, u64)>,
        out: &mut Vec<DiskOperation>,
    ) -> Result<(), JournalError> {
        self.config.check()?;
        for (name, bytes) in files {
            let FileName::Lane(file) = name else { continue };
            if bytes < BLOCK_BYTES as u64 {
                // An allocation that the power failed in.
                self.operation(Purpose::Remove, DiskOperationKind::Remove { file: name }, out);
                continue;
            }
            let kind = DiskOperationKind::Read { file: name, offset: 0, length: BLOCK_BYTES as u32 };
            self.operation(Purpose::Header { file, bytes }, kind, out);
        }
        Ok(())
    }

    fn file_header(
        &mut self,
        number: u32,
        bytes: u64,
        block: &[u8],
        out: &mut Vec<DiskOperation>,
    ) -> Result<(), JournalError> {
        let file = FileName::Lane(number);
        let whole = bytes == self.config.file_bytes;
        match LaneFileHeader::decode(block) {
            Ok(header) => {
                self.check_owner(file, &header)?;
                if !whole {
                    let detail = format!("the file is {bytes} bytes long instead of {}", header.file_bytes);
                    return Err(JournalError::Damaged { file, offset: bytes, detail });
                }
                let same = |found: &&Found| found.sequence == header.sequence;
                if self.files.values().find(same).is_some() {
                    let detail = format!("another lane file also has sequence {}", header.sequence);
                    return Err(JournalError::Damaged { file, offset: 0, detail });
                }
                let end = BLOCK_BYTES as u64;
                let LaneFileHeader { sequence, previous_end, .. } = header;
                self.files.insert(number, Found { sequence, previous_end, end, blocks: Vec::new() });
                self.go_on(number, out);
            }
            Err(NotAHeader::Version(found)) => {
                return Err(JournalError::OtherFormat { file, found, expected: VERSION });
            }
            Err(NotAHeader::Blank) if whole => self.free.push(number),
            Err(NotAHeader::Blank) => {
                self.operation(Purpose::Remove, DiskOperationKind::Remove { file }, out);
            }
            // What is missed may be in it; nothing is written to it.
            Err(NotAHeader::Damaged(_)) => self.unreadable.push(file),
        }
        Ok(())
    }

    fn check_owner(&self, file: FileName, header: &LaneFileHeader) -> Result<(), JournalError> {
        let LanesConfig { store, core, file_bytes, .. } = self.config;
        if header.store != store {
            return Err(JournalError::OtherStore { file, found: header.store, expected: store });
        }
        if header.core != core {
            return Err(JournalError::OtherCore { file, found: header.core.0, expected: core.0 });
        }
        if header.file_bytes != file_bytes {
            return Err(JournalError::Config(format!(
                "{file} is of lane files of {} bytes, {file_bytes} are configured: their length cannot be changed \
                 for a data folder; configure {} again",
                header.file_bytes, header.file_bytes
            )));
        }
        Ok(())
    }

    /// Reads where the next header of a file should stand.
    fn go_on(&mut self, file: u32, out: &mut Vec<DiskOperation>) {
        let Some(found) = self.files.get(&file) else { return };
        let offset = found.end;
        if offset + BLOCK_BYTES as u64 > self.config.file_bytes {
            return;
        }
        let kind = DiskOperationKind::Read { file: FileName::Lane(file), offset, length: BLOCK_BYTES as u32 };
        self.operation(Purpose::Hop { file }, kind, out);
    }

    /// Whether a block of this life of the file begins here.
    fn block_at(&self, file: &Found, offset: u64, bytes: &[u8]) -> Option<BlockHeader> {
        let header = BlockHeader::decode(bytes).ok()?;
        let here = header.store == self.config.store
            && header.core == self.config.core
            && header.sequence == file.sequence
            && header.offset == offset
            && offset + header.padded() <= self.config.file_bytes;
        here.then_some(header)
    }

    fn hop(&mut self, number: u32, bytes: &[u8], out: &mut Vec<DiskOperation>) {
        let Some(found) = self.files.get(&number) else { return };
        match self.block_at(found, found.end, bytes) {
            Some(header) => {
                if let Some(found) = self.files.get_mut(&number) {
                    found.end += header.padded();
                    found.blocks.push(header);
                }
                self.go_on(number, out);
            }
            None => self.read_rest(number, found.end + BLOCK_BYTES as u64, out),
        }
    }

    /// Where the blocks end nothing of this life may follow: otherwise a header in between is damaged.
    fn read_rest(&mut self, file: u32, from: u64, out: &mut Vec<DiskOperation>) {
        if from >= self.config.file_bytes {
            return;
        }
        let length = PART_BYTES.min(self.config.file_bytes - from) as u32;
        let kind = DiskOperationKind::Read { file: FileName::Lane(file), offset: from, length };
        self.operation(Purpose::Rest { file, from }, kind, out);
    }

    fn rest(
        &mut self,
        number: u32,
        from: u64,
        bytes: &[u8],
        out: &mut Vec<DiskOperation>,
    ) -> Result<(), JournalError> {
        let Some(found) = self.files.get(&number) else { return Ok(()) };
        for (offset, unit) in (from..).step_by(BLOCK_BYTES).zip(bytes.chunks(BLOCK_BYTES)) {
            if let Some(header) = self.block_at(found, offset, unit) {
                return Err(JournalError::Damaged {
                    file: FileName::Lane(number),
                    offset: found.end,
                    detail: format!(
                        "no block is here, but block {} of shard {} follows at {offset}",
                        header.block, header.shard
                    ),
                });
            }
        }
        self.read_rest(number, from + bytes.len() as u64, out);
        Ok(())
    }

    /// The blocks of a sealed file end where the next file says.
    fn check_ends(&self) -> Result<(), JournalError> {
        let ends: BTreeMap<u64, u64> =
            self.files.values().map(|found| (found.sequence, found.previous_end)).collect();
        for (number, found) in &self.files {
            let sealed_at = ends.get(&(found.sequence + 1)).copied().filter(|end| *end > 0);
            if let Some(end) = sealed_at.filter(|end| *end != found.end) {
                return Err(JournalError::Damaged {
                    file: FileName::Lane(*number),
                    offset: found.end,
                    detail: format!("no block is here, but the file's blocks end at {end}"),
                });
            }
        }
        Ok(())
    }

    /// Reads the block that was written last, or writes the header again that was; false where there is no file in use.
    fn look_at_last(&mut self, out: &mut Vec<DiskOperation>) -> bool {
        let Some((file, found)) = self.files.iter().max_by_key(|(_, found)| found.sequence) else {
            return false;
        };
        let file = *file;
        let Some(last) = found.blocks.last() else {
            let data = self.config.file_header(found.sequence, found.previous_end);
            let kind = DiskOperationKind::Write { file: FileName::Lane(file), offset: 0, data };
            self.operation(Purpose::Rewrite, kind, out);
            return true;
        };
        let (offset, length) = (last.offset, last.padded() as u32);
        let kind = DiskOperationKind::Read { file: FileName::Lane(file), offset, length };
        self.operation(Purpose::Last { file }, kind, out);
        true
    }

    fn last(&mut self, file: u32, bytes: Bytes, out: &mut Vec<DiskOperation>) {
        let Some(found) = self.files.get_mut(&file) else { return };
        let Some(last) = found.blocks.last().copied() else { return };
        let mut data = bytes;
        if last.content(&data).is_err() {
            found.blocks.pop();
            found.end = last.offset;
            // Its header must go: once another file is newer, nobody would look whether it is torn.
            data = Bytes::from(vec![0; BLOCK_BYTES]);
        }
        let kind = DiskOperationKind::Write { file: FileName::Lane(file), offset: last.offset, data };
        self.operation(Purpose::Rewrite, kind, out);
    }

    fn open(&mut self) -> Lanes {
        let mut files: BTreeMap<u32, LaneFile> = BTreeMap::new();
        // Of a block that was being copied the newer copy counts.
        let mut blocks: BTreeMap<Key, (u64, Location)> = BTreeMap::new();
        for (number, found) in &self.files {
            let file = LaneFile { sequence: found.sequence, end: found.end, ..LaneFile::default() };
            files.insert(*number, file);
            for header in &found.blocks {
                let key = (header.shard, header.block);
                let newest = blocks.get(&key).map_or(0, |(sequence, _)| *sequence);
                if found.sequence >= newest {
                    blocks.insert(key, (found.sequence, Location::new(*number, header)));
                }
            }
        }
        for number in &self.free {
            files.insert(*number, LaneFile { free: true, ..LaneFile::default() });
        }
        let blocks = blocks.into_iter().map(|(key, (_, location))| (key, location)).collect();
        let unreadable = core::mem::take(&mut self.unreadable);
        Lanes::new(self.config.clone(), self.next_operation, files, blocks, unreadable)
    }
}
