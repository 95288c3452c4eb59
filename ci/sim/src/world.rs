//! The event heap: what happens next is decided by virtual time and the order of scheduling, nothing else.

use crate::clocks::Clocks;
use crate::events::Events;
use crate::node::{NodeShape, SimNode};
use crate::tale::{Tale, short};
use crate::ways::{Slowness, Way, Ways};
use bytes::Bytes;
use overtake_base::random::Random;
use overtake_base::{CoreId, NodeId, Now, ShardId};
use overtake_core::mesh::MeshMessage;
use overtake_core::{Address, ConnectionId, Event, Output, SessionId};
use overtake_queue::answer::Summary;
use overtake_wire::message::{Request, Response};
use std::collections::BTreeMap;

/// Longest time between an event and the turn that takes it, in nanoseconds: events of that time share a turn.
const TURN_DELAY_NS: u64 = 20_000;
/// Longest way between two cores, in nanoseconds.
const MESH_DELAY_NS: u64 = 30_000;
/// Longest way between a client and its core, in nanoseconds.
const CLIENT_DELAY_NS: u64 = 200_000;

/// Events of one run: far more than any needs that comes to an end.
const EVENTS_MAX: u64 = 3_000_000;
/// The last of those are told one by one.
const EVENTS_TOLD: u64 = 100;

/// What a driver learns.
#[derive(Debug)]
pub enum Notice {
    /// A response arrived.
    Response { session: SessionId, request: u64, response: Response },
    /// The connection is gone; what was asked and not answered may or may not have happened.
    Closed { session: SessionId },
    /// A timer of the driver.
    Timer { number: u64 },
    /// The disk operation that [`World::crash_at_operation`] counts down to is under way.
    CrashDue,
}

#[derive(Debug)]
enum Happening {
    Turn { core: usize, life: u64 },
    Disk { core: usize, life: u64, operation: u64 },
    Mesh { to: usize, life: u64, from: Address, message: Box<MeshMessage> },
    Board { to: usize, life: u64, shard: ShardId, version: u64, summary: Box<Summary> },
    ToCore { core: usize, life: u64, session: SessionId, frame: Bytes },
    ToClient { core: usize, life: u64, session: SessionId, frame: Bytes },
    Timer { number: u64 },
}

/// One node, its clients' connections, and time.
pub struct World {
    /// The node.
    pub node: SimNode,
    time_ns: u64,
    heap: Events<Happening>,
    /// What a turn puts out; kept for its room.
    outputs: Vec<Output>,
    random: Random,
    /// Which core each open session is on.
    sessions: BTreeMap<SessionId, usize>,
    next_session: u64,
    ways: Ways,
    trace: u64,
    events: u64,
    /// Set to count disk operations down to a [`Notice::CrashDue`].
    pub crash_at_operation: Option<u64>,
    expected_digests: Vec<(u16, u64, u64)>,
    /// Starts of the node.
    pub starts: u64,
    /// Starts after the first that came to serve.
    pub recoveries: u64,
    served: bool,
    /// Shards found to be after a restart what they were before.
    pub digests_compared: u64,
    /// How much longer the way between two cores is.
    pub mesh_slow: Slowness,
    /// How long the way between a client and its core is instead.
    pub link_slow: Slowness,
    /// Spells in which something was held up, for whoever judges what came in time.
    pub held_up: Vec<(u64, u64)>,
    /// What the node's clocks can have shown.
    pub clocks: Clocks,
    /// The last events in words.
    pub tale: Tale,
    /// Text of what a core could not go on from.
    pub fatal: Option<String>,
}

impl World {
    /// A world whose node is being started.
    #[must_use]
    pub fn new(seed: u64, shape: NodeShape) -> Self {
        let mut world = Self {
            node: SimNode::new(seed, shape),
            time_ns: 1,
            heap: Events::default(),
            outputs: Vec::new(),
            random: Random::new(seed, "world"),
            sessions: BTreeMap::new(),
            next_session: 0,
            ways: Ways::default(),
            trace: 0,
            events: 0,
            crash_at_operation: None,
            mesh_slow: Slowness::default(),
            link_slow: Slowness::default(),
            held_up: Vec::new(),
            expected_digests: Vec::new(),
            digests_compared: 0,
            starts: 0,
            recoveries: 0,
            served: false,
            clocks: Clocks::default(),
            tale: Tale::default(),
            fatal: None,
        };
        world.start();
        world
    }

    /// Virtual time in nanoseconds.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// What the node's clocks show.
    #[must_use]
    pub fn now(&self) -> Now {
        self.node.now(self.time_ns)
    }

    /// Hash of everything that happened: equal for equal seeds.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Starts the node.
    pub fn start(&mut self) {
        self.node.start(self.time_ns);
        self.starts += 1;
        self.served = false;
        self.clocks.started(self.time_ns, self.now().wall);
        self.tale.tell(self.time_ns, || format!("the node starts, life {}", self.node.life));
        for core in 0..self.node.cores.len() {
            self.schedule_turn(core, self.time_ns);
        }
    }

    /// Takes the power away. Gives the sessions that are gone.
    pub fn crash(&mut self) -> Vec<SessionId> {
        self.node.crash();
        self.tale.tell(self.time_ns, || "the power is lost".into());
        self.gone()
    }

    /// Tells all cores to stop; see [`SimNode::is_stopped`].
    pub fn ask_to_stop(&mut self) {
        self.tale.tell(self.time_ns, || "the node is told to stop".into());
        for core in 0..self.node.cores.len() {
            self.deliver(core, Event::Stop);
        }
    }

    /// Ends the process, while the machine goes on. Gives the sessions that are gone.
    pub fn halt(&mut self) -> Vec<SessionId> {
        self.node.halt();
        self.tale.tell(self.time_ns, || "the process is gone".into());
        self.gone()
    }

    fn gone(&mut self) -> Vec<SessionId> {
        self.ways = Ways::default();
        core::mem::take(&mut self.sessions).into_keys().collect()
    }

    /// Opens a session on a core that the seed chooses.
    pub fn connect(&mut self) -> SessionId {
        self.next_session += 1;
        let session = SessionId(self.next_session);
        let core = self.random.below(self.node.cores.len() as u64) as usize;
        self.sessions.insert(session, core);
        self.deliver(core, Event::SessionOpened { session, connection: ConnectionId(0) });
        session
    }

    /// Closes a session from the client's side.
    pub fn disconnect(&mut self, session: SessionId) {
        if let Some(core) = self.sessions.remove(&session) {
            self.deliver(core, Event::SessionClosed { session });
        }
    }

    /// Sends a request; false where the session is gone.
    pub fn send(&mut self, session: SessionId, request: u64, body: &Request) -> bool {
        let Some(core) = self.sessions.get(&session).copied() else { return false };
        let mut frame = Vec::new();
        overtake_wire::encode_request(request, body, &mut frame);
        let frame = Bytes::from(frame).slice(size_of::<u32>()..);
        let life = self.node.life;
        self.tale
            .tell(self.time_ns, || format!("{session:?} on core {core} asks {request}: {}", short(body)));
        let delay_ns = self.client_delay_ns();
        let at = self.arrival(Way::ToCore(session), delay_ns);
        self.schedule(at, Happening::ToCore { core, life, session, frame });
        true
    }

    /// Asks for a [`Notice::Timer`] after so many nanoseconds.
    pub fn set_timer(&mut self, after_ns: u64, number: u64) {
        self.schedule(self.time_ns + after_ns, Happening::Timer { number });
    }

    /// Lets happen what is next, until something concerns the driver. None where nothing is left to happen.
    pub fn next_notice(&mut self) -> Option<Notice> {
        while self.fatal.is_none() {
            self.events += 1;
            if self.events > EVENTS_MAX {
                self.fatal = Some(format!("the node does not come to rest: {EVENTS_MAX} events"));
                break;
            }
            let (time_ns, number, happening) = self.heap.pop()?;
            self.time_ns = time_ns;
            if self.events + EVENTS_TOLD > EVENTS_MAX {
                self.tale.tell(time_ns, || short(&happening));
            }
            self.note(time_ns ^ number.rotate_left(32));
            let notice = self.happen(happening);
            if notice.is_some() {
                return notice;
            }
            if self.crash_at_operation == Some(0) {
                self.crash_at_operation = None;
                return Some(Notice::CrashDue);
            }
        }
        None
    }

    fn happen(&mut self, happening: Happening) -> Option<Notice> {
        let now_life = self.node.life;
        let alive = |life: u64| life == now_life;
        match happening {
            Happening::Turn { core, life } if alive(life) => self.turn(core),
            Happening::Disk { core, life, operation } if alive(life) => {
                if let Some(completion) = self.node.cores[core].disk.complete(operation) {
                    self.node.cores[core].note_failures();
                    self.deliver(core, Event::Disk(completion));
                }
            }
            Happening::Mesh { to, life, from, message } if alive(life) => {
                self.deliver(to, Event::Mesh { from, message: *message });
            }
            Happening::Board { to, life, shard, version, summary } if alive(life) => {
                self.deliver(to, Event::Summary { shard, version, summary: *summary });
            }
            Happening::ToCore { core, life, session, frame }
                if alive(life) && self.sessions.contains_key(&session) =>
            {
                self.deliver(core, Event::Frame { session, frame });
            }
            Happening::ToClient { core, life, session, frame } if alive(life) => {
                self.taken(core, session, size_of::<u32>() + frame.len());
                if let (true, Ok((request, response))) =
                    (self.sessions.contains_key(&session), overtake_wire::decode_response(&frame))
                {
                    self.note(overtake_base::hash::stable(&frame));
                    let text = || format!("{session:?} is answered {request}: {}", short(&response));
                    self.tale.tell(self.time_ns, text);
                    return Some(Notice::Response { session, request, response });
                }
            }
            Happening::Timer { number } => return Some(Notice::Timer { number }),
            _ => {}
        }
        None
    }

    fn turn(&mut self, core: usize) {
        let now = self.node.now(self.time_ns);
        let slot = &mut self.node.cores[core];
        if !slot.turn_comes(self.time_ns) {
            return;
        }
        if slot.paused_until_ns > self.time_ns {
            let until_ns = slot.paused_until_ns;
            return self.schedule_turn(core, until_ns);
        }
        let Some(value) = slot.core.as_mut() else { return };
        let mut outputs = core::mem::take(&mut self.outputs);
        while let Some(event) = slot.inbox.pop_front() {
            value.step(now, event, &mut outputs);
        }
        value.drain(now, &mut outputs);
        let wake = value.next_wake();
        outputs.drain(..).for_each(|output| self.carry_out(core, output));
        self.outputs = outputs;
        if self.node.cores[core].disk_failed && self.fatal.is_none() {
            self.fatal = Some(format!("core {core} goes on though a write of its disk failed"));
        }
        self.compare_digests(core);
        if let Some(wake_ns) = wake {
            // A clock that counts whole milliseconds is read again a moment after the wake-up.
            self.schedule_turn(core, wake_ns.max(self.time_ns + 1_000));
        }
    }

    fn carry_out(&mut self, core: usize, output: Output) {
        let life = self.node.life;
        let own = address(core);
        match output {
            Output::Frame { session, frame } => {
                let delay_ns = self.client_delay_ns();
                let at = self.arrival(Way::ToClient(session), delay_ns);
                let frame = frame.slice(size_of::<u32>()..);
                self.schedule(at, Happening::ToClient { core, life, session, frame });
            }
            Output::CloseSession { session, reason, .. } => {
                self.fatal = Some(format!("{session:?} was closed though it did nothing wrong: {reason}"));
            }
            Output::Mesh { to, message } => {
                let delay_ns = self.mesh_delay_ns();
                let at = self.arrival(Way::Ring(own, to), delay_ns);
                let (to, message) = (usize::from(to.core.0), Box::new(message));
                self.schedule(at, Happening::Mesh { to, life, from: own, message });
            }
            Output::Disk(operation) => {
                let id = operation.id;
                self.crash_at_operation = self.crash_at_operation.map(|left| left.saturating_sub(1));
                let after_ns = self.node.cores[core].disk.submit(self.time_ns, operation);
                self.schedule(self.time_ns + after_ns, Happening::Disk { core, life, operation: id });
            }
            Output::Publish { shard, version, summary, gone } => {
                // Later ones may arrive earlier: what is older by then must be skipped by its version.
                if !gone {
                    for to in (0..self.node.cores.len()).filter(|to| *to != core) {
                        let delay_ns = self.mesh_delay_ns();
                        let at = self.time_ns + self.random.below(delay_ns);
                        let summary = Box::new(summary.clone());
                        self.schedule(at, Happening::Board { to, life, shard, version, summary });
                    }
                }
            }
            Output::Members(_) | Output::Removed => {
                self.fatal = Some("a node by itself is none of a cluster".into());
            }
            Output::Warning(text) => self.tale.tell(self.time_ns, || format!("warning: {text}")),
            Output::Serving => {
                self.node.cores[core].serving = true;
                if !self.served && self.node.is_serving() {
                    self.served = true;
                    self.recoveries += u64::from(self.starts > 1);
                }
            }
            Output::JournalBegun => self.node.cores[core].journal_begun = true,
            Output::Stopped => self.node.cores[core].stopped = true,
            Output::Fatal(detail) => {
                self.tale.tell(self.time_ns, || format!("fatal: {detail}"));
                self.fatal = Some(detail);
            }
        }
    }

    fn deliver(&mut self, core: usize, event: Event) {
        self.node.cores[core].inbox.push_back(event);
        let after_ns = self.random.below(TURN_DELAY_NS);
        self.schedule_turn(core, self.time_ns + after_ns);
    }

    /// The client has read an answer. Where room for answers is plentiful that is not worth a turn.
    fn taken(&mut self, core: usize, session: SessionId, bytes: usize) {
        self.node.cores[core].inbox.push_back(Event::Taken { session, bytes });
        if self.node.shape.has_little_room() {
            self.schedule_turn(core, self.time_ns);
        }
    }

    /// Schedules a turn of the core, unless there is an earlier one.
    fn schedule_turn(&mut self, core: usize, at_ns: u64) {
        if self.node.cores[core].wants_turn(at_ns) {
            let life = self.node.life;
            self.schedule(at_ns, Happening::Turn { core, life });
        }
    }

    fn schedule(&mut self, at_ns: u64, happening: Happening) {
        self.heap.push(at_ns, happening);
    }

    /// The ways from one core to another are full until a virtual time: what is sent waits, in order.
    pub fn stall(&mut self, from: usize, to: usize, until_ns: u64) {
        self.ways.arrival(Way::Ring(address(from), address(to)), until_ns);
        self.held_up.push((self.time_ns, until_ns));
    }

    /// No turns on a core until a virtual time.
    pub fn pause(&mut self, core: usize, until_ns: u64) {
        self.node.cores[core].paused_until_ns = until_ns;
        self.held_up.push((self.time_ns, until_ns));
    }

    fn client_delay_ns(&mut self) -> u64 {
        match self.link_slow.draw(&mut self.random) {
            0 => CLIENT_DELAY_NS,
            slow_ns => {
                self.held_up.push((self.time_ns, self.time_ns + slow_ns));
                slow_ns
            }
        }
    }

    fn mesh_delay_ns(&mut self) -> u64 {
        MESH_DELAY_NS + self.mesh_slow.draw(&mut self.random)
    }

    /// When something that sets out now arrives.
    fn arrival(&mut self, way: Way, delay_ns: u64) -> u64 {
        self.ways.arrival(way, self.time_ns + self.random.below(delay_ns))
    }

    fn note(&mut self, what: u64) {
        self.trace = overtake_base::checksum::checksum(self.trace, &what.to_le_bytes());
    }
}

impl World {
    /// Remembers the shards' states: until the node serves again, a shard that is at the same place of its log must be
    /// in the same state.
    pub fn expect_same_state(&mut self) {
        let cores = self.node.cores.iter().filter_map(|slot| slot.core.as_ref());
        self.expected_digests = cores.flat_map(overtake_core::Core::digests).collect();
    }

    fn compare_digests(&mut self, core: usize) {
        let slot = &self.node.cores[core];
        let Some(value) = slot.core.as_ref().filter(|_| !self.expected_digests.is_empty()) else { return };
        for (shard, index, digest) in value.digests() {
            let known = self.expected_digests.iter().position(|(s, i, _)| (*s, *i) == (shard, index));
            let Some(at) = known else { continue };
            let (.., expected) = self.expected_digests.swap_remove(at);
            self.digests_compared += 1;
            if digest != expected {
                let text =
                    format!("shard {shard} is not what it was at log index {index} before the restart");
                self.fatal = Some(text);
            }
        }
        if self.node.is_serving() {
            self.expected_digests.clear();
        }
    }
}

fn address(core: usize) -> Address {
    Address { node: NodeId(1), core: CoreId(core as u16) }
}
