//! Counts add up at any time, totals never go down, and at the end they fit what was found and what was answered.

use super::{Case, Found};
use crate::ending::QueueEnd;
use crate::facts::Action;
use overtake_wire::message::{Response, Settled, Stats, Totals};

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let mut before: Option<(u64, &Totals)> = None;
    for call in &case.queue.calls {
        let Some((end_ns, Response::Stats(stats))) = call.answer() else { continue };
        check_conserved(stats, found);
        if let Some((before_ns, totals)) = before
            && before_ns < call.start_ns
            && !case.queue.deleted
        {
            check_never_down(totals, &stats.totals, found);
        }
        if before.is_none_or(|(before_ns, _)| before_ns < end_ns) {
            before = Some((end_ns, &stats.totals));
        }
    }
    if let Some(end) = case.queue.end {
        check_conserved(&end.quiet, found);
        check_conserved(&end.after, found);
        check_end(end, found);
        if !case.queue.deleted {
            check_answered(case, &end.after.totals, found);
        }
    }
}

fn check_conserved(stats: &Stats, found: &mut Found) {
    let there: u64 = stats.visible.iter().chain(&stats.delayed).chain(&stats.leased).sum::<u64>() + stats.dlq;
    let totals = &stats.totals;
    let gone = totals.acked + totals.cancelled + totals.purged + totals.expired;
    if totals.enqueued != there + gone {
        found.add(format!("{} enqueued, but {there} there and {gone} gone: {stats:?}", totals.enqueued));
    }
    let by_worker: u64 = stats.workers.iter().map(|(_, leased)| leased).sum();
    if by_worker > stats.leased.iter().sum() {
        found.add(format!("workers hold {by_worker}, more than is leased"));
    }
    for (level, (visible, age)) in stats.visible.iter().zip(&stats.oldest_age_ms).enumerate() {
        if (*visible > 0) != age.is_some() {
            found.add(format!("level {level} has {visible} visible, the oldest of age {age:?}"));
        }
    }
}

/// Deliveries that reached nobody are taken back, so that their totals may go down.
fn check_never_down(before: &Totals, after: &Totals, found: &mut Found) {
    let lasting = |t: &Totals| {
        [
            t.enqueued,
            t.acked,
            t.cancelled,
            t.purged,
            t.expired,
            t.dead_lettered,
            t.redriven,
            t.lease_expirations,
            t.releases,
        ]
    };
    if lasting(before).iter().zip(lasting(after)).any(|(before, after)| *before > after) {
        found.add(format!("totals went down from {before:?} to {after:?}"));
    }
}

fn check_end(end: &QueueEnd, found: &mut Found) {
    let mut by_level = vec![0; end.quiet.visible.len()];
    for message in &end.drained {
        if let Some(count) = by_level.get_mut(usize::from(message.priority)) {
            *count += 1;
        }
    }
    let missing: u64 =
        end.quiet.visible.iter().zip(&by_level).map(|(visible, drained)| visible.abs_diff(*drained)).sum();
    // What was leased and lost in the drain may have been its last delivery, or have outlived its time; and anything may
    // have just before it was drained.
    let expired = end.after.totals.expired.saturating_sub(end.quiet.totals.expired);
    if missing > end.lost_leases + expired {
        found.add(format!("{by_level:?} were drained of {:?} visible", end.quiet.visible));
    }
    let quiet = end.quiet.leased.iter().chain(&end.quiet.delayed).sum::<u64>();
    let left = end.after.visible.iter().chain(&end.after.delayed).chain(&end.after.leased).sum::<u64>();
    if quiet + left > 0 {
        found.add(format!("{quiet} were leased or delayed at rest, {left} were left when all was acked"));
    }
    if end.after.dlq != end.dead.len() as u64 {
        found.add(format!("{} dead letters are counted, {} were listed", end.after.dlq, end.dead.len()));
    }
}

/// What was answered is counted. Nobody knows how much of unknown fate is counted besides.
fn check_answered(case: &Case<'_>, totals: &Totals, found: &mut Found) {
    let messages = case.queue.messages.values();
    let stored = messages.clone().filter(|m| m.named || m.stored().is_some()).count() as u64;
    let ok = |action: fn(&Action<'_>) -> bool| {
        let settles = case.queue.messages.values().flat_map(|message| &message.settles);
        settles.filter(|s| action(&s.action) && s.outcome == Some(Settled::Ok)).count() as u64
    };
    let acked = ok(|action| *action == Action::Ack);
    let released = ok(|action| matches!(action, Action::Release { .. }));
    let delivered: u64 = messages.clone().map(|message| message.deliveries.len() as u64).sum();
    let cancelled =
        messages.flat_map(|message| &message.cancels).filter(|(_, done)| *done == Some(true)).count() as u64;
    for (name, counted, answered) in [
        ("enqueued", totals.enqueued, stored),
        ("acked", totals.acked, acked),
        ("released", totals.releases, released),
        ("delivered", totals.deliveries, delivered),
        ("cancelled", totals.cancelled, cancelled),
    ] {
        if counted < answered {
            found.add(format!("{name}: {counted} counted, {answered} answered"));
        }
    }
    let known = |call: &&crate::history::Call| match call.answer() {
        Some((_, Response::Refused(refusal))) => !refusal.stored_unknown,
        Some((_, Response::Enqueued { results })) => {
            results.iter().all(|result| result.as_ref().err().is_none_or(|refusal| !refusal.stored_unknown))
        }
        answer => answer.is_some(),
    };
    let sure = case.queue.reborn.is_empty() && case.queue.calls.iter().all(known);
    // A lease that was lost between nodes is counted and reached nobody, which needs a disturbance; so is one that ran out
    // before it was taken back from a client that reads too slowly, or wanted it no more.
    let excess = totals.deliveries.saturating_sub(delivered);
    let begun_ns = case.queue.calls.first().map_or(0, |call| call.start_ns);
    let unseen = if case.history.lossy && !case.history.was_steady(begun_ns, u64::MAX) {
        excess
    } else {
        let lost: u64 = case.queue.lost.iter().map(|lost| u64::from(lost.receive.max)).sum();
        excess.min(totals.lease_expirations).min(lost)
    };
    let delivered = delivered + unseen;
    if sure && (totals.enqueued, totals.acked, totals.deliveries) != (stored, acked, delivered) {
        found.add(format!(
            "every answer came: {stored}, {acked}, {delivered} stored, acked, delivered; counted {totals:?}"
        ));
    }
}
