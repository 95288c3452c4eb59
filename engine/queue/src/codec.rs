//! The bytes of one command. Tags are numbers given once; fields stand in the order of their declaration.

use crate::command::{
    ClaimEnd, ClaimTicket, Command, Extension, Lease, LeaseKey, LevelChoice, NewMessage, Pick, Redrive,
    RedriveSelection, RefusedReason, Return, Room, Spill, SpillWhat, VisibleWhen,
};
use crate::scheduler::LevelSet;
use bytes::Bytes;
use overtake_base::limits::{ERROR_BYTES_MAX, WORKER_BYTES_MAX};
use overtake_base::{
    BlockId, Level, Malformed, MessageId, QueueConfig, QueueId, Reader, Sequence, UnixMillis, Writer,
};

const CONFIGURE: u8 = 1;
const DELETE: u8 = 2;
const ENQUEUE: u8 = 3;
const LEASE: u8 = 4;
const UNLEASE: u8 = 5;
const SETTLE: u8 = 6;
const CANCEL: u8 = 7;
const PURGE: u8 = 8;
const PURGE_DEAD_LETTERS: u8 = 9;
const REDRIVE: u8 = 10;
const NOTE_REFUSED: u8 = 11;
const REDRIVE_TURNS: u8 = 13;
// 12 was a command of formats 1 and 2.
const CLAIM: u8 = 20;
const STORE_CLAIMED: u8 = 21;
const END_CLAIM: u8 = 22;
const FENCE_CLAIM: u8 = 23;
const SPILL: u8 = 30;
const THAW: u8 = 31;

/// Fewest bytes of a message, a lease key, an extension, a return and a pick: a count that the bytes left cannot hold
/// is refused before anything is allocated for it.
const MESSAGE_BYTES_MIN: usize = 29;
const KEY_BYTES: usize = 12;
const EXTENSION_BYTES: usize = 20;
const RETURN_BYTES_MIN: usize = 14;
const PICK_BYTES: usize = 6;
const ID_BYTES: usize = 16;

/// A command as it stands in its entry; those that carry many bytes are worth not copying.
pub(crate) enum RawCommand<'a> {
    Enqueue { queue: QueueId, messages: Vec<RawMessage<'a>> },
    StoreClaimed { queue: QueueId, claim: ClaimTicket, message: RawMessage<'a> },
    Thaw { queue: QueueId, block: BlockId, records: &'a [u8] },
    Other(Command),
}

/// A message to store as it stands in its entry.
pub(crate) struct RawMessage<'a> {
    pub(crate) id: MessageId,
    pub(crate) client_made_id: bool,
    pub(crate) priority: Level,
    pub(crate) visible: VisibleWhen,
    pub(crate) dedup_key: Option<&'a [u8]>,
    pub(crate) expires_in_ms: Option<u64>,
    pub(crate) headers: &'a [u8],
    pub(crate) body: &'a [u8],
    /// First byte of the payload in the entry, and its bytes.
    pub(crate) payload_offset: u32,
    pub(crate) payload_length: u32,
}

/// `text`, cut at its end to at most `max` bytes, between characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

pub(crate) fn write_command(out: &mut Writer<'_>, command: &Command) {
    match command {
        Command::Configure { queue, version, config } => {
            head(out, CONFIGURE, *queue);
            out.u64(*version);
            config.encode(out);
        }
        Command::Delete { queue } => head(out, DELETE, *queue),
        Command::Enqueue { queue, messages } => {
            head(out, ENQUEUE, *queue);
            list(out, messages, write_message);
        }
        Command::Lease { queue, lease } => {
            head(out, LEASE, *queue);
            write_lease(out, lease);
        }
        Command::Unlease { queue, leases } => {
            head(out, UNLEASE, *queue);
            list(out, leases, write_key);
        }
        Command::Settle { queue, ack, extend, release } => {
            head(out, SETTLE, *queue);
            list(out, ack, write_key);
            list(out, extend, |out, extension| {
                write_key(out, &extension.key);
                out.u64(extension.lease_ms);
            });
            list(out, release, write_return);
        }
        Command::Cancel { queue, id } => {
            head(out, CANCEL, *queue);
            out.u128(id.0);
        }
        Command::Purge { queue } => head(out, PURGE, *queue),
        Command::PurgeDeadLetters { queue } => head(out, PURGE_DEAD_LETTERS, *queue),
        Command::Redrive { queue, redrive } => {
            head(out, REDRIVE, *queue);
            redrive.selection.encode(out);
            out.option(redrive.priority, |out, level| out.u8(level.0));
            out.option(redrive.rate_per_1000_s, Writer::u64);
            out.option(redrive.room, write_room);
        }
        Command::RedriveTurns { queue, room } => {
            head(out, REDRIVE_TURNS, *queue);
            write_room(out, *room);
        }
        Command::Claim { queue, key, id } => {
            head(out, CLAIM, *queue);
            out.bytes(key);
            out.u128(id.0);
        }
        Command::StoreClaimed { queue, claim, message } => {
            head(out, STORE_CLAIMED, *queue);
            write_ticket(out, claim);
            write_message(out, message);
        }
        Command::EndClaim { queue, key, id, end } => {
            head(out, END_CLAIM, *queue);
            out.bytes(key);
            out.u128(id.0);
            write_end(out, *end);
        }
        Command::FenceClaim { queue, key, id, claim } => {
            head(out, FENCE_CLAIM, *queue);
            out.bytes(key);
            out.u128(id.0);
            write_ticket(out, claim);
        }
        Command::NoteRefused { queue, reason, count } => {
            head(out, NOTE_REFUSED, *queue);
            out.u8(*reason as u8);
            out.u64(*count);
        }
        Command::Spill { queue, spill } => {
            head(out, SPILL, *queue);
            write_spill(out, spill);
        }
        Command::Thaw { queue, block, records } => {
            head(out, THAW, *queue);
            out.u64(block.0);
            out.bytes(records);
        }
    }
}

fn write_spill(out: &mut Writer<'_>, spill: &Spill) {
    match spill.what {
        SpillWhat::Lane { level, keep } => {
            out.u8(0);
            out.u8(level.0);
            out.u32(keep);
        }
        SpillWhat::Delayed => out.u8(1),
        SpillWhat::Payloads { dead, after } => {
            out.u8(2);
            out.bool(dead);
            out.option(after, |out, id| out.u128(id.0));
        }
    }
    out.u64(spill.up_to_index);
    out.u64(spill.horizon.0);
    out.u32(spill.messages_min);
    out.u32(spill.messages_max);
    out.u64(spill.bytes_max);
}

fn read_spill(input: &mut Reader<'_>) -> Result<Spill, Malformed> {
    let what = match input.u8("spill")? {
        0 => SpillWhat::Lane { level: Level(input.u8("level")?), keep: input.u32("keep")? },
        1 => SpillWhat::Delayed,
        2 => SpillWhat::Payloads {
            dead: input.bool("dead")?,
            after: input.option("after", |input| Ok(MessageId(input.u128("after")?)))?,
        },
        _ => return Err(Malformed("spill")),
    };
    Ok(Spill {
        what,
        up_to_index: input.u64("up to index")?,
        horizon: UnixMillis(input.u64("horizon")?),
        messages_min: input.u32("messages, at least")?,
        messages_max: input.u32("messages, at most")?,
        bytes_max: input.u64("bytes, at most")?,
    })
}

fn head(out: &mut Writer<'_>, tag: u8, queue: QueueId) {
    out.u8(tag);
    out.u32(queue.0);
}

fn list<T>(out: &mut Writer<'_>, items: &[T], write: impl Fn(&mut Writer<'_>, &T)) {
    out.u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
    items.iter().for_each(|item| write(out, item));
}

fn write_message(out: &mut Writer<'_>, message: &NewMessage) {
    out.u128(message.id.0);
    out.bool(message.client_made_id);
    out.u8(message.priority.0);
    match message.visible {
        VisibleWhen::Now => out.u8(0),
        VisibleWhen::At(at) => {
            out.u8(1);
            out.u64(at.0);
        }
        VisibleWhen::AfterMs(ms) => {
            out.u8(2);
            out.u64(ms);
        }
    }
    out.option(message.dedup_key.as_deref(), Writer::bytes);
    out.option(message.expires_in_ms, Writer::u64);
    out.bytes(&message.headers);
    out.bytes(&message.body);
}

pub(crate) fn write_ticket(out: &mut Writer<'_>, claim: &ClaimTicket) {
    out.u64(claim.number);
    out.u64(claim.deadline.0);
}

fn write_end(out: &mut Writer<'_>, end: ClaimEnd) {
    match end {
        ClaimEnd::Stored(at) => {
            out.u8(0);
            out.u64(at.0);
        }
        ClaimEnd::NotStored(number) => {
            out.u8(1);
            out.u64(number);
        }
        ClaimEnd::Void(number) => {
            out.u8(2);
            out.u64(number);
        }
    }
}

fn write_key(out: &mut Writer<'_>, key: &LeaseKey) {
    out.u64(key.sequence.0);
    out.u32(key.deliveries);
}

fn write_return(out: &mut Writer<'_>, returned: &Return) {
    write_key(out, &returned.key);
    out.option(returned.delay_ms, Writer::u64);
    out.option(returned.error.as_deref(), |out, error| out.str(cut(error, ERROR_BYTES_MAX)));
}

fn write_lease(out: &mut Writer<'_>, lease: &Lease) {
    out.u32(lease.max);
    out.u64(lease.max_bytes);
    out.option(lease.lease_ms, Writer::u64);
    out.option(lease.worker.as_deref(), |out, worker| out.str(cut(worker, WORKER_BYTES_MAX)));
    match &lease.choice {
        LevelChoice::Scheduled => out.u8(0),
        LevelChoice::UpTo(level) => {
            out.u8(1);
            out.u8(level.0);
        }
        LevelChoice::Picks { picks, barred } => {
            out.u8(2);
            out.u128(barred.bits());
            list(out, picks, |out, pick| {
                out.u8(pick.level.0);
                out.u32(pick.count);
                out.bool(pick.share);
            });
        }
    }
}

fn write_room(out: &mut Writer<'_>, room: Room) {
    out.u64(room.messages);
    out.u64(room.bytes);
}

fn read_room(input: &mut Reader<'_>) -> Result<Room, Malformed> {
    Ok(Room { messages: input.u64("room")?, bytes: input.u64("room")? })
}

pub(crate) fn read_command<'a>(input: &mut Reader<'a>) -> Result<RawCommand<'a>, Malformed> {
    let tag = input.u8("command")?;
    let queue = QueueId(input.u32("queue")?);
    let command = match tag {
        CONFIGURE => {
            let version = input.u64("version")?;
            Command::Configure { queue, version, config: QueueConfig::decode(input)? }
        }
        DELETE => Command::Delete { queue },
        ENQUEUE => {
            let messages = read_list(input, MESSAGE_BYTES_MIN, "messages", read_message)?;
            return Ok(RawCommand::Enqueue { queue, messages });
        }
        LEASE => Command::Lease { queue, lease: read_lease(input)? },
        UNLEASE => Command::Unlease { queue, leases: read_list(input, KEY_BYTES, "leases", read_key)? },
        SETTLE => Command::Settle {
            queue,
            ack: read_list(input, KEY_BYTES, "acks", read_key)?,
            extend: read_list(input, EXTENSION_BYTES, "extensions", |input| {
                Ok(Extension { key: read_key(input)?, lease_ms: input.u64("lease_ms")? })
            })?,
            release: read_list(input, RETURN_BYTES_MIN, "releases", read_return)?,
        },
        CANCEL => Command::Cancel { queue, id: MessageId(input.u128("id")?) },
        PURGE => Command::Purge { queue },
        PURGE_DEAD_LETTERS => Command::PurgeDeadLetters { queue },
        REDRIVE => Command::Redrive {
            queue,
            redrive: Redrive {
                selection: RedriveSelection::decode(input)?,
                priority: input.option("priority", |input| Ok(Level(input.u8("priority")?)))?,
                rate_per_1000_s: input.option("rate", |input| input.u64("rate"))?,
                room: input.option("room", read_room)?,
            },
        },
        REDRIVE_TURNS => Command::RedriveTurns { queue, room: read_room(input)? },
        CLAIM => Command::Claim { queue, key: read_dedup_key(input)?, id: MessageId(input.u128("id")?) },
        STORE_CLAIMED => {
            let claim = read_ticket(input)?;
            return Ok(RawCommand::StoreClaimed { queue, claim, message: read_message(input)? });
        }
        END_CLAIM => Command::EndClaim {
            queue,
            key: read_dedup_key(input)?,
            id: MessageId(input.u128("id")?),
            end: read_end(input)?,
        },
        FENCE_CLAIM => Command::FenceClaim {
            queue,
            key: read_dedup_key(input)?,
            id: MessageId(input.u128("id")?),
            claim: read_ticket(input)?,
        },
        NOTE_REFUSED => {
            Command::NoteRefused { queue, reason: read_reason(input)?, count: input.u64("count")? }
        }
        SPILL => Command::Spill { queue, spill: read_spill(input)? },
        THAW => {
            let block = BlockId(input.u64("block")?);
            return Ok(RawCommand::Thaw { queue, block, records: input.bytes(usize::MAX, "records")? });
        }
        _ => return Err(Malformed("command")),
    };
    Ok(RawCommand::Other(command))
}

fn read_list<'a, T>(
    input: &mut Reader<'a>,
    bytes_each: usize,
    what: &'static str,
    read: impl Fn(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = input.count(usize::MAX, bytes_each, what)?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(read(input)?);
    }
    Ok(items)
}

fn read_message<'a>(input: &mut Reader<'a>) -> Result<RawMessage<'a>, Malformed> {
    let id = MessageId(input.u128("id")?);
    let client_made_id = input.bool("client-made id")?;
    let priority = Level(input.u8("priority")?);
    let visible = match input.u8("visible")? {
        0 => VisibleWhen::Now,
        1 => VisibleWhen::At(UnixMillis(input.u64("visible at")?)),
        2 => VisibleWhen::AfterMs(input.u64("visible after")?),
        _ => return Err(Malformed("visible")),
    };
    let dedup_key = input.option("dedup key", |input| input.bytes(usize::MAX, "dedup key"))?;
    let expires_in_ms = input.option("expires_in", |input| input.u64("expires_in"))?;
    let start = input.position();
    let headers = input.bytes(usize::MAX, "headers")?;
    let body = input.bytes(usize::MAX, "body")?;
    let number = |value| u32::try_from(value).map_err(|_| Malformed("payload position"));
    let (payload_offset, payload_length) = (number(start)?, number(input.position() - start)?);
    Ok(RawMessage {
        id,
        client_made_id,
        priority,
        visible,
        dedup_key,
        expires_in_ms,
        headers,
        body,
        payload_offset,
        payload_length,
    })
}

fn read_dedup_key(input: &mut Reader<'_>) -> Result<Bytes, Malformed> {
    Ok(Bytes::copy_from_slice(input.bytes(usize::MAX, "dedup key")?))
}

pub(crate) fn read_ticket(input: &mut Reader<'_>) -> Result<ClaimTicket, Malformed> {
    let number = input.u64("claim")?;
    Ok(ClaimTicket { number, deadline: UnixMillis(input.u64("claim deadline")?) })
}

fn read_end(input: &mut Reader<'_>) -> Result<ClaimEnd, Malformed> {
    Ok(match input.u8("claim end")? {
        0 => ClaimEnd::Stored(UnixMillis(input.u64("stored at")?)),
        1 => ClaimEnd::NotStored(input.u64("claim")?),
        2 => ClaimEnd::Void(input.u64("claim")?),
        _ => return Err(Malformed("claim end")),
    })
}

fn read_key(input: &mut Reader<'_>) -> Result<LeaseKey, Malformed> {
    Ok(LeaseKey { sequence: Sequence(input.u64("sequence")?), deliveries: input.u32("deliveries")? })
}

fn read_return(input: &mut Reader<'_>) -> Result<Return, Malformed> {
    Ok(Return {
        key: read_key(input)?,
        delay_ms: input.option("delay", |input| input.u64("delay"))?,
        error: input.option("error", |input| Ok(input.str(ERROR_BYTES_MAX, "error")?.into()))?,
    })
}

fn read_lease(input: &mut Reader<'_>) -> Result<Lease, Malformed> {
    Ok(Lease {
        max: input.u32("max")?,
        max_bytes: input.u64("max_bytes")?,
        lease_ms: input.option("lease_ms", |input| input.u64("lease_ms"))?,
        worker: input.option("worker", |input| Ok(input.str(WORKER_BYTES_MAX, "worker")?.into()))?,
        choice: match input.u8("choice")? {
            0 => LevelChoice::Scheduled,
            1 => LevelChoice::UpTo(Level(input.u8("level")?)),
            2 => LevelChoice::Picks {
                barred: LevelSet::from_bits(input.u128("barred")?),
                picks: read_list(input, PICK_BYTES, "picks", |input| {
                    Ok(Pick {
                        level: Level(input.u8("level")?),
                        count: input.u32("count")?,
                        share: input.bool("share")?,
                    })
                })?,
            },
            _ => return Err(Malformed("choice")),
        },
    })
}

impl RedriveSelection {
    /// Appends it.
    pub fn encode(&self, out: &mut Writer<'_>) {
        match self {
            Self::All => out.u8(0),
            Self::Ids(ids) => {
                out.u8(1);
                list(out, ids, |out, id| out.u128(id.0));
            }
            Self::FromPriority(level) => {
                out.u8(2);
                out.u8(level.0);
            }
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// Where the bytes are none.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        match input.u8("selection")? {
            0 => Ok(Self::All),
            1 => {
                let ids = read_list(input, ID_BYTES, "ids", |input| Ok(MessageId(input.u128("id")?)))?;
                Ok(Self::Ids(ids))
            }
            2 => Ok(Self::FromPriority(Level(input.u8("level")?))),
            _ => Err(Malformed("selection")),
        }
    }
}

fn read_reason(input: &mut Reader<'_>) -> Result<RefusedReason, Malformed> {
    Ok(match input.u8("reason")? {
        0 => RefusedReason::Depth,
        1 => RefusedReason::Bytes,
        2 => RefusedReason::Rate,
        3 => RefusedReason::Disk,
        4 => RefusedReason::NoQuorum,
        _ => return Err(Malformed("reason")),
    })
}
