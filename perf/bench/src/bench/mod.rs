//! `bench`: what a server does in a second, how long it takes, and what it costs when nothing happens.

mod cycles;
mod idle;
mod latency;
pub(crate) mod load;

use crate::connect::{ServerArguments, first_messages};
use crate::duration;
use crate::table::{Row, render};
use clap::{Args, ValueEnum};
use overtake_client::{Client, ClientError, QueueConfigPatch};
use std::path::PathBuf;
use std::time::Duration;

/// Each limit of the machine is measured for this long at most: it only stands beside the rest.
const LIMIT_DURATION_MAX: Duration = Duration::from_secs(1);

/// What to measure, and how.
#[derive(Args, Clone, Debug)]
pub struct BenchOptions {
    /// Where.
    #[command(flatten)]
    pub server: ServerArguments,
    /// How long each measurement takes.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub duration: Duration,
    /// Start of the names of the queues used, like bench-single; they are made anew and deleted afterwards. One that holds
    /// messages which `bench` did not send is left alone, and ends the run.
    #[arg(long, default_value = "bench")]
    pub queue: String,
    /// Only these measurements, separated by commas or spaces.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
    pub only: Vec<Section>,
    /// Messages of one call when batched.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub batch: u32,
    /// Bytes of a body.
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(16..=131_072))]
    pub body: u32,
    /// Producers of the batched measurement.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub producers: u32,
    /// Consumers of the batched measurement and of the P0 ones.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub consumers: u32,
    /// Callers to try in the measurement with one message a call; the best is reported.
    #[arg(long, value_delimiter = ',', num_args = 1.., default_values_t = [16, 64, 256], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub callers: Vec<u32>,
    /// Connections to the server.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub connections: u32,
    /// Single enqueues a second whose confirmation is timed.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub confirm_rate: u64,
    /// Messages a second of all levels while P0 is timed.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(50..=1_000_000))]
    pub p0_rate: u64,
    /// P4 messages that wait in `p0-backlog`.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub backlog: u32,
    /// Receives that wait in `idle`.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub waiting: u32,
    /// The server's process, to tell its CPU time.
    #[arg(long)]
    pub server_pid: Option<u32>,
    /// Measure the limits of the machine first, with the disk of this folder, and print them above.
    #[arg(long, value_name = "FOLDER")]
    pub device_dir: Option<PathBuf>,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Section {
    /// Enqueue, receive and ack in batches.
    Batched,
    /// The same with one message a call.
    Single,
    /// Confirmation of single enqueues at a fixed rate.
    Confirm,
    /// P0 from enqueue to delivery, consumers waiting.
    P0,
    /// P0 from enqueue to delivery, behind a backlog of P4.
    P0Backlog,
    /// CPU of the server while receives wait.
    Idle,
}

impl Section {
    const ALL: [Self; 6] =
        [Self::Batched, Self::Single, Self::Confirm, Self::P0, Self::P0Backlog, Self::Idle];

    const fn name(self) -> &'static str {
        match self {
            Self::Batched => "batched",
            Self::Single => "single",
            Self::Confirm => "confirm",
            Self::P0 => "p0",
            Self::P0Backlog => "p0-backlog",
            Self::Idle => "idle",
        }
    }
}

/// Why a measurement could not be made.
#[derive(Debug)]
pub enum BenchError {
    /// The server could not be used.
    Client(ClientError),
    /// The machine we run on.
    Io(std::io::Error),
    /// A queue holds messages of others.
    Foreign(String),
    /// Ctrl-C; what was made was removed.
    Interrupted,
}

impl core::fmt::Display for BenchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Client(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::Foreign(queue) => write!(
                f,
                "queue {queue} holds messages that bench did not send, and would be deleted: use another --queue, or delete it \
                 by `overtake queue delete {queue}`"
            ),
            Self::Interrupted => f.write_str("interrupted; what was made for the measurement is removed"),
        }
    }
}

/// Returns when Ctrl-C is pressed.
pub(crate) async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without signals nothing can interrupt.
        std::future::pending::<()>().await;
    }
}

impl core::error::Error for BenchError {}

impl From<ClientError> for BenchError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<std::io::Error> for BenchError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// A measurement's surroundings.
pub(crate) struct Bench<'a> {
    pub client: Client,
    pub queue: String,
    pub options: &'a BenchOptions,
}

/// Measures, and gives the table. `progress` is told what is measured next.
pub async fn run(options: &BenchOptions, progress: &mut dyn FnMut(&str)) -> Result<String, BenchError> {
    let mut rows = Vec::new();
    if let Some(dir) = &options.device_dir {
        progress("device");
        rows.extend(crate::device::limits(dir, options.duration.min(LIMIT_DURATION_MAX))?);
    }
    let client = Client::connect(options.server.options(options.connections)?).await?;
    for section in Section::ALL {
        if options.only.is_empty() || options.only.contains(&section) {
            progress(section.name());
            rows.push(measure(&client, options, section, progress).await?);
        }
    }
    let server = crate::connect::Cluster::of(&client).await;
    client.close().await;
    if let Some(path) = &options.results {
        crate::results::write(path, "bench", &rows, server.replicas)?;
    }
    Ok(render(&rows))
}

async fn measure(
    client: &Client,
    options: &BenchOptions,
    section: Section,
    progress: &mut dyn FnMut(&str),
) -> Result<Row, BenchError> {
    let bench =
        Bench { client: client.clone(), queue: format!("{}-{}", options.queue, section.name()), options };
    bench.fresh_queue(progress).await?;
    let measuring = async {
        match section {
            Section::Batched => cycles::batched(&bench).await,
            Section::Single => cycles::single(&bench).await,
            Section::Confirm => latency::confirm(&bench).await,
            Section::P0 => latency::p0(&bench).await,
            Section::P0Backlog => latency::p0_backlog(&bench).await,
            Section::Idle => idle::idle(&bench).await,
        }
    };
    let measured = tokio::select! {
        measured = measuring => measured,
        () = interrupt() => Err(BenchError::Interrupted),
    };
    client.delete_queue(&bench.queue).await?;
    measured.map(|row| Row { key: format!("bench.{}", section.name()), ..row })
}

impl Bench<'_> {
    /// Makes the queue anew, so that nothing of an earlier run is measured.
    async fn fresh_queue(&self, progress: &mut dyn FnMut(&str)) -> Result<(), BenchError> {
        use overtake_client::{ErrorCode, Refusal};
        match first_messages(&self.client, &self.queue).await {
            Ok(page) if page.entries.iter().any(|message| !load::is_own(&message.body)) => {
                return Err(BenchError::Foreign(self.queue.clone()));
            }
            Ok(_) => {
                progress(&format!("deleting queue {}, left by an earlier run", self.queue));
                self.client.delete_queue(&self.queue).await?;
            }
            Err(ClientError::Refused(Refusal { code: ErrorCode::NotFound, .. })) => {}
            Err(error) => return Err(error.into()),
        }
        self.client.put_queue(&self.queue, QueueConfigPatch::default()).await?;
        Ok(())
    }

    /// CPU time of the server so far.
    fn server_cpu(&self) -> Option<Duration> {
        self.options.server_pid.and_then(crate::cpu::used_by)
    }
}
