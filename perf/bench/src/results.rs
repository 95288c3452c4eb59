//! Writes results files.

use overtake_measure::results::Results;
use overtake_measure::table::Row;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes what a tool measured on this machine, now; of a server that kept so many copies, where that is known.
pub fn write(path: &Path, tool: &str, rows: &[Row], server_replicas: Option<u32>) -> std::io::Result<()> {
    let at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let results = Results { server_replicas, ..Results::new(tool, at_s, cores, rows) };
    std::fs::write(path, results.to_json())
        .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
