//! One connection and its sessions.

use crate::admission::Place;
use crate::quic::poll_transmit;
use crate::session::{Input, ReadEnd, Session, WriteEnd};
use crate::transport::TransportEvent;
use crate::{code, limits};
use bytes::Bytes;
use overtake_base::hash::Map;
use quinn_proto::{ConnectionHandle, Dir, Endpoint, Event, StreamEvent, StreamId, VarInt};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Where connections put what happened, and the numbers they draw from.
#[derive(Default)]
pub(crate) struct Sink {
    pub(crate) events: VecDeque<TransportEvent>,
    /// Bytes of answers that are off our hands, by session. Not among `events`, since few of them are worth a turn.
    pub(crate) taken: BTreeMap<u64, usize>,
    /// The sum of `taken`.
    pub(crate) taken_bytes: usize,
    /// The connection slot of each open session.
    pub(crate) places: Map<u64, usize>,
    next_session: u64,
}

pub(crate) struct Connection {
    handle: ConnectionHandle,
    /// Never used twice, as handles are.
    number: u64,
    quic: quinn_proto::Connection,
    pub(crate) place: Option<Place>,
    pub(crate) established: bool,
    /// Open sessions, and closed ones whose answers are not all written. At most [`limits::STREAMS_MAX`].
    sessions: Vec<Session>,
    /// A session may have answers that QUIC can take now.
    write_wanted: bool,
    /// The turn that `frames_left` is for.
    turn: u64,
    /// How many frames it may still hand out in that turn, so that one client full of requests keeps nobody waiting.
    frames_left: u32,
    /// The session that was read last of those that had waited: streams take turns as connections do.
    read_last: u64,
    stopping: bool,
    /// What is set in the timers for this connection.
    pub(crate) due: Option<Instant>,
    pub(crate) in_pump_queue: bool,
    pub(crate) in_transmit_queue: bool,
}

impl Connection {
    pub(crate) fn new(
        handle: ConnectionHandle,
        number: u64,
        quic: quinn_proto::Connection,
        place: Option<Place>,
    ) -> Self {
        Self {
            handle,
            number,
            quic,
            place,
            established: false,
            sessions: Vec::new(),
            write_wanted: false,
            turn: 0,
            frames_left: 0,
            read_last: 0,
            stopping: false,
            due: None,
            in_pump_queue: false,
            in_transmit_queue: false,
        }
    }

    pub(crate) fn handle_event(&mut self, event: quinn_proto::ConnectionEvent) {
        self.quic.handle_event(event);
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, sink: &mut Sink) {
        self.quic.handle_timeout(now);
        while let Some(stalled) =
            self.sessions.iter().position(|session| session.deadline().is_some_and(|at| at <= now))
        {
            self.fail(stalled, code::STALLED, sink);
        }
    }

    pub(crate) fn next_due(&mut self) -> Option<Instant> {
        let stall = self.sessions.iter().filter_map(Session::deadline).min();
        [self.quic.poll_timeout(), stall].into_iter().flatten().min()
    }

    /// Does what follows from datagrams, timeouts and writes. Returns true when the connection is gone for good.
    pub(crate) fn pump(&mut self, now: Instant, turn: u64, endpoint: &mut Endpoint, sink: &mut Sink) -> bool {
        if self.turn != turn {
            self.turn = turn;
            self.frames_left = limits::FRAMES_PER_TURN;
        }
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => self.established = true,
                Event::ConnectionLost { .. } => self.end_all(sink),
                Event::Stream(event) => self.stream_event(event, now, sink),
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
        }
        while self.frames_left > 0
            && let Some(resumed) = self.next_resumed()
        {
            self.read_last = self.sessions[resumed].number;
            self.sessions[resumed].input = Input::Reading;
            self.read(resumed, now, sink);
        }
        if self.stopping && self.sessions.is_empty() && self.quic.streams().send_streams() == 0 {
            self.close(now);
        }
        while let Some(event) = self.quic.poll_endpoint_events() {
            let drained = event.is_drained();
            if let Some(reply) = endpoint.handle_event(self.handle, event) {
                self.quic.handle_event(reply);
            }
            if drained {
                // Without a loss reported where the close was ours.
                self.end_all(sink);
                return true;
            }
        }
        false
    }

    /// The next in turn of the sessions that are to be read.
    fn next_resumed(&self) -> Option<usize> {
        let resumed = self.sessions.iter().enumerate().filter(|(_, session)| session.input == Input::Resumed);
        let next = resumed.min_by_key(|(_, session)| (session.number <= self.read_last, session.number));
        next.map(|(index, _)| index)
    }

    /// True where there is more to read than its turns allowed.
    pub(crate) fn wants_turn(&self) -> bool {
        self.sessions.iter().any(|session| session.input == Input::Resumed)
    }

    fn stream_event(&mut self, event: StreamEvent, now: Instant, sink: &mut Sink) {
        match event {
            StreamEvent::Opened { dir } => {
                while let Some(stream) = self.quic.streams().accept(dir) {
                    if dir == Dir::Bi {
                        self.open(stream, now, sink);
                    }
                }
            }
            StreamEvent::Readable { id } => {
                if let Some(index) = self.index_of(id) {
                    self.read(index, now, sink);
                }
            }
            StreamEvent::Writable { .. } => self.write_wanted = true,
            StreamEvent::Stopped { id, .. } => {
                if let Some(index) = self.index_of(id) {
                    self.fail(index, code::NONE, sink);
                }
            }
            StreamEvent::Finished { .. } | StreamEvent::Available { .. } => {}
        }
    }

    fn index_of(&self, stream: StreamId) -> Option<usize> {
        self.sessions.iter().position(|session| session.stream == stream)
    }

    fn open(&mut self, stream: StreamId, now: Instant, sink: &mut Sink) {
        let number = sink.next_session;
        sink.next_session += 1;
        sink.places.insert(number, self.handle.0);
        let remote = self.quic.remote_address();
        sink.events.push_back(TransportEvent::SessionOpened {
            session: number,
            connection: self.number,
            remote,
        });
        self.sessions.push(Session::new(number, stream));
        let index = self.sessions.len() - 1;
        if self.stopping {
            self.fail(index, code::STOPPING, sink);
        } else {
            self.read(index, now, sink);
        }
    }

    fn read(&mut self, index: usize, now: Instant, sink: &mut Sink) {
        let session = &mut self.sessions[index];
        let end = match session.input {
            Input::Reading => {
                let number = session.number;
                session.read(&mut self.quic, now, &mut self.frames_left, |frame| {
                    sink.events.push_back(TransportEvent::Frame { session: number, frame });
                })
            }
            Input::Paused | Input::Resumed if session.was_reset(&mut self.quic) => ReadEnd::Ended,
            Input::Paused | Input::Resumed | Input::Ended => ReadEnd::Open,
        };
        match end {
            ReadEnd::Open => {}
            ReadEnd::TurnOver => self.sessions[index].input = Input::Resumed,
            ReadEnd::Ended => self.end(index, sink),
            ReadEnd::Malformed => self.fail(index, code::FRAME, sink),
        }
    }

    /// Closes a session for the outside; what was answered is still written, then the stream is finished.
    fn end(&mut self, index: usize, sink: &mut Sink) {
        let session = &mut self.sessions[index];
        if session.input != Input::Ended {
            session.input = Input::Ended;
            sink.closed(session.number);
            // Also where nothing is left to write: that is where the stream is finished.
            self.write_wanted = true;
        }
    }

    /// Closes a session and its stream at once.
    fn fail(&mut self, index: usize, code: u32, sink: &mut Sink) {
        let session = self.sessions.swap_remove(index);
        session.stop_reading(&mut self.quic, code);
        session.reset(&mut self.quic, code);
        sink.taken(session.number, session.backlog_bytes());
        if session.input != Input::Ended {
            sink.closed(session.number);
        }
    }

    fn end_all(&mut self, sink: &mut Sink) {
        for session in self.sessions.drain(..) {
            sink.taken(session.number, session.backlog_bytes());
            if session.input != Input::Ended {
                sink.closed(session.number);
            }
        }
    }

    /// Takes an answer for an open session.
    pub(crate) fn send(&mut self, number: u64, frame: Bytes, sink: &mut Sink) {
        let Some(index) = self.open_session(number) else { return sink.taken(number, frame.len()) };
        let waiting: usize = self.sessions.iter().map(Session::backlog_bytes).sum();
        if waiting + frame.len() > limits::UNREAD_MAX_BYTES {
            sink.taken(number, frame.len());
            self.fail(index, code::UNREAD, sink);
            return;
        }
        self.sessions[index].push(frame);
        self.write_wanted = true;
    }

    /// Ends a session from this side; its answers so far are still written.
    pub(crate) fn close_session(&mut self, number: u64, code: u32, sink: &mut Sink) {
        let Some(index) = self.open_session(number) else { return };
        self.sessions[index].stop_reading(&mut self.quic, code);
        self.end(index, sink);
    }

    fn open_session(&self, number: u64) -> Option<usize> {
        self.sessions.iter().position(|session| session.number == number && session.input != Input::Ended)
    }

    /// Ends all sessions; the connection is closed once their answers have arrived.
    pub(crate) fn stop(&mut self, sink: &mut Sink) {
        self.stopping = true;
        for index in 0..self.sessions.len() {
            if self.sessions[index].input != Input::Ended {
                self.sessions[index].stop_reading(&mut self.quic, code::STOPPING);
                self.end(index, sink);
            }
        }
    }

    /// Closes the connection at once.
    pub(crate) fn close(&mut self, now: Instant) {
        self.quic.close(now, VarInt::from_u32(code::STOPPING), Bytes::from_static(b"the server is stopping"));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.quic.is_closed()
    }

    /// Hands answers to QUIC. Returns true where a session is to be read again.
    pub(crate) fn write(&mut self, now: Instant, sink: &mut Sink) -> bool {
        if !core::mem::take(&mut self.write_wanted) {
            return false;
        }
        let mut index = 0;
        while let Some(session) = self.sessions.get_mut(index) {
            let mut taken = 0;
            let end = session.write(&mut self.quic, now, &mut taken);
            sink.taken(session.number, taken);
            match end {
                WriteEnd::Empty if session.input == Input::Ended => {
                    session.finish(&mut self.quic);
                    self.sessions.swap_remove(index);
                }
                WriteEnd::Stopped => self.fail(index, code::NONE, sink),
                WriteEnd::Empty | WriteEnd::Blocked => index += 1,
            }
        }
        self.stopping || self.wants_turn()
    }

    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        segments_max: usize,
        buf: &mut Vec<u8>,
    ) -> Option<quinn_proto::Transmit> {
        poll_transmit(&mut self.quic, now, segments_max, buf)
    }
}

impl Sink {
    /// Notes that bytes of a session's answers are off our hands: taken by QUIC, or dropped.
    pub(crate) fn taken(&mut self, session: u64, bytes: usize) {
        if bytes > 0 {
            *self.taken.entry(session).or_default() += bytes;
            self.taken_bytes += bytes;
        }
    }

    /// Puts what was noted among the events.
    pub(crate) fn tell_taken(&mut self) {
        self.taken_bytes = 0;
        let taken = core::mem::take(&mut self.taken).into_iter();
        self.events.extend(taken.map(|(session, bytes)| TransportEvent::Taken { session, bytes }));
    }

    fn closed(&mut self, session: u64) {
        self.places.remove(&session);
        self.events.push_back(TransportEvent::SessionClosed { session });
    }
}
