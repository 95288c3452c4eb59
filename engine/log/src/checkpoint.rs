//! A shard's checkpoint file: a header, then the state's bytes as the owner of the state made them. A shard has two
//! slots that are replaced in turn, so that one good checkpoint is always left.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `OVTKCKPT` |
//! | 8 | 2 | format version |
//! | 10 | 2 | core |
//! | 12 | 2 | shard |
//! | 14 | 2 | zero |
//! | 16 | 16 | store: identity of the data folder |
//! | 32 | 8 | serial: counts the shard's checkpoints from 1; its lowest bit is the slot |
//! | 40 | 8 | index of the last entry that the state contains |
//! | 48 | 8 | term of that entry |
//! | 56 | 8 | bytes of state |
//! | 64 | 8 | checksum of the state |
//! | 72 | 8 | checksum of bytes 0..72 |

use crate::header::{HeaderKind, NotAHeader};
use crate::layout::{Field, contiguous, field};
use overtake_base::checksum::checksum;
use overtake_base::{CoreId, ShardId};

/// First bytes of every checkpoint.
pub const MAGIC: &[u8; 8] = b"OVTKCKPT";
/// Version of the format.
pub const VERSION: u16 = 1;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 80;
const KIND: HeaderKind = HeaderKind {
    magic: MAGIC,
    version: VERSION,
    domain: u64::from_le_bytes(*b"ckpthdr1"),
    bytes: HEADER_BYTES,
    absent: "no checkpoint header",
    unfit: "the checkpoint header's checksum does not fit",
};
const STATE_DOMAIN: u64 = u64::from_le_bytes(*b"ckptsta1");

pub(crate) const FIELDS: [Field; 12] = [
    field("magic", 0, 8),
    field("version", 8, 2),
    field("core", 10, 2),
    field("shard", 12, 2),
    field("zero", 14, 2),
    field("store", 16, 16),
    field("serial", 32, 8),
    field("index", 40, 8),
    field("term", 48, 8),
    field("state bytes", 56, 8),
    field("state checksum", 64, 8),
    field("header checksum", 72, 8),
];
const _: () = assert!(contiguous(&FIELDS) == HEADER_BYTES);

/// What the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointHeader {
    /// Core that wrote it.
    pub core: CoreId,
    /// Identity of the data folder.
    pub store: u128,
    /// The shard.
    pub shard: ShardId,
    /// Counts the shard's checkpoints.
    pub serial: u64,
    /// Last entry that the state contains.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Bytes of state.
    pub state_bytes: u64,
    /// Checksum of the state.
    pub state_checksum: u64,
}

/// Why a file's first bytes are no usable header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotACheckpoint {
    /// A checkpoint of another format version.
    Version(u16),
    /// Something else.
    Damaged(&'static str),
}

/// Checksum of a state's bytes.
#[must_use]
pub fn state_checksum(state: &[u8]) -> u64 {
    checksum(STATE_DOMAIN, state)
}

impl CheckpointHeader {
    /// The slot that this checkpoint lives in, 0 or 1.
    #[must_use]
    pub fn slot(&self) -> u8 {
        (self.serial & 1) as u8
    }

    /// The whole file: header and state.
    #[must_use]
    pub fn encode_file(&self, state: &[u8]) -> Vec<u8> {
        let mut file = KIND.encode(|out| {
            out.u16(self.core.0);
            out.u16(self.shard.0);
            out.u16(0);
            out.u128(self.store);
            out.u64(self.serial);
            out.u64(self.index);
            out.u64(self.term);
            out.u64(self.state_bytes);
            out.u64(self.state_checksum);
        });
        file.extend_from_slice(state);
        file
    }

    /// The header at the start of `bytes`. The state's checksum is not checked here.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotACheckpoint> {
        let header = KIND.decode(bytes, |input| {
            let core = CoreId(input.u16("core")?);
            let shard = ShardId(input.u16("shard")?);
            input.u16("zero")?;
            Ok(Self {
                core,
                shard,
                store: input.u128("store")?,
                serial: input.u64("serial")?,
                index: input.u64("index")?,
                term: input.u64("term")?,
                state_bytes: input.u64("state bytes")?,
                state_checksum: input.u64("state checksum")?,
            })
        });
        header.map_err(|wrong| match wrong {
            NotAHeader::Blank => NotACheckpoint::Damaged(KIND.absent),
            NotAHeader::Version(found) => NotACheckpoint::Version(found),
            NotAHeader::Damaged(detail) => NotACheckpoint::Damaged(detail),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> (CheckpointHeader, Vec<u8>) {
        let header = CheckpointHeader {
            core: CoreId(1),
            store: 9,
            shard: ShardId(2),
            serial: 3,
            index: 100,
            term: 4,
            state_bytes: 5,
            state_checksum: state_checksum(b"state"),
        };
        (header, header.encode_file(b"state"))
    }

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let hex: String = sample().1.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4f56544b434b5054010001000200000009000000000000000000000000000000\
             0300000000000000640000000000000004000000000000000500000000000000\
             ddb29f95dec32b9249adff0c530bb5c57374617465"
        );
    }

    #[test]
    fn every_changed_byte_of_the_header_is_noticed() {
        let (header, file) = sample();
        assert_eq!(CheckpointHeader::decode(&file), Ok(header));
        for at in 0..HEADER_BYTES {
            let mut bad = file.clone();
            bad[at] ^= 2;
            assert!(CheckpointHeader::decode(&bad).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(mut bytes: Vec<u8>, cut in 0usize..HEADER_BYTES) {
            bytes.splice(0..0, sample().1[..cut].iter().copied());
            let _ = CheckpointHeader::decode(&bytes);
        }
    }
}
