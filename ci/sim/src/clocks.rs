//! What the nodes' shard clocks can have shown at a virtual time: bounds that follow from the contract and from what the
//! wall clock did, without a look at the clock's code.
//!
//! Within a life of the node shard time follows the monotonic clock: at most 500 ppm faster and a tenth slower. A start
//! takes the wall clock as it finds it, but never goes back behind what was shown before, on any node. Nodes of a cluster
//! take each other's: the jump of a few of them, also while they are down, shows in none.

use overtake_base::UnixMillis;

const NANOS_PER_MS: u64 = 1_000_000;
/// Whole milliseconds are shown: this much is rounding.
const ROUNDING_MS: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct Life {
    start_ns: u64,
    low_ms: u64,
    high_ms: u64,
    /// Readings of other nodes' clocks that lie between a wall clock and this life's time, one after the other: whoever
    /// starts takes the time of those that run, with what they were wrong by already.
    readings: u64,
}

/// See the module's text.
#[derive(Default, Debug)]
pub struct Clocks {
    /// By node, in order.
    lives: Vec<Vec<Life>>,
    /// True once the wall clock was moved or drifts.
    pub disturbed: bool,
    /// What a monotonic clock may gain or lose, in parts per million.
    pub drift_ppm: u64,
    /// How far the clocks of two nodes may differ, in milliseconds.
    pub spread_ms: u64,
    /// What a node may be wrong by about the clock of another that it reads, in milliseconds.
    pub error_ms: u64,
}

impl Clocks {
    /// Of nodes that may be wrong about each other's clocks by so much.
    #[must_use]
    pub fn of_cluster(error_ms: u64) -> Self {
        Self { error_ms, ..Self::default() }
    }

    /// The node starts, and its wall clock shows `wall`.
    pub fn started(&mut self, now_ns: u64, wall: UnixMillis) {
        self.node_started(0, now_ns, wall);
    }

    /// The same of one of several nodes.
    pub fn node_started(&mut self, node: usize, now_ns: u64, wall: UnixMillis) {
        let before_ms = if self.lives.is_empty() { 0 } else { self.high(now_ns).0 };
        if self.lives.len() <= node {
            self.lives.resize(node + 1, Vec::new());
        }
        let high_ms = wall.0.max(before_ms);
        let readings = 1 + self.lives(now_ns).map(|life| life.readings).max().unwrap_or(0);
        self.lives[node].push(Life { start_ns: now_ns, low_ms: wall.0, high_ms, readings });
    }

    /// Forgets every start.
    pub fn begin_anew(&mut self) {
        self.lives.clear();
    }

    /// Starts of nodes from one virtual time to another.
    #[must_use]
    pub fn starts_between(&self, from_ns: u64, to_ns: u64) -> u64 {
        let lives = self.lives.iter().flatten();
        lives.filter(|life| (from_ns..=to_ns).contains(&life.start_ns)).count() as u64
    }

    /// The earliest that can have been shown at a virtual time. While a node is down: by its life before.
    #[must_use]
    pub fn low(&self, at_ns: u64) -> UnixMillis {
        let low = |life: &Life| {
            let elapsed_ms = (at_ns - life.start_ns) / NANOS_PER_MS;
            let slower_ms = if self.disturbed { elapsed_ms / 10 } else { 0 };
            (life.low_ms + elapsed_ms)
                .saturating_sub(slower_ms + self.drift_ms(elapsed_ms) + self.error_ms(life))
        };
        UnixMillis(self.lives(at_ns).map(low).min().unwrap_or(0))
    }

    /// The latest that can have been shown at a virtual time.
    #[must_use]
    pub fn high(&self, at_ns: u64) -> UnixMillis {
        let high = |life: &Life| {
            let elapsed_ms = (at_ns - life.start_ns) / NANOS_PER_MS;
            let faster_ms = if self.disturbed { elapsed_ms / 2_000 } else { 0 };
            life.high_ms + elapsed_ms + faster_ms + self.drift_ms(elapsed_ms) + self.error_ms(life)
        };
        UnixMillis(self.lives(at_ns).map(high).max().unwrap_or(0))
    }

    fn error_ms(&self, life: &Life) -> u64 {
        ROUNDING_MS + life.readings * self.error_ms
    }

    fn drift_ms(&self, elapsed_ms: u64) -> u64 {
        elapsed_ms * self.drift_ppm / 1_000_000
    }

    /// The life of each node at a virtual time.
    fn lives(&self, at_ns: u64) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter_map(move |lives| lives.iter().rev().find(|life| life.start_ns <= at_ns))
    }
}
