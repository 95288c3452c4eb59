//! Commands that run something here: `dev`, `serve`, `gateway`; and the helpers `config` and `completions`.

use super::{Server, values};
use clap::{Args, Subcommand};
use clap_complete::Shell;
use overtake_base::limits::{CORES_MAX, SHARDS_MAX};
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
}

/// `overtake dev`
#[derive(Args, Debug)]
pub struct DevArgs {
    #[command(flatten)]
    pub node: NodeArgs,
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
    /// Shards, fixed when the data folder is made, 1..=1024 [default: 8]
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
