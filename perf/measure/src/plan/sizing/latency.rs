//! Latencies: the rates that held in load tests, held against the planned rate of a core with as many replicas.

use super::super::held::{Missed, Origin, P99, Sustained};
use super::cpu::{FOLLOWER_PERCENT, of_replicas};
use super::{Exact, NODES_MAX, Need, Plan, Sizing, line, rate};

/// A load tool that was later than this with one message in a hundred made the latencies its own.
const LATE_MS_MAX: f64 = 2.0;

/// A rate of the measured server as that of a core of the planned cluster: replication is work that a server by itself does
/// not have.
fn of_core(all: &Sizing<'_>, sustained: &Sustained, per_second: f64) -> Exact {
    let alone = Exact::measured(per_second).over(Exact::whole(sustained.server_cores.0.max(1)));
    alone.times(of_replicas(sustained.server_replicas.0)).over(of_replicas(all.load.replicas))
}

/// What a core of the planned cluster held.
fn held_by_core(all: &Sizing<'_>, sustained: &Sustained) -> Option<Exact> {
    Some(of_core(all, sustained, sustained.per_second?))
}

/// The lowest rate of a core that did not hold, of a test in which none held.
fn lowest_not_held(all: &Sizing<'_>, sustained: &Sustained) -> Option<Exact> {
    let (lowest, _) = sustained.missed.filter(|_| sustained.per_second.is_none())?;
    Some(of_core(all, sustained, lowest))
}

/// The test in which a core held the rate at which nothing held in this one, or a higher one: then it is the disturbance of
/// that run, not the limit of the machine.
fn refutes<'a>(all: &Sizing<'a>, sustained: &Sustained) -> Option<(Exact, &'a Sustained)> {
    let not_held = lowest_not_held(all, sustained)?;
    let held = all.hardware.sustained.iter().filter_map(|other| Some((held_by_core(all, other)?, other)));
    let best =
        held.max_by(|(a, of_a), (b, of_b)| a.float().total_cmp(&b.float()).then(of_b.name.cmp(&of_a.name)));
    best.filter(|(held, _)| held.float() >= not_held.float())
}

/// Nodes for the latencies: by the lowest rate of a core that held in a test that found its limit. Tests in which no rate
/// held say only how many nodes are too few, and count only where no other test held as much.
pub(super) fn need(all: &Sizing<'_>) -> Option<Need> {
    let least_of = |of: fn(&Sizing<'_>, &Sustained) -> Option<Exact>| {
        let limits = all.hardware.sustained.iter().filter(|sustained| sustained.missed.is_some());
        let rates = limits.filter(|limit| refutes(all, limit).is_none());
        let rates = rates.filter_map(|limit| Some((of(all, limit)?, limit)));
        rates.min_by(|(a, of_a), (b, of_b)| a.float().total_cmp(&b.float()).then(of_a.name.cmp(&of_b.name)))
    };
    let (held, not_held) = (least_of(held_by_core), least_of(lowest_not_held));
    let (peak, cores) = (all.derived.peak, all.sizes.cores);
    let of = |(of_core, limit): (Exact, &Sustained), what: &str| {
        let (peak_told, of_core_told) = (rate(peak, 2), rate(of_core, 3));
        let working =
            format!("{peak_told}/s / ({cores} cores × {of_core_told}/s {what} by a core in {})", limit.name);
        Need::of("the latencies", working, peak, Some(of_core.times(Exact::whole(cores))))
    };
    if let Some(held) = held {
        return Some(of(held, "held"));
    }
    let mut need = of(not_held?, "not held");
    // Where even the largest cluster has as much for each core, that was shown not to hold.
    need.nodes = need.nodes.filter(|nodes| *nodes <= NODES_MAX as u128);
    need.at_least = true;
    Some(need)
}

fn told(p99: P99) -> String {
    format!("{} ms (of {})", Exact::measured(p99.ms), crate::table::thousands(p99.values))
}

fn why(missed: Missed) -> String {
    let per_second = |value: f64| rate(Exact::measured(value), 3);
    match missed {
        Missed::Enqueue(p99) => format!("p99 enqueue {}", told(p99)),
        Missed::P0(p99) => format!("p99 P0 {}", told(p99)),
        Missed::NotConfirmed(due, confirmed) => {
            format!("{}/s due, {}/s confirmed", per_second(due), per_second(confirmed))
        }
        Missed::NotDelivered(came, left) => {
            format!("{}/s came in, {}/s left", per_second(came), per_second(left))
        }
    }
}

/// The cores of a measured server, and who says so.
fn cores_told(cores: u128, from: Origin) -> String {
    let from = match from {
        Origin::Given => "as --measured-cores says",
        Origin::File => "as the log says",
        Origin::Assumed => "assumed",
    };
    format!("{cores} {} ({from})", if cores == 1 { "core" } else { "cores" })
}

pub(super) fn head_room(all: &Sizing<'_>, nodes: u128, plan: &mut Plan) {
    for sustained in &all.hardware.sustained {
        of_log(all, nodes, sustained, plan);
    }
    if all.hardware.sustained.is_empty() {
        plan.assumptions.push(
            "that latencies hold at this rate: run load with --hlog at it on your hardware and give that file".into(),
        );
    }
}

fn of_log(all: &Sizing<'_>, nodes: u128, sustained: &Sustained, plan: &mut Plan) {
    let (name, targets) = (&sustained.name, all.hardware.targets);
    let planned = all.derived.peak.over(Exact::whole(nodes * all.sizes.cores));
    let ((cores, cores_from), (replicas, replicas_from)) =
        (sustained.server_cores, sustained.server_replicas);
    if cores_from == Origin::Assumed {
        plan.assumptions.push(format!(
            "that the server of {name} had 1 core, since the log does not say: give --measured-cores; with more of them \
             the head-room is less"
        ));
    }
    if replicas_from == Origin::Assumed && all.load.replicas > 1 {
        plan.assumptions.push(format!(
            "that the server of {name} kept one copy of each message, since the log does not say: give \
             --measured-replicas"
        ));
    }
    if let (Some(above), Some((missed, _))) = (sustained.held_above, sustained.missed) {
        let (above, missed) = (rate(Exact::measured(above), 3), rate(Exact::measured(missed), 3));
        plan.assumptions.push(format!(
            "that {missed}/s in {name} is a limit: rates above it held again, up to {above}/s; was the test disturbed? \
             repeat it"
        ));
    }
    if let Some(late) = sustained.late_p99.filter(|late| late.ms > LATE_MS_MAX) {
        plan.assumptions.push(format!(
            "that the load tool was in time: one in a hundred of the messages of {name} was sent {} ms late or more, which \
             its latencies contain; run it on a machine of its own",
            Exact::measured(late.ms)
        ));
    }
    let p0 = sustained.p0_p99.map_or_else(String::new, |p99| format!(", P0 {}", told(p99)));
    let p99 = format!("{name}: p99 enqueue {}{p0}", told(sustained.enqueue_p99));
    let Some(per_second) = sustained.per_second else {
        let reason = sustained.missed.map_or_else(String::new, |(per_second, missed)| {
            format!("; at {}/s: {}", rate(Exact::measured(per_second), 3), why(missed))
        });
        let wanted = format!("wanted at most {} ms and {} ms", targets.enqueue_ms, targets.p0_ms);
        plan.sizing.push(line("held at p99", format!("{p99}; {wanted}{reason}"), "no rate"));
        plan.sizing.push(line(
            "head-room at p99",
            format!("no rate of {name} held / {}", cores_told(cores, cores_from)),
            "not known",
        ));
        let Some((lowest, _)) = sustained.missed else { return };
        let lowest_told = rate(Exact::measured(lowest), 3);
        plan.assumptions.push(match refutes(all, sustained) {
            Some((held, other)) => format!(
                "that {name}, in which not even {lowest_told}/s held, was disturbed: a core held {}/s in {}, and that \
                 counts; repeat it",
                rate(held, 3),
                other.name
            ),
            None => {
                // The planned rate of a core, as a rate of the server that was measured.
                let needed =
                    Exact::measured(lowest).times(planned).over(of_core(all, sustained, lowest));
                format!(
                    "that latencies hold at {}/s on the server of {name}: no rate that it tested held, the lowest was \
                     {lowest_told}/s; run load at lower rates, say with --shape ramp:0.1-1",
                    rate(needed, 2)
                )
            }
        });
        return;
    };
    plan.sizing.push(line("held at p99", p99, format!("{}/s", rate(Exact::measured(per_second), 3))));
    if let Some((per_second, missed)) = sustained.missed {
        plan.sizing.push(line(
            "not held",
            format!("{name}: {}", why(missed)),
            format!("{}/s", rate(Exact::measured(per_second), 3)),
        ));
    }
    let alone = Exact::measured(per_second).over(Exact::whole(cores.max(1)));
    plan.sizing.push(line(
        "held by a core",
        format!("{}/s / {}", rate(Exact::measured(per_second), 3), cores_told(cores, cores_from)),
        format!("{}/s", rate(alone, 3)),
    ));
    let held = of_core(all, sustained, per_second);
    if replicas != all.load.replicas {
        plan.sizing.push(line(
            "held by a core, replicated",
            format!(
                "{}/s × {} for the {} measured / {} for the {} planned, {FOLLOWER_PERCENT} % a follower",
                rate(alone, 3),
                of_replicas(replicas),
                super::super::replicas(replicas),
                of_replicas(all.load.replicas),
                super::super::replicas(all.load.replicas),
            ),
            format!("{}/s", rate(held, 3)),
        ));
    }
    let limit = if sustained.missed.is_some() { "" } else { " or more: the test never reached a limit" };
    plan.sizing.push(line(
        "head-room at p99",
        format!("{}/s a core held / {}/s a core planned", rate(held, 3), rate(planned, 3)),
        format!("{} times{limit}", Exact::measured(held.over(planned).float())),
    ));
    if sustained.missed.is_none() && held.float() < planned.float() {
        let needed = Exact::measured(per_second).times(planned).over(held);
        plan.assumptions.push(format!(
            "that latencies hold above {}/s: {name} stopped there; run load up to {}/s on that server",
            rate(Exact::measured(per_second), 3),
            rate(needed, 2)
        ));
    }
}
