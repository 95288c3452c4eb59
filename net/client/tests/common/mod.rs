//! A server in the test's own process: real QUIC and real frames before a queue in memory that keeps priorities,
//! leases and client-made ids and nothing else. A hook decides what happens to each request, so that a test can lose
//! answers, connections, or time.

#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, reason = "a test fails by panicking")]

use bytes::Bytes;
use overtake_base::{MessageId, QueueConfig, Receipt, Sequence, ShardId, UnixMillis};
use overtake_wire::message::*;
use overtake_wire::{ALPN_CLIENT, FrameSplitter, decode_request, encode_response};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, Endpoint, EndpointConfig, SendStream, ServerConfig, TransportConfig, VarInt};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};

/// What the hook makes of a request.
pub enum Act {
    /// Carry it out and answer.
    Serve,
    /// Carry it out, never answer.
    Swallow,
    /// Carry it out, then lose the connection instead of answering.
    ServeAndDisconnect,
    /// Answer this, do nothing.
    Answer(Response),
}

type Hook = Box<dyn FnMut(&Request) -> Act + Send>;

/// One stored message.
#[derive(Clone)]
pub struct Stored {
    pub id: MessageId,
    pub sequence: u64,
    pub deliveries: u32,
    pub message: EnqueueMessage,
}

#[derive(Default)]
pub struct Queue {
    pub lanes: BTreeMap<u32, VecDeque<Stored>>,
    pub leased: BTreeMap<String, Stored>,
    pub acked: Vec<MessageId>,
    pub released: Vec<(String, Option<String>)>,
    pub extended: Vec<String>,
    pub undelivered: Vec<String>,
    pub seen: BTreeMap<u128, ()>,
    pub next: u64,
}

pub struct State {
    pub queues: BTreeMap<String, Queue>,
    pub requests: Vec<Request>,
    pub connections: usize,
    hook: Hook,
}

pub struct Fake {
    pub address: SocketAddr,
    pub certificate: Vec<u8>,
    pub pem: String,
    pub state: Arc<Mutex<State>>,
    endpoint: Endpoint,
    changed: Arc<Notify>,
}

impl Fake {
    /// Serves on a free port of loopback.
    pub fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap())
    }

    pub fn start_at(address: SocketAddr) -> Self {
        let issued = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let certificate = issued.cert.der().to_vec();
        let pem = issued.cert.pem();
        let key = rustls::pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
        let mut tls =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.clone().into()], key)
                .unwrap();
        tls.alpn_protocols = vec![ALPN_CLIENT.to_vec()];
        let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        let mut transport = TransportConfig::default();
        transport.max_concurrent_bidi_streams(VarInt::from_u32(16)).enable_segmentation_offload(false);
        config.transport_config(Arc::new(transport));
        let mut endpoint_config = EndpointConfig::default();
        endpoint_config.max_udp_payload_size(65_527).unwrap();
        let socket = std::net::UdpSocket::bind(address).unwrap();
        let address = socket.local_addr().unwrap();
        let endpoint =
            Endpoint::new(endpoint_config, Some(config), socket, Arc::new(quinn::TokioRuntime)).unwrap();
        let state = Arc::new(Mutex::new(State {
            queues: BTreeMap::new(),
            requests: Vec::new(),
            connections: 0,
            hook: Box::new(|_| Act::Serve),
        }));
        let changed = Arc::new(Notify::new());
        tokio::spawn(accept(endpoint.clone(), state.clone(), changed.clone()));
        Self { address, certificate, pem, state, endpoint, changed }
    }

    /// Decides about every request from now on, `Hello` included.
    pub fn hook(&self, hook: impl FnMut(&Request) -> Act + Send + 'static) {
        self.state.lock().unwrap().hook = Box::new(hook);
    }

    /// Releases so far: receipt, delay and error text.
    pub fn releases(&self) -> Vec<Release> {
        let state = self.state.lock().unwrap();
        let releases = |request: &Request| match request {
            Request::Settle(settle) => settle.release.clone(),
            _ => vec![],
        };
        state.requests.iter().flat_map(releases).collect()
    }

    /// Ends the server; its port is free afterwards.
    pub async fn stop(self) {
        self.endpoint.close(VarInt::from_u32(4), b"stopping");
        self.endpoint.wait_idle().await;
    }

    pub fn with_queue<T>(&self, queue: &str, look: impl FnOnce(&Queue) -> T) -> T {
        look(self.state.lock().unwrap().queues.entry(queue.to_owned()).or_default())
    }

    /// Waits until something about the queue is as it should be.
    pub async fn until(&self, queue: &str, mut holds: impl FnMut(&Queue) -> bool) {
        loop {
            let changed = self.changed.notified();
            if self.with_queue(queue, &mut holds) {
                return;
            }
            // The pause only bounds how long a missed wake-up could hold a test.
            let _ = tokio::time::timeout(Duration::from_millis(20), changed).await;
        }
    }

    /// Waits until a request was seen for which `is` holds.
    pub async fn until_request(&self, is: impl Fn(&Request) -> bool) {
        while !self.state.lock().unwrap().requests.iter().any(&is) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// A server on a thread of its own, which can go away as a machine does that loses its power: without a word.
pub struct Mortal {
    fake: Fake,
    life: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Mortal {
    pub fn start() -> Self {
        let (life, death) = oneshot::channel();
        let (born, birth) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                born.send(Fake::start()).unwrap();
                let _ = death.await;
            });
        });
        Self { fake: birth.recv().unwrap(), life, thread }
    }

    /// Its port is free afterwards.
    pub fn vanish(self) {
        drop(self.life);
        self.thread.join().unwrap();
    }
}

impl core::ops::Deref for Mortal {
    type Target = Fake;

    fn deref(&self) -> &Fake {
        &self.fake
    }
}

async fn accept(endpoint: Endpoint, state: Arc<Mutex<State>>, changed: Arc<Notify>) {
    while let Some(incoming) = endpoint.accept().await {
        let (state, changed) = (state.clone(), changed.clone());
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            state.lock().unwrap().connections += 1;
            while let Ok((send, receive)) = connection.accept_bi().await {
                let stream = Stream {
                    connection: connection.clone(),
                    state: state.clone(),
                    changed: changed.clone(),
                    cancelled: Arc::default(),
                };
                tokio::spawn(stream.run(send, receive));
            }
        });
    }
}

#[derive(Clone)]
struct Stream {
    connection: Connection,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    cancelled: Arc<Mutex<Vec<u64>>>,
}

impl Stream {
    async fn run(self, send: SendStream, mut receive: quinn::RecvStream) {
        let (out, frames) = mpsc::unbounded_channel();
        tokio::spawn(write(send, frames));
        let mut splitter = FrameSplitter::for_requests();
        while let Ok(Some(chunk)) = receive.read_chunk(usize::MAX, true).await {
            splitter.push(chunk.bytes);
            while let Some(frame) = splitter.next_frame().unwrap() {
                let (id, request) = decode_request(&frame).unwrap();
                self.take(id, request, &out);
            }
        }
    }

    fn take(&self, id: u64, request: Request, out: &mpsc::UnboundedSender<Vec<u8>>) {
        let act = {
            let mut state = self.state.lock().unwrap();
            if !matches!(request, Request::Hello { .. }) {
                state.requests.push(request.clone());
            }
            (state.hook)(&request)
        };
        let answer = |response: &Response| {
            let mut bytes = Vec::new();
            encode_response(id, response, &mut bytes);
            let _ = out.send(bytes);
        };
        match (act, request) {
            (Act::Answer(response), _) => answer(&response),
            (Act::Swallow, request) => drop(serve(&mut self.state.lock().unwrap(), &request)),
            (Act::ServeAndDisconnect, request) => {
                let _ = serve(&mut self.state.lock().unwrap(), &request);
                self.connection.close(VarInt::from_u32(4), b"gone");
            }
            (Act::Serve, Request::CancelReceive { request }) => {
                self.cancelled.lock().unwrap().push(request);
                self.changed.notify_waiters();
            }
            (Act::Serve, Request::Receive(receive)) if receive.wait_s > 0 => {
                tokio::spawn(self.clone().wait(id, receive, out.clone()));
            }
            (Act::Serve, request) => {
                let response = serve(&mut self.state.lock().unwrap(), &request);
                answer(&response);
                self.changed.notify_waiters();
            }
        }
    }

    async fn wait(self, id: u64, receive: Receive, out: mpsc::UnboundedSender<Vec<u8>>) {
        let until = tokio::time::Instant::now() + Duration::from_secs(u64::from(receive.wait_s));
        let request = Request::Receive(receive);
        let response = loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let cancelled = self.cancelled.lock().unwrap().contains(&id);
            if cancelled {
                break Response::Received { messages: vec![] };
            }
            let response = serve(&mut self.state.lock().unwrap(), &request);
            if !matches!(&response, Response::Received { messages } if messages.is_empty()) {
                break response;
            }
            if tokio::time::timeout_at(until, changed).await.is_err() {
                break Response::Received { messages: vec![] };
            }
        };
        let mut bytes = Vec::new();
        encode_response(id, &response, &mut bytes);
        let _ = out.send(bytes);
    }
}

async fn write(mut send: SendStream, mut frames: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        if send.write_chunk(Bytes::from(frame)).await.is_err() {
            return;
        }
    }
}

fn serve(state: &mut State, request: &Request) -> Response {
    if let Request::DeleteQueue { queue } = request {
        return match state.queues.remove(queue) {
            Some(_) => Response::Done,
            None => Response::Refused(Refusal::not_found("no such queue")),
        };
    }
    if let Request::Peek { queue, .. } = request {
        let Some(queue) = state.queues.get(queue) else {
            return Response::Refused(Refusal::not_found("no such queue"));
        };
        let messages = queue.lanes.values().flatten().map(peeked).collect();
        return Response::Peeked { messages, next: None };
    }
    let queue = state.queues.entry(request.queue().unwrap_or_default().to_owned()).or_default();
    match request {
        Request::Hello { .. } => Response::Welcome { node: 1, core: 0, cores: 1, version: "fake".into() },
        Request::PutQueue { patch, .. } => match QueueConfig::create(patch, 8) {
            Ok(config) => Response::QueuePut { created: true, config },
            Err(refused) => Response::Refused(refused.into()),
        },
        Request::Enqueue { messages, .. } => Response::Enqueued {
            results: messages.iter().map(|message| Ok(enqueue(queue, message))).collect(),
        },
        Request::Receive(receive) => Response::Received { messages: lease(queue, receive) },
        Request::Settle(settle) => settle_all(queue, settle),
        Request::Undelivered { receipts, .. } => {
            for receipt in receipts {
                queue.undelivered.push(receipt.clone());
                if let Some(mut stored) = queue.leased.remove(receipt) {
                    stored.deliveries -= 1;
                    queue.lanes.entry(stored.message.priority).or_default().push_front(stored);
                }
            }
            Response::Done
        }
        Request::Purge { .. } => {
            let purged = queue.lanes.values().map(|lane| lane.len() as u64).sum();
            queue.lanes.clear();
            Response::Purged { purged }
        }
        Request::Ready => Response::Readiness { not_ready: vec![] },
        other => Response::Refused(Refusal::internal(format!("not served here: {:?}", other.kind()))),
    }
}

fn peeked(stored: &Stored) -> PeekedMessage {
    PeekedMessage {
        id: stored.id,
        priority: stored.message.priority as u8,
        state: MessageState::Visible,
        deliveries: stored.deliveries,
        enqueued_at: UnixMillis(1),
        deliver_at: None,
        lease_expires_at: None,
        headers: Vec::new(),
        body: stored.message.body.clone(),
    }
}

fn enqueue(queue: &mut Queue, message: &EnqueueMessage) -> Enqueued {
    queue.next += 1;
    let id = message.id.unwrap_or(MessageId(u128::from(queue.next)));
    let duplicate = queue.seen.insert(id.0, ()).is_some();
    if !duplicate {
        let stored = Stored { id, sequence: queue.next, deliveries: 0, message: message.clone() };
        queue.lanes.entry(message.priority).or_default().push_back(stored);
    }
    Enqueued { id, shard: 0, duplicate }
}

fn lease(queue: &mut Queue, receive: &Receive) -> Vec<Delivered> {
    let mut messages = Vec::new();
    for (level, lane) in &mut queue.lanes {
        if receive.max_priority.is_some_and(|max| *level > max) {
            break;
        }
        while messages.len() < receive.max as usize
            && let Some(mut stored) = lane.pop_front()
        {
            stored.deliveries += 1;
            let receipt = Receipt {
                shard: ShardId(0),
                sequence: Sequence(stored.sequence),
                deliveries: stored.deliveries,
            };
            messages.push(Delivered {
                id: stored.id,
                priority: *level as u8,
                receipt,
                deliveries: stored.deliveries,
                enqueued_at: UnixMillis(0),
                lease_expires_at: UnixMillis(u64::from(receive.lease_s.unwrap_or(30)) * 1_000),
                headers: stored.message.headers.clone(),
                share: false,
                body: stored.message.body.clone(),
            });
            queue.leased.insert(receipt.to_string(), stored);
        }
    }
    messages
}

fn settle_all(queue: &mut Queue, settle: &Settle) -> Response {
    let known = |queue: &Queue, receipt: &str| {
        if queue.leased.contains_key(receipt) { Settled::Ok } else { Settled::Unknown }
    };
    let mut response = (Vec::new(), Vec::new(), Vec::new());
    for receipt in &settle.ack {
        response.0.push(known(queue, receipt));
        if let Some(stored) = queue.leased.remove(receipt) {
            queue.acked.push(stored.id);
        }
    }
    for extend in &settle.extend {
        response.1.push(known(queue, &extend.receipt));
        queue.extended.push(extend.receipt.clone());
    }
    for release in &settle.release {
        response.2.push(known(queue, &release.receipt));
        queue.released.push((release.receipt.clone(), release.error.clone()));
        if let Some(stored) = queue.leased.remove(&release.receipt) {
            queue.lanes.entry(stored.message.priority).or_default().push_front(stored);
        }
    }
    Response::Settled { ack: response.0, extend: response.1, release: response.2 }
}
