//! Writing blocks: one at a time, each behind the one before in the current file; and the life of the files.
//!
//! A file is *free* (its content is not needed), then *current* (its header names a new sequence, blocks are written to
//! it), then *sealed* (it is full), and free again when no block in it is needed. One free file is kept in reserve for
//! cleaning: on a full disk that is what makes room.

use crate::disk::{
    BLOCK_BYTES, DiskCompletion, DiskDone, DiskError, DiskOperation, DiskOperationKind, FileName,
};
use crate::error::JournalError;
use crate::lanes::block::{BlockHeader, join_payloads, padded};
use crate::lanes::clean::Cleaning;
use crate::lanes::reads::{BlockRead, PendingRead};
use crate::lanes::{LANES_OPERATION, LanesConfig};
use crate::scrub::Scrubbed;
use bytes::Bytes;
use overtake_base::hash::Map;
use overtake_base::{BlockId, ShardId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Free files that are kept; more are removed.
const FREE_FILES_MAX: usize = 3;
/// Free files that ordinary blocks leave alone.
const RESERVE_FILES: usize = 2;

/// A block to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewBlock {
    /// Whose it is.
    pub shard: ShardId,
    /// Its name in the shard.
    pub block: BlockId,
    /// Its records.
    pub records: Bytes,
    /// Its payloads.
    pub payloads: Vec<Bytes>,
}

/// Where a block stands, and what its header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Location {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) records_bytes: u32,
    pub(super) payloads_bytes: u32,
    pub(super) records_checksum: u64,
    pub(super) payloads_checksum: u64,
}

impl Location {
    pub(super) fn new(file: u32, header: &BlockHeader) -> Self {
        Self {
            file,
            offset: header.offset,
            records_bytes: header.records_bytes,
            payloads_bytes: header.payloads_bytes,
            records_checksum: header.records_checksum,
            payloads_checksum: header.payloads_checksum,
        }
    }

    pub(super) fn padded(&self) -> u64 {
        padded(self.records_bytes, self.payloads_bytes)
    }
}

/// A lane file.
#[derive(Clone, Debug, Default)]
pub(super) struct LaneFile {
    /// What its header says; 0 where nothing is known of it that is needed.
    pub(super) sequence: u64,
    /// Where the next block goes.
    pub(super) end: u64,
    /// Blocks in it that are needed, and their bytes.
    pub(super) live: u32,
    pub(super) live_bytes: u64,
    /// Reads of it under way: it is not written anew before they end.
    pub(super) readers: u32,
    pub(super) free: bool,
}

/// What is being written or prepared; one thing at a time.
#[derive(Debug)]
enum Writing {
    Nothing,
    Allocating { file: u32, urgent: bool },
    Header { file: u32 },
    Block { file: u32, header: BlockHeader, copy_of: Option<Location> },
    Removing,
}

/// A block on its way into a file.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) header: BlockHeader,
    pub(super) content: Vec<Bytes>,
    /// Where it stands already, if this is a copy.
    pub(super) copy_of: Option<Location>,
}

pub(super) type Key = (ShardId, BlockId);

/// What one completion brought.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LanesCompleted {
    /// Blocks that are durable now.
    pub written: Vec<Key>,
    /// Reads that ended.
    pub reads: Vec<BlockRead>,
    /// What came of a block of the scrub.
    pub scrubbed: Option<Scrubbed>,
}

/// Figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LanesUsage {
    /// Files, free ones included.
    pub files: usize,
    /// Of them free.
    pub files_free: usize,
    /// Length of all files in bytes.
    pub file_bytes: u64,
    /// Blocks that are needed.
    pub blocks: usize,
    /// Their bytes.
    pub live_bytes: u64,
    /// Bytes written since the start, copies by cleaning included.
    pub bytes_written: u64,
    /// Of them copies.
    pub bytes_copied: u64,
    /// Blocks that wait to be written.
    pub waiting: usize,
}

/// The blocks of one core. Made by [`crate::lanes::LanesRecovery`].
#[derive(Debug)]
pub struct Lanes {
    pub(super) config: LanesConfig,
    pub(super) next_operation: u64,
    pub(super) reads: Map<u64, PendingRead>,
    /// The operation of what is being written, while there is one.
    write_operation: Option<u64>,
    writing: Writing,
    waiting: VecDeque<Outgoing>,
    pub(super) files: BTreeMap<u32, LaneFile>,
    pub(super) blocks: BTreeMap<Key, Location>,
    /// Blocks that wait to be written or are being written, and are still wanted.
    wanted: BTreeSet<Key>,
    pub(super) current: Option<u32>,
    next_sequence: u64,
    pub(super) cleaning: Cleaning,
    full: bool,
    /// Not even the room that is kept free was enough.
    exhausted: bool,
    /// Something happened that may give work to do: a look at all files each turn would be dear.
    look_again: bool,
    usage: LanesUsage,
    /// The block that the scrub read last.
    pub(super) scrubbed: Option<Key>,
    /// Files whose headers cannot be read.
    unreadable: Vec<FileName>,
}

impl Lanes {
    pub(super) fn new(
        config: LanesConfig,
        next_operation: u64,
        files: BTreeMap<u32, LaneFile>,
        blocks: BTreeMap<Key, Location>,
        unreadable: Vec<FileName>,
    ) -> Self {
        let newest = files.iter().max_by_key(|(_, file)| file.sequence);
        let next_sequence = newest.map_or(0, |(_, file)| file.sequence) + 1;
        let current = newest.filter(|(_, file)| file.sequence > 0).map(|(number, _)| *number);
        let mut lanes = Self {
            config,
            next_operation,
            reads: Map::default(),
            write_operation: None,
            writing: Writing::Nothing,
            waiting: VecDeque::new(),
            files,
            blocks,
            wanted: BTreeSet::new(),
            current,
            next_sequence,
            cleaning: Cleaning::default(),
            full: false,
            exhausted: false,
            look_again: true,
            usage: LanesUsage::default(),
            scrubbed: None,
            unreadable,
        };
        for location in lanes.blocks.values().copied().collect::<Vec<_>>() {
            lanes.count(location, true);
        }
        let files: Vec<u32> = lanes.files.keys().copied().collect();
        files.into_iter().for_each(|file| lanes.free_if_unneeded(file));
        lanes
    }

    /// Takes a block to be written; [`LanesCompleted::written`] tells when it is durable.
    ///
    /// # Panics
    /// Where the block does not fit a file.
    pub fn write(&mut self, new: &NewBlock) {
        let payloads = join_payloads(new.block, &new.payloads);
        let (core, store) = (self.config.core, self.config.store);
        let header = BlockHeader::of(core, store, new.shard, new.block, &new.records, &payloads);
        assert!(header.padded() <= self.config.block_bytes_max(), "a block of {} bytes", header.padded());
        self.wanted.insert((new.shard, new.block));
        let content = vec![new.records.clone(), payloads.into()];
        self.waiting.push_back(Outgoing { header, content, copy_of: None });
    }

    /// Takes a block that another replica has, with its payloads as they stand in it. False where it is too long for a file.
    pub fn store(&mut self, shard: ShardId, block: BlockId, records: Bytes, payloads: Bytes) -> bool {
        let (core, store) = (self.config.core, self.config.store);
        let longest = self.config.block_bytes_max();
        if (records.len() + payloads.len()) as u64 > longest {
            return false;
        }
        let header = BlockHeader::of(core, store, shard, block, &records, &payloads);
        if header.padded() > longest {
            return false;
        }
        self.wanted.insert((shard, block));
        self.waiting.push_back(Outgoing { header, content: vec![records, payloads], copy_of: None });
        true
    }

    /// Whether the block waits to be written, or is being written.
    #[must_use]
    pub fn is_to_be_written(&self, shard: ShardId, block: BlockId) -> bool {
        self.wanted.contains(&(shard, block))
    }

    /// A block that is not on disk need not be written.
    pub fn forget_unwritten(&mut self, shard: ShardId, block: BlockId) {
        self.wanted.remove(&(shard, block));
    }

    /// Whether the block is on disk.
    #[must_use]
    pub fn contains(&self, shard: ShardId, block: BlockId) -> bool {
        self.blocks.contains_key(&(shard, block))
    }

    /// The file that the block stands in, and where in it.
    #[must_use]
    pub fn place(&self, shard: ShardId, block: BlockId) -> Option<(FileName, u64)> {
        let location = self.blocks.get(&(shard, block))?;
        Some((FileName::Lane(location.file), location.offset))
    }

    /// Whether the block is on disk with these records, or with others. None: it is not there.
    #[must_use]
    pub fn has_records(&self, shard: ShardId, block: BlockId, records: &[u8]) -> Option<bool> {
        let location = self.blocks.get(&(shard, block))?;
        Some(location.records_checksum == crate::lanes::block::records_checksum(records))
    }

    /// The blocks of a shard that are on disk.
    pub fn blocks_of(&self, shard: ShardId) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.range((shard, BlockId(0))..=(shard, BlockId(u64::MAX))).map(|((_, block), _)| *block)
    }

    /// Files whose headers cannot be read: what is missed may be there.
    #[must_use]
    pub fn unreadable(&self) -> &[FileName] {
        &self.unreadable
    }

    /// The block is not needed any more, now and after any recovery.
    pub fn free(&mut self, shard: ShardId, block: BlockId) {
        self.wanted.remove(&(shard, block));
        if let Some(location) = self.blocks.remove(&(shard, block)) {
            self.count(location, false);
            self.free_if_unneeded(location.file);
        }
    }

    /// Goes on with what is to be written, prepared or cleaned. Call it once a turn, and after completions.
    pub fn flush(&mut self, out: &mut Vec<DiskOperation>) {
        if !core::mem::take(&mut self.look_again) && self.waiting.is_empty() && self.cleaning.is_idle() {
            return;
        }
        while self.write_operation.is_none() && self.begin(out) {}
    }

    /// Takes what became of an operation. An error is final.
    pub fn complete(
        &mut self,
        completion: DiskCompletion,
        out: &mut Vec<DiskOperation>,
    ) -> Result<LanesCompleted, JournalError> {
        let mut completed = LanesCompleted::default();
        self.look_again = true;
        if self.write_operation == Some(completion.id) {
            self.write_operation = None;
            self.written(completion.result, out, &mut completed)?;
        } else {
            self.read_done(completion, &mut completed)?;
        }
        self.flush(out);
        Ok(completed)
    }

    /// The last allocation found no room.
    #[must_use]
    pub fn disk_full(&self) -> bool {
        self.full
    }

    /// Tries again after the disk was full. Until a file was allocated, or enough are free, it counts as full.
    pub fn retry_allocation(&mut self, out: &mut Vec<DiskOperation>) {
        self.exhausted = false;
        self.look_again = true;
        if self.full && self.free_files().count() > RESERVE_FILES {
            self.full = false;
        } else if self.full && self.write_operation.is_none() {
            self.begin_allocation(false, out);
        }
        self.flush(out);
    }

    /// Whether there is room for a block though the disk is full. Where there is none, a file is asked for of the room that
    /// is kept free: only for a block that makes the journal shorter.
    pub fn make_room(&mut self, out: &mut Vec<DiskOperation>) -> bool {
        let room = self.waiting.is_empty() && self.free_files().count() >= RESERVE_FILES;
        if !room && !self.exhausted && self.write_operation.is_none() && self.cleaning.is_idle() {
            self.begin_allocation(true, out);
        }
        room
    }

    /// Nothing is under way and nothing waits that could go on.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.write_operation.is_none() && self.reads.is_empty() && (self.waiting.is_empty() || self.full)
    }

    /// Figures.
    #[must_use]
    pub fn usage(&self) -> LanesUsage {
        LanesUsage {
            files: self.files.len(),
            files_free: self.free_files().count(),
            file_bytes: self.files.len() as u64 * self.config.file_bytes,
            blocks: self.blocks.len(),
            waiting: self.wanted.len(),
            ..self.usage
        }
    }

    /// Blocks that wait to be written, or are being written.
    #[must_use]
    pub fn unwritten(&self) -> usize {
        self.wanted.len()
    }

    /// Bytes of all blocks that are needed. [`Self::usage`] has them too, with figures that take a look at every file.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.usage.live_bytes
    }

    /// Bytes of a block that is needed, on average; 0 where there is none.
    #[must_use]
    pub fn average_block_bytes(&self) -> u64 {
        self.live_bytes() / (self.blocks.len() as u64).max(1)
    }

    fn free_files(&self) -> impl Iterator<Item = u32> + '_ {
        self.files.iter().filter(|(_, file)| file.free).map(|(number, _)| *number)
    }

    pub(super) fn start(&mut self, kind: DiskOperationKind, out: &mut Vec<DiskOperation>) -> u64 {
        let id = self.next_operation | LANES_OPERATION;
        self.next_operation += 1;
        out.push(DiskOperation { id, kind });
        id
    }

    fn start_writing(
        &mut self,
        writing: Writing,
        kind: DiskOperationKind,
        out: &mut Vec<DiskOperation>,
    ) -> bool {
        self.writing = writing;
        self.write_operation = Some(self.start(kind, out));
        true
    }

    /// Begins the next thing; false where there is none.
    fn begin(&mut self, out: &mut Vec<DiskOperation>) -> bool {
        self.waiting.retain(|outgoing| {
            outgoing.copy_of.is_some()
                || self.wanted.contains(&(outgoing.header.shard, outgoing.header.block))
        });
        if let Some(outgoing) = self.cleaning.take_ready().or_else(|| self.waiting.pop_front()) {
            return self.begin_block(outgoing, out);
        }
        if self.cleaning.is_reading() {
            return false;
        }
        // Something was freed: fewer files, or fewer half-empty ones.
        if self.free_files().count() > FREE_FILES_MAX
            && let Some(file) = self.free_files().last()
        {
            self.files.remove(&file);
            let kind = DiskOperationKind::Remove { file: FileName::Lane(file) };
            return self.start_writing(Writing::Removing, kind, out);
        }
        self.clean(out);
        false
    }

    /// Writes the block where there is room for it, or makes room first.
    fn begin_block(&mut self, mut outgoing: Outgoing, out: &mut Vec<DiskOperation>) -> bool {
        let length = outgoing.header.padded();
        let fits = |file: &LaneFile| file.end + length <= self.config.file_bytes;
        let current = self.current.and_then(|number| Some((number, self.files.get_mut(&number)?)));
        if let Some((number, file)) = current.filter(|(_, file)| fits(file)) {
            let header = &mut outgoing.header;
            (header.sequence, header.offset) = (file.sequence, file.end);
            file.end += length;
            let header = *header;
            let content: Vec<&[u8]> = outgoing.content.iter().map(|part| &part[..]).collect();
            let data = Bytes::from(header.encode_block(&content));
            self.usage.bytes_written += length;
            let kind = DiskOperationKind::Write { file: FileName::Lane(number), offset: header.offset, data };
            let writing = Writing::Block { file: number, header, copy_of: outgoing.copy_of };
            return self.start_writing(writing, kind, out);
        }
        // The last free file is cleaning's.
        let is_copy = outgoing.copy_of.is_some();
        if is_copy {
            self.cleaning.put_back(outgoing);
        } else {
            self.waiting.push_front(outgoing);
        }
        // One file more is for what was under way when the disk ran full: until such a block is durable its shard makes
        // no checkpoint, and frees nothing.
        let reserve = if is_copy { 0 } else { RESERVE_FILES - usize::from(self.full) };
        let free = if self.free_files().count() > reserve { self.free_files().next() } else { None };
        if let Some(number) = free {
            return self.begin_file(number, out);
        }
        if self.full {
            // Cleaning may go on, and makes room.
            if !is_copy {
                self.clean(out);
            }
            return false;
        }
        self.begin_allocation(false, out)
    }

    fn begin_file(&mut self, number: u32, out: &mut Vec<DiskOperation>) -> bool {
        let sealed = self.current.take();
        let previous = sealed.and_then(|sealed| self.files.get(&sealed));
        let previous = previous.filter(|file| file.sequence + 1 == self.next_sequence);
        let previous_end = previous.map_or(0, |file| file.end);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let file = LaneFile { sequence, end: BLOCK_BYTES as u64, ..LaneFile::default() };
        self.files.insert(number, file);
        if let Some(sealed) = sealed {
            self.free_if_unneeded(sealed);
        }
        let data = self.config.file_header(sequence, previous_end);
        let kind = DiskOperationKind::Write { file: FileName::Lane(number), offset: 0, data };
        self.start_writing(Writing::Header { file: number }, kind, out)
    }

    fn begin_allocation(&mut self, urgent: bool, out: &mut Vec<DiskOperation>) -> bool {
        let taken = |number: &u32| {
            self.files.contains_key(number) || self.unreadable.contains(&FileName::Lane(*number))
        };
        let Some(number) = (0..).find(|number| !taken(number)) else { return false };
        let (file, bytes) = (FileName::Lane(number), self.config.file_bytes);
        let kind = DiskOperationKind::Allocate { file, bytes, urgent };
        self.start_writing(Writing::Allocating { file: number, urgent }, kind, out)
    }

    fn written(
        &mut self,
        result: Result<DiskDone, DiskError>,
        out: &mut Vec<DiskOperation>,
        completed: &mut LanesCompleted,
    ) -> Result<(), JournalError> {
        let failed = |error: DiskError| JournalError::Disk(error.detail);
        match core::mem::replace(&mut self.writing, Writing::Nothing) {
            Writing::Allocating { file: number, urgent } => match result {
                Ok(_) => {
                    self.full &= urgent;
                    self.files.insert(number, LaneFile { free: true, ..LaneFile::default() });
                }
                Err(error) if error.full => {
                    self.full |= !urgent;
                    self.exhausted |= urgent;
                    let kind = DiskOperationKind::Remove { file: FileName::Lane(number) };
                    self.start_writing(Writing::Removing, kind, out);
                }
                Err(error) => return Err(failed(error)),
            },
            Writing::Header { file } => {
                result.map_err(failed)?;
                self.current = Some(file);
            }
            Writing::Block { file, header, copy_of } => {
                result.map_err(failed)?;
                self.block_written(file, &header, copy_of, completed);
            }
            Writing::Removing => {
                result.map_err(failed)?;
            }
            Writing::Nothing => {}
        }
        Ok(())
    }

    fn block_written(
        &mut self,
        file: u32,
        header: &BlockHeader,
        copy_of: Option<Location>,
        completed: &mut LanesCompleted,
    ) {
        let key = (header.shard, header.block);
        let location = Location::new(file, header);
        match copy_of {
            Some(from) => {
                self.usage.bytes_copied += location.padded();
                // It may have been freed while it was copied.
                if self.blocks.get(&key) == Some(&from) {
                    self.blocks.insert(key, location);
                    self.count(location, true);
                    self.count(from, false);
                }
                self.free_if_unneeded(from.file);
            }
            None => {
                if self.wanted.remove(&key) {
                    self.blocks.insert(key, location);
                    self.count(location, true);
                    completed.written.push(key);
                }
            }
        }
    }

    fn count(&mut self, location: Location, there: bool) {
        self.look_again = true;
        let Some(file) = self.files.get_mut(&location.file) else { return };
        let bytes = location.padded();
        if there {
            file.live += 1;
            file.live_bytes += bytes;
            self.usage.live_bytes += bytes;
        } else {
            file.live -= 1;
            file.live_bytes -= bytes;
            self.usage.live_bytes -= bytes;
        }
    }

    /// A file of which nothing is needed, read or written is free.
    pub(super) fn free_if_unneeded(&mut self, number: u32) {
        if self.current == Some(number) || matches!(self.writing, Writing::Header { file } if file == number)
        {
            return;
        }
        if let Some(file) = self.files.get_mut(&number)
            && file.live == 0
            && file.readers == 0
        {
            *file = LaneFile { free: true, ..LaneFile::default() };
        }
    }
}
