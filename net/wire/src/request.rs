//! Bytes of requests: one function for each record, encoder and decoder side by side. Counts and structure are
//! checked here, bounds of values by [`crate::validate`].

use crate::PROTOCOL_VERSION;
use crate::fields::{
    ID_BYTES, TEXT_BYTES_MIN, cut_error, kinds, read_headers, read_id, read_list, read_option_text,
    read_text, read_time, write_headers, write_id, write_list, write_option_text, write_time,
};
use crate::frame::write_frame;
use crate::message::{
    ClusterChange, Delay, EnqueueMessage, Extend, NewNode, PeekStates, Receive, Redrive, RedriveSelection,
    Release, Request, Settle,
};
use bytes::Bytes;
use overtake_base::codec::share;
use overtake_base::limits::{BATCH_MESSAGES_MAX, REDRIVE_IDS_MAX, SETTLE_RECEIPTS_MAX};
use overtake_base::{Malformed, QueueConfigPatch, Reader, Writer};

kinds! {
    /// Kinds of request. The number is the wire's and never changes.
    RequestKind, "request kind" {
        Hello = 1,
        PutQueue = 2,
        GetQueue = 3,
        ListQueues = 4,
        DeleteQueue = 5,
        Enqueue = 6,
        Receive = 7,
        CancelReceive = 8,
        Settle = 9,
        Stats = 10,
        Peek = 11,
        Inspect = 12,
        Cancel = 13,
        Purge = 14,
        DlqList = 15,
        DlqRedrive = 16,
        DlqPurge = 17,
        Cluster = 18,
        Ready = 19,
        Metrics = 20,
        Undelivered = 21,
        ChangeCluster = 22,
    }
}

/// Fewest bytes of one message of an enqueue: priority, five tags, the counts of headers and body.
const MESSAGE_BYTES_MIN: usize = 4 + 4 + 4 + 4;

/// What a `Hello` of another version is: nothing behind it can be understood.
pub const WRONG_VERSION: Malformed = Malformed("protocol version (this server speaks version 1)");

impl Request {
    /// The kind that the request's frame carries.
    #[must_use]
    pub const fn kind(&self) -> RequestKind {
        match self {
            Self::Hello { .. } => RequestKind::Hello,
            Self::PutQueue { .. } => RequestKind::PutQueue,
            Self::GetQueue { .. } => RequestKind::GetQueue,
            Self::ListQueues { .. } => RequestKind::ListQueues,
            Self::DeleteQueue { .. } => RequestKind::DeleteQueue,
            Self::Enqueue { .. } => RequestKind::Enqueue,
            Self::Receive(_) => RequestKind::Receive,
            Self::CancelReceive { .. } => RequestKind::CancelReceive,
            Self::Settle(_) => RequestKind::Settle,
            Self::Stats { .. } => RequestKind::Stats,
            Self::Peek { .. } => RequestKind::Peek,
            Self::Inspect { .. } => RequestKind::Inspect,
            Self::Cancel { .. } => RequestKind::Cancel,
            Self::Purge { .. } => RequestKind::Purge,
            Self::DlqList { .. } => RequestKind::DlqList,
            Self::DlqRedrive(_) => RequestKind::DlqRedrive,
            Self::DlqPurge { .. } => RequestKind::DlqPurge,
            Self::Cluster => RequestKind::Cluster,
            Self::Ready => RequestKind::Ready,
            Self::Metrics => RequestKind::Metrics,
            Self::ChangeCluster(_) => RequestKind::ChangeCluster,
            Self::Undelivered { .. } => RequestKind::Undelivered,
        }
    }
}

/// Appends the request's whole frame, length prefix included. The caller compares the length with
/// [`crate::REQUEST_FRAME_BYTES_MAX`] before sending it.
pub fn encode_request(id: u64, request: &Request, out: &mut Vec<u8>) {
    write_frame(id, request.kind() as u8, out, |out| write_request(&mut Writer(out), request));
}

/// Reads one frame, given without its length prefix. Bodies and dedup keys share the frame's memory. The error carries
/// the request's id where it could be read, so that the refusal can be addressed.
pub fn decode_request(frame: &Bytes) -> Result<(u64, Request), (Option<u64>, Malformed)> {
    let mut input = Reader::new(frame);
    let id = input.u64("request id").map_err(|malformed| (None, malformed))?;
    let request = read_request(frame, &mut input).map_err(|malformed| (Some(id), malformed))?;
    Ok((id, request))
}

fn write_request(out: &mut Writer<'_>, request: &Request) {
    match request {
        Request::Hello { token } => {
            out.u16(PROTOCOL_VERSION);
            out.str(token);
        }
        Request::PutQueue { queue, patch } => {
            out.str(queue);
            patch.encode(out);
        }
        Request::GetQueue { queue }
        | Request::DeleteQueue { queue }
        | Request::Stats { queue }
        | Request::Purge { queue }
        | Request::DlqPurge { queue } => out.str(queue),
        Request::ListQueues { limit, after } => write_page(out, *limit, after.as_ref()),
        Request::Enqueue { queue, messages } => {
            out.str(queue);
            write_list(out, messages, write_message);
        }
        Request::Receive(receive) => write_receive(out, receive),
        Request::CancelReceive { request } => out.u64(*request),
        Request::Settle(settle) => write_settle(out, settle),
        Request::Undelivered { queue, receipts } => {
            out.str(queue);
            write_list(out, receipts, |out, receipt| out.str(receipt));
        }
        Request::Peek { queue, states, priority, limit, after } => {
            out.str(queue);
            out.u8(state_bits(*states));
            out.option(*priority, Writer::u32);
            write_page(out, *limit, after.as_ref());
        }
        Request::Inspect { queue, id } | Request::Cancel { queue, id } => {
            out.str(queue);
            write_id(out, *id);
        }
        Request::DlqList { queue, limit, after } => {
            out.str(queue);
            write_page(out, *limit, after.as_ref());
        }
        Request::DlqRedrive(redrive) => write_redrive(out, redrive),
        Request::Cluster | Request::Ready | Request::Metrics => {}
        Request::ChangeCluster(change) => write_cluster_change(out, change),
    }
}

fn read_request(frame: &Bytes, input: &mut Reader<'_>) -> Result<Request, Malformed> {
    let kind = RequestKind::try_from(input.u8("request kind")?)?;
    let request = match kind {
        RequestKind::Hello => read_hello(input)?,
        RequestKind::PutQueue => {
            Request::PutQueue { queue: queue(input)?, patch: QueueConfigPatch::decode(input)? }
        }
        RequestKind::GetQueue => Request::GetQueue { queue: queue(input)? },
        RequestKind::ListQueues => {
            let (limit, after) = read_page(input)?;
            Request::ListQueues { limit, after }
        }
        RequestKind::DeleteQueue => Request::DeleteQueue { queue: queue(input)? },
        RequestKind::Enqueue => Request::Enqueue {
            queue: queue(input)?,
            messages: read_list(
                input,
                BATCH_MESSAGES_MAX,
                MESSAGE_BYTES_MIN,
                "messages (1..=1000 in one request)",
                |r| read_message(frame, r),
            )?,
        },
        RequestKind::Receive => Request::Receive(read_receive(input)?),
        RequestKind::CancelReceive => Request::CancelReceive { request: input.u64("request")? },
        RequestKind::Settle => Request::Settle(read_settle(input)?),
        RequestKind::Stats => Request::Stats { queue: queue(input)? },
        RequestKind::Peek => read_peek(input)?,
        RequestKind::Inspect => Request::Inspect { queue: queue(input)?, id: read_id(input, "id")? },
        RequestKind::Cancel => Request::Cancel { queue: queue(input)?, id: read_id(input, "id")? },
        RequestKind::Purge => Request::Purge { queue: queue(input)? },
        RequestKind::DlqList => {
            let queue = queue(input)?;
            let (limit, after) = read_page(input)?;
            Request::DlqList { queue, limit, after }
        }
        RequestKind::DlqRedrive => Request::DlqRedrive(read_redrive(input)?),
        RequestKind::DlqPurge => Request::DlqPurge { queue: queue(input)? },
        RequestKind::Cluster => Request::Cluster,
        RequestKind::Ready => Request::Ready,
        RequestKind::Metrics => Request::Metrics,
        RequestKind::ChangeCluster => Request::ChangeCluster(read_cluster_change(input)?),
        RequestKind::Undelivered => Request::Undelivered {
            queue: queue(input)?,
            receipts: read_list(
                input,
                SETTLE_RECEIPTS_MAX,
                TEXT_BYTES_MIN,
                "receipts (at most 3000 in one request)",
                |r| read_text(r, "receipts"),
            )?,
        },
    };
    input.finish("bytes after the request")?;
    Ok(request)
}

fn queue(input: &mut Reader<'_>) -> Result<String, Malformed> {
    read_text(input, "queue")
}

fn read_hello(input: &mut Reader<'_>) -> Result<Request, Malformed> {
    if input.u16("protocol version")? != PROTOCOL_VERSION {
        return Err(WRONG_VERSION);
    }
    Ok(Request::Hello { token: read_text(input, "token")? })
}

fn write_page(out: &mut Writer<'_>, limit: u32, after: Option<&String>) {
    out.u32(limit);
    write_option_text(out, after);
}

fn read_page(input: &mut Reader<'_>) -> Result<(u32, Option<String>), Malformed> {
    Ok((input.u32("limit")?, read_option_text(input, "after")?))
}

fn write_message(out: &mut Writer<'_>, message: &EnqueueMessage) {
    out.u32(message.priority);
    out.option(message.id, write_id);
    match message.delay {
        Delay::None => out.u8(0),
        Delay::At(time) => {
            out.u8(1);
            write_time(out, time);
        }
        Delay::AfterS(seconds) => {
            out.u8(2);
            out.u64(seconds);
        }
    }
    out.option(message.dedup_key.as_deref(), Writer::bytes);
    out.option(message.expires_in_s, Writer::u64);
    write_headers(out, &message.headers);
    out.bytes(&message.body);
}

fn read_message(frame: &Bytes, input: &mut Reader<'_>) -> Result<EnqueueMessage, Malformed> {
    Ok(EnqueueMessage {
        priority: input.u32("priority")?,
        id: input.option("id", |r| read_id(r, "id"))?,
        delay: match input.u8("delay")? {
            0 => Delay::None,
            1 => Delay::At(read_time(input, "deliver_at")?),
            2 => Delay::AfterS(input.u64("delay_s")?),
            _ => return Err(Malformed("delay")),
        },
        dedup_key: input
            .option("dedup_key", |r| r.bytes(usize::MAX, "dedup_key").map(|key| share(frame, key)))?,
        expires_in_s: input.option("expires_in_s", |r| r.u64("expires_in_s"))?,
        headers: read_headers(input)?,
        body: share(frame, input.bytes(usize::MAX, "body")?),
    })
}

fn write_receive(out: &mut Writer<'_>, receive: &Receive) {
    out.str(&receive.queue);
    out.u32(receive.max);
    out.u32(receive.wait_s);
    out.option(receive.lease_s, Writer::u32);
    out.option(receive.max_priority, Writer::u32);
    write_option_text(out, receive.worker.as_ref());
}

fn read_receive(input: &mut Reader<'_>) -> Result<Receive, Malformed> {
    Ok(Receive {
        queue: queue(input)?,
        max: input.u32("max")?,
        wait_s: input.u32("wait_s")?,
        lease_s: input.option("lease_s", |r| r.u32("lease_s"))?,
        max_priority: input.option("max_priority", |r| r.u32("max_priority"))?,
        worker: read_option_text(input, "worker")?,
    })
}

fn write_settle(out: &mut Writer<'_>, settle: &Settle) {
    out.str(&settle.queue);
    write_list(out, &settle.ack, |w, receipt| w.str(receipt));
    write_list(out, &settle.extend, |w, extend| {
        w.str(&extend.receipt);
        w.u32(extend.lease_s);
    });
    write_list(out, &settle.release, |w, release| {
        w.str(&release.receipt);
        w.option(release.delay_s, Writer::u64);
        w.option(release.error.as_deref().map(cut_error), Writer::str);
    });
}

fn read_settle(input: &mut Reader<'_>) -> Result<Settle, Malformed> {
    const MAX: usize = SETTLE_RECEIPTS_MAX;
    Ok(Settle {
        queue: queue(input)?,
        ack: read_list(input, MAX, TEXT_BYTES_MIN, "ack (at most 3000 receipts)", |r| read_text(r, "ack"))?,
        extend: read_list(input, MAX, TEXT_BYTES_MIN + 4, "extend (at most 3000 receipts)", |r| {
            Ok(Extend { receipt: read_text(r, "receipt")?, lease_s: r.u32("lease_s")? })
        })?,
        release: read_list(input, MAX, TEXT_BYTES_MIN + 2, "release (at most 3000 receipts)", |r| {
            Ok(Release {
                receipt: read_text(r, "receipt")?,
                delay_s: r.option("delay_s", |r| r.u64("delay_s"))?,
                error: r.option("error", |r| Ok(cut_error(r.str(usize::MAX, "error")?).to_owned()))?,
            })
        })?,
    })
}

fn state_bits(states: PeekStates) -> u8 {
    u8::from(states.visible) | u8::from(states.delayed) << 1 | u8::from(states.leased) << 2
}

fn read_peek(input: &mut Reader<'_>) -> Result<Request, Malformed> {
    let queue = queue(input)?;
    let bits = input.u8("state")?;
    if bits > 0b111 {
        return Err(Malformed("state"));
    }
    let states = PeekStates { visible: bits & 1 != 0, delayed: bits & 2 != 0, leased: bits & 4 != 0 };
    let priority = input.option("priority", |r| r.u32("priority"))?;
    let (limit, after) = read_page(input)?;
    Ok(Request::Peek { queue, states, priority, limit, after })
}

fn write_redrive(out: &mut Writer<'_>, redrive: &Redrive) {
    out.str(&redrive.queue);
    match &redrive.selection {
        RedriveSelection::All => out.u8(0),
        RedriveSelection::Ids(ids) => {
            out.u8(1);
            write_list(out, ids, |w, id| write_id(w, *id));
        }
        RedriveSelection::FromPriority(priority) => {
            out.u8(2);
            out.u32(*priority);
        }
    }
    out.option(redrive.priority, Writer::u32);
    out.option(redrive.max_per_s, Writer::u64);
    out.bool(redrive.dry_run);
}

fn read_redrive(input: &mut Reader<'_>) -> Result<Redrive, Malformed> {
    Ok(Redrive {
        queue: queue(input)?,
        selection: match input.u8("selection")? {
            0 => RedriveSelection::All,
            1 => RedriveSelection::Ids(read_list(
                input,
                REDRIVE_IDS_MAX,
                ID_BYTES,
                "ids (1..=1000 in one request)",
                |r| read_id(r, "ids"),
            )?),
            2 => RedriveSelection::FromPriority(input.u32("from_priority")?),
            _ => return Err(Malformed("selection")),
        },
        priority: input.option("priority", |r| r.u32("priority"))?,
        max_per_s: input.option("max_per_s", |r| r.u64("max_per_s"))?,
        dry_run: input.bool("dry_run")?,
    })
}

const ADD: u8 = 1;
const DRAIN: u8 = 2;
const REMOVE: u8 = 3;
const REPLACE: u8 = 4;
const REBALANCE: u8 = 5;

fn write_cluster_change(out: &mut Writer<'_>, change: &ClusterChange) {
    match change {
        ClusterChange::Add(NewNode { id, zone, address, http, cores }) => {
            out.u8(ADD);
            out.u64(*id);
            [zone, address, http].into_iter().for_each(|text| out.str(text));
            out.u16(*cores);
        }
        ClusterChange::Drain { node, undo, force } => {
            out.u8(DRAIN);
            out.u64(*node);
            out.bool(*undo);
            out.bool(*force);
        }
        ClusterChange::Remove { node, force } => {
            out.u8(REMOVE);
            out.u64(*node);
            out.bool(*force);
        }
        ClusterChange::Replace { dead, new } => {
            out.u8(REPLACE);
            out.u64(*dead);
            out.u64(*new);
        }
        ClusterChange::Rebalance => out.u8(REBALANCE),
    }
}

fn read_cluster_change(input: &mut Reader<'_>) -> Result<ClusterChange, Malformed> {
    Ok(match input.u8("change of the cluster")? {
        ADD => ClusterChange::Add(NewNode {
            id: input.u64("node")?,
            zone: read_text(input, "zone")?,
            address: read_text(input, "address")?,
            http: read_text(input, "http")?,
            cores: input.u16("cores")?,
        }),
        DRAIN => ClusterChange::Drain {
            node: input.u64("node")?,
            undo: input.bool("undo")?,
            force: input.bool("force")?,
        },
        REMOVE => ClusterChange::Remove { node: input.u64("node")?, force: input.bool("force")? },
        REPLACE => ClusterChange::Replace { dead: input.u64("dead node")?, new: input.u64("new node")? },
        REBALANCE => ClusterChange::Rebalance,
        _ => return Err(Malformed("change of the cluster")),
    })
}
