//! Receives wait in one line on each node: nobody who came clearly later is served something that an earlier one still waits
//! for. Where the leader of a shard changes, waiters line up anew at whoever leads then.
//!
//! Who is called may be given something else than what it was called for: the most urgent message that there is when its
//! lease is recorded. One that became visible meanwhile is no reason to go back into the line, although somebody before it
//! waits for just that level.

use super::{Case, Found};
use crate::facts::Delivery;
use crate::history::Call;
use crate::stays::stays;
use overtake_wire::message::{Receive, Request, Response};

const NANOS_PER_MS: u64 = 1_000_000;
/// Who comes later than this comes later, and what takes less was under way, in milliseconds.
const CLEARLY_MS: u64 = 300;
const CLEARLY_NS: u64 = CLEARLY_MS * NANOS_PER_MS;
const NANOS_PER_S: u64 = 1_000_000_000;

/// A receive that was answered.
struct Answered<'a> {
    call: &'a Call,
    receive: &'a Receive,
    end_ns: u64,
    /// Of its first message, where it got any.
    level: Option<u8>,
}

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let receives: Vec<Answered<'_>> = case
        .queue
        .calls
        .iter()
        .filter_map(|call| match (&call.request, call.answer()) {
            (Request::Receive(receive), Some((end_ns, Response::Received { messages }))) => {
                let level = messages.first().map(|message| message.priority);
                Some(Answered { call, receive, end_ns, level })
            }
            _ => None,
        })
        .collect();
    for later in &receives {
        let Some(level) = later.level else { continue };
        let passed = receives.iter().find(|earlier| {
            let waits_until_ns = earlier.call.start_ns + u64::from(earlier.receive.wait_s) * NANOS_PER_S;
            earlier.receive.wait_s > 0
                && earlier.call.node == later.call.node
                && earlier.call.start_ns + CLEARLY_NS < later.call.start_ns
                && later.end_ns + CLEARLY_NS < earlier.end_ns.min(waits_until_ns)
                && earlier.receive.max_priority.is_none_or(|ceiling| u32::from(level) <= ceiling)
                && case.history.was_steady(earlier.call.start_ns, later.end_ns + CLEARLY_NS)
                && !was_called_for_less(case, earlier, later)
        });
        if let Some(Answered { call, receive, end_ns, .. }) = passed {
            found.add(format!(
                "a receive from {} to {} ns got level {level}, while {receive:?} waited from {} to {end_ns} ns",
                later.call.start_ns, later.end_ns, call.start_ns
            ));
        }
    }
}

/// Whether the later receive may have been called for something that the earlier one does not take, before what it got
/// became visible.
fn was_called_for_less(case: &Case<'_>, earlier: &Answered<'_>, later: &Answered<'_>) -> bool {
    let takes_less_urgent = earlier.receive.max_priority.is_some_and(|ceiling| {
        later.receive.max_priority.is_none_or(|later_ceiling| later_ceiling > ceiling)
    });
    let is_first = |delivery: &&Delivery<'_>| std::ptr::eq(delivery.call, later.call) && delivery.place == 0;
    let mut deliveries = case.queue.messages.values().flat_map(|message| &message.deliveries);
    takes_less_urgent
        && deliveries.find(is_first).is_none_or(|first| {
            // Without a stay it is not certain since when it was visible.
            let visible = stays(case).into_iter().find(|stay| stay.receipt == first.delivered.receipt);
            visible.is_none_or(|stay| first.leased_at < stay.from.plus_ms(CLEARLY_MS))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clocks::Clocks;
    use crate::facts::gather;
    use crate::history::{History, Made, Outcome, content};
    use crate::swarm::Swarm;
    use overtake_base::{MessageId, Receipt, Sequence, ShardId, UnixMillis};
    use overtake_wire::message::{Delivered, EnqueueMessage, Enqueued};

    const MS: u64 = NANOS_PER_MS;
    const LEASE_S: u32 = 7;

    /// The earlier receive waits from 1 s to 9 s; the later one comes at 2 s and is given the only message, of level 1.
    /// When it became visible, and when it was leased; ceilings of both.
    fn told(visible_ms: u64, leased_ms: u64, earlier: Option<u32>, later: Option<u32>) -> usize {
        let plan = Swarm::of_seed(0);
        let (headers, body) = content(0, 8, false, false);
        let message = EnqueueMessage { priority: 1, headers, body, ..EnqueueMessage::default() };
        let id = MessageId::new(visible_ms, 7);
        let receipt = Receipt { shard: ShardId(0), sequence: Sequence(1), deliveries: 1 };
        let delivered = Delivered {
            id,
            priority: 1,
            receipt,
            deliveries: 1,
            enqueued_at: UnixMillis(visible_ms),
            lease_expires_at: UnixMillis(leased_ms + u64::from(LEASE_S) * 1_000),
            headers: message.headers.clone(),
            share: false,
            body: message.body.clone(),
        };
        let call = |start_ms: u64, request, end_ms: u64, response| Call {
            queue: 0,
            node: 0,
            start_ns: start_ms * MS,
            request,
            numbers: vec![0],
            outcome: Outcome::Answered(end_ms * MS, response),
        };
        let receive = |max_priority| {
            let receive = Receive::new("queue-0");
            Request::Receive(Receive { wait_s: 20, lease_s: Some(LEASE_S), max_priority, ..receive })
        };
        let enqueue = Request::Enqueue { queue: "queue-0".into(), messages: vec![message.clone()] };
        let enqueued = Enqueued { id, shard: 0, duplicate: false };
        let stored = Response::Enqueued { results: vec![Ok(enqueued)] };
        let history = History {
            calls: vec![
                call(1_000, receive(earlier), 9_000, Response::Received { messages: Vec::new() }),
                call(2_000, receive(later), leased_ms + 10, Response::Received { messages: vec![delivered] }),
                call(visible_ms, enqueue, visible_ms + 10, stored),
            ],
            made: vec![Made { queue: 0, message }],
            ..History::default()
        };
        let mut clocks = Clocks::default();
        clocks.started(0, UnixMillis(0));
        let facts = gather(&plan, &history, &clocks, None);
        let case = Case { queue: &facts[0], plan: &plan, history: &history, clocks: &clocks };
        let mut found = Found { checker: "line", queue: "queue-0".into(), violations: Vec::new() };
        check(&case, &mut found);
        found.violations.len()
    }

    #[test]
    fn nobody_is_passed_by_who_came_later() {
        for ceiling in [None, Some(1), Some(3)] {
            assert_eq!(told(3_000, 3_010, ceiling, ceiling), 1, "both wait for the same");
            assert_eq!(
                told(3_000, 3_010, ceiling, Some(1)),
                1,
                "the later one takes no more than the earlier one"
            );
        }
        assert_eq!(told(3_000, 3_010, Some(0), None), 0, "it does not wait for that level");
        assert_eq!(told(3_000, 8_900, None, None), 0, "it was about to be answered too");
    }

    #[test]
    fn who_was_called_for_a_less_urgent_message_may_get_one_that_just_came() {
        for later in [None, Some(2), Some(4)] {
            assert_eq!(told(3_000, 3_299, Some(1), later), 0);
            assert_eq!(told(3_000, 3_300, Some(1), later), 1, "it has been visible for long");
        }
    }
}
