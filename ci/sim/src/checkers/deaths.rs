//! A message dies after its last failed delivery, not before and not later, and says why.

use super::{Case, Found};
use crate::facts::{Action, Message};

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let max = case.queue.plan.max_deliveries;
    for message in case.queue.messages.values() {
        let last = message.deliveries.last().map_or(0, |delivery| delivery.delivered.deliveries);
        // A redriven message's attempts start anew, while its deliveries go on counting.
        if !case.queue.redriven && last > max {
            found.add(format!("{} was delivered {last} times, {max} are allowed", message.id));
        }
        check_dead(case, message, last, max, found);
    }
}

fn check_dead(case: &Case<'_>, message: &Message<'_>, last: u32, max: u32, found: &mut Found) {
    let Some(dead) = message.dead else { return };
    let expires = dead.last_error == "expired" || dead.history.iter().any(|(_, what)| what == "expired");
    if !case.queue.redriven && !expires && dead.deliveries != max {
        found.add(format!("{} died after {} deliveries, not {max}", message.id, dead.deliveries));
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
