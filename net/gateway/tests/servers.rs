//! The whole way: HTTP in, QUIC out, to the server that the client's own tests use.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../client/tests/common/mod.rs"]
mod common;

use common::{Act, Fake};
use overtake_client::{ConnectOptions, Trust};
use overtake_gateway::{GatewayHandle, GatewayOptions, spawn};
use overtake_wire::message::{Refusal, Request, Response};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Longer than anything here takes; what hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(30);

fn test(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("it hangs") });
}

fn gateway(server: SocketAddr, certificate: &[u8], auth: bool) -> GatewayHandle {
    let connect = ConnectOptions {
        servers: vec![server.into()],
        trust: Trust::Certificates(vec![certificate.to_vec()]),
        connect_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(5),
        ..ConnectOptions::default()
    };
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    spawn(GatewayOptions { listen, connect, auth, ..GatewayOptions::default() }).unwrap()
}

async fn send(gateway: &GatewayHandle, call: &str, token: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let length = body.len();
    let head = format!(
        "{call} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
        Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> (u16, Value) {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

async fn ask(gateway: &GatewayHandle, call: &str, body: &str) -> (u16, Value) {
    answer(send(gateway, call, "t", body).await).await
}

fn end(gateway: GatewayHandle) {
    gateway.stop();
    gateway.join().unwrap();
}

const ID: &str = "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX";

#[test]
fn a_message_goes_round() {
    test(async {
        let fake = Fake::start();
        let gateway = gateway(fake.address, &fake.certificate, false);
        assert_eq!(ask(&gateway, "GET /readyz", "").await.0, 200);
        let (status, config) = ask(&gateway, "PUT /v1/queues/mail", r#"{"lease_s":60}"#).await;
        assert_eq!((status, &config["lease_s"]), (201, &json!(60)));

        let waiting = send(&gateway, "POST /v1/queues/mail/receive", "t", r#"{"wait_s":20}"#).await;
        fake.until_request(|request| matches!(request, Request::Receive(_))).await;
        let message = format!(r#"{{"priority":1,"body":"aGk=","headers":{{"a":"b"}},"id":"{ID}"}}"#);
        let (status, enqueued) = ask(&gateway, "POST /v1/queues/mail/messages", &message).await;
        assert_eq!((status, enqueued), (202, json!({ "id": ID, "shard": 0 })));
        let (status, received) = answer(waiting).await;
        let delivered = &received["messages"][0];
        assert_eq!((status, &delivered["id"], &delivered["body"]), (200, &json!(ID), &json!("aGk=")));
        assert_eq!(delivered["headers"], json!({ "a": "b" }));

        let receipt = delivered["receipt"].as_str().unwrap();
        let settle = json!({ "ack": [receipt, "nonsense"] }).to_string();
        let (status, settled) = ask(&gateway, "POST /v1/queues/mail/ack", &settle).await;
        assert_eq!((status, settled), (200, json!({ "results": { receipt: "ok", "nonsense": "unknown" } })));
        assert_eq!(ask(&gateway, "DELETE /v1/queues/mail", "").await.0, 204);
        assert_eq!(ask(&gateway, "DELETE /v1/queues/mail", "").await.0, 404);
        end(gateway);
    });
}

#[test]
fn a_disconnect_cancels_the_receive_at_the_server() {
    test(async {
        let fake = Fake::start();
        let gateway = gateway(fake.address, &fake.certificate, false);
        let waiting = send(&gateway, "POST /v1/queues/mail/receive", "t", r#"{"wait_s":20}"#).await;
        fake.until_request(|request| matches!(request, Request::Receive(_))).await;
        drop(waiting);
        fake.until_request(|request| matches!(request, Request::CancelReceive { .. })).await;
        let message = r#"{"priority":0,"body":""}"#;
        assert_eq!(ask(&gateway, "POST /v1/queues/mail/messages", message).await.0, 202);
        let (_, received) = ask(&gateway, "POST /v1/queues/mail/receive", "{}").await;
        assert_eq!(received["messages"].as_array().unwrap().len(), 1, "the one that left took nothing");
        end(gateway);
    });
}

#[test]
fn a_lost_answer_is_of_unknown_fate_and_the_retry_stores_nothing_twice() {
    test(async {
        let fake = Fake::start();
        let mut lost = false;
        fake.hook(move |request| match request {
            Request::Enqueue { .. } if !lost => {
                lost = true;
                Act::ServeAndDisconnect
            }
            _ => Act::Serve,
        });
        let gateway = gateway(fake.address, &fake.certificate, false);
        let message = format!(r#"{{"priority":1,"body":"","id":"{ID}"}}"#);
        let (status, problem) = ask(&gateway, "POST /v1/queues/mail/messages", &message).await;
        assert_eq!((status, &problem["stored"]), (503, &json!("unknown")), "{problem}");
        let (status, enqueued) = ask(&gateway, "POST /v1/queues/mail/messages", &message).await;
        assert_eq!((status, enqueued), (202, json!({ "id": ID, "shard": 0, "duplicate": true })));
        end(gateway);
    });
}

#[test]
fn each_token_has_a_connection_of_its_own() {
    test(async {
        let fake = Fake::start();
        fake.hook(|request| match request {
            Request::Hello { token } if !token.starts_with("good") => {
                Act::Answer(Response::Refused(Refusal::unauthorized("no such token")))
            }
            _ => Act::Serve,
        });
        let gateway = gateway(fake.address, &fake.certificate, true);
        let call = "POST /v1/queues/mail/receive";
        for (token, status) in [("good1", 200), ("bad", 401), ("good2", 200), ("good1", 200), ("bad", 401)] {
            let (answered, problem) = answer(send(&gateway, call, token, "{}").await).await;
            assert_eq!(answered, status, "{token}: {problem}");
        }
        let served = fake.state.lock().unwrap().requests.len();
        assert_eq!(served, 3, "nothing of the bad token got through");
        end(gateway);
    });
}

#[test]
fn without_servers_the_answer_says_that_nothing_was_stored() {
    test(async {
        let first = Fake::start();
        let (address, certificate) = (first.address, first.certificate.clone());
        first.stop().await;
        let gateway = gateway(address, &certificate, false);
        let (status, problem) =
            ask(&gateway, "POST /v1/queues/q/messages", r#"{"priority":0,"body":""}"#).await;
        assert_eq!((status, &problem["stored"]), (503, &Value::Null), "{problem}");
        end(gateway);
    });
}
