//! The configuration file of a server: its keys, what is allowed for each, and errors that name the line. Nothing here reads
//! a file; what a node runs with is made of this, of flags and of defaults by whoever starts one.

mod file;
mod peer;
pub mod text;

pub use file::{ConfigFile, Right, Tenant, Token, Wrong};
pub use peer::Peer;

/// A file that explains every key, with all of them switched off.
pub const EXAMPLE: &str = include_str!("example.toml");
