//! Several nodes with several cores each, and the network between them.

mod changes;
pub mod faults;
pub mod net;
pub mod operator;
pub mod plan;
pub mod run;
pub mod watch;
pub mod world;
