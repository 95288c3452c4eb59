//! Receives wait in one line on each node: nobody who came clearly later is served something that an earlier one still waits
//! for. Where the leader of a shard changes, waiters line up anew at whoever leads then.

use super::{Case, Found};
use crate::history::Call;
use overtake_wire::message::{Receive, Request, Response};

const NANOS_PER_MS: u64 = 1_000_000;
/// Who comes later than this comes later, and what takes less was under way, in nanoseconds.
const CLEARLY_NS: u64 = 300 * NANOS_PER_MS;
const NANOS_PER_S: u64 = 1_000_000_000;

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let receives: Vec<(&Call, &Receive, u64, u8)> = case
        .queue
        .calls
        .iter()
        .filter_map(|call| match (&call.request, call.answer()) {
            (Request::Receive(receive), Some((end_ns, Response::Received { messages }))) => {
                let level = messages.first().map_or(u8::MAX, |message| message.priority);
                Some((*call, receive, end_ns, level))
            }
            _ => None,
        })
        .collect();
    for (later, _, later_end_ns, level) in receives.iter().filter(|(.., level)| *level < u8::MAX) {
        let passed = receives.iter().find(|(earlier, receive, end_ns, _)| {
            let waits_until_ns = earlier.start_ns + u64::from(receive.wait_s) * NANOS_PER_S;
            receive.wait_s > 0
                && earlier.node == later.node
                && earlier.start_ns + CLEARLY_NS < later.start_ns
                && later_end_ns + CLEARLY_NS < (*end_ns).min(waits_until_ns)
                && receive.max_priority.is_none_or(|ceiling| u32::from(*level) <= ceiling)
                && case.history.was_steady(earlier.start_ns, later_end_ns + CLEARLY_NS)
        });
        if let Some((earlier, receive, end_ns, _)) = passed {
            found.add(format!(
                "a receive from {} to {later_end_ns} ns got level {level}, while {receive:?} waited from {} to {end_ns} ns",
                later.start_ns, earlier.start_ns
            ));
        }
    }
}
