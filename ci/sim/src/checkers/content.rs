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
    use crate::clocks::Clocks;
    use crate::facts::gather;
    use crate::history::{Call, History, Made, Outcome, content};
    use crate::swarm::Swarm;
    use overtake_base::{MessageId, Receipt, Sequence, ShardId, UnixMillis};
    use overtake_wire::message::{
        Delivered, EnqueueMessage, Enqueued, Receive, Redrive, RedriveSelection, Request,
    };

    const MS: u64 = 1_000_000;

    fn call(start_ms: u64, request: Request, response: Response) -> Call {
        let outcome = Outcome::Answered((start_ms + 10) * MS, response);
        Call { queue: 0, node: 0, start_ns: start_ms * MS, request, numbers: vec![0], outcome }
    }

    /// A message of level 0 is enqueued at 2 s. Dead letters are brought back at level 1 at 3 s, and at 4 s it comes at level 1,
    /// so many deliveries on. The queue allows 1,000 of them, until it is deleted perhaps.
    fn told(deliveries: u32, deleted_ms: Option<u64>) -> usize {
        let mut plan = Swarm::of_seed(0);
        plan.queues[0].max_deliveries = 1_000;
        plan.queues[0].dead_letter_expired = false;
        let queue = || String::from("queue-0");
        let (headers, body) = content(0, 8, false, false);
        let message = EnqueueMessage { headers, body, ..EnqueueMessage::default() };
        let id = MessageId::new(2_000, 7);
        let delivered = Delivered {
            id,
            priority: 1,
            receipt: Receipt { shard: ShardId(0), sequence: Sequence(9), deliveries },
            deliveries,
            enqueued_at: UnixMillis(2_000),
            lease_expires_at: UnixMillis(9_000),
            headers: message.headers.clone(),
            share: false,
            body: message.body.clone(),
        };
        let redrive = Redrive {
            queue: queue(),
            selection: RedriveSelection::All,
            priority: Some(1),
            max_per_s: None,
            dry_run: false,
        };
        let enqueue = Request::Enqueue { queue: queue(), messages: vec![message.clone()] };
        let stored = vec![Ok(Enqueued { id, shard: 0, duplicate: false })];
        let receive = Request::Receive(Receive::new(queue()));
        let mut calls = vec![
            call(2_000, enqueue, Response::Enqueued { results: stored }),
            call(3_000, Request::DlqRedrive(redrive), Response::Redriven { moved: 1 }),
            call(4_000, receive, Response::Received { messages: vec![delivered] }),
        ];
        calls.extend(deleted_ms.map(|ms| call(ms, Request::DeleteQueue { queue: queue() }, Response::Done)));
        calls.sort_by_key(|call| call.start_ns);
        let history = History { calls, made: vec![Made { queue: 0, message }], ..History::default() };
        let clocks = Clocks::default();
        let facts = gather(&plan, &history, &clocks, None);
        let case = Case { queue: &facts[0], plan: &plan, history: &history, clocks: &clocks };
        let mut found = Found { checker: "content", queue: queue(), violations: Vec::new() };
        check(&case, &mut found);
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
