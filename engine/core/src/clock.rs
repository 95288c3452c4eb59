//! The clock from which leaders stamp shard time.
//!
//! It follows the monotonic clock from an anchor on the wall clock, so that a step of the wall clock neither expires a
//! lease nor releases a delay early. What the wall clock then differs by is caught up slowly: forward by at most
//! 500 ppm (within the error of a quartz clock), backward by running a tenth slower, which only makes things later.

use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Now, UnixMillis};

const FORWARD_PPM: u64 = 500;
const BACKWARD_PPM: u64 = 100_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct ShardClock {
    anchored: bool,
    last_monotonic_ns: u64,
    /// Nanoseconds since the Unix epoch.
    estimate_ns: u128,
}

impl ShardClock {
    /// A clock that takes its anchor from the first reading.
    #[must_use]
    pub fn new() -> Self {
        Self { anchored: false, last_monotonic_ns: 0, estimate_ns: 0 }
    }

    /// The time now. Never goes backwards.
    pub fn read(&mut self, now: Now) -> UnixMillis {
        let wall_ns = u128::from(now.wall.0) * u128::from(NANOS_PER_MS);
        if !self.anchored {
            self.anchored = true;
            self.estimate_ns = wall_ns;
        } else {
            let elapsed_ns = now.monotonic_ns.saturating_sub(self.last_monotonic_ns);
            let ahead_ns = self.estimate_ns.saturating_add(u128::from(elapsed_ns)).saturating_sub(wall_ns);
            let behind_ns = wall_ns.saturating_sub(self.estimate_ns.saturating_add(u128::from(elapsed_ns)));
            let slower = u128::from(elapsed_ns) * u128::from(BACKWARD_PPM) / 1_000_000;
            let faster = u128::from(elapsed_ns) * u128::from(FORWARD_PPM) / 1_000_000;
            // Wall readings are whole milliseconds: a difference below one is no difference.
            let whole = |difference: u128| if difference < u128::from(NANOS_PER_MS) { 0 } else { difference };
            self.estimate_ns +=
                u128::from(elapsed_ns) + faster.min(whole(behind_ns)) - slower.min(whole(ahead_ns));
        }
        if is_planted(Bug::WallClock) {
            self.estimate_ns = self.estimate_ns.max(wall_ns);
        }
        self.last_monotonic_ns = self.last_monotonic_ns.max(now.monotonic_ns);
        UnixMillis(u64::try_from(self.estimate_ns / u128::from(NANOS_PER_MS)).unwrap_or(u64::MAX))
    }

    /// Begins anew at `time`: what was shown before was a guess, and nothing was stamped with it.
    pub fn begin_at(&mut self, now: Now, time: UnixMillis) {
        self.anchored = true;
        self.last_monotonic_ns = now.monotonic_ns;
        self.estimate_ns = u128::from(time.0) * u128::from(NANOS_PER_MS);
    }

    /// Never shows less than `time` again: a shard has already been there, under a wall clock that was ahead.
    pub fn raise_to(&mut self, time: UnixMillis) {
        self.estimate_ns = self.estimate_ns.max(u128::from(time.0) * u128::from(NANOS_PER_MS));
    }

    /// When, on the monotonic clock, this clock will show `time` at the earliest.
    #[must_use]
    pub fn monotonic_at(&self, time: UnixMillis) -> u64 {
        let target_ns = u128::from(time.0) * u128::from(NANOS_PER_MS);
        let ahead_ns = u64::try_from(target_ns.saturating_sub(self.estimate_ns)).unwrap_or(u64::MAX);
        self.last_monotonic_ns.saturating_add(ahead_ns)
    }
}

impl Default for ShardClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(monotonic_ms: u64, wall: u64) -> Now {
        Now { monotonic_ns: monotonic_ms * NANOS_PER_MS, wall: UnixMillis(wall) }
    }

    #[test]
    fn follows_a_steady_clock_exactly() {
        let mut clock = ShardClock::new();
        for ms in 0..10_000 {
            assert_eq!(clock.read(now(ms, 1_000_000 + ms)), UnixMillis(1_000_000 + ms));
        }
    }

    #[test]
    fn a_wall_jump_forward_expires_nothing_early() {
        let mut clock = ShardClock::new();
        clock.read(now(0, 1_000_000));
        let mut last = UnixMillis(0);
        for ms in 1..=30_000 {
            last = clock.read(now(ms, 1_000_000 + ms + 3_600_000));
        }
        assert!(last.0 <= 1_030_015, "{last}");
    }

    #[test]
    fn a_wall_jump_back_never_turns_the_clock_back_and_is_caught_up() {
        let mut clock = ShardClock::new();
        clock.read(now(0, 1_000_000));
        let mut last = UnixMillis(0);
        for ms in 1..=20_000 {
            let time = clock.read(now(ms, 1_000_000 + ms - ms.min(1_000)));
            assert!(time >= last);
            last = time;
        }
        assert!(last.0 <= 1_019_001, "{last}");
    }

    #[test]
    fn says_when_a_time_will_come() {
        let mut clock = ShardClock::new();
        clock.read(now(5, 1_000));
        assert_eq!(clock.monotonic_at(UnixMillis(1_010)), 15 * NANOS_PER_MS);
        assert_eq!(clock.monotonic_at(UnixMillis(900)), 5 * NANOS_PER_MS);
    }
}
