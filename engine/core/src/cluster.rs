//! Who is where: the nodes of the cluster, and which of them hold a replica of which shard. It begins with what the nodes
//! were configured with, computed so that those that are configured alike agree without a word; then the directory says so
//! (`overtake_queue::members`), and each core keeps what it was told last.

use crate::config::CoreConfig;
use core::fmt;
use overtake_base::{CoreId, NodeId, ShardId, Writer, hash};
use overtake_queue::members::{Holders, Member, MemberState, Members, REPLICAS};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One core of one node: where a message of the mesh goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// The node.
    pub node: NodeId,
    /// Its core.
    pub core: CoreId,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} core {}", self.node, self.core)
    }
}

/// One node of those that a cluster begins with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapNode {
    /// Its failure domain.
    pub zone: String,
    /// Where its HTTP front end listens.
    pub http: String,
    /// Where its core 0 listens for other nodes; empty where that is not known.
    pub address: String,
    /// Its cores.
    pub cores: u16,
}

/// See the module's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterMap {
    members: Arc<Members>,
    single: bool,
}

impl ClusterMap {
    /// The map of `shards` shards on these nodes, of which there is at least one, each with a core at least.
    #[must_use]
    pub fn new(nodes: BTreeMap<NodeId, MapNode>, shards: u16) -> Self {
        let mut placement = Placement { nodes: &nodes, held: BTreeMap::new(), led: BTreeMap::new() };
        let replicas = (0..shards).map(|shard| Holders::of(placement.place(ShardId(shard)))).collect();
        let directory = Holders::of(placement.place(ShardId::DIRECTORY));
        let founded = founded(&nodes, shards);
        let single = nodes.len() == 1;
        let member = |node: MapNode| Member {
            zone: node.zone.into(),
            address: node.address.into(),
            http: node.http.into(),
            cores: node.cores,
            state: MemberState::Active,
        };
        let members = Members {
            version: 0,
            founded,
            rebalancing: false,
            nodes: nodes.into_iter().map(|(node, entry)| (node, member(entry))).collect(),
            gone: BTreeSet::new(),
            shards: replicas,
            directory,
        };
        Self { members: Arc::new(members), single }
    }

    /// The map that a core's configuration describes: as its data folder has it, else of the nodes that it names.
    #[must_use]
    pub fn of(config: &CoreConfig) -> Self {
        if let Some(members) = &config.members {
            return Self { members: members.clone(), single: false };
        }
        let own = MapNode {
            zone: config.zone.clone(),
            http: config.http.clone(),
            address: config.address.clone(),
            cores: config.cores,
        };
        let others = config.peers.iter().map(|peer| {
            let node = MapNode {
                zone: peer.zone.clone(),
                http: peer.http.clone(),
                address: peer.address.clone(),
                cores: peer.cores.max(1),
            };
            (peer.node, node)
        });
        Self::new(others.chain([(config.node, own)]).collect(), config.shards)
    }

    /// The same nodes and shards as the directory has them.
    #[must_use]
    pub fn told(members: Arc<Members>) -> Self {
        Self { members, single: false }
    }

    /// All that is known.
    #[must_use]
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// True for a node by itself, which is none of a cluster.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.single
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Member)> + '_ {
        self.members.nodes.iter().map(|(node, entry)| (*node, entry))
    }

    /// Every core of every node.
    pub fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.nodes()
            .flat_map(|(node, entry)| (0..entry.cores).map(move |core| Address { node, core: CoreId(core) }))
    }

    /// The nodes with a voting replica, in order of preference.
    #[must_use]
    pub fn replicas(&self, shard: ShardId) -> &[NodeId] {
        self.members.holders(shard).map_or(&[], |holders| &holders.replicas)
    }

    /// The voters that a shard's log began with.
    #[must_use]
    pub fn founders(&self, shard: ShardId) -> &[NodeId] {
        self.members.holders(shard).map_or(&[], |holders| &holders.founders)
    }

    /// Whether a node keeps a replica of a shard, or is to get one.
    #[must_use]
    pub fn is_on(&self, node: NodeId, shard: ShardId) -> bool {
        self.members.holders(shard).is_some_and(|holders| holders.is_on(node))
    }

    /// Whether a node is to lead and to hold nothing.
    #[must_use]
    pub fn is_leaving(&self, node: NodeId) -> bool {
        let state = self.members.nodes.get(&node).map(|member| member.state);
        matches!(state, None | Some(MemberState::Draining | MemberState::Lost))
    }

    /// The core of a node that hosts its replica of a shard; none where the node is not of the cluster.
    #[must_use]
    pub fn host(&self, node: NodeId, shard: ShardId) -> Option<Address> {
        let cores = self.members.nodes.get(&node)?.cores;
        Some(Address { node, core: core_of(shard, cores) })
    }

    /// True where the address is a core of the cluster.
    #[must_use]
    pub fn contains(&self, address: Address) -> bool {
        self.members.nodes.get(&address.node).is_some_and(|node| address.core.0 < node.cores)
    }
}

/// What a cluster began with, as a hash: replicas were placed by it, so all nodes must have been told the same.
fn founded(nodes: &BTreeMap<NodeId, MapNode>, shards: u16) -> u64 {
    let mut bytes = Vec::new();
    let mut out = Writer(&mut bytes);
    out.u16(shards);
    for (node, entry) in nodes {
        out.u64(node.0);
        out.u16(entry.cores);
        out.str(&entry.zone);
    }
    hash::stable(&bytes)
}

/// The core of a node with `cores` cores that hosts a shard.
#[must_use]
pub fn core_of(shard: ShardId, cores: u16) -> CoreId {
    if shard == ShardId::DIRECTORY { CoreId(0) } else { CoreId(shard.0 % cores.max(1)) }
}

/// Spreads replicas and leaders evenly, shard by shard.
struct Placement<'a> {
    nodes: &'a BTreeMap<NodeId, MapNode>,
    /// Replicas that a node has got so far.
    held: BTreeMap<NodeId, usize>,
    /// Shards that a core is to lead, and that its node is to lead.
    led: BTreeMap<(NodeId, Option<CoreId>), usize>,
}

impl Placement<'_> {
    fn place(&mut self, shard: ShardId) -> Vec<NodeId> {
        let count = REPLICAS.min(self.nodes.len());
        let mut chosen: Vec<NodeId> = Vec::with_capacity(count);
        while chosen.len() < count {
            let candidates = self.nodes.keys().filter(|node| !chosen.contains(node));
            let leads = chosen.is_empty();
            let Some(next) = candidates.copied().min_by_key(|node| self.cost(*node, shard, leads, &chosen))
            else {
                break;
            };
            chosen.push(next);
            *self.held.entry(next).or_default() += 1;
        }
        if let Some(leader) = chosen.first() {
            let core = self.nodes.get(leader).map(|node| core_of(shard, node.cores));
            *self.led.entry((*leader, None)).or_default() += 1;
            *self.led.entry((*leader, core)).or_default() += 1;
        }
        chosen
    }

    /// What speaks against a node, the gravest first.
    fn cost(
        &self,
        node: NodeId,
        shard: ShardId,
        leads: bool,
        chosen: &[NodeId],
    ) -> (usize, usize, usize, NodeId) {
        let zone = |node: &NodeId| self.nodes.get(node).map(|node| node.zone.as_str());
        let held = self.held.get(&node).copied().unwrap_or(0);
        let led = |core| self.led.get(&(node, core)).copied().unwrap_or(0);
        if leads {
            let core = self.nodes.get(&node).map(|node| core_of(shard, node.cores));
            return (led(None), led(core), held, node);
        }
        let zone_taken = chosen.iter().filter(|other| zone(other) == zone(&node)).count();
        (zone_taken, held, led(None), node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(nodes: &[(u64, &str, u16)], shards: u16) -> ClusterMap {
        let node = |zone: &str, cores| MapNode { zone: zone.into(), cores, ..MapNode::default() };
        ClusterMap::new(
            nodes.iter().map(|(id, zone, cores)| (NodeId(*id), node(zone, *cores))).collect(),
            shards,
        )
    }

    fn leaders_of(map: &ClusterMap, shards: u16) -> BTreeMap<Address, usize> {
        let mut leaders = BTreeMap::new();
        for shard in (0..shards).map(ShardId) {
            let leader = map.replicas(shard)[0];
            *leaders.entry(map.host(leader, shard).unwrap()).or_default() += 1;
        }
        leaders
    }

    #[test]
    fn a_node_by_itself_holds_everything() {
        let map = map(&[(7, "a", 2)], 8);
        assert!(map.is_single());
        assert!((0..8).all(|shard| map.replicas(ShardId(shard)) == [NodeId(7)]));
        assert_eq!(map.replicas(ShardId::DIRECTORY), [NodeId(7)]);
        assert_eq!(map.host(NodeId(7), ShardId(3)).unwrap().core, CoreId(1));
        assert_eq!(map.host(NodeId(8), ShardId(3)), None);
        assert_eq!(map.replicas(ShardId(8)), []);
    }

    #[test]
    fn leaders_are_spread_over_nodes_and_cores() {
        for (nodes, cores, shards) in [(3, 2, 12), (2, 2, 8), (4, 2, 32), (5, 3, 30), (3, 1, 9)] {
            let nodes: Vec<_> = (1..=nodes).map(|id| (id, "z", cores)).collect();
            let leaders = leaders_of(&map(&nodes, shards), shards);
            let each = usize::from(shards) / (nodes.len() * usize::from(cores));
            let (least, most) = (leaders.values().min().unwrap(), leaders.values().max().unwrap());
            assert!(*least + 1 >= each.max(1) && *most <= each + 1, "{nodes:?}: {leaders:?}");
        }
    }

    #[test]
    fn replicas_are_in_different_zones_and_spread() {
        let nodes = [(1, "a", 1), (2, "a", 1), (3, "b", 1), (4, "b", 1), (5, "c", 1), (6, "c", 1)];
        let map = map(&nodes, 24);
        let zone = |node: &NodeId| nodes.iter().find(|(id, ..)| *id == node.0).unwrap().1;
        let mut held = BTreeMap::new();
        for shard in (0..24).map(ShardId) {
            let mut zones: Vec<&str> = map.replicas(shard).iter().map(zone).collect();
            zones.sort_unstable();
            assert_eq!(zones, ["a", "b", "c"]);
            map.replicas(shard).iter().for_each(|node| *held.entry(*node).or_insert(0) += 1);
        }
        assert!(held.values().all(|count| (11..=13).contains(count)), "{held:?}");
    }

    #[test]
    fn what_a_cluster_began_with_is_what_placed_its_replicas() {
        let node = |zone: &str, cores, http: &str| MapNode {
            zone: zone.into(),
            http: http.into(),
            cores,
            address: String::new(),
        };
        let of = |second, shards| {
            let nodes = BTreeMap::from([(NodeId(1), node("a", 2, "x")), (NodeId(2), second)]);
            ClusterMap::new(nodes, shards).members().founded
        };
        let same = of(node("b", 2, "y"), 8);
        assert_eq!(of(node("b", 2, "elsewhere"), 8), same, "an address places nothing");
        for other in [of(node("a", 2, "y"), 8), of(node("b", 1, "y"), 8), of(node("b", 2, "y"), 9)] {
            assert_ne!(other, same);
        }
    }

    #[test]
    fn fewer_zones_than_replicas_are_used_as_far_as_they_go() {
        let map = map(&[(1, "a", 1), (2, "a", 1), (3, "a", 1), (4, "b", 1)], 12);
        assert!((0..12).all(|shard| map.replicas(ShardId(shard)).contains(&NodeId(4))));
    }
}
