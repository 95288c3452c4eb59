//! Leases: one at a time, each as long as it was given for, and only the newest receipt acts.

use super::{Case, Found};
use crate::facts::{Action, Delivery, Message};
use overtake_wire::message::{Request, Response, Settled};

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    for message in case.queue.messages.values() {
        for delivery in &message.deliveries {
            check_stamp(case, message, delivery, found);
        }
        for pair in message.deliveries.windows(2) {
            check_next(case, message, &pair[0], &pair[1], found);
        }
        if !case.queue.unseen {
            check_no_gap(case, message, found);
        }
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

fn check_no_gap(case: &Case<'_>, message: &Message<'_>, found: &mut Found) {
    for (place, delivery) in message.deliveries.iter().enumerate() {
        if delivery.delivered.deliveries as usize != place + 1
            && !may_have_been_taken_back(case, message, delivery)
        {
            found.add(format!(
                "{}: delivery {} is the {}. one that anybody saw, though none was lost",
                message.id,
                delivery.delivered.deliveries,
                place + 1
            ));
            return;
        }
    }
}

/// What a cancelled receive gets is given back, and what comes to a client that does not read. That is lost where the process ends first, and comes too late where the
/// disk hangs for longer than the lease: then the delivery counts, and nobody saw it.
fn may_have_been_taken_back(case: &Case<'_>, message: &Message<'_>, seen: &Delivery<'_>) -> bool {
    let from_ns = message.tries.iter().map(|attempt| attempt.call.start_ns).min().unwrap_or(0);
    let cancels = || {
        let calls = case.history.calls.iter();
        calls.filter(|call| matches!(call.request, Request::CancelReceive { .. })).map(|call| call.start_ns)
    };
    let disturbed = !case.history.outages.is_empty() || case.plan.faults.disk_hang_ms > 0;
    disturbed
        && case.queue.calls.iter().any(|call| {
            let Some((end_ns, Response::Received { messages })) = call.answer() else { return false };
            messages.is_empty()
                && call.start_ns < seen.end_ns
                && from_ns < end_ns
                && (case.history.little_room
                    || cancels().any(|at_ns| (call.start_ns..=end_ns).contains(&at_ns)))
        })
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
        // Any other use of the receipt may have ended the lease, or shortened it.
        let alone = message.settles_of(number).count() == 1;
        if let Some(lease) = lease
            && alone
            && case.clocks.high(end_ns) < lease.delivered.lease_expires_at
        {
            found.add(format!(
                "{:?} of {} was {outcome:?} though the lease runs until {}",
                settle.action, settle.receipt, lease.delivered.lease_expires_at
            ));
        }
    }
}
