//! Calls of shards: the same whether the shard is led by this core (then no message leaves it), by another core, or by
//! another node. A call that finds no leader is tried again for a while; one whose leader vanished is of unknown fate.

use crate::cluster::Address;
use crate::cold::Wait;
use crate::fetch::FetchKind;
use crate::mesh::{Caller, MeshMessage, Read, ShardReply, ShardRequest, VersionedSummary};
use crate::page::cut_page;
use crate::receive::Wake;
use crate::replica::{CommandCaller, CommandDone, CommandOutcome, Own};
use crate::{Core, Operation, OperationId, Output};
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{NodeId, QueueId, ShardId};
use overtake_queue::answer::{Answer, KeyState};
use overtake_queue::cold::{Loaded, NeedsBlocks};
use overtake_queue::command::Command;

/// How long a call is tried, in nanoseconds: longer than an election takes, shorter than a client's patience.
pub(crate) const CALL_PATIENCE_NS: u64 = 4_000_000_000;
/// How soon it is tried again, in nanoseconds.
pub(crate) const RETRY_NS: u64 = 20_000_000;
/// How often it is passed on at once, from one core that is no leader to the one that this takes for it.
const HOPS_MAX: u8 = 2;

/// The operation of calls that nobody waits for.
pub(crate) const NO_OPERATION: OperationId = 0;

/// Which part of which operation a call was made for, and how it stands.
#[derive(Debug)]
pub(crate) struct PendingCall {
    operation: OperationId,
    part: usize,
    shard: ShardId,
    /// Where it is; none while it waits to be tried again.
    to: Option<Address>,
    /// To be sent again; none while it is with a core of this node, which gives it back.
    request: Option<ShardRequest>,
    hops: u8,
    is_lease: bool,
    is_read: bool,
}

/// A reply of this core to itself, taken up before the turn ends.
#[derive(Debug)]
pub(crate) struct LocalReply {
    call: u64,
    reply: ShardReply,
}

impl Core {
    /// Asks a shard; the reply comes to `operation` as its `part`.
    pub(crate) fn call(
        &mut self,
        operation: OperationId,
        part: usize,
        shard: ShardId,
        request: ShardRequest,
    ) {
        let call = self.next_number();
        let pending = PendingCall {
            operation,
            part,
            shard,
            to: None,
            request: None,
            hops: 0,
            is_lease: matches!(request, ShardRequest::Command(Command::Lease { .. })),
            is_read: matches!(request, ShardRequest::Read(_)),
        };
        self.calls.insert(call, pending);
        if !self.map.is_single() {
            self.call_ends.push_back((self.now.monotonic_ns + CALL_PATIENCE_NS, call));
        }
        let to = match request {
            // About a core of this node, whoever leads its shards.
            ShardRequest::Read(Read::Metrics { .. }) => self.map.host(self.me.node, shard),
            _ => self.whom_to_ask(shard),
        };
        self.place_call(call, to, request);
    }

    /// Hands a call to whom it is for, or lets it wait until somebody is.
    fn place_call(&mut self, call: u64, to: Option<Address>, request: ShardRequest) {
        let Some(pending) = self.calls.get_mut(&call) else { return };
        let Some(to) = to else { return self.park_call(call, request) };
        let shard = pending.shard;
        pending.to = Some(to);
        if to == self.me {
            return self.serve_call(Caller { at: to, link: 0, call }, shard, request);
        }
        if to.node != self.me.node {
            pending.request = Some(request.clone());
            self.links.note(to, call);
        }
        self.out.push(Output::Mesh { to, message: MeshMessage::Call { call, shard, request } });
    }

    fn park_call(&mut self, call: u64, request: ShardRequest) {
        let Some(pending) = self.calls.get_mut(&call) else { return };
        if pending.is_lease {
            // The receive goes on with other shards, and looks again when there is a leader.
            return self.fail_call(call, false);
        }
        pending.to = None;
        pending.hops = 0;
        pending.request = Some(request);
        self.timers.add(self.now.monotonic_ns + RETRY_NS, Wake::Call(call));
    }

    /// A call that waited is tried again.
    pub(crate) fn retry_call(&mut self, call: u64) {
        let Some(pending) = self.calls.get_mut(&call).filter(|pending| pending.to.is_none()) else { return };
        let (shard, request) = (pending.shard, pending.request.take());
        let to = self.whom_to_ask(shard);
        if let Some(request) = request {
            self.place_call(call, to, request);
        }
    }

    fn fail_call(&mut self, call: u64, unknown: bool) {
        let detail = if unknown {
            "the shard changed its leader on the way; retry with the same id or dedup key"
        } else {
            "the shard has no leader that can be reached; try again"
        };
        self.local_replies.push_back(LocalReply { call, reply: ShardReply::Failed { unknown, detail } });
    }

    /// Whom it was sent to is no leader. `request`: what it gave back.
    fn call_refused(
        &mut self,
        call: u64,
        term: u64,
        leader: Option<NodeId>,
        request: Option<Box<ShardRequest>>,
    ) {
        let Some(pending) = self.calls.get_mut(&call) else { return };
        let (shard, from) = (pending.shard, pending.to.take());
        pending.hops += 1;
        let tired = pending.hops > HOPS_MAX;
        let request = request.map(|request| *request).or_else(|| pending.request.take());
        if let Some(from) = from {
            self.links.forget(from, call);
            if from.node != self.me.node && leader != Some(from.node) {
                self.leader_refuted(shard, from.node, term);
            }
        }
        if let Some(leader) = leader {
            self.leader_hinted(shard, term, leader);
        }
        let Some(request) = request else { return self.fail_call(call, false) };
        let to = self.leader_of(shard).filter(|to| !tired && Some(*to) != from);
        self.place_call(call, to, request);
    }

    /// The link that a call was sent on is gone. False where the number is no call's.
    pub(crate) fn call_lost(&mut self, call: u64) -> bool {
        let Some(pending) = self.calls.get_mut(&call) else { return false };
        match pending.request.take() {
            Some(request @ ShardRequest::Read(_)) => self.park_call(call, request),
            Some(request) if is_planted(Bug::UnknownIsRetried) => self.park_call(call, request),
            _ => self.fail_call(call, true),
        }
        true
    }

    /// The shard that a call asks, and the core it is with.
    pub(crate) fn call_at(&self, call: u64) -> Option<(ShardId, Address)> {
        let pending = self.calls.get(&call)?;
        Some((pending.shard, pending.to?))
    }

    /// Ends calls that were tried for long enough.
    pub(crate) fn expire_calls(&mut self) {
        while let Some((end_ns, call)) = self.call_ends.front().copied() {
            let Some(pending) = self.calls.get(&call) else {
                self.call_ends.pop_front();
                continue;
            };
            if end_ns > self.now.monotonic_ns {
                return;
            }
            self.call_ends.pop_front();
            let unknown = pending.to.is_some() && !pending.is_read;
            if let Some(to) = pending.to {
                self.links.forget(to, call);
            }
            self.fail_call(call, unknown);
        }
    }

    /// Who asks from another core.
    pub(crate) fn caller(&self, at: Address, call: u64) -> Caller {
        Caller { at, link: self.links.number(at), call }
    }

    /// Whether a reply to this caller would arrive.
    pub(crate) fn is_there(&self, caller: Caller) -> bool {
        caller.at.node == self.me.node
            || self.links.is_up(caller.at) && self.links.number(caller.at) == caller.link
    }

    /// Serves a call of a shard that this core may lead.
    pub(crate) fn serve_call(&mut self, caller: Caller, shard: ShardId, request: ShardRequest) {
        if let ShardRequest::Read(Read::Metrics { tenant }) = &request {
            let reply = ShardReply::Metrics(self.own_metrics(), self.own_queues(tenant));
            return self.reply(caller, shard, None, reply);
        }
        self.serve_or_hold(caller, shard, request);
    }

    /// The same, where it need not wait for memory, with what has been read of runs for it so far.
    pub(crate) fn serve_request(
        &mut self,
        caller: Caller,
        shard: ShardId,
        request: ShardRequest,
        loaded: Loaded,
    ) {
        let queue = request_queue(&request);
        let Some(replica) = self.replicas.get_mut(&shard).filter(|replica| replica.serves()) else {
            return self.not_leader(caller, shard, request);
        };
        let makes =
            matches!(request, ShardRequest::Command(Command::Configure { .. } | Command::Delete { .. }));
        if !makes && !replica.machine.has_queue(queue) && self.directory.may_exist(queue) {
            // The shard will be told of the queue in a moment.
            return self.not_leader(caller, shard, request);
        }
        match request {
            ShardRequest::Command(command) => self.serve_command(caller, shard, command, loaded),
            ShardRequest::Read(read) if replica.group.is_alone() => self.read(caller, shard, read, loaded),
            ShardRequest::Read(read) => replica.submit_read(caller, read),
        }
    }

    /// Takes a command into the log, or lets it wait for the runs that it may come across.
    fn serve_command(&mut self, caller: Caller, shard: ShardId, command: Command, loaded: Loaded) {
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let queue = queue_of(&command);
        let leased = if let Command::Lease { lease, .. } = &command { u64::from(lease.max) } else { 0 };
        // Those on their way take messages from the head first.
        let ahead = if leased > 0 { leased + replica.leasing(queue) } else { 0 };
        let ahead = if is_planted(Bug::RunsPassedOver) { 0 } else { ahead };
        let mut needs = replica.machine.needs(&command, ahead, &loaded);
        if !needs.thaw.is_empty() && replica.machine.may_begin(&command, ahead) {
            // An urgent message does not wait for less urgent ones to be read.
            needs.thaw.clear();
            self.cold.ahead.insert((shard, queue));
        }
        // A spill on its way leaves so many in front of a lane's runs.
        let may_take = ahead > self.cold.keep() || replica.machine.names_message_in_memory(&command);
        let wait = Wait { reads: needs.read, thaws: needs.thaw, spill: replica.spilling && may_take };
        if wait != Wait::default() {
            return self.block_request(caller, shard, ShardRequest::Command(command), loaded, wait);
        }
        if matches!(command, Command::Enqueue { .. } | Command::StoreClaimed { .. }) {
            return self.submit_enqueue(caller, shard, command, &loaded);
        }
        replica.submit(command, CommandCaller::of(caller, queue));
    }

    /// Gives a call back.
    pub(crate) fn not_leader(&mut self, caller: Caller, shard: ShardId, request: ShardRequest) {
        let (term, leader) = match self.replicas.get(&shard) {
            Some(replica) => (replica.group.term(), replica.group.leader()),
            None => self.leaders.of(shard),
        };
        let request = (caller.at.node == self.me.node).then(|| Box::new(request));
        let reply = ShardReply::NotLeader { term, leader, request };
        self.reply(caller, shard, None, reply);
    }

    /// Answers a read now, or when the blocks that it must look into have been read.
    pub(crate) fn read(&mut self, caller: Caller, shard: ShardId, read: Read, loaded: Loaded) {
        if let Err(NeedsBlocks(blocks)) = self.try_read(caller, shard, &read, &loaded) {
            let request = ShardRequest::Read(read);
            self.block_request(caller, shard, request, loaded, Wait { reads: blocks, ..Wait::default() });
        }
    }

    fn try_read(
        &mut self,
        caller: Caller,
        shard: ShardId,
        read: &Read,
        loaded: &Loaded,
    ) -> Result<(), NeedsBlocks> {
        let Some(replica) = self.replicas.get(&shard) else { return Ok(()) };
        let (machine, now) = (&replica.machine, self.time);
        let (queue, reply) = match read {
            Read::Stats { queue } => (*queue, ShardReply::Stats(machine.stats(*queue, now))),
            Read::Peek { queue, filter, after, limit } => {
                let views = machine.peek(*queue, *filter, *after, limit + 1, loaded)?;
                let (views, upto) = cut_page(views, *limit);
                self.fetch(caller, shard, *queue, FetchKind::Peeked(views, upto));
                return Ok(());
            }
            Read::DeadLetters { queue, after, limit } => {
                let (views, upto) = cut_page(machine.dead_letters(*queue, *after, limit + 1), *limit);
                self.fetch(caller, shard, *queue, FetchKind::Dead(views, upto));
                return Ok(());
            }
            Read::Inspect { queue, id } => {
                (*queue, ShardReply::Inspected(machine.inspect(*queue, *id, loaded)?))
            }
            Read::CountDead { queue, selection } => {
                (*queue, ShardReply::Count(machine.count_dead(*queue, selection)))
            }
            Read::Lookup { queue, key, id } => {
                let mut found =
                    key.as_ref().map_or(KeyState::Free, |key| machine.key_state(*queue, key, now));
                if let (KeyState::Free, Some(id)) = (&found, id)
                    && machine.id_lookup(*queue, *id, now, loaded)?
                {
                    found = KeyState::Taken(*id);
                }
                (*queue, ShardReply::Found(found))
            }
            Read::StoredUnder { queue, id, key } => {
                let stored = machine.stored_under(*queue, *id, key, now);
                (*queue, ShardReply::Found(stored.map_or(KeyState::Free, |_| KeyState::Taken(*id))))
            }
            Read::Summary { queue } => (*queue, ShardReply::Summary),
            Read::Metrics { .. } => return Ok(()),
        };
        self.reply(caller, shard, Some(queue), reply);
        Ok(())
    }

    /// Tells callers what became of their commands.
    pub(crate) fn commands_done(&mut self, shard: ShardId, done: &mut Vec<CommandDone>) {
        for CommandDone { caller: CommandCaller { caller, queue, own, .. }, outcome } in done.drain(..) {
            let Some(caller) = caller else {
                self.own_command_done(shard, own, &outcome);
                continue;
            };
            let failed = |unknown, detail| ShardReply::Failed { unknown, detail };
            // Nothing was stored for these, whether that could be counted or not.
            if let Some(refused) = self.refusing.remove(&caller) {
                self.reply(caller, shard, Some(queue), ShardReply::Answer(Answer::Enqueued(refused)));
                continue;
            }
            let reply = match outcome {
                CommandOutcome::Answered(Answer::Leased(deliveries)) => {
                    if !self.is_there(caller) {
                        let leases = deliveries.iter().map(|delivery| delivery.key).collect();
                        self.submit_own(shard, Command::Unlease { queue, leases });
                        continue;
                    }
                    self.counters.deliveries += deliveries.len() as u64;
                    self.fetch(caller, shard, queue, FetchKind::Leased(deliveries));
                    continue;
                }
                CommandOutcome::Answered(answer) => {
                    self.counters.count(&answer);
                    if matches!(answer, Answer::Redriven(_)) {
                        self.turns_taken(shard, queue);
                    }
                    ShardReply::Answer(answer)
                }
                CommandOutcome::NotLeader(command) => {
                    self.not_leader(caller, shard, ShardRequest::Command(command));
                    continue;
                }
                CommandOutcome::NotStored => failed(false, "the shard has too much under way; try again"),
                CommandOutcome::Unknown => failed(
                    true,
                    "the shard changed its leader on the way; retry with the same id or dedup key",
                ),
            };
            self.reply(caller, shard, Some(queue), reply);
        }
    }

    /// Replies to a caller, wherever it is. Another core gets the queue's newest summary along, so that its view is
    /// never behind what it was answered.
    pub(crate) fn reply(
        &mut self,
        caller: Caller,
        shard: ShardId,
        queue: Option<QueueId>,
        reply: ShardReply,
    ) {
        if caller.at == self.me {
            self.local_replies.push_back(LocalReply { call: caller.call, reply });
            return;
        }
        if !self.is_there(caller) {
            return;
        }
        let summary = queue.and_then(|queue| self.own_summary(shard, queue));
        let message = MeshMessage::Reply { call: caller.call, reply, summary };
        self.out.push(Output::Mesh { to: caller.at, message });
    }

    /// The summary of a queue on a shard of this core.
    pub(crate) fn own_summary(&self, shard: ShardId, queue: QueueId) -> Option<VersionedSummary> {
        let machine = &self.replicas.get(&shard)?.machine;
        Some(VersionedSummary { shard, version: machine.applied(), summary: machine.summary(queue)? })
    }

    /// Hands this core's replies to itself on. True where there was any.
    pub(crate) fn take_local_replies(&mut self) -> bool {
        let mut any = false;
        while let Some(LocalReply { call, reply }) = self.local_replies.pop_front() {
            any = true;
            self.replied(call, reply);
        }
        any
    }

    pub(crate) fn replied(&mut self, call: u64, reply: ShardReply) {
        let reply = match reply {
            ShardReply::NotLeader { term, leader, request } => {
                return self.call_refused(call, term, leader, request);
            }
            reply => reply,
        };
        let Some(PendingCall { operation, part, to, .. }) = self.calls.remove(&call) else { return };
        if let Some(to) = to {
            self.links.forget(to, call);
        }
        match self.operations.remove(&operation) {
            Some(Operation::Enqueue(state)) => self.enqueue_replied(operation, state, part, reply),
            Some(Operation::Receive(state)) => self.receive_replied(operation, state, part, reply),
            Some(Operation::Settle(state)) => self.settle_replied(operation, state, part, reply),
            Some(Operation::Gather(state)) => self.gather_replied(operation, state, part, reply),
            Some(Operation::Redrive(state)) => self.redrive_replied(operation, state, &reply),
            Some(Operation::Grant(state)) => self.grant_replied(&state),
            Some(Operation::Configure(state)) => self.configure_replied(operation, state, part, &reply),
            None => {}
        }
    }

    /// Takes a message of another core.
    pub(crate) fn mesh(&mut self, from: Address, message: MeshMessage) {
        if !self.map.contains(from) || !self.is_reachable(from) {
            return;
        }
        match message {
            MeshMessage::Call { call, shard, request } => {
                self.serve_call(self.caller(from, call), shard, request);
            }
            MeshMessage::Reply { call, reply, summary } => {
                if let (false, ShardReply::Leased(leased), Some(summary)) =
                    (self.calls.contains_key(&call), &reply, &summary)
                {
                    // Nobody waits for it any more, who had doubts of the leader that comes late now.
                    let leases = leased.iter().map(|(delivery, _)| delivery.key).collect();
                    let (shard, queue) = (summary.shard, summary.summary.queue);
                    self.submit_anywhere(shard, Command::Unlease { queue, leases });
                }
                if let Some(summary) = summary {
                    self.learn(summary);
                }
                self.replied(call, reply);
            }
            MeshMessage::Forward { call, tenant, request, rate_checked, wait_ms } => {
                self.forwarded(self.caller(from, call), &tenant, request, rate_checked, wait_ms);
            }
            MeshMessage::ForwardReply { call, response } => self.forward_replied(call, response),
            MeshMessage::ForwardMoved { call } => self.errand_refused(call),
            MeshMessage::ForwardCancel { call } => self.cancel_forwarded(self.caller(from, call)),
            MeshMessage::DirectorySnapshot { index, records, last } => {
                self.directory_snapshot(from, index, records, last);
            }
            MeshMessage::DirectoryChange { index, change, record, deleted } => {
                self.directory_changed(from, index, change, record, deleted);
            }
            MeshMessage::DirectoryKnown { change } => self.directory_known_by(from, change),
            MeshMessage::DirectoryCall { call, command } => {
                self.directory_call(self.caller(from, call), command);
            }
            MeshMessage::Waiters { queue, some } => self.waiting.set_elsewhere(from, queue, some),
            MeshMessage::RoomWanted { queue, shard, room, first } => {
                self.want_room(queue, shard, room, first);
            }
            MeshMessage::Serving { time } => {
                if from.node == self.me.node {
                    self.serving.insert(from.core);
                    // Where the wall clock went back while the node was down each core goes on where its own logs were.
                    // They are to be of one mind: windows and leases are looked at from shards of all cores.
                    self.clock.raise_to(time);
                    self.time = self.clock.read(self.clocks.followed(self.now));
                }
            }
            MeshMessage::Leader { shard, term, leader } if from.node == self.me.node => {
                self.leader_told(shard, term, leader);
            }
            MeshMessage::Leader { shard, term, leader } => {
                if let Some(leader) = leader.filter(|leader| *leader == from.node) {
                    self.leader_hinted(shard, term, leader);
                }
            }
            MeshMessage::Summaries { summaries } => {
                summaries.into_iter().for_each(|summary| self.learn(summary));
            }
            MeshMessage::Held { shards } => {
                shards.into_iter().for_each(|(shard, index)| self.learn_held(shard, index));
            }
            MeshMessage::ReplicaAsk { number, shards } => self.replica_asked(from, number, &shards),
            MeshMessage::ReplicaTold { number, shards } => self.replica_told(from, number, &shards),
            MeshMessage::ClockAsk { asked_ns } => self.clock_asked(from, asked_ns),
            MeshMessage::Clock { asked_ns, wall, time } => self.clock_told(from, asked_ns, wall, time),
            MeshMessage::SnapshotAsk(ask) => self.snapshot_asked(from, ask),
            MeshMessage::SnapshotPart { shard, number, part } => {
                self.snapshot_part(from, shard, number, part);
            }
            MeshMessage::VouchAsk { shard, index } => self.vouch_asked(from, shard, index),
            MeshMessage::Stuck { stuck } => self.peer_stuck(from, stuck),
            MeshMessage::Vouched { shard, index } => self.vouched(from.node, shard, index),
            MeshMessage::Members { members } => self.members_told(members),
            MeshMessage::Raft { messages } => self.peers_said(from, messages),
        }
    }

    /// Learns a summary of a shard on another core.
    pub(crate) fn learn(&mut self, newest: VersionedSummary) {
        let queue = newest.summary.queue;
        // A queue that this core has not heard of yet may be new; one that it has forgotten was deleted.
        let may_exist = !self.is_serving() || self.directory.may_exist(queue);
        if may_exist && self.view.update(queue, &newest) {
            self.waiting.touch(queue);
        }
    }

    /// A command of this core's own, that nobody waits for.
    pub(crate) fn submit_own(&mut self, shard: ShardId, command: Command) {
        let queue = queue_of(&command);
        if let Some(replica) = self.replicas.get_mut(&shard).filter(|replica| replica.serves()) {
            replica.submit(command, CommandCaller::own(queue, Own::Other));
        }
    }

    /// A command that nobody waits for, on whatever core the shard is.
    pub(crate) fn submit_anywhere(&mut self, shard: ShardId, command: Command) {
        if self.leader_of(shard) == Some(self.me) {
            self.submit_own(shard, command);
        } else {
            self.call(NO_OPERATION, 0, shard, ShardRequest::Command(command));
        }
    }
}

fn request_queue(request: &ShardRequest) -> QueueId {
    match request {
        ShardRequest::Command(command) => queue_of(command),
        ShardRequest::Read(read) => match read {
            Read::Stats { queue }
            | Read::Peek { queue, .. }
            | Read::Inspect { queue, .. }
            | Read::DeadLetters { queue, .. }
            | Read::CountDead { queue, .. }
            | Read::Lookup { queue, .. }
            | Read::StoredUnder { queue, .. }
            | Read::Summary { queue } => *queue,
            Read::Metrics { .. } => QueueId(0),
        },
    }
}

pub(crate) fn queue_of(command: &Command) -> QueueId {
    match command {
        Command::Configure { queue, .. }
        | Command::Delete { queue }
        | Command::Enqueue { queue, .. }
        | Command::Lease { queue, .. }
        | Command::Unlease { queue, .. }
        | Command::Settle { queue, .. }
        | Command::Cancel { queue, .. }
        | Command::Purge { queue }
        | Command::PurgeDeadLetters { queue }
        | Command::Redrive { queue, .. }
        | Command::RedriveTurns { queue, .. }
        | Command::Claim { queue, .. }
        | Command::StoreClaimed { queue, .. }
        | Command::EndClaim { queue, .. }
        | Command::FenceClaim { queue, .. }
        | Command::NoteRefused { queue, .. }
        | Command::Spill { queue, .. }
        | Command::Thaw { queue, .. } => *queue,
    }
}
