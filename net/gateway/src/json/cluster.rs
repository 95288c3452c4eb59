//! Nodes and shards.

use overtake_wire::message;
use overtake_wire::message::NodeState;
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
    /// `joining`, `active`, `draining`, or `lost`.
    #[schema(value_type = String)]
    pub state: &'static str,
    /// Replicas that it has or gets, that of the directory of queues among them.
    pub replicas: u32,
}

/// One shard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Shard {
    pub shard: u16,
    /// The node that leads it; null while none is known.
    pub leader: Option<u64>,
    /// Nodes that have a replica.
    pub replicas: Vec<u64>,
    /// While a replica moves: the node that is to get one, and the node that is to lose its own.
    pub adding: Option<u64>,
    pub removing: Option<u64>,
}

impl From<message::NodeStatus> for Node {
    fn from(node: message::NodeStatus) -> Self {
        let state = match node.state {
            NodeState::Joining => "joining",
            NodeState::Active => "active",
            NodeState::Draining => "draining",
            NodeState::Lost => "lost",
        };
        let message::NodeStatus { id, zone, http, alive, replicas, .. } = node;
        Self { id, zone, http, alive, state, replicas }
    }
}

impl From<message::ShardStatus> for Shard {
    fn from(shard: message::ShardStatus) -> Self {
        let message::ShardStatus { shard, leader, replicas, adding, removing } = shard;
        Self { shard, leader, replicas, adding, removing }
    }
}
