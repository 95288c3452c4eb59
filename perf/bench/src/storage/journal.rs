//! The journal by itself, against bare writes of the same size and number under way: what its checksums, its copies and
//! its segments cost.

use crate::device;
use crate::table::Row;
use glommio::timer::sleep;
use overtake_base::{CoreId, ShardId};
use overtake_core::CoreConfig;
use overtake_device::Device;
use overtake_log::{Journal, JournalConfig, Record, Recovery, batch, record};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a batch that are tried; a server's batches grow with what waits.
const BATCH_BYTES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
/// Turns of each, one after the other: a disk has good and bad moments.
const ROUNDS: u32 = 2;
const SHARD: ShardId = ShardId(0);

/// The journal and bare writes at one size, in bytes a second.
pub(super) struct Measured {
    batch_bytes: usize,
    journal: f64,
    bare: f64,
}

impl Measured {
    /// What part of the disk's rate the journal has, in percent.
    pub(super) fn percent(&self) -> f64 {
        100.0 * self.journal / self.bare.max(1.0)
    }

    pub(super) fn row(&self) -> Row {
        let kib = self.batch_bytes >> 10;
        Row {
            key: format!("storage.engine.journal.{kib}k"),
            name: format!("the journal by itself, batches of {kib} KiB"),
            per_second: Some(self.journal / self.batch_bytes as f64),
            bytes_per_second: Some(self.journal),
            note: format!(
                "{:.0} MB/s; the disk without it {:.0} MB/s, {} under way: {:.0} %",
                self.journal / 1e6,
                self.bare / 1e6,
                writes_in_flight(),
                self.percent()
            ),
            ..Row::default()
        }
    }
}

/// Measures every size, each way for so long, in folders of its own that are removed.
pub(super) fn measure(folder: &Path, duration: Duration) -> io::Result<Vec<Measured>> {
    BATCH_BYTES.into_iter().map(|batch_bytes| of_size(folder, batch_bytes, duration)).collect()
}

fn of_size(folder: &Path, batch_bytes: usize, duration: Duration) -> io::Result<Measured> {
    let (mut journal, mut bare) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let limit = device::writes(folder, batch_bytes, writes_in_flight(), duration / ROUNDS)?;
        bare += limit.bytes_per_second.unwrap_or(0.0) / f64::from(ROUNDS);
        let own = folder.join(format!("journal-{batch_bytes}"));
        let path = own.clone();
        let batches = device::on_executor(move || run(path, batch_bytes, duration / ROUNDS))?;
        journal += batches * batch_bytes as f64 / f64::from(ROUNDS);
        std::fs::remove_dir_all(own)?;
    }
    Ok(Measured { batch_bytes, journal, bare })
}

/// As many as a server's journal has under way.
fn writes_in_flight() -> usize {
    server().writes_in_flight_max
}

fn server() -> CoreConfig {
    CoreConfig::alone(CoreId(0), 1, 1, 1, 1)
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Durable batches a second. One entry a batch, and everything is let go of at once, so that segments are written again
/// and again.
async fn run(folder: PathBuf, batch_bytes: usize, duration: Duration) -> io::Result<f64> {
    // The first sleep of an executor takes tens of milliseconds.
    sleep(Duration::from_millis(1)).await;
    let mut device = Device::open(&folder, 0).await.map_err(failed)?;
    let mut journal = open(&mut device).await?;
    let data = vec![0x5a; batch_bytes - batch::HEADER_BYTES - record::HEADER_BYTES];
    let depth = writes_in_flight() as u64;
    // New segments are made once in a server's life: the time counts once they are written over.
    let warm = u64::from(SEGMENTS + 2) * server().segment_bytes / batch_bytes as u64;
    let (mut out, mut completions) = (Vec::new(), Vec::new());
    let (mut index, mut durable, mut counted) = (0, 0, None);
    loop {
        while index < durable + depth {
            index += 1;
            journal.append(Record::Entry { shard: SHARD, term: 1, index, kind: 0, data: &data });
            journal.flush(&mut out);
        }
        out.drain(..).for_each(|operation| device.submit(operation));
        device.wait().await;
        device.drain(&mut completions);
        for completion in completions.drain(..) {
            journal.complete(completion, &mut out).map_err(failed)?;
        }
        while durable < index && journal.is_durable(SHARD, durable + 1) == Some(true) {
            durable += 1;
        }
        journal.release_before(SHARD, durable);
        journal.flush(&mut out);
        match counted {
            None if durable >= warm => counted = Some((durable, Instant::now())),
            Some((from, start)) if start.elapsed() >= duration => {
                let per_second = (durable - from) as f64 / start.elapsed().as_secs_f64();
                while device.in_flight() > 0 {
                    device.wait().await;
                    device.drain(&mut completions);
                    completions.clear();
                }
                device.close().await?;
                return Ok(per_second);
            }
            _ => {}
        }
    }
}

/// Segments that are kept when nothing needs them: fewer than a server has, so that they are all written over soon.
const SEGMENTS: u32 = 4;

async fn open(device: &mut Device) -> io::Result<Journal> {
    let mut recovery = Recovery::new(JournalConfig { segments_free_max: SEGMENTS, ..server().journal() });
    let (mut out, mut completions) = (Vec::new(), Vec::new());
    recovery.start(&mut out);
    let mut opened: Option<Journal> = None;
    // Until the segments ahead are ready too.
    while opened.as_ref().is_none_or(|journal| !journal.is_idle()) {
        out.drain(..).for_each(|operation| device.submit(operation));
        device.wait().await;
        device.drain(&mut completions);
        for completion in completions.drain(..) {
            match &mut opened {
                Some(journal) => drop(journal.complete(completion, &mut out).map_err(failed)?),
                None => {
                    let done = recovery.complete(completion, &mut out).map_err(failed)?;
                    opened = done.map(|(journal, _)| journal);
                }
            }
        }
    }
    out.drain(..).for_each(|operation| device.submit(operation));
    opened.ok_or_else(|| failed("recovery ended without a journal"))
}
