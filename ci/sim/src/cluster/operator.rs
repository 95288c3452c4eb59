//! Who changes the cluster: nodes come, are drained and removed, or lose everything and are replaced by others, one change
//! after the other, as an operator does it with the requests that there are for it.

use super::plan::ClusterPlan;
use super::world::ClusterWorld;
use crate::arena::Arena;
use crate::faults::TIMERS_FROM;
use overtake_base::NodeId;
use overtake_base::random::Random;
use overtake_core::SessionId;
use overtake_queue::members::{MemberState, Members};
use overtake_wire::message::{ClusterChange, ErrorCode, NewNode, Request, Response};
use std::sync::Arc;

const NANOS_PER_MS: u64 = 1_000_000;
/// The operator's timer.
pub const OPERATE: u64 = TIMERS_FROM - 2;
/// Time between two looks, in nanoseconds.
const LOOK_NS: u64 = 40 * NANOS_PER_MS;
/// What is not answered within this is asked again, in nanoseconds.
const ANSWER_NS: u64 = 6_000 * NANOS_PER_MS;
/// Nodes that are added in one run, at most, and nodes of a cluster.
const ADDED_MAX: usize = 3;
const NODES_MAX: usize = 6;
/// Nodes that stay in a cluster from which others go.
const NODES_MIN: usize = 3;

/// How often each thing was done.
#[derive(Clone, Copy, Default, Debug)]
pub struct OperatorCounters {
    pub added: u64,
    pub drained: u64,
    pub undone: u64,
    pub removed: u64,
    pub replaced: u64,
    pub rebalanced: u64,
}

/// What is being done, across several requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Task {
    /// A node is to join; then it is started.
    Add(u64),
    /// A node is to give away everything; then it is removed.
    Drain(u64),
    /// It is to hold replicas again.
    Undo(u64),
    Remove(u64),
    /// A node is gone for good: another one joins, then it is given up.
    Replace(u64),
    GiveUp(u64, u64),
    Rebalance,
}

/// See the module's text.
#[derive(Debug)]
pub struct Operator {
    random: Random,
    mean_ms: u64,
    next_ns: u64,
    task: Option<Task>,
    session: Option<SessionId>,
    request: u64,
    asked_ns: Option<u64>,
    added: usize,
    may_destroy: bool,
    /// Nothing new is begun.
    pub over: bool,
    /// What was done.
    pub counters: OperatorCounters,
}

impl Operator {
    /// The operator of a run.
    #[must_use]
    pub fn new(seed: u64, plan: &ClusterPlan) -> Self {
        Self {
            random: Random::new(seed, "cluster operator"),
            mean_ms: plan.change_ms,
            next_ns: 0,
            task: None,
            session: None,
            request: 0,
            asked_ns: None,
            added: 0,
            may_destroy: plan.faults.damage_ms == 0 && plan.nodes >= NODES_MIN,
            over: false,
            counters: OperatorCounters::default(),
        }
    }

    /// Sets the first time.
    pub fn begin(&mut self, world: &mut ClusterWorld) {
        if self.mean_ms > 0 {
            self.later(world);
            world.set_timer(LOOK_NS, OPERATE);
        }
    }

    fn later(&mut self, world: &ClusterWorld) {
        self.next_ns = world.time_ns() + self.random.below(2 * self.mean_ms * NANOS_PER_MS);
    }

    /// Whether it is in the middle of something.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.task.is_some()
    }

    /// Whether this is the operator's session.
    #[must_use]
    pub fn owns(&self, session: SessionId) -> bool {
        self.session == Some(session)
    }

    /// Looks what is to be done next. True where something was begun that may disturb others.
    pub fn look(&mut self, world: &mut ClusterWorld) -> bool {
        world.set_timer(LOOK_NS, OPERATE);
        if self.asked_ns.is_some_and(|asked_ns| world.time_ns() < asked_ns + ANSWER_NS) {
            return false;
        }
        let Some(members) = world.newest_members() else { return false };
        if core::mem::take(&mut world.dropped_and_dark) {
            self.task = self.destroy(world, &members).or(self.task);
        }
        if self.task.is_none() {
            if self.over || world.time_ns() < self.next_ns {
                return false;
            }
            self.later(world);
            self.task = self.choose(world, &members);
        }
        let Some(task) = self.task else { return false };
        if let Some(change) = self.next_request(task, world, &members) {
            self.ask(change, world);
        }
        true
    }

    fn choose(&mut self, world: &mut ClusterWorld, members: &Members) -> Option<Task> {
        let usable: Vec<u64> = members.usable().map(|(node, _)| node.0).collect();
        let any = usable[self.random.below(usable.len() as u64) as usize];
        let may_add = self.may_add(members);
        let new = world.nodes.len() as u64 + 1;
        match self.random.below(6) {
            0 | 1 if may_add => Some(Task::Add(new)),
            2 | 3 if usable.len() > NODES_MIN => Some(Task::Drain(any)),
            4 => self.destroy(world, members),
            5 => Some(Task::Rebalance),
            _ => None,
        }
    }

    fn may_add(&self, members: &Members) -> bool {
        self.added < ADDED_MAX && members.nodes.len() < NODES_MAX
    }

    /// A node loses everything, where another one may take its place. Once in a run.
    fn destroy(&mut self, world: &mut ClusterWorld, members: &Members) -> Option<Task> {
        let usable: Vec<u64> = members.usable().map(|(node, _)| node.0).collect();
        let any = usable[self.random.below(usable.len() as u64) as usize];
        let may = self.may_destroy && self.may_add(members) && usable.len() >= NODES_MIN;
        if !may || self.over || world.strands(NodeId(any), members) {
            return None;
        }
        self.may_destroy = false;
        world.destroy(any as usize - 1);
        Some(Task::Replace(any))
    }

    fn next_request(&mut self, task: Task, world: &ClusterWorld, members: &Members) -> Option<ClusterChange> {
        let cores = world.nodes[0].cores.len() as u16;
        let join = |id: u64| {
            let zone = "simulated".into();
            ClusterChange::Add(NewNode { id, zone, address: String::new(), http: String::new(), cores })
        };
        let strands = |leaver| world.strands(NodeId(leaver), members);
        match task {
            // The node that would be left alone is started first.
            Task::Remove(leaver) if strands(leaver) => None,
            Task::Add(node) => Some(join(node)),
            Task::Replace(_) => Some(join(world.nodes.len() as u64 + 1)),
            Task::GiveUp(dead, new) => {
                // Two ways to say it.
                let replace = self.random.below(2) == 0;
                Some(if replace {
                    ClusterChange::Replace { dead, new }
                } else {
                    ClusterChange::Remove { node: dead, force: true }
                })
            }
            Task::Drain(node) => {
                let state = members.nodes.get(&NodeId(node)).map(|member| member.state);
                if state == Some(MemberState::Draining) {
                    if members.held_by(NodeId(node)) == 0 && !strands(node) {
                        self.task = Some(Task::Remove(node));
                        return Some(ClusterChange::Remove { node, force: false });
                    }
                    if !self.over && self.random.below(60) == 0 {
                        self.task = Some(Task::Undo(node));
                    }
                    return None;
                }
                Some(ClusterChange::Drain { node, undo: false, force: false })
            }
            Task::Undo(node) => Some(ClusterChange::Drain { node, undo: true, force: false }),
            Task::Remove(node) => Some(ClusterChange::Remove { node, force: false }),
            Task::Rebalance => Some(ClusterChange::Rebalance),
        }
    }

    fn ask(&mut self, change: ClusterChange, world: &mut ClusterWorld) {
        if let Some(session) = self.session.take() {
            world.disconnect(session);
        }
        if !world.is_open() {
            return;
        }
        let session = world.connect();
        self.request += 1;
        self.asked_ns = Some(world.time_ns());
        self.session = Some(session);
        world.send(session, self.request, &Request::ChangeCluster(change));
    }

    /// The answer to what was asked.
    pub fn hears(
        &mut self,
        request: u64,
        response: Response,
        world: &mut ClusterWorld,
    ) -> Result<(), String> {
        if request != self.request {
            return Ok(());
        }
        self.asked_ns = None;
        let Some(task) = self.task else { return Ok(()) };
        let members = match response {
            Response::ClusterChanged { members } => Members::of_bytes(&members).map_err(|error| error.0)?,
            // It is asked again: nobody led, or nobody knows.
            Response::Refused(refusal) if refusal.retry_is_safe() || refusal.stored_unknown => return Ok(()),
            Response::Refused(refusal) => {
                // What stands against it was begun by this very task, or it cannot be.
                self.task = match task {
                    Task::Remove(node) => Some(Task::Drain(node)),
                    Task::GiveUp(..) if refusal.code != ErrorCode::NotFound => Some(task),
                    _ => None,
                };
                let never = matches!(task, Task::Add(_) | Task::Replace(_));
                return if never { Err(format!("{task:?} was refused: {}", refusal.detail)) } else { Ok(()) };
            }
            other => return Err(format!("an operator was answered {other:?}")),
        };
        self.task = match task {
            Task::Add(node) => {
                self.join(node, members, world);
                None
            }
            Task::Replace(dead) => {
                let new = world.nodes.len() as u64 + 1;
                self.join(new, members, world);
                self.counters.replaced += 1;
                Some(Task::GiveUp(dead, new))
            }
            Task::Drain(node) => {
                self.counters.drained += 1;
                Some(Task::Drain(node))
            }
            Task::Undo(_) => {
                self.counters.undone += 1;
                None
            }
            Task::Remove(_) => {
                self.counters.removed += 1;
                None
            }
            Task::GiveUp(..) => None,
            Task::Rebalance => {
                self.counters.rebalanced += 1;
                None
            }
        };
        Ok(())
    }

    fn join(&mut self, node: u64, members: Members, world: &mut ClusterWorld) {
        self.added += 1;
        self.counters.added += 1;
        world.add_node(node, Arc::new(members));
    }

    /// The sessions of a node are gone.
    pub fn lost(&mut self, sessions: &[SessionId]) {
        if self.session.is_some_and(|session| sessions.contains(&session)) {
            self.session = None;
            self.asked_ns = None;
        }
    }
}
