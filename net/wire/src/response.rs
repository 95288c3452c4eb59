//! Bytes of responses: one function for each record, encoder and decoder side by side. Lists are bounded by the
//! frame that holds them.

use crate::fields::{
    TEXT_BYTES_MIN, kinds, read_float, read_headers, read_id, read_list, read_option_text, read_receipt,
    read_refusal, read_text, read_time, write_float, write_headers, write_id, write_list, write_option_text,
    write_receipt, write_refusal, write_time,
};
use crate::frame::{LENGTH_BYTES, write_frame};
use crate::message::{
    DeadLetter, Delivered, Enqueued, Inspected, MessageState, Metric, NodeState, NodeStatus, PeekedMessage,
    QueueListed, Refusal, Response, Settled, ShardStatus,
};
use bytes::Bytes;
use overtake_base::codec::share;
use overtake_base::{Malformed, QueueConfig, Reader, Writer};

mod stats;

kinds! {
    /// Kinds of response. The number is the wire's and never changes.
    ResponseKind, "response kind" {
        Refused = 128,
        Welcome = 129,
        QueuePut = 130,
        Queue = 131,
        Queues = 132,
        Done = 133,
        Enqueued = 134,
        Received = 135,
        Settled = 136,
        Stats = 137,
        Peeked = 138,
        Inspected = 139,
        Purged = 140,
        DeadLetters = 141,
        Redriven = 142,
        Cluster = 143,
        Readiness = 144,
        Metrics = 145,
        ClusterChanged = 146,
    }
}

impl Response {
    /// The kind that the response's frame carries.
    #[must_use]
    pub const fn kind(&self) -> ResponseKind {
        match self {
            Self::Refused(_) => ResponseKind::Refused,
            Self::Welcome { .. } => ResponseKind::Welcome,
            Self::QueuePut { .. } => ResponseKind::QueuePut,
            Self::Queue { .. } => ResponseKind::Queue,
            Self::Queues { .. } => ResponseKind::Queues,
            Self::Done => ResponseKind::Done,
            Self::Enqueued { .. } => ResponseKind::Enqueued,
            Self::Received { .. } => ResponseKind::Received,
            Self::Settled { .. } => ResponseKind::Settled,
            Self::Stats(_) => ResponseKind::Stats,
            Self::Peeked { .. } => ResponseKind::Peeked,
            Self::Inspected(_) => ResponseKind::Inspected,
            Self::Purged { .. } => ResponseKind::Purged,
            Self::DeadLetters { .. } => ResponseKind::DeadLetters,
            Self::Redriven { .. } => ResponseKind::Redriven,
            Self::Cluster { .. } => ResponseKind::Cluster,
            Self::Readiness { .. } => ResponseKind::Readiness,
            Self::Metrics { .. } => ResponseKind::Metrics,
            Self::ClusterChanged { .. } => ResponseKind::ClusterChanged,
        }
    }
}

/// Length prefix, request number and kind.
const FRAME_OVERHEAD_BYTES: usize = LENGTH_BYTES + 9;
/// A delivered message without headers and body.
const DELIVERED_BYTES_MIN: usize = 60;
/// The outcome of a message that was stored.
const STORED_BYTES: usize = 20;

/// Appends the response's whole frame, length prefix included. `id` is that of the request.
pub fn encode_response(id: u64, response: &Response, out: &mut Vec<u8>) {
    out.reserve_exact(FRAME_OVERHEAD_BYTES + payload_bytes(response));
    write_frame(id, response.kind() as u8, out, |out| write_response(&mut Writer(out), response));
}

/// Bytes of what every message costs, so that a frame is not grown, and copied, while it is written: exact for answers
/// without refusals; a guess for those that are rare.
fn payload_bytes(response: &Response) -> usize {
    const COUNT: usize = 4;
    match response {
        Response::Enqueued { results } => COUNT + results.len() * STORED_BYTES,
        Response::Received { messages } => {
            let headers = |message: &Delivered| -> usize {
                message.headers.iter().map(|(name, value)| 2 * COUNT + name.len() + value.len()).sum()
            };
            let bytes = |message: &Delivered| DELIVERED_BYTES_MIN + headers(message) + message.body.len();
            COUNT + messages.iter().map(bytes).sum::<usize>()
        }
        Response::Settled { ack, extend, release } => 3 * COUNT + ack.len() + extend.len() + release.len(),
        _ => 64,
    }
}

/// Reads one frame, given without its length prefix. Bodies share the frame's memory.
pub fn decode_response(frame: &Bytes) -> Result<(u64, Response), Malformed> {
    let mut input = Reader::new(frame);
    let id = input.u64("request id")?;
    let response = read_response(frame, &mut input)?;
    input.finish("bytes after the response")?;
    Ok((id, response))
}

fn write_response(out: &mut Writer<'_>, response: &Response) {
    match response {
        Response::Refused(refusal) => write_refusal(out, refusal),
        Response::Welcome { node, core, cores, version } => {
            out.u64(*node);
            out.u16(*core);
            out.u16(*cores);
            out.str(version);
        }
        Response::QueuePut { created, config } => {
            out.bool(*created);
            config.encode(out);
        }
        Response::Queue { config } => config.encode(out),
        Response::Queues { queues, next } => {
            write_list(out, queues, |w, queue| {
                w.str(&queue.name);
                queue.config.encode(w);
                w.u64(queue.depth);
            });
            write_option_text(out, next.as_ref());
        }
        Response::Done => {}
        Response::Enqueued { results } => write_list(out, results, write_enqueued),
        Response::Received { messages } => write_list(out, messages, write_delivered),
        Response::Settled { ack, extend, release } => {
            for list in [ack, extend, release] {
                write_list(out, list, |w, settled| w.u8(settled_number(*settled)));
            }
        }
        Response::Stats(stats) => stats::write(out, stats),
        Response::Peeked { messages, next } => {
            write_list(out, messages, write_peeked);
            write_option_text(out, next.as_ref());
        }
        Response::Inspected(inspected) => write_inspected(out, inspected),
        Response::Purged { purged: count } | Response::Redriven { moved: count } => out.u64(*count),
        Response::DeadLetters { messages, next } => {
            write_list(out, messages, write_dead_letter);
            write_option_text(out, next.as_ref());
        }
        Response::Cluster { nodes, shards } => {
            write_list(out, nodes, write_node);
            write_list(out, shards, write_shard);
        }
        Response::Readiness { not_ready } => write_list(out, not_ready, |w, shard| w.u16(*shard)),
        Response::Metrics { values } => write_list(out, values, write_metric),
        Response::ClusterChanged { members } => out.bytes(members),
    }
}

fn read_response(frame: &Bytes, input: &mut Reader<'_>) -> Result<Response, Malformed> {
    Ok(match ResponseKind::try_from(input.u8("response kind")?)? {
        ResponseKind::Refused => Response::Refused(read_refusal(input)?),
        ResponseKind::Welcome => Response::Welcome {
            node: input.u64("node")?,
            core: input.u16("core")?,
            cores: input.u16("cores")?,
            version: read_text(input, "version")?,
        },
        ResponseKind::QueuePut => {
            Response::QueuePut { created: input.bool("created")?, config: QueueConfig::decode(input)? }
        }
        ResponseKind::Queue => Response::Queue { config: QueueConfig::decode(input)? },
        ResponseKind::Queues => Response::Queues {
            queues: read_items(input, TEXT_BYTES_MIN, "queues", read_queue_listed)?,
            next: read_option_text(input, "next")?,
        },
        ResponseKind::Done => Response::Done,
        ResponseKind::Enqueued => {
            Response::Enqueued { results: read_items(input, 9, "results", read_enqueued)? }
        }
        ResponseKind::Received => Response::Received {
            messages: read_items(input, DELIVERED_BYTES_MIN, "messages", |r| read_delivered(frame, r))?,
        },
        ResponseKind::Settled => Response::Settled {
            ack: read_items(input, 1, "ack", read_settled)?,
            extend: read_items(input, 1, "extend", read_settled)?,
            release: read_items(input, 1, "release", read_settled)?,
        },
        ResponseKind::Stats => Response::Stats(stats::read(input)?),
        ResponseKind::Peeked => Response::Peeked {
            messages: read_items(input, 40, "messages", |r| read_peeked(frame, r))?,
            next: read_option_text(input, "next")?,
        },
        ResponseKind::Inspected => Response::Inspected(read_inspected(input)?),
        ResponseKind::Purged => Response::Purged { purged: input.u64("purged")? },
        ResponseKind::DeadLetters => Response::DeadLetters {
            messages: read_items(input, 53, "messages", |r| read_dead_letter(frame, r))?,
            next: read_option_text(input, "next")?,
        },
        ResponseKind::Redriven => Response::Redriven { moved: input.u64("moved")? },
        ResponseKind::Cluster => Response::Cluster {
            nodes: read_items(input, 22, "nodes", read_node)?,
            shards: read_items(input, 9, "shards", read_shard)?,
        },
        ResponseKind::Readiness => {
            Response::Readiness { not_ready: read_items(input, 2, "not_ready", |r| r.u16("not_ready"))? }
        }
        ResponseKind::Metrics => Response::Metrics { values: read_items(input, 17, "values", read_metric)? },
        ResponseKind::ClusterChanged => {
            let members = input.bytes(crate::RESPONSE_FRAME_BYTES_MAX, "members")?;
            Response::ClusterChanged { members: share(frame, members) }
        }
    })
}

/// Reads a list that only the frame bounds; `bytes_each` is the fewest bytes of one item.
fn read_items<'a, T>(
    input: &mut Reader<'a>,
    bytes_each: usize,
    what: &'static str,
    read: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    read_list(input, usize::MAX, bytes_each, what, read)
}

fn read_queue_listed(input: &mut Reader<'_>) -> Result<QueueListed, Malformed> {
    Ok(QueueListed {
        name: read_text(input, "name")?,
        config: QueueConfig::decode(input)?,
        depth: input.u64("depth")?,
    })
}

fn write_enqueued(out: &mut Writer<'_>, result: &Result<Enqueued, Refusal>) {
    match result {
        Ok(enqueued) => {
            out.u8(0);
            write_id(out, enqueued.id);
            out.u16(enqueued.shard);
            out.bool(enqueued.duplicate);
        }
        Err(refusal) => {
            out.u8(1);
            write_refusal(out, refusal);
        }
    }
}

fn read_enqueued(input: &mut Reader<'_>) -> Result<Result<Enqueued, Refusal>, Malformed> {
    match input.u8("result")? {
        0 => Ok(Ok(Enqueued {
            id: read_id(input, "id")?,
            shard: input.u16("shard")?,
            duplicate: input.bool("duplicate")?,
        })),
        1 => read_refusal(input).map(Err),
        _ => Err(Malformed("result")),
    }
}

fn write_delivered(out: &mut Writer<'_>, message: &Delivered) {
    write_id(out, message.id);
    out.u8(message.priority);
    write_receipt(out, message.receipt);
    out.u32(message.deliveries);
    write_time(out, message.enqueued_at);
    write_time(out, message.lease_expires_at);
    write_headers(out, &message.headers);
    out.bool(message.share);
    out.bytes(&message.body);
}

fn read_delivered(frame: &Bytes, input: &mut Reader<'_>) -> Result<Delivered, Malformed> {
    Ok(Delivered {
        id: read_id(input, "id")?,
        priority: input.u8("priority")?,
        receipt: read_receipt(input)?,
        deliveries: input.u32("deliveries")?,
        enqueued_at: read_time(input, "enqueued_at")?,
        lease_expires_at: read_time(input, "lease_expires_at")?,
        headers: read_headers(input)?,
        share: input.bool("share")?,
        body: share(frame, input.bytes(usize::MAX, "body")?),
    })
}

const fn settled_number(settled: Settled) -> u8 {
    match settled {
        Settled::Ok => 0,
        Settled::Stale => 1,
        Settled::Unknown => 2,
    }
}

fn read_settled(input: &mut Reader<'_>) -> Result<Settled, Malformed> {
    match input.u8("outcome")? {
        0 => Ok(Settled::Ok),
        1 => Ok(Settled::Stale),
        2 => Ok(Settled::Unknown),
        _ => Err(Malformed("outcome")),
    }
}

const fn state_number(state: MessageState) -> u8 {
    match state {
        MessageState::Visible => 0,
        MessageState::Delayed => 1,
        MessageState::Leased => 2,
        MessageState::Dead => 3,
    }
}

fn read_state(input: &mut Reader<'_>) -> Result<MessageState, Malformed> {
    match input.u8("state")? {
        0 => Ok(MessageState::Visible),
        1 => Ok(MessageState::Delayed),
        2 => Ok(MessageState::Leased),
        3 => Ok(MessageState::Dead),
        _ => Err(Malformed("state")),
    }
}

fn write_peeked(out: &mut Writer<'_>, message: &PeekedMessage) {
    write_id(out, message.id);
    out.u8(message.priority);
    out.u8(state_number(message.state));
    out.u32(message.deliveries);
    write_time(out, message.enqueued_at);
    out.option(message.deliver_at, write_time);
    out.option(message.lease_expires_at, write_time);
    write_headers(out, &message.headers);
    out.bytes(&message.body);
}

fn read_peeked(frame: &Bytes, input: &mut Reader<'_>) -> Result<PeekedMessage, Malformed> {
    Ok(PeekedMessage {
        id: read_id(input, "id")?,
        priority: input.u8("priority")?,
        state: read_state(input)?,
        deliveries: input.u32("deliveries")?,
        enqueued_at: read_time(input, "enqueued_at")?,
        deliver_at: input.option("deliver_at", |r| read_time(r, "deliver_at"))?,
        lease_expires_at: input.option("lease_expires_at", |r| read_time(r, "lease_expires_at"))?,
        headers: read_headers(input)?,
        body: share(frame, input.bytes(usize::MAX, "body")?),
    })
}

fn write_inspected(out: &mut Writer<'_>, inspected: &Inspected) {
    write_id(out, inspected.id);
    out.u8(inspected.priority);
    out.u8(state_number(inspected.state));
    out.u16(inspected.shard);
    write_time(out, inspected.enqueued_at);
    out.option(inspected.deliver_at, write_time);
    out.option(inspected.lease_expires_at, write_time);
    write_option_text(out, inspected.worker.as_ref());
    out.u32(inspected.deliveries);
    out.option(inspected.ahead, Writer::u64);
    out.str(&inspected.why);
}

fn read_inspected(input: &mut Reader<'_>) -> Result<Inspected, Malformed> {
    Ok(Inspected {
        id: read_id(input, "id")?,
        priority: input.u8("priority")?,
        state: read_state(input)?,
        shard: input.u16("shard")?,
        enqueued_at: read_time(input, "enqueued_at")?,
        deliver_at: input.option("deliver_at", |r| read_time(r, "deliver_at"))?,
        lease_expires_at: input.option("lease_expires_at", |r| read_time(r, "lease_expires_at"))?,
        worker: read_option_text(input, "worker")?,
        deliveries: input.u32("deliveries")?,
        ahead: input.option("ahead", |r| r.u64("ahead"))?,
        why: read_text(input, "why")?,
    })
}

fn write_dead_letter(out: &mut Writer<'_>, message: &DeadLetter) {
    write_id(out, message.id);
    out.u8(message.priority);
    out.u32(message.deliveries);
    out.str(&message.last_error);
    write_time(out, message.dead_at);
    write_list(out, &message.history, |w, (time, what)| {
        write_time(w, *time);
        w.str(what);
    });
    write_time(out, message.enqueued_at);
    write_headers(out, &message.headers);
    out.bytes(&message.body);
}

fn read_dead_letter(frame: &Bytes, input: &mut Reader<'_>) -> Result<DeadLetter, Malformed> {
    Ok(DeadLetter {
        id: read_id(input, "id")?,
        priority: input.u8("priority")?,
        deliveries: input.u32("deliveries")?,
        last_error: read_text(input, "last_error")?,
        dead_at: read_time(input, "dead_at")?,
        history: read_items(input, 12, "history", |r| {
            Ok((read_time(r, "history")?, read_text(r, "history")?))
        })?,
        enqueued_at: read_time(input, "enqueued_at")?,
        headers: read_headers(input)?,
        body: share(frame, input.bytes(usize::MAX, "body")?),
    })
}

fn write_node(out: &mut Writer<'_>, node: &NodeStatus) {
    out.u64(node.id);
    out.str(&node.zone);
    out.str(&node.http);
    out.bool(node.alive);
    out.u8(node.state as u8);
    out.u32(node.replicas);
}

fn read_node(input: &mut Reader<'_>) -> Result<NodeStatus, Malformed> {
    Ok(NodeStatus {
        id: input.u64("id")?,
        zone: read_text(input, "zone")?,
        http: read_text(input, "http")?,
        alive: input.bool("alive")?,
        state: match input.u8("state of a node")? {
            1 => NodeState::Joining,
            2 => NodeState::Active,
            3 => NodeState::Draining,
            4 => NodeState::Lost,
            _ => return Err(Malformed("state of a node")),
        },
        replicas: input.u32("replicas")?,
    })
}

fn write_shard(out: &mut Writer<'_>, shard: &ShardStatus) {
    out.u16(shard.shard);
    out.option(shard.leader, Writer::u64);
    write_list(out, &shard.replicas, |w, node| w.u64(*node));
    out.option(shard.adding, Writer::u64);
    out.option(shard.removing, Writer::u64);
}

fn read_shard(input: &mut Reader<'_>) -> Result<ShardStatus, Malformed> {
    Ok(ShardStatus {
        shard: input.u16("shard")?,
        leader: input.option("leader", |r| r.u64("leader"))?,
        replicas: read_items(input, 8, "replicas", |r| r.u64("replicas"))?,
        adding: input.option("adding", |r| r.u64("adding"))?,
        removing: input.option("removing", |r| r.u64("removing"))?,
    })
}

fn write_metric(out: &mut Writer<'_>, metric: &Metric) {
    out.str(&metric.name);
    write_list(out, &metric.labels, |w, (name, value)| {
        w.str(name);
        w.str(value);
    });
    write_float(out, metric.value);
    out.bool(metric.counter);
}

fn read_metric(input: &mut Reader<'_>) -> Result<Metric, Malformed> {
    Ok(Metric {
        name: read_text(input, "name")?,
        labels: read_items(input, 2 * TEXT_BYTES_MIN, "labels", |r| {
            Ok((read_text(r, "labels")?, read_text(r, "labels")?))
        })?,
        value: read_float(input, "value")?,
        counter: input.bool("counter")?,
    })
}
