//! Three real `overtake serve` processes under the faults of real machines: processes that are killed or stand still,
//! cables that are pulled, disks that hang, run full or fail, clocks that jump. Clients write down what they asked and
//! were answered, in the simulator's own words, so that the simulator's checkers judge it.
//!
//! What a machine cannot do (no root, no namespaces, no loop devices, no libfaketime) is left out, and said.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed expectation is how a test speaks")]

pub mod clock;
pub mod disk;
pub mod fault;
pub mod judge;
pub mod load;
pub mod machine;
pub mod measure;
pub mod network;
pub mod nodes;
pub mod recorder;
pub mod round;
