//! What a node of a cluster is told of the others, and how its cores learn where they are: names are looked up again and
//! again, since a node that moved keeps its name.

use super::{ClusterOptions, PeerOptions, ServeError};
use crate::certificates::NodeCertificates;
use core::sync::atomic::{AtomicU64, Ordering};
use overtake_base::limits::CORES_MAX;
use overtake_base::{CoreId, NodeId};
use overtake_core::PeerConfig as CorePeer;
use overtake_core::cluster::ClusterMap;
use overtake_queue::members::Members;
use overtake_transport::peer::{PeerConfig, PeerNode};
use overtake_wire::peer::PeerHello;
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between two look-ups of names.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);

/// Where the other nodes are, as far as their names could be looked up.
#[derive(Default)]
pub(super) struct PeerAddresses {
    /// Counts changes; a core looks further only where it has grown.
    edition: AtomicU64,
    all: Mutex<BTreeMap<NodeId, SocketAddr>>,
}

impl PeerAddresses {
    /// All addresses, where something changed since `edition`.
    pub(super) fn newer_than(&self, edition: u64) -> Option<(u64, BTreeMap<NodeId, SocketAddr>)> {
        let newest = self.edition.load(Ordering::Acquire);
        let all = || self.all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (newest > edition).then(|| (newest, all()))
    }

    /// Looks all names up once. A name that is not known now keeps the address it had.
    fn look_up(&self, peers: &[PeerOptions]) {
        for peer in peers {
            let Some(found) = look_up(&peer.address) else {
                tracing::debug!("node {}: {} is not known", peer.node, peer.address);
                continue;
            };
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            if all.insert(peer.node, found) != Some(found) {
                self.edition.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

fn look_up(address: &str) -> Option<SocketAddr> {
    let mut all: Vec<SocketAddr> = address.to_socket_addrs().ok()?.collect();
    // Servers listen on IPv4 unless told otherwise; and always the same one of several.
    all.sort();
    all.first().copied()
}

/// Looks names up for as long as the node runs, and again when others are named. `roused` is called when an address changed.
pub(super) async fn keep_looking_up(
    addresses: Arc<PeerAddresses>,
    mut named: tokio::sync::watch::Receiver<Vec<PeerOptions>>,
    roused: impl Fn() + Send + Sync + 'static,
) {
    let roused = Arc::new(roused);
    loop {
        let peers = named.borrow_and_update().clone();
        let (addresses, names, ring) = (addresses.clone(), peers.clone(), roused.clone());
        // It may take seconds, and must hold up nobody.
        let looked_up = tokio::task::spawn_blocking(move || {
            let before = addresses.edition.load(Ordering::Acquire);
            addresses.look_up(&names);
            if addresses.edition.load(Ordering::Acquire) != before {
                ring();
            }
        });
        if looked_up.await.is_err() {
            return;
        }
        let moves = peers.iter().any(|peer| peer.address.parse::<SocketAddr>().is_err());
        let changed = tokio::select! {
            changed = named.changed() => changed,
            () = tokio::time::sleep(LOOK_UP_EVERY), if moves => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Links that are up, by node, all cores together.
#[derive(Default)]
pub(super) struct Links(Mutex<BTreeMap<NodeId, usize>>);

impl Links {
    fn all(&self) -> MutexGuard<'_, BTreeMap<NodeId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the other nodes from now on.
    pub(super) fn expect(&self, nodes: impl IntoIterator<Item = NodeId>) {
        let mut all = self.all();
        let before = core::mem::take(&mut *all);
        all.extend(nodes.into_iter().map(|node| (node, before.get(&node).copied().unwrap_or(0))));
    }

    pub(super) fn up(&self, node: NodeId) {
        *self.all().entry(node).or_default() += 1;
    }

    pub(super) fn down(&self, node: NodeId) {
        if let Some(links) = self.all().get_mut(&node) {
            *links = links.saturating_sub(1);
        }
    }

    /// Nodes without a link.
    pub(super) fn away(&self) -> Vec<NodeId> {
        self.all().iter().filter(|(_, links)| **links == 0).map(|(node, _)| *node).collect()
    }
}

/// What all cores of a node of a cluster share.
pub(super) struct Cluster {
    pub(super) options: ClusterOptions,
    pub(super) certificates: NodeCertificates,
    pub(super) addresses: Arc<PeerAddresses>,
    pub(super) links: Arc<Links>,
    /// Data folders of the others, as they were seen before.
    pub(super) stores: BTreeMap<NodeId, u128>,
    /// The cluster as this node knew it last.
    pub(super) members: Option<Arc<Members>>,
    /// The other nodes' names, to be looked up.
    pub(super) names: tokio::sync::watch::Sender<Vec<PeerOptions>>,
}

impl Cluster {
    pub(super) fn new(
        options: &ClusterOptions,
        certificates: NodeCertificates,
        stores: BTreeMap<NodeId, u128>,
        members: Option<Arc<Members>>,
    ) -> Self {
        let peers = match &members {
            Some(members) => names(options, members),
            None => options.peers.clone(),
        };
        let links = Links::default();
        links.expect(peers.iter().map(|peer| peer.node));
        Self {
            names: tokio::sync::watch::Sender::new(peers),
            members,
            options: options.clone(),
            certificates,
            addresses: Arc::default(),
            links: Arc::new(links),
            stores,
        }
    }

    /// The authorities of which clients must show certificates.
    pub(super) fn client_authorities(&self) -> Vec<Vec<u8>> {
        if self.options.client_certificates { self.certificates.authorities.clone() } else { Vec::new() }
    }

    /// Where a core listens for other nodes.
    pub(super) fn listen(&self, core: CoreId) -> Result<SocketAddr, ServeError> {
        let base = self.options.peer_listen;
        let port = base.port().checked_add(core.0).ok_or_else(|| ServeError::Peers {
            detail: format!("--peer-listen {base}: there is no port {} above it for core {core}", core.0),
        })?;
        Ok(SocketAddr::new(base.ip(), port))
    }

    /// The others, for the deterministic core.
    pub(super) fn core_peers(&self, own_cores: u16) -> Vec<CorePeer> {
        let peer = |peer: &PeerOptions| CorePeer {
            node: peer.node,
            zone: peer.zone.clone(),
            http: peer.http.clone(),
            address: peer.address.clone(),
            cores: peer.cores.unwrap_or(own_cores).min(CORES_MAX),
        };
        self.options.peers.iter().map(peer).collect()
    }

    /// The links of one core.
    pub(super) fn peer_config(
        &self,
        map: &ClusterMap,
        hello: PeerHello,
        secret: [u8; 32],
        seed: [u8; 32],
        wall: overtake_base::UnixMillis,
    ) -> PeerConfig {
        PeerConfig {
            hello,
            certificates: self.certificates.chain.clone(),
            private_key: self.certificates.key.clone(),
            authorities: self.certificates.authorities.clone(),
            nodes: peer_nodes(map.members(), hello.node, |node| self.stores.get(&node).copied()),
            secret,
            seed,
            wall,
        }
    }
}

/// The other nodes, for the links of a core.
pub(super) fn peer_nodes(
    members: &Members,
    own: NodeId,
    store: impl Fn(NodeId) -> Option<u128>,
) -> Vec<PeerNode> {
    let others = members.nodes.iter().filter(|(node, _)| **node != own);
    others
        .map(|(node, member)| PeerNode {
            node: *node,
            cores: member.cores,
            address: None,
            store: store(*node),
        })
        .collect()
}

/// Where the other nodes are: as this one was configured, else as the cluster knows.
pub(super) fn names(options: &ClusterOptions, members: &Members) -> Vec<PeerOptions> {
    let others = members.nodes.iter().filter(|(node, _)| **node != options.node);
    others
        .map(|(node, member)| PeerOptions {
            node: *node,
            address: match options.peers.iter().find(|peer| peer.node == *node) {
                Some(peer) => peer.address.clone(),
                None => member.address.to_string(),
            },
            zone: member.zone.to_string(),
            cores: Some(member.cores),
            http: member.http.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_over_when_they_change() {
        let addresses = PeerAddresses::default();
        let peer = |address: &str| PeerOptions {
            node: NodeId(2),
            address: address.into(),
            zone: "a".into(),
            cores: None,
            http: String::new(),
        };
        assert!(addresses.newer_than(0).is_none());
        addresses.look_up(&[peer("127.0.0.1:7402")]);
        let (edition, all) = addresses.newer_than(0).unwrap();
        assert_eq!(all[&NodeId(2)], "127.0.0.1:7402".parse().unwrap());
        addresses.look_up(&[peer("127.0.0.1:7402")]);
        addresses.look_up(&[peer("no-such-name.invalid:1")]);
        assert!(addresses.newer_than(edition).is_none());
        addresses.look_up(&[peer("127.0.0.2:7402")]);
        assert!(addresses.newer_than(edition).is_some());
    }

    #[test]
    fn links_are_counted() {
        let links = Links::default();
        links.expect([2, 3, 4].map(NodeId));
        links.up(NodeId(2));
        links.up(NodeId(2));
        links.down(NodeId(2));
        links.expect([2, 3].map(NodeId));
        assert_eq!(links.away(), [NodeId(3)]);
    }
}
