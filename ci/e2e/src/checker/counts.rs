//! The rules that concern counts: they add up, they never go down, and at the end they fit what was answered.

use super::{Message, Violation};
use crate::history::{Call, Counts, End, What};
use std::collections::BTreeMap;

pub(super) fn check(
    history: &[Call],
    messages: &BTreeMap<String, Message<'_>>,
    end: &End,
    found: &mut Vec<Violation>,
) {
    let mut looks: Vec<(u64, u64, Counts)> = history
        .iter()
        .filter_map(|call| match &call.what {
            What::Stats(counts) => Some((call.start_ms, call.end_ms, *counts)),
            _ => None,
        })
        .collect();
    looks.push((u64::MAX, u64::MAX, end.counts));
    for (_, _, counts) in &looks {
        check_conserved(counts, found);
    }
    for (_, earlier_end_ms, earlier) in &looks {
        for (later_start_ms, _, later) in &looks {
            if earlier_end_ms < later_start_ms {
                check_never_down(earlier, later, found);
            }
        }
    }
    check_end(messages, end, found);
}

fn check_conserved(counts: &Counts, found: &mut Vec<Violation>) {
    let there = counts.visible + counts.delayed + counts.leased + counts.dlq;
    let gone = counts.acked + counts.cancelled + counts.purged + counts.expired;
    if counts.enqueued != there + gone {
        found.push(Violation::Counts(format!("not conserved: {counts:?}")));
    }
}

fn check_never_down(earlier: &Counts, later: &Counts, found: &mut Vec<Violation>) {
    let totals = |c: &Counts| [c.enqueued, c.acked, c.cancelled, c.purged, c.expired, c.deliveries];
    if totals(earlier).iter().zip(totals(later)).any(|(before, after)| *before > after) {
        found.push(Violation::Counts(format!("a total went down: {earlier:?}, then {later:?}")));
    }
}

/// Each count lies between what was certainly done and what may have been done.
fn check_end(messages: &BTreeMap<String, Message<'_>>, end: &End, found: &mut Vec<Violation>) {
    let how_many = |test: &dyn Fn(&str, &Message<'_>) -> bool| {
        messages.iter().filter(|(id, message)| test(id, message)).count() as u64
    };
    let stored = how_many(&|id, m| m.named || m.accepted(id).is_some() || !m.deliveries.is_empty());
    let may_be_stored = how_many(&|_, m| m.may_exist());
    let acked = how_many(&|_, m| m.acks(crate::history::SettleOutcome::Ok).next().is_some());
    let may_be_acked = how_many(&|_, m| m.may_be_acked());
    let cancelled = how_many(&|_, m| m.cancels.iter().any(|c| c.value == Some(true)));
    let may_be_cancelled = how_many(&|_, m| m.cancels.iter().any(|c| c.value != Some(false)));
    let may_be_expired = how_many(&|_, m| m.enqueues.iter().any(|e| e.value.expires_in_ms.is_some()));
    let delivered: u64 = messages.values().map(|m| m.deliveries.len() as u64).sum();
    let counts = &end.counts;
    for (name, count, low, high) in [
        ("enqueued", counts.enqueued, stored, may_be_stored),
        ("acked", counts.acked, acked, may_be_acked),
        ("cancelled", counts.cancelled, cancelled, may_be_cancelled),
        ("expired", counts.expired, 0, may_be_expired),
        ("purged", counts.purged, 0, 0),
        ("deliveries", counts.deliveries, delivered, u64::MAX),
        ("dead letters", counts.dlq, end.dead.len() as u64, end.dead.len() as u64),
        (
            "visible, delayed and leased",
            counts.visible + counts.delayed + counts.leased,
            end.live.len() as u64,
            end.live.len() as u64,
        ),
    ] {
        if !(low..=high).contains(&count) {
            found.push(Violation::Counts(format!("{name} is {count}, not {low}..={high}")));
        }
    }
}
