//! Holds the tree against its own rules.
