//! The performance tools against the real server: what the README shows, in short.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use clap::Parser;
use overtake_e2e::Server;
use overtake_e2e::scratch::Scratch;
use overtake_e2e::shape::count;
use overtake_perf::hist::{self, HistOptions};
use overtake_perf::load::{LoadOptions, Outcome, run};
use overtake_perf::plan::{self, PlanOptions};
use std::thread::JoinHandle;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: LoadOptions,
}

#[derive(Parser)]
struct Hist {
    #[command(flatten)]
    options: HistOptions,
}

#[derive(Parser)]
struct Plan {
    #[command(flatten)]
    options: PlanOptions,
}

/// Runs `load` with these flags to its end.
#[track_caller]
fn load(server: &Server, flags: &str) -> Outcome {
    load_at(&server.quic().to_string(), flags)
}

/// The same, beside what the test does.
fn loading(server: &Server, flags: &str) -> JoinHandle<Outcome> {
    let (connect, flags) = (server.quic().to_string(), flags.to_owned());
    std::thread::spawn(move || load_at(&connect, &flags))
}

fn load_at(connect: &str, flags: &str) -> Outcome {
    let arguments = ["load", "--connect", connect].into_iter().chain(flags.split_whitespace());
    let options = Arguments::parse_from(arguments).options;
    let runtime = overtake_perf::runtime().expect("a runtime");
    let outcome = runtime
        .block_on(run(&options, &mut |line| eprintln!("{line}")))
        .unwrap_or_else(|error| panic!("load {flags}: {error}"));
    assert!(outcome.failed.is_none(), "load {flags}: {outcome:?}");
    outcome
}

#[test]
fn an_open_loop_with_everything_in_it_breaks_no_promise() {
    let server = Server::start();
    let outcome = load(
        &server,
        "--rate 500 --duration 2s --shape burst:3/500ms/1s --body 100-3000 --delay 10%:1s --dedup 10% --fail 5% \
         --abandon 2% --lease-s 1 --connections 3",
    );
    assert_eq!(outcome.violations, 0, "{}", outcome.text);
    assert!(outcome.text.contains("every confirmed message was delivered and acked"), "{}", outcome.text);
    let stats = server.queue("load").stats();
    let total = |name: &str| count(&stats["totals"], name);
    assert_eq!(total("enqueued"), total("acked"), "{stats}");
    assert!(total("releases") > 0 && total("lease_expirations") > 0, "{stats}");
}

#[test]
fn a_closed_loop_and_a_separate_consumer_work() {
    let server = Server::start();
    let made = load(&server, "--produce --concurrency 2 --batch 10 --duration 300ms --mix 1,1,1");
    assert_eq!(made.violations, 0, "{}", made.text);
    assert!(made.text.contains(" are on the server"), "{}", made.text);
    let taken = load(&server, "--consume --duration 2s --mix 1,1,1");
    assert_eq!(taken.violations, 0, "{}", taken.text);
    assert!(taken.text.contains("messages of 1 other runs"), "{}", taken.text);
    let stats = server.queue("load").stats();
    assert_eq!(count(&stats["totals"], "enqueued"), count(&stats["totals"], "acked"), "{stats}");
}

/// A producer of its own cannot see the acks of others; it must neither blame the server for them nor be blind.
#[test]
fn a_producer_tells_what_others_took_from_what_is_lost() {
    let server = Server::start();
    let consuming = loading(&server, "--consume --duration 3s");
    let made = load(&server, "--produce --rate 200 --duration 1s");
    assert_eq!(made.violations, 0, "{}", made.text);
    assert!(made.text.contains("were taken by other processes"), "{}", made.text);
    assert_eq!(consuming.join().expect("it ends").violations, 0);
}

/// What the other one acked is not lost.
#[test]
fn two_runs_may_share_a_queue() {
    let server = Server::start();
    let flags = |seed| format!("--rate 300 --duration 2s --drain 3s --seed {seed}");
    let runs = [1, 2].map(|seed| loading(&server, &flags(seed)));
    for run in runs {
        let outcome = run.join().expect("it ends");
        assert_eq!(outcome.violations, 0, "{}", outcome.text);
        assert!(outcome.text.contains("verified: "), "{}", outcome.text);
    }
}

#[test]
fn a_server_that_is_killed_under_load_loses_nothing() {
    let mut server = Server::start();
    let loading = loading(&server, "--rate 500 --duration 3s --lease-s 2");
    // Until some of it is there.
    overtake_e2e::eventually("messages arrive", || {
        let reply = server.client().try_call("GET", "/v1/queues/load/stats", &[], None).ok()?;
        (reply.status == 200 && reply.value()["totals"]["acked"].as_u64()? > 200).then_some(())
    });
    server.kill();
    server.start_again();
    let outcome = loading.join().expect("load ends");
    assert_eq!(outcome.violations, 0, "{}", outcome.text);
    assert!(outcome.text.contains("sent 1,500, confirmed 1,500, "), "{}", outcome.text);
    let stats = server.queue("load").stats();
    assert_eq!(count(&stats["totals"], "enqueued"), count(&stats["totals"], "acked"), "{}", outcome.text);
}

#[test]
fn load_then_hist_then_plan() {
    let (server, scratch) = (Server::start(), Scratch::new());
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (hlog, results, plot) = (path("load.hlog"), path("load.json"), path("load.png"));
    let pid = server.pid();
    load(
        &server,
        &format!(
            "--rate 300 --duration 1s --interval 250ms --hlog {hlog} --results {results} --server-pid {pid}"
        ),
    );
    let log =
        overtake_measure::hlog::read("load.hlog", &std::fs::read(&hlog).expect("a log")).expect("a log");
    let totals = overtake_measure::summary::totals(&log).expect("totals");
    assert_eq!(totals["enqueue"].histogram.len(), 300);
    let delivered: u64 = (0..5).map(|level| totals[&format!("deliver.P{level}")].histogram.len()).sum();
    assert_eq!(delivered, 300);
    assert!(log.intervals.len() > 10, "several intervals");

    let hist = |arguments: &[&str]| {
        let options = Hist::parse_from(["hist"].iter().chain(arguments)).options;
        hist::run(&options).unwrap_or_else(|error| panic!("hist {arguments:?}: {error}"))
    };
    let printed = hist(&["print", &hlog]);
    assert!(printed.text.lines().any(|line| line.starts_with("deliver.P0")), "{}", printed.text);
    assert!(!hist(&["compare", &hlog, &hlog]).check_failed);
    hist(&["plot", &hlog, "-o", &plot]);
    assert!(std::fs::read(&plot).is_ok_and(|bytes| bytes.starts_with(b"\x89PNG")));

    let options = Plan::parse_from(["plan", "--hlog", &hlog, "--results", &results]).options;
    let planned = plan::run(&options).unwrap_or_else(|error| panic!("plan: {error}"));
    for part in ["about 56,000/s", "head-room at p99", "load.settle of ", "/ 1 core (as the log says)"] {
        assert!(planned.text.contains(part), "{part} in {}", planned.text);
    }
}
