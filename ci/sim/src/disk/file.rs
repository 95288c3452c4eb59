//! The bytes of one simulated file. Blocks that were never written cost nothing: segments are long and mostly empty.

use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;

const BLOCK_BYTES: usize = 4_096;
/// Reads of nothing but zeros are answered from here.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// See the module's text.
#[derive(Clone, Default, Debug)]
pub(super) struct SimFile {
    pub(super) length: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK_BYTES]>>,
}

impl SimFile {
    pub(super) fn zeros(length: u64) -> Self {
        Self { length, blocks: BTreeMap::new() }
    }

    pub(super) fn of(data: &[u8]) -> Self {
        let mut file = Self::zeros(data.len() as u64);
        file.write(0, data);
        file
    }

    /// None where the range passes the end.
    pub(super) fn read(&self, offset: u64, length: usize) -> Option<Bytes> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.length)?;
        let blocks = offset / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64);
        if self.blocks.range(blocks.clone()).next().is_none() && length <= ZEROS.len() {
            return Some(Bytes::from_static(&ZEROS[..length]));
        }
        let mut data = BytesMut::zeroed(length);
        for (block, bytes) in self.blocks.range(blocks) {
            let start = block * BLOCK_BYTES as u64;
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES as u64).min(end));
            data[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
        Some(data.freeze())
    }

    /// False where the range passes the end.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > self.length) {
            return false;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (block, within) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
            let length = (BLOCK_BYTES - within).min(data.len() - done);
            let bytes = self.blocks.entry(block).or_insert_with(|| Box::new([0; BLOCK_BYTES]));
            bytes[within..within + length].copy_from_slice(&data[done..done + length]);
            done += length;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_rest_is_zero() {
        let mut file = SimFile::zeros(20_000);
        assert!(file.write(4_000, &[7; 5_000]));
        let all = file.read(0, 20_000).unwrap();
        assert!(all[..4_000].iter().chain(&all[9_000..]).all(|byte| *byte == 0));
        assert!(all[4_000..9_000].iter().all(|byte| *byte == 7));
        assert_eq!(file.read(8_990, 20).unwrap()[..], [[7; 10], [0; 10]].concat());
        assert_eq!(file.read(12_288, 100).unwrap()[..], [0; 100]);
        assert!(!file.write(19_999, &[1, 2]) && file.read(19_999, 2).is_none());
        assert_eq!(SimFile::of(b"abc").read(0, 3).unwrap()[..], *b"abc");
    }
}
