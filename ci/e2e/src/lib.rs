//! End-to-end tests on the real binary.
