//! Redrives of queues over several shards, in virtual time: depth and bytes are never exceeded, room is used up, and a
//! redrive with a rate waits for room without writing anything.

mod client;

use client::Client;
use overtake_base::QueueConfigPatch;
use overtake_wire::message::{
    EnqueueMessage, Receive, RedriveSelection, Release, Request, Response, Settle, Settled, Stats,
};

const BODY: &str = "ten bytes.";

fn redrive(max_per_s: Option<u64>) -> Request {
    Request::DlqRedrive(overtake_wire::message::Redrive {
        queue: "small".into(),
        selection: RedriveSelection::All,
        priority: None,
        max_per_s,
        dry_run: false,
    })
}

fn redriven(client: &mut Client, max_per_s: Option<u64>) -> u64 {
    match client.ask(&redrive(max_per_s)) {
        Response::Redriven { moved } => moved,
        other => panic!("{other:?}"),
    }
}

fn depth(stats: &Stats) -> u64 {
    stats.visible.iter().chain(&stats.delayed).chain(&stats.leased).sum()
}

/// A queue with room for six messages, by count or by bytes, and so many dead letters.
fn with_dead(seed: u64, cores: u16, by_bytes: bool, dead: usize) -> Client {
    let mut client = Client::new(seed, cores, 8);
    let (max_depth, max_bytes) = if by_bytes { (None, Some(65)) } else { (Some(6), None) };
    client.put(
        "small",
        QueueConfigPatch {
            max_depth: Some(max_depth),
            max_bytes: Some(max_bytes),
            max_deliveries: Some(Some(1)),
            ..QueueConfigPatch::default()
        },
    );
    for n in 0..dead {
        assert!(client.enqueue("small", n as u32 % 5, BODY).is_ok());
        let message = client.receive("small", 1, 5).remove(0);
        let release = Release { receipt: message.receipt.to_string(), delay_s: None, error: None };
        let settle = Settle { queue: "small".into(), release: vec![release], ..Settle::default() };
        assert!(matches!(client.ask(&Request::Settle(settle)), Response::Settled { .. }));
    }
    assert_eq!(client.stats("small").dlq, dead as u64);
    client
}

fn ack_one(client: &mut Client) {
    let message = client.received(Receive { max: 1, wait_s: 5, ..Receive::new("small") }).remove(0);
    assert_eq!(client.ack("small", message.receipt.to_string()), Settled::Ok);
}

#[test]
fn a_redrive_at_once_takes_the_room_that_there_is() {
    for (seed, cores) in [(1, 1), (2, 2), (3, 2), (4, 3)] {
        for by_bytes in [false, true] {
            let mut client = with_dead(seed, cores, by_bytes, 14);
            client.enqueue("small", 0, BODY).unwrap();
            client.enqueue("small", 0, BODY).unwrap();
            assert_eq!(redriven(&mut client, None), 4, "{cores} cores, by bytes: {by_bytes}");
            assert_eq!(redriven(&mut client, None), 0);
            assert!(client.enqueue("small", 0, BODY).is_err(), "full");
            let stats = client.stats("small");
            assert_eq!((depth(&stats), stats.dlq, stats.totals.redriven), (6, 10, 4));
            (0..3).for_each(|_| ack_one(&mut client));
            assert_eq!(redriven(&mut client, None), 3);
            client.put(
                "small",
                QueueConfigPatch {
                    max_depth: Some(None),
                    max_bytes: Some(None),
                    ..QueueConfigPatch::default()
                },
            );
            assert_eq!(redriven(&mut client, None), 7);
            let stats = client.stats("small");
            assert_eq!((depth(&stats), stats.dlq), (13, 0));
        }
    }
}

#[test]
fn redrives_and_enqueues_at_the_same_time_stay_within_the_limit() {
    for seed in 0..40 {
        for max_per_s in [None, Some(1_000)] {
            let mut client = with_dead(seed, 2, seed % 2 == 0, 8);
            let mut sent = Vec::new();
            for n in 0..12 {
                let message = EnqueueMessage { body: BODY.into(), ..EnqueueMessage::default() };
                sent.push(client.send(&Request::Enqueue { queue: "small".into(), messages: vec![message] }));
                if n % 4 == 1 {
                    sent.push(client.send(&redrive(max_per_s)));
                }
            }
            client.answer(*sent.last().unwrap());
            for _ in 0..20 {
                client.pass(50);
                assert!(depth(&client.stats("small")) <= 6, "seed {seed}");
            }
            assert_eq!(depth(&client.stats("small")), 6, "seed {seed}: all room is used");
        }
    }
}

#[test]
fn a_redrive_with_a_rate_waits_for_room_and_writes_nothing_meanwhile() {
    for (seed, cores) in [(1, 1), (2, 2), (3, 2)] {
        for by_bytes in [false, true] {
            let mut client = with_dead(seed, cores, by_bytes, 9);
            (0..6).for_each(|_| _ = client.enqueue("small", 0, BODY).unwrap());
            assert_eq!(redriven(&mut client, Some(100)), 9, "how many will move");
            client.pass(2_000);
            let before = client.disk_writes();
            client.pass(15_000);
            assert_eq!(client.disk_writes(), before);
            assert_eq!(client.stats("small").dlq, 9, "there is no room");
            for acked in 1..=9 {
                ack_one(&mut client);
                client.pass(300);
                let stats = client.stats("small");
                assert_eq!((depth(&stats), stats.dlq), (6, 9 - acked), "{cores} cores, by bytes: {by_bytes}");
            }
            // Nothing is left to come back.
            ack_one(&mut client);
            let stats = client.stats("small");
            assert_eq!((depth(&stats), stats.totals.redriven), (5, 9));
        }
    }
}

#[test]
fn a_redrive_with_a_rate_keeps_it_and_survives_a_power_loss() {
    let mut client = with_dead(5, 2, false, 40);
    client.put("small", QueueConfigPatch { max_depth: Some(Some(1_000)), ..QueueConfigPatch::default() });
    assert_eq!(redriven(&mut client, Some(4)), 40);
    client.pass(2_000);
    client.world.crash();
    client.world.start();
    client.session = client.world.connect();
    client.until_serving();
    let before = client.stats("small").totals.redriven;
    client.pass(3_000);
    let moved = client.stats("small").totals.redriven - before;
    assert!(
        (8..=20).contains(&moved),
        "{moved} in 3 s at 4 a second, each shard's part rounded to a message"
    );
    client.pass(20_000);
    assert_eq!(client.stats("small").dlq, 0);
}
