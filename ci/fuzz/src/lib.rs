//! Every decoder of bytes from outside or from disk, as a function of bytes that must neither panic nor believe what it
//! should not. `fuzz.sh` runs them under libFuzzer; `cargo test` replays what it found worth keeping, in `corpus`.

mod config;
mod disk;
mod entries;
#[cfg(feature = "http")]
mod http;
mod lanes;
mod members;
mod mesh;
mod peers;
mod wire;

/// Takes any bytes.
pub type Target = fn(&[u8]);

/// All targets by name; each has a folder of that name in `corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("client-request", wire::request),
    ("client-response", wire::response),
    ("client-frames", wire::frames),
    ("peer-message", peers::message),
    ("peer-greeting", wire::greeting),
    ("mesh-message", mesh::message),
    ("members", members::members),
    ("names", wire::names),
    ("shard-entry", entries::shard),
    ("shard-snapshot", entries::snapshot),
    ("directory-entry", entries::directory),
    ("directory-snapshot", entries::directory_snapshot),
    ("journal", disk::journal),
    ("lanes", lanes::lanes),
    ("data-file", disk::file),
    ("config", config::file),
    #[cfg(feature = "http")]
    ("http", http::bodies),
    #[cfg(feature = "http")]
    ("http-raw", http::raw),
];

/// The target of a name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
