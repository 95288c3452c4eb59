//! Cores: what a message costs, how much of that retries and replicas are, and how busy cores may be.

use super::super::held::Origin;
use super::super::{Derived, OPERATIONS, OPERATIONS_OF_LEADER, OPERATIONS_OF_RETRY};
use super::{Exact, Hardware, Load, Need, Plan, Sizing, line, percent_of, rate};

/// Part of its cores that a node uses at peak, at most, in percent: above it latencies grow quickly.
const BUSY_PERCENT_MAX: u128 = 50;
/// The same while a zone is lost.
const BUSY_PERCENT_MAX_ZONE_LOST: u128 = 80;
/// CPU of a follower, in percent of what the leader uses for the same message.
pub(super) const FOLLOWER_PERCENT: u128 = 50;

/// Rates that are further apart than this many times say little of each other's CPU.
const FAR_TIMES: f64 = 4.0;

/// What the cores have to do.
pub(super) struct Cpu {
    /// Cores that are busy at peak, all nodes together.
    busy: Exact,
}

/// What a message costs on all of its replicas, in what it costs on one.
pub(super) fn of_replicas(replicas: u128) -> Exact {
    Exact::ratio(100 + replicas.saturating_sub(1) * FOLLOWER_PERCENT, 100)
}

fn operations(retries: Exact) -> Exact {
    Exact::whole(OPERATIONS).plus(retries.times(Exact::whole(OPERATIONS_OF_RETRY)))
}

/// Adds the lines up to the cores that are busy at peak.
pub(super) fn add(load: &Load, derived: &Derived, hardware: &Hardware, plan: &mut Plan) -> Cpu {
    let million = Exact::whole(1_000_000);
    let (cost_us, measured_replicas) = match hardware.cpu.split_first() {
        Some((cost, others)) => {
            let mut us = Exact::measured(cost.s_per_million);
            plan.sizing.push(line(
                "CPU of a message",
                format!(
                    "{}: {us} s per million at {}/s",
                    cost.source,
                    rate(Exact::measured(cost.per_second), 3)
                ),
                format!("{us} µs"),
            ));
            for other in others {
                let us = Exact::measured(other.s_per_million);
                let at = rate(Exact::measured(other.per_second), 3);
                plan.sizing.push(line(
                    "also measured, not used",
                    format!("{}: {us} s per million at {at}/s", other.source),
                    format!("{us} µs"),
                ));
            }
            let measured = operations(Exact::measured(cost.retries));
            if measured != derived.operations {
                let all = us.times(derived.operations).over(measured);
                plan.sizing.push(line(
                    "CPU with retries",
                    format!("{us} µs × {} operations planned / {measured} measured", derived.operations),
                    format!("{all} µs"),
                ));
                us = all;
            }
            let (replicas, from) = cost.replicas;
            if from == Origin::Assumed && load.replicas > 1 {
                plan.assumptions.push(format!(
                    "that the server of {} kept one copy of each message, since the file does not say: give \
                     --measured-replicas",
                    cost.source
                ));
            }
            (us, replicas)
        }
        None => {
            let cost = derived.operations.times(million).over(Exact::whole(OPERATIONS_OF_LEADER));
            let working = format!("{} operations / 6,000 a second of the usual design", derived.operations);
            plan.sizing.push(line("CPU of a message", working, format!("{cost} µs")));
            plan.assumptions.push(
                "the CPU of a message: run load or bench with --server-pid and --results on your hardware and give that file"
                    .into(),
            );
            (cost, 1)
        }
    };
    let factor = of_replicas(load.replicas).over(of_replicas(measured_replicas));
    if factor != Exact::whole(1) {
        let of = |replicas: u128| match replicas.saturating_sub(1) {
            0 => "1 leader".to_owned(),
            followers => format!("1 leader + {followers} followers × {FOLLOWER_PERCENT} %"),
        };
        let working = match measured_replicas {
            1 => of(load.replicas),
            _ => format!("({}) planned / ({}) measured", of(load.replicas), of(measured_replicas)),
        };
        plan.sizing.push(line("CPU of replication", working, format!("× {factor}")));
        plan.assumptions.push(format!(
            "a follower uses {FOLLOWER_PERCENT} % of the CPU that the leader uses for the same message"
        ));
    }
    let busy = derived.peak.times(cost_us).over(million).times(factor);
    let times = if factor == Exact::whole(1) { String::new() } else { format!(" × {factor}") };
    plan.sizing.push(line(
        "CPU at peak",
        format!("{}/s × {cost_us} µs{times}", rate(derived.peak, 2)),
        format!("{busy} cores busy"),
    ));
    Cpu { busy }
}

/// Nodes for the cores, with all of them and with a zone lost.
pub(super) fn needs(all: &Sizing<'_>) -> Vec<Need> {
    let (busy, cores) = (all.cpu.busy, all.sizes.cores);
    let each = |percent| Some(Exact::whole(cores).times(Exact::ratio(percent, 100)));
    let mut needs = vec![Need::of(
        "the cores",
        format!("{busy} / {BUSY_PERCENT_MAX} % of {cores} cores busy at most"),
        busy,
        each(BUSY_PERCENT_MAX),
    )];
    let zones = all.load.zones;
    if zones > 1 {
        // With one zone of several gone the others must do it.
        needs.push(Need::of(
            "the cores, a zone lost",
            format!(
                "{busy} × {zones} zones / {} / {BUSY_PERCENT_MAX_ZONE_LOST} % of {cores} cores busy at most",
                zones - 1
            ),
            busy.times(Exact::ratio(zones, zones - 1)),
            each(BUSY_PERCENT_MAX_ZONE_LOST),
        ));
    }
    needs
}

/// Says where the CPU of a message was measured far away from the planned rate, whatever part of it a node has.
fn far_away(all: &Sizing<'_>, nodes: u128) -> Option<String> {
    let cost = all.hardware.cpu.first().filter(|cost| cost.per_second > 0.0)?;
    let (peak, measured) = (all.derived.peak.float(), cost.per_second);
    let (planned, measured_told) = (rate(all.derived.peak, 2), rate(Exact::measured(measured), 3));
    let more = if measured > peak * FAR_TIMES {
        "more"
    } else if measured * FAR_TIMES < peak / nodes.max(1) as f64 {
        "less"
    } else {
        return None;
    };
    Some(format!(
        "that a message costs at {planned}/s what it costs at {measured_told}/s ({}): it may be far {more}, since it costs \
         less the more of them come together; measure near the planned rate",
        cost.source
    ))
}

pub(super) fn use_of_node(all: &Sizing<'_>, nodes: u128, plan: &mut Plan) {
    plan.assumptions.extend(far_away(all, nodes));
    let cores = Exact::whole(nodes * all.sizes.cores);
    plan.sizing.push(line(
        "cores of a node",
        format!("{} busy / {nodes} nodes × {}", all.cpu.busy, all.sizes.cores),
        format!("{} % busy at peak", percent_of(all.cpu.busy, cores)),
    ));
}
