//! The command tree: argument structs only. What a flag means is said in its help text; what a command does is in
//! `run`.

pub mod cert;
pub mod cluster;
pub mod dlq;
pub mod inspect;
pub mod messages;
pub mod queue;
pub mod server;
pub mod values;

#[cfg(test)]
mod tests;

use crate::exit::EXIT_CODES_HELP;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// A durable priority queue: what matters most right now?
///
/// Start with `overtake dev`; it runs a server on this machine and shows what to type next.
#[derive(Parser, Debug)]
#[command(name = "overtake", version, after_help = EXIT_CODES_HELP, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// All commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a server (or with --nodes a cluster) for development: the first enqueue makes a queue
    Dev(server::DevArgs),
    /// Run a server
    Serve(server::ServeArgs),
    /// Run the HTTP front end alone, in front of a server elsewhere
    Gateway(server::GatewayArgs),
    /// Make the certificates of a cluster's nodes
    #[command(subcommand)]
    Cert(cert::CertCommand),
    /// Help with the configuration file of `serve`
    #[command(subcommand)]
    Config(server::ConfigCommand),
    /// Create, change, list, show, empty and delete queues
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Store one message, or one for each line of standard input
    Enqueue(With<messages::EnqueueArgs>),
    /// Lease the most urgent messages: print them, or run a command for each
    Receive(With<messages::ReceiveArgs>),
    /// Delete messages that are done
    Ack(With<messages::AckArgs>),
    /// Keep leases for longer
    Extend(With<messages::ExtendArgs>),
    /// Give messages back
    Release(With<messages::ReleaseArgs>),
    /// Counts, ages, waits and totals of a queue
    Stats(With<messages::StatsArgs>),
    /// Look at messages without leasing them, in the order of their ids: by age, not by urgency
    Peek(With<messages::PeekArgs>),
    /// Where one message is, and why it was not delivered: what is ahead, its last error, its history; or what is in
    /// the files of a data folder
    Inspect(inspect::InspectArgs),
    /// Delete a message that is visible or delayed
    Cancel(With<messages::OneMessageArgs>),
    /// Dead letters: list, bring back, delete
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// Nodes and shards
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Print a shell completion script
    Completions(server::CompletionsArgs),
}

/// `overtake cluster …`
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Show nodes, shards, and replicas that are moving
    Status(With<NoArgs>),
    /// Add a node, before it is started with --join; it also adds itself then
    Add(With<cluster::AddArgs>),
    /// Let a node give away all that it leads and holds, so that it can be removed; waits until it is done
    Drain(With<cluster::DrainArgs>),
    /// Remove a node that is drained, or, with --force, one that is dead and will not come back
    Remove(With<cluster::RemoveArgs>),
    /// Put a new node in the place of one that lost its disk
    Replace(With<cluster::ReplaceArgs>),
    /// Spread replicas evenly over the nodes; waits until it is done
    Rebalance(With<cluster::RebalanceArgs>),
}

/// A command without arguments of its own.
#[derive(Args, Debug)]
pub struct NoArgs {}

/// A command that talks to a server: its own arguments and the common ones.
#[derive(Args, Debug)]
pub struct With<T: Args> {
    #[command(flatten)]
    pub args: T,
    #[command(flatten)]
    pub remote: Remote,
}

/// Which server, as whom, and how to show what it says.
#[derive(Args, Clone, Debug)]
pub struct Remote {
    #[command(flatten)]
    pub server: Server,
    /// table: for people. json: as the HTTP API answers, bodies in base64; errors are JSON on standard error, too
    #[arg(short, long, value_name = "FORMAT", default_value = "table", help_heading = "Common")]
    pub output: Format,
}

/// How to reach a server.
#[derive(Args, Clone, Debug)]
pub struct Server {
    /// Server to talk to (its --quic address); of a cluster several, separated by commas
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "OVERTAKE_CONNECT",
        hide_env_values = true,
        default_value = "127.0.0.1:7400",
        help_heading = "Common"
    )]
    pub connect: String,
    /// Who is calling; needed when the server has tokens
    #[arg(long, env = "OVERTAKE_TOKEN", hide_env_values = true, help_heading = "Common")]
    pub token: Option<String>,
    /// Certificates to trust, PEM: a copy of DATA/tls/certificate.pem of the server. Without it, a server on this
    /// machine is trusted as it is
    #[arg(long, value_name = "FILE", env = "OVERTAKE_CA", hide_env_values = true, help_heading = "Common")]
    pub ca: Option<PathBuf>,
    /// Certificate to show, PEM, where servers ask for one; `overtake cert client` issues it. With --key
    #[arg(
        long,
        value_name = "FILE",
        env = "OVERTAKE_CERT",
        hide_env_values = true,
        requires = "key",
        help_heading = "Common"
    )]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "OVERTAKE_KEY",
        hide_env_values = true,
        requires = "cert",
        help_heading = "Common"
    )]
    pub key: Option<PathBuf>,
    /// Give up on an answer after so many seconds (a receive's own wait comes on top); on connecting after 5 at most
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "30",
        value_parser = values::timeout,
        help_heading = "Common"
    )]
    pub timeout: Duration,
}

/// How answers are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    // No help texts here: they would blow up the layout of every command's help.
    Table,
    Json,
}
