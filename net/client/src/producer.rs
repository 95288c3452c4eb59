//! Stores many messages: gathers them into batches, bounds what is held in memory, repeats what was not confirmed
//! without storing it twice, and tells each message's sender its outcome.

use crate::backoff::Backoff;
use crate::client::Client;
use crate::entropy::MessageIds;
use crate::error::ClientError;
use bytes::Bytes;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use overtake_base::limits::{BATCH_MESSAGES_MAX, BODY_BYTES_MAX, REQUEST_BYTES_MAX};
use overtake_wire::message::{EnqueueMessage, Enqueued};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// What a message costs in memory and in a request beyond its body, key and headers, at most.
const MESSAGE_OVERHEAD_BYTES: usize = 256;

/// How a producer gathers, holds and repeats.
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    /// Messages of one request, 1..=1000. Default: 200.
    pub batch_messages: usize,
    /// Bytes of one request, above which it is sent, 1..=1 MiB. Default: 256 KiB.
    pub batch_bytes: usize,
    /// How long the first message of a batch waits for others. Default: 1 ms. With zero a batch holds what came while
    /// earlier ones were under way.
    pub linger: Duration,
    /// Requests under way at a time, at least 1. Default: 4.
    pub in_flight: usize,
    /// Bytes of messages not confirmed yet; [`Producer::send`] waits above it. Room for one largest message is always
    /// there. Default: 16 MiB.
    pub memory_bytes: usize,
    /// How long a message is tried before its sender gets the last error. Default: 60 s.
    pub retry_for: Duration,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            batch_messages: 200,
            batch_bytes: 256 * 1024,
            linger: Duration::from_millis(1),
            in_flight: 4,
            memory_bytes: 16 * 1024 * 1024,
            retry_for: Duration::from_secs(60),
        }
    }
}

/// Sends messages to one queue in batches. Made by [`Producer::new`]; dropped, it still sends what it has.
///
/// A message without an `id` gets a client-made one, so that a repeat after a lost answer stores nothing twice, however
/// long ago its `dedup_key`'s window ended. It is made for the shard of the key, where there is one: storing takes one
/// durable write then ([`MessageIds::next_id_for`]). Messages are sent in order, but a repeat may overtake: a queue orders
/// by priority and arrival.
///
#[doc = concat!("```\n", include_str!("../docs/producer.rs"), "```")]
pub struct Producer {
    input: mpsc::UnboundedSender<Input>,
    memory: Arc<Semaphore>,
    memory_bytes: usize,
    task: JoinHandle<()>,
}

/// The outcome of one message, to be awaited. Dropping it does not take the message back.
#[derive(Debug)]
pub struct Confirmation(oneshot::Receiver<Result<Enqueued, ClientError>>);

impl Future for Confirmation {
    type Output = Result<Enqueued, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|outcome| outcome.unwrap_or(Err(ClientError::Closed)))
    }
}

enum Input {
    Message(Waiting),
    Flush(oneshot::Sender<()>),
}

/// A message that is not confirmed yet.
struct Waiting {
    message: EnqueueMessage,
    bytes: usize,
    outcome: oneshot::Sender<Result<Enqueued, ClientError>>,
    /// What became of an earlier try that may have stored it.
    unknown: Option<ClientError>,
    _memory: OwnedSemaphorePermit,
}

impl Waiting {
    /// Tells its sender how it failed. A repeat that was refused says nothing of the try before it.
    fn fail(self, error: ClientError) {
        let error = if error.retry_is_safe() { self.unknown.unwrap_or(error) } else { error };
        // Nobody may wait for it.
        let _ = self.outcome.send(Err(error));
    }

    /// Notes that a try may have stored it.
    fn note(&mut self, error: &ClientError) {
        if error.fate_unknown() {
            self.unknown.get_or_insert_with(|| error.clone());
        }
    }
}

impl Producer {
    /// A producer for `queue`. Options out of range are brought to the nearest that can work. Must be called within a
    /// tokio runtime.
    #[must_use]
    pub fn new(client: Client, queue: &str, options: ProducerOptions) -> Self {
        let memory_bytes = options.memory_bytes.clamp(2 * BODY_BYTES_MAX, u32::MAX as usize >> 1);
        let (input, inputs) = mpsc::unbounded_channel();
        let sender = Arc::new(Sender { client, queue: queue.to_owned(), retry_for: options.retry_for });
        let gatherer = Gatherer {
            sender,
            batch_messages: options.batch_messages.clamp(1, BATCH_MESSAGES_MAX),
            batch_bytes: options.batch_bytes.clamp(1, REQUEST_BYTES_MAX / 2),
            linger: options.linger,
            in_flight: options.in_flight.max(1),
            batch: Vec::new(),
            bytes: 0,
            due: None,
            under_way: JoinSet::new(),
            ids: MessageIds::new(),
        };
        let task = tokio::spawn(gatherer.run(inputs));
        Self { input, memory: Arc::new(Semaphore::new(memory_bytes)), memory_bytes, task }
    }

    /// Takes a message, waiting while too much is unconfirmed; what it gives is awaited for the message's outcome.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where the message itself is out of bounds, [`ClientError::Closed`] where the producer's
    /// runtime is shutting down.
    pub async fn send(&self, message: EnqueueMessage) -> Result<Confirmation, ClientError> {
        message.validate()?;
        let bytes = size(&message);
        let permits = u32::try_from(bytes.min(self.memory_bytes)).unwrap_or(u32::MAX);
        let memory =
            self.memory.clone().acquire_many_owned(permits).await.map_err(|_| ClientError::Closed)?;
        let (outcome, confirmation) = oneshot::channel();
        let waiting = Waiting { message, bytes, outcome, unknown: None, _memory: memory };
        self.input.send(Input::Message(waiting)).map_err(|_| ClientError::Closed)?;
        Ok(Confirmation(confirmation))
    }

    /// Sends what is gathered at once and returns when everything sent before this call has its outcome.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.input.send(Input::Flush(done)).is_ok() {
            let _ = flushed.await;
        }
    }

    /// Sends what is gathered and ends when everything has its outcome.
    pub async fn close(self) {
        let Self { input, task, .. } = self;
        drop(input);
        let _ = task.await;
    }
}

fn size(message: &EnqueueMessage) -> usize {
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    message.body.len() + message.dedup_key.as_ref().map_or(0, Bytes::len) + headers + MESSAGE_OVERHEAD_BYTES
}

struct Gatherer {
    sender: Arc<Sender>,
    batch_messages: usize,
    batch_bytes: usize,
    linger: Duration,
    in_flight: usize,
    batch: Vec<Waiting>,
    bytes: usize,
    /// When the batch goes, however small.
    due: Option<Instant>,
    under_way: JoinSet<()>,
    ids: MessageIds,
}

impl Gatherer {
    async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        loop {
            let idle = self.under_way.len() < self.in_flight;
            let due = self.due.filter(|_| idle);
            tokio::select! {
                // In this order, so that what is there already goes into the batch before it is sent.
                biased;
                Some(_) = self.under_way.join_next() => {}
                input = inputs.recv(), if !self.is_full() => match input {
                    Some(Input::Message(waiting)) => self.add(waiting),
                    Some(Input::Flush(done)) => {
                        self.finish().await;
                        let _ = done.send(());
                    }
                    None => break,
                },
                () = sleep_until(due), if due.is_some() => self.dispatch(),
            }
            if self.is_full() && self.under_way.len() < self.in_flight {
                self.dispatch();
            }
        }
        self.finish().await;
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= self.batch_messages || self.bytes >= self.batch_bytes
    }

    fn add(&mut self, mut waiting: Waiting) {
        let message = &mut waiting.message;
        if message.id.is_none() {
            message.id = Some(self.ids.next_id_for(message.dedup_key.as_deref()));
        }
        if self.batch.is_empty() {
            self.due = Some(Instant::now() + self.linger);
        }
        self.bytes += waiting.bytes;
        self.batch.push(waiting);
    }

    fn dispatch(&mut self) {
        self.due = None;
        self.bytes = 0;
        let batch = core::mem::take(&mut self.batch);
        if !batch.is_empty() {
            self.under_way.spawn(self.sender.clone().deliver(batch));
        }
    }

    /// Sends the batch and waits for everything under way.
    async fn finish(&mut self) {
        self.dispatch();
        while self.under_way.join_next().await.is_some() {}
    }
}

async fn sleep_until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due).await;
    }
}

struct Sender {
    client: Client,
    queue: String,
    retry_for: Duration,
}

impl Sender {
    /// Sends the batch until each message has its outcome or the time is over.
    async fn deliver(self: Arc<Self>, mut batch: Vec<Waiting>) {
        let give_up = Instant::now() + self.retry_for;
        let mut backoff = Backoff::default();
        loop {
            let messages = batch.iter().map(|waiting| waiting.message.clone()).collect();
            let (left, error) = match self.client.enqueue(&self.queue, messages).await {
                Ok(results) => settle(batch, results),
                Err(error) => {
                    batch.iter_mut().for_each(|waiting| waiting.note(&error));
                    (batch, Some(error))
                }
            };
            let Some(error) = error else { return };
            let pause = backoff.next_delay().max(error.retry_after());
            if !may_repeat(&error) || Instant::now() + pause >= give_up {
                for waiting in left {
                    waiting.fail(error.clone());
                }
                return;
            }
            tokio::time::sleep(pause).await;
            batch = left;
        }
    }
}

/// Every message has an id, so that one of unknown fate may be repeated.
fn may_repeat(error: &ClientError) -> bool {
    error.retry_is_safe() || error.fate_unknown()
}

/// Tells the outcomes that are final. Gives the messages to repeat, with the reason that asks for the longest pause.
fn settle(
    batch: Vec<Waiting>,
    results: Vec<Result<Enqueued, overtake_wire::message::Refusal>>,
) -> (Vec<Waiting>, Option<ClientError>) {
    let mut left = Vec::new();
    let mut reason: Option<ClientError> = None;
    for (mut waiting, result) in batch.into_iter().zip(results) {
        match result.map_err(ClientError::Refused) {
            Err(error) if may_repeat(&error) => {
                waiting.note(&error);
                left.push(waiting);
                if reason.as_ref().is_none_or(|before| before.retry_after() < error.retry_after()) {
                    reason = Some(error);
                }
            }
            Err(error) => waiting.fail(error),
            Ok(stored) => drop(waiting.outcome.send(Ok(stored))),
        }
    }
    (left, reason)
}
