//! When messages of an open loop are due. The schedule never waits for the server: what is late counts from the time it
//! was due.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Shortest pause between two looks at the clock. A pause costs a wake-up, and below this more than it is worth.
const PAUSE_MIN: Duration = Duration::from_micros(100);

/// When messages are due, by their numbers from 0 on.
pub trait Timetable: Send + 'static {
    /// When the message of this number is due.
    fn due(&self, number: u64) -> Instant;
    /// How many are due at `now`, at least.
    fn count_due(&self, now: Instant) -> u64;
}

/// Evenly spaced times: `rate` a second.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// When the first is due.
    pub start: Instant,
    /// How many a second, at least 1.
    pub rate: u64,
}

impl Schedule {
    /// When the message of this number is due.
    #[must_use]
    pub fn due(self, number: u64) -> Instant {
        let ns = u128::from(number) * 1_000_000_000 / u128::from(self.rate.max(1));
        self.start + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// How many are due at `now`.
    #[must_use]
    pub fn count_due(self, now: Instant) -> u64 {
        let Some(since) = now.checked_duration_since(self.start) else { return 0 };
        u64::try_from(since.as_nanos() * u128::from(self.rate.max(1)) / 1_000_000_000).unwrap_or(u64::MAX) + 1
    }
}

impl Timetable for Schedule {
    fn due(&self, number: u64) -> Instant {
        Self::due(*self, number)
    }

    fn count_due(&self, now: Instant) -> u64 {
        Self::count_due(*self, now)
    }
}

/// Numbers that became due at the same look at the clock: from `first` up to, not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Due {
    pub first: u64,
    pub end: u64,
}

/// Tells what is due, up to `total` messages, from a thread of its own: a runtime's timers are a millisecond apart, and
/// that is more than a confirm takes. The thread ends with the last message, or when the receiver is dropped.
pub fn start(schedule: impl Timetable, total: u64) -> std::io::Result<mpsc::UnboundedReceiver<Due>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("pacer".into()).spawn(move || {
        let mut first = 0;
        while first < total && !sender.is_closed() {
            let now = Instant::now();
            let end = schedule.count_due(now).min(total);
            if end > first {
                let _ = sender.send(Due { first, end });
                first = end;
            }
            std::thread::sleep(schedule.due(first).saturating_duration_since(Instant::now()).max(PAUSE_MIN));
        }
    })?;
    Ok(receiver)
}

/// A flag that several tasks look at.
#[derive(Clone, Debug, Default)]
pub struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Raises it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is raised.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_evenly_spaced_and_counted_when_they_come() {
        let schedule = Schedule { start: Instant::now(), rate: 3 };
        assert_eq!(schedule.due(0), schedule.start);
        assert_eq!(schedule.due(3), schedule.start + Duration::from_secs(1));
        for number in 0..1_000 {
            let due = schedule.due(number);
            // Rounded down to nanoseconds: within one of them it is due.
            assert!(schedule.count_due(due + Duration::from_nanos(1)) == number + 1);
            assert!(schedule.count_due(due - Duration::from_nanos(1)) <= number);
        }
    }

    #[tokio::test]
    async fn every_number_is_told_once_and_in_order() {
        let schedule = Schedule { start: Instant::now(), rate: 20_000 };
        let mut due = start(schedule, 500).unwrap();
        let mut next = 0;
        while let Some(Due { first, end }) = due.recv().await {
            assert!(first == next && end > first);
            next = end;
        }
        assert_eq!(next, 500);
    }
}
