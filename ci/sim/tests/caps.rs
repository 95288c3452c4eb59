//! Rate caps in virtual time, on one shard and on several, on one core and on several: what is held back holds nobody
//! else back, no more gets through than is allowed, whoever waits is woken in time, and waiting writes nothing.

mod client;

use client::Client;
use overtake_base::QueueConfigPatch;
use overtake_base::queue_config::{RateCaps, Scheduling};
use overtake_sim::world::Notice;
use overtake_wire::message::{EnqueueMessage, Receive, Request, Response};

/// Cores, shards of the node, shards of the queue.
const SHAPES: [(u16, u16, u16); 4] = [(1, 1, 1), (2, 8, 1), (1, 8, 8), (2, 8, 8)];

fn caps(queue: Option<u64>, levels: &[(u8, u64)]) -> Option<Option<RateCaps>> {
    Some(Some(RateCaps { queue, levels: levels.iter().copied().collect() }))
}

fn patch(shards: u16, rate_caps: Option<Option<RateCaps>>) -> QueueConfigPatch {
    QueueConfigPatch { shards: Some(Some(shards)), rate_caps, ..QueueConfigPatch::default() }
}

fn wait(max: u32, wait_s: u32) -> Receive {
    Receive { max, wait_s, ..Receive::new("capped") }
}

#[test]
fn a_level_that_is_held_back_holds_nobody_up() {
    for (cores, node_shards, shards) in SHAPES {
        for scheduling in [Scheduling::Weighted, Scheduling::Aging, Scheduling::Strict] {
            let mut client = Client::new(1, cores, node_shards);
            let config = QueueConfigPatch {
                scheduling: Some(Some(scheduling)),
                ..patch(shards, caps(None, &[(0, 0)]))
            };
            client.put("capped", config);
            client.fill("capped", 0, 20);
            client.fill("capped", 3, 20);
            for n in 0..20 {
                let before_ns = client.world.time_ns();
                let messages = client.received(wait(1, 5));
                assert_eq!(messages.len(), 1, "{n}: {cores} cores, {shards} shards, {scheduling:?}");
                assert_eq!(messages[0].priority, 3);
                assert!(client.world.time_ns() - before_ns < 100_000_000);
            }
            client.pass(200);
            assert_eq!(client.received(wait(1, 0)), []);
            let totals = client.stats("capped").totals;
            assert_eq!(
                (totals.deliveries, totals.inversions),
                (20, 0),
                "what a cap holds back is not passed over"
            );
        }
    }
}

#[test]
fn a_waiter_that_is_held_back_holds_nobody_up() {
    for (cores, node_shards, shards) in SHAPES {
        for seed in 0..5 {
            let mut client = Client::new(seed, cores, node_shards);
            client.put("capped", patch(shards, caps(None, &[(0, 0)])));
            client.fill("capped", 0, 20);
            let only_level_0 =
                client.send(&Request::Receive(Receive { max_priority: Some(0), ..wait(1, 20) }));
            client.pass(100);
            let first = client.send(&Request::Receive(wait(1, 20)));
            client.pass(100);
            let second = client.send(&Request::Receive(wait(1, 20)));
            client.pass(100);
            for (n, waiter) in [first, second].into_iter().enumerate() {
                let before_ns = client.world.time_ns();
                // The waiter may be answered before the enqueue is.
                let message = EnqueueMessage { priority: 2, ..EnqueueMessage::default() };
                client.send(&Request::Enqueue { queue: "capped".into(), messages: vec![message] });
                let Response::Received { messages } = client.answer(waiter) else { panic!("refused") };
                assert_eq!(messages.len(), 1, "waiter {n}: {cores} cores, {shards} shards");
                assert_eq!(messages[0].priority, 2);
                assert!(client.world.time_ns() - before_ns < 200_000_000);
            }
            let no_caps = patch(shards, Some(None));
            client.send(&Request::PutQueue { queue: "capped".into(), patch: no_caps });
            let Response::Received { messages } = client.answer(only_level_0) else { panic!("refused") };
            assert_eq!(messages.len(), 1, "the cap is gone: {cores} cores, {shards} shards");
        }
    }
}

#[test]
fn no_more_is_delivered_than_the_caps_allow() {
    const PER_S: u64 = 20;
    const SECONDS: u64 = 20;
    for (cores, node_shards, shards) in SHAPES {
        for of_queue in [false, true] {
            let mut client = Client::new(7, cores, node_shards);
            let rate_caps = if of_queue { caps(Some(PER_S), &[]) } else { caps(None, &[(0, PER_S)]) };
            client.put("capped", patch(shards, rate_caps));
            for _ in 0..10 {
                client.fill("capped", 0, 100);
                client.fill("capped", 3, 100);
            }
            let sessions: Vec<_> = (0..4).map(|_| client.world.connect()).collect();
            let (mut request, mut capped, mut others) = (0, 0u64, 0u64);
            let start_ns = client.world.time_ns();
            for session in &sessions {
                request += 1;
                assert!(client.world.send(*session, request, &Request::Receive(wait(3, 20))));
            }
            client.world.set_timer(SECONDS * 1_000_000_000, 9);
            loop {
                match client.world.next_notice() {
                    Some(Notice::Response { session, response: Response::Received { messages }, .. }) => {
                        let of_level_0 =
                            messages.iter().filter(|m| m.priority == 0 || of_queue).count() as u64;
                        capped += of_level_0;
                        others += messages.len() as u64 - of_level_0;
                        let seconds = (client.world.time_ns() - start_ns) as f64 / 1e9;
                        let allowed = PER_S as f64 * (seconds + 1.0) * 1.05 + 1.0;
                        assert!(
                            capped as f64 <= allowed,
                            "{capped} after {seconds} s: {cores} cores, {shards} shards"
                        );
                        // As a worker would, each takes its time.
                        request += 1;
                        assert!(client.world.send(session, request, &Request::Receive(wait(3, 20))));
                    }
                    Some(Notice::Timer { number: 9 }) => break,
                    Some(_) => {}
                    None => panic!("{:?}", client.world.fatal),
                }
            }
            assert!(
                capped >= PER_S * SECONDS * 95 / 100,
                "{capped}: {cores} cores, {shards} shards, {of_queue}"
            );
            assert_eq!(
                (others, client.stats("capped").totals.inversions),
                (if of_queue { 0 } else { 1_000 }, 0)
            );
        }
    }
}

#[test]
fn a_waiter_is_woken_when_the_cap_allows_it() {
    for (cores, node_shards, shards) in SHAPES {
        for rate_caps in [caps(Some(2), &[]), caps(None, &[(1, 2)])] {
            let mut client = Client::new(3, cores, node_shards);
            client.put("capped", patch(shards, rate_caps));
            client.fill("capped", 1, 40);
            while !client.received(wait(10, 0)).is_empty() {}
            for _ in 0..5 {
                let before_ns = client.world.time_ns();
                assert_eq!(client.received(wait(10, 20)).len(), 1);
                let waited_ms = (client.world.time_ns() - before_ns) / 1_000_000;
                assert!((300..=700).contains(&waited_ms), "{waited_ms} ms: {cores} cores, {shards} shards");
            }
        }
    }
}

#[test]
fn waiting_at_a_cap_writes_nothing() {
    for (cores, node_shards, shards) in SHAPES {
        for rate_caps in [caps(Some(0), &[]), caps(None, &[(0, 0)])] {
            let mut client = Client::new(4, cores, node_shards);
            client.put("capped", patch(shards, rate_caps));
            client.fill("capped", 0, 50);
            let waiters = (0..5).map(|_| client.send(&Request::Receive(wait(1, 20)))).collect::<Vec<_>>();
            client.pass(1_000);
            let before = client.disk_writes();
            client.pass(15_000);
            assert_eq!(client.disk_writes(), before, "{cores} cores, {shards} shards");
            for waiter in waiters {
                let Response::Received { messages } = client.answer(waiter) else { panic!("refused") };
                assert_eq!(messages, []);
            }
        }
    }
}
