//! Nothing comes before its time, and nothing after its time to live.

use super::{Case, Found};
use crate::facts::{Action, Delivery, Message};
use overtake_base::UnixMillis;
use overtake_wire::message::{Delay, Settled};

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    for message in case.queue.messages.values() {
        check_enqueued_at(case, message, found);
        check_delay(message, found);
        check_release_delay(case, message, found);
        check_time_to_live(case, message, found);
    }
}

/// The time of its enqueue lies within a try that may have stored it, and is always the same.
fn check_enqueued_at(case: &Case<'_>, message: &Message<'_>, found: &mut Found) {
    let Some(first) = message.deliveries.first() else { return };
    let enqueued_at = first.delivered.enqueued_at;
    if message.deliveries.iter().any(|delivery| delivery.delivered.enqueued_at != enqueued_at) {
        found.add(format!("{} has several times of enqueue", message.id));
    }
    let fits = message.tries.iter().any(|attempt| {
        let high = match attempt.end_ns() {
            u64::MAX => UnixMillis::NEVER,
            end_ns => case.clocks.high(end_ns),
        };
        (case.clocks.low(attempt.call.start_ns)..=high).contains(&enqueued_at)
    });
    if !fits {
        found.add(format!("{} was enqueued at {enqueued_at}, when nobody asked for it", message.id));
    }
}

fn check_delay(message: &Message<'_>, found: &mut Found) {
    for delivery in &message.deliveries {
        let due = match message.made.message.delay {
            Delay::None => continue,
            Delay::At(at) => at,
            Delay::AfterS(s) => delivery.delivered.enqueued_at.plus_s(s),
        };
        if delivery.leased_at < due {
            found.add(format!("{} is due at {due}, but was leased at {}", message.id, delivery.leased_at));
        }
    }
}

fn check_release_delay(case: &Case<'_>, message: &Message<'_>, found: &mut Found) {
    for settle in message.settles.iter().filter(|settle| settle.outcome == Some(Settled::Ok)) {
        let Action::Release { delay_ms: Some(delay_ms), .. } = settle.action else { continue };
        let back = case.clocks.low(settle.call.start_ns).plus_ms(delay_ms);
        let next = settle.receipt.deliveries + 1;
        let next = message.deliveries.iter().find(|delivery| delivery.delivered.deliveries == next);
        // A dead letter that is redriven does not wait for a delay that it never got.
        let too_early =
            |next: &&Delivery<'_>| next.leased_at < back && !case.queue.may_be_redriven(message, next);
        if let Some(next) = next.filter(too_early) {
            found
                .add(format!("{} was given back until {back}, but leased at {}", message.id, next.leased_at));
        }
    }
}

fn check_time_to_live(case: &Case<'_>, message: &Message<'_>, found: &mut Found) {
    let made = &message.made.message;
    let ttl_ms = made.expires_in_s.map_or(case.queue.plan.retention_ms, |s| s * 1_000);
    // A redrive makes a message visible anew.
    let first = message.deliveries.iter().filter(|delivery| !case.queue.may_be_redriven(message, delivery));
    for delivery in first {
        let enqueued_at = delivery.delivered.enqueued_at;
        let visible_at_once = match made.delay {
            Delay::None | Delay::AfterS(0) => true,
            Delay::At(at) => at <= enqueued_at,
            Delay::AfterS(_) => false,
        };
        let gone = enqueued_at.plus_ms(ttl_ms);
        if visible_at_once && delivery.leased_at >= gone {
            found.add(format!("{} expired at {gone}, but was leased at {}", message.id, delivery.leased_at));
        }
    }
}
