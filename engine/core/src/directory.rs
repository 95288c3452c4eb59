//! The directory of queues: every core of every node keeps a copy; the core that leads the replicated original tells the
//! others what changed. A change is answered only when the copy of every core that can be reached and the queue's shards
//! that those lead know it.

use crate::cluster::Address;
use crate::convert::refused;
use crate::enqueue::queue_deleted;
use crate::mesh::{Caller, MeshMessage, ShardReply, ShardRequest};
use crate::proposals::Proposals;
use crate::replica::{Replica, Seen};
use crate::sessions::Origin;
use crate::{Core, Operation, OperationId, Output};
use core::ops::Bound;
use overtake_base::{Malformed, QueueId, ShardId};
use overtake_queue::command::Command;
use overtake_queue::directory::{Directory, DirectoryAnswer, DirectoryCommand, QueueRecord, encode_commands};
use overtake_queue::members::MembersRefused;
use overtake_queue::scheduler::Scheduler;
use overtake_replication::Group;
use overtake_replication::types::{EntryKind, LogEntry};
use overtake_wire::message::{ErrorCode, Refusal, Response};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Queues of one part of a snapshot: it fits a frame.
const SNAPSHOT_RECORDS: usize = 1_000;

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
    /// Index of the directory's log that this copy stands for.
    index: u64,
    /// Parts of a snapshot that is coming in, by sender.
    parts: BTreeMap<Address, Vec<Arc<QueueRecord>>>,
    /// Taken up when this core serves.
    deferred: Vec<Deferred>,
    pub(crate) start: Start,
}

/// How far this core's start is.
#[derive(Default)]
pub(crate) struct Start {
    pub recovered: bool,
    pub snapshot: Option<Told>,
    pub reconciling: bool,
}

/// All queues, at an index of the directory's log.
pub(crate) struct Told {
    index: u64,
    records: Vec<Arc<QueueRecord>>,
}

/// A change of the directory that came before this core had recovered.
struct Deferred {
    from: Address,
    index: u64,
    change: u64,
    record: Arc<QueueRecord>,
    deleted: bool,
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

    /// Queues that are spread over a shard.
    pub(crate) fn on_shard(&self, shard: ShardId) -> impl Iterator<Item = &Arc<QueueEntry>> + '_ {
        self.by_id.values().filter(move |entry| entry.shards.contains(&shard))
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

/// Shards that this core leads being told of a queue.
pub(crate) struct ConfigureOperation {
    /// The change to confirm, and to whom; none for the start's reconciliation.
    change: Option<(Address, u64)>,
    commands: Vec<(ShardId, Command)>,
    outstanding: usize,
}

/// The directory's own group, on core 0 of the nodes that hold a replica of it.
pub(crate) struct DirectoryHost {
    pub(crate) group: Group,
    pub(crate) directory: Directory,
    pub(crate) checkpoint_index: u64,
    pub(crate) applied: u64,
    /// Term, leader and whether it serves, as last told.
    pub(crate) seen: Seen,
    proposed: Proposals<Caller>,
    changes: BTreeMap<u64, Change>,
}

struct Change {
    caller: Caller,
    response: Response,
    waiting: BTreeSet<Address>,
}

impl DirectoryHost {
    pub(crate) fn new(group: Group, directory: Directory, checkpoint_index: u64) -> Self {
        Self {
            group,
            directory,
            checkpoint_index,
            applied: checkpoint_index,
            seen: Seen::default(),
            proposed: Proposals::default(),
            changes: BTreeMap::new(),
        }
    }
}

impl Core {
    /// Puts a change of the directory into its log (on the core that leads it).
    pub(crate) fn directory_call(&mut self, caller: Caller, command: DirectoryCommand) {
        let of_cluster = matches!(command, DirectoryCommand::Members(_));
        let leads = self.host.as_mut().filter(|host| {
            // A cluster that was just made tells the directory first who it is.
            host.group.is_caught_up_as_leader() && (!of_cluster || host.directory.members().is_some())
        });
        let proposed = leads.and_then(|host| {
            let (term, index) = host.group.propose(encode_commands(&[command])).ok()?;
            host.proposed.push(term, index, caller);
            Some(())
        });
        if proposed.is_none() {
            self.send_back(caller);
        }
    }

    /// The replica of the directory is another one from now on.
    pub(crate) fn replace_directory(&mut self, mut host: DirectoryHost) {
        let Some(mut old) = self.host.take() else { return };
        host.seen = old.seen;
        host.changes = old.changes;
        self.host = Some(host);
        self.changes_lost(old.proposed.take_all());
    }

    /// This core holds the directory no more.
    pub(crate) fn end_directory_calls(&mut self, mut host: DirectoryHost) {
        self.changes_lost(host.proposed.take_all());
        for Change { caller, response, .. } in host.changes.into_values() {
            self.respond(Origin::Core(caller), response);
        }
    }

    /// Applies a committed entry of the directory's log.
    pub(crate) fn directory_apply(&mut self, entry: &LogEntry) -> Result<(), Malformed> {
        let Some(host) = &mut self.host else { return Ok(()) };
        let mut answers = Vec::new();
        if entry.kind == EntryKind::Membership {
            host.group.apply_membership(entry).map_err(|_| Malformed("a change of membership"))?;
        } else if !entry.data.is_empty() {
            answers = host.directory.apply(entry.index, &entry.data)?;
        }
        host.applied = entry.index;
        host.group.applied(entry.index);
        let (lost, own) = host.proposed.committed(entry.term, entry.index);
        self.members_applied();
        self.changes_lost(lost);
        match (own, answers.pop()) {
            (Some(caller), Some(answer)) => self.directory_answered(caller, entry.index, answer),
            (own, _) => self.changes_lost(own),
        }
        Ok(())
    }

    /// Nobody will know what became of these callers' changes.
    fn changes_lost(&mut self, callers: impl IntoIterator<Item = Caller>) {
        for caller in callers {
            let refusal = Refusal::fate_unknown("the change may or may not be made; look, then retry", 1_000);
            self.respond(Origin::Core(caller), refused(refusal));
        }
    }

    fn directory_answered(&mut self, caller: Caller, index: u64, answer: DirectoryAnswer) {
        match answer {
            DirectoryAnswer::Put { created, record } => {
                let response = Response::QueuePut { created, config: record.config.clone() };
                self.tell_all_cores(caller, index, record, false, response);
            }
            DirectoryAnswer::Deleted(record) => {
                self.tell_all_cores(caller, index, record, true, Response::Done);
            }
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
            DirectoryAnswer::Members(Ok(_)) => {
                let members = self.map.members().to_bytes().into();
                self.respond(Origin::Core(caller), Response::ClusterChanged { members });
            }
            DirectoryAnswer::Members(Err(MembersRefused::Unknown(node))) => {
                let refusal = Refusal::not_found(format!("there is no node {node} in this cluster"));
                self.respond(Origin::Core(caller), refused(refusal));
            }
            DirectoryAnswer::Members(Err(MembersRefused::Conflict(detail))) => {
                self.respond(Origin::Core(caller), refused(Refusal::new(ErrorCode::Conflict, detail)));
            }
        }
    }

    /// Tells every core that can be reached, and answers the caller when they know. Those that cannot be reached are
    /// told everything when they can.
    fn tell_all_cores(
        &mut self,
        caller: Caller,
        index: u64,
        record: QueueRecord,
        deleted: bool,
        response: Response,
    ) {
        let record = Arc::new(record);
        let change = self.next_number();
        let others = self.all_others();
        let waiting = others.iter().copied().chain([self.me]).collect();
        if let Some(host) = &mut self.host {
            host.changes.insert(change, Change { caller, response, waiting });
        }
        for to in others {
            let message = MeshMessage::DirectoryChange { index, change, record: record.clone(), deleted };
            self.out.push(Output::Mesh { to, message });
        }
        self.directory_changed(self.me, index, change, record, deleted);
    }

    /// Another core (or this one) knows a change.
    pub(crate) fn directory_known_by(&mut self, core: Address, change: u64) {
        let Some(host) = &mut self.host else { return };
        let Some(known) = host.changes.get_mut(&change) else { return };
        known.waiting.remove(&core);
        if known.waiting.is_empty()
            && let Some(Change { caller, response, .. }) = host.changes.remove(&change)
        {
            self.respond(Origin::Core(caller), response);
        }
    }

    /// A core cannot be reached: changes do not wait for it.
    pub(crate) fn directory_without(&mut self, core: Address) {
        let waited: Vec<u64> = self
            .host
            .iter()
            .flat_map(|host| host.changes.iter())
            .filter(|(_, c)| c.waiting.contains(&core))
            .map(|(n, _)| *n)
            .collect();
        waited.into_iter().for_each(|change| self.directory_known_by(core, change));
    }

    /// Takes a change into this core's copy and tells the shards that it leads.
    pub(crate) fn directory_changed(
        &mut self,
        from: Address,
        index: u64,
        change: u64,
        record: Arc<QueueRecord>,
        deleted: bool,
    ) {
        if !self.is_serving() {
            return self.directory.deferred.push(Deferred { from, index, change, record, deleted });
        }
        let mut commands = Vec::new();
        if index > self.directory.index {
            self.directory.index = index;
            commands = self.take_record(&record, deleted);
        }
        self.configure(Some((from, change)), commands);
    }

    /// Changes the copy; gives the commands that the shards need which this core leads.
    fn take_record(&mut self, record: &Arc<QueueRecord>, deleted: bool) -> Vec<(ShardId, Command)> {
        let shards: Vec<ShardId> = record.shards(self.config.shards).collect();
        let id = record.id;
        if deleted {
            self.directory.remove(record);
            self.view.remove(id);
            self.schedulers.remove(&id);
            for operation in self.quotas.remove(id) {
                self.refuse_in_line(operation, &queue_deleted());
            }
            self.refuse_waiters(id);
            let led = shards.into_iter().filter(|shard| self.serves(*shard));
            return led.map(|shard| (shard, Command::Delete { queue: id })).collect();
        }
        if self.directory.by_id(id).is_some_and(|known| known.record.version >= record.version) {
            return Vec::new();
        }
        let led: Vec<ShardId> = shards.iter().copied().filter(|shard| self.serves(*shard)).collect();
        self.directory.insert(Arc::new(QueueEntry { record: record.clone(), shards }));
        match self.schedulers.get_mut(&id) {
            Some(scheduler) => scheduler.reconfigure(&record.config),
            None => {
                self.schedulers.insert(id, Scheduler::new(&record.config));
            }
        }
        self.quotas.configure(id, &record.config, self.time);
        led.into_iter().filter_map(|shard| Some((shard, self.configuration(shard, record)?))).collect()
    }

    /// True where this core leads a shard and has applied all that was ever answered of it.
    pub(crate) fn serves(&self, shard: ShardId) -> bool {
        self.replicas.get(&shard).is_some_and(Replica::serves)
    }

    /// What a shard is to be told of a queue; nothing where it knows.
    fn configuration(&self, shard: ShardId, record: &QueueRecord) -> Option<Command> {
        let known = self.replicas.get(&shard).and_then(|replica| replica.machine.queue_version(record.id));
        let (queue, version) = (record.id, record.version);
        known.is_none_or(|known| known < version).then(|| Command::Configure {
            queue,
            version,
            config: record.config.clone(),
        })
    }

    fn configure(&mut self, change: Option<(Address, u64)>, commands: Vec<(ShardId, Command)>) {
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
        // In a cluster whoever leads a shard next compares it with the directory.
        if matches!(reply, ShardReply::Failed { .. }) && self.map.is_single() {
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

    fn configured(&mut self, change: Option<(Address, u64)>) {
        match change {
            Some((to, change)) if to == self.me => self.directory_known_by(to, change),
            Some((to, change)) => {
                let message = MeshMessage::DirectoryKnown { change };
                self.out.push(Output::Mesh { to, message });
            }
            None => self.begin_serving(),
        }
    }

    /// The leader of the directory tells which queues there are.
    pub(crate) fn directory_snapshot(
        &mut self,
        from: Address,
        index: u64,
        mut records: Vec<Arc<QueueRecord>>,
        last: bool,
    ) {
        let parts = self.directory.parts.entry(from).or_default();
        parts.append(&mut records);
        if last {
            let records = self.directory.parts.remove(&from).unwrap_or_default();
            self.directory_told(Told { index, records });
        }
    }

    fn directory_told(&mut self, told: Told) {
        if !self.is_serving() {
            let newer = self.directory.start.snapshot.as_ref().is_none_or(|known| known.index <= told.index);
            if newer {
                self.directory.start.snapshot = Some(told);
            }
        } else if told.index >= self.directory.index {
            let commands = self.take_all(told);
            commands.into_iter().for_each(|(shard, command)| self.submit_own(shard, command));
        }
    }

    /// Makes this core's copy what the directory is; gives the commands that the shards need which this core leads.
    fn take_all(&mut self, told: Told) -> Vec<(ShardId, Command)> {
        self.directory.index = told.index;
        let there: BTreeSet<QueueId> = told.records.iter().map(|record| record.id).collect();
        let gone = self.directory.by_id.values().filter(|entry| !there.contains(&entry.record.id));
        let gone: Vec<Arc<QueueRecord>> = gone.map(|entry| entry.record.clone()).collect();
        let mut commands = Vec::new();
        for record in gone {
            commands.extend(self.take_record(&record, true));
        }
        for record in &told.records {
            commands.extend(self.take_record(record, false));
        }
        commands
    }

    /// What a shard that this core has begun to lead lacks of the directory. What it holds of queues that the directory
    /// never had in this copy may be newer than the copy; what it holds of deleted ones is not.
    fn differences(&self, shard: ShardId) -> Vec<(ShardId, Command)> {
        let Some(replica) = self.replicas.get(&shard).filter(|replica| replica.serves()) else {
            return Vec::new();
        };
        let lacks =
            self.directory.on_shard(shard).filter_map(|entry| self.configuration(shard, &entry.record));
        let deleted = replica.machine.queues().filter(|queue| !self.directory.may_exist(*queue));
        lacks.chain(deleted.map(|queue| Command::Delete { queue })).map(|command| (shard, command)).collect()
    }

    /// Moves this core's start on: its log is read, and the directory is told. A node by itself leads all its shards
    /// before it serves; in a cluster others may.
    pub(crate) fn advance_start(&mut self) -> bool {
        if self.is_serving() || self.directory.start.reconciling || !self.directory.start.recovered {
            return false;
        }
        if !self.clocks.is_settled() {
            return false;
        }
        let settled = |replica: &Replica| replica.serves() || !replica.group.is_alone();
        if !self.replicas.values().all(settled) {
            return false;
        }
        let Some(told) = self.directory.start.snapshot.take() else { return false };
        for replica in self.replicas.values() {
            self.clock.raise_to(replica.machine.time());
        }
        self.time = self.clock.read(self.clocks.followed(self.now));
        self.directory.start.reconciling = true;
        self.take_all(told);
        let commands = self.replicas.keys().flat_map(|shard| self.differences(*shard)).collect();
        self.learn_own_heads();
        self.configure(None, commands);
        true
    }

    /// This core begins to lead a shard.
    pub(crate) fn lead_began(&mut self, shard: ShardId) {
        if shard == ShardId::DIRECTORY {
            return self.announce_directory();
        }
        if let Some(replica) = self.replicas.get_mut(&shard) {
            replica.lead_began();
            self.clock.raise_to(replica.machine.time());
            self.time = self.clock.read(self.clocks.followed(self.now));
        }
        if !self.map.is_single() {
            self.tenant_rates.home_moved_here(shard, self.time);
            let at_home = self.directory.on_shard(shard).filter(|entry| entry.home() == shard);
            for queue in at_home.map(|entry| entry.record.id).collect::<Vec<_>>() {
                self.quotas.home_moved_here(queue, self.time);
            }
        }
        for peer in self.links.all_up().collect::<Vec<_>>() {
            self.tell_all_heads(shard, peer);
        }
        if self.is_serving() {
            for (shard, command) in self.differences(shard) {
                self.submit_own(shard, command);
            }
        }
    }

    /// The directory has a new leader, this core: everybody is told.
    fn announce_directory(&mut self) {
        for to in self.all_others() {
            self.tell_members(to);
            self.send_directory(to);
        }
        let Some(host) = &self.host else { return };
        let (index, records) = (host.applied, host.directory.all().cloned().map(Arc::new).collect());
        self.directory_told(Told { index, records });
    }

    /// Tells one core all queues, if this core leads the directory.
    pub(crate) fn send_directory(&mut self, to: Address) {
        let Some(host) = self.host.as_ref().filter(|host| host.group.is_caught_up_as_leader()) else {
            return;
        };
        let index = host.applied;
        let records: Vec<Arc<QueueRecord>> = host.directory.all().cloned().map(Arc::new).collect();
        let mut parts: VecDeque<Vec<_>> = records.chunks(SNAPSHOT_RECORDS).map(<[_]>::to_vec).collect();
        let last = parts.pop_back().unwrap_or_default();
        for records in parts {
            let message = MeshMessage::DirectorySnapshot { index, records, last: false };
            self.out.push(Output::Mesh { to, message });
        }
        let message = MeshMessage::DirectorySnapshot { index, records: last, last: true };
        self.out.push(Output::Mesh { to, message });
    }

    /// A link is gone: what came of a snapshot on it is not the whole.
    pub(crate) fn directory_link_lost(&mut self, peer: Address) {
        self.directory.parts.remove(&peer);
        self.directory_without(peer);
    }

    fn begin_serving(&mut self) {
        self.serving.insert(self.config.core);
        for to in self.siblings() {
            self.out.push(Output::Mesh { to, message: MeshMessage::Serving { time: self.time } });
        }
        self.out.push(Output::Serving);
        if let Some(told) = self.directory.start.snapshot.take() {
            self.directory_told(told);
        }
        for shard in self.replicas.keys().copied().collect::<Vec<_>>() {
            for (shard, command) in self.differences(shard) {
                self.submit_own(shard, command);
            }
        }
        for Deferred { from, index, change, record, deleted } in core::mem::take(&mut self.directory.deferred)
        {
            self.directory_changed(from, index, change, record, deleted);
        }
    }
}
