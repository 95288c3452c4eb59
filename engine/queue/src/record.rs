//! The bytes of one message's record in a snapshot. Payloads are not in them: they stand in the log.

use crate::answer::{PayloadRef, Place};
use crate::life_cycle::State;
use crate::message::{Cause, EXTRA, Extra, Message, NO_SEQUENCE};
use crate::shared::Shared;
use overtake_base::limits::{ERROR_BYTES_MAX, HISTORY_ENTRIES_MAX, WORKER_BYTES_MAX};
use overtake_base::{BlockId, Level, Malformed, MessageId, QueueId, Reader, Sequence, UnixMillis, Writer};

/// Fewest bytes of a record.
pub(crate) const RECORD_BYTES_MIN: usize = 97;

pub(crate) fn write_record(out: &mut Writer<'_>, shared: &Shared, slot: u32) {
    let message = &shared.messages[slot];
    out.u128(message.id().0);
    match message.payload.place {
        Place::Entry(index) => {
            out.u8(0);
            out.u64(index);
        }
        Place::Block(block) => {
            out.u8(1);
            out.u64(block.0);
        }
    }
    out.u32(message.payload.offset);
    out.u32(message.payload.length);
    out.u64(message.sequence.0);
    out.u64(message.enqueued_at.0);
    out.u64(message.since.0);
    out.u64(message.due.0);
    out.u64(message.ttl_ms);
    out.u64(message.order);
    out.u32(message.deliveries);
    out.u32(message.failures);
    out.u32(message.body_bytes);
    out.u8(message.level.0);
    out.u8(message.state as u8);
    out.u8(message.flags & !EXTRA);
    out.option(shared.messages.extra(slot), write_extra);
}

/// Reads a record of `queue`; the extra is the caller's to attach.
pub(crate) fn read_record(
    input: &mut Reader<'_>,
    queue: QueueId,
    levels: u8,
    last_sequence: u64,
) -> Result<(Message, Option<Extra>), Malformed> {
    let id = MessageId(input.u128("message id")?);
    let payload = PayloadRef {
        place: match input.u8("payload place")? {
            0 => Place::Entry(input.u64("payload index")?),
            1 => Place::Block(BlockId(input.u64("payload block")?)),
            _ => return Err(Malformed("payload place")),
        },
        offset: input.u32("payload offset")?,
        length: input.u32("payload length")?,
    };
    let mut message = Message::new(id, queue, Level(0), payload);
    message.sequence = Sequence(input.u64("sequence")?);
    message.enqueued_at = UnixMillis(input.u64("enqueued_at")?);
    message.since = UnixMillis(input.u64("since")?);
    message.due = UnixMillis(input.u64("due")?);
    message.ttl_ms = input.u64("ttl")?;
    message.order = input.u64("order")?;
    message.deliveries = input.u32("deliveries")?;
    message.failures = input.u32("failures")?;
    message.body_bytes = input.u32("body bytes")?;
    message.level = Level(input.u8("level")?);
    message.state = match input.u8("state")? {
        0 => State::Delayed,
        1 => State::Visible,
        2 => State::Leased,
        3 => State::Dead,
        _ => return Err(Malformed("state")),
    };
    message.flags = input.u8("flags")?;
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
