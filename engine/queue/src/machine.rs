//! The state of one shard, as its log makes it. Same log, same state, on every replica: nothing here reads a clock or
//! iterates over anything without an order.
//!
//! Each entry first brings the shard to its time: timers that have come fire (delays end, leases expire, times to live
//! end), starvation alerts are counted, redrive jobs take their turns, dedup windows are forgotten. That work is bounded
//! for each entry; what is left makes [`Machine::next_deadline`] lie in the past, so another entry follows. Whatever the
//! shard has not come to yet is not believed either: an expired lease's receipt is stale, an expired message is dropped
//! instead of delivered. Then the commands are applied in order.

use crate::answer::{Answer, CancelOutcome, DeadLetterView, KeyState, QueueStats, Summary};
use crate::codec::RawCommand;
use crate::command::{Command, RedriveSelection, Room};
use crate::entry::RawBatch;
use crate::life_cycle::{Event, State};
use crate::queue::Queue;
use crate::rate::RateLimiter;
use crate::shared::Shared;
use bytes::Bytes;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, Level, Malformed, MessageId, QueueConfig, QueueId, ShardId, UnixMillis};
use std::collections::BTreeMap;

/// Timers, alarms and redrive turns that one entry works off before its commands.
pub const ADVANCE_ITEMS_MAX: usize = 4_096;

/// Which messages a peek shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeekFilter {
    /// Visible ones.
    pub visible: bool,
    /// Delayed ones.
    pub delayed: bool,
    /// Leased ones.
    pub leased: bool,
    /// Only those of this level.
    pub priority: Option<Level>,
}

/// One shard.
pub struct Machine {
    pub(crate) shard: ShardId,
    pub(crate) applied: u64,
    pub(crate) queues: BTreeMap<QueueId, Queue>,
    pub(crate) shared: Shared,
}

impl Machine {
    /// A shard that has applied nothing.
    #[must_use]
    pub fn new(shard: ShardId) -> Self {
        Self { shard, applied: 0, queues: BTreeMap::new(), shared: Shared::default() }
    }

    /// An entry of the shard's log that holds nothing for the state machine: the state is the one after it, too. So a
    /// checkpoint covers it, and the log need not keep it, however long nothing else comes.
    pub fn pass(&mut self, index: u64) {
        self.applied = self.applied.max(index);
    }

    /// Applies one log entry and appends one answer for each of its commands. `index` strictly increases; gaps are
    /// allowed. Nothing is applied of an entry that is malformed.
    pub fn apply(&mut self, index: u64, entry: &Bytes, answers: &mut Vec<Answer>) -> Result<(), Malformed> {
        if index <= self.applied {
            return Err(Malformed("log index"));
        }
        let batch = RawBatch::read(entry)?;
        self.applied = index;
        // The leader never stamps a time before that of the entry before; should one, time stands still.
        self.shared.time = self.shared.time.max(batch.time);
        self.advance();
        answers.reserve(batch.commands.len());
        for command in batch.commands {
            answers.push(self.run(index, command));
        }
        Ok(())
    }

    fn run(&mut self, index: u64, command: RawCommand<'_>) -> Answer {
        let command = match command {
            RawCommand::Enqueue { queue, messages } => {
                return self
                    .with(queue, |queue, shared| Answer::Enqueued(queue.enqueue(shared, index, &messages)));
            }
            RawCommand::StoreClaimed { queue, claim, message } => {
                return self.with(queue, |queue, shared| {
                    Answer::Enqueued(vec![queue.store_claimed(shared, index, claim, &message)])
                });
            }
            RawCommand::Thaw { queue, block, records } => {
                // A block of this very entry cannot have been read by whoever proposed it.
                let older = block.0 < index;
                return self.with(queue, |queue, shared| {
                    Answer::Thawed(older && queue.thaw(shared, block, records))
                });
            }
            RawCommand::Other(command) => command,
        };
        match command {
            Command::Configure { queue, version, config } => self.configure(queue, version, config),
            Command::Delete { queue } => self.delete(queue),
            // These came as they stand in the entry.
            Command::Enqueue { .. } | Command::StoreClaimed { .. } | Command::Thaw { .. } => Answer::NoQueue,
            Command::Spill { queue, spill } => self.with(queue, |queue, shared| {
                let block = BlockId(index);
                let made = shared.blocks.may_make(block).then(|| queue.spill(shared, block, &spill));
                Answer::Spilled(made.unwrap_or_default())
            }),
            Command::Lease { queue, lease } => {
                self.with(queue, |queue, shared| Answer::Leased(queue.lease(shared, &lease)))
            }
            Command::Unlease { queue, leases } => self.with(queue, |queue, shared| {
                leases.into_iter().for_each(|key| queue.unlease(shared, key));
                Answer::Done
            }),
            Command::Settle { queue, ack, extend, release } => {
                self.with(queue, |queue, shared| Answer::Settled {
                    ack: ack.into_iter().map(|key| queue.ack(shared, key)).collect(),
                    extend: extend.into_iter().map(|extension| queue.extend(shared, extension)).collect(),
                    release: release.iter().map(|returned| queue.release(shared, returned)).collect(),
                })
            }
            Command::Cancel { queue, id } => {
                self.with(queue, |queue, shared| Answer::Cancelled(queue.cancel(shared, id)))
            }
            Command::Purge { queue } => self.with(queue, |queue, shared| Answer::Purged(queue.purge(shared))),
            Command::PurgeDeadLetters { queue } => {
                self.with(queue, |queue, shared| Answer::Purged(queue.purge_dead(shared)))
            }
            Command::Redrive { queue, redrive } => {
                self.with(queue, |queue, shared| Answer::Redriven(queue.redrive(shared, &redrive)))
            }
            Command::RedriveTurns { queue, mut room } => self.with(queue, |queue, shared| {
                Answer::Redriven(queue.run_jobs(shared, ADVANCE_ITEMS_MAX, Some(&mut room)) as u64)
            }),
            Command::Claim { queue, key, id } => {
                self.with(queue, |queue, shared| Answer::Claim(queue.claim(shared, &key, id)))
            }
            Command::EndClaim { queue, key, id, end } => self.with(queue, |queue, shared| {
                queue.end_claim(shared, &key, id, end);
                Answer::Done
            }),
            Command::FenceClaim { queue, key, id, claim } => {
                self.with(queue, |queue, shared| Answer::Fenced(queue.fence_claim(shared, &key, id, claim)))
            }
            Command::NoteRefused { queue, reason, count } => self.with(queue, |queue, _| {
                let refused = &mut queue.totals.refused[reason as usize];
                *refused = refused.saturating_add(count);
                Answer::Done
            }),
        }
    }

    fn with(&mut self, queue: QueueId, run: impl FnOnce(&mut Queue, &mut Shared) -> Answer) -> Answer {
        match self.queues.get_mut(&queue) {
            Some(queue) => run(queue, &mut self.shared),
            None => Answer::NoQueue,
        }
    }

    fn configure(&mut self, id: QueueId, version: u64, config: QueueConfig) -> Answer {
        match self.queues.get_mut(&id) {
            Some(queue) => queue.reconfigure(&mut self.shared, version, config),
            None => {
                let mut queue = Queue::new(id, version, config, self.shared.time);
                queue.mark_changed(&mut self.shared);
                self.queues.insert(id, queue);
            }
        }
        Answer::Done
    }

    fn delete(&mut self, id: QueueId) -> Answer {
        let Some(mut queue) = self.queues.remove(&id) else { return Answer::NoQueue };
        queue.clear(&mut self.shared);
        queue.mark_changed(&mut self.shared);
        Answer::Done
    }

    /// Brings the shard to its time.
    fn advance(&mut self) {
        let mut left = ADVANCE_ITEMS_MAX;
        while left > 0 && self.advance_one() {
            left -= 1;
        }
        let shared = &mut self.shared;
        let with_jobs: Vec<QueueId> = shared.jobs.iter().copied().collect();
        for id in with_jobs {
            let queue = self.queues.get_mut(&id).filter(|queue| left > 0 && !queue.config.shares_limits());
            if let Some(queue) = queue {
                left -= queue.run_jobs(shared, left, None);
            }
        }
        while let Some((at, id)) = shared.forgets.first().copied().filter(|(at, _)| *at <= shared.time) {
            shared.forgets.remove(&(at, id));
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.forget_at = None;
                queue.dedup.forget(shared.time, ADVANCE_ITEMS_MAX);
                queue.schedule_forgetting(shared);
                if queue.forget_at.is_some_and(|at| at <= shared.time) {
                    break;
                }
            }
        }
    }

    /// Works off the earliest timer, end of a run or alarm that has come; false where there is none.
    fn advance_one(&mut self) -> bool {
        let shared = &mut self.shared;
        let now = shared.time;
        let timer = shared.timers.first_due(&mut shared.messages, now);
        let timer = timer.map(|(time, slot)| (time, shared.messages[slot].order, slot));
        let ended = self.first_ended().filter(|(at, order, _)| {
            *at <= now && timer.is_none_or(|(time, timer_order, _)| (at.0, *order) < (time, timer_order))
        });
        let shared = &mut self.shared;
        let alarm = shared.alarms.first().copied().filter(|(at, ..)| *at <= now);
        let first = ended.map(|(at, ..)| at.0).or(timer.map(|(time, ..)| time));
        if let Some((_, id, level)) = alarm.filter(|(at, ..)| first.is_none_or(|first| first > at.0)) {
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.alarm(shared, level);
            }
            return true;
        }
        if let Some((.., block)) = ended {
            let queue = shared.blocks.get(block).map(|block| block.queue);
            if let Some(queue) = queue.and_then(|id| self.queues.get_mut(&id)) {
                let ended = queue.drop_run(shared, block);
                queue.totals.expired += if is_planted(Bug::ColdExpiryNotCounted) { 0 } else { ended };
            }
            return true;
        }
        let Some((.., slot)) = timer else { return false };
        if let Some(queue) = self.queues.get_mut(&shared.messages[slot].queue) {
            queue.timer_fired(shared, slot);
        }
        true
    }

    /// The run that is the first to be over by itself: all its messages expire, and the queue does not keep them.
    fn first_ended(&self) -> Option<(UnixMillis, u64, BlockId)> {
        let blocks = &self.shared.blocks;
        blocks.ends.iter().copied().find(|(.., block)| {
            let queue = blocks.get(*block).and_then(|block| self.queues.get(&block.queue));
            queue.is_some_and(|queue| !queue.config.dead_letter_expired)
        })
    }

    /// Shard time: that of the last entry.
    #[must_use]
    pub fn time(&self) -> UnixMillis {
        self.shared.time
    }

    /// Index of the last entry applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The earliest time at which an entry without commands would change something; in the past where the last one
    /// could not do everything.
    #[must_use]
    pub fn next_deadline(&self) -> UnixMillis {
        let shared = &self.shared;
        let jobs = shared.jobs.iter().filter_map(|id| self.queues.get(id));
        let jobs =
            jobs.filter(|queue| !queue.config.shares_limits()).map(|queue| queue.next_job_turn(shared));
        let ended = self.first_ended().map_or(UnixMillis::NEVER, |(at, ..)| at);
        let mut earliest = jobs.min().unwrap_or(UnixMillis::NEVER).min(shared.timers.next(&shared.messages));
        earliest = earliest.min(ended);
        // An alarm is never later than its lane's true deadline: none after the earliest found so far can be earlier.
        for (at, id, level) in &shared.alarms {
            if *at >= earliest {
                break;
            }
            if let Some(queue) = self.queues.get(id) {
                earliest = earliest.min(queue.starved_at(*level));
            }
        }
        earliest
    }

    /// Redrive jobs that wait for room from their queue's home: when each queue's next turn comes.
    pub fn redrives_without_room(&self) -> impl Iterator<Item = (QueueId, UnixMillis)> + '_ {
        let queues = self.shared.jobs.iter().filter_map(|id| Some((*id, self.queues.get(id)?)));
        let shared_limits = queues.filter(|(_, queue)| queue.config.shares_limits());
        shared_limits.map(|(id, queue)| (id, queue.next_turn()))
    }

    /// The room that the turns which have come by `now` would take, and what the first one needs at least.
    #[must_use]
    pub fn room_wanted(&self, queue: QueueId, now: UnixMillis) -> (Room, u64) {
        self.queues.get(&queue).map(|queue| queue.room_wanted(&self.shared, now)).unwrap_or_default()
    }

    /// Whether the queue is on this shard.
    #[must_use]
    pub fn has_queue(&self, queue: QueueId) -> bool {
        self.queues.contains_key(&queue)
    }

    /// Version of the queue's configuration.
    #[must_use]
    pub fn queue_version(&self, queue: QueueId) -> Option<u64> {
        Some(self.queues.get(&queue)?.version)
    }

    /// All queues of this shard, by number.
    pub fn queues(&self) -> impl Iterator<Item = QueueId> + '_ {
        self.queues.keys().copied()
    }

    /// The queue's configuration.
    #[must_use]
    pub fn config(&self, queue: QueueId) -> Option<&QueueConfig> {
        Some(&self.queues.get(&queue)?.config)
    }

    /// Tells `f` each queue whose summary changed since the last drain; also those that were deleted.
    pub fn drain_changed(&mut self, mut f: impl FnMut(QueueId)) {
        for id in self.shared.changed.drain(..) {
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.changed = false;
            }
            f(id);
        }
    }

    /// What other cores need to know of the queue.
    #[must_use]
    pub fn summary(&self, queue: QueueId) -> Option<Summary> {
        Some(self.queues.get(&queue)?.summary(&self.shared))
    }

    /// This shard's part of the queue's statistics. Waits are those of the minutes before `now`: an idle shard's own
    /// time stands still.
    #[must_use]
    pub fn stats(&self, queue: QueueId, now: UnixMillis) -> Option<QueueStats> {
        Some(self.queues.get(&queue)?.stats(&self.shared, now.max(self.shared.time)))
    }

    /// Up to `limit` dead letters with ids above `after`, in the order of their ids.
    #[must_use]
    pub fn dead_letters(
        &self,
        queue: QueueId,
        after: Option<MessageId>,
        limit: usize,
    ) -> Vec<DeadLetterView> {
        self.queues
            .get(&queue)
            .map(|queue| queue.dead_letters(&self.shared, after, limit))
            .unwrap_or_default()
    }

    /// How many dead letters a redrive would choose.
    #[must_use]
    pub fn count_dead(&self, queue: QueueId, selection: &RedriveSelection) -> u64 {
        self.queues.get(&queue).map_or(0, |queue| queue.count_dead(&self.shared, selection))
    }

    /// The message that was first accepted with this dedup key, while its window lasts at `now`: an idle shard's own
    /// time stands still, and would have an ended window last for ever.
    #[must_use]
    pub fn dedup_lookup(&self, queue: QueueId, key: &[u8], now: UnixMillis) -> Option<MessageId> {
        match self.key_state(queue, key, now) {
            KeyState::Taken(first) => Some(first),
            KeyState::Free | KeyState::Pending(_) => None,
        }
    }

    /// What is known of a dedup key at `now`.
    #[must_use]
    pub fn key_state(&self, queue: QueueId, key: &[u8], now: UnixMillis) -> KeyState {
        let queue = self.queues.get(&queue).filter(|queue| queue.config.dedup_window_s > 0);
        queue.map_or(KeyState::Free, |queue| queue.dedup.key_state(key, now.max(self.shared.time)))
    }

    /// When the message with this id was stored under a dedup key that was claimed on another shard, while its window
    /// lasts at `now`.
    #[must_use]
    pub fn stored_under(
        &self,
        queue: QueueId,
        id: MessageId,
        key: &[u8],
        now: UnixMillis,
    ) -> Option<UnixMillis> {
        self.queues.get(&queue)?.stored_under(id, key, now.max(self.shared.time))
    }

    /// The lowest log index of an entry in which the payload of a living message or dead letter stands.
    #[must_use]
    pub fn oldest_live_index(&self) -> Option<u64> {
        self.shared.payloads.oldest()
    }

    /// What the queue's rate caps allow; none where it has no caps.
    #[must_use]
    pub fn limiter(&self, queue: QueueId) -> Option<&RateLimiter> {
        self.queues.get(&queue)?.limiter.as_ref()
    }
}

impl Queue {
    fn cancel(&mut self, shared: &mut Shared, id: MessageId) -> CancelOutcome {
        let Some(slot) = self.find(shared, id) else { return CancelOutcome::NotFound };
        match shared.messages[slot].state {
            State::Visible | State::Delayed => {
                self.totals.cancelled += 1;
                self.shift(shared, slot, Event::Cancel, |_, _| {});
                CancelOutcome::Cancelled
            }
            State::Leased if is_planted(Bug::CancelLeased) => {
                self.totals.cancelled += 1;
                self.shift(shared, slot, Event::Ack, |_, _| {});
                CancelOutcome::Cancelled
            }
            State::Leased => CancelOutcome::Leased,
            State::Dead => CancelOutcome::Dead,
            State::Gone => CancelOutcome::NotFound,
        }
    }

    fn purge(&mut self, shared: &mut Shared) -> u64 {
        let cold = self.drop_runs(shared);
        let waits = |slot: &u32| matches!(shared.messages[*slot].state, State::Visible | State::Delayed);
        let slots: Vec<u32> = self.ids.iter().filter(waits).collect();
        for slot in &slots {
            self.shift(shared, *slot, Event::Purge, |_, _| {});
        }
        let purged = cold + slots.len() as u64;
        self.totals.purged += purged;
        purged
    }

    fn alarm(&mut self, shared: &mut Shared, level: Level) {
        let starvation_ms = self.config.starvation_ms(level.0);
        let lane = &mut self.lanes[usize::from(level.0)];
        if lane.hunger.alarm(shared, self.id, level, starvation_ms) {
            self.totals.starvation_events += 1;
        }
    }

    fn starved_at(&self, level: Level) -> UnixMillis {
        self.lanes[usize::from(level.0)].hunger.deadline(self.config.starvation_ms(level.0))
    }
}
