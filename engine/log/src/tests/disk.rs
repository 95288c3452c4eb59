//! A disk in memory. Operations complete in any order; at a power loss any subset of those under way survives, writes
//! torn at sectors.

use crate::disk::{DiskCompletion, DiskDone, DiskError, DiskOperation, DiskOperationKind, FileName};
use bytes::Bytes;
use overtake_base::random::Random;
use std::collections::BTreeMap;

const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) files: BTreeMap<FileName, Vec<u8>>,
    pub(super) pending: Vec<DiskOperation>,
    pub(super) random: Random,
    /// Room for segment files; allocations beyond fail as on a full disk.
    pub(super) files_max: usize,
    /// Of that, room that only urgent allocations get.
    pub(super) kept_free: usize,
}

impl Disk {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(seed, "disk");
        Self { files: BTreeMap::new(), pending: Vec::new(), random, files_max: usize::MAX, kept_free: 0 }
    }

    pub(super) fn submit(&mut self, operations: &mut Vec<DiskOperation>) {
        self.pending.append(operations);
    }

    /// Completes one of the operations under way, any of them.
    pub(super) fn complete_one(&mut self) -> Option<DiskCompletion> {
        let at = self.random.below(self.pending.len() as u64) as usize;
        (at < self.pending.len()).then(|| {
            let operation = self.pending.swap_remove(at);
            self.carry_out(operation)
        })
    }

    pub(super) fn carry_out(&mut self, DiskOperation { id, kind }: DiskOperation) -> DiskCompletion {
        let done = match kind {
            DiskOperationKind::List => {
                DiskDone::Listed(self.files.iter().map(|(name, bytes)| (*name, bytes.len() as u64)).collect())
            }
            DiskOperationKind::Allocate { file, bytes, urgent } => {
                let kept_free = if urgent { 0 } else { self.kept_free };
                if self.files.len() + kept_free >= self.files_max {
                    let error = DiskError { full: true, detail: "no room".into() };
                    return DiskCompletion { id, result: Err(error) };
                }
                self.files.insert(file, vec![0; bytes as usize]);
                DiskDone::Done
            }
            DiskOperationKind::Write { file, offset, data } => {
                let at = offset as usize;
                self.files.get_mut(&file).expect("a file to write")[at..at + data.len()]
                    .copy_from_slice(&data);
                DiskDone::Done
            }
            DiskOperationKind::Read { file, offset, length } => {
                let at = offset as usize;
                let Some(bytes) = self.files.get(&file) else {
                    let error = DiskError { full: false, detail: "the file is gone".into() };
                    return DiskCompletion { id, result: Err(error) };
                };
                DiskDone::Read(Bytes::copy_from_slice(&bytes[at..at + length as usize]))
            }
            DiskOperationKind::Replace { file, data } => {
                self.files.insert(file, data.to_vec());
                DiskDone::Done
            }
            DiskOperationKind::Remove { file } => {
                self.files.remove(&file);
                DiskDone::Done
            }
        };
        DiskCompletion { id, result: Ok(done) }
    }

    /// The power fails.
    pub(super) fn lose_power(&mut self) {
        while !self.pending.is_empty() {
            let at = self.random.below(self.pending.len() as u64) as usize;
            let operation = self.pending.swap_remove(at);
            let survives = self.random.below(4);
            match operation.kind {
                DiskOperationKind::Write { file, offset, data } => {
                    for (i, sector) in data.chunks(SECTOR_BYTES).enumerate() {
                        let lands = match survives {
                            0 => false,
                            1 => true,
                            2 => self.random.below(2) == 0,
                            _ => (i as u64) < self.random.below(16),
                        };
                        if lands {
                            let at = offset as usize + i * SECTOR_BYTES;
                            self.files.get_mut(&file).expect("a file")[at..at + sector.len()]
                                .copy_from_slice(sector);
                        }
                    }
                }
                DiskOperationKind::Allocate { file, bytes, .. } if survives > 0 => {
                    let length = if survives == 1 { bytes } else { self.random.below(bytes) };
                    self.files.insert(file, vec![0; length as usize]);
                }
                DiskOperationKind::Replace { .. } | DiskOperationKind::Remove { .. } if survives > 1 => {
                    self.carry_out(DiskOperation { id: 0, kind: operation.kind });
                }
                _ => {}
            }
        }
    }
}
