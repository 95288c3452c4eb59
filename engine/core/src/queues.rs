//! Requests about queues as such: create, change, delete, show, list; and what the node says of itself.

use crate::convert::refused;
use crate::directory::QueueEntry;
use crate::identity::Tenant;
use crate::mesh::{Caller, MeshMessage};
use crate::sessions::Origin;
use crate::{Core, Output};
use overtake_base::queue_config::QueueConfigPatch;
use overtake_base::{CoreId, QueueName, ShardId};
use overtake_queue::directory::DirectoryCommand;
use overtake_wire::message::{NodeStatus, QueueListed, Refusal, Response, ShardStatus};
use std::sync::Arc;

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
        let call = self.expect_response(origin);
        if self.host.is_some() {
            self.directory_call(Caller { core: self.config.core, call }, command);
        } else {
            let message = MeshMessage::DirectoryCall { call, command };
            self.out.push(Output::Mesh { to: CoreId(0), message });
        }
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
        let node = self.config.node.0;
        let nodes = vec![NodeStatus {
            id: node,
            zone: self.config.zone.clone(),
            http: self.config.http.clone(),
            alive: true,
        }];
        let shards = (0..self.config.shards)
            .map(|shard| ShardStatus {
                shard,
                leader: self.serving.contains(&self.config.core_of(ShardId(shard))).then_some(node),
                replicas: vec![node],
            })
            .collect();
        self.respond(origin, Response::Cluster { nodes, shards });
    }

    pub(crate) fn ready(&mut self, origin: Origin) {
        let not_ready = (0..self.config.shards)
            .filter(|shard| !self.serving.contains(&self.config.core_of(ShardId(*shard))))
            .collect();
        self.respond(origin, Response::Readiness { not_ready });
    }
}
