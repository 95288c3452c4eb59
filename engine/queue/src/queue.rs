//! One queue's part on this shard: its lanes and counts, and the one function through which a message changes its
//! state. Every structure that knows a message (lane, timer, index of ids, counts) is kept up there and nowhere else.

use crate::answer::{LevelSummary, Summary, Totals};
use crate::dead::RedriveJob;
use crate::dedup::Dedup;
use crate::lane::Lane;
use crate::life_cycle::{Event, State};
use crate::message::{Extra, LEASE_FLAGS, Message, NO_SEQUENCE};
use crate::rate::RateLimiter;
use crate::scheduler::{LevelSet, Scheduler};
use crate::shared::Shared;
use crate::sorted_slots::SortedSlots;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, Level, MessageId, QueueConfig, QueueId, UnixMillis};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A queue on this shard.
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) version: u64,
    pub(crate) config: QueueConfig,
    pub(crate) lanes: Vec<Lane>,
    /// Levels with visible messages.
    pub(crate) visible: LevelSet,
    /// Visible, delayed and leased messages in memory by id.
    pub(crate) ids: SortedSlots<u128>,
    /// Messages in memory that wait for their first visibility, by when it comes.
    pub(crate) waiting: SortedSlots<u128>,
    /// Dead letters by id.
    pub(crate) dead: SortedSlots<u128>,
    /// Body bytes of visible, delayed and leased messages in memory.
    pub(crate) body_bytes: u64,
    /// Runs of delayed messages by when the first one is due.
    pub(crate) delayed_runs: BTreeSet<(u64, BlockId)>,
    /// Messages in all runs, and their body bytes.
    pub(crate) cold: u64,
    pub(crate) cold_body_bytes: u64,
    pub(crate) dedup: Dedup,
    pub(crate) forget_at: Option<UnixMillis>,
    pub(crate) scheduler: Scheduler,
    pub(crate) limiter: Option<RateLimiter>,
    pub(crate) totals: Totals,
    /// Leased messages of each worker label.
    pub(crate) workers: BTreeMap<Arc<str>, u64>,
    pub(crate) jobs: Vec<RedriveJob>,
    pub(crate) last_job: u32,
    /// Stands in the shard's list of changed queues.
    pub(crate) changed: bool,
}

/// What a lane delivers next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// Nothing is visible.
    None,
    /// A message in memory.
    Hot(u32),
    /// The first message of this run: it must be thawed before anything of the lane is delivered.
    Cold(BlockId),
}

impl Head {
    pub(crate) fn of(lane: &Lane, shared: &Shared) -> Self {
        let hot = lane.ready.first();
        match lane.runs.first_key_value() {
            Some(_) if hot.is_some() && is_planted(Bug::RunsPassedOver) => hot.map_or(Self::None, Self::Hot),
            Some((first, block)) if hot.is_none_or(|slot| shared.messages[slot].sequence.0 > *first) => {
                Self::Cold(*block)
            }
            _ => hot.map_or(Self::None, Self::Hot),
        }
    }

    pub(crate) fn since(self, shared: &Shared) -> UnixMillis {
        match self {
            Self::Hot(slot) => shared.messages[slot].since,
            Self::Cold(block) => shared.blocks.run(block).map_or(UnixMillis::NEVER, |run| run.first_since),
            Self::None => UnixMillis::NEVER,
        }
    }
}

impl Queue {
    pub(crate) fn new(id: QueueId, version: u64, config: QueueConfig, now: UnixMillis) -> Self {
        Self {
            id,
            version,
            lanes: (0..config.levels).map(|_| Lane::default()).collect(),
            visible: LevelSet::default(),
            ids: SortedSlots::default(),
            waiting: SortedSlots::default(),
            dead: SortedSlots::default(),
            body_bytes: 0,
            delayed_runs: BTreeSet::new(),
            cold: 0,
            cold_body_bytes: 0,
            dedup: Dedup::default(),
            forget_at: None,
            scheduler: Scheduler::new(&config),
            limiter: limiter(&config, None, now),
            totals: Totals::default(),
            workers: BTreeMap::new(),
            jobs: Vec::new(),
            last_job: 0,
            changed: false,
            config,
        }
    }

    /// Changes the configuration. The number of levels is fixed at creation: one that differs is not believed.
    pub(crate) fn reconfigure(&mut self, shared: &mut Shared, version: u64, config: QueueConfig) {
        if version <= self.version || config.levels != self.config.levels {
            return;
        }
        self.version = version;
        self.scheduler.reconfigure(&config);
        self.limiter = limiter(&config, self.limiter.take(), shared.time);
        self.config = config;
        for level in self.visible.iter() {
            let starvation_ms = self.config.starvation_ms(level.0);
            self.lanes[usize::from(level.0)].hunger.set_alarm(shared, self.id, level, starvation_ms);
        }
        self.mark_changed(shared);
    }

    pub(crate) fn mark_changed(&mut self, shared: &mut Shared) {
        if !self.changed {
            self.changed = true;
            shared.changed.push(self.id);
        }
    }

    /// Visible, delayed and leased messages.
    pub(crate) fn depth(&self) -> u64 {
        let unseen = if is_planted(Bug::DepthWithoutLeased) {
            self.lanes.iter().map(|lane| lane.leased).sum()
        } else {
            0
        };
        self.ids.len() as u64 + self.cold - unseen
    }

    /// Their body bytes.
    pub(crate) fn depth_bytes(&self) -> u64 {
        self.body_bytes + self.cold_body_bytes
    }

    /// Whether one more message of so many body bytes keeps the queue within its depth, or which limit it breaks.
    pub(crate) fn room_for(&self, body_bytes: u64) -> Result<(), crate::command::RefusedReason> {
        use crate::command::RefusedReason;
        if self.config.max_depth.is_some_and(|max| self.depth() >= max) {
            return Err(RefusedReason::Depth);
        }
        if self.config.max_bytes.is_some_and(|max| self.depth_bytes().saturating_add(body_bytes) > max) {
            return Err(RefusedReason::Bytes);
        }
        Ok(())
    }

    /// A level that the queue has: what is beyond its levels counts as its least urgent one.
    pub(crate) fn level(&self, level: Level) -> Level {
        Level(level.0.min(self.config.levels - 1))
    }

    pub(crate) fn lane(&mut self, level: Level) -> &mut Lane {
        &mut self.lanes[usize::from(level.0)]
    }

    pub(crate) fn retention_ms(&self) -> u64 {
        self.config.retention_s.saturating_mul(1_000)
    }

    /// The lane's next delivery.
    pub(crate) fn head(&self, shared: &Shared, level: Level) -> Head {
        Head::of(&self.lanes[usize::from(level.0)], shared)
    }

    /// The head's first visibility; never where the lane has no visible message.
    pub(crate) fn head_since(&self, shared: &Shared, level: Level) -> UnixMillis {
        self.head(shared, level).since(shared)
    }

    /// The living message or dead letter with this id, if it is in memory.
    pub(crate) fn find(&self, shared: &Shared, id: MessageId) -> Option<u32> {
        let key_of = |slot: u32| shared.messages[slot].id().0;
        self.ids.get(id.0, key_of).or_else(|| self.dead.get(id.0, key_of))
    }

    /// Takes in a message that is in no structure yet, in the state it says.
    pub(crate) fn admit(&mut self, shared: &mut Shared, message: Message, extra: Option<Extra>) -> u32 {
        let slot = shared.store(message);
        if let Some(extra) = extra {
            *shared.messages.extra_mut(slot) = extra;
        }
        if is_living(message.state) {
            shared.name(slot);
            self.list(shared, slot);
        }
        self.enter(shared, slot);
        slot
    }

    /// Changes a message's state: takes it out of where it is, lets `change` write down what is new about it, and puts
    /// it where it belongs then.
    pub(crate) fn shift(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        event: Event,
        change: impl FnOnce(&mut Shared, u32),
    ) {
        let before = shared.messages[slot].state;
        self.leave(shared, slot);
        shared.messages[slot].happens(event);
        let after = shared.messages[slot].state;
        match (is_living(before), is_living(after)) {
            (true, false) => self.unlist(shared, slot),
            (false, true) => self.list(shared, slot),
            _ => {}
        }
        change(shared, slot);
        if after == State::Gone {
            shared.free(slot);
        } else {
            self.enter(shared, slot);
        }
    }

    /// Forgets everything, when the queue is deleted.
    pub(crate) fn clear(&mut self, shared: &mut Shared) {
        let slots: Vec<u32> = self.ids.iter().chain(self.dead.iter()).collect();
        for slot in slots {
            self.leave(shared, slot);
            shared.sequences.remove(shared.messages[slot].sequence.0);
            shared.free(slot);
        }
        self.drop_runs(shared);
        shared.jobs.remove(&self.id);
        if let Some(at) = self.forget_at.take() {
            shared.forgets.remove(&(at, self.id));
        }
    }

    fn list(&mut self, shared: &Shared, slot: u32) {
        let message = &shared.messages[slot];
        self.body_bytes += u64::from(message.body_bytes);
        self.ids.insert(message.id().0, slot, |slot| shared.messages[slot].id().0);
    }

    pub(crate) fn unlist(&mut self, shared: &mut Shared, slot: u32) {
        let message = &shared.messages[slot];
        self.body_bytes -= u64::from(message.body_bytes);
        self.ids.remove(message.id().0, slot);
        shared.sequences.remove(message.sequence.0);
    }

    fn enter(&mut self, shared: &mut Shared, slot: u32) {
        self.mark_changed(shared);
        shared.set_timer(slot);
        let message = &shared.messages[slot];
        let level = message.level;
        let lane = &mut self.lanes[usize::from(level.0)];
        match message.state {
            State::Visible => {
                lane.ready.insert(message.sequence.0, slot, |slot| shared.messages[slot].sequence.0);
                if lane.visible() == 1 {
                    self.visible.insert(level);
                    let starvation_ms = self.config.starvation_ms(level.0);
                    lane.hunger.begin(shared, self.id, level, starvation_ms);
                }
            }
            State::Delayed => {
                lane.delayed += 1;
                if message.sequence == NO_SEQUENCE {
                    self.waiting
                        .insert(waiting_key(message), slot, |slot| waiting_key(&shared.messages[slot]));
                }
            }
            State::Leased => {
                lane.leased += 1;
                if let Some(worker) = shared.messages.extra(slot).and_then(|extra| extra.worker.as_ref()) {
                    match self.workers.get_mut(worker) {
                        Some(leased) => *leased += 1,
                        None => {
                            self.workers.insert(worker.clone(), 1);
                        }
                    }
                }
            }
            State::Dead => self.dead.insert(message.id().0, slot, |slot| shared.messages[slot].id().0),
            State::Gone => {}
        }
    }

    pub(crate) fn leave(&mut self, shared: &mut Shared, slot: u32) {
        self.mark_changed(shared);
        let waiting_at = waiting_key(&shared.messages[slot]);
        shared.clear_timer(slot);
        let message = &mut shared.messages[slot];
        let level = message.level;
        let lane = &mut self.lanes[usize::from(level.0)];
        match message.state {
            State::Visible => {
                lane.ready.remove(message.sequence.0, slot);
                self.look_at_lane(shared, level);
            }
            State::Delayed => {
                lane.delayed -= 1;
                if message.sequence == NO_SEQUENCE {
                    self.waiting.remove(waiting_at, slot);
                }
            }
            State::Leased => {
                lane.leased -= 1;
                message.flags &= !LEASE_FLAGS;
                if let Some(worker) = shared.messages.take_worker(slot) {
                    self.worker_less(&worker);
                }
            }
            State::Dead => {
                self.dead.remove(message.id().0, slot);
            }
            State::Gone => {}
        }
    }

    /// The lane lost visible work: it may have none left.
    pub(crate) fn look_at_lane(&mut self, shared: &mut Shared, level: Level) {
        let lane = &mut self.lanes[usize::from(level.0)];
        if lane.visible() == 0 {
            self.visible.remove(level);
            lane.hunger.end(shared, self.id, level);
        }
    }

    fn worker_less(&mut self, worker: &Arc<str>) {
        if let Some(leased) = self.workers.get_mut(worker) {
            *leased -= 1;
            if *leased == 0 {
                self.workers.remove(worker);
            }
        }
    }

    pub(crate) fn summary(&self, shared: &Shared) -> Summary {
        let levels = self.visible.iter().map(|level| LevelSummary {
            level,
            visible: self.lanes[usize::from(level.0)].visible(),
            head_since: self.head_since(shared, level),
        });
        let (depth, body_bytes) = (self.depth(), self.depth_bytes());
        Summary { queue: self.id, depth, body_bytes, levels: levels.collect() }
    }
}

/// Place in the order of first visibility: by time, then by when the timer was set.
fn waiting_key(message: &Message) -> u128 {
    u128::from(message.due.0) << u64::BITS | u128::from(message.order)
}

fn is_living(state: State) -> bool {
    matches!(state, State::Delayed | State::Visible | State::Leased)
}

fn limiter(config: &QueueConfig, old: Option<RateLimiter>, now: UnixMillis) -> Option<RateLimiter> {
    if config.rate_caps.is_empty() {
        return None;
    }
    Some(match old {
        Some(mut limiter) => {
            limiter.reconfigure(&config.rate_caps, now);
            limiter
        }
        None => RateLimiter::new(&config.rate_caps, now),
    })
}
