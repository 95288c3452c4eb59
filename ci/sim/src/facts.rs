//! A history sorted by queue and message, as checkers need it. Nothing is judged here.

use crate::clocks::Clocks;
use crate::ending::{End, QueueEnd};
use crate::history::{Call, History, Made, Number, identify};
use crate::lost::{LostReceive, lost_receives};
use crate::swarm::{QueuePlan, Swarm};
use bytes::Bytes;
use overtake_base::limits::MAX_DELIVERIES_DEFAULT;
use overtake_base::{MessageId, Receipt, UnixMillis};
use overtake_wire::message::{
    DeadLetter, Delivered, Enqueued, Headers, Receive, Refusal, Request, Response, Settled,
};
use std::collections::BTreeMap;

/// Everything about one queue.
pub struct QueueFacts<'a> {
    /// What it was made as.
    pub plan: &'a QueuePlan,
    /// All calls about it.
    pub calls: Vec<&'a Call>,
    /// Every message that was stored, delivered or named, by id.
    pub messages: BTreeMap<MessageId, Message<'a>>,
    /// Ids that can have been stored more than once, which is right after their windows: as many messages as one id.
    pub reborn: Vec<Message<'a>>,
    /// Contents that name no message that was ever made for this queue.
    pub strangers: Vec<String>,
    /// Receives that may have leased what nobody saw.
    pub lost: Vec<LostReceive<'a>>,
    /// It was deleted, or may have been.
    pub deleted: bool,
    /// From which virtual time on it may have been deleted, and made anew by whoever enqueued next.
    pub deleted_from_ns: u64,
    /// From which virtual time on dead letters may have been brought back.
    pub redriven_from_ns: u64,
    /// What was left, if the run came to its end and the queue was there.
    pub end: Option<&'a QueueEnd>,
}

impl QueueFacts<'_> {
    /// Whether this delivery may be of a message that was brought back from the dead: that gives it a new place, perhaps
    /// another level, and new attempts.
    pub fn may_be_redriven(&self, message: &Message<'_>, delivery: &Delivery<'_>) -> bool {
        self.redriven_from_ns < delivery.end_ns
            && self.may_be_dead_after(message, delivery.delivered.deliveries.saturating_sub(1))
    }

    /// Whether a message may be dead after so many deliveries: after as many as are allowed, or at the end of its time.
    pub fn may_be_dead_after(&self, message: &Message<'_>, deliveries: u32) -> bool {
        deliveries >= self.plan.max_deliveries
            || self.may_be_of_later_life(message) && deliveries >= MAX_DELIVERIES_DEFAULT
            || self.plan.dead_letter_expired && message.can_expire(self.plan)
    }

    /// Whether a message may be of a queue that was made anew after this one was deleted: by an enqueue or an update,
    /// neither of which says what the plan does.
    fn may_be_of_later_life(&self, message: &Message<'_>) -> bool {
        message.may_have_stored().any(|attempt| attempt.end_ns() > self.deleted_from_ns)
    }
}

/// Everything about one message.
pub struct Message<'a> {
    pub id: MessageId,
    pub number: Number,
    pub made: &'a Made,
    /// Attempts to store its content, in the order sent.
    pub tries: Vec<Try<'a>>,
    /// Some repeat was answered with its id.
    pub named: bool,
    /// By deliveries.
    pub deliveries: Vec<Delivery<'a>>,
    /// In the order sent.
    pub settles: Vec<Settle<'a>>,
    /// Cancels: the call, and whether it was answered that it is done (none: nobody knows).
    pub cancels: Vec<(&'a Call, Option<bool>)>,
    /// As a dead letter at the end.
    pub dead: Option<&'a DeadLetter>,
}

/// One attempt to store a content.
#[derive(Clone, Copy)]
pub struct Try<'a> {
    pub call: &'a Call,
    /// The dedup key of this attempt: the same id may be sent with several.
    pub key: Option<&'a Bytes>,
    /// None: nobody knows.
    pub outcome: Option<Result<Enqueued, &'a Refusal>>,
}

impl Try<'_> {
    /// When it had taken effect at the latest, if it did; never, where nobody knows whether it did.
    pub fn end_ns(&self) -> u64 {
        match self.outcome {
            None => u64::MAX,
            Some(Err(refusal)) if refusal.stored_unknown => u64::MAX,
            Some(_) => self.call.answer().map_or(u64::MAX, |(end_ns, _)| end_ns),
        }
    }
}

/// One delivery.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    pub call: &'a Call,
    pub receive: &'a Receive,
    /// Its place in the response.
    pub place: usize,
    pub end_ns: u64,
    pub delivered: &'a Delivered,
    /// Shard time of the lease.
    pub leased_at: UnixMillis,
}

/// What was to become of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    Ack,
    Extend { lease_ms: u64 },
    Release { delay_ms: Option<u64>, error: Option<&'a str> },
}

/// One receipt of one settle request.
#[derive(Clone, Copy)]
pub struct Settle<'a> {
    pub call: &'a Call,
    pub receipt: Receipt,
    pub action: Action<'a>,
    /// None: nobody knows.
    pub outcome: Option<Settled>,
}

impl Settle<'_> {
    /// It may have been accepted.
    pub fn may_be_ok(&self) -> bool {
        self.outcome.is_none_or(|outcome| outcome == Settled::Ok)
    }

    /// When it had taken effect at the latest, if it did; never, where nobody knows whether it did.
    pub fn end_ns(&self) -> u64 {
        self.outcome.and_then(|_| self.call.answer()).map_or(u64::MAX, |(end_ns, _)| end_ns)
    }
}

impl Message<'_> {
    /// The try that stored it, where that was answered.
    pub fn stored(&self) -> Option<&Try<'_>> {
        self.tries.iter().find(|t| matches!(t.outcome, Some(Ok(e)) if !e.duplicate && e.id == self.id))
    }

    /// Some try may have stored it.
    pub fn may_be_stored(&self) -> bool {
        self.tries.iter().any(|attempt| match attempt.outcome {
            None => true,
            Some(Ok(enqueued)) => enqueued.id == self.id,
            Some(Err(refusal)) => refusal.stored_unknown,
        })
    }

    /// Tries each of which may be the one that stored it.
    fn may_have_stored(&self) -> impl Iterator<Item = &Try<'_>> {
        self.tries.iter().filter(|attempt| match attempt.outcome {
            None => true,
            Some(Ok(enqueued)) => !enqueued.duplicate && enqueued.id == self.id,
            Some(Err(refusal)) => refusal.stored_unknown,
        })
    }

    /// The key that it was stored under, where that is certain: the key, or that it has none.
    pub fn stored_key(&self) -> Option<Option<&Bytes>> {
        let mut keys = self.may_have_stored().map(|attempt| attempt.key);
        let first = keys.next()?;
        keys.all(|key| key == first).then_some(first)
    }

    /// Two tries may both have stored it, a window apart.
    fn may_be_reborn(&self, window_ms: u64, clocks: &Clocks) -> bool {
        let tries: Vec<_> = self.may_have_stored().collect();
        // The one that was sent first may be the one that came last.
        let after = |first: &Try<'_>, last: &Try<'_>| {
            let end = match last.end_ns() {
                u64::MAX => UnixMillis::NEVER,
                end_ns => clocks.high(end_ns),
            };
            end.since(clocks.low(first.call.start_ns)) >= window_ms
        };
        let pairs = tries.iter().flat_map(|first| tries.iter().map(move |last| (first, last)));
        pairs.into_iter().any(|(first, last)| !std::ptr::eq(*first, *last) && after(first, last))
    }

    /// Settles of its delivery `deliveries`.
    pub fn settles_of(&self, deliveries: u32) -> impl Iterator<Item = &Settle<'_>> {
        self.settles.iter().filter(move |settle| settle.receipt.deliveries == deliveries)
    }

    /// It may have been acked: where nobody knows, not by a receipt that a later delivery was seen after.
    pub fn may_be_acked(&self) -> bool {
        let last = self.deliveries.last().map_or(0, |delivery| delivery.delivered.deliveries);
        self.settles.iter().any(|settle| {
            settle.action == Action::Ack && settle.may_be_ok() && settle.receipt.deliveries >= last
        })
    }

    /// When the first request was sent that may have stored it.
    pub fn first_try_ns(&self) -> u64 {
        self.tries.iter().map(|attempt| attempt.call.start_ns).min().unwrap_or(0)
    }

    /// Its time may be over within a run.
    pub fn can_expire(&self, plan: &QueuePlan) -> bool {
        const LONGER_THAN_ANY_RUN_MS: u64 = 100_000_000;
        self.made.message.expires_in_s.is_some() || plan.retention_ms < LONGER_THAN_ANY_RUN_MS
    }
}

/// Sorts a history.
#[must_use]
pub fn gather<'a>(
    plan: &'a Swarm,
    history: &'a History,
    clocks: &'a Clocks,
    end: Option<&'a End>,
) -> Vec<QueueFacts<'a>> {
    (0..plan.queues.len())
        .map(|queue| {
            let calls: Vec<&Call> = history.calls.iter().filter(|call| call.queue == queue).collect();
            let end = end.and_then(|end| end.queues[queue].as_ref());
            Gatherer::new(&plan.queues[queue], queue, history, clocks, calls).gather(end)
        })
        .collect()
}

struct Gatherer<'a> {
    queue: usize,
    history: &'a History,
    clocks: &'a Clocks,
    facts: QueueFacts<'a>,
    tries: BTreeMap<Number, Vec<Try<'a>>>,
    receipts: BTreeMap<Receipt, MessageId>,
}

impl<'a> Gatherer<'a> {
    fn new(
        plan: &'a QueuePlan,
        queue: usize,
        history: &'a History,
        clocks: &'a Clocks,
        calls: Vec<&'a Call>,
    ) -> Self {
        let gone = |call: &&&Call| match (&call.request, call.answer()) {
            (Request::DeleteQueue { .. }, Some((_, Response::Refused(refusal)))) => refusal.stored_unknown,
            (Request::DeleteQueue { .. }, Some((_, response))) => matches!(response, Response::Done),
            (Request::DeleteQueue { .. }, None) => true,
            _ => false,
        };
        let first_start = |some: &mut dyn Iterator<Item = &&'a Call>| {
            some.map(|call| call.start_ns).min().unwrap_or(u64::MAX)
        };
        let redriven =
            |call: &&&Call| matches!(&call.request, Request::DlqRedrive(redrive) if !redrive.dry_run);
        let facts = QueueFacts {
            plan,
            messages: BTreeMap::new(),
            reborn: Vec::new(),
            strangers: Vec::new(),
            lost: lost_receives(history, &calls),
            deleted: calls.iter().any(|call| gone(&call)),
            deleted_from_ns: first_start(&mut calls.iter().filter(gone)),
            redriven_from_ns: first_start(&mut calls.iter().filter(redriven)),
            end: None,
            calls,
        };
        Self { queue, history, clocks, facts, tries: BTreeMap::new(), receipts: BTreeMap::new() }
    }

    fn gather(mut self, end: Option<&'a QueueEnd>) -> QueueFacts<'a> {
        let calls = self.facts.calls.clone();
        calls.iter().for_each(|call| self.take_enqueue(call));
        calls.iter().for_each(|call| self.take_named(call));
        calls.iter().for_each(|call| self.take_received(call));
        calls.iter().for_each(|call| self.take_settled(call));
        calls.iter().for_each(|call| self.take_cancel(call));
        for dead in end.iter().flat_map(|end| &end.dead) {
            if let Some(message) = self.message(dead.id, &dead.headers, &dead.body) {
                message.dead = Some(dead);
            }
        }
        for message in self.facts.messages.values_mut() {
            message.deliveries.sort_by_key(|delivery| (delivery.delivered.deliveries, delivery.end_ns));
        }
        self.facts.end = end;
        self.set_reborn_aside();
        self.facts
    }

    fn set_reborn_aside(&mut self) {
        let window_ms = self.facts.plan.dedup_window_ms;
        let clocks = self.clocks;
        let all = core::mem::take(&mut self.facts.messages);
        let (reborn, once): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, message)| message.may_be_reborn(window_ms, clocks));
        self.facts.reborn = reborn.into_iter().map(|(_, message)| message).collect();
        self.facts.messages = once.into_iter().collect();
    }

    fn take_enqueue(&mut self, call: &'a Call) {
        let Request::Enqueue { messages, .. } = &call.request else { return };
        for (place, (number, message)) in call.numbers.iter().zip(messages).enumerate() {
            let outcome = match call.answer() {
                None => None,
                Some((_, Response::Enqueued { results })) => Some(results[place].as_ref().copied()),
                Some((_, Response::Refused(refusal))) => Some(Err(refusal)),
                Some(_) => None,
            };
            let key = message.dedup_key.as_ref();
            self.tries.entry(*number).or_default().push(Try { call, key, outcome });
        }
    }

    /// Messages whose ids were answered.
    fn take_named(&mut self, call: &'a Call) {
        let Some((_, Response::Enqueued { results })) = call.answer() else { return };
        for (number, enqueued) in
            call.numbers.iter().zip(results).filter_map(|(n, r)| Some((n, r.as_ref().ok()?)))
        {
            if !enqueued.duplicate {
                self.by_number(*number, enqueued.id);
            }
        }
        for enqueued in results.iter().flatten().filter(|enqueued| enqueued.duplicate) {
            if let Some(number) = identify(enqueued.id, &Headers::new(), &[]) {
                self.by_number(number, enqueued.id);
            }
            if let Some(message) = self.facts.messages.get_mut(&enqueued.id) {
                message.named = true;
            }
        }
    }

    fn take_received(&mut self, call: &'a Call) {
        let Request::Receive(receive) = &call.request else { return };
        let Some((end_ns, Response::Received { messages })) = call.answer() else { return };
        for (place, delivered) in messages.iter().enumerate() {
            let lease_s = receive.lease_s.unwrap_or(self.facts.plan.lease_s);
            let leased_at =
                UnixMillis(delivered.lease_expires_at.0.saturating_sub(u64::from(lease_s) * 1_000));
            let delivery = Delivery { call, receive, place, end_ns, delivered, leased_at };
            let id = delivered.id;
            if let Some(message) = self.message(id, &delivered.headers, &delivered.body) {
                message.deliveries.push(delivery);
                self.receipts.insert(delivered.receipt, id);
            }
        }
    }

    fn take_settled(&mut self, call: &'a Call) {
        let Request::Settle(settle) = &call.request else { return };
        let none = [].as_slice();
        let (acks, extends, releases) = match call.answer() {
            Some((_, Response::Settled { ack, extend, release })) => (&ack[..], &extend[..], &release[..]),
            Some((_, Response::Refused(refusal))) if !refusal.stored_unknown => return,
            _ => (none, none, none),
        };
        for (place, receipt) in settle.ack.iter().enumerate() {
            self.settle(call, receipt, Action::Ack, acks.get(place).copied());
        }
        for (place, extend) in settle.extend.iter().enumerate() {
            let action = Action::Extend { lease_ms: u64::from(extend.lease_s) * 1_000 };
            self.settle(call, &extend.receipt, action, extends.get(place).copied());
        }
        for (place, release) in settle.release.iter().enumerate() {
            let delay_ms = release.delay_s.map(|s| s * 1_000);
            let action = Action::Release { delay_ms, error: release.error.as_deref() };
            self.settle(call, &release.receipt, action, releases.get(place).copied());
        }
    }

    fn settle(&mut self, call: &'a Call, text: &str, action: Action<'a>, outcome: Option<Settled>) {
        let Ok(receipt) = text.parse::<Receipt>() else { return };
        let Some(id) = self.receipts.get(&receipt) else {
            if outcome == Some(Settled::Ok) {
                self.facts.strangers.push(format!("receipt {receipt}, never given out, was accepted"));
            }
            return;
        };
        if let Some(message) = self.facts.messages.get_mut(id) {
            message.settles.push(Settle { call, receipt, action, outcome });
        }
    }

    fn take_cancel(&mut self, call: &'a Call) {
        let Request::Cancel { id, .. } = &call.request else { return };
        let done = match call.answer() {
            None => None,
            Some((_, Response::Done)) => Some(true),
            Some((_, Response::Refused(refusal))) if refusal.stored_unknown => None,
            Some(_) => Some(false),
        };
        if let Some(message) = self.facts.messages.get_mut(id) {
            message.cancels.push((call, done));
        }
    }

    fn by_number(&mut self, number: Number, id: MessageId) -> Option<&mut Message<'a>> {
        let made = self.history.made.get(number as usize).filter(|made| made.queue == self.queue)?;
        let tries = self.tries.get(&number).cloned().unwrap_or_default();
        Some(self.facts.messages.entry(id).or_insert_with(|| Message {
            id,
            number,
            made,
            tries,
            named: false,
            deliveries: Vec::new(),
            settles: Vec::new(),
            cancels: Vec::new(),
            dead: None,
        }))
    }

    /// The message of a content; a stranger is noted. The content must be what was made.
    fn message(&mut self, id: MessageId, headers: &Headers, body: &[u8]) -> Option<&mut Message<'a>> {
        let number = identify(id, headers, body);
        let made = number.and_then(|number| self.history.made.get(number as usize));
        let is_ours = made.is_some_and(|made| {
            made.queue == self.queue
                && made.message.headers == *headers
                && made.message.body == body
                && made.message.id.is_none_or(|own| own == id)
        });
        if !is_ours {
            let text = format!("{id} with {} body bytes and headers {headers:?} was never made", body.len());
            self.facts.strangers.push(text);
            return None;
        }
        self.by_number(number?, id)
    }
}
