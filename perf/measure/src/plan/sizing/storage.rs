//! Disk and memory: what waits takes of both, and what a node takes whatever waits.

use super::super::COLD_MESSAGE_BYTES;
use super::{Exact, Need, Plan, Sizing, bytes, bytes_about, count, line, percent_of, rate};
use overtake_base::footprint::{
    ANSWER_BYTES_MAX, BACKLOG_BYTES_MAX, ENTRY_CACHE_BYTES, HOT_MESSAGE_BYTES, HOT_MESSAGES_MAX,
    HOT_OF_URGENT_TIMES, JOURNAL_BYTES_MAX, KEPT_FREE_BYTES_MAX, LOG_KEEP_BYTES, REMEMBERED_ID_BYTES,
};

/// Part of a disk that is filled, at most, in percent: segments are recycled whole, and a refusal comes before it is full.
const FULL_PERCENT_MAX: u128 = 75;
/// Part of what a disk takes durably that is used at peak, at most, in percent: blocks are read, moved and cleaned, too.
const DISK_RATE_PERCENT_MAX: u128 = 50;
/// Part of the memory that is used, at most, in percent: the rest is the kernel's and the allocator's.
const MEMORY_PERCENT_MAX: u128 = 80;
/// Bytes on disk for each message beyond its body: its record, its lease and its ack.
const DISK_OVERHEAD_BYTES: u128 = 200;
/// How often a message is written that waits for long: into the journal, and into a block.
const WRITTEN_TIMES: u128 = 2;
/// Flushes that P0 waits for, one after the other: of its enqueue and of its lease.
const FLUSHES_OF_P0: u128 = 2;

/// Bytes of a message on one disk.
fn each(all: &Sizing<'_>) -> Exact {
    Exact::whole(all.load.body_bytes + DISK_OVERHEAD_BYTES)
}

/// What waits at worst, on all disks.
fn stored(all: &Sizing<'_>) -> (Exact, String) {
    let replicas = all.load.replicas;
    let working = format!(
        "{} × ({} + {DISK_OVERHEAD_BYTES} B) × {replicas} replicas",
        count(all.derived.worst_backlog.about(3)),
        all.load.body_bytes
    );
    (all.derived.worst_backlog.times(each(all)).times(Exact::whole(replicas)), working)
}

/// The log that shards keep for replicas that are away, on all disks.
fn kept(all: &Sizing<'_>, shards: u128) -> Exact {
    Exact::whole(u128::from(LOG_KEEP_BYTES) * shards * all.load.replicas)
}

/// What a disk holds whatever waits.
fn disk_fixed() -> Exact {
    Exact::whole((JOURNAL_BYTES_MAX + KEPT_FREE_BYTES_MAX).into())
}

fn disk_rate(all: &Sizing<'_>) -> (Exact, String) {
    let working = format!(
        "{}/s × ({} + {DISK_OVERHEAD_BYTES} B) × {} replicas × {WRITTEN_TIMES} (journal and block)",
        rate(all.derived.peak, 2),
        all.load.body_bytes,
        all.load.replicas
    );
    let total = all.derived.peak.times(each(all)).times(Exact::whole(all.load.replicas * WRITTEN_TIMES));
    (total, working)
}

/// Memory of a node whatever waits.
fn memory_fixed(all: &Sizing<'_>) -> Exact {
    let hot = u128::from(HOT_MESSAGES_MAX * HOT_OF_URGENT_TIMES) * HOT_MESSAGE_BYTES as u128;
    let core = hot + (ANSWER_BYTES_MAX + BACKLOG_BYTES_MAX) as u128;
    Exact::whole(ENTRY_CACHE_BYTES as u128 + all.sizes.cores * core)
}

/// Memory of the ids that are remembered, on all nodes.
fn memory_of_ids(all: &Sizing<'_>) -> (Exact, String) {
    let replicas = all.load.replicas;
    let window_s = all.load.dedup_window_s;
    let working = format!(
        "{}/s × {window_s} s × {REMEMBERED_ID_BYTES} B × {replicas} replicas",
        rate(all.derived.peak, 2)
    );
    let each = Exact::whole(u128::from(window_s) * REMEMBERED_ID_BYTES as u128 * replicas);
    (all.derived.peak.times(each), working)
}

/// Bytes of memory of a message that waits on disk, and where that comes from.
fn memory_of_message(all: &Sizing<'_>) -> Exact {
    let measured = all.hardware.memory.first().map(|(bytes, _)| Exact::measured(*bytes));
    measured.unwrap_or(Exact::whole(COLD_MESSAGE_BYTES))
}

fn memory_of(all: &Sizing<'_>, backlog: Exact) -> Exact {
    backlog.times(memory_of_message(all)).times(Exact::whole(all.load.replicas))
}

/// Nodes for the disk's size and rate, and for memory.
pub(super) fn needs(all: &Sizing<'_>, shards: u128) -> Vec<Need> {
    let (total, working) = stored(all);
    let room =
        Exact::whole(all.sizes.disk_bytes).times(Exact::ratio(FULL_PERCENT_MAX, 100)).minus(disk_fixed());
    let mut needs = vec![Need::of(
        "the disk's size",
        format!(
            "({working} + {} kept) / ({FULL_PERCENT_MAX} % of {} - {})",
            bytes_about(kept(all, shards), 2),
            all.sizes.disk(),
            bytes_about(disk_fixed(), 2)
        ),
        total.plus(kept(all, shards)),
        room,
    )];
    if let Some(disk) = all.hardware.disk.first() {
        let (total, working) = disk_rate(all);
        let limit = disk.bytes_per_second.map(Exact::measured);
        let told = limit
            .map_or_else(|| "nothing fast enough".into(), |limit| format!("{}/s", bytes_about(limit, 3)));
        needs.push(Need::of(
            "the disk's rate",
            format!("{working} / {DISK_RATE_PERCENT_MAX} % of {told}"),
            total,
            limit.map(|limit| limit.times(Exact::ratio(DISK_RATE_PERCENT_MAX, 100))),
        ));
    }
    let (ids, _) = memory_of_ids(all);
    let room = Exact::whole(all.sizes.memory_bytes).times(Exact::ratio(MEMORY_PERCENT_MAX, 100));
    needs.push(Need::of(
        "the memory",
        format!(
            "({} of remembered ids + {} of the worst backlog) / ({MEMORY_PERCENT_MAX} % of {} - {})",
            bytes_about(ids, 2),
            bytes_about(memory_of(all, all.derived.worst_backlog), 2),
            all.sizes.memory(),
            bytes_about(memory_fixed(all), 2)
        ),
        ids.plus(memory_of(all, all.derived.worst_backlog)),
        room.minus(memory_fixed(all)),
    ));
    needs
}

pub(super) fn disk_of_node(all: &Sizing<'_>, nodes: u128, shards: u128, plan: &mut Plan) {
    let (total, working) = stored(all);
    let used = total.plus(kept(all, shards)).over(Exact::whole(nodes)).plus(disk_fixed());
    let size = used.over(Exact::ratio(FULL_PERCENT_MAX, 100));
    let of_node = |bytes: Exact| bytes_about(bytes.over(Exact::whole(nodes)), 2);
    plan.sizing.push(line(
        "disk of a node",
        format!(
            "({working} / {nodes} nodes + {} kept + {}) / {FULL_PERCENT_MAX} % full",
            of_node(kept(all, shards)),
            bytes_about(disk_fixed(), 2)
        ),
        format!("{} of {}", bytes_about(size, 3), all.sizes.disk()),
    ));
    let (total, working) = disk_rate(all);
    let writes = total.over(Exact::whole(nodes));
    plan.sizing.push(line(
        "disk writes at peak",
        format!("{working} / {nodes} nodes"),
        format!("{}/s a node", bytes_about(writes, 2)),
    ));
    plan.assumptions.push(format!(
        "a message takes {DISK_OVERHEAD_BYTES} bytes on disk beyond its body, and is written twice where it waits for long"
    ));
    for disk in &all.hardware.disk {
        let p99 = disk.p99_ms.map_or_else(String::new, |ms| format!("p99 {} ms", Exact::measured(ms)));
        let Some(limit) = disk.bytes_per_second.map(Exact::measured) else {
            let wanted = all.hardware.targets.enqueue_ms;
            plan.sizing.push(line(
                "disk head-room",
                format!("{}: {p99} at best, wanted at most {} ms", disk.source, Exact::measured(wanted)),
                "none",
            ));
            continue;
        };
        let p99 = if p99.is_empty() { p99 } else { format!(", {p99}") };
        plan.sizing.push(line(
            "disk head-room",
            format!("{}: {}/s durable{p99}", disk.source, bytes_about(limit, 3)),
            format!("{} % used at peak", percent_of(writes, limit)),
        ));
    }
    if all.hardware.disk.is_empty() {
        plan.assumptions
            .push("that the disk is fast enough: run device with --results on it and give that file".into());
    }
    flushes(all, plan);
}

/// Whether single flushes leave room for the latencies that are wanted.
fn flushes(all: &Sizing<'_>, plan: &mut Plan) {
    let targets = all.hardware.targets;
    let Some((ms, source)) = all.hardware.flush.first() else { return };
    let flush = Exact::measured(*ms);
    for (name, times, wanted) in [
        ("a flush, of an enqueue", 1, targets.enqueue_ms),
        ("flushes, of a delivery of P0", FLUSHES_OF_P0, targets.p0_ms),
    ] {
        let (least, wanted) = (flush.times(Exact::whole(times)), Exact::measured(wanted));
        let counted = if times == 1 { String::new() } else { format!("{times} × ") };
        plan.sizing.push(line(
            name,
            format!("{counted}{flush} ms, p99 of {source}"),
            format!("{least} ms of {wanted} ms"),
        ));
        if least.float() > wanted.float() {
            plan.impossible.push(format!(
                "the disk's latency: {name} takes {least} ms at p99 by itself, and {wanted} ms are wanted, see {source}"
            ));
        }
    }
}

pub(super) fn memory_of_node(all: &Sizing<'_>, nodes: u128, plan: &mut Plan) {
    let share = Exact::whole(nodes);
    let fixed = memory_fixed(all);
    plan.sizing.push(line(
        "memory, whatever waits",
        format!(
            "{} cache + {} cores × ({} accepted + {} answers + {} × {} messages × {HOT_MESSAGE_BYTES} B)",
            bytes_about(Exact::whole(ENTRY_CACHE_BYTES as u128), 3),
            all.sizes.cores,
            bytes_about(Exact::whole(BACKLOG_BYTES_MAX as u128), 3),
            bytes_about(Exact::whole(ANSWER_BYTES_MAX as u128), 3),
            HOT_OF_URGENT_TIMES,
            crate::table::thousands(HOT_MESSAGES_MAX),
        ),
        format!("{} a node", bytes_about(fixed, 2)),
    ));
    let (ids, working) = memory_of_ids(all);
    let ids = ids.over(share);
    if all.load.dedup_window_s > 0 {
        let told = format!("{} a node", bytes_about(ids, 2));
        plan.sizing.push(line("memory, remembered ids", format!("{working} / {nodes} nodes"), told));
        plan.assumptions.push(
            "that clients make the ids of all messages, as the SDK does, and each is remembered for the dedup window; \
             with --dedup-window-s 0 none is"
                .into(),
        );
    }
    let each = memory_of_message(all);
    for (name, backlog, digits) in [
        ("memory, normal day", all.derived.normal_backlog, 1),
        ("memory, worst backlog", all.derived.worst_backlog, 3),
    ] {
        let used = memory_of(all, backlog).over(share).plus(fixed).plus(ids);
        plan.sizing.push(line(
            name,
            format!(
                "{} × {each} B × {} replicas / {nodes} nodes + {}",
                count(backlog.about(digits)),
                all.load.replicas,
                bytes_about(fixed.plus(ids), 2)
            ),
            format!("{} of {}", bytes_about(used, 2), all.sizes.memory()),
        ));
    }
    match all.hardware.memory.first() {
        Some((_, source)) => plan.sizing.push(line(
            "memory of a message",
            format!("{source}, of one that waits on disk"),
            format!("{each} B"),
        )),
        None => plan.assumptions.push(format!(
            "a message that waits on disk takes {} of memory: run storage with --results and give that file",
            bytes(each)
        )),
    }
    plan.assumptions
        .push("that connections are few: an idle one takes up to 64 KiB of memory, not counted here".into());
}
