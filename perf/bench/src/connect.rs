//! How the tools reach a server.

use clap::Args;
use overtake_client::{ClientError, ConnectOptions, ServerAddress, Trust};
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
