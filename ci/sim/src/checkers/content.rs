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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;
    use overtake_wire::message::{Delay, Redrive, RedriveSelection, Request};

    /// A message of level 0 is enqueued at 2 s. Dead letters are brought back at level 1 at 3 s, and at 4 s it comes at level 1,
    /// so many deliveries on. The queue allows 1,000 of them, until it is deleted perhaps.
    fn told(deliveries: u32, deleted_ms: Option<u64>) -> usize {
        let queue = || String::from("queue-0");
        let mut sample = Sample::allowing(1_000);
        let message = sample.enqueue(2_000, 0, Delay::None);
        let redrive = Redrive {
            queue: queue(),
            selection: RedriveSelection::All,
            priority: Some(1),
            max_per_s: None,
            dry_run: false,
        };
        sample.ask(3_000, Request::DlqRedrive(redrive), Response::Redriven { moved: 1 });
        sample.receive_moved(4_000, message, 1, deliveries);
        if let Some(ms) = deleted_ms {
            sample.ask(ms, Request::DeleteQueue { queue: queue() }, Response::Done);
        }
        let mut found = Found { checker: "content", queue: queue(), violations: Vec::new() };
        sample.show(1, |case| check(case, &mut found));
        found.violations.len()
    }

    #[test]
    fn a_level_changes_by_a_redrive_only_of_what_may_have_died() {
        assert_eq!(told(1_001, None), 0, "it died of as many as are allowed");
        assert_eq!(told(6, None), 1, "no message died of so few");
    }

    #[test]
    fn a_queue_made_anew_allows_as_many_deliveries_as_any() {
        assert_eq!(told(6, Some(1_000)), 0, "it is of a queue that was made anew");
        assert_eq!(told(5, Some(1_000)), 1, "no message of that died of so few");
        assert_eq!(told(6, Some(3_500)), 1, "it is of the queue that was deleted");
    }
}
