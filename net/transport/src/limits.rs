//! Every bound of the transport.

use overtake_base::limits::FRAME_BYTES_MAX;
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

const _: () = {
    assert!(RECEIVE_WINDOW_BYTES >= STREAM_RECEIVE_WINDOW_BYTES);
    assert!(UNREAD_MAX_BYTES > UNREAD_PAUSE_BYTES + FRAME_BYTES_MAX);
    assert!(MTU_DISCOVERY_LOOPBACK_BYTES_MAX as usize <= TRANSMIT_BYTES_MAX);
};
