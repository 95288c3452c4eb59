//! The links of one core to those of other nodes: its socket for them, and what goes over it, from and to the
//! deterministic core. Decides nothing but when a peer is to be cut off: where its bytes are no message.

use super::cluster::{Links, PeerAddresses, peer_nodes};
use super::node::{Report, Shared};
use super::port::{Port, ecn_of};
use bytes::BytesMut;
use overtake_base::{CoreId, NodeId, UnixMillis};
use overtake_core::mesh::MeshMessage;
use overtake_core::{Address, Event, codec};
use overtake_queue::members::Members;
use overtake_transport::peer::{PeerConfig, PeerEvent, PeerId, PeerTransport};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a core's links are made of.
pub(super) struct PeerParts {
    pub(super) config: PeerConfig,
    /// Where this core listens.
    pub(super) listen: SocketAddr,
    pub(super) addresses: Arc<PeerAddresses>,
    pub(super) links: Arc<Links>,
}

/// See the module's text.
pub(super) struct Peers {
    own: CoreId,
    node: NodeId,
    port: Port,
    transport: PeerTransport,
    addresses: Arc<PeerAddresses>,
    /// Which edition of `addresses` the transport knows.
    edition: u64,
    links: Arc<Links>,
    /// Links to each node that are up.
    up: BTreeMap<NodeId, usize>,
    stopping: bool,
    shared: Arc<Shared>,
}

impl Peers {
    pub(super) fn open(
        parts: PeerParts,
        own: CoreId,
        now: Instant,
        shared: Arc<Shared>,
        broken: impl FnOnce(io::Error) + 'static,
    ) -> Result<Self, String> {
        let PeerParts { config, listen, addresses, links } = parts;
        let node = config.hello.node;
        let transport = PeerTransport::new(&config, now).map_err(|error| error.to_string())?;
        let bell = shared.bells[usize::from(own.0)].clone();
        let port = Port::bind(listen, bell, broken)
            .map_err(|error| format!("cannot listen on {listen} for other nodes: {error}"))?;
        Ok(Self {
            own,
            node,
            port,
            transport,
            addresses,
            edition: 0,
            links,
            up: BTreeMap::new(),
            stopping: false,
            shared,
        })
    }

    /// Takes datagrams. Returns true where more may be there already.
    pub(super) fn receive(&mut self, now: Instant) -> io::Result<bool> {
        let Self { port, transport, .. } = self;
        port.receive(|datagram| {
            let ecn = ecn_of(&datagram);
            transport.datagram(now, datagram.from, datagram.to, ecn, BytesMut::from(datagram.data));
        })
    }

    /// Lets time pass.
    pub(super) fn timeout(&mut self, now: Instant, wall: UnixMillis) {
        self.transport.set_wall(wall);
        if let Some((edition, all)) = self.addresses.newer_than(self.edition) {
            self.edition = edition;
            for (node, address) in all {
                self.transport.set_address(now, node, address);
            }
        }
        self.transport.timeout(now);
    }

    /// The next thing that happened, for the core.
    pub(super) fn poll_event(&mut self, now: Instant) -> Option<Event> {
        loop {
            match self.transport.poll_event(now)? {
                PeerEvent::Message { peer, message } => match codec::decode(&message) {
                    Ok(message) => return Some(Event::Mesh { from: address_of(peer), message }),
                    // What comes behind it is skipped by the transport.
                    Err(wrong) => self.transport.cut_malformed(now, peer, wrong.0),
                },
                PeerEvent::Up { peer, store } => {
                    self.note_up(peer, store);
                    return Some(Event::PeerUp { peer: address_of(peer) });
                }
                PeerEvent::Down { peer, reason } => {
                    self.note_down(peer, &reason);
                    return Some(Event::PeerDown { peer: address_of(peer) });
                }
                PeerEvent::Complaint { about, reason, away: false } => {
                    tracing::warn!(core = self.own.0, "no link with {about}: {reason}");
                }
                PeerEvent::Complaint { about, reason, away: true } => {
                    tracing::info!(core = self.own.0, "no link with {about}: {reason}");
                }
            }
        }
    }

    fn note_up(&mut self, peer: PeerId, store: u128) {
        let links = self.up.entry(peer.node).or_default();
        *links += 1;
        if *links == 1 {
            tracing::info!(core = self.own.0, "linked with node {}", peer.node);
            // The receiver is gone only where the node has ended.
            let _ = self.shared.reports.send(Report::PeerSeen(peer.node, store));
        }
        self.links.up(peer.node);
    }

    fn note_down(&mut self, peer: PeerId, reason: &str) {
        let links = self.up.entry(peer.node).or_default();
        *links = links.saturating_sub(1);
        tracing::info!(core = self.own.0, "link with {peer} lost: {reason}");
        if *links == 0 && !self.stopping {
            tracing::warn!(core = self.own.0, "node {} is away: {reason}", peer.node);
        }
        self.links.down(peer.node);
    }

    /// The cluster is another one from now on: links are made to who came, and to who went not again.
    pub(super) fn set_members(&mut self, now: Instant, members: &Members) {
        let nodes = peer_nodes(members, self.node, |_| None);
        self.links.expect(nodes.iter().map(|peer| peer.node));
        self.transport.set_nodes(now, nodes);
        // Addresses of those that came may be known already.
        self.edition = 0;
    }

    /// Hands a message to its link. Without one it is lost, as the core knows.
    pub(super) fn send(&mut self, now: Instant, to: Address, message: &MeshMessage) {
        let peer = PeerId { node: to.node, core: to.core };
        self.transport.send(now, peer, |bytes| codec::encode(message, bytes));
    }

    pub(super) fn transmit(&mut self, now: Instant) {
        let Self { port, transport, .. } = self;
        port.transmit(|segments_max, buffer| transport.poll_transmit(now, segments_max, buffer));
    }

    /// Something is to be done at once.
    pub(super) fn is_busy(&self) -> bool {
        self.transport.has_events() || !self.port.is_full() && self.transport.has_transmits()
    }

    /// The socket takes no more for now.
    pub(super) fn is_full(&self) -> bool {
        self.port.is_full()
    }

    /// After how long something is due though nothing comes.
    pub(super) fn next_turn(&self, now: Instant) -> Option<Duration> {
        self.transport.next_timeout().map(|at| at.saturating_duration_since(now))
    }

    /// Tells the peers that this node stops.
    pub(super) fn stop(&mut self, now: Instant) {
        self.stopping = true;
        self.transport.stop(now);
        self.transmit(now);
    }
}

fn address_of(peer: PeerId) -> Address {
    Address { node: peer.node, core: peer.core }
}
