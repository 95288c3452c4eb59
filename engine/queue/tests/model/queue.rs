//! One queue of the model: storing, dedup, limits, cancelling, purging, starvation.

use super::Shard;
use super::claims::{Claim, Fence};
use super::message::{Message, State};
use super::mutation::Mutation;
use super::rate::RateLimiter;
use super::scheduler::Scheduler;
use bytes::Bytes;
use overtake_base::{Level, MessageId, QueueConfig, Sequence, UnixMillis};
use overtake_queue::answer::{CancelOutcome, EnqueueOutcome, KeyState, PayloadRef, Place, Totals};
use overtake_queue::command::{NewMessage, RefusedReason, VisibleWhen};

pub struct Queue {
    pub version: u64,
    pub config: QueueConfig,
    pub messages: Vec<Message>,
    /// Claimed dedup keys: key, the first message's id, end of the window.
    pub keys: Vec<(Bytes, MessageId, UnixMillis)>,
    /// Client-made ids that are remembered: id, end of the window, the key claimed elsewhere that it was stored under.
    pub ids: Vec<(MessageId, UnixMillis, Option<Bytes>)>,
    pub claims: Vec<Claim>,
    pub claims_made: u64,
    pub fences: Vec<Fence>,
    pub scheduler: Scheduler,
    pub limiter: RateLimiter,
    pub totals: Totals,
    /// Of each level that has visible work: since when it has had no delivery, and whether the alert has been counted.
    pub hungry: Vec<Option<(UnixMillis, bool)>>,
    pub jobs: Vec<super::redrive::Job>,
    pub jobs_made: u64,
}

impl Queue {
    pub fn new(version: u64, config: QueueConfig, now: UnixMillis, mutation: Mutation) -> Self {
        Self {
            version,
            messages: Vec::new(),
            keys: Vec::new(),
            ids: Vec::new(),
            claims: Vec::new(),
            claims_made: 0,
            fences: Vec::new(),
            scheduler: Scheduler::new(&config, mutation),
            limiter: RateLimiter::new(&config.rate_caps, now),
            totals: Totals::default(),
            hungry: vec![None; usize::from(config.levels)],
            jobs: Vec::new(),
            jobs_made: 0,
            config,
        }
    }

    pub fn enqueue(
        &mut self,
        shard: &mut Shard,
        index: u64,
        message: &NewMessage,
        entry: &[u8],
    ) -> EnqueueOutcome {
        let body_bytes = message.body.len() as u64;
        let refused = self.refusal(shard, body_bytes);
        if let Some(reason) = refused.filter(|_| shard.has(Mutation::LimitsBeforeDedup)) {
            self.totals.refused[reason as usize] += 1;
            return EnqueueOutcome::Refused(reason);
        }
        if let Some(first) = self.first_accepted(shard, message) {
            return first;
        }
        if let Some(reason) = refused {
            self.totals.refused[reason as usize] += 1;
            return EnqueueOutcome::Refused(reason);
        }
        self.remember(shard, message);
        self.take_in(shard, index, message, entry);
        EnqueueOutcome::Stored
    }

    pub fn take_in(&mut self, shard: &mut Shard, index: u64, message: &NewMessage, entry: &[u8]) {
        let body_bytes = message.body.len() as u64;
        self.totals.enqueued += 1;
        let now = shard.now;
        let until = match message.visible {
            VisibleWhen::Now => now,
            VisibleWhen::At(at) => at,
            VisibleWhen::AfterMs(ms) => now.plus_ms(ms),
        };
        self.messages.push(Message {
            id: message.id,
            level: self.level(message.priority),
            payload: find_payload(index, message, entry),
            body_bytes,
            enqueued_at: now,
            state: State::Delayed { until },
            sequence: None,
            since: UnixMillis(0),
            ttl_ms: message.expires_in_ms,
            deliveries: 0,
            failures: 0,
            last_text: None,
            history: Vec::new(),
            job: None,
            changed: 0,
        });
        let at = self.messages.len() - 1;
        if until > now {
            self.set_state(shard, at, State::Delayed { until });
        } else {
            self.appear(shard, at);
        }
    }

    /// What was accepted first, where this message repeats it. The key decides before the id.
    fn first_accepted(&mut self, shard: &Shard, message: &NewMessage) -> Option<EnqueueOutcome> {
        let window_ms = self.config.dedup_window_s * 1_000;
        if let Some(key) = message.dedup_key.as_ref().filter(|_| window_ms > 0) {
            let claim = self.keys.iter_mut().find(|(claimed, _, end)| claimed == key && *end > shard.now);
            if let Some((_, first, end)) = claim {
                if shard.has(Mutation::RepeatExtendsWindow) {
                    *end = shard.now.plus_ms(window_ms);
                }
                return Some(EnqueueOutcome::Duplicate(*first));
            }
            if let KeyState::Pending(claim) = self.key_state(key, shard.now)
                && !shard.has(Mutation::ClaimsHoldNothing)
            {
                return Some(EnqueueOutcome::Pending(claim));
            }
        }
        self.id_lives(message.id, shard.now).then_some(EnqueueOutcome::Duplicate(message.id))
    }

    /// Claims the message's key and id for the window that the queue has now.
    fn remember(&mut self, shard: &Shard, message: &NewMessage) {
        self.keys.retain(|(.., end)| *end > shard.now);
        self.ids.retain(|(_, end, _)| *end > shard.now);
        let end = shard.now.plus_ms(self.config.dedup_window_s * 1_000);
        if end == shard.now {
            return;
        }
        if let Some(key) = &message.dedup_key {
            self.keys.push((key.clone(), message.id, end));
        }
        if message.client_made_id {
            self.ids.push((message.id, end, None));
        }
    }

    pub fn id_lives(&self, id: MessageId, now: UnixMillis) -> bool {
        self.messages.iter().any(|message| message.id == id)
            || self.ids.iter().any(|(remembered, end, _)| *remembered == id && *end > now)
    }

    pub fn key_claimed(&self, key: &[u8], now: UnixMillis) -> Option<MessageId> {
        let claim = self.keys.iter().find(|(claimed, _, end)| claimed == key && *end > now);
        claim.filter(|_| self.config.dedup_window_s > 0).map(|(_, first, _)| *first)
    }

    /// Visible, delayed and leased messages.
    pub fn depth(&self) -> u64 {
        self.messages.iter().filter(|message| !message.is_dead()).count() as u64
    }

    /// Their body bytes.
    pub fn body_bytes(&self) -> u64 {
        self.messages.iter().filter(|message| !message.is_dead()).map(|message| message.body_bytes).sum()
    }

    /// The limit that one more message of so many body bytes would break.
    pub fn refusal(&self, shard: &Shard, body_bytes: u64) -> Option<RefusedReason> {
        let mut depth = self.depth();
        if shard.has(Mutation::LeasedTakeNoRoom) {
            depth -= self.messages.iter().filter(|message| message.is_leased()).count() as u64;
        }
        if self.config.max_depth.is_some_and(|max| depth + 1 > max) {
            return Some(RefusedReason::Depth);
        }
        let bytes = self.body_bytes() + body_bytes;
        self.config.max_bytes.is_some_and(|max| bytes > max).then_some(RefusedReason::Bytes)
    }

    /// A level beyond the queue's counts as its least urgent one.
    pub fn level(&self, level: Level) -> Level {
        level.min(Level(self.config.levels - 1))
    }

    pub fn find(&self, id: MessageId) -> Option<usize> {
        self.messages.iter().position(|message| message.id == id)
    }

    pub fn cancel(&mut self, shard: &mut Shard, id: MessageId) -> CancelOutcome {
        let Some(at) = self.find(id) else { return CancelOutcome::NotFound };
        if self.messages[at].is_dead() {
            return CancelOutcome::Dead;
        }
        if self.messages[at].is_leased() && !shard.has(Mutation::CancelTakesLeased) {
            return CancelOutcome::Leased;
        }
        self.totals.cancelled += 1;
        self.remove(shard, at);
        CancelOutcome::Cancelled
    }

    pub fn purge(&mut self, shard: &mut Shard) -> u64 {
        let leased_too = shard.has(Mutation::PurgeTakesLeased);
        self.purge_those(shard, |message| !message.is_dead() && (leased_too || !message.is_leased()))
    }

    pub fn purge_dead(&mut self, shard: &mut Shard) -> u64 {
        self.purge_those(shard, Message::is_dead)
    }

    fn purge_those(&mut self, shard: &mut Shard, of: impl Fn(&Message) -> bool) -> u64 {
        let mut purged = 0;
        while let Some(at) = self.messages.iter().position(&of) {
            self.remove(shard, at);
            purged += 1;
        }
        self.totals.purged += purged;
        purged
    }

    /// First visibility, or the new one of a redrive: the message goes to the tail and its time to live begins.
    pub fn appear(&mut self, shard: &mut Shard, at: usize) {
        let message = &mut self.messages[at];
        let keeps_place = message.is_dead() && shard.has(Mutation::RedriveKeepsPlace);
        if !keeps_place {
            shard.last_sequence += 1;
            message.sequence = Some(Sequence(shard.last_sequence));
        }
        message.since = shard.now;
        message.ttl_ms = message.ttl_ms.or(Some(self.config.retention_s * 1_000));
        self.set_state(shard, at, State::Visible);
    }

    pub fn set_state(&mut self, shard: &mut Shard, at: usize, state: State) {
        shard.changes += 1;
        let message = &mut self.messages[at];
        message.state = state;
        message.changed = shard.changes;
        let level = message.level;
        self.look_at_lane(shard, level);
    }

    pub fn remove(&mut self, shard: &Shard, at: usize) {
        let message = self.messages.remove(at);
        self.look_at_lane(shard, message.level);
    }

    /// A level begins to be hungry when it gets visible work, and ends when it has none.
    fn look_at_lane(&mut self, shard: &Shard, level: Level) {
        let has_work = self.messages.iter().any(|message| message.is_visible() && message.level == level);
        let hungry = &mut self.hungry[usize::from(level.0)];
        *hungry = match *hungry {
            Some(since) if has_work => Some(since),
            None if has_work => Some((shard.now, false)),
            _ => None,
        };
    }

    /// When the level will have had visible work and no delivery for longer than its alert.
    pub fn starved_at(&self, level: u8) -> Option<UnixMillis> {
        let (since, counted) = self.hungry[usize::from(level)]?;
        (!counted).then(|| since.plus_ms(self.config.starvation_ms(level) + 1))
    }

    pub fn level_starved(&mut self, shard: &Shard, level: u8) {
        self.totals.starvation_events += 1;
        let again = shard.has(Mutation::StarvedAgain);
        self.hungry[usize::from(level)] = Some(if again { (shard.now, false) } else { (shard.now, true) });
    }
}

/// Looks for the payload's bytes in the entry. The headers of the tests' messages are unique.
fn find_payload(index: u64, message: &NewMessage, entry: &[u8]) -> PayloadRef {
    let mut bytes = Vec::new();
    for part in [&message.headers, &message.body] {
        bytes.extend((part.len() as u32).to_le_bytes());
        bytes.extend(part);
    }
    let offset = entry.windows(bytes.len()).position(|window| window == bytes).expect("the payload is there");
    PayloadRef { place: Place::Entry(index), offset: offset as u32, length: bytes.len() as u32 }
}
