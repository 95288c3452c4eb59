//! A record: one thing that a shard wrote down, inside a batch. It has a checksum of its own, so that one entry can be
//! read back without its whole batch, and names its shard and index, so that a misdirected read is noticed.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | checksum of everything after it, data included |
//! | 8 | 1 | type: 1 entry, 2 hard state |
//! | 9 | 1 | entry: its kind; hard state: 0 |
//! | 10 | 2 | shard |
//! | 12 | 4 | bytes of data |
//! | 16 | 8 | entry: index; hard state: commit |
//! | 24 | 8 | term |
//! | 32 | | data; of a hard state the vote, 8 bytes |

use crate::layout::{Field, contiguous, field};
use overtake_base::checksum::checksum;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Malformed, Reader, ShardId, Writer};

/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 32;
/// Most data of one record, in bytes: a request of the largest size and what the log adds to it (2.2 MiB).
pub const DATA_BYTES_MAX: usize = 2_306_868;
const DOMAIN: u64 = u64::from_le_bytes(*b"record01");
const ENTRY: u8 = 1;
const HARD_STATE: u8 = 2;
const STAGED: u8 = 3;
const INSTALLED: u8 = 4;

pub(crate) const FIELDS: [Field; 7] = [
    field("checksum", 0, 8),
    field("type", 8, 1),
    field("kind", 9, 1),
    field("shard", 10, 2),
    field("data bytes", 12, 4),
    field("index", 16, 8),
    field("term", 24, 8),
];
const _: () = assert!(contiguous(&FIELDS) == HEADER_BYTES);
const _: () = assert!(DATA_BYTES_MAX > overtake_base::limits::REQUEST_BYTES_MAX);

/// One thing to remember of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// An entry of the shard's log. It replaces the shard's entries at its index and after. An index past the end of
    /// the shard's log starts it anew (after a snapshot): what came before is no longer readable.
    Entry {
        /// The shard.
        shard: ShardId,
        /// Term of the entry.
        term: u64,
        /// Its place in the shard's log.
        index: u64,
        /// What it is; not looked into here.
        kind: u8,
        /// Its bytes, at most [`DATA_BYTES_MAX`].
        data: &'a [u8],
    },
    /// What the shard must remember of its votes; replaces the one before.
    HardState {
        /// The shard.
        shard: ShardId,
        /// Newest term seen.
        term: u64,
        /// Whom this node voted for in it.
        vote: u64,
        /// Known to be committed.
        commit: u64,
    },
    /// An entry of a snapshot that is coming in. It stands beside the shard's log until the snapshot is installed; an
    /// index past the end of what stands there starts that anew.
    Staged {
        /// The shard.
        shard: ShardId,
        /// Term of the entry.
        term: u64,
        /// Its place in the shard's log.
        index: u64,
        /// What it is.
        kind: u8,
        /// Its bytes, at most [`DATA_BYTES_MAX`].
        data: &'a [u8],
    },
    /// The shard's newest checkpoint came from a peer: the staged entries, which end there, are the shard's log now.
    Installed {
        /// The shard.
        shard: ShardId,
        /// Term of the last entry that the checkpoint contains.
        term: u64,
        /// Its place.
        index: u64,
    },
}

impl<'a> Record<'a> {
    /// Length on disk, in bytes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        HEADER_BYTES
            + match self {
                Self::Entry { data, .. } | Self::Staged { data, .. } => data.len(),
                Self::HardState { .. } => size_of::<u64>(),
                Self::Installed { .. } => 0,
            }
    }

    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let mut writer = Writer(out);
        writer.u64(0);
        match *self {
            Self::Entry { shard, term, index, kind, data }
            | Self::Staged { shard, term, index, kind, data } => {
                writer.u8(if matches!(self, Self::Entry { .. }) { ENTRY } else { STAGED });
                writer.u8(kind);
                writer.u16(shard.0);
                // Lengths are checked where records are appended; one that did not fit could not be read back.
                writer.u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
                writer.u64(index);
                writer.u64(term);
                writer.raw(data);
            }
            Self::HardState { shard, term, vote, commit } => {
                writer.u8(HARD_STATE);
                writer.u8(0);
                writer.u16(shard.0);
                writer.u32(size_of::<u64>() as u32);
                writer.u64(commit);
                writer.u64(term);
                writer.u64(vote);
            }
            Self::Installed { shard, term, index } => {
                writer.u8(INSTALLED);
                writer.u8(0);
                writer.u16(shard.0);
                writer.u32(0);
                writer.u64(index);
                writer.u64(term);
            }
        }
        let sum = checksum(DOMAIN, &out[start + 8..]);
        out[start..start + 8].copy_from_slice(&sum.to_le_bytes());
    }

    /// The record that `reader` stands at, its checksum checked.
    pub fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let sum = reader.u64("record checksum")?;
        let body = reader.clone().raw(reader.left(), "record")?;
        let record_type = reader.u8("record type")?;
        let kind = reader.u8("record kind")?;
        let shard = ShardId(reader.u16("record shard")?);
        let length = reader.u32("record length")? as usize;
        let index = reader.u64("record index")?;
        let term = reader.u64("record term")?;
        let data = reader.raw(length, "record data")?;
        let expected = checksum(DOMAIN, &body[..HEADER_BYTES - 8 + length]);
        if expected != sum && !is_planted(Bug::EntryUnchecked) {
            return Err(Malformed("a record's checksum does not fit"));
        }
        match (record_type, kind) {
            (ENTRY, _) => Ok(Self::Entry { shard, term, index, kind, data }),
            (STAGED, _) => Ok(Self::Staged { shard, term, index, kind, data }),
            (INSTALLED, 0) if data.is_empty() => Ok(Self::Installed { shard, term, index }),
            (HARD_STATE, 0) => {
                let mut vote = Reader::new(data);
                let record = Self::HardState { shard, term, vote: vote.u64("vote")?, commit: index };
                vote.finish("vote")?;
                Ok(record)
            }
            _ => Err(Malformed("a record of a type that this version does not know")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ENTRY_RECORD: Record<'static> =
        Record::Entry { shard: ShardId(4), term: 2, index: 9, kind: 1, data: b"xyz" };
    const HARD_STATE_RECORD: Record<'static> =
        Record::HardState { shard: ShardId::DIRECTORY, term: 3, vote: 1, commit: 8 };

    const STAGED_RECORD: Record<'static> =
        Record::Staged { shard: ShardId(4), term: 2, index: 9, kind: 1, data: b"xyz" };
    const INSTALLED_RECORD: Record<'static> = Record::Installed { shard: ShardId(4), term: 2, index: 9 };

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    }

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let hex = |record| encoded(record).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(&ENTRY_RECORD),
            "07d1c82b35f0c69a010104000300000009000000000000000200000000000000\
             78797a"
        );
        assert_eq!(
            hex(&HARD_STATE_RECORD),
            "60f374d65191babc0200ffff0800000008000000000000000300000000000000\
             0100000000000000"
        );
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        for record in [ENTRY_RECORD, HARD_STATE_RECORD, STAGED_RECORD, INSTALLED_RECORD] {
            let good = encoded(&record);
            assert_eq!(good.len(), record.encoded_bytes());
            assert_eq!(Record::decode(&mut Reader::new(&good)), Ok(record));
            for at in 0..good.len() {
                let mut bad = good.clone();
                bad[at] ^= 0x10;
                assert!(Record::decode(&mut Reader::new(&bad)).is_err(), "byte {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            prop_assert!(Record::decode(&mut Reader::new(&bytes)).is_err());
        }
    }
}
