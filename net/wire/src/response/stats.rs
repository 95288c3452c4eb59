//! Bytes of a queue's statistics.

use super::read_items;
use crate::fields::{read_float, read_text, write_float, write_list};
use crate::message::{Stats, Totals, WaitMs};
use overtake_base::{Malformed, Reader, Writer};

/// Totals in the order of their bytes. A new total is a new protocol version.
const TOTALS: usize = 19;

pub(super) fn write(out: &mut Writer<'_>, stats: &Stats) {
    for list in [&stats.visible, &stats.delayed, &stats.leased] {
        write_list(out, list, |w, count| w.u64(*count));
    }
    out.u64(stats.dlq);
    write_list(out, &stats.oldest_age_ms, |w, age| w.option(*age, Writer::u64));
    write_list(out, &stats.wait_ms, |w, wait| {
        w.option(*wait, |w, wait| {
            for value in [wait.p50, wait.p99, wait.p999] {
                write_float(w, value);
            }
        });
    });
    for total in totals_in_order(&stats.totals) {
        out.u64(total);
    }
    write_list(out, &stats.workers, |w, (label, leased)| {
        w.str(label);
        w.u64(*leased);
    });
}

pub(super) fn read(input: &mut Reader<'_>) -> Result<Stats, Malformed> {
    Ok(Stats {
        visible: read_items(input, 8, "visible", |r| r.u64("visible"))?,
        delayed: read_items(input, 8, "delayed", |r| r.u64("delayed"))?,
        leased: read_items(input, 8, "leased", |r| r.u64("leased"))?,
        dlq: input.u64("dlq")?,
        oldest_age_ms: read_items(input, 1, "oldest_age_ms", |r| {
            r.option("oldest_age_ms", |r| r.u64("oldest_age_ms"))
        })?,
        wait_ms: read_items(input, 1, "wait_ms", |r| r.option("wait_ms", read_wait))?,
        totals: read_totals(input)?,
        workers: read_items(input, 12, "workers", |r| Ok((read_text(r, "workers")?, r.u64("workers")?)))?,
    })
}

fn read_wait(input: &mut Reader<'_>) -> Result<WaitMs, Malformed> {
    Ok(WaitMs {
        p50: read_float(input, "p50")?,
        p99: read_float(input, "p99")?,
        p999: read_float(input, "p999")?,
    })
}

fn totals_in_order(totals: &Totals) -> [u64; TOTALS] {
    // Taken apart by name, so that a total added to the struct cannot be forgotten here.
    let Totals {
        enqueued,
        acked,
        cancelled,
        purged,
        expired,
        dead_lettered,
        redriven,
        deliveries,
        share_deliveries,
        inversions,
        lease_expirations,
        releases,
        stale_receipts,
        starvation_events,
        refused_depth,
        refused_bytes,
        refused_rate,
        refused_disk,
        refused_no_quorum,
    } = *totals;
    [
        enqueued,
        acked,
        cancelled,
        purged,
        expired,
        dead_lettered,
        redriven,
        deliveries,
        share_deliveries,
        inversions,
        lease_expirations,
        releases,
        stale_receipts,
        starvation_events,
        refused_depth,
        refused_bytes,
        refused_rate,
        refused_disk,
        refused_no_quorum,
    ]
}

fn read_totals(input: &mut Reader<'_>) -> Result<Totals, Malformed> {
    Ok(Totals {
        enqueued: input.u64("enqueued")?,
        acked: input.u64("acked")?,
        cancelled: input.u64("cancelled")?,
        purged: input.u64("purged")?,
        expired: input.u64("expired")?,
        dead_lettered: input.u64("dead_lettered")?,
        redriven: input.u64("redriven")?,
        deliveries: input.u64("deliveries")?,
        share_deliveries: input.u64("share_deliveries")?,
        inversions: input.u64("inversions")?,
        lease_expirations: input.u64("lease_expirations")?,
        releases: input.u64("releases")?,
        stale_receipts: input.u64("stale_receipts")?,
        starvation_events: input.u64("starvation_events")?,
        refused_depth: input.u64("refused_depth")?,
        refused_bytes: input.u64("refused_bytes")?,
        refused_rate: input.u64("refused_rate")?,
        refused_disk: input.u64("refused_disk")?,
        refused_no_quorum: input.u64("refused_no_quorum")?,
    })
}
