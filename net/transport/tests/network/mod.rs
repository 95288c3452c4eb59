//! A transport and quinn-proto clients on a network made of a queue: time is a number, loss and delay come from a seed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::{Bytes, BytesMut};
use overtake_base::random::Random;
use overtake_base::{CoreId, UnixMillis};
use overtake_transport::{AdmissionLimits, Routed, Transport, TransportConfig, TransportEvent};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    ReadError, StreamEvent, StreamId, VarInt, WriteError,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A certificate for `localhost` and its key, DER.
pub struct Identity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl Identity {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        Self { certificate: made.cert.der().to_vec(), key: made.signing_key.serialize_der() }
    }

    pub fn server(&self, core: u16, cores: u16, seed: u8) -> TransportConfig {
        TransportConfig {
            certificates: vec![self.certificate.clone()],
            private_key: self.key.clone(),
            client_authorities: Vec::new(),
            wall: UnixMillis(1_800_000_000_000),
            core: CoreId(core),
            cores,
            secret: [9; 32],
            seed: [seed; 32],
            admission: AdmissionLimits::default(),
        }
    }
}

/// One stream of a client.
#[derive(Default)]
pub struct ClientStream {
    pub to_send: VecDeque<Bytes>,
    pub received: Vec<u8>,
    pub ended: bool,
    pub reset: Option<u64>,
    pub stopped: Option<u64>,
}

/// One client: one endpoint, one connection.
pub struct Client {
    pub address: SocketAddr,
    endpoint: Endpoint,
    pub handle: ConnectionHandle,
    pub quic: Connection,
    pub streams: BTreeMap<StreamId, ClientStream>,
    /// Whether it reads answers.
    pub reads: bool,
    pub connected: bool,
    pub lost: Option<String>,
}

pub struct Packet {
    at: Instant,
    order: u64,
    from: SocketAddr,
    to: SocketAddr,
    pub data: Vec<u8>,
}

/// What a server saw.
#[derive(Default)]
pub struct Seen {
    pub opened: Vec<u64>,
    pub frames: Vec<(u64, Bytes)>,
    pub closed: Vec<u64>,
    /// Bytes of answers that the transport no longer holds, by session.
    pub taken: BTreeMap<u64, usize>,
    /// The most frames that one turn handed out.
    pub most_in_turn: usize,
}

/// Servers (cores of one node, one address), clients, packets in flight.
pub struct Network {
    pub identity: Identity,
    pub now: Instant,
    pub start: Instant,
    pub cores: Vec<Transport>,
    pub seen: Vec<Seen>,
    /// Answers each frame with itself.
    pub echo: bool,
    /// Which core the kernel gives a datagram to.
    pub deliver_to: usize,
    pub clients: Vec<Client>,
    in_flight: Vec<Packet>,
    order: u64,
    random: Random,
    pub loss_ppm: u32,
    pub handed_over: u64,
}

pub const SERVER: &str = "10.0.0.1:7400";

impl Network {
    pub fn new(seed: u64, cores: u16) -> Self {
        Self::with(seed, cores, AdmissionLimits::default())
    }

    pub fn with(seed: u64, cores: u16, admission: AdmissionLimits) -> Self {
        let identity = Identity::new();
        let now = Instant::now();
        let make = |core| {
            let mut config = identity.server(core, cores, seed as u8 ^ core as u8);
            config.admission = admission;
            Transport::new(&config, now).unwrap()
        };
        Self {
            cores: (0..cores).map(make).collect(),
            seen: (0..cores).map(|_| Seen::default()).collect(),
            identity,
            now,
            start: now,
            echo: true,
            deliver_to: 0,
            clients: Vec::new(),
            in_flight: Vec::new(),
            order: 0,
            random: Random::new(seed, "network"),
            loss_ppm: 0,
            handed_over: 0,
        }
    }

    pub fn connect(&mut self, address: &str) -> usize {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.identity.certificate.clone().into()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![overtake_wire::ALPN_CLIENT.to_vec()];
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let mut transport = quinn_proto::TransportConfig::default();
        transport.stream_receive_window(VarInt::from_u32(256 * 1024));
        config.transport_config(Arc::new(transport));
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, Some([3; 32]));
        let (handle, quic) =
            endpoint.connect(self.now, config, SERVER.parse().unwrap(), "localhost").unwrap();
        self.clients.push(Client {
            address: address.parse().unwrap(),
            endpoint,
            handle,
            quic,
            streams: BTreeMap::new(),
            reads: true,
            connected: false,
            lost: None,
        });
        self.clients.len() - 1
    }

    /// Opens a stream and sends frames on it.
    pub fn open(&mut self, client: usize, frames: Vec<Bytes>) -> StreamId {
        let client = &mut self.clients[client];
        let id = client.quic.streams().open(Dir::Bi).expect("a stream to open");
        client.streams.insert(id, ClientStream { to_send: frames.into(), ..ClientStream::default() });
        id
    }

    pub fn send_raw(&mut self, from: &str, data: Vec<u8>) {
        self.post(from.parse().unwrap(), SERVER.parse().unwrap(), data);
    }

    fn post(&mut self, from: SocketAddr, to: SocketAddr, data: Vec<u8>) {
        if self.random.chance_ppm(self.loss_ppm) {
            return;
        }
        let delay = Duration::from_micros(100 + self.random.below(200));
        self.order += 1;
        self.in_flight.push(Packet { at: self.now + delay, order: self.order, from, to, data });
    }

    /// Runs until nothing is left to do or `until` (from the start) has come.
    pub fn run(&mut self, until: Duration) {
        let end = self.start + until;
        loop {
            self.work();
            let next = self.in_flight.iter().map(|packet| packet.at);
            let timers = self.cores.iter().filter_map(Transport::next_timeout);
            let clients = self.clients.iter_mut().filter_map(|client| client.quic.poll_timeout());
            match next.chain(timers).chain(clients).min() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break self.now = end,
            }
        }
    }

    /// Runs in small steps until `done` or 120 s.
    pub fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let mut until = self.now - self.start;
        while !done(self) {
            until += Duration::from_millis(1);
            assert!(until < Duration::from_secs(120), "does not come to an end");
            self.run(until);
        }
    }

    fn work(&mut self) {
        self.deliver();
        for index in 0..self.clients.len() {
            self.client_turn(index);
        }
        for core in 0..self.cores.len() {
            self.server_turn(core);
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (mut due, later): (Vec<_>, Vec<_>) =
            self.in_flight.drain(..).partition(|packet| packet.at <= now);
        self.in_flight = later;
        due.sort_by_key(|packet| (packet.at, packet.order));
        for packet in due {
            let data = BytesMut::from(&packet.data[..]);
            if packet.to == SERVER.parse().unwrap() {
                let mut routed = self.cores[self.deliver_to].datagram(now, packet.from, None, None, data);
                if let Routed::Elsewhere { core, data } = routed {
                    self.handed_over += 1;
                    routed = self.cores[core.0 as usize].datagram(now, packet.from, None, None, data);
                }
                assert!(matches!(routed, Routed::Here));
            } else if let Some(client) = self.clients.iter_mut().find(|client| client.address == packet.to) {
                client.datagram(now, packet.from, data);
            }
        }
    }

    fn client_turn(&mut self, index: usize) {
        let now = self.now;
        let client = &mut self.clients[index];
        client.turn(now);
        let mut buf = Vec::new();
        let mut out = Vec::new();
        while let Some(transmit) = client.quic.poll_transmit(now, 10, &mut buf) {
            let segment = transmit.segment_size.unwrap_or(transmit.size);
            out.extend(buf[..transmit.size].chunks(segment).map(<[u8]>::to_vec));
            buf.clear();
        }
        let (from, to) = (client.address, SERVER.parse().unwrap());
        for data in out {
            self.post(from, to, data);
        }
    }

    fn server_turn(&mut self, core: usize) {
        let now = self.now;
        let server = &mut self.cores[core];
        server.timeout(now);
        let mut out = Vec::new();
        while server.has_events() || server.has_transmits() {
            server.begin_turn();
            let before = self.seen[core].frames.len();
            while let Some(event) = server.poll_event(now) {
                match event {
                    TransportEvent::SessionOpened { session, .. } => self.seen[core].opened.push(session),
                    TransportEvent::SessionClosed { session } => self.seen[core].closed.push(session),
                    TransportEvent::Taken { session, bytes } => {
                        *self.seen[core].taken.entry(session).or_default() += bytes;
                    }
                    TransportEvent::Frame { session, frame } => {
                        if self.echo {
                            server.send(session, with_prefix(&frame));
                        }
                        self.seen[core].frames.push((session, frame));
                    }
                }
            }
            let seen = &mut self.seen[core];
            seen.most_in_turn = seen.most_in_turn.max(seen.frames.len() - before);
            let mut buf = Vec::new();
            while let Some(transmit) = server.poll_transmit(now, 64, &mut buf) {
                let segment = transmit.segment_size.unwrap_or(transmit.size);
                out.extend(
                    buf[..transmit.size].chunks(segment).map(|data| (transmit.destination, data.to_vec())),
                );
            }
        }
        for (to, data) in out {
            self.post(SERVER.parse().unwrap(), to, data);
        }
    }
}

impl Client {
    fn datagram(&mut self, now: Instant, from: SocketAddr, data: BytesMut) {
        let mut buf = Vec::new();
        match self.endpoint.handle(now, from, None, None, data, &mut buf) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.quic.handle_event(event),
            Some(DatagramEvent::NewConnection(_)) => panic!("a server does not connect to a client"),
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    fn turn(&mut self, now: Instant) {
        self.quic.handle_timeout(now);
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => self.connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason.to_string()),
                Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                    self.streams.entry(id).or_default().stopped = Some(error_code.into_inner());
                }
                _ => {}
            }
        }
        while let Some(event) = self.quic.poll_endpoint_events() {
            if let Some(reply) = self.endpoint.handle_event(self.handle, event) {
                self.quic.handle_event(reply);
            }
        }
        for (id, stream) in &mut self.streams {
            stream.turn(*id, &mut self.quic, self.reads);
        }
    }
}

impl ClientStream {
    fn turn(&mut self, id: StreamId, quic: &mut Connection, reads: bool) {
        while !self.to_send.is_empty() {
            match quic.send_stream(id).write_chunks(self.to_send.make_contiguous()) {
                Ok(written) => drop(self.to_send.drain(..written.chunks)),
                Err(WriteError::Blocked) => break,
                Err(_) => self.to_send.clear(),
            }
        }
        if !reads || self.ended || self.reset.is_some() {
            return;
        }
        let mut stream = quic.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.received.extend_from_slice(&chunk.bytes),
                Ok(None) => break self.ended = true,
                Err(ReadError::Reset(code)) => break self.reset = Some(code.into_inner()),
                Err(ReadError::Blocked) => break,
            }
        }
        let _ = chunks.finalize();
    }
}

pub fn with_prefix(payload: &[u8]) -> Bytes {
    let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(payload);
    frame.into()
}

pub fn payload(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed, "payload");
    (0..length).map(|_| random.next_u64() as u8).collect()
}
