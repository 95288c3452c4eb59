//! The disk, as a journal uses it: io_uring, O_DIRECT, a file of which every block was written before (a file that is only
//! allocated has slow first writes).

use super::{row, row_of_bytes};
use glommio::io::{DmaFile, OpenOptions};
use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use overtake_base::random::Random;
use overtake_measure::table::{Latencies, Row};
use std::cell::{Cell, RefCell};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Sizes of batches, and numbers of them under way.
pub(super) const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
pub(super) const DEPTHS: [usize; 3] = [1, 2, 4];
const READ_BYTES: usize = 4 << 10;
const READ_DEPTHS: [usize; 2] = [1, 32];
/// Paced writes a second.
const PACED_PER_SECOND: u32 = 200;
/// What the file is filled by.
const FILL_BYTES: usize = 1 << 20;

/// A file without a name: nothing of it stays behind, however the measurement ends.
struct Scratch {
    file: Rc<DmaFile>,
    bytes: u64,
}

impl Scratch {
    async fn new(dir: &Path, bytes: u64) -> io::Result<Self> {
        let path = dir.join(format!("overtake-device-{}.scratch", std::process::id()));
        let failed = |error: io::Error| {
            let what = format!("{}: {error}; choose a folder on a disk with --dir", path.display());
            io::Error::new(error.kind(), what)
        };
        // In memory everything is fast, and says nothing of the disk.
        overtake_device::check_direct_io(dir)
            .map_err(|error| io::Error::other(format!("{error}; choose a folder on a disk with --dir")))?;
        let mut plain = std::fs::File::options();
        let plain = plain.read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        std::fs::remove_file(&path).map_err(failed)?;
        // Written before it is opened for direct I/O: by an empty file the reactor cannot tell whether the disk can be
        // polled, believes that it can, and later reads fail.
        fill(&plain, bytes).map_err(failed)?;
        let opened = OpenOptions::new().read(true).write(true).dma_open(nameless(&plain)).await;
        let file = Rc::new(opened.map_err(|error| failed(error.into()))?);
        Ok(Self { file, bytes })
    }

    async fn write(&self, bytes: usize, offset: u64) -> io::Result<()> {
        let mut buffer = self.file.alloc_dma_buffer(bytes);
        buffer.as_bytes_mut().fill(0x5a);
        self.file.write_at(buffer, offset).await?;
        Ok(())
    }

    async fn write_durably(&self, bytes: usize, offset: u64) -> io::Result<()> {
        self.write(bytes, offset).await?;
        self.file.fdatasync().await?;
        Ok(())
    }
}

/// Where the system still finds a file whose name was removed.
fn nameless(file: &std::fs::File) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn fill(mut file: &std::fs::File, bytes: u64) -> io::Result<()> {
    let chunk = vec![0x5a; FILL_BYTES];
    for _ in 0..bytes / FILL_BYTES as u64 {
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

/// Runs on an executor of its own, on a thread of its own: the caller may be on another one.
pub(crate) fn on_executor<T: Send + 'static, F: Future<Output = io::Result<T>>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> io::Result<T> {
    let thread = std::thread::spawn(move || {
        let executor = LocalExecutorBuilder::new(Placement::Unbound)
            .io_memory(4 << 20)
            .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
            .make()
            .map_err(|error| io::Error::other(format!("no io_uring: {error}")))?;
        executor.run(work())
    });
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the measurement of the disk panicked")))
}

/// Does `operation` at a depth, again and again for a while; gives the latencies and how long it took.
async fn repeat<F: Future<Output = io::Result<()>> + 'static>(
    depth: usize,
    duration: Duration,
    operation: impl Fn() -> F + Clone + 'static,
) -> io::Result<(Latencies, f64)> {
    let latencies = Rc::new(RefCell::new(Latencies::default()));
    let start = Instant::now();
    let one = || {
        let (latencies, operation) = (latencies.clone(), operation.clone());
        glommio::spawn_local(async move {
            while start.elapsed() < duration {
                let at = Instant::now();
                operation().await?;
                latencies.borrow_mut().record(at.elapsed());
            }
            Ok::<_, io::Error>(())
        })
    };
    let tasks: Vec<_> = (0..depth).map(|_| one()).collect();
    for task in tasks {
        task.await?;
    }
    Ok((latencies.take(), start.elapsed().as_secs_f64()))
}

fn size_name(bytes: usize) -> (String, String) {
    let kib = bytes >> 10;
    if kib >= 1_024 {
        (format!("{}m", kib >> 10), format!("{} MiB", kib >> 10))
    } else {
        (format!("{kib}k"), format!("{kib} KiB"))
    }
}

/// Durable writes of these sizes at these depths, one after the other through the file.
pub(super) fn writes(
    dir: &Path,
    file_bytes: u64,
    duration: Duration,
    sizes: &[usize],
    depths: &[usize],
) -> io::Result<Vec<Row>> {
    let (dir, sizes, depths) = (dir.to_path_buf(), sizes.to_vec(), depths.to_vec());
    on_executor(move || async move {
        let scratch = Rc::new(Scratch::new(&dir, file_bytes).await?);
        let mut rows = Vec::new();
        for bytes in sizes {
            for depth in &depths {
                let (scratch, next) = (scratch.clone(), Rc::new(Cell::new(0)));
                let operation = move || {
                    let scratch = scratch.clone();
                    let offset =
                        next.replace((next.get() + bytes as u64) % (scratch.bytes - bytes as u64 + 1));
                    let offset = offset / bytes as u64 * bytes as u64;
                    async move { scratch.write_durably(bytes, offset).await }
                };
                let (latencies, seconds) = repeat(*depth, duration, operation).await?;
                let (key, name) = size_name(bytes);
                let name = format!("write {name} + fdatasync, {depth} under way");
                rows.push(row_of_bytes(format!("write.{key}.depth{depth}"), name, latencies, seconds, bytes));
            }
        }
        Ok(rows)
    })
}

/// Reads at random places.
pub(super) fn reads(dir: &Path, file_bytes: u64, duration: Duration) -> io::Result<Vec<Row>> {
    let dir = dir.to_path_buf();
    on_executor(move || async move {
        let scratch = Rc::new(Scratch::new(&dir, file_bytes).await?);
        let mut rows = Vec::new();
        for depth in READ_DEPTHS {
            let (scratch, random) = (scratch.clone(), Rc::new(RefCell::new(Random::new(1, "reads"))));
            let operation = move || {
                let scratch = scratch.clone();
                let offset = random.borrow_mut().below(scratch.bytes / READ_BYTES as u64) * READ_BYTES as u64;
                async move {
                    scratch.file.read_at_aligned(offset, READ_BYTES).await?;
                    Ok(())
                }
            };
            let (latencies, seconds) = repeat(depth, duration, operation).await?;
            let name = format!("read 4 KiB at random, {depth} under way");
            rows.push(row_of_bytes(format!("read.4k.depth{depth}"), name, latencies, seconds, READ_BYTES));
        }
        Ok(rows)
    })
}

/// Reads one after the other through the file.
pub(super) fn sequential_reads(
    dir: &Path,
    file_bytes: u64,
    duration: Duration,
    bytes: usize,
    depth: usize,
) -> io::Result<Row> {
    let dir = dir.to_path_buf();
    on_executor(move || async move {
        let scratch = Rc::new(Scratch::new(&dir, file_bytes).await?);
        let next = Rc::new(Cell::new(0));
        let operation = move || {
            let scratch = scratch.clone();
            let offset = next.replace((next.get() + 1) % (scratch.bytes / bytes as u64)) * bytes as u64;
            async move {
                scratch.file.read_at_aligned(offset, bytes).await?;
                Ok(())
            }
        };
        let (latencies, seconds) = repeat(depth, duration, operation).await?;
        let (key, name) = size_name(bytes);
        let name = format!("read {name} in order, {depth} under way");
        Ok(row_of_bytes(format!("read.{key}.sequential"), name, latencies, seconds, bytes))
    })
}

/// One durable write of 4 KiB now and then, timed from when it was due.
pub(super) fn paced(dir: &Path, file_bytes: u64, duration: Duration) -> io::Result<Row> {
    let dir = dir.to_path_buf();
    on_executor(move || async move {
        let scratch = Scratch::new(&dir, file_bytes).await?;
        let mut latencies = Latencies::default();
        let start = Instant::now();
        for number in 0u32.. {
            let due = start + Duration::from_secs(1) * number / PACED_PER_SECOND;
            if due >= start + duration {
                break;
            }
            // A thread that sleeps wakes more exactly than a timer of the executor.
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let at = Instant::now();
            let offset = u64::from(number) * READ_BYTES as u64 % scratch.bytes;
            scratch.write_durably(READ_BYTES, offset).await?;
            latencies.record(at.elapsed());
        }
        let name = format!("write 4 KiB + fdatasync, {PACED_PER_SECOND} a second");
        Ok(row("fsync.paced", name, latencies, start.elapsed().as_secs_f64()))
    })
}
