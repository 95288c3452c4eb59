//! The table of the design, line by line; and what becomes of a plan when its load or its hardware changes.

use super::*;
use crate::encoding::EncodedHistogram;
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
    let plan = planned(&Load::default(), &Hardware::default());
    let lines: Vec<[&str; 3]> = plan
        .load
        .iter()
        .map(|line| [line.quantity.as_str(), line.working.as_str(), line.result.as_str()])
        .collect();
    assert_eq!(lines, expected);
}

fn planned(load: &Load, hardware: &Hardware) -> Plan {
    plan(load, &Node::default(), hardware)
}

fn result<'a>(lines: &'a [Line], quantity: &str) -> &'a str {
    let line = lines.iter().find(|line| line.quantity == quantity);
    line.map_or_else(|| panic!("no {quantity} in {lines:?}"), |line| line.result.as_str())
}

fn working<'a>(lines: &'a [Line], quantity: &str) -> &'a str {
    let line = lines.iter().find(|line| line.quantity == quantity);
    line.map_or_else(|| panic!("no {quantity} in {lines:?}"), |line| line.working.as_str())
}

fn measured() -> Hardware {
    let mut hardware = Hardware::default();
    let measures = vec![
        cpu("bench.batched", 20.0, 90_000.0),
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
    let plan = planned(&Load::default(), &measured());
    let expected = [
        ["CPU of a message", "bench.batched of here.json: 20 s per million at 90,000/s", "20 µs"],
        ["CPU with retries", "20 µs × 3.2 operations planned / 3 measured", "21.333 µs"],
        ["CPU of replication", "1 leader + 2 followers × 50 %", "× 2"],
        ["CPU at peak", "56,000/s × 21.333 µs × 2", "2.37 cores busy"],
        ["a node", "4 cores, 16 GB of memory, 2 TB of disk, 10 Gbit/s of network", ""],
        ["nodes for the cores", "2.37 / 50 % of 4 cores busy at most", "2"],
        ["nodes for the cores, a zone lost", "2.37 × 3 zones / 2 / 80 % of 4 cores busy at most", "2"],
        // (4.32 TB + 32 × 64 MiB × 3) / (1.5 TB - 1,792 MiB)
        [
            "nodes for the disk's size",
            "(1.2 B × (1000 + 200 B) × 3 replicas + 6.4 GB kept) / (75 % of 2 TB - 1.9 GB)",
            "3",
        ],
        // 55,556 × 1,200 × 3 × 2 = 400 MB/s; / 150 MB/s = 2.7.
        [
            "nodes for the disk's rate",
            "56,000/s × (1000 + 200 B) × 3 replicas × 2 (journal and block) / 50 % of 300 MB/s",
            "3",
        ],
        // 55,556 × 600 × 140 × 3 = 14 GB; 1.2 G × 4 × 3 = 14.4 GB; 12.8 - 2.7 GB.
        [
            "nodes for the memory",
            "(14 GB of remembered ids + 14 GB of the worst backlog) / (80 % of 16 GB - 2.7 GB)",
            "3",
        ],
        // 55.6 MB/s × (1.1 + 1 + 2 + 1.1) × 8 = 2.3 Gbit/s.
        [
            "nodes for the network",
            "56 MB/s × (consumers 1.1 + to the leader 1 + replication 2 + from the leader 1.1) × 8 bits / 50 % of 10 Gbit/s",
            "1",
        ],
        ["nodes", "the most of these, three replicas, whole 3 zones", "3 × 4 cores"],
        ["shards", "32 of the load, and one at least for each of 12 cores", "32"],
        ["cores of a node", "2.37 busy / 3 nodes × 4", "20 % busy at peak"],
        [
            "disk of a node",
            "(1.2 B × (1000 + 200 B) × 3 replicas / 3 nodes + 2.1 GB kept + 1.9 GB) / 75 % full",
            "1.93 TB of 2 TB",
        ],
        [
            "disk writes at peak",
            "56,000/s × (1000 + 200 B) × 3 replicas × 2 (journal and block) / 3 nodes",
            "130 MB/s a node",
        ],
        [
            "disk head-room",
            "device.write.64k.depth1 of here.json: 300 MB/s durable, p99 0.25 ms",
            "45 % used at peak",
        ],
        [
            "network into a node",
            "(producers 1 + to the leader 1 + replication 2 + from the leader 1.1) × 56 MB/s × 8 bits / 3 nodes",
            "760 Mbit/s, 8 % used",
        ],
        [
            "network out of a node",
            "(consumers 1.1 + to the leader 1 + replication 2 + from the leader 1.1) × 56 MB/s × 8 bits / 3 nodes",
            "770 Mbit/s, 8 % used",
        ],
        [
            "memory, whatever waits",
            "537 MB cache + 4 cores × (67.1 MB accepted + 268 MB answers + 4 × 200,000 messages × 256 B)",
            "2.7 GB a node",
        ],
        ["memory, remembered ids", "56,000/s × 600 s × 140 B × 3 replicas / 3 nodes", "4.7 GB a node"],
        ["memory, normal day", "40 M × 4 B × 3 replicas / 3 nodes + 7.4 GB", "7.5 GB of 16 GB"],
        ["memory, worst backlog", "1.2 B × 4 B × 3 replicas / 3 nodes + 7.4 GB", "12 GB of 16 GB"],
    ];
    let lines: Vec<[&str; 3]> = plan
        .sizing
        .iter()
        .map(|line| [line.quantity.as_str(), line.working.as_str(), line.result.as_str()])
        .collect();
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(*line, expected);
    }
    assert_eq!(lines.len(), expected.len());
    assert!(plan.impossible.is_empty(), "{:?}", plan.impossible);
    assert!(plan.assumptions.iter().all(|a| !a.contains("with --server-pid") && !a.contains("run device")));
    assert!(plan.assumptions.iter().any(|a| a.contains("run load with --hlog")));
}

#[test]
fn what_was_not_measured_is_said_to_be_assumed() {
    let plan = planned(&Load::default(), &Hardware::default());
    assert_eq!(result(&plan.sizing, "CPU of a message"), "533.333 µs");
    let text = plan.render();
    for missing in [
        "run load or bench with --server-pid",
        "run device with --results",
        "run load with --hlog",
        "run storage with --results",
        "a follower uses 50 %",
        "16 GB of memory (--memory-gb-per-node)",
        "2 TB of disk (--disk-gb-per-node)",
    ] {
        assert!(text.contains(missing), "{text}");
    }
}

#[test]
fn growth_outage_and_retention_change_the_load() {
    let load = Load { growth: "50%".parse().unwrap(), outage_hours: Exact::whole(6), ..Load::default() };
    let plan_ = planned(&load, &Hardware::default());
    assert_eq!(working(&plan_.load, "growth"), "1.2 B × 1.5, 1 year");
    assert_eq!(result(&plan_.load, "growth"), "1.8 billion a day");
    assert_eq!(result(&plan_.load, "average enqueue rate"), "about 20,800/s");
    assert_eq!(result(&plan_.load, "worst backlog"), "450 GB, 1.35 TB on three replicas");
    let years = planned(&Load { years: 3, ..load.clone() }, &Hardware::default());
    assert_eq!(working(&years.load, "growth"), "1.2 B × 1.5 × 1.5 × 1.5, 3 years");
    assert_eq!(result(&years.load, "growth"), "4.05 billion a day");
    let much = planned(&Load { growth: Exact::whole(10), years: 20, ..load }, &Hardware::default());
    assert!(much.impossible[0].starts_with("growth: more than"), "{:?}", much.impossible);
    let kept = Load { retention_days: Exact::ratio(1, 4), ..Load::default() };
    let kept = planned(&kept, &Hardware::default());
    assert_eq!(result(&kept.load, "worst backlog"), "300 GB, 900 GB on three replicas");
    assert!(kept.render().contains("longer than the 0.25 days that messages are kept"));
}

#[test]
fn one_node_without_replicas_is_a_plan_too() {
    let load = Load { messages_per_day: 86_400, replicas: 1, zones: 1, mix: vec![1], ..Load::default() };
    let node = Node { cores: Some(1), ..Node::default() };
    let plan = plan(&load, &node, &measured());
    assert_eq!(result(&plan.sizing, "nodes"), "1 × 1 cores");
    assert_eq!(result(&plan.load, "peak enqueue rate"), "about 4/s");
    assert!(plan.sizing.iter().all(|line| line.quantity != "CPU of replication"));
    assert_eq!(result(&plan.load, "worst backlog"), "86.4 MB, 86.4 MB on one replica");
    assert!(working(&plan.sizing, "network into a node").starts_with("(producers 1) ×"));
    assert!(plan.impossible.is_empty());
}

/// Results with these measurements.
fn results(measures: Vec<Measure>) -> Results {
    Results { measures, ..Results::new("bench", 0, 2, &[]) }
}

fn cpu(key: &str, s_per_million: f64, per_second: f64) -> Measure {
    Measure {
        key: key.into(),
        cpu_s_per_million: Some(s_per_million),
        per_second: Some(per_second),
        ..Measure::default()
    }
}

#[test]
fn every_part_of_a_node_enters_the_number_of_nodes() {
    let nodes = |node: Node, hardware: &Hardware| {
        let plan = plan(&Load::default(), &node, hardware);
        (result(&plan.sizing, "nodes").to_owned(), plan.impossible)
    };
    let plenty = Node {
        cores: Some(64),
        memory_bytes: Some(512_000_000_000),
        disk_bytes: Some(20_000_000_000_000),
        network_bits: Some(100_000_000_000),
        count: None,
    };
    assert_eq!(nodes(plenty, &Hardware::default()), ("3 × 64 cores".into(), vec![]));
    let memory = Node { cores: Some(4), memory_bytes: Some(8_000_000_000), ..plenty };
    // 28.4 GB / (6.4 - 2.7 GB) = 7.7, in whole zones.
    assert_eq!(nodes(memory, &measured()).0, "9 × 4 cores");
    let disk = Node { cores: Some(8), disk_bytes: Some(500_000_000_000), ..plenty };
    // (4.32 TB + 128 × 64 MiB × 3) / (375 - 1.9 GB) = 11.6.
    assert_eq!(nodes(disk, &measured()).0, "12 × 8 cores");
    let network = Node { network_bits: Some(1_000_000_000), ..plenty };
    // 2.31 Gbit/s / 0.5.
    assert_eq!(nodes(network, &measured()).0, "6 × 64 cores");
    let slow =
        Measure { key: "device.write.64k.depth1".into(), bytes_per_second: Some(50e6), ..Measure::default() };
    let mut hardware = Hardware::default();
    assert!(hardware.take("slow.json", &results(vec![slow])));
    // 400 MB/s / 25 MB/s.
    assert_eq!(nodes(plenty, &hardware).0, "18 × 64 cores");
}

#[test]
fn what_cannot_be_is_refused_with_the_resource_that_rules_it_out() {
    let refused = |load: &Load, node: Node, hardware: &Hardware, says: &str| {
        let plan = plan(load, &node, hardware);
        assert!(plan.impossible.iter().any(|reason| reason.contains(says)), "{says}: {:?}", plan.impossible);
        assert!(plan.render().contains("IMPOSSIBLE as it is:"));
    };
    let (load, some) = (Load::default(), Node::default());
    let node = |gb: u128| Node { memory_bytes: Some(gb * 1_000_000_000), ..some };
    refused(&load, node(2), &measured(), "the memory: no number of such nodes");
    refused(
        &load,
        Node { disk_bytes: Some(2_000_000_000), ..some },
        &measured(),
        "the disk's size: no number",
    );
    refused(
        &load,
        Node { disk_bytes: Some(20_000_000_000), ..some },
        &measured(),
        "a cluster has 64 at most",
    );
    let few = Node { count: Some(3), memory_bytes: Some(8_000_000_000), ..some };
    refused(&load, few, &measured(), "the memory: takes 8 nodes, and --nodes says 3");
    refused(
        &load,
        Node { count: Some(2), ..some },
        &measured(),
        "replicas: 3 of them need as many nodes, not 2",
    );
    refused(&Load { zones: 65, ..load.clone() }, some, &measured(), "zones: whole 65 zones make it 65 nodes");
    refused(&Load { zones: 2, ..load.clone() }, some, &measured(), "zones: with three replicas in 2 zones");
    refused(&Load { replicas: 1, ..load.clone() }, some, &measured(), "zones: with one replica in 3 zones");
    // A disk that is too slow for the latencies, whatever it takes in a second.
    let latency_ms = |p99| Some(LatencyMs { p50: 1.0, p99, p999: p99, max: p99 });
    let mut hardware = Hardware::default();
    hardware.take(
        "hdd.json",
        &results(vec![
            Measure { key: "device.fsync.paced".into(), latency_ms: latency_ms(30.0), ..Measure::default() },
            Measure {
                key: "device.write.1m.depth4".into(),
                bytes_per_second: Some(1e9),
                latency_ms: latency_ms(60.0),
                ..Measure::default()
            },
        ]),
    );
    refused(&load, some, &hardware, "the disk's latency: flushes, of a delivery of P0 takes 60 ms");
    refused(&load, some, &hardware, "the disk's rate: no number of such nodes");
    // 50/s a core, replicated; the largest cluster has 217/s for each.
    let hardware = Hardware { sustained: vec![found(&log(&[(100, 90)]))], ..measured() };
    refused(&load, some, &hardware, "the latencies: no number of such nodes");
    let hardware = Hardware { sustained: vec![found(&log(&[(1_000, 90)]))], ..measured() };
    refused(&load, Node { count: Some(27), ..some }, &hardware, "the latencies: takes 28 nodes, and --nodes");
}

#[test]
fn a_test_in_which_nothing_held_says_nothing_of_lower_rates() {
    let hardware = Hardware { sustained: vec![found(&log(&[(1_000, 90)]))], ..measured() };
    // 55,556 / (4 × 500).
    let plan = planned(&Load::default(), &hardware);
    assert!(plan.impossible.is_empty(), "{:?}", plan.impossible);
    assert_eq!(result(&plan.sizing, "nodes for the latencies"), "28 or more, not known");
    assert_eq!(result(&plan.sizing, "nodes"), "30 × 4 cores");
    assert_eq!(result(&plan.sizing, "head-room at p99"), "not known");
    // 55,556 / 120 × 2.
    let says = "that latencies hold at 930/s on the server of a.hlog: no rate that it tested held, the lowest was 1,000/s; \
                run load at lower rates";
    assert!(plan.assumptions.iter().any(|a| a.starts_with(says)), "{:?}", plan.assumptions);
    let small = Load { messages_per_day: 1_000_000, ..Load::default() };
    let plan = planned(&small, &hardware);
    assert!(plan.impossible.is_empty(), "{:?}", plan.impossible);
    assert_eq!(result(&plan.sizing, "nodes"), "3 × 4 cores");
}

#[test]
fn the_cpu_of_a_message_does_not_hang_on_the_order_of_files() {
    let files = [
        ("slow.json", results(vec![cpu("load.settle", 142.0, 1_970.0)])),
        ("fast.json", results(vec![cpu("load.settle", 40.0, 20_000.0)])),
        (
            "bench.json",
            results(vec![cpu("bench.single", 90.0, 9_000.0), cpu("bench.batched", 10.0, 90_000.0)]),
        ),
    ];
    let told = |order: [usize; 3]| {
        let mut hardware = Hardware::default();
        order.iter().for_each(|at| assert!(hardware.take(files[*at].0, &files[*at].1)));
        planned(&Load::default(), &hardware).render()
    };
    let text = told([0, 1, 2]);
    assert!(text.contains("load.settle of fast.json: 40 s per million at 20,000/s"), "{text}");
    assert!(text.contains("load.settle of slow.json: 142 s per million at 1,970/s"), "{text}");
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        assert_eq!(told(order), text);
    }
    assert!(!Hardware::default().take("nothing.json", &results(vec![Measure::default()])));
}

#[test]
fn a_cost_that_was_measured_far_from_the_planned_rate_is_told() {
    let told = |per_second: f64| {
        let mut hardware = Hardware::default();
        hardware.take("a.json", &results(vec![cpu("load.settle", 20.0, per_second)]));
        let far = planned(&Load::default(), &hardware).assumptions;
        far.into_iter().find(|assumption| assumption.starts_with("that a message costs"))
    };
    // 55,556/s planned on three nodes, 18,519/s each.
    assert_eq!((told(4_700.0), told(220_000.0), told(0.0)), (None, None, None));
    assert!(
        told(4_600.0)
            .is_some_and(|text| text.contains("at 4,600/s (load.settle of a.json): it may be far less"))
    );
    assert!(
        told(230_000.0).is_some_and(|text| text.contains("costs at 56,000/s what it costs at 230,000/s")
            && text.contains("it may be far more"))
    );
}

#[test]
fn retries_and_replicas_that_were_measured_are_not_counted_twice() {
    let of = |retries: f64, replicas: Option<u32>, planned_retries: &str| {
        let measure = Measure { retries: Some(retries), ..cpu("load.settle", 30.0, 10_000.0) };
        let mut hardware = Hardware::default();
        let results = Results { server_replicas: replicas, ..results(vec![measure]) };
        hardware.take("a.json", &results);
        let plan = planned(&Load { retries: planned_retries.parse().unwrap(), ..Load::default() }, &hardware);
        let assumed = plan.assumptions.iter().any(|a| a.contains("kept one copy"));
        (result(&plan.sizing, "CPU at peak").to_owned(), assumed)
    };
    // 55,556/s × 30 µs, × 2 for followers.
    assert_eq!(of(0.5, Some(1), "0.5"), ("3.333 cores busy".into(), false));
    assert_eq!(of(0.5, None, "0.5"), ("3.333 cores busy".into(), true));
    assert_eq!(of(0.5, Some(3), "0.5"), ("1.667 cores busy".into(), false));
    // × 4 / 3, and × 5 / 3 operations.
    assert_eq!(of(0.0, Some(1), "0.5").0, "4.444 cores busy");
    assert_eq!(of(0.0, Some(1), "1").0, "5.556 cores busy");
}

#[test]
fn memory_of_a_message_is_what_storage_measured() {
    let mut hardware = measured();
    let measure = Measure {
        key: "storage.backlog.memory".into(),
        memory_bytes_per_message: Some(0.4),
        ..Measure::default()
    };
    hardware.take("storage.json", &results(vec![measure]));
    let plan = planned(&Load { dedup_window_s: 0, ..Load::default() }, &hardware);
    // 2.7 GB whatever waits, 1.2 G × 0.4 B.
    assert_eq!(result(&plan.sizing, "memory, worst backlog"), "3.2 GB of 16 GB");
    assert_eq!(
        working(&plan.sizing, "memory of a message"),
        "storage.backlog.memory of storage.json, of one that waits on disk"
    );
    assert!(plan.sizing.iter().all(|line| line.quantity != "memory, remembered ids"));
}

/// What happens in one second of a log: messages due, confirmed and delivered, and all latencies in milliseconds.
type Second = (u64, u64, u64, u64);

fn recorded(tag: &str, start_ms: u64, count: u64, ms: u64) -> Interval {
    let mut histogram = histogram();
    histogram.record_n(ms * 1_000_000, count).unwrap();
    let histogram = EncodedHistogram::new(&histogram).unwrap();
    Interval { tag: tag.into(), start_ms, length_ms: 1_000, histogram }
}

/// A log of these seconds. Without `open` it is that of a closed loop, which does not say what was due.
fn seconds(open: bool, seconds: &[Second]) -> Log {
    let mut intervals = Vec::new();
    for (second, (due, confirmed, delivered, ms)) in (0..).zip(seconds) {
        let at = 1_000 * second;
        for (tag, count) in [("send.late", due), ("enqueue", confirmed), ("deliver.P0", delivered)] {
            // As `load` does, a tag of which there was nothing has no interval.
            if *count > 0 && (open || tag != "send.late") {
                intervals.push(recorded(tag, at, *count, if tag == "send.late" { 1 } else { *ms }));
            }
        }
    }
    Log { intervals, ..Log::default() }
}

/// A log whose second `n` has rate `rates[n]`, all of it confirmed and delivered, with all latencies as given.
fn log(rates: &[(u64, u64)]) -> Log {
    seconds(true, &rates.iter().map(|(rate, ms)| (*rate, *rate, *rate, *ms)).collect::<Vec<_>>())
}

fn found(log: &Log) -> Sustained {
    sustained("a.hlog", log, Measured::default(), Targets::default()).unwrap()
}

#[test]
fn the_highest_rate_that_held_its_latencies_is_found() {
    let targets = Targets::default();
    let found = |name: &str, rates: &[(u64, u64)]| {
        sustained(name, &log(rates), Measured::default(), targets).unwrap()
    };
    let ramp = found("ramp", &[(1_000, 2), (3_000, 5), (2_000, 3), (4_000, 80), (5_000, 10)]);
    assert_eq!(ramp.per_second, Some(3_000.0));
    assert!(
        matches!(ramp.missed, Some((rate, Missed::Enqueue(p99))) if rate == 4_000.0 && p99.ms > 79.0),
        "{ramp:?}"
    );
    assert!((ramp.enqueue_p99.ms - 5.0).abs() < 0.01 && ramp.p0_p99.is_some());
    let hardware = Hardware { sustained: vec![ramp], ..measured() };
    let says =
        "that 4,000/s in ramp is a limit: rates above it held again, up to 5,000/s; was the test disturbed?";
    let told = planned(&Load::default(), &hardware).assumptions;
    assert!(told.iter().any(|assumption| assumption.starts_with(says)), "{told:?}");
    let easy = found("easy", &[(1_000, 2)]);
    assert!(easy.missed.is_none() && easy.held_above.is_none());
    assert_eq!(sustained("empty", &Log::default(), Measured::default(), targets), Err(NoRate::Enqueues));
    let producers = Log { intervals: vec![recorded("enqueue", 0, 10, 1)], ..Log::default() };
    assert_eq!(sustained("producers", &producers, Measured::default(), targets), Err(NoRate::Deliveries));
    // 1,000/s on one core by itself are 500/s with two followers; 55,556/s planned on 12 cores.
    let hardware = Hardware { sustained: vec![easy], ..measured() };
    let plan = planned(&Load::default(), &hardware);
    assert_eq!(
        working(&plan.sizing, "held by a core, replicated"),
        "1,000/s × 1 for the one replica measured / 2 for the three replicas planned, 50 % a follower"
    );
    assert_eq!(
        result(&plan.sizing, "head-room at p99"),
        "0.108 times or more: the test never reached a limit"
    );
    assert!(plan.assumptions.iter().any(|a| a.contains("that latencies hold above 1,000/s")), "{plan:?}");
}

#[test]
fn the_latencies_enter_the_number_of_nodes_where_their_limit_was_seen() {
    let ramp = found(&log(&[(5_000, 2), (10_000, 2), (15_000, 2), (20_000, 200)]));
    let of = |replicas: Option<u32>| {
        let sustained = Sustained { server_replicas: Origin::known(replicas, None, 1), ..ramp.clone() };
        let hardware = Hardware { sustained: vec![sustained], ..measured() };
        let plan = planned(&Load::default(), &hardware);
        let quantities = ["nodes for the latencies", "nodes", "head-room at p99"];
        quantities.map(|quantity| result(&plan.sizing, quantity).to_owned())
    };
    // 55,556 / (4 × 7,500); replicated like the plan 55,556 / (4 × 15,000).
    assert_eq!(of(Some(1)), ["2", "3 × 4 cores", "1.62 times"]);
    assert_eq!(of(Some(3)), ["1", "3 × 4 cores", "3.24 times"]);
    let slow = found(&log(&[(1_000, 2), (2_000, 200)]));
    let hardware = Hardware { sustained: vec![ramp, slow], ..measured() };
    // The worst of several logs counts: 55,556 / (4 × 500).
    assert_eq!(result(&planned(&Load::default(), &hardware).sizing, "nodes"), "30 × 4 cores");
}

#[test]
fn a_disturbed_test_is_told_and_does_not_outvote_one_that_held_more() {
    let named = |name: &str, rates: &[(u64, u64)]| Sustained { name: name.into(), ..found(&log(rates)) };
    let good = named("good.hlog", &[(10_000, 2), (20_000, 200)]);
    let disturbed = named("disturbed.hlog", &[(1_000, 90)]);
    let says = "that disturbed.hlog, in which not even 1,000/s held, was disturbed: a core held 5,000/s in good.hlog";
    for sustained in [vec![good.clone(), disturbed.clone()], vec![disturbed.clone(), good.clone()]] {
        let plan = planned(&Load::default(), &Hardware { sustained, ..measured() });
        assert!(plan.impossible.is_empty(), "{:?}", plan.impossible);
        let counts = "56,000/s / (4 cores × 5,000/s held by a core in good.hlog)";
        assert_eq!(working(&plan.sizing, "nodes for the latencies"), counts);
        assert!(plan.assumptions.iter().any(|a| a.starts_with(says)), "{:?}", plan.assumptions);
        assert!(plan.sizing.iter().any(|line| line.working.starts_with("disturbed.hlog: p99 enqueue 90")));
    }
    // A test that held less refutes nothing.
    let low = named("low.hlog", &[(100, 2)]);
    let plan = planned(&Load::default(), &Hardware { sustained: vec![low, disturbed], ..measured() });
    assert_eq!(result(&plan.sizing, "nodes for the latencies"), "28 or more, not known");
}

#[test]
fn what_held_is_told_with_its_latencies_and_how_many_they_are_of() {
    let held = |rates: &[(u64, u64)]| {
        let sustained = found(&log(rates));
        let plan = planned(&Load::default(), &Hardware { sustained: vec![sustained], ..measured() });
        let line = plan.sizing.iter().find(|line| line.quantity == "held at p99").unwrap();
        format!("{} | {}", line.working, line.result)
    };
    assert_eq!(held(&[(2_000, 3)]), "a.hlog: p99 enqueue 3 ms (of 2,000), P0 3 ms (of 2,000) | 2,000/s");
    assert_eq!(
        held(&[(1_000, 90)]),
        "a.hlog: p99 enqueue 90.046 ms (of 1,000), P0 90.046 ms (of 1,000); wanted at most 50 ms and 50 ms; at 1,000/s: \
         p99 enqueue 90.046 ms (of 1,000) | no rate"
    );
}

#[test]
fn the_p99_of_a_rate_is_that_of_all_its_messages() {
    // A steady load that scatters. One second in so many is slow: with 60 of them that is more than one in a hundred
    // messages, with 300 it is less. The best second, or the busiest one, tells neither.
    let steady = |seconds: u64| {
        let rates: Vec<(u64, u64)> =
            (0..seconds).map(|s| (1_960 + s % 5 * 20, if s == 7 { 80 } else { 2 })).collect();
        found(&log(&rates))
    };
    let short = steady(60);
    assert!(short.per_second.is_none() && short.missed.is_some());
    assert!((short.enqueue_p99.ms - 80.0).abs() < 0.1, "{short:?}");
    let long = steady(300);
    assert_eq!((long.per_second, long.missed), (Some(2_000.0), None));
    assert!((long.enqueue_p99.ms - 2.0).abs() < 0.01 && long.enqueue_p99.values == 600_000, "{long:?}");
}

#[test]
fn a_stall_is_not_hidden_by_the_second_that_catches_up() {
    // Nothing is confirmed for three of sixty seconds; then all of it is, at four times the rate.
    let mut all = vec![(1_000, 1_000, 1_000, 2); 60];
    all[20..23].fill((1_000, 0, 0, 0));
    all[23] = (1_000, 4_000, 4_000, 3_000);
    let open = found(&seconds(true, &all));
    assert_eq!(open.per_second, None);
    assert!(matches!(open.missed, Some((rate, Missed::Enqueue(_))) if rate == 1_000.0), "{open:?}");
    // A closed loop stands still for as long, and then goes on.
    all[23] = (1_000, 1_000, 1_000, 2);
    let closed = found(&seconds(false, &all));
    assert_eq!(closed.per_second, Some(950.0));
}

#[test]
fn a_backlog_that_grows_is_no_rate_that_held() {
    for open in [true, false] {
        let growing = found(&seconds(open, &vec![(10_000, 10_000, 6_000, 2); 30]));
        assert_eq!(growing.per_second, None);
        assert_eq!(growing.missed, Some((10_000.0, Missed::NotDelivered(10_000.0, 6_000.0))));
    }
    let refused = found(&seconds(true, &vec![(10_000, 7_000, 7_000, 2); 30]));
    assert_eq!(refused.missed, Some((10_000.0, Missed::NotConfirmed(10_000.0, 7_000.0))));
}

#[test]
fn what_catches_up_after_a_step_is_neither_held_nor_a_limit() {
    // Ten seconds each of 1,000/s, of 5,000/s of which 4,000/s leave, and of 1,000/s in which the rest leaves, late.
    let mut all = vec![(1_000, 1_000, 1_000, 2); 10];
    all.extend([(5_000, 5_000, 4_000, 30); 10]);
    all.extend([(1_000, 1_000, 2_000, 2_000); 10]);
    let stepped = found(&seconds(true, &all));
    assert_eq!(stepped.per_second, Some(1_000.0));
    assert!((stepped.enqueue_p99.ms - 2.0).abs() < 0.01, "{stepped:?}");
    assert_eq!(stepped.missed, Some((5_000.0, Missed::NotDelivered(5_000.0, 4_000.0))));
}

#[test]
fn logs_of_several_processes_are_paired_by_overlap() {
    // A producer and two consumers that started at other times, merged: the intervals of no two tags begin together.
    let shifted = |tag: &str, by_ms: u64, count: u64, ms: u64| Log {
        intervals: (0..20).map(|second| recorded(tag, by_ms + 1_000 * second, count, ms)).collect(),
        ..Log::default()
    };
    let logs = [
        shifted("send.late", 0, 2_000, 1),
        shifted("enqueue", 0, 2_000, 3),
        shifted("deliver.P0", 330, 500, 70),
        shifted("deliver.P0", 780, 500, 80),
        shifted("deliver.P1", 410, 1_000, 5),
    ];
    let merged = crate::merge::merge(&logs).unwrap();
    let found = found(&merged);
    assert_eq!(found.per_second, None, "{found:?}");
    assert!(matches!(found.missed, Some((_, Missed::P0(p99))) if p99.ms > 79.0), "{found:?}");
    let quick = [&logs[..2], &[shifted("deliver.P0", 330, 2_000, 4)]].concat();
    let quick =
        super::sustained("b", &crate::merge::merge(&quick).unwrap(), Measured::default(), Targets::default());
    let quick = quick.unwrap();
    assert!(quick.per_second.is_some_and(|rate| (rate - 2_000.0).abs() < 1.0), "{quick:?}");
    assert!(quick.p0_p99.is_some_and(|p99| p99.values > 35_000), "{quick:?}");
}

#[test]
fn a_load_tool_that_was_late_is_told() {
    let mut log = log(&[(1_000, 4)]);
    let told = |log: &Log| {
        planned(&Load::default(), &Hardware { sustained: vec![found(log)], ..measured() }).render()
    };
    assert!(!told(&log).contains("was in time"));
    let late = log.intervals.iter_mut().find(|interval| interval.tag == "send.late").unwrap();
    *late = recorded("send.late", 0, 1_000, 3);
    assert!(told(&log).contains("of a.hlog was sent 3"), "{}", told(&log));
}

#[test]
fn repeats_of_a_dedup_key_are_not_waited_for() {
    let mut log = seconds(true, &[(1_000, 800, 800, 2); 10]);
    log.intervals.extend((0..10).map(|second| recorded("enqueue.repeat", 1_000 * second, 200, 2)));
    assert_eq!((found(&log).per_second, found(&log).missed), (Some(1_000.0), None));
}

#[test]
fn any_log_is_taken_without_a_panic() {
    let odd = |start_ms, length_ms| Interval { start_ms, length_ms, ..recorded("enqueue", 0, 3, 1) };
    for intervals in [
        vec![odd(0, 33_000_000_000_000), odd(u64::MAX - 5, 100)],
        vec![odd(0, 100), odd(33_000_000_000_000, 100)],
        vec![odd(7, 0), odd(7, 100)],
    ] {
        let delivered = Interval { tag: "deliver.P0".into(), ..intervals[0].clone() };
        let intervals = [intervals, vec![Interval { length_ms: 100, ..delivered }]].concat();
        let found = found(&Log { intervals, ..Log::default() });
        let _ = planned(&Load::default(), &Hardware { sustained: vec![found], ..measured() }).render();
    }
}

#[test]
fn the_cores_of_the_measured_server_are_told_with_where_they_come_from() {
    let (rates, targets) = ([(8_000, 2)], Targets::default());
    let said = |given: Option<u32>, log_says: Option<u32>| {
        let log = Log { server_cores: log_says, ..log(&rates) };
        let given = Measured { cores: given, replicas: None };
        let hardware =
            Hardware { sustained: vec![sustained("a.hlog", &log, given, targets).unwrap()], ..measured() };
        planned(&Load::default(), &hardware).render()
    };
    let text = said(None, Some(4));
    assert!(text.contains("8,000/s / 4 cores (as the log says)"), "{text}");
    assert!(!text.contains("had 1 core"), "{text}");
    let text = said(Some(2), Some(4));
    assert!(text.contains("8,000/s / 2 cores (as --measured-cores says)"), "{text}");
    let text = said(None, None);
    assert!(text.contains("8,000/s / 1 core (assumed)"), "{text}");
    assert!(text.contains("that the server of a.hlog had 1 core, since the log does not say"), "{text}");
    assert!(text.contains("that the server of a.hlog kept one copy of each message"), "{text}");
}
