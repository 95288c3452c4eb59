//! Who is where: the nodes of the cluster, and which of them hold a replica of which shard. Computed from the nodes alone,
//! so that nodes that are configured alike agree without a word.

use crate::config::CoreConfig;
use core::fmt;
use overtake_base::{CoreId, NodeId, ShardId};
use std::collections::BTreeMap;

/// Replicas of a shard, where there are as many nodes.
const REPLICAS: usize = 3;

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

/// One node of the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapNode {
    /// Its failure domain.
    pub zone: String,
    /// Where its HTTP front end listens.
    pub http: String,
    /// Its cores.
    pub cores: u16,
}

/// See the module's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterMap {
    nodes: BTreeMap<NodeId, MapNode>,
    /// By shard, in order of preference: the first one prefers to lead.
    replicas: Vec<Vec<NodeId>>,
    directory: Vec<NodeId>,
}

impl ClusterMap {
    /// The map of `shards` shards on these nodes, of which there is at least one, each with a core at least.
    #[must_use]
    pub fn new(nodes: BTreeMap<NodeId, MapNode>, shards: u16) -> Self {
        let mut placement = Placement { nodes: &nodes, held: BTreeMap::new(), led: BTreeMap::new() };
        let replicas = (0..shards).map(|shard| placement.place(ShardId(shard))).collect();
        let directory = placement.place(ShardId::DIRECTORY);
        Self { nodes, replicas, directory }
    }

    /// The map that a core's configuration describes.
    #[must_use]
    pub fn of(config: &CoreConfig) -> Self {
        let own = MapNode { zone: config.zone.clone(), http: config.http.clone(), cores: config.cores };
        let others = config.peers.iter().map(|peer| {
            let node = MapNode { zone: peer.zone.clone(), http: peer.http.clone(), cores: peer.cores.max(1) };
            (peer.node, node)
        });
        Self::new(others.chain([(config.node, own)]).collect(), config.shards)
    }

    /// True for a node by itself.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.nodes.len() == 1
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &MapNode)> + '_ {
        self.nodes.iter().map(|(node, entry)| (*node, entry))
    }

    /// Every core of every node.
    pub fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        self.nodes()
            .flat_map(|(node, entry)| (0..entry.cores).map(move |core| Address { node, core: CoreId(core) }))
    }

    /// The nodes with a replica, in order of preference.
    #[must_use]
    pub fn replicas(&self, shard: ShardId) -> &[NodeId] {
        if shard == ShardId::DIRECTORY {
            return &self.directory;
        }
        self.replicas.get(usize::from(shard.0)).map_or(&[], Vec::as_slice)
    }

    /// The core of a node that hosts its replica of a shard; none where the node is not of the cluster.
    #[must_use]
    pub fn host(&self, node: NodeId, shard: ShardId) -> Option<Address> {
        let cores = self.nodes.get(&node)?.cores;
        Some(Address { node, core: core_of(shard, cores) })
    }

    /// True where the address is a core of the cluster.
    #[must_use]
    pub fn contains(&self, address: Address) -> bool {
        self.nodes.get(&address.node).is_some_and(|node| address.core.0 < node.cores)
    }
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
        let node = |zone: &str, cores| MapNode { zone: zone.into(), http: String::new(), cores };
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
    fn fewer_zones_than_replicas_are_used_as_far_as_they_go() {
        let map = map(&[(1, "a", 1), (2, "a", 1), (3, "a", 1), (4, "b", 1)], 12);
        assert!((0..12).all(|shard| map.replicas(ShardId(shard)).contains(&NodeId(4))));
    }
}
