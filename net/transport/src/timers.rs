//! When to look at which connection again: an ordered set, so that the next one is found without a scan.

use std::collections::BTreeSet;
use std::time::Instant;

/// At most one instant for each connection slot. The owner remembers what it set.
#[derive(Default)]
pub(crate) struct Timers(BTreeSet<(Instant, usize)>);

impl Timers {
    /// Replaces `slot`'s instant `old` by `new`.
    pub(crate) fn set(&mut self, slot: usize, old: Option<Instant>, new: Option<Instant>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.0.remove(&(old, slot));
        }
        if let Some(new) = new {
            self.0.insert((new, slot));
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes out the earliest slot whose instant is not after `now`.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<usize> {
        let (at, slot) = *self.0.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first();
        Some(slot)
    }
}
