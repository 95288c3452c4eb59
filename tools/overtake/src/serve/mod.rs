//! `serve`: the cores of one node, each a pinned thread that runs gather → step → drain, and the HTTP gateway as
//! their client.
//!
//! Read `core_loop` first: it is the shell around the deterministic core, and decides nothing. `node` starts the
//! threads and says when they serve, `mesh` and `wake` connect them, `port` is a core's UDP socket, `secrets` the node's
//! certificate; `memory` gives back what is not needed. In a cluster `peers` are a core's links to other nodes, and
//! `cluster` is what the node was told of them.

mod cluster;
mod core_loop;
mod join;
mod memory;
mod mesh;
mod node;
mod peers;
mod port;
mod secrets;
mod wake;

use crate::certificates::CertificateError;
use core::fmt;
use overtake_base::NodeId;
use overtake_core::{TenantConfig, TokenConfig};
use overtake_device::FolderError;
use overtake_gateway::GatewayError;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use node::{NodeEvent, run};

/// How a node is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// Data folder; made where it is not there.
    pub data: PathBuf,
    /// Address of the HTTP API; port 0 chooses one.
    pub http: SocketAddr,
    /// Address of the binary protocol (UDP); port 0 chooses one.
    pub quic: SocketAddr,
    /// Cores, 1..=64. Absent: as the data folder has them, and for a new one as many as the machine has.
    pub cores: Option<u16>,
    /// Shards, 1..=1024. Absent: as the data folder has them, and 8 for a new one (in a cluster 32).
    pub shards: Option<u16>,
    /// What fails together with this node.
    pub zone: String,
    /// What makes it one of a cluster.
    pub cluster: Option<ClusterOptions>,
    /// Whether the first enqueue to an unknown queue creates it.
    pub auto_create: bool,
    /// Who may call; empty: everybody may do everything.
    pub tokens: Vec<TokenConfig>,
    /// Limits of tenants.
    pub tenants: Vec<TenantConfig>,
}

/// A node of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterOptions {
    /// Its id.
    pub node: NodeId,
    /// The other nodes.
    pub peers: Vec<PeerOptions>,
    /// Servers of the cluster that it joins.
    pub join: Vec<String>,
    /// Where the others reach it; empty where that is not known.
    pub advertise: String,
    /// Where its core 0 listens for them; core *n* listens *n* ports above.
    pub peer_listen: SocketAddr,
    /// Folder of its certificates.
    pub cert_dir: PathBuf,
    /// Whether clients of the binary protocol must show a certificate of the authority.
    pub client_certificates: bool,
}

/// Another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerOptions {
    /// Its id.
    pub node: NodeId,
    /// Where its core 0 listens for other nodes, `HOST:PORT`.
    pub address: String,
    /// Its zone.
    pub zone: String,
    /// Its cores; as many as this node has where absent.
    pub cores: Option<u16>,
    /// Its HTTP address, to be shown.
    pub http: String,
}

/// Where a node listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// HTTP API.
    pub http: SocketAddr,
    /// Binary protocol.
    pub quic: SocketAddr,
}

/// Why a node does not run, or ended other than it should.
#[derive(Debug)]
pub enum ServeError {
    /// The data folder cannot be used.
    Folder(FolderError),
    /// The UDP address cannot be used.
    Quic {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The HTTP gateway does not run.
    Http(GatewayError),
    /// A file of the node's certificate cannot be used.
    Certificate {
        /// Which.
        path: PathBuf,
        /// Why.
        detail: String,
    },
    /// The links to other nodes cannot be made.
    Peers {
        /// Why.
        detail: String,
    },
    /// A file cannot be read or written.
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A core's thread cannot be started.
    Core {
        /// Its number.
        core: u16,
        /// Why.
        detail: String,
    },
    /// The cluster does not take the node.
    Join {
        /// Why.
        detail: String,
    },
    /// The node is none of its cluster any more.
    Removed,
    /// What was under way did not end in time.
    StopTimeout,
}

impl ServeError {
    fn file(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.into(), error }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(error) => error.fmt(f),
            Self::Quic { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "address in use: {address}; another process listens there for QUIC")
            }
            Self::Quic { address, error } => write!(f, "cannot listen on {address} for QUIC: {error}"),
            Self::Http(error) => error.fmt(f),
            Self::Certificate { path, detail } => write!(f, "{} cannot be used: {detail}", path.display()),
            Self::Peers { detail } => f.write_str(detail),
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Core { core, detail } => write!(f, "core {core} cannot start: {detail}"),
            Self::Join { detail } => write!(f, "cannot join the cluster: {detail}"),
            Self::Removed => f.write_str(
                "this node was removed from its cluster: its data folder can be deleted; to come back it needs a new id",
            ),
            Self::StopTimeout => f.write_str("stopped by force: requests were still under way"),
        }
    }
}

impl core::error::Error for ServeError {}

impl From<CertificateError> for ServeError {
    fn from(CertificateError { path, detail }: CertificateError) -> Self {
        Self::Certificate { path, detail }
    }
}

impl From<FolderError> for ServeError {
    fn from(error: FolderError) -> Self {
        Self::Folder(error)
    }
}

impl From<GatewayError> for ServeError {
    fn from(error: GatewayError) -> Self {
        Self::Http(error)
    }
}
