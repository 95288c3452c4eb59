//! Handing out leases: which level gives the next message, and what a delivery leaves behind.

use crate::answer::Delivery;
use crate::command::{Lease, LeaseKey, LevelChoice, Pick};
use crate::life_cycle::Event;
use crate::message::{CHARGED, INVERSION, SHARE, WAIT_RECORDED};
use crate::queue::{Head, Queue};
use crate::scheduler::{Choice, LevelSet};
use crate::shared::Shared;
use overtake_base::limits::INVERSION_BOUND_MS;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::queue_config::Scheduling;
use overtake_base::{Level, UnixMillis};
use std::sync::Arc;

/// A lease request while it is served.
struct Run {
    left: u32,
    bytes_left: u64,
    expires_at: UnixMillis,
    worker: Option<Arc<str>>,
    /// Levels that a rate cap holds back.
    barred: LevelSet,
    /// Those that the planner knows of: they stand in for nothing.
    barred_by_planner: LevelSet,
    deliveries: Vec<Delivery>,
}

/// What came of asking a level for a message.
#[derive(PartialEq, Eq)]
enum Asked {
    Delivered,
    /// The level's rate cap, or the queue's, allows none now.
    Barred,
    /// The request's bytes are used up, or the level's next message is not in memory: nothing goes past it.
    Full,
}

impl Queue {
    /// Hands out leases. Heads whose time to live is over are dropped on the way, never delivered.
    pub(crate) fn lease(&mut self, shared: &mut Shared, lease: &Lease) -> Vec<Delivery> {
        let default_ms = u64::from(self.config.lease_s) * 1_000;
        let mut run = Run {
            left: lease.max,
            bytes_left: lease.max_bytes,
            expires_at: shared.time.plus_ms(lease.lease_ms.unwrap_or(default_ms)),
            worker: lease.worker.as_deref().map(Into::into),
            barred: self.barred(shared.time),
            barred_by_planner: LevelSet::default(),
            deliveries: Vec::with_capacity((lease.max as usize).min(self.ids.len()).min(1_024)),
        };
        for level in self.visible.iter() {
            self.drop_expired_heads(shared, level);
        }
        match &lease.choice {
            LevelChoice::Scheduled => self.lease_scheduled(shared, &mut run),
            LevelChoice::UpTo(ceiling) => self.lease_up_to(shared, &mut run, *ceiling),
            LevelChoice::Picks { picks, barred } => {
                run.barred_by_planner = *barred;
                picks.iter().all(|pick| self.lease_pick(shared, &mut run, *pick))
            }
        };
        run.deliveries
    }

    fn lease_scheduled(&mut self, shared: &mut Shared, run: &mut Run) -> bool {
        while run.left > 0 {
            let visible = self.visible.without(run.barred);
            let Some(choice) = self.scheduled(shared, visible) else { break };
            match self.ask(shared, run, choice.level, if choice.share { SHARE | CHARGED } else { CHARGED }) {
                Asked::Delivered => self.scheduler.charge(choice, visible),
                Asked::Barred => {}
                Asked::Full => break,
            }
        }
        true
    }

    fn scheduled(&self, shared: &Shared, visible: LevelSet) -> Option<Choice> {
        let head_since = |level: Level| self.head_since(shared, level);
        self.scheduler.choose(visible, &head_since, shared.time)
    }

    fn lease_up_to(&mut self, shared: &mut Shared, run: &mut Run, ceiling: Level) -> bool {
        while run.left > 0 {
            let Some(level) = self.most_urgent(shared, self.visible.up_to(ceiling).without(run.barred))
            else {
                break;
            };
            if self.ask(shared, run, level, 0) == Asked::Full {
                return false;
            }
        }
        true
    }

    /// Serves one pick of a planner; false where the request is full.
    fn lease_pick(&mut self, shared: &mut Shared, run: &mut Run, pick: Pick) -> bool {
        let mut wanted = pick.count;
        while wanted > 0 && run.left > 0 {
            let Some(level) = self.picked(shared, pick, run.barred, run.barred_by_planner) else { break };
            match self.ask(shared, run, level, if pick.share { SHARE } else { 0 }) {
                Asked::Delivered => wanted -= 1,
                Asked::Barred => {}
                Asked::Full => return false,
            }
        }
        run.left > 0
    }

    /// The level that a pick's next message comes from.
    fn picked(
        &self,
        shared: &Shared,
        pick: Pick,
        barred: LevelSet,
        barred_by_planner: LevelSet,
    ) -> Option<Level> {
        let picked = self.level(pick.level);
        // Something more urgent may have come since the planner looked. A share takes exactly its level.
        let aging = self.config.scheduling == Scheduling::Aging;
        let candidates = match (pick.share, aging) {
            (true, _) => LevelSet::default(),
            (false, true) => self.visible,
            (false, false) => self.visible.up_to(picked),
        };
        let own = self.visible.iter().filter(|level| *level == picked).collect();
        let candidates = candidates.without(self.capped_levels()).without(barred_by_planner).or(own);
        let level = self.most_urgent(shared, candidates.without(barred))?;
        let goes = !aging || level == picked || self.goes_before(shared, level, picked);
        goes.then_some(level)
    }

    /// The least urgent level that a lease may take messages from.
    pub(crate) fn least_urgent(&self, choice: &LevelChoice) -> Level {
        let picked = match choice {
            LevelChoice::UpTo(ceiling) => Some(*ceiling),
            // Whatever has waited long enough goes before what was picked.
            LevelChoice::Picks { .. } if self.config.scheduling == Scheduling::Aging => None,
            LevelChoice::Picks { picks, .. } => picks.iter().map(|pick| pick.level).max(),
            LevelChoice::Scheduled => None,
        };
        picked.unwrap_or(Level(u8::MAX))
    }

    /// The level that a lease would take its first message from now.
    pub(crate) fn first_level(&self, shared: &Shared, choice: &LevelChoice) -> Option<Level> {
        let barred = self.barred(shared.time);
        match choice {
            LevelChoice::Scheduled => Some(self.scheduled(shared, self.visible.without(barred))?.level),
            LevelChoice::UpTo(ceiling) => {
                self.most_urgent(shared, self.visible.up_to(*ceiling).without(barred))
            }
            LevelChoice::Picks { picks, barred: by_planner } => {
                picks.iter().find_map(|pick| self.picked(shared, *pick, barred, *by_planner))
            }
        }
    }

    /// Whether the head of `level` is more urgent by its effective level than `picked` is. Where the picked level has
    /// nothing here any more its own number counts: waiting only makes more urgent.
    fn goes_before(&self, shared: &Shared, level: Level, picked: Level) -> bool {
        self.effective(shared, level) <= picked.0
    }

    /// The level whose head goes first: by level, or by effective level and age where the queue ages.
    fn most_urgent(&self, shared: &Shared, levels: LevelSet) -> Option<Level> {
        if self.config.scheduling != Scheduling::Aging {
            return levels.first();
        }
        levels
            .iter()
            .min_by_key(|level| (self.effective(shared, *level), self.head_since(shared, *level), *level))
    }

    /// Effective level of a level's head: one more urgent for each `aging_s` waited.
    fn effective(&self, shared: &Shared, level: Level) -> u8 {
        let since = self.head_since(shared, level);
        effective_level(level, since, self.config.aging_s, shared.time)
    }

    /// Delivers the head of a level with visible work, if cap and bytes allow it.
    fn ask(&mut self, shared: &mut Shared, run: &mut Run, level: Level, flags: u8) -> Asked {
        let slot = match self.head(shared, level) {
            Head::Hot(slot) => slot,
            Head::Cold(_) => return self.ask_cold(shared, run, level),
            Head::None => return Asked::Barred,
        };
        let bytes = u64::from(shared.messages[slot].payload.length);
        if bytes > run.bytes_left && !run.deliveries.is_empty() {
            return Asked::Full;
        }
        if self.limiter.as_mut().is_some_and(|limiter| !limiter.try_take(level, shared.time)) {
            run.barred.insert(level);
            return Asked::Barred;
        }
        run.left -= 1;
        run.bytes_left = run.bytes_left.saturating_sub(bytes);
        let delivery = self.deliver(shared, run, slot, flags);
        run.deliveries.push(delivery);
        run.barred = self.barred(shared.time);
        self.drop_expired_heads(shared, level);
        Asked::Delivered
    }

    /// What a cap holds back is out of the question, wherever it stands; else the request ends here.
    fn ask_cold(&self, shared: &Shared, run: &mut Run, level: Level) -> Asked {
        let now = shared.time;
        if self.limiter.as_ref().is_some_and(|limiter| limiter.ready_at(level, now) > now) {
            run.barred.insert(level);
            return Asked::Barred;
        }
        Asked::Full
    }

    fn deliver(&mut self, shared: &mut Shared, run: &Run, slot: u32, flags: u8) -> Delivery {
        let share = flags & SHARE != 0;
        let inverted = !share && self.is_inversion(shared, slot, run.barred.or(run.barred_by_planner));
        self.count_delivery(shared, slot, share, inverted);
        let expires_at = run.expires_at;
        self.shift(shared, slot, Event::Lease, |shared, slot| {
            if let Some(worker) = &run.worker {
                shared.messages.extra_mut(slot).worker = Some(worker.clone());
            }
            let message = &mut shared.messages[slot];
            message.deliveries = message.deliveries.saturating_add(1);
            let early_ms = if is_planted(Bug::EarlyExpiry) { 500 } else { 0 };
            message.due = UnixMillis(expires_at.0 - early_ms);
            message.flags |= flags | WAIT_RECORDED | if inverted { INVERSION } else { 0 };
        });
        let message = &shared.messages[slot];
        Delivery {
            id: message.id(),
            key: LeaseKey { sequence: message.sequence, deliveries: message.deliveries },
            priority: message.level,
            share,
            enqueued_at: message.enqueued_at,
            lease_expires_at: expires_at,
            payload: message.payload,
        }
    }

    fn count_delivery(&mut self, shared: &mut Shared, slot: u32, share: bool, inverted: bool) {
        self.totals.deliveries += 1;
        self.totals.share_deliveries += u64::from(share);
        self.totals.inversions += u64::from(inverted);
        let message = &shared.messages[slot];
        let (level, since, first) = (message.level, message.since, !message.has(WAIT_RECORDED));
        let starvation_ms = self.config.starvation_ms(level.0);
        let lane = &mut self.lanes[usize::from(level.0)];
        if first {
            lane.waits.record(shared.time.since(since), shared.time);
        }
        lane.hunger.feed(shared, self.id, level, starvation_ms);
    }

    /// Whether something two or more levels more urgent has been visible for longer than the bound. What a rate cap holds
    /// back is not passed over.
    fn is_inversion(&self, shared: &Shared, slot: u32, barred: LevelSet) -> bool {
        let message = &shared.messages[slot];
        let now = shared.time;
        let visible = self.visible.without(barred);
        let overdue = |level: Level| now.since(self.head_since(shared, level)) > INVERSION_BOUND_MS;
        if self.config.scheduling == Scheduling::Aging {
            let own = effective_level(message.level, message.since, self.config.aging_s, now);
            return own >= 2
                && visible.iter().any(|level| self.effective(shared, level) + 2 <= own && overdue(level));
        }
        message.level.0 >= 2 && visible.up_to(Level(message.level.0 - 2)).iter().any(overdue)
    }

    /// Levels that rate caps hold back now.
    pub(crate) fn barred(&self, now: UnixMillis) -> LevelSet {
        self.limiter.as_ref().map_or(LevelSet::default(), |limiter| limiter.barred(self.visible, now))
    }

    /// Levels with a rate cap of their own.
    fn capped_levels(&self) -> LevelSet {
        self.config.rate_caps.levels.keys().map(|level| Level(*level)).collect()
    }

    fn drop_expired_heads(&mut self, shared: &mut Shared, level: Level) {
        while let Head::Hot(slot) = self.head(shared, level) {
            if shared.messages[slot].expires_at() > shared.time {
                break;
            }
            self.expire(shared, slot);
        }
    }

    /// Takes back a lease that reached nobody, with everything that it counted.
    pub(crate) fn unlease(&mut self, shared: &mut Shared, key: LeaseKey) {
        let Some(slot) = self.leased_under(shared, key) else { return };
        let message = &shared.messages[slot];
        let (level, share, charged) = (message.level, message.has(SHARE), message.has(CHARGED));
        self.totals.deliveries -= 1;
        self.totals.share_deliveries -= u64::from(share);
        self.totals.inversions -= u64::from(message.has(INVERSION));
        if charged {
            self.scheduler.refund(level, share);
        }
        if let Some(limiter) = &mut self.limiter {
            limiter.give_back(level);
        }
        let over = message.expires_at() <= shared.time;
        shared.messages[slot].deliveries -= 1;
        if over {
            self.expire(shared, slot);
        } else {
            self.shift(shared, slot, Event::Unlease, |_, _| {});
        }
    }
}

/// A level after waiting since `since`: one more urgent for each `aging_s`.
fn effective_level(level: Level, since: UnixMillis, aging_s: u64, now: UnixMillis) -> u8 {
    let steps = now.since(since) / aging_s.saturating_mul(1_000).max(1);
    level.0.saturating_sub(u8::try_from(steps).unwrap_or(u8::MAX))
}
