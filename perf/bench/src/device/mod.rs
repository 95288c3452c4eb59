//! `device`: what the machine itself can do. A server on it cannot do more, so these are the limits that other figures are
//! held against.

mod clock;
mod disk;
mod network;
mod quic;

use crate::duration;
use clap::{Args, ValueEnum};
pub(crate) use disk::on_executor;
use overtake_measure::table::{Latencies, Row, render};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// Folder on the disk to measure; a file is made in it and removed afterwards.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub dir: PathBuf,
    /// Only these parts, separated by commas or spaces.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
    pub only: Vec<Part>,
    /// How long each single measurement takes.
    #[arg(long, default_value = "1s", value_parser = duration::parse)]
    pub duration: Duration,
    /// Size of the file, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(8..=1_048_576))]
    pub file_mib: u64,
    /// Measure the link to another machine, on which `overtake-perf device --listen` runs, instead of loopback.
    #[arg(long, value_name = "HOST:PORT")]
    pub link: Option<SocketAddr>,
    /// Be the other end of a link, until interrupted: UDP on this port, QUIC on the next one.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["link", "only"])]
    pub listen: Option<SocketAddr>,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
}

/// A part of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Part {
    /// Durable writes of a file that was written before: O_DIRECT write, then fdatasync, by io_uring.
    Write,
    /// Random reads of 4 KiB.
    Read,
    /// A write of 4 KiB with fdatasync, 200 times a second: what a single enqueue waits for.
    Fsync,
    /// UDP datagrams.
    Udp,
    /// QUIC streams.
    Quic,
    /// Reading the clock, waking up, and time that others took away.
    Clock,
}

impl Part {
    const ALL: [Self; 6] = [Self::Write, Self::Read, Self::Fsync, Self::Udp, Self::Quic, Self::Clock];
}

/// A row of the table.
fn row(key: impl Into<String>, name: impl Into<String>, latencies: Latencies, seconds: f64) -> Row {
    Row {
        key: format!("device.{}", key.into()),
        name: name.into(),
        per_second: Some(latencies.count() as f64 / seconds),
        latencies: Some(latencies),
        ..Row::default()
    }
}

/// The same of something that moves so many bytes each time.
fn row_of_bytes(
    key: impl Into<String>,
    name: impl Into<String>,
    latencies: Latencies,
    seconds: f64,
    bytes: usize,
) -> Row {
    let row = row(key, name, latencies, seconds);
    let bytes_per_second = row.per_second.map(|rate| rate * bytes as f64);
    let note = bytes_per_second.map_or_else(String::new, |rate| format!("{:.0} MB/s", rate / 1e6));
    Row { bytes_per_second, note, ..row }
}

/// Measures, and gives the table. `progress` is told what is measured next.
pub fn run(options: &DeviceOptions, progress: &mut dyn FnMut(&str)) -> io::Result<String> {
    if let Some(address) = options.listen {
        progress(&format!("the other end of links to {address}; end it with Ctrl-C"));
        return network::listen(address).map(|()| String::new());
    }
    let mut rows = Vec::new();
    for part in Part::ALL {
        if options.only.is_empty() || options.only.contains(&part) {
            rows.extend(measure(part, options, progress)?);
        }
    }
    if let Some(path) = &options.results {
        crate::results::write(path, "device", &rows, None)?;
    }
    Ok(render(&rows))
}

fn measure(part: Part, options: &DeviceOptions, progress: &mut dyn FnMut(&str)) -> io::Result<Vec<Row>> {
    let (dir, duration, bytes) = (options.dir.as_path(), options.duration, options.file_mib << 20);
    progress(&part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned()));
    match part {
        Part::Write => disk::writes(dir, bytes, duration, &disk::SIZES, &disk::DEPTHS),
        Part::Read => disk::reads(dir, bytes, duration),
        Part::Fsync => disk::paced(dir, bytes, duration).map(|row| vec![row]),
        Part::Udp => network::udp(options.link, duration),
        Part::Quic => network::quic(options.link, duration),
        Part::Clock => Ok(clock::measure(duration)),
    }
}

/// The limits that matter most to a queue server, measured shortly, to stand beside its figures.
pub fn limits(dir: &Path, duration: Duration) -> io::Result<Vec<Row>> {
    const FILE_BYTES: u64 = 64 << 20;
    let mut rows = disk::writes(dir, FILE_BYTES, duration, &[4 << 10, 64 << 10], &[1])?;
    rows.push(disk::paced(dir, FILE_BYTES, duration)?);
    rows.extend(network::quic(None, duration)?);
    let limit = |row: Row| Row { name: format!("limit: {}", row.name), ..row };
    Ok(rows.into_iter().map(limit).collect())
}

/// What is written or read one after the other.
const SEQUENTIAL_FILE_BYTES: u64 = 128 << 20;

/// Durable writes of so many bytes, one after the other, so many under way.
pub(crate) fn writes(dir: &Path, bytes: usize, under_way: usize, duration: Duration) -> io::Result<Row> {
    Ok(disk::writes(dir, SEQUENTIAL_FILE_BYTES, duration, &[bytes], &[under_way])?.remove(0))
}

/// Reads of 1 MiB one after the other, two under way, as a server reads ahead.
pub(crate) fn reads(dir: &Path, duration: Duration) -> io::Result<Row> {
    disk::sequential_reads(dir, SEQUENTIAL_FILE_BYTES, duration, 1 << 20, 2)
}

/// The disk by itself: durable writes of batches of about so many bytes, four under way, and reads of 1 MiB, two under way,
/// both one after the other, as a server's journal and its read-ahead do.
pub fn sequential(dir: &Path, batch_bytes: usize, duration: Duration) -> io::Result<[Row; 2]> {
    const BLOCK_BYTES: usize = 4 << 10;
    let batch = batch_bytes.clamp(BLOCK_BYTES, 1 << 20).next_multiple_of(BLOCK_BYTES);
    let write = writes(dir, batch, 4, duration)?;
    let read = reads(dir, duration)?;
    let limit = |key: &str, row: Row| Row {
        key: format!("device.{key}"),
        name: format!("limit: {}", row.name),
        ..row
    };
    Ok([limit("write.sequential", write), limit("read.sequential", read)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_measured_and_leaves_nothing_behind() {
        // Under the target folder: the file must be on a real file system.
        let executable = std::env::current_exe().unwrap();
        let dir = executable.ancestors().nth(3).unwrap().join(format!("tmp/device-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let options = DeviceOptions {
            dir: dir.clone(),
            only: vec![],
            duration: Duration::from_millis(20),
            file_mib: 8,
            link: None,
            listen: None,
            results: Some(dir.join("results.json")),
        };
        let mut parts = Vec::new();
        let table = run(&options, &mut |part| parts.push(part.to_owned())).unwrap();
        assert_eq!(parts, ["write", "read", "fsync", "udp", "quic", "clock"]);
        let results = std::fs::read_to_string(dir.join("results.json")).unwrap();
        let results = overtake_measure::results::Results::from_json(&results).unwrap();
        for key in [
            "write.4k.depth1",
            "write.64k.depth1",
            "write.1m.depth4",
            "read.4k.depth1",
            "read.4k.depth32",
            "fsync.paced",
            "udp.loopback.echo",
            "udp.loopback.stream",
            "quic.loopback.echo",
            "quic.loopback.stream",
            "clock.read",
            "clock.wake",
            "clock.gap",
        ] {
            let measure = results.measure(&format!("device.{key}"));
            assert!(measure.is_some_and(|measure| measure.per_second.is_some()), "{key}: {table}");
        }
        assert!(results.measure("device.write.64k.depth1").unwrap().bytes_per_second.unwrap() > 0.0);
        let left = std::fs::read_dir(&dir).unwrap().count();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(left, 1, "only the results are left");
    }

    #[test]
    fn batches_of_any_size_are_measured() {
        let executable = std::env::current_exe().unwrap();
        let dir =
            executable.ancestors().nth(3).unwrap().join(format!("tmp/sequential-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for batch in [0, 70_000, usize::MAX] {
            let rows = sequential(&dir, batch, Duration::from_millis(20)).unwrap();
            assert!(rows.iter().all(|row| row.bytes_per_second.unwrap() > 0.0), "{rows:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_folder_in_memory_is_refused() {
        let memory = Path::new("/dev/shm");
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        if !mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
            return;
        }
        let error = limits(memory, Duration::from_millis(1)).unwrap_err();
        assert!(error.to_string().contains("(tmpfs)") && error.to_string().contains("--dir"), "{error}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_told() {
        let error = limits(Path::new("/nowhere/at/all"), Duration::from_millis(1)).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
