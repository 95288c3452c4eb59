//! Cores of a server on a real disk, in this process, without network and clients: what storage does when nothing in
//! front of it is the limit. As many as the machine has processors, each with a part of the backlog: cores share
//! nothing. They have the loop of a server's core: gather, step, drain, carry out, sleep.

use crate::device::on_executor;
use bytes::Bytes;
use core::future::Future as _;
use core::num::NonZero;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::Poll;
use glommio::timer::Timer;
use overtake_base::{CoreId, Now, UnixMillis};
use overtake_core::{ConnectionId, Core, CoreConfig, Event, Output, SessionId};
use overtake_device::Device;
use overtake_log::disk::DiskOperationKind;
use overtake_wire::message::{EnqueueMessage, Receive, Request, Response, Settle};
use overtake_wire::{LENGTH_BYTES, decode_response, encode_request};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const QUEUE: &str = "backlog";
const SESSION: SessionId = SessionId(1);
/// Enqueues, and receives with the acks of those before, under way at a time.
const CALLS: u64 = 8;
/// Numbers of acks: those of receives are below.
const ACKS: u64 = 1_000;
/// The shortest sleep: the executor looks for what the disk has done only when it sleeps.
const YIELD: Duration = Duration::from_micros(1);
/// Background work is over when nothing was written for so long.
const QUIET: Duration = Duration::from_secs(2);
/// How soon a core that has nothing to do looks at how far the others are.
const LOOK: Duration = Duration::from_millis(100);
/// A drain that gets nothing for so long is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// What was measured, of all cores together.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Measured {
    pub(super) cores: usize,
    pub(super) messages: u64,
    /// Messages that were only on disk before the drain.
    pub(super) cold: u64,
    stored: Duration,
    drained: Duration,
}

impl Measured {
    /// Messages stored a second.
    pub(super) fn stored_per_second(&self) -> f64 {
        self.messages as f64 / self.stored.as_secs_f64()
    }

    /// Messages received and acked a second.
    pub(super) fn drained_per_second(&self) -> f64 {
        self.messages as f64 / self.drained.as_secs_f64()
    }
}

/// How far the cores are: the drain begins on all at the same time.
#[derive(Default)]
struct Progress {
    cores: usize,
    settled: AtomicUsize,
    failed: AtomicBool,
}

/// Stores a backlog, waits until what does not fit into memory is on disk alone, and drains it. In folders of its own,
/// which are removed.
pub(super) fn measure(folder: &Path, shards: u16, messages: u64, body: usize) -> io::Result<Measured> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let each = messages.div_ceil(cores as u64);
    let progress = Arc::new(Progress { cores, ..Progress::default() });
    let part = |core: usize| {
        let (path, progress) = (folder.join(format!("core-{core}")), progress.clone());
        std::thread::spawn(move || {
            let own = path.clone();
            let failing = progress.clone();
            let part = on_executor(move || run(own, progress, shards, each, body));
            failing.failed.fetch_or(part.is_err(), Ordering::AcqRel);
            let removed = std::fs::remove_dir_all(path);
            part.and_then(|part| removed.map(|()| part))
        })
    };
    let parts: Vec<JoinHandle<io::Result<Measured>>> = (0..cores).map(part).collect();
    let mut all = Measured { cores, ..Measured::default() };
    for part in parts {
        let part = part.join().unwrap_or_else(|_| Err(io::Error::other("a core panicked")))?;
        all.messages += part.messages;
        all.cold += part.cold;
        all.stored = all.stored.max(part.stored);
        all.drained = all.drained.max(part.drained);
    }
    Ok(all)
}

/// The part of one core.
async fn run(
    folder: PathBuf,
    progress: Arc<Progress>,
    shards: u16,
    messages: u64,
    body: usize,
) -> io::Result<Measured> {
    // The first sleep of an executor takes tens of milliseconds.
    glommio::timer::sleep(Duration::from_millis(1)).await;
    let mut engine = Engine::start(&folder, shards).await?;
    let begun = Instant::now();
    engine.store(messages, body).await?;
    let stored = begun.elapsed();
    engine.settle(&progress).await?;
    let cold = engine.metric("overtake_messages_on_disk_only").await? as u64;
    let begun = Instant::now();
    engine.drain(messages).await?;
    let drained = begun.elapsed();
    engine.stop().await?;
    Ok(Measured { cores: 1, messages, cold, stored, drained })
}

struct Engine {
    core: Core,
    device: Device,
    started: Instant,
    outputs: Vec<Output>,
    answers: VecDeque<(u64, Response)>,
    serving: bool,
    stopped: bool,
    /// When something was last written.
    written: Instant,
}

impl Engine {
    async fn start(folder: &Path, shards: u16) -> io::Result<Self> {
        let device = Device::open(folder, 0).await.map_err(|error| io::Error::other(error.to_string()))?;
        let started = Instant::now();
        let config = CoreConfig::alone(CoreId(0), 1, shards, 1, 1);
        let mut engine = Self {
            core: Core::new(config, now(started)),
            device,
            started,
            outputs: Vec::new(),
            answers: VecDeque::new(),
            serving: false,
            stopped: false,
            written: started,
        };
        while !engine.serving {
            engine.turn().await?;
        }
        engine.step(Event::SessionOpened { session: SESSION, connection: ConnectionId(1) });
        Ok(engine)
    }

    fn step(&mut self, event: Event) {
        self.core.step(now(self.started), event, &mut self.outputs);
    }

    fn ask(&mut self, frame: Bytes) {
        self.step(Event::Frame { session: SESSION, frame });
    }

    /// One turn, with the sleep after it.
    async fn turn(&mut self) -> io::Result<()> {
        let mut completions = Vec::new();
        self.device.drain(&mut completions);
        completions.into_iter().for_each(|completion| self.step(Event::Disk(completion)));
        let now = now(self.started);
        self.core.drain(now, &mut self.outputs);
        for output in core::mem::take(&mut self.outputs) {
            match output {
                Output::Fatal(detail) => return Err(io::Error::other(detail)),
                Output::Disk(operation) => {
                    // Reads go on for long: everything on disk is looked through for damage.
                    if !matches!(operation.kind, DiskOperationKind::Read { .. }) {
                        self.written = Instant::now();
                    }
                    self.device.submit(operation);
                }
                Output::Frame { frame, .. } => {
                    let bytes = frame.len();
                    let answer = decode_response(&frame.slice(LENGTH_BYTES..));
                    self.answers.push_back(answer.map_err(|error| io::Error::other(error.to_string()))?);
                    self.step(Event::Taken { session: SESSION, bytes });
                }
                Output::CloseSession { reason, .. } => return Err(io::Error::other(reason)),
                Output::Serving => self.serving = true,
                Output::Stopped => self.stopped = true,
                // There is one core, and its folder is not opened again.
                Output::Mesh { .. }
                | Output::Publish { .. }
                | Output::Warning(_)
                | Output::JournalBegun
                | Output::Members(_)
                | Output::Removed => {}
            }
        }
        let wake = self.core.next_wake().map(|at| Duration::from_nanos(at.saturating_sub(now.monotonic_ns)));
        let wake = if self.answers.is_empty() { wake.unwrap_or(LOOK).min(LOOK) } else { YIELD };
        let mut timer = pin!(Timer::new(wake.max(YIELD)));
        let mut completed = pin!(self.device.wait());
        core::future::poll_fn(|context| match completed.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => timer.as_mut().poll(context).map(drop),
        })
        .await;
        Ok(())
    }

    async fn store(&mut self, messages: u64, body: usize) -> io::Result<()> {
        let body = Bytes::from(vec![b'x'; body]);
        let message = EnqueueMessage { priority: 4, body: body.clone(), ..EnqueueMessage::default() };
        let per_call = super::work::per_call(body.len());
        let call = |number: u64, count: u64| {
            let messages = vec![message.clone(); count as usize];
            encoded(number, &Request::Enqueue { queue: QUEUE.into(), messages })
        };
        // Every call of a number is the same bytes, but for the last one of all.
        let calls: Vec<Bytes> = (0..CALLS).map(|number| call(number, per_call)).collect();
        let mut left = messages;
        let mut next = |number: u64| {
            let count = per_call.min(left);
            left -= count;
            let frame = if count == per_call { calls[number as usize].clone() } else { call(number, count) };
            (count > 0).then_some(frame)
        };
        (0..CALLS).filter_map(&mut next).collect::<Vec<_>>().into_iter().for_each(|frame| self.ask(frame));
        let mut stored = 0;
        while stored < messages {
            self.turn().await?;
            while let Some((number, answer)) = self.answers.pop_front() {
                let Response::Enqueued { results } = answer else { return Err(unexpected(&answer)) };
                if let Some(Err(refusal)) = results.iter().find(|result| result.is_err()) {
                    return Err(io::Error::other(refusal.detail.clone()));
                }
                stored += results.len() as u64;
                if let Some(frame) = next(number) {
                    self.ask(frame);
                }
            }
        }
        Ok(())
    }

    /// Waits until what is done in the background is done, on all cores.
    async fn settle(&mut self, progress: &Progress) -> io::Result<()> {
        self.written = Instant::now();
        while self.written.elapsed() < QUIET {
            self.turn().await?;
        }
        progress.settled.fetch_add(1, Ordering::AcqRel);
        while progress.settled.load(Ordering::Acquire) < progress.cores {
            if progress.failed.load(Ordering::Acquire) {
                return Err(io::Error::other("another core failed"));
            }
            self.turn().await?;
        }
        Ok(())
    }

    /// A file under an operation cannot be closed: first everything ends.
    async fn stop(mut self) -> io::Result<()> {
        self.step(Event::Stop);
        while !self.stopped || self.device.in_flight() > 0 {
            self.turn().await?;
        }
        self.device.close().await
    }

    async fn metric(&mut self, name: &str) -> io::Result<f64> {
        self.ask(encoded(0, &Request::Metrics));
        loop {
            self.turn().await?;
            match self.answers.pop_front() {
                Some((_, Response::Metrics { values })) => {
                    return Ok(values.iter().filter(|metric| metric.name == name).map(|m| m.value).sum());
                }
                Some((_, other)) => return Err(unexpected(&other)),
                None => {}
            }
        }
    }

    async fn drain(&mut self, messages: u64) -> io::Result<()> {
        let receive = |number: u64| {
            let max = super::work::TAKE;
            encoded(
                number,
                &Request::Receive(Receive { max, wait_s: 1, lease_s: Some(300), ..Receive::new(QUEUE) }),
            )
        };
        let receives: Vec<Bytes> = (0..CALLS).map(receive).collect();
        receives.iter().cloned().for_each(|frame| self.ask(frame));
        let (mut acked, mut last) = (0, Instant::now());
        while acked < messages {
            self.turn().await?;
            while let Some((number, answer)) = self.answers.pop_front() {
                match answer {
                    Response::Received { messages } => {
                        if !messages.is_empty() {
                            last = Instant::now();
                            let ack =
                                messages.into_iter().map(|message| message.receipt.to_string()).collect();
                            let settle = Settle { queue: QUEUE.into(), ack, ..Settle::default() };
                            self.ask(encoded(ACKS + number, &Request::Settle(settle)));
                        }
                        self.ask(receives[number as usize].clone());
                    }
                    Response::Settled { ack, .. } => acked += ack.len() as u64,
                    other => return Err(unexpected(&other)),
                }
            }
            if last.elapsed() > STUCK {
                let detail = format!("{acked} of {messages} messages came back, then none for {STUCK:?}");
                return Err(io::Error::other(detail));
            }
        }
        Ok(())
    }
}

fn encoded(number: u64, request: &Request) -> Bytes {
    let mut bytes = Vec::new();
    encode_request(number, request, &mut bytes);
    Bytes::from(bytes).slice(LENGTH_BYTES..)
}

fn unexpected(answer: &Response) -> io::Error {
    match answer {
        Response::Refused(refusal) => io::Error::other(refusal.detail.clone()),
        other => io::Error::other(format!("an answer of another kind: {other:?}")),
    }
}

fn now(started: Instant) -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { monotonic_ns: started.elapsed().as_nanos() as u64, wall: UnixMillis(wall.as_millis() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_stored_is_drained() {
        // Under the target folder: the file must be on a real file system.
        let executable = std::env::current_exe().unwrap();
        let folder =
            executable.ancestors().nth(3).unwrap().join(format!("tmp/engine-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let measured = measure(&folder, 4, 20_001, 64).unwrap();
        assert!(measured.messages >= 20_001, "{measured:?}");
        assert!(measured.stored_per_second() > 0.0 && measured.drained_per_second() > 0.0, "{measured:?}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(folder).unwrap();
    }
}
