//! The lock-free board of head summaries.
