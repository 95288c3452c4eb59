//! `overtake queue …`: a flag for every field of a queue's configuration.

use super::{With, values};
use clap::{Args, Subcommand};
use overtake_base::limits::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX};
use overtake_base::queue_config::{Backoff, QueueConfigPatch, Scheduling, Starvation};
use values::{RateCap, Setting};

/// `overtake queue …`
#[derive(Subcommand, Debug)]
pub enum QueueCommand {
    /// Create a queue; what no flag says gets its default
    Create(With<CreateArgs>),
    /// Change the configuration of a queue; what no flag says stays as it is
    Update(With<UpdateArgs>),
    /// List queues with their depth and dead letters
    #[command(visible_alias = "ls")]
    List(With<ListArgs>),
    /// Show the configuration of a queue, every field
    Show(With<QueueArgs>),
    /// Delete a queue with all its messages
    #[command(visible_alias = "rm")]
    Delete(With<SureArgs>),
    /// Delete all visible and delayed messages of a queue
    Purge(With<SureArgs>),
}

/// A command about one queue.
#[derive(Args, Debug)]
pub struct QueueArgs {
    /// Name of the queue
    pub queue: String,
}

/// A command that destroys.
#[derive(Args, Debug)]
pub struct SureArgs {
    /// Name of the queue
    pub queue: String,
    /// Do not ask. Needed where standard input is not a terminal
    #[arg(short, long)]
    pub yes: bool,
}

/// `overtake queue list`
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    pub page: Page,
}

/// Which part of a long list.
#[derive(Args, Debug)]
pub struct Page {
    /// At most so many, 1..=1000
    #[arg(long, default_value_t = LIST_LIMIT_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(LIST_LIMIT_MAX)))]
    pub limit: u32,
    /// Go on after this place, as the previous page named it
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
}

/// `overtake queue create`
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Name: 1 to 128 of A-Z a-z 0-9 _ . - and no dot first
    pub queue: String,
    /// Priority levels, 1..=100, fixed from then on [default: 5]
    #[arg(long, value_name = "N")]
    pub levels: Option<u8>,
    /// Shards it is spread over, fixed from then on; 1 = exact order [default: all]
    #[arg(long, value_name = "N")]
    pub shards: Option<u16>,
    /// Where the queue exists, change it instead of refusing
    #[arg(long)]
    pub or_update: bool,
    #[command(flatten)]
    pub settings: Settings,
}

/// `overtake queue update`
#[derive(Args, Debug)]
pub struct UpdateArgs {
    /// Name of the queue
    pub queue: String,
    #[command(flatten)]
    pub settings: Settings,
}

/// What can be set at creation and changed later. `default` puts a setting back; the back-off has a flag for that.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Settings (`default` puts one back to its default, --no-backoff the back-off)")]
pub struct Settings {
    /// How the next level is chosen: weighted, strict, aging [default: weighted]
    #[arg(long, value_name = "MODE", value_parser = values::scheduling)]
    pub scheduling: Option<Setting<Scheduling>>,
    /// A weight for each level, level 0 first, such as 50,25,13,7,5
    #[arg(long, value_name = "N,N,…", value_parser = values::weights)]
    pub weights: Option<Setting<Vec<u64>>>,
    /// Least part of deliveries for all levels but 0, 0..=0.5 [default: 0.1]
    #[arg(long, value_name = "FRACTION", value_parser = values::fraction_ppm)]
    pub reserve: Option<Setting<u32>>,
    /// Least part for the two least urgent levels, 0..=0.5 [default: 0.05]
    #[arg(long, value_name = "FRACTION", value_parser = values::fraction_ppm)]
    pub floor: Option<Setting<u32>>,
    /// With aging: seconds of waiting that make a message one level more urgent [default: 1800]
    #[arg(long, value_name = "SECONDS", value_parser = values::plain::<u64>)]
    pub aging_s: Option<Setting<u64>>,
    /// Failed deliveries before a message is a dead letter, 1..=1000000 [default: 5]
    #[arg(long, value_name = "N", value_parser = values::plain::<u32>)]
    pub max_deliveries: Option<Setting<u32>>,
    /// Lease of a receive that names none, 1..=43200 [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = values::plain::<u32>)]
    pub lease_s: Option<Setting<u32>>,
    /// How long dedup keys are remembered, 0 = off [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = values::plain::<u64>)]
    pub dedup_window_s: Option<Setting<u64>>,
    /// How long a message lives once visible [default: 345600, 4 days]
    #[arg(long, value_name = "SECONDS", value_parser = values::plain::<u64>)]
    pub retention_s: Option<Setting<u64>>,
    /// Most messages visible, delayed and leased [default: no limit]
    #[arg(long, value_name = "N", value_parser = values::plain::<u64>)]
    pub max_depth: Option<Setting<u64>>,
    /// Most body bytes of those [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = values::plain::<u64>)]
    pub max_bytes: Option<Setting<u64>>,
    /// Most deliveries a second: queue=100, p0=5, …; repeatable, names all caps there shall be
    #[arg(long, value_name = "WHAT=N", value_parser = values::rate_cap)]
    pub rate_cap: Vec<RateCap>,
    /// Whether expired messages become dead letters [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = values::switch)]
    pub dead_letter_expired: Option<Setting<bool>>,
    /// Back-off: delay after the first failed delivery, 0..=31622400; needs --backoff-max-s
    #[arg(long, value_name = "SECONDS", requires = "backoff_max_s")]
    pub backoff_first_s: Option<u64>,
    /// Back-off: growth with each further failure, 1..=1000 [default: 2]
    #[arg(long, value_name = "N", requires = "backoff_first_s", value_parser = values::factor_micro)]
    pub backoff_factor: Option<u64>,
    /// Back-off: the longest delay, --backoff-first-s..=31622400; needs --backoff-first-s
    #[arg(long, value_name = "SECONDS", requires = "backoff_first_s")]
    pub backoff_max_s: Option<u64>,
    /// No back-off: a failed delivery returns at once
    #[arg(long, conflicts_with = "backoff_first_s")]
    pub no_backoff: bool,
    /// Alert after so long with visible work and no delivery; one for all or one for each level [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = values::starvation)]
    pub starvation_s: Option<Setting<Starvation>>,
}

/// Growth of a back-off that names none: each delay twice the one before.
const BACKOFF_FACTOR_MICRO_DEFAULT: u64 = 2_000_000;

impl CreateArgs {
    /// The configuration that the flags describe.
    pub fn patch(&self) -> Result<QueueConfigPatch, String> {
        Ok(QueueConfigPatch {
            levels: self.levels.map(Some),
            shards: self.shards.map(Some),
            ..self.settings.patch()?
        })
    }
}

impl Settings {
    /// The change that the flags describe.
    pub fn patch(&self) -> Result<QueueConfigPatch, String> {
        fn change<T: Clone>(setting: &Option<Setting<T>>) -> Option<Option<T>> {
            setting.as_ref().map(|setting| setting.0.clone())
        }
        let backoff = match (self.backoff_first_s, self.backoff_max_s) {
            (Some(first_s), Some(max_s)) => Some(Some(Backoff {
                first_s,
                factor_micro: self.backoff_factor.unwrap_or(BACKOFF_FACTOR_MICRO_DEFAULT),
                max_s,
            })),
            _ => self.no_backoff.then_some(None),
        };
        Ok(QueueConfigPatch {
            levels: None,
            shards: None,
            scheduling: change(&self.scheduling),
            weights_micro: change(&self.weights),
            reserve_ppm: change(&self.reserve),
            floor_ppm: change(&self.floor),
            aging_s: change(&self.aging_s),
            max_deliveries: change(&self.max_deliveries),
            lease_s: change(&self.lease_s),
            dedup_window_s: change(&self.dedup_window_s),
            retention_s: change(&self.retention_s),
            max_depth: change(&self.max_depth),
            max_bytes: change(&self.max_bytes),
            rate_caps: change(&values::rate_caps(&self.rate_cap)?),
            dead_letter_expired: change(&self.dead_letter_expired),
            backoff,
            starvation: change(&self.starvation_s),
        })
    }
}
