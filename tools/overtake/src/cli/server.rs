//! Commands that run something here: `dev`, `serve`, `gateway`; and the helpers `config` and `completions`.

use super::{Server, values};
use clap::{Args, Subcommand};
use clap_complete::Shell;
use overtake_base::limits::{CORES_MAX, SHARDS_MAX};
use overtake_config::Peer;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `overtake serve`. Every flag wins over the configuration file.
#[derive(Args, Debug, Default)]
pub struct ServeArgs {
    /// Configuration file, TOML; `overtake config example` prints one
    #[arg(long, value_name = "FILE", env = "OVERTAKE_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub node: NodeArgs,
    /// Create unknown queues with defaults at their first accepted enqueue
    #[arg(long)]
    pub auto_create: bool,
    #[command(flatten)]
    pub member: MemberArgs,
}

/// `overtake dev`
#[derive(Args, Debug)]
pub struct DevArgs {
    /// Nodes, each a process of its own with a folder of its own below --data [then: ./overtake-cluster]; ports of the
    /// next node are 10 higher
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=9))]
    pub nodes: u16,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// What makes a node one of a cluster.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Cluster")]
pub struct MemberArgs {
    /// This node's id, 1 or more, for as long as its data folder lives
    #[arg(long, value_name = "ID", value_parser = values::node_id)]
    pub node_id: Option<u64>,
    /// What fails together with this node, such as its data centre; replicas go to different ones [default: local]
    #[arg(long, value_name = "NAME", value_parser = values::zone)]
    pub zone: Option<String>,
    /// Another node: where it listens for nodes, then its zone, cores (as this node has) and HTTP address, where not the
    /// default. Give one for each, the same on all nodes
    #[arg(long, value_name = "ID@HOST:PORT[/ZONE,CORES,HTTP]", value_parser = values::peer)]
    pub peer: Vec<Peer>,
    /// Join the cluster of this server (its --quic address; several, separated by commas), with an empty data folder, in the
    /// place of --peer. A node that has joined finds the others by what it was told
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = values::host_and_port)]
    pub join: Vec<String>,
    /// Where the other nodes reach this one [default: --peer-listen, where that names an address]
    #[arg(long, value_name = "HOST:PORT", value_parser = values::host_and_port)]
    pub peer_advertise: Option<String>,
    /// Where this node listens for the others, UDP; core N has the port N above [default: the IP of --quic, port 7402]
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    pub peer_listen: Option<SocketAddr>,
    /// Folder with ca.pem, node-ID.pem and node-ID.key; `overtake cert` makes them [default: ./overtake-certs]
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// Serve only clients that show a certificate of the cluster's authority (`overtake cert client`); the HTTP API is
    /// not affected
    #[arg(long)]
    pub client_certificates: bool,
}

/// Where a node keeps its data and listens, and how much of the machine it takes.
#[derive(Args, Debug, Default)]
pub struct NodeArgs {
    /// Data folder [default: ./overtake-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address of the HTTP API [default: 127.0.0.1:7401]
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    pub http: Option<SocketAddr>,
    /// Address of the binary protocol, UDP [default: 127.0.0.1:7400]
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    pub quic: Option<SocketAddr>,
    /// Cores to use, one pinned thread each, fixed when the data folder is made, 1..=64 [default: all CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(CORES_MAX)))]
    pub cores: Option<u16>,
    /// Shards, fixed when the data folder is made, 1..=1024 [default: 8; in a cluster 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    pub shards: Option<u16>,
}

/// `overtake gateway`
#[derive(Args, Debug)]
pub struct GatewayArgs {
    /// Address of the HTTP API
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7401", value_parser = values::address)]
    pub http: SocketAddr,
    /// Every caller needs a token, which goes on to the server; without it all act with --token, or with none
    #[arg(long)]
    pub auth: bool,
    #[command(flatten)]
    pub server: Server,
}

/// `overtake config …`
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print a configuration file with every key, explained
    Example,
    /// Read a configuration file and say whether `serve` would take it
    Check {
        /// The file
        file: PathBuf,
    },
}

/// `overtake completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: Shell,
}
