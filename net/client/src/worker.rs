//! Runs a function on messages: receives as many as there is room for, extends their leases while they are worked on,
//! acks what succeeded, releases what failed, and stops without losing or doubling work.

mod settler;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::ClientError;
use core::future::Future;
use overtake_base::limits::{LEASE_S_MAX, RECEIVE_MESSAGES_MAX, WAIT_S_MAX};
use overtake_wire::message::{Delivered, ErrorCode, Receive, Refusal, Settled};
use settler::{Settlement, Settler};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinHandle};

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
    /// How long [`Worker::stop`] waits for messages being worked on before it gives them back. Default: 30 s.
    pub drain: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self { concurrency: 8, lease_s: 30, max_priority: None, label: None, drain: Duration::from_secs(30) }
    }
}

/// What a worker did until it stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Messages whose function succeeded.
    pub succeeded: u64,
    /// Messages whose function failed or panicked; released with the error.
    pub failed: u64,
    /// Messages given back because the worker stopped before they were done.
    pub given_back: u64,
}

/// Why a message could not be worked on; kept with the message.
pub type HandlerError = Box<dyn core::error::Error + Send + Sync>;

/// Works on the messages of one queue until it is stopped. Only messages that can be started at once are received, so
/// that urgent work never waits behind what was fetched early. Dropped without [`Worker::stop`] it stops receiving and
/// leaves running functions alone.
///
/// The function runs once for each delivery. `Ok` acks the message; an error or a panic releases it with its text, and
/// the queue decides when, or whether, it is tried again.
///
/// ```no_run
/// # async fn example(client: overtake_client::Client) {
/// use overtake_client::{Delivered, Worker, WorkerOptions};
/// let worker = Worker::start(client, "mail", WorkerOptions::default(), |message: Delivered| async move {
///     println!("{} bytes", message.body.len());
///     Ok(())
/// });
/// tokio::signal::ctrl_c().await.ok();
/// println!("{:?}", worker.stop().await);
/// # }
/// ```
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
            settler: Settler::start(client.clone(), queue, lease_s),
            lease: Duration::from_secs(u64::from(lease_s)),
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
        self.crew.settler.finish().await;
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
                tracing::debug!(queue = self.receive.queue, "the queue does not exist yet");
            }
            _ => tracing::warn!(queue = self.receive.queue, %error, "cannot receive"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => true,
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
}

impl Report {
    fn count(&mut self, done: Result<Done, JoinError>) {
        match done {
            Ok(Done::Succeeded) => self.succeeded += 1,
            Ok(Done::Failed) => self.failed += 1,
            Ok(Done::GivenBack) | Err(_) => self.given_back += 1,
        }
    }
}

/// What everyone who works on a message shares.
struct Crew<H> {
    settler: Settler,
    lease: Duration,
    stopping: watch::Receiver<Stop>,
    handler: H,
}

impl<H, F> Crew<H>
where
    H: Fn(Delivered) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    async fn work(self: Arc<Self>, message: Delivered, _permit: Option<OwnedSemaphorePermit>) -> Done {
        let receipt = message.receipt.to_string();
        let mut stopping = self.stopping.clone();
        // A task of its own, so that a panic ends it and not the worker. The function is called inside for the same reason.
        let crew = self.clone();
        let mut running = AbortOnDrop(tokio::spawn(async move { (crew.handler)(message).await }));
        let outcome = tokio::select! {
            outcome = &mut running.0 => Some(outcome),
            () = self.keep_lease(&receipt) => None,
            () = stop_now(&mut stopping) => None,
        };
        let (settlement, done) = match outcome {
            Some(Ok(Ok(()))) => (Settlement::Ack(receipt), Done::Succeeded),
            Some(Ok(Err(error))) => (Settlement::Release(receipt, error.to_string()), Done::Failed),
            Some(Err(error)) => (Settlement::Release(receipt, panic_text(error)), Done::Failed),
            None => (Settlement::Release(receipt, "the worker stopped".into()), Done::GivenBack),
        };
        self.settler.settle(settlement).await;
        done
    }

    /// Extends the lease whenever half of it is over, for ever. A lease that is lost is somebody else's message by now;
    /// the function goes on, since it may be about to finish, and its ack will be found stale.
    async fn keep_lease(&self, receipt: &str) {
        loop {
            tokio::time::sleep(self.lease / 2).await;
            if let Some(Settled::Stale | Settled::Unknown) =
                self.settler.settle(Settlement::Extend(receipt.to_owned())).await
            {
                tracing::warn!(receipt, "lease lost while the message was worked on");
                return core::future::pending().await;
            }
        }
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
