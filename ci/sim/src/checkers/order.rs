//! Most urgent first, first in first out within a level, what comes back in its old place. Exact on one shard; over
//! several shards each shard's lanes are in order, and nothing is passed over for long by what is two levels less
//! urgent, unless that was owed to a share.

use super::{Case, Found};
use crate::facts::Delivery;
use crate::history::Call;
use crate::stays::{Stay, stays};
use overtake_base::queue_config::Scheduling;
use overtake_base::{Receipt, Sequence, ShardId, UnixMillis};
use std::collections::BTreeMap;

/// How long something two levels more urgent may have been visible, in milliseconds.
const BOUND_MS: u64 = 100;
/// Ways between cores, and a receive under way, in milliseconds.
const SLACK_MS: u64 = 30;

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let stays = stays(case);
    let visible_from: BTreeMap<Receipt, UnixMillis> =
        stays.iter().map(|stay| (stay.receipt, stay.from)).collect();
    let mut pulled = Pulled::new();
    for delivery in case.queue.messages.values().flat_map(|message| &message.deliveries) {
        let receipt = delivery.delivered.receipt;
        pulled.entry((std::ptr::from_ref(delivery.call), receipt.shard)).or_default().push(Pull {
            level: delivery.delivered.priority,
            sequence: receipt.sequence,
            visible_from: visible_from.get(&receipt).copied(),
            leased_at: delivery.leased_at,
        });
    }
    let deliveries = case.queue.messages.values().flat_map(|message| &message.deliveries);
    for delivery in deliveries {
        check_share(case, delivery, found);
        for stay in stays.iter().filter(|stay| stay.id != delivery.delivered.id && may_take(delivery, stay)) {
            if let Some(why) = passed_over(case, &pulled, delivery, stay) {
                found.add(format!(
                    "{} ({}, level {}) was leased at {} though {} ({}, level {}) was visible from {} to {}: {why}",
                    delivery.delivered.id,
                    delivery.delivered.receipt,
                    delivery.delivered.priority,
                    delivery.leased_at,
                    stay.id,
                    stay.receipt,
                    stay.level,
                    stay.from,
                    stay.to
                ));
            }
        }
    }
    check_responses(case, found);
}

/// What a receive got of a shard.
type Pulled = BTreeMap<(*const Call, ShardId), Vec<Pull>>;

struct Pull {
    level: u8,
    sequence: Sequence,
    /// None where that is not certain.
    visible_from: Option<UnixMillis>,
    leased_at: UnixMillis,
}

fn may_take(delivery: &Delivery<'_>, stay: &Stay) -> bool {
    delivery.receive.max_priority.is_none_or(|ceiling| u32::from(stay.level) <= ceiling)
}

fn check_share(case: &Case<'_>, delivery: &Delivery<'_>, found: &mut Found) {
    let takes_no_part =
        case.queue.plan.scheduling == Scheduling::Strict || delivery.receive.max_priority.is_some();
    if delivery.delivered.share && (takes_no_part || delivery.delivered.priority == 0) {
        found.add(format!("{} is marked as a share's, which it cannot be", delivery.delivered.receipt));
    }
}

fn passed_over(
    case: &Case<'_>,
    pulled: &Pulled,
    delivery: &Delivery<'_>,
    stay: &Stay,
) -> Option<&'static str> {
    let delivered = delivery.delivered;
    let at = delivery.leased_at;
    let same_shard = stay.receipt.shard == delivered.receipt.shard;
    let while_visible = stay.from < at && at < stay.to;
    if same_shard
        && while_visible
        && stay.level == delivered.priority
        && stay.receipt.sequence < delivered.receipt.sequence
    {
        return Some("first in, first out");
    }
    // What a cap holds back is not passed over, and age may go before level.
    if delivered.share || case.queue.plan.capped || case.queue.plan.scheduling == Scheduling::Aging {
        return None;
    }
    if case.queue.plan.shards == 1 && while_visible && stay.level < delivered.priority {
        return Some("most urgent first");
    }
    // Clocks of several cores differ for a while after the wall clock was moved; those of several nodes always do.
    let slack_ms = SLACK_MS + case.clocks.spread_ms;
    let long_visible = (!case.clocks.disturbed || case.history.lossy)
        && stay.known_ns != u64::MAX
        && case.clocks.high(stay.known_ns).plus_ms(BOUND_MS + slack_ms) < at
        && at.plus_ms(slack_ms) < stay.to;
    let well = case.history.was_well(stay.known_ns, delivery.end_ns);
    // Another receive has asked the shard for it, and took less in the end: until it is answered it has a claim.
    let claimed = || {
        let others = case.queue.messages.values().flat_map(|message| &message.deliveries);
        let mut others = others.filter(|other| !std::ptr::eq(other.call, delivery.call));
        others.any(|other| {
            let asked = other.call.start_ns < delivery.call.start_ns && other.end_ns > delivery.call.start_ns;
            asked && other.leased_at.0 <= at.0 + slack_ms && may_take(other, stay)
        })
    };
    // The same receive brought it, in front of this one, from a shard that took longer; or it asked the shard for it at the
    // same time, but something that goes before it had just come there; or a receive that asked the shard later was served
    // there before it, because it needed less that had to be read from the disk first.
    let came_before = |pull: &Pull| {
        let just_came = pull.visible_from.is_none_or(|from| at < from.plus_ms(BOUND_MS + slack_ms));
        let same_lane = pull.level == stay.level && pull.sequence < stay.receipt.sequence;
        let came_too_late = pull.level == stay.level && pull.leased_at >= stay.to;
        pull.sequence == stay.receipt.sequence
            || pull.level < stay.level
            || same_lane && just_came
            || came_too_late
    };
    let asked_for = pulled
        .get(&(std::ptr::from_ref(delivery.call), stay.receipt.shard))
        .is_some_and(|pulls| pulls.iter().any(came_before));
    (stay.level + 2 <= delivered.priority && long_visible && well && !asked_for && !claimed())
        .then_some("two levels more urgent for over 100 ms")
}

/// Within one response: by level, and within a level and shard by sequence.
fn check_responses(case: &Case<'_>, found: &mut Found) {
    let mut all: Vec<&Delivery<'_>> =
        case.queue.messages.values().flat_map(|message| &message.deliveries).collect();
    all.sort_by_key(|delivery| (delivery.call.start_ns, std::ptr::from_ref(delivery.call), delivery.place));
    for pair in all.windows(2).filter(|pair| std::ptr::eq(pair[0].call, pair[1].call)) {
        let (one, other) = (pair[0].delivered, pair[1].delivered);
        let back = one.receipt.shard == other.receipt.shard && one.receipt.sequence >= other.receipt.sequence;
        if one.priority > other.priority || (one.priority == other.priority && back) {
            found.add(format!("one response gave {} before {}", one.receipt, other.receipt));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Got, Sample};
    use overtake_wire::message::Delay;

    fn found(sample: &Sample, shards: u16) -> Vec<String> {
        let mut found = Found { checker: "order", queue: "queue-0".into(), violations: Vec::new() };
        sample.show(shards, |case| check(case, &mut found));
        found.violations.into_iter().map(|violation| violation.detail).collect()
    }

    /// On one shard level 0 is due at 5000 ms and leased at 8000 ms; level 1 is leased meanwhile, and level 4 comes.
    fn of_what_is_due(leased_ms: u64, comes_ms: u64) -> usize {
        let mut sample = Sample::default();
        let urgent = sample.enqueue(1_000, 0, Delay::At(UnixMillis(5_000)));
        let less_urgent = sample.enqueue(1_000, 1, Delay::None);
        let last = sample.enqueue(comes_ms, 4, Delay::None);
        sample.receive(leased_ms, leased_ms + 10, &[(less_urgent, 0, 1, leased_ms)]);
        sample.receive(8_000, 8_010, &[(urgent, 0, 2, 8_000), (last, 0, 3, 8_000)]);
        found(&sample, 1).len()
    }

    #[test]
    fn what_is_due_may_come_late_but_goes_first_once_it_has_its_sequence() {
        assert_eq!(of_what_is_due(5_060, 5_080), 0);
        assert_eq!(of_what_is_due(5_081, 5_080), 1, "something came after it");
        assert_eq!(of_what_is_due(6_000, 7_000), 0);
        assert_eq!(of_what_is_due(6_001, 7_000), 1, "a second has passed");
    }

    /// Of several shards: level 0 is visible on shard 3 from 1000 ms until another receive leases it at 2551 ms. A receive
    /// from 2413 to 2576 ms takes level 3 from shard 14 at 2422 ms, and from shard 3 what is told: level and when.
    fn of_a_receive(from_its_shard: Option<(u32, u64)>) -> Vec<String> {
        let mut sample = Sample::default();
        let urgent = sample.enqueue(1_000, 0, Delay::None);
        let less_urgent = sample.enqueue(1_000, 3, Delay::None);
        let mut got: Vec<Got> = vec![(less_urgent, 14, 10, 2_422)];
        if let Some((level, leased_ms)) = from_its_shard {
            let more = sample.enqueue(1_001, level, Delay::None);
            got.insert(0, (more, 3, 10, leased_ms));
        }
        sample.receive(2_413, 2_576, &got);
        sample.receive(2_551, 2_570, &[(urgent, 3, 9, 2_551)]);
        found(&sample, 16)
    }

    #[test]
    fn what_a_receive_asked_for_another_may_get_where_a_shard_takes_longer() {
        assert!(of_a_receive(Some((0, 2_570))).is_empty());
        let passed_over = |from_its_shard| {
            let found = of_a_receive(from_its_shard);
            found.iter().any(|text| text.ends_with("two levels more urgent for over 100 ms"))
        };
        assert!(passed_over(None), "it did not ask the shard");
        assert!(passed_over(Some((1, 2_570))), "it did not ask the shard for that level");
        assert!(passed_over(Some((0, 2_430))), "the shard did not take longer");
    }
}
