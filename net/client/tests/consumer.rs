//! The consumer: messages come singly or in batches, what is said of them goes out in batches, leases are kept.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Act, Fake};
use overtake_client::*;
use std::time::Duration;

async fn filled(messages: usize) -> (Fake, Client) {
    let fake = Fake::start();
    let connect = ConnectOptions { servers: vec![fake.address.into()], ..ConnectOptions::default() };
    let client = Client::connect(connect).await.unwrap();
    if messages > 0 {
        let batch = (0..messages)
            .map(|n| EnqueueMessage { body: n.to_string().into(), ..EnqueueMessage::default() })
            .collect();
        client.enqueue("q", batch).await.unwrap();
    }
    (fake, client)
}

fn settles(fake: &Fake) -> usize {
    let state = fake.state.lock().unwrap();
    state.requests.iter().filter(|request| matches!(request, Request::Settle(_))).count()
}

#[tokio::test]
async fn messages_come_one_by_one_and_are_settled_in_batches() {
    let (fake, client) = filled(100).await;
    let options = ConsumerOptions { max: 100, ..ConsumerOptions::default() };
    let mut consumer = Consumer::new(client, "q", options);
    for n in 0..100 {
        let message = consumer.next().await.unwrap();
        assert_eq!(message.body, n.to_string());
        drop(message.ack());
    }
    consumer.flush().await;
    assert_eq!(fake.with_queue("q", |queue| (queue.acked.len(), queue.leased.len())), (100, 0));
    assert!(settles(&fake) < 10, "{} requests", settles(&fake));
}

#[tokio::test]
async fn each_settlement_has_its_outcome() {
    let (fake, client) = filled(4).await;
    let mut consumer = Consumer::new(client, "q", ConsumerOptions::default());
    let messages = consumer.receive().await.unwrap();
    let [a, b, c, d] = <[LeasedMessage; 4]>::try_from(messages).ok().unwrap();
    let extended = a.extend(60);
    let (a, b, c) = (a.ack(), b.release("broken"), c.release_after(9, None));
    assert_eq!(extended.await.unwrap(), Settled::Ok);
    assert_eq!(
        (a.await.unwrap(), b.await.unwrap(), c.await.unwrap()),
        (Settled::Ok, Settled::Ok, Settled::Ok)
    );
    let receipt = d.into_message().receipt.to_string();
    consumer.close().await;
    let releases: Vec<_> = fake.releases().into_iter().map(|r| (r.delay_s, r.error)).collect();
    assert_eq!(releases, [(None, Some("broken".into())), (Some(9), None)]);
    assert!(fake.with_queue("q", |queue| queue.leased.contains_key(&receipt)), "taken out of our hands");
}

#[tokio::test]
async fn leases_are_kept_while_messages_are_held_where_asked() {
    let (fake, client) = filled(2).await;
    let options = ConsumerOptions { lease_s: 1, max: 1, ..ConsumerOptions::default() };
    let mut plain = Consumer::new(client.clone(), "q", options.clone());
    let mut keeping = Consumer::new(client, "q", ConsumerOptions { keep_leases: true, ..options });
    let (plain, kept) = (plain.next().await.unwrap(), keeping.next().await.unwrap());
    let extensions = |receipt: Receipt| {
        fake.with_queue("q", |queue| {
            queue.extended.iter().filter(|extended| **extended == receipt.to_string()).count()
        })
    };
    while extensions(kept.receipt) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(extensions(plain.receipt), 0);
    let receipt = kept.receipt;
    assert_eq!(kept.ack().await.unwrap(), Settled::Ok);
    let before = extensions(receipt);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(extensions(receipt), before, "nobody keeps what is acked");
}

#[tokio::test]
async fn a_lease_that_is_lost_is_told_and_one_that_waits_is_not_handed_out() {
    let (fake, client) = filled(2).await;
    let options = ConsumerOptions { lease_s: 1, max: 2, keep_leases: true, ..ConsumerOptions::default() };
    let mut consumer = Consumer::new(client, "q", options);
    let first = consumer.next().await.unwrap();
    fake.hook(|request| match request {
        Request::Settle(settle) => Act::Answer(Response::Settled {
            ack: vec![Settled::Stale; settle.ack.len()],
            extend: vec![Settled::Stale; settle.extend.len()],
            release: vec![Settled::Stale; settle.release.len()],
        }),
        _ => Act::Serve,
    });
    while !first.is_lost() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(first.ack().await.unwrap(), Settled::Stale);
    // The second one waits with a lease that is lost by now, too.
    let next = tokio::time::timeout(Duration::from_millis(600), consumer.next()).await;
    assert!(next.is_err(), "{next:?}");
}

#[tokio::test]
async fn what_is_dropped_is_released_and_what_was_never_handed_out_was_not_delivered() {
    let (fake, client) = filled(5).await;
    let mut consumer = Consumer::new(client, "q", ConsumerOptions { max: 5, ..ConsumerOptions::default() });
    drop(consumer.next().await.unwrap());
    consumer.close().await;
    let releases: Vec<_> = fake.releases().into_iter().map(|release| release.error).collect();
    assert_eq!(releases, [Some("dropped before it was settled".to_owned())]);
    fake.with_queue("q", |queue| assert_eq!((queue.undelivered.len(), queue.leased.len()), (4, 0)));
}

#[tokio::test]
async fn an_ack_whose_answer_was_lost_counts_as_done() {
    let (fake, client) = filled(2).await;
    let mut settles = 0;
    fake.hook(move |request| match request {
        Request::Settle(_) => {
            settles += 1;
            if settles == 1 { Act::ServeAndDisconnect } else { Act::Serve }
        }
        _ => Act::Serve,
    });
    let mut consumer = Consumer::new(client, "q", ConsumerOptions::default());
    let (ack, release) = (consumer.next().await.unwrap().ack(), consumer.next().await.unwrap().release("x"));
    assert_eq!((ack.await.unwrap(), release.await.unwrap()), (Settled::Ok, Settled::Ok));
    assert_eq!(fake.with_queue("q", |queue| queue.acked.len()), 1);
}

#[tokio::test]
async fn next_waits_through_what_passes_and_fails_for_what_stays() {
    let (fake, client) = filled(1).await;
    let mut receives = 0;
    fake.hook(move |request| match request {
        Request::Receive(receive) if receive.queue == "q" => {
            receives += 1;
            match receives {
                1 => Act::Answer(Response::Refused(Refusal::no_quorum("no leader", 1))),
                2 => Act::Answer(Response::Received { messages: vec![] }),
                3 => Act::Answer(Response::Refused(Refusal::stopping("going down"))),
                _ => Act::Serve,
            }
        }
        Request::Receive(_) => Act::Answer(Response::Refused(Refusal::not_found("no such queue"))),
        _ => Act::Serve,
    });
    let mut consumer = Consumer::new(client.clone(), "q", ConsumerOptions::default());
    assert_eq!(consumer.next().await.unwrap().body, "0");
    let mut nowhere = Consumer::new(client, "nowhere", ConsumerOptions::default());
    let error = nowhere.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Refused(Refusal { code: ErrorCode::NotFound, .. })), "{error}");
}

#[tokio::test]
async fn a_next_that_is_given_up_loses_no_message() {
    let (fake, client) = filled(0).await;
    let mut consumer = Consumer::new(client.clone(), "q", ConsumerOptions::default());
    let given_up = tokio::time::timeout(Duration::from_millis(30), consumer.next());
    assert!(given_up.await.is_err());
    fake.until_request(|request| matches!(request, Request::CancelReceive { .. })).await;
    let message = EnqueueMessage { body: "kept".into(), ..EnqueueMessage::default() };
    client.enqueue("q", vec![message]).await.unwrap();
    assert_eq!(consumer.next().await.unwrap().body, "kept");
}
