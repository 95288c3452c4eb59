//! Requests about queues as such: create, change, delete, show, list; and what the node says of itself.

use crate::Core;
use crate::convert::refused;
use crate::directory::QueueEntry;
use crate::errands::Task;
use crate::identity::Tenant;
use crate::sessions::Origin;
use overtake_base::queue_config::QueueConfigPatch;
use overtake_base::{NodeId, QueueName, ShardId};
use overtake_queue::directory::DirectoryCommand;
use overtake_queue::members::{MemberState, MembersCommand, NewMember};
use overtake_wire::message::{
    ClusterChange, ErrorCode, NewNode, NodeState, NodeStatus, QueueListed, Refusal, Response, ShardStatus,
};
use std::sync::Arc;

fn node_state(state: MemberState) -> NodeState {
    match state {
        MemberState::Joining => NodeState::Joining,
        MemberState::Active => NodeState::Active,
        MemberState::Draining => NodeState::Draining,
        MemberState::Lost => NodeState::Lost,
    }
}

impl Core {
    /// The queue of that name, or a refusal that says what to do.
    pub(crate) fn find_queue(&self, tenant: &str, name: &str) -> Result<Arc<QueueEntry>, Refusal> {
        self.directory.by_name(tenant, name).cloned().ok_or_else(|| {
            let refusal = Refusal::not_found(format!("there is no queue named '{name}'"));
            // Each front end says in its own words how one is created.
            Refusal { field: Some("queue".into()), ..refusal }
        })
    }

    pub(crate) fn put_queue(
        &mut self,
        origin: Origin,
        tenant: &Tenant,
        name: &str,
        patch: QueueConfigPatch,
        create_only: bool,
    ) {
        if let Err(refused_config) = patch.makes_sense() {
            let refusal = Refusal::invalid(refused_config.field, refused_config.detail);
            return self.respond(origin, refused(refusal));
        }
        match name.parse::<QueueName>() {
            Ok(name) => {
                let command = DirectoryCommand::Put { tenant: (**tenant).into(), name, patch, create_only };
                self.change_directory(origin, command);
            }
            Err(why) => self.respond(origin, refused(Refusal::invalid("queue", why.to_string()))),
        }
    }

    pub(crate) fn delete_queue(&mut self, origin: Origin, tenant: &Tenant, name: &str) {
        match self.find_queue(tenant, name) {
            Ok(queue) => {
                let name = queue.record.name.clone();
                self.change_directory(origin, DirectoryCommand::Delete { tenant: (**tenant).into(), name });
            }
            Err(refusal) => self.respond(origin, refused(refusal)),
        }
    }

    fn change_directory(&mut self, origin: Origin, command: DirectoryCommand) {
        self.send_errand(origin, ShardId::DIRECTORY, Task::Directory(command));
    }

    pub(crate) fn get_queue(&mut self, origin: Origin, tenant: &Tenant, name: &str) {
        let response = match self.find_queue(tenant, name) {
            Ok(queue) => Response::Queue { config: queue.record.config.clone() },
            Err(refusal) => refused(refusal),
        };
        self.respond(origin, response);
    }

    pub(crate) fn list_queues(&mut self, origin: Origin, tenant: &Tenant, limit: u32, after: Option<&str>) {
        let limit = limit as usize;
        let mut queues: Vec<QueueListed> = self
            .directory
            .list(tenant, after)
            .take(limit + 1)
            .map(|(name, queue)| QueueListed {
                name: name.into(),
                config: queue.record.config.clone(),
                depth: self.view.queue(queue.record.id).map_or(0, |heads| heads.depth().0),
            })
            .collect();
        let more = queues.len() > limit;
        queues.truncate(limit);
        let next = queues.last().filter(|_| more).map(|last| last.name.clone());
        self.respond(origin, Response::Queues { queues, next });
    }

    pub(crate) fn cluster(&mut self, origin: Origin) {
        let alive = |node| node == self.me.node || self.links.all_up().any(|peer| peer.node == node);
        let nodes = self.map.nodes().map(|(node, entry)| NodeStatus {
            id: node.0,
            zone: entry.zone.as_ref().into(),
            http: entry.http.as_ref().into(),
            alive: alive(node),
            state: node_state(entry.state),
            replicas: u32::try_from(self.map.members().held_by(node)).unwrap_or(u32::MAX),
        });
        let nodes = nodes.collect();
        let shards = (0..self.config.shards)
            .map(|shard| {
                let holders = self.map.members().holders(ShardId(shard));
                ShardStatus {
                    shard,
                    leader: self.serving_leader(ShardId(shard)).map(|node| node.0),
                    replicas: self.map.replicas(ShardId(shard)).iter().map(|node| node.0).collect(),
                    adding: holders.and_then(|holders| holders.adding).map(|node| node.0),
                    removing: holders.and_then(|holders| holders.removing).map(|node| node.0),
                }
            })
            .collect();
        self.respond(origin, Response::Cluster { nodes, shards });
    }

    pub(crate) fn change_cluster(&mut self, origin: Origin, change: ClusterChange) {
        if self.map.is_single() {
            let detail = "this node is one by itself: only nodes of a cluster come and go";
            return self.respond(origin, refused(Refusal::new(ErrorCode::Conflict, detail)));
        }
        let command = match change {
            ClusterChange::Add(NewNode { id, zone, address, http, cores }) => {
                let member =
                    NewMember { zone: zone.into(), address: address.into(), http: http.into(), cores };
                MembersCommand::Put { node: NodeId(id), member }
            }
            ClusterChange::Drain { node, undo, force } => {
                let state = if undo { MemberState::Active } else { MemberState::Draining };
                MembersCommand::SetState { node: NodeId(node), state, force }
            }
            ClusterChange::Remove { node, force: false } => MembersCommand::Remove { node: NodeId(node) },
            ClusterChange::Remove { node, force: true } => {
                MembersCommand::SetState { node: NodeId(node), state: MemberState::Lost, force: true }
            }
            ClusterChange::Replace { dead, new } => {
                let stands = self.map.members().usable().any(|(node, _)| node.0 == new && new != dead);
                if !stands {
                    let detail = format!(
                        "node {new} is not there to hold what node {dead} held: start it with --join first, under an id of \
                         its own"
                    );
                    return self.respond(origin, refused(Refusal::new(ErrorCode::Conflict, detail)));
                }
                MembersCommand::SetState { node: NodeId(dead), state: MemberState::Lost, force: false }
            }
            ClusterChange::Rebalance => MembersCommand::Rebalance { on: true },
        };
        self.change_directory(origin, DirectoryCommand::Members(command));
    }

    pub(crate) fn ready(&mut self, origin: Origin) {
        let serves = |shard: &u16| self.serving_leader(ShardId(*shard)).is_some();
        let not_ready = (0..self.config.shards).filter(|shard| !serves(shard)).collect();
        self.respond(origin, Response::Readiness { not_ready });
    }

    /// Who leads a shard, if it can be asked.
    fn serving_leader(&self, shard: ShardId) -> Option<NodeId> {
        let leader = self.leader_of(shard)?;
        (leader.node != self.me.node || self.serving.contains(&leader.core)).then_some(leader.node)
    }
}
