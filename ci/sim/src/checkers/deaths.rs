//! A message dies after its last failed delivery, not before and not later, and says why.

use super::{Case, Found};
use crate::facts::{Action, Message};

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let max = case.queue.plan.max_deliveries;
    for message in case.queue.messages.values() {
        let last = message.deliveries.last().map_or(0, |delivery| delivery.delivered.deliveries);
        // A redriven message's attempts start anew, while its deliveries go on counting.
        let redriven =
            message.deliveries.last().is_some_and(|last| case.queue.may_be_redriven(message, last));
        if !redriven && last > max {
            found.add(format!("{} was delivered {last} times, {max} are allowed", message.id));
        }
        check_dead(case, message, last, max, found);
    }
}

fn check_dead(case: &Case<'_>, message: &Message<'_>, last: u32, max: u32, found: &mut Found) {
    let Some(dead) = message.dead else { return };
    let expires = dead.last_error == "expired" || dead.history.iter().any(|(_, what)| what == "expired");
    // Each time that it was brought back it died of as many.
    let redriven = case.queue.redriven_from_ns < u64::MAX;
    let can_expire = case.queue.plan.dead_letter_expired && message.can_expire(case.queue.plan);
    let right = match redriven {
        true => can_expire || dead.deliveries >= max && dead.deliveries.is_multiple_of(max),
        false => dead.deliveries == max,
    };
    if !expires && !right {
        found.add(format!("{} died after {} deliveries, {max} are allowed", message.id, dead.deliveries));
    }
    if expires && !case.queue.plan.dead_letter_expired {
        found.add(format!("{} died by expiry in a queue that drops what expires", message.id));
    }
    if dead.deliveries < last {
        found.add(format!("{} died after {} deliveries, but {last} were seen", message.id, dead.deliveries));
    }
    let given = message.settles.iter().any(|settle| {
        matches!(settle.action, Action::Release { error: Some(error), .. } if error == dead.last_error)
            && settle.may_be_ok()
    });
    if !given && !["lease expired", "released", "expired"].contains(&dead.last_error.as_str()) {
        found.add(format!("{} died of {:?}, which nobody said", message.id, dead.last_error));
    }
    if dead.history.is_empty() || dead.history.len() > 10 || !dead.history.is_sorted_by_key(|(at, _)| *at) {
        found.add(format!("{} died with the history {:?}", message.id, dead.history));
    }
}
