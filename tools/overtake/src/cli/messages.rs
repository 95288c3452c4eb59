//! Commands about messages: store, lease, settle, look.

use super::queue::{Page, QueueArgs};
use super::values;
use clap::{Args, ValueEnum};
use overtake_base::limits::{LEASE_S_MAX, RECEIVE_MESSAGES_MAX, WAIT_S_MAX};
use overtake_base::{MessageId, UnixMillis};
use std::path::PathBuf;
use std::time::Duration;

/// `overtake enqueue`
#[derive(Args, Debug)]
#[command(override_usage = "overtake enqueue <QUEUE> -p <LEVEL> [BODY | --file <FILE> | --lines] [OPTIONS]")]
pub struct EnqueueArgs {
    /// Name of the queue
    pub queue: String,
    /// The message, '' for an empty one [default: standard input]
    #[arg(conflicts_with_all = ["file", "lines"])]
    pub body: Option<String>,
    /// Take the message from a file
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    pub file: Option<PathBuf>,
    /// Each line of standard input is a message, blank lines are left out. Tells how many were stored; ids only with
    /// -o json. Where the queue is full or a rate used up, it tries again for --timeout
    #[arg(long)]
    pub lines: bool,
    /// Level, 0 is the most urgent; p0 is understood too
    #[arg(short, long, value_name = "LEVEL", value_parser = values::level)]
    pub priority: u32,
    /// Visible only after so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub delay_s: Option<u64>,
    /// Visible only from this time on: RFC 3339 in UTC (…Z), or Unix milliseconds
    #[arg(long, value_name = "TIME", value_parser = values::time, conflicts_with = "delay_s")]
    pub deliver_at: Option<UnixMillis>,
    /// Store only once for each key within the queue's dedup window; 1 to 256 bytes
    #[arg(long, value_name = "KEY", conflicts_with = "lines")]
    pub dedup_key: Option<String>,
    /// Expire so many seconds after it became visible [default: the queue's retention]
    #[arg(long, value_name = "SECONDS")]
    pub expires_in_s: Option<u64>,
    /// A header; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::header)]
    pub header: Vec<(String, String)>,
    /// Id to store it under, for a safe repeat [default: a new one]
    #[arg(long, conflicts_with = "lines")]
    pub id: Option<MessageId>,
}

/// `overtake receive`
#[derive(Args, Debug)]
pub struct ReceiveArgs {
    /// Name of the queue
    pub queue: String,
    /// At most so many at once, 1..=1000 [default: 10, with --exec 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(RECEIVE_MESSAGES_MAX)))]
    pub max: Option<u32>,
    /// Wait so long for a message, 0..=20 [default: 0, with --follow 20]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=i64::from(WAIT_S_MAX)))]
    pub wait_s: Option<u32>,
    /// Lease them for so long, 1..=43200 [default: the queue's, with --exec 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=i64::from(LEASE_S_MAX)))]
    pub lease_s: Option<u32>,
    /// Only levels 0 to this one
    #[arg(long, value_name = "LEVEL", value_parser = values::level)]
    pub max_priority: Option<u32>,
    /// Label that stats show for these leases
    #[arg(long, value_name = "LABEL")]
    pub worker: Option<String>,
    /// Go on receiving until interrupted; waits for a queue that is not there yet
    #[arg(short, long)]
    pub follow: bool,
    /// Run this through the shell for each message: body on standard input; OVERTAKE_ID, OVERTAKE_QUEUE,
    /// OVERTAKE_PRIORITY, OVERTAKE_RECEIPT, OVERTAKE_DELIVERIES and OVERTAKE_HEADER_NAME (for each header) in the
    /// environment. Exit 0 acks; 126 and 127 (cannot be run) end this worker; anything else gives the message back
    /// with the last lines of standard error. Leases are kept up meanwhile. With --follow, failures in a row make it
    /// pause, up to 30 s; a queue for workers wants --backoff-first-s and --backoff-max-s
    #[arg(long, value_name = "COMMAND", conflicts_with = "ack")]
    pub exec: Option<String>,
    /// Ack them as soon as they are printed
    #[arg(long)]
    pub ack: bool,
}

/// `overtake ack`
#[derive(Args, Debug)]
pub struct AckArgs {
    /// Name of the queue
    pub queue: String,
    /// Receipts, as receive showed them
    #[arg(required = true, value_name = "RECEIPT")]
    pub receipts: Vec<String>,
}

/// `overtake extend`
#[derive(Args, Debug)]
pub struct ExtendArgs {
    #[command(flatten)]
    pub ack: AckArgs,
    /// New expiry, so many seconds from now, 1..=43200 [default: the queue's lease]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=i64::from(LEASE_S_MAX)))]
    pub lease_s: Option<u32>,
}

/// `overtake release`
#[derive(Args, Debug)]
pub struct ReleaseArgs {
    #[command(flatten)]
    pub ack: AckArgs,
    /// Visible again only after so many seconds [default: the queue's back-off, else at once]
    #[arg(long, value_name = "SECONDS")]
    pub delay_s: Option<u64>,
    /// Why; kept with the message, shown by inspect and dlq list
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
}

/// `overtake stats`
#[derive(Args, Debug)]
pub struct StatsArgs {
    #[command(flatten)]
    pub queue: QueueArgs,
    /// Show them again and again until interrupted
    #[arg(short, long)]
    pub watch: bool,
    /// With --watch: so often
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::timeout)]
    pub interval: Duration,
}

/// `overtake peek`
#[derive(Args, Debug)]
pub struct PeekArgs {
    #[command(flatten)]
    pub queue: QueueArgs,
    /// Only these states, as a comma list [default: all]
    #[arg(long, value_delimiter = ',', value_name = "STATE,…")]
    pub state: Vec<PeekState>,
    /// Only this level
    #[arg(short, long, value_name = "LEVEL", value_parser = values::level)]
    pub priority: Option<u32>,
    #[command(flatten)]
    pub page: Page,
}

/// States that a peek can show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PeekState {
    Visible,
    Delayed,
    Leased,
}

/// A command about one message.
#[derive(Args, Debug)]
pub struct OneMessageArgs {
    /// Name of the queue
    pub queue: String,
    /// Id of the message, m_…
    pub id: MessageId,
}
