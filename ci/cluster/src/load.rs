//! Clients that use one queue while nodes fail: they enqueue at a steady rate, repeat what was not answered under the
//! same ids, receive, and do with most messages what workers do, with some what bad workers do.

use crate::recorder::Recorder;
use overtake_base::UnixMillis;
use overtake_client::{Client, ClientError, ConnectOptions, Delivered};
use overtake_e2e::now_ms;
use overtake_sim::history::{Number, client_id, content, identify};
use overtake_wire::message::{
    Delay, EnqueueMessage, Extend, Receive, Release, Request, Response, Settle, Stats,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// Lease of what is received, in seconds: what a lost answer took along comes back after it.
pub const LEASE_S: u32 = 2;
/// Levels that messages are spread over.
const LEVELS: u64 = 5;
/// Messages of one request, at most.
const BATCH: u64 = 10;
/// Enqueues under way: so many that those of a shard without a leader do not hold up the others.
const IN_FLIGHT: usize = 400;
/// Receives that wait at a time, so that some are always on a node that lives.
const RECEIVERS: usize = 12;
const RECEIVE_MAX: u32 = 50;
/// A request is repeated for so long.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Pause before a repeat that no server asked for.
const PAUSE: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(100);

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Messages a second.
    pub per_s: u64,
    /// Bytes of a body.
    pub body_bytes: usize,
}

/// A delivery: of which shard, when it was there, when the message was first sent.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Its shard.
    pub shard: u16,
    /// When it was delivered, since the recording began.
    pub at_ns: u64,
    /// When its message was made.
    pub made_ns: u64,
}

/// The clients, on a thread of their own.
pub struct Load {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<(), ClientError>>,
}

struct Shared {
    recorder: Arc<Recorder>,
    queue: String,
    traffic: Traffic,
    /// Nothing more is made.
    stop: AtomicBool,
    /// Nothing more is received.
    done: AtomicBool,
    /// Messages that nobody answered for in all that time.
    given_up: AtomicU64,
    made_ns: Mutex<Vec<u64>>,
    seen: Sender<Seen>,
}

impl Load {
    /// Starts them. Deliveries are told as they come.
    #[must_use]
    pub fn start(
        options: ConnectOptions,
        recorder: Arc<Recorder>,
        queue: &str,
        traffic: Traffic,
        seen: Sender<Seen>,
    ) -> Self {
        let shared = Arc::new(Shared {
            recorder,
            queue: queue.to_owned(),
            traffic,
            stop: AtomicBool::new(false),
            done: AtomicBool::new(false),
            given_up: AtomicU64::new(0),
            made_ns: Mutex::default(),
            seen,
        });
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(theirs.run(options))
        });
        Self { shared, thread }
    }

    /// Fails if they ended.
    pub fn check_alive(&self) {
        assert!(!self.thread.is_finished(), "the clients ended");
    }

    /// Makes no more messages, and waits until every request is answered and the queue is empty, or it takes too long,
    /// which the end of the history then shows. Gives how many messages nobody answered for.
    ///
    /// # Panics
    /// Where no server could be reached at the beginning.
    #[must_use]
    pub fn finish(self) -> u64 {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the clients' thread").expect("servers");
        self.shared.given_up.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn run(self: Arc<Self>, options: ConnectOptions) -> Result<(), ClientError> {
        let producing = Client::connect(options.clone()).await?;
        let receiving = Client::connect(options).await?;
        let mut receivers = JoinSet::new();
        for _ in 0..RECEIVERS {
            receivers.spawn(self.clone().receive(receiving.clone()));
        }
        self.clone().produce(producing.clone()).await;
        let start = Instant::now();
        while !self.is_empty(&producing).await && start.elapsed() < GIVE_UP {
            tokio::time::sleep(LOOK).await;
        }
        self.done.store(true, Ordering::Relaxed);
        while receivers.join_next().await.is_some() {}
        producing.close().await;
        receiving.close().await;
        Ok(())
    }

    async fn is_empty(&self, client: &Client) -> bool {
        let there = |counts: &[u64]| counts.iter().sum::<u64>() > 0;
        match self.recorder.ask(client, Request::Stats { queue: self.queue.clone() }, Vec::new()).await {
            Ok(Response::Stats(Stats { visible, delayed, leased, .. })) => {
                !there(&visible) && !there(&delayed) && !there(&leased)
            }
            _ => false,
        }
    }

    async fn produce(self: Arc<Self>, client: Client) {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut tasks = JoinSet::new();
        let (begin, mut sent) = (Instant::now(), 0);
        while !self.stop.load(Ordering::Relaxed) {
            let due = (begin.elapsed().as_micros() as u64).saturating_mul(self.traffic.per_s) / 1_000_000;
            // What could not be sent for more than a second is not made up for.
            sent = sent.max(due.saturating_sub(self.traffic.per_s));
            while sent < due {
                let count = BATCH.min(due - sent);
                sent += count;
                let permit = permits.clone().acquire_owned().await.expect("it is never closed");
                let numbers = (0..count).map(|_| self.make()).collect();
                tasks.spawn(self.clone().enqueue(client.clone(), numbers, permit));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Most messages have an id of the client's; some have a key of their own instead, some come later.
    fn make(&self) -> Number {
        let number = self.recorder.make(|number| {
            let by_key = number % 32 == 9;
            let by_id = !by_key && number % 8 == 1;
            let (headers, body) = content(number, self.traffic.body_bytes, number % 8 == 3, by_id);
            EnqueueMessage {
                priority: (number % LEVELS) as u32,
                id: (!by_key).then(|| client_id(number, UnixMillis(now_ms()))),
                dedup_key: by_key.then(|| format!("key-{number}").into()),
                delay: if number % 16 == 5 { Delay::AfterS(1) } else { Delay::None },
                headers,
                body,
                ..EnqueueMessage::default()
            }
        });
        let mut made_ns = self.made_ns.lock().expect("held for moments");
        made_ns.resize(number as usize + 1, self.recorder.now_ns());
        number
    }

    /// Until each is answered for.
    async fn enqueue(self: Arc<Self>, client: Client, mut left: Vec<Number>, _permit: OwnedSemaphorePermit) {
        let start = Instant::now();
        while !left.is_empty() {
            let request = Request::Enqueue { queue: self.queue.clone(), messages: self.recorder.made(&left) };
            let mut pause = PAUSE;
            match self.recorder.ask(&client, request, left.clone()).await {
                Ok(Response::Enqueued { results }) => {
                    let mut outcomes = results.into_iter();
                    left.retain(|_| match outcomes.next() {
                        Some(Err(refusal)) => {
                            let error = ClientError::Refused(refusal);
                            pause = pause.max(error.retry_after());
                            error.passes()
                        }
                        _ => false,
                    });
                }
                Ok(_) => return,
                Err(error) if error.passes() => pause = pause.max(error.retry_after()),
                // The checker of refusals judges it.
                Err(_) => return,
            }
            if start.elapsed() > GIVE_UP {
                self.given_up.fetch_add(left.len() as u64, Ordering::Relaxed);
                return;
            }
            if !left.is_empty() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    async fn receive(self: Arc<Self>, client: Client) {
        let mut settling = JoinSet::new();
        while !self.done.load(Ordering::Relaxed) {
            let receive = Receive {
                max: RECEIVE_MAX,
                wait_s: 1,
                lease_s: Some(LEASE_S),
                ..Receive::new(self.queue.clone())
            };
            match self.recorder.ask(&client, Request::Receive(receive), Vec::new()).await {
                Ok(Response::Received { messages }) if !messages.is_empty() => {
                    self.tell(&messages);
                    settling.spawn(self.clone().work(client.clone(), messages));
                }
                Ok(_) => {}
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
            while settling.try_join_next().is_some() {}
        }
        while settling.join_next().await.is_some() {}
    }

    fn tell(&self, messages: &[Delivered]) {
        let at_ns = self.recorder.now_ns();
        for message in messages {
            let number = identify(message.id, &message.headers, &message.body);
            let made_ns = self.made_ns.lock().expect("held for moments");
            if let Some(made_ns) = number.and_then(|number| made_ns.get(number as usize).copied()) {
                let seen = Seen { shard: message.receipt.shard.0, at_ns, made_ns };
                // Nobody may listen any more.
                let _ = self.seen.send(seen);
            }
        }
    }

    /// Most are acked, some after more time was asked for; at first some are given back and some forgotten.
    async fn work(self: Arc<Self>, client: Client, messages: Vec<Delivered>) {
        let new = || Settle { queue: self.queue.clone(), ..Settle::default() };
        let (mut settle, mut before) = (new(), new());
        for message in &messages {
            let receipt = message.receipt.to_string();
            let number = identify(message.id, &message.headers, &message.body).unwrap_or(0);
            match number % 64 {
                7 if message.deliveries == 1 => {
                    settle.release.push(Release { receipt, delay_s: None, error: Some("not yet".into()) });
                }
                11 if message.deliveries == 1 => {}
                13 => {
                    before.extend.push(Extend { receipt: receipt.clone(), lease_s: 2 * LEASE_S });
                    settle.ack.push(receipt);
                }
                _ => settle.ack.push(receipt),
            }
        }
        for settle in [before, settle] {
            if !(settle.ack.is_empty() && settle.extend.is_empty() && settle.release.is_empty()) {
                self.settle(&client, settle).await;
            }
        }
    }

    /// Until it is answered.
    async fn settle(&self, client: &Client, settle: Settle) {
        let start = Instant::now();
        while start.elapsed() < GIVE_UP {
            match self.recorder.ask(client, Request::Settle(settle.clone()), Vec::new()).await {
                Err(error) if error.passes() => tokio::time::sleep(PAUSE.max(error.retry_after())).await,
                // The checker of refusals judges what it is.
                Ok(_) | Err(_) => return,
            }
        }
    }
}
