//! What makes a node one of a cluster: its id, its zone, the other nodes, and the certificates that they show each other.

use crate::cli::server::MemberArgs;
use crate::exit::Failure;
use overtake_base::limits::NODES_MAX;
use overtake_config::Peer;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Port on which nodes listen for each other, where none is named.
const PEER_PORT: u16 = 7402;
/// Folder of certificates, where none is named.
const CERT_DIR: &str = "./overtake-certs";
/// Zone of a node that names none.
pub const ZONE: &str = "local";

/// A node of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// The other nodes.
    pub peers: Vec<Peer>,
    /// Servers of the cluster that it joins.
    pub join: Vec<String>,
    /// Where the others reach it; empty where that is not known.
    pub advertise: String,
    /// Where its core 0 listens for them.
    pub peer_listen: SocketAddr,
    /// Folder of its certificates.
    pub cert_dir: PathBuf,
    /// Whether clients must show a certificate, too.
    pub client_certificates: bool,
}

impl Member {
    /// What flags (or in their place the file) make of a node that listens on `quic`: none for a node by itself.
    pub fn resolve(flags: MemberArgs, file: MemberArgs, quic: SocketAddr) -> Result<Option<Self>, Failure> {
        let peers = if flags.peer.is_empty() { file.peer } else { flags.peer };
        let join = if flags.join.is_empty() { file.join } else { flags.join };
        let advertise = flags.peer_advertise.or(file.peer_advertise);
        let node_id = flags.node_id.or(file.node_id);
        let listen = flags.peer_listen.or(file.peer_listen);
        let cert_dir = flags.cert_dir.or(file.cert_dir);
        let client_certificates = flags.client_certificates || file.client_certificates;
        let wrong = |text: &str| Err(Failure::usage(text));
        let Some(node_id) = node_id else {
            let nothing = peers.is_empty() && join.is_empty() && advertise.is_none();
            if nothing && listen.is_none() && cert_dir.is_none() && !client_certificates {
                return Ok(None);
            }
            return wrong("a node of a cluster needs its own id: --node-id");
        };
        if peers.is_empty() == join.is_empty() {
            return wrong(
                "--node-id is for a node of a cluster: name the other nodes with --peer, or a server of the cluster that \
                 it is to join with --join",
            );
        }
        if peers.len() >= NODES_MAX {
            return Err(Failure::usage(format!("a cluster has at most {NODES_MAX} nodes")));
        }
        let mut ids = BTreeSet::from([node_id]);
        if let Some(twice) = peers.iter().find(|peer| !ids.insert(peer.id)) {
            return Err(Failure::usage(format!(
                "node {} is named twice: --peer names each other node once, and never this one",
                twice.id
            )));
        }
        let peer_listen = listen.unwrap_or_else(|| SocketAddr::new(quic.ip(), PEER_PORT));
        if peer_listen.port() == 0 {
            return wrong("--peer-listen needs a port: the other nodes must know it");
        }
        let known =
            || if peer_listen.ip().is_unspecified() { String::new() } else { peer_listen.to_string() };
        let advertise = advertise.unwrap_or_else(known);
        if !join.is_empty() && advertise.is_empty() {
            return wrong("say where the other nodes reach this one: --peer-advertise HOST:PORT");
        }
        let cert_dir = cert_dir.unwrap_or_else(|| CERT_DIR.into());
        Ok(Some(Self { node_id, peers, join, advertise, peer_listen, cert_dir, client_certificates }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::values;

    fn resolve(flags: MemberArgs, file: MemberArgs) -> Result<Option<Member>, String> {
        Member::resolve(flags, file, ([10, 0, 0, 1], 7400).into()).map_err(|failure| failure.message)
    }

    fn args(node_id: u64, peers: &[&str]) -> MemberArgs {
        let peer = peers.iter().map(|peer| values::peer(peer).unwrap()).collect();
        MemberArgs { node_id: Some(node_id), peer, ..MemberArgs::default() }
    }

    #[test]
    fn a_node_by_itself_says_nothing_of_others() {
        assert_eq!(resolve(MemberArgs::default(), MemberArgs::default()), Ok(None));
        let zone = MemberArgs { zone: Some("a".into()), ..MemberArgs::default() };
        assert_eq!(resolve(zone, MemberArgs::default()), Ok(None));
    }

    #[test]
    fn flags_win_and_the_rest_has_defaults() {
        let file = MemberArgs { cert_dir: Some("/c".into()), ..args(9, &["8@a:1"]) };
        let member = resolve(args(1, &["2@b:1", "3@c:1"]), file).unwrap().unwrap();
        assert_eq!((member.node_id, member.peers.len(), member.cert_dir), (1, 2, "/c".into()));
        assert_eq!(member.peer_listen, ([10, 0, 0, 1], PEER_PORT).into());
    }

    #[test]
    fn what_makes_no_cluster_is_refused() {
        let none = MemberArgs::default;
        for (flags, text) in [
            (MemberArgs { node_id: None, ..args(1, &["2@a:1"]) }, "--node-id"),
            (args(1, &[]), "--peer"),
            (MemberArgs { join: vec!["h:1".into()], ..args(1, &["2@a:1"]) }, "--join"),
            (
                MemberArgs {
                    join: vec!["h:1".into()],
                    peer_listen: Some(([0, 0, 0, 0], 1).into()),
                    ..args(1, &[])
                },
                "--peer-advertise",
            ),
            (args(1, &["1@a:1"]), "named twice"),
            (args(1, &["2@a:1", "2@b:1"]), "named twice"),
            (
                MemberArgs { peer_listen: Some(([0, 0, 0, 0], 0).into()), ..args(1, &["2@a:1"]) },
                "needs a port",
            ),
            (MemberArgs { cert_dir: Some("x".into()), ..none() }, "--node-id"),
            (MemberArgs { client_certificates: true, ..none() }, "--node-id"),
        ] {
            let error = resolve(flags, none()).unwrap_err();
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}
