//! The clients of a run: who is connected, what each asks next, and what it remembers of answers. Everything is drawn
//! from the seed's own stream, so that other parts drawing more or less change nothing here.

mod admin;
mod consumer;
mod producer;

use crate::arena::Arena;
use crate::history::{History, Number, Outcome};
use crate::swarm::{ClientPlan, Swarm};
use overtake_base::random::Random;
use overtake_base::{MessageId, QueueConfigPatch};
use overtake_core::SessionId;
use overtake_wire::message::{Request, Response};
use std::collections::BTreeMap;

/// Ids, receipts and repeatable messages that are remembered for later use.
const REMEMBERED_MAX: usize = 200;

/// What a client is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Producer,
    Consumer,
    Admin,
}

/// A message that a consumer holds.
#[derive(Clone, Debug)]
struct Held {
    queue: usize,
    receipt: String,
}

#[derive(Debug)]
struct Client {
    kind: Kind,
    plan: ClientPlan,
    session: Option<SessionId>,
    next_request: u64,
    /// Requests under way, and their places in the history.
    open: BTreeMap<u64, usize>,
    held: Vec<Held>,
}

/// A request, and what it is about.
struct Asked {
    queue: usize,
    request: Request,
    numbers: Vec<Number>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Workload {
    plan: Swarm,
    clients: Vec<Client>,
    sessions: BTreeMap<SessionId, usize>,
    random: Random,
    /// For the keys of repeats alone.
    other_keys: Random,
    /// Ids that some answer named.
    ids: Vec<(usize, MessageId)>,
    /// Receipts that were settled, or given away.
    old_receipts: Vec<Held>,
    /// Messages that may be sent again.
    repeatable: Vec<Number>,
    /// Nothing new is begun any more.
    pub over: bool,
}

impl Workload {
    /// The clients of a run; none is connected.
    #[must_use]
    pub fn new(seed: u64, plan: &Swarm) -> Self {
        let kinds =
            [(Kind::Producer, plan.producers), (Kind::Consumer, plan.consumers), (Kind::Admin, plan.admins)];
        let clients = kinds
            .into_iter()
            .flat_map(|(kind, plan)| (0..plan.count).map(move |_| (kind, plan)))
            .map(|(kind, plan)| Client {
                kind,
                plan,
                session: None,
                next_request: 0,
                open: BTreeMap::new(),
                held: Vec::new(),
            })
            .collect();
        Self {
            plan: plan.clone(),
            clients,
            sessions: BTreeMap::new(),
            random: Random::new(seed, "workload"),
            other_keys: Random::new(seed, "workload, other keys"),
            ids: Vec::new(),
            old_receipts: Vec::new(),
            repeatable: Vec::new(),
            over: false,
        }
    }

    /// Number of clients; each has the timer of its number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.clients.len()
    }

    /// Requests under way on living connections.
    #[must_use]
    pub fn open(&self) -> usize {
        self.clients.iter().map(|client| client.open.len()).sum()
    }

    /// The client's time has come: it asks something, and sets its next time.
    pub fn act(&mut self, number: usize, world: &mut dyn Arena, history: &mut History) {
        if self.over {
            return;
        }
        if world.is_open() {
            if self.clients[number].session.is_none() {
                let session = world.connect();
                self.sessions.insert(session, number);
                self.clients[number].session = Some(session);
            }
            if self.clients[number].open.len() < self.clients[number].plan.depth
                && let Some(asked) = self.next(number, world, history)
            {
                self.send(number, world, history, asked);
            }
        }
        let pause_us = self.clients[number].plan.pause_us;
        world.set_timer(1_000 * (1 + self.random.below(2 * pause_us)), number as u64);
    }

    fn next(&mut self, number: usize, world: &dyn Arena, history: &mut History) -> Option<Asked> {
        match self.clients[number].kind {
            Kind::Producer => Some(self.produce(world, history)),
            Kind::Consumer => Some(self.consume(number)),
            Kind::Admin => self.look_after(world),
        }
    }

    fn send(&mut self, number: usize, world: &mut dyn Arena, history: &mut History, asked: Asked) {
        let client = &mut self.clients[number];
        let Some(session) = client.session else { return };
        client.next_request += 1;
        let request = client.next_request;
        if let Some(node) = world.send(session, request, &asked.request) {
            let answerless = matches!(asked.request, Request::CancelReceive { .. });
            let call = history.ask(asked.queue, node, world.time_ns(), asked.request, asked.numbers);
            if answerless {
                history.calls[call].outcome = Outcome::Lost;
            } else {
                client.open.insert(request, call);
            }
        }
    }

    /// Takes an answer.
    pub fn answered(
        &mut self,
        session: SessionId,
        request: u64,
        response: Response,
        now_ns: u64,
        history: &mut History,
    ) -> Result<(), String> {
        let Some(number) = self.sessions.get(&session).copied() else { return Ok(()) };
        let Some(call) = self.clients[number].open.remove(&request) else {
            return Err(format!(
                "{session:?} was answered request {request}, which nobody asked: {response:?}"
            ));
        };
        let queue = history.calls[call].queue;
        self.remember(number, queue, &response);
        history.calls[call].outcome = Outcome::Answered(now_ns, response);
        Ok(())
    }

    fn remember(&mut self, number: usize, queue: usize, response: &Response) {
        match response {
            Response::Enqueued { results } => {
                let ids = results.iter().flatten().map(|enqueued| (queue, enqueued.id));
                self.ids.extend(ids);
                trim(&mut self.ids);
            }
            Response::Received { messages } => {
                let held = messages.iter().map(|m| Held { queue, receipt: m.receipt.to_string() });
                self.clients[number].held.extend(held);
            }
            _ => {}
        }
    }

    /// These connections are gone.
    pub fn lost(&mut self, sessions: impl IntoIterator<Item = SessionId>, history: &mut History) {
        for session in sessions {
            let Some(number) = self.sessions.remove(&session) else { continue };
            let client = &mut self.clients[number];
            client.session = None;
            for call in core::mem::take(&mut client.open).into_values() {
                history.calls[call].outcome = Outcome::Lost;
            }
        }
    }

    /// Some client goes away in the middle of what it does.
    pub fn disconnect_one(&mut self, world: &mut dyn Arena, history: &mut History) {
        let number = self.random.below(self.clients.len() as u64) as usize;
        if let Some(session) = self.clients[number].session {
            world.disconnect(session);
            self.lost([session], history);
        }
    }

    /// Creates the queues that are not left to the first enqueue.
    pub fn creations(plan: &Swarm) -> Vec<(usize, String, QueueConfigPatch)> {
        let with_patch = |(number, queue): (usize, &crate::swarm::QueuePlan)| {
            Some((number, queue.name.clone(), queue.patch.clone()?))
        };
        plan.queues.iter().enumerate().filter_map(with_patch).collect()
    }

    fn a_queue(&mut self) -> usize {
        self.random.below(self.plan.queues.len() as u64) as usize
    }

    fn name(&self, queue: usize) -> String {
        self.plan.queues[queue].name.clone()
    }

    fn chance(&mut self, ppm: u32) -> bool {
        self.random.chance_ppm(ppm)
    }
}

/// Forgets the oldest of what is too much.
fn trim<T>(list: &mut Vec<T>) {
    if list.len() > REMEMBERED_MAX {
        list.drain(..list.len() - REMEMBERED_MAX);
    }
}

/// Takes a random item out.
fn take_any<T>(list: &mut Vec<T>, random: &mut Random) -> Option<T> {
    if list.is_empty() {
        return None;
    }
    let at = random.below(list.len() as u64) as usize;
    Some(list.swap_remove(at))
}
