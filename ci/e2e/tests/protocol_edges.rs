//! What PROTOCOL.md says of the edges of the binary protocol that no client of ours comes near: greetings that are
//! missing or repeated, numbers that are used twice, values that are odd and allowed.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_base::UnixMillis;
use overtake_base::limits::SESSION_REQUESTS_MAX;
use overtake_client::{Client, ConnectOptions, Delay, EnqueueMessage, Receive};
use overtake_e2e::frames::{Stream, connect, frame, kind, text};
use overtake_e2e::{Options, Queue, Server, eventually};
use quinn::{Connection, Endpoint};
use serde_json::json;

const CONFIG: &str = r#"
[[tokens]]
token = "north"
tenant = "north"
rights = ["enqueue", "receive", "read", "admin"]
[[tokens]]
token = "south"
tenant = "south"
rights = ["enqueue", "receive", "read", "admin"]
"#;

const INVALID: u8 = 1;
const UNAUTHORIZED: u8 = 2;
const NOT_FOUND: u8 = 4;
const RATE: u8 = 9;

async fn connected(server: &Server) -> (Endpoint, Connection) {
    connect(server.quic(), server.data(), "overtake/1").await.expect("a server that serves")
}

fn hello(number: u64, token: &str) -> Vec<u8> {
    frame(number, kind::HELLO, &[&1u16.to_le_bytes()[..], &text(token)].concat())
}

/// A receive of one message that waits for 20 s.
fn receive(number: u64, queue: &str) -> Vec<u8> {
    let payload = [&text(queue)[..], &1u32.to_le_bytes(), &20u32.to_le_bytes(), &[0, 0, 0]].concat();
    frame(number, kind::RECEIVE, &payload)
}

/// What the server answers to this.
async fn ask(stream: &mut Stream, request: &[u8]) -> (u64, Answer) {
    stream.send(request).await;
    answer(stream).await
}

async fn answer(stream: &mut Stream) -> (u64, Answer) {
    let (number, kind, payload) = stream.next().await.expect("an answer");
    (number, if kind == kind::REFUSED { Answer::Refused(payload[0]) } else { Answer::Kind(kind) })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Kind(u8),
    /// With its code.
    Refused(u8),
}

const WELCOME: Answer = Answer::Kind(kind::WELCOME);
const QUEUE: Answer = Answer::Kind(kind::QUEUE);

fn get(number: u64) -> Vec<u8> {
    frame(number, kind::GET_QUEUE, &text("work"))
}

#[tokio::test]
async fn a_server_without_tokens_takes_any_stream() {
    let server = Server::start();
    server.create("work", json!({}));
    let (_endpoint, connection) = connected(&server).await;
    let mut stream = Stream::open(&connection).await;
    assert_eq!(ask(&mut stream, &get(1)).await, (1, QUEUE), "without a greeting");
    for (number, token) in [(2, ""), (3, "whatever"), (4, &"x".repeat(256))] {
        assert_eq!(ask(&mut stream, &hello(number, token)).await, (number, WELCOME));
        assert_eq!(ask(&mut stream, &get(number)).await, (number, QUEUE));
    }
    let too_long = hello(5, &"x".repeat(257));
    assert_eq!(ask(&mut stream, &too_long).await, (5, Answer::Refused(INVALID)));
    assert_eq!(ask(&mut stream, &get(6)).await, (6, QUEUE));
}

#[tokio::test]
async fn the_last_token_that_was_taken_counts() {
    let server = Options { config: Some(CONFIG), ..Options::default() }.start();
    let north = Queue::new(server.client().with_token("north"), "work");
    north.client().json("PUT", &north.path(""), &json!({})).expect_status(201);
    let (_endpoint, connection) = connected(&server).await;
    let mut stream = Stream::open(&connection).await;
    let refused = Answer::Refused(UNAUTHORIZED);
    assert_eq!(ask(&mut stream, &get(1)).await, (1, refused), "without a greeting");
    assert_eq!(ask(&mut stream, &hello(2, "unknown")).await, (2, refused));
    assert_eq!(ask(&mut stream, &hello(3, "north")).await, (3, WELCOME));
    assert_eq!(ask(&mut stream, &get(4)).await, (4, QUEUE));
    // Refused ones change nothing.
    assert_eq!(ask(&mut stream, &hello(5, "unknown")).await, (5, refused));
    assert_eq!(ask(&mut stream, &hello(6, &"x".repeat(257))).await, (6, Answer::Refused(INVALID)));
    assert_eq!(ask(&mut stream, &hello(7, &"x".repeat(256))).await, (7, refused));
    assert_eq!(ask(&mut stream, &get(8)).await, (8, QUEUE));
    // What is under way stays whose it was.
    stream.send(&receive(9, "work")).await;
    assert_eq!(ask(&mut stream, &hello(10, "south")).await, (10, WELCOME));
    assert_eq!(ask(&mut stream, &get(11)).await, (11, Answer::Refused(NOT_FOUND)));
    north.put(0, "for north");
    assert_eq!(answer(&mut stream).await, (9, Answer::Kind(kind::RECEIVED)));
    assert_eq!(ask(&mut stream, &hello(12, "")).await, (12, WELCOME));
    assert_eq!(ask(&mut stream, &get(13)).await, (13, refused));
}

#[tokio::test]
async fn numbers_are_the_clients_own_business_but_for_receives_that_wait() {
    let server = Server::start();
    server.create("work", json!({}));
    let (_endpoint, connection) = connected(&server).await;
    let mut stream = Stream::open(&connection).await;
    stream.send(&[get(7), get(7), get(0), get(u64::MAX)].concat()).await;
    for number in [7, 7, 0, u64::MAX] {
        assert_eq!(answer(&mut stream).await, (number, QUEUE));
    }
    stream.send(&receive(5, "work")).await;
    // Behind it on the stream: it has come by then, and this thread may look elsewhere.
    assert_eq!(ask(&mut stream, &get(6)).await, (6, QUEUE));
    eventually("the receive waits", || {
        let metrics = server.client().call("GET", "/metrics").text().to_owned();
        metrics.lines().any(|line| line == "overtake_waiting_receives 1").then_some(())
    });
    let taken = (5, Answer::Refused(INVALID));
    assert_eq!(ask(&mut stream, &get(5)).await, taken);
    assert_eq!(ask(&mut stream, &receive(5, "work")).await, taken);
    // It is still the receive's, and goes with it. The number of what cancels is not looked at.
    stream.send(&frame(5, kind::CANCEL_RECEIVE, &5u64.to_le_bytes())).await;
    let (number, answered, payload) = stream.next().await.expect("an answer");
    assert_eq!((number, answered, payload), (5, kind::RECEIVED, vec![0; 4]));
    assert_eq!(ask(&mut stream, &get(5)).await, (5, QUEUE));
}

#[tokio::test]
async fn so_many_requests_may_be_under_way_on_a_stream() {
    let server = Server::start();
    server.create("work", json!({}));
    let (_endpoint, connection) = connected(&server).await;
    let mut stream = Stream::open(&connection).await;
    let one_too_many = SESSION_REQUESTS_MAX as u64;
    stream.send(&(0..=one_too_many).flat_map(|number| receive(number, "work")).collect::<Vec<u8>>()).await;
    assert_eq!(answer(&mut stream).await, (one_too_many, Answer::Refused(RATE)));
    // To take one back is no request that waits for an answer; then there is room again.
    stream.send(&frame(0, kind::CANCEL_RECEIVE, &0u64.to_le_bytes())).await;
    assert_eq!(answer(&mut stream).await, (0, Answer::Kind(kind::RECEIVED)));
    assert_eq!(ask(&mut stream, &get(0)).await, (0, QUEUE));
}

#[tokio::test]
async fn a_level_has_one_rate_cap() {
    let server = Server::start();
    let (_endpoint, connection) = connected(&server).await;
    let mut stream = Stream::open(&connection).await;
    let put = |levels: [u8; 2]| {
        let caps = levels.map(|level| [&[level][..], &9u64.to_le_bytes()].concat()).concat();
        // 13 fields left alone; set, none for the queue, two levels; three more left alone.
        frame(1, kind::PUT_QUEUE, &[&text("capped")[..], &[0; 13], &[2, 0, 2], &caps, &[0; 3]].concat())
    };
    assert_eq!(ask(&mut stream, &put([1, 1])).await, (1, Answer::Refused(INVALID)));
    assert_eq!(ask(&mut stream, &put([1, 9])).await, (1, Answer::Refused(INVALID)), "of five levels");
    server.client().call("GET", "/v1/queues/capped").problem(404);
    assert_eq!(ask(&mut stream, &put([2, 1])).await, (1, Answer::Kind(kind::QUEUE_PUT)));
    assert_eq!(server.queue("capped").config()["rate_caps"], json!({"p1": 9, "p2": 9}));
}

#[tokio::test]
async fn the_past_is_now_and_headers_have_any_names() {
    let server = Server::start();
    server.create("work", json!({}));
    let options = ConnectOptions { servers: vec![server.quic().into()], ..ConnectOptions::default() };
    let client = Client::connect(options).await.expect("a connection");
    let header = |name: &str| (name.to_owned(), format!("value of {name}"));
    let headers: Vec<_> = ["", "A", "a", "é\u{1b}\n"].iter().map(|name| header(name)).collect();
    for ms in [0, 1, overtake_e2e::now_ms() - 1] {
        let delay = Delay::At(UnixMillis(ms));
        let message = EnqueueMessage { delay, headers: headers.clone(), ..EnqueueMessage::default() };
        client.enqueue("work", vec![message]).await.expect("it is stored")[0].as_ref().expect("stored");
    }
    let mut taken = 0;
    while taken < 3 {
        let receive = Receive { max: 10, wait_s: 20, ..Receive::new("work") };
        for message in client.receive(receive).await.expect("messages") {
            assert_eq!(message.headers, headers);
            taken += 1;
        }
    }
    let twice = vec![header("a"), header("b"), header("a")];
    let message = EnqueueMessage { headers: twice, ..EnqueueMessage::default() };
    let refused = client.enqueue("work", vec![message]).await.expect("an outcome").remove(0);
    assert_eq!(refused.expect_err("named twice").field.as_deref(), Some("headers"));
    client.close().await;
}
