//! A producer and a worker of the Rust client, and what they saw: the load of tests in which servers fail.

use crate::checker::check;
use crate::history::{
    Action, Call, Counts, Delivery, End, Enqueue, EnqueueOutcome, Settle, SettleOutcome, What,
};
use crate::load::{self, body_of};
use crate::queue::Queue;
use crate::shape::text;
use crate::{eventually, now_ms};
use overtake_base::Receipt;
use overtake_client::{
    Client, ClientError, Confirmation, ConnectOptions, Delivered, EnqueueMessage, HandlerError, MessageIds,
    Producer, ProducerOptions, Report, Worker, WorkerOptions,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Lease of the worker's messages.
const LEASE_S: u32 = 2;
/// Levels that messages are spread over.
const LEVELS: u32 = 5;

/// The two at work on one queue, on a thread of their own.
pub struct SdkLoad {
    seen: Seen,
    drained: oneshot::Sender<()>,
    thread: JoinHandle<Result<Report, ClientError>>,
}

impl SdkLoad {
    /// Starts them.
    pub fn start(options: ConnectOptions, queue: &str, pause: Duration) -> Self {
        let seen = Seen::default();
        let (drained, drain) = oneshot::channel::<()>();
        let (theirs, queue) = (seen.clone(), queue.to_owned());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let client = Client::connect(options).await?;
                let options = WorkerOptions { lease_s: LEASE_S, concurrency: 32, ..WorkerOptions::default() };
                let worker = Worker::start(client.clone(), &queue, options, {
                    let seen = theirs.clone();
                    move |message| seen.clone().work(message)
                });
                theirs.produce(client.clone(), &queue, pause).await;
                let _ = drain.await;
                let report = worker.stop().await;
                client.close().await;
                Ok(report)
            })
        });
        Self { seen, drained, thread }
    }

    /// Fails if they ended.
    #[track_caller]
    pub fn check_alive(&self) {
        assert!(!self.thread.is_finished(), "the clients ended");
    }

    /// The producer ends; the worker goes on.
    pub fn stop_producing(&self) {
        self.seen.stop.store(true, Ordering::SeqCst);
    }

    /// Ends both; gives all they saw, and what the worker says of itself.
    #[track_caller]
    pub fn finish(self) -> (Vec<Call>, Report) {
        self.stop_producing();
        drop(self.drained);
        let report = self.thread.join().expect("the clients' thread").expect("the clients worked");
        let calls = std::mem::take(&mut *self.seen.calls.lock().expect("nobody fails while it is held"));
        (calls, report)
    }

    /// Waits until the worker has done everything, ends both, takes what is left in the queue, and judges all of it. Gives
    /// what was seen, and what the queue counted.
    #[track_caller]
    pub fn judge(self, queue: &Queue, run: &str) -> (Vec<Call>, Counts) {
        eventually("the worker to be done with everything", || {
            let counts = load::counts_of(&queue.stats());
            (counts.visible + counts.delayed + counts.leased == 0).then_some(())
        });
        let (mut history, report) = self.finish();
        let (rest, counts) = load::drain(queue);
        history.extend(rest);
        let dead: BTreeSet<String> = queue.dlq().iter().map(|letter| text(letter, "id").to_owned()).collect();
        let end = End { live: BTreeSet::new(), dead, counts, max_deliveries: load::MAX_DELIVERIES };
        let violations = check(&history, &end);
        println!("{} calls, {report:?}, {counts:?}", history.len());
        assert!(violations.is_empty(), "{run} {violations:#?}");
        (history, counts)
    }
}

/// What they saw.
#[derive(Clone, Default)]
struct Seen {
    calls: Arc<Mutex<Vec<Call>>>,
    stop: Arc<AtomicBool>,
}

impl Seen {
    fn record(&self, start_ms: u64, end_ms: u64, what: What) {
        self.calls.lock().expect("nobody fails while it is held").push(Call { start_ms, end_ms, what });
    }

    /// Produces until the stop; gives every message's outcome.
    async fn produce(&self, client: Client, queue: &str, pause: Duration) {
        let options = ProducerOptions { batch_messages: 20, ..ProducerOptions::default() };
        let producer = Producer::new(client, queue, options);
        let mut ids = MessageIds::new();
        let mut waiting: Vec<(String, u64, Confirmation)> = Vec::new();
        let mut number = 0;
        while !self.stop.load(Ordering::SeqCst) {
            let id = ids.next_id();
            let (name, start_ms) = (id.to_string(), now_ms());
            let message = EnqueueMessage {
                priority: number % LEVELS,
                id: Some(id),
                body: body_of(&name).into(),
                ..EnqueueMessage::default()
            };
            number += 1;
            let confirmation = producer.send(message).await.expect("the message is valid");
            waiting.push((name, start_ms, confirmation));
            tokio::time::sleep(pause).await;
        }
        producer.close().await;
        for (id, start_ms, confirmation) in waiting {
            let outcome = match confirmation.await {
                Ok(stored) => {
                    EnqueueOutcome::Accepted { id: stored.id.to_string(), duplicate: stored.duplicate }
                }
                // Given up after a minute of trying.
                Err(_) => EnqueueOutcome::Unknown,
            };
            let enqueue = Enqueue { id, key: None, due_ms: 0, expires_in_ms: None, outcome };
            self.record(start_ms, now_ms(), What::Enqueue(enqueue));
        }
    }

    /// Works on a message: some fail, some take longer than their lease.
    async fn work(self, message: Delivered) -> Result<(), HandlerError> {
        let Receipt { deliveries, .. } = message.receipt;
        let id = message.id.to_string();
        let delivery = Delivery {
            receipt: message.receipt.to_string(),
            deliveries: u64::from(deliveries),
            lease_expires_at_ms: message.lease_expires_at.0,
            intact: message.body == body_of(&id),
            id: id.clone(),
        };
        // The receive took effect when the lease began; its answer may have been long on its way.
        let leased_ms = message.lease_expires_at.0.saturating_sub(u64::from(LEASE_S) * 1_000);
        self.record(leased_ms.min(now_ms()), now_ms(), What::Receive(vec![delivery]));
        let settle = |action| {
            let outcome = SettleOutcome::Unknown;
            let settle = Settle { id: id.clone(), deliveries: u64::from(deliveries), action, outcome };
            // Told to the server behind our back, and again until it is heard.
            self.record(now_ms(), u64::MAX, What::Settle(settle));
        };
        match message.id.0 % 50 {
            0 => tokio::time::sleep(Duration::from_millis(u64::from(LEASE_S) * 1_500)).await,
            1..4 if deliveries == 1 => {
                settle(Action::Release { delay_ms: 0 });
                return Err("fails at first".into());
            }
            _ => {}
        }
        settle(Action::Ack);
        Ok(())
    }
}
