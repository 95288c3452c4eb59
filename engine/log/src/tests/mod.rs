//! The journal on a simulated disk that loses power.

mod checkpoints;
mod crashes;
mod damage;
mod disk;
mod examine;
mod room;
mod world;
