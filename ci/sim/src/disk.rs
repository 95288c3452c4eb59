//! A simulated disk: operations take virtual time, and at a power loss each sector of what was under way survives or
//! not, by the seed. It can also hang, run full, refuse to read, and rot.

use bytes::Bytes;
use overtake_base::random::Random;
use overtake_log::disk::{DiskCompletion, DiskDone, DiskError, DiskOperation, DiskOperationKind, FileName};
use std::collections::{BTreeMap, VecDeque};

/// What a disk writes in one piece.
const SECTOR_BYTES: usize = 512;
/// Writes remembered as places that may rot.
const WRITES_REMEMBERED: usize = 256;
/// The newest writes do not rot: until a later batch vouches for them, damage there looks like a torn tail, and rot
/// within that moment is indistinguishable from one.
const WRITES_SPARED: usize = 24;

/// How a disk behaves.
#[derive(Clone, Copy, Debug)]
pub struct DiskProfile {
    /// Shortest and longest time of an operation, in nanoseconds.
    pub latency_ns: (u64, u64),
    /// Bytes that fit on it.
    pub capacity_bytes: u64,
    /// How often an operation takes up to [`DiskProfile::slow_ns`] instead.
    pub slow_ppm: u32,
    /// See there.
    pub slow_ns: u64,
}

impl Default for DiskProfile {
    fn default() -> Self {
        Self { latency_ns: (60_000, 400_000), capacity_bytes: u64::MAX, slow_ppm: 0, slow_ns: 0 }
    }
}

/// What happened to a disk, so that a fault that never fires is seen.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct DiskCounters {
    /// Operations that completed.
    pub operations: u64,
    /// Power losses.
    pub power_losses: u64,
    /// Writes under way at a power loss that survived in part.
    pub torn_writes: u64,
    /// Writes under way at a power loss that left nothing behind.
    pub lost_writes: u64,
    /// Operations that found no room.
    pub full: u64,
    /// Operations that took much longer than usual.
    pub slow: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Bits that rotted.
    pub rotten_bits: u64,
    /// Reads of journal files, recovery's not counted.
    pub reads: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct SimDisk {
    files: BTreeMap<FileName, Vec<u8>>,
    under_way: BTreeMap<u64, DiskOperation>,
    random: Random,
    /// How it behaves; may be changed at any time.
    pub profile: DiskProfile,
    /// Nothing that is submitted completes before this virtual time.
    pub hangs_until_ns: u64,
    /// The next read fails.
    pub fails_next_read: bool,
    written: VecDeque<(FileName, u64, usize)>,
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
            fails_next_read: false,
            written: VecDeque::new(),
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
        if matches!(operation.kind, DiskOperationKind::Read { .. })
            && core::mem::take(&mut self.fails_next_read)
        {
            self.counters.read_errors += 1;
            let detail = format!("a read error of the simulated disk: {:?}", operation.kind);
            return Some(DiskCompletion { id, result: Err(DiskError { full: false, detail }) });
        }
        Some(DiskCompletion { id, result: self.carry_out(operation.kind) })
    }

    fn carry_out(&mut self, kind: DiskOperationKind) -> Result<DiskDone, DiskError> {
        let error = |full, detail: &str| Err(DiskError { full, detail: detail.into() });
        match kind {
            DiskOperationKind::List => Ok(DiskDone::Listed(
                self.files.iter().map(|(name, bytes)| (*name, bytes.len() as u64)).collect(),
            )),
            DiskOperationKind::Allocate { file, bytes } => {
                if self.used() + bytes > self.profile.capacity_bytes {
                    self.counters.full += 1;
                    return error(true, "no space left on the simulated disk");
                }
                self.files.insert(file, vec![0; bytes as usize]);
                Ok(DiskDone::Done)
            }
            DiskOperationKind::Write { file, offset, data } => match self.range(file, offset, data.len()) {
                Some(range) => {
                    range.copy_from_slice(&data);
                    self.written.push_back((file, offset, data.len()));
                    if self.written.len() > WRITES_REMEMBERED {
                        self.written.pop_front();
                    }
                    Ok(DiskDone::Done)
                }
                None => error(false, "a write past the end of its file"),
            },
            DiskOperationKind::Read { file, offset, length } => {
                self.counters.reads += 1;
                match self.range(file, offset, length as usize) {
                    Some(range) => Ok(DiskDone::Read(Bytes::copy_from_slice(range))),
                    None => error(false, "a read past the end of its file"),
                }
            }
            DiskOperationKind::Replace { file, data } => {
                if self.used() + data.len() as u64 > self.profile.capacity_bytes {
                    self.counters.full += 1;
                    return error(true, "no space left on the simulated disk");
                }
                self.files.insert(file, data.to_vec());
                Ok(DiskDone::Done)
            }
            DiskOperationKind::Remove { file } => {
                self.files.remove(&file);
                Ok(DiskDone::Done)
            }
        }
    }

    /// Bytes of all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.files.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Flips one bit of something that was written some time ago; says which. None where nothing is old enough.
    pub fn rot(&mut self) -> Option<String> {
        let old = self.written.len().checked_sub(WRITES_SPARED)?;
        let (file, offset, length) = *self.written.get(self.random.below(old as u64) as usize)?;
        let byte = self.random.below(length as u64);
        let bit = self.random.below(8);
        let at = offset + byte;
        let place = self.range(file, at, 1)?;
        place[0] ^= 1 << bit;
        self.counters.rotten_bits += 1;
        Some(format!("bit {bit} of byte {at} of {file}"))
    }

    fn range(&mut self, file: FileName, offset: u64, length: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(offset).ok()?;
        self.files.get_mut(&file)?.get_mut(start..start.checked_add(length)?)
    }

    /// The power is lost: of what was under way each sector survives or not.
    pub fn lose_power(&mut self) {
        self.counters.power_losses += 1;
        for operation in core::mem::take(&mut self.under_way).into_values() {
            match operation.kind {
                DiskOperationKind::Write { file, offset, data } => self.tear(file, offset, &data),
                // These are atomic by the shell's way of doing them: done or not.
                kind => {
                    if self.random.below(2) == 0 {
                        let _ = self.carry_out(kind);
                    }
                }
            }
        }
    }

    fn tear(&mut self, file: FileName, offset: u64, data: &[u8]) {
        // Whole, nothing, or any mixture: each is likely enough to be met.
        let keep_ppm = [0, 1_000_000, 500_000, 900_000][self.random.below(4) as usize];
        let mut kept = 0;
        for (sector, bytes) in data.chunks(SECTOR_BYTES).enumerate() {
            if self.random.chance_ppm(keep_ppm)
                && let Some(range) = self.range(file, offset + (sector * SECTOR_BYTES) as u64, bytes.len())
            {
                range.copy_from_slice(bytes);
                kept += 1;
            }
        }
        if kept == 0 {
            self.counters.lost_writes += 1;
        } else if kept < data.len().div_ceil(SECTOR_BYTES) {
            self.counters.torn_writes += 1;
        }
    }
}
