//! The event heap of several nodes: what happens next is decided by virtual time and the order of scheduling, nothing else.

use super::faults::AIMED_OPERATIONS;
use super::net::{Net, Pair, pair};
use super::watch::Watch;
use crate::arena::Arena;
use crate::clocks::Clocks;
use crate::events::Events;
use crate::faults::{FAILURE_NAME, NO_ROOM};
use crate::node::{NodeShape, SimNode};
use crate::tale::{Tale, short};
use crate::ways::{Slowness, Way, Ways};
use crate::world::Notice;
use bytes::Bytes;
use overtake_base::random::Random;
use overtake_base::{CoreId, NodeId, Now, ShardId, UnixMillis};
use overtake_core::codec;
use overtake_core::mesh::MeshMessage;
use overtake_core::{Address, ConnectionId, Event, Output, PeerConfig, SessionId};
use overtake_queue::answer::Summary;
use overtake_wire::message::Request;
use std::collections::{BTreeMap, BTreeSet};

const NANOS_PER_MS: u64 = 1_000_000;
/// Of the replicas that are dropped where power may fail everywhere, one in so many is followed by that.
const DROPS_HIT: u64 = 3;
/// Longest time between an event and the turn that takes it, in nanoseconds: events of that time share a turn.
const TURN_DELAY_NS: u64 = 20_000;
/// Longest way between two cores of a node, in nanoseconds.
const MESH_DELAY_NS: u64 = 30_000;
/// Longest way between two nodes, in nanoseconds.
const NET_DELAY_NS: u64 = 300_000;
/// Longest way between a client and its core, in nanoseconds.
const CLIENT_DELAY_NS: u64 = 200_000;
/// Longest time until an end notices that its stream is broken, in nanoseconds.
const NOTICE_NS_MAX: u64 = 1_000 * NANOS_PER_MS;
/// The same where the other end says so itself.
const RESET_NS_MAX: u64 = 2 * NANOS_PER_MS;
/// Longest time until a new stream is made where it can be, in nanoseconds.
const DIAL_NS_MAX: u64 = 100 * NANOS_PER_MS;
/// What a node is wrong by about another's clock at most, where the network is fast, in milliseconds.
pub const READING_ERROR_MS: u64 = 6;
/// Events of one run: far more than any needs that comes to an end.
const EVENTS_MAX: u64 = 12_000_000;

/// A core of a node, by places.
pub(super) type At = (usize, usize);

#[derive(Debug)]
enum Happening {
    Turn {
        at: At,
        life: u64,
    },
    Disk {
        at: At,
        life: u64,
        operation: u64,
    },
    Mesh {
        to: At,
        life: u64,
        from: Address,
        message: Box<MeshMessage>,
    },
    Board {
        to: At,
        life: u64,
        shard: ShardId,
        version: u64,
        summary: Box<Summary>,
    },
    /// A message of another node; the end that sent it.
    Net {
        pair: Pair,
        end: usize,
        number: u64,
        sent_ns: u64,
        bytes: Bytes,
    },
    /// An end is told that the pair has a stream, or that it is broken.
    Told {
        pair: Pair,
        end: usize,
        number: u64,
        life: u64,
        up: bool,
    },
    Dial {
        pair: Pair,
    },
    ToCore {
        at: At,
        life: u64,
        session: SessionId,
        frame: Bytes,
    },
    ToClient {
        at: At,
        life: u64,
        session: SessionId,
        frame: Bytes,
    },
    Timer {
        number: u64,
    },
}

/// Several nodes, their network, their clients' connections, and time.
pub struct ClusterWorld {
    /// The nodes.
    pub nodes: Vec<SimNode>,
    /// What is between them.
    pub net: Net,
    /// What is held against them all the time.
    pub watch: Watch,
    pub(super) time_ns: u64,
    heap: Events<Happening>,
    /// What a turn puts out; kept for its room.
    outputs: Vec<Output>,
    random: Random,
    sessions: BTreeMap<SessionId, At>,
    next_session: u64,
    ways: Ways,
    trace: u64,
    /// Events so far.
    pub events: u64,
    /// How much longer the way between two nodes is.
    pub net_slow: Slowness,
    /// The same between two cores of a node.
    pub mesh_slow: Slowness,
    /// What the nodes' clocks can have shown.
    pub clocks: Clocks,
    /// The last events in words.
    pub tale: Tale,
    /// Text of what a core could not go on from, and which node it is of.
    pub fatal: Option<(usize, String)>,
    /// Sessions that ended with their nodes.
    pub(super) ended: Vec<SessionId>,
    /// Messages between nodes.
    pub messages: u64,
    /// Replicas that were rebuilt from a snapshot.
    pub rebuilt: u64,
    /// Journals that were given up since they were damaged.
    pub given_up: u64,
    /// The node whose disk was damaged and is not repaired yet: it may give up at any time.
    pub damaged: Option<usize>,
    /// The node that gave up since its disk failed, or was full when it started: its process is about to end.
    pub failed: Option<usize>,
    /// Nodes that are gone for good.
    pub gone: Vec<bool>,
    /// Whom each node that is down knew when it ended.
    pub(super) knew: BTreeMap<usize, BTreeSet<NodeId>>,
    /// Nodes that know that they were removed: their processes are about to end.
    pub(super) leaving: Vec<usize>,
    pub(super) shape: NodeShape,
    pub(super) seed: u64,
    /// Replicas that began and ended by changes of the cluster.
    pub begun: u64,
    /// See above.
    pub dropped: u64,
    /// Set to count a node's disk operations down to a [`Notice::CrashDue`].
    pub crash_at_operation: Option<(usize, u64)>,
    /// Whether power fails everywhere soon after a replica was dropped: drawn each time, where it may.
    pub aims_at_drops: Option<Random>,
    /// The crash that comes is that of all nodes.
    pub crash_of_all: bool,
    /// Power has just failed everywhere after a replica was dropped: the moment for a disk to be lost, too.
    pub dropped_and_dark: bool,
    /// When a node last gave up because it came upon damage.
    pub gave_up_ns: Option<u64>,
}

impl ClusterWorld {
    /// A world whose nodes are being started. Each node is in a zone of its own.
    #[must_use]
    pub fn new(seed: u64, nodes: usize, shape: &NodeShape) -> Self {
        let id = |place: usize| NodeId(place as u64 + 1);
        let peer = |place: usize| PeerConfig {
            node: id(place),
            zone: "simulated".into(),
            http: String::new(),
            address: String::new(),
            cores: shape.cores,
        };
        let address = |place: usize, core: u16| Address { node: id(place), core: CoreId(core) };
        let cores = shape.cores;
        let pairs = (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b))).flat_map(|(a, b)| {
            (0..cores).flat_map(move |i| (0..cores).map(move |j| (address(a, i), address(b, j))))
        });
        let net = Net::new(pairs);
        let nodes: Vec<SimNode> = (0..nodes)
            .map(|place| {
                let peers = (0..nodes).filter(|other| *other != place).map(peer).collect();
                let seed = seed ^ ((place as u64 + 1) << 40);
                SimNode::of_cluster(seed, shape.clone(), id(place), peers)
            })
            .collect();
        let mut world = Self {
            gone: vec![false; nodes.len()],
            knew: BTreeMap::new(),
            leaving: Vec::new(),
            shape: shape.clone(),
            seed,
            begun: 0,
            dropped: 0,
            nodes,
            net,
            watch: Watch::default(),
            time_ns: 1,
            heap: Events::default(),
            outputs: Vec::new(),
            random: Random::new(seed, "world"),
            sessions: BTreeMap::new(),
            next_session: 0,
            ways: Ways::default(),
            trace: 0,
            events: 0,
            net_slow: Slowness::default(),
            mesh_slow: Slowness::default(),
            clocks: Clocks::of_cluster(READING_ERROR_MS),
            tale: Tale::default(),
            fatal: None,
            ended: Vec::new(),
            messages: 0,
            rebuilt: 0,
            given_up: 0,
            damaged: None,
            failed: None,
            crash_at_operation: None,
            aims_at_drops: None,
            crash_of_all: false,
            dropped_and_dark: false,
            gave_up_ns: None,
        };
        (0..world.nodes.len()).for_each(|node| world.start(node));
        world
    }

    /// Hash of everything that happened: equal for equal seeds.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Virtual time in nanoseconds.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Starts a node.
    pub fn start(&mut self, node: usize) {
        self.nodes[node].start(self.time_ns);
        self.note_start(node);
        self.watch.forget(node);
        self.tale.tell(self.time_ns, || format!("node {} starts", node + 1));
        for core in 0..self.nodes[node].cores.len() {
            self.schedule_turn((node, core), self.time_ns);
        }
        self.dial_all();
    }

    fn note_start(&mut self, node: usize) {
        let honest_ms = self.nodes[node].honest_offset_ms;
        let wall = crate::node::true_wall(self.time_ns).0.saturating_add_signed(honest_ms);
        self.clocks.node_started(node, self.time_ns, UnixMillis(wall));
    }

    /// The nodes' wall clocks were set before any of them looked at one.
    pub fn clocks_were_set(&mut self) {
        self.clocks.begin_anew();
        (0..self.nodes.len()).for_each(|node| self.note_start(node));
    }

    /// A node ends: by a power loss, or (`halted`) only its process. Gives the sessions that are gone.
    pub fn end(&mut self, node: usize, halted: bool) -> Vec<SessionId> {
        let how = if halted { "its process ends" } else { "its power is lost" };
        self.tale.tell(self.time_ns, || format!("node {}: {how}", node + 1));
        self.note_known(node);
        if halted {
            self.nodes[node].halt();
        } else {
            self.nodes[node].crash();
        }
        let id = NodeId(node as u64 + 1);
        for pair in self.net.pairs() {
            let ends = [pair.0, pair.1];
            if let Some(end) = ends.iter().position(|end| end.node == id) {
                self.net.stream(pair).up[end] = false;
                // A process that ends says so as often as not.
                let quickly = halted && self.random.below(2) == 0;
                self.break_stream(pair, quickly);
            }
        }
        // The next life has new rings.
        self.ways.clear(|way| matches!(way, Way::Ring(from, _) if from.node == id));
        let gone: Vec<SessionId> =
            self.sessions.iter().filter(|(_, at)| at.0 == node).map(|(session, _)| *session).collect();
        self.sessions.retain(|_, at| at.0 != node);
        gone
    }

    /// Tells a node to stop.
    pub fn ask_to_stop(&mut self, node: usize) {
        self.tale.tell(self.time_ns, || format!("node {} is told to stop", node + 1));
        for core in 0..self.nodes[node].cores.len() {
            self.deliver((node, core), Event::Stop);
        }
    }

    /// A node, or one core of it, does nothing until a virtual time; then it goes on as if nothing had happened.
    pub fn pause(&mut self, node: usize, core: Option<usize>, until_ns: u64) {
        let cores = 0..self.nodes[node].cores.len();
        for core in cores.filter(|of_all| core.is_none_or(|core| core == *of_all)) {
            self.tale.tell(self.time_ns, || {
                format!("node {} core {core} stands still until {until_ns} ns", node + 1)
            });
            self.nodes[node].cores[core].paused_until_ns = until_ns;
            if until_ns <= self.time_ns && self.nodes[node].is_running() {
                self.schedule_turn((node, core), self.time_ns);
            }
        }
    }

    /// The ring from one core of a node to another is full until a virtual time: what is sent waits, in order.
    pub fn stall(&mut self, node: usize, from: usize, to: usize, until_ns: u64) {
        self.tale.tell(self.time_ns, || {
            format!("node {}: the ring from core {from} to {to} is full until {until_ns} ns", node + 1)
        });
        self.ways.arrival(Way::Ring(address((node, from)), address((node, to))), until_ns);
    }

    /// Cuts the way from one node to another, and back unless it is `one_way`.
    pub fn cut(&mut self, from: usize, to: usize, one_way: bool) {
        self.tale.tell(self.time_ns, || format!("nothing passes from node {} to {}", from + 1, to + 1));
        self.net.cut(from, to);
        if !one_way {
            self.net.cut(to, from);
        }
        for pair in self.net.pairs() {
            let (a, b) = (pair.0.node.0 as usize - 1, pair.1.node.0 as usize - 1);
            if (a, b) == (from, to) || (a, b) == (to, from) {
                self.break_stream(pair, false);
            }
        }
    }

    /// All ways are open again.
    pub fn heal(&mut self) {
        self.tale.tell(self.time_ns, || "all ways are open".into());
        self.net.heal();
        self.dial_all();
    }

    /// Breaks the stream of a pair that the seed chooses.
    pub fn reset_one(&mut self) {
        let pairs = self.net.pairs();
        let pair = pairs[self.random.below(pairs.len() as u64) as usize];
        self.tale.tell(self.time_ns, || format!("the stream of {} and {} breaks", pair.0, pair.1));
        let quickly = self.random.below(2) == 0;
        let from_ns = self.lost_from_ns();
        let stream = self.net.stream(pair);
        (0..2).for_each(|end| stream.lose(end, from_ns));
        self.break_stream(pair, quickly);
    }

    /// From now on what a cut way carries is lost; both ends will notice.
    fn break_stream(&mut self, pair: Pair, quickly: bool) {
        let places = [pair.0, pair.1].map(|end| end.node.0 as usize - 1);
        let alive = places.map(|place| self.nodes[place].is_running());
        let passes = [self.net.passes(places[0], places[1]), self.net.passes(places[1], places[0])];
        let from_ns = self.lost_from_ns();
        let stream = self.net.stream(pair);
        for end in 0..2 {
            if !passes[end] || !alive[end] || !alive[1 - end] {
                stream.lose(end, from_ns);
            }
        }
        if stream.breaking {
            return;
        }
        if stream.up == [false; 2] {
            // Nobody was told of it yet, and nobody will be.
            stream.number += 1;
            return self.dial_later(pair);
        }
        stream.breaking = true;
        let number = stream.number;
        self.net.broken += 1;
        for (end, place) in places.into_iter().enumerate() {
            let most_ns = if quickly { RESET_NS_MAX } else { NOTICE_NS_MAX };
            let at_ns = self.time_ns + self.random.below(most_ns);
            let life = self.nodes[place].life;
            self.schedule(at_ns, Happening::Told { pair, end, number, life, up: false });
        }
    }

    /// What is under way at a break arrives yet, or is lost too.
    fn lost_from_ns(&mut self) -> u64 {
        self.random.below(2) * self.time_ns
    }

    fn dial_all(&mut self) {
        for pair in self.net.pairs() {
            self.dial_later(pair);
        }
    }

    fn dial_later(&mut self, pair: Pair) {
        let at_ns = self.time_ns + self.random.below(DIAL_NS_MAX);
        self.schedule(at_ns, Happening::Dial { pair });
    }

    fn dial(&mut self, pair: Pair) {
        let places = [pair.0, pair.1].map(|end| end.node.0 as usize - 1);
        let open = self.net.passes(places[0], places[1]) && self.net.passes(places[1], places[0]);
        let alive = places.iter().all(|place| self.nodes[*place].is_running() && !self.gone[*place]);
        if self.is_gone(pair) {
            return;
        }
        let known = self.knows(pair.0, pair.1.node) && self.knows(pair.1, pair.0.node);
        let stream = self.net.stream(pair);
        if !open || !alive || stream.up != [false; 2] || stream.breaking {
            return;
        }
        if !known {
            return self.dial_later(pair);
        }
        let stream = self.net.stream(pair);
        stream.number += 1;
        stream.lost_from_ns = [None; 2];
        let number = stream.number;
        self.net.made += 1;
        for (end, place) in places.into_iter().enumerate() {
            let life = self.nodes[place].life;
            let at_ns = self.time_ns + self.random.below(NANOS_PER_MS);
            self.schedule(at_ns, Happening::Told { pair, end, number, life, up: true });
        }
    }

    fn told(&mut self, pair: Pair, end: usize, number: u64, life: u64, up: bool) {
        let ends = [pair.0, pair.1];
        let (own, peer) = (ends[end], ends[1 - end]);
        let node = own.node.0 as usize - 1;
        if self.is_gone(pair) {
            return self.told_of_gone(own, peer, life);
        }
        let stream = self.net.stream(pair);
        if stream.number != number {
            return;
        }
        let same_life = self.nodes[node].life == life;
        if up {
            if same_life && !stream.up[end] && !stream.breaking {
                stream.up[end] = true;
                self.deliver((node, usize::from(own.core.0)), Event::PeerUp { peer });
            }
            return;
        }
        if same_life && core::mem::replace(&mut stream.up[end], false) {
            self.deliver((node, usize::from(own.core.0)), Event::PeerDown { peer });
        }
        let stream = self.net.stream(pair);
        if stream.up == [false; 2] && stream.breaking {
            stream.breaking = false;
            // What is on its way to be told of this one comes too late.
            stream.number += 1;
            self.dial_later(pair);
        }
    }

    /// True where a node runs and none of its replicas is being repaired.
    #[must_use]
    pub fn is_whole(&self, node: usize) -> bool {
        let cores = &self.nodes[node].cores;
        cores.iter().all(|slot| slot.serving && slot.core.as_ref().is_some_and(overtake_core::Core::is_whole))
    }

    /// True where blocks of a node's messages may be damaged, and it has not come upon that yet.
    #[must_use]
    pub fn has_hurt_lanes(&self, node: usize) -> bool {
        self.nodes[node].cores.iter().any(|slot| slot.disk.has_hurt_lanes())
    }

    /// True where every node serves, reaches every other, and knows who leads every shard.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.ailment().is_none()
    }

    /// What is not as it should be, if anything.
    #[must_use]
    pub fn ailment(&self) -> Option<String> {
        for (place, node) in self.nodes.iter().enumerate().filter(|(place, _)| !self.gone[*place]) {
            for (core, slot) in node.cores.iter().enumerate() {
                let what = match &slot.core {
                    None => "is down",
                    Some(_) if !slot.serving => "does not serve",
                    Some(_) if slot.disk.hangs_until_ns > self.time_ns => "has a disk that hangs",
                    Some(_) if slot.paused_until_ns > self.time_ns => "stands still",
                    Some(value) if !value.is_whole() => "is being repaired",
                    Some(value) if !value.knows_all_leaders() => {
                        let missed = value.leaders_missed();
                        let words: String = missed.iter().map(|(shard, ..)| self.words_of(*shard)).collect();
                        return Some(format!(
                            "node {} core {core} does not know all leaders: {missed:?}{words}",
                            place + 1
                        ));
                    }
                    Some(_) => continue,
                };
                return Some(format!("node {} core {core} {what}", place + 1));
            }
        }
        (!self.net.is_whole()).then(|| "not all streams are whole".into())
    }

    /// Lets happen what is next, until something concerns the driver. None where nothing is left to happen.
    pub fn next_notice(&mut self) -> Option<Notice> {
        while self.fatal.is_none() {
            self.events += 1;
            if self.events > EVENTS_MAX {
                self.fatal = Some((0, format!("the nodes do not come to rest: {EVENTS_MAX} events")));
                break;
            }
            let (time_ns, number, happening) = self.heap.pop()?;
            self.time_ns = time_ns;
            self.note(time_ns ^ number.rotate_left(32));
            let notice = self.happen(happening);
            if notice.is_some() {
                return notice;
            }
            if matches!(self.crash_at_operation, Some((_, 0))) {
                return Some(Notice::CrashDue);
            }
        }
        None
    }

    fn happen(&mut self, happening: Happening) -> Option<Notice> {
        let alive = |world: &Self, node: usize, life: u64| world.nodes[node].life == life;
        match happening {
            Happening::Turn { at, life } if alive(self, at.0, life) => self.turn(at),
            Happening::Disk { at, life, operation } if alive(self, at.0, life) => {
                let slot = &mut self.nodes[at.0].cores[at.1];
                if let Some(completion) = slot.disk.complete(operation) {
                    slot.note_failures();
                    self.deliver(at, Event::Disk(completion));
                }
            }
            Happening::Mesh { to, life, from, message } if alive(self, to.0, life) => {
                self.deliver(to, Event::Mesh { from, message: *message });
            }
            Happening::Board { to, life, shard, version, summary } if alive(self, to.0, life) => {
                self.deliver(to, Event::Summary { shard, version, summary: *summary });
            }
            Happening::Net { pair, end, number, sent_ns, bytes } => {
                self.arrive(pair, end, number, sent_ns, bytes);
            }
            Happening::Told { pair, end, number, life, up } => self.told(pair, end, number, life, up),
            Happening::Dial { pair } => self.dial(pair),
            Happening::ToCore { at, life, session, frame }
                if alive(self, at.0, life) && self.sessions.contains_key(&session) =>
            {
                self.deliver(at, Event::Frame { session, frame });
            }
            Happening::ToClient { at, life, session, frame } if alive(self, at.0, life) => {
                self.taken(at, session, size_of::<u32>() + frame.len());
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

    fn arrive(&mut self, pair: Pair, end: usize, number: u64, sent_ns: u64, bytes: Bytes) {
        let ends = [pair.0, pair.1];
        let (from, to) = (ends[end], ends[1 - end]);
        if self.is_gone(pair) {
            return;
        }
        let stream = self.net.stream(pair);
        if stream.number != number || stream.loses(end, sent_ns) {
            return;
        }
        if !stream.up[1 - end] {
            // Its end has not heard of the stream yet: it waits there.
            if !stream.breaking {
                let at_ns = self.arrival(Way::Stream(from, to), NANOS_PER_MS);
                self.schedule(at_ns, Happening::Net { pair, end, number, sent_ns, bytes });
            }
            return;
        }
        let at = (to.node.0 as usize - 1, usize::from(to.core.0));
        match codec::decode(&bytes) {
            Ok(message) => self.deliver(at, Event::Mesh { from, message }),
            Err(malformed) => self.fatal = Some((at.0, format!("{from} said {malformed}"))),
        }
    }

    fn turn(&mut self, at: At) {
        let (node, core) = at;
        let now = self.nodes[node].now(self.time_ns);
        let slot = &mut self.nodes[node].cores[core];
        if !slot.turn_comes(self.time_ns) {
            return;
        }
        if slot.paused_until_ns > self.time_ns {
            let until_ns = slot.paused_until_ns;
            return self.schedule_turn(at, until_ns);
        }
        let Some(value) = slot.core.as_mut() else { return };
        let (rebuilt_before, given_up_before) = (value.rebuilt(), value.given_up());
        let (begun_before, dropped_before) = value.replicas_moved();
        let mut outputs = core::mem::take(&mut self.outputs);
        while let Some(event) = slot.inbox.pop_front() {
            value.step(now, event, &mut outputs);
        }
        value.drain(now, &mut outputs);
        self.rebuilt += value.rebuilt() - rebuilt_before;
        self.given_up += value.given_up() - given_up_before;
        self.begun += value.replicas_moved().0 - begun_before;
        let dropped = value.replicas_moved().1 - dropped_before;
        self.dropped += dropped;
        let wake = value.next_wake();
        let (low, high) = (self.clocks.low(self.time_ns), self.clocks.high(self.time_ns));
        let off = value.shown_time().filter(|time| !(low..=high).contains(time));
        let off = off.map(|time| format!("node {} core {core} takes {low} to {high} for {time}", node + 1));
        let wrong = self.watch.look(node, core, self.time_ns, value).or(off);
        outputs.drain(..).for_each(|output| self.carry_out(at, output));
        self.outputs = outputs;
        let goes_on = self.nodes[node].cores[core].disk_failed && self.failed != Some(node);
        let wrong =
            wrong.or(goes_on.then(|| format!("core {core} goes on though a write of its disk failed")));
        if let Some(detail) = wrong {
            self.tale.tell(self.time_ns, || detail.clone());
            self.fatal = Some((node, detail));
        }
        if let Some(random) = self.aims_at_drops.as_mut().filter(|_| dropped > 0)
            && random.below(DROPS_HIT) == 0
            && self.crash_at_operation.is_none()
        {
            self.crash_at_operation = Some((node, 1 + random.below(AIMED_OPERATIONS)));
            self.crash_of_all = true;
        }
        if let Some(wake_ns) = wake {
            // A clock that counts whole milliseconds is read again a moment after the wake-up.
            let wake_ns = self.nodes[node].time_of(wake_ns);
            self.schedule_turn(at, wake_ns.max(self.time_ns + 1_000));
        }
    }

    fn carry_out(&mut self, at: At, output: Output) {
        let (node, core) = at;
        let life = self.nodes[node].life;
        let own = address(at);
        match output {
            Output::Frame { session, frame } => {
                let at_ns = self.arrival(Way::ToClient(session), CLIENT_DELAY_NS);
                let frame = frame.slice(size_of::<u32>()..);
                self.schedule(at_ns, Happening::ToClient { at, life, session, frame });
            }
            Output::CloseSession { session, reason, .. } => {
                let detail = format!("{session:?} was closed though it did nothing wrong: {reason}");
                self.fatal = Some((node, detail));
            }
            Output::Mesh { to, message } if to.node == own.node => {
                let delay_ns = self.mesh_delay_ns();
                let at_ns = self.arrival(Way::Ring(own, to), delay_ns);
                let to = (node, usize::from(to.core.0));
                let message = Box::new(message);
                self.schedule(at_ns, Happening::Mesh { to, life, from: own, message });
            }
            Output::Mesh { to, message } => self.send_to_node(own, to, &message),
            Output::Disk(operation) => {
                let id = operation.id;
                if let Some((aimed, left)) = &mut self.crash_at_operation
                    && *aimed == node
                {
                    *left = left.saturating_sub(1);
                }
                let after_ns = self.nodes[node].cores[core].disk.submit(self.time_ns, operation);
                self.schedule(self.time_ns + after_ns, Happening::Disk { at, life, operation: id });
            }
            Output::Publish { shard, version, summary, gone } => {
                // Later ones may arrive earlier: what is older by then must be skipped by its version.
                for to in (0..self.nodes[node].cores.len()).filter(|to| *to != core && !gone) {
                    let delay_ns = self.mesh_delay_ns();
                    let at_ns = self.time_ns + self.random.below(delay_ns);
                    let (to, summary) = ((node, to), Box::new(summary.clone()));
                    self.schedule(at_ns, Happening::Board { to, life, shard, version, summary });
                }
            }
            Output::Members(members) => {
                // The folder may lag: a node that ends in a moment has kept what it knew before.
                let newer =
                    self.nodes[node].members.as_ref().is_none_or(|known| known.version < members.version);
                if core == 0 && newer && self.random.below(4) > 0 {
                    self.nodes[node].members = Some(members);
                }
            }
            Output::Removed => {
                self.tale.tell(self.time_ns, || format!("node {} was removed", node + 1));
                self.leaving.push(node);
            }
            Output::Serving => self.nodes[node].cores[core].serving = true,
            Output::JournalBegun => self.nodes[node].cores[core].journal_begun = true,
            Output::Stopped => self.nodes[node].cores[core].stopped = true,
            Output::Warning(detail) => {
                self.tale.tell(self.time_ns, || format!("node {}: warning: {detail}", node + 1));
            }
            Output::Fatal(detail) if self.damaged == Some(node) && detail.contains("damaged") => {
                self.tale.tell(self.time_ns, || format!("node {} gives up: {detail}", node + 1));
                self.crash_at_operation = Some((node, 0));
                self.gave_up_ns = Some(self.time_ns);
            }
            Output::Fatal(detail)
                if detail.contains(FAILURE_NAME)
                    || detail.contains(NO_ROOM) && self.nodes[node].cores[core].disk.is_limited() =>
            {
                self.tale.tell(self.time_ns, || format!("node {} gives up: {detail}", node + 1));
                self.crash_at_operation = Some((node, 0));
                self.failed = Some(node);
            }
            Output::Fatal(detail) => {
                self.tale.tell(self.time_ns, || format!("node {}: fatal: {detail}", node + 1));
                self.fatal = Some((node, detail));
            }
        }
    }

    fn send_to_node(&mut self, from: Address, to: Address, message: &MeshMessage) {
        let (pair, end) = pair(from, to);
        if self.gone[to.node.0 as usize - 1] || self.gone[from.node.0 as usize - 1] {
            return;
        }
        let stream = self.net.stream(pair);
        if !stream.up[end] || stream.loses(end, self.time_ns) {
            return;
        }
        let number = stream.number;
        self.messages += 1;
        let delay_ns = NET_DELAY_NS + self.net_slow.draw(&mut self.random);
        let at_ns = self.arrival(Way::Stream(from, to), delay_ns);
        let sent_ns = self.time_ns;
        let mut bytes = Vec::new();
        if codec::encode(message, &mut bytes) && bytes.len() <= codec::BYTES_MAX {
            let bytes = bytes.into();
            self.schedule(at_ns, Happening::Net { pair, end, number, sent_ns, bytes });
        } else {
            let node = from.node.0 as usize - 1;
            self.fatal = Some((node, format!("{from} says to {to} what cannot be sent: {}", short(message))));
        }
    }

    pub(super) fn deliver(&mut self, at: At, event: Event) {
        self.nodes[at.0].cores[at.1].inbox.push_back(event);
        let after_ns = self.random.below(TURN_DELAY_NS);
        self.schedule_turn(at, self.time_ns + after_ns);
    }

    /// The client has read an answer. Where room for answers is plentiful that is not worth a turn.
    fn taken(&mut self, at: At, session: SessionId, bytes: usize) {
        let node = &mut self.nodes[at.0];
        node.cores[at.1].inbox.push_back(Event::Taken { session, bytes });
        if node.shape.has_little_room() {
            self.schedule_turn(at, self.time_ns);
        }
    }

    /// Schedules a turn of the core, unless there is an earlier one.
    fn schedule_turn(&mut self, at: At, at_ns: u64) {
        let life = self.nodes[at.0].life;
        if self.nodes[at.0].cores[at.1].wants_turn(at_ns) {
            self.schedule(at_ns, Happening::Turn { at, life });
        }
    }

    fn schedule(&mut self, at_ns: u64, happening: Happening) {
        self.heap.push(at_ns, happening);
    }

    fn mesh_delay_ns(&mut self) -> u64 {
        // Nothing is drawn where nothing is slow, so that such seeds are what they were before this was a fault.
        let slow_ns = if self.mesh_slow.ppm > 0 { self.mesh_slow.draw(&mut self.random) } else { 0 };
        MESH_DELAY_NS + slow_ns
    }

    /// When something that sets out now arrives.
    fn arrival(&mut self, way: Way, delay_ns: u64) -> u64 {
        self.ways.arrival(way, self.time_ns + self.random.below(delay_ns))
    }

    fn note(&mut self, what: u64) {
        self.trace = overtake_base::checksum::checksum(self.trace, &what.to_le_bytes());
    }

    /// Opens a session on some core of a node.
    pub fn connect_to(&mut self, node: usize) -> SessionId {
        self.next_session += 1;
        let session = SessionId(self.next_session);
        let core = self.random.below(self.nodes[node].cores.len() as u64) as usize;
        self.sessions.insert(session, (node, core));
        self.deliver((node, core), Event::SessionOpened { session, connection: ConnectionId(0) });
        session
    }
}

fn address((node, core): At) -> Address {
    Address { node: NodeId(node as u64 + 1), core: CoreId(core as u16) }
}

impl Arena for ClusterWorld {
    fn time_ns(&self) -> u64 {
        self.time_ns
    }

    fn now(&self) -> Now {
        Now { monotonic_ns: self.time_ns, wall: crate::node::true_wall(self.time_ns) }
    }

    fn is_open(&self) -> bool {
        self.nodes.iter().any(SimNode::is_running)
    }

    fn connect(&mut self) -> SessionId {
        let running: Vec<usize> =
            (0..self.nodes.len()).filter(|node| self.nodes[*node].is_running()).collect();
        let node = running[self.random.below(running.len() as u64) as usize];
        self.connect_to(node)
    }

    fn disconnect(&mut self, session: SessionId) {
        if let Some(at) = self.sessions.remove(&session) {
            self.deliver(at, Event::SessionClosed { session });
        }
    }

    fn send(&mut self, session: SessionId, request: u64, body: &Request) -> Option<usize> {
        let at = self.sessions.get(&session).copied()?;
        let mut frame = Vec::new();
        overtake_wire::encode_request(request, body, &mut frame);
        let frame = Bytes::from(frame).slice(size_of::<u32>()..);
        let life = self.nodes[at.0].life;
        self.tale.tell(self.time_ns, || {
            format!("{session:?} on node {} core {} asks {request}: {}", at.0 + 1, at.1, short(body))
        });
        let at_ns = self.arrival(Way::ToCore(session), CLIENT_DELAY_NS);
        self.schedule(at_ns, Happening::ToCore { at, life, session, frame });
        Some(at.0)
    }

    fn set_timer(&mut self, after_ns: u64, number: u64) {
        self.schedule(self.time_ns + after_ns, Happening::Timer { number });
    }
}
