//! Enqueues: each message gets its id and its shard, each shard gets one command, each message its own outcome.

use crate::calls::queue_of;
use crate::claim::{ClaimStep, Claimer, Next};
use crate::convert::{failed, refused};
use crate::directory::QueueEntry;
use crate::errands::Task;
use crate::identity::Tenant;
use crate::mesh::{Caller, Read, ShardReply, ShardRequest};
use crate::replica::CommandCaller;
use crate::sessions::Origin;
use crate::waiting::Wake;
use crate::{Core, Operation, OperationId};
use bytes::Bytes;
use overtake_base::limits::CLIENT_ID_SKEW_MS_MAX;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Level, MessageId, QueueConfig, ShardId, UnixMillis};
use overtake_queue::answer::{Answer, EnqueueOutcome, KeyState, PendingClaim};
use overtake_queue::cold::Loaded;
use overtake_queue::command::{Command, NewMessage, RefusedReason, VisibleWhen};
use overtake_wire::message::{Delay, EnqueueMessage, Enqueued, Refusal, Response};
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
    results: Vec<Option<Result<Enqueued, Refusal>>>,
    parts: Vec<Part>,
    outstanding: usize,
    claimers: Vec<Claimer>,
    /// What is still to be stored, in order; see [`take_round`].
    pub(crate) pending: Vec<Placed>,
    /// The queue's home core says of each message whether there is room.
    needs_admission: bool,
    /// Of the round under way.
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
    /// Where it lives: its id's shard.
    pub shard: ShardId,
    /// Its dedup key belongs to another shard.
    pub claims: bool,
    pub message: NewMessage,
    /// Why it is refused where it is no repeat.
    pub refused: Option<RefusedReason>,
}

impl Placed {
    /// It may turn out to be a repeat, which takes no room.
    pub(crate) fn may_repeat(&self) -> bool {
        self.message.client_made_id || self.message.dedup_key.is_some()
    }

    pub(crate) fn body_bytes(&self) -> u64 {
        self.message.body.len() as u64
    }
}

/// A message on its way to its shard: its place in the request, its id, and itself where its key may be claimed.
struct Sent {
    place: usize,
    id: MessageId,
    keyed: Option<NewMessage>,
}

/// A call to be made, for a part.
struct Then {
    part: usize,
    shard: ShardId,
    request: ShardRequest,
}

/// What a call was about.
enum Part {
    /// Messages stored by one command.
    Store(ShardId, Vec<Sent>),
    /// Whether a message that has no room is a repeat, and the refusal if it is none.
    Repeat(ShardId, Sent, RefusedReason),
    /// A step of a claimer.
    Claim(usize, ClaimStep),
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
            if self.leader_of(home) != Some(self.me) {
                return self.enqueue_elsewhere(origin, home, tenant, name, messages, false);
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
        if queue.needs_quota() && self.leader_of(queue.home()) != Some(self.me) {
            return match origin {
                Origin::Core(caller) if rate_checked => self.send_back(caller),
                origin => self.enqueue_elsewhere(origin, queue.home(), tenant, name, messages, true),
            };
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
        state.pending.iter_mut().for_each(|placed| placed.refused = Some(RefusedReason::Rate));
        let operation = self.next_number();
        self.next_round(operation, state);
    }

    fn enqueue_elsewhere(
        &mut self,
        origin: Origin,
        home: ShardId,
        tenant: &Tenant,
        queue: String,
        messages: Vec<EnqueueMessage>,
        rate_checked: bool,
    ) {
        match origin {
            // It was sent here as to the home.
            Origin::Core(caller) if !rate_checked => self.send_back(caller),
            origin => {
                let task = Task::Enqueue { tenant: tenant.clone(), queue, messages, rate_checked };
                self.send_errand(origin, home, task);
            }
        }
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
            claimers: Vec::new(),
            pending: Vec::new(),
            needs_admission: false,
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
        let mut state = self.place_all(origin, tenant, queue.clone(), messages);
        state.needs_admission = queue.needs_quota();
        // Nothing to admit: in line it would only hold others up.
        if state.pending.is_empty() {
            return self.enqueued(state);
        }
        let operation = self.next_number();
        if state.needs_admission {
            self.operations.insert(operation, Operation::Enqueue(state));
            self.quotas.line_up(queue.record.id, operation);
            self.admit(queue.record.id);
        } else {
            self.next_round(operation, state);
        }
    }

    fn next_round(&mut self, operation: OperationId, mut state: EnqueueOperation) {
        let round = take_round(&mut state.pending);
        self.store(operation, state, round);
    }

    /// All messages of a round have their outcomes.
    fn enqueue_round_over(&mut self, operation: OperationId, mut state: EnqueueOperation) {
        let queue = state.queue.as_ref().map(|queue| queue.record.id);
        let Some(queue) = queue.filter(|_| !state.pending.is_empty()) else { return self.enqueued(state) };
        state.parts.clear();
        state.claimers.clear();
        if !state.needs_admission {
            return self.next_round(operation, state);
        }
        let admitted = core::mem::take(&mut state.admitted);
        self.operations.insert(operation, Operation::Enqueue(state));
        self.quotas.next_round(queue, operation, admitted);
        self.admit(queue);
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
            claimers: Vec::new(),
            pending,
            needs_admission: false,
            admitted: Admitted::default(),
            retry_ms: RETRY_MS,
        }
    }

    /// Ends an enqueue or a redrive that stood in line.
    pub(crate) fn refuse_in_line(&mut self, operation: OperationId, refusal: &Refusal) {
        let mut state = match self.operations.remove(&operation) {
            Some(Operation::Enqueue(state)) => state,
            Some(Operation::Redrive(state)) => return self.redrive_failed(&state, refusal.clone()),
            _ => return,
        };
        for placed in core::mem::take(&mut state.pending) {
            state.results[placed.place] = Some(Err(refusal.clone()));
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
        let id = message.id.unwrap_or_else(|| self.make_id(key.as_ref()));
        let key_shard = key.as_ref().map(|key| queue.shard_at(overtake_base::routing::of_key(key)));
        let shard = match key_shard {
            Some(key_shard) if is_planted(Bug::KeyDecidesShard) => key_shard,
            _ => shard_of(queue, id),
        };
        let claims = key_shard.is_some_and(|key_shard| key_shard != shard);
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
        Ok(Placed { place, shard, claims, message, refused: None })
    }

    /// A new id: sorts after every id this core made before; with a dedup key it lives on the key's shard.
    fn make_id(&mut self, key: Option<&Bytes>) -> MessageId {
        /// More than the routing can take away.
        const STEP_MIN: u128 = 1 << 16;
        let time_ms = self.time.0.max(self.last_id.time_ms());
        let id = if time_ms == self.last_id.time_ms() && self.last_id.0 & ID_RANDOM_MASK < ID_RANDOM_MASK >> 1
        {
            // The same millisecond: count on by a random step, so that ids stay in order and hard to guess.
            MessageId(self.last_id.0 + STEP_MIN + u128::from(self.ids.next_u64() >> 24))
        } else {
            let random = u128::from(self.ids.next_u64()) << 14 | u128::from(self.ids.next_u64() >> 50);
            MessageId::new(time_ms, random)
        };
        let id = key.map_or(id, |key| id.routed(overtake_base::routing::of_key(key)));
        self.last_id = self.last_id.max(id);
        id
    }

    /// Sends a round's messages to their shards. Those that are refused may be repeats: that is asked before any limit.
    pub(crate) fn store(&mut self, operation: OperationId, mut state: EnqueueOperation, round: Vec<Placed>) {
        let Some(queue) = state.queue.clone() else { return };
        let id = queue.record.id;
        let mut shards: BTreeMap<ShardId, (Vec<NewMessage>, Vec<Sent>)> = BTreeMap::new();
        let mut no_repeats: BTreeMap<RefusedReason, Vec<usize>> = BTreeMap::new();
        let mut requests = Vec::new();
        for placed in round {
            if placed.claims {
                let Placed { place, shard, message, refused, .. } = placed;
                let mut claimer = Claimer::new(&queue, place, shard, message, refused, self.now.monotonic_ns);
                if let Next::Ask(step, shard, request) = claimer.begin() {
                    state.parts.push(Part::Claim(state.claimers.len(), step));
                    requests.push((shard, request));
                }
                state.claimers.push(claimer);
                continue;
            }
            let Placed { place, shard, message, refused, .. } = placed;
            let asks_id = message.client_made_id.then_some(message.id);
            let keyed = message.dedup_key.is_some().then(|| message.clone());
            let sent = Sent { place, id: message.id, keyed };
            match refused {
                None => {
                    let (messages, all_sent) = shards.entry(shard).or_default();
                    all_sent.push(sent);
                    messages.push(message);
                }
                Some(reason) if message.dedup_key.is_none() && asks_id.is_none() => {
                    no_repeats.entry(reason).or_default().push(place);
                }
                Some(reason) => {
                    state.parts.push(Part::Repeat(shard, sent, reason));
                    let read = Read::Lookup { queue: id, key: message.dedup_key, id: asks_id };
                    requests.push((shard, ShardRequest::Read(read)));
                }
            }
        }
        for (shard, (messages, all_sent)) in shards {
            state.parts.push(Part::Store(shard, all_sent));
            requests.push((shard, ShardRequest::Command(Command::Enqueue { queue: id, messages })));
        }
        for (reason, places) in no_repeats {
            let count = places.len() as u64;
            state.parts.push(Part::Noted(places, reason));
            let command = Command::NoteRefused { queue: id, reason, count };
            requests.push((queue.home(), ShardRequest::Command(command)));
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
        // What goes on: the calls are made once the operation is back in its place.
        let mut then: Vec<Then> = Vec::new();
        match core::mem::replace(&mut state.parts[part], Part::Over) {
            Part::Store(shard, sent) => self.stored(operation, &mut state, shard, sent, reply, &mut then),
            Part::Claim(number, step) => {
                let Some(queue) = state.queue.clone() else { return };
                let turn =
                    state.claimers[number].take(&queue, step, &reply, (self.time, self.now.monotonic_ns));
                if let Some((shard, command)) = turn.aside {
                    self.submit_anywhere(shard, command);
                }
                then.extend(self.claim_goes_on(operation, &mut state, number, turn.next));
            }
            Part::Repeat(shard, sent, reason) => match reply {
                ShardReply::Found(KeyState::Taken(id)) => {
                    state.results[sent.place] = Some(Ok(Enqueued { id, shard: shard.0, duplicate: true }));
                }
                ShardReply::Found(KeyState::Free) => then.extend(state.note_refused(sent.place, reason)),
                ShardReply::Found(KeyState::Pending(other)) => {
                    then.extend(self.claim_behind(operation, &mut state, shard, sent, Some(reason), other));
                }
                reply => state.results[sent.place] = Some(Err(failed(&reply))),
            },
            Part::Noted(places, reason) => {
                let refusal = no_room(reason, state.retry_ms);
                places.into_iter().for_each(|place| state.results[place] = Some(Err(refusal.clone())));
            }
            Part::Over => {}
        }
        if state.outstanding == 0 {
            return self.enqueue_round_over(operation, state);
        }
        self.operations.insert(operation, Operation::Enqueue(state));
        for Then { part, shard, request } in then {
            self.call(operation, part, shard, request);
        }
    }

    /// A claimer has waited.
    pub(crate) fn enqueue_woken(&mut self, operation: OperationId, part: usize) {
        if let Some(Operation::Enqueue(state)) = self.operations.remove(&operation) {
            self.enqueue_replied(operation, state, part, ShardReply::Summary);
        }
    }

    /// A message whose key was found claimed.
    fn claim_behind(
        &mut self,
        operation: OperationId,
        state: &mut EnqueueOperation,
        shard: ShardId,
        sent: Sent,
        refused: Option<RefusedReason>,
        other: PendingClaim,
    ) -> Option<Then> {
        let (queue, message, now_ns) = (state.queue.clone()?, sent.keyed?, self.now.monotonic_ns);
        let mut claimer = Claimer::new(&queue, sent.place, shard, message, refused, now_ns);
        let next = claimer.begin_behind(&queue, other, now_ns);
        state.claimers.push(claimer);
        self.claim_goes_on(operation, state, state.claimers.len() - 1, next)
    }

    fn claim_goes_on(
        &mut self,
        operation: OperationId,
        state: &mut EnqueueOperation,
        number: usize,
        next: Next,
    ) -> Option<Then> {
        let place = state.claimers[number].place;
        match next {
            Next::Ask(step, shard, request) => {
                return Some(state.ask(Part::Claim(number, step), shard, request));
            }
            Next::Pause(until_ns) => {
                state.parts.push(Part::Claim(number, ClaimStep::Pause));
                state.outstanding += 1;
                self.timers.add(until_ns, Wake::Enqueue(operation, state.parts.len() - 1));
            }
            Next::Done(result) => state.results[place] = Some(result),
            Next::Refused(reason) => state.results[place] = Some(Err(no_room(reason, state.retry_ms))),
            Next::Note(reason) => return state.note_refused(place, reason),
            Next::NoQueue => state.results[place] = Some(Err(queue_deleted())),
        }
        None
    }

    fn stored(
        &mut self,
        operation: OperationId,
        state: &mut EnqueueOperation,
        shard: ShardId,
        all_sent: Vec<Sent>,
        reply: ShardReply,
        then: &mut Vec<Then>,
    ) {
        let outcomes = match reply {
            ShardReply::Answer(Answer::Enqueued(outcomes)) => outcomes,
            ShardReply::Answer(_) => {
                let gone = queue_deleted();
                return all_sent.iter().for_each(|sent| state.results[sent.place] = Some(Err(gone.clone())));
            }
            reply => {
                let refusal = failed(&reply);
                return all_sent
                    .iter()
                    .for_each(|sent| state.results[sent.place] = Some(Err(refusal.clone())));
            }
        };
        for (sent, outcome) in all_sent.into_iter().zip(outcomes) {
            state.results[sent.place] = match outcome {
                EnqueueOutcome::Stored => {
                    Some(Ok(Enqueued { id: sent.id, shard: shard.0, duplicate: false }))
                }
                EnqueueOutcome::Duplicate(id) => Some(Ok(Enqueued { id, shard: shard.0, duplicate: true })),
                EnqueueOutcome::Refused(reason) => Some(Err(no_room(reason, state.retry_ms))),
                EnqueueOutcome::Pending(other) => {
                    then.extend(self.claim_behind(operation, state, shard, sent, None, other));
                    continue;
                }
                EnqueueOutcome::StoredBefore(_) | EnqueueOutcome::Late => {
                    Some(Err(Refusal::internal("a claim's outcome without a claim; please report this")))
                }
            };
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
        let behind = self.storage.backlog_bytes() > self.config.backlog_bytes_max;
        (behind || self.pressure.is_overflowing()).then_some(RefusedReason::NoQuorum)
    }

    /// Takes an enqueue of a shard of this core. Where the disk has no room or is behind, nothing is stored, whoever asks;
    /// repeats are answered, and the refusals are counted before they are.
    pub(crate) fn submit_enqueue(
        &mut self,
        caller: Caller,
        shard: ShardId,
        command: Command,
        loaded: &Loaded,
    ) {
        let no_room = self.no_disk_room();
        let now = self.time;
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let Some(reason) = no_room else {
            let queue = queue_of(&command);
            return replica.submit(command, CommandCaller::of(caller, queue));
        };
        let (queue, machine) = (queue_of(&command), &replica.machine);
        let outcome_of = |message: &NewMessage, claimed: bool| {
            let key = message.dedup_key.as_ref();
            let lives = machine.id_lookup(queue, message.id, now, loaded).unwrap_or(false);
            match key.filter(|_| !claimed).map_or(KeyState::Free, |key| machine.key_state(queue, key, now)) {
                KeyState::Taken(first) => EnqueueOutcome::Duplicate(first),
                KeyState::Pending(other) => EnqueueOutcome::Pending(other),
                KeyState::Free if !lives => EnqueueOutcome::Refused(reason),
                KeyState::Free => {
                    let under = |key: &Bytes| machine.stored_under(queue, message.id, key, now);
                    let before = key.filter(|_| claimed).and_then(under);
                    before.map_or(EnqueueOutcome::Duplicate(message.id), EnqueueOutcome::StoredBefore)
                }
            }
        };
        let outcomes: Vec<EnqueueOutcome> = match &command {
            Command::Enqueue { messages, .. } => {
                messages.iter().map(|message| outcome_of(message, false)).collect()
            }
            Command::StoreClaimed { message, .. } => vec![outcome_of(message, true)],
            _ => Vec::new(),
        };
        let refused = outcomes.iter().filter(|outcome| matches!(outcome, EnqueueOutcome::Refused(_)));
        let count = refused.count() as u64;
        self.counters.refused_disk += if reason == RefusedReason::Disk { count } else { 0 };
        if count == 0 {
            let reply = ShardReply::Answer(Answer::Enqueued(outcomes));
            return self.reply(caller, shard, Some(queue), reply);
        }
        let command = Command::NoteRefused { queue, reason, count };
        replica.submit(command, CommandCaller::of(caller, queue));
        self.refusing.insert(caller, outcomes);
    }

    /// Shard time as this core reads it.
    pub(crate) fn time(&self) -> UnixMillis {
        self.time
    }
}

impl EnqueueOperation {
    /// Puts messages back that were taken out for a round.
    pub(crate) fn put_back(&mut self, round: Vec<Placed>) {
        if !round.is_empty() {
            self.pending.extend(round);
            self.pending.sort_by_key(|placed| placed.place);
        }
    }

    /// Adds a part that has something to ask.
    fn ask(&mut self, part: Part, shard: ShardId, request: ShardRequest) -> Then {
        self.parts.push(part);
        self.outstanding += 1;
        Then { part: self.parts.len() - 1, shard, request }
    }

    /// Counts one refusal before it is answered.
    fn note_refused(&mut self, place: usize, reason: RefusedReason) -> Option<Then> {
        let queue = self.queue.clone()?;
        let command = Command::NoteRefused { queue: queue.record.id, reason, count: 1 };
        Some(self.ask(Part::Noted(vec![place], reason), queue.home(), ShardRequest::Command(command)))
    }
}

/// Takes out of `pending` what can be stored at the same time. Messages of one shard are stored in their order; one that
/// shares its key or its client-made id with an earlier one on its way to other shards is left for a later round: within
/// a batch the order decides which is the first.
pub(crate) fn take_round(pending: &mut Vec<Placed>) -> Vec<Placed> {
    if pending.iter().all(|placed| !placed.claims) {
        return core::mem::take(pending);
    }
    // True where what shares them must wait.
    let mut keys: BTreeMap<Bytes, bool> = BTreeMap::new();
    let mut ids: BTreeMap<MessageId, bool> = BTreeMap::new();
    let (mut round, mut left) = (Vec::new(), Vec::new());
    for placed in core::mem::take(pending) {
        let key = placed.message.dedup_key.clone();
        let id = placed.message.client_made_id.then_some(placed.message.id);
        let seen = [key.as_ref().and_then(|key| keys.get(key)), id.and_then(|id| ids.get(&id))];
        let waits = seen.into_iter().flatten().any(|must_wait| *must_wait || placed.claims);
        let must_wait = waits || placed.claims;
        if let Some(key) = key {
            *keys.entry(key).or_default() |= must_wait;
        }
        if let Some(id) = id {
            *ids.entry(id).or_default() |= must_wait;
        }
        if waits { left.push(placed) } else { round.push(placed) }
    }
    *pending = left;
    round
}

const ID_RANDOM_MASK: u128 = (1 << 80) - 1;

/// The shard that a message with this id lives on.
pub(crate) fn shard_of(queue: &QueueEntry, id: MessageId) -> ShardId {
    queue.shard_at(id.routing())
}

fn beyond_levels(levels: u8) -> Refusal {
    Refusal::invalid(
        "priority",
        format!("priority must be 0..={}, this queue has {levels} levels", levels - 1),
    )
}

/// A shard does not know the queue. One that has not heard of a new queue yet gives the call back; so the queue is no more,
/// also where this core has not heard of that yet.
pub(crate) fn queue_deleted() -> Refusal {
    Refusal::not_found("the queue was deleted")
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
