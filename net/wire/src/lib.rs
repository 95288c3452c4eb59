//! The binary protocol: what clients ask and get ([`message`]), the bytes of it ([`request`], [`response`],
//! [`frame`]), the bounds that need no state ([`validate`]) and the reasons for a refusal ([`refusal`]); and the frames
//! between nodes ([`peer`]).
//!
//! `PROTOCOL.md` beside this crate describes the same bytes for writers of clients in other languages, and the files
//! in `golden/` pin them. Nothing here touches a socket or a clock: bytes in, values out, and back.

pub mod code;
pub mod frame;
pub mod message;
pub mod peer;
pub mod refusal;
pub mod request;
pub mod response;
pub mod validate;

mod fields;

pub use fields::{cut_error, decode_headers, encode_headers};
pub use frame::{FrameSplitter, LENGTH_BYTES, TooLarge};
pub use overtake_base::Malformed;
pub use request::{RequestKind, WRONG_VERSION, decode_request, encode_request};
pub use response::{ResponseKind, decode_response, encode_response};

use overtake_base::limits::{FRAME_BYTES_MAX, REQUEST_BYTES_MAX};

/// What a client offers in the TLS handshake. The number is [`PROTOCOL_VERSION`]: a server that speaks several
/// versions lists several, and the handshake chooses.
pub const ALPN_CLIENT: &[u8] = b"overtake/1";

/// The version of these layouts. `Hello` repeats it, so that a peer that skips ALPN is told apart before anything
/// else is read. Every change to a layout, also an added field, kind or error code, is a new version.
pub const PROTOCOL_VERSION: u16 = 1;

/// Largest request frame, length prefix not counted: a full request and what framing and lengths add to it, since
/// the limit of 2 MiB is that of the request as HTTP carries it.
pub const REQUEST_FRAME_BYTES_MAX: usize = REQUEST_BYTES_MAX + 16 * 1024;

/// Largest response frame, length prefix not counted.
pub const RESPONSE_FRAME_BYTES_MAX: usize = FRAME_BYTES_MAX;

const _: () = assert!(REQUEST_FRAME_BYTES_MAX <= FRAME_BYTES_MAX);
