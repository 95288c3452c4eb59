//! Leases: one at a time, each as long as it was given for, and only the newest receipt acts.

use super::{Case, Found};
use crate::facts::{Action, Delivery, Message};
use crate::lost::LostReceive;
use overtake_wire::message::Settled;

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    for message in case.queue.messages.values() {
        for delivery in &message.deliveries {
            check_stamp(case, message, delivery, found);
        }
        for pair in message.deliveries.windows(2) {
            check_next(case, message, &pair[0], &pair[1], found);
        }
        check_no_gap(case, message, found);
        check_accepted(case, message, found);
        check_rejected(case, message, found);
    }
}

/// A lease runs from the time it was handed out: shard time, which lies within the request.
fn check_stamp(case: &Case<'_>, message: &Message<'_>, delivery: &Delivery<'_>, found: &mut Found) {
    let low = case.clocks.low(delivery.call.start_ns);
    let high = case.clocks.high(delivery.end_ns);
    if !(low..=high).contains(&delivery.leased_at) {
        found.add(format!(
            "{} was leased at {}, but the request was under way from {low} to {high}",
            message.id, delivery.leased_at
        ));
    }
    let receipt = delivery.delivered.receipt;
    if receipt.deliveries != delivery.delivered.deliveries || receipt.deliveries == 0 {
        found.add(format!(
            "{} came with receipt {receipt} as delivery {}",
            message.id, delivery.delivered.deliveries
        ));
    }
}

/// Deliveries count up, and the lease before is over.
fn check_next(
    case: &Case<'_>,
    message: &Message<'_>,
    before: &Delivery<'_>,
    next: &Delivery<'_>,
    found: &mut Found,
) {
    let (number, next_number) = (before.delivered.deliveries, next.delivered.deliveries);
    if number >= next_number || next.leased_at < before.leased_at {
        found.add(format!(
            "{}: delivery {number} at {}, then {next_number} at {}",
            message.id, before.leased_at, next.leased_at
        ));
    }
    let given_back = message
        .settles_of(number)
        .any(|settle| matches!(settle.action, Action::Release { .. }) && settle.may_be_ok());
    let held_until = held_until(case, message, before);
    if !given_back && next.leased_at.0 < held_until {
        found.add(format!(
            "{} was held as delivery {number} until {held_until} ms, but delivered again at {}",
            message.id, next.leased_at
        ));
    }
}

/// The earliest end of a lease that fits its extensions. One that may not have happened can only take away.
fn held_until(case: &Case<'_>, message: &Message<'_>, lease: &Delivery<'_>) -> u64 {
    let given = lease.delivered.lease_expires_at.0;
    let mut ends = Vec::new();
    let mut all_sure = true;
    for settle in message.settles_of(lease.delivered.deliveries).filter(|settle| settle.may_be_ok()) {
        if let Action::Extend { lease_ms } = settle.action {
            ends.push(case.clocks.low(settle.call.start_ns).0 + lease_ms);
            all_sure &= settle.outcome.is_some();
        }
    }
    let least = ends.iter().copied().min();
    match least {
        Some(least) if all_sure => least,
        Some(least) => least.min(given),
        None => given,
    }
}

/// A delivery that nobody saw was to a receive that may have had it; each has a message once. Between nodes, one lost its
/// lease when something was wrong.
fn check_no_gap(case: &Case<'_>, message: &Message<'_>, found: &mut Found) {
    let (mut number, mut from_ns) = (0, message.first_try_ns());
    for delivery in &message.deliveries {
        let (deliveries, level) = (delivery.delivered.deliveries, delivery.delivered.priority);
        let unseen = deliveries.saturating_sub(number + 1);
        if unseen > 0 && (!case.history.lossy || case.history.was_steady(from_ns, delivery.end_ns)) {
            // A redrive may have changed its level meanwhile.
            let level = if case.queue.redriven_from_ns < delivery.end_ns { 0 } else { level };
            let may_have = |lost: &&LostReceive<'_>| lost.may_count(level, from_ns, delivery.end_ns);
            let lost = case.queue.lost.iter().filter(may_have).count();
            if unseen as usize > lost {
                found.add(format!(
                    "{}: delivery {deliveries} follows {number} of those that anybody saw, though {lost} can have been lost",
                    message.id
                ));
            }
        }
        (number, from_ns) = (deliveries, delivery.call.start_ns);
    }
}

/// What was accepted was the current lease's receipt then.
fn check_accepted(case: &Case<'_>, message: &Message<'_>, found: &mut Found) {
    let accepted = || message.settles.iter().filter(|settle| settle.outcome == Some(Settled::Ok));
    for settle in accepted() {
        let number = settle.receipt.deliveries;
        let start = case.clocks.low(settle.call.start_ns);
        let newer = message.deliveries.iter().find(|delivery| {
            delivery.delivered.deliveries > number && delivery.end_ns < settle.call.start_ns
        });
        if let Some(newer) = newer {
            found.add(format!(
                "{:?} of {} was accepted after {} was given out",
                settle.action, settle.receipt, newer.delivered.receipt
            ));
        }
        let ended = accepted().any(|other| {
            !matches!(other.action, Action::Extend { .. })
                && other.receipt.deliveries >= number
                && other.end_ns() < settle.call.start_ns
        });
        if ended {
            found.add(format!(
                "{:?} of {} was accepted after the lease was ended",
                settle.action, settle.receipt
            ));
        }
        let lease = message.deliveries.iter().find(|delivery| delivery.delivered.deliveries == number);
        if let Some(lease) = lease
            && let Some(until) = held_at_most(case, message, lease)
            && start.0 > until
        {
            found.add(format!(
                "{:?} of {} was accepted at {start}, but the lease ended at {until} ms",
                settle.action, settle.receipt
            ));
        }
    }
}

/// The latest end of a lease that fits its extensions; none where that cannot be told.
fn held_at_most(case: &Case<'_>, message: &Message<'_>, lease: &Delivery<'_>) -> Option<u64> {
    let mut most = lease.delivered.lease_expires_at.0;
    for settle in message.settles_of(lease.delivered.deliveries).filter(|settle| settle.may_be_ok()) {
        if let Action::Extend { lease_ms } = settle.action {
            settle.outcome?;
            most = most.max(case.clocks.high(settle.end_ns()).0 + lease_ms);
        }
    }
    Some(most)
}

/// A current receipt is not refused: the lease did not end early.
fn check_rejected(case: &Case<'_>, message: &Message<'_>, found: &mut Found) {
    for settle in &message.settles {
        let Some(outcome) = settle.outcome.filter(|outcome| *outcome != Settled::Ok) else { continue };
        let Some((end_ns, _)) = settle.call.answer() else { continue };
        let number = settle.receipt.deliveries;
        let lease = message.deliveries.iter().find(|delivery| delivery.delivered.deliveries == number);
        // Another use of the receipt may have ended the lease before.
        let ended = message.settles_of(number).any(|other| {
            other.may_be_ok()
                && !matches!(other.action, Action::Extend { .. })
                && other.call.start_ns < end_ns
        });
        if let Some(lease) = lease
            && !ended
            && let until = held_until(case, message, lease)
            && case.clocks.high(end_ns).0 < until
        {
            found.add(format!(
                "{:?} of {} was {outcome:?} though the lease runs until {until} ms",
                settle.action, settle.receipt
            ));
        }
    }
}
