//! What was measured on the planner's hardware: the cost of a message, the limits of the disk, and the rates at which
//! latencies still were what they should be.

use crate::hlog::{Interval, Log, histogram};
use crate::results::Results;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Intervals shorter than this say nothing about a rate.
const INTERVAL_MS_MIN: u64 = 100;

/// Figures of the planner's hardware. What is absent was not measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Hardware {
    /// CPU seconds of the server for a million messages, and where that comes from.
    pub cpu_s_per_million: Option<(f64, String)>,
    /// Durable bytes a second of the disk, its 99th percentile in milliseconds, and where that comes from.
    pub disk: Option<(f64, Option<f64>, String)>,
    /// Rates that held their latencies.
    pub sustained: Vec<Sustained>,
    /// Latencies that must hold.
    pub targets: Targets,
}

/// Latencies that must hold at the 99th percentile, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Targets {
    /// Confirmation of an enqueue.
    pub enqueue_ms: f64,
    /// Delivery of P0.
    pub p0_ms: f64,
}

impl Default for Targets {
    fn default() -> Self {
        Self { enqueue_ms: 50.0, p0_ms: 50.0 }
    }
}

/// The highest rate of a log at which latencies held.
#[derive(Clone, PartialEq, Debug)]
pub struct Sustained {
    /// The log.
    pub name: String,
    /// Cores of the server that was measured, and where that comes from.
    pub server_cores: (u128, CoresFrom),
    /// Messages a second; none where no rate held.
    pub per_second: Option<f64>,
    /// 99th percentile of all messages at that rate; of all of the log where none held.
    pub enqueue_p99: P99,
    /// The same of P0, where it was measured.
    pub p0_p99: Option<P99>,
    /// Some rates did not hold: the limit of the machine was seen, not only that of the test.
    pub limit_seen: bool,
}

/// Where a number of cores comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoresFrom {
    /// The planner said so.
    Given,
    /// The log says so.
    Log,
    /// Nobody said anything.
    Assumed,
}

/// A 99th percentile, and of how many values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct P99 {
    /// Milliseconds.
    pub ms: f64,
    /// Values.
    pub values: u64,
}

impl P99 {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self { ms: histogram.value_at_quantile(0.99) as f64 / 1e6, values: histogram.len() }
    }
}

/// Intervals with a rate of this part of the busiest one of theirs, or above it, are one rate: those of a steady load
/// scatter by less.
const SAME_RATE: f64 = 0.9;

/// What was measured at one rate: all of its intervals together, since the 99th percentile of one short interval is that
/// of a few messages, and the best of many is luck.
struct Rate {
    enqueue: Histogram<u64>,
    p0: Histogram<u64>,
    length_ms: u64,
}

impl Rate {
    fn new() -> Self {
        Self { enqueue: histogram(), p0: histogram(), length_ms: 0 }
    }

    fn add(&mut self, slot: &Slot<'_>) {
        self.length_ms += slot.enqueue.length_ms;
        // All values of a log fit the bounds that every histogram of ours has; others are clamped to them.
        add(&mut self.enqueue, &slot.enqueue.histogram);
        if let Some(p0) = slot.p0 {
            add(&mut self.p0, &p0.histogram);
        }
    }

    fn p0_p99(&self) -> Option<P99> {
        (!self.p0.is_empty()).then(|| P99::of(&self.p0))
    }

    fn holds(&self, targets: Targets) -> bool {
        P99::of(&self.enqueue).ms <= targets.enqueue_ms
            && self.p0_p99().is_none_or(|p99| p99.ms <= targets.p0_ms)
    }
}

fn add(sum: &mut Histogram<u64>, values: &Histogram<u64>) {
    for value in values.iter_recorded() {
        sum.saturating_record_n(value.value_iterated_to(), value.count_at_value());
    }
}

/// One interval.
struct Slot<'a> {
    enqueue: &'a Interval,
    p0: Option<&'a Interval>,
}

impl Slot<'_> {
    fn per_second(&self) -> f64 {
        self.enqueue.histogram.len() as f64 * 1e3 / self.enqueue.length_ms as f64
    }
}

/// Finds the highest rate of a log of `load` at which both targets held, with no lower rate at which they did not. None
/// where nothing was enqueued. `cores` are those of the server that was measured, where they were given.
#[must_use]
pub fn sustained(name: &str, log: &Log, cores: Option<u32>, targets: Targets) -> Option<Sustained> {
    let mut slots: BTreeMap<u64, Slot<'_>> = BTreeMap::new();
    for interval in log.intervals.iter().filter(|i| i.tag == "enqueue" && i.length_ms >= INTERVAL_MS_MIN) {
        slots.insert(interval.start_ms, Slot { enqueue: interval, p0: None });
    }
    for interval in log.intervals.iter().filter(|i| i.tag == "deliver.P0" && !i.histogram.is_empty()) {
        if let Some(slot) = slots.get_mut(&interval.start_ms) {
            slot.p0 = Some(interval);
        }
    }
    let mut slots: Vec<Slot<'_>> = slots.into_values().collect();
    if slots.is_empty() {
        return None;
    }
    slots.sort_by(|a, b| b.per_second().total_cmp(&a.per_second()));
    let (mut rates, mut all, mut busiest) = (Vec::new(), Rate::new(), f64::INFINITY);
    for slot in &slots {
        if rates.is_empty() || slot.per_second() < busiest * SAME_RATE {
            busiest = slot.per_second();
            rates.push(Rate::new());
        }
        if let Some(rate) = rates.last_mut() {
            rate.add(slot);
        }
        all.add(slot);
    }
    rates.reverse();
    let held = rates.iter().take_while(|rate| rate.holds(targets)).count();
    let best = held.checked_sub(1).and_then(|at| rates.get(at));
    let told = best.unwrap_or(&all);
    Some(Sustained {
        name: name.into(),
        server_cores: match (cores, log.server_cores) {
            (Some(cores), _) => (cores.into(), CoresFrom::Given),
            (None, Some(cores)) => (cores.into(), CoresFrom::Log),
            (None, None) => (1, CoresFrom::Assumed),
        },
        per_second: best.map(|rate| rate.enqueue.len() as f64 * 1e3 / rate.length_ms.max(1) as f64),
        enqueue_p99: P99::of(&told.enqueue),
        p0_p99: told.p0_p99(),
        limit_seen: held < rates.len(),
    })
}

impl Hardware {
    /// Takes what a results file tells; later files win.
    pub fn take(&mut self, file: &str, results: &Results) {
        for key in ["load.settle", "bench.single", "bench.batched"] {
            if let Some(cost) = results.measure(key).and_then(|measure| measure.cpu_s_per_million) {
                self.cpu_s_per_million = Some((cost, format!("{key} of {file}")));
            }
        }
        let key = "device.write.64k.depth1";
        if let Some(measure) = results.measure(key)
            && let Some(bytes) = measure.bytes_per_second
        {
            let p99 = measure.latency_ms.map(|latency| latency.p99);
            self.disk = Some((bytes, p99, format!("{key} of {file}")));
        }
    }
}
