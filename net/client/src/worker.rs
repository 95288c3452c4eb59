//! Runs a function on messages: receives as many as there is room for, extends their leases while they are worked on,
//! acks what succeeded, releases what failed, and stops without losing or doubling work.

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::ClientError;
use crate::lease::keep;
use crate::settler::{Settlement, Settler};
use core::convert::Infallible;
use core::fmt;
use core::future::Future;
use overtake_base::limits::{DELAY_S_MAX, LEASE_S_MAX, RECEIVE_MESSAGES_MAX, WAIT_S_MAX};
use overtake_base::queue_config;
use overtake_wire::message::{Delivered, ErrorCode, Receive, Refusal, Settled};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinHandle};

/// How long a function that is to end may take to its next wait.
const ABORT_WAIT: Duration = Duration::from_secs(1);

/// How a worker takes messages.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Messages worked on at a time, 1..=1000. Default: 8.
    pub concurrency: usize,
    /// Lease of each message, 1..=43200 s; it is extended when half of it is over. Default: 30.
    pub lease_s: u32,
    /// Only messages of levels 0..=this.
    pub max_priority: Option<u32>,
    /// Label under which the queue's statistics show the worker.
    pub label: Option<String>,
    /// How long one message may be worked on. Then its function is ended where it waits next, and the message is
    /// released with an error that says so. None: as long as it takes, its lease kept all the time. Default: none.
    pub timeout: Option<Duration>,
    /// When a message whose function failed, panicked or took too long is tried again; a [`RetryAfter`] error decides
    /// for itself. Default: the queue decides.
    pub retry: Retry,
    /// How long [`Worker::stop`] waits for messages being worked on before it gives them back. Default: 30 s.
    pub drain: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            concurrency: 8,
            lease_s: 30,
            max_priority: None,
            label: None,
            timeout: None,
            retry: Retry::Queue,
            drain: Duration::from_secs(30),
        }
    }
}

/// When a failed message is tried again. After the queue's `max_deliveries` it is dead, whatever stands here.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Retry {
    /// As the queue's `backoff` says; at once where it has none.
    Queue,
    /// After `first`, and `factor` (1 to 1000) times as long after each further delivery, at most `max`. Whole seconds.
    Backoff {
        /// After the first delivery.
        first: Duration,
        /// Growth for each further one.
        factor: f64,
        /// At most.
        max: Duration,
    },
}

impl Retry {
    /// Seconds to wait after delivery number `deliveries`; none where the queue decides.
    fn delay_s(self, deliveries: u32) -> Option<u64> {
        let Self::Backoff { first, factor, max } = self else { return None };
        let range = queue_config::BACKOFF_FACTOR_MICRO;
        // Casts saturate, and what is not a number becomes 0, which is brought into range.
        let factor_micro = ((factor * 1e6) as u64).clamp(*range.start(), *range.end());
        let whole = |duration: Duration| duration.as_secs().min(DELAY_S_MAX);
        let backoff = queue_config::Backoff { first_s: whole(first), factor_micro, max_s: whole(max) };
        Some(backoff.delay_ms(deliveries.max(1)) / 1_000)
    }
}

/// An error for a handler that knows when its message is worth another try.
///
/// ```
/// use overtake_client::{HandlerError, RetryAfter};
/// fn too_many_requests(retry_after_s: u64) -> HandlerError {
///     RetryAfter { delay_s: retry_after_s, error: "the mail server wants a pause".into() }.into()
/// }
/// assert_eq!(too_many_requests(60).to_string(), "the mail server wants a pause");
/// ```
#[derive(Debug)]
pub struct RetryAfter {
    /// Seconds until the message may be delivered again; 0: at once.
    pub delay_s: u64,
    /// What went wrong; kept with the message.
    pub error: HandlerError,
}

impl fmt::Display for RetryAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl core::error::Error for RetryAfter {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&*self.error)
    }
}

/// What a worker did until it stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Messages whose function succeeded, and which were acked.
    pub succeeded: u64,
    /// Messages whose function failed, panicked or took too long; released with the error.
    pub failed: u64,
    /// Messages given back because the worker stopped before they were done.
    pub given_back: u64,
    /// Messages whose function ended, well or not, when their lease had already ended, or when no server could be told
    /// in time: they may be delivered again.
    pub lost: u64,
}

/// Why a message could not be worked on; kept with the message.
pub type HandlerError = Box<dyn core::error::Error + Send + Sync>;

/// Works on the messages of one queue until it is stopped. Only messages that can be started at once are received, so
/// that urgent work never waits behind what was fetched early. Dropped without [`Worker::stop`] it stops receiving and
/// leaves running functions alone.
///
/// The function runs once for each delivery. `Ok` acks the message; an error, a panic or a time-out releases it with its
/// text, and the queue decides whether it is tried again, and when unless [`WorkerOptions::retry`] or the error
/// ([`RetryAfter`]) does. A lease that is lost all the same is somebody else's message by now; the function goes on,
/// since it may be about to finish, and its ack is counted as [`Report::lost`].
///
#[doc = concat!("```\n", include_str!("../docs/worker.rs"), "```")]
pub struct Worker {
    stop: watch::Sender<Stop>,
    task: JoinHandle<Report>,
    drain: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Stop {
    No,
    /// Take nothing new.
    Draining,
    /// Give back what is not done.
    Now,
}

impl Worker {
    /// Starts working on `queue`. Options out of range are brought to the nearest that can work. Must be called within a
    /// tokio runtime.
    #[must_use]
    pub fn start<H, F>(client: Client, queue: &str, options: WorkerOptions, handler: H) -> Self
    where
        H: Fn(Delivered) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let (stop, stopping) = watch::channel(Stop::No);
        let concurrency = options.concurrency.clamp(1, RECEIVE_MESSAGES_MAX as usize);
        let lease_s = options.lease_s.clamp(1, LEASE_S_MAX);
        let crew = Arc::new(Crew {
            settler: Settler::start(client.clone(), queue, Duration::from_secs(u64::from(lease_s))),
            lease_s,
            timeout: options.timeout,
            retry: options.retry,
            stopping: stopping.clone(),
            handler,
        });
        let receive = Receive {
            queue: queue.to_owned(),
            max: 1,
            wait_s: WAIT_S_MAX,
            lease_s: Some(lease_s),
            max_priority: options.max_priority,
            worker: options.label.clone(),
        };
        let receiver = Receiver { client, receive, crew, concurrency, stopping };
        Self { stop, task: tokio::spawn(receiver.run()), drain: options.drain }
    }

    /// Takes nothing new, waits for what is being worked on, gives back what is not done in time, and returns when
    /// every ack and release was sent.
    pub async fn stop(mut self) -> Report {
        let _ = self.stop.send(Stop::Draining);
        if let Ok(report) = tokio::time::timeout(self.drain, &mut self.task).await {
            return report.unwrap_or_default();
        }
        let _ = self.stop.send(Stop::Now);
        self.task.await.unwrap_or_default()
    }
}

/// Receives for the crew.
struct Receiver<H> {
    client: Client,
    receive: Receive,
    crew: Arc<Crew<H>>,
    concurrency: usize,
    stopping: watch::Receiver<Stop>,
}

impl<H, F> Receiver<H>
where
    H: Fn(Delivered) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    async fn run(mut self) -> Report {
        let room = Arc::new(Semaphore::new(self.concurrency));
        let mut running = tokio::task::JoinSet::new();
        let mut report = Report::default();
        let mut backoff = Backoff::default();
        while let Some(mut permits) = self.permits(&room).await {
            while let Some(done) = running.try_join_next() {
                report.count(done);
            }
            self.receive.max = u32::try_from(permits.num_permits()).unwrap_or(1);
            let received = tokio::select! {
                received = self.client.receive(self.receive.clone()) => received,
                _ = stopped(&mut self.stopping) => break,
            };
            match received {
                Ok(messages) => {
                    backoff = Backoff::default();
                    for message in messages {
                        // A server that sends more than was asked for is taken at its word: no permit, still worked on.
                        let permit = permits.split(1);
                        running.spawn(self.crew.clone().work(message, permit));
                    }
                }
                Err(error) => {
                    drop(permits);
                    if !self.pause(&error, &mut backoff).await {
                        break;
                    }
                }
            }
        }
        while let Some(done) = running.join_next().await {
            report.count(done);
        }
        self.crew.settler.flush().await;
        report
    }

    /// Room for one message or more; none where the worker stops.
    async fn permits(&mut self, room: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let mut first = tokio::select! {
            first = room.clone().acquire_owned() => first.ok()?,
            _ = stopped(&mut self.stopping) => return None,
        };
        while let Ok(more) = room.clone().try_acquire_owned() {
            first.merge(more);
        }
        (*self.stopping.borrow() == Stop::No).then_some(first)
    }

    /// Waits before the next receive. False where the worker stops, or the client is closed.
    async fn pause(&mut self, error: &ClientError, backoff: &mut Backoff) -> bool {
        match error {
            ClientError::Closed => return false,
            ClientError::Refused(Refusal { code: ErrorCode::NotFound, .. }) => {
                tracing::info!(queue = self.receive.queue, "the queue does not exist yet");
            }
            _ => tracing::warn!(queue = self.receive.queue, %error, "cannot receive"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay().max(error.retry_after())) => true,
            _ = stopped(&mut self.stopping) => false,
        }
    }
}

async fn stopped(stopping: &mut watch::Receiver<Stop>) {
    // The worker's handle is gone: nobody will say so any more.
    let _ = stopping.wait_for(|stop| *stop != Stop::No).await;
}

enum Done {
    Succeeded,
    Failed,
    GivenBack,
    Lost,
}

impl Report {
    fn count(&mut self, done: Result<Done, JoinError>) {
        match done {
            Ok(Done::Succeeded) => self.succeeded += 1,
            Ok(Done::Failed) => self.failed += 1,
            Ok(Done::GivenBack) | Err(_) => self.given_back += 1,
            Ok(Done::Lost) => self.lost += 1,
        }
    }
}

/// What everyone who works on a message shares.
struct Crew<H> {
    settler: Settler,
    lease_s: u32,
    timeout: Option<Duration>,
    retry: Retry,
    stopping: watch::Receiver<Stop>,
    handler: H,
}

/// How the work on a message ended.
enum End {
    Handler(Result<Result<(), HandlerError>, JoinError>),
    TimedOut(Duration),
    Stopped,
}

impl<H, F> Crew<H>
where
    H: Fn(Delivered) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    async fn work(self: Arc<Self>, message: Delivered, _permit: Option<OwnedSemaphorePermit>) -> Done {
        let (receipt, deliveries) = (message.receipt.to_string(), message.deliveries);
        let mut stopping = self.stopping.clone();
        // A task of its own, so that a panic ends it and not the worker. The function is called inside for the same reason.
        let crew = self.clone();
        let mut running = AbortOnDrop(tokio::spawn(async move { (crew.handler)(message).await }));
        let keeping = async {
            keep(&self.settler, &receipt, self.lease_s).await;
            // Lost: nothing more to keep, and no reason to end the function.
            core::future::pending::<Infallible>().await
        };
        let end = tokio::select! {
            outcome = &mut running.0 => End::Handler(outcome),
            timeout = after(self.timeout) => End::TimedOut(timeout),
            () = stop_now(&mut stopping) => End::Stopped,
            never = keeping => match never {},
        };
        if !matches!(end, End::Handler(_)) {
            // Ended before the message is given back, so that it is not worked on twice at a time. A function that
            // blocks its thread cannot be ended; it is not waited for.
            running.0.abort();
            let _ = tokio::time::timeout(ABORT_WAIT, &mut running.0).await;
        }
        let failed = |error: String, delay_s: Option<u64>| {
            (Settlement::Release { delay_s, error: Some(error) }, Done::Failed)
        };
        let delay_s = self.retry.delay_s(deliveries);
        let (settlement, done) = match end {
            End::Handler(Ok(Ok(()))) => (Settlement::Ack, Done::Succeeded),
            End::Handler(Ok(Err(error))) => match error.downcast_ref::<RetryAfter>() {
                Some(retry) => failed(error.to_string(), Some(retry.delay_s.min(DELAY_S_MAX))),
                None => failed(error.to_string(), delay_s),
            },
            End::Handler(Err(error)) => failed(panic_text(error), delay_s),
            End::TimedOut(timeout) => failed(format!("not done within {timeout:?}"), delay_s),
            End::Stopped => {
                let error = Some("the worker stopped".into());
                (Settlement::Release { delay_s: Some(0), error }, Done::GivenBack)
            }
        };
        match self.settler.order(&receipt, settlement).await {
            Ok(Settled::Ok) => done,
            _ => Done::Lost,
        }
    }
}

async fn after(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(timeout) => {
            tokio::time::sleep(timeout).await;
            timeout
        }
        None => core::future::pending().await,
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn stop_now(stopping: &mut watch::Receiver<Stop>) {
    if stopping.wait_for(|stop| *stop == Stop::Now).await.is_err() {
        core::future::pending::<()>().await;
    }
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the handler was aborted".into() };
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.as_deref().unwrap_or("no text"))
}
