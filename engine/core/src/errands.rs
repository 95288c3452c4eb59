//! Requests that another core must carry out: the home of a queue (its waiters, its limits), of a tenant (its rate), or
//! the leader of the directory. Who that is moves with leadership, so an errand follows it until its time is over.

use crate::calls::{CALL_PATIENCE_NS, RETRY_NS};
use crate::cluster::Address;
use crate::convert::refused;
use crate::identity::Tenant;
use crate::mesh::{Caller, MeshMessage};
use crate::receive::Wake;
use crate::sessions::Origin;
use crate::{Core, Output};
use overtake_base::{QueueId, ShardId};
use overtake_queue::directory::DirectoryCommand;
use overtake_wire::message::{EnqueueMessage, Receive, Refusal, Request, Response};

const NANOS_PER_MS: u64 = 1_000_000;
/// How much longer than a receive waits its answer may take, in nanoseconds.
const GRACE_NS: u64 = 1_000_000_000;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// At the home of the queue. `queue`: what messages in the response belong to.
    Receive { tenant: Tenant, receive: Receive, queue: QueueId, deadline_ns: u64 },
    /// At the home of the tenant, or where its rate is `rate_checked`, of the queue.
    Enqueue { tenant: Tenant, queue: String, messages: Vec<EnqueueMessage>, rate_checked: bool },
    /// At the home of the queue that it is about.
    Other { tenant: Tenant, request: Request },
    /// At the leader of the directory.
    Directory(DirectoryCommand),
}

/// An errand under way.
#[derive(Debug)]
pub(crate) struct Errand {
    origin: Origin,
    /// Whoever leads this shard is to do it.
    home: ShardId,
    /// Where it is; none while it waits to be tried again.
    to: Option<Address>,
    task: Task,
    /// What messages in the response belong to.
    queue: Option<QueueId>,
    end_ns: u64,
}

impl Core {
    /// Has something done by whoever leads `home`. Gives its number.
    pub(crate) fn send_errand(&mut self, origin: Origin, home: ShardId, task: Task) -> u64 {
        let call = self.next_number();
        let (queue, end_ns) = match &task {
            Task::Receive { queue, deadline_ns, .. } => (Some(*queue), deadline_ns + GRACE_NS),
            _ => (None, self.now.monotonic_ns + CALL_PATIENCE_NS),
        };
        self.errands.insert(call, Errand { origin, home, to: None, task, queue, end_ns });
        if !self.map.is_single() {
            self.timers.add(end_ns, Wake::ErrandOver(call));
        }
        self.place_errand(call);
        call
    }

    /// Sends an errand to whoever it is for now, or lets it wait until somebody is.
    fn place_errand(&mut self, call: u64) {
        let Some(errand) = self.errands.get(&call).filter(|errand| errand.to.is_none()) else { return };
        match self.whom_to_ask(errand.home) {
            Some(to) if to == self.me => self.do_errand(call),
            Some(to) => {
                let message = self.words(call, errand.task.clone());
                if let Some(errand) = self.errands.get_mut(&call) {
                    errand.to = Some(to);
                }
                if to.node != self.me.node {
                    self.links.note(to, call);
                }
                self.out.push(Output::Mesh { to, message });
            }
            None => self.timers.add(self.now.monotonic_ns + RETRY_NS, Wake::Errand(call)),
        }
    }

    /// An errand that waited is tried again. The queue may have been deleted meanwhile, and made anew with another home:
    /// then it begins anew too.
    pub(crate) fn retry_errand(&mut self, call: u64) {
        let Some(errand) = self.errands.get(&call).filter(|errand| errand.to.is_none()) else { return };
        let home = match &errand.task {
            Task::Receive { tenant, receive, .. } => self.home_of(tenant, &receive.queue),
            Task::Enqueue { tenant, queue, rate_checked: true, .. } => self.home_of(tenant, queue),
            Task::Other { tenant, request } => {
                request.queue().map_or(Some(errand.home), |queue| self.home_of(tenant, queue))
            }
            Task::Enqueue { rate_checked: false, .. } | Task::Directory(_) => Some(errand.home),
        };
        if home == Some(errand.home) {
            return self.place_errand(call);
        }
        if let Some(Errand { origin, task, .. }) = self.end_errand(call) {
            self.begin_task(origin, task);
        }
    }

    fn home_of(&self, tenant: &Tenant, queue: &str) -> Option<ShardId> {
        self.find_queue(tenant, queue).ok().map(|entry| entry.home())
    }

    fn words(&self, call: u64, task: Task) -> MeshMessage {
        match task {
            Task::Receive { tenant, receive, deadline_ns, .. } => {
                let left_ms = deadline_ns.saturating_sub(self.now.monotonic_ns).div_ceil(NANOS_PER_MS);
                let wait_ms = u32::try_from(left_ms).unwrap_or(u32::MAX);
                let request = Request::Receive(receive);
                MeshMessage::Forward { call, tenant, request, rate_checked: true, wait_ms }
            }
            Task::Enqueue { tenant, queue, messages, rate_checked } => {
                let request = Request::Enqueue { queue, messages };
                MeshMessage::Forward { call, tenant, request, rate_checked, wait_ms: 0 }
            }
            Task::Other { tenant, request } => {
                MeshMessage::Forward { call, tenant, request, rate_checked: true, wait_ms: 0 }
            }
            Task::Directory(command) => MeshMessage::DirectoryCall { call, command },
        }
    }

    /// It is for this core itself.
    fn do_errand(&mut self, call: u64) {
        let Some(errand) = self.errands.get_mut(&call) else { return };
        if let Task::Directory(command) = &errand.task {
            errand.to = Some(self.me);
            let command = command.clone();
            return self.directory_call(Caller { at: self.me, link: 0, call }, command);
        }
        if let Some(Errand { origin, task, .. }) = self.end_errand(call) {
            self.begin_task(origin, task);
        }
    }

    fn begin_task(&mut self, origin: Origin, task: Task) {
        match task {
            Task::Receive { tenant, receive, deadline_ns, .. } => {
                self.start_receive(origin, &tenant, receive, deadline_ns);
            }
            Task::Enqueue { tenant, queue, messages, rate_checked } => {
                self.start_enqueue(origin, &tenant, queue, messages, rate_checked);
            }
            Task::Other { tenant, request } => self.execute(origin, &tenant, request),
            Task::Directory(_) => drop(self.send_errand(origin, ShardId::DIRECTORY, task)),
        }
    }

    fn end_errand(&mut self, call: u64) -> Option<Errand> {
        let errand = self.errands.remove(&call)?;
        self.timers.remove(errand.end_ns, Wake::ErrandOver(call));
        if let Some(to) = errand.to {
            self.links.forget(to, call);
        }
        Some(errand)
    }

    /// Whom it was sent to cannot do it: nothing was done.
    pub(crate) fn errand_refused(&mut self, call: u64) {
        let Some(errand) = self.errands.get_mut(&call) else { return };
        if let Some(to) = errand.to.take() {
            self.links.forget(to, call);
        }
        self.timers.add(self.now.monotonic_ns + RETRY_NS, Wake::Errand(call));
    }

    /// Whose home an errand is for, and the core it is with.
    pub(crate) fn errand_at(&self, call: u64) -> Option<(ShardId, Address)> {
        let errand = self.errands.get(&call)?;
        Some((errand.home, errand.to?))
    }

    /// The link that it was sent on is gone.
    pub(crate) fn errand_lost(&mut self, call: u64) {
        let Some(errand) = self.errands.get_mut(&call) else { return };
        errand.to = None;
        match &errand.task {
            // What may have been leased comes back when its lease runs out.
            Task::Receive { .. } => self.place_errand(call),
            _ => self.fail_errand(call, true),
        }
    }

    /// Its time is over.
    pub(crate) fn errand_over(&mut self, call: u64) {
        let Some(errand) = self.errands.get(&call) else { return };
        let to = errand.to;
        if let Some(to) = to
            && matches!(errand.task, Task::Receive { .. })
        {
            self.out.push(Output::Mesh { to, message: MeshMessage::ForwardCancel { call } });
        }
        self.fail_errand(call, to.is_some());
    }

    fn fail_errand(&mut self, call: u64, unknown: bool) {
        let Some(errand) = self.end_errand(call) else { return };
        let response = match errand.task {
            Task::Receive { .. } => Response::Received { messages: Vec::new() },
            _ if unknown => refused(Refusal::fate_unknown(
                "the node that was to do it is gone; look, then retry with the same id or dedup key",
                1_000,
            )),
            _ => refused(Refusal::no_quorum("no leader can be reached; try again", 1_000)),
        };
        self.respond(errand.origin, response);
    }

    /// The response is there.
    pub(crate) fn forward_replied(&mut self, call: u64, response: Response) {
        let Some(Errand { origin, queue, .. }) = self.end_errand(call) else { return };
        match (queue, response) {
            (Some(queue), Response::Received { messages }) => self.respond_received(origin, queue, messages),
            (_, response) => self.respond(origin, response),
        }
    }

    /// Nobody wants it any more.
    pub(crate) fn cancel_errand(&mut self, call: u64) {
        let Some(errand) = self.errands.get(&call) else { return };
        match errand.to {
            Some(to) => self.out.push(Output::Mesh { to, message: MeshMessage::ForwardCancel { call } }),
            None => self.fail_errand(call, false),
        }
    }

    /// Carries out a request that another core forwarded.
    pub(crate) fn forwarded(
        &mut self,
        caller: Caller,
        tenant: &Tenant,
        request: Request,
        rate_checked: bool,
        wait_ms: u32,
    ) {
        let origin = Origin::Core(caller);
        if let Some(refusal) = self.not_now(&request) {
            // Another node may take its place.
            return if self.map.is_single() {
                self.respond(origin, refused(refusal))
            } else {
                self.send_back(caller)
            };
        }
        match request {
            Request::Receive(receive) => {
                let deadline_ns = self.now.monotonic_ns + u64::from(wait_ms) * NANOS_PER_MS;
                self.start_receive(origin, tenant, receive, deadline_ns);
            }
            Request::Enqueue { queue, messages } => {
                self.start_enqueue(origin, tenant, queue, messages, rate_checked);
            }
            request => self.execute(origin, tenant, request),
        }
    }

    /// Whoever forwarded a request must ask elsewhere.
    pub(crate) fn send_back(&mut self, caller: Caller) {
        if caller.at == self.me {
            self.errand_refused(caller.call);
        } else if self.is_there(caller) {
            let message = MeshMessage::ForwardMoved { call: caller.call };
            self.out.push(Output::Mesh { to: caller.at, message });
        }
    }
}
