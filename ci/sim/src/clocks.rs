//! What the node's shard clocks can have shown at a virtual time: bounds that follow from the contract and from what the
//! wall clock did, without a look at the clock's code.
//!
//! Within a life of the node shard time follows the monotonic clock: at most 500 ppm faster and a tenth slower. A start
//! takes the wall clock as it finds it, but never goes back behind what was shown before.

use overtake_base::UnixMillis;

const NANOS_PER_MS: u64 = 1_000_000;
/// Whole milliseconds are shown: this much is rounding.
const ROUNDING_MS: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct Life {
    start_ns: u64,
    low_ms: u64,
    high_ms: u64,
}

/// See the module's text.
#[derive(Default, Debug)]
pub struct Clocks {
    lives: Vec<Life>,
    /// True once the wall clock was moved or drifts.
    pub disturbed: bool,
}

impl Clocks {
    /// The node starts, and its wall clock shows `wall`.
    pub fn started(&mut self, now_ns: u64, wall: UnixMillis) {
        let before_ms = if self.lives.is_empty() { 0 } else { self.high(now_ns).0 };
        self.lives.push(Life { start_ns: now_ns, low_ms: wall.0, high_ms: wall.0.max(before_ms) });
    }

    /// Starts of the node from one virtual time to another.
    #[must_use]
    pub fn starts_between(&self, from_ns: u64, to_ns: u64) -> u64 {
        self.lives.iter().filter(|life| (from_ns..=to_ns).contains(&life.start_ns)).count() as u64
    }

    /// The earliest that can have been shown at a virtual time. While the node is down: by the life before.
    #[must_use]
    pub fn low(&self, at_ns: u64) -> UnixMillis {
        let Some(life) = self.life(at_ns) else { return UnixMillis(0) };
        let elapsed_ms = (at_ns - life.start_ns) / NANOS_PER_MS;
        let slower_ms = if self.disturbed { elapsed_ms / 10 } else { 0 };
        UnixMillis((life.low_ms + elapsed_ms).saturating_sub(slower_ms + ROUNDING_MS))
    }

    /// The latest that can have been shown at a virtual time.
    #[must_use]
    pub fn high(&self, at_ns: u64) -> UnixMillis {
        let Some(life) = self.life(at_ns) else { return UnixMillis(0) };
        let elapsed_ms = (at_ns - life.start_ns) / NANOS_PER_MS;
        let faster_ms = if self.disturbed { elapsed_ms / 2_000 } else { 0 };
        UnixMillis(life.high_ms + elapsed_ms + faster_ms + ROUNDING_MS)
    }

    fn life(&self, at_ns: u64) -> Option<&Life> {
        self.lives.iter().rev().find(|life| life.start_ns <= at_ns)
    }
}
