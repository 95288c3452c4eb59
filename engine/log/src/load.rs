//! Reads one file whole, in parts that are all under way at the same time.

use crate::disk::{DiskDone, DiskOperationKind, FileName};
use crate::error::JournalError;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;

/// Bytes of one read.
const PART_BYTES: u64 = 1 << 20;

/// A file being read.
#[derive(Debug)]
pub(crate) struct Load {
    file: FileName,
    bytes: usize,
    /// Offset and length of each part that has not come, by operation.
    missing: BTreeMap<u64, (usize, usize)>,
    /// Parts that have come, by offset.
    parts: BTreeMap<usize, Bytes>,
}

impl Load {
    /// Asks for all parts of the file's first `bytes` bytes with `operation`, which answers the operation's id.
    pub(crate) fn start(
        file: FileName,
        bytes: u64,
        mut operation: impl FnMut(DiskOperationKind) -> u64,
    ) -> Self {
        let mut missing = BTreeMap::new();
        let mut offset = 0;
        while offset < bytes {
            // At most PART_BYTES.
            let length = PART_BYTES.min(bytes - offset) as u32;
            let id = operation(DiskOperationKind::Read { file, offset, length });
            missing.insert(id, (offset as usize, length as usize));
            offset += u64::from(length);
        }
        Self { file, bytes: bytes as usize, missing, parts: BTreeMap::new() }
    }

    /// Takes one part; true when it was the last.
    pub(crate) fn part(&mut self, id: u64, done: &DiskDone) -> Result<bool, JournalError> {
        match (done, self.missing.remove(&id)) {
            (DiskDone::Read(part), Some((offset, length))) if part.len() == length => {
                self.parts.insert(offset, part.clone());
                Ok(self.missing.is_empty())
            }
            _ => Err(JournalError::Disk(format!("{}: a read answered something else", self.file))),
        }
    }

    /// What was read.
    pub(crate) fn into_bytes(mut self) -> Bytes {
        if self.parts.len() <= 1 {
            return self.parts.pop_first().map_or_else(Bytes::new, |(_, part)| part);
        }
        let mut bytes = BytesMut::with_capacity(self.bytes);
        while let Some((_, part)) = self.parts.pop_first() {
            bytes.extend_from_slice(&part);
        }
        bytes.freeze()
    }
}
