//! Rates hold: what a tenant may enqueue a second, and what a queue may deliver a second.

use super::{Case, Found};
use crate::clocks::Clocks;
use crate::ending::DRAIN_LEASE_S;
use crate::history::History;
use crate::swarm::Swarm;
use overtake_base::queue_config::RateCaps;
use overtake_wire::message::{Request, Response};

/// Five in a hundred more than the rate are allowed.
const MORE_PERCENT: u64 = 105;
const NANOS_PER_MS: u64 = 1_000_000;

/// Something that a rate counts.
struct Counted {
    from_ns: u64,
    to_ns: u64,
    count: u64,
}

/// The tenant's rate over all queues.
pub(super) fn check_tenant(plan: &Swarm, history: &History, clocks: &Clocks, found: &mut Found) {
    let Some(per_s) = plan.shape.enqueue_per_s else { return };
    let stored = history.calls.iter().filter_map(|call| match call.answer() {
        Some((to_ns, Response::Enqueued { results })) => {
            let stored = results.iter().flatten().filter(|enqueued| !enqueued.duplicate);
            Some(Counted { from_ns: call.start_ns, to_ns, count: stored.count() as u64 })
        }
        _ => None,
    });
    check_windows(stored.collect(), per_s, plan.messages.batch_max, clocks, found);
}

/// The queue's cap.
pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    if !case.queue.plan.capped {
        return;
    }
    let caps = |caps: &Option<Option<RateCaps>>| caps.as_ref()?.as_ref()?.queue;
    let planned = case.queue.plan.patch.as_ref().and_then(|patch| caps(&patch.rate_caps));
    let changed = case.queue.calls.iter().filter_map(|call| match &call.request {
        Request::PutQueue { patch, .. } => caps(&patch.rate_caps),
        _ => None,
    });
    let Some(per_s) = planned.into_iter().chain(changed).max() else { return };
    let received = case.queue.calls.iter().filter_map(|call| match (&call.request, call.answer()) {
        (Request::Receive(receive), Some((to_ns, Response::Received { messages })))
            if receive.lease_s != Some(DRAIN_LEASE_S) =>
        {
            Some(Counted { from_ns: call.start_ns, to_ns, count: messages.len() as u64 })
        }
        _ => None,
    });
    check_windows(received.collect(), per_s, 1, case.clocks, found);
}

/// Looks at every window from the beginning of one to the end of another. A bucket holds a second's worth, and a batch
/// that is larger goes in one piece; buckets start full with the node.
fn check_windows(mut counted: Vec<Counted>, per_s: u64, batch_max: u64, clocks: &Clocks, found: &mut Found) {
    let bucket = per_s.max(batch_max) + 2;
    counted.retain(|counted| counted.count > 0);
    counted.sort_by_key(|counted| counted.to_ns);
    for first in &counted {
        let mut sum = 0;
        for one in counted.iter().filter(|one| one.from_ns >= first.from_ns) {
            sum += one.count;
            let ms = (one.to_ns - first.from_ns) / NANOS_PER_MS + 1;
            let buckets = 1 + clocks.starts_between(first.from_ns, one.to_ns);
            let most = per_s * ms * MORE_PERCENT / 100_000 + bucket * buckets;
            if sum > most {
                found.add(format!("{sum} in {ms} ms, {per_s} a second are allowed"));
                return;
            }
        }
    }
}
