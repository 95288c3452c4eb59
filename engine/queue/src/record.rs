//! The bytes of one message's record, in a snapshot and in a run. Payloads are not in them: they stand in the log or in
//! blocks. Numbers have variable length, and most are differences to those of the record before, the first one's to zero.
//!
//! ```text
//! fields: time of the id | 10 bytes, the rest of the id | order of its timer | sequence | enqueued_at | since | due
//!         time to live | deliveries | failures (as they are) | payload bytes | body bytes (to the payload's)
//!         u8 level | u8 flags | extra
//! record in a snapshot: u8 state | u8 kind of the payload's place | log index or block | offset there | fields
//! ```

use crate::answer::{PayloadRef, Place};
use crate::life_cycle::State;
use crate::message::{Cause, EXTRA, Extra, Message, NO_SEQUENCE};
use crate::shared::Shared;
use overtake_base::limits::{ERROR_BYTES_MAX, HISTORY_ENTRIES_MAX, WORKER_BYTES_MAX};
use overtake_base::{BlockId, Level, Malformed, MessageId, QueueId, Reader, Sequence, UnixMillis, Writer};

/// Bits of an id below its time.
const ID_RANDOM_BITS: u32 = 80;
const ID_RANDOM_BYTES: usize = 10;
/// Fewest bytes of a message's fields.
pub(crate) const FIELDS_BYTES_MIN: usize = ID_RANDOM_BYTES + 14;
/// Fewest bytes of a record.
pub(crate) const RECORD_BYTES_MIN: usize = FIELDS_BYTES_MIN + 4;

/// Appends the record of a message in memory.
pub(crate) fn write_record(out: &mut Writer<'_>, shared: &Shared, previous: Option<u32>, slot: u32) {
    let message = &shared.messages[slot];
    let previous = previous.map(|slot| &shared.messages[slot]);
    out.u8(message.state as u8);
    let (kind, number) = place_number(message.payload.place);
    let before = previous
        .map_or((0, 0), |message| (place_number(message.payload.place).1, u64::from(message.payload.offset)));
    out.u8(kind);
    out.difference(before.0, number);
    out.difference(before.1, u64::from(message.payload.offset));
    write_fields(out, previous, message, shared.messages.extra(slot));
}

fn place_number(place: Place) -> (u8, u64) {
    match place {
        Place::Entry(index) => (0, index),
        Place::Block(block) => (1, block.0),
    }
}

/// Reads a record of `queue`; the extra is the caller's to attach.
pub(crate) fn read_record(
    input: &mut Reader<'_>,
    previous: Option<&Message>,
    queue: QueueId,
    levels: u8,
    last_sequence: u64,
) -> Result<(Message, Option<Extra>), Malformed> {
    let state = match input.u8("state")? {
        0 => State::Delayed,
        1 => State::Visible,
        2 => State::Leased,
        3 => State::Dead,
        _ => return Err(Malformed("state")),
    };
    let kind = input.u8("payload place")?;
    let before = previous
        .map_or((0, 0), |message| (place_number(message.payload.place).1, u64::from(message.payload.offset)));
    let number = input.difference(before.0, "payload place")?;
    let place = match kind {
        0 => Place::Entry(number),
        1 => Place::Block(BlockId(number)),
        _ => return Err(Malformed("payload place")),
    };
    let offset = u32::try_from(input.difference(before.1, "payload offset")?);
    let offset = offset.map_err(|_| Malformed("payload offset"))?;
    let payload = PayloadRef { place, offset, length: 0 };
    let (mut message, extra) = read_fields(input, previous, queue, payload)?;
    message.state = state;
    let placed = message.sequence != NO_SEQUENCE || message.state == State::Delayed;
    let counted = message.state != State::Leased || message.deliveries > 0;
    // What has a timer has a place among those of its millisecond, what has none does not.
    let ordered = (message.order == 0) == message.timer_at().is_none();
    if message.level.0 >= levels
        || !ordered
        || message.has(EXTRA)
        || !placed
        || !counted
        || message.sequence.0 > last_sequence
    {
        return Err(Malformed("message record"));
    }
    Ok((message, extra))
}

/// Appends what every message has wherever it stands, but for its payload's place and its state. `previous` is the message
/// before it, if this is not the first.
pub(crate) fn write_fields(
    out: &mut Writer<'_>,
    previous: Option<&Message>,
    message: &Message,
    extra: Option<&Extra>,
) {
    let before = |of: fn(&Message) -> u64| previous.map_or(0, of);
    let time_of = |message: &Message| (message.id().0 >> ID_RANDOM_BITS) as u64;
    out.difference(before(time_of), time_of(message));
    out.raw(&message.id().0.to_le_bytes()[..ID_RANDOM_BYTES]);
    out.difference(before(|m| m.order), message.order);
    out.difference(before(|m| m.sequence.0), message.sequence.0);
    out.difference(before(|m| m.enqueued_at.0), message.enqueued_at.0);
    out.difference(before(|m| m.since.0), message.since.0);
    out.difference(before(|m| m.due.0), message.due.0);
    out.difference(before(|m| m.ttl_ms), message.ttl_ms);
    out.varint(u64::from(message.deliveries));
    out.varint(u64::from(message.failures));
    out.varint(u64::from(message.payload.length));
    out.difference(u64::from(message.payload.length), u64::from(message.body_bytes));
    out.u8(message.level.0);
    out.u8(message.flags & !EXTRA);
    out.option(extra, write_extra);
}

/// Reads what [`write_fields`] wrote of a message whose payload begins there.
pub(crate) fn read_fields(
    input: &mut Reader<'_>,
    previous: Option<&Message>,
    queue: QueueId,
    payload: PayloadRef,
) -> Result<(Message, Option<Extra>), Malformed> {
    let before = |of: fn(&Message) -> u64| previous.map_or(0, of);
    let time = input.difference(before(|m| (m.id().0 >> ID_RANDOM_BITS) as u64), "id")?;
    let mut id = [0; size_of::<u128>()];
    id[..ID_RANDOM_BYTES].copy_from_slice(input.raw(ID_RANDOM_BYTES, "id")?);
    let id = MessageId(u128::from(time) << ID_RANDOM_BITS | u128::from_le_bytes(id));
    let mut message = Message::new(id, queue, Level(0), payload);
    message.order = input.difference(before(|m| m.order), "order")?;
    message.sequence = Sequence(input.difference(before(|m| m.sequence.0), "sequence")?);
    message.enqueued_at = UnixMillis(input.difference(before(|m| m.enqueued_at.0), "enqueued_at")?);
    message.since = UnixMillis(input.difference(before(|m| m.since.0), "since")?);
    message.due = UnixMillis(input.difference(before(|m| m.due.0), "due")?);
    message.ttl_ms = input.difference(before(|m| m.ttl_ms), "ttl")?;
    message.deliveries = input.varint32("deliveries")?;
    message.failures = input.varint32("failures")?;
    message.payload.length = input.varint32("payload bytes")?;
    let body_bytes = input.difference(u64::from(message.payload.length), "body bytes")?;
    message.body_bytes = u32::try_from(body_bytes).map_err(|_| Malformed("body bytes"))?;
    message.level = Level(input.u8("level")?);
    message.flags = input.u8("flags")?;
    Ok((message, input.option("extra", read_extra)?))
}

pub(crate) fn write_extra(out: &mut Writer<'_>, extra: &Extra) {
    out.option(extra.worker.as_deref(), Writer::str);
    out.option(extra.last_text.as_deref(), Writer::str);
    out.option(extra.job, Writer::u32);
    out.u8(extra.history.len() as u8);
    for (at, cause) in &extra.history {
        out.u64(at.0);
        match cause {
            Cause::LeaseExpired => out.u8(0),
            Cause::Released => out.u8(1),
            Cause::Expired => out.u8(2),
            Cause::Text(text) => {
                out.u8(3);
                out.str(text);
            }
        }
    }
}

pub(crate) fn read_extra(input: &mut Reader<'_>) -> Result<Extra, Malformed> {
    let mut extra = Extra {
        worker: input.option("worker", |input| Ok(input.str(WORKER_BYTES_MAX, "worker")?.into()))?,
        last_text: input
            .option("last error", |input| Ok(input.str(ERROR_BYTES_MAX, "last error")?.into()))?,
        job: input.option("job", |input| input.u32("job"))?,
        ..Extra::default()
    };
    let entries = usize::from(input.u8("history")?);
    if entries > HISTORY_ENTRIES_MAX {
        return Err(Malformed("history"));
    }
    for _ in 0..entries {
        let at = UnixMillis(input.u64("history time")?);
        let cause = match input.u8("history cause")? {
            0 => Cause::LeaseExpired,
            1 => Cause::Released,
            2 => Cause::Expired,
            3 => Cause::Text(input.str(ERROR_BYTES_MAX, "history text")?.into()),
            _ => return Err(Malformed("history cause")),
        };
        extra.history.push_back((at, cause));
    }
    Ok(extra)
}
