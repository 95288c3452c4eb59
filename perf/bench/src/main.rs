//! `overtake-perf`: measures a running server.

use clap::{Parser, Subcommand};
use overtake_perf::bench::{self, BenchOptions};
use std::process::ExitCode;

/// Measures a running Overtake server.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Cycles a second, latencies at a fixed rate, and the cost of idle consumers; one table.
    Bench(BenchOptions),
}

fn main() -> ExitCode {
    let Arguments { command: Command::Bench(options) } = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    match runtime.block_on(bench::run(&options, &mut |line| eprintln!("{line}"))) {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn core::error::Error) -> ExitCode {
    eprintln!("overtake-perf: {error}");
    ExitCode::FAILURE
}
