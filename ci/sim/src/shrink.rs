//! Makes the plan of a failing seed smaller, as long as it fails in the same way: what is left is what the failure needs.
//! The same seed is always shrunk in the same way, and within a number of runs.

use crate::reduce::{Plan, Reduction, reduced};
use crate::run::Report;

/// Runs that shrinking takes at most.
const RUNS_MAX: usize = 300;

/// A plan made smaller.
#[derive(Debug)]
pub struct Shrunk {
    /// What was taken away.
    pub reductions: Vec<Reduction>,
    /// How it fails, told.
    pub report: Report,
    /// Runs that it took.
    pub runs: usize,
}

/// Shrinks the plan of a seed that failed like `failed`, already reduced by `given`.
#[must_use]
pub fn shrink<P: Plan>(seed: u64, given: &[Reduction], failed: &Report) -> Shrunk {
    let checker = failed.violations.first().map(|violation| violation.checker);
    let mut reductions = given.to_vec();
    let mut runs = 0;
    let mut again = checker.is_some_and(|checker| checker != "groups");
    while core::mem::take(&mut again) {
        for reduction in Reduction::ALL {
            // Halving is worth it as long as it works.
            loop {
                let before = format!("{:?}", reduced::<P>(seed, &reductions));
                reductions.push(*reduction);
                let plan: P = reduced(seed, &reductions);
                let fails = format!("{plan:?}") != before && runs < RUNS_MAX && {
                    runs += 1;
                    plan.run(seed, false).violations.iter().any(|v| Some(v.checker) == checker)
                };
                if !fails {
                    reductions.pop();
                    break;
                }
                again = true;
            }
        }
    }
    let report = reduced::<P>(seed, &reductions).run(seed, true);
    Shrunk { reductions, report, runs }
}
