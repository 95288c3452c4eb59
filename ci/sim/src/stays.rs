//! When messages certainly were visible: concluded from the delivery that ended it, whose shard time is known.
//!
//! What was delayed may become visible up to a second after its time, where it has to be read from the disk first. It has
//! its sequence from then on: what is known of later sequences of its shard tells when that was at the latest.

use crate::checkers::Case;
use crate::facts::{Action, Delivery, Message, QueueFacts};
use overtake_base::{MessageId, Receipt, Sequence, ShardId, UnixMillis};
use overtake_wire::message::{Delay, Settled};
use std::collections::BTreeMap;

/// What becomes visible by time does so within a second.
pub const DUE_MS: u64 = 1_000;

/// A stretch of time in which a message certainly was visible.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    pub id: MessageId,
    pub level: u8,
    /// Its place: shard and sequence are those of the delivery that ended the stay.
    pub receipt: Receipt,
    /// Shard time from which it was to be visible, and became so within a second.
    pub due: UnixMillis,
    /// First shard time at which it certainly was visible.
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
    let placed = Placed::of(case.queue);
    let mut all = Vec::new();
    for message in case.queue.messages.values() {
        let moved = |delivery: &Delivery<'_>| case.queue.may_be_redriven(message, delivery);
        if let Some(first) = message.deliveries.first().filter(|first| first.delivered.deliveries == 1)
            && !moved(first)
            && let Some(stay) = first_stay(case, &placed, message, first)
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

/// By when sequences had been given at the latest: for each that is known, the earliest shard time at which it or a later
/// one of its shard certainly had been.
struct Placed(BTreeMap<(ShardId, Sequence), UnixMillis>);

impl Placed {
    fn of(queue: &QueueFacts<'_>) -> Self {
        let mut placed = BTreeMap::new();
        for message in queue.messages.values() {
            for delivery in &message.deliveries {
                let receipt = delivery.delivered.receipt;
                let enqueued_at = delivery.delivered.enqueued_at;
                let at_once =
                    due(message, enqueued_at) == enqueued_at && !queue.may_be_redriven(message, delivery);
                let at = if at_once { enqueued_at } else { delivery.leased_at };
                let known = placed.entry((receipt.shard, receipt.sequence)).or_insert(at);
                *known = at.min(*known);
            }
        }
        let mut later: Option<(ShardId, UnixMillis)> = None;
        for ((shard, _), at) in placed.iter_mut().rev() {
            if let Some((_, later_at)) = later.filter(|(later_shard, _)| later_shard == shard) {
                *at = later_at.min(*at);
            }
            later = Some((*shard, *at));
        }
        Self(placed)
    }

    fn at(&self, receipt: Receipt) -> UnixMillis {
        self.0.get(&(receipt.shard, receipt.sequence)).copied().unwrap_or(UnixMillis::NEVER)
    }
}

/// When a message that was enqueued then is to be visible first.
fn due(message: &Message<'_>, enqueued_at: UnixMillis) -> UnixMillis {
    match message.made.message.delay {
        Delay::None => enqueued_at,
        Delay::At(at) => at.max(enqueued_at),
        Delay::AfterS(s) => enqueued_at.plus_s(s),
    }
}

fn stay(ended_by: &Delivery<'_>, from: UnixMillis, known_ns: u64) -> Stay {
    Stay {
        id: ended_by.delivered.id,
        level: ended_by.delivered.priority,
        receipt: ended_by.delivered.receipt,
        due: from,
        from,
        to: ended_by.leased_at,
        known_ns,
    }
}

fn first_stay(case: &Case<'_>, placed: &Placed, message: &Message<'_>, first: &Delivery<'_>) -> Option<Stay> {
    let enqueued_at = first.delivered.enqueued_at;
    let due = due(message, enqueued_at);
    if due == enqueued_at {
        let known_ns = message.stored().and_then(|attempt| attempt.call.answer()).map(|(end_ns, _)| end_ns);
        return Some(stay(first, due, known_ns.unwrap_or(u64::MAX)));
    }
    let well = case.history.was_well(message.first_try_ns(), first.end_ns);
    let promised = if well { due.plus_ms(DUE_MS) } else { UnixMillis::NEVER };
    let from = placed.at(first.delivered.receipt).min(promised);
    Some(Stay { due, ..stay(first, from, u64::MAX) })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Got, Sample, id};

    const DUE: u64 = 5_000;

    /// From when it is certain that a message was visible which is due at [`DUE`], has sequence 7 of shard 3 and is leased
    /// at `leased_ms`; besides one that is enqueued without a delay.
    fn certain_from(leased_ms: u64, other_at_ms: u64, other: Got, outage: bool) -> u64 {
        let mut sample = Sample::default();
        let delayed = sample.enqueue(1_000, 0, Delay::At(UnixMillis(DUE)));
        assert_eq!(sample.enqueue(other_at_ms, 4, Delay::None), other.0);
        sample.receive(leased_ms, leased_ms + 10, &[(delayed, 3, 7, leased_ms)]);
        sample.receive(other.3, other.3 + 10, &[other]);
        if outage {
            sample.outage(4_000, 4_500);
        }
        sample.show(16, |case| {
            let stays = stays(case);
            let at_once = stays.iter().find(|stay| stay.id == id(other.0)).unwrap();
            assert_eq!((at_once.due, at_once.from), (UnixMillis(other_at_ms), UnixMillis(other_at_ms)));
            let stay = stays.iter().find(|stay| stay.id == id(delayed)).unwrap();
            assert_eq!((stay.due, stay.to), (UnixMillis(DUE), UnixMillis(leased_ms)));
            stay.from.0
        })
    }

    #[test]
    fn what_was_delayed_may_become_visible_up_to_a_second_late() {
        let earlier = (1, 3, 6, 9_500);
        assert_eq!(certain_from(5_300, 1_000, earlier, false), 5_300);
        assert_eq!(certain_from(9_000, 1_000, earlier, false), DUE + 1_000);
        assert_eq!(certain_from(9_000, 1_000, earlier, true), 9_000, "something was held up");
    }

    #[test]
    fn a_later_sequence_of_its_shard_tells_that_it_was_visible() {
        for outage in [false, true] {
            assert_eq!(certain_from(9_000, 5_040, (1, 3, 8, 9_500), outage), 5_040);
        }
        assert_eq!(certain_from(9_000, 5_040, (1, 4, 8, 9_500), false), DUE + 1_000, "of another shard");
        assert_eq!(certain_from(9_000, 5_040, (1, 3, 6, 9_500), false), DUE + 1_000, "an earlier one");
    }
}
