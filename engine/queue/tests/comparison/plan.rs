//! What a random case does: batches of commands that name queues, messages and leases by place, so that shrinking a plan
//! leaves one that still makes sense. Everything is small, so that things meet.

use overtake_base::queue_config::{Backoff, QueueConfig, RateCaps, Scheduling, Starvation};
use overtake_queue::command::RefusedReason;
use proptest::prelude::*;
use proptest::sample::Index;

/// Queues that exist at a time.
pub const QUEUES: u8 = 3;

#[derive(Clone, Debug)]
pub struct Turn {
    pub passes: Passing,
    pub steps: Vec<Step>,
    /// Afterwards goes on with a restored machine.
    pub restores: bool,
    /// Takes messages out of memory at the end of the batch.
    pub spills: Option<SpillDraft>,
    /// Brings back a run that nothing needs.
    pub thaws: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct SpillDraft {
    pub queue: u8,
    pub what: SpillKind,
    /// So far behind the newest entry.
    pub behind: u64,
    /// Leaves what is due or expires so soon.
    pub ahead_ms: u64,
    pub messages: (u32, u32),
    pub bytes_max: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum SpillKind {
    Lane {
        level: u8,
        keep: u32,
    },
    Delayed,
    /// Goes on where the last one ended.
    Payloads {
        dead: bool,
    },
}

/// How time passes before a batch.
#[derive(Clone, Debug)]
pub enum Passing {
    Ms(u64),
    /// Goes to the machine's deadline first, and looks closely.
    ToDeadline,
    /// A leader's mistake.
    Back(u64),
}

#[derive(Clone, Debug)]
pub struct Step {
    pub queue: u8,
    pub action: Action,
}

#[derive(Clone, Debug)]
pub enum Action {
    Configure {
        config: Draft,
        newer: bool,
    },
    /// Deletes the queue and makes another one, with another number of levels.
    Recreate {
        config: Draft,
    },
    /// A command to a queue that is no more.
    ToDeleted,
    Enqueue(Vec<Post>),
    /// Levels get work, so many messages each, and then the shard's scheduler is asked for them; so levels fall idle and
    /// come back while others are busy.
    Flood {
        levels: Vec<u8>,
        each: u8,
        taken: u8,
    },
    Lease {
        max: u32,
        max_bytes: u64,
        lease_ms: Option<u64>,
        worker: Option<u8>,
        choice: Choice,
    },
    Unlease(Vec<Key>),
    Settle {
        ack: Vec<Key>,
        extend: Vec<(Key, u64)>,
        release: Vec<(Key, Option<u64>, Option<Text>)>,
    },
    Cancel(Id),
    Purge,
    PurgeDeadLetters,
    Redrive {
        which: Which,
        priority: Option<u8>,
        rate_per_1000_s: Option<u64>,
        room: Option<(u64, u64)>,
    },
    RedriveTurns {
        messages: u64,
        bytes: u64,
    },
    /// Of one of a few keys.
    Claim(u8, Id),
    /// A step of a claim that was made, in the queue that it was made in.
    OfClaim(Index, ClaimStep),
    NoteRefused(RefusedReason, u64),
}

#[derive(Clone, Debug)]
pub enum Choice {
    Scheduled,
    UpTo(u8),
    /// Levels, counts and shares; and levels that the planner holds back.
    Picks(Vec<(u8, u32, bool)>, Vec<u8>),
}

#[derive(Clone, Debug)]
pub enum Which {
    All,
    Ids(Vec<Id>),
    FromPriority(u8),
}

/// What follows a claim, in any order and number.
#[derive(Clone, Debug)]
pub enum ClaimStep {
    Store(Post),
    /// So many milliseconds ago.
    Stored(u64),
    NotStored,
    Void,
    Fence,
}

/// Which lease.
#[derive(Clone, Debug)]
pub enum Key {
    /// One that runs in the queue.
    Running(Index),
    /// One that was handed out at some time, in any queue.
    Former(Index),
    /// One that was made up: so far behind the last sequence, with so many deliveries.
    MadeUp(u64, u32),
}

/// Which message id.
#[derive(Clone, Debug)]
pub enum Id {
    /// One of a few, so that it comes again.
    Few(u8),
    /// One that is or was there.
    Given(Index),
    /// A new one.
    Fresh,
}

#[derive(Clone, Debug)]
pub enum Text {
    Short(u8),
    /// Longer than what is kept, with a character on the edge.
    Long(u8),
}

#[derive(Clone, Debug)]
pub struct Post {
    pub id: Id,
    pub client_made_id: bool,
    pub priority: u8,
    pub visible: When,
    pub dedup_key: Option<u8>,
    pub expires_in_ms: Option<u64>,
    pub body_bytes: usize,
}

impl Post {
    /// One that is visible at once and has nothing of its own.
    pub fn plain(priority: u8) -> Self {
        Self {
            id: Id::Fresh,
            client_made_id: false,
            priority,
            visible: When::Now,
            dedup_key: None,
            expires_in_ms: None,
            body_bytes: 0,
        }
    }
}

#[derive(Clone, Debug)]
pub enum When {
    Now,
    AfterMs(u64),
    /// So many milliseconds from now.
    At(i64),
}

/// A configuration whose lists fit any number of levels.
#[derive(Clone, Debug)]
pub struct Draft {
    levels: u8,
    base: QueueConfig,
    weights_micro: Vec<u64>,
    starvation_s: Vec<u64>,
    level_caps: Vec<(u8, u64)>,
}

impl Draft {
    /// The configuration for a queue of so many levels; of as many as the draft likes where there are none yet.
    pub fn config(&self, levels: Option<u8>) -> QueueConfig {
        let levels = levels.unwrap_or(self.levels);
        let mut config = self.base.clone();
        config.levels = levels;
        config.weights_micro = self.weights_micro.iter().copied().cycle().take(usize::from(levels)).collect();
        config.starvation = match self.starvation_s.as_slice() {
            [one] => Starvation::All(*one),
            list => Starvation::PerLevel(list.iter().copied().cycle().take(usize::from(levels)).collect()),
        };
        config.rate_caps.levels = self.level_caps.iter().map(|(level, cap)| (level % levels, *cap)).collect();
        config
    }
}

pub fn plan(turns: usize) -> impl Strategy<Value = Vec<Turn>> {
    prop::collection::vec(turn(), 1..=turns)
}

fn turn() -> impl Strategy<Value = Turn> {
    let steps = prop::collection::vec(step(), 0..=12);
    let spills = prop::option::weighted(0.4, spill());
    let thaws = prop::option::weighted(0.05, any::<usize>());
    (passing(), steps, prop::bool::weighted(0.05), spills, thaws)
        .prop_map(|(passes, steps, restores, spills, thaws)| Turn { passes, steps, restores, spills, thaws })
}

fn spill() -> impl Strategy<Value = SpillDraft> {
    let what = prop_oneof![
        6 => (level(), 0u32..4).prop_map(|(level, keep)| SpillKind::Lane { level, keep }),
        2 => Just(SpillKind::Delayed),
        2 => any::<bool>().prop_map(|dead| SpillKind::Payloads { dead }),
    ];
    let messages = (1u32..3, prop_oneof![1u32..6, Just(50u32)]);
    let bytes_max = prop_oneof![3 => Just(u64::MAX), 1 => 1u64..900];
    let behind = prop_oneof![3 => Just(0u64), 1 => 0u64..40];
    let ahead_ms = prop_oneof![2 => Just(0u64), 1 => 0u64..3_000];
    (0..QUEUES, what, behind, ahead_ms, messages, bytes_max).prop_map(
        |(queue, what, behind, ahead_ms, messages, bytes_max)| SpillDraft {
            queue,
            what,
            behind,
            ahead_ms,
            messages,
            bytes_max,
        },
    )
}

fn passing() -> impl Strategy<Value = Passing> {
    prop_oneof![
        30 => Just(Passing::Ms(0)),
        25 => (1u64..120).prop_map(Passing::Ms),
        20 => (1u64..10).prop_map(|halves| Passing::Ms(halves * 500)),
        6 => (1_000u64..60_000).prop_map(Passing::Ms),
        2 => (60_000u64..3 * 86_400_000).prop_map(Passing::Ms),
        10 => Just(Passing::ToDeadline),
        1 => (1u64..2_000).prop_map(Passing::Back),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    (0..QUEUES, action()).prop_map(|(queue, action)| Step { queue, action })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (draft(), prop::bool::weighted(0.8)).prop_map(|(config, newer)| Action::Configure { config, newer }),
        1 => draft().prop_map(|config| Action::Recreate { config }),
        1 => Just(Action::ToDeleted),
        60 => prop::collection::vec(post(), 0..5).prop_map(Action::Enqueue),
        3 => prop::collection::vec(post(), 10..40).prop_map(Action::Enqueue),
        8 => flood(),
        60 => lease(),
        8 => keys().prop_map(Action::Unlease),
        60 => settle(),
        8 => id().prop_map(Action::Cancel),
        1 => Just(Action::Purge),
        1 => Just(Action::PurgeDeadLetters),
        12 => redrive(),
        4 => (0u64..6, 0u64..200).prop_map(|(messages, bytes)| Action::RedriveTurns { messages, bytes }),
        12 => claim(),
        24 => (any::<Index>(), claim_step()).prop_map(|(at, step)| Action::OfClaim(at, step)),
        1 => (reason(), 0u64..5).prop_map(|(reason, count)| Action::NoteRefused(reason, count)),
    ]
}

/// Of few keys for few messages, so that they meet.
fn claim() -> impl Strategy<Value = Action> {
    let id = prop_oneof![6 => (0u8..2).prop_map(Id::Few), 1 => id()];
    (prop_oneof![3 => 0u8..2, 1 => 0u8..12], id).prop_map(|(key, id)| Action::Claim(key, id))
}

fn claim_step() -> impl Strategy<Value = ClaimStep> {
    prop_oneof![
        5 => post().prop_map(ClaimStep::Store),
        2 => (0u64..900).prop_map(ClaimStep::Stored),
        2 => Just(ClaimStep::NotStored),
        1 => Just(ClaimStep::Void),
        2 => Just(ClaimStep::Fence),
    ]
}

fn flood() -> impl Strategy<Value = Action> {
    (prop::collection::vec(0u8..5, 1..4), 1u8..12, 1u8..30).prop_map(|(levels, each, taken)| Action::Flood {
        levels,
        each,
        taken,
    })
}

fn post() -> impl Strategy<Value = Post> {
    let id = prop_oneof![2 => (0u8..24).prop_map(Id::Few), 3 => Just(Id::Fresh)];
    let visible = prop_oneof![
        6 => Just(When::Now),
        2 => delay_ms().prop_map(When::AfterMs),
        1 => (-3_000i64..6_000).prop_map(When::At),
    ];
    let expires_in_ms =
        prop::option::weighted(0.2, prop_oneof![1u64..300, (1u64..20).prop_map(|s| s * 1_000)]);
    let body_bytes = prop_oneof![4 => 0usize..40, 1 => Just(0usize), 1 => 100usize..300];
    (id, any::<bool>(), level(), visible, prop::option::weighted(0.3, 0u8..12), expires_in_ms, body_bytes)
        .prop_map(|(id, client_made_id, priority, visible, dedup_key, expires_in_ms, body_bytes)| Post {
            id,
            client_made_id,
            priority,
            visible,
            dedup_key,
            expires_in_ms,
            body_bytes,
        })
}

fn lease() -> impl Strategy<Value = Action> {
    let max_bytes = prop_oneof![3 => Just(u64::MAX), 1 => 0u64..200];
    let lease_ms = prop::option::weighted(0.6, prop_oneof![8 => delay_ms(), 1 => Just(40_000_000u64)]);
    let pick = (level(), 0u32..4, prop::bool::weighted(0.3));
    let choice = prop_oneof![
        4 => Just(Choice::Scheduled),
        1 => level().prop_map(Choice::UpTo),
        2 => (prop::collection::vec(pick, 0..4), prop::collection::vec(0u8..5, 0..3))
            .prop_map(|(picks, barred)| Choice::Picks(picks, barred)),
    ];
    (0u32..9, max_bytes, lease_ms, prop::option::of(0u8..3), choice).prop_map(
        |(max, max_bytes, lease_ms, worker, choice)| Action::Lease {
            max,
            max_bytes,
            lease_ms,
            worker,
            choice,
        },
    )
}

fn settle() -> impl Strategy<Value = Action> {
    let extend = prop::collection::vec((key(), delay_ms()), 0..2);
    let text = prop_oneof![4 => (0u8..9).prop_map(Text::Short), 1 => (0u8..6).prop_map(Text::Long)];
    let delay = prop::option::weighted(0.6, prop_oneof![1 => Just(0u64), 2 => delay_ms()]);
    let release = prop::collection::vec((key(), delay, prop::option::weighted(0.5, text)), 0..6);
    (prop::collection::vec(key(), 0..3), extend, release).prop_map(|(ack, extend, release)| Action::Settle {
        ack,
        extend,
        release,
    })
}

fn redrive() -> impl Strategy<Value = Action> {
    let which = prop_oneof![
        3 => Just(Which::All),
        2 => prop::collection::vec(id(), 0..8).prop_map(Which::Ids),
        1 => level().prop_map(Which::FromPriority),
    ];
    let rate = prop_oneof![1 => Just(0u64), 3 => 300u64..3_000, 1 => 100_000u64..9_000_000];
    let room = prop::option::weighted(0.7, (0u64..6, 0u64..200));
    (which, prop::option::weighted(0.3, level()), prop::option::weighted(0.6, rate), room).prop_map(
        |(which, priority, rate_per_1000_s, room)| Action::Redrive { which, priority, rate_per_1000_s, room },
    )
}

fn keys() -> impl Strategy<Value = Vec<Key>> {
    prop::collection::vec(key(), 0..4)
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        8 => any::<Index>().prop_map(Key::Running),
        3 => any::<Index>().prop_map(Key::Former),
        1 => (0u64..20, 0u32..4).prop_map(|(behind, deliveries)| Key::MadeUp(behind, deliveries)),
    ]
}

fn id() -> impl Strategy<Value = Id> {
    prop_oneof![2 => (0u8..24).prop_map(Id::Few), 4 => any::<Index>().prop_map(Id::Given), 1 => Just(Id::Fresh)]
}

/// Mostly a level that there is, once it is taken modulo the levels; sometimes one beyond them.
fn level() -> impl Strategy<Value = u8> {
    prop_oneof![8 => 0u8..5, 2 => 0u8..100, 1 => 100u8..=255]
}

/// Also whole seconds, so that different things fall on the same time.
fn delay_ms() -> impl Strategy<Value = u64> {
    prop_oneof![1 => 0u64..3, 3 => 1u64..400, 3 => (1u64..12).prop_map(|halves| halves * 500), 1 => 0u64..200_000]
}

fn reason() -> impl Strategy<Value = RefusedReason> {
    prop::sample::select(vec![
        RefusedReason::Depth,
        RefusedReason::Bytes,
        RefusedReason::Rate,
        RefusedReason::Disk,
        RefusedReason::NoQuorum,
    ])
}

pub fn draft() -> impl Strategy<Value = Draft> {
    let levels = prop_oneof![1 => Just(1u8), 2 => 2u8..5, 4 => Just(5u8), 1 => 6u8..=100, 1 => Just(100u8)];
    let scheduling = prop::sample::select(vec![
        Scheduling::Weighted,
        Scheduling::Aging,
        Scheduling::Strict,
        Scheduling::Weighted,
    ]);
    let shares = (0u32..=500_000, 0u32..=500_000, 1u64..6);
    let limits = (prop::option::weighted(0.3, 1u64..40), prop::option::weighted(0.2, 1u64..900));
    let times = (
        1u32..6,
        prop::sample::select(vec![0u64, 1, 2, 5, 30]),
        prop::sample::select(vec![2u64, 30, 86_400, 345_600]),
    );
    let failures =
        (prop::sample::select(vec![1u32, 2, 3, 12, 1_000_000]), any::<bool>(), prop::option::of(backoff()));
    let lists = (
        prop::collection::vec(1u64..90_000_000, 1..5),
        prop::collection::vec(1u64..6, 1..4),
        prop::option::weighted(0.2, 0u64..6),
        prop::option::weighted(0.2, prop::collection::vec((0u8..6, 0u64..4), 1..4)),
    );
    let shards = prop_oneof![3 => Just(1u16), 1 => Just(8u16)];
    ((levels, shards), scheduling, shares, limits, times, failures, lists).prop_map(
        |((levels, shards), scheduling, shares, limits, times, failures, lists)| {
            let (weights_micro, starvation_s, queue_cap, level_caps) = lists;
            Draft {
                levels,
                base: QueueConfig {
                    scheduling,
                    reserve_ppm: shares.0,
                    floor_ppm: shares.1,
                    aging_s: shares.2,
                    max_deliveries: failures.0,
                    lease_s: times.0,
                    dedup_window_s: times.1,
                    retention_s: times.2,
                    max_depth: limits.0,
                    max_bytes: limits.1,
                    rate_caps: RateCaps { queue: queue_cap, ..RateCaps::default() },
                    dead_letter_expired: failures.1,
                    backoff: failures.2,
                    ..QueueConfig::with_defaults(levels, shards)
                },
                weights_micro,
                starvation_s,
                level_caps: level_caps.unwrap_or_default(),
            }
        },
    )
}

fn backoff() -> impl Strategy<Value = Backoff> {
    let factor = prop::sample::select(vec![1_000_000u64, 1_500_000, 2_000_000, 900_000_000]);
    (0u64..4, factor, 0u64..20).prop_map(|(first_s, factor_micro, max_s)| Backoff {
        first_s,
        factor_micro,
        max_s,
    })
}
