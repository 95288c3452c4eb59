//! The directory of queues: every core keeps a copy; core 0 hosts the replicated original and tells the others what
//! changed. A change is answered only when every core's copy and every shard of the queue know it.

use crate::convert::refused;
use crate::mesh::{Caller, MeshMessage, ShardReply, ShardRequest};
use crate::sessions::Origin;
use crate::{Core, Operation, OperationId, Output};
use core::ops::Bound;
use overtake_base::hash::Map;
use overtake_base::{CoreId, QueueId, ShardId};
use overtake_queue::command::Command;
use overtake_queue::directory::{Directory, DirectoryAnswer, DirectoryCommand, QueueRecord, encode_commands};
use overtake_queue::scheduler::Scheduler;
use overtake_replication::Group;
use overtake_replication::types::LogEntry;
use overtake_wire::message::{ErrorCode, Refusal, Response};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// One queue as this core knows it.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    /// The directory's record.
    pub record: Arc<QueueRecord>,
    /// Its shards, in the order of its shard set.
    pub shards: Vec<ShardId>,
}

impl QueueEntry {
    /// The shard whose core keeps the queue's waiters and accounts for its limits.
    pub(crate) fn home(&self) -> ShardId {
        self.shards[0]
    }

    /// The shard of what has this routing.
    pub(crate) fn shard_at(&self, routing: u16) -> ShardId {
        self.shards[overtake_base::routing::shard_index(routing, self.shards.len())]
    }

    /// True where deliveries are capped.
    pub(crate) fn is_capped(&self) -> bool {
        !self.record.config.rate_caps.is_empty()
    }

    /// True where depth is limited over several shards, so that one core must account for it.
    pub(crate) fn needs_quota(&self) -> bool {
        let config = &self.record.config;
        self.shards.len() > 1 && (config.max_depth.is_some() || config.max_bytes.is_some())
    }
}

/// This core's copy of the directory.
#[derive(Default)]
pub(crate) struct DirectoryCopy {
    by_name: BTreeMap<Box<str>, BTreeMap<Box<str>, Arc<QueueEntry>>>,
    by_id: BTreeMap<QueueId, Arc<QueueEntry>>,
    /// Highest id ever seen; ids are never used twice.
    newest: QueueId,
    /// Came before this core had recovered: taken up when it serves.
    deferred: Vec<(u64, Arc<QueueRecord>, bool)>,
    pub(crate) start: Start,
}

/// How far this core's start is.
#[derive(Default)]
pub(crate) struct Start {
    pub recovered: bool,
    pub snapshot: Option<Vec<Arc<QueueRecord>>>,
    pub reconciling: bool,
}

impl DirectoryCopy {
    pub(crate) fn by_name(&self, tenant: &str, name: &str) -> Option<&Arc<QueueEntry>> {
        self.by_name.get(tenant)?.get(name)
    }

    pub(crate) fn by_id(&self, id: QueueId) -> Option<&Arc<QueueEntry>> {
        self.by_id.get(&id)
    }

    /// False only for queues that were deleted.
    pub(crate) fn may_exist(&self, id: QueueId) -> bool {
        id > self.newest || self.by_id.contains_key(&id)
    }

    /// Queues of a tenant by name, after `after`.
    pub(crate) fn list<'a>(
        &'a self,
        tenant: &str,
        after: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a str, &'a Arc<QueueEntry>)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.by_name.get(tenant).into_iter();
        names
            .flat_map(move |names| names.range::<str, _>((from, Bound::Unbounded)))
            .map(|(name, entry)| (&**name, entry))
    }

    /// Number of queues.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    fn insert(&mut self, entry: Arc<QueueEntry>) {
        let record = &entry.record;
        let names = self.by_name.entry(record.tenant.clone()).or_default();
        names.insert(record.name.as_str().into(), entry.clone());
        self.newest = self.newest.max(record.id);
        self.by_id.insert(record.id, entry);
    }

    fn remove(&mut self, record: &QueueRecord) {
        self.by_id.remove(&record.id);
        if let Some(names) = self.by_name.get_mut(&record.tenant)
            && names.get(record.name.as_str()).is_some_and(|entry| entry.record.id == record.id)
        {
            names.remove(record.name.as_str());
        }
    }
}

/// Shards of this core being told of a queue.
pub(crate) struct ConfigureOperation {
    /// The change to confirm; none for the start's reconciliation.
    change: Option<u64>,
    commands: Vec<(ShardId, Command)>,
    outstanding: usize,
}

/// The directory's own group, on core 0.
pub(crate) struct DirectoryHost {
    pub(crate) group: Group,
    pub(crate) directory: Directory,
    pub(crate) checkpoint_index: u64,
    pub(crate) applied: u64,
    proposed: VecDeque<(u64, u64, Caller)>,
    changes: Map<u64, Change>,
    announced: bool,
}

struct Change {
    caller: Caller,
    response: Response,
    waiting: BTreeSet<CoreId>,
}

impl DirectoryHost {
    pub(crate) fn new(group: Group, directory: Directory, checkpoint_index: u64) -> Self {
        let (proposed, changes) = (VecDeque::new(), Map::default());
        Self {
            group,
            directory,
            checkpoint_index,
            applied: checkpoint_index,
            proposed,
            changes,
            announced: false,
        }
    }
}

impl Core {
    /// Puts a change of the directory into its log (on core 0).
    pub(crate) fn directory_call(&mut self, caller: Caller, command: DirectoryCommand) {
        let proposed = self.host.as_mut().and_then(|host| {
            let (term, index) = host.group.propose(encode_commands(&[command])).ok()?;
            host.proposed.push_back((term, index, caller));
            Some(())
        });
        if proposed.is_none() {
            let refusal = Refusal::no_quorum("the directory of queues has no leader yet; try again", 1_000);
            self.respond(Origin::Core(caller), refused(refusal));
        }
    }

    /// Applies a committed entry of the directory's log.
    pub(crate) fn directory_apply(&mut self, entry: &LogEntry) -> Result<(), overtake_base::Malformed> {
        let Some(host) = &mut self.host else { return Ok(()) };
        let mut answers = VecDeque::new();
        if !entry.data.is_empty() {
            answers = host.directory.apply(entry.index, &entry.data)?.into();
        }
        host.applied = entry.index;
        host.group.applied(entry.index);
        while self.host.as_ref().is_some_and(|h| h.proposed.front().is_some_and(|p| p.1 <= entry.index)) {
            let Some((term, index, caller)) = self.host.as_mut().and_then(|h| h.proposed.pop_front()) else {
                break;
            };
            let ours = (term, index) == (entry.term, entry.index);
            match answers.pop_front().filter(|_| ours) {
                Some(answer) => self.directory_answered(caller, answer),
                None => {
                    let refusal =
                        Refusal::fate_unknown("the change may or may not be made; look, then retry", 1_000);
                    self.respond(Origin::Core(caller), refused(refusal));
                }
            }
        }
        Ok(())
    }

    fn directory_answered(&mut self, caller: Caller, answer: DirectoryAnswer) {
        match answer {
            DirectoryAnswer::Put { created, record } => {
                let response = Response::QueuePut { created, config: record.config.clone() };
                self.tell_all_cores(caller, record, false, response);
            }
            DirectoryAnswer::Deleted(record) => self.tell_all_cores(caller, record, true, Response::Done),
            DirectoryAnswer::Refused(why) => {
                self.respond(Origin::Core(caller), refused(why.into()));
            }
            DirectoryAnswer::TooManyQueues => {
                let detail = "this node has as many queues as it can hold; delete some first";
                self.respond(Origin::Core(caller), refused(Refusal::new(ErrorCode::Conflict, detail)));
            }
            DirectoryAnswer::NotFound => {
                self.respond(Origin::Core(caller), refused(Refusal::not_found("no such queue")));
            }
        }
    }

    fn tell_all_cores(&mut self, caller: Caller, record: QueueRecord, deleted: bool, response: Response) {
        let record = Arc::new(record);
        let change = self.next_number();
        let waiting = (0..self.config.cores).map(CoreId).collect();
        if let Some(host) = &mut self.host {
            host.changes.insert(change, Change { caller, response, waiting });
        }
        for core in (0..self.config.cores).map(CoreId).filter(|core| *core != self.config.core) {
            let message = MeshMessage::DirectoryChange { change, record: record.clone(), deleted };
            self.out.push(Output::Mesh { to: core, message });
        }
        self.directory_changed(change, record, deleted);
    }

    /// Another core (or this one) knows a change.
    pub(crate) fn directory_known_by(&mut self, core: CoreId, change: u64) {
        let Some(host) = &mut self.host else { return };
        let Some(known) = host.changes.get_mut(&change) else { return };
        known.waiting.remove(&core);
        if known.waiting.is_empty()
            && let Some(Change { caller, response, .. }) = host.changes.remove(&change)
        {
            self.respond(Origin::Core(caller), response);
        }
    }

    /// Takes a change into this core's copy and tells its shards.
    pub(crate) fn directory_changed(&mut self, change: u64, record: Arc<QueueRecord>, deleted: bool) {
        if !self.is_serving() {
            return self.directory.deferred.push((change, record, deleted));
        }
        let commands = self.take_record(&record, deleted);
        self.configure(Some(change), commands);
    }

    /// Changes the copy; gives the commands that this core's shards need.
    fn take_record(&mut self, record: &Arc<QueueRecord>, deleted: bool) -> Vec<(ShardId, Command)> {
        let shards: Vec<ShardId> = record.shards(self.config.shards).collect();
        let own =
            shards.iter().copied().filter(|shard| self.replicas.contains_key(shard)).collect::<Vec<_>>();
        let id = record.id;
        if deleted {
            self.directory.remove(record);
            self.view.remove(id);
            self.schedulers.remove(&id);
            for operation in self.quotas.remove(id) {
                self.queue_gone(operation);
            }
            self.refuse_waiters(id);
            return own.into_iter().map(|shard| (shard, Command::Delete { queue: id })).collect();
        }
        if self.directory.by_id(id).is_some_and(|known| known.record.version >= record.version) {
            return Vec::new();
        }
        self.directory.insert(Arc::new(QueueEntry { record: record.clone(), shards }));
        match self.schedulers.get_mut(&id) {
            Some(scheduler) => scheduler.reconfigure(&record.config),
            None => {
                self.schedulers.insert(id, Scheduler::new(&record.config));
            }
        }
        self.quotas.configure(id, &record.config, self.time);
        let version = record.version;
        own.into_iter()
            .filter(|shard| {
                self.replicas.get(shard).and_then(|r| r.machine.queue_version(id)) != Some(version)
            })
            .map(|shard| (shard, Command::Configure { queue: id, version, config: record.config.clone() }))
            .collect()
    }

    fn configure(&mut self, change: Option<u64>, commands: Vec<(ShardId, Command)>) {
        let operation = self.next_number();
        let outstanding = commands.len();
        let state = ConfigureOperation { change, commands: commands.clone(), outstanding };
        if commands.is_empty() {
            return self.configured(change);
        }
        self.operations.insert(operation, Operation::Configure(state));
        for (part, (shard, command)) in commands.into_iter().enumerate() {
            self.call(operation, part, shard, ShardRequest::Command(command));
        }
    }

    pub(crate) fn configure_replied(
        &mut self,
        operation: OperationId,
        mut state: ConfigureOperation,
        part: usize,
        reply: &ShardReply,
    ) {
        if matches!(reply, ShardReply::Failed { .. }) {
            // The change is made: every shard learns it, a busy one a little later. Twice does no harm.
            let (shard, command) = state.commands[part].clone();
            self.operations.insert(operation, Operation::Configure(state));
            return self.call(operation, part, shard, ShardRequest::Command(command));
        }
        state.outstanding -= 1;
        if state.outstanding > 0 {
            self.operations.insert(operation, Operation::Configure(state));
        } else {
            self.configured(state.change);
        }
    }

    fn configured(&mut self, change: Option<u64>) {
        match change {
            Some(change) if self.host.is_some() => self.directory_known_by(self.config.core, change),
            Some(change) => {
                let message = MeshMessage::DirectoryKnown { change };
                self.out.push(Output::Mesh { to: CoreId(0), message });
            }
            None => self.begin_serving(),
        }
    }

    /// Core 0 told which queues there are.
    pub(crate) fn directory_snapshot(&mut self, records: Vec<Arc<QueueRecord>>) {
        self.directory.start.snapshot = Some(records);
    }

    /// Moves this core's start on: leaders elected, then the directory told, then the shards reconciled with it.
    pub(crate) fn advance_start(&mut self) -> bool {
        if self.is_serving() || self.directory.start.reconciling || !self.directory.start.recovered {
            return false;
        }
        let serving_host = self.host.as_ref().is_none_or(|host| host.group.is_caught_up_as_leader());
        if !serving_host || !self.replicas.values().all(crate::replica::Replica::serves) {
            return false;
        }
        for replica in self.replicas.values() {
            self.clock.raise_to(replica.machine.time());
        }
        self.time = self.clock.read(self.now);
        self.announce_directory();
        let Some(records) = self.directory.start.snapshot.take() else { return false };
        self.directory.start.reconciling = true;
        let mut commands = Vec::new();
        for record in &records {
            commands.extend(self.take_record(record, false));
        }
        for (shard, replica) in &self.replicas {
            let unknown = replica.machine.queues().filter(|queue| self.directory.by_id(*queue).is_none());
            commands.extend(unknown.map(|queue| (*shard, Command::Delete { queue })));
        }
        self.learn_own_heads();
        self.configure(None, commands);
        true
    }

    fn announce_directory(&mut self) {
        let Some(host) = &mut self.host else { return };
        if core::mem::replace(&mut host.announced, true) {
            return;
        }
        let records: Vec<_> = host.directory.all().cloned().map(Arc::new).collect();
        for core in (0..self.config.cores).map(CoreId).filter(|core| *core != self.config.core) {
            let message = MeshMessage::DirectorySnapshot { records: records.clone() };
            self.out.push(Output::Mesh { to: core, message });
        }
        self.directory.start.snapshot = Some(records);
    }

    fn begin_serving(&mut self) {
        self.serving.insert(self.config.core);
        for core in (0..self.config.cores).map(CoreId).filter(|core| *core != self.config.core) {
            self.out.push(Output::Mesh { to: core, message: MeshMessage::Serving });
        }
        self.out.push(Output::Serving);
        for (change, record, deleted) in core::mem::take(&mut self.directory.deferred) {
            self.directory_changed(change, record, deleted);
        }
    }
}
