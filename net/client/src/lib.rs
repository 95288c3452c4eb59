//! The Rust client of Overtake, on QUIC and tokio.
//!
//! - [`Client`]: one method for each request of the protocol; connections are kept, made again, and shared.
//! - [`Producer`]: stores many messages, batched, and repeats what was not confirmed without storing it twice.
//! - [`Worker`]: hands messages to a function, extends leases while it works, acks, releases, stops without loss.

mod backoff;
mod calls;
mod client;
mod entropy;
mod error;
mod link;
mod options;
mod pool;
mod producer;
mod quic;
mod session;
mod tls;
mod worker;

pub use calls::{Page, SettledLists};
pub use client::Client;
pub use entropy::MessageIds;
pub use error::ClientError;
pub use options::{ConnectOptions, Trust};
pub use overtake_base::{MessageId, QueueConfig, QueueConfigPatch, Receipt, UnixMillis};
pub use overtake_wire::message::{
    DeadLetter, Delay, Delivered, EnqueueMessage, Enqueued, ErrorCode, Extend, Headers, Inspected,
    MessageState, Metric, NodeStatus, PeekStates, PeekedMessage, QueueListed, Receive, Redrive,
    RedriveSelection, Refusal, Release, Request, Response, Settle, Settled, ShardStatus, Stats,
};
pub use producer::{Confirmation, Producer, ProducerOptions};
pub use worker::{HandlerError, Report, Worker, WorkerOptions};
