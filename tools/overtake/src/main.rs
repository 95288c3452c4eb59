//! The overtake command: server and operator tool. `cli` says what can be typed, `run` does it, `render` shows it.

mod certificates;
mod cli;
mod config;
mod exit;
mod random;
mod render;
mod run;
mod screen;
mod serve;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let exit = run::command(cli.command);
    ExitCode::from(exit as u8)
}
