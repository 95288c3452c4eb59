//! What results files say of the planner's hardware: the cost of a message, the rate and the latency of the disk, memory.
//!
//! Which file gives a figure never hangs on the order of the files, and files that give the same figure are all told.

use super::held::{Origin, Sustained, Targets};
use crate::results::Results;

/// Measurements of the CPU of a message, the one that is most like real work first.
const CPU_KEYS: [&str; 3] = ["load.settle", "bench.batched", "bench.single"];
/// Durable writes: no larger than a batch of a journal, and no more of them than it has under way.
const WRITE_KEYS: &str = "device.write.";
/// Single durable writes now and then, and the same one after the other.
const FLUSH_KEYS: [&str; 2] = ["device.fsync.paced", "device.write.4k.depth1"];
const MEMORY_KEY: &str = "storage.backlog.memory";

/// Figures of the planner's hardware. What is absent was not measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Hardware {
    /// CPU of a message, all measurements of it, the one to go by first.
    pub cpu: Vec<CpuCost>,
    /// Durable writes of one disk each, at the size of batch and the depth at which it takes the most and is fast enough;
    /// the slowest disk first.
    pub disk: Vec<DiskRate>,
    /// How long a single durable write takes at the 99th percentile, in milliseconds; the slowest disk first.
    pub flush: Vec<(f64, String)>,
    /// Resident memory of the server for a message more that waits, in bytes; the most first.
    pub memory: Vec<(f64, String)>,
    /// Rates that held their latencies.
    pub sustained: Vec<Sustained>,
    /// Latencies that must hold.
    pub targets: Targets,
    /// Copies that the servers kept whose CPU was measured, where files do not say.
    pub measured_replicas: Option<u32>,
}

/// What a message cost.
#[derive(Clone, PartialEq, Debug)]
pub struct CpuCost {
    /// CPU seconds of the server for a million messages.
    pub s_per_million: f64,
    /// Messages a second that it was measured at.
    pub per_second: f64,
    /// Deliveries of a message beyond its first one, on average.
    pub retries: f64,
    /// Copies that the server kept, and where that comes from.
    pub replicas: (u128, Origin),
    /// Measurement and file.
    pub source: String,
    /// Place of the measurement in [`CPU_KEYS`].
    rank: usize,
}

/// What a disk takes.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskRate {
    /// Durable bytes a second; none where no size and depth was fast enough.
    pub bytes_per_second: Option<f64>,
    /// The 99th percentile at it, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Measurement and file.
    pub source: String,
}

impl Hardware {
    /// Takes what a results file tells; false where it tells nothing of use.
    pub fn take(&mut self, file: &str, results: &Results) -> bool {
        let figures = |all: &Self| all.cpu.len() + all.disk.len() + all.flush.len() + all.memory.len();
        let before = figures(self);
        for (rank, key) in CPU_KEYS.into_iter().enumerate() {
            let Some(measure) = results.measure(key) else { continue };
            let Some(s_per_million) = measure.cpu_s_per_million else { continue };
            self.cpu.push(CpuCost {
                s_per_million,
                per_second: measure.per_second.unwrap_or(0.0),
                retries: measure.retries.unwrap_or(0.0),
                replicas: Origin::known(self.measured_replicas, results.server_replicas, 1),
                source: format!("{key} of {file}"),
                rank,
            });
        }
        // Among like measurements the one at the highest rate, since a message costs less the more of them come together,
        // and the planned rate is that of a peak; then the one that costs the most.
        self.cpu.sort_by(|a, b| {
            let order = a.rank.cmp(&b.rank).then(b.per_second.total_cmp(&a.per_second));
            order.then(b.s_per_million.total_cmp(&a.s_per_million)).then(a.source.cmp(&b.source))
        });
        self.disk.extend(disk(file, results, self.targets));
        self.disk.sort_by(|a, b| {
            let rate = |disk: &DiskRate| disk.bytes_per_second.unwrap_or(0.0);
            rate(a).total_cmp(&rate(b)).then(a.source.cmp(&b.source))
        });
        let flush = FLUSH_KEYS
            .iter()
            .find_map(|key| Some((results.measure(key)?.latency_ms?.p99, format!("{key} of {file}"))));
        self.flush.extend(flush);
        let memory = results.measure(MEMORY_KEY).and_then(|measure| measure.memory_bytes_per_message);
        self.memory.extend(memory.map(|bytes| (bytes.max(0.0), format!("{MEMORY_KEY} of {file}"))));
        for list in [&mut self.flush, &mut self.memory] {
            list.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        figures(self) > before
    }
}

/// The most that a disk takes durably while an enqueue would still be confirmed in time.
fn disk(file: &str, results: &Results, targets: Targets) -> Option<DiskRate> {
    let writes = || {
        let all = results.measures.iter().filter(|measure| measure.key.starts_with(WRITE_KEYS));
        all.filter_map(|measure| {
            let rate = measure.bytes_per_second?;
            Some((rate, measure.latency_ms.map(|latency| latency.p99), &measure.key))
        })
    };
    let in_time = writes().filter(|(_, p99, _)| p99.is_none_or(|p99| p99 <= targets.enqueue_ms));
    if let Some((rate, p99_ms, key)) = in_time.max_by(|a, b| a.0.total_cmp(&b.0)) {
        let source = format!("{key} of {file}");
        return Some(DiskRate { bytes_per_second: Some(rate), p99_ms, source });
    }
    let (_, p99_ms, key) = writes().min_by(|a, b| a.1.unwrap_or(0.0).total_cmp(&b.1.unwrap_or(0.0)))?;
    Some(DiskRate { bytes_per_second: None, p99_ms, source: format!("{key} of {file}") })
}
