//! One seed of several nodes from its beginning to its verdict: as with one node, with other faults.

use super::faults::{ClusterCounters, Faults};
use super::operator::{OPERATE, Operator, OperatorCounters};
use super::plan::ClusterPlan;
use super::world::ClusterWorld;
use crate::arena::Arena as _;
use crate::auditor::Auditor;
use crate::checkers;
use crate::ending::{self, Driver, End};
use crate::faults::TIMERS_FROM;
use crate::history::History;
use crate::run::{Report, Stopped, outcome};
use crate::summary::Summary;
use crate::swarm::Swarm;
use crate::workload::Workload;
use crate::world::Notice;
use overtake_wire::message::{ErrorCode, Request, Response};

const NANOS_PER_MS: u64 = 1_000_000;
/// Healthy nodes serve and have leaders within this, in nanoseconds. An election takes 1 s, where votes are split several.
const WELL_NS_MAX: u64 = 15_000 * NANOS_PER_MS;
/// And have come to an end of what an operator began, within this.
const CHANGED_NS_MAX: u64 = 90_000 * NANOS_PER_MS;
/// A question is answered within this, in nanoseconds.
const ANSWER_NS_MAX: u64 = 60_000 * NANOS_PER_MS;
/// The timer that something is looked at again.
const LOOK: u64 = TIMERS_FROM - 1;

/// A run while it runs.
pub struct ClusterRun {
    /// What the seed decided.
    pub plan: ClusterPlan,
    /// Nodes, network and time.
    pub world: ClusterWorld,
    /// Who asks.
    pub work: Workload,
    /// What goes wrong.
    pub faults: Faults,
    /// Who changes the cluster.
    pub operator: Operator,
    /// What was asked and answered.
    pub history: History,
    auditor: Auditor,
}

/// Runs a seed. With `told`, the last events are kept in words.
#[must_use]
pub fn run(seed: u64, told: bool) -> Report {
    run_plan(seed, ClusterPlan::of_seed(seed), told)
}

/// The same by a plan that was made smaller.
#[must_use]
pub fn run_plan(seed: u64, plan: ClusterPlan, told: bool) -> Report {
    let mut world = ClusterWorld::new(seed, plan.nodes, &plan.swarm.shape);
    world.tale.wanted = told;
    let mut run = ClusterRun {
        work: Workload::new(seed, &plan.swarm),
        faults: Faults::new(seed, plan.faults, plan.nodes),
        operator: Operator::new(seed, &plan),
        history: History {
            lossy: true,
            little_room: plan.swarm.shape.has_little_room(),
            ..History::default()
        },
        auditor: Auditor::default(),
        world,
        plan,
    };
    let (end, mut violations) = outcome(|| run.go());
    run.faults.close(&mut run.history);
    run.history.elected_ns.clone_from(&run.world.watch.elected_ns);
    // A promise that was broken on the way says more than that the run came to no good end.
    let mut judged = checkers::check(&run.plan.swarm, &run.history, &run.world.clocks, end.as_ref());
    judged.append(&mut violations);
    Report {
        seed,
        trace: run.world.trace(),
        summary: run.summary(end.is_some()),
        tale: run.world.tale.lines().map(String::from).collect(),
        violations: judged,
    }
}

impl ClusterRun {
    fn go(&mut self) -> Result<End, Stopped> {
        self.faults.set_clocks(&mut self.world);
        self.until_well()?;
        for (queue, name, patch) in Workload::creations(&self.plan.swarm) {
            match self.ask(queue, Request::PutQueue { queue: name, patch })? {
                Response::QueuePut { created: true, .. } => {}
                other => return Err(format!("a queue was not created: {other:?}").into()),
            }
        }
        self.auditor_leaves();
        self.faults.begin(&mut self.world);
        self.operator.begin(&mut self.world);
        let active_ns = self.plan.swarm.active_ms * NANOS_PER_MS;
        for number in 0..self.work.count() {
            self.world.set_timer(active_ns / 20 * number as u64 / self.work.count() as u64, number as u64);
        }
        self.until(self.world.time_ns() + active_ns)?;
        self.work.over = true;
        self.operator.over = true;
        self.faults.end(&mut self.world);
        self.until_well()?;
        ending::come_to_an_end(self)
    }

    fn take(&mut self, notice: Notice) -> Result<(), Stopped> {
        let now_ns = self.world.time_ns();
        match notice {
            Notice::Response { session, request, response } if self.auditor.owns(session) => {
                self.auditor.hears(request, response, now_ns);
            }
            Notice::Response { session, request, response } if self.operator.owns(session) => {
                self.operator.hears(request, response, &mut self.world)?;
            }
            Notice::Response { session, request, response } => {
                self.work.answered(session, request, response, now_ns, &mut self.history)?;
            }
            Notice::Timer { number: OPERATE } => {
                let sessions = self.world.end_removed();
                self.operator.lost(&sessions);
                self.work.lost(sessions, &mut self.history);
                if self.operator.look(&mut self.world) {
                    self.faults.outage(&mut self.world);
                }
            }
            Notice::Closed { session } => self.work.lost([session], &mut self.history),
            Notice::Timer { number } if number < self.work.count() as u64 => {
                self.work.act(number as usize, &mut self.world, &mut self.history);
            }
            Notice::Timer { number } => {
                self.faults.timer(number, &mut self.world, &mut self.work, &mut self.history)?;
            }
            Notice::CrashDue => self.faults.crash_due(&mut self.world, &mut self.work, &mut self.history),
        }
        Ok(())
    }

    fn gave_up(&self) -> Stopped {
        match &self.world.fatal {
            Some((node, detail)) => Stopped::Broken(format!("node {}: {detail}", node + 1)),
            None => Stopped::Broken("nothing is left to happen".into()),
        }
    }

    fn until_well(&mut self) -> Result<(), Stopped> {
        let patience_ns = if self.plan.change_ms > 0 { CHANGED_NS_MAX } else { WELL_NS_MAX };
        let deadline_ns = self.world.time_ns() + patience_ns;
        while let Some(ailment) = self.ailment() {
            if self.world.time_ns() > deadline_ns {
                let cores = self.world.nodes.iter().flat_map(|node| &node.cores);
                let under_way: Vec<String> =
                    cores.filter_map(|slot| Some(slot.core.as_ref()?.under_way())).collect();
                let now_ns = self.world.time_ns();
                self.world.tale.tell(now_ns, || format!("under way: {under_way:#?}"));
                return Err(format!("nothing is wrong any more, but {ailment}").into());
            }
            self.until(self.world.time_ns() + NANOS_PER_MS)?;
        }
        // The cores tell each other.
        self.until(self.world.time_ns() + NANOS_PER_MS)
    }

    fn ailment(&self) -> Option<String> {
        let busy = || self.operator.is_busy().then(|| format!("an operator waits: {:?}", self.operator));
        self.world.ailment().or_else(|| self.world.unsettled()).or_else(busy)
    }

    fn summary(&self, to_the_end: bool) -> Summary {
        let mut summary = Summary::default();
        summary.add("runs", 1);
        summary.add("runs that came to their end", u64::from(to_the_end));
        let ClusterCounters {
            kills,
            kills_of_all,
            stops,
            cuts,
            resets,
            pauses,
            core_pauses,
            mesh_stalls,
            wall_jumps,
            hangs,
            disconnects,
            damages,
            ends_for_failures,
            full_disks,
        } = self.faults.counters;
        let OperatorCounters { added, drained, undone, removed, replaced, rebalanced } =
            self.operator.counters;
        for (name, count) in [
            ("nodes killed", kills),
            ("all nodes killed", kills_of_all),
            ("clean stops", stops),
            ("ways cut", cuts),
            ("streams reset", resets),
            ("nodes that stood still", pauses),
            ("cores that stood still", core_pauses),
            ("full rings between cores", mesh_stalls),
            ("slow messages between cores", self.world.mesh_slow.times),
            ("slow messages between nodes", self.world.net_slow.times),
            ("jumps of the wall clock", wall_jumps),
            ("hanging disks", hangs),
            ("clients that went away", disconnects),
            ("disks damaged", damages),
            ("nodes that gave up since an operation of a disk failed", ends_for_failures),
            ("full disks", full_disks),
            ("journals given up", self.world.given_up),
            ("nodes added", added),
            ("nodes drained", drained),
            ("drains undone", undone),
            ("nodes removed", removed),
            ("nodes replaced", replaced),
            ("times rebalanced", rebalanced),
            ("replicas begun by changes", self.world.begun),
            ("replicas dropped by changes", self.world.dropped),
            ("streams made", self.world.net.made),
            ("streams broken", self.world.net.broken),
            ("messages between nodes", self.world.messages),
            ("replicas rebuilt from snapshots", self.world.rebuilt),
            ("terms with a leader", self.world.watch.elected_ns.len() as u64),
            ("states compared", self.world.watch.compared),
            ("simulated milliseconds", self.world.time_ns() / NANOS_PER_MS),
            ("events", self.world.events),
        ] {
            summary.add(name, count);
        }
        for slot in self.world.nodes.iter().flat_map(|node| &node.cores) {
            let disk = slot.disk.counters;
            summary.add("disk operations", disk.operations);
            summary.add("torn writes", disk.torn_writes);
            summary.add("lost writes", disk.lost_writes);
            for (name, count) in slot.core.iter().flat_map(overtake_core::Core::seldom_counts) {
                summary.add(name, count);
            }
        }
        summary.count_calls(&self.history);
        summary
    }
}

impl Driver for ClusterRun {
    fn plan(&self) -> &Swarm {
        &self.plan.swarm
    }

    fn time_ns(&self) -> u64 {
        self.world.time_ns()
    }

    fn end_begins(&mut self) {
        self.history.end_from_ns = Some(self.world.time_ns());
    }

    fn gave_up(&self) -> bool {
        self.world.gave_up_ns.is_some_and(|at_ns| self.history.end_from_ns.is_some_and(|end| at_ns >= end))
    }

    fn is_calm(&self) -> bool {
        self.world.is_well()
            && !self.faults.is_stopping()
            && self.world.time_ns() >= self.faults.hangs_until_ns
    }

    fn open(&self) -> usize {
        self.work.open()
    }

    fn look_after(&mut self, after_ns: u64) {
        self.world.set_timer(after_ns, LOOK);
    }

    fn step(&mut self) -> Result<bool, Stopped> {
        let Some(notice) = self.world.next_notice() else { return Err(self.gave_up()) };
        let looked = matches!(notice, Notice::Timer { number: LOOK });
        self.take(notice)?;
        Ok(looked)
    }

    /// The auditor asks again where there was no quorum at the moment: an election may be held at any time.
    fn ask(&mut self, queue: usize, request: Request) -> Result<Response, Stopped> {
        let deadline_ns = self.world.time_ns() + ANSWER_NS_MAX;
        let text = crate::tale::short(&request);
        loop {
            let call = self.auditor.ask(&mut self.world, &mut self.history, queue, request.clone())?;
            let response = loop {
                if let Some(response) = self.auditor.answer(&mut self.history, call) {
                    break response;
                }
                if self.world.time_ns() > deadline_ns {
                    return Err(format!("no answer within a minute, nothing being wrong: {text}").into());
                }
                self.step()?;
            };
            match response {
                Response::Refused(refusal)
                    if refusal.code == ErrorCode::NoQuorum && self.world.time_ns() < deadline_ns => {}
                response => return Ok(response),
            }
        }
    }

    fn auditor_leaves(&mut self) {
        self.auditor.leaves(&mut self.world);
    }
}
