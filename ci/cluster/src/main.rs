//! The command: does a fault to real nodes again and again, under load, and says how long the shards were away and
//! whether a promise was broken.

use clap::{Parser, Subcommand};
use overtake_cluster_tests::fault::Fault;
use overtake_cluster_tests::load::Traffic;
use overtake_cluster_tests::machine::{Machine, say};
use overtake_cluster_tests::measure::{Measured, render};
use overtake_cluster_tests::nodes::{Needs, Nodes};
use std::process::ExitCode;
use std::time::Duration;

/// Three real nodes on this machine, faults, and the simulator's checkers.
///
/// The server is built from this tree, or is the one that OVERTAKE_BIN names: measure a release build. Network namespaces
/// and disks of their own need root.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Does faults to leaders under load and measures until their shards deliver new messages again
    ///
    /// Each fault is done to one node after the other, and undone once all shards that the node led deliver messages again
    /// that were enqueued after it. Every round has a queue of its own, which is drained and judged at its end. Exits with
    /// 1 where a promise was broken, and prints which.
    Kill {
        /// How often each fault is done
        #[arg(long, default_value_t = 50)]
        times: u32,
        /// What is done, one or several with commas between
        #[arg(long, value_delimiter = ',', default_value = "kill")]
        fault: Vec<Fault>,
        /// Messages enqueued a second
        #[arg(long, default_value_t = 1_000)]
        rate: u64,
        /// Bytes of a body
        #[arg(long, default_value_t = 100)]
        body: usize,
        /// How long each fault lasts at least, in milliseconds, also where everything is back before
        #[arg(long, default_value_t = 0)]
        lasts_ms: u64,
        /// Each node in a network namespace of its own also where the fault does not need it
        #[arg(long)]
        namespaces: bool,
        /// Each node on an ext4 loop disk of its own also where the fault does not need it
        #[arg(long)]
        disks: bool,
    },
}

fn main() -> ExitCode {
    let Command::Kill { times, fault: faults, rate, body, lasts_ms, namespaces, disks } =
        Arguments::parse().command;
    let machine = Machine::look();
    let wanted = Needs { network: namespaces, disks, clocks: false };
    let needs = faults.iter().fold(wanted, |needs, fault| needs.and(fault.needs()));
    if let Some(why) = needs.lacks(&machine) {
        say(&format!("this cannot be done here: {why}"));
        return ExitCode::from(2);
    }
    let mut nodes = Nodes::start(&machine, needs);
    say(&format!(
        "three nodes: {}; {rate} messages a second of {body} bytes; {}",
        nodes.description(),
        load()
    ));
    let how = (Traffic { per_s: rate, body_bytes: body }, Duration::from_millis(lasts_ms));
    let measured: Vec<(Fault, Measured)> =
        faults.into_iter().map(|fault| (fault, Measured::run(&mut nodes, fault, times, how, say))).collect();
    drop(nodes);
    say(&load());
    print!("{}", render(&measured));
    let broken = measured.iter().flat_map(|(_, all)| &all.verdict.violations);
    broken.for_each(|violation| println!("BROKEN: {}: {}", violation.checker, violation.detail));
    if measured.iter().all(|(_, all)| all.is_clean()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What else the machine is doing.
fn load() -> String {
    let average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let average: Vec<&str> = average.split(' ').take(3).collect();
    format!("load average {} on {cores} cores", average.join(" "))
}
