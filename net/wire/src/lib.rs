//! Frames of the binary protocol.

pub mod message;
