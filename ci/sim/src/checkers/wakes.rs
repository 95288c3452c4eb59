//! A receive does not come back with nothing while something that it may take is visible, and one that waits wakes.

use super::{Case, Found};
use crate::history::Call;
use crate::stays::{DUE_MS, Stay, stays};
use overtake_wire::message::{Receive, Request, Response};

const NANOS_PER_MS: u64 = 1_000_000;
/// How long before a receive that does not wait something must have been visible, in milliseconds.
const SETTLED_MS: u64 = 200;
/// How long before the end of a wait something must have been visible, in milliseconds.
const WOKEN_MS: u64 = 500;

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    // A cap holds back what is visible.
    if case.queue.plan.capped {
        return;
    }
    let stays = stays(case);
    for call in &case.queue.calls {
        let Request::Receive(receive) = &call.request else { continue };
        let Some((end_ns, Response::Received { messages })) = call.answer() else { continue };
        if messages.is_empty()
            && let Some(stay) = stays.iter().find(|stay| is_missed(case, call, receive, end_ns, stay))
        {
            found.add(format!(
                "{} ({}, level {}) was visible from {} to {}, but {receive:?} from {} to {} came back with nothing",
                stay.id,
                stay.receipt,
                stay.level,
                stay.due,
                stay.to,
                case.clocks.low(call.start_ns),
                case.clocks.high(end_ns)
            ));
        }
    }
}

fn is_missed(case: &Case<'_>, call: &Call, receive: &Receive, end_ns: u64, stay: &Stay) -> bool {
    let before_ns = if receive.wait_s == 0 {
        call.start_ns.saturating_sub(SETTLED_MS * NANOS_PER_MS)
    } else {
        end_ns.saturating_sub(WOKEN_MS * NANOS_PER_MS)
    };
    let known = stay.known_ns <= before_ns || stay.due.plus_ms(DUE_MS) < case.clocks.low(before_ns);
    receive.max_priority.is_none_or(|ceiling| u32::from(stay.level) <= ceiling)
        && known
        && case.clocks.high(end_ns) < stay.to
        && case.history.was_well(before_ns.saturating_sub(2 * DUE_MS * NANOS_PER_MS), end_ns)
}
