//! Groups of several voters in one thread, on simulated disks and a simulated network, and groups under hostile peers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod hostile;
mod sim;
