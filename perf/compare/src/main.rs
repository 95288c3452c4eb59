//! `overtake-perf-compare`: the same job on Overtake and on what people would use instead, one after the other on this
//! machine. `overtake-perf compare` starts it.

mod job;
mod measure;
mod peers;
mod process;
mod report;

use clap::Parser;
use job::{Failure, System};
use measure::Running;
use overtake_perf::duration;
use report::{About, Outcome};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{SignalKind, signal};

/// Compares Overtake with RabbitMQ, Redis, PostgreSQL, NATS and beanstalkd on this machine.
///
/// Each server is started on loopback with a folder of its own, measured, and stopped. One that is not installed is left
/// out, with a line that says how to install it. Nothing else should run meanwhile.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// The server of Overtake; without it `overtake` beside this program or in the path.
    #[arg(long, value_name = "FILE")]
    overtake: Option<PathBuf>,
    /// Only systems whose name contains one of these.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Leave out relaxed settings.
    #[arg(long)]
    strict_only: bool,
    /// How long each measurement takes.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    duration: Duration,
    /// Rates of the open loops, messages a second.
    #[arg(long, value_delimiter = ',', default_values_t = [2_000, 10_000], value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rates: Vec<u64>,
    /// P4 messages that wait.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    backlog: u64,
    /// Bytes of a body.
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(16..=65_000))]
    body: u32,
    /// Folder for the servers' data, on a disk; it is removed afterwards.
    #[arg(long, default_value = "compare-data", value_name = "FOLDER")]
    dir: PathBuf,
    /// First of five free ports on loopback.
    #[arg(long, default_value_t = 21_400)]
    port: u16,
    /// Where to write the table; plots and figures go beside it.
    #[arg(long, default_value = "RESULTS.md", value_name = "FILE")]
    output: PathBuf,
    /// How the document describes the machine; without it what the kernel tells.
    #[arg(long)]
    machine: Option<String>,
    /// What a reader has to know of this run; put above the tables.
    #[arg(long)]
    note: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let local = tokio::task::LocalSet::new();
    // Whatever ends this program, the servers that it started end with it.
    let work = async {
        tokio::select! {
            done = run(&options) => done,
            signal = interrupted() => Err(signal),
        }
    };
    match runtime.block_on(local.run_until(work)) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        // As `overtake-perf` ends after Ctrl-C.
        Err(error) if error.to_string() == INTERRUPTED => {
            failed(&*error);
            ExitCode::from(130)
        }
        Err(error) => failed(&*error),
    }
}

const INTERRUPTED: &str = "interrupted";

async fn interrupted() -> Failure {
    let Ok(mut terminated) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
    INTERRUPTED.into()
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("overtake-perf-compare: {error}");
    ExitCode::from(3)
}

async fn run(options: &Options) -> Result<String, Failure> {
    // Absolute, since servers are started in folders of their own.
    std::fs::create_dir_all(&options.dir)?;
    let dir = options.dir.canonicalize()?;
    let binary = options.overtake.clone().or_else(beside);
    let systems = peers::all(binary.map(|path| path.canonicalize().unwrap_or(path)));
    let wanted = |system: &dyn System| {
        let name = system.name().to_lowercase();
        (system.is_strict() || !options.strict_only)
            && (options.only.is_empty()
                || options.only.iter().any(|only| name.contains(&only.to_lowercase())))
    };
    eprintln!("limits of the machine");
    let limits = overtake_perf::device::limits(&dir, options.duration.min(Duration::from_secs(2)))?;
    let (mut outcomes, mut skipped) = (Vec::new(), Vec::new());
    for system in systems.iter().filter(|system| wanted(system.as_ref())) {
        match system.find() {
            Ok(program) => outcomes.push(one(system.as_ref(), &program, &dir.join("system"), options).await),
            Err(install) => {
                let line = format!("{} is not installed: {install}", system.name());
                eprintln!("{line}");
                skipped.push(line);
            }
        }
    }
    // Only if nothing else is in it.
    let _ = std::fs::remove_dir(&dir);
    let at_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let command: Vec<String> = std::env::args().skip(1).collect();
    let about = About {
        command: &format!("overtake-perf compare {}", shown(&command)),
        machine: &options.machine.clone().unwrap_or_else(|| machine(cores)),
        date: &date(at_s),
        body_bytes: options.body as usize,
        backlog: options.backlog,
        skipped: &skipped,
        note: options.note.as_deref(),
    };
    let mut text = report::markdown(&about, &limits, &outcomes);
    for (name, title, svg) in plots(options, &outcomes) {
        let file = options.output.with_file_name(format!("{name}.svg"));
        report::write(&file, &svg?)?;
        text += &format!("\n![{title}]({name}.svg)\n");
    }
    report::write(&options.output, &text)?;
    let results = report::results(&outcomes, &limits, at_s, cores);
    report::write(&options.output.with_extension("json"), &results.to_json())?;
    Ok(text)
}

/// The server in the folder of this program.
fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("overtake");
    path.is_file().then_some(path)
}

/// Arguments without the paths of this machine.
fn shown(arguments: &[String]) -> String {
    let hidden = ["--overtake", "--dir", "--machine", "--note", "--output"];
    let mut shown = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if hidden.contains(&argument.as_str()) {
            arguments.next();
        } else if !hidden.iter().any(|name| argument.starts_with(&format!("{name}="))) {
            shown.push(argument.as_str());
        }
    }
    shown.join(" ")
}

fn machine(cores: u32) -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {}, Linux {}", std::env::consts::ARCH, kernel.trim())
}

/// A day of the calendar.
fn date(at_s: u64) -> String {
    let output = Command::new("date").args(["-u", "-d", &format!("@{at_s}"), "+%Y-%m-%d"]).output();
    output.map_or_else(
        |_| format!("{at_s} s after 1970"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn plots(options: &Options, outcomes: &[Outcome]) -> Vec<(&'static str, String, Result<String, String>)> {
    let rate = options.rates.first().copied().unwrap_or_default();
    let paced = format!("P0, due to delivered, at {rate}/s");
    let backlog = "P0 behind a backlog, workers busy".to_owned();
    let first = report::plot_p0(outcomes, &paced, |outcome| outcome.paced.first().map(|(_, paced)| paced));
    let second = report::plot_p0(outcomes, &backlog, |outcome| outcome.backlog.as_ref());
    [("compare-p0", paced, first), ("compare-backlog", backlog, second)]
        .into_iter()
        .filter_map(|(name, title, svg)| Some((name, title, svg?)))
        .collect()
}

/// Everything about one system. What fails is noted, and the rest goes on.
async fn one(system: &dyn System, program: &Path, folder: &Path, options: &Options) -> Outcome {
    let mut outcome = Outcome {
        name: system.name(),
        strict: system.is_strict(),
        settings: format!(
            "{}; batches of {}, {} producers and {} consumers",
            system.settings(),
            system.tuning().batch,
            system.tuning().sessions,
            system.tuning().sessions
        ),
        install: system.install().to_owned(),
        version: version(system.version(program)),
        ..Outcome::default()
    };
    eprintln!("{}: start", outcome.name);
    let mut running = match Running::start(system, folder, options.port, options.body as usize).await {
        Ok(running) => running,
        Err(error) => {
            eprintln!("{}: {error}", outcome.name);
            outcome.failures.push(format!("does not start: {error}"));
            return outcome;
        }
    };
    let name = outcome.name.clone();
    let mut failures = Vec::new();
    macro_rules! step {
        ($what:expr, $future:expr) => {{
            eprintln!("{name}: {}", $what);
            match $future.await {
                Ok(value) => Some(value),
                Err(error) => {
                    eprintln!("{name}: {}: {error}", $what);
                    failures.push(format!("{}: {error}", $what));
                    None
                }
            }
        }};
    }
    outcome.batched = step!("batched", running.batched(options.duration));
    outcome.single = step!("single", running.single(options.duration));
    for rate in &options.rates {
        let paced = step!(format!("at {rate}/s"), running.paced(*rate, options.duration));
        outcome.paced.extend(paced.map(|paced| (*rate, paced)));
    }
    outcome.memory_per_message = step!("backlog", running.fill(options.backlog));
    outcome.backlog = step!("P0 behind the backlog", running.behind_backlog(options.duration));
    outcome.restart_s = step!("restart", running.restart()).map(|time| time.as_secs_f64());
    outcome.failures = failures;
    running.stop();
    outcome
}

/// What a program says of its version.
fn version(mut command: Command) -> String {
    let said = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_shown_without_paths_of_the_machine() {
        let arguments =
            ["--overtake", "x/overtake", "--duration", "3s", "--dir=y", "--rates", "2000"].map(str::to_owned);
        assert_eq!(shown(&arguments), "--duration 3s --rates 2000");
    }

    #[test]
    fn every_system_says_how_it_is_set_and_installed() {
        for system in peers::all(None) {
            assert!(!system.settings().is_empty() && system.tuning().batch > 0, "{}", system.name());
            assert!(
                system.find().is_ok_and(|path| path.is_file())
                    || system.find().is_err_and(|how| how.contains("install") || how.contains("build"))
            );
        }
    }
}
