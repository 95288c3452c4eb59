//! A backlog that is mostly on disk, step by step: order, look-ups, and a disk that runs full.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;

use client::{Client, shape};
use overtake_base::QueueConfigPatch;
use overtake_core::ColdConfig;
use overtake_sim::disk::DiskProfile;
use overtake_sim::node::NodeShape;
use overtake_wire::message::{
    Delay, EnqueueMessage, ErrorCode, PeekStates, Receive, Release, Request, Response, Settle, Settled,
};
use std::collections::BTreeSet;

/// Few messages stay in memory.
fn cold_shape(shards: u16) -> NodeShape {
    let cold = ColdConfig {
        lane_file_bytes: 1024 * 1024,
        spare_files: 1,
        hot_messages_max: 30,
        keep_messages: 10,
        run_messages_min: 5,
        block_messages_max: 20,
        ..ColdConfig::of_cores(1)
    };
    NodeShape { cold, ..shape(1, shards) }
}

/// How often something happened to cold messages.
fn count(client: &Client, name: &str) -> u64 {
    let cores = client.world.node.cores.iter().filter_map(|slot| slot.core.as_ref());
    let counts = cores.flat_map(overtake_core::Core::seldom_counts);
    counts.filter(|(counted, _)| *counted == name).map(|(_, count)| count).sum()
}

fn backlog(client: &mut Client, messages: usize) {
    for number in 0..messages {
        client.enqueue("work", 2, &number.to_string()).unwrap();
    }
    client.pass(2_000);
    assert!(count(client, "blocks written") > 3, "the backlog is on disk");
}

/// Several receives under way together reach further than what is in memory. None of them is short, and together they
/// have the first messages, in order.
#[test]
fn receives_at_the_same_time_are_not_short_of_what_is_on_disk() {
    let mut client = Client::of_shape(3, cold_shape(1));
    backlog(&mut client, 300);
    let each = 25;
    let receive = Request::Receive(Receive { max: each, ..Receive::new("work") });
    let asked: Vec<u64> = (0..6).map(|_| client.send(&receive)).collect();
    let mut sequences = BTreeSet::new();
    for request in asked {
        let Response::Received { messages } = client.answer(request) else { panic!() };
        assert_eq!(messages.len(), each as usize);
        assert!(messages.is_sorted_by_key(|message| message.receipt.sequence));
        sequences.extend(messages.iter().map(|message| String::from_utf8(message.body.to_vec()).unwrap()));
    }
    assert_eq!(sequences, (0..150).map(|number: usize| number.to_string()).collect());
    assert!(count(&client, "thaws") > 3);
}

/// Messages that expire or are due soon go by themselves. They are not taken out of memory only to come back at once, and
/// do not keep a shorter lane from leaving.
#[test]
fn what_is_over_soon_stays_in_memory_and_lets_others_leave() {
    let soon_over: [fn(&mut EnqueueMessage); 2] =
        [|message| message.expires_in_s = Some(3), |message| message.delay = Delay::AfterS(3)];
    for over in soon_over {
        let mut client = Client::of_shape(6, cold_shape(1));
        let kept = QueueConfigPatch { dead_letter_expired: Some(Some(true)), ..QueueConfigPatch::default() };
        client.put("soon", kept);
        let mut batch = |queue: &str, number: usize, change: &dyn Fn(&mut EnqueueMessage)| {
            let mut message = EnqueueMessage { priority: 2, ..EnqueueMessage::default() };
            change(&mut message);
            let messages = vec![message; number];
            let request = Request::Enqueue { queue: queue.into(), messages };
            assert!(matches!(client.ask(&request), Response::Enqueued { .. }));
        };
        batch("soon", 200, &over);
        batch("work", 80, &|_| ());
        client.pass(1_000);
        let left = count(&client, "blocks written");
        assert!(left >= 3, "{left} blocks of the shorter lane");
        assert_eq!(count(&client, "thaws"), 0);
        assert!(count(&client, "spills") < 30);
    }
}

#[test]
fn what_is_on_disk_is_listed_found_and_cancelled() {
    let mut client = Client::of_shape(4, cold_shape(2));
    backlog(&mut client, 200);
    let stats = client.stats("work");
    assert_eq!(stats.visible.iter().sum::<u64>(), 200);
    let mut ids = Vec::new();
    let mut after = None;
    loop {
        let states = PeekStates { visible: true, delayed: true, leased: true };
        let peek = Request::Peek { queue: "work".into(), states, priority: None, limit: 30, after };
        let Response::Peeked { messages, next } = client.ask(&peek) else { panic!() };
        ids.extend(messages.iter().map(|message| message.id));
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 200);
    // The last ones are certainly not in memory.
    let id = ids[190];
    assert!(matches!(client.ask(&Request::Inspect { queue: "work".into(), id }), Response::Inspected(_)));
    assert!(matches!(client.ask(&Request::Cancel { queue: "work".into(), id }), Response::Done));
    assert_eq!(client.stats("work").visible.iter().sum::<u64>(), 199);
}

/// The disk runs full: enqueues are refused, everything else goes on, also where most of the backlog is on disk and much
/// more must be written than there is room for; and when it is gone, messages are taken again without a restart.
#[test]
fn a_full_disk_lets_a_backlog_be_worked_off_and_then_takes_messages_again() {
    let disk = DiskProfile {
        capacity_bytes: 40 * 1024 * 1024,
        kept_free_bytes: 10 * 1024 * 1024,
        ..DiskProfile::default()
    };
    let shape = NodeShape { disk, checkpoint_bytes: 4 * 1024 * 1024, ..cold_shape(2) };
    let mut client = Client::of_shape(5, shape);
    client.put(
        "work",
        QueueConfigPatch { max_deliveries: Some(Some(1_000_000)), ..QueueConfigPatch::default() },
    );
    let body = "x".repeat(10_000);
    let mut stored = 0;
    let refusal = loop {
        match client.enqueue("work", 1, &body) {
            Ok(_) => stored += 1,
            Err(refusal) => break refusal,
        }
        assert!(stored < 10_000, "the disk never gets full");
    };
    assert_eq!(refusal.code, ErrorCode::Disk);
    // Leases and releases of everything, several times: more than what is left of the segments that are ready.
    for _ in 0..2_000 {
        let message = client.receive("work", 1, 0).remove(0);
        let receipt = message.receipt.to_string();
        let release = Release { receipt, error: Some("e".repeat(4_000)), ..Release::default() };
        let settle = Settle { queue: "work".into(), release: vec![release], ..Settle::default() };
        let Response::Settled { release, .. } = client.ask(&Request::Settle(settle)) else { panic!() };
        assert_eq!(release, [Settled::Ok]);
    }
    for _ in 0..stored {
        let message = client.receive("work", 1, 20).remove(0);
        assert_eq!(client.ack("work", message.receipt.to_string()), Settled::Ok);
    }
    let stored_again = (0..60).any(|_| {
        client.pass(1_000);
        client.enqueue("work", 0, &body).is_ok()
    });
    assert!(stored_again, "acks must make room");
}
