//! What answers look like in JSON: the contract's field names, made from the values of the binary protocol. The
//! command line prints the same models, so that both ways in show the same thing.

mod cluster;
mod config;
mod dead_letter;
mod message;
mod scalar;
mod stats;

pub use crate::input::config::parse_config;
pub use crate::input::fault::Fault;
pub use crate::input::time::parse as parse_time;
pub use cluster::{Cluster, Node, Shard};
pub(crate) use config::QueueConfigUpdate;
pub use config::{Backoff, QueueConfig, QueueListed, Queues, RateCaps, Scheduling, StarvationS};
pub use dead_letter::{DeadLetter, DeadLetters, HistoryEntry};
pub use message::{
    BatchOutcome, BatchOutcomes, Delivered, Enqueued, Inspected, Peeked, PeekedMessage, Received,
    SettleOutcome, SettleOutcomes, State,
};
pub use scalar::{Base64, Levels, Micro, Pairs, Text, Time};
pub use stats::{Purged, Redriven, RefusedTotals, Stats, Totals, WaitMs};
