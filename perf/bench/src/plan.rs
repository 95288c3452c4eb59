//! `plan`: the arguments of capacity planning, and the files it takes figures from.

use crate::hist;
use crate::load::Mix;
use clap::Args;
use overtake_base::limits::{BODY_BYTES_MAX, DEDUP_WINDOW_S_DEFAULT, NODES_MAX, PERIOD_S_MAX};
use overtake_measure::plan::{self, Exact, Hardware, Load, Measured, NoRate, Node, Targets, sustained};
use overtake_measure::results::Results;
use std::path::PathBuf;

/// The expected load, and what was measured. Without any flag it is the load that the system is designed for.
#[derive(Args, Clone, Debug)]
pub struct PlanOptions {
    /// Messages a day.
    #[arg(long, default_value_t = 1_200_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000_000_000))]
    messages_per_day: u64,
    /// Growth in a year, like 50% (half more) or 1.5x (the same), at most 1000%; again in each of --years.
    #[arg(long, default_value = "0%", value_parser = growth)]
    growth: Exact,
    /// Years of that growth to plan for.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=20))]
    years: u32,
    /// Peak rate in multiples of the average, 1 or more.
    #[arg(long, default_value = "4", value_parser = peak)]
    peak_factor: Exact,
    /// Bytes of a body, on average.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=BODY_BYTES_MAX as u64))]
    body_bytes: u64,
    /// Shares of the levels, P0 first.
    #[arg(long, default_value = "2,8,20,30,40")]
    mix: Mix,
    /// Days that messages are kept at most, more than 0.
    #[arg(long, default_value = "4", value_parser = retention)]
    retention_days: Exact,
    /// Hours that consumers may be gone.
    #[arg(long, default_value = "24", value_parser = factor)]
    outage_hours: Exact,
    /// Further tries of a message, on average.
    #[arg(long, default_value = "0.1", value_parser = factor)]
    retries: Exact,
    /// Copies of each message.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    replicas: u64,
    /// Failure domains, of which one may be lost.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    zones: u64,
    /// How long a queue remembers ids that clients made (its `dedup_window_s`), in seconds; each takes memory meanwhile. 0:
    /// clients make none.
    #[arg(long, default_value_t = DEDUP_WINDOW_S_DEFAULT, value_parser = clap::value_parser!(u64).range(0..=PERIOD_S_MAX))]
    dedup_window_s: u64,
    /// Cores of a node; 4 without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    cores_per_node: Option<u64>,
    /// Memory of a node, in GB; 16 without it.
    #[arg(long, value_name = "GB", value_parser = positive)]
    memory_gb_per_node: Option<Exact>,
    /// Disk of a node for its data folder, in GB; 2000 without it.
    #[arg(long, value_name = "GB", value_parser = positive)]
    disk_gb_per_node: Option<Exact>,
    /// Network of a node, each way, in Gbit/s; 10 without it.
    #[arg(long, value_name = "GBIT", value_parser = positive)]
    network_gbit_per_node: Option<Exact>,
    /// Check a cluster of so many nodes, instead of working out how many it takes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=NODES_MAX as u64))]
    nodes: Option<u64>,
    /// Histogram logs that `load` wrote on your hardware: at which rates did latencies hold?
    #[arg(long, value_name = "FILE", num_args = 1..)]
    hlog: Vec<PathBuf>,
    /// Results that `load`, `bench` and `device` wrote there: what does a message cost, what can the disk do?
    #[arg(long, value_name = "FILE", num_args = 1..)]
    results: Vec<PathBuf>,
    /// Cores of the server that was measured, all nodes together: what the rates of --hlog are divided by. Without it, as
    /// each log says; `load` writes it there.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    measured_cores: Option<u32>,
    /// Copies that the measured server kept of each message. Without it, as each file says; `load` and `bench` write it there.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9))]
    measured_replicas: Option<u32>,
    /// Confirmation of an enqueue at p99, in milliseconds, that must hold.
    #[arg(long, default_value_t = 50.0, value_parser = milliseconds)]
    enqueue_p99_ms: f64,
    /// Delivery of P0 at p99, in milliseconds, that must hold.
    #[arg(long, default_value_t = 50.0, value_parser = milliseconds)]
    p0_p99_ms: f64,
}

/// Largest factor, number of days or of hours.
const FACTOR_MAX: f64 = 10_000.0;
/// Largest growth in a year: ten times what there was comes on top.
const GROWTH_MAX: f64 = 10.0;
/// Largest size of a part of a node, in GB or Gbit/s.
const SIZE_MAX: f64 = 10_000_000.0;

fn factor(text: &str) -> Result<Exact, String> {
    let value: Exact = text.parse()?;
    if value.float() <= FACTOR_MAX { Ok(value) } else { Err(format!("{text:?} is above {FACTOR_MAX}")) }
}

fn growth(text: &str) -> Result<Exact, String> {
    let expected =
        || format!("{text:?} is no growth in a year: write 50% for half more, or 1.5x for the same");
    let value = match text.strip_suffix('x') {
        Some(factor) => {
            let factor: Exact = factor.parse()?;
            factor
                .minus(Exact::whole(1))
                .ok_or_else(|| format!("{text:?} is below 1x: a plan is for no less than today"))?
        }
        None if text.ends_with('%') => text.parse()?,
        None => return Err(expected()),
    };
    if value.float() <= GROWTH_MAX { Ok(value) } else { Err(format!("{text:?} is above 1000% a year")) }
}

fn positive(text: &str) -> Result<Exact, String> {
    let value: Exact = text.parse()?;
    let fits = value.float() > 0.0 && value.float() <= SIZE_MAX;
    if fits { Ok(value) } else { Err(format!("{text:?} is not a size above 0 and up to {SIZE_MAX}")) }
}

fn peak(text: &str) -> Result<Exact, String> {
    let value = factor(text)?;
    if value.float() >= 1.0 {
        Ok(value)
    } else {
        Err(format!("{text:?} is below 1: no peak is below the average"))
    }
}

fn retention(text: &str) -> Result<Exact, String> {
    let value = factor(text)?;
    if value.float() > 0.0 {
        Ok(value)
    } else {
        Err(format!("{text:?}: messages must be kept for some time"))
    }
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|ms| (0.001..=3_600_000.0).contains(ms));
    value.ok_or_else(|| format!("{text:?} is not a number of milliseconds"))
}

/// A plan as text, and whether it can be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// For standard output.
    pub text: String,
    /// No such design can carry the load.
    pub impossible: bool,
}

/// Reads the files and gives the plan.
///
/// # Errors
/// Where a file cannot be read, or says nothing that a plan could use; it is named.
pub fn run(options: &PlanOptions) -> Result<Planned, String> {
    let load = Load {
        messages_per_day: options.messages_per_day.into(),
        growth: options.growth,
        years: options.years,
        peak_factor: options.peak_factor,
        body_bytes: options.body_bytes.into(),
        mix: options.mix.0.clone(),
        retention_days: options.retention_days,
        outage_hours: options.outage_hours,
        retries: options.retries,
        replicas: options.replicas.into(),
        zones: options.zones.into(),
        dedup_window_s: options.dedup_window_s,
    };
    let giga = |size: Exact| size.times(Exact::whole(1_000_000_000)).up();
    let node = Node {
        cores: options.cores_per_node.map(Into::into),
        memory_bytes: options.memory_gb_per_node.map(giga),
        disk_bytes: options.disk_gb_per_node.map(giga),
        network_bits: options.network_gbit_per_node.map(giga),
        count: options.nodes.map(Into::into),
    };
    let targets = Targets { enqueue_ms: options.enqueue_p99_ms, p0_ms: options.p0_p99_ms };
    let measured = Measured { cores: options.measured_cores, replicas: options.measured_replicas };
    let mut hardware = Hardware { targets, measured_replicas: measured.replicas, ..Hardware::default() };
    for path in &options.hlog {
        let (name, log) = (path.display().to_string(), hist::load(path)?);
        let found = sustained(&name, &log, measured, targets).map_err(|none| match none {
            NoRate::Enqueues if log.intervals.iter().any(|interval| interval.tag.starts_with("deliver.")) => format!(
                "{name}: nothing was enqueued in it for 100 ms or more; put it together with the logs of the producers: \
                 `overtake-perf hist merge -o all.hlog {name} PRODUCERS.hlog`"
            ),
            NoRate::Enqueues => format!(
                "{name}: no intervals with the tag \"enqueue\" of 100 ms or more; give a log of `overtake-perf load`"
            ),
            NoRate::Deliveries => format!(
                "{name}: nothing was delivered in it, and a rate holds only where what comes in also leaves; put it together \
                 with the logs of the consumers: `overtake-perf hist merge -o all.hlog {name} CONSUMERS.hlog`"
            ),
        });
        hardware.sustained.push(found?);
    }
    for path in &options.results {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
        let text = String::from_utf8(bytes).map_err(|_| {
            format!("{name}: not a results file, not even text; give what --results FILE of load, bench or device wrote")
        })?;
        let results = Results::from_json(&text).map_err(|error| format!("{name}: {error}"))?;
        if !hardware.take(&name, &results) {
            // Only who settles messages knows what they cost.
            let from = match results.measure("load.enqueue").is_some()
                && results.measure("load.settle").is_none()
            {
                true => "the process of load that consumed, run with --server-pid: this one only produced",
                false => {
                    "load or bench with --server-pid (of which hardly anything was refused), device, or storage"
                }
            };
            return Err(format!("{name}: holds no figure that a plan goes by; give results of {from}"));
        }
    }
    let plan = plan::plan(&load, &node, &hardware);
    Ok(Planned { text: plan.render(), impossible: !plan.impossible.is_empty() })
}
