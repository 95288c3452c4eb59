//! A cluster in one value: every node's group, disk and state machine, and the messages between them. It checks after
//! every output what must hold at all times: one leader a term, and one committed log.

use bytes::Bytes;
use overtake_base::hash::stable;
use overtake_base::random::Random;
use overtake_base::{NodeId, ShardId};
use overtake_replication::{
    Group, GroupConfig, GroupError, GroupOutput, HardState, LogEntry, RecoveredGroup,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const SHARD: ShardId = ShardId(9);

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
        }
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
            voters: vec![],
            entries: node.log[checkpoint as usize..].to_vec(),
        };
        let seed = self.seed ^ (node.lives << 8);
        let config = GroupConfig { shard: SHARD, node: node.id, voters, seed };
        node.group = Some(Group::new(config, recovered).unwrap());
    }

    fn disk(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let done = self.random.below(node.under_way.len() as u64 + 1);
        let mut newest = None;
        let mut messages = vec![];
        for _ in 0..done {
            let (number, promised) = node.write_next();
            newest = Some(number);
            messages.extend(promised);
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
                continue;
            }
            if let Some(group) = &mut self.nodes[to.0 as usize - 1].group {
                let stepped = group.step(from, &bytes);
                assert_eq!(stepped, Ok(()), "no peer of this cluster breaks a rule");
            }
        }
    }

    fn propose(&mut self, at: usize) {
        for _ in 0..self.random.below(if self.busy { 3 } else { 0 }) {
            let Some(group) = &mut self.nodes[at].group else { return };
            self.proposals += 1;
            match group.propose(Bytes::from(self.proposals.to_string())) {
                Ok((term, index)) => assert_eq!((term, index), (group.term(), group.last_index())),
                Err(error) => assert_eq!(error, GroupError::NotLeader),
            }
        }
    }

    fn output(&mut self, at: usize, faults: Faults) {
        let node = &mut self.nodes[at];
        let Some(group) = &mut node.group else { return };
        if group.is_leader() {
            let leader = *self.leaders.entry(group.term()).or_insert(node.id);
            assert_eq!(leader, node.id, "two leaders in term {}", group.term());
        }
        let mut out = GroupOutput::default();
        group.output(&mut out);
        for entry in &out.committed {
            assert_eq!(entry.index, node.delivered + 1, "in order, each once");
            node.delivered = entry.index;
            assert_eq!(
                node.log.get(entry.index as usize - 1),
                Some(entry),
                "durable here before it is applied"
            );
            match self.committed.get(entry.index as usize - 1) {
                Some(before) => assert_eq!(before, entry, "one committed log"),
                None => self.committed.push(entry.clone()),
            }
        }
        node.delivered_ever = node.delivered_ever.max(node.delivered);
        assert!(out.persist.is_some() || (out.entries.is_empty() && out.messages_after_sync.is_empty()));
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
    fn write_next(&mut self) -> (u64, Vec<(NodeId, Bytes)>) {
        let write = self.under_way.pop_front().unwrap();
        for entry in write.entries {
            self.log.truncate(entry.index as usize - 1);
            assert_eq!(self.log.len() as u64 + 1, entry.index, "no gap on disk");
            self.log.push(entry);
        }
        self.hard_state = write.hard_state.unwrap_or(self.hard_state);
        (write.number, write.messages)
    }
}
