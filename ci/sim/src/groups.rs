//! Clusters of replicas of one shard: every node's raft group, disk and state machine, and the messages between them,
//! in one value. After every output it looks at what must hold at all times: one leader a term, and one committed log.
//! Crashes, partitions in one direction or both, loss, reordering and duplication of messages come by the seed; then the
//! faults stop and work must go on.

use crate::checkers::Violation;

use bytes::Bytes;
use overtake_base::hash::stable;
use overtake_base::random::Random;
use overtake_base::{NodeId, ShardId};
use overtake_replication::{
    Group, GroupConfig, GroupError, GroupOutput, HardState, LogEntry, RecoveredGroup,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SHARD: ShardId = ShardId(9);

/// How bad the world is, in parts per million of each chance.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u32,
    pub duplication: u32,
    /// Longest way of a message, in rounds.
    pub delay_rounds: u64,
    pub crash: u32,
    pub restart: u32,
    pub partition: u32,
    pub heal: u32,
    /// That a disk reports nothing in a round.
    pub slow_disk: u32,
    /// That a node's clock misses a tick.
    pub slow_clock: u32,
}

pub const CALM: Faults = Faults {
    loss: 0,
    duplication: 0,
    delay_rounds: 1,
    crash: 0,
    restart: 1_000_000,
    partition: 0,
    heal: 1_000_000,
    slow_disk: 0,
    slow_clock: 0,
};

/// How often each thing happened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct GroupCounters {
    pub crashes: u64,
    pub restarts: u64,
    pub partitions: u64,
    pub delivered: u64,
    pub dropped: u64,
}

/// An output on its way to the disk.
struct Write {
    number: u64,
    entries: Vec<LogEntry>,
    hard_state: Option<HardState>,
    messages: Vec<(NodeId, Bytes)>,
}

struct Node {
    id: NodeId,
    group: Option<Group>,
    /// What the disk holds for certain.
    log: Vec<LogEntry>,
    hard_state: HardState,
    under_way: VecDeque<Write>,
    /// What the state machine of this life has got.
    delivered: u64,
    /// The most any life has got.
    delivered_ever: u64,
    lives: u64,
}

/// A cluster while it runs.
pub struct Cluster {
    seed: u64,
    random: Random,
    nodes: Vec<Node>,
    network: Vec<(u64, NodeId, NodeId, Bytes)>,
    blocked: BTreeSet<(NodeId, NodeId)>,
    round: u64,
    proposals: u64,
    /// Whether anything is proposed.
    pub busy: bool,
    leaders: BTreeMap<u64, NodeId>,
    /// The one committed log.
    pub committed: Vec<LogEntry>,
    /// Every message's bytes, in order, in short.
    pub trace: u64,
    /// The first promise that was broken.
    pub broken: Option<String>,
    /// What happened.
    pub counters: GroupCounters,
}

impl Cluster {
    pub fn new(size: u64, seed: u64) -> Self {
        let nodes = (1..=size)
            .map(|id| Node {
                id: NodeId(id),
                group: None,
                log: vec![],
                hard_state: HardState::default(),
                under_way: VecDeque::new(),
                delivered: 0,
                delivered_ever: 0,
                lives: 0,
            })
            .collect();
        Self {
            seed,
            random: Random::new(seed, "cluster"),
            nodes,
            network: vec![],
            blocked: BTreeSet::new(),
            round: 0,
            proposals: 0,
            busy: true,
            leaders: BTreeMap::new(),
            committed: vec![],
            trace: 0,
            broken: None,
            counters: GroupCounters::default(),
        }
    }

    fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(format!("round {}: {what}", self.round));
    }

    /// Terms in which someone led.
    #[must_use]
    pub fn elections(&self) -> u64 {
        self.leaders.len() as u64
    }

    /// Entries that every node's disk holds: nobody will ever need them from another.
    fn everywhere(&self) -> u64 {
        self.nodes.iter().map(|node| node.delivered_ever).min().unwrap_or(0)
    }

    /// One round: faults, time, disks, messages, proposals, outputs.
    pub fn round(&mut self, faults: Faults) {
        self.round += 1;
        self.partition(faults);
        for at in 0..self.nodes.len() {
            self.live_or_die(at, faults);
            if !self.random.chance_ppm(faults.slow_clock)
                && let Some(group) = &mut self.nodes[at].group
            {
                group.tick();
            }
            if !self.random.chance_ppm(faults.slow_disk) {
                self.disk(at);
            }
        }
        self.deliver(faults);
        for at in 0..self.nodes.len() {
            self.propose(at);
            self.output(at, faults);
            self.tidy(at);
        }
    }

    fn partition(&mut self, faults: Faults) {
        if self.random.chance_ppm(faults.heal) {
            self.blocked.clear();
        }
        if self.random.chance_ppm(faults.partition) {
            // Any one direction may be cut, so that asymmetric partitions come about too.
            self.counters.partitions += 1;
            let size = self.nodes.len() as u64;
            for _ in 0..self.random.below(size * size) {
                let (a, b) = (1 + self.random.below(size), 1 + self.random.below(size));
                self.blocked.insert((NodeId(a), NodeId(b)));
            }
        }
    }

    fn live_or_die(&mut self, at: usize, faults: Faults) {
        if self.nodes[at].group.is_none() {
            if self.nodes[at].lives == 0 || self.random.chance_ppm(faults.restart) {
                self.start(at);
            }
        } else if self.random.chance_ppm(faults.crash) {
            let node = &mut self.nodes[at];
            node.group = None;
            self.counters.crashes += 1;
            // The disk may have got some of what was under way, in order.
            let kept = self.random.below(node.under_way.len() as u64 + 1);
            for _ in 0..kept {
                node.write_next();
            }
            node.under_way.clear();
        }
    }

    fn start(&mut self, at: usize) {
        let checkpoint = self.random.below(self.everywhere() + 1);
        let voters = self.nodes.iter().map(|node| node.id).collect();
        let node = &mut self.nodes[at];
        node.lives += 1;
        node.delivered = checkpoint;
        let term = checkpoint.checked_sub(1).map_or(0, |offset| node.log[offset as usize].term);
        let recovered = RecoveredGroup {
            hard_state: node.hard_state,
            checkpoint: (checkpoint, term),
            membership: None,
            entries: node.log[checkpoint as usize..].to_vec(),
            older: Vec::new(),
        };
        let seed = self.seed ^ (node.lives << 8);
        let config = GroupConfig { shard: SHARD, node: node.id, voters, seed };
        self.counters.restarts += u64::from(node.lives > 1);
        match Group::new(config, recovered) {
            Ok(group) => node.group = Some(group),
            Err(error) => {
                let id = node.id;
                self.breaks(format!("node {id} does not start from its own disk: {error}"));
            }
        }
    }

    fn disk(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let done = self.random.below(node.under_way.len() as u64 + 1);
        let mut newest = None;
        let mut messages = vec![];
        for _ in 0..done {
            if let Some((number, promised)) = node.write_next() {
                newest = Some(number);
                messages.extend(promised);
            }
        }
        if let (Some(number), Some(group)) = (newest, &mut node.group) {
            group.persisted(number);
        }
        let id = node.id;
        self.send(id, messages, CALM);
    }

    fn send(&mut self, from: NodeId, messages: Vec<(NodeId, Bytes)>, faults: Faults) {
        for (to, bytes) in messages {
            self.trace = stable(&[&self.trace.to_le_bytes(), &to.0.to_le_bytes(), &bytes[..]].concat());
            let copies = 1 + u64::from(self.random.chance_ppm(faults.duplication));
            for _ in 0..copies {
                let due = self.round + 1 + self.random.below(faults.delay_rounds);
                self.network.push((due, from, to, bytes.clone()));
            }
        }
    }

    fn deliver(&mut self, faults: Faults) {
        let (due, later) = core::mem::take(&mut self.network).into_iter().partition(|m| m.0 <= self.round);
        self.network = later;
        let mut due: Vec<_> = due;
        while !due.is_empty() {
            let (_, from, to, bytes) = due.swap_remove(self.random.below(due.len() as u64) as usize);
            if self.random.chance_ppm(faults.loss) || self.blocked.contains(&(from, to)) {
                self.counters.dropped += 1;
                continue;
            }
            if let Some(group) = &mut self.nodes[to.0 as usize - 1].group {
                self.counters.delivered += 1;
                if let Err(error) = group.step(from, &bytes) {
                    self.breaks(format!("{to} refuses what {from} says: {error}"));
                }
            }
        }
    }

    fn propose(&mut self, at: usize) {
        for _ in 0..self.random.below(if self.busy { 3 } else { 0 }) {
            let Some(group) = &mut self.nodes[at].group else { return };
            self.proposals += 1;
            match group.propose(Bytes::from(self.proposals.to_string())) {
                Ok(at) if at == (group.term(), group.last_index()) => {}
                Err(GroupError::NotLeader) => {}
                other => self.breaks(format!("a proposal was answered {other:?}")),
            }
        }
    }

    fn output(&mut self, at: usize, faults: Faults) {
        let node = &mut self.nodes[at];
        let Some(group) = &mut node.group else { return };
        let mut broken = Vec::new();
        if group.is_leader() {
            let leader = *self.leaders.entry(group.term()).or_insert(node.id);
            if leader != node.id {
                broken.push(format!("{leader} and {} lead in term {}", node.id, group.term()));
            }
        }
        let mut out = GroupOutput::default();
        group.output(&mut out);
        for entry in &out.committed {
            let index = entry.index;
            if index != node.delivered + 1 {
                broken.push(format!("{} applies {index} after {}", node.id, node.delivered));
                break;
            }
            node.delivered = index;
            if node.log.get(index as usize - 1) != Some(entry) {
                broken.push(format!("{} applies {index} before it is durable there", node.id));
            }
            match self.committed.get(index as usize - 1) {
                Some(before) if before == entry => {}
                Some(_) => {
                    broken.push(format!("{} has committed another entry {index} than others", node.id))
                }
                None => self.committed.push(entry.clone()),
            }
        }
        node.delivered_ever = node.delivered_ever.max(node.delivered);
        if out.persist.is_none() && !(out.entries.is_empty() && out.messages_after_sync.is_empty()) {
            broken.push(format!("{} has nothing to persist, but what waits for it", node.id));
        }
        if let Some(number) = out.persist {
            node.under_way.push_back(Write {
                number,
                entries: out.entries,
                hard_state: out.hard_state,
                messages: out.messages_after_sync,
            });
        }
        let id = node.id;
        self.send(id, out.messages, faults);
        broken.into_iter().for_each(|what| self.breaks(what));
    }

    /// Applies some, forgets some.
    fn tidy(&mut self, at: usize) {
        let (everywhere, some) = (self.everywhere(), self.random.below(4));
        let node = &mut self.nodes[at];
        if let Some(group) = &mut node.group {
            if some > 0 {
                group.applied(node.delivered);
            }
            if some > 2 {
                let replicated = if group.is_leader() { group.replicated() } else { everywhere };
                group.compact(everywhere.min(replicated));
            }
        }
    }

    /// Whether one node leads and reads, and every disk and state machine holds all of the committed log and no more.
    pub fn is_settled(&self) -> bool {
        let groups = self.nodes.iter().filter_map(|node| node.group.as_ref());
        groups.filter(|group| group.is_caught_up_as_leader()).count() == 1
            && self
                .nodes
                .iter()
                .all(|n| n.delivered == self.committed.len() as u64 && n.log == self.committed)
    }

    pub fn leader(&self) -> Option<NodeId> {
        self.nodes.iter().find(|node| node.group.as_ref().is_some_and(Group::is_leader)).map(|node| node.id)
    }

    pub fn is_leader(&self, id: NodeId) -> bool {
        self.nodes[id.0 as usize - 1].group.as_ref().is_some_and(Group::is_leader)
    }

    /// Cuts `id` off; `both` = false: it can be heard, and hears nothing.
    pub fn isolate(&mut self, id: NodeId, both: bool) {
        for other in self.nodes.iter().map(|node| node.id).filter(|other| *other != id) {
            self.blocked.insert((other, id));
            if both {
                self.blocked.insert((id, other));
            }
        }
    }

    pub fn terms(&self) -> u64 {
        self.nodes.iter().filter_map(|node| node.group.as_ref()).map(Group::term).max().unwrap_or(0)
    }
}

impl Node {
    fn write_next(&mut self) -> Option<(u64, Vec<(NodeId, Bytes)>)> {
        let write = self.under_way.pop_front()?;
        for entry in write.entries {
            self.log.truncate(entry.index as usize - 1);
            self.log.push(entry);
        }
        self.hard_state = write.hard_state.unwrap_or(self.hard_state);
        Some((write.number, write.messages))
    }
}

/// A mix of faults drawn from a seed: some worlds only lose messages, some only crash.
fn faults_of(seed: u64) -> Faults {
    let mut random = Random::new(seed, "world");
    let mut chance = |most_ppm: u64| {
        let drawn = random.below(most_ppm) as u32;
        if random.chance_ppm(400_000) { 0 } else { drawn }
    };
    Faults {
        loss: chance(300_000),
        duplication: chance(300_000),
        delay_rounds: 1 + u64::from(chance(6)),
        crash: chance(20_000),
        restart: 50_000 + chance(200_000),
        partition: chance(30_000),
        heal: 10_000 + chance(100_000),
        slow_disk: chance(800_000),
        slow_clock: chance(500_000),
    }
}

/// What came of a seed.
#[derive(Debug)]
pub struct GroupReport {
    pub trace: u64,
    pub violations: Vec<Violation>,
    pub counters: GroupCounters,
    pub elections: u64,
    pub committed: u64,
}

/// Rounds with faults.
const ROUNDS: u64 = 400;
/// Rounds without, in which the cluster must get well and do work.
const CALM_ROUNDS: u64 = 400;
/// Rounds in which the last followers get the last entries.
const QUIET_ROUNDS: u64 = 40;
/// Entries that are committed in the calm rounds at least.
const COMMITTED_MIN: usize = 100;

/// Runs a cluster of three replicas, or five, through a seed.
#[must_use]
pub fn run(seed: u64) -> GroupReport {
    let size = if seed.is_multiple_of(4) { 5 } else { 3 };
    let mut cluster = Cluster::new(size, seed);
    cluster.live(seed);
    GroupReport {
        trace: cluster.trace,
        violations: cluster.broken.iter().map(|what| Violation::new("groups", what.clone())).collect(),
        counters: cluster.counters,
        elections: cluster.elections(),
        committed: cluster.committed.len() as u64,
    }
}

impl Cluster {
    /// Faults for a while, then none.
    fn live(&mut self, seed: u64) {
        let faults = faults_of(seed);
        self.rounds(ROUNDS, faults);
        let before = self.committed.len();
        self.rounds(CALM_ROUNDS, CALM);
        if self.committed.len() <= before + COMMITTED_MIN {
            self.breaks("no progress after the faults stopped".into());
        }
        self.busy = false;
        self.rounds(QUIET_ROUNDS, CALM);
        if !self.is_settled() {
            self.breaks("the nodes do not agree in the end".into());
        }
    }

    /// Some rounds, or fewer where a promise is broken.
    pub fn rounds(&mut self, rounds: u64, faults: Faults) {
        for _ in 0..rounds {
            if self.broken.is_some() {
                return;
            }
            self.round(faults);
        }
    }
}
