//! One session: one bidirectional stream, its unfinished request and its unsent answers.

use crate::limits;
use crate::quic::take_chunks;
use bytes::Bytes;
use overtake_wire::FrameSplitter;
use quinn_proto::{StreamId, VarInt, WriteError};
use std::collections::VecDeque;
use std::time::Instant;

/// Whether requests are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    Reading,
    /// Too many answers are unread; what the client sends stays in QUIC, whose flow control then stops it.
    Paused,
    /// To be read at the next pump: unread answers have become few again, or a turn was over before all was read.
    Resumed,
    /// The session is closed for the outside; only `backlog` remains.
    Ended,
}

/// What reading found at the end of what there was to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadEnd {
    /// More may come.
    Open,
    /// The turn is over; more is there already.
    TurnOver,
    /// The client finished or reset its side.
    Ended,
    /// A frame that cannot be.
    Malformed,
}

/// What became of writing answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteEnd {
    /// All written.
    Empty,
    /// The client or the network takes no more for now.
    Blocked,
    /// The client wants no more.
    Stopped,
}

pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) stream: StreamId,
    pub(crate) input: Input,
    splitter: FrameSplitter,
    /// The client has ended its side; what `splitter` holds is still to be handed out.
    finished: bool,
    /// Since when `splitter` holds the start of a frame without completing one.
    partial_since: Option<Instant>,
    backlog: VecDeque<Bytes>,
    backlog_bytes: usize,
    /// Since when not one byte of `backlog` could be written.
    blocked_since: Option<Instant>,
}

impl Session {
    pub(crate) fn new(number: u64, stream: StreamId) -> Self {
        Self {
            number,
            stream,
            input: Input::Reading,
            splitter: FrameSplitter::for_requests(),
            finished: false,
            partial_since: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            blocked_since: None,
        }
    }

    /// Reads what has come and hands out whole frames, at most `frames_left` of them, from which it takes them.
    pub(crate) fn read(
        &mut self,
        quic: &mut quinn_proto::Connection,
        now: Instant,
        frames_left: &mut u32,
        mut frame: impl FnMut(Bytes),
    ) -> ReadEnd {
        // First what an earlier turn left: only then is more taken, so that what is held stays within a stream's window.
        let mut more = true;
        loop {
            while *frames_left > 0 {
                match self.splitter.next_frame() {
                    Ok(Some(whole)) => {
                        *frames_left -= 1;
                        self.partial_since = None;
                        frame(whole);
                    }
                    Ok(None) => break,
                    Err(_) => return ReadEnd::Malformed,
                }
            }
            if *frames_left == 0 {
                return ReadEnd::TurnOver;
            }
            if !core::mem::take(&mut more) {
                break;
            }
            let mut stream = quic.recv_stream(self.stream);
            if let Ok(chunks) = stream.read(true) {
                self.finished |= take_chunks(chunks, &mut self.splitter);
            }
        }
        if !self.splitter.is_empty() {
            self.partial_since.get_or_insert(now);
        }
        if self.finished { ReadEnd::Ended } else { ReadEnd::Open }
    }

    /// True where the client has given up its side of the stream; asked while nothing is read.
    pub(crate) fn was_reset(&self, quic: &mut quinn_proto::Connection) -> bool {
        !matches!(quic.recv_stream(self.stream).received_reset(), Ok(None))
    }

    pub(crate) fn push(&mut self, frame: Bytes) {
        self.backlog_bytes += frame.len();
        self.backlog.push_back(frame);
    }

    pub(crate) fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Hands as many answers to QUIC as it takes, then pauses or resumes reading by what is left. Adds to `taken` what
    /// it took, in bytes.
    pub(crate) fn write(
        &mut self,
        quic: &mut quinn_proto::Connection,
        now: Instant,
        taken: &mut usize,
    ) -> WriteEnd {
        let mut stream = quic.send_stream(self.stream);
        let end = loop {
            if self.backlog.is_empty() {
                self.blocked_since = None;
                break WriteEnd::Empty;
            }
            match stream.write_chunks(self.backlog.make_contiguous()) {
                Ok(written) => {
                    self.backlog.drain(..written.chunks);
                    self.backlog_bytes -= written.bytes;
                    *taken += written.bytes;
                    self.blocked_since = None;
                }
                Err(WriteError::Blocked) => {
                    self.blocked_since.get_or_insert(now);
                    break WriteEnd::Blocked;
                }
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break WriteEnd::Stopped,
            }
        };
        match self.input {
            Input::Reading if self.backlog_bytes > limits::UNREAD_PAUSE_BYTES => self.input = Input::Paused,
            Input::Paused if self.backlog_bytes <= limits::UNREAD_PAUSE_BYTES / 2 => {
                self.input = Input::Resumed;
            }
            _ => {}
        }
        end
    }

    /// Ends the stream after what was written.
    pub(crate) fn finish(&self, quic: &mut quinn_proto::Connection) {
        // Fails only where the client stopped it: then it is ended too.
        let _ = quic.send_stream(self.stream).finish();
    }

    /// Tells the client to send no more on this stream.
    pub(crate) fn stop_reading(&self, quic: &mut quinn_proto::Connection, code: u32) {
        // Fails only where the client has already ended its side.
        let _ = quic.recv_stream(self.stream).stop(VarInt::from_u32(code));
    }

    /// Drops unsent answers.
    pub(crate) fn reset(&self, quic: &mut quinn_proto::Connection, code: u32) {
        // Fails only where the stream is already gone.
        let _ = quic.send_stream(self.stream).reset(VarInt::from_u32(code));
    }

    /// When this session will have stalled.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let partial = self.partial_since.filter(|_| self.input == Input::Reading);
        [self.blocked_since, partial].into_iter().flatten().min().map(|since| since + limits::STALL)
    }
}
