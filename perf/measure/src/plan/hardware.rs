//! What was measured on the planner's hardware: the cost of a message, the limits of the disk, and the rates at which
//! latencies still were what they should be.

use crate::hlog::Log;
use crate::results::Results;
use std::collections::BTreeMap;

/// Intervals shorter than this say nothing about a rate.
const INTERVAL_MS_MIN: u64 = 100;

/// Figures of the planner's hardware. What is absent was not measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Hardware {
    /// CPU seconds of the server for a million messages, and where that comes from.
    pub cpu_s_per_million: Option<(f64, String)>,
    /// Durable bytes a second of the disk, its 99th percentile in milliseconds, and where that comes from.
    pub disk: Option<(f64, Option<f64>, String)>,
    /// Rates that held their latencies.
    pub sustained: Vec<Sustained>,
    /// Cores of the server that was measured.
    pub measured_cores: u128,
    /// Latencies that must hold.
    pub targets: Targets,
}

impl Default for Hardware {
    fn default() -> Self {
        Self {
            cpu_s_per_million: None,
            disk: None,
            sustained: vec![],
            measured_cores: 1,
            targets: Targets::default(),
        }
    }
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
    /// Messages a second; none where no interval held.
    pub per_second: Option<f64>,
    /// 99th percentiles there, in milliseconds; those of all intervals where none held.
    pub enqueue_p99_ms: f64,
    /// The same of P0, where it was measured.
    pub p0_p99_ms: Option<f64>,
    /// Some intervals did not hold: the limit of the machine was seen, not only that of the test.
    pub limit_seen: bool,
}

/// Finds the highest rate of a log of `load` at which both targets held: the busiest interval that held, with no interval
/// of a lower rate that did not. None where nothing was enqueued.
#[must_use]
pub fn sustained(name: &str, log: &Log, targets: Targets) -> Option<Sustained> {
    struct Slot {
        rate: f64,
        enqueue_ms: f64,
        p0_ms: Option<f64>,
    }
    let p99 = |interval: &crate::hlog::Interval| interval.histogram.value_at_quantile(0.99) as f64 / 1e6;
    let mut slots: BTreeMap<u64, Slot> = BTreeMap::new();
    for interval in log.intervals.iter().filter(|i| i.tag == "enqueue" && i.length_ms >= INTERVAL_MS_MIN) {
        let rate = interval.histogram.len() as f64 * 1e3 / interval.length_ms as f64;
        slots.insert(interval.start_ms, Slot { rate, enqueue_ms: p99(interval), p0_ms: None });
    }
    for interval in log.intervals.iter().filter(|i| i.tag == "deliver.P0" && !i.histogram.is_empty()) {
        if let Some(slot) = slots.get_mut(&interval.start_ms) {
            slot.p0_ms = Some(p99(interval));
        }
    }
    let mut slots: Vec<Slot> = slots.into_values().collect();
    slots.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    let holds = |slot: &Slot| {
        slot.enqueue_ms <= targets.enqueue_ms && slot.p0_ms.is_none_or(|ms| ms <= targets.p0_ms)
    };
    let held = slots.iter().take_while(|slot| holds(slot)).count();
    let limit_seen = held < slots.len();
    let largest = |of: &dyn Fn(&Slot) -> f64| slots.iter().map(of).fold(0.0, f64::max);
    if slots.is_empty() {
        return None;
    }
    match held.checked_sub(1).and_then(|at| slots.get(at)) {
        Some(best) => Some(Sustained {
            name: name.into(),
            per_second: Some(best.rate),
            enqueue_p99_ms: best.enqueue_ms,
            p0_p99_ms: best.p0_ms,
            limit_seen,
        }),
        None => Some(Sustained {
            name: name.into(),
            per_second: None,
            enqueue_p99_ms: largest(&|slot| slot.enqueue_ms),
            p0_p99_ms: None,
            limit_seen,
        }),
    }
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
