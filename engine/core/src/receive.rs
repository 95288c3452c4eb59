//! Receives: plan from the heads, pull from the shards at once, answer with what came; wait where nothing did.
//!
//! Receives that wait do so on the queue's home core, in one line, so that the longest waiter is served first.

use crate::calls::RETRY_NS;
use crate::convert::{delivered, failed, refused};
use crate::directory::QueueEntry;
use crate::errands::Task;
use crate::identity::Tenant;
use crate::mesh::{Caller, MeshMessage, ShardReply, ShardRequest};
use crate::planner::{Pull, Wanted, allowed, give_back, plan_many_shards, plan_one_shard};
use crate::sessions::Origin;
pub(crate) use crate::waiting::{ReceiveAt, Waiting, Wake, WakeTimers};
use crate::{Core, Operation, OperationId, Output};
use overtake_base::limits::RECEIVE_BYTES_MAX;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Level, QueueId, ShardId, UnixMillis};
use overtake_queue::command::{Command, Lease, LeaseKey, LevelChoice, Pick};
use overtake_queue::rate::RateLimiter;
use overtake_wire::message::{Delivered, Receive, Refusal, Response};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rounds in which a receive that need not wait may come back with nothing although heads were visible.
const ROUNDS_MAX: u32 = 8;

/// A receive under way.
pub(crate) struct ReceiveOperation {
    origin: Origin,
    tenant: Tenant,
    receive: Receive,
    queue: Arc<QueueEntry>,
    wanted: Wanted,
    /// Its place in the line.
    arrival: u64,
    /// Monotonic end of its wait.
    deadline_ns: u64,
    pulls: Vec<Pull>,
    outstanding: usize,
    got: Vec<Delivered>,
    rounds: u32,
    failed: Option<Refusal>,
    cancelled: bool,
}

impl ReceiveOperation {
    fn ceiling(&self) -> Level {
        self.wanted.ceiling.unwrap_or(Level(u8::MAX))
    }

    fn id(&self) -> QueueId {
        self.queue.record.id
    }
}

impl Core {
    /// Begins a receive that waits until a monotonic instant.
    pub(crate) fn start_receive(
        &mut self,
        origin: Origin,
        tenant: &Tenant,
        receive: Receive,
        deadline_ns: u64,
    ) {
        let queue = match self.find_queue(tenant, &receive.queue) {
            Ok(queue) => queue,
            Err(refusal) => return self.respond(origin, refused(refusal)),
        };
        let levels = queue.record.config.levels;
        let ceiling = receive.max_priority.map(|priority| u8::try_from(priority).unwrap_or(u8::MAX));
        if ceiling.is_some_and(|ceiling| ceiling >= levels) {
            let detail = format!("max_priority must be 0..={}, this queue has {levels} levels", levels - 1);
            return self.respond(origin, refused(Refusal::invalid("max_priority", detail)));
        }
        if self.leader_of(queue.home()) != Some(self.me) {
            if let Origin::Core(caller) = origin {
                return self.send_back(caller);
            }
            if queue.is_capped() || self.waiting.is_elsewhere(queue.record.id) {
                return self.forward_receive(origin, tenant, &queue, receive, deadline_ns);
            }
        }
        let operation = self.next_number();
        let state = ReceiveOperation {
            origin,
            tenant: tenant.clone(),
            wanted: Wanted { max: receive.max, ceiling: ceiling.map(Level) },
            queue,
            arrival: if is_planted(Bug::LastWaiterFirst) { !operation } else { operation },
            deadline_ns,
            receive,
            pulls: Vec::new(),
            outstanding: 0,
            got: Vec::new(),
            rounds: 0,
            failed: None,
            cancelled: false,
        };
        match origin {
            Origin::Core(caller) => self.waiting.note_forwarded(caller, operation),
            origin => self.sessions.note_receive(origin, ReceiveAt::Here(operation)),
        }
        // Who has waited longer is first, also where what there is came in this very turn.
        self.pump_touched(state.id());
        self.try_receive(operation, state);
    }

    fn forward_receive(
        &mut self,
        origin: Origin,
        tenant: &Tenant,
        queue: &QueueEntry,
        receive: Receive,
        deadline_ns: u64,
    ) {
        let (home, queue) = (queue.home(), queue.record.id);
        let task = Task::Receive { tenant: tenant.clone(), receive, queue, deadline_ns };
        let call = self.send_errand(origin, home, task);
        if self.errands.contains_key(&call) {
            self.sessions.note_receive(origin, ReceiveAt::There { call });
        }
    }

    /// Pulls what is visible; where nothing is, waits or answers with nothing.
    fn try_receive(&mut self, operation: OperationId, mut state: ReceiveOperation) {
        let pulls = self.plan(&state);
        if pulls.is_empty() {
            return self.nothing_there(operation, state);
        }
        let queue = state.id();
        let max_bytes = (RECEIVE_BYTES_MAX / pulls.len()) as u64;
        let lease_ms = state.receive.lease_s.map(|s| u64::from(s) * 1_000);
        let worker: Option<Box<str>> = state.receive.worker.as_deref().map(Into::into);
        state.outstanding = pulls.len();
        state.pulls = pulls;
        let mut leases = Vec::with_capacity(state.pulls.len());
        for pull in &state.pulls {
            for claim in &pull.claims {
                self.view.claim(queue, *claim);
            }
            let choice = pull.choice.clone();
            let lease = Lease { max: pull.max, max_bytes, lease_ms, worker: worker.clone(), choice };
            leases.push((pull.shard, Command::Lease { queue, lease }));
        }
        self.operations.insert(operation, Operation::Receive(state));
        for (part, (shard, command)) in leases.into_iter().enumerate() {
            self.call(operation, part, shard, ShardRequest::Command(command));
        }
    }

    fn plan(&mut self, state: &ReceiveOperation) -> Vec<Pull> {
        let queue = state.id();
        let Some(heads) = self.view.queue(queue) else { return Vec::new() };
        if let [shard] = state.queue.shards[..] {
            let (limiter, now) = self.limiter(&state.queue);
            let (hidden, wanted) = (&self.hidden, state.wanted);
            return plan_one_shard(heads, hidden, shard, wanted, limiter, now).into_iter().collect();
        }
        let Some(scheduler) = self.schedulers.get_mut(&queue) else { return Vec::new() };
        let caps = self.quotas.caps_mut(queue);
        plan_many_shards(heads, &self.hidden, scheduler, state.wanted, self.time, caps)
    }

    /// What decides about a capped queue's deliveries, at its home core, and the time by which it does: the shard where
    /// there is one, which keeps it in its log, else this core.
    fn limiter(&self, queue: &QueueEntry) -> (Option<&RateLimiter>, UnixMillis) {
        if !queue.is_capped() {
            return (None, self.time);
        }
        match queue.shards[..] {
            [shard] => {
                let machine = self.replicas.get(&shard).map(|replica| &replica.machine);
                let limiter = machine.and_then(|machine| machine.limiter(queue.record.id));
                (limiter, machine.map_or(self.time, |machine| self.time.max(machine.time())))
            }
            _ => (self.quotas.caps(queue.record.id), self.time),
        }
    }

    fn nothing_there(&mut self, operation: OperationId, state: ReceiveOperation) {
        let queue = state.id();
        if state.cancelled || self.stopping || !self.is_wanted(state.origin) {
            return self.respond(state.origin, Response::Received { messages: Vec::new() });
        }
        let waits = state.deadline_ns > self.now.monotonic_ns;
        let is_home = self.leader_of(state.queue.home()) == Some(self.me);
        if waits && is_home {
            self.timers.add(state.deadline_ns, Wake::Receive(operation));
            self.waiting.add(queue, state.ceiling(), state.arrival, operation);
            let entry = state.queue.clone();
            self.operations.insert(operation, Operation::Receive(state));
            self.tell_waiters(queue);
            self.wake_at_cap(&entry);
        } else if !is_home && let Origin::Core(caller) = state.origin {
            self.waiting.forget_forwarded(caller);
            self.send_back(caller);
        } else if self.view.queue(queue).is_some_and(|heads| heads.has_claims()) && state.rounds < ROUNDS_MAX
        {
            // Others have claimed what was visible, and may take less: look again when they are answered.
            self.waiting.add_unsettled(queue, state.arrival, operation);
            self.operations.insert(operation, Operation::Receive(state));
        } else if waits {
            let ReceiveOperation { origin, tenant, receive, queue, deadline_ns, .. } = state;
            self.forward_receive(origin, &tenant, &queue, receive, deadline_ns);
        } else if state.queue.shards.iter().all(|shard| self.hidden.contains(shard)) {
            let detail = "no shard of the queue has a leader that can be reached; try again";
            self.respond(state.origin, refused(Refusal::no_quorum(detail, 1_000)));
        } else {
            self.respond(state.origin, Response::Received { messages: Vec::new() });
        }
    }

    pub(crate) fn receive_replied(
        &mut self,
        operation: OperationId,
        mut state: ReceiveOperation,
        part: usize,
        reply: ShardReply,
    ) {
        state.outstanding -= 1;
        let queue = state.id();
        let pull = &state.pulls[part];
        for claim in pull.claims.iter().filter(|_| !is_planted(Bug::ClaimKept)) {
            self.view.unclaim(queue, *claim);
        }
        // Where a shard of a cluster has no leader that serves, its heads stay as they are: who waits for them would ask again
        // and again in this very turn. A timer looks at them.
        if self.map.is_single() || matches!(reply, ShardReply::Leased(_) | ShardReply::Answer(_)) {
            self.waiting.touch(queue);
        }
        match reply {
            ShardReply::Leased(leased) => {
                self.refund(
                    queue,
                    state.wanted,
                    pull,
                    leased.iter().map(|(delivery, _)| (delivery.priority, delivery.share)),
                );
                let shard = pull.shard;
                state.got.extend(
                    leased.into_iter().map(|(delivery, payload)| delivered(shard, delivery, payload)),
                );
            }
            // The queue is gone from the shard: nothing to deliver.
            ShardReply::Answer(_) => {}
            reply => state.failed = Some(failed(&reply)),
        }
        if state.outstanding > 0 {
            self.operations.insert(operation, Operation::Receive(state));
        } else {
            self.round_over(operation, state);
        }
    }

    /// Gives the scheduler back what was planned and did not come.
    fn refund(
        &mut self,
        queue: QueueId,
        wanted: Wanted,
        pull: &Pull,
        came: impl Iterator<Item = (Level, bool)>,
    ) {
        let LevelChoice::Picks { picks, .. } = &pull.choice else { return };
        let Some(scheduler) = self.schedulers.get_mut(&queue) else { return };
        let mut left: BTreeMap<(Level, bool), u32> = BTreeMap::new();
        for pick in picks {
            *left.entry((pick.level, pick.share)).or_default() += pick.count;
        }
        for key in came {
            // What came of a more urgent level than planned stands for the most urgent pick left. It has no cap of its own.
            let stands_for = if left.get(&key).is_some_and(|count| *count > 0) {
                Some(key)
            } else {
                left.iter().find(|(_, count)| **count > 0).map(|(key, _)| *key)
            };
            if let Some(count) = stands_for.and_then(|key| left.get_mut(&key)) {
                *count -= 1;
            }
        }
        for ((level, share), count) in left {
            give_back(scheduler, wanted, self.quotas.caps_mut(queue), Pick { level, count, share });
        }
    }

    fn round_over(&mut self, operation: OperationId, mut state: ReceiveOperation) {
        state.pulls.clear();
        if !state.got.is_empty() {
            self.timers.remove(state.deadline_ns, Wake::Receive(operation));
            let (origin, queue, cancelled) = (state.origin, state.id(), state.cancelled);
            let messages = in_order(state.got, state.queue.shards.len() == 1);
            if cancelled {
                self.unlease(queue, &messages);
                return self.respond(origin, Response::Received { messages: Vec::new() });
            }
            return self.respond_received(origin, queue, messages);
        }
        let unled = !self.map.is_single() && state.failed.take().is_some();
        if unled {
            // Shards without a leader are planned around; one that only comes late is looked at again.
            self.timers.add(self.now.monotonic_ns + RETRY_NS, Wake::Queue(state.id()));
        }
        if let Some(refusal) = state.failed.take() {
            self.timers.remove(state.deadline_ns, Wake::Receive(operation));
            return self.respond(state.origin, refused(refusal));
        }
        state.rounds += 1;
        // Somebody who has waited longer may take what is there now.
        let queue = state.id();
        let waits = state.deadline_ns > self.now.monotonic_ns && self.waiting.any(queue);
        if state.rounds.is_multiple_of(ROUNDS_MAX) || waits {
            self.nothing_there(operation, state);
            if !unled {
                self.waiting.touch(queue);
            }
        } else {
            self.pump_touched(queue);
            self.try_receive(operation, state);
        }
    }

    /// Hands messages to whoever asked; where nobody is there any more, or has not taken earlier ones, their leases are
    /// undone.
    pub(crate) fn respond_received(&mut self, origin: Origin, queue: QueueId, mut messages: Vec<Delivered>) {
        let over = matches!(origin, Origin::Session { session, .. } if self.answers.is_over(session));
        if over || !self.is_wanted(origin) {
            self.counters.receives_turned_back += u64::from(over);
            self.unlease(queue, &messages);
            messages.clear();
        }
        self.respond(origin, Response::Received { messages });
    }

    fn unlease(&mut self, queue: QueueId, messages: &[Delivered]) {
        if is_planted(Bug::LeaseOfTheGone) {
            return;
        }
        let mut shards: BTreeMap<ShardId, Vec<LeaseKey>> = BTreeMap::new();
        for message in messages {
            let receipt = message.receipt;
            let key = LeaseKey { sequence: receipt.sequence, deliveries: receipt.deliveries };
            shards.entry(receipt.shard).or_default().push(key);
        }
        for (shard, leases) in shards {
            self.submit_anywhere(shard, Command::Unlease { queue, leases });
        }
    }

    /// Serves the longest waiters of queues whose heads changed. True where anyone was served.
    pub(crate) fn pump_waiters(&mut self) -> bool {
        let mut any = false;
        // Not what is touched meanwhile: that is for the next round.
        let mut last = None;
        while let Some(queue) = self.waiting.next_touched(last) {
            last = Some(queue);
            any |= self.pump(queue);
        }
        any
    }

    fn pump_touched(&mut self, queue: QueueId) {
        if self.waiting.take_touched(queue) {
            self.pump(queue);
        }
    }

    fn pump(&mut self, queue: QueueId) -> bool {
        let Some(entry) = self.directory.by_id(queue).cloned() else { return false };
        let mut any = false;
        while let Some(level) = self.most_urgent_available(&entry)
            && let Some(operation) = self.waiting.take_longest(queue, level)
        {
            let Some(Operation::Receive(state)) = self.operations.remove(&operation) else { continue };
            any = true;
            let (ceiling, arrival) = (state.ceiling(), state.arrival);
            self.try_receive(operation, state);
            if self.waiting.remove(queue, ceiling, arrival) {
                // It could not be served although something is visible: back to its place.
                self.waiting.add(queue, ceiling, arrival, operation);
                break;
            }
        }
        // Who does not wait comes after those who do.
        for operation in self.waiting.take_unsettled(queue).into_values() {
            if let Some(Operation::Receive(state)) = self.operations.remove(&operation) {
                any = true;
                self.try_receive(operation, state);
            }
        }
        self.tell_waiters(queue);
        self.wake_at_cap(&entry);
        any
    }

    /// The most urgent level of which something can be delivered now.
    fn most_urgent_available(&self, queue: &QueueEntry) -> Option<Level> {
        let heads = self.view.queue(queue.record.id)?;
        let (limiter, now) = self.limiter(queue);
        let may_go = |level: &Level| match (limiter, &queue.shards[..]) {
            (None, _) => true,
            (limiter, [_]) => allowed(heads, limiter, *level, now) > 0,
            // What is under way was taken from the limiter.
            (Some(limiter), _) => limiter.ready_at(*level, now) <= now,
        };
        heads.available(Level(u8::MAX), &self.hidden).map(|(_, summary)| summary.level).filter(may_go).min()
    }

    /// Where only a rate cap keeps a queue's waiters waiting, looks at them again when it allows a delivery.
    fn wake_at_cap(&mut self, queue: &QueueEntry) {
        if !queue.is_capped() {
            return;
        }
        let id = queue.record.id;
        let (limiter, now) = self.limiter(queue);
        let ready = self.view.queue(id).filter(|_| self.waiting.any(id)).into_iter().flat_map(|heads| {
            let levels = heads.available(Level(u8::MAX), &self.hidden).map(|(_, summary)| summary.level);
            levels.filter_map(move |level| Some(limiter?.ready_at(level, now)))
        });
        let ready = ready.filter(|ready| *ready > now && *ready != UnixMillis::NEVER).min();
        let at_ns = ready.map(|ready| self.clock.monotonic_at(ready));
        if let Some(before_ns) = self.waiting.set_wake(id, at_ns) {
            self.timers.remove(before_ns, Wake::Queue(id));
        }
        if let Some(at_ns) = at_ns {
            self.timers.add(at_ns, Wake::Queue(id));
        }
    }

    /// Tells the other cores where it changed whether anyone waits for a queue here.
    fn tell_waiters(&mut self, queue: QueueId) {
        let Some(some) = self.waiting.news(queue) else { return };
        for to in self.all_others() {
            self.out.push(Output::Mesh { to, message: MeshMessage::Waiters { queue, some } });
        }
    }

    pub(crate) fn expire_timers(&mut self) {
        while let Some(wake) = self.timers.take_due(self.now.monotonic_ns) {
            match wake {
                Wake::Receive(operation) => self.end_wait(operation, None),
                Wake::Queue(queue) => self.waiting.wake(queue),
                Wake::Enqueue(operation, part) => self.enqueue_woken(operation, part),
                Wake::Call(call) => self.retry_call(call),
                Wake::Errand(call) => self.retry_errand(call),
                Wake::ErrandOver(call) => self.errand_over(call),
                Wake::Doubt(number) => self.doubt_over(number),
            }
        }
    }

    /// Ends a receive that waits; one that is pulling ends by itself.
    fn end_wait(&mut self, operation: OperationId, refusal: Option<Refusal>) {
        let Some(Operation::Receive(state)) = self.operations.get(&operation) else { return };
        let (queue, ceiling, arrival) = (state.id(), state.ceiling(), state.arrival);
        let (origin, deadline_ns) = (state.origin, state.deadline_ns);
        if self.waiting.remove(queue, ceiling, arrival) {
            self.operations.remove(&operation);
            self.timers.remove(deadline_ns, Wake::Receive(operation));
            self.tell_waiters(queue);
            let empty = Response::Received { messages: Vec::new() };
            self.respond(origin, refusal.map_or(empty, refused));
        }
    }

    pub(crate) fn cancel_receive(&mut self, at: ReceiveAt) {
        match at {
            ReceiveAt::Here(operation) => self.cancel_here(operation),
            ReceiveAt::There { call } => self.cancel_errand(call),
        }
    }

    pub(crate) fn cancel_forwarded(&mut self, caller: Caller) {
        if let Some(operation) = self.waiting.forget_forwarded(caller) {
            self.cancel_here(operation);
        }
    }

    pub(crate) fn cancel_here(&mut self, operation: OperationId) {
        self.end_wait(operation, None);
        if let Some(Operation::Receive(state)) = self.operations.get_mut(&operation) {
            state.cancelled = true;
        }
    }

    pub(crate) fn end_waits(&mut self) {
        for queue in self.waiting.queues() {
            for operation in self.waiting.take_all(queue) {
                if let Some(Operation::Receive(state)) = self.operations.remove(&operation) {
                    self.timers.remove(state.deadline_ns, Wake::Receive(operation));
                    match state.origin {
                        // Another node may be home to it then.
                        Origin::Core(caller) if !self.map.is_single() => {
                            self.waiting.forget_forwarded(caller);
                            self.send_back(caller);
                        }
                        origin => self.respond(origin, Response::Received { messages: Vec::new() }),
                    }
                }
            }
            self.tell_waiters(queue);
        }
    }

    /// Another core leads a shard than before: what waits here at queues that were at home with it asks there.
    pub(crate) fn homes_moved(&mut self, shard: ShardId) {
        if self.leader_of(shard) == Some(self.me) {
            return;
        }
        for queue in self.waiting.queues() {
            if self.directory.by_id(queue).is_none_or(|entry| entry.home() != shard) {
                continue;
            }
            for operation in self.waiting.take_all(queue) {
                if let Some(Operation::Receive(state)) = self.operations.remove(&operation) {
                    self.timers.remove(state.deadline_ns, Wake::Receive(operation));
                    self.try_receive(operation, state);
                }
            }
            self.tell_waiters(queue);
        }
    }

    /// The queue was deleted: nothing will ever come.
    pub(crate) fn refuse_waiters(&mut self, queue: QueueId) {
        for operation in self.waiting.take_all(queue) {
            if let Some(Operation::Receive(state)) = self.operations.remove(&operation) {
                self.timers.remove(state.deadline_ns, Wake::Receive(operation));
                self.respond(state.origin, refused(Refusal::not_found("the queue was deleted")));
            }
        }
        self.tell_waiters(queue);
    }
}

/// Most urgent first. Each shard's part is in lane order already and stays so; the parts of several are merged by time of
/// enqueue.
fn in_order(mut messages: Vec<Delivered>, one_shard: bool) -> Vec<Delivered> {
    if one_shard {
        messages.sort_by_key(|message| message.priority);
        return messages;
    }
    // Something delayed was enqueued before what is ahead of it in its lane: it counts as new as that.
    let mut newest: BTreeMap<(ShardId, u8), UnixMillis> = BTreeMap::new();
    let mut keyed: Vec<_> = messages
        .into_iter()
        .map(|message| {
            let lane = newest.entry((message.receipt.shard, message.priority)).or_default();
            *lane = (*lane).max(message.enqueued_at);
            (*lane, message)
        })
        .collect();
    keyed.sort_by_key(|(time, message)| (message.priority, *time));
    keyed.into_iter().map(|(_, message)| message).collect()
}
