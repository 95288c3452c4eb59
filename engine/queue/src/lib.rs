//! The shard state machine: lanes, leases, delays, dedup, dead letters, scheduling.

pub mod answer;
pub mod command;
pub mod directory;
pub mod rate;
pub mod scheduler;
