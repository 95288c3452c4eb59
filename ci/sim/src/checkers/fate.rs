//! What was accepted is not lost: at the end it is there, or gone in a way that somebody asked for. What was ended is
//! not there any more.

use super::{Case, Found};
use crate::facts::{Action, Message};
use crate::history::Call;
use overtake_wire::message::{Request, Response, Settled};
use std::collections::BTreeSet;

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let Some(end) = case.queue.end else { return };
    let mut there = BTreeSet::new();
    let all = end.drained.iter().map(|message| message.id).chain(end.dead.iter().map(|dead| dead.id));
    for id in all {
        if !there.insert(id) {
            found.add(format!("{id} is there twice at the end"));
        }
    }
    for message in case.queue.messages.values() {
        let is_there = there.contains(&message.id);
        check_gone(message, is_there, found);
        let accepted = message.named || message.stored().is_some();
        let may_be_gone = message.may_be_acked()
            || message.cancels.iter().any(|(_, done)| *done != Some(false))
            || case.queue.calls.iter().any(|call| may_purge(case, call, message))
            || may_expire(case, message);
        if accepted && !is_there && !may_be_gone {
            found.add(format!("{} was accepted and is lost", message.id));
        }
    }
}

fn check_gone(message: &Message<'_>, is_there: bool, found: &mut Found) {
    for (call, _) in message.cancels.iter().filter(|(_, done)| *done == Some(true)) {
        let answered_ns = call.answer().map_or(u64::MAX, |(end_ns, _)| end_ns);
        let later = message.deliveries.iter().any(|delivery| delivery.call.start_ns > answered_ns);
        if is_there || later {
            found.add(format!("{} is there though its cancel was answered", message.id));
        }
    }
    let last = message.deliveries.iter().map(|delivery| delivery.delivered.deliveries).max().unwrap_or(0);
    for ack in message.settles.iter().filter(|s| s.action == Action::Ack && s.outcome == Some(Settled::Ok)) {
        let later = message.deliveries.iter().any(|delivery| delivery.call.start_ns > ack.end_ns());
        if later || ack.receipt.deliveries < last {
            found.add(format!("{} was delivered after its ack as {} was answered", message.id, ack.receipt));
        }
        if message.dead.is_some() {
            found.add(format!("{} is dead though its ack was answered", message.id));
        }
    }
}

/// Whether a call may have purged a message: one that was there then and was not seen later.
fn may_purge(case: &Case<'_>, call: &Call, message: &Message<'_>) -> bool {
    let of_dead = match call.request {
        Request::Purge { .. } => false,
        Request::DlqPurge { .. } => true,
        _ => return false,
    };
    let end_ns = match call.answer() {
        Some((_, Response::Refused(refusal))) if !refusal.stored_unknown => return false,
        Some((end_ns, Response::Purged { .. })) => end_ns,
        _ => u64::MAX,
    };
    message.first_try_ns() < end_ns
        && message.deliveries.iter().all(|delivery| delivery.call.start_ns <= end_ns)
        && (!of_dead || may_be_dead(case, message))
}

fn may_be_dead(case: &Case<'_>, message: &Message<'_>) -> bool {
    let seen = message.deliveries.last().map_or(0, |last| last.delivered.deliveries);
    // What was lost between nodes leaves no call to count.
    let unseen = if case.history.lossy { u32::MAX } else { case.queue.lost.len() as u32 };
    case.queue.may_be_dead_after(message, seen.saturating_add(unseen))
}

/// Dead letters do not expire.
fn may_expire(case: &Case<'_>, message: &Message<'_>) -> bool {
    message.can_expire(case.queue.plan) && !case.queue.plan.dead_letter_expired
}
