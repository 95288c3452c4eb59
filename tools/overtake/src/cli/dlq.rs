//! `overtake dlq …`: dead letters.

use super::queue::{Page, QueueArgs, SureArgs};
use super::{With, values};
use clap::{Args, Subcommand};
use overtake_base::MessageId;
use overtake_base::limits::RATE_MAX;

/// `overtake dlq …`
#[derive(Subcommand, Debug)]
pub enum DlqCommand {
    /// List dead letters with their last error
    #[command(visible_alias = "ls")]
    List(With<DlqListArgs>),
    /// Bring dead letters back into the queue
    Redrive(With<RedriveArgs>),
    /// Delete all dead letters
    Purge(With<SureArgs>),
}

/// `overtake dlq list`
#[derive(Args, Debug)]
pub struct DlqListArgs {
    #[command(flatten)]
    pub queue: QueueArgs,
    #[command(flatten)]
    pub page: Page,
}

/// `overtake dlq redrive`
#[derive(Args, Debug)]
pub struct RedriveArgs {
    #[command(flatten)]
    pub queue: QueueArgs,
    #[command(flatten)]
    pub which: Which,
    /// The level they get [default: the one they had]
    #[arg(short, long, value_name = "LEVEL", value_parser = values::level)]
    pub priority: Option<u32>,
    /// At most so many a second. The others stay dead letters until their turn, also after a restart; 0 pauses them.
    /// A later redrive of the same messages takes over: without this flag it brings them all back now
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=RATE_MAX))]
    pub max_per_s: Option<u64>,
    /// Only count
    #[arg(long)]
    pub dry_run: bool,
    /// With --max-per-s above 0: stay until all have moved, and show how far it is
    #[arg(long, requires = "max_per_s", conflicts_with = "dry_run")]
    pub wait: bool,
}

/// Which dead letters a redrive takes: exactly one of these.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// All
    #[arg(long)]
    pub all: bool,
    /// This one; repeatable
    #[arg(long, value_name = "ID")]
    pub id: Vec<MessageId>,
    /// Those that had this level
    #[arg(long, value_name = "LEVEL", value_parser = values::level)]
    pub from_priority: Option<u32>,
}
