//! When messages certainly were visible: concluded from the delivery that ended it, whose shard time is known.

use crate::checkers::Case;
use crate::facts::{Action, Delivery, Message};
use overtake_base::{MessageId, Receipt, UnixMillis};
use overtake_wire::message::{Delay, Settled};

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

/// All stays of a queue's messages, but for what was brought back from the dead, which moves it.
#[must_use]
pub fn stays(case: &Case<'_>) -> Vec<Stay> {
    let undisturbed = |stay: &Stay, from_ns: u64, to_ns: u64| {
        stay.from <= stay.to
            && (!case.history.lossy || case.history.was_steady(from_ns, to_ns))
            // What is taken back leaves no trace in the deliveries.
            && !case.queue.lost.iter().any(|lost| lost.may_hold(stay.level, from_ns, to_ns))
    };
    let mut all = Vec::new();
    for message in case.queue.messages.values() {
        let moved = |delivery: &Delivery<'_>| case.queue.may_be_redriven(message, delivery);
        if let Some(first) = message.deliveries.first().filter(|first| first.delivered.deliveries == 1)
            && !moved(first)
            && let Some(stay) = first_stay(message, first)
        {
            all.extend(Some(stay).filter(|stay| undisturbed(stay, message.first_try_ns(), first.end_ns)));
        }
        for pair in message.deliveries.windows(2) {
            let follows =
                pair[1].delivered.deliveries == pair[0].delivered.deliveries + 1 && !moved(&pair[1]);
            if let Some(stay) = follows.then(|| later_stay(case, message, &pair[0], &pair[1])).flatten() {
                all.extend(
                    Some(stay).filter(|stay| undisturbed(stay, pair[0].call.start_ns, pair[1].end_ns)),
                );
            }
        }
    }
    all
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
