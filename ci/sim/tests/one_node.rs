//! One node's contract in virtual time, end to end through cores, log, raft and journal: the paths that need several
//! cores, waiting, or a restart.

mod client;

use client::{Client, shape};
use overtake_base::QueueConfigPatch;
use overtake_sim::disk::DiskProfile;
use overtake_sim::node::NodeShape;
use overtake_sim::ways::Slowness;
use overtake_sim::world::Notice;
use overtake_wire::message::{EnqueueMessage, ErrorCode, Receive, Request, Response, Settled};

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
        client.pass(50);
        let other_session = client.world.connect();
        assert!(client.world.send(other_session, 1, &wait()));
        client.pass(50);
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
    client.pass(1_000);
    let before = client.disk_writes();
    // Less than the lease: nothing is due.
    client.pass(20_000);
    assert_eq!(client.disk_writes(), before);
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

/// A queue of several shards that holds so many messages at most.
fn put_small(client: &mut Client, max_depth: u64) {
    let patch = overtake_base::QueueConfigPatch { max_depth: Some(Some(max_depth)), ..Default::default() };
    client.put("small", patch);
}

#[test]
fn enqueues_that_wait_for_room_are_answered_when_their_queue_is_deleted() {
    for seed in 0..20 {
        let mut client = Client::new(seed, 2, 8);
        put_small(&mut client, 1);
        let message = || EnqueueMessage { body: "x".into(), ..EnqueueMessage::default() };
        let enqueue = || Request::Enqueue { queue: "small".into(), messages: vec![message()] };
        let sent: Vec<u64> = (0..20).map(|_| client.send(&enqueue())).collect();
        let delete = client.send(&Request::DeleteQueue { queue: "small".into() });
        let mut left: Vec<u64> = sent.into_iter().chain([delete]).collect();
        while !left.is_empty() {
            match client.world.next_notice() {
                Some(Notice::Response { request, .. }) => left.retain(|wanted| *wanted != request),
                Some(_) => {}
                None => panic!("seed {seed}: {left:?} are never answered"),
            }
        }
    }
}

/// Ways between cores are slow, so that news of one kind arrive long before those of another.
const SLOW: Slowness = Slowness { most_ns: 20_000_000, ppm: 500_000, times: 0 };

#[test]
fn depth_is_kept_from_the_first_moment_after_a_start() {
    for seed in 0..50 {
        let mut client = Client::new(seed, 2, 8);
        client.world.mesh_slow = SLOW;
        put_small(&mut client, 8);
        client.fill("small", 0, 8);
        client.world.crash();
        client.world.start();
        client.session = client.world.connect();
        let refused = loop {
            match client.enqueue("small", 0, "one too many") {
                // Not all cores serve yet.
                Err(refusal) if refusal.code == ErrorCode::NoQuorum => {}
                other => break other,
            }
        };
        assert_eq!(refused.map_err(|refusal| refusal.code), Err(ErrorCode::Depth), "seed {seed}");
    }
}

#[test]
fn what_comes_while_a_queue_is_made_anew_is_never_told_of_a_missing_leader() {
    const COUNT: u64 = 40;
    for seed in 0..200 {
        let mut client = Client::new(seed, 2, 8);
        client.world.mesh_slow = SLOW;
        client.put("work", QueueConfigPatch { shards: Some(Some(1)), ..QueueConfigPatch::default() });
        let message = EnqueueMessage { body: "x".into(), ..EnqueueMessage::default() };
        let enqueue = Request::Enqueue { queue: "work".into(), messages: vec![message] };
        let receive = Request::Receive(Receive { wait_s: 1, ..Receive::new("work") });
        let others: Vec<_> = (0..2).map(|_| client.world.connect()).collect();
        client.send(&Request::DeleteQueue { queue: "work".into() });
        (1..=COUNT).for_each(|number| client.world.set_timer(number * 500_000, number));
        let mut left = COUNT + 1;
        while left > 0 {
            match client.world.next_notice() {
                Some(Notice::Timer { number }) => {
                    let body = if number % 4 == 0 { &enqueue } else { &receive };
                    assert!(client.world.send(others[number as usize % 2], number, body));
                }
                Some(Notice::Response { response, .. }) => {
                    left -= 1;
                    check_of_a_queue_made_anew(seed, &response);
                }
                Some(_) => {}
                None => panic!("seed {seed}: {left} are never answered"),
            }
        }
    }
}

fn check_of_a_queue_made_anew(seed: u64, response: &Response) {
    let refused = match response {
        Response::Refused(refusal) => Some(refusal),
        Response::Enqueued { results } => results.iter().find_map(|result| result.as_ref().err()),
        _ => None,
    };
    assert!(refused.is_none_or(|refusal| refusal.code == ErrorCode::NotFound), "seed {seed}: {refused:?}");
}

#[test]
fn any_number_of_bad_enqueues_behind_one_that_waits_for_room_is_answered() {
    let mut client = Client::new(1, 2, 8);
    put_small(&mut client, 1);
    client.enqueue("small", 0, "full").unwrap();
    let enqueue = |priority| Request::Enqueue {
        queue: "small".into(),
        messages: vec![EnqueueMessage { priority, ..EnqueueMessage::default() }],
    };
    client.send(&enqueue(0));
    let last = (0..10_000).map(|_| client.send(&enqueue(99))).last().unwrap();
    let Response::Enqueued { results } = client.answer(last) else { panic!() };
    assert_eq!(results[0].as_ref().unwrap_err().field.as_deref(), Some("priority"));
}

#[test]
fn a_window_ends_on_a_shard_that_nothing_happens_on() {
    use overtake_base::MessageId;
    for seed in 0..10 {
        let mut client = Client::new(seed, 2, 8);
        let patch = overtake_base::QueueConfigPatch { dedup_window_s: Some(Some(5)), ..Default::default() };
        client.put("work", patch);
        let mut enqueue = |random: u128| {
            let id = MessageId::new(client.world.now().wall.0, random);
            let key = Some("hourly".into());
            let message = EnqueueMessage { id: Some(id), dedup_key: key, ..EnqueueMessage::default() };
            let request = Request::Enqueue { queue: "work".into(), messages: vec![message] };
            let Response::Enqueued { mut results } = client.ask(&request) else { panic!() };
            let duplicate = results.remove(0).unwrap().duplicate;
            client.pass(6_000);
            duplicate
        };
        for random in 0..4 {
            assert!(!enqueue(random), "seed {seed}: the window of the one before has ended");
        }
    }
}

#[test]
fn a_session_has_a_bounded_number_of_requests_without_an_answer() {
    use overtake_base::limits::SESSION_REQUESTS_MAX;
    let mut client = Client::new(1, 1, 2);
    client.enqueue("work", 0, "x").unwrap();
    client.receive("work", 1, 0);
    let wait = Request::Receive(Receive { wait_s: 20, ..Receive::new("work") });
    for _ in 0..SESSION_REQUESTS_MAX {
        client.send(&wait);
    }
    let one_more = client.send(&wait);
    let Response::Refused(refusal) = client.answer(one_more) else { panic!() };
    assert!(refusal.retry_is_safe(), "{refusal:?}");
}

#[test]
fn a_full_disk_takes_messages_again_when_what_is_on_it_was_acked() {
    // As every device does, it keeps room free for what shrinks: a segment, blocks, checkpoints.
    let disk = DiskProfile {
        capacity_bytes: 30 * 1024 * 1024,
        kept_free_bytes: 12 * 1024 * 1024,
        ..DiskProfile::default()
    };
    let mut client = Client::of_shape(1, NodeShape { checkpoint_bytes: u64::MAX, disk, ..shape(1, 2) });
    let body = "x".repeat(20_000);
    let mut stored = 0;
    let refusal = loop {
        match client.enqueue("work", 0, &body) {
            Ok(_) => stored += 1,
            Err(refusal) => break refusal,
        }
        assert!(stored < 2_000, "the disk never gets full");
    };
    assert_eq!(refusal.code, overtake_wire::message::ErrorCode::Disk);
    for _ in 0..stored {
        let message = client.receive("work", 1, 0).remove(0);
        assert_eq!(client.ack("work", message.receipt.to_string()), Settled::Ok);
    }
    let stored_again = (0..60).any(|_| {
        client.pass(1_000);
        client.enqueue("work", 0, &body).is_ok()
    });
    assert!(stored_again, "acks must make room");
}

/// Each start begins a term of every shard with an entry. What nothing else happens to is not to keep those, and with them
/// all that was written since.
#[test]
fn idle_shards_keep_no_journal_however_often_the_node_was_started() {
    let mut client = Client::of_shape(1, NodeShape { checkpoint_bytes: 256 * 1024, ..shape(1, 4) });
    let one_shard = QueueConfigPatch { shards: Some(Some(1)), ..QueueConfigPatch::default() };
    client.put("one", one_shard);
    let body = "x".repeat(50_000);
    let mut used = Vec::new();
    for _ in 0..4 {
        client.world.crash();
        client.world.start();
        client.session = client.world.connect();
        client.until_serving();
        for _ in 0..400 {
            client.enqueue("one", 0, &body).unwrap();
            let message = client.receive("one", 1, 0).remove(0);
            assert_eq!(client.ack("one", message.receipt.to_string()), Settled::Ok);
        }
        client.pass(1_000);
        used.push(client.world.node.cores[0].disk.used());
    }
    assert!(used[3] <= used[1], "the disk fills with what nothing needs: {used:?}");
}

/// Whoever asks in the very moment in which a message comes is behind those who have waited for it.
#[test]
fn a_newcomer_is_served_after_who_waits() {
    for seed in 0..150 {
        let mut client = Client::new(seed, 2, 8);
        client.enqueue("work", 0, "first").unwrap();
        client.receive("work", 1, 0);
        let waiter = client.send(&Request::Receive(Receive { max: 1, wait_s: 20, ..Receive::new("work") }));
        client.pass(50);
        let sessions: Vec<_> = (0..6).map(|_| client.world.connect()).collect();
        let message = EnqueueMessage { body: "for who waits".into(), ..EnqueueMessage::default() };
        client.send(&Request::Enqueue { queue: "work".into(), messages: vec![message] });
        // Some newcomer in each step of the enqueue.
        let newcomer = |wait_s| Request::Receive(Receive { max: 1, wait_s, ..Receive::new("work") });
        for request in 1..=120 {
            for (session, wait_s) in sessions.iter().zip([0, 1].into_iter().cycle()) {
                assert!(client.world.send(*session, request, &newcomer(wait_s)));
            }
            client.world.set_timer(20_000, request);
            loop {
                match client.world.next_notice() {
                    Some(Notice::Timer { number }) if number == request => break,
                    Some(Notice::Response { session, response: Response::Received { messages }, .. })
                        if session != client.session =>
                    {
                        assert_eq!(messages, [], "seed {seed}: a newcomer took it");
                    }
                    Some(Notice::Response { request, response: Response::Received { messages }, .. }) => {
                        assert_eq!((request, messages.len()), (waiter, 1));
                    }
                    Some(_) => {}
                    None => panic!("{:?}", client.world.fatal),
                }
            }
        }
    }
}
