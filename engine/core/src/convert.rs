//! From a shard's words to the client's.

use crate::mesh::ShardReply;
use overtake_base::{Receipt, ShardId, UnixMillis};
use overtake_queue::answer::{DeadLetterView, Delivery, MessageView, QueueStats, Totals, ViewState};
use overtake_queue::entry::Payload;
use overtake_wire::message::{
    DeadLetter, Delivered, Headers, Inspected, MessageState, PeekedMessage, Refusal, Response, Stats, WaitMs,
};

/// A refusal as a response.
pub(crate) fn refused(refusal: Refusal) -> Response {
    Response::Refused(refusal)
}

/// What a client is told when a shard did not do what it was asked.
pub(crate) fn failed(reply: &ShardReply) -> Refusal {
    match reply {
        ShardReply::Failed { unknown: true, detail } => Refusal::fate_unknown(*detail, 1_000),
        ShardReply::Failed { unknown: false, detail } => Refusal::no_quorum(*detail, 1_000),
        _ => Refusal::internal("a shard gave an answer to another question; please report this"),
    }
}

/// Headers were checked when they came in; what is on disk is covered by a checksum.
fn headers_of(payload: &Payload) -> Headers {
    overtake_wire::decode_headers(&payload.headers).unwrap_or_default()
}

pub(crate) fn delivered(shard: ShardId, delivery: Delivery, payload: Payload) -> Delivered {
    Delivered {
        id: delivery.id,
        priority: delivery.priority.0,
        receipt: Receipt { shard, sequence: delivery.key.sequence, deliveries: delivery.key.deliveries },
        deliveries: delivery.key.deliveries,
        enqueued_at: delivery.enqueued_at,
        lease_expires_at: delivery.lease_expires_at,
        headers: headers_of(&payload),
        share: delivery.share,
        body: payload.body,
    }
}

/// A message as a peek shows it.
#[must_use]
pub fn peeked(view: MessageView, payload: Payload) -> PeekedMessage {
    PeekedMessage {
        id: view.id,
        priority: view.priority.0,
        state: state_of(&view.state),
        deliveries: view.deliveries,
        enqueued_at: view.enqueued_at,
        deliver_at: delayed_until(&view.state),
        lease_expires_at: leased_until(&view.state),
        headers: headers_of(&payload),
        body: payload.body,
    }
}

/// A dead letter as a listing shows it.
#[must_use]
pub fn dead_letter(view: DeadLetterView, payload: Payload) -> DeadLetter {
    DeadLetter {
        id: view.id,
        priority: view.priority.0,
        deliveries: view.deliveries,
        last_error: view.last_error.into(),
        dead_at: view.dead_at,
        history: view.history.into_iter().map(|(at, what)| (at, what.into())).collect(),
        enqueued_at: view.enqueued_at,
        headers: headers_of(&payload),
        body: payload.body,
    }
}

pub(crate) fn inspected(shard: ShardId, view: MessageView, capped: bool) -> Inspected {
    let (ahead, worker) = match &view.state {
        ViewState::Visible { ahead } => (*ahead, None),
        ViewState::Leased { worker, .. } => (None, worker.as_deref().map(String::from)),
        ViewState::Delayed { .. } | ViewState::Dead => (None, None),
    };
    let why = why(&view, capped);
    Inspected {
        id: view.id,
        priority: view.priority.0,
        state: state_of(&view.state),
        shard: shard.0,
        enqueued_at: view.enqueued_at,
        deliver_at: delayed_until(&view.state),
        lease_expires_at: leased_until(&view.state),
        worker,
        deliveries: view.deliveries,
        ahead,
        why,
    }
}

/// Where the message is, in words; with what went wrong before, if anything did.
fn why(view: &MessageView, capped: bool) -> String {
    let why = match &view.state {
        ViewState::Visible { ahead: Some(0) } if capped => {
            "visible and next on its shard; the queue's rate cap may hold it back".into()
        }
        ViewState::Visible { ahead: Some(0) } => {
            "visible and next on its shard: the next receive may get it".into()
        }
        ViewState::Visible { ahead } => {
            let ahead = ahead.unwrap_or(0);
            let (messages, are) = if ahead == 1 { ("message", "is") } else { ("messages", "are") };
            format!("visible; {ahead} {messages} on its shard {are} more urgent or before it")
        }
        ViewState::Delayed { .. } => "delayed: it becomes visible when its time has come".into(),
        ViewState::Leased { .. } => "leased: a worker has it until its lease ends".into(),
        ViewState::Dead => "dead: it is in the dead-letter queue, to be redriven or purged".into(),
    };
    match &view.last_error {
        Some(error) => format!("{why}; last error: {error}"),
        None => why,
    }
}

fn state_of(state: &ViewState) -> MessageState {
    match state {
        ViewState::Visible { .. } => MessageState::Visible,
        ViewState::Delayed { .. } => MessageState::Delayed,
        ViewState::Leased { .. } => MessageState::Leased,
        ViewState::Dead => MessageState::Dead,
    }
}

fn delayed_until(state: &ViewState) -> Option<UnixMillis> {
    if let ViewState::Delayed { until } = state { Some(*until) } else { None }
}

fn leased_until(state: &ViewState) -> Option<UnixMillis> {
    if let ViewState::Leased { expires_at, .. } = state { Some(*expires_at) } else { None }
}

/// Statistics of a queue, its shards' parts added up.
pub(crate) fn stats(parts: QueueStats, now: UnixMillis) -> Stats {
    let wait_ms = parts.waits.iter().map(|waits| wait_of(waits)).collect();
    let oldest_age_ms = parts.oldest_since.iter().map(|since| since.map(|since| now.since(since))).collect();
    Stats {
        visible: parts.visible,
        delayed: parts.delayed,
        leased: parts.leased,
        dlq: parts.dead,
        oldest_age_ms,
        wait_ms,
        totals: totals(&parts.totals),
        workers: parts.workers.into_iter().map(|(label, leased)| (label.into(), leased)).collect(),
    }
}

fn wait_of(waits: &[(u64, u64)]) -> Option<WaitMs> {
    let quantile = |q| overtake_queue::stats::wait_quantile(waits, q).map(|ms| ms as f64);
    Some(WaitMs { p50: quantile(0.5)?, p99: quantile(0.99)?, p999: quantile(0.999)? })
}

fn totals(totals: &Totals) -> overtake_wire::message::Totals {
    let [refused_depth, refused_bytes, refused_rate, refused_disk, refused_no_quorum] = totals.refused;
    overtake_wire::message::Totals {
        enqueued: totals.enqueued,
        acked: totals.acked,
        cancelled: totals.cancelled,
        purged: totals.purged,
        expired: totals.expired,
        dead_lettered: totals.dead_lettered,
        redriven: totals.redriven,
        deliveries: totals.deliveries,
        share_deliveries: totals.share_deliveries,
        inversions: totals.inversions,
        lease_expirations: totals.lease_expirations,
        releases: totals.releases,
        stale_receipts: totals.stale_receipts,
        starvation_events: totals.starvation_events,
        refused_depth,
        refused_bytes,
        refused_rate,
        refused_disk,
        refused_no_quorum,
    }
}
