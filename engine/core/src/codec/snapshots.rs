//! The bytes of snapshots' asks and parts.

use super::{SNAPSHOT_ASK, SNAPSHOT_PART, list, read_list};
use crate::mesh::{BlockBytes, MeshMessage, SnapshotAsk, SnapshotPart, StateHead, StatePart};
use bytes::Bytes;
use overtake_base::codec::share;
use overtake_base::limits::FRAME_BYTES_MAX;
use overtake_base::{BlockId, Malformed, Reader, ShardId, Writer};
use overtake_replication::types::{EntryKind, LogEntry};

const ENTRIES: u8 = 0;
const STATE: u8 = 1;
const BLOCK: u8 = 2;
/// Bytes of an entry without its data.
const ENTRY_HEAD_BYTES: usize = 13;

pub(super) fn encode_ask(out: &mut Writer<'_>, ask: &SnapshotAsk) {
    out.u8(SNAPSHOT_ASK);
    out.u16(ask.shard.0);
    out.u64(ask.number);
    for pair in [ask.staged, ask.state, ask.block] {
        out.option(pair, |out, (first, second)| {
            out.u64(first);
            out.u64(second);
        });
    }
}

pub(super) fn decode_ask(input: &mut Reader<'_>) -> Result<MeshMessage, Malformed> {
    let (shard, number) = (ShardId(input.u16("shard")?), input.u64("number")?);
    let pair = |input: &mut Reader<'_>| Ok((place(input)?, place(input)?));
    let staged = input.option("staged", pair)?;
    let state = input.option("state", pair)?;
    let block = input.option("block", pair)?;
    Ok(MeshMessage::SnapshotAsk(SnapshotAsk { shard, number, staged, state, block }))
}

pub(super) fn encode_part(out: &mut Writer<'_>, shard: ShardId, number: u64, part: &SnapshotPart) {
    out.u8(SNAPSHOT_PART);
    out.u16(shard.0);
    out.u64(number);
    match part {
        SnapshotPart::Entries { first, entries } => {
            out.u8(ENTRIES);
            out.u64(*first);
            out.u64(entries.first().map_or(0, |entry| entry.index));
            list(out, entries, |out, entry| {
                out.u64(entry.term);
                out.u8(entry.kind as u8);
                out.bytes(&entry.data);
            });
        }
        SnapshotPart::State(StatePart { head, offset, bytes }) => {
            out.u8(STATE);
            let StateHead { index, term, first, bytes: length, checksum } = head;
            [index, term, first, length, checksum, offset].into_iter().for_each(|number| out.u64(*number));
            out.bytes(bytes);
        }
        SnapshotPart::Block(BlockBytes { block, records, length, offset, bytes }) => {
            out.u8(BLOCK);
            [block.0, *records, *length, *offset].into_iter().for_each(|number| out.u64(number));
            out.bytes(bytes);
        }
    }
}

pub(super) fn decode_part(whole: &Bytes, input: &mut Reader<'_>) -> Result<MeshMessage, Malformed> {
    let (shard, number) = (ShardId(input.u16("shard")?), input.u64("number")?);
    let part = match input.u8("part")? {
        ENTRIES => {
            let (first, mut index) = (place(input)?, place(input)?);
            let entries = read_list(input, ENTRY_HEAD_BYTES, |input| {
                let term = place(input)?;
                let kind = match input.u8("entry kind")? {
                    0 => EntryKind::Normal,
                    1 => EntryKind::Membership,
                    _ => return Err(Malformed("entry kind")),
                };
                let data = share(whole, input.bytes(FRAME_BYTES_MAX, "entry")?);
                index += 1;
                Ok(LogEntry { term, index: index - 1, kind, data })
            })?;
            SnapshotPart::Entries { first, entries }
        }
        STATE => {
            let head = StateHead {
                index: place(input)?,
                term: place(input)?,
                first: place(input)?,
                bytes: place(input)?,
                checksum: input.u64("checksum")?,
            };
            let offset = place(input)?;
            let bytes = share(whole, input.bytes(FRAME_BYTES_MAX, "state")?);
            SnapshotPart::State(StatePart { head, offset, bytes })
        }
        BLOCK => SnapshotPart::Block(BlockBytes {
            block: BlockId(place(input)?),
            records: place(input)?,
            length: place(input)?,
            offset: place(input)?,
            bytes: share(whole, input.bytes(FRAME_BYTES_MAX, "block")?),
        }),
        _ => return Err(Malformed("part")),
    };
    Ok(MeshMessage::SnapshotPart { shard, number, part })
}

/// Terms, places and lengths: far enough from the end of the numbers that adding to them never overflows.
fn place(input: &mut Reader<'_>) -> Result<u64, Malformed> {
    input.u64("place").and_then(|number| if number < 1 << 62 { Ok(number) } else { Err(Malformed("place")) })
}
