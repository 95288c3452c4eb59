//! Seeds that must be clean: many that nobody chose, and those that once found something.

use overtake_sim::run::run;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that nobody chose.
const SEEDS: u64 = 500;
/// Every so many seeds, one is run twice.
const TWICE_EVERY: u64 = 25;

fn all_clean(seeds: &[u64]) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let work = || {
            while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                let report = run(*seed, false);
                assert!(
                    report.violations.is_empty(),
                    "seed {seed}: {:#?}\nreplay: cargo run --profile sim -p overtake-sim -- --seed {seed}",
                    report.violations
                );
                if seed.is_multiple_of(TWICE_EVERY) {
                    assert_eq!(run(*seed, false).trace, report.trace, "two runs of seed {seed} differ");
                }
            }
        };
        (0..threads).for_each(|_| {
            scope.spawn(work);
        });
    });
}

#[test]
fn seeds_that_nobody_chose_are_clean() {
    all_clean(&(0..SEEDS).collect::<Vec<_>>());
}

#[test]
fn seeds_that_found_something_once_are_clean() {
    let lines = include_str!("regression_seeds.txt").lines();
    let seeds = lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    all_clean(&seeds.map(|seed| seed.parse().expect("a line begins with a seed")).collect::<Vec<_>>());
}
