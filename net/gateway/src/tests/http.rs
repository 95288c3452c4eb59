//! The listener over real sockets: protocols, disconnects, bounds, stopping.

use super::{Answer, Canned};
use crate::options::GatewayOptions;
use crate::server::accept;
use crate::servers::Servers;
use overtake_client::ConnectOptions;
use overtake_wire::message::{Request, Response};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

/// Longer than anything here takes; what hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn start(canned: Canned, options: GatewayOptions) -> Running {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let task =
        tokio::spawn(async move { accept(&options, Servers::Canned(canned), listener, stopped).await });
    Running { address, stop, task }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }
}

fn test(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("it hangs") });
}

fn done() -> Canned {
    Canned::response(Response::Done)
}

fn never() -> (Canned, Arc<Notify>) {
    let dropped = Arc::new(Notify::new());
    let notify = dropped.clone();
    (Canned::new(move |_| Answer::Never(notify.clone())), dropped)
}

async fn until_asked(canned: &Canned) {
    while canned.asked().is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Reads until the text ends with `end`, or the connection does.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let mut buffer = [0; 4_096];
    while !String::from_utf8_lossy(&read).ends_with(end) {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(bytes) => read.extend_from_slice(&buffer[..bytes]),
        }
    }
    String::from_utf8_lossy(&read).into_owned()
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
const OK: &str = "{\"status\":\"ok\"}";
const RECEIVE: &str = "POST /v1/queues/q/receive HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
    Content-Length: 13\r\n\r\n{\"wait_s\":20}";

#[test]
fn http1_connections_are_kept_and_pipelined() {
    test(async {
        let running = start(done(), GatewayOptions::default()).await;
        let mut stream = running.connect().await;
        for _ in 0..2 {
            stream.write_all(HEALTH.as_bytes()).await.unwrap();
            assert!(read_until(&mut stream, OK).await.starts_with("HTTP/1.1 200 OK\r\n"));
        }
        stream.write_all(format!("{HEALTH}{HEALTH}").as_bytes()).await.unwrap();
        let mut both = String::new();
        while both.matches(OK).count() < 2 {
            both += &read_until(&mut stream, OK).await;
        }
        running.stop().await;
    });
}

#[test]
fn http2_works_with_prior_knowledge() {
    test(async {
        let running = start(done(), GatewayOptions::default()).await;
        let (mut send, connection) = h2::client::handshake(running.connect().await).await.unwrap();
        let driver = tokio::spawn(connection);
        for _ in 0..3 {
            let request = axum::http::Request::get("http://x/healthz").body(()).unwrap();
            let (response, _) = send.send_request(request, true).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            let body = response.into_body().data().await.unwrap().unwrap();
            assert_eq!(body, OK);
        }
        drop(send);
        running.stop().await;
        let _ = driver.await;
    });
}

#[test]
fn a_client_that_disconnects_takes_its_receive_back() {
    test(async {
        let (canned, dropped) = never();
        let running = start(canned.clone(), GatewayOptions::default()).await;
        let mut stream = running.connect().await;
        stream.write_all(RECEIVE.as_bytes()).await.unwrap();
        until_asked(&canned).await;
        drop(stream);
        dropped.notified().await;
        running.stop().await;
    });
}

#[test]
fn a_reset_http2_stream_takes_its_receive_back() {
    test(async {
        let (canned, dropped) = never();
        let running = start(canned.clone(), GatewayOptions::default()).await;
        let (mut send, connection) = h2::client::handshake(running.connect().await).await.unwrap();
        let driver = tokio::spawn(connection);
        let request = axum::http::Request::post("http://x/v1/queues/q/receive").body(()).unwrap();
        let (response, mut stream) = send.send_request(request, true).unwrap();
        until_asked(&canned).await;
        stream.send_reset(h2::Reason::CANCEL);
        dropped.notified().await;
        drop((response, send, stream));
        running.stop().await;
        let _ = driver.await;
    });
}

#[test]
fn stopping_ends_waiting_receives_with_an_empty_answer() {
    test(async {
        let (canned, dropped) = never();
        let running = start(canned.clone(), GatewayOptions::default()).await;
        let mut idle = running.connect().await;
        idle.write_all(HEALTH.as_bytes()).await.unwrap();
        read_until(&mut idle, OK).await;
        let mut stream = running.connect().await;
        stream.write_all(RECEIVE.as_bytes()).await.unwrap();
        until_asked(&canned).await;
        let address = running.address;
        running.stop().await;
        let answer = read_until(&mut stream, "{\"messages\":[]}").await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("{\"messages\":[]}"),
            "{answer}"
        );
        dropped.notified().await;
        assert!(TcpStream::connect(address).await.is_err());
    });
}

#[test]
fn stopping_does_not_wait_for_ever() {
    test(async {
        let (canned, dropped) = never();
        let options = GatewayOptions { stop_timeout: Duration::from_millis(50), ..GatewayOptions::default() };
        let running = start(canned.clone(), options).await;
        let mut stream = running.connect().await;
        stream.write_all(b"GET /v1/queues/q/stats HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        until_asked(&canned).await;
        running.stop().await;
        dropped.notified().await;
        assert_eq!(read_until(&mut stream, "}").await, "");
    });
}

#[test]
fn connections_that_say_too_little_end() {
    test(async {
        let short = Duration::from_millis(100);
        let options =
            GatewayOptions { idle_timeout: short, head_timeout: short, ..GatewayOptions::default() };
        let running = start(done(), options).await;
        for start in ["", "P", "PRI * HTTP/2.0", "GET /healthz HTTP/1.1\r\nHost:"] {
            let mut stream = running.connect().await;
            stream.write_all(start.as_bytes()).await.unwrap();
            let answer = read_until(&mut stream, "never").await;
            assert!(!answer.contains("200 OK"), "{start}: {answer}");
        }
        let (send, connection) = h2::client::handshake(running.connect().await).await.unwrap();
        let _ = connection.await;
        drop(send);
        running.stop().await;
    });
}

#[test]
fn a_body_that_does_not_come_is_given_up() {
    test(async {
        let options =
            GatewayOptions { body_timeout: Duration::from_millis(100), ..GatewayOptions::default() };
        let running = start(done(), options).await;
        let mut stream = running.connect().await;
        let cut = RECEIVE.strip_suffix("20}").unwrap();
        stream.write_all(cut.as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, "}").await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
        running.stop().await;
    });
}

#[test]
fn a_request_over_the_limit_is_answered_though_it_is_still_being_sent() {
    test(async {
        let running = start(done(), GatewayOptions::default()).await;
        let mut stream = running.connect().await;
        let head = "POST /v1/queues/q/receive HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
            Content-Length: 3000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; 3_000_000]).await.unwrap();
        let answer = read_until(&mut stream, "}").await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        running.stop().await;
    });
}

#[test]
fn heads_are_bounded() {
    test(async {
        let options = GatewayOptions { headers_max: 20, head_bytes_max: 8_192, ..GatewayOptions::default() };
        let running = start(done(), options).await;
        let many: String = (0..40).map(|i| format!("X-{i}: 1\r\n")).collect();
        let long = format!("X: {}\r\n", "x".repeat(20_000));
        for headers in [many, long] {
            let mut stream = running.connect().await;
            let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = read_until(&mut stream, "never").await;
            assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        }
        running.stop().await;
    });
}

#[test]
fn connections_over_the_cap_wait_for_their_turn() {
    test(async {
        let options = GatewayOptions { connections_max: 1, ..GatewayOptions::default() };
        let running = start(done(), options).await;
        let mut first = running.connect().await;
        first.write_all(HEALTH.as_bytes()).await.unwrap();
        read_until(&mut first, OK).await;
        let mut second = running.connect().await;
        second.write_all(HEALTH.as_bytes()).await.unwrap();
        let mut byte = [0];
        assert!(tokio::time::timeout(Duration::from_millis(50), second.read(&mut byte)).await.is_err());
        drop(first);
        assert!(read_until(&mut second, OK).await.ends_with(OK));
        drop(second);
        running.stop().await;
    });
}

#[test]
fn a_gateway_on_its_own_thread_starts_answers_and_stops() {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // Nobody listens for QUIC there: the port is taken, by this socket.
    let silent = std::net::UdpSocket::bind(listen).unwrap();
    let connect = ConnectOptions {
        servers: vec![silent.local_addr().unwrap().into()],
        connect_timeout: Duration::from_millis(100),
        request_timeout: Duration::from_millis(100),
        ..ConnectOptions::default()
    };
    let options = GatewayOptions { listen, connect, ..GatewayOptions::default() };
    let handle = crate::spawn(options.clone()).unwrap();
    let taken = crate::spawn(GatewayOptions { listen: handle.address, ..options }).unwrap_err();
    assert!(taken.to_string().starts_with(&format!("address in use: {}", handle.address)), "{taken}");

    let ask = |path: &str| {
        let mut stream = std::net::TcpStream::connect(handle.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("/healthz").ends_with(OK));
    let unready = ask("/readyz");
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("retry-after: 1"), "{unready}");
    handle.stop();
    handle.join().unwrap();
}

#[test]
fn requests_reach_the_double_with_the_queue_of_the_path() {
    test(async {
        let canned = done();
        let running = start(canned.clone(), GatewayOptions::default()).await;
        let mut stream = running.connect().await;
        stream.write_all(b"DELETE /v1/queues/a%2Db HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 204"));
        assert_eq!(canned.asked()[0].1, Request::DeleteQueue { queue: "a-b".into() });
        running.stop().await;
    });
}
