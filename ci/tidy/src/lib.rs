//! Holds the tree against its own rules: `cargo test -p overtake-tidy`.
//!
//! Every rule is a function from text to findings and is proved able to fail, in its own module, on a planted
//! violation. `tests/tree.rs` applies all of them to the tree that this crate lies in.
//!
//! * [`layers`]: which crate may import which;
//! * [`purity`]: what deterministic crates may not contain, and [`iteration`]: nor iterate over;
//! * [`floors`]: oldest versions of dependencies that are free of known faults;
//! * [`style`]: files, names, the top of the tree.
//!
//! Sources are read by [`source`], which knows as much of Rust as the rules need: comments, strings, tokens, and what
//! is compiled for tests only.

pub mod floors;
pub mod iteration;
pub mod layers;
pub mod purity;
pub mod source;
pub mod style;
pub mod tree;

/// A violation: where, and of which rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Package, or path from the top of the tree (with a line where there is one).
    pub place: String,
    /// What is wrong, and what to do instead.
    pub problem: String,
}

impl Finding {
    /// A finding at `place`.
    pub fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }
}

/// Findings as text, one a line.
#[must_use]
pub fn report(findings: &[Finding]) -> String {
    findings.iter().map(|f| format!("{}: {}\n", f.place, f.problem)).collect()
}

/// The deterministic crates: no clock, randomness, file, socket, thread or async in them. Folders from the top.
pub const DETERMINISTIC: [&str; 7] =
    ["engine/base", "engine/queue", "engine/log", "engine/core", "replication", "net/wire", "net/transport"];
