//! The table of the design, line by line; and what becomes of a plan when its load or its hardware changes.

use super::*;
use crate::hlog::{Interval, Log, histogram};
use crate::results::{LatencyMs, Measure, Results};

#[test]
fn the_built_in_example_is_the_load_of_the_design() {
    let expected = [
        ["messages", "1.2 billion a day, 1 KB average, kept 4 days at most", ""],
        ["mix", "P0 2 %, P1 8 %, P2 20 %, P3 30 %, P4 40 %", ""],
        ["average enqueue rate", "1.2 B / 86,400 s", "about 13,900/s"],
        ["peak enqueue rate", "4 × average, at batch kick-offs", "about 56,000/s"],
        ["operations a message", "enqueue, receive, ack, about 0.1 retries", "about 3.2"],
        ["peak operations", "56,000 × 3.2", "about 180,000/s"],
        ["P0 at peak", "2 % of 56,000", "about 1,100/s"],
        ["ingest at peak", "56,000 × 1 KB", "about 56 MB/s"],
        ["normal backlog", "mostly P4, drained within an hour", "about 40 M messages, 40 GB"],
        ["worst backlog", "consumers down for a day", "1.2 TB, 3.6 TB on three replicas"],
        ["shards", "about 6,000 operations/s a leader in the usual design", "32, room to double"],
    ];
    let plan = plan(&Load::default(), &Hardware::default());
    let lines: Vec<[&str; 3]> = plan
        .load
        .iter()
        .map(|line| [line.quantity.as_str(), line.working.as_str(), line.result.as_str()])
        .collect();
    assert_eq!(lines, expected);
}

fn result<'a>(lines: &'a [Line], quantity: &str) -> &'a str {
    let line = lines.iter().find(|line| line.quantity == quantity);
    line.map_or_else(|| panic!("no {quantity} in {lines:?}"), |line| line.result.as_str())
}

fn measured() -> Hardware {
    let mut hardware = Hardware::default();
    let measures = vec![
        Measure { key: "bench.batched".into(), cpu_s_per_million: Some(20.0), ..Measure::default() },
        Measure {
            key: "device.write.64k.depth1".into(),
            bytes_per_second: Some(300e6),
            latency_ms: Some(LatencyMs { p50: 0.2, p99: 0.25, p999: 1.0, max: 2.0 }),
            ..Measure::default()
        },
    ];
    let results = Results { measures, ..Results::new("bench", 0, 2, &[]) };
    hardware.take("here.json", &results);
    hardware
}

#[test]
fn sizes_follow_from_what_was_measured() {
    let plan = plan(&Load::default(), &measured());
    // 55,556/s × 20 µs × 2 = 2.222 cores; at half load 5; a zone lost 2.222 / 0.8 × 3 / 2 = 4.2, so 5.
    assert_eq!(result(&plan.sizing, "CPU of a message"), "20 µs");
    assert_eq!(result(&plan.sizing, "CPU at peak"), "2.222 cores busy");
    assert_eq!(result(&plan.sizing, "cores"), "5");
    assert_eq!(result(&plan.sizing, "cores, a zone lost"), "5");
    assert_eq!(result(&plan.sizing, "nodes"), "3 × 4 cores");
    assert_eq!(result(&plan.sizing, "shards"), "32");
    // 1.2 G × 1,200 B × 3 / 3 / 0.75; 55,556 × 1,200 × 1.5.
    assert_eq!(result(&plan.sizing, "disk of a node"), "1.92 TB");
    assert_eq!(result(&plan.sizing, "disk writes at peak"), "100 MB/s a node");
    assert_eq!(result(&plan.sizing, "disk head-room"), "33 % used at peak");
    // 55.6 MB/s × 3 × 8 / 3.
    assert_eq!(result(&plan.sizing, "network into a node"), "440 Mbit/s");
    // 35 M × 200 B + 4 GB; 1.2 G × 200 B + 4 GB.
    assert_eq!(result(&plan.sizing, "memory, normal day"), "11 GB a node");
    assert_eq!(result(&plan.sizing, "memory, worst backlog"), "240 GB a node");
    assert!(plan.assumptions.iter().all(|a| !a.contains("run bench") && !a.contains("run device")));
    assert!(plan.assumptions.iter().any(|a| a.contains("run load with --hlog")));
}

#[test]
fn what_was_not_measured_is_said_to_be_assumed() {
    let plan = plan(&Load::default(), &Hardware::default());
    assert_eq!(result(&plan.sizing, "CPU of a message"), "533.333 µs");
    let text = plan.render();
    for missing in [
        "run bench with --server-pid",
        "run device with --results",
        "run load with --hlog",
        "a follower uses 50 %",
    ] {
        assert!(text.contains(missing), "{text}");
    }
}

#[test]
fn growth_outage_and_retention_change_the_load() {
    let load = Load { growth: "50%".parse().unwrap(), outage_hours: Exact::whole(6), ..Load::default() };
    let plan_ = plan(&load, &Hardware::default());
    assert_eq!(result(&plan_.load, "growth"), "1.8 billion a day");
    assert_eq!(result(&plan_.load, "average enqueue rate"), "about 20,800/s");
    assert_eq!(result(&plan_.load, "worst backlog"), "450 GB, 1.35 TB on three replicas");
    let kept = Load { retention_days: Exact::ratio(1, 4), ..Load::default() };
    let kept = plan(&kept, &Hardware::default());
    assert_eq!(result(&kept.load, "worst backlog"), "300 GB, 900 GB on three replicas");
    assert!(kept.render().contains("longer than the 0.25 days that messages are kept"));
}

#[test]
fn one_node_without_replicas_is_a_plan_too() {
    let load = Load {
        messages_per_day: 86_400,
        replicas: 1,
        zones: 1,
        mix: vec![1],
        cores_per_node: 1,
        ..Load::default()
    };
    let plan = plan(&load, &measured());
    assert_eq!(result(&plan.sizing, "nodes"), "1 × 1 cores");
    assert_eq!(result(&plan.load, "peak enqueue rate"), "about 4/s");
    assert!(plan.sizing.iter().all(|line| line.quantity != "CPU of replication"));
    assert_eq!(result(&plan.load, "worst backlog"), "86.4 MB, 86.4 MB on one replica");
}

/// A log whose second `n` has rate `rates[n]`, with all latencies as given.
fn log(rates: &[(u64, u64)]) -> Log {
    let mut intervals = Vec::new();
    for (second, (rate, ms)) in (0..).zip(rates) {
        let mut histogram = histogram();
        histogram.record_n(ms * 1_000_000, *rate).unwrap();
        for tag in ["enqueue", "deliver.P0"] {
            let histogram = histogram.clone();
            intervals.push(Interval {
                tag: tag.into(),
                start_ms: second * 1_000,
                length_ms: 1_000,
                histogram,
            });
        }
    }
    Log { intervals, ..Log::default() }
}

#[test]
fn the_highest_rate_that_held_its_latencies_is_found() {
    let targets = Targets::default();
    let found = |name: &str, rates: &[(u64, u64)]| sustained(name, &log(rates), None, targets).unwrap();
    let ramp = found("ramp", &[(1_000, 2), (3_000, 5), (2_000, 3), (4_000, 80), (5_000, 10)]);
    assert_eq!((ramp.per_second, ramp.limit_seen), (Some(3_000.0), true));
    assert!((ramp.enqueue_p99.ms - 5.0).abs() < 0.01 && ramp.p0_p99.is_some());
    let easy = found("easy", &[(1_000, 2)]);
    assert!(!easy.limit_seen);
    assert!(sustained("empty", &Log::default(), None, targets).is_none());
    let never = found("never", &[(1_000, 90)]);
    assert_eq!((never.per_second, never.limit_seen), (None, true));
    // 3,000/s on one core against 55,556 / 12 cores planned.
    let hardware = Hardware { sustained: vec![ramp, easy, never], ..measured() };
    let plan = plan(&Load::default(), &hardware);
    let rooms: Vec<_> =
        plan.sizing.iter().filter(|l| l.quantity == "head-room at p99").map(|l| l.result.as_str()).collect();
    assert_eq!(rooms, ["0.648 times", "0.216 times or more: the test never reached a limit", "none"]);
}

#[test]
fn what_held_is_told_with_its_latencies_and_how_many_they_are_of() {
    let held = |rates: &[(u64, u64)]| {
        let sustained = sustained("a.hlog", &log(rates), None, Targets::default()).unwrap();
        let plan = plan(&Load::default(), &Hardware { sustained: vec![sustained], ..measured() });
        let line = plan.sizing.iter().find(|line| line.quantity == "held at p99").unwrap();
        format!("{} | {}", line.working, line.result)
    };
    assert_eq!(held(&[(2_000, 3)]), "a.hlog: p99 enqueue 3 ms (of 2,000), P0 3 ms (of 2,000) | 2,000/s");
    assert_eq!(
        held(&[(1_000, 90)]),
        "a.hlog: p99 enqueue 90.046 ms (of 1,000), P0 90.046 ms (of 1,000); wanted at most 50 ms and 50 ms | no rate"
    );
}

#[test]
fn the_p99_of_a_rate_is_that_of_all_its_messages() {
    // A steady load that scatters. One second in so many is slow: with 60 of them that is more than one in a hundred
    // messages, with 300 it is less. The best second, or the busiest one, tells neither.
    let steady = |seconds: u64| {
        let rates: Vec<(u64, u64)> =
            (0..seconds).map(|s| (1_960 + s % 5 * 20, if s == 7 { 80 } else { 2 })).collect();
        sustained("steady", &log(&rates), None, Targets::default()).unwrap()
    };
    let short = steady(60);
    assert_eq!((short.per_second, short.limit_seen), (None, true));
    assert!((short.enqueue_p99.ms - 80.0).abs() < 0.1, "{short:?}");
    let long = steady(300);
    assert_eq!((long.per_second, long.limit_seen), (Some(2_000.0), false));
    assert!((long.enqueue_p99.ms - 2.0).abs() < 0.01 && long.enqueue_p99.values == 600_000, "{long:?}");
}

#[test]
fn the_cores_of_the_measured_server_are_told_with_where_they_come_from() {
    let (rates, targets) = ([(8_000, 2)], Targets::default());
    let said = |given: Option<u32>, log_says: Option<u32>| {
        let log = Log { server_cores: log_says, ..log(&rates) };
        let hardware =
            Hardware { sustained: vec![sustained("a.hlog", &log, given, targets).unwrap()], ..measured() };
        plan(&Load::default(), &hardware).render()
    };
    let text = said(None, Some(4));
    assert!(text.contains("8,000/s / 4 cores (as the log says)"), "{text}");
    assert!(!text.contains("had 1 core"), "{text}");
    let text = said(Some(2), Some(4));
    assert!(text.contains("8,000/s / 2 cores (as --measured-cores says)"), "{text}");
    let text = said(None, None);
    assert!(text.contains("8,000/s / 1 core (assumed)"), "{text}");
    assert!(text.contains("that the server of a.hlog had 1 core, since the log does not say"), "{text}");
}
