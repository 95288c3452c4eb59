//! Every bound of the transport.

use overtake_base::limits::{FRAME_BYTES_MAX, PEER_MESSAGE_BYTES_MAX};
use std::time::Duration;

/// Bidirectional streams that one client may have open at a time.
pub const STREAMS_MAX: u32 = 16;
/// Bytes that a client may have in flight on one stream: one largest request.
pub const STREAM_RECEIVE_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Bytes that a client may have in flight on all its streams.
pub const RECEIVE_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Bytes of answers handed to QUIC and not yet acknowledged, for one connection.
pub const SEND_WINDOW_BYTES: u64 = 4 * 1024 * 1024;
/// Answers waiting on one stream above which no more requests are read from it.
pub const UNREAD_PAUSE_BYTES: usize = 1024 * 1024;
/// Answers waiting on all streams of one connection above which the stream that adds more is cut off. Room for what
/// the requests of a full window may ask for.
pub const UNREAD_MAX_BYTES: usize = 64 * 1024 * 1024;
/// Frames that one connection may hand out in a turn of its core; the rest waits for the next turn.
pub const FRAMES_PER_TURN: u32 = 256;
/// Bytes of answers off our hands that are worth a turn of their own; fewer are told with something else.
pub const TAKEN_TELL_BYTES: usize = 256 * 1024;
/// How long a stream may neither take a byte of an answer nor complete a request it began.
pub const STALL: Duration = Duration::from_secs(30);
/// A connection from which nothing comes for so long is dropped. Clients that wait send keep-alives.
pub const IDLE: Duration = Duration::from_secs(30);
/// Connections of one core.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Connections of one core from one address (for IPv6: from one /64). Loopback is exempt.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 2_048;
/// Handshakes under way above which a client must first prove its address (Retry).
pub const HANDSHAKES_BEFORE_RETRY: usize = 256;
/// Datagrams without a connection (refusals, Retry, resets) that wait for sending; more are dropped.
pub const RESPONSES_MAX: usize = 1_024;
/// Bytes of one transmit, at most: what one UDP send takes over IPv4.
pub const TRANSMIT_BYTES_MAX: usize = 65_507;
/// Largest datagram tried between hosts: an Ethernet frame.
pub const MTU_DISCOVERY_BYTES_MAX: u16 = 1_452;
/// Largest datagram tried on loopback. Cost is by the packet there; several still fit a socket buffer of default size.
pub const MTU_DISCOVERY_LOOPBACK_BYTES_MAX: u16 = 16_384;

/// Bytes that a peer may have in flight on one link: a largest message and more.
pub const PEER_RECEIVE_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Bytes handed to QUIC and not yet acknowledged, for one link.
pub const PEER_SEND_WINDOW_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes that wait for QUIC on one link, at most. A link with more is cut and begun again: the peer takes too little.
pub const PEER_BACKLOG_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A peer from which nothing comes for so long is gone. The first packets of a link are waited for as long.
pub const PEER_IDLE: Duration = Duration::from_millis(1_000);
/// A link on which nothing is said is kept alive this often: several may be lost before it counts as gone.
pub const PEER_KEEP_ALIVE: Duration = Duration::from_millis(250);
/// What a round trip is taken to be before it is measured, which decides when a first packet is sent again.
pub const PEER_FIRST_RTT: Duration = Duration::from_millis(50);
/// How long a connection may take until the other side has greeted.
pub const PEER_GREETING: Duration = Duration::from_secs(3);
/// Pause before a link is dialled again after the first failure; twice as long after each further one.
pub const PEER_PAUSE_FIRST: Duration = Duration::from_millis(20);
/// The longest pause. Each is drawn from its second half, so that nodes do not knock in step.
pub const PEER_PAUSE_MAX: Duration = Duration::from_millis(1_000);
/// Connections beside one for each link: those being closed or replaced, and strangers that are about to be refused.
pub const PEER_CONNECTIONS_SPARE: usize = 64;
/// Connections of peers that are not established above which a peer must first prove its address (Retry).
pub const PEER_HANDSHAKES_BEFORE_RETRY: usize = 32;
/// The same complaint about the same peer is made again after so long.
pub const PEER_COMPLAINT_EVERY: Duration = Duration::from_secs(30);
/// Whom complaints are remembered of, at most.
pub const PEER_COMPLAINTS_MAX: usize = 256;
/// Longest reason that is taken from a peer, in characters.
pub const PEER_REASON_CHARACTERS_MAX: usize = 200;

const _: () = {
    assert!(PEER_RECEIVE_WINDOW_BYTES as usize > PEER_MESSAGE_BYTES_MAX);
    assert!(PEER_BACKLOG_BYTES_MAX > 2 * PEER_MESSAGE_BYTES_MAX);
    assert!(PEER_IDLE.as_millis() >= 3 * PEER_KEEP_ALIVE.as_millis());
    assert!(RECEIVE_WINDOW_BYTES >= STREAM_RECEIVE_WINDOW_BYTES);
    assert!(UNREAD_MAX_BYTES > UNREAD_PAUSE_BYTES + FRAME_BYTES_MAX);
    assert!(MTU_DISCOVERY_LOOPBACK_BYTES_MAX as usize <= TRANSMIT_BYTES_MAX);
};
