//! Depth is never exceeded, and nothing is refused for it while there is room.

use super::{Case, Found};
use crate::facts::{Action, Message};
use crate::history::Call;
use overtake_wire::message::{ErrorCode, Request, Response, Settled};

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let depths = depths(case);
    let (Some(most), Some(least)) = (depths.iter().max(), depths.iter().min()) else { return };
    for call in &case.queue.calls {
        match call.answer() {
            Some((_, Response::Stats(stats))) => {
                let depth: u64 = stats.visible.iter().chain(&stats.delayed).chain(&stats.leased).sum();
                // The auditor takes the limit away before it looks.
                if depth > *most && case.history.calls_before_end(call) && is_one_moment(case, call) {
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

/// What several shards told is true of one moment only where nothing came between. What a redrive brings back over
/// several shards is accounted for by each shard alone, and can exceed the depth: a fault that is known.
fn is_one_moment(case: &Case<'_>, stats: &Call) -> bool {
    let end_ns = stats.answer().map_or(u64::MAX, |(end_ns, _)| end_ns);
    let overlaps = |call: &&&Call| {
        matches!(call.request, Request::Enqueue { .. })
            && call.start_ns <= end_ns
            && call.answer().is_none_or(|(answered_ns, _)| answered_ns >= stats.start_ns)
    };
    case.queue.plan.shards == 1
        || !case.queue.redriven && !case.queue.calls.iter().any(|call| overlaps(&call))
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
    let overlaps = |other: &&&Call| {
        other.start_ns <= end_ns && other.answer().is_none_or(|(answered_ns, _)| answered_ns >= call.start_ns)
    };
    let not_stored: usize = case.queue.calls.iter().filter(overlaps).map(|other| not_stored(other)).sum();
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
    let gone = |settle: &crate::facts::Settle<'_>| {
        settle.action == Action::Ack && settle.outcome == Some(Settled::Ok) && settle.end_ns() < call.start_ns
    };
    message.tries.iter().any(|attempt| attempt.call.start_ns <= end_ns) && !message.settles.iter().any(gone)
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
