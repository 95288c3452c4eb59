//! Nodes and shards.

use overtake_wire::message;
use serde::Serialize;
use utoipa::ToSchema;

/// The cluster as the answering node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Cluster {
    /// By id.
    pub nodes: Vec<Node>,
    /// By number.
    pub shards: Vec<Shard>,
}

/// One node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Node {
    pub id: u64,
    pub zone: String,
    /// Address of its HTTP listener.
    pub http: String,
    pub alive: bool,
}

/// One shard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Shard {
    pub shard: u16,
    /// The node that leads it; null while none is known.
    pub leader: Option<u64>,
    /// Nodes that have a replica.
    pub replicas: Vec<u64>,
}

impl From<message::NodeStatus> for Node {
    fn from(node: message::NodeStatus) -> Self {
        // What the command line shows beside this is not part of the HTTP contract.
        let message::NodeStatus { id, zone, http, alive, .. } = node;
        Self { id, zone, http, alive }
    }
}

impl From<message::ShardStatus> for Shard {
    fn from(shard: message::ShardStatus) -> Self {
        let message::ShardStatus { shard, leader, replicas, .. } = shard;
        Self { shard, leader, replicas }
    }
}
