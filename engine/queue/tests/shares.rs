//! Shares over any window, whatever went before: levels get work and lose it at random, and while a set of levels has
//! work each of them gets its part of the deliveries, which is computed from the contract's text alone.

use overtake_base::queue_config::{QueueConfig, Scheduling};
use overtake_base::{Level, UnixMillis};
use overtake_queue::scheduler::{LevelSet, Scheduler};
use proptest::prelude::*;

/// How far a count may be from its exact part: credits and virtual times are each off by a delivery or two, at the start
/// of the window and at its end.
const ROUNDING: f64 = 6.0;

/// Parts of the deliveries while exactly `busy` levels have work.
fn parts(config: &QueueConfig, busy: &[usize]) -> Vec<(usize, f64)> {
    let levels = usize::from(config.levels);
    let weight = |level: &usize| config.weights_micro[*level] as f64;
    let sum = |of: &[usize]| of.iter().map(weight).sum::<f64>();
    let lower: Vec<usize> = busy.iter().copied().filter(|level| *level > 0).collect();
    let (tail, rest): (Vec<usize>, Vec<usize>) = lower.iter().partition(|level| **level + 2 >= levels);
    let fraction = |ppm: u32| f64::from(ppm) / 1e6;
    let flooded = busy.contains(&0);
    let left = match (lower.is_empty(), flooded) {
        (true, _) => 0.0,
        (false, true) => fraction(config.reserve_ppm),
        (false, false) => 1.0,
    };
    let floor = if tail.is_empty() { 0.0 } else { fraction(config.floor_ppm) };
    // By weight, lifted to the floor; what the floor needs beyond the reserve comes from level 0.
    let of_tail = if tail.is_empty() { 0.0 } else { (left * sum(&tail) / sum(&lower)).max(floor) };
    let of_lower = left.max(of_tail);
    let among = |part: f64, of: &[usize]| {
        of.iter().map(|level| (*level, part * weight(level) / sum(of))).collect::<Vec<_>>()
    };
    let mut parts = among(of_tail, &tail);
    parts.extend(among(of_lower - of_tail, &rest));
    if flooded {
        parts.push((0, 1.0 - of_lower));
    }
    parts
}

fn config() -> impl Strategy<Value = QueueConfig> {
    (2u8..8, 0u32..=500_000, 0u32..=500_000, prop::collection::vec(1_000_000u64..9_000_000, 8)).prop_map(
        |(levels, reserve_ppm, floor_ppm, mut weights_micro)| {
            weights_micro.truncate(usize::from(levels));
            let scheduling = Scheduling::Weighted;
            QueueConfig {
                scheduling,
                reserve_ppm,
                floor_ppm,
                weights_micro,
                ..QueueConfig::with_defaults(levels, 1)
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn each_level_gets_its_part_whatever_went_before(
        config in config(),
        runs in prop::collection::vec((1u8..=255, 1usize..3_000), 1..12),
    ) {
        let mut scheduler = Scheduler::new(&config);
        for (bits, deliveries) in runs {
            let busy: Vec<usize> = (0..usize::from(config.levels)).filter(|level| bits >> level & 1 == 1).collect();
            let visible: LevelSet = busy.iter().map(|level| Level(*level as u8)).collect();
            let mut counts = vec![0usize; 8];
            for _ in 0..deliveries {
                let Some((level, _)) = scheduler.next(visible, &|_| UnixMillis(0), UnixMillis(0)) else { break };
                counts[usize::from(level.0)] += 1;
            }
            if busy.is_empty() {
                continue;
            }
            let parts = parts(&config, &busy);
            // Where the floor is about what the weights give, it sometimes acts though the weights were about to.
            let slack = ROUNDING + 0.03 * deliveries as f64;
            for (level, part) in &parts {
                let exact = part * deliveries as f64;
                let got = counts[*level] as f64;
                prop_assert!((got - exact).abs() <= slack, "{level}: {got} for {exact} of {busy:?} {counts:?} {config:?}");
            }
            // Each of the two levels of the floor has its part of what they have together. Where the floor is about what the
            // weights give, the two ways take turns, and each is a little off until the other makes up for it.
            let tail: Vec<usize> = busy.iter().copied().filter(|l| *l > 0 && l + 2 >= usize::from(config.levels)).collect();
            if let [a, b] = tail[..] {
                let weight = |level: usize| config.weights_micro[level] as f64;
                let exact = (counts[a] + counts[b]) as f64 * weight(a) / (weight(a) + weight(b));
                let slack = ROUNDING + 0.02 * (counts[a] + counts[b]) as f64;
                prop_assert!((counts[a] as f64 - exact).abs() <= slack, "{counts:?} {exact} {config:?}");
            }
        }
    }
}
