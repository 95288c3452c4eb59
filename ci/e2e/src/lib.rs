//! Black-box tests of the real `overtake` binary over HTTP. This library is the harness: it finds and starts the
//! binary, speaks HTTP to it, holds every answer against the contract's shapes, loads a server and judges what was
//! seen. The tests stand in `tests/`; they know nothing of the server but its contract.
//!
//! A harness fails by panicking with the whole answer in the message, since its callers are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed expectation is how a test speaks")]

pub mod answer;
pub mod binary;
pub mod checker;
pub mod client;
pub mod cluster;
pub mod frames;
pub mod gateway;
pub mod going;
pub mod history;
pub mod load;
pub mod python;
pub mod queue;
pub mod raw;
pub mod readme;
pub mod scratch;
pub mod sdk_load;
pub mod server;
pub mod shape;
pub mod small_disk;
pub mod stats;
pub mod tcp_proxy;
pub mod time;
pub mod udp_proxy;

pub use answer::Message;
pub use client::{Client, Reply};
pub use cluster::Cluster;
pub use gateway::Gateway;
pub use queue::Queue;
pub use server::{Options, Server};
pub use time::{eventually, now_ms};
