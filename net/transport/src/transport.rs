//! The transport of one core: its endpoint, its connections, and which of them want attention.

use crate::admission::{Admission, Place, Verdict};
use crate::config::{self, TokenClock, TransportConfig, TransportError, Wall};
use crate::connection::{Connection, Sink};
use crate::connection_id::Router;
use crate::limits;
use bytes::{Bytes, BytesMut};
use overtake_base::{CoreId, UnixMillis};
use quinn_proto::{
    ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, Incoming, ServerConfig, Transmit,
};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// What clients did.
#[derive(Debug)]
pub enum TransportEvent {
    /// A client opened a stream.
    SessionOpened {
        /// Its number from now on.
        session: u64,
        /// The number of its connection, never used twice.
        connection: u64,
        /// Where the client is.
        remote: SocketAddr,
    },
    /// A whole frame arrived.
    Frame {
        /// On which session.
        session: u64,
        /// Without its length prefix.
        frame: Bytes,
    },
    /// Nothing more comes from the session and nothing more can be sent to it. Given once for each session opened.
    SessionClosed {
        /// Which.
        session: u64,
    },
    /// Answers are off our hands: QUIC took them, or they were dropped. In the end that is each byte that was given to
    /// [`Transport::send`], also of sessions that are closed. A little is told only when something else is.
    Taken {
        /// Of which session.
        session: u64,
        /// How many bytes since it was last told.
        bytes: usize,
    },
}

/// What became of a datagram.
#[derive(Debug)]
pub enum Routed {
    /// Taken.
    Here,
    /// Its connection lives on another core of the node: hand it there.
    Elsewhere {
        /// The core.
        core: CoreId,
        /// The datagram.
        data: BytesMut,
    },
}

/// QUIC for the clients of one core.
pub struct Transport {
    endpoint: Endpoint,
    server: Arc<ServerConfig>,
    loopback: Arc<ServerConfig>,
    router: Router,
    core: CoreId,
    clock: Arc<TokenClock>,
    wall: Arc<Wall>,
    started: Instant,
    /// By connection handle.
    connections: Vec<Option<Box<Connection>>>,
    timers: crate::timers::Timers,
    admission: Admission,
    sink: Sink,
    pump_queue: VecDeque<usize>,
    /// Connections that had more to read than their turn allowed.
    next_turn: VecDeque<usize>,
    turn: u64,
    connections_made: u64,
    transmit_queue: VecDeque<usize>,
    /// Datagrams that no connection sends.
    responses: VecDeque<(Transmit, Vec<u8>)>,
    scratch: Vec<u8>,
}

impl Transport {
    /// A transport without connections. `now` is the zero of its clock.
    pub fn new(config: &TransportConfig, now: Instant) -> Result<Self, TransportError> {
        let built = config::build(config)?;
        let endpoint = Endpoint::new(Arc::new(built.endpoint), Some(built.server.clone()), true, None);
        Ok(Self {
            endpoint,
            server: built.server,
            loopback: built.loopback,
            router: built.router,
            core: config.core,
            clock: built.clock,
            wall: built.wall,
            started: now,
            connections: Vec::new(),
            timers: crate::timers::Timers::default(),
            admission: Admission::new(config.admission),
            sink: Sink::default(),
            pump_queue: VecDeque::new(),
            next_turn: VecDeque::new(),
            turn: 0,
            connections_made: 0,
            transmit_queue: VecDeque::new(),
            responses: VecDeque::new(),
            scratch: Vec::new(),
        })
    }

    /// The wall clock, for the validity of clients' certificates.
    pub fn set_wall(&self, wall: UnixMillis) {
        self.wall.set(wall);
    }

    /// Takes one datagram (one segment of a batch) that came from `remote` to `local_ip`.
    pub fn datagram(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        ecn: Option<EcnCodepoint>,
        data: BytesMut,
    ) -> Routed {
        if let Some(core) = self.router.route(&data).filter(|core| *core != self.core) {
            return Routed::Elsewhere { core, data };
        }
        self.clock.set(now.saturating_duration_since(self.started));
        self.scratch.clear();
        match self.endpoint.handle(now, remote, local_ip, ecn, data, &mut self.scratch) {
            None => {}
            Some(DatagramEvent::ConnectionEvent(ConnectionHandle(slot), event)) => {
                if let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) {
                    connection.handle_event(event);
                    self.wake(slot);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.knock(now, incoming),
            Some(DatagramEvent::Response(transmit)) => self.respond(transmit),
        }
        Routed::Here
    }

    fn knock(&mut self, now: Instant, incoming: Incoming) {
        let address = incoming.remote_address().ip();
        let place = Place::of(address);
        self.scratch.clear();
        match self.admission.judge(place, incoming.remote_address_validated()) {
            Verdict::Refuse => {
                let transmit = self.endpoint.refuse(incoming, &mut self.scratch);
                self.respond(transmit);
            }
            Verdict::Retry => match self.endpoint.retry(incoming, &mut self.scratch) {
                Ok(transmit) => self.respond(transmit),
                Err(error) => self.endpoint.ignore(error.into_incoming()),
            },
            Verdict::Accept => {
                let server = if address.to_canonical().is_loopback() { &self.loopback } else { &self.server };
                match self.endpoint.accept(incoming, now, &mut self.scratch, Some(server.clone())) {
                    Ok((handle, quic)) => {
                        self.admission.accepted(place);
                        self.connections_made += 1;
                        let slot = handle.0;
                        if self.connections.len() <= slot {
                            self.connections.resize_with(slot + 1, || None);
                        }
                        self.connections[slot] =
                            Some(Box::new(Connection::new(handle, self.connections_made, quic, place)));
                        self.wake(slot);
                    }
                    Err(error) => {
                        if let Some(transmit) = error.response {
                            self.respond(transmit);
                        }
                    }
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
        if !core::mem::replace(&mut connection.in_transmit_queue, true) {
            self.transmit_queue.push_back(slot);
        }
    }

    /// Begins a turn, in which each connection may hand out a bounded number of frames again: a client that sends
    /// requests without end gets its turns, and no more.
    pub fn begin_turn(&mut self) {
        self.turn += 1;
        self.pump_queue.append(&mut self.next_turn);
    }

    /// Runs every timer that is due.
    pub fn timeout(&mut self, now: Instant) {
        while let Some(slot) = self.timers.take_due(now) {
            if let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) {
                connection.due = None;
                connection.handle_timeout(now, &mut self.sink);
                self.wake(slot);
            }
        }
    }

    /// When to call [`Self::timeout`]. May be later than right while events or transmits wait to be polled.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The next thing that happened in this turn.
    pub fn poll_event(&mut self, now: Instant) -> Option<TransportEvent> {
        loop {
            if let Some(event) = self.sink.events.pop_front() {
                return Some(event);
            }
            if let Some(slot) = self.pump_queue.pop_front() {
                self.pump(slot, now);
            } else if self.sink.taken_bytes > 0 {
                self.sink.tell_taken();
            } else {
                return None;
            }
        }
    }

    fn pump(&mut self, slot: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        connection.in_pump_queue = false;
        let was_established = connection.established;
        let gone = connection.pump(now, self.turn, &mut self.endpoint, &mut self.sink);
        if connection.established && !was_established {
            self.admission.established();
        }
        if gone {
            self.admission.gone(connection.place, connection.established);
            self.timers.set(slot, connection.due, None);
            self.connections[slot] = None;
        } else {
            if connection.wants_turn() {
                connection.in_pump_queue = true;
                self.next_turn.push_back(slot);
            }
            // Reading and closing make datagrams.
            if !core::mem::replace(&mut connection.in_transmit_queue, true) {
                self.transmit_queue.push_back(slot);
            }
        }
    }

    /// True where a turn has something to do: [`Self::poll_event`] now, or after [`Self::begin_turn`].
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.sink.events.is_empty()
            || !self.pump_queue.is_empty()
            || !self.next_turn.is_empty()
            || self.sink.taken_bytes >= limits::TAKEN_TELL_BYTES
    }

    /// True where [`Self::poll_transmit`] has something to do.
    #[must_use]
    pub fn has_transmits(&self) -> bool {
        !self.responses.is_empty() || !self.transmit_queue.is_empty()
    }

    /// Sends a frame, length prefix included, on a session. Dropped where the session is closed.
    pub fn send(&mut self, session: u64, frame: Bytes) {
        let bytes = frame.len();
        if !self.with_session(session, |connection, sink| connection.send(session, frame, sink)) {
            self.sink.taken(session, bytes);
        }
    }

    /// Closes a session: no more requests are read, what was sent before still goes out, then the stream is finished.
    /// [`TransportEvent::SessionClosed`] follows.
    pub fn close_session(&mut self, session: u64, code: u32) {
        self.with_session(session, |connection, sink| connection.close_session(session, code, sink));
    }

    /// False where the session is closed.
    fn with_session(&mut self, session: u64, act: impl FnOnce(&mut Connection, &mut Sink)) -> bool {
        let Some(slot) = self.sink.places.get(&session).copied() else { return false };
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return false };
        act(connection, &mut self.sink);
        if !core::mem::replace(&mut connection.in_transmit_queue, true) {
            self.transmit_queue.push_back(slot);
        }
        true
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
            let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { continue };
            if connection.write(now, &mut self.sink)
                && !core::mem::replace(&mut connection.in_pump_queue, true)
            {
                self.pump_queue.push_back(slot);
            }
            if let Some(transmit) = connection.poll_transmit(now, segments_max, buf) {
                // Behind the others: connections take turns.
                self.transmit_queue.push_back(slot);
                return Some(transmit);
            }
            connection.in_transmit_queue = false;
            let due = connection.next_due();
            self.timers.set(slot, connection.due, due);
            connection.due = due;
        }
        None
    }

    /// Takes no more clients and no more requests. Answers sent so far still go out; each connection is closed when
    /// its answers have arrived. [`Self::is_stopped`] says when all are.
    pub fn stop(&mut self) {
        self.admission.stop();
        for slot in 0..self.connections.len() {
            if let Some(connection) = self.connections[slot].as_mut() {
                connection.stop(&mut self.sink);
                self.wake(slot);
            }
        }
    }

    /// Closes every connection now, whatever has arrived.
    pub fn abort(&mut self, now: Instant) {
        self.stop();
        for slot in 0..self.connections.len() {
            if let Some(connection) = self.connections[slot].as_mut() {
                connection.close(now);
                self.wake(slot);
            }
        }
    }

    /// True when every connection is closed.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.connections.iter().flatten().all(|connection| connection.is_closed())
    }

    /// Connections of this core, those being closed included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.admission.connections()
    }
}
