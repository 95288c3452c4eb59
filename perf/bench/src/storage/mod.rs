//! `storage`: what a long backlog costs in memory, disk and time. Starts a server of its own on an empty folder, since it
//! kills it too.

mod engine;
mod goals;
mod journal;
mod server;
mod work;

use crate::bench::{BenchError, interrupt};
use crate::device;
use crate::table::{Latencies, Row, render, thousands};
use clap::{Args, ValueEnum};
use goals::Goal;
use overtake_client::{Client, ConnectOptions, QueueConfigPatch, Trust};
use server::{Server, Start};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: f64 = 1024.0 * 1024.0;
/// The server has settled when it wrote nothing of note for this long.
const QUIET: Duration = Duration::from_secs(3);
/// How long the disk by itself is measured, each way.
const LIMITS_FOR: Duration = Duration::from_secs(2);
/// Longest wait for that.
const SETTLES_WITHIN: Duration = Duration::from_secs(600);

/// What to measure, and how.
#[derive(Args, Clone, Debug)]
pub struct StorageOptions {
    /// The program `overtake`; the one beside this program where absent.
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// An empty or missing folder for the server's data; it is removed afterwards.
    #[arg(long, value_name = "FOLDER")]
    pub data: PathBuf,
    /// Address for the server's HTTP.
    #[arg(long, default_value = "127.0.0.1:7480")]
    pub http: SocketAddr,
    /// Address for the server's QUIC.
    #[arg(long, default_value = "127.0.0.1:7490")]
    pub quic: SocketAddr,
    /// Cores of the server.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub cores: u32,
    /// Shards of the server.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub shards: u32,
    /// Messages of the backlog.
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub messages: u64,
    /// Bytes of a body of the backlog.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=131_072))]
    pub body: u32,
    /// MiB of bodies that cores without a network store and drain.
    #[arg(long, default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(1..))]
    pub engine_mib: u64,
    /// Bytes of one of these bodies.
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(16..=131_072))]
    pub engine_body: u32,
    /// Bytes of bodies of the backlog whose writes are counted (1 KiB each), in MiB.
    #[arg(long, default_value_t = 2_048, value_parser = clap::value_parser!(u64).range(64..))]
    pub long_mib: u64,
    /// Bytes of bodies that pass through while two messages stay, in MiB.
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..))]
    pub pass_mib: u64,
    /// How often each of 100,000 messages is released.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub releases: u32,
    /// P0 messages a second while they are timed.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    pub p0_rate: u64,
    /// Messages a second that are drained while P0 is timed; absent: as fast as it goes.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub drain_rate: Option<u64>,
    /// How long P0 is timed without a backlog, and short lives are counted.
    #[arg(long, default_value = "10s", value_parser = crate::duration::parse)]
    pub duration: Duration,
    /// Only these measurements, separated by commas or spaces.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
    pub only: Vec<Section>,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Section {
    /// Memory and writes of a long backlog, a restart after a kill, P0 while it drains, and how fast that is.
    Backlog,
    /// Writes for messages that are acked at once.
    Short,
    /// Writes for a long backlog of larger messages.
    Long,
    /// Disk that is used while much passes and two messages stay.
    Pinned,
    /// Disk that is used by messages that are released again and again.
    Releases,
    /// Journal and drain by themselves, in this process, without network and clients.
    Engine,
}

impl Section {
    const ALL: [Self; 6] =
        [Self::Engine, Self::Backlog, Self::Short, Self::Long, Self::Pinned, Self::Releases];
}

impl StorageOptions {
    fn engine_messages(&self) -> u64 {
        (self.engine_mib << 20) / u64::from(self.engine_body)
    }
}

/// What was measured: for people and tools, and held against what is asked.
#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    goals: Vec<(Goal, f64)>,
}

/// Measures, and gives two tables: what was measured, and what of it is asked. `progress` is told what comes next.
pub async fn run(options: &StorageOptions, progress: &mut dyn FnMut(&str)) -> Result<String, BenchError> {
    let mut found = Found::default();
    for section in Section::ALL {
        if !options.only.is_empty() && !options.only.contains(&section) {
            continue;
        }
        make_empty(&options.data)?;
        let ended = tokio::select! {
            measured = measure(section, options, progress, &mut found) => measured,
            // What was measured, and with it the server, ended with the measuring.
            () = interrupt() => Err(BenchError::Interrupted),
        };
        if matches!(ended, Ok(()) | Err(BenchError::Interrupted)) {
            clear(options)?;
        }
        // After a failure the folder and the server's log are left to be looked at.
        ended?;
    }
    if let Some(path) = &options.results {
        crate::results::write(path, "storage", &found.rows, None)?;
    }
    Ok(format!("{}\n{}", render(&found.rows), goals::render(&found.goals)))
}

async fn measure(
    section: Section,
    options: &StorageOptions,
    progress: &mut dyn FnMut(&str),
    found: &mut Found,
) -> Result<(), BenchError> {
    let stage = || Stage::set(options);
    match section {
        Section::Engine => by_itself(options, progress, found).await,
        Section::Backlog => stage().await?.backlog(options, progress, found).await,
        Section::Short => stage().await?.short(options, progress, found).await,
        Section::Long => stage().await?.long(options, progress, found).await,
        Section::Pinned => stage().await?.pinned(options, progress, found).await,
        Section::Releases => stage().await?.releases(options, progress, found).await,
    }
}

fn clear(options: &StorageOptions) -> std::io::Result<()> {
    std::fs::remove_dir_all(&options.data)?;
    match std::fs::remove_file(options.data.with_extension("log")) {
        // Only a server has one.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn make_empty(folder: &Path) -> std::io::Result<()> {
    let empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if !empty {
        let detail = format!("{} is not empty: it would be removed", folder.display());
        return Err(std::io::Error::other(detail));
    }
    std::fs::create_dir_all(folder)
}

/// The journal and the cores of a server, without the rest of it.
async fn by_itself(
    options: &StorageOptions,
    progress: &mut dyn FnMut(&str),
    found: &mut Found,
) -> Result<(), BenchError> {
    progress("the journal by itself, and the disk without it");
    let (folder, shards, messages) = (options.data.clone(), options.shards as u16, options.engine_messages());
    let body = options.engine_body as usize;
    let journals = blocking(move || Ok(journal::measure(&folder, 2 * LIMITS_FOR)?)).await?;
    let worst = journals.iter().map(journal::Measured::percent).fold(f64::INFINITY, f64::min);
    found.goals.push((Goal::WriteRate, worst));
    found.rows.extend(journals.iter().map(journal::Measured::row));
    progress("cores without a network: a backlog is stored and drained");
    let folder = options.data.clone();
    let (drained, limit) = blocking(move || {
        let drained = engine::measure(&folder, shards, messages, body)?;
        Ok((drained, device::reads(&folder, LIMITS_FOR)?))
    })
    .await?;
    let engine = |key: &str, name: &str, per_second: f64, note: String| Row {
        per_second: Some(per_second),
        bytes_per_second: Some(per_second * body as f64),
        ..row(
            key,
            format!(
                "{} cores without a network {name} {} messages of {body} bytes",
                drained.cores,
                thousands(drained.messages)
            ),
            format!("{:.0} MB/s of bodies{note}", per_second * body as f64 / 1e6),
        )
    };
    found.rows.push(engine("engine.store", "store", drained.stored_per_second(), String::new()));
    let cold = format!("; {} of them were only on disk", thousands(drained.cold));
    let row = engine("engine.drain", "give and ack", drained.drained_per_second(), cold);
    let limited = limit.bytes_per_second.unwrap_or(f64::INFINITY);
    found.goals.push((Goal::DrainRate, 100.0 * row.bytes_per_second.unwrap_or(0.0) / limited));
    found.rows.extend([row, Row { name: format!("limit: {}", limit.name), ..limit }]);
    Ok(())
}

/// Works on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BenchError> + Send + 'static,
) -> Result<T, BenchError> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// What a journal wrote.
#[derive(Clone, Copy)]
struct Written {
    bytes: u64,
    batches: u64,
}

impl Written {
    fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes - before.bytes, batches: self.batches - before.batches }
    }

    fn batch_bytes(self) -> usize {
        (self.bytes / self.batches.max(1)) as usize
    }
}

/// A server with a client.
struct Stage {
    server: Server,
    client: Client,
}

async fn connect(options: &StorageOptions) -> Result<Client, BenchError> {
    let options = ConnectOptions {
        servers: vec![options.quic.into()],
        trust: Trust::LoopbackOnly,
        connections: 2,
        ..ConnectOptions::default()
    };
    Ok(Client::connect(options).await?)
}

/// P0 over connections and on a thread of its own: those who send and take what is urgent are not those who drain, and what
/// is measured is to be the server, not how long a client is busy with the messages of another.
async fn urgent_latency(
    options: &StorageOptions,
    queue: &'static str,
    duration: Duration,
    beside: Option<tokio::task::AbortHandle>,
) -> Result<Latencies, BenchError> {
    let options = options.clone();
    blocking(move || {
        crate::runtime()?.block_on(async {
            let client = connect(&options).await?;
            let latencies = work::p0(&client, queue, options.p0_rate, duration, beside).await;
            client.close().await;
            latencies
        })
    })
    .await
}

fn row(key: &str, name: String, note: String) -> Row {
    Row { key: format!("storage.{key}"), name, note, ..Row::default() }
}

impl Stage {
    async fn set(options: &StorageOptions) -> Result<Self, BenchError> {
        let beside = || {
            let own = std::env::current_exe()?;
            Ok::<_, std::io::Error>(own.with_file_name("overtake"))
        };
        let start = Start {
            binary: options.server.clone().map_or_else(beside, Ok)?,
            data: options.data.clone(),
            http: options.http,
            quic: options.quic,
            cores: options.cores,
            shards: options.shards,
        };
        let server = start.start()?;
        Ok(Self { server, client: connect(options).await? })
    }

    async fn queue(&self, name: &str) -> Result<(), BenchError> {
        self.client.put_queue(name, QueueConfigPatch::default()).await?;
        Ok(())
    }

    /// Waits until what is done in the background is done.
    async fn settle(&self) -> Result<(), BenchError> {
        let begun = Instant::now();
        let (mut written, mut since) = (self.server.written_bytes()?, Instant::now());
        while since.elapsed() < QUIET && begun.elapsed() < SETTLES_WITHIN {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = self.server.written_bytes()?;
            if now > written + (256 << 10) {
                (written, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    async fn backlog(
        mut self,
        options: &StorageOptions,
        progress: &mut dyn FnMut(&str),
        found: &mut Found,
    ) -> Result<(), BenchError> {
        let (queue, urgent) = ("backlog", "urgent");
        let Found { rows, goals } = found;
        self.queue(queue).await?;
        self.queue(urgent).await?;
        progress("P0 without a backlog");
        let idle = urgent_latency(options, urgent, options.duration, None).await?;
        progress("a backlog");
        let (messages, body) = (options.messages, options.body as usize);
        let (part, begun) = (messages / 4, Instant::now());
        work::preload(&self.client, queue, 0..part, body).await?;
        self.settle().await?;
        let memory = self.server.memory_bytes()?;
        progress("the rest of it");
        let (from, journal) = (Instant::now(), self.journal()?);
        work::preload(&self.client, queue, part..messages, body).await?;
        let seconds = from.elapsed().as_secs_f64();
        let per_second = (messages - part) as f64 / seconds;
        let journal = self.journal()?.since(journal);
        self.settle().await?;
        let (after, written) = (self.server.memory_bytes()?, self.server.written_bytes()?);
        let payload = messages as f64 * body as f64;
        rows.push(Row {
            per_second: Some(per_second),
            ..row(
                "backlog.enqueue",
                format!("a backlog of {} P4 of {body} bytes is stored", thousands(messages)),
                format!("{:.1} s with the background work", begun.elapsed().as_secs_f64()),
            )
        });
        let each = (after as f64 - memory as f64) / (messages - part) as f64;
        rows.push(Row { memory_bytes_per_message: Some(each), ..row(
            "backlog.memory",
            "resident memory of it".into(),
            format!(
                "{each:.2} bytes a message more; {:.0} MiB in all, {:.0} MiB with a quarter of it; {} messages are only on \
                 disk",
                after as f64 / MIB,
                memory as f64 / MIB,
                thousands(self.server.metric("overtake_messages_on_disk_only")? as u64)
            ),
        )});
        rows.push(row(
            "backlog.writes",
            "bytes written for it".into(),
            format!("{:.2} for each byte of bodies", written as f64 / payload),
        ));
        rows.push(row(
            "backlog.disk",
            "disk that it takes".into(),
            format!("{:.2} for each byte of bodies", self.server.disk_bytes()? as f64 / payload),
        ));
        goals.push((Goal::Memory, each));
        progress("the disk by itself");
        let limits = self.limits(options, journal.batch_bytes()).await?;
        rows.push(Row {
            bytes_per_second: Some(journal.bytes as f64 / seconds),
            ..row(
                "backlog.journal",
                "journal while it is stored".into(),
                format!(
                    "{:.1} MiB/s in writes of {:.0} KiB on average",
                    journal.bytes as f64 / seconds / MIB,
                    journal.batch_bytes() as f64 / 1_024.0
                ),
            )
        });
        progress("kill and restart");
        self.client.close().await;
        let killed = Instant::now();
        self.server = self.server.kill_and_start()?;
        let ready = killed.elapsed();
        self.client = connect(options).await?;
        work::take_one(&self.client, queue).await?;
        rows.push(row(
            "backlog.restart",
            "from kill -9 to the first delivery".into(),
            format!("{:.2} s, ready after {:.2} s", killed.elapsed().as_secs_f64(), ready.as_secs_f64()),
        ));
        goals.push((Goal::Restart, killed.elapsed().as_secs_f64()));
        progress("a drain with P0 beside it");
        // One was taken after the restart.
        let drain = work::Drain::start(&self.client, queue, messages - 1, options.drain_rate);
        let busy = urgent_latency(options, urgent, options.duration * 60, Some(drain.watch())).await?;
        let drained = drain.end().await?;
        rows.push(Row {
            per_second: Some(drained.messages as f64 / drained.seconds),
            bytes_per_second: Some(drained.messages as f64 * body as f64 / drained.seconds),
            ..row(
                "backlog.drain",
                "the backlog is received and acked".into(),
                format!(
                    "{} of {} messages, {:.1} MiB/s of bodies, {:.1} s",
                    thousands(drained.messages),
                    thousands(messages),
                    drained.messages as f64 * body as f64 / drained.seconds / MIB,
                    drained.seconds
                ),
            )
        });
        rows.extend(limits);
        let p99 = |latencies: &Latencies| latencies.histogram().value_at_quantile(0.99) as f64;
        goals.push((Goal::UrgentLatency, p99(&busy) / p99(&idle).max(1.0)));
        for (key, name, latencies) in
            [("p0.idle", "P0 without a backlog", idle), ("p0.drain", "P0 while it drains", busy)]
        {
            let name = format!("{name}, {}/s", thousands(options.p0_rate));
            rows.push(Row { latencies: Some(latencies), ..row(key, name, String::new()) });
        }
        self.settle().await?;
        rows.push(row(
            "backlog.disk_after",
            "disk that is left when it is gone".into(),
            format!("{:.0} MiB", self.server.disk_bytes()? as f64 / MIB),
        ));
        Ok(())
    }

    /// What the journal has written.
    fn journal(&self) -> Result<Written, BenchError> {
        let metric = |name: &str| Ok::<_, BenchError>(self.server.metric(name)? as u64);
        Ok(Written {
            bytes: metric("overtake_journal_written_bytes_total")?,
            batches: metric("overtake_journal_batches_total")?,
        })
    }

    /// What the disk could do in the place of the server, which has nothing to do meanwhile.
    async fn limits(&self, options: &StorageOptions, batch_bytes: usize) -> Result<[Row; 2], BenchError> {
        let data = options.data.clone();
        blocking(move || Ok(device::sequential(&data, batch_bytes, LIMITS_FOR)?)).await
    }

    /// Bytes written for a backlog of 1 KiB bodies. Files that are made at first are none of a message's cost: they are
    /// told beside it.
    async fn long(
        self,
        options: &StorageOptions,
        progress: &mut dyn FnMut(&str),
        found: &mut Found,
    ) -> Result<(), BenchError> {
        const BODY: usize = 1_024;
        progress("a long backlog of 1 KiB bodies");
        let queue = "long";
        self.queue(queue).await?;
        let messages = (options.long_mib << 20) / BODY as u64;
        let before = self.server.written_bytes()?;
        work::preload(&self.client, queue, 0..messages, BODY).await?;
        self.settle().await?;
        let written = (self.server.written_bytes()? - before) as f64;
        let payload = (messages * BODY as u64) as f64;
        let metric = |name: &str| Ok::<_, BenchError>(self.server.metric(name)? / payload);
        let (journal, lanes, states) = (
            metric("overtake_journal_written_bytes_total")?,
            metric("overtake_lanes_written_bytes_total")?,
            metric("overtake_checkpoints_written_bytes_total")?,
        );
        found.goals.push((Goal::LongWrites, written / payload));
        found.rows.push(row(
            "long.writes",
            format!("bytes written for a backlog of {:.0} MiB in bodies of {BODY} bytes", payload / MIB),
            format!(
                "{:.2} for each byte of bodies: journal {journal:.2}, blocks {lanes:.2}, checkpoints {states:.2}, zeros in \
                 new files {:.2}",
                written / payload,
                written / payload - journal - lanes - states
            ),
        ));
        Ok(())
    }

    async fn short(
        self,
        options: &StorageOptions,
        progress: &mut dyn FnMut(&str),
        found: &mut Found,
    ) -> Result<(), BenchError> {
        const BODY: usize = 1_024;
        progress("short lives");
        let queue = "short";
        self.queue(queue).await?;
        // Files that are made at first are none of a message's cost.
        work::pass(&self.client, queue, BODY, 64 << 20, &mut || Ok(())).await?;
        self.settle().await?;
        let before = self.server.written_bytes()?;
        let begun = Instant::now();
        let mut bytes = 0;
        while begun.elapsed() < options.duration {
            bytes += work::pass(&self.client, queue, BODY, 64 << 20, &mut || Ok(())).await?;
        }
        let per_second = bytes as f64 / BODY as f64 / begun.elapsed().as_secs_f64();
        let written = self.server.written_bytes()? - before;
        found.goals.push((Goal::ShortWrites, written as f64 / bytes as f64));
        found.rows.push(Row {
            per_second: Some(per_second),
            bytes_per_second: Some(bytes as f64 / begun.elapsed().as_secs_f64()),
            ..row(
                "short.writes",
                format!("bytes written for messages of {BODY} bytes that are acked at once"),
                format!("{:.2} for each byte of bodies", written as f64 / bytes as f64),
            )
        });
        Ok(())
    }

    async fn pinned(
        self,
        options: &StorageOptions,
        progress: &mut dyn FnMut(&str),
        found: &mut Found,
    ) -> Result<(), BenchError> {
        const BODY: usize = 4_096;
        let queue = "pinned";
        self.queue(queue).await?;
        progress("one message leased and one delayed, while others pass");
        work::pin(&self.client, queue).await?;
        let mut most = 0;
        let mut look = || {
            most = most.max(self.server.disk_bytes()?);
            Ok(())
        };
        let bytes = work::pass(&self.client, queue, BODY, options.pass_mib << 20, &mut look).await?;
        self.settle().await?;
        found.goals.push((Goal::PinnedDisk, most as f64 / MIB));
        found.rows.push(row(
            "pinned.disk",
            format!("disk while {:.0} MiB pass and two messages stay", bytes as f64 / MIB),
            format!(
                "{:.0} MiB at most, {:.0} MiB at the end",
                most as f64 / MIB,
                self.server.disk_bytes()? as f64 / MIB
            ),
        ));
        Ok(())
    }

    async fn releases(
        self,
        options: &StorageOptions,
        progress: &mut dyn FnMut(&str),
        found: &mut Found,
    ) -> Result<(), BenchError> {
        const MESSAGES: u64 = 100_000;
        let queue = "released";
        let patch = QueueConfigPatch { max_deliveries: Some(Some(1_000_000)), ..QueueConfigPatch::default() };
        self.client.put_queue(queue, patch).await?;
        progress("100,000 messages released again and again");
        work::preload(&self.client, queue, 0..MESSAGES, options.body as usize).await?;
        let begun = Instant::now();
        let (mut first, mut most) = (0, 0);
        for round in 0..options.releases {
            work::release_all(&self.client, queue, MESSAGES).await?;
            let now = self.server.disk_bytes()?;
            first = if round < options.releases.div_ceil(2) { first.max(now) } else { first };
            most = most.max(now);
        }
        let times = u64::from(options.releases) * MESSAGES;
        found.goals.push((Goal::ReleasesDisk, most as f64 / first.max(1) as f64));
        found.rows.push(Row {
            per_second: Some(times as f64 / begun.elapsed().as_secs_f64()),
            ..row(
                "releases.disk",
                format!("{} messages released {} times each", thousands(MESSAGES), options.releases),
                format!(
                    "{:.0} MiB of disk at most, {:.0} MiB in the first half; {:.0} MiB of memory",
                    most as f64 / MIB,
                    first as f64 / MIB,
                    self.server.memory_bytes()? as f64 / MIB
                ),
            )
        });
        Ok(())
    }
}
