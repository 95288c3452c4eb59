//! What changes of the cluster do to the world: nodes come, and end for good; and what is to be true of all when nothing
//! changes any more.

use super::net::Pair;
use super::world::ClusterWorld;
use crate::node::SimNode;
use overtake_base::{CoreId, NodeId, ShardId};
use overtake_core::{Address, Core, Event, SessionId};
use overtake_queue::members::{MemberState, Members, REPLICAS};
use std::sync::Arc;

impl ClusterWorld {
    /// A node that was added to the cluster is started, with what it was told of it.
    pub fn add_node(&mut self, id: u64, members: Arc<Members>) {
        let place = self.nodes.len();
        if id != place as u64 + 1 {
            self.fatal = Some((0, format!("node {id} comes out of order")));
            return;
        }
        let seed = self.seed ^ (id << 40);
        let mut node = SimNode::of_cluster(seed, self.shape.clone(), NodeId(id), Vec::new());
        node.members = Some(members);
        self.nodes.push(node);
        self.gone.push(false);
        let cores = self.shape.cores;
        let address =
            |place: usize, core: u16| Address { node: NodeId(place as u64 + 1), core: CoreId(core) };
        let others = (0..place).filter(|other| !self.gone[*other]).collect::<Vec<_>>();
        self.net.add(others.into_iter().flat_map(|other| {
            (0..cores).flat_map(move |i| (0..cores).map(move |j| (address(other, i), address(place, j))))
        }));
        self.start(place);
    }

    /// A node and its disks are lost for ever.
    pub fn destroy(&mut self, node: usize) {
        self.tale.tell(self.time_ns, || format!("node {} is lost for ever", node + 1));
        let sessions = self.end(node, false);
        self.ended.extend(sessions);
        self.forget_node(node);
    }

    pub(super) fn forget_node(&mut self, node: usize) {
        self.gone[node] = true;
        self.net.remove(NodeId(node as u64 + 1));
        self.nodes[node].members = None;
    }

    /// Nodes that were removed end. The sessions that are gone, of these and of those that were destroyed.
    pub fn end_removed(&mut self) -> Vec<SessionId> {
        // Who was away when it was removed is not told: its operator ends it.
        let removed = self.newest_members().map(|members| members.gone).unwrap_or_default();
        self.leaving.extend(removed.iter().map(|node| node.0 as usize - 1));
        for node in core::mem::take(&mut self.leaving) {
            if !self.gone[node] {
                let gone = self.end(node, true);
                self.ended.extend(gone);
                self.forget_node(node);
            }
        }
        core::mem::take(&mut self.ended)
    }

    /// What the best informed node that runs knows of the cluster.
    #[must_use]
    pub fn newest_members(&self) -> Option<Members> {
        newest_of(&self.nodes).cloned()
    }

    pub(super) fn note_known(&mut self, node: usize) {
        if let Some(members) = newest_of(&self.nodes[node..=node]) {
            self.knew.insert(node, members.nodes.keys().copied().collect());
        }
    }

    /// True where a node that is down knows nobody of the cluster but itself and `leaver`: the others are all newer. Without
    /// `leaver` it would find nobody when it starts.
    #[must_use]
    pub fn strands(&self, leaver: NodeId, members: &Members) -> bool {
        let place = |node: NodeId| node.0 as usize - 1;
        let stays = |node: &NodeId| *node != leaver && !self.gone[place(*node)];
        let stay: Vec<NodeId> = members.nodes.keys().copied().filter(stays).collect();
        stay.iter().filter(|node| !self.nodes[place(**node)].is_running()).any(|node| {
            let known = self.knew.get(&place(*node));
            known.is_some_and(|known| !stay.iter().any(|other| other != node && known.contains(other)))
        })
    }

    /// What an operator has begun and is not at its end; or what the nodes do not agree about.
    #[must_use]
    pub fn unsettled(&self) -> Option<String> {
        let members = self.newest_members()?;
        if let Some((shard, holders)) = members.all().find(|(_, holders)| holders.is_moving()) {
            return Some(format!("shard {shard} is moving: {holders:?}{}", self.words_of(shard)));
        }
        let ends = |node: &&NodeId| !self.gone[node.0 as usize - 1];
        if let Some(node) = members.gone.iter().find(ends) {
            return Some(format!("node {node} was removed and has not ended"));
        }
        if members.rebalancing {
            return Some("replicas are being spread".into());
        }
        let usable = members.usable().count();
        for (node, member) in &members.nodes {
            let drains = member.state == MemberState::Draining && members.held_by(*node) == 0;
            if member.state != MemberState::Active && !drains {
                return Some(format!("node {node} is {:?} yet", member.state));
            }
            if self.gone[node.0 as usize - 1] {
                return Some(format!("node {node} is gone and not given up"));
            }
        }
        if let Some((shard, holders)) =
            members.all().find(|(_, holders)| holders.replicas.len() < REPLICAS.min(usable))
        {
            return Some(format!("shard {shard} has too few replicas: {holders:?}"));
        }
        for (place, node) in self.nodes.iter().enumerate().filter(|(place, _)| !self.gone[*place]) {
            for core in node.cores.iter().filter_map(|slot| slot.core.as_ref()) {
                if core.members().version != members.version {
                    return Some(format!("node {} does not know the newest members", place + 1));
                }
                for (shard, membership, leads) in core.memberships() {
                    let mut replicas =
                        members.holders(shard).map_or(Vec::new(), |holders| holders.replicas.clone());
                    replicas.sort_unstable();
                    if !replicas.contains(&NodeId(place as u64 + 1)) {
                        return Some(format!("node {} holds shard {shard} yet", place + 1));
                    }
                    if leads
                        && (membership.voters != replicas
                            || membership.is_joint()
                            || !membership.learners.is_empty())
                    {
                        return Some(format!(
                            "shard {shard} is of {membership:?}, and said to be of {replicas:?}"
                        ));
                    }
                }
            }
        }
        None
    }

    /// How the replicas of a shard are.
    pub(super) fn words_of(&self, shard: ShardId) -> String {
        let cores = self.nodes.iter().enumerate();
        let cores = cores.flat_map(|(place, node)| node.cores.iter().map(move |slot| (place, slot)));
        let all = cores.filter_map(|(place, slot)| Some((place, slot.core.as_ref()?)));
        let words =
            all.flat_map(|(place, core)| core.groups_in_words().into_iter().map(move |words| (place, words)));
        let of_it = words.filter(|(_, (of, _))| *of == shard);
        of_it.map(|(place, (_, words))| format!("\n    on node {}: {words}", place + 1)).collect()
    }

    /// An end is gone for good.
    pub(super) fn is_gone(&self, pair: Pair) -> bool {
        [pair.0, pair.1].iter().any(|end| self.gone[end.node.0 as usize - 1])
    }

    /// The other end is gone for good: it is noticed, once.
    pub(super) fn told_of_gone(&mut self, own: Address, peer: Address, life: u64) {
        let node = own.node.0 as usize - 1;
        if !self.gone[node] && self.nodes[node].life == life {
            self.deliver((node, usize::from(own.core.0)), Event::PeerDown { peer });
        }
    }

    /// Whether a core was told of another node: before that it takes no link with it.
    pub(super) fn knows(&self, own: Address, other: NodeId) -> bool {
        let slot = &self.nodes[own.node.0 as usize - 1].cores[usize::from(own.core.0)];
        slot.core.as_ref().is_none_or(|core| core.members().nodes.contains_key(&other))
    }
}

/// What those of these nodes that run know of the cluster.
fn newest_of(nodes: &[SimNode]) -> Option<&Members> {
    let cores = nodes.iter().flat_map(|node| &node.cores).filter_map(|slot| slot.core.as_ref());
    cores.map(Core::members).max_by_key(|members| members.version)
}
