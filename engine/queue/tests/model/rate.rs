//! Rate caps in the model: everything that ever happened to a cap is remembered, and told again from the start whenever
//! somebody asks.

use overtake_base::queue_config::RateCaps;
use overtake_base::{Level, UnixMillis};
use std::collections::BTreeMap;

/// What happened to one cap.
enum Happened {
    /// From now on so many a second.
    Rate(u64),
    Taken,
    GivenBack,
}

/// A bucket of at most one second's worth, which starts full; the fraction of a token that is being made comes on top.
#[derive(Default)]
struct Cap(Vec<(UnixMillis, Happened)>);

impl Cap {
    /// Thousandths of a token in the bucket, and its rate.
    fn tokens(&self, now: UnixMillis) -> (i128, i128) {
        let (mut tokens, mut per_s, mut time) = (0i128, 0i128, UnixMillis(0));
        let fill =
            |tokens: i128, per_s: i128, ms: u64| (tokens + i128::from(ms) * per_s).min(per_s * 1_000 + 999);
        for (index, (at, happened)) in self.0.iter().enumerate() {
            tokens = fill(tokens, per_s, at.since(time));
            time = *at;
            match happened {
                Happened::Rate(first) if index == 0 => {
                    per_s = i128::from(*first);
                    tokens = per_s * 1_000;
                }
                // What was taken stays taken.
                Happened::Rate(next) => {
                    let taken = (per_s * 1_000 - tokens).max(0);
                    per_s = i128::from(*next);
                    tokens = per_s * 1_000 - taken;
                }
                Happened::Taken => tokens -= 1_000,
                Happened::GivenBack => tokens = fill(tokens + 1_000, per_s, 0),
            }
        }
        (fill(tokens, per_s, now.since(time)), per_s)
    }

    /// When there is a whole token.
    fn ready_at(&self, now: UnixMillis) -> UnixMillis {
        let (tokens, per_s) = self.tokens(now);
        if per_s == 0 {
            return UnixMillis::NEVER;
        }
        let missing = (1_000 - tokens).max(0);
        now.plus_ms(((missing + per_s - 1) / per_s) as u64)
    }
}

/// The caps of a queue: its own has no level.
pub struct RateLimiter(BTreeMap<Option<u8>, Cap>);

impl RateLimiter {
    pub fn new(caps: &RateCaps, now: UnixMillis) -> Self {
        let mut limiter = Self(BTreeMap::new());
        limiter.reconfigure(caps, now);
        limiter
    }

    pub fn reconfigure(&mut self, caps: &RateCaps, now: UnixMillis) {
        let of_queue = caps.queue.map(|per_s| (None, per_s));
        let all: BTreeMap<Option<u8>, u64> = of_queue
            .into_iter()
            .chain(caps.levels.iter().map(|(level, per_s)| (Some(*level), *per_s)))
            .collect();
        self.0.retain(|which, _| all.contains_key(which));
        for (which, per_s) in all {
            self.0.entry(which).or_default().0.push((now, Happened::Rate(per_s)));
        }
    }

    fn of(&mut self, level: Level) -> impl Iterator<Item = &mut Cap> {
        self.0.iter_mut().filter(move |(which, _)| which.is_none_or(|of| of == level.0)).map(|(_, cap)| cap)
    }

    pub fn try_take(&mut self, level: Level, now: UnixMillis) -> bool {
        let ready = self.ready_at(level, now) <= now;
        if ready {
            self.of(level).for_each(|cap| cap.0.push((now, Happened::Taken)));
        }
        ready
    }

    pub fn give_back(&mut self, level: Level, now: UnixMillis) {
        self.of(level).for_each(|cap| cap.0.push((now, Happened::GivenBack)));
    }

    pub fn ready_at(&self, level: Level, now: UnixMillis) -> UnixMillis {
        let caps = self.0.iter().filter(|(which, _)| which.is_none_or(|of| of == level.0));
        caps.map(|(_, cap)| cap.ready_at(now)).max().unwrap_or(now)
    }
}
