//! Faults again and again, and the table of how long the shards were away and what was lost.

use crate::fault::Fault;
use crate::judge::Verdict;
use crate::load::Traffic;
use crate::nodes::{NODES, Nodes};
use crate::round::{self, Plan, Round};
use overtake_measure::table::{align, thousands};
use std::time::Duration;

/// What all rounds of one fault came to.
#[derive(Debug, Default)]
pub struct Measured {
    /// Each shard of each fault.
    shards: Vec<Duration>,
    /// The last shard of each fault.
    faults: Vec<Duration>,
    /// Shards that never came back while the fault lasted.
    missing: usize,
    /// Faults that nobody noticed although the node should not have led on.
    unnoticed: usize,
    /// All promises.
    pub verdict: Verdict,
    /// Messages that nobody answered for.
    pub given_up: u64,
}

impl Measured {
    /// Runs so many rounds, telling each.
    #[must_use]
    pub fn run(
        nodes: &mut Nodes,
        fault: Fault,
        times: u32,
        (traffic, lasts): (Traffic, Duration),
        mut tell: impl FnMut(&str),
    ) -> Self {
        let mut all = Self::default();
        for time in 0..times {
            let node = time as usize % NODES;
            nodes.wait_for_balance();
            let plan = Plan { lasts, ..Plan::new(fault, node, traffic) };
            let round = round::run(nodes, &format!("{}-{time}", fault.name()), plan);
            let last =
                round.last().map_or("never".to_owned(), |last| format!("after {} ms", last.as_millis()));
            tell(&format!(
                "{} {} of {times}, node {}: {} of {} shards deliver again, the last {last}; {} messages, {} again, {} broken promises",
                fault.name(),
                time + 1,
                node + 1,
                round.back.len(),
                round.led.len(),
                round.verdict.answered,
                round.verdict.again,
                round.verdict.violations.len()
            ));
            if !round.was_led_by_others {
                tell("the node led on as if nothing were wrong");
            }
            all.add(round);
        }
        all
    }

    fn add(&mut self, round: Round) {
        self.missing += round.missing().len();
        self.shards.extend(round.back.values());
        self.faults.extend(round.last());
        self.unnoticed += usize::from(!round.was_led_by_others);
        self.given_up += round.given_up;
        self.verdict.add(round.verdict);
    }

    /// Whether every promise was kept.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.verdict.violations.is_empty() && self.missing + self.unnoticed == 0 && self.given_up == 0
    }
}

/// The measurements as tables.
#[must_use]
pub fn render(measured: &[(Fault, Measured)]) -> String {
    let mut times =
        vec![["until new messages come again", "measured", "p50 ms", "p99 ms", "max ms"].map(str::to_owned)];
    for (fault, all) in measured {
        for (what, durations) in [("each shard", &all.shards), ("the last shard", &all.faults)] {
            let mut sorted = durations.clone();
            sorted.sort_unstable();
            let never = if all.missing > 0 { format!(" ({} never)", all.missing) } else { String::new() };
            times.push([
                format!("{}: {what}{never}", fault.name()),
                thousands(sorted.len() as u64),
                quantile(&sorted, 50),
                quantile(&sorted, 99),
                quantile(&sorted, 100),
            ]);
        }
    }
    let mut promises = vec![
        [
            "fault",
            "answered",
            "delivered",
            "again",
            "unknown, repeated",
            "given up",
            "lost",
            "doubled",
            "broken otherwise",
        ]
        .map(str::to_owned),
    ];
    promises.extend(measured.iter().map(|(fault, all)| {
        let verdict = &all.verdict;
        let other = verdict.violations.len() - verdict.lost() - verdict.doubled();
        let numbers = [verdict.answered, verdict.delivered, verdict.again, verdict.unknown, all.given_up];
        let [answered, delivered, again, unknown, given_up] = numbers.map(thousands);
        let [lost, doubled, other] =
            [verdict.lost(), verdict.doubled(), other].map(|count| thousands(count as u64));
        [fault.name(), answered, delivered, again, unknown, given_up, lost, doubled, other]
    }));
    let left = [true, false, false, false, false];
    let left_too = [true, false, false, false, false, false, false, false, false];
    format!("{}\n{}", align(&times, left), align(&promises, left_too))
}

/// The value that so many in a hundred are not above.
fn quantile(sorted: &[Duration], percent: usize) -> String {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).map_or_else(|| "-".to_owned(), |value| format!("{:.0}", value.as_secs_f64() * 1_000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let sorted: Vec<Duration> = (1..=50).map(Duration::from_millis).collect();
        assert_eq!(quantile(&sorted, 50), "25");
        assert_eq!(quantile(&sorted, 99), "50");
        assert_eq!(quantile(&sorted, 100), "50");
        assert_eq!(quantile(&sorted[..1], 50), "1");
        assert_eq!(quantile(&[], 50), "-");
    }
}
