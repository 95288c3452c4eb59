//! A batch: what one write puts into the journal. A header, records one after the other, zeros up to a whole number
//! of blocks. It says where it belongs (store, core, segment, offset), which batch it follows (number and checksum of
//! the one before: a chain), and what was durable when it was written, so that recovery can tell a tail that never
//! became durable from damage to what did.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `OVTKBTCH` |
//! | 8 | 2 | format version (also of the records) |
//! | 10 | 2 | core |
//! | 12 | 4 | number of records |
//! | 16 | 16 | store: identity of the data folder |
//! | 32 | 8 | sequence of the segment |
//! | 40 | 8 | offset of this header in the segment |
//! | 48 | 8 | number of the batch, from 1, without gaps |
//! | 56 | 8 | durable: highest batch known durable when this one was written |
//! | 64 | 8 | previous: header checksum of the batch before; 0 for the first |
//! | 72 | 8 | epoch: one more each time the journal is opened |
//! | 80 | 4 | bytes of records |
//! | 84 | 4 | zero |
//! | 88 | 8 | checksum of everything after the header, padding included |
//! | 96 | 8 | checksum of bytes 0..96 |

use crate::disk::BLOCK_BYTES;
use crate::layout::{Field, contiguous, field};
use overtake_base::checksum::checksum;
use overtake_base::{CoreId, Malformed, Reader, Writer};

/// First bytes of every batch.
pub const MAGIC: &[u8; 8] = b"OVTKBTCH";
/// Version of the format of batches and records.
pub const VERSION: u16 = 1;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 104;
const HEADER_DOMAIN: u64 = u64::from_le_bytes(*b"batchhd1");
const PAYLOAD_DOMAIN: u64 = u64::from_le_bytes(*b"batchpl1");

pub(crate) const FIELDS: [Field; 15] = [
    field("magic", 0, 8),
    field("version", 8, 2),
    field("core", 10, 2),
    field("records", 12, 4),
    field("store", 16, 16),
    field("sequence", 32, 8),
    field("offset", 40, 8),
    field("number", 48, 8),
    field("durable", 56, 8),
    field("previous", 64, 8),
    field("epoch", 72, 8),
    field("payload bytes", 80, 4),
    field("zero", 84, 4),
    field("payload checksum", 88, 8),
    field("header checksum", 96, 8),
];
const _: () = assert!(contiguous(&FIELDS) == HEADER_BYTES && HEADER_BYTES <= 512);

/// `bytes` rounded up to whole blocks.
#[must_use]
pub const fn whole_blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// What the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// Core whose journal it is.
    pub core: CoreId,
    /// Identity of the data folder.
    pub store: u128,
    /// Segment it belongs to.
    pub sequence: u64,
    /// Offset of the header in the segment.
    pub offset: u64,
    /// Number of the batch.
    pub number: u64,
    /// Highest batch known durable when this one was written.
    pub durable: u64,
    /// Header checksum of the batch before.
    pub previous: u64,
    /// Which opening of the journal wrote it.
    pub epoch: u64,
    /// Number of records.
    pub records: u32,
    /// Bytes of records.
    pub payload_bytes: u32,
}

impl BatchHeader {
    /// It was written by this core of this data folder.
    #[must_use]
    pub fn is_of(&self, store: u128, core: CoreId) -> bool {
        (self.store, self.core) == (store, core)
    }

    /// Length of the whole batch in bytes, a multiple of the block.
    #[must_use]
    pub fn batch_bytes(&self) -> usize {
        whole_blocks(HEADER_BYTES + self.payload_bytes as usize)
    }

    /// Finishes `batch`, which holds room for a header and then the records: pads it to whole blocks and puts the
    /// header in its place. Answers the header's checksum, which the next batch names as `previous`.
    pub fn seal(&self, batch: &mut Vec<u8>) -> u64 {
        debug_assert_eq!(batch.len(), HEADER_BYTES + self.payload_bytes as usize);
        batch.resize(self.batch_bytes(), 0);
        let payload_checksum = checksum(PAYLOAD_DOMAIN, &batch[HEADER_BYTES..]);
        let mut header = Vec::with_capacity(HEADER_BYTES);
        let mut writer = Writer(&mut header);
        writer.raw(MAGIC);
        writer.u16(VERSION);
        writer.u16(self.core.0);
        writer.u32(self.records);
        writer.u128(self.store);
        writer.u64(self.sequence);
        writer.u64(self.offset);
        writer.u64(self.number);
        writer.u64(self.durable);
        writer.u64(self.previous);
        writer.u64(self.epoch);
        writer.u32(self.payload_bytes);
        writer.u32(0);
        writer.u64(payload_checksum);
        let sum = checksum(HEADER_DOMAIN, writer.0);
        writer.u64(sum);
        batch[..HEADER_BYTES].copy_from_slice(&header);
        sum
    }

    /// The header at the start of `bytes`, its own checksum checked.
    pub fn decode(bytes: &[u8]) -> Result<SealedHeader, Malformed> {
        let bytes = bytes.get(..HEADER_BYTES).ok_or(Malformed("a batch's header would pass the end"))?;
        let mut reader = Reader::new(bytes);
        if reader.raw(MAGIC.len(), "magic")? != MAGIC {
            return Err(Malformed("no batch starts here"));
        }
        if reader.u16("version")? != VERSION {
            return Err(Malformed("a batch of another format version"));
        }
        let core = CoreId(reader.u16("core")?);
        let records = reader.u32("records")?;
        let header = Self {
            core,
            records,
            store: reader.u128("store")?,
            sequence: reader.u64("sequence")?,
            offset: reader.u64("offset")?,
            number: reader.u64("number")?,
            durable: reader.u64("durable")?,
            previous: reader.u64("previous")?,
            epoch: reader.u64("epoch")?,
            payload_bytes: reader.u32("payload bytes")?,
        };
        reader.u32("zero")?;
        let payload_checksum = reader.u64("payload checksum")?;
        let expected = checksum(HEADER_DOMAIN, &bytes[..reader.position()]);
        let sum = reader.u64("header checksum")?;
        if sum != expected {
            return Err(Malformed("the batch header's checksum does not fit"));
        }
        Ok(SealedHeader { header, payload_checksum, checksum: sum })
    }
}

/// A header read from a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealedHeader {
    /// What it says.
    pub header: BatchHeader,
    payload_checksum: u64,
    /// Its checksum, the next batch's `previous`.
    pub checksum: u64,
}

impl SealedHeader {
    /// The records of the batch that starts `bytes`, its payload checksum checked.
    pub fn payload<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let batch = bytes
            .get(..self.header.batch_bytes())
            .ok_or(Malformed("the batch would pass the segment's end"))?;
        if checksum(PAYLOAD_DOMAIN, &batch[HEADER_BYTES..]) != self.payload_checksum {
            return Err(Malformed("the batch's payload checksum does not fit"));
        }
        Ok(&batch[HEADER_BYTES..HEADER_BYTES + self.header.payload_bytes as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> (BatchHeader, Vec<u8>) {
        let header = BatchHeader {
            core: CoreId(1),
            store: 7,
            sequence: 2,
            offset: 4096,
            number: 5,
            durable: 3,
            previous: 0xabcd,
            epoch: 6,
            records: 1,
            payload_bytes: 3,
        };
        let mut batch = vec![0; HEADER_BYTES];
        batch.extend_from_slice(b"abc");
        header.seal(&mut batch);
        (header, batch)
    }

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let (_, batch) = sample();
        let hex: String = batch[..HEADER_BYTES + 4].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4f56544b42544348010001000100000007000000000000000000000000000000\
             0200000000000000001000000000000005000000000000000300000000000000\
             cdab00000000000006000000000000000300000000000000cff63cb547857f23\
             edf1d342c88b445d61626300"
        );
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let (header, batch) = sample();
        let read = |bytes: &[u8]| {
            let sealed = BatchHeader::decode(bytes)?;
            Ok::<_, Malformed>((sealed.header, sealed.payload(bytes)?.to_vec()))
        };
        assert_eq!(read(&batch), Ok((header, b"abc".to_vec())));
        for at in 0..batch.len() {
            let mut bad = batch.clone();
            bad[at] ^= 1;
            assert!(read(&bad).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..200) {
            let (_, good) = sample();
            bytes.splice(0..0, good[..cut].iter().copied());
            if let Ok(sealed) = BatchHeader::decode(&bytes) {
                let _ = sealed.payload(&bytes);
            }
        }
    }
}
