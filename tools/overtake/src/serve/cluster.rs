//! What a node of a cluster is told of the others, and how its cores learn where they are: names are looked up again and
//! again, since a node that moved keeps its name.

use super::{ClusterOptions, PeerOptions, ServeError};
use crate::certificates::NodeCertificates;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use overtake_base::hash;
use overtake_base::limits::CORES_MAX;
use overtake_base::{CoreId, NodeId, Writer};
use overtake_core::PeerConfig as CorePeer;
use overtake_core::cluster::ClusterMap;
use overtake_transport::peer::{PeerConfig, PeerNode};
use overtake_wire::peer::PeerHello;
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
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

/// Looks names up for as long as the node runs. `roused` is called when an address changed.
pub(super) async fn keep_looking_up(
    addresses: Arc<PeerAddresses>,
    peers: Vec<PeerOptions>,
    roused: impl Fn() + Send + Sync + 'static,
) {
    let roused = Arc::new(roused);
    loop {
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
        if peers.iter().all(|peer| peer.address.parse::<SocketAddr>().is_ok()) {
            return;
        }
        tokio::time::sleep(LOOK_UP_EVERY).await;
    }
}

/// Links that are up, by node, all cores together.
pub(super) struct Links(BTreeMap<NodeId, AtomicUsize>);

impl Links {
    pub(super) fn new(peers: &[PeerOptions]) -> Self {
        Self(peers.iter().map(|peer| (peer.node, AtomicUsize::new(0))).collect())
    }

    pub(super) fn up(&self, node: NodeId) {
        if let Some(links) = self.0.get(&node) {
            links.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn down(&self, node: NodeId) {
        if let Some(links) = self.0.get(&node) {
            links.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Nodes without a link.
    pub(super) fn away(&self) -> Vec<NodeId> {
        let away = self.0.iter().filter(|(_, links)| links.load(Ordering::Relaxed) == 0);
        away.map(|(node, _)| *node).collect()
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
}

impl Cluster {
    pub(super) fn new(
        options: &ClusterOptions,
        certificates: NodeCertificates,
        stores: BTreeMap<NodeId, u128>,
    ) -> Self {
        Self {
            options: options.clone(),
            certificates,
            addresses: Arc::default(),
            links: Arc::new(Links::new(&options.peers)),
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
        let others = map.nodes().filter(|(node, _)| *node != hello.node);
        PeerConfig {
            hello,
            certificates: self.certificates.chain.clone(),
            private_key: self.certificates.key.clone(),
            authorities: self.certificates.authorities.clone(),
            nodes: others
                .map(|(node, entry)| PeerNode {
                    node,
                    cores: entry.cores,
                    address: None,
                    store: self.stores.get(&node).copied(),
                })
                .collect(),
            secret,
            seed,
            wall,
        }
    }
}

/// What a node was told of nodes and shards, as a hash: replicas are placed by it, so all nodes must be told the same.
pub(super) fn fingerprint(map: &ClusterMap, shards: u16) -> u64 {
    let mut bytes = Vec::new();
    let mut out = Writer(&mut bytes);
    out.u16(shards);
    for (node, entry) in map.nodes() {
        out.u64(node.0);
        out.u16(entry.cores);
        out.str(&entry.zone);
    }
    hash::stable(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_core::cluster::MapNode;

    #[test]
    fn the_fingerprint_is_of_what_places_replicas() {
        let node = |zone: &str, cores, http: &str| MapNode { zone: zone.into(), http: http.into(), cores };
        let of = |second, shards| {
            let nodes = BTreeMap::from([(NodeId(1), node("a", 2, "x")), (NodeId(2), second)]);
            fingerprint(&ClusterMap::new(nodes, shards), shards)
        };
        let same = of(node("b", 2, "y"), 8);
        assert_eq!(of(node("b", 2, "elsewhere"), 8), same, "an address places nothing");
        for other in [of(node("a", 2, "y"), 8), of(node("b", 1, "y"), 8), of(node("b", 2, "y"), 9)] {
            assert_ne!(other, same);
        }
    }

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
        let links =
            Links(BTreeMap::from([(NodeId(2), AtomicUsize::new(0)), (NodeId(3), AtomicUsize::new(0))]));
        links.up(NodeId(2));
        links.up(NodeId(2));
        links.down(NodeId(2));
        assert_eq!(links.away(), [NodeId(3)]);
    }
}
