//! Judges a history against the contract. Pure: the history goes in, violations come out.
//!
//! Everything is concluded from what clients saw, so each rule only uses orders that must hold whatever happened
//! inside the server: a call took effect at some instant between its start and its end, or, with an unknown fate, at
//! some instant after its start, or never.

use crate::history::{Action, Call, Delivery, End, Enqueue, EnqueueOutcome, Settle, SettleOutcome, What};
use std::collections::{BTreeMap, BTreeSet};

mod counts;
mod message;
#[cfg(test)]
mod tests;

/// A promise that was broken. The text is the message's id or dedup key, and what shows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Violation {
    /// Accepted, and neither there at the end nor gone for a reason that the contract has.
    Lost(String),
    /// Delivered although it was acked: after the answer, or under a later fencing number.
    AckedDelivered(String),
    /// Still there, or dead, although it was acked.
    AckedThere(String),
    /// Delivered after its cancel was answered, or still there.
    CancelledThere(String),
    /// Delivered before its time, or before the delay of its release.
    Early(String),
    /// Delivered, or there, although nothing that was asked can have stored it.
    Phantom(String),
    /// Delivered with another body than it was enqueued with.
    Corrupt(String),
    /// A receipt was accepted although a later delivery had been seen, or after its lease was ended.
    StaleAccepted(String),
    /// Two leases of one message at the same time.
    Overlap(String),
    /// A fencing number given twice, or a smaller one after a larger one.
    DeliveriesNotIncreasing(String),
    /// A dedup key or id was answered with two ids, or stored twice.
    DedupBroken(String),
    /// Delivered after its time to live.
    ExpiredDelivered(String),
    /// The counts do not add up, went down, or do not fit what was answered.
    Counts(String),
}

/// All violations of a history, sorted.
pub fn check(history: &[Call], end: &End) -> Vec<Violation> {
    let messages = gather(history);
    let ends = Ends { end, redrives: redrives(history) };
    let mut found: Vec<Violation> = Vec::new();
    for (id, message) in &messages {
        message::check(id, message, &ends, &mut found);
    }
    let asked: BTreeSet<&String> = messages.iter().filter(|(_, m)| m.may_exist()).map(|(id, _)| id).collect();
    let there = end.live.iter().chain(&end.dead);
    found.extend(
        there
            .filter(|id| !asked.contains(id))
            .map(|id| Violation::Phantom(format!("{id} is there at the end"))),
    );
    check_keys(history, &mut found);
    counts::check(history, &messages, end, &mut found);
    found.sort();
    found.dedup();
    found
}

/// What concerns one message, each list by start of the call.
#[derive(Debug, Default)]
struct Message<'a> {
    enqueues: Vec<Timed<&'a Enqueue>>,
    deliveries: Vec<Timed<&'a Delivery>>,
    settles: Vec<Timed<&'a Settle>>,
    cancels: Vec<Timed<Option<bool>>>,
    /// Another enqueue was answered that this is the first message of its key.
    named: bool,
}

/// What concerns all messages.
#[derive(Debug)]
struct Ends<'a> {
    end: &'a End,
    redrives: Vec<Timed<()>>,
}

impl Ends<'_> {
    /// Whether a message that failed as delivery `number` may have died of it and come back between these times.
    fn may_be_redriven(&self, number: u64, from_ms: u64, to_ms: u64) -> bool {
        self.last_redrive_ms(number, from_ms, to_ms).is_some()
    }

    /// End of the last call that may have brought such a message back between these times.
    fn last_redrive_ms(&self, number: u64, from_ms: u64, to_ms: u64) -> Option<u64> {
        let fits = |redrive: &&Timed<()>| redrive.start_ms <= to_ms && redrive.end_ms >= from_ms;
        let ends = self.redrives.iter().filter(fits).map(|redrive| redrive.end_ms);
        ends.max().filter(|_| number >= self.end.max_deliveries)
    }
}

/// Something with the start and end of its call.
#[derive(Clone, Copy, Debug)]
struct Timed<T> {
    start_ms: u64,
    end_ms: u64,
    value: T,
}

impl Message<'_> {
    /// First accepted enqueue that stored it, or that says it was stored.
    fn accepted(&self, id: &str) -> Option<Timed<&Enqueue>> {
        self.enqueues
            .iter()
            .copied()
            .find(|e| matches!(&e.value.outcome, EnqueueOutcome::Accepted { id: first, .. } if first == id))
    }

    /// An answer said that a key belongs to another message: whatever was tried with that key stored nothing.
    fn key_taken(&self, id: &str, key: &Option<String>) -> bool {
        key.is_some()
            && self.enqueues.iter().any(|e| {
                e.value.key == *key
                    && matches!(&e.value.outcome, EnqueueOutcome::Accepted { id: first, .. } if first != id)
            })
    }

    /// Whether anything that was asked can have stored it under its own id.
    fn may_exist(&self) -> bool {
        self.enqueues.iter().any(|e| match &e.value.outcome {
            EnqueueOutcome::Accepted { id, .. } => *id == e.value.id,
            EnqueueOutcome::Unknown => !self.key_taken(&e.value.id, &e.value.key),
            EnqueueOutcome::Refused => false,
        })
    }

    fn acks(&self, outcome: SettleOutcome) -> impl Iterator<Item = &Timed<&Settle>> {
        self.settles.iter().filter(move |s| s.value.action == Action::Ack && s.value.outcome == outcome)
    }

    fn may_be_acked(&self) -> bool {
        self.acks(SettleOutcome::Ok).chain(self.acks(SettleOutcome::Unknown)).next().is_some()
    }
}

fn redrives(history: &[Call]) -> Vec<Timed<()>> {
    history
        .iter()
        .filter_map(|call| match call.what {
            What::Redrive => Some(Timed { start_ms: call.start_ms, end_ms: call.end_ms, value: () }),
            _ => None,
        })
        .collect()
}

fn gather(history: &[Call]) -> BTreeMap<String, Message<'_>> {
    let mut messages: BTreeMap<String, Message<'_>> = BTreeMap::new();
    let mut calls: Vec<&Call> = history.iter().collect();
    calls.sort_by_key(|call| call.start_ms);
    for call in calls {
        let (start_ms, end_ms) = (call.start_ms, call.end_ms);
        match &call.what {
            What::Enqueue(value) => {
                if let EnqueueOutcome::Accepted { id, .. } = &value.outcome
                    && *id != value.id
                {
                    messages.entry(id.clone()).or_default().named = true;
                }
                let message = messages.entry(value.id.clone()).or_default();
                message.enqueues.push(Timed { start_ms, end_ms, value });
            }
            What::Receive(deliveries) => {
                for value in deliveries {
                    let message = messages.entry(value.id.clone()).or_default();
                    message.deliveries.push(Timed { start_ms, end_ms, value });
                }
            }
            What::Settle(value) => {
                let message = messages.entry(value.id.clone()).or_default();
                message.settles.push(Timed { start_ms, end_ms, value });
            }
            What::Cancel { id, cancelled } => {
                let message = messages.entry(id.clone()).or_default();
                message.cancels.push(Timed { start_ms, end_ms, value: *cancelled });
            }
            What::Redrive | What::Stats(_) => {}
        }
    }
    messages
}

/// A key is answered with one id, and stores once. Histories are shorter than the dedup window.
fn check_keys(history: &[Call], found: &mut Vec<Violation>) {
    let mut first_ids: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
    let mut stored: BTreeMap<&String, u32> = BTreeMap::new();
    for call in history {
        if let What::Enqueue(Enqueue {
            key: Some(key),
            outcome: EnqueueOutcome::Accepted { id, duplicate },
            ..
        }) = &call.what
        {
            first_ids.entry(key).or_default().insert(id);
            *stored.entry(key).or_default() += u32::from(!duplicate);
        }
    }
    for (key, ids) in first_ids.iter().filter(|(_, ids)| ids.len() > 1) {
        found.push(Violation::DedupBroken(format!("key {key} was answered with {ids:?}")));
    }
    for (key, times) in stored.iter().filter(|(_, times)| **times > 1) {
        found.push(Violation::DedupBroken(format!("key {key} was stored {times} times")));
    }
}
