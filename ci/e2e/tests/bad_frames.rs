//! What a hostile or broken client may send to the binary protocol: it loses its stream or connection with a code, and
//! nobody else notices.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_base::random::Random;
use overtake_e2e::frames::{Stream, connect, frame, hello, kind, text};
use overtake_e2e::{Server, now_ms};
use quinn::{Connection, Endpoint};
use serde_json::json;
use std::time::Duration;

const ALPN: &str = "overtake/1";
const CODE_INVALID: [u8; 2] = [1, 0];
/// Application error codes.
const FRAME: u64 = 1;
const STALLED: u64 = 2;
const VERSION: u64 = 5;

async fn connected(server: &Server) -> (Endpoint, Connection) {
    connect(server.quic(), server.data(), ALPN).await.expect("a server that serves")
}

/// A stream that was welcomed.
async fn welcomed(connection: &Connection) -> Stream {
    let mut stream = Stream::open(connection).await;
    stream.send(&hello(1)).await;
    let (number, answer, _) = stream.next().await.expect("a welcome");
    assert_eq!((number, answer), (0, kind::WELCOME));
    stream
}

/// The stream serves.
async fn serves(stream: &mut Stream) {
    stream.send(&frame(u64::MAX, kind::READY, b"")).await;
    let (number, answer, payload) = stream.next().await.expect("an answer");
    assert_eq!((number, answer, payload), (u64::MAX, kind::READINESS, vec![0; 4]));
}

#[tokio::test]
async fn a_malformed_request_is_refused_under_its_number_and_the_stream_goes_on() {
    let server = Server::start();
    let (_endpoint, connection) = connected(&server).await;
    let mut stream = welcomed(&connection).await;
    let huge_list = [text("q"), vec![0xff; 4]].concat();
    let not_utf8 = [&2u32.to_le_bytes()[..], &[0xff, 0xfe]].concat();
    let long_text = [&1_000_000u32.to_le_bytes()[..], b"q"].concat();
    let bad_tag = [&text("q")[..], &[1, 0, 0, 0], &[0; 4], &[7]].concat();
    let bad: [(u8, &[u8]); 11] = [
        (0, b""),
        (21, b""),
        (kind::REFUSED, b""),
        (255, b"x"),
        (kind::GET_QUEUE, b""),
        (kind::GET_QUEUE, &not_utf8),
        (kind::GET_QUEUE, &long_text),
        (kind::READY, b"more than nothing"),
        (kind::ENQUEUE, &huge_list),
        (kind::RECEIVE, &bad_tag),
        (kind::CANCEL_RECEIVE, &[1, 2, 3]),
    ];
    for (number, (kind, payload)) in (1..).zip(bad) {
        stream.send(&frame(number, kind, payload)).await;
        let (answered, answer, payload) = stream.next().await.expect("a refusal");
        assert_eq!((answered, answer), (number, kind::REFUSED), "kind {kind}");
        assert!(payload.starts_with(&CODE_INVALID), "kind {kind}: {payload:?}");
    }
    // Takes back a receive that never was: nothing to answer.
    stream.send(&frame(50, kind::CANCEL_RECEIVE, &99u64.to_le_bytes())).await;
    serves(&mut stream).await;
}

#[tokio::test]
async fn what_is_not_a_frame_ends_its_stream_with_a_code_and_no_other() {
    let server = Server::start();
    let (_endpoint, connection) = connected(&server).await;
    let mut bystander = welcomed(&connection).await;

    for length in 0..8u32 {
        let mut stream = welcomed(&connection).await;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.resize(4 + length as usize, 0xaa);
        stream.send(&bytes).await;
        assert_eq!(
            (stream.next().await, stream.stopped().await),
            (Err(Ok(())), Some(FRAME)),
            "{length} bytes"
        );
    }
    for length in [2_113_537, u32::MAX] {
        let mut stream = welcomed(&connection).await;
        stream.send(&length.to_le_bytes()).await;
        assert_eq!(
            (stream.next().await, stream.stopped().await),
            (Err(Err(FRAME)), Some(FRAME)),
            "{length} bytes"
        );
    }
    // A frame that is not finished before its stream is: forgotten.
    let mut stream = welcomed(&connection).await;
    stream.send(&frame(1, kind::READY, b"")[..9]).await;
    stream.send.finish().expect("open");
    assert_eq!(stream.next().await, Err(Ok(())));
    serves(&mut bystander).await;
}

#[tokio::test]
async fn another_version_is_refused_and_ends_its_stream() {
    let server = Server::start();
    let error = connect(server.quic(), server.data(), "overtake/2").await.expect_err("no such protocol");
    // QUIC's number for the TLS alert no_application_protocol, as quinn shows it.
    assert!(
        error.contains("120") || error.contains("0x178") || error.contains("no known protocol"),
        "{error}"
    );

    let (_endpoint, connection) = connected(&server).await;
    let mut bystander = welcomed(&connection).await;
    let mut stream = Stream::open(&connection).await;
    stream.send(&hello(2)).await;
    let (number, answer, payload) = stream.next().await.expect("a refusal");
    assert_eq!((number, answer), (0, kind::REFUSED));
    assert!(payload.starts_with(&CODE_INVALID) && String::from_utf8_lossy(&payload).contains("version 1"));
    assert_eq!((stream.next().await, stream.stopped().await), (Err(Ok(())), Some(VERSION)));
    serves(&mut bystander).await;
}

#[tokio::test]
async fn a_connection_has_so_many_streams_and_none_that_go_one_way() {
    let server = Server::start();
    let (_endpoint, connection) = connected(&server).await;
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(welcomed(&connection).await);
    }
    let soon = Duration::from_millis(200);
    assert!(tokio::time::timeout(soon, connection.open_bi()).await.is_err(), "a seventeenth stream");
    assert!(tokio::time::timeout(soon, connection.open_uni()).await.is_err(), "a stream that goes one way");
    // Room is given back in threes.
    streams.truncate(13);
    serves(&mut welcomed(&connection).await).await;
}

/// Asks for all messages of a queue, 4 MiB of them.
fn peek(number: u64, queue: &str) -> Vec<u8> {
    let all_states = 0b111;
    let payload = [&text(queue)[..], &[all_states, 0], &1_000u32.to_le_bytes(), &[0]].concat();
    frame(number, kind::PEEK, &payload)
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off() {
    let server = Server::start();
    let queue = server.create("large", json!({}));
    for _ in 0..40 {
        queue.put(0, &"x".repeat(128 * 1024));
    }
    let (_endpoint, connection) = connected(&server).await;
    let mut bystander = welcomed(&connection).await;

    // Asks once and takes nothing; begins a request and does not end it.
    let (mut idle, mut half) = (welcomed(&connection).await, welcomed(&connection).await);
    idle.send(&peek(1, "large")).await;
    half.send(&peek(1, "large")[..9]).await;
    serves(&mut bystander).await;
    for stream in [&mut idle, &mut half] {
        assert_eq!((stream.reset().await, stream.stopped().await), (Some(STALLED), Some(STALLED)));
    }
    // What only waits for its next request is left in peace, and so is who reads.
    serves(&mut bystander).await;
    bystander.send(&peek(2, "large")).await;
    let (number, answer, payload) = bystander.next().await.expect("the messages");
    assert_eq!((number, answer), (2, kind::PEEKED));
    assert!(payload.len() > 1024 * 1024);
}

#[tokio::test]
async fn clients_that_ask_for_much_and_read_nothing_neither_fill_the_memory_nor_hold_others_up() {
    let server = Server::start();
    let queue = server.create("large", json!({}));
    for _ in 0..40 {
        queue.put(0, &"x".repeat(128 * 1024));
    }
    let before = server.memory_bytes();
    let (_endpoint, connection) = connected(&server).await;
    let mut bystander = welcomed(&connection).await;
    let mut greedy = Vec::new();
    for _ in 0..4 {
        let (endpoint, connection) = connected(&server).await;
        let mut streams = Vec::new();
        for _ in 0..16 {
            let mut stream = welcomed(&connection).await;
            stream.send(&(0..200).flat_map(|number| peek(number, "large")).collect::<Vec<u8>>()).await;
            streams.push(stream);
        }
        greedy.push((endpoint, connection, streams));
    }
    // 12,800 answers of 4 MiB: 50 GiB, of which each connection may have 16 MiB, and what QUIC holds.
    for _ in 0..20 {
        serves(&mut bystander).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes for answers that nobody reads");
    // The same for a client that goes away without a word: its requests go with it.
    drop(greedy);
    serves(&mut bystander).await;
}

#[tokio::test]
async fn a_client_that_reads_gets_everything_however_much_it_asked_for_at_once() {
    let server = Server::start();
    let queue = server.create("large", json!({}));
    for _ in 0..40 {
        queue.put(0, &"x".repeat(128 * 1024));
    }
    let (_endpoint, connection) = connected(&server).await;
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut stream = welcomed(&connection).await;
        stream.send(&(0..8).flat_map(|number| peek(number, "large")).collect::<Vec<u8>>()).await;
        readers.push(tokio::spawn(async move {
            for _ in 0..8 {
                let (_, answer, payload) = stream.next().await.expect("an answer");
                assert_eq!(answer, kind::PEEKED);
                assert!(payload.len() > 1024 * 1024);
            }
        }));
    }
    for reader in readers {
        reader.await.expect("everything");
    }
}

#[tokio::test]
async fn noise_harms_nobody() {
    let server = Server::start();
    let queue = server.create("calm", json!({}));
    let mut random = Random::new(now_ms(), "noise");
    let mut noise =
        |bytes: u64| (0..1 + random.below(bytes)).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();

    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    for _ in 0..2_000 {
        // A long or short header of QUIC in front, so that some of it is looked into.
        let mut datagram = noise(1_400);
        datagram[0] |= 0x40;
        let _ = socket.send_to(&datagram, server.quic());
    }
    let (_endpoint, connection) = connected(&server).await;
    let mut bystander = welcomed(&connection).await;
    for _ in 0..100 {
        let mut stream = welcomed(&connection).await;
        let mut bytes = noise(3_000);
        // Half of them with a length that is true, so that what is inside is looked at.
        if bytes.len() > 13 && bytes[4] & 1 == 0 {
            let length = (bytes.len() - 4) as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[12] = 1 + bytes[12] % 20;
        }
        stream.send(&bytes).await;
        let _ = stream.send.finish();
        let end = loop {
            if let Err(end) = stream.next().await {
                break end;
            }
        };
        assert!(matches!(end, Ok(()) | Err(FRAME)), "{end:?}");
    }
    serves(&mut bystander).await;
    let id = queue.put(0, "still here");
    assert_eq!(queue.receive_one(json!({})).id, id);
}
