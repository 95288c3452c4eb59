//! The journal of a core: batches, segments, recovery, as a state machine over a disk seam.

pub mod disk;
