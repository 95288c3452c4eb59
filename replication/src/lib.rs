//! Raft groups.

pub mod types;
