//! What three nodes on this machine do: time until the shards of a leader that was killed, or stands still, deliver again,
//! the time of an urgent message at a steady rate, and full cycles a second against one node.
//!
//! ```sh
//! cargo build --release -p overtake
//! OVERTAKE_BIN=target/release/overtake cargo run --release -p overtake-e2e --example cluster_measure -- failover 20
//! ... -- standstill 20
//! ... -- latency 2000
//! ... -- cycles
//! ```

#![allow(clippy::expect_used, reason = "a failed expectation is how a measurement ends")]

use overtake_client::{
    Client, ConnectOptions, EnqueueMessage, MessageIds, Producer, ProducerOptions, Receive, Settle,
};
use overtake_e2e::cluster::Cluster;
use overtake_e2e::time::sleep_ms;
use overtake_e2e::{Options, now_ms};
use std::collections::{BTreeMap, BTreeSet};
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
/// A killed leader's shards are given up on after so long.
const GIVE_UP: Duration = Duration::from_secs(20);

/// One delivery: when, of which shard, enqueued when (Unix ms), and how long it was on its way.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    shard: u16,
    enqueued_ms: u64,
    took: Option<Duration>,
}

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
        Some("failover") => failover(number(2, 20), number(3, 1_000), Fault::Kill),
        Some("standstill") => failover(number(2, 20), number(3, 1_000), Fault::Stop),
        Some("latency") => latency(number(2, 2_000), number(3, 20)),
        Some("cycles") => cycles(number(2, 10)),
        _ => {
            println!(
                "cluster_measure failover|standstill [TIMES] [RATE] | latency [RATE] [SECONDS] | cycles [SECONDS]"
            )
        }
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
            let seen = Seen {
                at,
                shard: message.receipt.shard.0,
                enqueued_ms: message.id.time_ms(),
                took: begun.map(|begun| at - begun),
            };
            shared.seen.lock().expect("held for moments").push(seen);
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

/// What is done to a leader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// kill -9.
    Kill,
    /// SIGSTOP: it holds its sockets and says nothing.
    Stop,
}

fn failover(kills: u64, rate: u64, fault: Fault) {
    let mut cluster = start_cluster();
    let shared = Arc::new(Shared::default());
    let load = steady(cluster.servers(), rate, &shared);
    sleep_ms(2_000);
    let (mut all_shards, mut worst) = (Vec::new(), Vec::new());
    for kill in 0..kills {
        wait_for_balance(&cluster);
        sleep_ms(500);
        let victim = (kill % 3) as usize;
        let led = led_by(&cluster, (victim + 1) % 3, victim as u64 + 1);
        shared.seen.lock().expect("held for moments").clear();
        let (begin, begin_ms) = (Instant::now(), now_ms());
        match fault {
            Fault::Kill => cluster.kill(victim),
            Fault::Stop => cluster.pause(victim),
        }
        let mut back: BTreeMap<u16, Duration> = BTreeMap::new();
        while back.len() < led.len() && begin.elapsed() < GIVE_UP {
            sleep_ms(5);
            for seen in shared.seen.lock().expect("held for moments").drain(..) {
                // What was enqueued before the kill may have been on its way already.
                if led.contains(&seen.shard) && seen.enqueued_ms > begin_ms && seen.at > begin {
                    back.entry(seen.shard).or_insert(seen.at - begin);
                }
            }
        }
        let last = back.values().max().copied().unwrap_or(GIVE_UP);
        println!(
            "fault {kill} of node {}: {} shards, all {} deliver again after {} ms",
            victim + 1,
            led.len(),
            back.len(),
            last.as_millis()
        );
        all_shards.extend(back.values().map(Duration::as_micros));
        worst.push(last.as_micros());
        match fault {
            Fault::Kill => cluster.launch(victim),
            Fault::Stop => cluster.resume(victim),
        }
        cluster.wait_until_ready(victim);
    }
    shared.stop.store(true, Ordering::Relaxed);
    load.join().expect("the load");
    show("each shard", &mut all_shards);
    show("the last shard of a fault", &mut worst);
    println!("enqueues that failed at the client: {}", shared.failed.load(Ordering::Relaxed));
}

fn led_by(cluster: &Cluster, seen_by: usize, id: u64) -> BTreeSet<u16> {
    let status = cluster.client(seen_by).get("/v1/cluster");
    let shards = status["shards"].as_array().expect("a list").clone();
    let led = shards.iter().filter(|shard| shard["leader"] == id);
    led.map(|shard| shard["shard"].as_u64().expect("a number") as u16).collect()
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
    let mut took: Vec<u128> = seen.iter().filter_map(|seen| seen.took).map(|took| took.as_micros()).collect();
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
