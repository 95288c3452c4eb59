//! Rates as token buckets: delivery caps of a queue and its levels, enqueue rates of tenants.
//!
//! A bucket holds at most one second's worth and starts full. It counts in thousandths of a token, so that each
//! millisecond adds exactly `per_s` of them and nothing drifts.

use crate::scheduler::LevelSet;
use overtake_base::codec::{Malformed, Reader, Writer};
use overtake_base::planted::{Bug, is_planted};
use overtake_base::queue_config::RateCaps;
use overtake_base::{Level, UnixMillis};
use std::collections::BTreeMap;

const PER_TOKEN: i128 = 1_000;

/// One bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenBucket {
    per_s: u64,
    /// Thousandths of a token; below 0 after a batch larger than the bucket.
    tokens: i128,
    filled_at: UnixMillis,
}

impl TokenBucket {
    /// A full bucket of `per_s` tokens a second (0: never any), at `now`.
    #[must_use]
    pub fn new(per_s: u64, now: UnixMillis) -> Self {
        Self { per_s, tokens: i128::from(per_s) * PER_TOKEN, filled_at: now }
    }

    /// Nothing is left in it at `now`.
    pub fn empty(&mut self, now: UnixMillis) {
        self.fill(now);
        self.tokens = self.tokens.min(0);
    }

    /// Takes `count` tokens, or none. A batch larger than the bucket is let through when the bucket is full and leaves a
    /// debt behind, so that it is not refused for ever and the rate still holds.
    pub fn try_take(&mut self, count: u64, now: UnixMillis) -> bool {
        self.fill(now);
        if self.per_s == 0 || self.tokens < self.needed(count) {
            return false;
        }
        self.tokens -= i128::from(count) * PER_TOKEN;
        true
    }

    /// When `try_take` of `count` will succeed, if nobody else takes any; never where the rate is 0.
    #[must_use]
    pub fn ready_at(&self, count: u64, now: UnixMillis) -> UnixMillis {
        if self.per_s == 0 {
            return UnixMillis::NEVER;
        }
        let mut bucket = self.clone();
        bucket.fill(now);
        let missing = u128::try_from(bucket.needed(count) - bucket.tokens).unwrap_or(0);
        now.max(self.filled_at)
            .plus_ms(u64::try_from(missing.div_ceil(u128::from(self.per_s))).unwrap_or(u64::MAX))
    }

    /// How many tokens can be taken one by one now.
    #[must_use]
    pub fn whole_tokens(&self, now: UnixMillis) -> u64 {
        let mut bucket = self.clone();
        bucket.fill(now);
        if bucket.per_s == 0 { 0 } else { u64::try_from(bucket.tokens / PER_TOKEN).unwrap_or(0) }
    }

    /// Changes the rate. What was taken stays taken.
    pub fn set_rate(&mut self, per_s: u64, now: UnixMillis) {
        self.fill(now);
        let spent = i128::from(self.per_s) * PER_TOKEN - self.tokens;
        self.per_s = per_s;
        self.tokens = i128::from(per_s) * PER_TOKEN - spent.max(0);
    }

    /// Puts `count` tokens back that were taken for nothing.
    pub fn give_back(&mut self, count: u64) {
        self.tokens = (self.tokens + i128::from(count) * PER_TOKEN).min(self.full());
    }

    fn needed(&self, count: u64) -> i128 {
        i128::from(count.min(self.per_s)) * PER_TOKEN
    }

    /// A second's worth, and the fraction of a token that is just being made: dropping it would slow small rates down.
    fn full(&self) -> i128 {
        i128::from(self.per_s) * PER_TOKEN + PER_TOKEN - 1
    }

    fn fill(&mut self, now: UnixMillis) {
        let full = self.full();
        let times = if is_planted(Bug::RateDoubled) { 2 } else { 1 };
        let gained = i128::from(now.since(self.filled_at)) * i128::from(self.per_s) * times;
        self.tokens = full.min(self.tokens + gained);
        self.filled_at = self.filled_at.max(now);
    }

    /// Appends the bucket's bytes.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u64(self.per_s);
        out.u128(self.tokens.cast_unsigned());
        out.u64(self.filled_at.0);
    }

    /// Reads a bucket.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let per_s = input.u64("bucket rate")?;
        let tokens = input.u128("bucket tokens")?.cast_signed();
        if tokens >= (i128::from(per_s) + 1) * PER_TOKEN || tokens < i128::from(i64::MIN) {
            return Err(Malformed("bucket tokens"));
        }
        Ok(Self { per_s, tokens, filled_at: UnixMillis(input.u64("bucket time")?) })
    }
}

/// The caps of one queue: its own, and those of its levels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RateLimiter {
    queue: Option<TokenBucket>,
    levels: BTreeMap<u8, TokenBucket>,
}

impl RateLimiter {
    /// Full buckets for `caps`.
    #[must_use]
    pub fn new(caps: &RateCaps, now: UnixMillis) -> Self {
        Self {
            queue: caps.queue.map(|per_s| TokenBucket::new(per_s, now)),
            levels: caps
                .levels
                .iter()
                .map(|(level, per_s)| (*level, TokenBucket::new(*per_s, now)))
                .collect(),
        }
    }

    /// Nothing is left in any bucket at `now`.
    pub fn empty(&mut self, now: UnixMillis) {
        self.queue.iter_mut().chain(self.levels.values_mut()).for_each(|bucket| bucket.empty(now));
    }

    /// Changes the caps; what was delivered under the old ones still counts.
    pub fn reconfigure(&mut self, caps: &RateCaps, now: UnixMillis) {
        let fresh = Self::new(caps, now);
        let keep = |old: Option<TokenBucket>, new: TokenBucket| match old {
            Some(mut bucket) => {
                bucket.set_rate(new.per_s, now);
                bucket
            }
            None => new,
        };
        let old_queue = self.queue.take();
        self.queue = fresh.queue.map(|new| keep(old_queue, new));
        let mut old_levels = core::mem::take(&mut self.levels);
        self.levels = fresh
            .levels
            .into_iter()
            .map(|(level, new)| (level, keep(old_levels.remove(&level), new)))
            .collect();
    }

    /// Takes one delivery of `level` from the queue's and the level's bucket, or from neither.
    pub fn try_take(&mut self, level: Level, now: UnixMillis) -> bool {
        if self.ready_at(level, now) > now {
            return false;
        }
        let of_queue = self.queue.as_mut().is_none_or(|bucket| bucket.try_take(1, now));
        of_queue && self.levels.get_mut(&level.0).is_none_or(|bucket| bucket.try_take(1, now))
    }

    /// When a delivery of `level` is allowed next.
    #[must_use]
    pub fn ready_at(&self, level: Level, now: UnixMillis) -> UnixMillis {
        let buckets = self.queue.iter().chain(self.levels.get(&level.0));
        buckets.map(|bucket| bucket.ready_at(1, now)).max().unwrap_or(now)
    }

    /// Those of `levels` of which no delivery is allowed now.
    #[must_use]
    pub fn barred(&self, levels: LevelSet, now: UnixMillis) -> LevelSet {
        levels.iter().filter(|level| self.ready_at(*level, now) > now).collect()
    }

    /// How many deliveries the queue's own cap allows now.
    #[must_use]
    pub fn allows(&self, now: UnixMillis) -> u64 {
        self.queue.as_ref().map_or(u64::MAX, |bucket| bucket.whole_tokens(now))
    }

    /// How many deliveries a level's own cap allows now.
    #[must_use]
    pub fn allows_of_level(&self, level: Level, now: UnixMillis) -> u64 {
        self.levels.get(&level.0).map_or(u64::MAX, |bucket| bucket.whole_tokens(now))
    }

    /// Puts a delivery back that did not happen.
    pub fn give_back(&mut self, level: Level) {
        for bucket in self.queue.iter_mut().chain(self.levels.get_mut(&level.0)) {
            bucket.give_back(1);
        }
    }

    /// Appends the limiter's bytes.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.option(self.queue.as_ref(), |out, bucket| bucket.encode(out));
        out.u8(u8::try_from(self.levels.len()).unwrap_or(u8::MAX));
        for (level, bucket) in &self.levels {
            out.u8(*level);
            bucket.encode(out);
        }
    }

    /// Reads a limiter.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let queue = input.option("rate caps", TokenBucket::decode)?;
        let count = input.u8("rate caps")?;
        let levels = (0..count)
            .map(|_| Ok((input.u8("rate caps")?, TokenBucket::decode(input)?)))
            .collect::<Result<_, Malformed>>()?;
        Ok(Self { queue, levels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_rate_holds_over_any_long_time(per_s in 1u64..2_000, steps in proptest::collection::vec(0u64..50, 200)) {
            let mut bucket = TokenBucket::new(per_s, UnixMillis(0));
            let (mut now, mut taken) = (UnixMillis(0), 0u64);
            // The first step takes at once: a bucket that stays full gains nothing.
            for step in core::iter::once(0).chain(steps) {
                now = now.plus_ms(step);
                while bucket.try_take(1, now) {
                    taken += 1;
                }
            }
            // The burst of one second at the start, then exactly the rate.
            prop_assert_eq!(taken, per_s + now.0 * per_s / 1_000);
        }

        #[test]
        fn it_is_ready_when_it_says(per_s in 1u64..100, taken in 0u64..100, count in 1u64..300) {
            let mut bucket = TokenBucket::new(per_s, UnixMillis(0));
            bucket.try_take(taken, UnixMillis(0));
            let ready = bucket.ready_at(count, UnixMillis(0));
            if ready.0 > 0 {
                prop_assert!(!bucket.clone().try_take(count, UnixMillis(ready.0 - 1)));
            }
            prop_assert!(bucket.try_take(count, ready));
        }

        #[test]
        fn bytes_keep_the_bucket(per_s in 0u64..100, taken in 0u64..300, at in 0u64..5_000) {
            let mut limiter = RateLimiter::new(&RateCaps { queue: Some(per_s), levels: [(2, per_s)].into() }, UnixMillis(0));
            for _ in 0..taken {
                limiter.try_take(Level(2), UnixMillis(at));
            }
            let mut bytes = Vec::new();
            limiter.encode(&mut Writer(&mut bytes));
            prop_assert_eq!(RateLimiter::decode(&mut Reader::new(&bytes)), Ok(limiter));
        }
    }

    #[test]
    fn a_cap_of_nothing_pauses() {
        let mut limiter = RateLimiter::new(&RateCaps { queue: None, levels: [(0, 0)].into() }, UnixMillis(0));
        assert!(!limiter.try_take(Level(0), UnixMillis(1_000_000)));
        assert_eq!(limiter.ready_at(Level(0), UnixMillis(5)), UnixMillis::NEVER);
        assert!(limiter.try_take(Level(1), UnixMillis(0)));
    }

    #[test]
    fn one_bucket_short_takes_from_neither() {
        let caps = RateCaps { queue: Some(10), levels: [(0, 1)].into() };
        let mut limiter = RateLimiter::new(&caps, UnixMillis(0));
        assert!(limiter.try_take(Level(0), UnixMillis(0)));
        assert!(!limiter.try_take(Level(0), UnixMillis(0)));
        assert_eq!((0..20).filter(|_| limiter.try_take(Level(1), UnixMillis(0))).count(), 9);
    }

    #[test]
    fn a_changed_rate_forgets_nothing_that_was_taken() {
        let mut bucket = TokenBucket::new(10, UnixMillis(0));
        assert!(bucket.try_take(10, UnixMillis(0)));
        bucket.set_rate(20, UnixMillis(0));
        assert_eq!((0..20).filter(|_| bucket.try_take(1, UnixMillis(0))).count(), 10);
    }
}
