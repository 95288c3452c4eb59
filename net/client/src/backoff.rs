//! How long to wait before the next try: twice as long each time, with a random part, so that many clients of one
//! server that restarts do not all come back in the same moment.

use crate::entropy::seed;
use overtake_base::random::Random;
use std::time::Duration;

const FIRST_MS: u64 = 20;
const MAX_MS: u64 = 2_000;

pub(crate) struct Backoff {
    random: Random,
    step_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::seeded(seed())
    }
}

impl Backoff {
    fn seeded(seed: u64) -> Self {
        Self { random: Random::new(seed, "backoff"), step_ms: FIRST_MS }
    }

    /// Between half a step and a whole one; then the step doubles.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let half = self.step_ms / 2;
        let delay = half + self.random.below(half + 1);
        self.step_ms = (self.step_ms * 2).min(MAX_MS);
        Duration::from_millis(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_differ_between_clients() {
        let delays = |seed| {
            let mut backoff = Backoff::seeded(seed);
            (0..20).map(|_| backoff.next_delay().as_millis() as u64).collect::<Vec<_>>()
        };
        let (one, other) = (delays(1), delays(2));
        assert_ne!(one, other);
        assert!(one[0] >= FIRST_MS / 2 && one[0] <= FIRST_MS);
        assert!(one.iter().all(|delay| *delay <= MAX_MS));
        assert!(one[10..].iter().all(|delay| *delay >= MAX_MS / 2));
    }
}
