//! What is measured while the load runs: counts, and latencies by operation and level, for each interval and in total.

use hdrhistogram::Histogram;
use overtake_measure::encoding::EncodedHistogram;
use overtake_measure::hlog::{Interval, LogWriter, histogram};
use std::io::{self, Write};

/// Operations, as tags of the log. Deliveries follow, one tag for each level.
const OPERATIONS: [&str; 4] = ["enqueue", "settle", "send.late", "enqueue.repeat"];
/// From the time a message was due to the confirmation that it is stored.
pub const ENQUEUE: usize = 0;
/// From the sending of acks and releases to their answer, one value a call.
pub const SETTLE: usize = 1;
/// From the time a message was due to its sending: how late the generator itself is.
pub const SEND_LATE: usize = 2;
/// The same as an enqueue, of repeats of a dedup key: nothing is stored or delivered of them.
pub const REPEAT: usize = 3;

/// The tag of deliveries of a level: from due, or the end of its delay, to the first delivery.
#[must_use]
pub const fn deliver(level: usize) -> usize {
    OPERATIONS.len() + level
}

/// Counts of one interval, or of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counts {
    pub sent: u64,
    pub confirmed: u64,
    /// Repeats of a dedup key that were recognised.
    pub duplicates: u64,
    pub refused: u64,
    /// Enqueues whose fate stayed unknown.
    pub unknown: u64,
    pub delivered: u64,
    /// Deliveries that were not the first.
    pub redelivered: u64,
    pub acked: u64,
    pub released: u64,
    pub abandoned: u64,
    /// Settles that came to nothing after their lease had ended.
    pub stale: u64,
}

impl Counts {
    fn minus(&self, before: &Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            confirmed: self.confirmed - before.confirmed,
            duplicates: self.duplicates - before.duplicates,
            refused: self.refused - before.refused,
            unknown: self.unknown - before.unknown,
            delivered: self.delivered - before.delivered,
            redelivered: self.redelivered - before.redelivered,
            acked: self.acked - before.acked,
            released: self.released - before.released,
            abandoned: self.abandoned - before.abandoned,
            stale: self.stale - before.stale,
        }
    }
}

/// Latencies of one tag.
struct Tagged {
    name: String,
    interval: Histogram<u64>,
    total: Histogram<u64>,
}

/// Everything that is measured.
pub struct Meter {
    tags: Vec<Tagged>,
    log: Option<LogWriter<Box<dyn Write>>>,
    /// So far.
    pub counts: Counts,
    before: Counts,
    begun_ms: u64,
    since_ms: u64,
    /// When the last message was confirmed, in nanoseconds.
    pub last_confirmed_ns: u64,
}

/// One interval, as it is told.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    /// What was counted in it.
    pub counts: Counts,
    /// How long it was.
    pub length_ms: u64,
    /// Name and 99th percentile, in nanoseconds, of what was measured.
    pub p99_ns: Vec<(String, u64)>,
}

impl Meter {
    /// A meter for so many levels, that writes its intervals to `log`.
    #[must_use]
    pub fn new(levels: usize, log: Option<LogWriter<Box<dyn Write>>>, now_ms: u64) -> Self {
        let names = OPERATIONS.iter().map(|name| (*name).to_owned());
        let names = names.chain((0..levels).map(|level| format!("deliver.P{level}")));
        let tagged = |name| Tagged { name, interval: histogram(), total: histogram() };
        let tags = names.map(tagged).collect();
        Self {
            tags,
            log,
            counts: Counts::default(),
            before: Counts::default(),
            begun_ms: now_ms,
            since_ms: now_ms,
            last_confirmed_ns: 0,
        }
    }

    /// Seconds from the beginning to the last confirmation.
    #[must_use]
    pub fn confirmed_over_s(&self) -> f64 {
        self.last_confirmed_ns.saturating_sub(self.begun_ms * 1_000_000) as f64 / 1e9
    }

    /// Records a latency. Of a level that there is no tag for nothing is recorded.
    pub fn record(&mut self, tag: usize, ns: u64) {
        if let Some(tagged) = self.tags.get_mut(tag) {
            tagged.interval.saturating_record(ns);
        }
    }

    /// Ends an interval: writes it, adds it up, tells it.
    pub fn end_interval(&mut self, now_ms: u64) -> io::Result<Told> {
        let length_ms = now_ms.saturating_sub(self.since_ms).max(1);
        let mut p99_ns = Vec::new();
        for tagged in self.tags.iter_mut().filter(|tagged| !tagged.interval.is_empty()) {
            p99_ns.push((tagged.name.clone(), tagged.interval.value_at_quantile(0.99)));
            tagged.total.add(&tagged.interval).map_err(io::Error::other)?;
            if let Some(log) = &mut self.log {
                let tag = tagged.name.clone();
                let histogram = EncodedHistogram::new(&tagged.interval).map_err(io::Error::other)?;
                log.write(&Interval { tag, start_ms: self.since_ms, length_ms, histogram })?;
            }
            tagged.interval.reset();
        }
        if let Some(log) = &mut self.log {
            log.flush()?;
        }
        let counts = self.counts.minus(&self.before);
        (self.before, self.since_ms) = (self.counts, now_ms);
        Ok(Told { counts, length_ms, p99_ns })
    }

    /// All latencies of a tag, up to the last end of an interval.
    #[must_use]
    pub fn total(&self, tag: usize) -> Option<&Histogram<u64>> {
        self.tags.get(tag).map(|tagged| &tagged.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_written_and_added_up() {
        let path = std::env::temp_dir().join(format!("overtake-meter-{}.hlog", std::process::id()));
        let file: Box<dyn Write> = Box::new(std::fs::File::create(&path).unwrap());
        let mut meter = Meter::new(2, Some(LogWriter::new(file, &[], 5_000).unwrap()), 5_000);
        for (second, ns) in [(1, 1_000), (2, 3_000)] {
            meter.record(ENQUEUE, ns);
            meter.record(deliver(1), 2 * ns);
            meter.record(deliver(7), ns);
            meter.counts.sent += second;
            let told = meter.end_interval(5_000 + second * 1_000).unwrap();
            assert_eq!((told.counts.sent, told.length_ms), (second, 1_000));
            assert_eq!(
                told.p99_ns.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
                ["enqueue", "deliver.P1"]
            );
        }
        assert!(meter.end_interval(8_000).unwrap().p99_ns.is_empty());
        assert_eq!(meter.total(deliver(1)).unwrap().len(), 2);
        let log = overtake_measure::hlog::read("x", &std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let told: Vec<_> =
            log.intervals.iter().map(|i| (i.tag.as_str(), i.start_ms, i.histogram.len())).collect();
        assert_eq!(
            told,
            [
                ("enqueue", 5_000, 1),
                ("deliver.P1", 5_000, 1),
                ("enqueue", 6_000, 1),
                ("deliver.P1", 6_000, 1)
            ]
        );
    }
}
