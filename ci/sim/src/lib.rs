//! The whole system in one thread, decided by one seed: the cores of production on simulated disks, mesh, board and
//! clocks, with faults, a workload, and a checker for each promise.

pub mod arena;
pub mod auditor;
pub mod checkers;
pub mod clocks;
pub mod cluster;
pub mod disk;
pub mod ending;
pub mod events;
pub mod facts;
pub mod faults;
pub mod groups;
pub mod history;
pub mod lost;
pub mod node;
pub mod panics;
pub mod reduce;
pub mod run;
#[cfg(test)]
mod sample;
pub mod shrink;
pub mod stays;
pub mod summary;
pub mod swarm;
pub mod tale;
pub mod ways;
pub mod workload;
pub mod world;
