//! What is computed from measurements, with no clock, network or disk in it: histogram logs, comparisons, plots, results
//! files and capacity plans. Bytes go in, bytes and text come out.

pub mod chart;
pub mod encoding;
pub mod hlog;
pub mod merge;
pub mod plan;
pub mod plot;
pub mod regression;
pub mod results;
pub mod summary;
pub mod table;
