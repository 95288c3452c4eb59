//! Nothing comes out that was not put in: each delivered, dead or shown message has the content, id and level that it was
//! made with, and something that was asked can have stored it.

use super::{Case, Found};
use crate::facts::Message;
use overtake_wire::message::{PeekedMessage, Response};

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    case.queue.strangers.iter().for_each(|stranger| found.add(stranger.clone()));
    for message in case.queue.messages.values().chain(&case.queue.reborn) {
        let seen = !message.deliveries.is_empty() || message.dead.is_some();
        if seen && !message.may_be_stored() {
            found.add(format!("{} is there, but nothing that was asked can have stored it", message.id));
        }
        check_level(case, message, found);
    }
    for call in &case.queue.calls {
        if let Some((_, Response::Peeked { messages, .. })) = call.answer() {
            messages.iter().for_each(|shown| check_shown(case, shown, found));
        }
    }
}

/// A redrive may give another level.
fn check_level(case: &Case<'_>, message: &Message<'_>, found: &mut Found) {
    let first = message.deliveries.iter().filter(|delivery| !case.queue.may_be_redriven(message, delivery));
    let dead = message.dead.filter(|dead| {
        case.queue.redriven_from_ns == u64::MAX
            || !case.queue.may_be_dead_after(message, dead.deliveries.saturating_sub(1))
    });
    let levels = first.map(|delivery| delivery.delivered.priority).chain(dead.map(|dead| dead.priority));
    for level in levels {
        if u32::from(level) != message.made.message.priority {
            found.add(format!("{} came at level {level}, not {}", message.id, message.made.message.priority));
        }
    }
}

fn check_shown(case: &Case<'_>, shown: &PeekedMessage, found: &mut Found) {
    let number = crate::history::identify(shown.id, &shown.headers, &shown.body);
    let made = number.and_then(|number| case.history.made.get(number as usize)).map(|made| &made.message);
    if made.is_none_or(|made| made.body != shown.body || made.headers != shown.headers) {
        found.add(format!("a peek showed {}, which was never made like that", shown.id));
    }
}
