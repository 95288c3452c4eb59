//! What idle connections cost a server in memory: `idle_connections [CONNECTIONS] [STREAMS]`, 10,000 with 4 streams each
//! (as many as the Rust client opens) where nothing is said.
//!
//! `OVERTAKE_BIN=target/release/overtake cargo run --release -p overtake-e2e --example idle_connections`

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_e2e::frames::{Stream, client_config, endpoint, hello};
use overtake_e2e::{Options, Server};
use quinn::{Connection, Endpoint};
use std::time::{Duration, Instant};

/// Connections of one client socket, and of one step of the report.
const STEP: usize = 1_000;
/// Handshakes under way at a time.
const AT_ONCE: usize = 50;

/// Connections with the socket they share.
type Step = (Endpoint, Vec<(Connection, Vec<Stream>)>);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let number =
        |at: usize, default| std::env::args().nth(at).map_or(default, |text| text.parse().expect("a number"));
    let (connections, streams) = (number(1, 10_000), number(2, 4));
    let server = Options { shards: Some(4), ..Options::default() }.start();
    let mut held: Vec<Step> = Vec::new();
    // The first connection pays for what all share.
    held.push(step(&server, 1, streams).await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (base, start) = (server.memory_bytes(), Instant::now());
    println!("{streams} streams each; {:.1} MiB with one connection", mib(base));
    let mut open = 0;
    while open < connections {
        let more = STEP.min(connections - open);
        held.push(step(&server, more, streams).await);
        open += more;
        report(&server, base, open, "just opened");
    }
    println!("opened in {:.1} s", start.elapsed().as_secs_f64());
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let alive =
            held.iter().flat_map(|(_, held)| held).filter(|(c, _)| c.close_reason().is_none()).count();
        report(&server, base, open, &format!("idle, {alive} alive"));
    }
}

async fn step(
    server: &Server,
    connections: usize,
    streams: usize,
) -> (Endpoint, Vec<(Connection, Vec<Stream>)>) {
    let (endpoint, config) = (endpoint(), client_config(server.data(), "overtake/1"));
    let mut open = Vec::new();
    while open.len() < connections {
        let some = AT_ONCE.min(connections - open.len());
        let connecting: Vec<_> = (0..some)
            .map(|_| endpoint.connect_with(config.clone(), server.quic(), "localhost").expect("a valid name"))
            .collect();
        for connecting in connecting {
            let connection = connecting.await.expect("a server that serves");
            let mut greeted = Vec::new();
            for _ in 0..streams {
                let mut stream = Stream::open(&connection).await;
                stream.send(&hello(1)).await;
                greeted.push(stream);
            }
            for stream in &mut greeted {
                stream.next().await.expect("a welcome");
            }
            open.push((connection, greeted));
        }
    }
    (endpoint, open)
}

fn report(server: &Server, base: u64, open: usize, what: &str) {
    let now = server.memory_bytes();
    let each = now.saturating_sub(base) / open as u64;
    println!("{open:>6} connections, {what}: {:.1} MiB, {:.1} KiB each", mib(now), each as f64 / 1024.0);
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
