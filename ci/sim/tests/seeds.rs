//! Seeds that must be clean: many that nobody chose, and those that once found something; of one node and of several.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use overtake_sim::run::Report;
use overtake_sim::{cluster, run};
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that nobody chose.
const SEEDS: u64 = 500;
/// The same of several nodes.
const CLUSTER_SEEDS: u64 = 300;
/// Every so many seeds, one is run twice.
const TWICE_EVERY: u64 = 25;

type RunSeed = fn(u64, bool) -> Report;

fn all_clean(run: RunSeed, option: &str, seeds: &[u64]) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let work = || {
            while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                let report = run(*seed, false);
                assert!(
                    report.violations.is_empty(),
                    "seed {seed}: {:#?}\nreplay: cargo run --profile sim -p overtake-sim -- --seed {seed}{option}",
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

fn listed(list: &str) -> Vec<u64> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let seeds = lines.filter_map(|line| line.split_whitespace().next());
    seeds.map(|seed| seed.parse().expect("a line begins with a seed")).collect()
}

#[test]
fn seeds_that_nobody_chose_are_clean() {
    all_clean(run::run, "", &(0..SEEDS).collect::<Vec<_>>());
}

#[test]
fn seeds_of_several_nodes_that_nobody_chose_are_clean() {
    all_clean(cluster::run::run, " --cluster", &(0..CLUSTER_SEEDS).collect::<Vec<_>>());
}

#[test]
fn seeds_that_found_something_once_are_clean() {
    all_clean(run::run, "", &listed(include_str!("regression_seeds.txt")));
}

#[test]
fn seeds_of_several_nodes_that_found_something_once_are_clean() {
    all_clean(cluster::run::run, " --cluster", &listed(include_str!("cluster_regression_seeds.txt")));
}
