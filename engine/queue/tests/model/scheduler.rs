//! Which level is next, in the model: the rule that the text of `overtake_queue::scheduler` states, with virtual times
//! as they are instead of leads, and nothing worked out before it is needed.

use super::mutation::Mutation;
use overtake_base::queue_config::Scheduling;
use overtake_base::{Level, QueueConfig, UnixMillis};

/// A delivery, in millionths.
const ONE: i64 = 1_000_000;
/// Deliveries of one receive and one more: no more is ever owed.
const OWED_MAX: i64 = 1_001 * ONE;

pub struct Scheduler {
    /// Millionths of a delivery that levels 1.. and the two least urgent levels are owed.
    reserve_owed: i64,
    floor_owed: i64,
    all: Clock,
    floor: Clock,
    mutation: Mutation,
}

/// Virtual times of all levels, and the present.
struct Clock {
    present: i128,
    times: Vec<i128>,
}

/// A delivery that was chosen and is not made yet.
#[derive(Clone, Copy)]
pub struct Chosen {
    pub level: Level,
    pub share: bool,
}

fn step(config: &QueueConfig, level: Level) -> i128 {
    let weight = i128::from(config.weights_micro[usize::from(level.0)]);
    (1i128 << 40) * 1_000_000_000_000_000 / weight
}

/// Whether a level is one of the two least urgent ones, which level 0 never is.
fn is_floor(config: &QueueConfig, level: Level) -> bool {
    level.0 > 0 && level.0 + 2 >= config.levels
}

impl Clock {
    fn new(levels: u8) -> Self {
        Self { present: 0, times: vec![0; usize::from(levels)] }
    }

    /// No level is before the present.
    fn time(&self, level: Level) -> i128 {
        self.times[usize::from(level.0)].max(self.present)
    }

    fn set(&mut self, level: Level, time: i128) {
        self.times[usize::from(level.0)] = time;
    }

    fn earliest(&self, levels: &[Level]) -> Option<Level> {
        levels.iter().copied().min_by_key(|level| (self.time(*level), *level))
    }

    fn deliver(&mut self, level: Level, with_work: &[Level], step: i128, idle_keep: bool) {
        let present = with_work.iter().map(|level| self.time(*level)).min().expect("the level has work");
        let time = self.time(level);
        // A fault: the present stands still, and a level that comes back makes up for its idleness.
        self.present = if idle_keep { self.present } else { present };
        self.set(level, time.max(present + step));
    }

    fn step_back(&mut self, level: Level, step: i128) {
        self.set(level, (self.time(level) - step).max(self.present));
    }

    fn take_back(&mut self, level: Level, step: i128) {
        for level in (0..self.times.len()).map(|level| Level(level as u8)) {
            self.set(level, self.time(level));
        }
        self.set(level, self.time(level) - step);
        self.present = self.present.min(self.times[usize::from(level.0)]);
    }
}

impl Scheduler {
    pub fn new(config: &QueueConfig, mutation: Mutation) -> Self {
        let clock = || Clock::new(config.levels);
        Self { reserve_owed: 0, floor_owed: 0, all: clock(), floor: clock(), mutation }
    }

    /// The weights changed: nobody waits longer than a new step.
    pub fn reconfigure(&mut self, config: &QueueConfig) {
        for clock in [&mut self.all, &mut self.floor] {
            for level in (0..config.levels).map(Level) {
                let latest = clock.present + step(config, level);
                clock.set(level, clock.time(level).min(latest));
            }
        }
    }

    /// `heads`: of each level with work, the first visibility of its first message.
    pub fn choose(
        &self,
        config: &QueueConfig,
        heads: &[(Level, UnixMillis)],
        now: UnixMillis,
    ) -> Option<Chosen> {
        let most_urgent = heads.iter().map(|(level, _)| *level).min()?;
        if config.scheduling == Scheduling::Strict {
            return Some(Chosen { level: most_urgent, share: false });
        }
        let lower: Vec<(Level, UnixMillis)> =
            heads.iter().copied().filter(|(level, _)| level.0 > 0).collect();
        let tail: Vec<Level> =
            lower.iter().map(|(level, _)| *level).filter(|level| is_floor(config, *level)).collect();
        let by_mode = self.by_mode(config, heads, now)?;
        let floor_owed = self.floor_owed + i64::from(config.floor_ppm) >= ONE;
        let reserve_owed = self.reserve_owed + i64::from(config.reserve_ppm) >= ONE;
        let level = if floor_owed && !tail.is_empty() && !tail.contains(&by_mode) {
            self.floor.earliest(&tail)?
        } else if reserve_owed && !lower.is_empty() && by_mode == Level(0) {
            self.by_mode(config, &lower, now)?
        } else {
            by_mode
        };
        // What age wins is not a share.
        let unowed = if config.scheduling == Scheduling::Aging { by_mode } else { most_urgent };
        Some(Chosen { level, share: level != unowed })
    }

    fn by_mode(&self, config: &QueueConfig, heads: &[(Level, UnixMillis)], now: UnixMillis) -> Option<Level> {
        let levels: Vec<Level> = heads.iter().map(|(level, _)| *level).collect();
        if config.scheduling == Scheduling::Aging {
            let effective = |(level, since): &(Level, UnixMillis)| {
                let steps = now.since(*since) / (config.aging_s * 1_000);
                (u64::from(level.0).saturating_sub(steps), *since, *level)
            };
            return heads.iter().min_by_key(|head| effective(head)).map(|(level, _)| *level);
        }
        if levels.contains(&Level(0)) { Some(Level(0)) } else { self.all.earliest(&levels) }
    }

    /// The delivery was made; `with_work` had work before it.
    pub fn delivered(&mut self, config: &QueueConfig, chosen: Chosen, with_work: &[Level]) {
        if config.scheduling == Scheduling::Strict {
            return;
        }
        let idle_keep = self.mutation == Mutation::IdleFloorLevelBanks;
        let level = chosen.level;
        let lower: Vec<Level> = with_work.iter().copied().filter(|level| level.0 > 0).collect();
        let tail: Vec<Level> = lower.iter().copied().filter(|level| is_floor(config, *level)).collect();
        earn(&mut self.reserve_owed, config.reserve_ppm, !lower.is_empty());
        earn(&mut self.floor_owed, config.floor_ppm, !tail.is_empty());
        if level == Level(0) {
            return;
        }
        self.reserve_owed -= ONE;
        // Beside level 0 one delivery can be had in advance; what level 0 leaves is no advance.
        let advance = if with_work.contains(&Level(0)) { ONE } else { 0 };
        self.reserve_owed = self.reserve_owed.max(-advance);
        self.all.deliver(level, &lower, step(config, level), false);
        if is_floor(config, level) {
            self.floor_owed = (self.floor_owed - ONE).max(0);
            self.floor.deliver(level, &tail, step(config, level), idle_keep);
        }
    }

    /// A delivery was undone.
    pub fn undone(&mut self, config: &QueueConfig, level: Level, share: bool) {
        if config.scheduling == Scheduling::Strict || level == Level(0) {
            return;
        }
        let step = step(config, level);
        self.reserve_owed = (self.reserve_owed + ONE).min(OWED_MAX);
        self.floor.step_back(level, step);
        if is_floor(config, level) {
            self.floor_owed = (self.floor_owed + ONE).min(OWED_MAX);
        }
        if share {
            self.all.step_back(level, step);
        } else {
            self.all.take_back(level, step);
        }
    }
}

/// What levels with work earn by a delivery; those without any keep one delivery at most.
fn earn(owed: &mut i64, ppm: u32, with_work: bool) {
    *owed = if with_work { (*owed + i64::from(ppm)).min(OWED_MAX) } else { (*owed).min(ONE) };
}
