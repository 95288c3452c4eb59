//! A block of cold messages in a lane file: a header, records, payloads, zeros up to a multiple of 4,096 bytes. What
//! records and payloads mean is their owner's business.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `OVTKBLCK` |
//! | 8 | 2 | format version |
//! | 10 | 2 | core |
//! | 12 | 2 | shard |
//! | 14 | 2 | zero |
//! | 16 | 16 | store: identity of the data folder |
//! | 32 | 8 | sequence: that of the file's header |
//! | 40 | 8 | offset: where the block stands in the file |
//! | 48 | 8 | block: its name in the shard |
//! | 56 | 4 | bytes of records |
//! | 60 | 4 | bytes of payloads, with the checksum in front of each |
//! | 64 | 8 | checksum of the records |
//! | 72 | 8 | checksum of the payloads |
//! | 80 | 8 | checksum of bytes 0..80 |
//! | 88 | | records, then payloads: each 8 bytes of checksum, then its bytes |
//!
//! A payload's own checksum knows the block and the place: one payload can be read without the rest.

use crate::disk::BLOCK_BYTES;
use crate::lanes::file::VERSION;
use crate::layout::{Field, contiguous, field};
use bytes::Bytes;
use overtake_base::checksum::checksum;
use overtake_base::limits::BLOCK_PAYLOAD_PREFIX_BYTES;
use overtake_base::{BlockId, CoreId, Malformed, Reader, ShardId, Writer};

/// First bytes of every block.
pub const MAGIC: &[u8; 8] = b"OVTKBLCK";
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 88;
const HEADER_DOMAIN: u64 = u64::from_le_bytes(*b"lanehdr1");
const RECORDS_DOMAIN: u64 = u64::from_le_bytes(*b"lanerec1");
const PAYLOADS_DOMAIN: u64 = u64::from_le_bytes(*b"lanepay1");
const PAYLOAD_DOMAIN: u64 = u64::from_le_bytes(*b"lanepl_1");

pub(crate) const FIELDS: [Field; 14] = [
    field("magic", 0, 8),
    field("version", 8, 2),
    field("core", 10, 2),
    field("shard", 12, 2),
    field("zero", 14, 2),
    field("store", 16, 16),
    field("sequence", 32, 8),
    field("offset", 40, 8),
    field("block", 48, 8),
    field("records bytes", 56, 4),
    field("payloads bytes", 60, 4),
    field("records checksum", 64, 8),
    field("payloads checksum", 72, 8),
    field("header checksum", 80, 8),
];
const _: () = assert!(contiguous(&FIELDS) == HEADER_BYTES && HEADER_BYTES <= 512);

/// What the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// Core whose file it is in.
    pub core: CoreId,
    /// Identity of the data folder.
    pub store: u128,
    /// Shard whose messages it holds.
    pub shard: ShardId,
    /// Life of the file.
    pub sequence: u64,
    /// Where it stands in the file.
    pub offset: u64,
    /// Its name.
    pub block: BlockId,
    /// Bytes of records.
    pub records_bytes: u32,
    /// Bytes of payloads and their checksums.
    pub payloads_bytes: u32,
    /// Checksum of the records.
    pub records_checksum: u64,
    /// Checksum of the payloads.
    pub payloads_checksum: u64,
}

/// Checksum of a block's records.
#[must_use]
pub fn records_checksum(records: &[u8]) -> u64 {
    checksum(RECORDS_DOMAIN, records)
}

/// Checksum in front of the payload that begins at `offset` of a block's payloads.
#[must_use]
pub fn payload_checksum(block: BlockId, offset: u32, payload: &[u8]) -> u64 {
    checksum(PAYLOAD_DOMAIN ^ block.0.rotate_left(32) ^ u64::from(offset), payload)
}

/// Bytes that a block takes in a file.
#[must_use]
pub const fn padded(records_bytes: u32, payloads_bytes: u32) -> u64 {
    let bytes = HEADER_BYTES as u64 + records_bytes as u64 + payloads_bytes as u64;
    bytes.next_multiple_of(BLOCK_BYTES as u64)
}

/// The payloads' part of a block: each with its checksum in front.
#[must_use]
pub fn join_payloads(block: BlockId, payloads: &[Bytes]) -> Vec<u8> {
    let prefix = BLOCK_PAYLOAD_PREFIX_BYTES as usize;
    let mut joined = Vec::with_capacity(payloads.iter().map(|payload| payload.len() + prefix).sum());
    for payload in payloads {
        let offset = (joined.len() + prefix) as u32;
        joined.extend_from_slice(&payload_checksum(block, offset, payload).to_le_bytes());
        joined.extend_from_slice(payload);
    }
    joined
}

impl BlockHeader {
    /// Bytes that the block takes in its file.
    #[must_use]
    pub fn padded(&self) -> u64 {
        padded(self.records_bytes, self.payloads_bytes)
    }

    /// The whole block, padded; `content` is records and payloads.
    #[must_use]
    pub fn encode_block(&self, content: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.padded() as usize);
        let mut writer = Writer(&mut bytes);
        writer.raw(MAGIC);
        writer.u16(VERSION);
        writer.u16(self.core.0);
        writer.u16(self.shard.0);
        writer.u16(0);
        writer.u128(self.store);
        writer.u64(self.sequence);
        writer.u64(self.offset);
        writer.u64(self.block.0);
        writer.u32(self.records_bytes);
        writer.u32(self.payloads_bytes);
        writer.u64(self.records_checksum);
        writer.u64(self.payloads_checksum);
        let sum = checksum(HEADER_DOMAIN, writer.0);
        writer.u64(sum);
        content.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes.resize(self.padded() as usize, 0);
        bytes
    }

    /// The header at the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.raw(MAGIC.len(), "shorter than a block header")? != MAGIC {
            return Err(Malformed("no block header"));
        }
        if reader.u16("version")? != VERSION {
            return Err(Malformed("a block of another format version"));
        }
        let core = CoreId(reader.u16("core")?);
        let shard = ShardId(reader.u16("shard")?);
        reader.u16("zero")?;
        let header = Self {
            core,
            shard,
            store: reader.u128("store")?,
            sequence: reader.u64("sequence")?,
            offset: reader.u64("offset")?,
            block: BlockId(reader.u64("block")?),
            records_bytes: reader.u32("records bytes")?,
            payloads_bytes: reader.u32("payloads bytes")?,
            records_checksum: reader.u64("records checksum")?,
            payloads_checksum: reader.u64("payloads checksum")?,
        };
        let expected = checksum(HEADER_DOMAIN, &bytes[..reader.position()]);
        if reader.u64("shorter than a block header")? == expected {
            Ok(header)
        } else {
            Err(Malformed("the block header's checksum does not fit"))
        }
    }

    /// Records and payloads of the block that stands at the start of `bytes`, and is this one.
    pub fn content(&self, bytes: &Bytes) -> Result<(Bytes, Bytes), Malformed> {
        if Self::decode(bytes)? != *self {
            return Err(Malformed("another block is in its place"));
        }
        let records_end = HEADER_BYTES.saturating_add(self.records_bytes as usize);
        let end = records_end.saturating_add(self.payloads_bytes as usize);
        if bytes.len() < end {
            return Err(Malformed("the block ends early"));
        }
        let (records, payloads) = (bytes.slice(HEADER_BYTES..records_end), bytes.slice(records_end..end));
        if records_checksum(&records) != self.records_checksum {
            return Err(Malformed("the checksum of the block's records does not fit"));
        }
        if checksum(PAYLOADS_DOMAIN, &payloads) != self.payloads_checksum {
            return Err(Malformed("the checksum of the block's payloads does not fit"));
        }
        Ok((records, payloads))
    }

    /// The header of a block with this content, which has no place yet.
    #[must_use]
    pub fn of(
        core: CoreId,
        store: u128,
        shard: ShardId,
        block: BlockId,
        records: &[u8],
        payloads: &[u8],
    ) -> Self {
        Self {
            core,
            store,
            shard,
            sequence: 0,
            offset: 0,
            block,
            // Blocks are shorter than their file, which is shorter than 4 GiB.
            records_bytes: records.len() as u32,
            payloads_bytes: payloads.len() as u32,
            records_checksum: records_checksum(records),
            payloads_checksum: checksum(PAYLOADS_DOMAIN, payloads),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> (BlockHeader, Bytes) {
        let payloads = join_payloads(BlockId(5), &[Bytes::from_static(b"one"), Bytes::from_static(b"")]);
        let mut header = BlockHeader::of(CoreId(1), 9, ShardId(2), BlockId(5), b"records", &payloads);
        (header.sequence, header.offset) = (3, 8_192);
        (header, header.encode_block(&[b"records", &payloads]).into())
    }

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let (header, bytes) = sample();
        let content = HEADER_BYTES + 7 + 19;
        let hex: String = bytes[..content].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4f56544b424c434b010001000200000009000000000000000000000000000000\
             030000000000000000200000000000000500000000000000\
             07000000130000001d0482c2b222a088cffbda0eb1dbe8bde573af4324f153bb\
             7265636f726473abe988fd8a0d81386f6e6597fd4a54d79b0cb7"
        );
        assert!(bytes.len() == 4_096 && bytes[content..].iter().all(|byte| *byte == 0));
        assert_eq!(header.padded(), 4_096);
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let (header, bytes) = sample();
        assert_eq!(BlockHeader::decode(&bytes), Ok(header));
        assert_eq!(header.content(&bytes).map(|(records, _)| records), Ok(Bytes::from_static(b"records")));
        for at in 0..HEADER_BYTES + 7 + 19 {
            let mut bad = bytes.to_vec();
            bad[at] ^= 2;
            assert!(header.content(&bad.into()).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(mut bytes: Vec<u8>, cut in 0usize..200) {
            let (header, whole) = sample();
            bytes.splice(0..0, whole[..cut].iter().copied());
            let _ = BlockHeader::decode(&bytes);
            let _ = header.content(&bytes.into());
        }
    }
}
