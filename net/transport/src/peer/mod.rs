//! Links between cores of different nodes: QUIC as a state machine, as for clients, on an endpoint of its own.
//!
//! A **link** leads from one core to one core of another node. It is one connection with one stream that carries the
//! messages of both directions in the order sent (`net/wire/src/peer.rs` has the bytes), or it is down. Every core
//! listens on a port of its own, its node's base port plus its number, so that the first packet already says which core
//! is meant. The node with the lower id dials, again and again with growing, jittered pauses.
//!
//! Both sides prove with certificates of the cluster's authority which node they are, and then greet: a side that is of
//! another cluster, another node than it should be, or was told other nodes and shards, is refused, and both say why.
//!
//! What is sent in a turn is collected and handed to QUIC at once, at [`PeerTransport::poll_transmit`]. What the other
//! side does not take is kept up to a bound; past it the link is cut and begun again, so that a slow peer costs its own
//! link and no memory.
//!
//! # How a shell drives it
//!
//! 1. [`PeerTransport::datagram`] for each datagram;
//! 2. [`PeerTransport::timeout`] when [`PeerTransport::next_timeout`] has come;
//! 3. [`PeerTransport::poll_event`] until `None`;
//! 4. [`PeerTransport::send`];
//! 5. [`PeerTransport::poll_transmit`] until `None`.
//!
//! Before it sleeps it asks [`PeerTransport::has_events`] and [`PeerTransport::has_transmits`].

mod complaints;
mod config;
mod connection;
mod name;

pub use config::{PeerConfig, PeerNode};
pub use name::{ClusterName, NodeName};

use crate::config::{TokenClock, TransportError, Wall};
use crate::limits;
use crate::timers::Timers;
use bytes::{Bytes, BytesMut};
use complaints::Complaints;
use connection::{PeerConnection, ReadEnd, Stage, explain, is_away};
use core::fmt;
use overtake_base::random::Random;
use overtake_base::{CoreId, NodeId, UnixMillis};
use overtake_wire::LENGTH_BYTES;
use overtake_wire::peer::{CONFIRMATION, PEER_FRAME_BYTES_MAX, PeerHello, peer_code};
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, Event, Incoming, ServerConfig,
    StreamEvent, Transmit, VarInt,
};
use rustls::pki_types::CertificateDer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One core of another node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId {
    /// The node.
    pub node: NodeId,
    /// Its core.
    pub core: CoreId,
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} core {}", self.node, self.core)
    }
}

/// What peers did.
#[derive(Debug)]
pub enum PeerEvent {
    /// A link is there.
    Up {
        /// To whom.
        peer: PeerId,
        /// The identity of that node's data folder.
        store: u128,
    },
    /// A message came. Given between [`PeerEvent::Up`] and the next [`PeerEvent::Down`] of the peer, in the order sent.
    Message {
        /// Whose.
        peer: PeerId,
        /// Its bytes.
        message: Bytes,
    },
    /// The link is gone, and what was under way on it.
    Down {
        /// To whom it led.
        peer: PeerId,
        /// Why, for a person.
        reason: String,
    },
    /// A link cannot be made, or somebody who knocked was refused: for the log. The same one is told twice a minute at
    /// most.
    Complaint {
        /// A peer, or the address of a stranger.
        about: String,
        /// Why, for a person.
        reason: String,
        /// It does not answer, or is stopping: nothing is wrong with who it is.
        away: bool,
    },
}

/// Another node, as far as it is known.
struct Node {
    cores: u16,
    address: Option<SocketAddr>,
    store: Option<u128>,
}

/// The way to one core of another node.
#[derive(Default)]
struct Link {
    /// The connection that is the link.
    up: Option<usize>,
    /// A connection that may become it, of the side that dials.
    trying: Option<usize>,
    /// When it is dialled again.
    retry_at: Option<Instant>,
    /// Attempts without success in a row.
    failures: u32,
}

/// The links of one core to those of other nodes.
pub struct PeerTransport {
    endpoint: Endpoint,
    server: [Arc<ServerConfig>; 2],
    client: [ClientConfig; 2],
    wall: Arc<Wall>,
    clock: Arc<TokenClock>,
    started: Instant,
    hello: PeerHello,
    nodes: BTreeMap<NodeId, Node>,
    links: BTreeMap<PeerId, Link>,
    /// When which link is to be dialled.
    dials: BTreeSet<(Instant, PeerId)>,
    /// By connection handle.
    connections: Vec<Option<Box<PeerConnection>>>,
    open: usize,
    handshakes: usize,
    timers: Timers,
    random: Random,
    complaints: Complaints,
    events: VecDeque<PeerEvent>,
    pump_queue: VecDeque<usize>,
    transmit_queue: VecDeque<usize>,
    /// Datagrams that no connection sends.
    responses: VecDeque<(Transmit, Vec<u8>)>,
    scratch: Vec<u8>,
    stopping: bool,
}

impl PeerTransport {
    /// An endpoint without links, which begins to dial at the next [`Self::timeout`]. `now` is the zero of its clock.
    ///
    /// # Errors
    /// Where the certificate, its key or the authority cannot be used, or no peer would take them.
    pub fn new(config: &PeerConfig, now: Instant) -> Result<Self, TransportError> {
        let built = config::build(config)?;
        let hello = config.hello;
        let seed = u64::from_le_bytes(core::array::from_fn(|i| config.seed[i]));
        let mut nodes = BTreeMap::new();
        let mut links = BTreeMap::new();
        for PeerNode { node, cores, address, store } in config.nodes.iter().cloned() {
            for core in (0..cores).map(CoreId) {
                links.insert(PeerId { node, core }, Link::default());
            }
            nodes.insert(node, Node { cores, address, store });
        }
        let mut transport = Self {
            endpoint: Endpoint::new(Arc::new(built.endpoint), Some(built.server[0].clone()), true, None),
            server: built.server,
            client: built.client,
            wall: built.wall,
            clock: built.clock,
            started: now,
            hello,
            nodes,
            links,
            dials: BTreeSet::new(),
            connections: Vec::new(),
            open: 0,
            handshakes: 0,
            timers: Timers::default(),
            random: Random::new(seed, "peer pauses"),
            complaints: Complaints::default(),
            events: VecDeque::new(),
            pump_queue: VecDeque::new(),
            transmit_queue: VecDeque::new(),
            responses: VecDeque::new(),
            scratch: Vec::new(),
            stopping: false,
        };
        let dialled: Vec<PeerId> =
            transport.links.keys().copied().filter(|peer| transport.dials(*peer)).collect();
        for peer in dialled {
            transport.dial_at(peer, now);
        }
        Ok(transport)
    }

    /// The wall clock, for the validity of certificates.
    pub fn set_wall(&self, wall: UnixMillis) {
        self.wall.set(wall);
    }

    /// Where core 0 of a node listens is known, or has changed.
    pub fn set_address(&mut self, now: Instant, node: NodeId, address: SocketAddr) {
        let Some(known) = self.nodes.get_mut(&node) else { return };
        if known.address.replace(address) == Some(address) {
            return;
        }
        for core in (0..known.cores).map(CoreId) {
            let peer = PeerId { node, core };
            let free = self.links.get(&peer).is_some_and(|link| link.up.is_none() && link.trying.is_none());
            if free && self.dials(peer) {
                self.dial_at(peer, now);
            }
        }
    }

    /// These are the other nodes from now on. Who is among them no more keeps a link that is up for as long as it holds, and
    /// gets no other.
    pub fn set_nodes(&mut self, now: Instant, nodes: Vec<PeerNode>) {
        self.nodes.retain(|node, _| nodes.iter().any(|peer| peer.node == *node));
        for PeerNode { node, cores, address, store } in nodes {
            if self.nodes.contains_key(&node) {
                continue;
            }
            self.nodes.insert(node, Node { cores, address, store });
            for peer in (0..cores).map(|core| PeerId { node, core: CoreId(core) }) {
                self.links.entry(peer).or_default();
                if self.dials(peer) {
                    self.dial_at(peer, now);
                }
            }
        }
    }

    /// Whether this side dials.
    fn dials(&self, peer: PeerId) -> bool {
        self.hello.node < peer.node
    }

    fn dial_at(&mut self, peer: PeerId, at: Instant) {
        if let Some(link) = self.links.get_mut(&peer) {
            if let Some(before) = link.retry_at.replace(at) {
                self.dials.remove(&(before, peer));
            }
            self.dials.insert((at, peer));
        }
    }

    /// Dials again after a pause that grows with the failures in a row.
    fn dial_later(&mut self, peer: PeerId, now: Instant) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.failures = link.failures.saturating_add(1);
        let doubled = limits::PEER_PAUSE_FIRST * (1 << (link.failures - 1).min(16));
        let half_us = (doubled.min(limits::PEER_PAUSE_MAX).as_micros() / 2) as u64;
        let pause = Duration::from_micros(half_us + self.random.below(half_us));
        self.dial_at(peer, now + pause);
    }

    fn dial(&mut self, peer: PeerId, now: Instant) {
        let Some(node) = self.nodes.get(&peer.node) else { return };
        // Without an address it is dialled when there is one.
        let Some(base) = node.address else { return };
        let Some(port) = base.port().checked_add(peer.core.0) else { return };
        let remote = SocketAddr::new(base.ip(), port);
        let config = self.client[usize::from(is_near(remote.ip()))].clone();
        let name = NodeName { node: peer.node, cluster: self.hello.cluster }.to_string();
        match self.endpoint.connect(now, config, remote, &name) {
            Ok((handle, quic)) => {
                let slot = self.insert(PeerConnection::new(handle, quic, Some(peer), now));
                if let Some(link) = self.links.get_mut(&peer) {
                    link.trying = Some(slot);
                }
            }
            Err(error) => {
                let reason = format!("it cannot be dialled at {remote}: {error}");
                self.complain(now, peer.to_string(), reason, false);
                self.dial_later(peer, now);
            }
        }
    }

    fn insert(&mut self, connection: PeerConnection) -> usize {
        let slot = connection.handle.0;
        if self.connections.len() <= slot {
            self.connections.resize_with(slot + 1, || None);
        }
        self.connections[slot] = Some(Box::new(connection));
        self.open += 1;
        self.handshakes += 1;
        self.wake(slot);
        slot
    }

    fn complain(&mut self, now: Instant, about: String, reason: String, away: bool) {
        if self.complaints.is_news(now, &about, &reason) {
            self.events.push_back(PeerEvent::Complaint { about, reason, away });
        }
    }

    /// Takes one datagram that came from `remote` to `local_ip`.
    pub fn datagram(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        ecn: Option<EcnCodepoint>,
        data: BytesMut,
    ) {
        self.clock.set(now.saturating_duration_since(self.started));
        self.scratch.clear();
        match self.endpoint.handle(now, remote, local_ip, ecn, data, &mut self.scratch) {
            None => {}
            Some(DatagramEvent::ConnectionEvent(ConnectionHandle(slot), event)) => {
                if let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) {
                    connection.quic.handle_event(event);
                    self.wake(slot);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.knock(now, incoming),
            Some(DatagramEvent::Response(transmit)) => self.respond(transmit),
        }
    }

    fn knock(&mut self, now: Instant, incoming: Incoming) {
        self.scratch.clear();
        let full = self.open >= self.links.len() * 2 + limits::PEER_CONNECTIONS_SPARE;
        if self.stopping || full {
            let transmit = self.endpoint.refuse(incoming, &mut self.scratch);
            return self.respond(transmit);
        }
        let crowded = self.handshakes >= self.links.len() + limits::PEER_HANDSHAKES_BEFORE_RETRY;
        if crowded && !incoming.remote_address_validated() {
            return match self.endpoint.retry(incoming, &mut self.scratch) {
                Ok(transmit) => self.respond(transmit),
                Err(error) => self.endpoint.ignore(error.into_incoming()),
            };
        }
        let server = self.server[usize::from(is_near(incoming.remote_address().ip()))].clone();
        match self.endpoint.accept(incoming, now, &mut self.scratch, Some(server)) {
            Ok((handle, quic)) => drop(self.insert(PeerConnection::new(handle, quic, None, now))),
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.respond(transmit);
                }
            }
        }
    }

    fn respond(&mut self, transmit: Transmit) {
        if self.responses.len() < limits::RESPONSES_MAX {
            self.responses.push_back((transmit, self.scratch.clone()));
        }
    }

    /// Puts a connection into both queues.
    fn wake(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        if !core::mem::replace(&mut connection.in_pump_queue, true) {
            self.pump_queue.push_back(slot);
        }
        self.wake_transmit(slot);
    }

    fn wake_transmit(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        if !core::mem::replace(&mut connection.in_transmit_queue, true) {
            self.transmit_queue.push_back(slot);
        }
    }

    /// Runs every timer that is due, and dials what is to be dialled.
    pub fn timeout(&mut self, now: Instant) {
        while let Some(slot) = self.timers.take_due(now) {
            let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) else {
                continue;
            };
            connection.due = None;
            connection.quic.handle_timeout(now);
            if connection.is_greeting() && connection.greet_by <= now {
                self.close(slot, &mut connection, now, peer_code::SILENT, "it does not greet");
            }
            self.connections[slot] = Some(connection);
            self.wake(slot);
        }
        while let Some((at, peer)) = self.dials.first().copied().filter(|(at, _)| *at <= now) {
            self.dials.remove(&(at, peer));
            let Some(link) = self.links.get_mut(&peer) else { continue };
            link.retry_at = None;
            if link.up.is_none() && link.trying.is_none() && !self.stopping {
                self.dial(peer, now);
            }
        }
    }

    /// When to call [`Self::timeout`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let dial = self.dials.first().map(|(at, _)| *at).filter(|_| !self.stopping);
        [self.timers.next(), dial].into_iter().flatten().min()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self, now: Instant) -> Option<PeerEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let slot = self.pump_queue.pop_front()?;
            if let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) {
                connection.in_pump_queue = false;
                if self.pump(slot, &mut connection, now) {
                    self.timers.set(slot, connection.due, None);
                    self.open -= 1;
                } else {
                    self.connections[slot] = Some(connection);
                    // Reading and closing make datagrams.
                    self.wake_transmit(slot);
                }
            }
        }
    }

    /// Does what follows from datagrams and timers. True when the connection is gone for good.
    fn pump(&mut self, slot: usize, connection: &mut PeerConnection, now: Instant) -> bool {
        while let Some(event) = connection.quic.poll() {
            match event {
                Event::Connected => self.connected(slot, connection, now),
                Event::ConnectionLost { reason } => {
                    connection.away = is_away(&reason);
                    self.ended(slot, connection, now, explain(&reason));
                }
                Event::Stream(StreamEvent::Opened { .. }) => {
                    connection.accept_stream();
                    self.read(slot, connection, now);
                }
                Event::Stream(StreamEvent::Readable { .. }) => self.read(slot, connection, now),
                Event::Stream(StreamEvent::Stopped { .. }) => {
                    self.close(slot, connection, now, peer_code::MALFORMED, "it reads no more");
                }
                Event::Stream(_)
                | Event::HandshakeDataReady
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
        }
        while let Some(event) = connection.quic.poll_endpoint_events() {
            let drained = event.is_drained();
            if let Some(reply) = self.endpoint.handle_event(connection.handle, event) {
                connection.quic.handle_event(reply);
            }
            if drained {
                self.ended(slot, connection, now, "closed".into());
                return true;
            }
        }
        false
    }

    /// The handshake is over: both sides hold keys of certificates that the other takes.
    fn connected(&mut self, slot: usize, connection: &mut PeerConnection, now: Instant) {
        if connection.stage != Stage::Handshake {
            return;
        }
        connection.stage = Stage::Greeting;
        if connection.dialled.is_some() {
            // That it is the node that was dialled is in the certificate, and was checked.
            if connection.open_stream() {
                self.greet(connection);
            } else {
                self.close(slot, connection, now, peer_code::MALFORMED, "it lets no stream be opened");
            }
        } else {
            self.read(slot, connection, now);
        }
    }

    fn greet(&self, connection: &mut PeerConnection) {
        connection.collect(|out| {
            self.hello.encode(out);
            true
        });
    }

    fn read(&mut self, slot: usize, connection: &mut PeerConnection, now: Instant) {
        if matches!(connection.stage, Stage::Handshake | Stage::Ended) {
            return;
        }
        let mut frames = VecDeque::new();
        let end = connection.read(|frame| frames.push_back(frame));
        while let Some(frame) = frames.pop_front() {
            match connection.stage {
                Stage::Greeting => self.greeted(slot, connection, now, &frame),
                Stage::Confirming(peer, store) if frame.is_empty() => {
                    self.linked(slot, connection, now, peer, store)
                }
                Stage::Confirming(..) => {
                    self.close(
                        slot,
                        connection,
                        now,
                        peer_code::MALFORMED,
                        "it does not confirm the greeting",
                    );
                }
                Stage::Up(peer) => self.events.push_back(PeerEvent::Message { peer, message: frame }),
                Stage::Handshake | Stage::Ended => return,
            }
        }
        match end {
            ReadEnd::Open => {}
            ReadEnd::Ended => self.close(slot, connection, now, peer_code::MALFORMED, "it ended its stream"),
            ReadEnd::Malformed => {
                self.close(slot, connection, now, peer_code::MALFORMED, "it sends frames that are too long");
            }
        }
    }

    /// The other side said who it is.
    fn greeted(&mut self, slot: usize, connection: &mut PeerConnection, now: Instant, frame: &[u8]) {
        let hello = match PeerHello::decode(frame) {
            Ok(hello) => hello,
            Err(wrong) => return self.close(slot, connection, now, peer_code::MALFORMED, wrong.0),
        };
        if let Err(refusal) = self.judge(connection, &hello) {
            return self.close(slot, connection, now, peer_code::REFUSED, &refusal);
        }
        let peer = PeerId { node: hello.node, core: hello.core };
        if connection.dialled.is_none() {
            self.greet(connection);
            connection.stage = Stage::Confirming(peer, hello.store);
            return;
        }
        connection.collect(|out| {
            out.extend_from_slice(&CONFIRMATION);
            true
        });
        self.linked(slot, connection, now, peer, hello.store);
    }

    /// Both sides take each other.
    fn linked(
        &mut self,
        slot: usize,
        connection: &mut PeerConnection,
        now: Instant,
        peer: PeerId,
        store: u128,
    ) {
        if let Some(node) = self.nodes.get_mut(&peer.node) {
            node.store = Some(store);
        }
        connection.stage = Stage::Up(peer);
        self.handshakes -= 1;
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.trying == Some(slot) {
            link.trying = None;
        }
        link.failures = 0;
        if let Some(old) = link.up.replace(slot) {
            self.replaced(old, peer, now);
        }
        self.events.push_back(PeerEvent::Up { peer, store });
    }

    /// The peer has made another connection, so it has given up this one.
    fn replaced(&mut self, slot: usize, peer: PeerId, now: Instant) {
        let reason = "it has made another connection";
        self.events.push_back(PeerEvent::Down { peer, reason: reason.into() });
        if let Some(old) = self.connections.get_mut(slot).and_then(Option::as_mut) {
            old.stage = Stage::Ended;
            old.forget();
            old.quic.close(now, VarInt::from_u32(peer_code::REPLACED), Bytes::from_static(reason.as_bytes()));
        }
        self.wake(slot);
    }

    /// Why the other side cannot be a peer.
    fn judge(&self, connection: &PeerConnection, hello: &PeerHello) -> Result<(), String> {
        let own = &self.hello;
        if hello.cluster != own.cluster {
            return Err(format!("cluster {:032x} is not this cluster, {:032x}", hello.cluster, own.cluster));
        }
        let shown = shown_name(connection);
        if shown != Some(NodeName { node: hello.node, cluster: hello.cluster }) {
            let shown = shown.map_or_else(|| "no node's".to_owned(), |name| name.to_string());
            return Err(format!("it calls itself node {}, but its certificate is {shown}", hello.node));
        }
        if hello.node == own.node {
            return Err(format!(
                "node {} is the answering node itself: two nodes have the same id",
                own.node
            ));
        }
        let Some(node) = self.nodes.get(&hello.node) else {
            return Err(format!(
                "node {} is not in the cluster as node {} knows it: it has yet to join, or was removed",
                hello.node, own.node
            ));
        };
        if hello.map != own.map || hello.cores != node.cores {
            return Err(format!(
                "nodes {} and {} were told different things of nodes, zones, cores or shards: configure all nodes alike",
                own.node, hello.node
            ));
        }
        if node.store.is_some_and(|store| store != hello.store) {
            return Err(format!(
                "node {} has another data folder than before: what it promised is forgotten, so it must come back as a \
                 node with a new id",
                hello.node
            ));
        }
        match connection.dialled {
            Some(dialled) if (dialled.node, dialled.core) != (hello.node, hello.core) => {
                Err(format!("dialled was {dialled}, there is node {} core {}", hello.node, hello.core))
            }
            None if self.dials(PeerId { node: hello.node, core: hello.core }) => {
                Err("the node with the lower id dials".into())
            }
            _ => Ok(()),
        }
    }

    /// Closes a connection from this side, and says why.
    fn close(&mut self, slot: usize, connection: &mut PeerConnection, now: Instant, code: u32, reason: &str) {
        connection.quic.close(now, VarInt::from_u32(code), Bytes::copy_from_slice(reason.as_bytes()));
        self.ended(slot, connection, now, reason.to_owned());
    }

    /// A connection is over, one way or the other; what it was is over, too. Told once.
    fn ended(&mut self, slot: usize, connection: &mut PeerConnection, now: Instant, reason: String) {
        let stage = core::mem::replace(&mut connection.stage, Stage::Ended);
        connection.forget();
        let peer = match stage {
            Stage::Ended => return,
            Stage::Up(peer) => {
                let link = self.links.get_mut(&peer).filter(|link| link.up == Some(slot));
                if let Some(link) = link {
                    link.up = None;
                    self.events.push_back(PeerEvent::Down { peer, reason });
                }
                Some(peer)
            }
            Stage::Handshake | Stage::Greeting | Stage::Confirming(..) => {
                self.handshakes -= 1;
                let about = match connection.dialled {
                    Some(peer) => format!("{peer} at {}", connection.remote),
                    None => format!("somebody at {}", connection.remote.ip()),
                };
                self.complain(now, about, reason, connection.away);
                connection.dialled
            }
        };
        if let Some(peer) = peer.filter(|peer| self.dials(*peer)) {
            if let Some(link) = self.links.get_mut(&peer).filter(|link| link.trying == Some(slot)) {
                link.trying = None;
            }
            self.dial_later(peer, now);
        }
    }

    /// True where [`Self::poll_event`] has something to do.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || !self.pump_queue.is_empty()
    }

    /// True where [`Self::poll_transmit`] has something to do.
    #[must_use]
    pub fn has_transmits(&self) -> bool {
        !self.responses.is_empty() || !self.transmit_queue.is_empty()
    }

    /// Sends what `write` appends as one message. It is lost, as what is under way on a link that breaks, where there is
    /// no link, or the peer takes too little, or the message is too long; the last two cut the link. `write` returns
    /// false where there is nothing to send.
    pub fn send(&mut self, now: Instant, peer: PeerId, write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let Some(slot) = self.links.get(&peer).and_then(|link| link.up) else { return };
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        let mut too_long = false;
        connection.collect(|out| {
            let begin = out.len();
            out.extend_from_slice(&[0; LENGTH_BYTES]);
            let written = write(out);
            let length = out.len() - begin - LENGTH_BYTES;
            too_long = written && length > PEER_FRAME_BYTES_MAX;
            if let Ok(length) = u32::try_from(length) {
                out[begin..begin + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
            }
            written
        });
        let slow = connection.waiting_bytes() > limits::PEER_BACKLOG_BYTES_MAX;
        self.wake_transmit(slot);
        if too_long {
            self.cut(now, peer, peer_code::MALFORMED, "a message to it is longer than a frame may be");
        } else if slow {
            self.cut(now, peer, peer_code::SLOW, "it takes too little of what is sent to it");
        }
    }

    /// Cuts the link to a peer whose message makes no sense. What came behind it is not given any more: the peer's words
    /// would have a gap.
    pub fn cut_malformed(&mut self, now: Instant, peer: PeerId, what: &str) {
        self.events.retain(|event| !matches!(event, PeerEvent::Message { peer: of, .. } if *of == peer));
        self.cut(now, peer, peer_code::MALFORMED, what);
    }

    fn cut(&mut self, now: Instant, peer: PeerId, code: u32, reason: &str) {
        let Some(slot) = self.links.get(&peer).and_then(|link| link.up) else { return };
        if let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) {
            self.close(slot, &mut connection, now, code, reason);
            self.connections[slot] = Some(connection);
            self.wake(slot);
        }
    }

    /// Puts the next datagrams into `buf`: the first `size` bytes, in at most `segments_max` segments of
    /// `segment_size`.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        segments_max: usize,
        buf: &mut Vec<u8>,
    ) -> Option<Transmit> {
        buf.clear();
        if let Some((transmit, data)) = self.responses.pop_front() {
            buf.extend_from_slice(&data[..transmit.size]);
            return Some(transmit);
        }
        while let Some(slot) = self.transmit_queue.pop_front() {
            let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) else {
                continue;
            };
            if !connection.write() {
                self.close(slot, &mut connection, now, peer_code::MALFORMED, "it reads no more");
            }
            let transmit = connection.poll_transmit(now, segments_max, buf);
            if transmit.is_some() {
                // Behind the others: links take turns.
                self.transmit_queue.push_back(slot);
            } else {
                connection.in_transmit_queue = false;
                let due = connection.next_due();
                self.timers.set(slot, connection.due, due);
                connection.due = due;
            }
            self.connections[slot] = Some(connection);
            if transmit.is_some() {
                return transmit;
            }
        }
        None
    }

    /// Closes all links, tells the peers so, and makes no others.
    pub fn stop(&mut self, now: Instant) {
        self.stopping = true;
        for slot in 0..self.connections.len() {
            if let Some(mut connection) = self.connections[slot].take() {
                self.close(slot, &mut connection, now, peer_code::STOPPING, "the node is stopping");
                self.connections[slot] = Some(connection);
                self.wake(slot);
            }
        }
    }

    /// The peers with a link.
    pub fn up(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.links.iter().filter(|(_, link)| link.up.is_some()).map(|(peer, _)| *peer)
    }

    /// Bytes that wait for a peer to take them.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.connections.iter().flatten().map(|connection| connection.waiting_bytes()).sum()
    }

    /// Connections, those being made and closed included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open
    }
}

/// Whether datagrams to an address do not leave this host.
fn is_near(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// The name in the certificate that the other side has shown.
fn shown_name(connection: &PeerConnection) -> Option<NodeName> {
    let shown = connection.quic.crypto_session().peer_identity()?;
    let chain = shown.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    NodeName::of_certificate(chain.first()?)
}
