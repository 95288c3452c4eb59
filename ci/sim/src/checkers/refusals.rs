//! Nothing is refused without a reason: each code only where the run gives cause for it. Above all, a full disk refuses
//! what makes messages, and nothing else.

use super::{Case, Found};
use crate::history::Call;
use overtake_wire::message::{ErrorCode, Refusal, Request, Response};

/// How long what is over may still be a cause, in nanoseconds.
const NOTICED_NS: u64 = 2_000_000_000;

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    for call in &case.queue.calls {
        let refusals: Vec<&Refusal> = match call.answer() {
            Some((_, Response::Refused(refusal))) => vec![refusal],
            Some((_, Response::Enqueued { results })) => {
                results.iter().filter_map(|result| result.as_ref().err()).collect()
            }
            _ => continue,
        };
        for refusal in refusals {
            if !has_cause(case, call, refusal.code) {
                let request = crate::tale::short(&call.request);
                found.add(format!("refused without cause: {refusal:?} to {request}"));
            }
        }
    }
}

fn has_cause(case: &Case<'_>, call: &Call, code: ErrorCode) -> bool {
    let (plan, request) = (case.queue.plan, &call.request);
    // What was full or away may be noticed a while later.
    let disturbed = || {
        let end_ns = call.answer().map_or(u64::MAX, |(end_ns, _)| end_ns);
        !case.history.was_steady(call.start_ns.saturating_sub(NOTICED_NS), end_ns)
    };
    let enqueues = matches!(request, Request::Enqueue { .. });
    match code {
        ErrorCode::Depth => enqueues && plan.max_depth.is_some(),
        ErrorCode::Bytes => enqueues && plan.max_bytes.is_some(),
        ErrorCode::Rate => enqueues && case.plan.shape.enqueue_per_s.is_some(),
        ErrorCode::Disk => enqueues && case.plan.faults.disk_full_ms > 0 && disturbed(),
        // A queue that is made by its first enqueue is not there before, one that was deleted is not there any more;
        // and messages come and go.
        ErrorCode::NotFound => {
            plan.patch.is_none()
                || plan.deletable
                || matches!(request, Request::Cancel { .. } | Request::Inspect { .. })
        }
        ErrorCode::Conflict => {
            matches!(request, Request::Cancel { .. })
                || matches!(request, Request::PutQueue { .. }) && (plan.patch.is_none() || plan.deletable)
        }
        // A shard takes so many bytes at once.
        ErrorCode::NoQuorum if enqueues && case.plan.messages.huge_bodies_ppm > 0 => true,
        ErrorCode::NoQuorum | ErrorCode::Stopping => disturbed(),
        // An update may come after another has made the queue anew, with other levels.
        ErrorCode::Invalid => plan.deletable || plan.patch.is_none(),
        ErrorCode::Unauthorized | ErrorCode::Forbidden | ErrorCode::TooLarge | ErrorCode::Internal => false,
    }
}
