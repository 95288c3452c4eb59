//! What was accepted is not lost: at the end it is there, or gone in a way that somebody asked for. What was ended is
//! not there any more.

use super::{Case, Found};
use crate::facts::{Action, Message};
use overtake_wire::message::{Request, Settled};
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
    let purges = |dead: bool| {
        case.queue.calls.iter().any(|call| match call.request {
            Request::Purge { .. } => !dead,
            Request::DlqPurge { .. } => dead,
            _ => false,
        })
    };
    let (purged, dead_purged) = (purges(false), purges(true));
    for message in case.queue.messages.values() {
        let is_there = there.contains(&message.id);
        check_gone(message, is_there, found);
        let accepted = message.named || message.stored().is_some();
        let may_be_gone = message.settles.iter().any(|s| s.action == Action::Ack && s.may_be_ok())
            || message.cancels.iter().any(|(_, done)| *done != Some(false))
            || purged
            || dead_purged && may_be_dead(case, message)
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

fn may_be_dead(case: &Case<'_>, message: &Message<'_>) -> bool {
    case.queue.unseen
        || can_expire(case, message)
        || message.deliveries.len() >= case.queue.plan.max_deliveries as usize
}

/// Dead letters do not expire.
fn may_expire(case: &Case<'_>, message: &Message<'_>) -> bool {
    can_expire(case, message) && !case.queue.plan.dead_letter_expired
}

fn can_expire(case: &Case<'_>, message: &Message<'_>) -> bool {
    const LONGER_THAN_ANY_RUN_MS: u64 = 100_000_000;
    message.made.message.expires_in_s.is_some() || case.queue.plan.retention_ms < LONGER_THAN_ANY_RUN_MS
}
