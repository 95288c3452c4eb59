//! One node's contract in virtual time, end to end through cores, log, raft and journal: the paths that need several
//! cores, waiting, or a restart.

use overtake_core::{ColdConfig, SessionId};
use overtake_sim::disk::DiskProfile;
use overtake_sim::node::NodeShape;
use overtake_sim::world::{Notice, World};
use overtake_wire::message::{
    EnqueueMessage, Enqueued, Receive, Refusal, Request, Response, Settle, Settled, Stats,
};

fn shape(cores: u16, shards: u16) -> NodeShape {
    NodeShape {
        cores,
        shards,
        cache_bytes: 64 * 1024,
        checkpoint_bytes: 256 * 1024,
        writes_in_flight_max: 4,
        cold: ColdConfig { lane_file_bytes: 1024 * 1024, ..ColdConfig::of_cores(cores) },
        disk: DiskProfile::default(),
    }
}

/// One client, asking one thing after the other.
struct Client {
    world: World,
    session: SessionId,
    request: u64,
}

impl Client {
    fn new(seed: u64, cores: u16, shards: u16) -> Self {
        let mut world = World::new(seed, shape(cores, shards));
        let session = world.connect();
        let mut client = Self { world, session, request: 0 };
        client.until_serving();
        client
    }

    fn until_serving(&mut self) {
        for _ in 0..1_000 {
            if self.world.node.is_serving() {
                return;
            }
            self.world.set_timer(1_000_000, u64::MAX);
            self.world.next_notice();
        }
        panic!("the node does not serve: {:?}", self.world.fatal);
    }

    fn ask(&mut self, body: &Request) -> Response {
        let request = self.send(body);
        self.answer(request)
    }

    fn send(&mut self, body: &Request) -> u64 {
        self.request += 1;
        assert!(self.world.send(self.session, self.request, body));
        self.request
    }

    fn answer(&mut self, wanted: u64) -> Response {
        loop {
            match self.world.next_notice() {
                Some(Notice::Response { request, response, .. }) if request == wanted => return response,
                Some(_) => {}
                None => panic!("no answer will ever come: {:?}", self.world.fatal),
            }
        }
    }

    fn enqueue(&mut self, queue: &str, priority: u32, body: &str) -> Result<Enqueued, Refusal> {
        let message = EnqueueMessage { priority, body: body.to_owned().into(), ..EnqueueMessage::default() };
        match self.ask(&Request::Enqueue { queue: queue.into(), messages: vec![message] }) {
            Response::Enqueued { mut results } => results.remove(0),
            Response::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    fn receive(&mut self, queue: &str, max: u32, wait_s: u32) -> Vec<overtake_wire::message::Delivered> {
        let receive =
            Receive { queue: queue.into(), max, wait_s, lease_s: None, max_priority: None, worker: None };
        match self.ask(&Request::Receive(receive)) {
            Response::Received { messages } => messages,
            other => panic!("{other:?}"),
        }
    }

    fn ack(&mut self, queue: &str, receipt: String) -> Settled {
        match self.ask(&Request::Settle(Settle {
            queue: queue.into(),
            ack: vec![receipt],
            ..Settle::default()
        })) {
            Response::Settled { ack, .. } => ack[0],
            other => panic!("{other:?}"),
        }
    }

    fn stats(&mut self, queue: &str) -> Stats {
        match self.ask(&Request::Stats { queue: queue.into() }) {
            Response::Stats(stats) => stats,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_enqueued_is_received_most_urgent_first_and_acked() {
    for (cores, shards) in [(1, 1), (1, 8), (2, 8), (3, 5)] {
        let mut client = Client::new(1, cores, shards);
        for n in 0..20u32 {
            client.enqueue("work", n % 5, &format!("body {n}")).unwrap();
        }
        let mut seen = 0;
        while seen < 20 {
            let messages = client.receive("work", 7, 0);
            assert!(!messages.is_empty(), "{cores} cores, {shards} shards: {seen} seen");
            for message in messages {
                assert!(message.body.starts_with(b"body "));
                assert_eq!(client.ack("work", message.receipt.to_string()), Settled::Ok);
                assert_eq!(client.ack("work", message.receipt.to_string()), Settled::Unknown);
                seen += 1;
            }
        }
        assert!(client.receive("work", 7, 0).is_empty());
        let stats = client.stats("work");
        assert_eq!((stats.totals.enqueued, stats.totals.acked, stats.totals.deliveries), (20, 20, 20));
    }
}

#[test]
fn what_was_answered_survives_a_power_loss() {
    for seed in 0..20 {
        let mut client = Client::new(seed, 2, 4);
        let mut ids = Vec::new();
        for n in 0..50u32 {
            ids.push(client.enqueue("work", n % 5, &"x".repeat(n as usize * 100)).unwrap().id);
        }
        let first = client.receive("work", 10, 0);
        for message in &first {
            assert_eq!(client.ack("work", message.receipt.to_string()), Settled::Ok);
            ids.retain(|id| *id != message.id);
        }
        client.world.crash();
        client.world.start();
        client.session = client.world.connect();
        client.until_serving();
        let mut back = Vec::new();
        loop {
            let messages = client.receive("work", 100, 0);
            if messages.is_empty() {
                break;
            }
            back.extend(messages.iter().map(|message| message.id));
        }
        back.sort();
        ids.sort();
        assert_eq!(back, ids, "seed {seed}");
    }
}

#[test]
fn a_waiting_receive_wakes_and_the_longest_waiter_is_first() {
    for seed in 0..20 {
        let mut client = Client::new(seed, 2, 8);
        client.enqueue("work", 0, "first").unwrap();
        client.receive("work", 1, 0);
        let wait = || {
            Request::Receive(Receive {
                queue: "work".into(),
                max: 10,
                wait_s: 5,
                lease_s: None,
                max_priority: None,
                worker: None,
            })
        };
        let one = client.send(&wait());
        client.world.set_timer(50_000_000, 1);
        while !matches!(client.world.next_notice(), Some(Notice::Timer { .. })) {}
        let other_session = client.world.connect();
        assert!(client.world.send(other_session, 1, &wait()));
        client.world.set_timer(50_000_000, 2);
        while !matches!(client.world.next_notice(), Some(Notice::Timer { .. })) {}
        client.enqueue("work", 3, "for the first").unwrap();
        let response = client.answer(one);
        let Response::Received { messages } = response else { panic!("{response:?}") };
        assert_eq!(&messages[0].body[..], b"for the first");
        // A waiter that is gone holds no lease.
        client.world.disconnect(other_session);
        client.enqueue("work", 3, "for nobody").unwrap();
        let stats = client.stats("work");
        assert_eq!(stats.visible.iter().sum::<u64>(), 1, "seed {seed}: {stats:?}");
    }
}

#[test]
fn a_wait_ends_after_its_time_with_nothing() {
    let mut client = Client::new(3, 2, 4);
    client.enqueue("work", 0, "x").unwrap();
    client.receive("work", 1, 0);
    let before = client.world.time_ns();
    assert!(client.receive("work", 1, 2).is_empty());
    let waited_ms = (client.world.time_ns() - before) / 1_000_000;
    assert!((2_000..2_100).contains(&waited_ms), "{waited_ms}");
}

#[test]
fn a_lease_that_runs_out_comes_back_with_one_more_delivery() {
    let mut client = Client::new(4, 2, 4);
    client.enqueue("work", 0, "x").unwrap();
    let first = client.receive("work", 1, 0).remove(0);
    let before = client.world.now().wall;
    let second = client.receive("work", 1, 20);
    assert!(second.is_empty(), "the default lease is 30 s");
    let second = client.receive("work", 1, 20).remove(0);
    assert_eq!((second.id, second.deliveries), (first.id, 2));
    let after = client.world.now().wall;
    assert!(after.since(before) >= 29_990 && after >= first.lease_expires_at);
    assert_eq!(client.ack("work", first.receipt.to_string()), Settled::Stale);
    assert_eq!(client.ack("work", second.receipt.to_string()), Settled::Ok);
}

#[test]
fn depth_over_several_shards_is_exact_both_ways() {
    use overtake_base::QueueConfigPatch;
    for seed in 0..10 {
        let mut client = Client::new(seed, 2, 8);
        let patch = QueueConfigPatch { max_depth: Some(Some(5)), ..QueueConfigPatch::default() };
        assert!(matches!(
            client.ask(&Request::PutQueue { queue: "small".into(), patch }),
            Response::QueuePut { created: true, .. }
        ));
        for n in 0..5 {
            client.enqueue("small", 0, &format!("{n}")).unwrap();
        }
        let refusal = client.enqueue("small", 0, "one too many").unwrap_err();
        assert_eq!(refusal.code, overtake_wire::message::ErrorCode::Depth);
        let message = client.receive("small", 1, 0).remove(0);
        assert!(client.enqueue("small", 0, "a lease makes no room").is_err());
        client.ack("small", message.receipt.to_string());
        client.enqueue("small", 0, "an ack does").unwrap();
        assert!(client.enqueue("small", 0, "full again").is_err());
        assert_eq!(client.stats("small").totals.refused_depth, 3);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let run = |seed| {
        let mut client = Client::new(seed, 2, 8);
        for n in 0..30u32 {
            client.enqueue("work", n % 5, "x").unwrap();
        }
        client.receive("work", 10, 0);
        client.world.trace()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn an_idle_node_writes_nothing() {
    let mut client = Client::new(6, 2, 8);
    client.enqueue("work", 0, "x").unwrap();
    client.receive("work", 1, 0);
    client.world.set_timer(1_000_000_000, 1);
    while !matches!(client.world.next_notice(), Some(Notice::Timer { .. })) {}
    let operations = |client: &Client| -> u64 {
        client.world.node.cores.iter().map(|core| core.disk.counters.operations).sum()
    };
    let before = operations(&client);
    // Less than the lease: nothing is due.
    client.world.set_timer(20_000_000_000, 2);
    while !matches!(client.world.next_notice(), Some(Notice::Timer { .. })) {}
    assert_eq!(operations(&client), before);
}

#[test]
fn an_id_with_a_key_of_another_shard_is_recognised_both_ways() {
    use overtake_base::MessageId;
    for seed in 0..10 {
        let mut client = Client::new(seed, 2, 8);
        let mut enqueue = |id: Option<u128>, key: Option<&'static str>| {
            let now_ms = client.world.now().wall.0;
            let message = EnqueueMessage {
                id: id.map(|random| MessageId::new(now_ms / 86_400_000 * 86_400_000 + 1, random)),
                dedup_key: key.map(|key| key.as_bytes().into()),
                ..EnqueueMessage::default()
            };
            match client.ask(&Request::Enqueue { queue: "work".into(), messages: vec![message] }) {
                Response::Enqueued { mut results } => results.remove(0).unwrap(),
                other => panic!("{other:?}"),
            }
        };
        for n in 0..8 {
            let keys = [
                ["a", "b"],
                ["c", "d"],
                ["e", "f"],
                ["g", "h"],
                ["i", "j"],
                ["k", "l"],
                ["m", "n"],
                ["o", "p"],
            ];
            let [key, other] = keys[n as usize];
            let first = enqueue(Some(n), Some(key));
            assert!(!first.duplicate);
            for (id, key) in
                [(Some(n), Some(key)), (Some(n), None), (Some(n), Some(other)), (Some(99 + n), Some(key))]
            {
                let again = enqueue(id, key);
                assert!(again.duplicate && again.id == first.id, "seed {seed}: {id:?} {key:?}");
            }
            // The repeats claimed nothing: the other key is free, and so is the other id.
            assert!(!enqueue(Some(199 + n), Some(other)).duplicate);
            assert!(!enqueue(Some(99 + n), None).duplicate);
        }
    }
}
