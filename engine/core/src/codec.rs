//! The bytes of mesh messages from node to node. Messages within a node are never encoded.
//!
//! ```text
//! u8 version | u8 kind | fields, in the order of their declaration in `mesh.rs`
//! ```
//! All integers are little-endian, lists have a `u32` count, options a `u8`. Link and transport authenticate and check
//! the bytes, so there is no checksum here. Every length and number is checked before it is used: a peer that sends
//! something else is cut off, and can do no more than that. Commands, requests and responses keep the bytes that they
//! have in the log and in the client protocol.

mod nodes;
mod snapshots;

use crate::mesh::{MeshMessage, Read, ShardReply, ShardRequest, VersionedSummary};
use crate::page::Page;
use bytes::Bytes;
use overtake_base::codec::share;
use overtake_base::limits::{
    DEDUP_KEY_BYTES_MAX, ERROR_BYTES_MAX, FRAME_BYTES_MAX, HISTORY_ENTRIES_MAX, LEVELS_MAX, LIST_LIMIT_MAX,
    PEER_MESSAGE_BYTES_MAX, REDRIVE_IDS_MAX, TENANT_NAME_BYTES_MAX, WORKER_BYTES_MAX,
};
use overtake_base::{
    Level, Malformed, MessageId, NodeId, QueueId, Reader, Sequence, ShardId, UnixMillis, Writer,
};
use overtake_queue::answer::{
    Answer, CancelOutcome, ClaimOutcome, DeadLetterView, Delivery, EnqueueOutcome, KeyState, LevelSummary,
    MessageView, PayloadRef, PendingClaim, Place, QueueStats, SettleOutcome, Spilled, Summary, Totals,
    ViewState,
};
use overtake_queue::command::{Batch, ClaimTicket, LeaseKey, RedriveSelection, RefusedReason, Room};
use overtake_queue::directory::{QueueRecord, decode_commands, encode_commands};
use overtake_queue::entry::{Payload, decode_batch, encode_batch};
use overtake_queue::machine::PeekFilter;
use std::sync::Arc;

/// First byte of every message. A new number for every change of the format.
pub const VERSION: u8 = 5;
/// Bytes of a message, at most.
pub const BYTES_MAX: usize = PEER_MESSAGE_BYTES_MAX;
/// Items of a list, at most: more than any message holds.
const ITEMS_MAX: usize = 1 << 20;

/// Where a payload stands is of no use on another node: it comes along.
const ELSEWHERE: PayloadRef = PayloadRef { place: Place::Entry(0), offset: 0, length: 0 };
/// What a peer's failure is called here.
const FAILED_THERE: &str = "the shard's leader could not do it; try again";
const UNKNOWN_THERE: &str = "nobody knows whether the shard did it; retry with the same id or dedup key";

const CALL: u8 = 1;
const REPLY: u8 = 2;
const FORWARD: u8 = 3;
const FORWARD_REPLY: u8 = 4;
const FORWARD_MOVED: u8 = 5;
const FORWARD_CANCEL: u8 = 6;
const DIRECTORY_SNAPSHOT: u8 = 7;
const DIRECTORY_CHANGE: u8 = 8;
const DIRECTORY_KNOWN: u8 = 9;
const DIRECTORY_CALL: u8 = 10;
const WAITERS: u8 = 11;
const LEADER: u8 = 12;
const SUMMARIES: u8 = 13;
const RAFT: u8 = 14;
const HELD: u8 = 15;
const ROOM_WANTED: u8 = 16;
pub(super) const SNAPSHOT_ASK: u8 = 17;
pub(super) const SNAPSHOT_PART: u8 = 18;

/// Appends a message's bytes. False, and nothing appended, for what is only said within a node.
pub fn encode(message: &MeshMessage, bytes: &mut Vec<u8>) -> bool {
    let begin = bytes.len();
    let mut out = Writer(bytes);
    out.u8(VERSION);
    let sent = encode_kind(message, &mut out);
    if !sent {
        bytes.truncate(begin);
    }
    sent
}

fn encode_kind(message: &MeshMessage, out: &mut Writer<'_>) -> bool {
    match message {
        MeshMessage::Call { call, shard, request } => {
            out.u8(CALL);
            out.u64(*call);
            out.u16(shard.0);
            return encode_request(request, out);
        }
        MeshMessage::Reply { call, reply, summary } => {
            out.u8(REPLY);
            out.u64(*call);
            out.option(summary.as_ref(), encode_summary);
            return encode_reply(reply, out);
        }
        MeshMessage::Forward { call, tenant, request, rate_checked, wait_ms } => {
            out.u8(FORWARD);
            out.u64(*call);
            out.str(tenant);
            out.bool(*rate_checked);
            out.u32(*wait_ms);
            overtake_wire::encode_request(0, request, out.0);
        }
        MeshMessage::ForwardReply { call, response } => {
            out.u8(FORWARD_REPLY);
            out.u64(*call);
            overtake_wire::encode_response(0, response, out.0);
        }
        MeshMessage::ForwardMoved { call } => number(out, FORWARD_MOVED, *call),
        MeshMessage::ForwardCancel { call } => number(out, FORWARD_CANCEL, *call),
        MeshMessage::DirectorySnapshot { index, records, last } => {
            number(out, DIRECTORY_SNAPSHOT, *index);
            out.bool(*last);
            list(out, records, |out, record| record.encode(out));
        }
        MeshMessage::DirectoryChange { index, change, record, deleted } => {
            number(out, DIRECTORY_CHANGE, *index);
            out.u64(*change);
            out.bool(*deleted);
            record.encode(out);
        }
        MeshMessage::DirectoryKnown { change } => number(out, DIRECTORY_KNOWN, *change),
        MeshMessage::DirectoryCall { call, command } => {
            number(out, DIRECTORY_CALL, *call);
            out.raw(&encode_commands(core::slice::from_ref(command)));
        }
        MeshMessage::Waiters { queue, some } => {
            out.u8(WAITERS);
            out.u32(queue.0);
            out.bool(*some);
        }
        MeshMessage::RoomWanted { queue, shard, room, first } => {
            out.u8(ROOM_WANTED);
            out.u32(queue.0);
            out.u16(shard.0);
            [room.messages, room.bytes, *first].into_iter().for_each(|number| out.u64(number));
        }
        MeshMessage::Serving { .. } => return false,
        MeshMessage::Leader { shard, term, leader } => {
            out.u8(LEADER);
            out.u16(shard.0);
            out.u64(*term);
            out.option(*leader, |out, node| out.u64(node.0));
        }
        MeshMessage::Summaries { summaries } => {
            out.u8(SUMMARIES);
            list(out, summaries, encode_summary);
        }
        MeshMessage::Held { shards } => {
            out.u8(HELD);
            list(out, shards, |out, (shard, index)| {
                out.u16(shard.0);
                out.u64(*index);
            });
        }
        MeshMessage::ReplicaAsk { .. }
        | MeshMessage::ReplicaTold { .. }
        | MeshMessage::ClockAsk { .. }
        | MeshMessage::Clock { .. }
        | MeshMessage::VouchAsk { .. }
        | MeshMessage::Vouched { .. }
        | MeshMessage::Stuck { .. }
        | MeshMessage::Members { .. } => nodes::encode(message, out),
        MeshMessage::SnapshotAsk(ask) => snapshots::encode_ask(out, ask),
        MeshMessage::SnapshotPart { shard, number, part } => {
            snapshots::encode_part(out, *shard, *number, part);
        }
        MeshMessage::Raft { messages } => {
            out.u8(RAFT);
            list(out, messages, |out, (shard, message)| {
                out.u16(shard.0);
                out.bytes(message);
            });
        }
    }
    true
}

/// Reads a message of another node. Bodies and raft messages share the memory of `bytes`.
///
/// # Errors
/// Where the bytes are none: the peer is not to be talked to.
pub fn decode(bytes: &Bytes) -> Result<MeshMessage, Malformed> {
    if bytes.len() > BYTES_MAX {
        return Err(Malformed("mesh message: too long"));
    }
    let mut input = Reader::new(bytes);
    if input.u8("mesh version")? != VERSION {
        return Err(Malformed("mesh version"));
    }
    let message = decode_kind(bytes, &mut input)?;
    input.finish("end of mesh message")?;
    Ok(message)
}

fn decode_kind(whole: &Bytes, input: &mut Reader<'_>) -> Result<MeshMessage, Malformed> {
    Ok(match input.u8("mesh kind")? {
        CALL => MeshMessage::Call {
            call: input.u64("call")?,
            shard: ShardId(input.u16("shard")?),
            request: decode_request(whole, input)?,
        },
        REPLY => {
            let call = input.u64("call")?;
            let summary = input.option("summary", decode_summary)?;
            MeshMessage::Reply { call, reply: decode_reply(whole, input)?, summary }
        }
        FORWARD => {
            let call = input.u64("call")?;
            let tenant = input.str(TENANT_NAME_BYTES_MAX, "tenant")?.into();
            let (rate_checked, wait_ms) = (input.bool("rate checked")?, input.u32("wait")?);
            let frame = frame(whole, input)?;
            let (_, request) = overtake_wire::decode_request(&frame).map_err(|(_, malformed)| malformed)?;
            request.validate().map_err(|_| Malformed("a request that no client may make"))?;
            MeshMessage::Forward { call, tenant, request, rate_checked, wait_ms }
        }
        FORWARD_REPLY => {
            let call = input.u64("call")?;
            let (_, response) = overtake_wire::decode_response(&frame(whole, input)?)?;
            MeshMessage::ForwardReply { call, response }
        }
        FORWARD_MOVED => MeshMessage::ForwardMoved { call: input.u64("call")? },
        FORWARD_CANCEL => MeshMessage::ForwardCancel { call: input.u64("call")? },
        DIRECTORY_SNAPSHOT => {
            let (index, last) = (input.u64("index")?, input.bool("last")?);
            let records = read_list(input, 32, |input| QueueRecord::decode(input).map(Arc::new))?;
            MeshMessage::DirectorySnapshot { index, records, last }
        }
        DIRECTORY_CHANGE => {
            let (index, change, deleted) =
                (input.u64("index")?, input.u64("change")?, input.bool("deleted")?);
            let record = Arc::new(QueueRecord::decode(input)?);
            MeshMessage::DirectoryChange { index, change, record, deleted }
        }
        DIRECTORY_KNOWN => MeshMessage::DirectoryKnown { change: input.u64("change")? },
        DIRECTORY_CALL => {
            let call = input.u64("call")?;
            let mut commands = decode_commands(rest(input)?)?;
            match (commands.pop(), commands.is_empty()) {
                (Some(command), true) => MeshMessage::DirectoryCall { call, command },
                _ => return Err(Malformed("one directory command")),
            }
        }
        WAITERS => MeshMessage::Waiters { queue: QueueId(input.u32("queue")?), some: input.bool("some")? },
        LEADER => MeshMessage::Leader {
            shard: ShardId(input.u16("shard")?),
            term: input.u64("term")?,
            leader: input.option("leader", |input| Ok(NodeId(input.u64("leader")?)))?,
        },
        SUMMARIES => MeshMessage::Summaries { summaries: read_list(input, 34, decode_summary)? },
        RAFT => MeshMessage::Raft {
            messages: read_list(input, 6, |input| {
                let shard = ShardId(input.u16("shard")?);
                Ok((shard, share(whole, input.bytes(BYTES_MAX, "raft message")?)))
            })?,
        },
        HELD => MeshMessage::Held {
            shards: read_list(input, 10, |input| Ok((ShardId(input.u16("shard")?), input.u64("index")?)))?,
        },
        ROOM_WANTED => MeshMessage::RoomWanted {
            queue: QueueId(input.u32("queue")?),
            shard: ShardId(input.u16("shard")?),
            room: Room { messages: input.u64("messages")?, bytes: input.u64("bytes")? },
            first: input.u64("first")?,
        },
        SNAPSHOT_ASK => snapshots::decode_ask(input)?,
        SNAPSHOT_PART => snapshots::decode_part(whole, input)?,
        kind => nodes::decode(kind, input)?,
    })
}

fn number(out: &mut Writer<'_>, kind: u8, number: u64) {
    out.u8(kind);
    out.u64(number);
}

fn list<T>(out: &mut Writer<'_>, items: &[T], mut each: impl FnMut(&mut Writer<'_>, &T)) {
    out.u32(u32::try_from(items.len()).unwrap_or(u32::MAX));
    items.iter().for_each(|item| each(out, item));
}

fn read_list<T>(
    input: &mut Reader<'_>,
    bytes_each: usize,
    mut each: impl FnMut(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = input.count(ITEMS_MAX, bytes_each, "list")?;
    (0..count).map(|_| each(input)).collect()
}

fn rest<'a>(input: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    input.raw(input.left(), "rest")
}

/// A frame of the client protocol: its length, then what it says.
fn frame(whole: &Bytes, input: &mut Reader<'_>) -> Result<Bytes, Malformed> {
    Ok(share(whole, input.bytes(FRAME_BYTES_MAX, "frame")?))
}

fn encode_summary(out: &mut Writer<'_>, VersionedSummary { shard, version, summary }: &VersionedSummary) {
    out.u16(shard.0);
    out.u64(*version);
    out.u32(summary.queue.0);
    out.u64(summary.depth);
    out.u64(summary.body_bytes);
    list(out, &summary.levels, |out, level| {
        out.u8(level.level.0);
        out.u64(level.visible);
        out.u64(level.head_since.0);
    });
}

fn decode_summary(input: &mut Reader<'_>) -> Result<VersionedSummary, Malformed> {
    let (shard, version) = (ShardId(input.u16("shard")?), input.u64("version")?);
    let (queue, depth, body_bytes) =
        (QueueId(input.u32("queue")?), input.u64("depth")?, input.u64("body bytes")?);
    let levels = read_list(input, 17, |input| {
        Ok(LevelSummary {
            level: Level(input.u8("level")?),
            visible: input.u64("visible")?,
            head_since: UnixMillis(input.u64("head since")?),
        })
    })?;
    if levels.len() > LEVELS_MAX || !levels.is_sorted_by(|a, b| a.level < b.level) {
        return Err(Malformed("levels of a summary"));
    }
    Ok(VersionedSummary { shard, version, summary: Summary { queue, depth, body_bytes, levels } })
}

fn encode_request(request: &ShardRequest, out: &mut Writer<'_>) -> bool {
    match request {
        ShardRequest::Command(command) => {
            out.u8(0);
            // As in the log; its time is the leader's to say.
            encode_batch(&Batch { time: UnixMillis(0), commands: vec![command.clone()] }, out.0);
        }
        ShardRequest::Read(Read::Stats { queue }) => read(out, 1, *queue),
        ShardRequest::Read(Read::Peek { queue, filter, after, limit }) => {
            read(out, 2, *queue);
            let PeekFilter { visible, delayed, leased, priority } = filter;
            [visible, delayed, leased].into_iter().for_each(|state| out.bool(*state));
            out.option(*priority, |out, level| out.u8(level.0));
            page_of(out, *after, *limit);
        }
        ShardRequest::Read(Read::Inspect { queue, id }) => {
            read(out, 3, *queue);
            out.u128(id.0);
        }
        ShardRequest::Read(Read::DeadLetters { queue, after, limit }) => {
            read(out, 4, *queue);
            page_of(out, *after, *limit);
        }
        ShardRequest::Read(Read::CountDead { queue, selection }) => {
            read(out, 5, *queue);
            selection.encode(out);
        }
        ShardRequest::Read(Read::Lookup { queue, key, id }) => {
            read(out, 6, *queue);
            out.option(key.as_ref(), |out, key| out.bytes(key));
            out.option(*id, |out, id| out.u128(id.0));
        }
        ShardRequest::Read(Read::Summary { queue }) => read(out, 7, *queue),
        ShardRequest::Read(Read::StoredUnder { queue, id, key }) => {
            read(out, 8, *queue);
            out.u128(id.0);
            out.bytes(key);
        }
        ShardRequest::Read(Read::Metrics { .. }) => return false,
    }
    true
}

fn read(out: &mut Writer<'_>, kind: u8, queue: QueueId) {
    out.u8(kind);
    out.u32(queue.0);
}

fn page_of(out: &mut Writer<'_>, after: Option<MessageId>, limit: usize) {
    out.option(after, |out, id| out.u128(id.0));
    out.u32(u32::try_from(limit).unwrap_or(u32::MAX));
}

fn read_page_of(input: &mut Reader<'_>) -> Result<(Option<MessageId>, usize), Malformed> {
    let after = input.option("after", read_id)?;
    match input.u32("limit")? {
        limit if limit <= LIST_LIMIT_MAX + 1 => Ok((after, limit as usize)),
        _ => Err(Malformed("limit")),
    }
}

fn read_id(input: &mut Reader<'_>) -> Result<MessageId, Malformed> {
    Ok(MessageId(input.u128("message id")?))
}

fn decode_request(whole: &Bytes, input: &mut Reader<'_>) -> Result<ShardRequest, Malformed> {
    let kind = input.u8("request")?;
    if kind == 0 {
        let mut commands = decode_batch(&share(whole, rest(input)?))?.commands;
        return match (commands.pop(), commands.is_empty()) {
            (Some(command), true) => Ok(ShardRequest::Command(command)),
            _ => Err(Malformed("one command")),
        };
    }
    let queue = QueueId(input.u32("queue")?);
    Ok(ShardRequest::Read(match kind {
        1 => Read::Stats { queue },
        2 => {
            let filter = PeekFilter {
                visible: input.bool("visible")?,
                delayed: input.bool("delayed")?,
                leased: input.bool("leased")?,
                priority: input.option("priority", |input| Ok(Level(input.u8("priority")?)))?,
            };
            let (after, limit) = read_page_of(input)?;
            Read::Peek { queue, filter, after, limit }
        }
        3 => Read::Inspect { queue, id: read_id(input)? },
        4 => {
            let (after, limit) = read_page_of(input)?;
            Read::DeadLetters { queue, after, limit }
        }
        5 => {
            let selection = RedriveSelection::decode(input)?;
            if matches!(&selection, RedriveSelection::Ids(ids) if ids.len() > REDRIVE_IDS_MAX) {
                return Err(Malformed("too many ids"));
            }
            Read::CountDead { queue, selection }
        }
        6 => {
            let key = input.option("key", |input| {
                input.bytes(DEDUP_KEY_BYTES_MAX, "key").map(|key| share(whole, key))
            })?;
            Read::Lookup { queue, key, id: input.option("id", read_id)? }
        }
        7 => Read::Summary { queue },
        8 => {
            let id = read_id(input)?;
            let key = share(whole, input.bytes(DEDUP_KEY_BYTES_MAX, "key")?);
            Read::StoredUnder { queue, id, key }
        }
        _ => return Err(Malformed("request")),
    }))
}

fn encode_reply(reply: &ShardReply, out: &mut Writer<'_>) -> bool {
    match reply {
        ShardReply::Answer(answer) => {
            out.u8(0);
            encode_answer(answer, out);
        }
        ShardReply::Leased(leased) => {
            out.u8(1);
            list(out, leased, |out, (delivery, payload)| {
                encode_delivery(delivery, out);
                encode_payload(payload, out);
            });
        }
        ShardReply::Stats(stats) => {
            out.u8(2);
            out.option(stats.as_ref(), encode_stats);
        }
        ShardReply::Peeked(page) => {
            out.u8(3);
            encode_page(page, out, |out, (view, payload)| {
                encode_view(view, out);
                encode_payload(payload, out);
            });
        }
        ShardReply::Inspected(view) => {
            out.u8(4);
            out.option(view.as_ref(), |out, view| encode_view(view, out));
        }
        ShardReply::DeadLetters(page) => {
            out.u8(5);
            encode_page(page, out, |out, (view, payload)| {
                encode_dead(view, out);
                encode_payload(payload, out);
            });
        }
        ShardReply::Count(count) => number(out, 6, *count),
        ShardReply::Found(state) => {
            out.u8(7);
            match state {
                KeyState::Free => out.u8(0),
                KeyState::Taken(id) => {
                    out.u8(1);
                    out.u128(id.0);
                }
                KeyState::Pending(claim) => {
                    out.u8(2);
                    encode_claim(claim, out);
                }
            }
        }
        ShardReply::Summary => out.u8(8),
        ShardReply::Metrics(..) => return false,
        ShardReply::NotLeader { term, leader, .. } => {
            number(out, 9, *term);
            out.option(*leader, |out, node| out.u64(node.0));
        }
        ShardReply::Failed { unknown, .. } => {
            out.u8(10);
            out.bool(*unknown);
        }
    }
    true
}

fn decode_reply(whole: &Bytes, input: &mut Reader<'_>) -> Result<ShardReply, Malformed> {
    Ok(match input.u8("reply")? {
        0 => ShardReply::Answer(decode_answer(input)?),
        1 => ShardReply::Leased(read_list(input, 54, |input| {
            Ok((decode_delivery(input)?, decode_payload(whole, input)?))
        })?),
        2 => ShardReply::Stats(input.option("stats", decode_stats)?),
        3 => ShardReply::Peeked(decode_page(input, |input| {
            Ok((decode_view(input)?, decode_payload(whole, input)?))
        })?),
        4 => ShardReply::Inspected(input.option("view", decode_view)?),
        5 => ShardReply::DeadLetters(decode_page(input, |input| {
            Ok((decode_dead(input)?, decode_payload(whole, input)?))
        })?),
        6 => ShardReply::Count(input.u64("count")?),
        7 => ShardReply::Found(match input.u8("key state")? {
            0 => KeyState::Free,
            1 => KeyState::Taken(read_id(input)?),
            2 => KeyState::Pending(decode_claim(input)?),
            _ => return Err(Malformed("key state")),
        }),
        8 => ShardReply::Summary,
        9 => {
            let term = input.u64("term")?;
            let leader = input.option("leader", |input| Ok(NodeId(input.u64("leader")?)))?;
            ShardReply::NotLeader { term, leader, request: None }
        }
        10 => match input.bool("unknown")? {
            true => ShardReply::Failed { unknown: true, detail: UNKNOWN_THERE },
            false => ShardReply::Failed { unknown: false, detail: FAILED_THERE },
        },
        _ => return Err(Malformed("reply")),
    })
}

fn encode_page<T>(page: &Page<T>, out: &mut Writer<'_>, each: impl FnMut(&mut Writer<'_>, &T)) {
    out.option(page.upto, |out, id| out.u128(id.0));
    list(out, &page.items, each);
}

fn decode_page<T>(
    input: &mut Reader<'_>,
    each: impl FnMut(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Page<T>, Malformed> {
    let upto = input.option("upto", read_id)?;
    Ok(Page { upto, items: read_list(input, 30, each)? })
}

fn encode_answer(answer: &Answer, out: &mut Writer<'_>) {
    match answer {
        Answer::NoQueue => out.u8(0),
        Answer::Done => out.u8(1),
        Answer::Enqueued(outcomes) => {
            out.u8(2);
            list(out, outcomes, |out, outcome| match outcome {
                EnqueueOutcome::Stored => out.u8(0),
                EnqueueOutcome::Duplicate(id) => {
                    out.u8(1);
                    out.u128(id.0);
                }
                EnqueueOutcome::Refused(reason) => out.u8(16 + *reason as u8),
                EnqueueOutcome::Pending(claim) => {
                    out.u8(2);
                    encode_claim(claim, out);
                }
                EnqueueOutcome::StoredBefore(at) => {
                    out.u8(3);
                    out.u64(at.0);
                }
                EnqueueOutcome::Late => out.u8(4),
            });
        }
        // A lease is answered with its payloads.
        Answer::Leased(deliveries) => {
            out.u8(3);
            list(out, deliveries, |out, delivery| encode_delivery(delivery, out));
        }
        Answer::Settled { ack, extend, release } => {
            out.u8(4);
            for outcomes in [ack, extend, release] {
                list(out, outcomes, |out, outcome| {
                    out.u8(match outcome {
                        SettleOutcome::Ok => 0,
                        SettleOutcome::Stale => 1,
                        SettleOutcome::Unknown => 2,
                    });
                });
            }
        }
        Answer::Cancelled(outcome) => {
            out.u8(5);
            out.u8(match outcome {
                CancelOutcome::Cancelled => 0,
                CancelOutcome::Leased => 1,
                CancelOutcome::NotFound => 2,
                CancelOutcome::Dead => 3,
            });
        }
        Answer::Purged(count) => number(out, 6, *count),
        Answer::Redriven(count) => number(out, 7, *count),
        Answer::Claim(outcome) => {
            out.u8(8);
            match outcome {
                ClaimOutcome::Claimed(ticket) => {
                    out.u8(0);
                    encode_ticket(ticket, out);
                }
                ClaimOutcome::Taken(id) => {
                    out.u8(1);
                    out.u128(id.0);
                }
                ClaimOutcome::Pending(claim) => {
                    out.u8(2);
                    encode_claim(claim, out);
                }
                ClaimOutcome::Off => out.u8(3),
            }
        }
        Answer::Fenced(at) => {
            out.u8(9);
            out.option(*at, |out, at| out.u64(at.0));
        }
        Answer::Spilled(Spilled { payloads, next }) => {
            out.u8(10);
            out.u32(*payloads);
            out.option(*next, |out, next| out.u128(next.0));
        }
        Answer::Thawed(thawed) => {
            out.u8(11);
            out.bool(*thawed);
        }
    }
}

fn decode_answer(input: &mut Reader<'_>) -> Result<Answer, Malformed> {
    Ok(match input.u8("answer")? {
        0 => Answer::NoQueue,
        1 => Answer::Done,
        2 => Answer::Enqueued(read_list(input, 1, |input| {
            Ok(match input.u8("outcome")? {
                0 => EnqueueOutcome::Stored,
                1 => EnqueueOutcome::Duplicate(read_id(input)?),
                2 => EnqueueOutcome::Pending(decode_claim(input)?),
                3 => EnqueueOutcome::StoredBefore(UnixMillis(input.u64("stored at")?)),
                4 => EnqueueOutcome::Late,
                reason => {
                    let reason = usize::from(reason).checked_sub(16).and_then(|reason| REASONS.get(reason));
                    EnqueueOutcome::Refused(*reason.ok_or(Malformed("reason"))?)
                }
            })
        })?),
        3 => Answer::Leased(read_list(input, 46, decode_delivery)?),
        4 => {
            let mut outcomes = || {
                read_list(input, 1, |input| {
                    let outcome = input.u8("outcome")?;
                    SETTLED.get(usize::from(outcome)).copied().ok_or(Malformed("outcome"))
                })
            };
            Answer::Settled { ack: outcomes()?, extend: outcomes()?, release: outcomes()? }
        }
        5 => {
            let outcome = input.u8("outcome")?;
            Answer::Cancelled(*CANCELLED.get(usize::from(outcome)).ok_or(Malformed("outcome"))?)
        }
        6 => Answer::Purged(input.u64("count")?),
        7 => Answer::Redriven(input.u64("count")?),
        8 => Answer::Claim(match input.u8("claim")? {
            0 => ClaimOutcome::Claimed(decode_ticket(input)?),
            1 => ClaimOutcome::Taken(read_id(input)?),
            2 => ClaimOutcome::Pending(decode_claim(input)?),
            3 => ClaimOutcome::Off,
            _ => return Err(Malformed("claim")),
        }),
        9 => Answer::Fenced(input.option("fenced", |input| Ok(UnixMillis(input.u64("fenced")?)))?),
        10 => {
            let payloads = input.u32("payloads")?;
            Answer::Spilled(Spilled { payloads, next: input.option("next", read_id)? })
        }
        11 => Answer::Thawed(input.bool("thawed")?),
        _ => return Err(Malformed("answer")),
    })
}

fn encode_ticket(ticket: &ClaimTicket, out: &mut Writer<'_>) {
    out.u64(ticket.number);
    out.u64(ticket.deadline.0);
}

fn decode_ticket(input: &mut Reader<'_>) -> Result<ClaimTicket, Malformed> {
    let number = input.u64("claim number")?;
    Ok(ClaimTicket { number, deadline: UnixMillis(input.u64("claim deadline")?) })
}

fn encode_claim(PendingClaim { id, claim, age_ms }: &PendingClaim, out: &mut Writer<'_>) {
    out.u128(id.0);
    encode_ticket(claim, out);
    out.u64(*age_ms);
}

fn decode_claim(input: &mut Reader<'_>) -> Result<PendingClaim, Malformed> {
    Ok(PendingClaim { id: read_id(input)?, claim: decode_ticket(input)?, age_ms: input.u64("claim age")? })
}

/// In the order of their numbers.
const REASONS: [RefusedReason; 5] = [
    RefusedReason::Depth,
    RefusedReason::Bytes,
    RefusedReason::Rate,
    RefusedReason::Disk,
    RefusedReason::NoQuorum,
];
const SETTLED: [SettleOutcome; 3] = [SettleOutcome::Ok, SettleOutcome::Stale, SettleOutcome::Unknown];
const CANCELLED: [CancelOutcome; 4] =
    [CancelOutcome::Cancelled, CancelOutcome::Leased, CancelOutcome::NotFound, CancelOutcome::Dead];

fn encode_delivery(delivery: &Delivery, out: &mut Writer<'_>) {
    let Delivery { id, key, priority, share, enqueued_at, lease_expires_at, payload: _ } = delivery;
    out.u128(id.0);
    out.u64(key.sequence.0);
    out.u32(key.deliveries);
    out.u8(priority.0);
    out.bool(*share);
    out.u64(enqueued_at.0);
    out.u64(lease_expires_at.0);
}

fn decode_delivery(input: &mut Reader<'_>) -> Result<Delivery, Malformed> {
    Ok(Delivery {
        id: read_id(input)?,
        key: LeaseKey { sequence: Sequence(input.u64("sequence")?), deliveries: input.u32("deliveries")? },
        priority: Level(input.u8("priority")?),
        share: input.bool("share")?,
        enqueued_at: UnixMillis(input.u64("enqueued at")?),
        lease_expires_at: UnixMillis(input.u64("lease expires at")?),
        payload: ELSEWHERE,
    })
}

fn encode_payload(payload: &Payload, out: &mut Writer<'_>) {
    out.bytes(&payload.headers);
    out.bytes(&payload.body);
}

fn decode_payload(whole: &Bytes, input: &mut Reader<'_>) -> Result<Payload, Malformed> {
    let headers = share(whole, input.bytes(FRAME_BYTES_MAX, "headers")?);
    Ok(Payload { headers, body: share(whole, input.bytes(FRAME_BYTES_MAX, "body")?) })
}

fn encode_view(view: &MessageView, out: &mut Writer<'_>) {
    let MessageView { id, priority, state, deliveries, enqueued_at, sequence, last_error, payload: _ } = view;
    out.u128(id.0);
    out.u8(priority.0);
    out.u32(*deliveries);
    out.u64(enqueued_at.0);
    out.option(*sequence, |out, sequence| out.u64(sequence.0));
    out.option(last_error.as_deref(), Writer::str);
    match state {
        ViewState::Visible { ahead } => {
            out.u8(0);
            out.option(*ahead, Writer::u64);
        }
        ViewState::Delayed { until } => number(out, 1, until.0),
        ViewState::Leased { expires_at, worker } => {
            number(out, 2, expires_at.0);
            out.option(worker.as_deref(), Writer::str);
        }
        ViewState::Dead => out.u8(3),
    }
}

fn decode_view(input: &mut Reader<'_>) -> Result<MessageView, Malformed> {
    let (id, priority) = (read_id(input)?, Level(input.u8("priority")?));
    let (deliveries, enqueued_at) = (input.u32("deliveries")?, UnixMillis(input.u64("enqueued at")?));
    let sequence = input.option("sequence", |input| Ok(Sequence(input.u64("sequence")?)))?;
    let last_error = input.option("error", |input| input.str(ERROR_BYTES_MAX, "error").map(Into::into))?;
    let state = match input.u8("state")? {
        0 => ViewState::Visible { ahead: input.option("ahead", |input| input.u64("ahead"))? },
        1 => ViewState::Delayed { until: UnixMillis(input.u64("until")?) },
        2 => ViewState::Leased {
            expires_at: UnixMillis(input.u64("expires at")?),
            worker: input.option("worker", |input| input.str(WORKER_BYTES_MAX, "worker").map(Into::into))?,
        },
        3 => ViewState::Dead,
        _ => return Err(Malformed("state")),
    };
    let payload = ELSEWHERE;
    Ok(MessageView { id, priority, state, deliveries, enqueued_at, sequence, last_error, payload })
}

fn encode_dead(view: &DeadLetterView, out: &mut Writer<'_>) {
    out.u128(view.id.0);
    out.u8(view.priority.0);
    out.u32(view.deliveries);
    out.u64(view.enqueued_at.0);
    out.u64(view.dead_at.0);
    out.str(&view.last_error);
    list(out, &view.history, |out, (at, what)| {
        out.u64(at.0);
        out.str(what);
    });
}

fn decode_dead(input: &mut Reader<'_>) -> Result<DeadLetterView, Malformed> {
    let view = DeadLetterView {
        id: read_id(input)?,
        priority: Level(input.u8("priority")?),
        deliveries: input.u32("deliveries")?,
        enqueued_at: UnixMillis(input.u64("enqueued at")?),
        dead_at: UnixMillis(input.u64("dead at")?),
        last_error: input.str(ERROR_BYTES_MAX, "error")?.into(),
        history: read_list(input, 12, |input| {
            Ok((UnixMillis(input.u64("at")?), input.str(ERROR_BYTES_MAX, "history")?.into()))
        })?,
        payload: ELSEWHERE,
    };
    if view.history.len() > HISTORY_ENTRIES_MAX {
        return Err(Malformed("history"));
    }
    Ok(view)
}

fn encode_stats(out: &mut Writer<'_>, stats: &QueueStats) {
    for counts in [&stats.visible, &stats.delayed, &stats.leased] {
        list(out, counts, |out, count| out.u64(*count));
    }
    out.u64(stats.dead);
    out.u64(stats.body_bytes);
    list(out, &stats.oldest_since, |out, since| out.option(*since, |out, since| out.u64(since.0)));
    list(out, &stats.waits, |out, waits| {
        list(out, waits, |out, (ms, count)| {
            out.u64(*ms);
            out.u64(*count);
        });
    });
    stats.totals.encode(out);
    list(out, &stats.workers, |out, (label, leased)| {
        out.str(label);
        out.u64(*leased);
    });
}

fn decode_stats(input: &mut Reader<'_>) -> Result<QueueStats, Malformed> {
    let count = |input: &mut Reader<'_>| input.u64("count");
    Ok(QueueStats {
        visible: read_list(input, 8, count)?,
        delayed: read_list(input, 8, count)?,
        leased: read_list(input, 8, count)?,
        dead: input.u64("dead")?,
        body_bytes: input.u64("body bytes")?,
        oldest_since: read_list(input, 1, |input| {
            input.option("oldest since", |input| Ok(UnixMillis(input.u64("oldest since")?)))
        })?,
        waits: read_list(input, 4, |input| {
            read_list(input, 16, |input| Ok((input.u64("milliseconds")?, input.u64("count")?)))
        })?,
        totals: Totals::decode(input)?,
        workers: read_list(input, 12, |input| {
            Ok((input.str(WORKER_BYTES_MAX, "worker")?.into(), input.u64("leased")?))
        })?,
    })
}

#[cfg(test)]
mod tests;
