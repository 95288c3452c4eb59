//! One seed from its beginning to its verdict: the queues are made, workload and faults meet for a while, then all
//! faults stop and everything must come to a good end, then the history is judged.

use crate::auditor::Auditor;
use crate::checkers::{self, Violation};
use crate::ending::{self, Driver, End};
use crate::faults::{FaultCounters, Faults, TIMERS_FROM};
use crate::groups;
use crate::history::History;
use crate::panics::caught;
use crate::summary::Summary;
use crate::swarm::Swarm;
use crate::workload::Workload;
use crate::world::{Notice, World};
use overtake_base::planted::{Bug, is_planted};
use overtake_wire::message::{Request, Response};

const NANOS_PER_MS: u64 = 1_000_000;
/// A node on healthy disks serves within this after a start, in nanoseconds.
const START_NS_MAX: u64 = 60_000 * NANOS_PER_MS;
/// The timer that something is looked at again.
const LOOK: u64 = TIMERS_FROM - 1;

/// What came of a seed.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash of everything that happened: equal for equal seeds.
    pub trace: u64,
    /// Broken promises; empty is good.
    pub violations: Vec<Violation>,
    /// What was exercised.
    pub summary: Summary,
    /// The last events in words, where they were asked for.
    pub tale: Vec<String>,
}

/// Why a run does not go on.
#[derive(Debug)]
pub enum Stopped {
    /// A damaged disk was found, loudly and by name, as it must be. What was answered until then is judged.
    Damaged,
    /// A promise was broken.
    Broken(String),
}

impl From<String> for Stopped {
    fn from(detail: String) -> Self {
        Self::Broken(detail)
    }
}

/// A run while it runs.
pub struct Run {
    /// What the seed decided.
    pub plan: Swarm,
    /// The node and time.
    pub world: World,
    /// Who asks.
    pub work: Workload,
    /// What goes wrong.
    pub faults: Faults,
    /// What was asked and answered.
    pub history: History,
    auditor: Auditor,
}

/// Runs a seed: a node, and a cluster of replicas of one shard. With `told`, the last events are kept in words.
#[must_use]
pub fn run(seed: u64, told: bool) -> Report {
    run_plan(seed, Swarm::of_seed(seed), told)
}

/// The same by a plan that was made smaller.
#[must_use]
pub fn run_plan(seed: u64, plan: Swarm, told: bool) -> Report {
    // A planted bug can only be in one of them.
    let planted = Bug::ALL.iter().find(|bug| is_planted(**bug));
    if planted.is_some_and(|bug| bug.is_of_clusters()) {
        return crate::cluster::run::run(seed, told);
    }
    let mut report = match planted {
        Some(bug) if bug.is_of_groups() => Report::empty(seed),
        _ => run_node(seed, plan, told),
    };
    if planted.is_none_or(|bug| bug.is_of_groups()) {
        let groups = groups::run(seed);
        report.trace ^= groups.trace.rotate_left(1);
        report.summary.count_groups(&groups);
        report.violations.extend(groups.violations);
    }
    report
}

fn run_node(seed: u64, plan: Swarm, told: bool) -> Report {
    let mut world = World::new(seed, plan.shape.clone());
    world.tale.wanted = told;
    let mut run = Run {
        work: Workload::new(seed, &plan),
        faults: Faults::new(seed, plan.faults),
        history: History { little_room: plan.shape.has_little_room(), ..History::default() },
        auditor: Auditor::default(),
        world,
        plan,
    };
    let (end, mut violations) = outcome(|| run.go());
    run.faults.close(&mut run.history);
    // A promise that was broken on the way says more than that the run came to no good end.
    let mut judged = checkers::check(&run.plan, &run.history, &run.world.clocks, end.as_ref());
    judged.append(&mut violations);
    Report {
        seed,
        trace: run.world.trace(),
        summary: Summary::of(&run, end.is_some()),
        tale: run.world.tale.lines().map(String::from).collect(),
        violations: judged,
    }
}

/// How far a run came, and what that alone says against it.
pub(crate) fn outcome(go: impl FnOnce() -> Result<End, Stopped>) -> (Option<End>, Vec<Violation>) {
    match caught(go) {
        Ok(Ok(end)) => (Some(end), Vec::new()),
        Ok(Err(Stopped::Damaged)) => (None, Vec::new()),
        Ok(Err(Stopped::Broken(detail))) => (None, vec![Violation::new("liveness", detail)]),
        Err(panic) => (None, vec![Violation::new("panic", panic)]),
    }
}

impl Report {
    fn empty(seed: u64) -> Self {
        let (violations, tale) = (Vec::new(), Vec::new());
        Self { seed, trace: 0, violations, summary: Summary::default(), tale }
    }
}

impl Run {
    fn go(&mut self) -> Result<End, Stopped> {
        self.until_serving()?;
        for (queue, name, patch) in Workload::creations(&self.plan) {
            match self.ask(queue, Request::PutQueue { queue: name, patch })? {
                Response::QueuePut { created: true, .. } => {}
                other => return Err(format!("a queue was not created: {other:?}").into()),
            }
        }
        self.auditor_leaves();
        self.faults.begin(&mut self.world);
        for number in 0..self.work.count() {
            self.world.set_timer(
                self.plan.active_ms * NANOS_PER_MS / 20 * number as u64 / self.work.count() as u64,
                number as u64,
            );
        }
        let end_ns = self.world.time_ns() + self.plan.active_ms * NANOS_PER_MS;
        self.until(end_ns)?;
        self.work.over = true;
        self.faults.end(&mut self.world);
        self.until_serving()?;
        ending::come_to_an_end(self)
    }

    /// Goes on where a core that gave up is excused and started again.
    fn gave_up(&mut self) -> Result<(), Stopped> {
        let Some(detail) = self.world.fatal.clone() else {
            return Err(Stopped::Broken("nothing is left to happen".into()));
        };
        match self.faults.fatal(&detail, &mut self.world, &mut self.work, &mut self.history)? {
            true => Err(Stopped::Damaged),
            false => Ok(()),
        }
    }

    fn take(&mut self, notice: Notice) -> Result<(), Stopped> {
        let now_ns = self.world.time_ns();
        match notice {
            Notice::Response { session, request, response } if self.auditor.owns(session) => {
                self.auditor.hears(request, response, now_ns);
            }
            Notice::Response { session, request, response } => {
                self.work.answered(session, request, response, now_ns, &mut self.history)?;
            }
            Notice::Closed { session } => self.work.lost([session], &mut self.history),
            Notice::Timer { number } if number < self.work.count() as u64 => {
                self.work.act(number as usize, &mut self.world, &mut self.history);
            }
            Notice::Timer { number } => {
                self.faults.timer(number, &mut self.world, &mut self.work, &mut self.history)?;
            }
            Notice::CrashDue => self.faults.aim_reached(&mut self.world, &mut self.work, &mut self.history),
        }
        self.faults.observe(&mut self.world, &mut self.history);
        Ok(())
    }

    /// Waits until the node serves; it is healthy, or will be.
    pub fn until_serving(&mut self) -> Result<(), Stopped> {
        let deadline_ns = self.world.time_ns() + START_NS_MAX;
        while !self.world.node.is_serving() {
            if self.world.time_ns() > deadline_ns {
                return Err(Stopped::Broken("the node does not serve a minute after its start".into()));
            }
            self.until(self.world.time_ns() + NANOS_PER_MS)?;
        }
        // The cores tell each other.
        self.until(self.world.time_ns() + NANOS_PER_MS)
    }

    /// What went wrong.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        self.faults.counters
    }
}

impl Driver for Run {
    fn plan(&self) -> &Swarm {
        &self.plan
    }

    fn time_ns(&self) -> u64 {
        self.world.time_ns()
    }

    fn end_begins(&mut self) {
        self.history.end_from_ns = Some(self.world.time_ns());
    }

    fn gave_up(&self) -> bool {
        false
    }

    fn is_calm(&self) -> bool {
        let held_up_ns = self.history.outages.iter().map(|outage| outage.to_ns).max().unwrap_or(0);
        self.world.node.is_serving()
            && !self.faults.is_stopping()
            && self.world.time_ns() >= held_up_ns.max(self.faults.hangs_until_ns)
    }

    fn open(&self) -> usize {
        self.work.open()
    }

    fn look_after(&mut self, after_ns: u64) {
        self.world.set_timer(after_ns, LOOK);
    }

    fn step(&mut self) -> Result<bool, Stopped> {
        let Some(notice) = self.world.next_notice() else {
            self.gave_up()?;
            return Ok(false);
        };
        let looked = matches!(notice, Notice::Timer { number: LOOK });
        self.take(notice)?;
        Ok(looked)
    }

    fn ask(&mut self, queue: usize, request: Request) -> Result<Response, Stopped> {
        let text = crate::tale::short(&request);
        let call = self.auditor.ask(&mut self.world, &mut self.history, queue, request)?;
        let deadline_ns = self.world.time_ns() + START_NS_MAX;
        loop {
            if let Some(response) = self.auditor.answer(&mut self.history, call) {
                return Ok(response);
            }
            if self.world.time_ns() > deadline_ns {
                return Err(format!("no answer within a minute, nothing being wrong: {text}").into());
            }
            let Some(notice) = self.world.next_notice() else {
                self.gave_up()?;
                return Err(Stopped::Broken("the node was started anew though nothing was wrong".into()));
            };
            self.take(notice)?;
        }
    }

    fn auditor_leaves(&mut self) {
        self.auditor.leaves(&mut self.world);
    }
}
