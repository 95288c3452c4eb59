//! A producer and a worker of the Rust client while the server is killed and the network fails: nothing that was
//! confirmed is lost, and nothing comes twice but as the contract allows.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_base::Receipt;
use overtake_base::random::Random;
use overtake_client::{
    Client, ClientError, Confirmation, ConnectOptions, Delivered, EnqueueMessage, HandlerError, MessageIds,
    Producer, ProducerOptions, Report, Worker, WorkerOptions,
};
use overtake_e2e::checker::check;
use overtake_e2e::history::{
    Action, Call, Delivery, End, Enqueue, EnqueueOutcome, Settle, SettleOutcome, What,
};
use overtake_e2e::load::{self, body_of};
use overtake_e2e::shape::text;
use overtake_e2e::time::sleep_ms;
use overtake_e2e::udp_proxy::UdpProxy;
use overtake_e2e::{Options, now_ms};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FAULTS: u32 = 16;
const LEASE_S: u32 = 2;
/// Longer than a client waits for a sign of life, so that it gives up its connections.
const OUTAGE_MS: u64 = 6_000;

/// What the client's side saw.
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
    async fn produce(self, client: Client) {
        let options = ProducerOptions { batch_messages: 20, ..ProducerOptions::default() };
        let producer = Producer::new(client, "chaos", options);
        let mut ids = MessageIds::new();
        let mut waiting: Vec<(String, u64, Confirmation)> = Vec::new();
        let mut number = 0;
        while !self.stop.load(Ordering::SeqCst) {
            let id = ids.next_id();
            let (name, start_ms) = (id.to_string(), now_ms());
            let message = EnqueueMessage {
                priority: number % 5,
                id: Some(id),
                body: body_of(&name).into(),
                ..EnqueueMessage::default()
            };
            number += 1;
            let confirmation = producer.send(message).await.expect("the message is valid");
            waiting.push((name, start_ms, confirmation));
            tokio::time::sleep(Duration::from_millis(3)).await;
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

fn on_runtime<T: Send + 'static>(
    run: impl Future<Output = T> + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(run)
    })
}

#[test]
fn a_producer_and_a_worker_lose_nothing_while_everything_fails() {
    let seed = now_ms();
    println!("seed {seed}");
    let mut server = Options { cores: 2, ..Options::default() }.start();
    let queue = server.create("chaos", load::queue_config());
    let proxy = UdpProxy::start(server.quic(), seed);
    let seen = Seen::default();
    let (drained, drain) = tokio::sync::oneshot::channel::<()>();
    let clients = on_runtime({
        let (seen, servers) = (seen.clone(), vec![proxy.address()]);
        let request_timeout = Duration::from_secs(3);
        async move {
            let options = ConnectOptions { servers, connections: 2, request_timeout, ..Default::default() };
            let client = Client::connect(options).await?;
            let options = WorkerOptions { lease_s: LEASE_S, concurrency: 32, ..WorkerOptions::default() };
            let worker = Worker::start(client.clone(), "chaos", options, {
                let seen = seen.clone();
                move |message| seen.clone().work(message)
            });
            seen.produce(client.clone()).await;
            let _ = drain.await;
            let report = worker.stop().await;
            client.close().await;
            Ok::<Report, ClientError>(report)
        }
    });
    let mut random = Random::new(seed, "faults");
    for fault in 0..FAULTS {
        sleep_ms(200 + random.below(500));
        assert!(!clients.is_finished(), "the clients ended: {:?}", clients.join());
        match fault % 8 {
            0 | 2 | 4 | 6 => {
                server.kill();
                sleep_ms(random.below(300));
                server.start_again();
            }
            1 => proxy.move_clients(),
            3 => {
                proxy.lose(1_000_000);
                sleep_ms(200 + random.below(1_000));
                proxy.lose(0);
            }
            5 => {
                proxy.lose(100_000);
                sleep_ms(1_000);
                proxy.lose(0);
            }
            _ => {
                proxy.lose(1_000_000);
                sleep_ms(if fault < 8 { OUTAGE_MS } else { 300 });
                proxy.lose(0);
            }
        }
    }
    seen.stop.store(true, Ordering::SeqCst);
    overtake_e2e::eventually("the worker to be done with everything", || {
        let stats = load::counts_of(&queue.stats());
        (stats.visible + stats.delayed + stats.leased == 0).then_some(())
    });
    drop(drained);
    let report = clients.join().expect("the clients' thread").expect("the clients worked");
    let mut history = core::mem::take(&mut *seen.calls.lock().expect("nobody fails while it is held"));
    let (rest, counts) = load::drain(&queue);
    history.extend(rest);
    let dead: BTreeSet<String> = queue.dlq().iter().map(|letter| text(letter, "id").to_owned()).collect();
    let end = End { live: BTreeSet::new(), dead, counts, max_deliveries: load::MAX_DELIVERIES };
    let violations = check(&history, &end);
    println!("{} calls, {report:?}, {counts:?}", history.len());
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");

    let mut count: BTreeMap<&str, u64> = BTreeMap::new();
    for call in &history {
        let what = match &call.what {
            What::Enqueue(Enqueue { outcome: EnqueueOutcome::Accepted { duplicate: true, .. }, .. }) => {
                "stored by a try whose answer was lost"
            }
            What::Enqueue(Enqueue { outcome: EnqueueOutcome::Accepted { .. }, .. }) => "stored",
            What::Enqueue(_) => "given up",
            What::Receive(deliveries) if deliveries.iter().any(|d| d.deliveries > 1) => "delivered again",
            _ => continue,
        };
        *count.entry(what).or_default() += 1;
    }
    println!("{count:?}");
    let of = |what| count.get(what).copied().unwrap_or(0);
    assert_eq!(of("given up"), 0, "a minute of trying is longer than any fault: {count:?}");
    assert!(of("stored") > 500 && of("delivered again") > 10, "the run tried too little: {count:?}");
}
