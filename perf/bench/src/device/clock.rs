//! Clock and scheduler: what reading the time costs, how late a sleeping thread wakes, and how much time others take away.

use super::row;
use overtake_measure::table::{Latencies, Row};
use std::time::{Duration, Instant};

/// How long a thread sleeps that is to be woken.
const SLEEP: Duration = Duration::from_micros(100);
/// A longer time between two readings of the clock was taken by somebody else.
const GAP_MIN: Duration = Duration::from_micros(10);

/// Measures each for a while.
pub(super) fn measure(duration: Duration) -> Vec<Row> {
    let mut gaps = Latencies::default();
    let (start, mut reads) = (Instant::now(), 0u64);
    let mut last = start;
    while last - start < duration {
        let now = Instant::now();
        reads += 1;
        if now - last >= GAP_MIN {
            gaps.record(now - last);
        }
        last = now;
    }
    let seconds = (last - start).as_secs_f64();
    let read = Row {
        key: "device.clock.read".into(),
        name: "read the clock".into(),
        per_second: Some(reads as f64 / seconds),
        note: format!("{:.0} ns each", seconds * 1e9 / reads.max(1) as f64),
        ..Row::default()
    };
    let mut late = Latencies::default();
    let start = Instant::now();
    while start.elapsed() < duration {
        let due = Instant::now() + SLEEP;
        std::thread::sleep(SLEEP);
        late.record(due.elapsed());
    }
    let wake =
        row("clock.wake", "wake after a sleep of 0.1 ms, too late by", late, start.elapsed().as_secs_f64());
    vec![read, wake, row("clock.gap", "time taken from a busy thread, 10 µs or more", gaps, seconds)]
}
