//! `load`: produces and consumes at a given rate or as fast as it goes, measures, and verifies what comes back.

mod consume;
mod finished;
mod ledger;
mod meter;
mod order;
mod pages;
mod produce;
mod report;
mod run;
mod sequence;
mod shape;
mod stamp;

use crate::connect::{Cluster, ServerArguments, first_messages};
use crate::{cpu, duration};
use clap::Args;
use consume::Consumer;
use ledger::Ledger;
use meter::Meter;
use overtake_base::random::Random;
use overtake_client::{
    Client, ClientError, ErrorCode, MessageId, MessageIds, Page, PeekedMessage, QueueConfig,
    QueueConfigPatch, Refusal, Stats, Totals,
};
use overtake_measure::hlog::{LogWriter, server_comments};
use run::{Clock, Run, State};
pub use sequence::Mix;
use sequence::{BodySize, Content, DelayedShare, Fates, Sequence, Share};
use shape::{Course, Shape};
use stamp::Stamp;
use std::collections::{BTreeMap, HashMap};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{JoinError, JoinSet, LocalSet};

/// Connections of one client of the SDK.
const CONNECTIONS_OF_CLIENT: u32 = 64;
/// Messages left over that are looked up one by one; more are too many to wait for.
const LOOKUPS_MAX: usize = 20_000;
const LOOKUPS_UNDER_WAY: usize = 64;

/// What to send, how fast, and what to do with what comes back.
#[derive(Args, Clone, Debug)]
pub struct LoadOptions {
    /// Where.
    #[command(flatten)]
    pub server: ServerArguments,
    /// Queue to use. It is made if it does not exist; anything in it that the load tool did not send ends the run.
    #[arg(long, default_value = "load")]
    pub queue: String,
    /// Delete the queue first, with all that earlier runs left in it, and make it anew. Refused where it holds anything that
    /// the load tool did not send.
    #[arg(long)]
    pub fresh: bool,
    /// Shards of the queue where it is made; the server's choice without it.
    #[arg(long)]
    pub shards: Option<u16>,
    /// Only produce. Without --produce and --consume: both.
    #[arg(long)]
    pub produce: bool,
    /// Only consume.
    #[arg(long)]
    pub consume: bool,
    /// Open loop: messages a second, whatever the server does. Latencies count from the time each message was due.
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: u64,
    /// Closed loop instead: so many callers, each sends a batch when its last one is confirmed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "rate")]
    pub concurrency: Option<u32>,
    /// How long to produce (or, with --consume, to consume).
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub duration: Duration,
    /// Course of the rate, in multiples of it: steady, ramp:0.1-2, steps:0.5,1,2, burst:4/2s/30s.
    #[arg(long, default_value = "steady", conflicts_with = "concurrency")]
    pub shape: Shape,
    /// Most messages of one call. An open loop puts together what is due at the same moment.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub batch: u32,
    /// Shares of the levels, P0 first.
    #[arg(long, default_value = "2,8,20,30,40", value_name = "SHARES")]
    pub mix: Mix,
    /// Bytes of a body: 1024, 200-4000 (evenly between), 512:70,4096:25,65536:5 (size:weight).
    #[arg(long, default_value = "1024", value_name = "BYTES")]
    pub body: BodySize,
    /// Delay a share of the messages, like 10%:5s.
    #[arg(long, value_name = "SHARE:TIME")]
    pub delay: Option<DelayedShare>,
    /// Share of messages that repeat the dedup key of a confirmed one; all messages then have keys.
    #[arg(long, default_value = "0%", value_name = "SHARE")]
    pub dedup: Share,
    /// Share of deliveries that are released with an error. No message fails more than three times by chance.
    #[arg(long, default_value = "0%", value_name = "SHARE")]
    pub fail: Share,
    /// Share of deliveries that are forgotten, so that their leases run out.
    #[arg(long, default_value = "0%", value_name = "SHARE")]
    pub abandon: Share,
    /// Consumers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub consumers: u32,
    /// Most messages of one receive.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub take: u32,
    /// How long a consumer works on each message before it acks, like 4ms.
    #[arg(long, default_value = "0", value_parser = sequence::work)]
    pub work: Duration,
    /// Lease of a delivery, in seconds; the queue's without it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=43_200))]
    pub lease_s: Option<u32>,
    /// Take only messages of P0 to this level.
    #[arg(long, value_name = "LEVEL")]
    pub max_priority: Option<u32>,
    /// Connections to each server.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// After producing: how long consumers may take to empty the queue.
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    pub drain: Duration,
    /// How often progress is told and latencies are written.
    #[arg(long, default_value = "1s", value_parser = duration::parse)]
    pub interval: Duration,
    /// Write latencies of each interval by operation and level, as an HdrHistogram log, in nanoseconds.
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,
    /// Write the final figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Do not keep an account of every message. It costs a little CPU, and memory for what is under way.
    #[arg(long)]
    pub no_verify: bool,
    /// The server's process, to tell its CPU time and whether the load tool is the bottleneck; those of several nodes are
    /// added up.
    #[arg(long, value_name = "PID", num_args = 1..)]
    pub server_pid: Vec<u32>,
    /// Seed of what is drawn by chance.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Why a load could not be run to its end.
#[derive(Debug)]
pub enum LoadError {
    /// The server could not be used.
    Client(ClientError),
    /// The machine we run on.
    Io(std::io::Error),
    /// A file that cannot be written.
    File(PathBuf, std::io::Error),
    /// The options do not fit the queue.
    Options(String),
    /// The queue holds messages of others.
    Foreign(MessageId, String),
    /// The server is slower than an open loop by far.
    Overloaded(u64),
}

impl core::fmt::Display for LoadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Client(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Options(what) => f.write_str(what),
            Self::Foreign(id, queue) => write!(
                f,
                "queue {queue} holds {id}, which the load tool did not send; its lease will run out and give it back. Use another --queue"
            ),
            Self::Overloaded(count) => write!(
                f,
                "{count} messages wait for their confirmation: the server is slower than this rate by far. Use a lower --rate, or --concurrency"
            ),
        }
    }
}

impl core::error::Error for LoadError {}

impl From<ClientError> for LoadError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

/// How a load ended.
#[derive(Debug)]
pub struct Outcome {
    /// The table and notes, for people.
    pub text: String,
    /// What was broken.
    pub violations: u64,
    /// Why it ended before its time, or could not be verified. What was measured until then is told and written all the
    /// same.
    pub failed: Option<LoadError>,
}

/// Exit code after a second Ctrl-C.
const EXIT_INTERRUPTED: i32 = 130;

type Tasks = JoinSet<Result<(), LoadError>>;

fn ended(ended: Result<Result<(), LoadError>, JoinError>) -> Result<(), LoadError> {
    ended.unwrap_or_else(|error| Err(LoadError::Io(std::io::Error::other(error))))
}

/// CPU time of ourselves and of the server, and when it was looked at.
#[derive(Clone, Copy)]
struct Cpu {
    at: Instant,
    own: Option<Duration>,
    server: Option<Duration>,
}

impl Cpu {
    fn look(options: &LoadOptions) -> Self {
        let own = cpu::used_by(std::process::id());
        let servers = options.server_pid.iter().map(|pid| cpu::used_by(*pid));
        let server = if options.server_pid.is_empty() { None } else { servers.sum() };
        Self { at: Instant::now(), own, server }
    }
}

/// Runs the load. `progress` gets a line for each interval.
pub async fn run(options: &LoadOptions, progress: &mut dyn FnMut(&str)) -> Result<Outcome, LoadError> {
    if let Some(pid) = options.server_pid.iter().find(|pid| cpu::used_by(**pid).is_none()) {
        return Err(LoadError::Options(format!("--server-pid {pid}: there is no such process")));
    }
    if let (Some(hlog), Some(results)) = (&options.hlog, &options.results)
        && hlog == results
    {
        let name = hlog.display();
        return Err(LoadError::Options(format!(
            "--hlog and --results both name {name}: give each a file of its own"
        )));
    }
    if options.fail.0 + options.abandon.0 > Share::ALL.0 {
        let both = "--fail and --abandon: together more than all messages";
        return Err(LoadError::Options(both.into()));
    }
    if let Some(path) = &options.results {
        // Before a long run, not after it.
        std::fs::File::create(path).map_err(|error| LoadError::File(path.clone(), error))?;
    }
    let clients = connect(options).await?;
    let config = prepare(options, &clients[0], progress).await?;
    let cluster = Cluster::of(&clients[0]).await;
    let clock = Clock::new();
    let now_ms = clock.now() / 1_000_000;
    let log = match &options.hlog {
        Some(path) => Some(start_log(options, path, cluster, now_ms)?),
        None => None,
    };
    let content = Content {
        mix: options.mix.clone(),
        body: options.body.clone(),
        delay: options.delay,
        dedup: options.dedup,
    };
    let mut ids = MessageIds::new();
    // A number that no other process has.
    let number = Random::new(ids.next_id().0 as u64, "run").next_u64();
    let state = State {
        meter: Meter::new(usize::from(config.levels), log, now_ms),
        sequence: Sequence::new(content, options.seed),
        fates: Fates::new(options.fail, options.abandon, options.seed),
        ids,
        own: Ledger::new(true),
        others: HashMap::new(),
        verify: !options.no_verify,
        next_number: 0,
        under_way: 0,
        refusals: BTreeMap::new(),
        trouble: None,
        last_trouble: None,
        keyed: None,
    };
    let run = Rc::new(Run::new(clock, options.queue.clone(), number, clients, state));
    // Who shares the queue with other processes does not see their acks.
    let before_it = totals(&run.clients[0], &run.queue).await?;
    let mut start = look_what_is_there(options, &run.clients[0]).await?;
    start.nodes = cluster.nodes;
    let before = Cpu::look(options);
    let driven = LocalSet::new().run_until(drive(options, &run, progress, &mut start.interrupted)).await;
    let after = driven.as_ref().map_or_else(|_| Cpu::look(options), |after| *after);
    let (verified, mut failed) = match driven {
        Err(error) => (Verified::Not("the run ended with an error".into()), Some(error)),
        Ok(_) if options.no_verify => (Verified::Not("--no-verify".into()), None),
        Ok(_) => match look_up_left(&run, &before_it, options.consume || !options.produce).await {
            Ok(looked_up) => (Verified::Looked(looked_up), None),
            Err(error) => {
                let left = run.state.borrow().own.left().len();
                let why = format!(
                    "{left} confirmed messages were not acked, and the server cannot be asked about them: {error}"
                );
                (Verified::Not(why), Some(error))
            }
        },
    };
    // What the last interval had, also of a run that failed.
    if let Err(error) = run.state.borrow_mut().meter.end_interval(run.clock.now() / 1_000_000) {
        failed.get_or_insert(not_logged(options, error));
    }
    for client in &run.clients {
        client.close().await;
    }
    let state = run.state.borrow();
    let report = report::Report::new(options, &state, before, after, &verified, start);
    if let Some(path) = &options.results
        && let Err(error) = crate::results::write(path, "load", &report.rows, cluster.replicas)
    {
        failed.get_or_insert(LoadError::Io(error));
    }
    Ok(Outcome { text: report.text, violations: report.violations, failed })
}

async fn connect(options: &LoadOptions) -> Result<Vec<Client>, LoadError> {
    let mut clients = Vec::new();
    let mut left = options.connections;
    while left > 0 {
        let connections = left.min(CONNECTIONS_OF_CLIENT);
        left -= connections;
        clients.push(Client::connect(options.server.options(connections)?).await?);
    }
    Ok(clients)
}

/// Makes the queue where it has to, and holds the options against it.
async fn prepare(
    options: &LoadOptions,
    client: &Client,
    progress: &mut dyn FnMut(&str),
) -> Result<QueueConfig, LoadError> {
    let missing = |error: &ClientError| {
        matches!(error, ClientError::Refused(Refusal { code: ErrorCode::NotFound, .. }))
    };
    if options.fresh {
        match look_at_messages(options, client).await {
            Ok(page) => {
                let (count, more) = (page.entries.len(), if page.next.is_some() { " or more" } else { "" });
                let queue = &options.queue;
                progress(&format!("deleting queue {queue} with {count}{more} messages of earlier runs"));
                client.delete_queue(queue).await?;
            }
            Err(LoadError::Client(error)) if missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let levels = options.mix.0.len();
    let config = match client.get_queue(&options.queue).await {
        Ok(config) => config,
        Err(error) if missing(&error) => {
            let patch = QueueConfigPatch {
                levels: Some(Some(levels as u8)),
                shards: options.shards.map(Some),
                ..QueueConfigPatch::default()
            };
            client.put_queue(&options.queue, patch).await?.1
        }
        Err(error) => return Err(error.into()),
    };
    let refuse = |what: String| Err(LoadError::Options(what));
    if levels > usize::from(config.levels) {
        return refuse(format!(
            "--mix has {levels} levels and queue {} has {}; give as many, or use --fresh",
            options.queue, config.levels
        ));
    }
    if options.dedup.0 > 0 && config.dedup_window_s == 0 {
        return refuse(format!("--dedup: queue {} has dedup_window_s 0, dedup keys are off", options.queue));
    }
    Ok(config)
}

/// The first messages of the queue, all of them ours.
async fn look_at_messages(options: &LoadOptions, client: &Client) -> Result<Page<PeekedMessage>, LoadError> {
    let page = first_messages(client, &options.queue).await?;
    match page.entries.iter().find(|message| Stamp::read(&message.body).is_err()) {
        None => Ok(page),
        Some(other) => Err(LoadError::Options(format!(
            "queue {} holds {}, which the load tool did not send: use another --queue, or delete this one by `overtake queue \
             delete {}`",
            options.queue, other.id, options.queue
        ))),
    }
}

/// Looks at what a queue holds before anything is sent or leased: messages of others are not to be touched, and those of
/// other runs are told.
async fn look_what_is_there(options: &LoadOptions, client: &Client) -> Result<report::Start, LoadError> {
    if options.fresh {
        return Ok(report::Start::default());
    }
    let page = look_at_messages(options, client).await?;
    let consumes_only = options.consume && !options.produce;
    let left = if consumes_only { 0 } else { page.entries.len() };
    Ok(report::Start { left, more: left > 0 && page.next.is_some(), ..report::Start::default() })
}

/// An interval could not be written.
fn not_logged(options: &LoadOptions, error: std::io::Error) -> LoadError {
    LoadError::File(options.hlog.clone().unwrap_or_default(), error)
}

fn start_log(
    options: &LoadOptions,
    path: &PathBuf,
    cluster: Cluster,
    now_ms: u64,
) -> Result<LogWriter<Box<dyn Write>>, LoadError> {
    let fail = |error| LoadError::File(path.clone(), error);
    let file: Box<dyn Write> = Box::new(BufWriter::new(std::fs::File::create(path).map_err(fail)?));
    let comment = format!("overtake-perf load, queue {}, values in nanoseconds", options.queue);
    let mut comments = vec![comment];
    comments.extend(server_comments(cluster.cores, cluster.replicas));
    let comments: Vec<&str> = comments.iter().map(String::as_str).collect();
    LogWriter::new(file, &comments, now_ms).map_err(fail)
}

/// Produces, consumes and tells, until all is done. Gives what was used up to the end.
async fn drive(
    options: &LoadOptions,
    run: &Rc<Run>,
    progress: &mut dyn FnMut(&str),
    interrupted: &mut bool,
) -> Result<Cpu, LoadError> {
    let (producing, consuming) = (options.produce || !options.consume, options.consume || !options.produce);
    let start = Instant::now();
    let mut producers = Tasks::new();
    if producing {
        let (run, batch, largest) = (run.clone(), options.batch as usize, options.body.largest() as usize);
        match options.concurrency {
            Some(callers) => {
                let until = start + options.duration;
                producers.spawn_local(produce::closed_loop(run, callers, until, batch, largest));
            }
            None => {
                let course = Course::new(&options.shape, options.rate, options.duration, start);
                producers.spawn_local(produce::open_loop(run, course, batch, largest));
            }
        }
    }
    let mut consumers = Tasks::new();
    if consuming {
        for _ in 0..options.consumers {
            consumers.spawn_local(Consumer::new(run.clone(), options).work());
        }
    }
    let mut telling = report::Progress::new(run, progress);
    let work = async {
        if producing {
            tokio::select! {
                Some(one) = producers.join_next() => ended(one)?,
                Some(one) = consumers.join_next() => ended(one)?,
                () = interrupt() => {
                    *interrupted = true;
                    run.sending_end.set();
                }
            }
            while let Some(one) = producers.join_next().await {
                ended(one)?;
            }
            if consuming {
                drain(options, run, &mut consumers).await?;
            }
        } else {
            tokio::select! {
                () = tokio::time::sleep(options.duration) => {}
                () = interrupt() => *interrupted = true,
                Some(one) = consumers.join_next() => ended(one)?,
            }
        }
        let stopped = Cpu::look(options);
        run.end.set();
        while let Some(one) = consumers.join_next().await {
            ended(one)?;
        }
        Ok::<_, LoadError>(stopped)
    };
    let tell = async {
        loop {
            tokio::time::sleep(options.interval).await;
            if let Err(error) = telling.tell().await {
                break not_logged(options, error);
            }
        }
    };
    let stopped = tokio::select! {
        done = work => done?,
        failed = tell => return Err(failed),
    };
    Ok(stopped)
}

/// Ctrl-C: nothing more is sent, what was sent is taken and looked at. The second one ends at once.
async fn interrupt() {
    crate::bench::interrupt().await;
    eprintln!("interrupted: taking what was sent; once more ends at once");
    tokio::spawn(async {
        let _ = tokio::signal::ctrl_c().await;
        std::process::exit(EXIT_INTERRUPTED);
    });
}

/// Waits until consumers have taken everything, or for as long as they may take.
async fn drain(options: &LoadOptions, run: &Run, consumers: &mut Tasks) -> Result<(), LoadError> {
    let end = Instant::now() + options.drain;
    while Instant::now() < end {
        let done = if options.no_verify {
            match run.client().stats(&run.queue).await {
                Ok(stats) => stays(&stats) == 0,
                // A server that is away for a moment comes back.
                Err(error) if error.retry_is_safe() || error.fate_unknown() => {
                    run.trouble(&error);
                    false
                }
                Err(error) => return Err(error.into()),
            }
        } else {
            run.state.borrow().own.outstanding() == 0
        };
        if done {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
            Some(one) = consumers.join_next() => ended(one)?,
        }
    }
    Ok(())
}

/// Whether what was left over was looked up.
enum Verified {
    Looked(LookedUp),
    /// It was not, for this reason.
    Not(String),
}

/// What was left over, how much of it was looked up, and how much of that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LookedUp {
    left: usize,
    asked: usize,
    there: usize,
    /// Not there because another process was done with them.
    taken: usize,
    /// Other processes also sent to the queue: what they took may as well have been their own.
    shared: bool,
}

/// Looks up messages that were confirmed and not acked: each must be there.
async fn look_up_left(run: &Rc<Run>, before: &Totals, takes: bool) -> Result<LookedUp, LoadError> {
    let left = run.state.borrow().own.left();
    let mut looked = LookedUp { left: left.len(), ..LookedUp::default() };
    let mut missing = Vec::new();
    let local = LocalSet::new();
    local
        .run_until(async {
            let mut asked: JoinSet<Result<(u64, bool), LoadError>> = JoinSet::new();
            let mut left = left.into_iter().take(LOOKUPS_MAX);
            loop {
                while asked.len() < LOOKUPS_UNDER_WAY
                    && let Some((number, id)) = left.next()
                {
                    let run = run.clone();
                    asked.spawn_local(async move {
                        match run.client().inspect(&run.queue, id).await {
                            Ok(_) => Ok((number, true)),
                            Err(ClientError::Refused(Refusal { code: ErrorCode::NotFound, .. })) => {
                                Ok((number, false))
                            }
                            Err(error) => Err(error.into()),
                        }
                    });
                }
                let Some(one) = asked.join_next().await else { return Ok::<_, LoadError>(()) };
                let (number, there) =
                    one.unwrap_or_else(|error| Err(LoadError::Io(std::io::Error::other(error))))?;
                looked.asked += 1;
                looked.there += usize::from(there);
                if !there {
                    missing.push(number);
                }
            }
        })
        .await?;
    // What other processes took is not lost: the queue counts it. Asked last, so that nothing is looked for that is done
    // with by then and not counted.
    if !missing.is_empty() {
        let after = totals(&run.clients[0], &run.queue).await?;
        let (counts, sees_others) = {
            let state = run.state.borrow();
            (state.meter.counts, !state.others.is_empty())
        };
        let others_send =
            after.enqueued.saturating_sub(before.enqueued) > counts.confirmed + counts.unknown || sees_others;
        // Who takes from the queue and sees no sign of others is alone: then nothing has an excuse.
        if others_send || !takes {
            let done = done_with(&after).saturating_sub(done_with(before)).saturating_sub(counts.acked);
            looked.taken = missing.len().min(usize::try_from(done).unwrap_or(usize::MAX));
            looked.shared = looked.taken > 0 && others_send;
        }
    }
    missing.sort_unstable();
    for number in missing.split_off(looked.taken) {
        run.state.borrow_mut().own.missing(number);
    }
    Ok(looked)
}

/// Messages that are in a queue, dead letters aside.
fn stays(stats: &Stats) -> u64 {
    [&stats.visible, &stats.delayed, &stats.leased].into_iter().flatten().sum()
}

async fn totals(client: &Client, queue: &str) -> Result<Totals, LoadError> {
    Ok(client.stats(queue).await?.totals)
}

/// Messages of the queue that nobody can find any more, and for which there is a reason.
const fn done_with(totals: &Totals) -> u64 {
    totals.acked + totals.cancelled + totals.purged + totals.expired
}
