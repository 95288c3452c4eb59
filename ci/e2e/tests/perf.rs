//! The performance tools against the real server: what the README shows, in short.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use clap::Parser;
use overtake_e2e::Server;
use overtake_e2e::scratch::Scratch;
use overtake_e2e::shape::count;
use overtake_perf::load::{LoadOptions, Outcome, run};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: LoadOptions,
}

/// Runs `load` with these flags to its end.
#[track_caller]
fn load(server: &Server, flags: &str) -> Outcome {
    let connect = server.quic().to_string();
    let arguments = ["load", "--connect", &connect].into_iter().chain(flags.split_whitespace());
    let options = Arguments::parse_from(arguments).options;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime
        .block_on(run(&options, &mut |line| eprintln!("{line}")))
        .unwrap_or_else(|error| panic!("load {flags}: {error}"))
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

#[test]
fn a_server_that_is_killed_under_load_loses_nothing() {
    let mut server = Server::start();
    let connect = server.quic().to_string();
    let loading = std::thread::spawn(move || {
        let arguments =
            ["load", "--connect", &connect, "--rate", "500", "--duration", "3s", "--lease-s", "2"];
        let options = Arguments::parse_from(arguments).options;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime
            .block_on(run(&options, &mut |line| eprintln!("{line}")))
            .expect("load goes on after the restart")
    });
    // Until some of it is there.
    overtake_e2e::eventually("messages arrive", || {
        let reply = server.client().try_call("GET", "/v1/queues/load/stats", &[], None).ok()?;
        (reply.status == 200 && reply.value()["totals"]["acked"].as_u64()? > 200).then_some(())
    });
    server.kill();
    server.start_again();
    let outcome = loading.join().expect("load ends");
    assert_eq!(outcome.violations, 0, "{}", outcome.text);
    let stats = server.queue("load").stats();
    assert_eq!(count(&stats["totals"], "enqueued"), count(&stats["totals"], "acked"), "{}", outcome.text);
}

#[test]
fn latencies_are_written_where_they_were_asked_for() {
    let (server, scratch) = (Server::start(), Scratch::new());
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (hlog, results) = (path("load.hlog"), path("load.json"));
    load(&server, &format!("--rate 300 --duration 1s --interval 250ms --hlog {hlog} --results {results}"));
    let log =
        overtake_measure::hlog::read("load.hlog", &std::fs::read(&hlog).expect("a log")).expect("a log");
    let totals = overtake_measure::summary::totals(&log).expect("totals");
    assert_eq!(totals["enqueue"].histogram.len(), 300);
    let delivered: u64 = (0..5).map(|level| totals[&format!("deliver.P{level}")].histogram.len()).sum();
    assert_eq!(delivered, 300);
    assert!(log.intervals.len() > 10, "several intervals");
    let text = std::fs::read_to_string(&results).expect("results");
    let results = overtake_measure::results::Results::from_json(&text).expect("results");
    assert!(results.measure("load.enqueue").and_then(|measure| measure.latency_ms).is_some());
}
