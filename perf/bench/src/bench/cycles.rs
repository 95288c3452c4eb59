//! How many messages a second go through a whole cycle: stored and confirmed, delivered most urgent first, acked.

use super::load::{ack, acks, enqueue, enqueues, receive, received};
use super::{Bench, BenchError};
use crate::pacer::Flag;
use crate::table::{Row, thousands};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

/// Before counting starts: connections, caches and windows get warm.
const WARM_UP: Duration = Duration::from_millis(500);
/// Batches that each producer may be ahead of the consumers.
const BATCHES_AHEAD: usize = 8;

/// Counts what happens between the end of the warm-up and the end.
#[derive(Clone)]
struct Meter(Rc<Cell<u64>>);

impl Meter {
    fn add(&self, count: usize) {
        self.0.set(self.0.get() + count as u64);
    }
}

type Tasks = JoinSet<Result<(), BenchError>>;

/// Lets the tasks run for the warm-up and then `duration`; gives cycles a second and the server's CPU seconds for a
/// million cycles. A task that ends early ends the measurement with its error.
async fn run(
    bench: &Bench<'_>,
    duration: Duration,
    tasks: &mut Tasks,
    meter: &Meter,
    stop: &Flag,
) -> Result<(f64, Option<f64>), BenchError> {
    pause(tasks, WARM_UP.min(duration)).await?;
    let (start, cycles, cpu) = (Instant::now(), meter.0.get(), bench.server_cpu());
    pause(tasks, duration).await?;
    let (elapsed, cycles) = (start.elapsed(), meter.0.get() - cycles);
    let used = cpu.and_then(|before| bench.server_cpu()?.checked_sub(before));
    stop.raise();
    while let Some(ended) = tasks.join_next().await {
        flatten(ended)?;
    }
    let per_second = cycles as f64 / elapsed.as_secs_f64();
    Ok((per_second, used.map(|used| used.as_secs_f64() * 1e6 / (cycles.max(1)) as f64)))
}

async fn pause(tasks: &mut Tasks, duration: Duration) -> Result<(), BenchError> {
    tokio::select! {
        () = tokio::time::sleep(duration) => Ok(()),
        Some(ended) = tasks.join_next() => flatten(ended),
    }
}

fn flatten(ended: Result<Result<(), BenchError>, tokio::task::JoinError>) -> Result<(), BenchError> {
    ended.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
}

/// Batches both ways, several producers and consumers.
pub(super) async fn batched(bench: &Bench<'_>) -> Result<Row, BenchError> {
    let options = bench.options;
    let (producers, consumers, batch) = (options.producers, options.consumers, options.batch as usize);
    let (stop, meter) = (Flag::default(), Meter(Rc::default()));
    let ahead = Arc::new(Semaphore::new(BATCHES_AHEAD * producers as usize * batch));
    let requests = enqueues(bench, batch);
    let local = LocalSet::new();
    let measured = local.run_until(async {
        let mut tasks = Tasks::new();
        for number in 0..producers as usize {
            let (client, stop, ahead, requests) =
                (bench.client.clone(), stop.clone(), ahead.clone(), requests.clone());
            tasks.spawn_local(async move {
                let permits = u32::try_from(batch).unwrap_or(u32::MAX);
                for request in requests.iter().cycle().skip(number) {
                    let Ok(permit) = ahead.acquire_many(permits).await else { break };
                    if stop.is_raised() {
                        break;
                    }
                    permit.forget();
                    enqueue(&client, request).await?;
                }
                Ok(())
            });
        }
        for _ in 0..consumers {
            let consumer = Consumer {
                client: bench.client.clone(),
                queue: bench.queue.clone(),
                receive: receive(bench, options.batch),
                ahead: ahead.clone(),
                meter: meter.clone(),
                stop: stop.clone(),
            };
            tasks.spawn_local(consumer.run());
        }
        run(bench, options.duration, &mut tasks, &meter, &stop).await
    });
    let (per_second, cpu) = measured.await?;
    Ok(Row {
        name: format!("full cycles, {batch} a call, {producers} producers, {consumers} consumers"),
        per_second: Some(per_second),
        cpu_s_per_million: cpu,
        note: cpu_note(cpu),
        ..Row::default()
    })
}

/// Receives and acks; the acks of one batch travel while the next one is asked for.
struct Consumer {
    client: overtake_client::Client,
    queue: String,
    receive: overtake_client::Request,
    ahead: Arc<Semaphore>,
    meter: Meter,
    stop: Flag,
}

impl Consumer {
    async fn run(self) -> Result<(), BenchError> {
        let mut messages = received(&self.client, &self.receive).await?;
        loop {
            let acks = acks(&self.queue, &messages);
            let count = messages.len();
            if self.stop.is_raised() {
                // Producers that wait for room look at the flag when they get it.
                self.ahead.close();
                return ack(&self.client, acks).await;
            }
            let acked = async {
                ack(&self.client, acks).await?;
                self.meter.add(count);
                self.ahead.add_permits(count);
                Ok::<_, BenchError>(())
            };
            let (acked, next) = tokio::join!(acked, received(&self.client, &self.receive));
            acked?;
            messages = next?;
        }
    }
}

/// One message a call. Each caller stores one, receives one (any), acks it. Several numbers of callers are tried.
pub(super) async fn single(bench: &Bench<'_>) -> Result<Row, BenchError> {
    let callers = &bench.options.callers;
    let each = bench.options.duration / u32::try_from(callers.len()).unwrap_or(1).max(1);
    let mut tried = Vec::new();
    for count in callers {
        let (per_second, cpu) = single_with(bench, *count, each).await?;
        tried.push((*count, per_second, cpu));
    }
    let best = tried.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0, None));
    let others: Vec<_> =
        tried.iter().map(|(count, rate, _)| format!("{count}: {}", thousands(*rate as u64))).collect();
    Ok(Row {
        name: format!("full cycles, one message a call, {} callers", best.0),
        per_second: Some(best.1),
        cpu_s_per_million: best.2,
        note: format!("by callers {}; {}", others.join(", "), cpu_note(best.2)),
        ..Row::default()
    })
}

async fn single_with(
    bench: &Bench<'_>,
    callers: u32,
    duration: Duration,
) -> Result<(f64, Option<f64>), BenchError> {
    let (stop, meter) = (Flag::default(), Meter(Rc::default()));
    let requests = enqueues(bench, 1);
    let receive = Rc::new(receive(bench, 1));
    let local = LocalSet::new();
    local
        .run_until(async {
            let mut tasks = Tasks::new();
            for number in 0..callers as usize {
                let (client, queue, stop, meter) =
                    (bench.client.clone(), bench.queue.clone(), stop.clone(), meter.clone());
                let (requests, receive) = (requests.clone(), receive.clone());
                tasks.spawn_local(async move {
                    for request in requests.iter().cycle().skip(number % requests.len()) {
                        enqueue(&client, request).await?;
                        let messages = received(&client, &receive).await?;
                        ack(&client, acks(&queue, &messages)).await?;
                        meter.add(messages.len());
                        if stop.is_raised() {
                            break;
                        }
                    }
                    Ok(())
                });
            }
            run(bench, duration, &mut tasks, &meter, &stop).await
        })
        .await
}

fn cpu_note(cpu: Option<f64>) -> String {
    cpu.map_or_else(String::new, |seconds| format!("server CPU {seconds:.1} s per 1 M cycles"))
}
