//! `overtake-perf`: loads and measures servers and machines, and works out what is needed.
//!
//! Its exit codes are [`EXIT_CODES`].

use clap::{Parser, Subcommand};
use overtake_client::{ClientError, ErrorCode, Refusal};
use overtake_perf::bench::{self, BenchError, BenchOptions};
use overtake_perf::device::{self, DeviceOptions};
use overtake_perf::hist::{self, HistOptions};
use overtake_perf::load::{self, LoadError, LoadOptions};
use overtake_perf::plan::{self, PlanOptions};
use overtake_perf::storage::{self, StorageOptions};
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

/// The table of `--help` and README.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  a check failed: something was lost, something got slower, a plan is impossible
  2  wrong flag, value or file; a queue that holds messages of others
  3  the server or the machine could not be used
  130  interrupted with Ctrl-C before there was anything to end well";

const CHECK_FAILED: u8 = 1;
const WRONG_INPUT: u8 = 2;
const UNUSABLE: u8 = 3;
const INTERRUPTED: u8 = 130;

/// Loads and measures Overtake servers.
#[derive(Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Produce and consume at a rate, measure latencies, and verify that nothing is lost.
    Load(LoadOptions),
    /// Print, merge, compare and draw the histogram logs that `load` writes, or any others.
    Hist(HistOptions),
    /// Work out nodes, cores, shards, disk, network and memory for a load.
    Plan(PlanOptions),
    /// What this machine can do: disk, network, clock.
    Device(DeviceOptions),
    /// Cycles a second, latencies at a fixed rate, and the cost of idle consumers; one table.
    Bench(BenchOptions),
    /// What a long backlog costs in memory, disk and time, on a server of its own that is killed, too.
    Storage(StorageOptions),
    /// The same job on Overtake and on what people would use instead.
    ///
    /// Done by a program of its own, `overtake-perf-compare`, so that the clients of other systems are built only by who
    /// compares: `cargo build --release --manifest-path perf/compare/Cargo.toml`.
    #[command(disable_help_flag = true)]
    Compare {
        /// Passed on; `--help` tells them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let ended = match command {
        Command::Load(options) => load(&options),
        Command::Hist(options) => Ok(hist(&options)),
        Command::Plan(options) => Ok(plan(&options)),
        Command::Device(options) => device(&options),
        Command::Bench(options) => bench(&options),
        Command::Storage(options) => storage(&options),
        Command::Compare { arguments } => Ok(compare(&arguments)),
    };
    ended.unwrap_or_else(|error| failed(UNUSABLE, &error))
}

fn tell(line: &str) {
    eprintln!("{line}");
}

fn failed(code: u8, error: &str) -> ExitCode {
    eprintln!("overtake-perf: {error}");
    ExitCode::from(code)
}

/// Runs on this thread.
fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    // Without a runtime there is nothing that this program can do.
    #[allow(clippy::expect_used, reason = "fails only where the machine gives no epoll or no memory")]
    let runtime = overtake_perf::runtime().expect("a runtime can be made");
    let done = runtime.block_on(future);
    // What still measures in a thread of its own when Ctrl-C ended the rest is not waited for.
    runtime.shutdown_background();
    done
}

fn hist(options: &HistOptions) -> ExitCode {
    match hist::run(options) {
        Ok(printed) => {
            print!("{}", printed.text);
            if printed.check_failed { ExitCode::from(CHECK_FAILED) } else { ExitCode::SUCCESS }
        }
        Err(error) => failed(WRONG_INPUT, &error),
    }
}

fn plan(options: &PlanOptions) -> ExitCode {
    match plan::run(options) {
        Ok(planned) => {
            print!("{}", planned.text);
            if planned.impossible { ExitCode::from(CHECK_FAILED) } else { ExitCode::SUCCESS }
        }
        Err(error) => failed(WRONG_INPUT, &error),
    }
}

fn device(options: &DeviceOptions) -> Result<ExitCode, String> {
    print!("{}", device::run(options, &mut tell).map_err(|error| error.to_string())?);
    Ok(ExitCode::SUCCESS)
}

fn bench(options: &BenchOptions) -> Result<ExitCode, String> {
    Ok(measured(on_runtime(bench::run(options, &mut tell))))
}

fn storage(options: &StorageOptions) -> Result<ExitCode, String> {
    Ok(measured(on_runtime(storage::run(options, &mut tell))))
}

fn measured(table: Result<String, BenchError>) -> ExitCode {
    match table {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error @ BenchError::Foreign(_)) => failed(WRONG_INPUT, &error.to_string()),
        Err(BenchError::Client(error)) => failed(code_of_client(&error), &error.to_string()),
        Err(error @ BenchError::Interrupted) => failed(INTERRUPTED, &error.to_string()),
        Err(error) => failed(UNUSABLE, &error.to_string()),
    }
}

/// Becomes the program that compares, which lies beside this one or in the path.
fn compare(arguments: &[OsString]) -> ExitCode {
    const NAME: &str = "overtake-perf-compare";
    let beside =
        std::env::current_exe().ok().map(|path| path.with_file_name(NAME)).filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| NAME.into());
    let error = std::process::Command::new(&program).args(arguments).exec();
    let build = "cargo build --release --manifest-path perf/compare/Cargo.toml --target-dir target";
    failed(
        UNUSABLE,
        &format!(
            "{}: {error}; build it with `{build}` and put it beside this program or into the path",
            program.display()
        ),
    )
}

const fn code_of(error: &LoadError) -> u8 {
    match error {
        LoadError::Options(_) | LoadError::Foreign(..) | LoadError::File(..) => WRONG_INPUT,
        LoadError::Client(error) => code_of_client(error),
        LoadError::Io(_) | LoadError::Overloaded(_) => UNUSABLE,
    }
}

/// A flag or its value may be found wrong by the server, too.
const fn code_of_client(error: &ClientError) -> u8 {
    match error {
        ClientError::Options(_) | ClientError::Refused(Refusal { code: ErrorCode::Invalid, .. }) => {
            WRONG_INPUT
        }
        _ => UNUSABLE,
    }
}

fn load(options: &LoadOptions) -> Result<ExitCode, String> {
    match on_runtime(load::run(options, &mut tell)) {
        Ok(outcome) => {
            print!("{}", outcome.text);
            Ok(match outcome.failed {
                // What was broken weighs more than what ended the run.
                Some(error) => {
                    let code = if outcome.violations > 0 { CHECK_FAILED } else { code_of(&error) };
                    failed(code, &error.to_string())
                }
                None if outcome.violations > 0 => ExitCode::from(CHECK_FAILED),
                None => ExitCode::SUCCESS,
            })
        }
        Err(error) if code_of(&error) == WRONG_INPUT => Ok(failed(WRONG_INPUT, &error.to_string())),
        Err(error) => Err(error.to_string()),
    }
}
