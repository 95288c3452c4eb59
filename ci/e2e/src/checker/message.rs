//! The rules that concern one message.

use super::{Ends, Message, Timed, Violation};
use crate::history::{Action, Delivery, End, EnqueueOutcome, SettleOutcome};
use crate::time::STAMP_MS;

pub(super) fn check(id: &str, message: &Message<'_>, ends: &Ends<'_>, found: &mut Vec<Violation>) {
    let end = ends.end;
    check_existence(id, message, end, found);
    check_storing_once(id, message, found);
    check_acked(id, message, end, found);
    check_cancelled(id, message, end, found);
    check_due(id, message, ends, found);
    check_expired(id, message, ends, found);
    check_fencing(id, message, found);
    check_receipts(id, message, found);
    check_overlap(id, message, found);
}

/// What was accepted is not lost; what cannot have been stored is not seen; what is seen is what was stored.
fn check_existence(id: &str, message: &Message<'_>, end: &End, found: &mut Vec<Violation>) {
    if !message.may_exist() {
        if !message.deliveries.is_empty() {
            found.push(Violation::Phantom(format!("{id} was delivered")));
        }
        if message.named {
            found.push(Violation::Phantom(format!("{id} was named as the first message of a key")));
        }
    }
    if message.deliveries.iter().any(|d| !d.value.intact) {
        found.push(Violation::Corrupt(id.into()));
    }
    let there = end.live.contains(id) || end.dead.contains(id);
    let accepted = message.named || message.accepted(id).is_some();
    let cancelled = message.cancels.iter().any(|c| c.value != Some(false));
    let may_expire = message.enqueues.iter().any(|e| e.value.expires_in_ms.is_some());
    if accepted && !there && !message.may_be_acked() && !cancelled && !may_expire {
        found.push(Violation::Lost(id.into()));
    }
}

/// An id is stored once, however often it is tried. Histories are shorter than the dedup window.
fn check_storing_once(id: &str, message: &Message<'_>, found: &mut Vec<Violation>) {
    let stored = message
        .enqueues
        .iter()
        .filter(|e| matches!(e.value.outcome, EnqueueOutcome::Accepted { duplicate: false, .. }))
        .count();
    if stored > 1 {
        found.push(Violation::DedupBroken(format!("{id} was stored {stored} times")));
    }
    for enqueue in &message.enqueues {
        if let EnqueueOutcome::Accepted { id: answered, duplicate: false } = &enqueue.value.outcome
            && answered != id
        {
            found.push(Violation::DedupBroken(format!("{id} was stored as {answered}")));
        }
    }
}

/// An accepted ack deletes: the lease was the current one then, and no later one can exist.
fn check_acked(id: &str, message: &Message<'_>, end: &End, found: &mut Vec<Violation>) {
    for ack in message.acks(SettleOutcome::Ok) {
        let later = message
            .deliveries
            .iter()
            .find(|d| d.value.deliveries > ack.value.deliveries || d.start_ms > ack.end_ms);
        if let Some(later) = later {
            found.push(Violation::AckedDelivered(format!(
                "{id} acked as delivery {}, then {:?}",
                ack.value.deliveries, later.value
            )));
        }
        if end.live.contains(id) || end.dead.contains(id) {
            found.push(Violation::AckedThere(id.into()));
        }
    }
}

fn check_cancelled(id: &str, message: &Message<'_>, end: &End, found: &mut Vec<Violation>) {
    for cancel in message.cancels.iter().filter(|c| c.value == Some(true)) {
        let delivered = message.deliveries.iter().any(|d| d.start_ms > cancel.end_ms);
        if delivered || end.live.contains(id) || end.dead.contains(id) {
            found.push(Violation::CancelledThere(id.into()));
        }
    }
}

/// Nothing comes before its time, unless it died of the release and was redriven. Tries of one id all ask for the same time; should they not, the earliest counts.
fn check_due(id: &str, message: &Message<'_>, ends: &Ends<'_>, found: &mut Vec<Violation>) {
    let due_ms = message.enqueues.iter().map(|e| e.value.due_ms).min().unwrap_or(0);
    for delivery in message.deliveries.iter().filter(|d| d.end_ms < due_ms) {
        found.push(Violation::Early(format!("{id} due {due_ms}, delivered {}", delivery.end_ms)));
    }
    for release in message.settles.iter().filter(|s| s.value.outcome == SettleOutcome::Ok) {
        let Action::Release { delay_ms } = release.value.action else { continue };
        let back_ms = (release.start_ms + delay_ms).saturating_sub(STAMP_MS);
        let number = release.value.deliveries;
        let next = message.deliveries.iter().find(|d| d.value.deliveries == number + 1);
        let Some(next) = next.filter(|next| next.end_ms < back_ms) else { continue };
        if !ends.may_be_redriven(number, release.start_ms, next.end_ms) {
            let shown = next.end_ms;
            found.push(Violation::Early(format!(
                "{id}: delivery {number} released until {back_ms}, the next {shown}"
            )));
        }
    }
}

/// A time to live runs from the first visibility, which was at the latest when the enqueue was answered. What died and was
/// redriven is visible anew, and has its time to live anew.
fn check_expired(id: &str, message: &Message<'_>, ends: &Ends<'_>, found: &mut Vec<Violation>) {
    let Some(accepted) = message.accepted(id) else { return };
    let Some(expires_in_ms) = accepted.value.expires_in_ms else { return };
    if accepted.value.due_ms > 0 {
        return;
    }
    for delivery in &message.deliveries {
        let redriven_ms =
            ends.last_redrive_ms(delivery.value.deliveries - 1, accepted.start_ms, delivery.end_ms);
        let since_ms = redriven_ms.unwrap_or(accepted.end_ms).max(accepted.end_ms);
        let gone_ms = since_ms.saturating_add(expires_in_ms);
        if delivery.start_ms > gone_ms {
            found.push(Violation::ExpiredDelivered(format!(
                "{id} expired {gone_ms}, delivery {} asked for at {} and answered at {}",
                delivery.value.deliveries, delivery.start_ms, delivery.end_ms
            )));
        }
    }
}

/// For one message `deliveries` strictly increases.
fn check_fencing(id: &str, message: &Message<'_>, found: &mut Vec<Violation>) {
    for (at, one) in message.deliveries.iter().enumerate() {
        for other in &message.deliveries[at + 1..] {
            let same = one.value.deliveries == other.value.deliveries;
            let back = one.end_ms < other.start_ms && one.value.deliveries > other.value.deliveries;
            if same || back {
                found.push(Violation::DeliveriesNotIncreasing(format!(
                    "{id}: {} ({} to {}), then {} ({} to {})",
                    one.value.deliveries,
                    one.start_ms,
                    one.end_ms,
                    other.value.deliveries,
                    other.start_ms,
                    other.end_ms
                )));
            }
        }
    }
}

/// A receipt works only for the current lease: not after a later delivery was seen, and not twice to end it.
fn check_receipts(id: &str, message: &Message<'_>, found: &mut Vec<Violation>) {
    let accepted = || message.settles.iter().filter(|s| s.value.outcome == SettleOutcome::Ok);
    for settle in accepted() {
        let seen = message
            .deliveries
            .iter()
            .any(|d| d.value.deliveries > settle.value.deliveries && d.end_ms < settle.start_ms);
        let ended = accepted().any(|other| {
            !matches!(other.value.action, Action::Extend { .. })
                && other.value.deliveries >= settle.value.deliveries
                && other.end_ms < settle.start_ms
        });
        if seen || ended {
            found.push(Violation::StaleAccepted(format!("{id}: {:?} at {}", settle.value, settle.start_ms)));
        }
    }
}

/// A lease holds until its end, unless its holder gives the message back.
fn check_overlap(id: &str, message: &Message<'_>, found: &mut Vec<Violation>) {
    for lease in &message.deliveries {
        let number = lease.value.deliveries;
        let Some(next) = message.deliveries.iter().find(|d| d.value.deliveries == number + 1) else {
            continue;
        };
        let given_back = message.settles.iter().any(|s| {
            s.value.deliveries == number
                && s.value.outcome != SettleOutcome::Rejected
                && matches!(s.value.action, Action::Release { .. })
                && s.start_ms <= next.end_ms
        });
        let held_until_ms = held_until_ms(lease, message);
        if !given_back && next.end_ms < held_until_ms {
            found.push(Violation::Overlap(format!(
                "{id}: delivery {number} held until {held_until_ms}, the next came {}",
                next.end_ms
            )));
        }
    }
}

/// The earliest end of a lease that fits its extensions. One that may not have happened can only take away.
fn held_until_ms(lease: &Timed<&Delivery>, message: &Message<'_>) -> u64 {
    let extensions = message.settles.iter().filter(|s| s.value.deliveries == lease.value.deliveries);
    extensions.fold(lease.value.lease_expires_at_ms, |held_ms, settle| {
        let from_now = |ms: u64| (settle.start_ms + ms).saturating_sub(STAMP_MS);
        match (settle.value.action, settle.value.outcome) {
            (Action::Extend { lease_ms }, SettleOutcome::Ok) => from_now(lease_ms),
            (Action::Extend { lease_ms }, SettleOutcome::Unknown) => held_ms.min(from_now(lease_ms)),
            _ => held_ms,
        }
    })
}
