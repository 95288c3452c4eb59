//! One checker for each promise. Each only concludes what must hold whatever happened inside: a request took effect at
//! some instant between its start and its answer; one of unknown fate at some instant after its start, or never.
//!
//! Shard time is known exactly wherever a message was delivered: its lease's end less the lease's length.

mod content;
mod deaths;
mod dedup;
mod fate;
mod leases;
mod limits;
mod line;
mod order;
mod rates;
mod refusals;
mod shares;
mod statistics;
mod times;
mod wakes;

use crate::clocks::Clocks;
use crate::ending::End;
use crate::facts::{QueueFacts, gather};
use crate::history::History;
use crate::swarm::Swarm;

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The checker that found it.
    pub checker: &'static str,
    /// What shows it.
    pub detail: String,
}

impl Violation {
    /// A violation.
    #[must_use]
    pub fn new(checker: &'static str, detail: String) -> Self {
        Self { checker, detail }
    }
}

/// What a checker looks at.
pub struct Case<'a> {
    /// One queue.
    pub queue: &'a QueueFacts<'a>,
    /// The whole run's plan.
    pub plan: &'a Swarm,
    /// The whole run.
    pub history: &'a History,
    /// What the node's clocks can have shown.
    pub clocks: &'a Clocks,
}

/// Where broken promises are put.
pub struct Found {
    checker: &'static str,
    queue: String,
    violations: Vec<Violation>,
}

impl Found {
    /// Adds a broken promise.
    pub fn add(&mut self, detail: String) {
        self.violations.push(Violation::new(self.checker, format!("{}: {detail}", self.queue)));
    }
}

type Checker = (&'static str, fn(&Case<'_>, &mut Found));

/// Those that hold whatever happened to the queue.
const ALWAYS: [Checker; 3] =
    [("content", content::check), ("statistics", statistics::check), ("refusals", refusals::check)];
/// Those that presume that the queue is the same from beginning to end.
const OF_ONE_LIFE: [Checker; 11] = [
    ("fate", fate::check),
    ("leases", leases::check),
    ("times", times::check),
    ("dedup", dedup::check),
    ("order", order::check),
    ("shares", shares::check),
    ("deaths", deaths::check),
    ("wakes", wakes::check),
    ("line", line::check),
    ("limits", limits::check),
    ("rates", rates::check),
];

/// All broken promises of a run. Without an end, a damaged disk cut it short.
#[must_use]
pub fn check(plan: &Swarm, history: &History, clocks: &Clocks, end: Option<&End>) -> Vec<Violation> {
    let mut found = Found { checker: "rates", queue: "tenant".into(), violations: Vec::new() };
    rates::check_tenant(plan, history, clocks, &mut found);
    let mut violations = found.violations;
    for queue in gather(plan, history, clocks, end) {
        let case = Case { queue: &queue, plan, history, clocks };
        let of_one_life = OF_ONE_LIFE.iter().filter(|_| !queue.deleted);
        for (checker, check) in ALWAYS.iter().chain(of_one_life) {
            let mut found = Found { checker, queue: queue.plan.name.clone(), violations: Vec::new() };
            check(&case, &mut found);
            violations.append(&mut found.violations);
        }
    }
    violations
}
