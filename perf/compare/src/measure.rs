//! The measurements, the same for every system.

use crate::job::{Delivered, Failure, Message, Session, System, Token, Tuning};
use crate::process::{Processes, Used};
use overtake_measure::table::Latencies;
use overtake_perf::mix;
use overtake_perf::pacer::{self, Due, Flag, Schedule};
use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};

/// Before counting starts.
const WARM_UP: Duration = Duration::from_millis(500);
/// Sessions that each do one message at a time. Each system is measured with all of these, and its best one counts.
const CALLERS: [usize; 3] = [16, 64, 256];
/// Batches that each producer may be ahead of the consumers.
const BATCHES_AHEAD: usize = 8;
/// Parts that a measured time is cut into, which show how much it varies.
const PARTS: u32 = 5;
/// How long a server may take to come up.
const START: Duration = Duration::from_secs(120);
/// How long the first delivery may take once it is up; a system that has kept nothing will never deliver.
const DELIVERY: Duration = Duration::from_secs(20);
/// Sessions that produce and that consume at a fixed rate, and messages that a consumer takes at a time.
const PACED_SESSIONS: usize = 8;
const PACED_TAKE: usize = 10;
/// After the last message of a fixed rate: how long the rest may take.
const TAIL: Duration = Duration::from_secs(5);
/// P0 behind a backlog: rate, workers, and how long each works on a message.
const BACKLOG_RATE: u64 = 200;
const BACKLOG_WORKERS: usize = 4;
const BACKLOG_WORK: Duration = Duration::from_millis(4);

type Tasks = JoinSet<Result<(), Failure>>;

fn ended(one: Result<Result<(), Failure>, JoinError>) -> Result<(), Failure> {
    one.unwrap_or_else(|error| Err(error.into()))
}

/// A system that runs.
pub struct Running<'a> {
    pub system: &'a dyn System,
    folder: PathBuf,
    port: u16,
    processes: Option<Processes>,
    body_bytes: usize,
}

/// Full cycles.
#[derive(Clone, Copy, Debug)]
pub struct Cycles {
    pub per_second: f64,
    /// Of the slowest and the fastest of the parts that the time is cut into.
    pub slowest_per_second: f64,
    pub fastest_per_second: f64,
    pub cpu_s_per_million: f64,
    /// What the load generator used.
    pub load_cpu_s_per_million: f64,
    pub written_per_payload: f64,
}

/// Full cycles, one message a call.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    /// Sessions at the same time.
    pub callers: usize,
    pub cycles: Cycles,
}

/// Latencies at a fixed rate.
#[derive(Clone, Debug, Default)]
pub struct Paced {
    pub confirm: Latencies,
    pub p0: Latencies,
    pub all: Latencies,
    /// Messages that did not come within the time.
    pub missing: u64,
}

impl<'a> Running<'a> {
    /// Starts a system in a new folder.
    pub async fn start(
        system: &'a dyn System,
        folder: &Path,
        port: u16,
        body_bytes: usize,
    ) -> Result<Self, Failure> {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        system.prepare(folder)?;
        let mut running = Self { system, folder: folder.to_path_buf(), port, processes: None, body_bytes };
        running.up("ready").await?;
        Ok(running)
    }

    /// Starts the processes and waits until the queue can be made, or is there.
    async fn up(&mut self, queue: &str) -> Result<(), Failure> {
        let mut processes = Processes::start(self.system.commands(&self.folder, self.port)?, &self.folder)?;
        let start = Instant::now();
        loop {
            let made =
                tokio::time::timeout(Duration::from_secs(10), self.system.create(self.port, queue)).await;
            match made {
                Ok(Ok(())) => break,
                Ok(Err(error)) if start.elapsed() > START => return Err(error),
                Err(_) if start.elapsed() > START => return Err("the server does not come up".into()),
                _ => processes.check(&self.folder)?,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.processes = Some(processes);
        Ok(())
    }

    /// Ends it and removes its folder.
    pub fn stop(mut self) {
        if let Some(processes) = self.processes.take() {
            processes.stop();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }

    fn used(&self) -> Used {
        self.processes.as_ref().map(Processes::used).unwrap_or_default()
    }

    async fn session(&self, queue: &str) -> Result<Box<dyn Session>, Failure> {
        self.system.connect(self.port, queue).await
    }

    /// Full cycles in batches: producers and consumers at the same time.
    pub async fn batched(&self, duration: Duration) -> Result<Cycles, Failure> {
        let Tuning { batch, sessions, .. } = self.system.tuning();
        let queue = "batched";
        self.system.create(self.port, queue).await?;
        let (stop, meter) = (Flag::default(), Rc::new(Cell::new(0u64)));
        let ahead = Arc::new(Semaphore::new(BATCHES_AHEAD * sessions * batch));
        let messages: Rc<[Message]> = mix::levels()
            .into_iter()
            .map(|level| Message::new(level as u8, Duration::ZERO, self.body_bytes))
            .collect();
        let mut tasks = Tasks::new();
        for number in 0..sessions {
            let (mut session, stop, ahead, messages) =
                (self.session(queue).await?, stop.clone(), ahead.clone(), messages.clone());
            tasks.spawn_local(async move {
                let mut next = messages.iter().cloned().cycle().skip(number * 7);
                loop {
                    let Ok(room) = ahead.acquire_many(batch as u32).await else { return Ok(()) };
                    if stop.is_raised() {
                        return Ok(());
                    }
                    room.forget();
                    let batch: Vec<Message> = next.by_ref().take(batch).collect();
                    session.enqueue(&batch).await?;
                }
            });
        }
        for _ in 0..sessions {
            let (mut session, stop, ahead, meter) =
                (self.session(queue).await?, stop.clone(), ahead.clone(), meter.clone());
            tasks.spawn_local(async move {
                let mut taken = session.receive(batch).await?;
                loop {
                    let count = taken.len();
                    let tokens: Vec<Token> = taken.into_iter().map(|delivered| delivered.token).collect();
                    if stop.is_raised() {
                        ahead.close();
                        return session.ack(tokens).await;
                    }
                    taken = session.next(tokens, batch).await?;
                    meter.set(meter.get() + count as u64);
                    ahead.add_permits(count);
                }
            });
        }
        self.count(duration, &mut tasks, &meter, &stop).await
    }

    /// Full cycles, one message a call, with as many callers as this system is fastest with. Fails only where it fails
    /// with any number of callers.
    pub async fn single(&self, duration: Duration) -> Result<Single, Failure> {
        let mut best: Result<Single, Failure> = Err("not measured".into());
        for callers in CALLERS {
            let measured = self.single_with(callers, duration).await.map(|cycles| Single { callers, cycles });
            best = match (best, measured) {
                (Ok(best), Ok(now)) if now.cycles.per_second <= best.cycles.per_second => Ok(best),
                (Ok(best), Err(_)) => Ok(best),
                (_, measured) => measured,
            };
        }
        best
    }

    /// Each caller stores one, takes one, acks it.
    async fn single_with(&self, callers: usize, duration: Duration) -> Result<Cycles, Failure> {
        let queue = &format!("single{callers}");
        self.system.create(self.port, queue).await?;
        let (stop, meter) = (Flag::default(), Rc::new(Cell::new(0u64)));
        let mut tasks = Tasks::new();
        for number in 0..callers {
            let (mut session, stop, meter, body_bytes) =
                (self.session(queue).await?, stop.clone(), meter.clone(), self.body_bytes);
            tasks.spawn_local(async move {
                let mut levels = mix::levels().into_iter().cycle().skip(number);
                while !stop.is_raised() {
                    let level = levels.next().unwrap_or_default() as u8;
                    session.enqueue(&[Message::new(level, Duration::ZERO, body_bytes)]).await?;
                    // Another caller may have it already; then there is one of its own to come.
                    let taken = session.receive(1).await?;
                    let count = taken.len() as u64;
                    if count > 0 {
                        session.ack(taken.into_iter().map(|delivered| delivered.token).collect()).await?;
                    }
                    meter.set(meter.get() + count);
                }
                Ok(())
            });
        }
        self.count(duration, &mut tasks, &meter, &stop).await
    }

    async fn count(
        &self,
        duration: Duration,
        tasks: &mut Tasks,
        meter: &Cell<u64>,
        stop: &Flag,
    ) -> Result<Cycles, Failure> {
        pause(tasks, WARM_UP).await?;
        let (start, cycles, before) = (Instant::now(), meter.get(), self.used());
        let load_before = own_cpu();
        let mut rates = Vec::new();
        for _ in 0..PARTS {
            let (start, cycles) = (Instant::now(), meter.get());
            pause(tasks, duration / PARTS).await?;
            rates.push((meter.get() - cycles) as f64 / start.elapsed().as_secs_f64());
        }
        let (seconds, cycles, after) = (start.elapsed().as_secs_f64(), meter.get() - cycles, self.used());
        let load_cpu = own_cpu().saturating_sub(load_before);
        stop.raise();
        while let Some(one) = tasks.join_next().await {
            ended(one)?;
        }
        let count = cycles.max(1) as f64;
        let written = after.written_bytes.saturating_sub(before.written_bytes) as f64;
        let per_million = |cpu: Duration| cpu.as_secs_f64() * 1e6 / count;
        Ok(Cycles {
            per_second: cycles as f64 / seconds,
            slowest_per_second: rates.iter().copied().fold(f64::INFINITY, f64::min),
            fastest_per_second: rates.iter().copied().fold(0.0, f64::max),
            cpu_s_per_million: per_million(after.cpu.saturating_sub(before.cpu)),
            load_cpu_s_per_million: per_million(load_cpu),
            written_per_payload: written / (count * self.body_bytes as f64),
        })
    }

    /// Messages of all levels at a fixed rate, consumers waiting. Latencies count from when each message was due.
    pub async fn paced(&self, rate: u64, duration: Duration) -> Result<Paced, Failure> {
        let queue = format!("paced{rate}");
        self.system.create(self.port, &queue).await?;
        let levels: Vec<u8> = mix::levels().into_iter().map(|level| level as u8).collect();
        let crew = Crew { consumers: PACED_SESSIONS, take: PACED_TAKE, work: Duration::ZERO };
        self.at_rate(&queue, rate, duration, &levels, crew).await
    }

    /// P0 at a low rate, behind a backlog of P4, workers busy.
    pub async fn behind_backlog(&self, duration: Duration) -> Result<Paced, Failure> {
        let crew = Crew { consumers: BACKLOG_WORKERS, take: 1, work: BACKLOG_WORK };
        self.at_rate("backlog", BACKLOG_RATE, duration, &[0], crew).await
    }

    async fn at_rate(
        &self,
        queue: &str,
        rate: u64,
        duration: Duration,
        levels: &[u8],
        crew: Crew,
    ) -> Result<Paced, Failure> {
        let paced = Rc::new(RefCell::new(Paced::default()));
        let stop = Flag::default();
        let total = (rate as f64 * duration.as_secs_f64()).round().max(1.0) as u64;
        let mut sessions = Vec::new();
        for _ in 0..PACED_SESSIONS {
            sessions.push(self.session(queue).await?);
        }
        let mut consumers = Vec::new();
        for _ in 0..crew.consumers {
            consumers.push(self.session(queue).await?);
        }
        let schedule = Schedule { start: Instant::now() + Duration::from_millis(100), rate };
        let mut tasks = Tasks::new();
        for session in consumers {
            tasks.spawn_local(consume(session, schedule, crew, paced.clone(), stop.clone()));
        }
        let mut lanes = Vec::new();
        let batch = self.system.tuning().batch;
        for session in sessions {
            let (sender, receiver) = mpsc::unbounded_channel();
            lanes.push(sender);
            tasks.spawn_local(produce(session, schedule, batch, receiver, paced.clone()));
        }
        let mut due = pacer::start(schedule, total)?;
        let expected = |of: &dyn Fn(u8) -> bool| {
            (0..total).filter(|n| of(levels[*n as usize % levels.len()])).count() as u64
        };
        let (urgent, all) = (expected(&|level| level == 0), total);
        while let Some(Due { first, end }) = due.recv().await {
            for number in first..end {
                let level = levels[number as usize % levels.len()];
                let message = Message::new(level, schedule.due(number) - schedule.start, self.body_bytes);
                let _ = lanes[number as usize % lanes.len()].send(message);
            }
            while let Some(one) = tasks.try_join_next() {
                ended(one)?;
            }
        }
        drop(lanes);
        let end = Instant::now() + TAIL;
        while Instant::now() < end
            && (paced.borrow().p0.count() < urgent || paced.borrow().confirm.count() < all)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.raise();
        while let Some(one) = tasks.join_next().await {
            ended(one)?;
        }
        let mut paced = paced.take();
        paced.missing = urgent.saturating_sub(paced.p0.count());
        Ok(paced)
    }

    /// Stores so many P4; gives the memory that each of them takes.
    pub async fn fill(&self, count: u64) -> Result<f64, Failure> {
        let queue = "backlog";
        self.system.create(self.port, queue).await?;
        let Tuning { batch, sessions, .. } = self.system.tuning();
        let before = self.used().memory_bytes;
        let mut tasks = Tasks::new();
        for number in 0..sessions as u64 {
            let mut session = self.session(queue).await?;
            let mut left = count / sessions as u64 + u64::from(number < count % sessions as u64);
            let message = Message::new(4, Duration::ZERO, self.body_bytes);
            tasks.spawn_local(async move {
                while left > 0 {
                    let size = left.min(batch as u64);
                    session.enqueue(&vec![message.clone(); size as usize]).await?;
                    left -= size;
                }
                Ok(())
            });
        }
        while let Some(one) = tasks.join_next().await {
            ended(one)?;
        }
        let grown = self.used().memory_bytes.saturating_sub(before);
        Ok(grown as f64 / count.max(1) as f64)
    }

    /// kill -9, start again, until the first message is delivered.
    pub async fn restart(&mut self) -> Result<Duration, Failure> {
        if let Some(processes) = self.processes.take() {
            processes.kill();
        }
        let start = Instant::now();
        self.up("backlog").await?;
        let up = Instant::now();
        while up.elapsed() < DELIVERY {
            let mut session = self.session("backlog").await?;
            if !session.receive(1).await?.is_empty() {
                return Ok(start.elapsed());
            }
        }
        Err("nothing is delivered after the restart: the backlog is lost".into())
    }
}

/// CPU time of the load generator.
fn own_cpu() -> Duration {
    overtake_perf::cpu::used_by(std::process::id()).unwrap_or_default()
}

async fn pause(tasks: &mut Tasks, duration: Duration) -> Result<(), Failure> {
    tokio::select! {
        () = tokio::time::sleep(duration) => Ok(()),
        Some(one) = tasks.join_next() => ended(one),
    }
}

/// Consumers: how many, how much each takes, how long it works on each message.
#[derive(Clone, Copy)]
struct Crew {
    consumers: usize,
    take: usize,
    work: Duration,
}

async fn consume(
    mut session: Box<dyn Session>,
    schedule: Schedule,
    crew: Crew,
    paced: Rc<RefCell<Paced>>,
    stop: Flag,
) -> Result<(), Failure> {
    let note = |taken: &[Delivered]| {
        let now = schedule.start.elapsed();
        let mut paced = paced.borrow_mut();
        for delivered in taken.iter().filter(|delivered| !delivered.due().is_zero() || delivered.level() == 0)
        {
            let latency = now.saturating_sub(delivered.due());
            paced.all.record(latency);
            if delivered.level() == 0 {
                paced.p0.record(latency);
            }
        }
    };
    let mut taken = session.receive(crew.take).await?;
    loop {
        note(&taken);
        if !crew.work.is_zero() {
            tokio::time::sleep(crew.work * taken.len() as u32).await;
        }
        let tokens: Vec<Token> = taken.into_iter().map(|delivered| delivered.token).collect();
        if stop.is_raised() {
            return if tokens.is_empty() { Ok(()) } else { session.ack(tokens).await };
        }
        taken = session.next(tokens, crew.take).await?;
    }
}

/// Sends what is due, what has gathered meanwhile in one call.
async fn produce(
    mut session: Box<dyn Session>,
    schedule: Schedule,
    batch: usize,
    mut due: mpsc::UnboundedReceiver<Message>,
    paced: Rc<RefCell<Paced>>,
) -> Result<(), Failure> {
    let mut messages = Vec::new();
    while due.recv_many(&mut messages, batch).await > 0 {
        session.enqueue(&messages).await?;
        let now = schedule.start.elapsed();
        let mut paced = paced.borrow_mut();
        for message in messages.drain(..) {
            let due = Delivered { body: message.body, token: Token::Number(0) }.due();
            paced.confirm.record(now.saturating_sub(due));
        }
    }
    Ok(())
}
