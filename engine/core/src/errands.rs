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
    /// None where it is under way and will not be sent again.
    task: Option<Task>,
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
        self.errands.insert(call, Errand { origin, home, to: None, task: Some(task), queue, end_ns });
        if !self.map.is_single() {
            self.timers.add(end_ns, Wake::ErrandOver(call));
        }
        self.place_errand(call);
        call
    }

    /// Sends an errand to whoever it is for now, or lets it wait until somebody is.
    pub(crate) fn place_errand(&mut self, call: u64) {
        let Some(errand) = self.errands.get_mut(&call).filter(|errand| errand.to.is_none()) else { return };
        let (home, origin) = (errand.home, errand.origin);
        match self.whom_to_ask(home) {
            Some(to) if to == self.me => {
                if let Some(task) = self.errands.get_mut(&call).and_then(|errand| errand.task.take()) {
                    self.do_errand(call, origin, task);
                }
            }
            Some(to) => {
                let keeps = !self.map.is_single();
                let Some(errand) = self.errands.get_mut(&call) else { return };
                let Some(task) = (if keeps { errand.task.clone() } else { errand.task.take() }) else {
                    return;
                };
                errand.to = Some(to);
                if to.node != self.me.node {
                    self.links.note(to, call);
                }
                let message = self.words(call, task);
                self.out.push(Output::Mesh { to, message });
            }
            None => self.timers.add(self.now.monotonic_ns + RETRY_NS, Wake::Errand(call)),
        }
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
    fn do_errand(&mut self, call: u64, origin: Origin, task: Task) {
        match task {
            Task::Directory(command) => {
                if let Some(errand) = self.errands.get_mut(&call) {
                    errand.to = Some(self.me);
                    errand.task = Some(Task::Directory(command.clone()));
                }
                self.directory_call(Caller { at: self.me, link: 0, call }, command);
            }
            Task::Other { tenant, request } => {
                self.end_errand(call);
                self.execute(origin, &tenant, request);
            }
            Task::Receive { tenant, receive, deadline_ns, .. } => {
                self.end_errand(call);
                self.start_receive(origin, &tenant, receive, deadline_ns);
            }
            Task::Enqueue { tenant, queue, messages, rate_checked } => {
                self.end_errand(call);
                self.start_enqueue(origin, &tenant, queue, messages, rate_checked);
            }
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
        if errand.task.is_none() {
            return self.fail_errand(call, false);
        }
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
            Some(Task::Receive { .. }) => self.place_errand(call),
            _ => self.fail_errand(call, true),
        }
    }

    /// Its time is over.
    pub(crate) fn errand_over(&mut self, call: u64) {
        let Some(errand) = self.errands.get(&call) else { return };
        let to = errand.to;
        if let Some(to) = to
            && matches!(errand.task, Some(Task::Receive { .. }))
        {
            self.out.push(Output::Mesh { to, message: MeshMessage::ForwardCancel { call } });
        }
        self.fail_errand(call, to.is_some());
    }

    fn fail_errand(&mut self, call: u64, unknown: bool) {
        let Some(errand) = self.end_errand(call) else { return };
        let response = match errand.task {
            Some(Task::Receive { .. }) => Response::Received { messages: Vec::new() },
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
