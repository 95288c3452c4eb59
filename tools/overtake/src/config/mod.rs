//! What `serve` runs with: the configuration file, the flags, and the defaults, in one value. A file is refused as
//! a whole, with the line at fault and what is allowed there.

mod member;

pub use member::{Member, ZONE};

use crate::cli::server::{MemberArgs, NodeArgs};
use crate::exit::Failure;
use overtake_config::{ConfigFile, Tenant, Token};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Data folder of a node that names none.
const DATA_DEFAULT: &str = "./overtake-data";
/// HTTP address of a node that names none.
const HTTP_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7401);
/// QUIC address of a node that names none.
const QUIC_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7400);

/// Everything that a node is told at its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Data folder.
    pub data: PathBuf,
    /// Address of the HTTP API.
    pub http: SocketAddr,
    /// Address of the binary protocol.
    pub quic: SocketAddr,
    /// Cores, 1..=64; as the data folder has them, and for a new one all CPUs, where absent.
    pub cores: Option<u16>,
    /// Shards, 1..=1024; as the data folder has them where absent.
    pub shards: Option<u16>,
    /// Unknown queues appear at their first accepted enqueue.
    pub auto_create: bool,
    /// What fails together with it.
    pub zone: String,
    /// What makes it one of a cluster.
    pub member: Option<Member>,
    /// Who may do what; empty: everybody everything.
    pub tokens: Vec<Token>,
    /// Limits of tenants.
    pub tenants: Vec<Tenant>,
}

impl Node {
    /// Flags win over the file, the file over defaults.
    pub fn resolve(
        flags: NodeArgs,
        mut member: MemberArgs,
        auto_create: bool,
        file: ConfigFile,
    ) -> Result<Self, Failure> {
        let quic = flags.quic.or(file.quic).unwrap_or(QUIC_DEFAULT);
        let zone = member.zone.take().or(file.zone).unwrap_or_else(|| ZONE.into());
        let in_file = MemberArgs {
            node_id: file.node_id,
            zone: None,
            peer: file.peers.into_iter().map(toml::Spanned::into_inner).collect(),
            join: file.join,
            peer_advertise: file.peer_advertise,
            peer_listen: file.peer_listen,
            cert_dir: file.cert_dir,
            client_certificates: file.client_certificates.unwrap_or(false),
        };
        Ok(Self {
            data: flags.data.or(file.data).unwrap_or_else(|| DATA_DEFAULT.into()),
            http: flags.http.or(file.http).unwrap_or(HTTP_DEFAULT),
            quic,
            cores: flags.cores.or(file.cores),
            shards: flags.shards.or(file.shards),
            auto_create: auto_create || file.auto_create.unwrap_or(false),
            zone,
            member: Member::resolve(member, in_file, quic)?,
            tokens: file.tokens,
            tenants: file.tenants,
        })
    }
}

/// Reads and checks a configuration file.
pub fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("cannot read the configuration file {}: {error}", path.display()))
    })?;
    ConfigFile::parse(&text).map_err(|wrong| Failure::usage(format!("{}:{wrong}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file =
            || ConfigFile::parse("data = '/a'\nhttp = '0.0.0.0:1'\ncores = 3\nauto_create = true").unwrap();
        let flags = NodeArgs { data: Some("/b".into()), cores: Some(4), ..NodeArgs::default() };
        let node = Node::resolve(flags, MemberArgs::default(), false, file()).unwrap();
        assert_eq!(node.data, Path::new("/b"));
        assert_eq!(node.http.port(), 1);
        assert_eq!(node.quic, QUIC_DEFAULT);
        assert_eq!((node.cores, node.shards, node.auto_create), (Some(4), None, true));

        let node =
            Node::resolve(NodeArgs::default(), MemberArgs::default(), true, ConfigFile::default()).unwrap();
        assert_eq!(
            (node.data.as_path(), node.cores, node.auto_create),
            (Path::new(DATA_DEFAULT), None, true)
        );
    }

    #[test]
    fn a_missing_file_is_wrong_usage() {
        let failure = read(Path::new("/nowhere/overtake.toml")).unwrap_err();
        assert_eq!(failure.exit, crate::exit::Exit::Usage);
        assert!(failure.message.contains("/nowhere/overtake.toml"));
    }
}
