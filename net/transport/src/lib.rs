//! QUIC as a state machine on quinn-proto: datagrams and time go in, frames come out, and the other way round. No
//! socket and no clock in here: every call that needs the time is given it.
//!
//! # Sessions
//!
//! A **session is one bidirectional stream** that a client opened. A client sends `Hello` as the first request of each
//! stream it opens; every answer goes back on the stream its request came on. A connection may hold
//! [`limits::STREAMS_MAX`] streams at a time, so that a large answer on one of them does not hold back the others.
//! Session numbers are given here, count up and are never used twice.
//!
//! When the client finishes or resets its side of a stream, or the connection ends, the session is closed: answers that
//! were handed to [`Transport::send`] before are still sent where that is possible, later ones are dropped. So a
//! client finishes a stream only once it has the answers it wants.
//!
//! # How a shell drives it
//!
//! 1. [`Transport::datagram`] for each datagram received (one that belongs to another core is given back);
//! 2. [`Transport::timeout`] when [`Transport::next_timeout`] has come;
//! 3. [`Transport::poll_event`] until `None`;
//! 4. [`Transport::send`] and [`Transport::close_session`];
//! 5. [`Transport::poll_transmit`] until `None`.
//!
//! Before it sleeps it asks [`Transport::has_events`] and [`Transport::has_transmits`]: sending can let a session read
//! again. Only connections that something happened to are touched; timers are ordered. Ten thousand idle connections
//! cost memory, not time.
//!
//! # Peers
//!
//! [`peer`] is the same for the links between cores of different nodes, with an endpoint of its own.

mod admission;
mod config;
mod connection;
mod connection_id;
pub mod limits;
pub mod peer;
mod quic;
mod session;
mod timers;
mod transport;

pub use admission::AdmissionLimits;
pub use config::{TransportConfig, TransportError};
pub use overtake_wire::code;
pub use quinn_proto::{EcnCodepoint, Transmit};
pub use transport::{Routed, Transport, TransportEvent};
