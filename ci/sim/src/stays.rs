//! When messages certainly were visible: concluded from the delivery that ended it, whose shard time is known.

use crate::checkers::Case;
use crate::facts::{Action, Delivery, Message};
use crate::history::Call;
use overtake_base::{MessageId, Receipt, UnixMillis};
use overtake_wire::message::{Delay, Request, Response, Settled};

/// Longest time for which a receive that nobody is there to take may be under way, in nanoseconds.
const LOST_RECEIVE_NS: u64 = 60_000_000_000;

/// A stretch of time in which a message certainly was visible.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    pub id: MessageId,
    pub level: u8,
    /// Its place: shard and sequence are those of the delivery that ended the stay.
    pub receipt: Receipt,
    /// First shard time at which it was visible.
    pub from: UnixMillis,
    /// Shard time of the delivery that ended it.
    pub to: UnixMillis,
    /// Virtual time from which everybody could know.
    pub known_ns: u64,
}

/// All stays of a queue's messages; none where messages were brought back from the dead, which moves them.
#[must_use]
pub fn stays(case: &Case<'_>) -> Vec<Stay> {
    if case.queue.redriven {
        return Vec::new();
    }
    let lost = lost_receives(case);
    let undisturbed = |stay: &Stay, from_ns: u64, to_ns: u64| {
        stay.from <= stay.to
            && (!case.history.lossy || case.history.was_well(from_ns, to_ns))
            && !lost.iter().any(|start| (from_ns.saturating_sub(LOST_RECEIVE_NS)..=to_ns).contains(start))
    };
    let mut all = Vec::new();
    for message in case.queue.messages.values() {
        if let Some(first) = message.deliveries.first().filter(|first| first.delivered.deliveries == 1)
            && let Some(stay) = first_stay(message, first)
        {
            let from_ns = message.tries.iter().map(|attempt| attempt.call.start_ns).min().unwrap_or(0);
            all.extend(Some(stay).filter(|stay| undisturbed(stay, from_ns, first.end_ns)));
        }
        for pair in message.deliveries.windows(2) {
            let follows = pair[1].delivered.deliveries == pair[0].delivered.deliveries + 1;
            if let Some(stay) = follows.then(|| later_stay(case, message, &pair[0], &pair[1])).flatten() {
                all.extend(
                    Some(stay).filter(|stay| undisturbed(stay, pair[0].call.start_ns, pair[1].end_ns)),
                );
            }
        }
    }
    all
}

/// Receives whose messages may have been taken back: that leaves no trace in the deliveries.
fn lost_receives(case: &Case<'_>) -> Vec<u64> {
    let turned_back = |call: &Call| {
        case.history.little_room
            && matches!(call.answer(), Some((_, Response::Received { messages })) if messages.is_empty())
    };
    let receives = case.queue.calls.iter().filter(|call| {
        matches!(call.request, Request::Receive(_)) && (call.answer().is_none() || turned_back(call))
    });
    let cancels =
        case.history.calls.iter().filter(|call| matches!(call.request, Request::CancelReceive { .. }));
    receives.map(|call| call.start_ns).chain(cancels.map(|call| call.start_ns)).collect()
}

fn stay(ended_by: &Delivery<'_>, from: UnixMillis, known_ns: u64) -> Stay {
    Stay {
        id: ended_by.delivered.id,
        level: ended_by.delivered.priority,
        receipt: ended_by.delivered.receipt,
        from,
        to: ended_by.leased_at,
        known_ns,
    }
}

fn first_stay(message: &Message<'_>, first: &Delivery<'_>) -> Option<Stay> {
    let enqueued_at = first.delivered.enqueued_at;
    let from = match message.made.message.delay {
        Delay::None => enqueued_at,
        Delay::At(at) => at.max(enqueued_at),
        Delay::AfterS(s) => enqueued_at.plus_s(s),
    };
    let known_ns = match message.stored().and_then(|attempt| attempt.call.answer()) {
        Some((end_ns, _)) if from == enqueued_at => end_ns,
        _ => u64::MAX,
    };
    Some(stay(first, from, known_ns))
}

fn later_stay(
    case: &Case<'_>,
    message: &Message<'_>,
    before: &Delivery<'_>,
    next: &Delivery<'_>,
) -> Option<Stay> {
    if case.queue.plan.backoff_max_s > 0 {
        return None;
    }
    let mut settles = message.settles_of(before.delivered.deliveries).filter(|settle| settle.may_be_ok());
    match (settles.next(), settles.next()) {
        (None, _) => Some(stay(next, before.delivered.lease_expires_at, u64::MAX)),
        (Some(settle), None) if settle.outcome == Some(Settled::Ok) => match settle.action {
            Action::Release { delay_ms: None | Some(0), .. } => {
                Some(stay(next, case.clocks.high(settle.end_ns()), settle.end_ns()))
            }
            _ => None,
        },
        _ => None,
    }
}
