//! Load and benchmark tools.
