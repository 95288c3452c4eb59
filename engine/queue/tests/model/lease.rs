//! Handing out leases in the model, and taking them back.

use super::Shard;
use super::message::{Message, State};
use super::mutation::Mutation;
use super::queue::Queue;
use overtake_base::queue_config::Scheduling;
use overtake_base::{Level, UnixMillis};
use overtake_queue::answer::Delivery;
use overtake_queue::command::{Lease, LeaseKey, LevelChoice, Pick};

/// A request while it is served.
struct Request<'a> {
    lease: &'a Lease,
    /// Levels that the planner says are held back: they stand in for nothing.
    barred: Vec<Level>,
    /// The next message would have been too many bytes.
    full: bool,
    deliveries: Vec<Delivery>,
}

impl Request<'_> {
    fn is_done(&self) -> bool {
        self.full || self.deliveries.len() >= self.lease.max as usize
    }
}

impl Queue {
    pub fn lease(&mut self, shard: &mut Shard, lease: &Lease) -> Vec<Delivery> {
        let mut request = Request { lease, barred: Vec::new(), full: false, deliveries: Vec::new() };
        match &lease.choice {
            LevelChoice::Scheduled => self.lease_scheduled(shard, &mut request),
            LevelChoice::UpTo(ceiling) => {
                let too_far = u8::from(shard.has(Mutation::CeilingTooHigh));
                self.lease_up_to(shard, &mut request, Level(ceiling.0.saturating_add(too_far)));
            }
            LevelChoice::Picks { picks, barred } => {
                if !shard.has(Mutation::PlannersBarsIgnored) {
                    request.barred = barred.iter().collect();
                }
                picks.iter().for_each(|pick| self.lease_pick(shard, &mut request, *pick));
            }
        }
        request.deliveries
    }

    /// The shard's scheduler is asked for each message.
    fn lease_scheduled(&mut self, shard: &mut Shard, request: &mut Request<'_>) {
        while !request.is_done() {
            let levels = self.levels_with_work(shard);
            let heads: Vec<(Level, UnixMillis)> =
                levels.iter().map(|level| (*level, self.head_since(*level))).collect();
            let Some(chosen) = self.scheduler.choose(&self.config, &heads, shard.now) else { return };
            if self.deliver(shard, request, chosen.level, chosen.share, true) {
                self.scheduler.delivered(&self.config, chosen, &levels);
            }
        }
    }

    fn lease_up_to(&mut self, shard: &mut Shard, request: &mut Request<'_>, ceiling: Level) {
        while !request.is_done() {
            let levels = self.levels_with_work(shard).into_iter().filter(|level| *level <= ceiling);
            let Some(level) = self.most_urgent(shard, levels) else { return };
            self.deliver(shard, request, level, false, false);
        }
    }

    /// A share takes exactly its level. Otherwise what is more urgent by now goes first, by effective level where the queue
    /// ages; but nothing with a cap of its own.
    fn lease_pick(&mut self, shard: &mut Shard, request: &mut Request<'_>, pick: Pick) {
        let picked = self.level(pick.level);
        let mut left = pick.count;
        while left > 0 && !request.is_done() {
            let has_cap = |level: &Level| {
                self.config.rate_caps.levels.contains_key(&level.0) && !shard.has(Mutation::PickTakesCapped)
            };
            let stands_in = |level: &Level| match self.config.scheduling {
                _ if pick.share || has_cap(level) || request.barred.contains(level) => false,
                Scheduling::Aging => self.urgency(shard, *level) <= picked.0,
                Scheduling::Weighted | Scheduling::Strict => *level < picked,
            };
            let levels = self.levels_with_work(shard).into_iter();
            let levels = levels.filter(|level| *level == picked || stands_in(level));
            let Some(level) = self.most_urgent(shard, levels) else { return };
            if self.deliver(shard, request, level, pick.share, false) {
                left -= 1;
            }
        }
    }

    /// Delivers the first message of the level, unless a cap or the request's bytes say no.
    fn deliver(
        &mut self,
        shard: &mut Shard,
        request: &mut Request<'_>,
        level: Level,
        share: bool,
        scheduled: bool,
    ) -> bool {
        let at = self.head(level).expect("a level with visible work");
        let given: u64 = request.deliveries.iter().map(|delivery| u64::from(delivery.payload.length)).sum();
        let length = u64::from(self.messages[at].payload.length);
        if !request.deliveries.is_empty() && given.saturating_add(length) > request.lease.max_bytes {
            request.full = true;
            return false;
        }
        let inversion = !share && self.is_inversion(shard, &self.messages[at], request);
        let taken = self.limiter.try_take(level, shard.now);
        assert!(taken || shard.has(Mutation::CapsIgnored), "levels that are held back have no work");
        let lease_ms = request.lease.lease_ms.unwrap_or(u64::from(self.config.lease_s) * 1_000);
        let until = shard.now.plus_ms(lease_ms);
        self.totals.deliveries += 1;
        self.totals.share_deliveries += u64::from(share && !shard.has(Mutation::SharesUncounted));
        self.totals.inversions += u64::from(inversion);
        self.hungry[usize::from(level.0)] = Some((shard.now, false));
        self.messages[at].deliveries += 1;
        let worker = request.lease.worker.clone();
        self.set_state(shard, at, State::Leased { until, worker, share, inversion, scheduled });
        let message = &self.messages[at];
        request.deliveries.push(Delivery {
            id: message.id,
            key: LeaseKey {
                sequence: message.sequence.expect("was visible"),
                deliveries: message.deliveries,
            },
            priority: level,
            share,
            enqueued_at: message.enqueued_at,
            lease_expires_at: until,
            payload: message.payload,
        });
        true
    }

    /// Takes back a lease that reached nobody: as if it had not been.
    pub fn unlease(&mut self, shard: &mut Shard, key: LeaseKey) {
        let Some(at) = self.messages.iter().position(|message| {
            message.sequence == Some(key.sequence)
                && message.deliveries == key.deliveries
                && message.is_leased()
        }) else {
            return;
        };
        let State::Leased { share, inversion, scheduled, .. } = self.messages[at].state else { return };
        if !shard.has(Mutation::UnleaseStaysCounted) {
            self.totals.deliveries -= 1;
        }
        self.totals.share_deliveries -= u64::from(share && !shard.has(Mutation::SharesUncounted));
        self.totals.inversions -= u64::from(inversion);
        let message = &mut self.messages[at];
        message.deliveries -= 1;
        message.failures += u32::from(shard.has(Mutation::UnleaseIsFailure));
        let level = message.level;
        self.limiter.give_back(level, shard.now);
        if scheduled {
            self.scheduler.undone(&self.config, level, share);
        }
        if self.messages[at].expires_at(shard) <= shard.now {
            self.expire(shard, at);
        } else {
            self.set_state(shard, at, State::Visible);
        }
    }

    /// The message of this level that goes first.
    pub fn head(&self, level: Level) -> Option<usize> {
        let visible = self.messages.iter().enumerate().filter(|(_, m)| m.is_visible() && m.level == level);
        visible.min_by_key(|(_, message)| message.sequence).map(|(at, _)| at)
    }

    pub fn head_since(&self, level: Level) -> UnixMillis {
        self.head(level).map_or(UnixMillis::NEVER, |at| self.messages[at].since)
    }

    /// Levels with something visible that no cap holds back.
    fn levels_with_work(&self, shard: &Shard) -> Vec<Level> {
        let has_work = |level: &Level| self.hungry[usize::from(level.0)].is_some();
        (0..self.config.levels)
            .map(Level)
            .filter(has_work)
            .filter(|level| !self.is_held_back(shard, *level))
            .collect()
    }

    fn is_held_back(&self, shard: &Shard, level: Level) -> bool {
        self.limiter.ready_at(level, shard.now) > shard.now && !shard.has(Mutation::CapsIgnored)
    }

    fn most_urgent(&self, shard: &Shard, levels: impl Iterator<Item = Level>) -> Option<Level> {
        levels.min_by_key(|level| match self.config.scheduling {
            Scheduling::Aging => (self.urgency(shard, *level), self.head_since(*level), *level),
            Scheduling::Weighted | Scheduling::Strict => (level.0, UnixMillis(0), *level),
        })
    }

    /// Effective level of a level's first message.
    fn urgency(&self, shard: &Shard, level: Level) -> u8 {
        self.head(level).map_or(u8::MAX, |at| self.effective(shard, &self.messages[at]))
    }

    /// A message's level; where the queue ages, one more urgent for each `aging_s` waited.
    fn effective(&self, shard: &Shard, message: &Message) -> u8 {
        if self.config.scheduling != Scheduling::Aging {
            return message.level.0;
        }
        let steps = shard.now.since(message.since) / (self.config.aging_s * 1_000);
        u64::from(message.level.0).saturating_sub(steps) as u8
    }

    /// Whether something that is two or more levels more urgent, and not held back by a cap, has been visible for over
    /// 100 ms.
    fn is_inversion(&self, shard: &Shard, delivered: &Message, request: &Request<'_>) -> bool {
        let own = self.effective(shard, delivered);
        let urgent = |other: &&Message| {
            other.is_visible()
                && self.effective(shard, other).saturating_add(2) <= own
                && shard.now.since(other.since) > 100
        };
        let held_back = |level| self.is_held_back(shard, level) || request.barred.contains(&level);
        self.messages.iter().filter(urgent).any(|other| !held_back(other.level))
    }
}
