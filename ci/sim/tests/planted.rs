//! Proves that the simulator finds what it is there for: each planted bug, within a number of seeds that is run all the
//! time.

use overtake_base::planted::{Bug, plant};
use overtake_sim::run::run;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds within which every bug must be found.
const SEEDS: u64 = 600;

/// One test for all: a bug is planted in the whole process.
#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        plant(Some(*bug)).unwrap();
        let found = first_that_fails();
        plant(None).unwrap();
        match found {
            Some(seed) => println!("{bug:?} is found by seed {seed}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
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
