//! Ids and dedup keys over several shards: at once, in batches, after their windows, and after a power loss at any step.

mod client;

use client::Client;
use overtake_base::MessageId;
use overtake_base::routing::{of_key, shard_index};
use overtake_sim::world::Notice;
use overtake_wire::message::{EnqueueMessage, Enqueued, ErrorCode, Refusal, Request, Response};
use std::collections::BTreeMap;

const SHARDS: u16 = 8;

fn message(client: &Client, id: Option<u128>, key: Option<&str>) -> EnqueueMessage {
    let day_ms = client.world.now().wall.0 / 86_400_000 * 86_400_000;
    EnqueueMessage {
        id: id.map(|random| MessageId::new(day_ms + 1, random)),
        dedup_key: key.map(|key| key.to_owned().into()),
        ..EnqueueMessage::default()
    }
}

/// An id and a key of different shards.
fn apart(random: u128, key: &str) -> bool {
    let index = |routing| shard_index(routing, usize::from(SHARDS));
    index(MessageId(random).routing()) != index(of_key(key.as_bytes()))
}

fn enqueue(messages: Vec<EnqueueMessage>) -> Request {
    Request::Enqueue { queue: "work".into(), messages }
}

fn outcomes(response: Response) -> Vec<Result<Enqueued, Refusal>> {
    match response {
        Response::Enqueued { results } => results,
        other => panic!("{other:?}"),
    }
}

/// The answers to requests that are under way at the same time.
fn answers(client: &mut Client, wanted: &[u64]) -> Vec<Response> {
    let mut answers = BTreeMap::new();
    while answers.len() < wanted.len() {
        match client.world.next_notice() {
            Some(Notice::Response { request, response, .. }) => {
                answers.insert(request, response);
            }
            Some(_) => {}
            None => panic!("no answer will ever come: {:?}", client.world.fatal),
        }
    }
    assert!(answers.keys().eq(wanted));
    answers.into_values().collect()
}

fn store(client: &mut Client, id: Option<u128>, key: Option<&str>) -> Enqueued {
    let request = enqueue(vec![message(client, id, key)]);
    match outcomes(client.ask(&request)).remove(0) {
        Ok(enqueued) => enqueued,
        Err(refusal) => panic!("{refusal}"),
    }
}

/// How often each id is there.
fn drain(client: &mut Client) -> BTreeMap<MessageId, u32> {
    let mut there = BTreeMap::new();
    loop {
        let messages = client.receive("work", 1_000, 0);
        if messages.is_empty() {
            return there;
        }
        for message in messages {
            *there.entry(message.id).or_default() += 1;
            client.ack("work", message.receipt.to_string());
        }
    }
}

fn pass(client: &mut Client, ns: u64) {
    client.world.set_timer(ns, 77);
    while !matches!(client.world.next_notice(), Some(Notice::Timer { number: 77, .. })) {}
}

fn window(client: &mut Client, dedup_window_s: u64) {
    let dedup_window_s = Some(Some(dedup_window_s));
    let patch = overtake_base::QueueConfigPatch { dedup_window_s, ..Default::default() };
    let put = Request::PutQueue { queue: "work".into(), patch };
    assert!(matches!(client.ask(&put), Response::QueuePut { .. }));
}

#[test]
fn within_a_batch_the_order_decides_which_is_the_first() {
    for seed in 0..10 {
        for (random, key) in (0..8).flat_map(|id| [(id, "a"), (id, "b")]) {
            let mut client = Client::new(seed, 2, SHARDS);
            let batches = [
                // One id, with a key and without: also where another shard would be quicker.
                vec![(Some(random), Some(key)), (Some(random), None)],
                vec![(Some(random), None), (Some(random), Some(key))],
                // One key.
                vec![(Some(random), Some(key)), (None, Some(key)), (Some(random + 1), Some(key))],
                vec![(None, Some(key)), (Some(random), Some(key))],
                // One id with two keys.
                vec![(Some(random), Some(key)), (Some(random), Some("other"))],
            ];
            for (number, batch) in batches.into_iter().enumerate() {
                // Ids and keys of their own for each.
                let named = format!("{key}{number}");
                let messages = batch.into_iter().map(|(id, key)| {
                    let key =
                        key.map(|key| if key == "other" { format!("o{number}") } else { named.clone() });
                    message(&client, id.map(|id| id + 256 * number as u128), key.as_deref())
                });
                let request = enqueue(messages.collect());
                let outcomes = outcomes(client.ask(&request));
                let results: Vec<Enqueued> = outcomes.into_iter().map(Result::unwrap).collect();
                let what = format!("seed {seed}, id {random}, key {key}, batch {number}: {results:?}");
                assert!(!results[0].duplicate, "{what}");
                let first = results[0].id;
                assert!(results[1..].iter().all(|again| again.duplicate && again.id == first), "{what}");
            }
            assert_eq!(drain(&mut client).into_values().collect::<Vec<_>>(), [1; 5]);
        }
    }
}

#[test]
fn one_id_with_several_keys_at_once_is_stored_once() {
    for seed in 0..60 {
        let mut client = Client::new(seed, 3, SHARDS);
        window(&mut client, 600);
        client.world.mesh_slow.set(2_000_000, 300_000);
        let keys = [None, Some("a"), Some("b"), Some("c"), Some("d"), Some("e"), None, Some("a")];
        let sent: Vec<u64> = keys
            .iter()
            .map(|key| {
                let request = enqueue(vec![message(&client, Some(u128::from(seed)), *key)]);
                client.send(&request)
            })
            .collect();
        let results: Vec<Enqueued> =
            answers(&mut client, &sent).into_iter().map(|all| outcomes(all).remove(0).unwrap()).collect();
        let stored = results.iter().filter(|result| !result.duplicate).count();
        assert!(stored == 1 && results.iter().all(|result| result.id == results[0].id), "{results:?}");
        // Those that repeated the id have claimed nothing.
        let free = ["a", "b", "c", "d", "e"].into_iter().filter(|key| {
            let again = store(&mut client, None, Some(key));
            !again.duplicate
        });
        assert!(free.count() >= 4, "seed {seed}");
        assert!(drain(&mut client).into_values().all(|times| times == 1), "seed {seed}");
    }
}

#[test]
fn one_key_with_several_ids_at_once_is_stored_once() {
    for seed in 0..60 {
        let mut client = Client::new(seed, 3, SHARDS);
        window(&mut client, 600);
        client.world.mesh_slow.set(2_000_000, 300_000);
        let ids: Vec<Option<u128>> = (0..10).map(|n| (n % 5 < 4).then_some(n)).collect();
        let sent: Vec<u64> = ids
            .iter()
            .map(|id| {
                let request = enqueue(vec![message(&client, *id, Some("k"))]);
                client.send(&request)
            })
            .collect();
        let results: Vec<Enqueued> =
            answers(&mut client, &sent).into_iter().map(|all| outcomes(all).remove(0).unwrap()).collect();
        let stored = results.iter().filter(|result| !result.duplicate).count();
        assert!(stored == 1 && results.iter().all(|result| result.id == results[0].id), "{results:?}");
        assert_eq!(drain(&mut client).into_values().collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn an_id_is_not_stored_again_while_its_message_lives_whatever_its_window() {
    for random in 0..8 {
        let mut client = Client::new(1, 2, SHARDS);
        window(&mut client, 2);
        let first = store(&mut client, Some(random), Some("zz"));
        pass(&mut client, 5_000_000_000);
        for key in [None, Some("zz"), Some("yy")] {
            let again = store(&mut client, Some(random), key);
            assert!(again.duplicate && again.id == first.id, "{random} {key:?}");
        }
        // The keys of repeats are free.
        assert!(!store(&mut client, None, Some("yy")).duplicate);
        assert!(!store(&mut client, None, Some("zz")).duplicate);
        assert!(drain(&mut client).into_values().all(|times| times == 1));
    }
}

#[test]
fn a_key_whose_message_was_refused_is_free() {
    for random in 0..8 {
        let mut client = Client::new(1, 2, SHARDS);
        store(&mut client, None, None);
        let patch = overtake_base::QueueConfigPatch { max_depth: Some(Some(1)), ..Default::default() };
        client.ask(&Request::PutQueue { queue: "work".into(), patch });
        for _ in 0..3 {
            let request = enqueue(vec![message(&client, Some(random), Some("k"))]);
            let refusal = outcomes(client.ask(&request)).remove(0).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::Depth);
        }
        assert_eq!(client.stats("work").totals.refused_depth, 3);
        let message = client.receive("work", 1, 0).remove(0);
        client.ack("work", message.receipt.to_string());
        assert!(!store(&mut client, Some(random + 1), Some("k")).duplicate);
        // Repeats are answered though there is no room.
        assert!(store(&mut client, Some(random + 1), Some("k")).duplicate);
        assert!(store(&mut client, Some(random), Some("k")).duplicate);
    }
}

/// A power loss after every so many microseconds of one enqueue: it leaves neither a key that answers for nothing, nor
/// two messages of one key, nor two of one id.
#[test]
fn a_crash_at_any_step_leaves_neither_a_key_without_its_message_nor_two_messages() {
    let (mut stored, mut not_stored) = (0, 0);
    for at_us in (0..1_500).step_by(10) {
        let random = u128::from(at_us / 10 % 8);
        if !apart(random, "k") {
            continue;
        }
        let mut client = Client::new(at_us, 2, SHARDS);
        window(&mut client, 600);
        let request = enqueue(vec![message(&client, Some(random), Some("k"))]);
        client.send(&request);
        pass(&mut client, 1 + at_us * 1_000);
        client.world.crash();
        client.world.start();
        client.session = client.world.connect();
        client.until_serving();
        let before_ns = client.world.time_ns();
        let other = store(&mut client, Some(random + 1), Some("k"));
        assert!(client.world.time_ns() - before_ns < 2_000_000_000, "the key is soon decided");
        let first = message(&client, Some(random), None).id.unwrap();
        if other.duplicate {
            stored += 1;
            assert_eq!(other.id, first);
        } else {
            not_stored += 1;
        }
        let again = store(&mut client, Some(random), Some("k"));
        assert!(again.duplicate && again.id == other.id, "{at_us}");
        assert_eq!(drain(&mut client), BTreeMap::from([(other.id, 1)]), "{at_us}");
    }
    assert!(stored > 20 && not_stored > 20, "{stored} {not_stored}");
}

#[test]
fn each_message_of_a_batch_has_its_own_outcome_where_there_is_little_room() {
    for shards in [1, SHARDS] {
        let mut client = Client::new(1, 2, SHARDS);
        let patch = overtake_base::QueueConfigPatch {
            max_bytes: Some(Some(100)),
            shards: Some(Some(shards)),
            ..Default::default()
        };
        client.ask(&Request::PutQueue { queue: "work".into(), patch });
        let of = |bytes: usize, key: Option<&str>| EnqueueMessage {
            body: vec![b'x'; bytes].into(),
            dedup_key: key.map(|key| key.to_owned().into()),
            ..EnqueueMessage::default()
        };
        let all = [of(60, Some("k")), of(60, None), of(30, None), of(20, None), of(10, None)];
        let results = outcomes(client.ask(&enqueue(all.into())));
        let stored: Vec<bool> = results.iter().map(Result::is_ok).collect();
        assert_eq!(stored, [true, false, true, false, true], "{shards} shards");
        // A repeat takes no room from those after it.
        let message = client.receive("work", 1, 0).remove(0);
        client.ack("work", message.receipt.to_string());
        let more = [of(60, Some("k")), of(message.body.len(), None), of(1, None)];
        let results = outcomes(client.ask(&enqueue(more.into())));
        assert!(results[0].as_ref().unwrap().duplicate && results[1].is_ok(), "{shards}: {results:?}");
        assert!(results[2].is_err(), "{shards} shards");
        assert_eq!(client.stats("work").totals.refused_bytes, 3);
    }
}

/// Enqueues of a queue that none of them has created yet: some shard may not have heard of it. Nobody is told that it was
/// deleted, and who tries again gets through.
#[test]
fn a_new_queue_is_never_called_deleted() {
    for seed in 0..60 {
        let mut client = Client::new(seed, 3, SHARDS);
        client.world.mesh_slow.set(2_000_000, 300_000);
        let sent: Vec<u64> = (0..12)
            .map(|n| {
                let request = enqueue(vec![message(&client, Some(n), Some("k").filter(|_| n % 2 == 0))]);
                client.send(&request)
            })
            .collect();
        for results in answers(&mut client, &sent) {
            if let Err(refusal) = &outcomes(results)[0] {
                assert!(
                    refusal.code == ErrorCode::NoQuorum && refusal.retry_is_safe(),
                    "seed {seed}: {refusal}"
                );
            }
        }
        pass(&mut client, 100_000_000);
        store(&mut client, Some(99), Some("other"));
    }
}
