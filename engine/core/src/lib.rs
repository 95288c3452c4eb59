//! The deterministic core of one CPU core.
