//! The client against a server that misbehaves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Act, Fake, Mortal};
use overtake_client::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn options(fake: &Fake) -> ConnectOptions {
    ConnectOptions { servers: vec![fake.address.into()], ..ConnectOptions::default() }
}

async fn connected() -> (Fake, Client) {
    let fake = Fake::start();
    let client = Client::connect(options(&fake)).await.unwrap();
    (fake, client)
}

fn message(priority: u32, body: &str) -> EnqueueMessage {
    EnqueueMessage { priority, body: body.to_owned().into(), ..EnqueueMessage::default() }
}

fn waiting(wait_s: u32) -> Receive {
    Receive { wait_s, ..Receive::new("q") }
}

#[tokio::test]
async fn messages_go_in_and_come_out_most_urgent_first() {
    let (fake, client) = connected().await;
    let (created, config) = client.put_queue("q", QueueConfigPatch::default()).await.unwrap();
    assert!(created && config.levels == 5);
    let results = client.enqueue("q", vec![message(4, "low"), message(0, "high")]).await.unwrap();
    assert!(results.iter().all(Result::is_ok));
    let messages = client.receive(Receive::new("q")).await.unwrap();
    assert_eq!(messages.iter().map(|m| &m.body[..]).collect::<Vec<_>>(), [&b"high"[..], b"low"]);
    let settle = Settle {
        queue: "q".into(),
        ack: vec![messages[0].receipt.to_string()],
        release: vec![Release { receipt: messages[1].receipt.to_string(), ..Release::default() }],
        ..Settle::default()
    };
    let settled = client.settle(settle).await.unwrap();
    assert_eq!(settled, SettledLists { ack: vec![Settled::Ok], extend: vec![], release: vec![Settled::Ok] });
    assert_eq!(client.purge("q").await.unwrap(), 1);
    assert_eq!(fake.with_queue("q", |queue| queue.acked.len()), 1);
    client.delete_queue("q").await.unwrap();
    let refused = client.delete_queue("q").await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(Refusal { code: ErrorCode::NotFound, .. })), "{refused}");
}

#[tokio::test]
async fn many_requests_are_under_way_at_a_time_and_each_gets_its_own_answer() {
    let (_fake, client) = connected().await;
    let calls: Vec<_> = (0..500)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let queue = format!("q{n}");
                client.enqueue(&queue, vec![message(1, &queue)]).await.unwrap();
                let received = client.receive(Receive::new(&queue)).await.unwrap();
                assert_eq!(received[0].body, queue);
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
}

#[tokio::test]
async fn large_batches_and_answers_pass() {
    let (_fake, client) = connected().await;
    let body = "x".repeat(100_000);
    for _ in 0..4 {
        let results = client.enqueue("q", vec![message(2, &body); 20]).await.unwrap();
        assert_eq!(results.len(), 20);
    }
    let received = client.receive(Receive { max: 80, ..Receive::new("q") }).await.unwrap();
    assert_eq!(received.len(), 80);
    assert!(received.iter().all(|message| message.body.len() == 100_000));
}

#[tokio::test]
async fn a_request_over_the_limit_is_refused_here_and_harms_nothing() {
    let (_fake, client) = connected().await;
    let body = "x".repeat(130_000);
    let refused = client.enqueue("q", vec![message(2, &body); 17]).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(Refusal { code: ErrorCode::TooLarge, .. })), "{refused}");
    let refused = client.receive(Receive { max: 0, ..Receive::new("q") }).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(Refusal { field: Some(field), .. }) if field == "max"));
    assert_eq!(client.ready().await.unwrap(), Vec::<u16>::new());
}

#[tokio::test]
async fn a_receive_waits_for_a_message() {
    let (fake, client) = connected().await;
    let receive = tokio::spawn({
        let client = client.clone();
        async move { client.receive(waiting(20)).await }
    });
    fake.until_request(|request| matches!(request, Request::Receive(_))).await;
    client.enqueue("q", vec![message(0, "hello")]).await.unwrap();
    assert_eq!(receive.await.unwrap().unwrap()[0].body, "hello");
}

#[tokio::test]
async fn a_dropped_receive_is_taken_back() {
    let (fake, client) = connected().await;
    let receive = tokio::spawn({
        let client = client.clone();
        async move { client.receive(waiting(20)).await }
    });
    fake.until_request(|request| matches!(request, Request::Receive(_))).await;
    receive.abort();
    fake.until_request(|request| matches!(request, Request::CancelReceive { .. })).await;
    // Requests of one stream are read in order, so that this one finds the waiter gone.
    client.receive(Receive::new("q")).await.unwrap();
    client.enqueue("q", vec![message(0, "kept")]).await.unwrap();
    assert!(fake.with_queue("q", |queue| queue.leased.is_empty()));
    assert_eq!(client.receive(Receive::new("q")).await.unwrap().len(), 1);
}

#[tokio::test]
async fn messages_that_cross_a_cancellation_were_not_delivered() {
    let (fake, client) = connected().await;
    // The server does not know cancellation: it answers the receive with a message all the same.
    fake.hook(|request| match request {
        Request::CancelReceive { .. } => Act::Swallow,
        _ => Act::Serve,
    });
    let receive = tokio::spawn({
        let client = client.clone();
        async move { client.receive(waiting(20)).await }
    });
    fake.until_request(|request| matches!(request, Request::Receive(_))).await;
    receive.abort();
    fake.until_request(|request| matches!(request, Request::CancelReceive { .. })).await;
    client.enqueue("q", vec![message(0, "crossing")]).await.unwrap();
    fake.until("q", |queue| queue.undelivered.len() == 1 && queue.leased.is_empty()).await;
    // What reached nobody was not delivered.
    assert_eq!(client.receive(Receive::new("q")).await.unwrap()[0].deliveries, 1);
}

#[tokio::test]
async fn no_answer_in_time_leaves_the_fate_unknown() {
    let fake = Fake::start();
    let options = ConnectOptions { request_timeout: Duration::from_millis(50), ..options(&fake) };
    let client = Client::connect(options).await.unwrap();
    fake.hook(|request| if matches!(request, Request::Ready) { Act::Swallow } else { Act::Serve });
    let error = client.ready().await.unwrap_err();
    assert_eq!(error, ClientError::TimedOut);
    assert!(error.fate_unknown() && !error.retry_is_safe());
    fake.hook(|_| Act::Serve);
    client.ready().await.unwrap();
}

#[tokio::test]
async fn a_lost_connection_fails_what_is_under_way_and_is_made_again() {
    let (fake, client) = connected().await;
    fake.hook(|request| match request {
        Request::Enqueue { .. } => Act::ServeAndDisconnect,
        _ => Act::Serve,
    });
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.receive(waiting(20)).await }
    });
    fake.until_request(|request| matches!(request, Request::Receive(_))).await;
    let enqueued = client.enqueue("other", vec![message(0, "x")]).await;
    assert_eq!(enqueued.unwrap_err(), ClientError::ConnectionLost);
    assert_eq!(waiting.await.unwrap().unwrap_err(), ClientError::ConnectionLost);
    // Waits for the new connection.
    assert_eq!(client.receive(Receive::new("other")).await.unwrap().len(), 1);
    assert_eq!(fake.state.lock().unwrap().connections, 2);
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let fake = Fake::start();
    let options = ConnectOptions { request_timeout: Duration::from_millis(300), ..options(&fake) };
    let client = Client::connect(options).await.unwrap();
    let address = fake.address;
    fake.stop().await;
    // Until the news of the end is here a request may be handed over and lost.
    let mut error = client.ready().await.unwrap_err();
    while error == ClientError::ConnectionLost {
        error = client.ready().await.unwrap_err();
    }
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert!(error.retry_is_safe() && !error.fate_unknown());
    let _fake = Fake::start_at(address);
    while client.ready().await.is_err() {}
}

#[tokio::test]
async fn a_token_that_is_not_taken_fails_the_connect() {
    let fake = Fake::start();
    fake.hook(|request| match request {
        Request::Hello { token } if token == "right" => Act::Serve,
        Request::Hello { .. } => Act::Answer(Response::Refused(Refusal::unauthorized("unknown token"))),
        _ => Act::Serve,
    });
    let error = Client::connect(options(&fake)).await.err().unwrap();
    assert!(matches!(error, ClientError::Refused(Refusal { code: ErrorCode::Unauthorized, .. })), "{error}");
    let right = ConnectOptions { token: "right".into(), ..options(&fake) };
    Client::connect(right).await.unwrap().ready().await.unwrap();
}

#[tokio::test]
async fn certificates_are_checked() {
    let (fake, other) = (Fake::start(), Fake::start());
    let trusting = |certificates: Vec<Vec<u8>>| ConnectOptions {
        trust: Trust::Certificates(certificates),
        connect_timeout: Duration::from_secs(2),
        ..options(&fake)
    };
    Client::connect(trusting(vec![fake.certificate.clone()])).await.unwrap().ready().await.unwrap();
    let error = Client::connect(trusting(vec![other.certificate.clone()])).await.err().unwrap();
    assert!(matches!(error, ClientError::ServerCertificate { .. }), "{error:?}");
    assert!(error.to_string().starts_with(&format!("the certificate of {} is not trusted", fake.address)));
    assert!(error.retry_is_safe() && !error.fate_unknown());
    for (servers, trust) in [
        (vec!["192.0.2.1:7400".parse().unwrap()], Trust::LoopbackOnly),
        (vec![fake.address.into()], Trust::Certificates(vec![])),
        (vec![fake.address.into()], Trust::Certificates(vec![vec![1, 2, 3]])),
        (vec![], Trust::LoopbackOnly),
    ] {
        let bad = ConnectOptions { servers, trust, ..ConnectOptions::default() };
        let error = Client::connect(bad).await.err().unwrap();
        assert!(matches!(error, ClientError::Options(_)), "{error}");
    }
}

/// A file with several certificates trusts each; PEM or DER, with other things in between.
#[tokio::test]
async fn certificates_come_from_files() {
    let (fake, other) = (Fake::start(), Fake::start());
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = |name: &str, content: &[u8]| {
        let path = folder.join(format!("{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        path
    };
    let both = format!("# of two servers\r\n{}\nin between\n{}", other.pem, fake.pem);
    for (name, content) in
        [("one.pem", fake.pem.as_bytes()), ("two.pem", both.as_bytes()), ("der", &fake.certificate)]
    {
        let trust = Trust::from_file(file(name, content)).unwrap();
        let client = Client::connect(ConnectOptions { trust, ..options(&fake) }).await.unwrap();
        client.ready().await.unwrap();
    }
    let cut = &fake.pem[..fake.pem.len() / 2];
    let missing = folder.join("no-such.pem");
    for (path, says) in [
        (file("empty.pem", b""), "no certificate in it, neither PEM nor DER"),
        (file("text.pem", b"0 is no certificate"), "no certificate in it"),
        (file("cut.pem", cut.as_bytes()), "the PEM in it is damaged"),
        (missing, "No such file"),
    ] {
        let error = Trust::from_file(&path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains(says), "{error}");
        let error = Credentials::from_pem_files(&path, &path).unwrap_err().to_string();
        assert!(error.contains("credentials") && error.contains(says), "{error}");
    }
}

#[tokio::test]
async fn servers_have_names() {
    let fake = Fake::start();
    let named = |name: &str| ConnectOptions {
        servers: vec![format!("{name}:{}", fake.address.port()).parse().unwrap()],
        connect_timeout: Duration::from_secs(2),
        ..ConnectOptions::default()
    };
    let client = Client::connect(named("localhost")).await.unwrap();
    client.ready().await.unwrap();
    assert_eq!(client.connections()[0].server, fake.address);
    let error = Client::connect(named("nowhere.invalid")).await.err().unwrap();
    assert!(matches!(error, ClientError::Connect { .. }) && error.to_string().contains("look"), "{error}");
    // One that is not known keeps nobody from the others.
    let mut both = named("nowhere.invalid");
    both.servers.push(fake.address.into());
    Client::connect(both).await.unwrap().ready().await.unwrap();
}

#[tokio::test]
async fn a_wrong_kind_of_answer_is_an_error_and_not_a_panic() {
    let (fake, client) = connected().await;
    fake.hook(|request| match request {
        Request::Hello { .. } => Act::Serve,
        Request::Enqueue { .. } => Act::Answer(Response::Enqueued { results: vec![] }),
        _ => Act::Answer(Response::Done),
    });
    assert!(matches!(client.ready().await.unwrap_err(), ClientError::Protocol(_)));
    let short = client.enqueue("q", vec![message(0, "x")]).await.unwrap_err();
    assert!(matches!(short, ClientError::Protocol(_)) && short.fate_unknown());
}

#[tokio::test]
async fn close_fails_what_is_under_way_and_everything_later() {
    let (fake, client) = connected().await;
    let receive = tokio::spawn({
        let client = client.clone();
        async move { client.receive(waiting(20)).await }
    });
    fake.until_request(|request| matches!(request, Request::Receive(_))).await;
    client.close().await;
    assert_eq!(receive.await.unwrap().unwrap_err(), ClientError::ConnectionLost);
    assert_eq!(client.ready().await.unwrap_err(), ClientError::Closed);
}

#[tokio::test]
async fn several_connections_are_used_in_turn() {
    let fake = Fake::start();
    let client = Client::connect(ConnectOptions { connections: 3, ..options(&fake) }).await.unwrap();
    while fake.state.lock().unwrap().connections < 3 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let lost = Arc::new(AtomicUsize::new(0));
    let count = lost.clone();
    // Each disconnecting request takes one connection with it; the others go on.
    fake.hook(move |request| match request {
        Request::Purge { .. } if count.fetch_add(1, Ordering::Relaxed) == 0 => Act::ServeAndDisconnect,
        _ => Act::Serve,
    });
    assert_eq!(client.purge("q").await.unwrap_err(), ClientError::ConnectionLost);
    for _ in 0..10 {
        client.ready().await.unwrap();
    }
}

#[tokio::test]
async fn what_only_looks_is_asked_again_where_its_connection_is_lost() {
    let (fake, client) = connected().await;
    let mut first = true;
    fake.hook(move |request| match request {
        Request::Ready if core::mem::take(&mut first) => Act::ServeAndDisconnect,
        _ => Act::Serve,
    });
    client.ready().await.unwrap();
    assert_eq!(fake.state.lock().unwrap().connections, 2);
}

/// A client of two servers, connected to both.
async fn connected_to_two() -> (Mortal, Fake, Client) {
    let (one, other) = (Mortal::start(), Fake::start());
    let options = ConnectOptions {
        servers: vec![one.address.into(), other.address.into()],
        connect_timeout: Duration::from_millis(500),
        ..ConnectOptions::default()
    };
    let client = Client::connect(options).await.unwrap();
    until_connected(&client, &[one.address, other.address]).await;
    (one, other, client)
}

async fn until_connected(client: &Client, servers: &[std::net::SocketAddr]) {
    let connected = |client: &Client| client.connections().iter().map(|c| c.server).collect::<Vec<_>>();
    while !servers.iter().all(|server| connected(client).contains(server)) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_server_that_vanished_is_left_out_and_taken_in_again() {
    let (gone, other, client) = connected_to_two().await;
    let address = gone.address;
    gone.vanish();
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.ready().await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    while client.connections().iter().any(|connection| connection.server == address) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for n in 0..20 {
        client.enqueue("q", vec![message(n % 5, "x")]).await.unwrap();
    }
    assert_eq!(other.with_queue("q", |queue| queue.next), 20, "all went to the one that is there");
    let back = Fake::start_at(address);
    until_connected(&client, &[address]).await;
    while back.state.lock().unwrap().requests.is_empty() {
        client.ready().await.unwrap();
    }
}

#[tokio::test]
async fn a_vanished_server_is_not_asked_while_another_answers() {
    let (gone, _other, client) = connected_to_two().await;
    gone.vanish();
    // One request to each: the one that is gone confirms nothing, which soon makes it doubtful.
    let lookers: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.ready().await })
        })
        .collect();
    while client.connections().iter().all(|connection| connection.answering) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for n in 0..20 {
        client.enqueue("q", vec![message(n % 5, "x")]).await.unwrap();
    }
    for looker in lookers {
        looker.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn what_one_server_cannot_do_for_now_another_is_asked_for() {
    let (follower, leader, client) = connected_to_two().await;
    let unable = |refusal: Refusal| {
        move |request: &Request| match request {
            Request::Hello { .. } => Act::Serve,
            _ => Act::Answer(Response::Refused(refusal.clone())),
        }
    };
    for refusal in [Refusal::no_quorum("no leader here", 10), Refusal::stopping("going down")] {
        follower.hook(unable(refusal));
        for n in 0..10 {
            client.enqueue("q", vec![message(n % 5, "x")]).await.unwrap();
        }
    }
    assert_eq!(leader.with_queue("q", |queue| queue.next), 20);
    leader.hook(unable(Refusal::no_quorum("no leader there", 10)));
    let refused = client.enqueue("q", vec![message(0, "x")]).await.unwrap_err();
    assert!(refused.retry_is_safe(), "all were asked: {refused}");
    // What may be stored is not asked of another: that would be a second message.
    leader.hook(|_| Act::Serve);
    follower.hook(unable(Refusal::fate_unknown("leader lost", 10)));
    let outcomes =
        [client.enqueue("q", vec![message(0, "x")]).await, client.enqueue("q", vec![message(0, "x")]).await];
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1, "{outcomes:?}");
}

#[tokio::test]
async fn connections_are_spread_over_the_cores_of_a_server() {
    let fake = Fake::start();
    let mut hellos = 0;
    // The kernel draws badly: the first ten connections come to the same core.
    fake.hook(move |request| match request {
        Request::Hello { .. } => {
            hellos += 1;
            let core = u16::from(hellos > 40);
            Act::Answer(Response::Welcome { node: 7, core, cores: 2, version: "fake".into() })
        }
        _ => Act::Serve,
    });
    let client = Client::connect(ConnectOptions { connections: 4, ..options(&fake) }).await.unwrap();
    let cores = || {
        let mut cores: Vec<_> = client.connections().iter().map(|connection| connection.core).collect();
        cores.sort_unstable();
        cores
    };
    while cores().len() < 4 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(cores(), [0, 0, 1, 1]);
    assert!(client.connections().iter().all(|connection| connection.node == 7 && connection.answering));
}

/// The usual mistake: the port of HTTP.
#[tokio::test]
async fn an_address_that_speaks_tcp_is_told_to_be_the_wrong_one() {
    let http = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = ConnectOptions {
        servers: vec![http.local_addr().unwrap().into()],
        connect_timeout: Duration::from_millis(200),
        ..ConnectOptions::default()
    };
    let Err(error) = Client::connect(options).await else { panic!("nobody is there") };
    assert!(error.to_string().contains("is it the address of HTTP?"), "{error}");
}
