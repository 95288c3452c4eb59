//! Durable batches a second of a journal on this disk, by size and number under way, next to bare writes of the same
//! size. `cargo run --release -p overtake-device --example journal [FOLDER]`.

use glommio::io::{DmaFile, OpenOptions};
use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use overtake_base::{CoreId, ShardId};
use overtake_device::Device;
use overtake_log::disk::{BLOCK_BYTES, DiskOperation};
use overtake_log::{Journal, JournalConfig, Record, Recovery, batch, record};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 2, 4];
const SEGMENT_BYTES: u64 = 64 << 20;
const RUN: Duration = Duration::from_secs(1);

fn main() -> Result<(), Failure> {
    let folder = std::env::args().nth(1).map_or_else(
        || std::env::temp_dir().join(format!("overtake-journal-{}", std::process::id())),
        PathBuf::from,
    );
    let executor = LocalExecutorBuilder::new(Placement::Fixed(0))
        .io_memory(4 << 20)
        .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
        .make()?;
    let result = executor.run(measure(&folder));
    std::fs::remove_dir_all(&folder)?;
    result
}

async fn measure(folder: &Path) -> Result<(), Failure> {
    println!(
        "{:>8} {:>5}  {:>34}  {:>34}",
        "batch", "depth", "journal: /s, MB/s, p50/p99 us", "bare: /s, MB/s, p50/p99 us"
    );
    for bytes in SIZES {
        for depth in DEPTHS {
            let journal = journal(&folder.join(format!("journal-{bytes}-{depth}")), bytes, depth).await?;
            let bare = bare(&folder.join("bare"), bytes, depth).await?;
            println!(
                "{:>6} K {depth:>5}  {:>34}  {:>34}",
                bytes >> 10,
                journal.text(bytes),
                bare.text(bytes)
            );
        }
    }
    Ok(())
}

/// Latencies of what was completed in [`RUN`].
struct Measured {
    us: Vec<u64>,
    seconds: f64,
}

impl Measured {
    fn text(mut self, bytes: usize) -> String {
        self.us.sort_unstable();
        let at = |part: f64| self.us.get((self.us.len() as f64 * part) as usize).copied().unwrap_or(0);
        let rate = self.us.len() as f64 / self.seconds;
        format!("{rate:.0}, {:.0}, {}/{}", rate * bytes as f64 / 1e6, at(0.5), at(0.99))
    }
}

fn submit(device: &Device, out: &mut Vec<DiskOperation>) {
    out.drain(..).for_each(|operation| device.submit(operation));
}

async fn open(device: &mut Device, depth: usize) -> Result<Journal, Failure> {
    let mut recovery = Recovery::new(JournalConfig {
        store: 1,
        core: CoreId(0),
        begun: false,
        segment_bytes: SEGMENT_BYTES,
        writes_in_flight_max: depth,
        record_bytes_max: overtake_log::record::DATA_BYTES_MAX,
        batch_bytes_max: 1 << 20,
        segments_ahead: 2,
        segments_free_max: 4,
    });
    let (mut out, mut completions) = (Vec::new(), Vec::new());
    recovery.start(&mut out);
    let mut opened: Option<Journal> = None;
    // Until the segments ahead are ready too.
    while opened.as_ref().is_none_or(|journal| !journal.is_idle()) {
        submit(device, &mut out);
        device.wait().await;
        device.drain(&mut completions);
        for completion in completions.drain(..) {
            match &mut opened {
                Some(journal) => drop(journal.complete(completion, &mut out)?),
                None => opened = recovery.complete(completion, &mut out)?.map(|(journal, _)| journal),
            }
        }
    }
    submit(device, &mut out);
    opened.ok_or_else(|| "recovery ended without a journal".into())
}

/// One entry a batch, everything released at once so that segments are written anew.
async fn journal(folder: &Path, bytes: usize, depth: usize) -> Result<Measured, Failure> {
    let mut device = Device::open(folder, 0).await?;
    let mut journal = open(&mut device, depth).await?;
    let data = vec![0x5a; bytes - batch::HEADER_BYTES - record::HEADER_BYTES];
    let (mut out, mut completions) = (Vec::new(), Vec::new());
    let (mut begun, mut us, mut index) = (VecDeque::new(), Vec::new(), 0);
    let start = Instant::now();
    while start.elapsed() < RUN || !begun.is_empty() {
        while begun.len() < depth && start.elapsed() < RUN {
            index += 1;
            let record = Record::Entry { shard: ShardId(0), term: 1, index, kind: 0, data: &data };
            begun.push_back((journal.append(record), Instant::now()));
            journal.flush(&mut out);
        }
        submit(&device, &mut out);
        device.wait().await;
        device.drain(&mut completions);
        for completion in completions.drain(..) {
            journal.complete(completion, &mut out)?;
        }
        while let Some((_, at)) = begun.pop_front_if(|(batch, _)| *batch <= journal.durable()) {
            us.push(at.elapsed().as_micros() as u64);
        }
        journal.release_before(ShardId(0), index.saturating_sub(depth as u64));
        journal.flush(&mut out);
    }
    let seconds = start.elapsed().as_secs_f64();
    device.close().await?;
    Ok(Measured { us, seconds })
}

/// The same writes without a journal: one file, written once before.
async fn bare(path: &Path, bytes: usize, depth: usize) -> Result<Measured, Failure> {
    let file = OpenOptions::new().read(true).write(true).create(true).dma_open(path).await?;
    let zeros = 1 << 20;
    if file.file_size().await? < SEGMENT_BYTES {
        for at in 0..SEGMENT_BYTES / zeros {
            write(&file, zeros as usize, at * zeros).await?;
        }
    }
    let (file, us, next) = (Rc::new(file), Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    let start = Instant::now();
    let tasks: Vec<_> = (0..depth)
        .map(|_| {
            let (file, us, next) = (Rc::clone(&file), Rc::clone(&us), Rc::clone(&next));
            glommio::spawn_local(async move {
                while start.elapsed() < RUN {
                    let offset = next.replace((next.get() + bytes as u64) % SEGMENT_BYTES);
                    let at = Instant::now();
                    write(&file, bytes, offset).await?;
                    us.borrow_mut().push(at.elapsed().as_micros() as u64);
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let seconds = start.elapsed().as_secs_f64();
    file.close_rc().await?;
    let us = us.take();
    Ok(Measured { us, seconds })
}

async fn write(file: &DmaFile, bytes: usize, offset: u64) -> Result<(), Failure> {
    let mut buffer = file.alloc_dma_buffer(bytes);
    buffer.as_bytes_mut().fill(0x5a);
    file.write_at(buffer, offset).await?;
    file.fdatasync().await?;
    Ok(())
}

const _: () = assert!(SIZES[0] == BLOCK_BYTES);
