//! The Rust client of Overtake.
