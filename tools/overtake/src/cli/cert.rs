//! `overtake cert …`: the cluster's own certificate authority.

use super::values;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `overtake cert …`
#[derive(Subcommand, Debug)]
pub enum CertCommand {
    /// Make a new cluster's authority: ca.pem, of which every node and client needs a copy, and ca.key, which issues
    Init(InitArgs),
    /// Issue a node's certificate: node-ID.pem and node-ID.key, for that node's --cert-dir, with a copy of ca.pem
    Node(NodeArgs),
    /// Issue a client's certificate, for nodes that serve with --client-certificates: client-NAME.pem and .key
    Client(ClientArgs),
}

/// `overtake cert init`
#[derive(Args, Debug)]
pub struct InitArgs {
    #[command(flatten)]
    pub folder: CertDir,
    /// How long the authority is good
    #[arg(long, value_name = "DAYS", default_value = "7300", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// `overtake cert node`
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// The node's id, as in its --node-id
    #[arg(value_name = "ID", value_parser = values::node_id)]
    pub id: u64,
    /// Names and addresses under which clients on other machines reach it; localhost is always among them
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub host: Vec<String>,
    #[command(flatten)]
    pub folder: CertDir,
    /// How long the certificate is good
    #[arg(long, value_name = "DAYS", default_value = "3650", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// `overtake cert client`
#[derive(Args, Debug)]
pub struct ClientArgs {
    /// What it is called, in the names of its files
    #[arg(value_name = "NAME", value_parser = values::zone)]
    pub name: String,
    #[command(flatten)]
    pub folder: CertDir,
    /// How long the certificate is good
    #[arg(long, value_name = "DAYS", default_value = "3650", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// Where certificates are.
#[derive(Args, Debug)]
pub struct CertDir {
    /// Folder of the certificates and keys
    #[arg(long, value_name = "DIR", default_value = "./overtake-certs")]
    pub cert_dir: PathBuf,
}
