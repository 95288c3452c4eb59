//! Proves that the simulator finds what it is there for: each planted bug, within a number of seeds that is run all the
//! time. A hint names a seed that found a bug once; where it does not any more, all seeds are searched.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use overtake_base::planted::{Bug, CAN_PLANT, plant};
use overtake_sim::run::run;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds within which every bug must be found.
const SEEDS: u64 = 1_000;

/// A bug is planted in the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn hint(bug: Bug) -> u64 {
    let lines = include_str!("planted_hints.txt").lines();
    let of_bug = lines.filter_map(|line| line.split_once(' ')).find(|(name, _)| *name == bug.name());
    of_bug.and_then(|(_, seed)| seed.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn every_planted_bug_is_found() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    assert!(Bug::ALL.len() >= 24);
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        plant(Some(*bug)).unwrap();
        let hint = hint(*bug);
        let found = if run(hint, false).violations.is_empty() { first_that_fails() } else { Some(hint) };
        plant(None).unwrap();
        match found {
            Some(seed) if seed == hint => {}
            Some(seed) => println!("{} is found by seed {seed}, not by its hint {hint}", bug.name()),
            None => missed.push(bug.name()),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}

/// What is called found is the bug: the same seeds are clean without it.
#[test]
fn the_seeds_that_find_bugs_are_clean_without_them() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    const { assert!(CAN_PLANT) };
    for bug in Bug::ALL {
        let report = run(hint(*bug), false);
        assert!(report.violations.is_empty(), "seed {}: {:?}", report.seed, report.violations);
    }
}

fn first_that_fails() -> Option<u64> {
    let (next, found) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work = || {
        let mut seed = next.fetch_add(1, Ordering::Relaxed);
        while seed < SEEDS && found.load(Ordering::Relaxed) == u64::MAX {
            if !run(seed, false).violations.is_empty() {
                found.fetch_min(seed, Ordering::Relaxed);
            }
            seed = next.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| {
            scope.spawn(work);
        });
    });
    Some(found.into_inner()).filter(|seed| *seed < SEEDS)
}
