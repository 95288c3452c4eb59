//! Cores of several nodes and the network between them: time is a number, loss and delay come from a seed.

use bytes::{Bytes, BytesMut};
use overtake_base::random::Random;
use overtake_base::{CoreId, NodeId, UnixMillis};
use overtake_transport::peer::{NodeName, PeerConfig, PeerEvent, PeerId, PeerNode, PeerTransport};
use overtake_wire::peer::PeerHello;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Cores of every node.
pub const CORES: u16 = 2;
pub const CLUSTER: u128 = 0xc1;

/// An authority, and what it issues.
pub struct Authority {
    params: CertificateParams,
    key: KeyPair,
    pub certificate: Vec<u8>,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().der().to_vec();
        Self { params, key, certificate }
    }

    /// Certificate and key for these names.
    pub fn issue(&self, names: &[String]) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        (certificate.der().to_vec(), key.serialize_der())
    }
}

pub fn peer(node: u64, core: u16) -> PeerId {
    PeerId { node: NodeId(node), core: CoreId(core) }
}

/// Where a core listens.
pub fn address(peer: PeerId) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, peer.node.0 as u8], 7500 + peer.core.0))
}

/// The configuration of a core among nodes 1..=`nodes`.
pub fn config(authority: &Authority, own: PeerId, nodes: u64) -> PeerConfig {
    let name = NodeName { node: own.node, cluster: CLUSTER };
    let (certificate, key) = authority.issue(&[name.to_string()]);
    let others = (1..=nodes).map(NodeId).filter(|node| *node != own.node);
    let node = |node| PeerNode {
        node,
        cores: CORES,
        address: Some(address(PeerId { node, core: CoreId(0) })),
        store: None,
    };
    PeerConfig {
        hello: PeerHello {
            node: own.node,
            core: own.core,
            cores: CORES,
            cluster: CLUSTER,
            store: u128::from(own.node.0),
            map: 5,
        },
        certificates: vec![certificate],
        private_key: key,
        authorities: vec![authority.certificate.clone()],
        nodes: others.map(node).collect(),
        secret: [own.node.0 as u8; 32],
        seed: [(own.node.0 * 16 + u64::from(own.core.0)) as u8; 32],
        wall: UnixMillis(1_800_000_000_000),
    }
}

/// One core.
pub struct Side {
    pub own: PeerId,
    pub transport: PeerTransport,
    /// It has no turns: nothing is read, nothing is sent.
    pub asleep: bool,
    pub events: Vec<PeerEvent>,
}

impl Side {
    pub fn messages_of(&self, from: PeerId) -> Vec<Bytes> {
        let of = |event: &PeerEvent| match event {
            PeerEvent::Message { peer, message } if *peer == from => Some(message.clone()),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }

    /// How often a link to the peer came, and went.
    pub fn ups_and_downs(&self, of: PeerId) -> (usize, usize) {
        let count = |up: bool| {
            let is = |event: &&PeerEvent| match event {
                PeerEvent::Up { peer, .. } => up && *peer == of,
                PeerEvent::Down { peer, .. } => !up && *peer == of,
                _ => false,
            };
            self.events.iter().filter(is).count()
        };
        (count(true), count(false))
    }

    /// All reasons that were told.
    pub fn reasons(&self) -> String {
        let told = |event: &PeerEvent| match event {
            PeerEvent::Complaint { about, reason, .. } => Some(format!("{about}: {reason}")),
            PeerEvent::Down { peer, reason } => Some(format!("{peer} down: {reason}")),
            _ => None,
        };
        self.events.iter().filter_map(told).collect::<Vec<_>>().join("\n")
    }

    pub fn is_up(&self, peer: PeerId) -> bool {
        self.transport.up().any(|up| up == peer)
    }

    pub fn send(&mut self, now: Instant, to: PeerId, message: &[u8]) {
        self.transport.send(now, to, |out| {
            out.extend_from_slice(message);
            true
        });
    }
}

struct Packet {
    at: Instant,
    order: u64,
    from: SocketAddr,
    to: SocketAddr,
    data: Vec<u8>,
}

pub struct World {
    pub now: Instant,
    pub sides: Vec<Side>,
    in_flight: Vec<Packet>,
    /// Arrived where no side listens, or sleeps.
    strays: Vec<Packet>,
    order: u64,
    random: Random,
    pub loss_ppm: u32,
    /// Nothing passes from the first address to the second.
    pub cut: BTreeSet<(SocketAddr, SocketAddr)>,
    /// Packets sent, by those who sent them.
    pub sent: Vec<SocketAddr>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let now = Instant::now();
        Self {
            now,
            sides: Vec::new(),
            in_flight: Vec::new(),
            strays: Vec::new(),
            order: 0,
            random: Random::new(seed, "network"),
            loss_ppm: 0,
            cut: BTreeSet::new(),
            sent: Vec::new(),
        }
    }

    /// All cores of `nodes` nodes.
    pub fn cluster(seed: u64, nodes: u64) -> (Self, Authority) {
        let (mut world, authority) = (Self::new(seed), Authority::new());
        for node in 1..=nodes {
            for core in 0..CORES {
                world.add(&config(&authority, peer(node, core), nodes));
            }
        }
        (world, authority)
    }

    pub fn add(&mut self, config: &PeerConfig) -> usize {
        let own = PeerId { node: config.hello.node, core: config.hello.core };
        let transport = PeerTransport::new(config, self.now).unwrap();
        self.sides.push(Side { own, transport, asleep: false, events: Vec::new() });
        self.sides.len() - 1
    }

    pub fn index(&self, own: PeerId) -> usize {
        self.sides.iter().position(|side| side.own == own).unwrap()
    }

    pub fn side(&mut self, own: PeerId) -> &mut Side {
        let index = self.index(own);
        &mut self.sides[index]
    }

    pub fn send(&mut self, from: PeerId, to: PeerId, message: &[u8]) {
        let now = self.now;
        self.side(from).send(now, to, message);
    }

    pub fn post(&mut self, from: SocketAddr, to: SocketAddr, data: Vec<u8>) {
        self.sent.push(from);
        if self.cut.contains(&(from, to)) || self.random.chance_ppm(self.loss_ppm) {
            return;
        }
        let delay = Duration::from_micros(100 + self.random.below(200));
        self.order += 1;
        self.in_flight.push(Packet { at: self.now + delay, order: self.order, from, to, data });
    }

    /// Runs for so long.
    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        loop {
            self.work();
            let packets = self.in_flight.iter().map(|packet| packet.at);
            let awake = self.sides.iter().filter(|side| !side.asleep);
            match packets.chain(awake.filter_map(|side| side.transport.next_timeout())).min() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break self.now = end,
            }
        }
    }

    #[track_caller]
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let begin = self.now;
        while !done(self) {
            let reasons = || self.sides.iter().map(Side::reasons).collect::<Vec<_>>();
            assert!(self.now - begin < Duration::from_secs(60), "{what} does not come: {:?}", reasons());
            self.run(Duration::from_millis(1));
        }
    }

    /// Runs until every core has a link to every core of every other node.
    #[track_caller]
    pub fn run_until_linked(&mut self) {
        self.run_until("every link", |world| {
            world.sides.iter().all(|side| {
                let others = world.sides.iter().filter(|other| other.own.node != side.own.node);
                others.map(|other| other.own).all(|other| side.is_up(other))
            })
        });
    }

    /// What has arrived at an address that is no side's.
    pub fn take_for(&mut self, address: SocketAddr) -> Vec<Vec<u8>> {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) =
            self.strays.drain(..).partition(|packet| packet.to == address && packet.at <= now);
        self.strays = later;
        due.into_iter().map(|packet| packet.data).collect()
    }

    /// Hands out what has arrived, without giving anybody a turn.
    pub fn deliver(&mut self) {
        let now = self.now;
        let (mut due, later): (Vec<_>, Vec<_>) =
            self.in_flight.drain(..).partition(|packet| packet.at <= now);
        self.in_flight = later;
        due.sort_by_key(|packet| (packet.at, packet.order));
        for packet in due {
            let to = self.sides.iter_mut().find(|side| address(side.own) == packet.to && !side.asleep);
            match to {
                Some(side) => {
                    side.transport.datagram(now, packet.from, None, None, BytesMut::from(&packet.data[..]));
                }
                None => self.strays.push(packet),
            }
        }
    }

    /// Hands out what has arrived, and gives everybody who is awake a turn.
    pub fn work(&mut self) {
        self.deliver();
        let now = self.now;
        let mut out = Vec::new();
        for side in self.sides.iter_mut().filter(|side| !side.asleep) {
            side.transport.timeout(now);
            while side.transport.has_events() || side.transport.has_transmits() {
                while let Some(event) = side.transport.poll_event(now) {
                    side.events.push(event);
                }
                let mut buf = Vec::new();
                while let Some(transmit) = side.transport.poll_transmit(now, 64, &mut buf) {
                    let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
                    for data in buf[..transmit.size].chunks(segment) {
                        out.push((address(side.own), transmit.destination, data.to_vec()));
                    }
                }
            }
        }
        for (from, to, data) in out {
            self.post(from, to, data);
        }
    }
}
