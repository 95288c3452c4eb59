//! Redrives of queues whose limits span shards: dead letters come back only into room that the queue's home core grants,
//! out of the same account as enqueues, so that depth is never exceeded.
//!
//! A redrive at once stands in the home's line with the enqueues and is granted room shard by shard. The turns of a redrive
//! with a rate belong to each shard, whose log keeps the job: when one has come, the shard's core asks the home for room,
//! and asks again while it gets none; the home grants it as soon as there is some. Nothing is written for that, and nothing
//! of it need survive a restart.

use crate::convert::{failed, refused};
use crate::directory::QueueEntry;
use crate::enqueue::{Admitted, queue_deleted};
use crate::mesh::{MeshMessage, ShardReply, ShardRequest};
use crate::sessions::Origin;
use crate::{Core, Operation, OperationId, Output};
use overtake_base::{Level, QueueId, ShardId, UnixMillis};
use overtake_queue::answer::Answer;
use overtake_queue::command::{Command, Redrive, RedriveSelection, Room};
use overtake_wire::message::{ErrorCode, Refusal, Response};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How long a shard's core waits for room before it asks again, in milliseconds.
const ASK_AGAIN_MS: u64 = 1_000;

/// A redrive at once, at the queue's home core.
pub(crate) struct RedriveOperation {
    origin: Origin,
    pub(crate) queue: Arc<QueueEntry>,
    selection: RedriveSelection,
    priority: Option<Level>,
    /// Shards to go, and how many dead letters each has.
    left: VecDeque<(ShardId, u64)>,
    granted: Admitted,
    moved: u64,
}

/// Room granted for turns of redrive jobs of one shard.
pub(crate) struct GrantOperation {
    queue: QueueId,
    shard: ShardId,
    granted: Admitted,
}

/// Redrive jobs that wait for room.
#[derive(Default)]
pub(crate) struct RoomWanted {
    /// At their shards' core: when to ask again.
    asked: BTreeMap<(ShardId, QueueId), UnixMillis>,
    /// At the home core: what each shard asked for, and the body bytes of its next dead letter.
    wanted: BTreeMap<QueueId, BTreeMap<ShardId, (Room, u64)>>,
    /// Shards that have a grant on its way.
    granting: BTreeSet<(QueueId, ShardId)>,
}

impl RoomWanted {
    /// Whoever still wants room for a queue asks again.
    pub(crate) fn forget(&mut self, queue: QueueId) {
        self.wanted.remove(&queue);
    }
}

impl Core {
    pub(crate) fn redrive_into_room(
        &mut self,
        origin: Origin,
        queue: Arc<QueueEntry>,
        selection: RedriveSelection,
        priority: Option<Level>,
        counts: Vec<(ShardId, u64)>,
    ) {
        let operation = self.next_number();
        let id = queue.record.id;
        let left = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        let granted = Admitted::default();
        let state = RedriveOperation { origin, queue, selection, priority, left, granted, moved: 0 };
        self.operations.insert(operation, Operation::Redrive(state));
        self.quotas.line_up(id, operation);
        self.admit(id);
    }

    /// The redrive is first in line, and `free` is what there is; room for nothing ends it. True where it is over or on its
    /// way, and false where it has to wait: what is under way may turn out to take less.
    pub(crate) fn grant_redrive(&mut self, operation: OperationId, free: Room, others: bool) -> bool {
        let Some(Operation::Redrive(mut state)) = self.operations.remove(&operation) else { return true };
        let config = &state.queue.record.config;
        let Some((shard, count)) = state.left.front().copied() else {
            self.redriven(&state);
            return true;
        };
        let room = Room { messages: free.messages.min(count), bytes: free.bytes };
        if others && (room.messages < count || config.max_bytes.is_some()) {
            self.operations.insert(operation, Operation::Redrive(state));
            return false;
        }
        if room.messages == 0 {
            self.redriven(&state);
            return true;
        }
        let bytes = if config.max_bytes.is_some() { room.bytes } else { 0 };
        state.granted = Admitted { messages: room.messages, bytes };
        let id = state.queue.record.id;
        self.quotas.let_in(id, state.granted);
        let selection = state.selection.clone();
        let redrive =
            Redrive { selection, priority: state.priority, rate_per_1000_s: None, room: Some(room) };
        self.operations.insert(operation, Operation::Redrive(state));
        self.call(operation, 0, shard, ShardRequest::Command(Command::Redrive { queue: id, redrive }));
        true
    }

    fn redriven(&mut self, state: &RedriveOperation) {
        self.respond(state.origin, Response::Redriven { moved: state.moved });
    }

    pub(crate) fn redrive_replied(
        &mut self,
        operation: OperationId,
        mut state: RedriveOperation,
        reply: &ShardReply,
    ) {
        let id = state.queue.record.id;
        self.quotas.settled(id, state.granted);
        match reply {
            ShardReply::Answer(Answer::Redriven(moved)) => {
                state.moved += moved;
                match state.left.front_mut() {
                    // It took all that was granted: there may be room for more of the same shard.
                    Some((_, count)) if *moved == state.granted.messages && *count > *moved => {
                        *count -= moved
                    }
                    _ => _ = state.left.pop_front(),
                }
                self.operations.insert(operation, Operation::Redrive(state));
                self.quotas.line_up(id, operation);
            }
            ShardReply::Failed { .. } => self.redrive_failed(&state, failed(reply)),
            _ => self.redrive_failed(&state, queue_deleted()),
        }
        self.admit(id);
    }

    /// It cannot go on. Of a queue that is no more it does not matter what it did.
    pub(crate) fn redrive_failed(&mut self, state: &RedriveOperation, refusal: Refusal) {
        let in_parts = state.moved > 0 && refusal.code != ErrorCode::NotFound;
        let detail = "some shards of the queue did it and some could not; retry";
        let refusal = if in_parts { Refusal::fate_unknown(detail, 1_000) } else { refusal };
        self.respond(state.origin, refused(refusal));
    }

    /// Asks for room for redrive jobs of this core's shards whose turn has come.
    pub(crate) fn ask_for_room(&mut self) {
        let now = self.time;
        let mut due = Vec::new();
        for (shard, replica) in self.replicas.iter().filter(|(_, replica)| replica.serves()) {
            let turns = replica.machine.redrives_without_room().filter(|(_, turn)| *turn <= now);
            due.extend(turns.map(|(queue, _)| (*shard, queue)));
        }
        for (shard, queue) in due {
            if self.room_wanted.asked.get(&(shard, queue)).is_some_and(|again| *again > now) {
                continue;
            }
            let Some(entry) = self.directory.by_id(queue).cloned() else { continue };
            let Some(replica) = self.replicas.get(&shard) else { continue };
            let (room, first) = replica.machine.room_wanted(queue, now);
            self.room_wanted.asked.insert((shard, queue), now.plus_ms(ASK_AGAIN_MS));
            match self.leader_of(entry.home()) {
                Some(home) if home == self.me => self.want_room(queue, shard, room, first),
                Some(to) => {
                    let message = MeshMessage::RoomWanted { queue, shard, room, first };
                    self.out.push(Output::Mesh { to, message });
                }
                // Asked again in a moment.
                None => {}
            }
        }
    }

    /// When [`Core::ask_for_room`] has something to do.
    pub(crate) fn next_ask(&self) -> Option<UnixMillis> {
        let serving = self.replicas.iter().filter(|(_, replica)| replica.serves());
        let turns = serving.flat_map(|(shard, replica)| {
            let turns = replica.machine.redrives_without_room();
            turns.map(move |(queue, turn)| ((*shard, queue), turn))
        });
        let asked = &self.room_wanted.asked;
        let asks = turns.map(|(whose, turn)| asked.get(&whose).map_or(turn, |again| turn.max(*again)));
        asks.filter(|at| *at != UnixMillis::NEVER).min()
    }

    /// A shard took turns: it asks anew for the next ones.
    pub(crate) fn turns_taken(&mut self, shard: ShardId, queue: QueueId) {
        self.room_wanted.asked.remove(&(shard, queue));
    }

    /// A shard asks this core, the queue's home, for room.
    pub(crate) fn want_room(&mut self, queue: QueueId, shard: ShardId, room: Room, first: u64) {
        self.room_wanted.wanted.entry(queue).or_default().insert(shard, (room, first));
        self.grant_turns(queue);
    }

    /// Grants room to the redrive jobs of all queues at home here. True where any was granted.
    pub(crate) fn grant_wanted(&mut self) -> bool {
        let queues: Vec<QueueId> = self.room_wanted.wanted.keys().copied().collect();
        let before = self.room_wanted.granting.len();
        queues.into_iter().for_each(|queue| self.grant_turns(queue));
        self.room_wanted.granting.len() > before
    }

    /// Grants room to a queue's redrive jobs where there is some.
    pub(crate) fn grant_turns(&mut self, queue: QueueId) {
        let Some(wanted) = self.room_wanted.wanted.get(&queue) else { return };
        let mut wanted = wanted.clone();
        let Some(entry) = self.directory.by_id(queue).cloned() else {
            self.room_wanted.forget(queue);
            return;
        };
        if entry.needs_quota() && !self.knows_depth(queue) {
            return;
        }
        wanted.retain(|shard, (room, first)| {
            let whose = (queue, *shard);
            let free = self.free_room(&entry);
            if self.room_wanted.granting.contains(&whose) || free.messages == 0 || free.bytes < *first {
                return true;
            }
            let room = Room { messages: room.messages.min(free.messages), bytes: room.bytes.min(free.bytes) };
            let granted = Admitted { messages: room.messages, bytes: room.bytes };
            self.quotas.let_in(queue, granted);
            self.room_wanted.granting.insert(whose);
            let operation = self.next_number();
            let state = GrantOperation { queue, shard: *shard, granted };
            self.operations.insert(operation, Operation::Grant(state));
            self.call(operation, 0, *shard, ShardRequest::Command(Command::RedriveTurns { queue, room }));
            false
        });
        if wanted.is_empty() {
            self.room_wanted.wanted.remove(&queue);
        } else {
            self.room_wanted.wanted.insert(queue, wanted);
        }
    }

    pub(crate) fn grant_replied(&mut self, state: &GrantOperation) {
        self.room_wanted.granting.remove(&(state.queue, state.shard));
        self.quotas.settled(state.queue, state.granted);
        self.admit(state.queue);
    }
}
