//! How the tools reach a server.

use clap::Args;
use overtake_client::{
    Client, ClientError, ConnectOptions, Page, PeekStates, PeekedMessage, ServerAddress, Trust,
};
use std::path::PathBuf;

/// Which server, and as whom.
#[derive(Args, Clone, Debug)]
pub struct ServerArguments {
    /// The server; several nodes of one cluster separated by commas.
    #[arg(
        long,
        env = "OVERTAKE_CONNECT",
        default_value = "127.0.0.1:7400",
        value_delimiter = ',',
        value_name = "HOST:PORT"
    )]
    pub connect: Vec<ServerAddress>,
    /// Bearer token.
    #[arg(long, env = "OVERTAKE_TOKEN", default_value = "", hide_env_values = true)]
    pub token: String,
    /// Certificate of the server or of its authority, PEM (also several) or DER; without it only loopback is trusted.
    #[arg(long, alias = "certificate", env = "OVERTAKE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Name that the server's certificate is for.
    #[arg(long, default_value = "localhost")]
    pub server_name: String,
}

impl ServerArguments {
    /// Options of a client with so many connections to each server.
    pub fn options(&self, connections: u32) -> Result<ConnectOptions, ClientError> {
        let trust = match &self.ca {
            Some(path) => Trust::from_file(path)?,
            None => Trust::LoopbackOnly,
        };
        Ok(ConnectOptions {
            servers: self.connect.clone(),
            server_name: self.server_name.clone(),
            token: self.token.clone(),
            trust,
            connections: connections as usize,
            ..ConnectOptions::default()
        })
    }
}

/// The first messages of a queue, and whether there are more: whose they are is looked at before anything is done to it.
pub async fn first_messages(client: &Client, queue: &str) -> Result<Page<PeekedMessage>, ClientError> {
    const LOOKS_AT: u32 = 100;
    let all = PeekStates { visible: true, delayed: true, leased: true };
    client.peek(queue, all, None, LOOKS_AT, None).await
}

/// The server behind a client, as far as it tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cluster {
    /// Nodes that are up.
    pub nodes: Option<u32>,
    /// Cores of all of them.
    pub cores: Option<u32>,
    /// Copies of each message.
    pub replicas: Option<u32>,
}

impl Cluster {
    /// Asks for it. A token that may not know, or a server that does not answer, is no reason not to measure.
    pub async fn of(client: &Client) -> Self {
        let cores = client.connections().iter().map(|connection| u32::from(connection.cores)).max();
        let Ok((nodes, shards)) = client.cluster().await else { return Self::default() };
        let alive = u32::try_from(nodes.iter().filter(|node| node.alive).count()).unwrap_or(u32::MAX).max(1);
        let replicas = shards.iter().map(|shard| shard.replicas.len()).max().map(|most| most.max(1) as u32);
        // All nodes of a cluster have as many cores.
        Self { nodes: Some(alive), cores: cores.map(|cores| (cores * alive).max(1)), replicas }
    }
}
