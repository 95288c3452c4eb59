//! What a load takes: how many nodes each resource asks for, and what of a node is used with the most of them. A resource
//! that no number of nodes can give, or not those that were asked for, makes the design impossible, and is named.

mod cpu;
mod latency;
mod storage;

use super::node::Sizes;
use super::{
    Derived, Exact, Hardware, Load, Node, Plan, bits_about, bytes, bytes_about, count, line, plain, rate,
};
use cpu::Cpu;
use overtake_base::limits::{NODES_MAX, SHARDS_MAX};

/// Part of its network that a node uses at peak, at most, in percent: a burst and a node that catches up need the rest.
const NETWORK_PERCENT_MAX: u128 = 50;

/// Of all numbers of nodes that are counted with, the largest: far above what a cluster may have.
const COUNTED_MAX: u128 = 1_000_000;

/// Nodes that one resource asks for.
struct Need {
    resource: &'static str,
    working: String,
    /// None where no number of nodes gives it.
    nodes: Option<u128>,
    /// Fewer are too few; whether so many do was not measured.
    at_least: bool,
}

impl Need {
    /// As many nodes as give `total`, `each` being what one of them gives; none where that is nothing.
    fn of(resource: &'static str, working: String, total: Exact, each: Option<Exact>) -> Self {
        let each = each.filter(|each| each.float() > 0.0);
        let nodes = each.map(|each| total.over(each).up().clamp(1, COUNTED_MAX));
        Self { resource, working, nodes, at_least: false }
    }
}

/// Everything that sizes are worked out from.
struct Sizing<'a> {
    load: &'a Load,
    derived: &'a Derived,
    node: &'a Node,
    sizes: Sizes,
    hardware: &'a Hardware,
    cpu: Cpu,
}

/// Adds what the load takes to a plan.
pub(super) fn add(load: &Load, derived: &Derived, node: &Node, hardware: &Hardware, plan: &mut Plan) {
    let sizes = node.sizes();
    let cpu = cpu::add(load, derived, hardware, plan);
    let all = Sizing { load, derived, node, sizes, hardware, cpu };
    plan.sizing.push(line(
        "a node",
        format!(
            "{} cores, {} of memory, {} of disk, {} of network",
            sizes.cores,
            sizes.memory(),
            sizes.disk(),
            sizes.network()
        ),
        "",
    ));
    let nodes = all.nodes(plan);
    let shards = all.shards(nodes);
    let all_cores = nodes * sizes.cores;
    plan.sizing.push(line(
        "shards",
        format!("{} of the load, and one at least for each of {all_cores} cores", derived.shards),
        shards.to_string(),
    ));
    if all_cores > u128::from(SHARDS_MAX) {
        plan.impossible.push(format!(
            "shards: {all_cores} cores need one each, and there are {SHARDS_MAX} at most: take several clusters"
        ));
    }
    cpu::use_of_node(&all, nodes, plan);
    storage::disk_of_node(&all, nodes, shards, plan);
    all.network_of_node(nodes, plan);
    storage::memory_of_node(&all, nodes, plan);
    latency::head_room(&all, nodes, plan);
    plan.assumptions.extend(node.assumed());
}

impl Sizing<'_> {
    /// Shards with so many nodes.
    fn shards(&self, nodes: u128) -> u128 {
        let cores = (nodes * self.sizes.cores).next_power_of_two();
        self.derived.shards.max(cores).min(SHARDS_MAX.into())
    }

    /// What each resource asks for, with so many nodes.
    fn needs(&self, nodes: u128) -> Vec<Need> {
        let mut needs = cpu::needs(self);
        needs.extend(latency::need(self));
        needs.extend(storage::needs(self, self.shards(nodes)));
        needs.push(self.network_need(nodes));
        needs
    }

    /// The number of nodes, with the lines that lead to it.
    fn nodes(&self, plan: &mut Plan) -> u128 {
        let zones = self.load.zones.max(1);
        // With more of them there are more shards, and messages go from node to node: never less is needed then.
        let mut nodes = self.load.replicas.max(1).div_ceil(zones) * zones;
        let needs = loop {
            let needs = self.needs(nodes);
            let most = needs.iter().filter_map(|need| need.nodes).max().unwrap_or(1);
            let whole = most.max(self.load.replicas).div_ceil(zones) * zones;
            if whole <= nodes {
                break needs;
            }
            nodes = whole;
        };
        for need in &needs {
            let told = match (need.nodes, need.at_least) {
                (None, _) => "impossible".into(),
                (Some(nodes), false) => plain(nodes),
                (Some(nodes), true) => format!("{} or more, not known", plain(nodes)),
            };
            plan.sizing.push(line(&format!("nodes for {}", need.resource), need.working.clone(), told));
        }
        let copies = super::replicas(self.load.replicas);
        let (given, most) = (self.node.count, nodes);
        let (nodes, working) = match given {
            Some(given) => (given.max(1), format!("as --nodes says; {} are needed", plain(most))),
            None if zones == 1 => (nodes, format!("the most of these, {copies}")),
            None => (nodes, format!("the most of these, {copies}, whole {zones} zones")),
        };
        plan.sizing.push(line("nodes", working, format!("{} × {} cores", plain(nodes), self.sizes.cores)));
        for Need { resource, nodes: needed, .. } in &needs {
            match (needed, given) {
                (None, _) => plan.impossible.push(format!("{resource}: no number of such nodes gives it, see its line")),
                (Some(needed), Some(given)) if *needed > given => plan
                    .impossible
                    .push(format!("{resource}: takes {} nodes, and --nodes says {given}", plain(*needed))),
                (Some(needed), None) if *needed > NODES_MAX as u128 => plan.impossible.push(format!(
                    "{resource}: takes {} nodes, and a cluster has {NODES_MAX} at most: larger nodes, or several clusters",
                    plain(*needed)
                )),
                _ => {}
            }
        }
        if given.is_none()
            && nodes > NODES_MAX as u128
            && needs.iter().all(|need| need.nodes <= Some(NODES_MAX as u128))
        {
            plan.impossible.push(format!(
                "zones: whole {zones} zones make it {} nodes, and a cluster has {NODES_MAX} at most",
                plain(nodes)
            ));
        }
        self.copies(nodes, plan);
        nodes
    }

    /// Whether the copies of a message can be where they must be.
    fn copies(&self, nodes: u128, plan: &mut Plan) {
        let (replicas, zones) = (self.load.replicas.max(1), self.load.zones.max(1));
        if nodes < replicas {
            plan.impossible.push(format!("replicas: {replicas} of them need as many nodes, not {nodes}"));
        }
        let in_one_zone = replicas.div_ceil(zones);
        let majority = replicas / 2 + 1;
        if zones > 1 && replicas - in_one_zone < majority {
            plan.impossible.push(format!(
                "zones: with {} in {zones} zones the loss of one leaves {} of the {majority} that answers need; \
                 three replicas in three zones survive it, and --zones 1 asks for nothing of the kind",
                super::replicas(replicas),
                replicas - in_one_zone
            ));
        }
    }

    /// How often the bytes of a message go into a node and out of one, all nodes together, and how that comes about.
    fn transfers(&self, nodes: u128) -> [(Exact, String); 2] {
        let one = Exact::whole(1);
        let deliveries = one.plus(self.load.retries);
        if nodes == 1 {
            return [(one, "producers 1".into()), (deliveries, format!("consumers {deliveries}"))];
        }
        let followers = Exact::whole(self.load.replicas.saturating_sub(1));
        // Clients may ask any node, which passes on what another one leads, both ways.
        let between = one.plus(followers).plus(deliveries);
        let told = format!("to the leader 1 + replication {followers} + from the leader {deliveries}");
        [
            (one.plus(between), format!("producers 1 + {told}")),
            (deliveries.plus(between), format!("consumers {deliveries} + {told}")),
        ]
    }

    fn network_need(&self, nodes: u128) -> Need {
        let [_, (out, how)] = self.transfers(nodes);
        let total = self.derived.ingest_bytes.times(out).times(Exact::whole(8));
        let each = Exact::whole(self.sizes.network_bits).times(Exact::ratio(NETWORK_PERCENT_MAX, 100));
        let working = format!(
            "{}/s × ({how}) × 8 bits / {NETWORK_PERCENT_MAX} % of {}",
            bytes_about(self.derived.ingest_bytes, 2),
            self.sizes.network()
        );
        Need::of("the network", working, total, Some(each))
    }

    fn network_of_node(&self, nodes: u128, plan: &mut Plan) {
        let ingest = format!("{}/s", bytes_about(self.derived.ingest_bytes, 2));
        let [into, out] = self.transfers(nodes);
        for (name, (times, how)) in [("network into a node", into), ("network out of a node", out)] {
            let bits = self.derived.ingest_bytes.times(times).times(Exact::ratio(8, nodes));
            plan.sizing.push(line(
                name,
                format!("({how}) × {ingest} × 8 bits / {nodes} nodes"),
                format!(
                    "{}, {} % used",
                    bits_about(bits, 2),
                    percent_of(bits, Exact::whole(self.sizes.network_bits))
                ),
            ));
        }
    }
}

/// How much of a whole that is, in percent, rounded up so that nothing looks like less than it is.
fn percent_of(part: Exact, whole: Exact) -> String {
    let percent = part.times(Exact::whole(100)).over(whole).up();
    plain(percent)
}
