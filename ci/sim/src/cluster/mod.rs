//! Several nodes with several cores each, and the network between them.

pub mod faults;
mod journals;
pub mod net;
pub mod plan;
pub mod run;
pub mod watch;
pub mod world;
