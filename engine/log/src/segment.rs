//! The header of a segment file, in the file's first block. It is written, and durable, before the first batch of
//! the segment is: a header that is there says that whatever batches of its sequence the file holds are this life's.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `OVTKSEGM` |
//! | 8 | 2 | format version |
//! | 10 | 2 | core |
//! | 12 | 4 | zero |
//! | 16 | 16 | store: identity of the data folder |
//! | 32 | 8 | sequence: place of the segment in the journal, from 1, never used twice |
//! | 40 | 8 | oldest: lowest sequence still needed when this header was written |
//! | 48 | 8 | length of the file in bytes |
//! | 56 | 8 | checksum of bytes 0..56 |
//!
//! The header is smaller than a sector, so that a torn write leaves the old one or the new one.

use crate::header::{HeaderKind, NotAHeader};
use crate::layout::{Field, contiguous, field};
use overtake_base::CoreId;

/// First bytes of every segment.
pub const MAGIC: &[u8; 8] = b"OVTKSEGM";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 64;
pub(crate) const KIND: HeaderKind = HeaderKind {
    magic: MAGIC,
    version: VERSION,
    domain: u64::from_le_bytes(*b"segment1"),
    bytes: HEADER_BYTES,
    absent: "no segment header",
    unfit: "the segment header's checksum does not fit",
};

pub(crate) const FIELDS: [Field; 9] = [
    field("magic", 0, 8),
    field("version", 8, 2),
    field("core", 10, 2),
    field("zero", 12, 4),
    field("store", 16, 16),
    field("sequence", 32, 8),
    field("oldest", 40, 8),
    field("segment bytes", 48, 8),
    field("checksum", 56, 8),
];
const _: () = assert!(contiguous(&FIELDS) == HEADER_BYTES && HEADER_BYTES <= 512);

/// What the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Core whose journal it is.
    pub core: CoreId,
    /// Identity of the data folder.
    pub store: u128,
    /// Place in the journal, from 1.
    pub sequence: u64,
    /// Lowest sequence that was still needed.
    pub oldest: u64,
    /// Length of the file in bytes.
    pub segment_bytes: u64,
}

impl SegmentHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        KIND.encode(|out| {
            out.u16(self.core.0);
            out.u32(0);
            out.u128(self.store);
            out.u64(self.sequence);
            out.u64(self.oldest);
            out.u64(self.segment_bytes);
        })
    }

    /// The file's first block.
    #[must_use]
    pub fn encode_block(&self) -> Vec<u8> {
        let mut block = self.encode();
        block.resize(crate::disk::BLOCK_BYTES, 0);
        block
    }

    /// The header at the start of `block`.
    pub fn decode(block: &[u8]) -> Result<Self, NotAHeader> {
        KIND.decode(block, |input| {
            let core = CoreId(input.u16("core")?);
            input.u32("zero")?;
            Ok(Self {
                core,
                store: input.u128("store")?,
                sequence: input.u64("sequence")?,
                oldest: input.u64("oldest")?,
                segment_bytes: input.u64("segment bytes")?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: SegmentHeader =
        SegmentHeader { core: CoreId(3), store: 0x1122, sequence: 9, oldest: 4, segment_bytes: 1 << 26 };

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let hex: String = HEADER.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4f56544b5345474d010003000000000022110000000000000000000000000000\
             0900000000000000040000000000000000000004000000005e9527037a09e773"
        );
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let good = HEADER.encode();
        assert_eq!(SegmentHeader::decode(&good), Ok(HEADER));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(SegmentHeader::decode(&bad).is_err(), "byte {at}");
        }
        assert_eq!(SegmentHeader::decode(&[0; 4096]), Err(NotAHeader::Blank));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(mut bytes: Vec<u8>, valid_start: bool) {
            if valid_start {
                bytes.splice(0..0, MAGIC.iter().copied().chain(VERSION.to_le_bytes()));
            }
            prop_assert!(SegmentHeader::decode(&bytes).is_err());
        }
    }
}
