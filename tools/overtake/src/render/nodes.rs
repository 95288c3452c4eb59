//! Nodes and shards of a cluster.

use super::table::{Cell, Table};
use super::{View, text};
use overtake_wire::message::{NodeStatus, ShardStatus};

/// All nodes, then all shards.
pub fn cluster(nodes: &[NodeStatus], shards: &[ShardStatus], view: View) -> String {
    let mut table = Table::new([">NODE", "ZONE", "HTTP", "STATE", ">LEADS"]);
    for node in nodes {
        let leads = shards.iter().filter(|shard| shard.leader == Some(node.id)).count();
        table.row([
            node.id.to_string().into(),
            text::one_line(&node.zone).into(),
            text::one_line(&node.http).into(),
            if node.alive { Cell::good("alive") } else { Cell::bad("away") },
            leads.to_string().into(),
        ]);
    }
    let mut out = table.render(view);
    let mut table = Table::new([">SHARD", "LEADER", "REPLICAS"]);
    for shard in shards {
        let replicas: Vec<String> = shard.replicas.iter().map(u64::to_string).collect();
        table.row([
            shard.shard.to_string().into(),
            shard.leader.map_or_else(|| Cell::bad("none"), |leader| leader.to_string().into()),
            replicas.join(", ").into(),
        ]);
    }
    out.push('\n');
    out.push_str(&table.render(view));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;

    #[test]
    fn nodes_then_shards() {
        let node = NodeStatus { id: 1, zone: "a".into(), http: "127.0.0.1:7401".into(), alive: true };
        let shard = |shard, leader| ShardStatus { shard, leader, replicas: vec![1, 2] };
        assert_eq!(
            cluster(&[node], &[shard(0, Some(1)), shard(1, None)], plain()),
            "\
NODE  ZONE  HTTP            STATE  LEADS
   1  a     127.0.0.1:7401  alive      1

SHARD  LEADER  REPLICAS
    0  1       1, 2
    1  none    1, 2
"
        );
    }
}
