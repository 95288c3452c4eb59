//! The bytes of a log entry of a shard: a [`Batch`], and where in them each message's payload stands.
//!
//! ```text
//! u8 format | u64 shard time, ms | u32 commands | each: u8 tag, fields
//! payload, inside an enqueue: u32 length, headers | u32 length, body
//! ```
//! All integers are little-endian. The log checksums entries; here only their shape is checked. The state machine reads
//! an entry through [`RawBatch`], which copies nothing; [`decode_batch`] makes owned commands of the same reading.

use crate::answer::PayloadRef;
use crate::codec::{RawCommand, RawMessage, read_command, write_command};
use crate::command::{Batch, Command, NewMessage};
use bytes::Bytes;
use overtake_base::codec::share;
use overtake_base::{Malformed, Reader, UnixMillis, Writer};

/// First byte of an entry. A new number for every change of the format.
pub const ENTRY_FORMAT: u8 = 4;

/// Appends a batch's bytes.
pub fn encode_batch(batch: &Batch, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(ENTRY_FORMAT);
    out.u64(batch.time.0);
    out.u32(u32::try_from(batch.commands.len()).unwrap_or(u32::MAX));
    for command in &batch.commands {
        write_command(&mut out, command);
    }
}

/// Reads a batch. Bodies, headers and dedup keys share the entry's memory.
pub fn decode_batch(entry: &Bytes) -> Result<Batch, Malformed> {
    let raw = RawBatch::read(entry)?;
    let commands = raw
        .commands
        .into_iter()
        .map(|command| match command {
            RawCommand::Enqueue { queue, messages } => {
                Command::Enqueue { queue, messages: messages.iter().map(|raw| owned(entry, raw)).collect() }
            }
            RawCommand::StoreClaimed { queue, claim, message } => {
                Command::StoreClaimed { queue, claim, message: owned(entry, &message) }
            }
            RawCommand::Thaw { queue, block, records } => {
                Command::Thaw { queue, block, records: share(entry, records) }
            }
            RawCommand::Other(command) => command,
        })
        .collect();
    Ok(Batch { time: raw.time, commands })
}

fn owned(entry: &Bytes, raw: &RawMessage<'_>) -> NewMessage {
    NewMessage {
        id: raw.id,
        client_made_id: raw.client_made_id,
        priority: raw.priority,
        visible: raw.visible,
        dedup_key: raw.dedup_key.map(|key| share(entry, key)),
        expires_in_ms: raw.expires_in_ms,
        headers: share(entry, raw.headers),
        body: share(entry, raw.body),
    }
}

/// A batch as it stands in its entry.
pub(crate) struct RawBatch<'a> {
    pub(crate) time: UnixMillis,
    pub(crate) commands: Vec<RawCommand<'a>>,
}

impl<'a> RawBatch<'a> {
    /// Reads a whole entry, before any of it is applied.
    pub(crate) fn read(entry: &'a [u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(entry);
        if input.u8("entry format")? != ENTRY_FORMAT {
            return Err(Malformed("entry format"));
        }
        let time = UnixMillis(input.u64("shard time")?);
        let count = input.count(usize::MAX, 5, "commands")?;
        let commands = (0..count).map(|_| read_command(&mut input)).collect::<Result<_, _>>()?;
        input.finish("entry")?;
        Ok(Self { time, commands })
    }
}

/// What a producer gave: both parts share the memory of the log entry they were read from.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Opaque here.
    pub headers: Bytes,
    /// The message's body.
    pub body: Bytes,
}

/// The bytes of the payload that `at` names, out of what it stands in.
pub fn payload_bytes(whole: &Bytes, at: PayloadRef) -> Result<Bytes, Malformed> {
    let start = at.offset as usize;
    let end = start.saturating_add(at.length as usize);
    Ok(share(whole, whole.get(start..end).ok_or(Malformed("payload position"))?))
}

/// Reads the payload that `at` names out of what it stands in.
pub fn read_payload(entry: &Bytes, at: PayloadRef) -> Result<Payload, Malformed> {
    let entry = &payload_bytes(entry, at)?;
    let bytes = &entry[..];
    let mut input = Reader::new(bytes);
    let headers = input.bytes(usize::MAX, "headers")?;
    let body = input.bytes(usize::MAX, "body")?;
    input.finish("payload")?;
    Ok(Payload { headers: share(entry, headers), body: share(entry, body) })
}
