//! Statistics of a queue: a row for each level, then totals.

use super::table::{Cell, Table, pairs};
use super::units::{count, span, wait_ms};
use super::{View, text};
use overtake_wire::message::{Stats, Totals};

/// Everything about one queue. Totals that are 0 are left out, but for the four that everybody looks for.
pub fn stats(queue: &str, stats: &Stats, view: View) -> String {
    let mut out = view.style.bold(&text::one_line(queue)) + "\n" + &levels(stats, view) + "\n";
    let dead = count(stats.dlq);
    let dead = if stats.dlq == 0 { dead } else { view.style.red(&dead) };
    out.push_str(&pairs(&[("dead letters", dead)]));
    out.push('\n');
    out.push_str(&view.style.bold("SINCE IT WAS CREATED"));
    out.push('\n');
    out.push_str(&pairs(&totals(&stats.totals)));
    if !stats.workers.is_empty() {
        let mut table = Table::new(["WORKER", ">LEASED"]);
        for (label, leased) in &stats.workers {
            table.row([text::one_line(label).into(), count(*leased).into()]);
        }
        out.push('\n');
        out.push_str(&table.render(view));
    }
    out
}

fn levels(stats: &Stats, view: View) -> String {
    let mut table =
        Table::new(["LEVEL", ">VISIBLE", ">DELAYED", ">LEASED", ">OLDEST", ">WAIT P50", ">P99", ">P99.9"]);
    let number = |list: &[u64], level: usize| -> Cell {
        match list.get(level).copied().unwrap_or(0) {
            0 => Cell::none(),
            number => count(number).into(),
        }
    };
    for level in 0..stats.visible.len() {
        let oldest = stats.oldest_age_ms.get(level).copied().flatten();
        let wait = stats.wait_ms.get(level).copied().flatten();
        let percentile = |of: fn(&overtake_wire::message::WaitMs) -> f64| -> Cell {
            wait.as_ref().map_or_else(Cell::none, |wait| wait_ms(of(wait)).into())
        };
        table.row([
            format!("p{level}").into(),
            number(&stats.visible, level),
            number(&stats.delayed, level),
            number(&stats.leased, level),
            oldest.map_or_else(Cell::none, |ms| span(ms).into()),
            percentile(|wait| wait.p50),
            percentile(|wait| wait.p99),
            percentile(|wait| wait.p999),
        ]);
    }
    table.render(view)
}

fn totals(totals: &Totals) -> Vec<(&'static str, String)> {
    // Destructured, so that a new total cannot be forgotten here.
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
    let always = [
        ("enqueued", enqueued),
        ("deliveries", deliveries),
        ("acked", acked),
        ("dead lettered", dead_lettered),
    ];
    let where_any = [
        ("cancelled", cancelled),
        ("purged", purged),
        ("expired", expired),
        ("redriven", redriven),
        ("share deliveries", share_deliveries),
        ("inversions", inversions),
        ("lease expirations", lease_expirations),
        ("releases", releases),
        ("stale receipts", stale_receipts),
        ("starvation events", starvation_events),
        ("refused: depth", refused_depth),
        ("refused: bytes", refused_bytes),
        ("refused: rate", refused_rate),
        ("refused: disk", refused_disk),
        ("refused: no quorum", refused_no_quorum),
    ];
    let nonzero = where_any.into_iter().filter(|(_, number)| *number > 0);
    always.into_iter().chain(nonzero).map(|(name, number)| (name, count(number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;
    use overtake_wire::message::WaitMs;

    #[test]
    fn a_row_for_each_level_and_totals_where_any() {
        let shown = stats(
            "jobs",
            &Stats {
                visible: vec![3, 0],
                delayed: vec![0, 12_000],
                leased: vec![1, 0],
                dlq: 71,
                oldest_age_ms: vec![Some(20), None],
                wait_ms: vec![Some(WaitMs { p50: 0.21, p99: 4.0, p999: 2_500.0 }), None],
                totals: Totals { enqueued: 20_000, acked: 7_925, refused_rate: 3, ..Totals::default() },
                workers: vec![("w-1".into(), 1)],
            },
            plain(),
        );
        assert_eq!(
            shown,
            "\
jobs
LEVEL  VISIBLE  DELAYED  LEASED  OLDEST  WAIT P50      P99  P99.9
p0           3        -       1   20 ms   0.21 ms  4.00 ms  2.5 s
p1           -   12,000       -       -         -        -      -

dead letters  71

SINCE IT WAS CREATED
enqueued       20,000
deliveries     0
acked          7,925
dead lettered  0
refused: rate  3

WORKER  LEASED
w-1          1
"
        );
    }

    #[test]
    fn lists_of_unequal_length_do_not_panic() {
        let shown = stats("q", &Stats { visible: vec![1, 2], ..Stats::default() }, plain());
        assert!(shown.contains("p1"));
    }
}
