//! Nodes and shards of a cluster.

use super::table::{Cell, Table};
use super::{View, text};
use overtake_wire::message::{NodeState, NodeStatus, ShardStatus};

/// All nodes, then all shards.
pub fn cluster(nodes: &[NodeStatus], shards: &[ShardStatus], view: View) -> String {
    let mut table = Table::new([">NODE", "ZONE", "HTTP", "STATE", ">LEADS", ">REPLICAS"]);
    for node in nodes {
        let leads = shards.iter().filter(|shard| shard.leader == Some(node.id)).count();
        table.row([
            node.id.to_string().into(),
            text::one_line(&node.zone).into(),
            text::one_line(&node.http).into(),
            state(node),
            leads.to_string().into(),
            node.replicas.to_string().into(),
        ]);
    }
    let mut out = table.render(view);
    let mut table = Table::new([">SHARD", "LEADER", "REPLICAS"]);
    for shard in shards {
        let replicas: Vec<String> = shard.replicas.iter().map(u64::to_string).collect();
        let replicas = format!("{}{}", replicas.join(", "), moves(shard));
        table.row([
            shard.shard.to_string().into(),
            shard.leader.map_or_else(|| Cell::bad("none"), |leader| leader.to_string().into()),
            replicas.into(),
        ]);
    }
    out.push('\n');
    out.push_str(&table.render(view));
    out
}

/// How it is, and what is to become of it.
fn state(node: &NodeStatus) -> Cell {
    match (node.alive, node.state) {
        (true, NodeState::Active) => Cell::good("alive"),
        (true, NodeState::Joining) => Cell::good("alive, joining"),
        (true, NodeState::Draining) => Cell::good("alive, draining"),
        (true, NodeState::Lost) => Cell::bad("alive, given up"),
        (false, NodeState::Active) => Cell::bad("away"),
        (false, NodeState::Joining) => Cell::bad("away, joining"),
        (false, NodeState::Draining) => Cell::bad("away, draining"),
        (false, NodeState::Lost) => Cell::bad("away, given up"),
    }
}

/// What is to change about a shard's replicas.
fn moves(shard: &ShardStatus) -> String {
    match (shard.adding, shard.removing) {
        (Some(adding), Some(removing)) => format!("  ({removing} moves to {adding})"),
        (Some(adding), None) => format!("  ({adding} is coming)"),
        (None, Some(removing)) => format!("  ({removing} is going)"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;

    #[test]
    fn nodes_then_shards() {
        let node = NodeStatus {
            id: 1,
            zone: "a".into(),
            http: "127.0.0.1:7401".into(),
            alive: true,
            state: NodeState::Draining,
            replicas: 3,
        };
        let shard = |shard, leader: Option<u64>| ShardStatus {
            shard,
            leader,
            replicas: vec![1, 2],
            adding: leader.map(|_| 3),
            removing: leader,
        };
        assert_eq!(
            cluster(&[node], &[shard(0, Some(1)), shard(1, None)], plain()),
            "\
NODE  ZONE  HTTP            STATE            LEADS  REPLICAS
   1  a     127.0.0.1:7401  alive, draining      1         3

SHARD  LEADER  REPLICAS
    0  1       1, 2  (1 moves to 3)
    1  none    1, 2
"
        );
    }
}
