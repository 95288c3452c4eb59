//! Storing messages: dedup is asked before any limit, limits before anything is stored.

use crate::answer::{EnqueueOutcome, KeyState, PayloadRef, Place};
use crate::codec::RawMessage;
use crate::command::VisibleWhen;
use crate::life_cycle::State;
use crate::message::{CLIENT_MADE_ID, Message};
use crate::queue::Queue;
use crate::shared::Shared;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Sequence, UnixMillis};

impl Queue {
    /// Stores messages of the log entry `index`, one after the other: one that repeats an earlier one of the same batch
    /// is a duplicate like any other.
    pub(crate) fn enqueue(
        &mut self,
        shared: &mut Shared,
        index: u64,
        messages: &[RawMessage<'_>],
    ) -> Vec<EnqueueOutcome> {
        let outcomes = messages.iter().map(|raw| self.enqueue_one(shared, index, raw)).collect();
        self.schedule_forgetting(shared);
        outcomes
    }

    fn enqueue_one(&mut self, shared: &mut Shared, index: u64, raw: &RawMessage<'_>) -> EnqueueOutcome {
        let now = shared.time;
        let window_ms = self.config.dedup_window_s.saturating_mul(1_000);
        let key = raw.dedup_key.filter(|_| window_ms > 0);
        match key.map_or(KeyState::Free, |key| self.dedup.key_state(key, now)) {
            KeyState::Free => {}
            KeyState::Taken(first) => {
                if let Some(key) = key.filter(|_| is_planted(Bug::RepeatExtendsWindow)) {
                    self.dedup.remember_key(key, first, now.plus_ms(window_ms));
                }
                return EnqueueOutcome::Duplicate(first);
            }
            KeyState::Pending(claim) => return EnqueueOutcome::Pending(claim),
        }
        if self.dedup.has_id(raw.id, now) || self.find(shared, raw.id).is_some() {
            return EnqueueOutcome::Duplicate(raw.id);
        }
        if let Err(reason) = self.room_for(raw.body.len() as u64) {
            self.totals.refused[reason as usize] += 1;
            return EnqueueOutcome::Refused(reason);
        }
        let until = now.plus_ms(window_ms);
        if let Some(key) = key {
            self.dedup.remember_key(key, raw.id, until);
        }
        if raw.client_made_id && window_ms > 0 {
            self.dedup.remember_id(raw.id, until, None);
        }
        self.take_in(shared, index, raw)
    }

    /// Stores a message that nothing speaks against.
    pub(crate) fn take_in(
        &mut self,
        shared: &mut Shared,
        index: u64,
        raw: &RawMessage<'_>,
    ) -> EnqueueOutcome {
        let message = self.new_message(shared, index, raw);
        self.totals.enqueued += 1;
        self.admit(shared, message, None);
        EnqueueOutcome::Stored
    }

    fn new_message(&self, shared: &mut Shared, index: u64, raw: &RawMessage<'_>) -> Message {
        let now = shared.time;
        let payload =
            PayloadRef { place: Place::Entry(index), offset: raw.payload_offset, length: raw.payload_length };
        let mut message = Message::new(raw.id, self.id, self.level(raw.priority), payload);
        message.enqueued_at = now;
        message.body_bytes = u32::try_from(raw.body.len()).unwrap_or(u32::MAX);
        if raw.client_made_id {
            message.flags |= CLIENT_MADE_ID;
        }
        if let Some(ttl_ms) = raw.expires_in_ms {
            message.ttl_ms = if is_planted(Bug::LateExpiry) { ttl_ms + 1_500 } else { ttl_ms };
        }
        let visible_at = match raw.visible {
            VisibleWhen::Now => now,
            VisibleWhen::At(at) if is_planted(Bug::EarlyDelay) => UnixMillis(at.0.saturating_sub(500)),
            VisibleWhen::At(at) => at,
            VisibleWhen::AfterMs(ms) => now.plus_ms(ms),
        };
        if visible_at > now {
            message.due = visible_at;
            return message;
        }
        shared.last_sequence += 1;
        message.state = State::Visible;
        message.sequence = Sequence(shared.last_sequence);
        message.since = now;
        if raw.expires_in_ms.is_none() {
            message.ttl_ms = self.retention_ms();
        }
        message
    }

    /// Puts the queue where the shard finds it when something that it remembers can be forgotten.
    pub(crate) fn schedule_forgetting(&mut self, shared: &mut Shared) {
        let next = self.dedup.next_end();
        if self.forget_at == Some(next) {
            return;
        }
        if let Some(at) = self.forget_at.take() {
            shared.forgets.remove(&(at, self.id));
        }
        if next != UnixMillis::NEVER {
            shared.forgets.insert((next, self.id));
            self.forget_at = Some(next);
        }
    }
}
