//! Load generators and what they measure with. The generator shares the machine with the server it measures, so it runs
//! on one thread and sends the same prepared requests again and again.

pub mod bench;
pub mod cpu;
pub mod duration;
pub mod mix;
pub mod pacer;
pub mod table;
