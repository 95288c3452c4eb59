//! Enqueues: each message gets its id and its shard, each shard gets one command, each message its own outcome.

use crate::calls::queue_of;
use crate::convert::{failed, refused};
use crate::directory::QueueEntry;
use crate::identity::Tenant;
use crate::mesh::{Caller, Read, ShardReply, ShardRequest};
use crate::replica::CommandCaller;
use crate::sessions::Origin;
use crate::stray::{Stray, StrayStep, is_stray, look_before, stray_replied};
use crate::{Core, Operation, OperationId};
use bytes::Bytes;
use overtake_base::limits::CLIENT_ID_SKEW_MS_MAX;
use overtake_base::{Level, MessageId, QueueConfig, ShardId, UnixMillis};
use overtake_queue::answer::{Answer, EnqueueOutcome};
use overtake_queue::command::{Command, NewMessage, RefusedReason, VisibleWhen};
use overtake_wire::message::{Delay, EnqueueMessage, Enqueued, Refusal, Request, Response};
use std::collections::BTreeMap;
use std::sync::Arc;

/// When to try again after a refusal that any ack may end, in milliseconds.
const RETRY_MS: u32 = 1_000;
/// When to try again while there is no disk head-room, in milliseconds.
const RETRY_DISK_MS: u32 = 5_000;

/// An enqueue under way.
pub(crate) struct EnqueueOperation {
    pub(crate) origin: Origin,
    tenant: Tenant,
    /// Set while a queue that did not exist is created.
    waiting: Option<(String, Vec<EnqueueMessage>)>,
    pub(crate) queue: Option<Arc<QueueEntry>>,
    pub(crate) results: Vec<Option<Result<Enqueued, Refusal>>>,
    pub(crate) parts: Vec<Part>,
    outstanding: usize,
    pub(crate) strays: Vec<Stray>,
    /// What a queue with limits over several shards still has to admit.
    pub(crate) pending: Vec<Placed>,
    pub(crate) admitted: Admitted,
    /// When those that are refused may try again.
    pub(crate) retry_ms: u32,
}

/// Messages and body bytes that were let in and are not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Admitted {
    pub messages: u64,
    pub bytes: u64,
}

/// A message that has its id and its shard.
pub(crate) struct Placed {
    pub place: usize,
    pub shard: ShardId,
    pub message: NewMessage,
}

impl Placed {
    pub(crate) fn body_bytes(&self) -> u64 {
        self.message.body.len() as u64
    }
}

/// Places of messages in their request, and their ids.
pub(crate) type Places = Vec<(usize, MessageId)>;

/// What a call was about.
pub(crate) enum Part {
    /// Messages stored by one command: their places and ids.
    Store(ShardId, Places),
    /// Whether a message that has no room is a repeat: its place, and the refusal if it is none.
    Repeat(ShardId, usize, RefusedReason),
    /// A step of a message whose id and key belong to different shards.
    Stray(usize, StrayStep),
    /// Refusals being counted: they are answered when they are, so that statistics never lag behind answers.
    Noted(Vec<usize>, RefusedReason),
    /// Answered.
    Over,
}

impl Core {
    pub(crate) fn start_enqueue(
        &mut self,
        origin: Origin,
        tenant: &Tenant,
        name: String,
        messages: Vec<EnqueueMessage>,
        rate_checked: bool,
    ) {
        if !rate_checked && let Some(home) = self.tenant_rates.home(tenant) {
            if home != self.config.core {
                let request = Request::Enqueue { queue: name, messages };
                self.forward(origin, home, None, tenant, request, false);
                return;
            }
            if let Err(wait_ms) = self.tenant_rates.take(tenant, messages.len() as u64, self.time) {
                return self.over_rate(origin, tenant, &name, messages, wait_ms);
            }
        }
        let queue = match self.find_queue(tenant, &name) {
            Ok(queue) => queue,
            Err(_) if self.config.auto_create => return self.create_first(origin, tenant, name, messages),
            Err(refusal) => return self.respond(origin, refused(refusal)),
        };
        let home = self.config.core_of(queue.home());
        if queue.needs_quota() && home != self.config.core {
            let request = Request::Enqueue { queue: name, messages };
            self.forward(origin, home, None, tenant, request, true);
            return;
        }
        self.enqueue_into(origin, tenant, queue, messages);
    }

    /// Refuses what the tenant's rate does not allow, but answers repeats: those are asked for before any limit.
    fn over_rate(
        &mut self,
        origin: Origin,
        tenant: &Tenant,
        name: &str,
        messages: Vec<EnqueueMessage>,
        wait_ms: u32,
    ) {
        let Ok(queue) = self.find_queue(tenant, name) else {
            let results = messages.iter().map(|_| Err(no_room(RefusedReason::Rate, wait_ms))).collect();
            return self.respond(origin, Response::Enqueued { results });
        };
        let mut state = self.place_all(origin, tenant, queue, messages);
        state.retry_ms = wait_ms;
        let operation = self.next_number();
        self.store(operation, state, 0, Some(RefusedReason::Rate));
    }

    /// Creates the queue with defaults, unless no message would be accepted anyway.
    fn create_first(&mut self, origin: Origin, tenant: &Tenant, name: String, messages: Vec<EnqueueMessage>) {
        let patch = overtake_base::QueueConfigPatch::default();
        if let Ok(config) = QueueConfig::create(&patch, self.config.shards) {
            let refusals: Vec<_> =
                messages.iter().filter_map(|message| self.check(&config, message).err()).collect();
            if refusals.len() == messages.len() {
                let results = refusals.into_iter().map(Err).collect();
                return self.respond(origin, Response::Enqueued { results });
            }
        }
        let operation = self.next_number();
        let state = EnqueueOperation {
            origin,
            tenant: tenant.clone(),
            waiting: Some((name.clone(), messages)),
            queue: None,
            results: Vec::new(),
            parts: Vec::new(),
            outstanding: 0,
            strays: Vec::new(),
            pending: Vec::new(),
            admitted: Admitted::default(),
            retry_ms: RETRY_MS,
        };
        self.operations.insert(operation, Operation::Enqueue(state));
        self.put_queue(Origin::Operation(operation), tenant, &name, patch, true);
    }

    /// The queue that an enqueue waited for was created, or could not be.
    pub(crate) fn operation_resumed(&mut self, operation: OperationId, response: Response) {
        let Some(Operation::Enqueue(state)) = self.operations.remove(&operation) else { return };
        let Some((name, messages)) = state.waiting else { return };
        match response {
            Response::QueuePut { .. } => {
                self.start_enqueue(state.origin, &state.tenant, name, messages, true)
            }
            response => self.respond(state.origin, response),
        }
    }

    fn enqueue_into(
        &mut self,
        origin: Origin,
        tenant: &Tenant,
        queue: Arc<QueueEntry>,
        messages: Vec<EnqueueMessage>,
    ) {
        let state = self.place_all(origin, tenant, queue.clone(), messages);
        // Nothing to admit: in line it would only hold others up.
        if state.pending.is_empty() {
            return self.enqueued(state);
        }
        let operation = self.next_number();
        if queue.needs_quota() {
            self.operations.insert(operation, Operation::Enqueue(state));
            self.quotas.line_up(queue.record.id, operation);
            self.admit(queue.record.id);
        } else {
            self.store(operation, state, usize::MAX, None);
        }
    }

    /// Gives each good message its id and its shard, and each other one its refusal.
    fn place_all(
        &mut self,
        origin: Origin,
        tenant: &Tenant,
        queue: Arc<QueueEntry>,
        messages: Vec<EnqueueMessage>,
    ) -> EnqueueOperation {
        let mut results = Vec::with_capacity(messages.len());
        let mut pending = Vec::with_capacity(messages.len());
        for (place, message) in messages.into_iter().enumerate() {
            results.push(match self.place(&queue, place, message) {
                Ok(good) => {
                    pending.push(good);
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            });
        }
        EnqueueOperation {
            origin,
            tenant: tenant.clone(),
            waiting: None,
            queue: Some(queue),
            results,
            parts: Vec::new(),
            outstanding: 0,
            strays: Vec::new(),
            pending,
            admitted: Admitted::default(),
            retry_ms: RETRY_MS,
        }
    }

    /// The queue of an enqueue that stood in line was deleted.
    pub(crate) fn queue_gone(&mut self, operation: OperationId) {
        let mut state = match self.operations.remove(&operation) {
            Some(Operation::Enqueue(state)) => state,
            Some(Operation::Redrive(state)) => return self.redrive_gone(&state),
            _ => return,
        };
        for placed in core::mem::take(&mut state.pending) {
            state.results[placed.place] = Some(Err(Refusal::not_found("the queue was deleted")));
        }
        self.enqueued(state);
    }

    /// Checks a message against the queue's configuration and the time.
    fn check(&self, config: &QueueConfig, message: &EnqueueMessage) -> Result<(), Refusal> {
        message.validate()?;
        if message.priority >= u32::from(config.levels) {
            return Err(beyond_levels(config.levels));
        }
        if message.expires_in_s.is_some_and(|s| s > config.retention_s) {
            let detail = format!("expires_in_s must be 1..={}, the queue's retention", config.retention_s);
            return Err(Refusal::invalid("expires_in_s", detail));
        }
        if let Delay::At(at) = message.delay
            && at > self.time.plus_s(overtake_base::limits::DELAY_S_MAX)
        {
            let detail = "deliver_at must be at most 366 days (31622400 s) ahead";
            return Err(Refusal::invalid("deliver_at", detail));
        }
        if let Some(id) = message.id
            && id.time_ms().abs_diff(self.time.0) > CLIENT_ID_SKEW_MS_MAX
        {
            return Err(Refusal::invalid("id", "the time in id must be within 24 h of now"));
        }
        Ok(())
    }

    /// Checks a message, and gives it its id and its shard.
    fn place(
        &mut self,
        queue: &QueueEntry,
        place: usize,
        message: EnqueueMessage,
    ) -> Result<Placed, Refusal> {
        let config = &queue.record.config;
        self.check(config, &message)?;
        // Without a window dedup keys are off, so they do not decide the shard either.
        let key = message.dedup_key.filter(|_| config.dedup_window_s > 0);
        let id = message.id.unwrap_or_else(|| self.make_id(queue, key.as_ref()));
        let shard = shard_of(queue, id, key.as_ref());
        let mut headers = Vec::new();
        overtake_wire::encode_headers(&message.headers, &mut headers);
        let message = NewMessage {
            id,
            client_made_id: message.id.is_some(),
            priority: Level(u8::try_from(message.priority).unwrap_or(u8::MAX)),
            visible: match message.delay {
                Delay::None => VisibleWhen::Now,
                Delay::At(at) => VisibleWhen::At(at),
                Delay::AfterS(s) => VisibleWhen::AfterMs(s * 1_000),
            },
            dedup_key: key,
            expires_in_ms: message.expires_in_s.map(|s| s * 1_000),
            headers: headers.into(),
            body: message.body,
        };
        Ok(Placed { place, shard, message })
    }

    /// A new id: sorts after every id this core made before; with a dedup key it belongs to the key's shard.
    fn make_id(&mut self, queue: &QueueEntry, key: Option<&Bytes>) -> MessageId {
        loop {
            let time_ms = self.time.0.max(self.last_id.time_ms());
            let id = if time_ms == self.last_id.time_ms()
                && self.last_id.0 & ID_RANDOM_MASK < ID_RANDOM_MASK >> 1
            {
                // The same millisecond: count on by a random step, so that ids stay in order and hard to guess.
                MessageId(self.last_id.0 + 1 + u128::from(self.ids.next_u64() >> 24))
            } else {
                let random = u128::from(self.ids.next_u64()) << 14 | u128::from(self.ids.next_u64() >> 50);
                MessageId::new(time_ms.max(self.last_id.time_ms()), random)
            };
            self.last_id = self.last_id.max(id);
            if key.is_none_or(|key| shard_of(queue, id, None) == shard_of(queue, id, Some(key))) {
                return id;
            }
        }
    }

    /// Sends the first `admitted` pending messages to their shards; the others are refused for `reason`, unless they
    /// are repeats: that is asked before any limit.
    pub(crate) fn store(
        &mut self,
        operation: OperationId,
        mut state: EnqueueOperation,
        admitted: usize,
        reason: Option<RefusedReason>,
    ) {
        let Some(queue) = state.queue.clone() else { return };
        let id = queue.record.id;
        let mut shards: BTreeMap<ShardId, (Vec<NewMessage>, Places)> = BTreeMap::new();
        let mut requests = Vec::new();
        let mut no_repeats = Vec::new();
        let reason = reason.unwrap_or(RefusedReason::Depth);
        for (order, placed) in core::mem::take(&mut state.pending).into_iter().enumerate() {
            if is_stray(&queue, &placed) {
                let refused = (order >= admitted).then_some(reason);
                look_before(&mut state, &queue, placed, refused, &mut requests);
                continue;
            }
            let Placed { place, shard, message } = placed;
            if order < admitted {
                let (messages, places) = shards.entry(shard).or_default();
                places.push((place, message.id));
                messages.push(message);
                continue;
            }
            let asks_id = message.client_made_id.then_some(message.id);
            if message.dedup_key.is_none() && asks_id.is_none() {
                no_repeats.push(place);
            } else {
                state.parts.push(Part::Repeat(shard, place, reason));
                let read = Read::Lookup { queue: id, key: message.dedup_key, id: asks_id };
                requests.push((shard, ShardRequest::Read(read)));
            }
        }
        for (shard, (messages, places)) in shards {
            state.parts.push(Part::Store(shard, places));
            requests.push((shard, ShardRequest::Command(Command::Enqueue { queue: id, messages })));
        }
        if !no_repeats.is_empty() {
            let count = no_repeats.len() as u64;
            state.parts.push(Part::Noted(no_repeats, reason));
            requests.push((
                queue.home(),
                ShardRequest::Command(Command::NoteRefused { queue: id, reason, count }),
            ));
        }
        state.outstanding = requests.len();
        if requests.is_empty() {
            return self.enqueued(state);
        }
        self.operations.insert(operation, Operation::Enqueue(state));
        for (part, (shard, request)) in requests.into_iter().enumerate() {
            self.call(operation, part, shard, request);
        }
    }

    pub(crate) fn enqueue_replied(
        &mut self,
        operation: OperationId,
        mut state: EnqueueOperation,
        part: usize,
        reply: ShardReply,
    ) {
        state.outstanding -= 1;
        let mut then = None;
        match core::mem::replace(&mut state.parts[part], Part::Over) {
            Part::Store(shard, places) => self.stored(&mut state, shard, places, reply),
            Part::Stray(stray, step) => then = stray_replied(&mut state, stray, step, &reply),
            Part::Repeat(shard, place, reason) => match reply {
                ShardReply::Found(Some(id)) => {
                    state.results[place] = Some(Ok(Enqueued { id, shard: shard.0, duplicate: true }));
                }
                ShardReply::Found(None) => then = note_refused(&mut state, place, reason),
                reply => state.results[place] = Some(Err(failed(&reply))),
            },
            Part::Noted(places, reason) => {
                let refusal = no_room(reason, state.retry_ms);
                places.into_iter().for_each(|place| state.results[place] = Some(Err(refusal.clone())));
            }
            Part::Over => {}
        }
        if let Some((shard, request)) = then {
            let part = state.parts.len() - 1;
            state.outstanding += 1;
            self.operations.insert(operation, Operation::Enqueue(state));
            return self.call(operation, part, shard, request);
        }
        if state.outstanding > 0 {
            self.operations.insert(operation, Operation::Enqueue(state));
        } else {
            self.enqueued(state);
        }
    }

    fn stored(&mut self, state: &mut EnqueueOperation, shard: ShardId, places: Places, reply: ShardReply) {
        let outcomes = match reply {
            ShardReply::Answer(Answer::Enqueued(outcomes)) => outcomes,
            ShardReply::Answer(_) => {
                let gone = Refusal::not_found("the queue was deleted");
                return places.iter().for_each(|(place, _)| state.results[*place] = Some(Err(gone.clone())));
            }
            reply => {
                let refusal = failed(&reply);
                return places
                    .iter()
                    .for_each(|(place, _)| state.results[*place] = Some(Err(refusal.clone())));
            }
        };
        for ((place, id), outcome) in places.into_iter().zip(outcomes) {
            state.results[place] = Some(result_of(shard, id, outcome, state.retry_ms));
        }
    }

    fn enqueued(&mut self, state: EnqueueOperation) {
        if let Some(queue) = state.queue.as_ref().filter(|queue| queue.needs_quota()) {
            let id = queue.record.id;
            self.quotas.settled(id, state.admitted);
            self.admit(id);
        }
        let lost = || {
            Err(Refusal::fate_unknown("the shard gave no answer; retry with the same id or dedup key", 1_000))
        };
        let results = state.results.into_iter().map(|result| result.unwrap_or_else(lost)).collect();
        self.respond(state.origin, Response::Enqueued { results });
    }

    /// Why this core's shards store no more now.
    fn no_disk_room(&self) -> Option<RefusedReason> {
        if self.storage.is_full() {
            return Some(RefusedReason::Disk);
        }
        (self.storage.backlog_bytes() > self.config.backlog_bytes_max).then_some(RefusedReason::NoQuorum)
    }

    /// Takes an enqueue of a shard of this core. Where the disk has no room or is behind, nothing is stored, whoever asks;
    /// repeats are answered, and the refusals are counted before they are.
    pub(crate) fn submit_enqueue(&mut self, caller: Caller, shard: ShardId, command: Command) {
        let no_room = self.no_disk_room();
        let now = self.time;
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let (Command::Enqueue { queue, messages }, Some(reason)) = (&command, no_room) else {
            let queue = queue_of(&command);
            return replica.submit(command, CommandCaller { caller: Some(caller), queue });
        };
        let queue = *queue;
        let outcomes: Vec<EnqueueOutcome> = messages
            .iter()
            .map(|message| {
                let by_key = message.dedup_key.as_ref();
                let by_key = by_key.and_then(|key| replica.machine.dedup_lookup(queue, key, now));
                let by_id = || replica.machine.id_lookup(queue, message.id, now).then_some(message.id);
                let first = by_key.or_else(by_id);
                first.map_or(EnqueueOutcome::Refused(reason), EnqueueOutcome::Duplicate)
            })
            .collect();
        let refused = outcomes.iter().filter(|outcome| matches!(outcome, EnqueueOutcome::Refused(_)));
        let count = refused.count() as u64;
        self.counters.refused_disk += if reason == RefusedReason::Disk { count } else { 0 };
        if count == 0 {
            let reply = ShardReply::Answer(Answer::Enqueued(outcomes));
            return self.reply(caller, shard, Some(queue), reply);
        }
        let command = Command::NoteRefused { queue, reason, count };
        replica.submit(command, CommandCaller { caller: Some(caller), queue });
        self.refusing.insert(caller, outcomes);
    }

    /// Shard time as this core reads it.
    pub(crate) fn time(&self) -> UnixMillis {
        self.time
    }
}

/// What a shard's outcome for one message means for its sender.
pub(crate) fn result_of(
    shard: ShardId,
    id: MessageId,
    outcome: EnqueueOutcome,
    retry_ms: u32,
) -> Result<Enqueued, Refusal> {
    match outcome {
        EnqueueOutcome::Stored => Ok(Enqueued { id, shard: shard.0, duplicate: false }),
        EnqueueOutcome::Duplicate(id) => Ok(Enqueued { id, shard: shard.0, duplicate: true }),
        EnqueueOutcome::Refused(reason) => Err(no_room(reason, retry_ms)),
    }
}

/// Counts one refusal before it is answered.
pub(crate) fn note_refused(
    state: &mut EnqueueOperation,
    place: usize,
    reason: RefusedReason,
) -> Option<(ShardId, ShardRequest)> {
    let queue = state.queue.as_ref()?;
    state.parts.push(Part::Noted(vec![place], reason));
    let command = Command::NoteRefused { queue: queue.record.id, reason, count: 1 };
    Some((queue.home(), ShardRequest::Command(command)))
}

const ID_RANDOM_MASK: u128 = (1 << 80) - 1;

/// The shard of a message: by its dedup key if it has one, else by its id.
pub(crate) fn shard_of(queue: &QueueEntry, id: MessageId, key: Option<&Bytes>) -> ShardId {
    let hash = match key {
        Some(key) => overtake_base::hash::stable(key),
        None => overtake_base::hash::stable(&id.0.to_be_bytes()),
    };
    queue.shards[(hash % queue.shards.len() as u64) as usize]
}

fn beyond_levels(levels: u8) -> Refusal {
    Refusal::invalid(
        "priority",
        format!("priority must be 0..={}, this queue has {levels} levels", levels - 1),
    )
}

fn no_room(reason: RefusedReason, retry_ms: u32) -> Refusal {
    match reason {
        RefusedReason::Depth => Refusal::depth("the queue holds max_depth messages", retry_ms),
        RefusedReason::Bytes => Refusal::bytes("the queue holds max_bytes body bytes", retry_ms),
        RefusedReason::Rate => Refusal::rate("the tenant enqueues faster than its limit allows", retry_ms),
        RefusedReason::Disk => Refusal::disk(
            "no room on disk for more messages; free space: acks make room",
            RETRY_DISK_MS.max(retry_ms),
        ),
        RefusedReason::NoQuorum => {
            Refusal::no_quorum("the disk is behind; slow down and try again", retry_ms)
        }
    }
}
