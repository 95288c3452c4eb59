//! What connections of clients and of peers do with QUIC in the same way.

use crate::limits;
use overtake_wire::FrameSplitter;
use quinn_proto::{Chunks, Connection, ReadError, Transmit};
use std::time::Instant;

/// Puts what has come on a stream into `splitter`. True where the other side sends no more.
pub(crate) fn take_chunks(mut chunks: Chunks<'_>, splitter: &mut FrameSplitter) -> bool {
    let ended = loop {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => splitter.push(chunk.bytes),
            Ok(None) | Err(ReadError::Reset(_)) => break true,
            Err(ReadError::Blocked) => break false,
        }
    };
    // What it says about a need to transmit is not needed: a connection that was read is always asked for datagrams.
    let _ = chunks.finalize();
    ended
}

/// Puts the next datagrams of a connection into `buf`, in at most `segments_max` segments.
pub(crate) fn poll_transmit(
    quic: &mut Connection,
    now: Instant,
    segments_max: usize,
    buf: &mut Vec<u8>,
) -> Option<Transmit> {
    let mtu = usize::from(quic.current_mtu()).max(1);
    let segments = (limits::TRANSMIT_BYTES_MAX / mtu).min(segments_max).max(1);
    quic.poll_transmit(now, segments, buf)
}
