//! The worker: what succeeds is acked, what fails released, what takes long keeps its lease, what is left goes back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Act, Fake};
use overtake_client::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

async fn filled(messages: usize) -> (Fake, Client) {
    let fake = Fake::start();
    let connect = ConnectOptions { servers: vec![fake.address.into()], ..ConnectOptions::default() };
    let client = Client::connect(connect).await.unwrap();
    let batch = (0..messages)
        .map(|n| EnqueueMessage { body: n.to_string().into(), ..EnqueueMessage::default() })
        .collect();
    client.enqueue("q", batch).await.unwrap();
    (fake, client)
}

fn text(message: &Delivered) -> String {
    String::from_utf8_lossy(&message.body).into_owned()
}

#[tokio::test]
async fn everything_is_worked_on_once_and_acked_with_bounded_concurrency() {
    let (fake, client) = filled(200).await;
    let (seen, running, most) =
        (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let options = WorkerOptions { concurrency: 7, ..WorkerOptions::default() };
    let (seen_by, most_by) = (seen.clone(), most.clone());
    let worker = Worker::start(client, "q", options, move |message| {
        let (seen, running, most) = (seen_by.clone(), running.clone(), most_by.clone());
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            assert!(seen.lock().unwrap().insert(text(&message)));
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    fake.until("q", |queue| queue.acked.len() == 200).await;
    assert_eq!(worker.stop().await, Report { succeeded: 200, ..Report::default() });
    assert_eq!(seen.lock().unwrap().len(), 200);
    assert!((2..=7).contains(&most.load(Ordering::SeqCst)));
    assert!(fake.with_queue("q", |queue| queue.released.is_empty() && queue.leased.is_empty()));
}

#[tokio::test]
async fn failures_and_panics_are_released_with_their_text() {
    let (fake, client) = filled(2).await;
    let worker = Worker::start(client, "q", WorkerOptions::default(), |message: Delivered| async move {
        match (message.deliveries, text(&message).as_str()) {
            (1, "0") => Err("no such mailbox".into()),
            (1, _) => panic!("bad message {}", text(&message)),
            _ => Ok(()),
        }
    });
    fake.until("q", |queue| queue.acked.len() == 2).await;
    let report = worker.stop().await;
    assert_eq!((report.succeeded, report.failed), (2, 2));
    let mut errors: Vec<_> = fake
        .with_queue("q", |queue| queue.released.iter().map(|(_, error)| error.clone().unwrap()).collect());
    errors.sort();
    assert_eq!(errors, ["no such mailbox", "the handler panicked: bad message 1"]);
}

#[tokio::test]
async fn long_work_keeps_its_lease() {
    let (fake, client) = filled(1).await;
    let done = Arc::new(Notify::new());
    let finish = done.clone();
    let options = WorkerOptions { lease_s: 1, ..WorkerOptions::default() };
    let worker = Worker::start(client, "q", options, move |_| {
        let done = done.clone();
        async move {
            done.notified().await;
            Ok(())
        }
    });
    fake.until("q", |queue| queue.extended.len() >= 2).await;
    finish.notify_one();
    fake.until("q", |queue| queue.acked.len() == 1).await;
    assert_eq!(worker.stop().await.succeeded, 1);
}

#[tokio::test]
async fn stopping_waits_for_running_work_and_takes_nothing_new() {
    let (fake, client) = filled(5).await;
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (starting, going) = (started.clone(), go_on.clone());
    let options = WorkerOptions { concurrency: 1, ..WorkerOptions::default() };
    let worker = Worker::start(client, "q", options, move |_| {
        let (started, go_on) = (starting.clone(), going.clone());
        async move {
            started.notify_one();
            go_on.notified().await;
            Ok(())
        }
    });
    started.notified().await;
    let stopping = tokio::spawn(worker.stop());
    tokio::task::yield_now().await;
    assert!(!stopping.is_finished());
    go_on.notify_one();
    assert_eq!(stopping.await.unwrap(), Report { succeeded: 1, ..Report::default() });
    assert_eq!(fake.with_queue("q", |queue| (queue.acked.len(), queue.leased.len())), (1, 0));
}

#[tokio::test]
async fn work_that_does_not_end_is_given_back() {
    let (fake, client) = filled(2).await;
    let options = WorkerOptions { drain: Duration::from_millis(20), ..WorkerOptions::default() };
    let started = Arc::new(AtomicUsize::new(0));
    let starting = started.clone();
    let worker = Worker::start(client, "q", options, move |_| {
        starting.fetch_add(1, Ordering::SeqCst);
        core::future::pending()
    });
    while started.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(worker.stop().await, Report { given_back: 2, ..Report::default() });
    fake.with_queue("q", |queue| {
        assert_eq!((queue.released.len(), queue.leased.len()), (2, 0));
        assert!(queue.released.iter().all(|(_, error)| error.as_deref() == Some("the worker stopped")));
    });
}

#[tokio::test]
async fn lost_connections_do_not_end_the_worker_and_acks_are_repeated() {
    let (fake, client) = filled(30).await;
    let mut settles = 0;
    fake.hook(move |request| match request {
        Request::Settle(_) => {
            settles += 1;
            if settles == 1 { Act::ServeAndDisconnect } else { Act::Serve }
        }
        _ => Act::Serve,
    });
    let worker = Worker::start(client, "q", WorkerOptions::default(), |_| async { Ok(()) });
    fake.until("q", |queue| queue.acked.len() == 30).await;
    assert_eq!(worker.stop().await.failed, 0);
}

#[tokio::test]
async fn a_message_that_takes_too_long_is_ended_and_released() {
    let (fake, client) = filled(1).await;
    let options = WorkerOptions { timeout: Some(Duration::from_millis(30)), ..WorkerOptions::default() };
    let (ended, ends) = tokio::sync::mpsc::unbounded_channel::<()>();
    let mut ends = ends;
    let ended = Arc::new(Mutex::new(Some(ended)));
    let worker = Worker::start(client, "q", options, move |message: Delivered| {
        // Dropped with the future of the first delivery.
        let until_dropped = ended.lock().unwrap().take();
        async move {
            if message.deliveries == 1 {
                core::future::pending::<()>().await;
            }
            drop(until_dropped);
            Ok(())
        }
    });
    fake.until("q", |queue| queue.acked.len() == 1).await;
    assert_eq!(ends.recv().await, None, "the function of the first delivery is gone");
    assert_eq!(worker.stop().await, Report { succeeded: 1, failed: 1, ..Report::default() });
    assert_eq!(fake.releases()[0].error.as_deref(), Some("not done within 30ms"));
}

#[tokio::test]
async fn failed_messages_wait_longer_each_time_or_as_their_error_says() {
    let (fake, client) = filled(1).await;
    let second = Duration::from_secs(1);
    let retry = Retry::Backoff { first: 2 * second, factor: 3.0, max: 10 * second };
    let options = WorkerOptions { retry, ..WorkerOptions::default() };
    let worker = Worker::start(client, "q", options, |message: Delivered| async move {
        match message.deliveries {
            1..=3 => Err("try again".into()),
            4 => Err(RetryAfter { delay_s: 77, error: "in a while".into() }.into()),
            _ => Ok(()),
        }
    });
    fake.until("q", |queue| queue.acked.len() == 1).await;
    assert_eq!(worker.stop().await, Report { succeeded: 1, failed: 4, ..Report::default() });
    let delays: Vec<_> = fake.releases().into_iter().map(|release| release.delay_s).collect();
    assert_eq!(delays, [Some(2), Some(6), Some(10), Some(77)]);
}

#[tokio::test]
async fn the_queue_decides_when_a_message_is_tried_again_unless_told_otherwise() {
    let (fake, client) = filled(1).await;
    let worker = Worker::start(client, "q", WorkerOptions::default(), |message: Delivered| async move {
        if message.deliveries == 1 { Err("once".into()) } else { Ok(()) }
    });
    fake.until("q", |queue| queue.acked.len() == 1).await;
    worker.stop().await;
    assert_eq!(fake.releases()[0].delay_s, None);
}

#[tokio::test]
async fn heartbeats_end_with_the_function() {
    let (fake, client) = filled(1).await;
    let done = Arc::new(Notify::new());
    let finish = done.clone();
    let options = WorkerOptions { lease_s: 1, ..WorkerOptions::default() };
    let worker = Worker::start(client, "q", options, move |_| {
        let done = done.clone();
        async move {
            done.notified().await;
            Ok(())
        }
    });
    fake.until("q", |queue| !queue.extended.is_empty()).await;
    finish.notify_one();
    fake.until("q", |queue| queue.acked.len() == 1).await;
    let beats = fake.with_queue("q", |queue| queue.extended.len());
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(fake.with_queue("q", |queue| queue.extended.len()), beats);
    worker.stop().await;
}

#[tokio::test]
async fn work_whose_lease_had_ended_is_counted_as_lost() {
    let (fake, client) = filled(1).await;
    fake.hook(|request| match request {
        Request::Settle(settle) => Act::Answer(Response::Settled {
            ack: vec![Settled::Stale; settle.ack.len()],
            extend: vec![Settled::Stale; settle.extend.len()],
            release: vec![Settled::Stale; settle.release.len()],
        }),
        _ => Act::Serve,
    });
    let worked = Arc::new(Notify::new());
    let working = worked.clone();
    let worker = Worker::start(client, "q", WorkerOptions::default(), move |_| {
        working.notify_one();
        async { Ok(()) }
    });
    worked.notified().await;
    assert_eq!(worker.stop().await, Report { lost: 1, ..Report::default() });
}
