//! The journal on a simulated disk that loses power.

mod checkpoints;
mod crashes;
mod damage;
mod disk;
mod examine;
mod lanes;
mod room;
mod scrub;
mod world;
