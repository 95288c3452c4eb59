//! The simulator's command: runs seeds, shows what they exercised, shrinks the first that fails and says how to replay it.

use clap::Parser;
use overtake_base::planted::{Bug, CAN_PLANT, plant};
use overtake_sim::checkers::Violation;
use overtake_sim::cluster::plan::ClusterPlan;
use overtake_sim::reduce::{Plan, Reduction, reduced};
use overtake_sim::run::Report;
use overtake_sim::shrink::shrink;
use overtake_sim::summary::Summary;
use overtake_sim::swarm::Swarm;
use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Prints a line; whoever closed the pipe does not want it.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Broken promises that are shown of one seed.
const VIOLATIONS_SHOWN: usize = 5;
/// Failing seeds that are named.
const FAILED_SHOWN: usize = 20;

/// Runs a node in virtual time on simulated disks, and a cluster of replicas beside it, breaks them in every way the seed
/// says, and judges what clients saw. Exits with 0 only where every seed is clean.
#[derive(Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Runs only this seed, and tells its last events where it fails.
    #[arg(long, conflicts_with_all = ["seeds", "start"])]
    seed: Option<u64>,
    /// Makes the seed's plan smaller before it runs: names with commas between, as a shrunk seed prints them.
    #[arg(long, requires = "seed", value_delimiter = ',')]
    reduce: Vec<Reduction>,
    /// Tells the last events also where the seed is clean.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// How many of the last events are told.
    #[arg(long, default_value_t = 300)]
    lines: usize,
    /// Shows a failing seed as it is, without making its plan smaller first.
    #[arg(long)]
    no_shrink: bool,
    /// Runs every n-th seed twice: both runs must be the same. 0 = never.
    #[arg(long, default_value_t = 20)]
    twice_every: u64,
    /// Runs several nodes instead of one.
    #[arg(long)]
    cluster: bool,
    /// Plants a bug, to see it found: the run then ends with the first seed that fails, and not with 0.
    #[arg(long, value_parser = bug, value_name = "NAME")]
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
        let width = Bug::ALL.iter().map(|bug| bug.name().len()).max().unwrap_or(0);
        Bug::ALL.iter().for_each(|bug| say!("{:width$}  {}", bug.name(), bug.what()));
        return ExitCode::SUCCESS;
    }
    if plant(arguments.bug).is_err() {
        eprintln!(
            "this is a release build: no bug can be planted in it. Build with debug assertions, for example\n  \
             cargo run --profile sim -p overtake-sim -- --bug {}",
            arguments.bug.map_or("NAME", Bug::name)
        );
        return ExitCode::FAILURE;
    }
    if !CAN_PLANT {
        eprintln!("note: a build without debug assertions checks less; use --profile sim");
    }
    if arguments.cluster || arguments.bug.is_some_and(Bug::is_of_clusters) {
        run::<ClusterPlan>(&arguments)
    } else {
        run::<Swarm>(&arguments)
    }
}

fn run<P: Plan>(arguments: &Arguments) -> ExitCode {
    match arguments.seed {
        Some(seed) => one::<P>(seed, arguments),
        None => many::<P>(arguments),
    }
}

fn bug(name: &str) -> Result<Bug, String> {
    Bug::of_name(name).ok_or_else(|| "no bug of that name; --list-bugs names them".into())
}

/// Runs one seed.
fn one<P: Plan>(seed: u64, arguments: &Arguments) -> ExitCode {
    let report = reduced::<P>(seed, &arguments.reduce).run(seed, arguments.trace);
    if report.violations.is_empty() {
        tell(&report, arguments);
        show_summary(&report.summary);
        say!("seed {seed} is clean, trace {:016x}", report.trace);
        return ExitCode::SUCCESS;
    }
    show_failed::<P>(&report, arguments);
    ExitCode::FAILURE
}

/// What came of many seeds.
#[derive(Default)]
struct Done {
    seeds: u64,
    summary: Summary,
    failed: BTreeMap<u64, Report>,
}

fn many<P: Plan>(arguments: &Arguments) -> ExitCode {
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let begun = Instant::now();
    let next = AtomicU64::new(arguments.start);
    let end = arguments.start.saturating_add(arguments.seeds);
    let done: Mutex<Done> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let report = run_checked::<P>(seed, arguments);
            let Ok(mut done) = done.lock() else { return };
            done.summary.merge(&report.summary);
            done.seeds += 1;
            if !report.violations.is_empty() {
                done.failed.insert(seed, report);
                if arguments.bug.is_some() {
                    next.store(end, Ordering::Relaxed);
                }
            }
            progress(&done, arguments.seeds, begun);
        }
    };
    std::thread::scope(|scope| {
        (0..threads.max(1)).for_each(|_| {
            scope.spawn(work);
        });
    });
    let Ok(done) = done.into_inner() else { return ExitCode::FAILURE };
    finish::<P>(&done, arguments, begun)
}

/// Runs a seed, some seeds twice.
fn run_checked<P: Plan>(seed: u64, arguments: &Arguments) -> Report {
    let run = |seed, told| P::of_seed(seed).run(seed, told);
    let twice = arguments.twice_every > 0 && seed.is_multiple_of(arguments.twice_every);
    let mut report = run(seed, false);
    if twice && run(seed, false).trace != report.trace {
        let detail = "two runs of the seed were not the same".into();
        report.violations.push(Violation::new("determinism", detail));
    }
    report
}

fn progress(done: &Done, of: u64, begun: Instant) {
    const WIDTH: u64 = 40;
    let mut terminal = std::io::stderr();
    if !terminal.is_terminal() {
        return;
    }
    let filled = (done.seeds * WIDTH / of.max(1)) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH as usize - filled));
    let seconds = begun.elapsed().as_secs_f64();
    let left_s = seconds / done.seeds as f64 * of.saturating_sub(done.seeds) as f64;
    let end = if done.seeds == of { "\n" } else { "" };
    // A terminal that is gone is no reason to stop.
    let _ = write!(
        terminal,
        "\r[{bar}] {}/{of} seeds, {} failed, {left_s:.0} s left {end}",
        done.seeds,
        done.failed.len()
    );
}

fn finish<P: Plan>(done: &Done, arguments: &Arguments, begun: Instant) -> ExitCode {
    show_summary(&done.summary);
    let real_s = begun.elapsed().as_secs_f64();
    let simulated_s = done.summary.simulated_ms() as f64 / 1_000.0;
    say!(
        "{} seeds in {real_s:.1} s, {simulated_s:.0} simulated seconds: {:.0} a second",
        done.seeds,
        simulated_s / real_s
    );
    if arguments.bug.is_none() {
        for name in done.summary.never_happened() {
            say!("!!! NEVER HAPPENED: {name}. Run more seeds, or find out why.");
        }
    }
    let Some((first, report)) = done.failed.first_key_value() else {
        say!("every seed is clean");
        return ExitCode::SUCCESS;
    };
    let more: Vec<String> =
        done.failed.keys().skip(1).take(FAILED_SHOWN).map(|seed| seed.to_string()).collect();
    say!("\n{} seeds failed; the first is {first}", done.failed.len());
    if !more.is_empty() {
        say!("others: {}", more.join(" "));
    }
    show_failed::<P>(report, arguments);
    ExitCode::FAILURE
}

fn show_summary(summary: &Summary) {
    for (name, count) in &summary.0 {
        say!("{count:>12}  {name}");
    }
}

fn tell(report: &Report, arguments: &Arguments) {
    for line in &report.tale[report.tale.len().saturating_sub(arguments.lines)..] {
        say!("{line}");
    }
}

fn show_violations(report: &Report) {
    for violation in report.violations.iter().take(VIOLATIONS_SHOWN) {
        say!("  {}: {}", violation.checker, violation.detail);
    }
    if report.violations.len() > VIOLATIONS_SHOWN {
        say!("  and {} more", report.violations.len() - VIOLATIONS_SHOWN);
    }
}

/// Shrinks the plan, tells the last events, and says how to see them again.
fn show_failed<P: Plan>(report: &Report, arguments: &Arguments) {
    let seed = report.seed;
    say!("seed {seed} failed:");
    show_violations(report);
    let mut command = format!("cargo run --profile sim -p overtake-sim -- --seed {seed}");
    if let Some(bug) = arguments.bug {
        command += &format!(" --bug {}", bug.name());
    }
    if arguments.cluster {
        command += " --cluster";
    }
    say!("replay: {command}{}", reduce_option(&arguments.reduce));
    let (reductions, told) = if arguments.no_shrink {
        let report = reduced::<P>(seed, &arguments.reduce).run(seed, true);
        (arguments.reduce.clone(), report)
    } else {
        let shrunk = shrink::<P>(seed, &arguments.reduce, report);
        say!("\nits plan, shrunk in {} runs:", shrunk.runs);
        (shrunk.reductions, shrunk.report)
    };
    say!("{:#?}\n\nits last events:", reduced::<P>(seed, &reductions));
    tell(&told, arguments);
    say!("\nseed {seed}, shrunk, fails like this:");
    show_violations(&told);
    say!("replay: {command}{} --no-shrink", reduce_option(&reductions));
}

fn reduce_option(reductions: &[Reduction]) -> String {
    if reductions.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = reductions.iter().map(|reduction| reduction.name()).collect();
    format!(" --reduce {}", names.join(","))
}
