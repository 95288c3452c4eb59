//! `overtake inspect`: one message of a running server, or the files of a data folder that no server uses.

use super::Remote;
use clap::{Args, Subcommand};
use overtake_base::MessageId;
use std::path::PathBuf;

/// `overtake inspect QUEUE ID`, or a command about a data folder.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "A queue that is called like one of the commands: overtake inspect -- QUEUE ID"
)]
pub struct InspectArgs {
    #[command(subcommand)]
    pub files: Option<InspectCommand>,
    /// Name of the queue
    #[arg(required = true)]
    pub queue: Option<String>,
    /// Id of the message, m_…
    #[arg(required = true)]
    pub id: Option<MessageId>,
    #[command(flatten)]
    pub remote: Remote,
}

/// What to look at in a data folder. The server must be stopped; nothing is written.
#[derive(Subcommand, Debug)]
pub enum InspectCommand {
    /// Every size and offset of the files' formats
    Layout,
    /// The files of a data folder, and what their headers say
    Headers(DataArgs),
    /// Every batch and record of the journals
    Records(RecordsArgs),
    /// The checkpoints of the shards, and what is in them
    Checkpoints(DataArgs),
    /// Read everything, check every checksum, and say what is wrong: exit code 1 where something is damaged
    Verify(DataArgs),
    /// All queues and messages that can be read, also of a damaged folder, as JSON lines: exit code 1 where something
    /// could not be read
    ///
    /// Each line has a "record": "queue" (as `queue show`), "message" (as `peek`), "dead_letter" (as `dlq list`), or
    /// "remnant": a message in a part of the log that could not be put in order, which may be done with already. Where a
    /// body could not be read it is null and "problem" says why.
    Export(DataArgs),
}

/// Which data folder.
#[derive(Args, Debug)]
pub struct DataArgs {
    /// The data folder
    #[arg(long, value_name = "FOLDER")]
    pub data: PathBuf,
}

/// Which records.
#[derive(Args, Debug)]
pub struct RecordsArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// Only records of this shard; 65535 is the directory of queues
    #[arg(long, value_name = "SHARD")]
    pub shard: Option<u16>,
}
