//! The header of a lane file, in the file's first 4,096 bytes. It is durable before the first block of the file is
//! written: blocks that name another sequence are left over from an earlier life of the file.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `OVTKLANE` |
//! | 8 | 2 | format version |
//! | 10 | 2 | core |
//! | 12 | 4 | zero |
//! | 16 | 16 | store: identity of the data folder |
//! | 32 | 8 | sequence: counts the lives of all lane files of the core, from 1 |
//! | 40 | 8 | length of the file in bytes |
//! | 48 | 8 | end of the blocks of the file of the sequence before; 0 where there was none |
//! | 56 | 8 | checksum of bytes 0..56 |
//!
//! The header is smaller than a sector, so that a torn write leaves the old one or the new one.

use crate::header::{HeaderKind, NotAHeader};
use crate::layout::{Field, contiguous, field};
use overtake_base::CoreId;

/// First bytes of every lane file.
pub const MAGIC: &[u8; 8] = b"OVTKLANE";
/// Version of the format, of blocks too.
pub const VERSION: u16 = 1;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 64;
pub(crate) const KIND: HeaderKind = HeaderKind {
    magic: MAGIC,
    version: VERSION,
    domain: u64::from_le_bytes(*b"lanefil1"),
    bytes: HEADER_BYTES,
    absent: "no lane file header",
    unfit: "the lane file header's checksum does not fit",
};

pub(crate) const FIELDS: [Field; 9] = [
    field("magic", 0, 8),
    field("version", 8, 2),
    field("core", 10, 2),
    field("zero", 12, 4),
    field("store", 16, 16),
    field("sequence", 32, 8),
    field("file bytes", 40, 8),
    field("previous end", 48, 8),
    field("checksum", 56, 8),
];
const _: () = assert!(contiguous(&FIELDS) == HEADER_BYTES && HEADER_BYTES <= 512);

/// What the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneFileHeader {
    /// Core whose file it is.
    pub core: CoreId,
    /// Identity of the data folder.
    pub store: u128,
    /// Which life of which file.
    pub sequence: u64,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Where the blocks of the file of the sequence before end: one that is missed there is damaged. 0: there was none.
    pub previous_end: u64,
}

impl LaneFileHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        KIND.encode(|out| {
            out.u16(self.core.0);
            out.u32(0);
            out.u128(self.store);
            out.u64(self.sequence);
            out.u64(self.file_bytes);
            out.u64(self.previous_end);
        })
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
                file_bytes: input.u64("file bytes")?,
                previous_end: input.u64("previous end")?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> LaneFileHeader {
        LaneFileHeader { core: CoreId(1), store: 9, sequence: 3, file_bytes: 65_536, previous_end: 8_192 }
    }

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let hex: String = sample().encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4f56544b4c414e45010001000000000009000000000000000000000000000000\
             030000000000000000000100000000000020000000000000\
             7eb5991ffadbf1cb"
        );
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        assert_eq!(LaneFileHeader::decode(&sample().encode()), Ok(sample()));
        for at in 0..HEADER_BYTES {
            let mut bad = sample().encode();
            bad[at] ^= 2;
            assert!(LaneFileHeader::decode(&bad).is_err(), "byte {at}");
        }
        assert_eq!(LaneFileHeader::decode(&[0; 4096]), Err(NotAHeader::Blank));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(mut bytes: Vec<u8>, cut in 0usize..HEADER_BYTES) {
            bytes.splice(0..0, sample().encode()[..cut].iter().copied());
            let _ = LaneFileHeader::decode(&bytes);
        }
    }
}
