//! What three nodes on this machine do: the time of an urgent message at a steady rate, and full cycles a second against one
//! node. How long shards are away when a leader is lost is measured by `ci/cluster`.
//!
//! ```sh
//! cargo build --release -p overtake
//! OVERTAKE_BIN=target/release/overtake cargo run --release -p overtake-e2e --example cluster_measure -- latency 2000
//! ... -- cycles
//! ```

#![allow(clippy::expect_used, reason = "a failed expectation is how a measurement ends")]

use overtake_client::{
    Client, ConnectOptions, EnqueueMessage, MessageIds, Producer, ProducerOptions, Receive, Settle,
};
use overtake_e2e::Options;
use overtake_e2e::cluster::Cluster;
use overtake_e2e::time::sleep_ms;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SHARDS: u16 = 12;
const QUEUE: &str = "measured";
const BODY_BYTES: usize = 100;
/// Receives that wait at a time, so that some are always on a node that lives.
const RECEIVERS: usize = 12;

/// One delivery: how long it was on its way, where that is known.
#[derive(Clone, Copy)]
struct Seen(Option<Duration>);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    seen: Mutex<Vec<Seen>>,
    sent: Mutex<BTreeMap<u128, Instant>>,
    failed: AtomicU64,
    acked: AtomicU64,
}

fn main() {
    let word = |at: usize| std::env::args().nth(at);
    let number = |at: usize, default: u64| word(at).map_or(default, |text| text.parse().expect("a number"));
    match word(1).as_deref() {
        Some("latency") => latency(number(2, 2_000), number(3, 20)),
        Some("cycles") => cycles(number(2, 10)),
        _ => println!("cluster_measure latency [RATE] [SECONDS] | cycles [SECONDS]"),
    }
}

fn options(servers: Vec<SocketAddr>) -> ConnectOptions {
    let servers = servers.into_iter().map(Into::into).collect();
    ConnectOptions { servers, request_timeout: Duration::from_secs(10), ..ConnectOptions::default() }
}

fn start_cluster() -> Cluster {
    let mut cluster = Cluster::prepare(3, SHARDS, 1);
    (0..3).for_each(|node| cluster.launch(node));
    cluster.wait_until_all_are_ready();
    cluster.create(QUEUE, serde_json::json!({"lease_s": 60}));
    wait_for_balance(&cluster);
    cluster
}

fn wait_for_balance(cluster: &Cluster) {
    let start = Instant::now();
    while cluster.leads(0) != [usize::from(SHARDS / 3); 3] && start.elapsed() < Duration::from_secs(40) {
        sleep_ms(100);
    }
}

/// Sends urgent messages at a steady rate and takes them, on a thread of its own.
fn steady(servers: Vec<SocketAddr>, rate: u64, shared: &Arc<Shared>) -> JoinHandle<()> {
    let shared = shared.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let client = Client::connect(options(servers.clone())).await.expect("a cluster");
            let receiving = Client::connect(options(servers)).await.expect("a cluster");
            for _ in 0..RECEIVERS {
                tokio::spawn(receive(receiving.clone(), shared.clone(), 50, false));
            }
            produce(client, rate, shared).await;
        });
    })
}

async fn produce(client: Client, rate: u64, shared: Arc<Shared>) {
    let options = ProducerOptions { linger: Duration::ZERO, in_flight: 64, ..ProducerOptions::default() };
    let producer = Producer::new(client, QUEUE, options);
    let (mut ids, start, mut count) = (MessageIds::new(), Instant::now(), 0_u64);
    while !shared.stop.load(Ordering::Relaxed) {
        let due = (start.elapsed().as_micros() as u64).saturating_mul(rate) / 1_000_000;
        while count < due {
            count += 1;
            let id = ids.next_id();
            shared.sent.lock().expect("held for moments").insert(id.0, Instant::now());
            let body = vec![b'x'; BODY_BYTES].into();
            let message = EnqueueMessage { priority: 0, id: Some(id), body, ..EnqueueMessage::default() };
            let confirmation = producer.send(message).await.expect("a valid message");
            let shared = shared.clone();
            tokio::spawn(async move {
                shared.failed.fetch_add(u64::from(confirmation.await.is_err()), Ordering::Relaxed);
            });
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    producer.close().await;
}

/// Receives and acks for as long as it goes on; acks behind its own back, or before it asks for more.
async fn receive(client: Client, shared: Arc<Shared>, max: u32, ack_first: bool) {
    while !shared.stop.load(Ordering::Relaxed) {
        let asked = Receive { max, wait_s: 1, ..Receive::new(QUEUE) };
        let Ok(messages) = client.receive(asked).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let at = Instant::now();
        for message in &messages {
            let begun = shared.sent.lock().expect("held for moments").remove(&message.id.0);
            shared.seen.lock().expect("held for moments").push(Seen(begun.map(|begun| at - begun)));
        }
        let count = messages.len() as u64;
        if count == 0 {
            continue;
        }
        let ack = messages.iter().map(|message| message.receipt.to_string()).collect();
        let settle = Settle { queue: QUEUE.into(), ack, ..Settle::default() };
        let (client, shared) = (client.clone(), shared.clone());
        let acking = async move {
            while client.settle(settle.clone()).await.is_err() && !shared.stop.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            shared.acked.fetch_add(count, Ordering::Relaxed);
        };
        if ack_first {
            acking.await;
        } else {
            tokio::spawn(acking);
        }
    }
}

fn latency(rate: u64, seconds: u64) {
    let cluster = start_cluster();
    println!("three nodes, {rate} urgent messages a second for {seconds} s");
    latency_of(cluster.servers(), rate, seconds);
    drop(cluster);
    let server = Options { shards: Some(SHARDS), ..Options::default() }.start();
    drop(server.create(QUEUE, serde_json::json!({"lease_s": 60})));
    println!("one node, the same");
    latency_of(vec![server.quic()], rate, seconds);
}

fn latency_of(servers: Vec<SocketAddr>, rate: u64, seconds: u64) {
    let shared = Arc::new(Shared::default());
    let load = steady(servers, rate, &shared);
    sleep_ms(3_000);
    shared.seen.lock().expect("held for moments").clear();
    sleep_ms(seconds * 1_000);
    let seen = core::mem::take(&mut *shared.seen.lock().expect("held for moments"));
    shared.stop.store(true, Ordering::Relaxed);
    load.join().expect("the load");
    let mut took: Vec<u128> = seen.iter().filter_map(|seen| seen.0).map(|took| took.as_micros()).collect();
    println!("{} deliveries a second", seen.len() as u64 / seconds);
    show("enqueue to delivery", &mut took);
}

fn cycles(seconds: u64) {
    let cluster = start_cluster();
    let three = cycles_of(cluster.servers(), seconds);
    drop(cluster);
    let server = Options { shards: Some(SHARDS), ..Options::default() }.start();
    drop(server.create(QUEUE, serde_json::json!({"lease_s": 60})));
    let one = cycles_of(vec![server.quic()], seconds);
    println!("three nodes {three}/s, one node {one}/s: {:.2}", three as f64 / one as f64);
}

/// Full cycles a second, as many as it can.
fn cycles_of(servers: Vec<SocketAddr>, seconds: u64) -> u64 {
    const AT_ONCE: usize = 16;
    const BATCH: usize = 100;
    let shared = Arc::new(Shared::default());
    let theirs = shared.clone();
    let load = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let client = Client::connect(options(servers)).await.expect("servers");
            for _ in 0..AT_ONCE {
                tokio::spawn(receive(client.clone(), theirs.clone(), BATCH as u32, true));
            }
            let mut producers = Vec::new();
            for _ in 0..AT_ONCE {
                let (client, shared) = (client.clone(), theirs.clone());
                producers.push(tokio::spawn(async move {
                    while !shared.stop.load(Ordering::Relaxed) {
                        let message = || EnqueueMessage {
                            priority: 2,
                            body: vec![b'x'; BODY_BYTES].into(),
                            ..EnqueueMessage::default()
                        };
                        let batch = (0..BATCH).map(|_| message()).collect();
                        let failed = client.enqueue(QUEUE, batch).await.is_err();
                        shared.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
                    }
                }));
            }
            for producer in producers {
                let _ = producer.await;
            }
        });
    });
    sleep_ms(2_000);
    let (before, begin) = (shared.acked.load(Ordering::Relaxed), Instant::now());
    sleep_ms(seconds * 1_000);
    let done = shared.acked.load(Ordering::Relaxed) - before;
    let rate = (done as f64 / begin.elapsed().as_secs_f64()) as u64;
    shared.stop.store(true, Ordering::Relaxed);
    load.join().expect("the load");
    println!("{rate} cycles a second, {} failed enqueues", shared.failed.load(Ordering::Relaxed));
    rate
}

fn show(what: &str, micros: &mut [u128]) {
    micros.sort_unstable();
    let at = |share: f64| micros.get(((micros.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(0);
    let ms = |micros: u128| micros as f64 / 1_000.0;
    println!(
        "{what}: {} measured, p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms",
        micros.len(),
        ms(at(0.5)),
        ms(at(0.99)),
        ms(at(1.0))
    );
}
