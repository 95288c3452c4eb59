//! Producers, consumers and an admin that use one queue of a server that may be killed at any moment, and write down
//! what they saw. Everything is drawn from a seed, so that a run can be made again; the moments are not.

use crate::client::{Client, Reply};
use crate::history::{Action, Call, Counts, Enqueue, EnqueueOutcome, SettleOutcome, What};
use crate::queue::Queue;
use crate::time::{now_ms, sleep_ms};
use overtake_base::random::Random;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::mem::discriminant;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

mod admin;
mod consumer;
mod producer;

pub use consumer::drain;

/// How many of each there are.
const PRODUCERS: u64 = 3;
const CONSUMERS: u64 = 3;
/// Pause after a connection error, so that a server that is down is not hammered.
const PAUSE_MS: u64 = 15;
/// Ids kept for the admin to look at and cancel.
const RECENT_MAX: usize = 64;

/// `max_deliveries` of the queue that the load is made for.
pub const MAX_DELIVERIES: u64 = 4;

/// The queue that the load is made for needs this configuration.
pub fn queue_config() -> Value {
    json!({"max_deliveries": MAX_DELIVERIES, "lease_s": 1})
}

/// A running load.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Call>>>,
}

/// What the actors share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    recent: Mutex<VecDeque<String>>,
    register: AtomicU64,
}

/// One actor: its queue over its own connections, its random stream, and what it saw.
#[derive(Debug)]
struct Actor {
    queue: Queue,
    random: Random,
    calls: Vec<Call>,
    shared: Arc<Shared>,
}

impl Load {
    /// Starts the actors on `queue` of the server at `address`; `side` is a queue whose configuration the admin
    /// changes all the time.
    pub fn start(address: SocketAddr, queue: &str, side: &str, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let actor = |concern: &str| Actor {
            queue: Queue::new(Client::new(address), queue),
            random: Random::new(seed, concern),
            calls: Vec::new(),
            shared: Arc::clone(&shared),
        };
        let mut threads = Vec::new();
        for number in 0..PRODUCERS {
            let actor = actor(&format!("producer {number}"));
            threads.push(std::thread::spawn(move || producer::run(actor)));
        }
        for number in 0..CONSUMERS {
            let actor = actor(&format!("consumer {number}"));
            threads.push(std::thread::spawn(move || consumer::run(actor)));
        }
        let (actor, side) = (actor("admin"), side.to_owned());
        threads.push(std::thread::spawn(move || admin::run(actor, &side)));
        Self { shared, threads }
    }

    /// The last value that the side queue's register (its `lease_s`) was answered to have.
    pub fn register(&self) -> u64 {
        self.shared.register.load(Ordering::SeqCst)
    }

    /// Fails if an actor has failed.
    #[track_caller]
    pub fn check_alive(&self) {
        assert!(!self.threads.iter().any(JoinHandle::is_finished), "an actor failed, see above");
    }

    /// Stops the actors; gives all they saw.
    pub fn finish(self) -> Vec<Call> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut calls = Vec::new();
        for thread in self.threads {
            calls.extend(thread.join().expect("an actor failed, see above"));
        }
        calls
    }
}

impl Actor {
    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.chance_ppm(percent * 10_000)
    }

    /// A call below the queue; None where no answer came. Gives its start and end too.
    fn post(&self, rest: &str, body: &Value) -> (u64, u64, Option<Reply>) {
        let start_ms = now_ms();
        let reply = self.queue.client().try_json("POST", &self.queue.path(rest), body).ok();
        let end_ms = now_ms();
        if reply.is_none() {
            sleep_ms(PAUSE_MS);
        }
        (start_ms, end_ms, reply)
    }

    fn record(&mut self, start_ms: u64, end_ms: u64, what: What) {
        self.calls.push(Call { start_ms, end_ms, what });
    }
}

/// The body that belongs to an id; its length varies with the id.
pub fn body_of(id: &str) -> Vec<u8> {
    let sum: usize = id.bytes().enumerate().map(|(at, byte)| (at + 1) * usize::from(byte)).sum();
    id.bytes().cycle().take(id.len() + sum % 3_000).collect()
}

/// How often what the checker looks for can have gone wrong: a history without it proves nothing.
pub fn coverage(history: &[Call]) -> BTreeMap<&'static str, usize> {
    let count = |test: &dyn Fn(&What) -> bool| history.iter().filter(|call| test(&call.what)).count();
    let settled = |wanted: Action, outcome: SettleOutcome| {
        count(&move |what| {
            matches!(what, What::Settle(settle)
                if settle.outcome == outcome && discriminant(&settle.action) == discriminant(&wanted))
        })
    };
    let enqueued =
        |test: fn(&Enqueue) -> bool| count(&|what| matches!(what, What::Enqueue(enqueue) if test(enqueue)));
    let (release, extend) = (Action::Release { delay_ms: 0 }, Action::Extend { lease_ms: 0 });
    BTreeMap::from([
        ("enqueues of unknown fate", enqueued(|e| e.outcome == EnqueueOutcome::Unknown)),
        ("duplicates", enqueued(|e| matches!(e.outcome, EnqueueOutcome::Accepted { duplicate: true, .. }))),
        ("delayed", enqueued(|e| e.due_ms > 0)),
        ("short lives", enqueued(|e| e.expires_in_ms.is_some())),
        ("acks", settled(Action::Ack, SettleOutcome::Ok)),
        ("acks rejected", settled(Action::Ack, SettleOutcome::Rejected)),
        ("acks of unknown fate", settled(Action::Ack, SettleOutcome::Unknown)),
        ("releases", settled(release, SettleOutcome::Ok)),
        ("releases rejected", settled(release, SettleOutcome::Rejected)),
        ("extensions", settled(extend, SettleOutcome::Ok)),
        ("cancels", count(&|what| matches!(what, What::Cancel { cancelled: Some(true), .. }))),
        ("redrives", count(&|what| matches!(what, What::Redrive))),
        ("looks", count(&|what| matches!(what, What::Stats(_)))),
        (
            "deliveries of a second and later time",
            count(
                &|what| matches!(what, What::Receive(deliveries) if deliveries.iter().any(|d| d.deliveries > 1)),
            ),
        ),
    ])
}

/// The counts of a stats answer.
pub fn counts_of(stats: &Value) -> Counts {
    crate::stats::check_stats(stats);
    let total = |name| crate::stats::total(stats, name);
    Counts {
        visible: crate::stats::sum_levels(stats, "visible"),
        delayed: crate::stats::sum_levels(stats, "delayed"),
        leased: crate::shape::count(stats, "leased"),
        dlq: crate::shape::count(stats, "dlq"),
        enqueued: total("enqueued"),
        acked: total("acked"),
        cancelled: total("cancelled"),
        purged: total("purged"),
        expired: total("expired"),
        deliveries: total("deliveries"),
    }
}
