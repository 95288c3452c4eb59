//! What the measured server is asked to do.

use crate::bench::BenchError;
use crate::bench::load::{ack, acks, enqueue, received};
use crate::pacer::{self, Due, Flag, Schedule};
use crate::table::Latencies;
use bytes::{Bytes, BytesMut};
use overtake_client::{
    Client, ClientError, Delay, Delivered, EnqueueMessage, Receive, Refusal, Release, Request, Settle,
};
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, JoinHandle, JoinSet, LocalSet};

/// Messages and bytes of one enqueue.
const CALL_MESSAGES: u64 = 500;
const CALL_BYTES: u64 = 1 << 20;
/// Calls under way at a time.
const CALLS: usize = 8;
/// Messages of one receive, and receivers, of a drain.
pub(super) const TAKE: u32 = 500;
const DRAINERS: usize = 6;
/// A drain that gets nothing for this long has come to the end.
const DRAINED_AFTER: Duration = Duration::from_secs(10);
/// The level of a backlog.
const PRIORITY: u32 = 4;

type Tasks = JoinSet<Result<(), BenchError>>;

fn finished(ended: Result<Result<(), BenchError>, tokio::task::JoinError>) -> Result<(), BenchError> {
    ended.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

pub(super) fn per_call(body: usize) -> u64 {
    (CALL_BYTES / (body as u64 + 64)).clamp(1, CALL_MESSAGES)
}

/// A message of a backlog says its number in its body.
fn numbered(number: u64, body: usize) -> EnqueueMessage {
    let mut bytes = BytesMut::zeroed(body.max(8));
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    EnqueueMessage { priority: PRIORITY, body: bytes.freeze(), ..EnqueueMessage::default() }
}

/// Stores the messages of these numbers.
pub(super) async fn preload(
    client: &Client,
    queue: &str,
    numbers: Range<u64>,
    body: usize,
) -> Result<(), BenchError> {
    let mut calls = Tasks::new();
    let mut next = numbers.start;
    while next < numbers.end {
        let end = (next + per_call(body)).min(numbers.end);
        let messages = (next..end).map(|number| numbered(number, body)).collect();
        let request = Request::Enqueue { queue: queue.into(), messages };
        next = end;
        let client = client.clone();
        calls.spawn(async move {
            loop {
                match enqueue(&client, &request).await {
                    // Asked to come back later.
                    Err(BenchError::Client(ClientError::Refused(Refusal {
                        retry_after_ms: Some(ms),
                        ..
                    }))) => {
                        tokio::time::sleep(Duration::from_millis(ms.into())).await;
                    }
                    ended => return ended,
                }
            }
        });
        while calls.len() >= CALLS
            && let Some(ended) = calls.join_next().await
        {
            finished(ended)?;
        }
    }
    while let Some(ended) = calls.join_next().await {
        finished(ended)?;
    }
    Ok(())
}

fn receive(queue: &str, max: u32, lease_s: u32) -> Request {
    Request::Receive(Receive { max, wait_s: 1, lease_s: Some(lease_s), ..Receive::new(queue) })
}

/// Receives a first message and acks it; tries until it gets one.
pub(super) async fn take_one(client: &Client, queue: &str) -> Result<(), BenchError> {
    let receive = receive(queue, 1, 30);
    loop {
        let messages = received(client, &receive).await?;
        if !messages.is_empty() {
            return ack(client, acks(queue, &messages)).await;
        }
    }
}

/// What a drain came to.
pub(super) struct Drained {
    pub(super) messages: u64,
    pub(super) seconds: f64,
}

/// Several receivers that take a backlog as fast as they can.
pub(super) struct Drain {
    task: JoinHandle<Result<Drained, BenchError>>,
}

impl Drain {
    /// Begins.
    pub(super) fn start(client: &Client, queue: &str, expected: u64, rate: Option<u64>) -> Self {
        let (client, queue) = (client.clone(), queue.to_owned());
        Self { task: tokio::spawn(drain(client, queue, expected, rate)) }
    }

    /// Tells on any thread whether it is over.
    pub(super) fn watch(&self) -> AbortHandle {
        self.task.abort_handle()
    }

    /// Waits for the end.
    pub(super) async fn end(self) -> Result<Drained, BenchError> {
        self.task.await.map_err(io::Error::other)?
    }
}

async fn drain(
    client: Client,
    queue: String,
    expected: u64,
    rate: Option<u64>,
) -> Result<Drained, BenchError> {
    use std::sync::atomic::{AtomicU64, Ordering};
    let taken = std::sync::Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let mut receivers: JoinSet<Result<Instant, BenchError>> = JoinSet::new();
    for _ in 0..DRAINERS {
        let (client, queue, taken) = (client.clone(), queue.clone(), taken.clone());
        receivers.spawn(async move {
            let receive = receive(&queue, TAKE, 300);
            let mut last = Instant::now();
            let mut messages = received(&client, &receive).await?;
            while taken.load(Ordering::Relaxed) < expected && last.elapsed() < DRAINED_AFTER {
                if !messages.is_empty() {
                    last = Instant::now();
                }
                let all = taken.fetch_add(messages.len() as u64, Ordering::Relaxed) + messages.len() as u64;
                if let Some(rate) = rate {
                    let due = begun + Duration::from_secs_f64(all as f64 / rate as f64);
                    tokio::time::sleep_until(due.into()).await;
                }
                let settle = acks(&queue, &messages);
                let (acked, next) = tokio::join!(ack(&client, settle), received(&client, &receive));
                acked?;
                messages = next?;
            }
            taken.fetch_add(messages.len() as u64, Ordering::Relaxed);
            ack(&client, acks(&queue, &messages)).await?;
            Ok(last)
        });
    }
    let mut last = begun;
    while let Some(ended) = receivers.join_next().await {
        last = last.max(ended.map_err(io::Error::other)??);
    }
    let messages = taken.load(Ordering::Relaxed);
    Ok(Drained { messages, seconds: last.duration_since(begun).as_secs_f64().max(1e-3) })
}

/// P0 from due to delivered at a fixed rate, for so long, or until what is beside it is over.
pub(super) async fn p0(
    client: &Client,
    queue: &str,
    rate: u64,
    duration: Duration,
    beside: Option<AbortHandle>,
) -> Result<Latencies, BenchError> {
    const CONSUMERS: usize = 4;
    let schedule = Schedule { start: Instant::now(), rate };
    let total = (u128::from(rate) * duration.as_millis() / 1_000).max(1) as u64;
    let latencies = Rc::new(RefCell::new(Latencies::default()));
    let (stop, sent) = (Flag::default(), Rc::new(Cell::new(0)));
    LocalSet::new()
        .run_until(async {
            let mut tasks = Tasks::new();
            for _ in 0..CONSUMERS {
                let (client, queue, latencies, stop) =
                    (client.clone(), queue.to_owned(), latencies.clone(), stop.clone());
                tasks.spawn_local(async move {
                    let receive = receive(&queue, 50, 60);
                    while !stop.is_raised() {
                        let messages = received(&client, &receive).await?;
                        messages.iter().filter_map(stamp).for_each(|due| {
                            latencies.borrow_mut().record(schedule.start.elapsed().saturating_sub(due));
                        });
                        ack(&client, acks(&queue, &messages)).await?;
                    }
                    Ok(())
                });
            }
            let mut due = pacer::start(schedule, total)?;
            while let Some(Due { first, end }) = due.recv().await {
                if beside.as_ref().is_some_and(AbortHandle::is_finished) {
                    break;
                }
                let stamped = |number| EnqueueMessage {
                    body: (schedule.due(number) - schedule.start).as_nanos().to_le_bytes().to_vec().into(),
                    ..EnqueueMessage::default()
                };
                let messages: Vec<EnqueueMessage> = (first..end).map(stamped).collect();
                sent.set(end);
                let (client, queue) = (client.clone(), queue.to_owned());
                tasks.spawn_local(async move {
                    for part in messages.chunks(1_000) {
                        let request = Request::Enqueue { queue: queue.clone(), messages: part.to_vec() };
                        enqueue(&client, &request).await?;
                    }
                    Ok(())
                });
                while let Some(ended) = tasks.try_join_next() {
                    finished(ended)?;
                }
            }
            let end = Instant::now() + Duration::from_secs(10);
            while latencies.borrow().count() < sent.get() && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.raise();
            while let Some(ended) = tasks.join_next().await {
                finished(ended)?;
            }
            Ok::<_, BenchError>(())
        })
        .await?;
    Ok(latencies.take())
}

/// When a P0 message was due, counted from the start of its schedule.
fn stamp(message: &Delivered) -> Option<Duration> {
    let nanos = u128::from_le_bytes(*message.body.first_chunk()?);
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// Lets so many bytes of bodies pass: stored, received, acked. Gives how many it were.
pub(super) async fn pass(
    client: &Client,
    queue: &str,
    body: usize,
    bytes: u64,
    look: &mut dyn FnMut() -> io::Result<()>,
) -> Result<u64, BenchError> {
    let messages = bytes.div_ceil(body as u64);
    let each = per_call(body) * CALLS as u64;
    let mut passed = 0;
    let mut calls = 0u64;
    while passed < messages {
        let end = (passed + each).min(messages);
        preload(client, queue, passed..end, body).await?;
        let mut left = end - passed;
        while left > 0 {
            let got = received(client, &receive(queue, TAKE.min(left as u32), 60)).await?;
            left -= got.len() as u64;
            ack(client, acks(queue, &got)).await?;
        }
        passed = end;
        calls += 1;
        if calls.is_multiple_of(64) {
            look()?;
        }
    }
    look()?;
    Ok(messages * body as u64)
}

/// One message that is leased for as long as can be, and one that is delayed for a year.
pub(super) async fn pin(client: &Client, queue: &str) -> Result<(), BenchError> {
    let body = Bytes::from(vec![b'p'; 1_024]);
    let leased = EnqueueMessage { body: body.clone(), ..EnqueueMessage::default() };
    enqueue(client, &Request::Enqueue { queue: queue.into(), messages: vec![leased] }).await?;
    while received(client, &receive(queue, 1, 43_200)).await?.is_empty() {}
    let delay = Delay::AfterS(365 * 86_400);
    let delayed = EnqueueMessage { body, delay, ..EnqueueMessage::default() };
    enqueue(client, &Request::Enqueue { queue: queue.into(), messages: vec![delayed] }).await
}

/// Holds every message at once, and then gives all of them back: each is released once more.
pub(super) async fn release_all(client: &Client, queue: &str, messages: u64) -> Result<(), BenchError> {
    let mut held = Vec::new();
    while (held.len() as u64) < messages {
        let left = messages - held.len() as u64;
        let got = received(client, &receive(queue, TAKE.min(left as u32), 3_600)).await?;
        held.extend(got.into_iter().map(|message| message.receipt.to_string()));
    }
    for receipts in held.chunks(1_000) {
        let release = |receipt: &String| Release { receipt: receipt.clone(), ..Release::default() };
        let release = receipts.iter().map(release).collect();
        client.settle(Settle { queue: queue.into(), release, ..Settle::default() }).await?;
    }
    Ok(())
}
