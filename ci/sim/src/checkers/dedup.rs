//! A key or an id is accepted once within its window, an id also while its message lives, and repeats are answered with
//! the first id.

use super::{Case, Found};
use crate::facts::{Delivery, Message, Try};
use crate::history::Call;
use overtake_base::ShardId;
use overtake_wire::message::{Request, Response};
use std::collections::BTreeMap;

pub(super) fn check(case: &Case<'_>, found: &mut Found) {
    let window_ms = case.queue.plan.dedup_window_ms;
    let mut by_key: BTreeMap<&[u8], Vec<&Message<'_>>> = BTreeMap::new();
    for message in case.queue.messages.values().chain(&case.queue.reborn) {
        check_once(case, message, window_ms, found);
        check_one_life(message, found);
        if let Some(Some(key)) = message.stored_key() {
            by_key.entry(key).or_default().push(message);
        }
    }
    if window_ms > 0 {
        by_key.iter().for_each(|(key, messages)| check_key(case, key, messages, window_ms, found));
    }
    check_answers(case, found);
    case.queue.calls.iter().for_each(|call| check_window_over(case, call, found));
}

/// One id is stored once while its window lasts.
fn check_once(case: &Case<'_>, message: &Message<'_>, window_ms: u64, found: &mut Found) {
    let stored: Vec<_> = message
        .tries
        .iter()
        .filter(|attempt| matches!(attempt.outcome, Some(Ok(e)) if !e.duplicate && e.id == message.id))
        .collect();
    for (at, one) in stored.iter().enumerate() {
        for other in &stored[at + 1..] {
            let (Some((one_ns, _)), Some((other_ns, _))) = (one.call.answer(), other.call.answer()) else {
                continue;
            };
            let last = case.clocks.high(one_ns.max(other_ns)).0;
            let first = case.clocks.low(one.call.start_ns.min(other.call.start_ns)).0;
            if last - first < window_ms {
                found.add(format!("{} was stored twice within its window", message.id));
            }
        }
    }
}

/// Never are there two messages of one id: between two deliveries of one of them there is no delivery of the other, nor
/// was one stored.
fn check_one_life(message: &Message<'_>, found: &mut Found) {
    let place =
        |delivery: &Delivery<'_>| (delivery.delivered.receipt.shard, delivery.delivered.receipt.sequence);
    let mut lives: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for delivery in &message.deliveries {
        let life = lives.entry(place(delivery)).or_insert((delivery.end_ns, delivery.call.start_ns));
        *life = (life.0.min(delivery.end_ns), life.1.max(delivery.call.start_ns));
    }
    for (life, (from_ns, to_ns)) in &lives {
        let within = |start_ns: u64, end_ns: u64| start_ns > *from_ns && end_ns < *to_ns;
        let others = message.deliveries.iter().filter(|delivery| place(delivery) != *life);
        let again = message
            .tries
            .iter()
            .filter(|attempt| matches!(attempt.outcome, Some(Ok(e)) if !e.duplicate && e.id == message.id));
        let answered_ns = |attempt: &Try<'_>| attempt.call.answer().map_or(u64::MAX, |(end_ns, _)| end_ns);
        if others.into_iter().any(|other| within(other.call.start_ns, other.end_ns))
            || again.into_iter().any(|attempt| within(attempt.call.start_ns, answered_ns(attempt)))
        {
            found.add(format!("{} was there twice, one of them as {life:?}", message.id));
        }
    }
}

/// Messages of one key that were stored are a window apart. Where both were seen, to the millisecond.
fn check_key(case: &Case<'_>, key: &[u8], messages: &[&Message<'_>], window_ms: u64, found: &mut Found) {
    let times = |message: &&Message<'_>| {
        if let Some(seen) = message.deliveries.first() {
            let at = seen.delivered.enqueued_at.0;
            return Some((at, at, Some(seen.delivered.receipt.shard)));
        }
        let stored = message.stored()?;
        let (end_ns, _) = stored.call.answer()?;
        Some((case.clocks.low(stored.call.start_ns).0, case.clocks.high(end_ns).0, None))
    };
    // Once the wall clock was moved the times of two shards may differ by anything.
    let comparable = |one: &Option<ShardId>, other: &Option<ShardId>| {
        !case.clocks.disturbed || one.is_none() || other.is_none() || one == other
    };
    let stored: Vec<_> = messages.iter().filter_map(|message| Some((message.id, times(message)?))).collect();
    for (at, (one, (one_low, one_high, one_shard))) in stored.iter().enumerate() {
        for (other, (other_low, other_high, other_shard)) in &stored[at + 1..] {
            let apart_ms = one_high.max(other_high) - one_low.min(other_low);
            if one != other && apart_ms < window_ms && comparable(one_shard, other_shard) {
                found.add(format!(
                    "{one} and {other} were both stored under {:?}, at most {apart_ms} ms apart",
                    String::from_utf8_lossy(key)
                ));
            }
        }
    }
}

/// A key's window is not made longer by repeats: after it nothing is called a repeat.
fn check_window_over(case: &Case<'_>, call: &Call, found: &mut Found) {
    let (Request::Enqueue { messages, .. }, Some((_, Response::Enqueued { results }))) =
        (&call.request, call.answer())
    else {
        return;
    };
    let asked = case.clocks.low(call.start_ns);
    for (message, answer) in messages.iter().zip(results) {
        // An id is also known while its message lives.
        let Some(answer) = answer.as_ref().ok().filter(|a| a.duplicate && message.id != Some(a.id)) else {
            continue;
        };
        let stored = case.queue.messages.get(&answer.id).and_then(|first| first.stored());
        let Some((end_ns, _)) = stored.and_then(|stored| stored.call.answer()) else { continue };
        let over = case.clocks.high(end_ns).plus_ms(case.queue.plan.dedup_window_ms);
        if asked > over {
            found.add(format!(
                "asked at {asked}, key {:?} was called a repeat of {}, whose window ended at {over}",
                message.dedup_key.as_ref().map(|key| String::from_utf8_lossy(key)),
                answer.id
            ));
        }
    }
}

/// A repeat is answered with an id of its own or of its key.
fn check_answers(case: &Case<'_>, found: &mut Found) {
    for message in case.queue.messages.values() {
        for attempt in &message.tries {
            let Some(Ok(answer)) = attempt.outcome else { continue };
            let own = message.made.message.id;
            if !answer.duplicate && own.is_some_and(|own| own != answer.id) {
                found.add(format!("{own:?} was stored as {}", answer.id));
            }
            let first = case.queue.messages.get(&answer.id);
            let same_key = first.is_some_and(|first| {
                attempt.key.is_some() && first.tries.iter().any(|other| other.key == attempt.key)
            });
            // A first message that nobody saw or named otherwise may be one of unknown fate.
            if answer.duplicate && own != Some(answer.id) && !same_key && first.is_some() {
                found.add(format!("message {} is no repeat of {}", message.number, answer.id));
            }
            // A repeat claims nothing.
            let stored_key = first.and_then(Message::stored_key);
            if answer.duplicate && own != Some(answer.id) && stored_key.is_some_and(|key| key != attempt.key)
            {
                found
                    .add(format!("{} was not stored under the key of message {}", answer.id, message.number));
            }
            if answer.duplicate && case.queue.plan.dedup_window_ms == 0 && own != Some(answer.id) {
                found.add(format!("message {} was called a repeat, but keys are off", message.number));
            }
        }
    }
}
