//! `plan`: the arguments of capacity planning, and the files it takes figures from.

use crate::hist;
use crate::load::Mix;
use clap::Args;
use overtake_base::limits::BODY_BYTES_MAX;
use overtake_measure::plan::{self, Exact, Hardware, Load, Targets, sustained};
use overtake_measure::results::Results;
use std::path::PathBuf;

/// The expected load, and what was measured. Without any flag it is the load that the system is designed for.
#[derive(Args, Clone, Debug)]
pub struct PlanOptions {
    /// Messages a day.
    #[arg(long, default_value_t = 1_200_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000_000_000))]
    messages_per_day: u64,
    /// Growth to plan for, like 50%.
    #[arg(long, default_value = "0%", value_parser = factor)]
    growth: Exact,
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
    /// Cores of a node.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    cores_per_node: u64,
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
    /// Confirmation of an enqueue at p99, in milliseconds, that must hold.
    #[arg(long, default_value_t = 50.0, value_parser = milliseconds)]
    enqueue_p99_ms: f64,
    /// Delivery of P0 at p99, in milliseconds, that must hold.
    #[arg(long, default_value_t = 50.0, value_parser = milliseconds)]
    p0_p99_ms: f64,
}

/// Largest factor, number of days or of hours.
const FACTOR_MAX: f64 = 10_000.0;

fn factor(text: &str) -> Result<Exact, String> {
    let value: Exact = text.parse()?;
    if value.float() <= FACTOR_MAX { Ok(value) } else { Err(format!("{text:?} is above {FACTOR_MAX}")) }
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

/// Reads the files and gives the plan as text.
pub fn run(options: &PlanOptions) -> Result<String, String> {
    let load = Load {
        messages_per_day: options.messages_per_day.into(),
        growth: options.growth,
        peak_factor: options.peak_factor,
        body_bytes: options.body_bytes.into(),
        mix: options.mix.0.clone(),
        retention_days: options.retention_days,
        outage_hours: options.outage_hours,
        retries: options.retries,
        replicas: options.replicas.into(),
        zones: options.zones.into(),
        cores_per_node: options.cores_per_node.into(),
    };
    let targets = Targets { enqueue_ms: options.enqueue_p99_ms, p0_ms: options.p0_p99_ms };
    let mut hardware = Hardware { targets, ..Hardware::default() };
    for path in &options.hlog {
        let (name, log) = (path.display().to_string(), hist::load(path)?);
        let found = sustained(&name, &log, options.measured_cores, targets);
        hardware.sustained.push(found.ok_or_else(|| {
            format!("{name}: no intervals with the tag \"enqueue\" of 100 ms or more; give a log of `overtake-perf load`")
        })?);
    }
    for path in &options.results {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let results = Results::from_json(&text).map_err(|error| format!("{name}: {error}"))?;
        hardware.take(&name, &results);
    }
    Ok(plan::plan(&load, &hardware).render())
}
