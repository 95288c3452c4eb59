//! The whole system in one thread, decided by one seed: the cores of production on simulated disks, mesh, board and
//! clocks, with faults, a workload, and a checker for each promise.

pub mod disk;
pub mod node;
pub mod world;
