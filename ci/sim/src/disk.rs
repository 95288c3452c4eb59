//! A simulated disk. Operations take virtual time. At a power loss each sector of what was under way survives or not, by
//! the seed; a killed process leaves writes in the cache that can be read and are lost with the power. The disk can
//! hang, run full, fail an operation, and damage what it holds: see [`damage`].

pub mod damage;
mod file;

use bytes::Bytes;
use file::SimFile;
use overtake_base::random::Random;
use overtake_log::disk::{DiskCompletion, DiskDone, DiskError, DiskOperation, DiskOperationKind, FileName};
use std::collections::{BTreeMap, VecDeque};

/// What a disk writes in one piece.
const SECTOR_BYTES: usize = 512;
/// Writes remembered as places that may be damaged.
const WRITES_REMEMBERED: usize = 256;

/// How a disk behaves.
#[derive(Clone, Copy, Debug)]
pub struct DiskProfile {
    /// Shortest and longest time of an operation, in nanoseconds.
    pub latency_ns: (u64, u64),
    /// Bytes that fit on it.
    pub capacity_bytes: u64,
    /// Of them, bytes that only urgent allocations and checkpoints get.
    pub kept_free_bytes: u64,
    /// How often an operation takes up to [`DiskProfile::slow_ns`] instead.
    pub slow_ppm: u32,
    /// See there.
    pub slow_ns: u64,
}

impl Default for DiskProfile {
    fn default() -> Self {
        Self {
            latency_ns: (60_000, 400_000),
            capacity_bytes: u64::MAX,
            kept_free_bytes: 0,
            slow_ppm: 0,
            slow_ns: 0,
        }
    }
}

/// Which operation fails next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A read.
    Read,
    /// A write, of which some sectors arrive.
    Write,
    /// The sync of a write: all of it can be read back, and is lost with the power.
    Sync,
    /// Making, replacing or removing a file.
    File,
}

impl Failure {
    /// All.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Sync, Self::File];
}

/// What happened to a disk, so that a fault that never fires is seen.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct DiskCounters {
    /// Operations that completed.
    pub operations: u64,
    /// Reads.
    pub reads: u64,
    /// Writes under way at a power loss that survived in part.
    pub torn_writes: u64,
    /// Writes under way at a power loss that left nothing behind.
    pub lost_writes: u64,
    /// Files that a power loss left half made.
    pub half_made_files: u64,
    /// Writes that a killed process left in the cache.
    pub cached_writes: u64,
    /// Those of them that a power loss took, whole or in part.
    pub uncached_writes: u64,
    /// Operations that found no room.
    pub full: u64,
    /// Operations that took much longer than usual.
    pub slow: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Syncs that failed.
    pub sync_errors: u64,
    /// Other operations that failed.
    pub file_errors: u64,
    /// Bits that rotted.
    pub rotten_bits: u64,
    /// Writes that were answered and never arrived.
    pub vanished_writes: u64,
    /// Writes that arrived in another place.
    pub misdirected_writes: u64,
    /// Writes of which some sectors are older than answered.
    pub stale_sectors: u64,
    /// Checkpoints that rotted or went back to an older one.
    pub damaged_checkpoints: u64,
    /// Checkpoints that were written.
    pub checkpoints: u64,
    /// Segment headers that were written: each begins a segment anew.
    pub segments_begun: u64,
}

/// A range of a file, and what it held before it was written.
#[derive(Clone, Debug)]
struct Written {
    file: FileName,
    offset: u64,
    before: Bytes,
}

impl Written {
    fn overlaps(&self, file: FileName, offset: u64, length: usize) -> bool {
        self.file == file
            && self.offset < offset + length as u64
            && offset < self.offset + self.before.len() as u64
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct SimDisk {
    files: BTreeMap<FileName, SimFile>,
    under_way: BTreeMap<u64, DiskOperation>,
    random: Random,
    /// How it behaves; may be changed at any time.
    pub profile: DiskProfile,
    /// Nothing that is submitted completes before this virtual time.
    pub hangs_until_ns: u64,
    /// The next operation of this kind fails.
    pub fails_next: Option<Failure>,
    /// Durable writes, oldest first.
    written: VecDeque<Written>,
    /// Writes that can be read and are not durable.
    cached: Vec<Written>,
    /// Files that a killed process put in place, whose names may go with the power, and what was there before.
    renamed: Vec<(FileName, Option<SimFile>)>,
    /// Places of lane files that were damaged, and have not been written since: nobody may have come upon them yet.
    hurt: Vec<Written>,
    /// What a checkpoint's file held before it was replaced.
    replaced: BTreeMap<FileName, SimFile>,
    /// What happened.
    pub counters: DiskCounters,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64, profile: DiskProfile) -> Self {
        Self {
            files: BTreeMap::new(),
            under_way: BTreeMap::new(),
            random: Random::new(seed, "disk"),
            profile,
            hangs_until_ns: 0,
            fails_next: None,
            written: VecDeque::new(),
            cached: Vec::new(),
            renamed: Vec::new(),
            hurt: Vec::new(),
            replaced: BTreeMap::new(),
            counters: DiskCounters::default(),
        }
    }

    /// Takes an operation; answers after how many nanoseconds it completes.
    pub fn submit(&mut self, now_ns: u64, operation: DiskOperation) -> u64 {
        let (low, high) = self.profile.latency_ns;
        self.under_way.insert(operation.id, operation);
        let mut takes_ns = low + self.random.below(high - low + 1);
        let hangs_ns = self.hangs_until_ns.saturating_sub(now_ns);
        if self.random.chance_ppm(self.profile.slow_ppm) {
            takes_ns += self.random.below(self.profile.slow_ns);
            self.counters.slow += 1;
        }
        self.counters.slow += u64::from(hangs_ns > 0);
        takes_ns + hangs_ns
    }

    /// Completes an operation; none where a power loss took it.
    pub fn complete(&mut self, id: u64) -> Option<DiskCompletion> {
        let operation = self.under_way.remove(&id)?;
        self.counters.operations += 1;
        let result = match self.fail(&operation.kind) {
            Some(detail) => Err(DiskError { full: false, detail }),
            None => self.carry_out(operation.kind),
        };
        Some(DiskCompletion { id, result })
    }

    /// Lets the operation fail, where it is one that is to fail next.
    fn fail(&mut self, kind: &DiskOperationKind) -> Option<String> {
        let failure = self.fails_next?;
        match (failure, kind) {
            (Failure::Read, DiskOperationKind::Read { .. }) => self.counters.read_errors += 1,
            (Failure::Write, DiskOperationKind::Write { file, offset, data }) => {
                self.counters.write_errors += 1;
                self.tear(*file, *offset, data);
            }
            (Failure::Sync, DiskOperationKind::Write { file, offset, data }) => {
                self.counters.sync_errors += 1;
                self.cache(*file, *offset, data);
            }
            (
                Failure::File,
                DiskOperationKind::Allocate { .. }
                | DiskOperationKind::Replace { .. }
                | DiskOperationKind::Remove { .. },
            ) => self.counters.file_errors += 1,
            _ => return None,
        }
        self.fails_next = None;
        Some(format!("an input/output error of the simulated disk ({failure:?})"))
    }

    fn carry_out(&mut self, kind: DiskOperationKind) -> Result<DiskDone, DiskError> {
        let error = |full, detail: &str| Err(DiskError { full, detail: detail.into() });
        match kind {
            DiskOperationKind::List => {
                Ok(DiskDone::Listed(self.files.iter().map(|(name, file)| (*name, file.length)).collect()))
            }
            DiskOperationKind::Allocate { file, bytes, urgent } => {
                let room = self.profile.capacity_bytes.saturating_sub(self.used());
                let kept_free = if urgent { 0 } else { self.profile.kept_free_bytes };
                if bytes.saturating_add(kept_free) > room {
                    self.counters.full += 1;
                    // What fits is there, and takes room until it is removed.
                    self.files.insert(file, SimFile::zeros(self.random.below(room + 1)));
                    return error(true, "no space left on the simulated disk");
                }
                self.files.insert(file, SimFile::zeros(bytes));
                self.forget(file);
                Ok(DiskDone::Done)
            }
            DiskOperationKind::Write { file, offset, data } => match self.write(file, offset, &data) {
                Some(before) => {
                    self.counters.segments_begun += u64::from(offset == 0);
                    self.cached.retain(|cached| !cached.overlaps(file, offset, data.len()));
                    self.hurt.retain(|hurt| !hurt.overlaps(file, offset, data.len()));
                    self.written.push_back(Written { file, offset, before });
                    if self.written.len() > WRITES_REMEMBERED {
                        self.written.pop_front();
                    }
                    Ok(DiskDone::Done)
                }
                None => error(
                    false,
                    &format!("a write of {} bytes at {offset} is past the end of {file}", data.len()),
                ),
            },
            DiskOperationKind::Read { file, offset, length } => {
                self.counters.reads += 1;
                match self.files.get(&file).and_then(|bytes| bytes.read(offset, length as usize)) {
                    Some(bytes) => Ok(DiskDone::Read(bytes)),
                    None => error(
                        false,
                        &format!("a read of {length} bytes at {offset} is past the end of {file}"),
                    ),
                }
            }
            DiskOperationKind::Replace { file, data } => {
                if self.used() + data.len() as u64 > self.profile.capacity_bytes {
                    self.counters.full += 1;
                    return error(true, "no space left on the simulated disk");
                }
                self.counters.checkpoints += 1;
                // The folder is synced with it.
                self.renamed.clear();
                if let Some(before) = self.files.insert(file, SimFile::of(&data)) {
                    self.replaced.insert(file, before);
                }
                Ok(DiskDone::Done)
            }
            DiskOperationKind::Remove { file } => {
                self.files.remove(&file);
                self.forget(file);
                Ok(DiskDone::Done)
            }
        }
    }

    /// Writes and answers what was there before; none past the end of the file.
    fn write(&mut self, file: FileName, offset: u64, data: &[u8]) -> Option<Bytes> {
        let file = self.files.get_mut(&file)?;
        let before = file.read(offset, data.len())?;
        file.write(offset, data);
        Some(before)
    }

    /// Writes so that it can be read, and is lost with the power.
    fn cache(&mut self, file: FileName, offset: u64, data: &[u8]) {
        if let Some(before) = self.write(file, offset, data) {
            self.counters.cached_writes += 1;
            self.cached.push(Written { file, offset, before });
        }
    }

    /// The file is another one now.
    fn forget(&mut self, file: FileName) {
        self.written.retain(|written| written.file != file);
        self.cached.retain(|written| written.file != file);
        self.hurt.retain(|hurt| hurt.file != file);
    }

    /// Bytes of all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.files.values().map(|file| file.length).sum()
    }

    /// So many bytes are left from now on, besides those that are kept free.
    pub fn limit(&mut self, left_bytes: u64) {
        self.profile.capacity_bytes = self.used() + self.profile.kept_free_bytes + left_bytes;
    }

    /// There is room again.
    pub fn make_room(&mut self) {
        self.profile.capacity_bytes = u64::MAX;
    }

    /// Whether there is an end to its room.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.profile.capacity_bytes < u64::MAX
    }

    /// The process is killed: what it had asked for is done or not. What is done is in the cache only.
    pub fn lose_process(&mut self) {
        for operation in core::mem::take(&mut self.under_way).into_values() {
            match operation.kind {
                DiskOperationKind::Write { file, offset, data } if self.random.below(2) == 0 => {
                    self.cache(file, offset, &data);
                }
                DiskOperationKind::Write { .. } => {}
                DiskOperationKind::Replace { file, data } => {
                    if self.random.below(2) == 0 {
                        let before = self.files.insert(file, SimFile::of(&data));
                        self.renamed.push((file, before));
                    }
                }
                kind => self.do_or_not(kind),
            }
        }
    }

    /// The power is lost: of what was under way, and of what was in the cache, each sector survives or not.
    pub fn lose_power(&mut self) {
        for Written { file, offset, before } in core::mem::take(&mut self.cached).into_iter().rev() {
            let kept = self.tear(file, offset, &before);
            self.counters.uncached_writes += u64::from(kept > 0);
        }
        for (file, before) in core::mem::take(&mut self.renamed).into_iter().rev() {
            if self.random.below(2) == 0 {
                match before {
                    Some(before) => self.files.insert(file, before),
                    None => self.files.remove(&file),
                };
            }
        }
        for operation in core::mem::take(&mut self.under_way).into_values() {
            match operation.kind {
                DiskOperationKind::Write { file, offset, data } => {
                    let kept = self.tear(file, offset, &data);
                    if kept == 0 {
                        self.counters.lost_writes += 1;
                    } else if kept < data.len().div_ceil(SECTOR_BYTES) {
                        self.counters.torn_writes += 1;
                    }
                }
                kind => self.do_or_not(kind),
            }
        }
    }

    /// What is atomic by the shell's way of doing it is done or not; a file may be half made.
    fn do_or_not(&mut self, kind: DiskOperationKind) {
        match (self.random.below(3), kind) {
            (0, DiskOperationKind::Allocate { file, bytes, .. }) => {
                let room = self.profile.capacity_bytes.saturating_sub(self.used());
                self.counters.half_made_files += 1;
                self.files.insert(file, SimFile::zeros(self.random.below(bytes.min(room) + 1)));
            }
            (1, kind) => {
                let _ = self.carry_out(kind);
            }
            _ => {}
        }
    }

    /// Writes some sectors; answers how many.
    fn tear(&mut self, file: FileName, offset: u64, data: &[u8]) -> usize {
        // Whole, nothing, or any mixture: each is likely enough to be met.
        let keep_ppm = [0, 1_000_000, 500_000, 900_000][self.random.below(4) as usize];
        let mut kept = 0;
        for (sector, bytes) in data.chunks(SECTOR_BYTES).enumerate() {
            if self.random.chance_ppm(keep_ppm)
                && let Some(file) = self.files.get_mut(&file)
                && file.write(offset + (sector * SECTOR_BYTES) as u64, bytes)
            {
                kept += 1;
            }
        }
        kept
    }
}
