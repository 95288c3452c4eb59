//! The Rust client of Overtake, on QUIC and tokio.
//!
//! - [`Client`]: one method for each request of the protocol; connections are kept, made again, and shared.
//! - [`Producer`]: stores many messages, batched, and repeats what was not confirmed without storing it twice.
//! - [`Consumer`]: gives messages to be settled by hand, keeps their leases, settles in batches.
//! - [`Worker`]: hands messages to a function, extends leases while it works, acks, releases, stops without loss.
//!
//! It is not on crates.io: depend on it by path or git, as the README of the project shows. It has no features of its
//! own, and runs on any tokio runtime whose I/O and time are enabled (`#[tokio::main]` enables both).
//!
//! Everything that can go wrong is a [`ClientError`], which says whether a retry is safe. `examples/` has a whole
//! program for each role: `cargo run -p overtake-client --example producer -- 127.0.0.1:7400 jobs` while
//! `overtake dev` runs; `several_servers` is how a service connects to a cluster, with names, certificates and a token.
//!
#![doc = concat!("```no_run\n", include_str!("../examples/quick_start.rs"), "```")]

mod address;
mod backoff;
mod calls;
mod client;
mod consumer;
mod entropy;
mod error;
mod lease;
mod link;
mod options;
mod pool;
mod producer;
mod quic;
mod session;
mod settler;
mod tls;
mod worker;

pub use address::ServerAddress;
pub use calls::{Page, SettledLists};
pub use client::{Client, ConnectionStatus};
pub use consumer::{Consumer, ConsumerOptions};
pub use entropy::MessageIds;
pub use error::ClientError;
pub use lease::LeasedMessage;
pub use options::{ConnectOptions, Credentials, Trust};
pub use overtake_base::{MessageId, QueueConfig, QueueConfigPatch, Receipt, UnixMillis};
pub use overtake_wire::message::{
    ClusterChange, DeadLetter, Delay, Delivered, EnqueueMessage, Enqueued, ErrorCode, Extend, Headers,
    Inspected, MessageState, Metric, NewNode, NodeState, NodeStatus, PeekStates, PeekedMessage, QueueListed,
    Receive, Redrive, RedriveSelection, Refusal, Release, Request, Response, Settle, Settled, ShardStatus,
    Stats, Totals,
};
pub use producer::{Confirmation, Producer, ProducerOptions};
pub use settler::Settling;
pub use worker::{HandlerError, Report, Retry, RetryAfter, Worker, WorkerOptions};
