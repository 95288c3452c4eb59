//! Calls of shards: the same whether the shard is on this core (then no message leaves it) or on another one.

use crate::mesh::{Caller, MeshMessage, Read, ShardReply, ShardRequest, VersionedSummary};
use crate::page::cut_page;
use crate::replica::{CommandCaller, CommandDone, CommandOutcome};
use crate::storage::FetchKind;
use crate::{Core, Operation, OperationId, Output};
use overtake_base::{CoreId, MessageId, QueueId, ShardId};
use overtake_queue::answer::{Answer, KeyState};
use overtake_queue::cold::Loaded;
use overtake_queue::command::Command;

/// Which part of which operation a call was made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCall {
    operation: OperationId,
    part: usize,
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
        self.calls.insert(call, PendingCall { operation, part });
        let core = self.config.core_of(shard);
        if core == self.config.core {
            self.serve_call(Caller { core, call }, shard, request);
        } else {
            self.out.push(Output::Mesh { to: core, message: MeshMessage::Call { call, shard, request } });
        }
    }

    /// Serves a call of a shard that this core hosts.
    pub(crate) fn serve_call(&mut self, caller: Caller, shard: ShardId, request: ShardRequest) {
        let Some(replica) = self.replicas.get_mut(&shard).filter(|replica| replica.serves()) else {
            let detail = "the shard has no leader yet; try again";
            return self.reply(caller, shard, None, ShardReply::Failed { unknown: false, detail });
        };
        match request {
            ShardRequest::Command(command @ (Command::Enqueue { .. } | Command::StoreClaimed { .. })) => {
                self.submit_enqueue(caller, shard, command);
            }
            ShardRequest::Command(command) => {
                let queue = queue_of(&command);
                replica.submit(command, CommandCaller { caller: Some(caller), queue });
            }
            ShardRequest::Read(read) => self.read(caller, shard, read),
        }
    }

    fn read(&mut self, caller: Caller, shard: ShardId, read: Read) {
        let Some(replica) = self.replicas.get(&shard) else { return };
        let (machine, now) = (&replica.machine, self.time);
        let loaded = Loaded::default();
        let (queue, reply) = match read {
            Read::Stats { queue } => (queue, ShardReply::Stats(machine.stats(queue, now))),
            Read::Peek { queue, filter, after, limit } => {
                let views = machine.peek(queue, filter, after, limit + 1, &loaded).unwrap_or_default();
                let (views, upto) = cut_page(views, limit);
                return self.fetch(caller, shard, queue, FetchKind::Peeked(views, upto));
            }
            Read::DeadLetters { queue, after, limit } => {
                let (views, upto) = cut_page(machine.dead_letters(queue, after, limit + 1), limit);
                return self.fetch(caller, shard, queue, FetchKind::Dead(views, upto));
            }
            Read::Inspect { queue, id } => {
                (queue, ShardReply::Inspected(machine.inspect(queue, id, &loaded).unwrap_or_default()))
            }
            Read::CountDead { queue, selection } => {
                (queue, ShardReply::Count(machine.count_dead(queue, &selection)))
            }
            Read::Lookup { queue, key, id } => {
                let by_key = key.map_or(KeyState::Free, |key| machine.key_state(queue, &key, now));
                let lives = |id: &MessageId| machine.id_lookup(queue, *id, now, &loaded).unwrap_or_default();
                let found = match by_key {
                    KeyState::Free => id.filter(lives).map_or(KeyState::Free, KeyState::Taken),
                    known => known,
                };
                (queue, ShardReply::Found(found))
            }
            Read::StoredUnder { queue, id, key } => {
                let stored = machine.stored_under(queue, id, &key, now);
                (queue, ShardReply::Found(stored.map_or(KeyState::Free, |_| KeyState::Taken(id))))
            }
            Read::Summary { queue } => (queue, ShardReply::Summary),
            Read::Metrics { tenant } => {
                let reply = ShardReply::Metrics(self.own_metrics(), self.own_queues(&tenant));
                return self.reply(caller, shard, None, reply);
            }
        };
        self.reply(caller, shard, Some(queue), reply);
    }

    /// Tells callers what became of their commands.
    pub(crate) fn commands_done(&mut self, shard: ShardId, done: &mut Vec<CommandDone>) {
        for CommandDone { caller: CommandCaller { caller, queue }, outcome } in done.drain(..) {
            let Some(caller) = caller else { continue };
            let failed = |unknown, detail| ShardReply::Failed { unknown, detail };
            // Nothing was stored for these, whether that could be counted or not.
            if let Some(refused) = self.refusing.remove(&caller) {
                self.reply(caller, shard, Some(queue), ShardReply::Answer(Answer::Enqueued(refused)));
                continue;
            }
            let reply = match outcome {
                CommandOutcome::Answered(Answer::Leased(deliveries)) => {
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
        if caller.core == self.config.core {
            self.local_replies.push_back(LocalReply { call: caller.call, reply });
            return;
        }
        let summary = queue.and_then(|queue| self.own_summary(shard, queue));
        let message = MeshMessage::Reply { call: caller.call, reply, summary };
        self.out.push(Output::Mesh { to: caller.core, message });
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
        let Some(PendingCall { operation, part }) = self.calls.remove(&call) else { return };
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
    pub(crate) fn mesh(&mut self, from: CoreId, message: MeshMessage) {
        match message {
            MeshMessage::Call { call, shard, request } => {
                self.serve_call(Caller { core: from, call }, shard, request);
            }
            MeshMessage::Reply { call, reply, summary } => {
                if let Some(summary) = summary {
                    self.learn(summary);
                }
                self.replied(call, reply);
            }
            MeshMessage::Forward { call, tenant, request, rate_checked } => {
                self.forwarded(Caller { core: from, call }, &tenant, request, rate_checked);
            }
            MeshMessage::ForwardReply { call, response } => self.forward_replied(call, response),
            MeshMessage::ForwardCancel { call } => self.cancel_forwarded(Caller { core: from, call }),
            MeshMessage::DirectorySnapshot { records } => self.directory_snapshot(records),
            MeshMessage::DirectoryChange { change, record, deleted } => {
                self.directory_changed(change, record, deleted);
            }
            MeshMessage::DirectoryKnown { change } => self.directory_known_by(from, change),
            MeshMessage::DirectoryCall { call, command } => {
                self.directory_call(Caller { core: from, call }, command);
            }
            MeshMessage::Waiters { queue, some } => self.waiting.set_elsewhere(queue, some),
            MeshMessage::RoomWanted { queue, shard, room, first } => {
                self.want_room(queue, shard, room, first);
            }
            MeshMessage::Serving => {
                self.serving.insert(from);
            }
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
            replica.submit(command, CommandCaller { caller: None, queue });
        }
    }

    /// A command that nobody waits for, on whatever core the shard is.
    pub(crate) fn submit_anywhere(&mut self, shard: ShardId, command: Command) {
        let core = self.config.core_of(shard);
        if core == self.config.core {
            self.submit_own(shard, command);
        } else {
            let call = self.next_number();
            let request = ShardRequest::Command(command);
            self.out.push(Output::Mesh { to: core, message: MeshMessage::Call { call, shard, request } });
        }
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
