//! Time as integers. The deterministic crates never read a clock: every instant they see was handed to them.

use core::fmt;

/// Milliseconds since 1970-01-01T00:00:00Z. Wall time and shard time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// The instant that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// This instant and `ms` more, stopping at [`UnixMillis::NEVER`].
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// This instant and `s` seconds more, stopping at [`UnixMillis::NEVER`].
    #[must_use]
    pub const fn plus_s(self, s: u64) -> Self {
        self.plus_ms(s.saturating_mul(1_000))
    }

    /// Milliseconds from `earlier` to this instant; 0 where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// What the shell reads once at the start of a turn and hands to everything that decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Nanoseconds of a clock that never goes back; its zero is arbitrary.
    pub monotonic_ns: u64,
    /// The node's wall clock. It may jump; only `ShardClock` of the core looks at it.
    pub wall: UnixMillis,
}
