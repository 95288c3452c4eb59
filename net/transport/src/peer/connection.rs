//! One connection to a core of another node: its stream, what was read of it, and what waits to be written.

use super::PeerId;
use crate::limits;
use crate::quic::{poll_transmit, take_chunks};
use bytes::Bytes;
use overtake_wire::FrameSplitter;
use overtake_wire::peer::{PEER_FRAME_BYTES_MAX, peer_code};
use quinn_proto::{ConnectionError, ConnectionHandle, Dir, StreamId, TransportErrorCode, VarInt, WriteError};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

/// Messages are collected up to about so many bytes before they become one piece to be written.
const PIECE_BYTES: usize = 64 * 1024;

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Neither side has proved who it is.
    Handshake,
    /// The other side has yet to greet.
    Greeting,
    /// The other side, which dialled, was greeted, and has yet to say that it takes this one: its peer and data folder.
    Confirming(PeerId, u128),
    /// A link.
    Up(PeerId),
    /// It is being closed; nothing more is taken from it.
    Ended,
}

/// What reading found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadEnd {
    /// More may come.
    Open,
    /// The other side finished or reset its stream.
    Ended,
    /// A frame that cannot be.
    Malformed,
}

pub(super) struct PeerConnection {
    pub(super) handle: ConnectionHandle,
    pub(super) quic: quinn_proto::Connection,
    pub(super) remote: SocketAddr,
    /// The core that this side dialled; none where the other side did.
    pub(super) dialled: Option<PeerId>,
    pub(super) stage: Stage,
    /// It ended because the other side does not answer, or stops.
    pub(super) away: bool,
    /// When the other side must have greeted.
    pub(super) greet_by: Instant,
    stream: Option<StreamId>,
    splitter: FrameSplitter,
    /// Messages of this turn.
    turn: Vec<u8>,
    backlog: VecDeque<Bytes>,
    backlog_bytes: usize,
    /// What is set in the timers for this connection.
    pub(super) due: Option<Instant>,
    pub(super) in_pump_queue: bool,
    pub(super) in_transmit_queue: bool,
}

impl PeerConnection {
    pub(super) fn new(
        handle: ConnectionHandle,
        quic: quinn_proto::Connection,
        dialled: Option<PeerId>,
        now: Instant,
    ) -> Self {
        Self {
            handle,
            remote: quic.remote_address(),
            quic,
            dialled,
            stage: Stage::Handshake,
            away: false,
            greet_by: now + limits::PEER_GREETING,
            stream: None,
            splitter: FrameSplitter::with_max(PEER_FRAME_BYTES_MAX),
            turn: Vec::new(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            due: None,
            in_pump_queue: false,
            in_transmit_queue: false,
        }
    }

    pub(super) fn is_greeting(&self) -> bool {
        matches!(self.stage, Stage::Handshake | Stage::Greeting | Stage::Confirming(..))
    }

    pub(super) fn next_due(&mut self) -> Option<Instant> {
        let greeting = self.is_greeting().then_some(self.greet_by);
        [self.quic.poll_timeout(), greeting].into_iter().flatten().min()
    }

    /// Opens the stream; done by the side that dialled.
    pub(super) fn open_stream(&mut self) -> bool {
        self.stream = self.quic.streams().open(Dir::Bi);
        self.stream.is_some()
    }

    /// Takes the stream that the other side opened. It may open one only.
    pub(super) fn accept_stream(&mut self) {
        if self.dialled.is_none() && self.stream.is_none() {
            self.stream = self.quic.streams().accept(Dir::Bi);
        }
    }

    /// Reads what has come; whole frames go to `each`.
    pub(super) fn read(&mut self, mut each: impl FnMut(Bytes)) -> ReadEnd {
        let Some(stream) = self.stream else { return ReadEnd::Open };
        let mut stream = self.quic.recv_stream(stream);
        let Ok(chunks) = stream.read(true) else { return ReadEnd::Ended };
        let end = if take_chunks(chunks, &mut self.splitter) { ReadEnd::Ended } else { ReadEnd::Open };
        loop {
            match self.splitter.next_frame() {
                Ok(Some(frame)) => each(frame),
                Ok(None) => return end,
                Err(_) => return ReadEnd::Malformed,
            }
        }
    }

    /// Collects what `write` appends, which is to be whole frames. False where nothing was appended.
    pub(super) fn collect(&mut self, write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let before = self.turn.len();
        let written = write(&mut self.turn);
        if !written {
            self.turn.truncate(before);
        }
        if self.turn.len() >= PIECE_BYTES {
            self.end_turn();
        }
        written
    }

    fn end_turn(&mut self) {
        if !self.turn.is_empty() {
            self.backlog_bytes += self.turn.len();
            self.backlog.push_back(core::mem::take(&mut self.turn).into());
        }
    }

    /// Bytes that QUIC has not taken yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.backlog_bytes + self.turn.len()
    }

    /// Hands what was collected to QUIC, as much as it takes. False where the other side wants no more.
    pub(super) fn write(&mut self) -> bool {
        self.end_turn();
        let Some(stream) = self.stream.filter(|_| self.stage != Stage::Ended) else { return true };
        let mut stream = self.quic.send_stream(stream);
        while !self.backlog.is_empty() {
            match stream.write_chunks(self.backlog.make_contiguous()) {
                Ok(written) => {
                    self.backlog.drain(..written.chunks);
                    self.backlog_bytes -= written.bytes;
                }
                Err(WriteError::Blocked) => break,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return false,
            }
        }
        true
    }

    /// Drops what was not written: the connection is being closed.
    pub(super) fn forget(&mut self) {
        self.turn = Vec::new();
        self.backlog = VecDeque::new();
        self.backlog_bytes = 0;
    }

    pub(super) fn poll_transmit(
        &mut self,
        now: Instant,
        segments_max: usize,
        buf: &mut Vec<u8>,
    ) -> Option<quinn_proto::Transmit> {
        poll_transmit(&mut self.quic, now, segments_max, buf)
    }
}

/// Whether the other side does not answer, or stops: then nothing is wrong with who it is.
pub(super) fn is_away(error: &ConnectionError) -> bool {
    match error {
        ConnectionError::TimedOut | ConnectionError::Reset => true,
        ConnectionError::ApplicationClosed(close) => {
            close.error_code == VarInt::from_u32(peer_code::STOPPING)
        }
        ConnectionError::ConnectionClosed(close) => {
            close.error_code == TransportErrorCode::CONNECTION_REFUSED
        }
        _ => false,
    }
}

/// Why a connection ended, for a person.
pub(super) fn explain(error: &ConnectionError) -> String {
    match error {
        ConnectionError::TimedOut => "nothing comes from it".into(),
        ConnectionError::Reset => "it was started anew".into(),
        ConnectionError::LocallyClosed => "closed".into(),
        ConnectionError::ApplicationClosed(close) => format!("it says: {}", readable(&close.reason)),
        ConnectionError::TransportError(error) => match alert(error.code) {
            Some(NO_PROTOCOL) => "it speaks another version of the protocol between nodes".into(),
            Some(_) => format!("its certificate is not taken: {}", readable(error.reason.as_bytes())),
            None => error.to_string(),
        },
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code) {
            Some(NO_PROTOCOL) => "it speaks another version of the protocol between nodes".into(),
            Some(alert) => format!(
                "it does not take this node's certificate (TLS alert {alert}): both must be of the same authority, and \
                 valid by both clocks"
            ),
            None if close.error_code == TransportErrorCode::CONNECTION_REFUSED => {
                "it takes no connections: it is stopping, or has too many".into()
            }
            None => close.to_string(),
        },
        other => other.to_string(),
    }
}

const NO_PROTOCOL: u64 = 120;

/// The TLS alert in an error code of QUIC.
fn alert(code: TransportErrorCode) -> Option<u64> {
    const ALERTS: std::ops::Range<u64> = 0x100..0x200;
    let code = u64::from(code);
    ALERTS.contains(&code).then(|| code - ALERTS.start)
}

/// A text that another side sent, fit for a log.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(limits::PEER_REASON_CHARACTERS_MAX)
        .collect()
}
