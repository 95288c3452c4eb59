//! Receives that may have leased what nobody saw: nobody knows what became of them, or what they got was taken back.

use crate::history::{Call, History};
use overtake_wire::message::{Receive, Request, Response};

const NANOS_PER_S: u64 = 1_000_000_000;
/// What a receive leased has come to it, or was taken back, within this after its end, in nanoseconds.
const SOON_NS: u64 = 2 * NANOS_PER_S;
/// The same where anything was held up meanwhile.
const LATE_NS: u64 = 60 * NANOS_PER_S;

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub struct LostReceive<'a> {
    /// What was asked for.
    pub receive: &'a Receive,
    from_ns: u64,
    to_ns: u64,
    /// What it leased may have stayed so until the lease ran out, and counts then.
    may_count: bool,
}

impl LostReceive<'_> {
    /// Whether it may have held a message of a level at some time within these.
    #[must_use]
    pub fn may_hold(&self, level: u8, from_ns: u64, to_ns: u64) -> bool {
        self.receive.max_priority.is_none_or(|ceiling| u32::from(level) <= ceiling)
            && self.from_ns <= to_ns
            && from_ns <= self.to_ns
    }

    /// The same of a delivery that nobody saw and that was not taken back.
    #[must_use]
    pub fn may_count(&self, level: u8, from_ns: u64, to_ns: u64) -> bool {
        self.may_count && self.may_hold(level, from_ns, to_ns)
    }
}

/// Those of a queue's calls.
#[must_use]
pub fn lost_receives<'a>(history: &History, calls: &[&'a Call]) -> Vec<LostReceive<'a>> {
    let cancels: Vec<u64> = history
        .calls
        .iter()
        .filter(|call| matches!(call.request, Request::CancelReceive { .. }))
        .map(|call| call.start_ns)
        .collect();
    let lost = |call: &&'a Call| {
        let call: &'a Call = call;
        let Request::Receive(receive) = &call.request else { return None };
        let end_ns = match call.answer() {
            None => call.start_ns + u64::from(receive.wait_s) * NANOS_PER_S,
            Some((end_ns, Response::Received { messages })) if messages.is_empty() => {
                let cancelled = cancels.iter().any(|at_ns| (call.start_ns..=end_ns).contains(at_ns));
                // Messages for who reads too slowly go back.
                if !cancelled && !history.little_room {
                    return None;
                }
                end_ns
            }
            // Its shard did not answer.
            Some((end_ns, Response::Refused(_))) => end_ns,
            Some(_) => return None,
        };
        let well = history.was_well(call.start_ns, end_ns + SOON_NS);
        // An answer that nobody was there to take counts always; what is taken back does only where that failed.
        let may_count = call.answer().is_none() || !well;
        let to_ns = end_ns + if well { SOON_NS } else { LATE_NS };
        Some(LostReceive { receive, from_ns: call.start_ns, to_ns, may_count })
    };
    calls.iter().filter_map(lost).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Outage, Outcome};

    fn call(request: Request, start_ns: u64, outcome: Outcome) -> Call {
        Call { queue: 0, node: 0, start_ns, request, numbers: Vec::new(), outcome }
    }

    fn receive(max_priority: Option<u32>, wait_s: u32) -> Request {
        Request::Receive(Receive { max_priority, wait_s, ..Receive::new("queue") })
    }

    fn empty(at_ns: u64) -> Outcome {
        Outcome::Answered(at_ns, Response::Received { messages: Vec::new() })
    }

    #[test]
    fn only_what_may_have_held_a_message_then_is_an_excuse() {
        let s = NANOS_PER_S;
        let history = History {
            calls: vec![
                call(receive(Some(1), 3), 10 * s, Outcome::Lost),
                call(receive(None, 0), 10 * s, empty(11 * s)),
            ],
            ..History::default()
        };
        let calls: Vec<&Call> = history.calls.iter().collect();
        let lost = lost_receives(&history, &calls);
        assert_eq!(lost.len(), 1, "one that was answered in peace took nothing");
        let holds = |from_s: u64, to_s: u64| lost[0].may_hold(0, from_s * s, to_s * s);
        assert!(holds(0, 10) && holds(15, 90) && holds(0, 90));
        assert!(!holds(0, 9) && !holds(16, 90));
        assert!(lost[0].may_count(1, 12 * s, 12 * s) && !lost[0].may_count(2, 12 * s, 12 * s));
    }

    #[test]
    fn what_was_taken_back_counts_only_where_something_was_held_up() {
        let s = NANOS_PER_S;
        let cancelled = |outages| {
            let cancel = Request::CancelReceive { request: 1 };
            let calls = vec![
                call(receive(None, 9), 10 * s, empty(12 * s)),
                call(cancel, 11 * s, Outcome::Lost),
                call(receive(None, 9), 20 * s, empty(29 * s)),
            ];
            History { calls, outages, ..History::default() }
        };
        let counts = |history: &History| {
            let calls: Vec<&Call> = history.calls.iter().collect();
            let lost = lost_receives(history, &calls);
            assert_eq!(lost.len(), 1);
            assert!(lost[0].may_hold(0, 12 * s, 12 * s));
            (lost[0].may_count(0, 12 * s, 12 * s), lost[0].may_hold(0, 30 * s, 30 * s))
        };
        assert_eq!(counts(&cancelled(Vec::new())), (false, false));
        let hang = Outage { from_ns: 13 * s, to_ns: 18 * s };
        assert_eq!(counts(&cancelled(vec![hang])), (true, true));
    }
}
