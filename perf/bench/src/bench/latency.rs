//! How long a confirmation and a P0 delivery take at a fixed rate, counted from the time the message was due: a
//! server that falls behind is not spared the messages it did not get.

use super::load::{ack, acks, enqueue, enqueues, received};
use super::{Bench, BenchError};
use crate::mix;
use crate::pacer::{self, Due, Flag, Schedule};
use crate::table::{Latencies, Row, thousands};
use bytes::{Bytes, BytesMut};
use overtake_base::random::Random;
use overtake_client::{Client, Delivered, EnqueueMessage, Receive, Request};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, LocalSet};

/// Messages of one preloading call.
const PRELOAD_BATCH: usize = 500;
/// Preloading calls under way at a time.
const PRELOAD_CALLS: usize = 8;
/// Consumers that work at the rate of arrival, and messages that each takes at a time. Small, so that the next one that
/// asks is never far: between two receives of the whole group pass `TAKE / rate` seconds.
const BUSY_CONSUMERS: u32 = 40;
const BUSY_TAKE: u32 = 4;
/// Work of a consumer on what it took, in percent of the mean, drawn anew each time: consumers that all work equally long
/// fall into step with each other, and then nobody asks for as long as one works.
const WORK_PERCENT_MIN: u64 = 50;
const WORK_PERCENT_MAX: u64 = 150;
/// How long what is still under way at the end may take.
const TAIL: Duration = Duration::from_secs(5);

type Tasks = JoinSet<Result<(), BenchError>>;

fn finished(ended: Result<Result<(), BenchError>, tokio::task::JoinError>) -> Result<(), BenchError> {
    ended.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
}

fn total(rate: u64, duration: Duration) -> u64 {
    u64::try_from(u128::from(rate) * duration.as_millis() / 1_000).unwrap_or(u64::MAX).max(1)
}

/// From the time a single enqueue was due until it was confirmed.
pub(super) async fn confirm(bench: &Bench<'_>) -> Result<Row, BenchError> {
    let rate = bench.options.confirm_rate;
    let requests = enqueues(bench, 1);
    let latencies = Rc::new(RefCell::new(Latencies::default()));
    let schedule = Schedule { start: Instant::now(), rate };
    let mut due = pacer::start(schedule, total(rate, bench.options.duration))?;
    LocalSet::new()
        .run_until(async {
            let mut tasks = Tasks::new();
            while let Some(Due { first, end }) = due.recv().await {
                for number in first..end {
                    let (client, requests, latencies) =
                        (bench.client.clone(), requests.clone(), latencies.clone());
                    tasks.spawn_local(async move {
                        enqueue(&client, &requests[number as usize % requests.len()]).await?;
                        latencies.borrow_mut().record(schedule.due(number).elapsed());
                        Ok(())
                    });
                }
                while let Some(ended) = tasks.try_join_next() {
                    finished(ended)?;
                }
            }
            while let Some(ended) = tasks.join_next().await {
                finished(ended)?;
            }
            Ok::<_, BenchError>(())
        })
        .await?;
    let latencies = latencies.take();
    Ok(Row {
        name: format!("confirm of single enqueues at {}/s", thousands(rate)),
        per_second: Some(latencies.count() as f64 / schedule.start.elapsed().as_secs_f64()),
        latencies: Some(latencies),
        ..Row::default()
    })
}

/// P0 from due to delivered, with consumers that wait.
pub(super) async fn p0(bench: &Bench<'_>) -> Result<Row, BenchError> {
    let crew = Crew { consumers: bench.options.consumers, take: bench.options.batch, rate: None };
    let name = format!("P0 delivered at {}/s, consumers waiting", thousands(bench.options.p0_rate));
    deliver(bench, crew, name, String::new()).await
}

/// The same behind a backlog: consumers work just as fast as messages arrive, so that the backlog stays.
pub(super) async fn p0_backlog(bench: &Bench<'_>) -> Result<Row, BenchError> {
    let rate = bench.options.p0_rate;
    preload(bench).await?;
    let crew = Crew { consumers: BUSY_CONSUMERS, take: BUSY_TAKE, rate: Some(rate) };
    let backlog = thousands(u64::from(bench.options.backlog));
    let name = format!("P0 delivered at {}/s behind {backlog} P4", thousands(rate));
    let between_ms = f64::from(BUSY_TAKE) * 1e3 / rate as f64;
    deliver(bench, crew, name, format!("{BUSY_CONSUMERS} busy workers, one asks every {between_ms:.1} ms"))
        .await
}

async fn preload(bench: &Bench<'_>) -> Result<(), BenchError> {
    let body = Bytes::from(vec![b'x'; bench.options.body as usize]);
    let message = EnqueueMessage { priority: 4, body, ..EnqueueMessage::default() };
    let per_call = PRELOAD_BATCH.min(1_500_000 / (bench.options.body as usize + 64)).max(1);
    let mut left = bench.options.backlog as usize;
    let mut calls = Tasks::new();
    while left > 0 {
        let size = left.min(per_call);
        left -= size;
        let request = Request::Enqueue { queue: bench.queue.clone(), messages: vec![message.clone(); size] };
        let client = bench.client.clone();
        calls.spawn(async move { enqueue(&client, &request).await });
        if calls.len() >= PRELOAD_CALLS
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

/// Consumers: how many, how much each takes, and how many messages a second all together work on (none = any).
#[derive(Clone, Copy)]
struct Crew {
    consumers: u32,
    take: u32,
    rate: Option<u64>,
}

impl Crew {
    /// How long one consumer works on one message, on average.
    fn work(self) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) * self.consumers / rate.max(1) as u32)
    }

    /// How long one consumer works on so many messages this time.
    fn work_on(self, messages: usize, random: &mut Random) -> Duration {
        let percent = WORK_PERCENT_MIN + random.below(WORK_PERCENT_MAX - WORK_PERCENT_MIN + 1);
        self.work() * messages as u32 * percent as u32 / 100
    }
}

async fn deliver(bench: &Bench<'_>, crew: Crew, name: String, note: String) -> Result<Row, BenchError> {
    let (rate, duration) = (bench.options.p0_rate, bench.options.duration);
    let schedule = Schedule { start: Instant::now(), rate };
    let all = total(rate, duration);
    let latencies = Rc::new(RefCell::new(Latencies::default()));
    let stop = Flag::default();
    let expected = LocalSet::new()
        .run_until(async {
            let mut consumers = Tasks::new();
            for number in 0..crew.consumers {
                let consumer = Consumer {
                    client: bench.client.clone(),
                    queue: bench.queue.clone(),
                    crew,
                    random: Random::new(u64::from(number), "work"),
                    start: schedule.start,
                    latencies: latencies.clone(),
                    stop: stop.clone(),
                };
                consumers.spawn_local(consumer.run());
            }
            let expected = offer(bench, schedule, all, &mut consumers).await?;
            let end = Instant::now() + TAIL;
            while latencies.borrow().count() < expected && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.raise();
            while let Some(ended) = consumers.join_next().await {
                finished(ended)?;
            }
            Ok::<_, BenchError>(expected)
        })
        .await?;
    let latencies = latencies.take();
    let missing = expected.saturating_sub(latencies.count());
    let missing = if missing > 0 { format!("{missing} P0 not delivered in time") } else { String::new() };
    let note = [note, missing].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    Ok(Row { name, per_second: Some(rate as f64), latencies: Some(latencies), note, ..Row::default() })
}

/// Sends everything when it is due, what is due together in one call. Gives the number of P0 among it.
async fn offer(
    bench: &Bench<'_>,
    schedule: Schedule,
    all: u64,
    consumers: &mut Tasks,
) -> Result<u64, BenchError> {
    let levels = mix::levels();
    let body = Bytes::from(vec![b'x'; bench.options.body as usize]);
    let mut due = pacer::start(schedule, all)?;
    let mut calls = Tasks::new();
    let mut urgent = 0;
    while let Some(Due { first, end }) = due.recv().await {
        let messages = (first..end).map(|number| {
            let priority = levels[number as usize % levels.len()];
            let body = if priority == 0 {
                urgent += 1;
                stamped(schedule.due(number) - schedule.start, body.len())
            } else {
                body.clone()
            };
            EnqueueMessage { priority, body, ..EnqueueMessage::default() }
        });
        let messages: Vec<_> = messages.collect();
        for chunk in messages.chunks(1_000.min(1_500_000 / (body.len() + 64)).max(1)) {
            let request = Request::Enqueue { queue: bench.queue.clone(), messages: chunk.to_vec() };
            let client = bench.client.clone();
            calls.spawn_local(async move { enqueue(&client, &request).await });
        }
        while let Some(ended) = calls.try_join_next() {
            finished(ended)?;
        }
        while let Some(ended) = consumers.try_join_next() {
            finished(ended)?;
        }
    }
    while let Some(ended) = calls.join_next().await {
        finished(ended)?;
    }
    Ok(urgent)
}

/// A body that says when it was due, counted from the start of the schedule.
fn stamped(due: Duration, length: usize) -> Bytes {
    let mut body = BytesMut::zeroed(length.max(8));
    body[..8].copy_from_slice(&(due.as_nanos() as u64).to_le_bytes());
    body.freeze()
}

fn stamp(message: &Delivered) -> Option<Duration> {
    let bytes = message.body.first_chunk::<8>()?;
    (message.priority == 0).then(|| Duration::from_nanos(u64::from_le_bytes(*bytes)))
}

struct Consumer {
    client: Client,
    queue: String,
    crew: Crew,
    random: Random,
    start: Instant,
    latencies: Rc<RefCell<Latencies>>,
    stop: Flag,
}

impl Consumer {
    async fn run(mut self) -> Result<(), BenchError> {
        let receive = Request::Receive(Receive {
            max: self.crew.take,
            wait_s: super::load::WAIT_S,
            ..Receive::new(self.queue.as_str())
        });
        let mut messages = received(&self.client, &receive).await?;
        let mut free_at = Instant::now();
        loop {
            self.record(&messages);
            let acks = acks(&self.queue, &messages);
            free_at = free_at.max(Instant::now()) + self.crew.work_on(messages.len(), &mut self.random);
            if self.stop.is_raised() {
                return ack(&self.client, acks).await;
            }
            if self.crew.rate.is_some() {
                // Works first, then acks and asks for more, as a worker would.
                tokio::time::sleep_until(free_at.into()).await;
            }
            let (acked, next) = tokio::join!(ack(&self.client, acks), received(&self.client, &receive));
            acked?;
            messages = next?;
        }
    }

    fn record(&self, messages: &[Delivered]) {
        let now = self.start.elapsed();
        let mut latencies = self.latencies.borrow_mut();
        for due in messages.iter().filter_map(stamp) {
            latencies.record(now.saturating_sub(due));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_follow_rate_and_duration() {
        assert_eq!(total(2_000, Duration::from_secs(10)), 20_000);
        assert_eq!(total(1, Duration::from_millis(1)), 1);
    }

    #[test]
    fn a_crew_works_at_the_rate_of_arrival() {
        let crew = Crew { consumers: 8, take: 10, rate: Some(10_000) };
        assert_eq!(crew.work(), Duration::from_micros(800));
        assert_eq!(Crew { rate: None, ..crew }.work(), Duration::ZERO);
        let mut random = Random::new(1, "work");
        let works: Vec<_> = (0..1_000).map(|_| crew.work_on(10, &mut random)).collect();
        assert!(works.iter().all(|work| (4..=12).contains(&work.as_millis())));
        assert!(works.iter().min() < works.iter().max());
    }

    #[test]
    fn a_stamped_body_says_when_it_was_due() {
        let body = stamped(Duration::from_nanos(123_456_789), 1_024);
        assert_eq!(body.len(), 1_024);
        let message = |priority, body| Delivered {
            id: overtake_client::MessageId(1),
            priority,
            receipt: "r_0_1_1".parse().unwrap(),
            deliveries: 1,
            enqueued_at: overtake_client::UnixMillis(0),
            lease_expires_at: overtake_client::UnixMillis(0),
            headers: vec![],
            share: false,
            body,
        };
        assert_eq!(stamp(&message(0, body.clone())), Some(Duration::from_nanos(123_456_789)));
        assert_eq!(stamp(&message(4, body)), None);
        assert_eq!(stamp(&message(0, Bytes::new())), None);
    }
}
