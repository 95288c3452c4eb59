//! What a load takes: cores, nodes, shards, disk, network, memory, and how far all of it is from the limits.

use super::{
    CoresFrom, Derived, Exact, Hardware, Line, Load, OPERATIONS_OF_LEADER, P99, bytes_about, count, line,
    rate, scaled,
};

/// Part of its cores that a node uses at peak, at most, in percent: above it latencies grow quickly.
const BUSY_PERCENT_MAX: u128 = 50;
/// The same while a zone is lost.
const BUSY_PERCENT_MAX_ZONE_LOST: u128 = 80;
/// Part of a disk that is filled, at most, in percent: segments are recycled whole, and a refusal comes before it is full.
const FULL_PERCENT_MAX: u128 = 75;
/// CPU of a follower, in percent of what the leader uses for the same message.
const FOLLOWER_PERCENT: u128 = 50;
/// Bytes on disk for each message beyond its body: its record, its lease and its ack.
const DISK_OVERHEAD_BYTES: u128 = 200;
/// Bytes written for each byte stored: blocks are filled up, checkpoints written.
const WRITTEN_PERCENT: u128 = 150;
/// Memory for each message of the backlog: its entry in the state machine, and the index of its body.
const MEMORY_BYTES: u128 = 200;
/// Memory of a node whatever it holds: caches and buffers of each core.
const MEMORY_BYTES_OF_CORE: u128 = 1_000_000_000;

pub(super) fn sizing(
    load: &Load,
    derived: &Derived,
    hardware: &Hardware,
    assumptions: &mut Vec<String>,
) -> Vec<Line> {
    let mut lines = Vec::new();
    let busy = cpu(load, derived, hardware, &mut lines, assumptions);
    let nodes = nodes(load, busy, &mut lines);
    let all_cores = nodes * load.cores_per_node;
    let shards = derived.shards.max(all_cores.next_power_of_two());
    lines.push(line(
        "shards",
        format!("{} of the load, and one at least for each of {all_cores} cores", derived.shards),
        shards.to_string(),
    ));
    disk(load, derived, hardware, nodes, &mut lines, assumptions);
    network(load, derived, nodes, &mut lines);
    memory(load, derived, nodes, &mut lines, assumptions);
    head_room(derived, hardware, all_cores, &mut lines, assumptions);
    lines
}

/// CPU at peak, all nodes together, in cores.
fn cpu(
    load: &Load,
    derived: &Derived,
    hardware: &Hardware,
    lines: &mut Vec<Line>,
    assumptions: &mut Vec<String>,
) -> Exact {
    let million = Exact::whole(1_000_000);
    let cost_us = match &hardware.cpu_s_per_million {
        Some((cost, source)) => {
            let cost = Exact::measured(*cost);
            lines.push(line(
                "CPU of a message",
                format!("{source}: {cost} s per million"),
                format!("{cost} µs"),
            ));
            cost
        }
        None => {
            let cost = derived.operations.times(million).over(Exact::whole(OPERATIONS_OF_LEADER));
            let working = format!("{} operations / 6,000 a second of the usual design", derived.operations);
            lines.push(line("CPU of a message", working, format!("{cost} µs")));
            assumptions.push(
                "the CPU of a message: run bench with --server-pid and --results on your hardware and give that file".into(),
            );
            cost
        }
    };
    let followers = load.replicas.saturating_sub(1);
    let factor = Exact::ratio(100 + followers * FOLLOWER_PERCENT, 100);
    if followers > 0 {
        lines.push(line(
            "CPU of replication",
            format!("1 leader + {followers} followers × {FOLLOWER_PERCENT} %"),
            format!("× {factor}"),
        ));
        assumptions.push(format!(
            "a follower uses {FOLLOWER_PERCENT} % of the CPU that the leader uses for the same message"
        ));
    }
    let busy = derived.peak.times(cost_us).over(million).times(factor);
    let working = if followers > 0 {
        format!("{}/s × {cost_us} µs × {factor}", rate(derived.peak, 2))
    } else {
        format!("{}/s × {cost_us} µs", rate(derived.peak, 2))
    };
    lines.push(line("CPU at peak", working, format!("{busy} cores busy")));
    busy
}

fn nodes(load: &Load, busy: Exact, lines: &mut Vec<Line>) -> u128 {
    let zones = load.zones.max(1);
    let per_node = load.cores_per_node.max(1);
    let cores = busy.over(Exact::ratio(BUSY_PERCENT_MAX, 100)).up().max(1);
    lines.push(line("cores", format!("{busy} / {BUSY_PERCENT_MAX} % busy at most"), cores.to_string()));
    let lost = busy.over(Exact::ratio(BUSY_PERCENT_MAX_ZONE_LOST, 100));
    // With one zone of several gone the others must do it.
    let cores_zone_lost = if zones > 1 { lost.times(Exact::ratio(zones, zones - 1)).up() } else { cores };
    if zones > 1 {
        lines.push(line(
            "cores, a zone lost",
            format!("{busy} / {BUSY_PERCENT_MAX_ZONE_LOST} % busy × {zones} zones / {}", zones - 1),
            cores_zone_lost.to_string(),
        ));
    }
    let by_cpu = cores.max(cores_zone_lost).div_ceil(per_node);
    let nodes = by_cpu.max(load.replicas).max(1).div_ceil(zones) * zones;
    lines.push(line(
        "nodes",
        format!(
            "the most of {by_cpu} for the cores at {per_node} each, {} replicas, whole {zones} zones",
            load.replicas
        ),
        format!("{nodes} × {per_node} cores"),
    ));
    nodes
}

fn disk(
    load: &Load,
    derived: &Derived,
    hardware: &Hardware,
    nodes: u128,
    lines: &mut Vec<Line>,
    assumptions: &mut Vec<String>,
) {
    let each = Exact::whole(load.body_bytes + DISK_OVERHEAD_BYTES);
    let copies = Exact::ratio(load.replicas, nodes);
    let full = Exact::ratio(FULL_PERCENT_MAX, 100);
    let size = derived.worst_backlog.times(each).times(copies).over(full);
    lines.push(line(
        "disk of a node",
        format!(
            "{} × ({} + {DISK_OVERHEAD_BYTES} B) × {} replicas / {nodes} nodes / {FULL_PERCENT_MAX} % full",
            count(derived.worst_backlog.about(3)),
            load.body_bytes,
            load.replicas
        ),
        bytes_about(size, 3),
    ));
    let writes = derived.peak.times(each).times(copies).times(Exact::ratio(WRITTEN_PERCENT, 100));
    lines.push(line(
        "disk writes at peak",
        format!(
            "{}/s × ({} + {DISK_OVERHEAD_BYTES} B) × {} replicas / {nodes} nodes × {}",
            rate(derived.peak, 2),
            load.body_bytes,
            load.replicas,
            Exact::ratio(WRITTEN_PERCENT, 100)
        ),
        format!("{}/s a node", bytes_about(writes, 2)),
    ));
    assumptions.push(format!(
        "a message takes {DISK_OVERHEAD_BYTES} bytes on disk beyond its body, and each byte stored is written {} times",
        Exact::ratio(WRITTEN_PERCENT, 100)
    ));
    match &hardware.disk {
        Some((limit, p99, source)) => {
            let limit = Exact::measured(*limit);
            let part = writes.times(Exact::whole(100)).over(limit);
            let p99 = p99.map_or_else(String::new, |ms| format!(", p99 {} ms", Exact::measured(ms)));
            lines.push(line(
                "disk head-room",
                format!("{source}: {}/s durable{p99}", bytes_about(limit, 3)),
                format!("{} % used at peak", part.about(2)),
            ));
        }
        None => assumptions
            .push("that the disk is fast enough: run device with --results on it and give that file".into()),
    }
}

fn network(load: &Load, derived: &Derived, nodes: u128, lines: &mut Vec<Line>) {
    let followers = load.replicas.saturating_sub(1);
    let units = [(1_000_000_000, " Gbit/s"), (1_000_000, " Mbit/s"), (1_000, " kbit/s")];
    // What comes in is passed on to each follower; what is delivered leaves once.
    let one_way = derived.ingest_bytes.times(Exact::ratio(1 + followers, nodes)).times(Exact::whole(8));
    let told = |value: Exact| scaled(Exact::whole(value.about(2)), &units, " bit/s");
    let ingest = format!("{}/s", bytes_about(derived.ingest_bytes, 2));
    lines.push(line(
        "network into a node",
        format!("(producers 1 + replication {followers}) × {ingest} × 8 bits / {nodes} nodes"),
        told(one_way),
    ));
    lines.push(line(
        "network out of a node",
        format!("(consumers 1 + replication {followers}) × {ingest} × 8 bits / {nodes} nodes"),
        told(one_way),
    ));
}

fn memory(load: &Load, derived: &Derived, nodes: u128, lines: &mut Vec<Line>, assumptions: &mut Vec<String>) {
    let base = Exact::whole(MEMORY_BYTES_OF_CORE * load.cores_per_node);
    let of = |backlog: Exact| {
        backlog.times(Exact::whole(MEMORY_BYTES)).times(Exact::ratio(load.replicas, nodes)).plus(base)
    };
    for (name, backlog, digits) in [
        ("memory, normal day", derived.normal_backlog, 1),
        ("memory, worst backlog", derived.worst_backlog, 3),
    ] {
        lines.push(line(
            name,
            format!(
                "{} × {MEMORY_BYTES} B × {} replicas / {nodes} nodes + {} cores × 1 GB",
                count(backlog.about(digits)),
                load.replicas,
                load.cores_per_node
            ),
            format!("{} a node", bytes_about(of(backlog), 2)),
        ));
    }
    assumptions.push(format!("a message of the backlog takes {MEMORY_BYTES} bytes of memory, its body none"));
}

fn head_room(
    derived: &Derived,
    hardware: &Hardware,
    all_cores: u128,
    lines: &mut Vec<Line>,
    assumptions: &mut Vec<String>,
) {
    let planned = derived.peak.over(Exact::whole(all_cores));
    let targets = hardware.targets;
    let told = |p99: P99| {
        let values = crate::table::thousands(p99.values);
        format!("{} ms (of {values})", Exact::measured(p99.ms))
    };
    for sustained in &hardware.sustained {
        let (cores, from) = sustained.server_cores;
        if from == CoresFrom::Assumed {
            assumptions.push(format!(
                "that the server of {} had 1 core, since the log does not say: give --measured-cores; with more of them \
                 the head-room is less",
                sustained.name
            ));
        }
        let p0 = sustained.p0_p99.map_or_else(String::new, |p99| format!(", P0 {}", told(p99)));
        let p99 = format!("{}: p99 enqueue {}{p0}", sustained.name, told(sustained.enqueue_p99));
        let Some(per_second) = sustained.per_second else {
            let wanted = format!("wanted at most {} ms and {} ms", targets.enqueue_ms, targets.p0_ms);
            lines.push(line("held at p99", format!("{p99}; {wanted}"), "no rate"));
            lines.push(line(
                "head-room at p99",
                format!("{} shows no rate that held", sustained.name),
                "none",
            ));
            continue;
        };
        let measured = Exact::measured(per_second).over(Exact::whole(cores.max(1)));
        lines.push(line("held at p99", p99, format!("{}/s", rate(Exact::measured(per_second), 3))));
        let (cores, from) = match from {
            CoresFrom::Given => (cores, "as --measured-cores says"),
            CoresFrom::Log => (cores, "as the log says"),
            CoresFrom::Assumed => (cores, "assumed"),
        };
        lines.push(line(
            "held by a core",
            format!(
                "{}/s / {cores} {} ({from})",
                rate(Exact::measured(per_second), 3),
                if cores == 1 { "core" } else { "cores" }
            ),
            format!("{}/s", rate(measured, 3)),
        ));
        let limit = if sustained.limit_seen { "" } else { " or more: the test never reached a limit" };
        lines.push(line(
            "head-room at p99",
            format!("{}/s a core held / {}/s a core planned", rate(measured, 3), rate(planned, 3)),
            format!("{} times{limit}", Exact::measured(measured.over(planned).float())),
        ));
    }
    if hardware.sustained.is_empty() {
        assumptions.push(
            "that latencies hold at this rate: run load with --hlog at it on your hardware and give that file".into(),
        );
    }
}
