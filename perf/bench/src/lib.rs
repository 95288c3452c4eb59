//! Load generators and what they measure with. A generator shares the machine with the server it measures, so it runs on
//! one thread; more of them are more processes.

pub mod bench;
pub mod connect;
pub mod cpu;
pub mod device;
pub mod duration;
pub mod hist;
pub mod load;
pub mod mix;
pub mod pacer;
pub mod plan;
pub mod results;
pub mod storage;

pub use overtake_measure::table;

/// What runs tasks on the thread that makes it.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
