//! Depth is never exceeded, and nothing is refused for it while there is room.

use super::{Case, Found};
use crate::facts::{Action, Message};
use crate::history::Call;
use overtake_wire::message::{ErrorCode, Request, Response, Settled, Stats};

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let depths = depths(case);
    let (Some(most), Some(least)) = (depths.iter().max(), depths.iter().min()) else { return };
    for call in &case.queue.calls {
        match call.answer() {
            Some((_, Response::Stats(stats))) => {
                let depth: u64 = stats.visible.iter().chain(&stats.delayed).chain(&stats.leased).sum();
                // The auditor takes the limit away before it looks.
                if depth > *most + came_meanwhile(case, call, stats) && case.history.calls_before_end(call) {
                    found.add(format!("{depth} messages in a queue of at most {most}"));
                }
            }
            Some((end_ns, Response::Enqueued { results })) => {
                let refused = |code| move |r: &&Result<_, overtake_wire::message::Refusal>| matches!(r, Err(e) if e.code == code);
                if results.iter().any(|r| refused(ErrorCode::Depth)(&r)) {
                    check_refused(case, call, end_ns, *least, found);
                }
            }
            _ => {}
        }
    }
}

/// What several shards told is true of one moment only where nothing came between: what was enqueued or brought back
/// from the dead meanwhile may be where room was only made after that was counted.
fn came_meanwhile(case: &Case<'_>, call: &Call, stats: &Stats) -> u64 {
    if case.queue.plan.shards == 1 {
        return 0;
    }
    let end_ns = call.answer().map_or(u64::MAX, |(end_ns, _)| end_ns);
    let enqueued = case.queue.calls.iter().filter_map(|other| match &other.request {
        Request::Enqueue { messages, .. } if overlaps(other, call.start_ns, end_ns) => {
            Some(messages.len() as u64)
        }
        _ => None,
    });
    let redriven_before = case.queue.calls.iter().filter_map(|other| match other.answer() {
        Some((before_ns, Response::Stats(before))) if before_ns <= call.start_ns => {
            Some(before.totals.redriven)
        }
        _ => None,
    });
    let redriven = stats.totals.redriven.saturating_sub(redriven_before.max().unwrap_or(0));
    enqueued.sum::<u64>() + redriven
}

/// Whether a call may have done something between two times.
fn overlaps(call: &Call, from_ns: u64, to_ns: u64) -> bool {
    call.start_ns <= to_ns && call.answer().is_none_or(|(answered_ns, _)| answered_ns >= from_ns)
}

/// Every depth that was ever configured or asked for.
fn depths(case: &Case<'_>) -> Vec<u64> {
    let Some(planned) = case.queue.plan.max_depth else { return Vec::new() };
    let changed = case.queue.calls.iter().filter_map(|call| match &call.request {
        Request::PutQueue { patch, .. } => patch.max_depth.flatten(),
        _ => None,
    });
    core::iter::once(planned).chain(changed).collect()
}

/// At least so many messages as fit can have been there.
fn check_refused(case: &Case<'_>, call: &Call, end_ns: u64, least: u64, found: &mut Found) {
    let there = case.queue.messages.values().filter(|message| may_be_there(message, call, end_ns));
    let there = (there.count() + case.queue.reborn.len()) as u64;
    // What nobody ever saw or was told of may be there too.
    let unknown: u64 = case.queue.calls.iter().map(|other| unknown_messages(other, end_ns)).sum();
    // Over several shards a message is let in before its shard finds it to be a repeat, or its disk to be full: until then it
    // takes room, and what comes after it does not wait for that.
    let others = case
        .queue
        .calls
        .iter()
        .filter(|other| case.queue.plan.shards > 1 && overlaps(other, call.start_ns, end_ns));
    let not_stored: usize = others.map(|other| not_stored(other)).sum();
    if there + unknown + (not_stored as u64) < least {
        found.add(format!(
            "refused for depth from {} to {end_ns} ns, though {there} messages at most were there and {least} fit",
            call.start_ns
        ));
    }
}

/// Messages that were let in and not stored.
fn not_stored(call: &Call) -> usize {
    let Some((_, Response::Enqueued { results })) = call.answer() else { return 0 };
    let none = results.iter().filter(|result| match result {
        Ok(enqueued) => enqueued.duplicate,
        Err(refusal) => refusal.code == ErrorCode::Disk,
    });
    none.count()
}

fn may_be_there(message: &Message<'_>, call: &Call, end_ns: u64) -> bool {
    let acked = message.settles.iter().any(|settle| {
        settle.action == Action::Ack && settle.outcome == Some(Settled::Ok) && settle.end_ns() < call.start_ns
    });
    let cancelled = message.cancels.iter().any(|(cancel, done)| {
        *done == Some(true) && cancel.answer().is_some_and(|(answered_ns, _)| answered_ns < call.start_ns)
    });
    message.first_try_ns() <= end_ns && !acked && !cancelled
}

fn unknown_messages(call: &Call, end_ns: u64) -> u64 {
    match (&call.request, call.answer()) {
        (Request::Enqueue { messages, .. }, None) if call.start_ns <= end_ns => messages.len() as u64,
        (Request::Enqueue { messages, .. }, Some((_, Response::Refused(refusal))))
            if refusal.stored_unknown =>
        {
            messages.len() as u64
        }
        (_, Some((_, Response::Enqueued { results }))) => {
            results.iter().filter(|result| matches!(result, Err(refusal) if refusal.stored_unknown)).count()
                as u64
        }
        _ => 0,
    }
}
