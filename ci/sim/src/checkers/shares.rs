//! Reserve and floor, counted where everything that is visible is known: while a queue on one shard is drained at the end,
//! by one client, with nothing else going on. And in strict mode, the whole drain in order.

use super::{Case, Found};
use crate::ending::DRAIN_LEASE_S;
use overtake_base::queue_config::Scheduling;
use overtake_wire::message::{Delivered, Request, Response};

/// Credit that may be left from before, and a step of rounding, in deliveries.
const SLACK: u64 = 2;

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let plan = case.queue.plan;
    let Some(end) = case.queue.end else { return };
    if plan.shards > 1 || plan.capped {
        return;
    }
    if plan.scheduling == Scheduling::Strict {
        let place = |message: &Delivered| (message.priority, message.receipt.sequence);
        if !end.drained.is_sorted_by_key(place) {
            found.add("a strict queue was not drained in order".into());
        }
        return;
    }
    let responses = case.queue.calls.iter().filter_map(|call| match (&call.request, call.answer()) {
        (Request::Receive(receive), Some((_, Response::Received { messages }))) => {
            (receive.lease_s == Some(DRAIN_LEASE_S)).then_some(messages)
        }
        _ => None,
    });
    let tail_from = plan.levels.saturating_sub(2).max(1);
    let undone = undone(case);
    let mut count = Count { left: end.quiet.visible.clone(), undone, ..Count::default() };
    for messages in responses {
        count.take(messages, tail_from);
        count.judge(case, found);
    }
}

/// Messages, at most, of leases that may have been taken back since nobody was there any more to have them: what was
/// chosen and did not come is owed again.
fn undone(case: &Case<'_>) -> u64 {
    let lost = case.queue.lost.iter().map(|lost| lost.receive);
    // Between nodes the first leases of a receive may be lost, and others come.
    let cut = case.queue.calls.iter().filter_map(|call| match (&call.request, call.answer()) {
        (Request::Receive(receive), Some((end_ns, _))) if case.history.lossy => {
            (!case.history.was_steady(call.start_ns, end_ns)).then_some(receive)
        }
        _ => None,
    });
    lost.chain(cut).map(|receive| u64::from(receive.max)).sum()
}

#[derive(Default)]
struct Count {
    left: Vec<u64>,
    /// What may be owed from before the drain.
    undone: u64,
    /// Deliveries while levels 1.. had work all the time, and how many of those went to them.
    with_lower: u64,
    to_lower: u64,
    lower_lasts: bool,
    /// The same of the two least urgent levels.
    with_tail: u64,
    to_tail: u64,
    tail_lasts: bool,
}

impl Count {
    fn take(&mut self, messages: &[Delivered], tail_from: u8) {
        for message in messages {
            if let Some(left) = self.left.get_mut(usize::from(message.priority)) {
                *left = left.saturating_sub(1);
            }
        }
        let work = |from: u8| self.left.iter().skip(usize::from(from)).sum::<u64>() > 0;
        // Once there is no more work the shares do not hold; counting just ends.
        (self.lower_lasts, self.tail_lasts) = (work(1), work(tail_from));
        let to = |from: u8| messages.iter().filter(|message| message.priority >= from).count() as u64;
        if self.lower_lasts {
            self.with_lower += messages.len() as u64;
            self.to_lower += to(1);
        }
        if self.tail_lasts {
            self.with_tail += messages.len() as u64;
            self.to_tail += to(tail_from);
        }
    }

    fn judge(&self, case: &Case<'_>, found: &mut Found) {
        let plan = case.queue.plan;
        let least = |count: u64, ppm: u32| (count * u64::from(ppm) / 1_000_000).saturating_sub(SLACK);
        if self.lower_lasts && self.to_lower < least(self.with_lower, plan.reserve_ppm) {
            found.add(format!(
                "{} of {} went to levels 1.. against the reserve",
                self.to_lower, self.with_lower
            ));
        }
        if self.tail_lasts && self.to_tail < least(self.with_tail, plan.floor_ppm) {
            found.add(format!(
                "{} of {} went to the last two levels against the floor",
                self.to_tail, self.with_tail
            ));
        }
        let most = self.with_lower * u64::from(plan.reserve_ppm.max(plan.floor_ppm)) / 1_000_000 + SLACK + 1;
        let most = most + self.undone;
        let flooded = self.left.first().is_some_and(|left| *left > 0);
        if plan.scheduling == Scheduling::Weighted && flooded && self.lower_lasts && self.to_lower > most {
            found
                .add(format!("{} of {} went past level 0, {most} were owed", self.to_lower, self.with_lower));
        }
    }
}
