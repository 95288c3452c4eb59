//! The shard state machine: lanes, leases, delays, dedup, dead letters, scheduling.
//!
//! Start at [`command`] and [`answer`] (what can be asked, what comes back), then [`life_cycle`] (the states of a
//! message), then [`machine`] (how an entry is applied).

pub mod answer;
pub mod blocks;
pub mod cold;
pub mod command;
pub mod directory;
pub mod entry;
pub mod life_cycle;
pub mod machine;
pub mod members;
pub mod rate;
pub mod scheduler;
pub mod stats;

mod claims;
mod codec;
mod dead;
mod dedup;
mod enqueue;
mod lane;
mod lease;
mod message;
mod pages;
mod queue;
mod record;
mod run;
mod settle;
mod shared;
mod snapshot;
mod sorted_slots;
mod spill;
mod timers;
mod views;

#[cfg(test)]
mod tests;
