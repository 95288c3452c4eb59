//! The simulator's command: runs seeds, shows what they exercised, and how to replay the one that failed.

use clap::Parser;
use overtake_base::planted::{Bug, plant};
use overtake_sim::run::{Report, run};
use overtake_sim::summary::Summary;
use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lines of the tale that a failing seed shows.
const TALE_LINES: usize = 4_000;

/// Runs a node in virtual time on simulated disks, breaks it in every way the seed says, and judges what clients saw.
#[derive(Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Runs only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Shows the last events of the seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Runs every n-th seed twice: both runs must be the same. 0 = never.
    #[arg(long, default_value_t = 20)]
    twice_every: u64,
    /// Plants a bug, to see it found.
    #[arg(long, value_parser = bug)]
    bug: Option<Bug>,
    /// Names the bugs that can be planted.
    #[arg(long)]
    list_bugs: bool,
    /// Threads; each runs seeds of its own.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list_bugs {
        Bug::ALL.iter().for_each(|bug| println!("{bug:?}"));
        return ExitCode::SUCCESS;
    }
    plant(arguments.bug);
    if let Some(seed) = arguments.seed {
        let report = run(seed, arguments.trace);
        show(&report);
        return if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let next = AtomicU64::new(arguments.start);
    let end = arguments.start.saturating_add(arguments.seeds);
    let done: Mutex<(Summary, BTreeMap<u64, Report>, u64)> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let report = run_checked(seed, arguments.twice_every);
                    if let Ok(mut done) = done.lock() {
                        done.0.merge(&report.summary);
                        done.2 += 1;
                        if !report.violations.is_empty() {
                            done.1.insert(seed, report);
                        }
                        progress(done.2, arguments.seeds, done.1.len());
                    }
                }
            });
        }
    });
    let Ok((summary, failed, _)) = done.into_inner() else { return ExitCode::FAILURE };
    finish(&summary, &failed)
}

fn bug(name: &str) -> Result<Bug, String> {
    Bug::of_name(name).ok_or_else(|| "no bug of that name; --list-bugs names them".into())
}

/// Runs a seed, some seeds twice.
fn run_checked(seed: u64, twice_every: u64) -> Report {
    let mut report = run(seed, false);
    if twice_every > 0 && seed.is_multiple_of(twice_every) {
        let again = run(seed, false);
        if again.trace != report.trace {
            let detail = "two runs of the seed were not the same".into();
            report.violations.push(overtake_sim::checkers::Violation::new("determinism", detail));
        }
    }
    report
}

fn progress(done: u64, of: u64, failed: usize) {
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        let width = 40;
        let filled = (done * width / of.max(1)) as usize;
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(width as usize - filled));
        let end = if done == of { "\n" } else { "" };
        // A terminal that is gone is no reason to stop.
        let _ = write!(terminal, "\r[{bar}] {done}/{of} seeds, {failed} failed{end}");
    }
}

fn finish(summary: &Summary, failed: &BTreeMap<u64, Report>) -> ExitCode {
    for (name, count) in &summary.0 {
        println!("{count:>12}  {name}");
    }
    for (seed, report) in failed {
        println!("\nseed {seed} failed:");
        for violation in report.violations.iter().take(5) {
            println!("  {}: {}", violation.checker, violation.detail);
        }
        println!("  replay: cargo run -p overtake-sim -- --seed {seed} --trace");
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(report: &Report) {
    for line in &report.tale[report.tale.len().saturating_sub(TALE_LINES)..] {
        println!("{line}");
    }
    for (name, count) in &report.summary.0 {
        println!("{count:>12}  {name}");
    }
    println!("trace {:016x}", report.trace);
    for violation in &report.violations {
        println!("{}: {}", violation.checker, violation.detail);
    }
    println!("seed {}: {}", report.seed, if report.violations.is_empty() { "clean" } else { "FAILED" });
}
