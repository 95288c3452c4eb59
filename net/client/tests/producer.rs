//! The producer against a server that loses answers, refuses and stalls.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Act, Fake};
use overtake_client::*;
use std::time::Duration;

async fn producer(options: ProducerOptions) -> (Fake, Producer) {
    let fake = Fake::start();
    let connect = ConnectOptions {
        servers: vec![fake.address.into()],
        request_timeout: Duration::from_millis(200),
        ..ConnectOptions::default()
    };
    let client = Client::connect(connect).await.unwrap();
    (fake, Producer::new(client, "q", options))
}

fn message(n: usize) -> EnqueueMessage {
    EnqueueMessage { priority: (n % 5) as u32, body: n.to_string().into(), ..EnqueueMessage::default() }
}

fn batches(fake: &Fake) -> Vec<usize> {
    let state = fake.state.lock().unwrap();
    let count = |request: &Request| match request {
        Request::Enqueue { messages, .. } => Some(messages.len()),
        _ => None,
    };
    state.requests.iter().filter_map(count).collect()
}

#[tokio::test]
async fn messages_go_in_batches_and_each_is_confirmed() {
    let options = ProducerOptions { batch_messages: 50, ..ProducerOptions::default() };
    let (fake, producer) = producer(options).await;
    let mut confirmations = Vec::new();
    for n in 0..500 {
        confirmations.push(producer.send(message(n)).await.unwrap());
    }
    for confirmation in confirmations {
        assert!(!confirmation.await.unwrap().duplicate);
    }
    let batches = batches(&fake);
    assert_eq!(batches.iter().sum::<usize>(), 500);
    assert!(batches.len() < 100 && batches.iter().all(|batch| *batch <= 50), "{batches:?}");
}

#[tokio::test]
async fn lost_answers_are_repeated_and_stored_once() {
    let (fake, producer) = producer(ProducerOptions::default()).await;
    let mut enqueues = 0;
    fake.hook(move |request| match request {
        Request::Enqueue { .. } => {
            enqueues += 1;
            match enqueues {
                1 => Act::ServeAndDisconnect,
                2 => Act::Swallow,
                3 => Act::Answer(Response::Refused(Refusal::fate_unknown("leader lost", 1))),
                _ => Act::Serve,
            }
        }
        _ => Act::Serve,
    });
    let mut confirmations = Vec::new();
    for n in 0..20 {
        confirmations.push(producer.send(message(n)).await.unwrap());
    }
    producer.close().await;
    for confirmation in confirmations {
        confirmation.await.unwrap();
    }
    assert_eq!(fake.with_queue("q", |queue| queue.lanes.values().map(|lane| lane.len()).sum::<usize>()), 20);
}

#[tokio::test]
async fn refusals_are_told_to_the_message_they_are_for() {
    let (fake, producer) = producer(ProducerOptions::default()).await;
    let mut full_once = true;
    fake.hook(move |request| match request {
        Request::Enqueue { messages, .. } => {
            let results = messages.iter().map(|message| match message.priority {
                0 => Err(Refusal::invalid("priority", "priority must be 1..=4 here")),
                1 if full_once => Err(Refusal::depth("full", 1)),
                _ => Ok(Enqueued { id: message.id.unwrap(), shard: 0, duplicate: false }),
            });
            let results = results.collect();
            full_once = false;
            Act::Answer(Response::Enqueued { results })
        }
        _ => Act::Serve,
    });
    let invalid = producer.send(message(0)).await.unwrap();
    let full_at_first = producer.send(message(1)).await.unwrap();
    let stored = producer.send(message(2)).await.unwrap();
    let refused = invalid.await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(Refusal { code: ErrorCode::Invalid, .. })), "{refused}");
    full_at_first.await.unwrap();
    stored.await.unwrap();
    let too_large = EnqueueMessage { body: vec![0; 131_073].into(), ..EnqueueMessage::default() };
    assert!(producer.send(too_large).await.is_err());
}

#[tokio::test]
async fn a_message_is_given_up_after_its_time() {
    let options = ProducerOptions { retry_for: Duration::from_millis(100), ..ProducerOptions::default() };
    let (fake, producer) = producer(options).await;
    fake.hook(|request| match request {
        Request::Hello { .. } => Act::Serve,
        _ => Act::Answer(Response::Refused(Refusal::no_quorum("no leader", 1))),
    });
    let error = producer.send(message(1)).await.unwrap().await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Refusal { code: ErrorCode::NoQuorum, .. })), "{error}");
}

#[tokio::test]
async fn memory_is_bounded_while_the_server_stalls() {
    let options = ProducerOptions { memory_bytes: 1, ..ProducerOptions::default() };
    let (fake, producer) = producer(options).await;
    fake.hook(|request| if matches!(request, Request::Enqueue { .. }) { Act::Swallow } else { Act::Serve });
    let large = EnqueueMessage { body: vec![0; 131_000].into(), ..EnqueueMessage::default() };
    producer.send(large.clone()).await.unwrap();
    let second = tokio::time::timeout(Duration::from_millis(50), producer.send(large.clone()));
    assert!(second.await.is_err(), "the second waits for the first one's outcome");
    fake.hook(|_| Act::Serve);
    producer.send(large).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn flush_returns_when_everything_before_it_is_stored() {
    let options = ProducerOptions { linger: Duration::from_secs(3_600), ..ProducerOptions::default() };
    let (fake, producer) = producer(options).await;
    for n in 0..10 {
        drop(producer.send(message(n)).await.unwrap());
    }
    producer.flush().await;
    assert_eq!(batches(&fake), [10]);
    drop(producer.send(message(10)).await.unwrap());
    drop(producer);
    fake.until("q", |queue| queue.seen.len() == 11).await;
}

/// The first try is stored and its answer lost; every repeat is refused as if nothing had been stored. What the sender is
/// told in the end must not be that.
#[tokio::test]
async fn a_refused_repeat_does_not_hide_that_the_first_try_may_have_stored_it() {
    let options = ProducerOptions { retry_for: Duration::from_millis(400), ..ProducerOptions::default() };
    let (fake, producer) = producer(options).await;
    let mut first = true;
    fake.hook(move |request| match request {
        Request::Enqueue { .. } if core::mem::take(&mut first) => Act::ServeAndDisconnect,
        Request::Enqueue { .. } => Act::Answer(Response::Refused(Refusal::no_quorum("starting", 1))),
        _ => Act::Serve,
    });
    let error = producer.send(message(0)).await.unwrap().await.unwrap_err();
    assert!(error.fate_unknown() && !error.retry_is_safe(), "{error}");
    let refused = producer.send(message(1)).await.unwrap().await.unwrap_err();
    assert!(refused.retry_is_safe(), "{refused}");
    assert_eq!(fake.with_queue("q", |queue| queue.seen.len()), 1);
}

#[tokio::test]
async fn ids_are_made_for_the_shard_of_the_dedup_key() {
    let (fake, producer) = producer(ProducerOptions::default()).await;
    let keys = ["order-42", "order-43"];
    for key in keys {
        let keyed = EnqueueMessage { dedup_key: Some(key.into()), ..message(1) };
        producer.send(keyed).await.unwrap().await.unwrap();
    }
    let own = EnqueueMessage { id: Some(MessageId(7)), dedup_key: Some("k".into()), ..message(1) };
    drop(producer.send(own).await.unwrap());
    producer.close().await;
    let state = fake.state.lock().unwrap();
    let ids: Vec<MessageId> = state
        .requests
        .iter()
        .filter_map(|request| match request {
            Request::Enqueue { messages, .. } => Some(messages),
            _ => None,
        })
        .flatten()
        .map(|message| message.id.unwrap())
        .collect();
    for (id, key) in ids.iter().zip(keys) {
        assert_eq!(id.routing(), overtake_base::routing::of_key(key.as_bytes()));
    }
    assert_eq!(ids[2], MessageId(7), "an id that the caller made is left alone");
}
