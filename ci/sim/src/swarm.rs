//! What a seed decides before anything happens: the node's shape, the queues, who does what how often, and which faults
//! there are. Each seed leaves much out, so that what is left meets in ways that a mixture of everything never shows.

use crate::disk::DiskProfile;
use crate::disk::damage::Damage;
use crate::node::NodeShape;
use overtake_base::QueueConfigPatch;
use overtake_base::limits::{BODY_BYTES_MAX, REQUEST_BYTES_MAX};
use overtake_base::queue_config::{Backoff, RateCaps, Scheduling};
use overtake_base::random::Random;
use overtake_core::{AnswerConfig, ColdConfig, ScrubConfig};
use overtake_log::record::DATA_BYTES_MAX;

/// Bytes of a segment, and of the longest entry that it is for.
const SEGMENTS: [(u64, usize); 8] = [
    (64 * 1024, 48 * 1024),
    (64 * 1024, 48 * 1024),
    (64 * 1024, 48 * 1024),
    (256 * 1024, 200 * 1024),
    (256 * 1024, 200 * 1024),
    (256 * 1024, 200 * 1024),
    (1024 * 1024, 200 * 1024),
    (4 * 1024 * 1024, DATA_BYTES_MAX),
];

/// What is kept for a short time is kept for this long, in milliseconds: it ends within a run.
const RETENTION_MS: u64 = 20_000;

/// A run, before it happens.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The node.
    pub shape: NodeShape,
    /// The queues, by number.
    pub queues: Vec<QueuePlan>,
    /// Clients that enqueue.
    pub producers: ClientPlan,
    /// Clients that receive.
    pub consumers: ClientPlan,
    /// Clients that do everything else.
    pub admins: ClientPlan,
    /// What is enqueued.
    pub messages: MessagePlan,
    /// What consumers do.
    pub work: WorkPlan,
    /// What admins do.
    pub care: CarePlan,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// Virtual time until faults and workload stop.
    pub active_ms: u64,
    /// The end is looked at long after everything is over, and not as soon as everything is answered.
    pub rests_long: bool,
}

/// One queue.
#[derive(Clone, Debug)]
pub struct QueuePlan {
    /// Its name.
    pub name: String,
    /// Created with this; never, where it is left to the first enqueue.
    pub patch: Option<QueueConfigPatch>,
    /// Its levels.
    pub levels: u8,
    /// Its shards.
    pub shards: u16,
    /// How it chooses.
    pub scheduling: Scheduling,
    /// Failed deliveries before a message is dead.
    pub max_deliveries: u32,
    /// Lease where a receive does not say, in seconds.
    pub lease_s: u32,
    /// Dedup window in milliseconds.
    pub dedup_window_ms: u64,
    /// Retention in milliseconds.
    pub retention_ms: u64,
    /// Expired messages become dead letters.
    pub dead_letter_expired: bool,
    /// Longest delay of the back-off, in seconds.
    pub backoff_max_s: u64,
    /// Least part of levels 1.., in parts per million.
    pub reserve_ppm: u32,
    /// Least part of the two least urgent levels.
    pub floor_ppm: u32,
    /// Deliveries are capped at some time.
    pub capped: bool,
    /// Depth is limited at some time.
    pub max_depth: Option<u64>,
    /// Body bytes are limited.
    pub max_bytes: Option<u64>,
    /// It is deleted now and then.
    pub deletable: bool,
}

impl QueuePlan {
    /// Of a queue that a server makes without being told anything about it.
    #[must_use]
    pub fn by_itself(name: String, shards: u16) -> Self {
        Self {
            name,
            patch: None,
            levels: 5,
            shards,
            scheduling: Scheduling::Weighted,
            max_deliveries: 5,
            lease_s: 30,
            dedup_window_ms: 600_000,
            retention_ms: 345_600_000,
            dead_letter_expired: false,
            backoff_max_s: 0,
            reserve_ppm: 100_000,
            floor_ppm: 50_000,
            capped: false,
            max_depth: None,
            max_bytes: None,
            deletable: false,
        }
    }

    /// Spreads it over fewer shards.
    pub fn set_shards(&mut self, shards: u16) {
        self.shards = shards;
        if let Some(patch) = &mut self.patch {
            patch.shards = Some(Some(shards));
        }
    }
}

/// Some clients of one kind.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan {
    /// How many.
    pub count: u32,
    /// Longest pause between two requests, in microseconds.
    pub pause_us: u64,
    /// Requests under way at once, at most.
    pub depth: usize,
}

/// Parts per million of each property of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessagePlan {
    pub client_ids_ppm: u32,
    pub dedup_keys_ppm: u32,
    pub dedup_keys: u64,
    pub delays_ppm: u32,
    pub delay_s_max: u64,
    pub expiry_ppm: u32,
    pub expiry_s_max: u64,
    pub headers_ppm: u32,
    pub body_bytes_max: usize,
    pub huge_bodies_ppm: u32,
    /// Body bytes of one request, at most.
    pub batch_bytes_max: usize,
    pub batches_ppm: u32,
    pub batch_max: u64,
    pub repeats_ppm: u32,
    /// Repeats that come with another key, or with none.
    pub other_keys_ppm: u32,
    /// Most messages go to one level.
    pub one_level_ppm: u32,
}

/// Parts per million of what a consumer does with what it got.
#[derive(Clone, Copy, Debug)]
pub struct WorkPlan {
    pub receive_max: u32,
    pub waits_ppm: u32,
    pub wait_s_max: u32,
    pub ceilings_ppm: u32,
    pub lease_s_max: u32,
    pub lease_given_ppm: u32,
    pub ack_ppm: u32,
    pub extend_ppm: u32,
    pub release_ppm: u32,
    pub release_delay_ppm: u32,
    pub release_delay_s_max: u64,
    pub stale_ppm: u32,
    pub cancel_receive_ppm: u32,
    /// Messages that one consumer keeps before it only settles.
    pub held_max: usize,
}

/// Weights of what admins do.
#[derive(Clone, Copy, Debug)]
pub struct CarePlan {
    pub weights: [u64; 11],
}

/// What goes wrong, and how often: mean virtual time between two of a kind in milliseconds, 0 = never.
#[derive(Clone, Copy, Default, Debug)]
pub struct FaultPlan {
    pub power_loss_ms: u64,
    pub kill_ms: u64,
    pub stop_ms: u64,
    pub down_ms_max: u64,
    /// How often a recovery is ended too, in parts per million of starts.
    pub recovery_ends_ppm: u32,
    pub wall_jump_ms: u64,
    pub wall_freeze_ms: u64,
    pub wall_drift_ppm: i64,
    pub disk_hang_ms: u64,
    pub disk_hang_ms_max: u64,
    pub disk_slow_ppm: u32,
    pub disk_full_ms: u64,
    pub mesh_slow_ppm: u32,
    pub mesh_stall_ms: u64,
    pub link_slow_ppm: u32,
    pub link_slow_ms_max: u64,
    pub pause_ms: u64,
    pub pause_ms_max: u64,
    pub disconnect_ms: u64,
    pub damage_ms: u64,
    /// The kind of damage; none = any.
    pub damage: Option<Damage>,
    pub failure_ms: u64,
}

impl FaultPlan {
    /// The wall clock is left alone.
    #[must_use]
    pub fn wall_is_steady(&self) -> bool {
        self.wall_jump_ms == 0 && self.wall_freeze_ms == 0 && self.wall_drift_ppm == 0
    }
}

struct Draw(Random);

impl Draw {
    fn from(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.0.below(n) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.below(choices.len() as u64) as usize]
    }

    /// Off as often as not, else rare to frequent.
    fn ppm(&mut self) -> u32 {
        self.of(&[0, 0, 0, 20_000, 200_000, 700_000])
    }
}

impl Swarm {
    /// How long the end is waited for at least, in milliseconds: until what expires has, and a tenth more for a clock that
    /// is being slowed down. As long as anything can take in runs that rest long.
    #[must_use]
    pub fn rest_ms(&self) -> u64 {
        let expiry_s = if self.messages.expiry_ppm > 0 { self.messages.expiry_s_max } else { 0 };
        let retained_ms = self.queues.iter().map(|queue| queue.retention_ms).filter(|ms| *ms <= RETENTION_MS);
        let expires_ms = retained_ms.chain([expiry_s * 1_000]).max().unwrap_or(0);
        if self.rests_long { u64::MAX / 2_000_000 } else { expires_ms + expires_ms / 10 }
    }

    /// The run of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut draw = Draw(Random::new(seed, "swarm"));
        let cores = draw.of(&[1, 1, 2, 2, 3, 4]);
        let shards = draw.of(&[1, 2, 4, 8, 8, 16]);
        // Short segments roll over all the time; they hold short entries only.
        let (segment_bytes, entry_bytes_max) = draw.of(&SEGMENTS);
        let shape = NodeShape {
            cores,
            shards,
            segment_bytes,
            entry_bytes_max,
            enqueue_per_s: draw.of(&[None, None, None, None, None, Some(3), Some(40)]),
            cache_bytes: draw.of(&[0, 4 * 1024, 64 * 1024, 1024 * 1024]),
            checkpoint_bytes: draw.of(&[16 * 1024, 64 * 1024, 256 * 1024, 8 * 1024 * 1024]),
            log_keep_bytes: u64::MAX,
            snapshot_part_bytes: 64 * 1024,
            writes_in_flight_max: draw.of(&[1, 2, 4, 8]),
            cold: cold(&mut Draw(Random::new(seed, "cold"))),
            answers: answers(&mut Draw(Random::new(seed, "answers"))),
            scrub: scrub(&mut Draw(Random::new(seed, "scrub"))),
            disk: DiskProfile {
                latency_ns: draw.of(&[(20_000, 60_000), (60_000, 400_000), (100_000, 5_000_000)]),
                kept_free_bytes: Draw(Random::new(seed, "kept free")).of(&[0, 0, 3 * segment_bytes]),
                ..DiskProfile::default()
            },
        };
        let queues =
            (0..draw.of(&[1, 1, 2, 3, 3, 12])).map(|number| queue(&mut draw, number, shards)).collect();
        let pauses = [500, 5_000, 50_000, 500_000];
        let mut clients = |most: u64| ClientPlan {
            count: draw.from(1, most) as u32,
            pause_us: draw.of(&pauses),
            depth: draw.of(&[1, 1, 2, 6]),
        };
        let (producers, consumers, admins) = (clients(4), clients(6), clients(1));
        let busiest = [producers, consumers].iter().map(|plan| plan.pause_us / u64::from(plan.count)).min();
        // Long enough for leases to run out, short enough to be cheap.
        let active_ms = (busiest.unwrap_or(0) * draw.from(100, 300) / 1_000).clamp(4_000, 40_000);
        Self {
            shape,
            queues,
            producers: pace(producers, active_ms),
            consumers: pace(consumers, active_ms),
            admins: pace(ClientPlan { depth: 1, ..admins }, active_ms * 3),
            messages: MessagePlan {
                other_keys_ppm: other_keys_ppm(seed),
                ..messages(&mut draw, entry_bytes_max)
            },
            work: work(&mut draw),
            care: CarePlan { weights: core::array::from_fn(|_| draw.of(&[0, 1, 1, 4])) },
            faults: faults(&mut draw),
            active_ms,
            rests_long: Draw(Random::new(seed, "rest")).one_in(4),
        }
    }
}

/// So little memory and journal that messages leave and come back in most runs.
fn cold(draw: &mut Draw) -> ColdConfig {
    ColdConfig {
        lane_file_bytes: draw.of(&[512 * 1024, 1024 * 1024]),
        spare_files: draw.of(&[1, 1, 4]),
        hot_messages_max: draw.of(&[0, 3, 10, 30, 100_000]),
        journal_bytes_max: draw.of(&[0, 0, 8 * 1024 * 1024, 1 << 40]),
        keep_messages: draw.of(&[0, 1, 4, 50]),
        run_messages_min: draw.of(&[1, 1, 2, 5]),
        block_messages_max: draw.of(&[1, 3, 10, 100]),
        block_bytes: draw.of(&[1, 1_000, 100_000]),
        lead_ms: draw.of(&[100, 200, 500, 3_000]),
        slack_ms: draw.of(&[0, 100, 500]),
    }
}

/// In every third run so little that reads and receives wait for room, and received messages go back.
fn answers(draw: &mut Draw) -> AnswerConfig {
    let usual = AnswerConfig::default();
    let little = AnswerConfig {
        read_bytes: draw.of(&[0, 500, 4_000]),
        received_bytes: draw.of(&[300, 2_000, 10_000]),
        core_bytes: draw.of(&[1_000, 20_000]),
        turn_bytes: draw.of(&[0, 200_000]),
        turn_messages: draw.of(&[1, 20]),
    };
    draw.of(&[usual, usual, little])
}

/// As fast as a run is short, or hardly ever.
fn scrub(draw: &mut Draw) -> ScrubConfig {
    ScrubConfig {
        piece_every_ns: draw.of(&[10_000_000, 50_000_000, 1_000_000_000]),
        pass_every_ns: draw.of(&[10_000_000_000, 60_000_000_000, 3_600_000_000_000]),
    }
}

/// Slows clients that would ask too much for a run that is to be short.
fn pace(plan: ClientPlan, active_ms: u64) -> ClientPlan {
    const REQUESTS_MAX: u64 = 250;
    let least_us = active_ms * 1_000 * u64::from(plan.count) * 2 / REQUESTS_MAX;
    ClientPlan { pause_us: plan.pause_us.max(least_us), ..plan }
}

fn queue(draw: &mut Draw, number: u64, node_shards: u16) -> QueuePlan {
    let by_itself = draw.one_in(8);
    let levels = if by_itself { 5 } else { draw.of(&[1, 2, 3, 5, 5, 10, 100]) };
    let shards = if by_itself { node_shards } else { draw.of(&[1, 1, 2, node_shards]).min(node_shards) };
    let weighted = Scheduling::Weighted;
    let scheduling =
        if by_itself { weighted } else { draw.of(&[weighted, Scheduling::Strict, Scheduling::Aging]) };
    let mut plan = QueuePlan {
        name: format!("queue-{number}"),
        patch: None,
        levels,
        shards,
        scheduling,
        max_deliveries: draw.of(&[1, 2, 5, 1_000]),
        lease_s: draw.from(1, 10) as u32,
        dedup_window_ms: 1_000 * draw.of(&[0, 2, 10, 600]),
        retention_ms: draw.of(&[345_600_000, 345_600_000, 345_600_000, RETENTION_MS]),
        dead_letter_expired: draw.one_in(4),
        backoff_max_s: draw.of(&[0, 0, 3]),
        reserve_ppm: draw.of(&[100_000, 100_000, 0, 500_000]),
        floor_ppm: draw.of(&[50_000, 50_000, 0, 300_000]),
        capped: draw.one_in(8),
        max_depth: draw.of(&[None, None, Some(5), Some(40)]),
        max_bytes: draw.of(&[None, None, None, Some(20_000)]),
        deletable: draw.one_in(8),
    };
    if by_itself {
        return QueuePlan { deletable: plan.deletable, ..QueuePlan::by_itself(plan.name, shards) };
    }
    let aging_s = draw.of(&[1, 10, 1_800]);
    let cap = draw.of(&[2, 50]);
    let caps = RateCaps { queue: Some(cap), levels: [(0u8, cap / 2)].into() };
    plan.patch = Some(QueueConfigPatch {
        levels: Some(Some(plan.levels)),
        shards: Some(Some(plan.shards)),
        scheduling: Some(Some(plan.scheduling)),
        reserve_ppm: Some(Some(plan.reserve_ppm)),
        floor_ppm: Some(Some(plan.floor_ppm)),
        aging_s: Some(Some(aging_s)),
        max_deliveries: Some(Some(plan.max_deliveries)),
        lease_s: Some(Some(plan.lease_s)),
        dedup_window_s: Some(Some(plan.dedup_window_ms / 1_000)),
        retention_s: Some(Some(plan.retention_ms / 1_000)),
        max_depth: Some(plan.max_depth),
        max_bytes: Some(plan.max_bytes),
        dead_letter_expired: Some(Some(plan.dead_letter_expired)),
        rate_caps: plan.capped.then_some(Some(caps)),
        backoff: (plan.backoff_max_s > 0).then_some(Some(Backoff {
            first_s: 1,
            factor_micro: 2_000_000,
            max_s: plan.backoff_max_s,
        })),
        ..QueueConfigPatch::default()
    });
    plan
}

/// From a stream of its own, so that the rest of a seed's plan is what it was without.
fn other_keys_ppm(seed: u64) -> u32 {
    Draw(Random::new(seed, "other keys")).of(&[0, 200_000, 700_000])
}

fn messages(draw: &mut Draw, entry_bytes_max: usize) -> MessagePlan {
    MessagePlan {
        batch_bytes_max: (entry_bytes_max * 3 / 4).min(REQUEST_BYTES_MAX - 256 * 1024),
        client_ids_ppm: draw.of(&[0, 200_000, 800_000]),
        dedup_keys_ppm: draw.of(&[0, 200_000, 800_000]),
        dedup_keys: draw.of(&[3, 30, 1_000_000]),
        delays_ppm: draw.ppm(),
        delay_s_max: draw.from(1, 10),
        expiry_ppm: draw.ppm(),
        expiry_s_max: draw.from(1, 15),
        headers_ppm: draw.ppm(),
        body_bytes_max: draw.of(&[0, 20, 200, 5_000]),
        huge_bodies_ppm: match draw.of(&[0, 0, 10_000, 50_000]) {
            huge if entry_bytes_max > BODY_BYTES_MAX => huge,
            _ => 0,
        },
        batches_ppm: draw.ppm(),
        batch_max: draw.of(&[2, 10, 60]),
        repeats_ppm: draw.of(&[0, 100_000, 400_000]),
        other_keys_ppm: 0,
        one_level_ppm: draw.of(&[0, 0, 700_000]),
    }
}

fn work(draw: &mut Draw) -> WorkPlan {
    WorkPlan {
        receive_max: draw.of(&[1, 1, 10, 100, 1_000]),
        waits_ppm: draw.of(&[0, 300_000, 1_000_000]),
        wait_s_max: draw.of(&[1, 5, 20]),
        ceilings_ppm: draw.ppm(),
        lease_s_max: draw.of(&[1, 3, 10]),
        lease_given_ppm: draw.of(&[1_000_000, 1_000_000, 500_000]),
        ack_ppm: draw.of(&[0, 200_000, 600_000, 900_000, 1_000_000]),
        extend_ppm: draw.ppm(),
        release_ppm: draw.ppm(),
        release_delay_ppm: draw.ppm(),
        release_delay_s_max: draw.from(1, 10),
        stale_ppm: draw.ppm(),
        cancel_receive_ppm: draw.of(&[0, 0, 0, 50_000, 400_000]),
        held_max: draw.of(&[1, 20, 1_000]),
    }
}

fn faults(draw: &mut Draw) -> FaultPlan {
    if draw.one_in(8) {
        return FaultPlan { disconnect_ms: draw.of(&[0, 3_000]), ..FaultPlan::default() };
    }
    FaultPlan {
        power_loss_ms: draw.of(&[0, 10_000, 3_000, 700]),
        kill_ms: draw.of(&[0, 0, 5_000, 1_000]),
        stop_ms: draw.of(&[0, 0, 10_000, 3_000]),
        down_ms_max: draw.of(&[1, 100, 20_000]),
        recovery_ends_ppm: draw.of(&[0, 0, 200_000, 600_000]),
        wall_jump_ms: draw.of(&[0, 0, 0, 3_000]),
        wall_freeze_ms: draw.of(&[0, 0, 0, 0, 5_000]),
        wall_drift_ppm: draw.of(&[0, 0, 0, 300, -300]),
        disk_hang_ms: draw.of(&[0, 0, 5_000]),
        disk_hang_ms_max: draw.of(&[50, 1_000, 8_000]),
        disk_slow_ppm: draw.of(&[0, 0, 5_000, 50_000]),
        disk_full_ms: draw.of(&[0, 0, 0, 4_000]),
        mesh_slow_ppm: draw.of(&[0, 0, 20_000, 300_000]),
        mesh_stall_ms: draw.of(&[0, 0, 0, 3_000]),
        link_slow_ppm: draw.of(&[0, 0, 0, 10_000, 100_000]),
        link_slow_ms_max: draw.of(&[20, 500, 5_000]),
        pause_ms: draw.of(&[0, 0, 0, 4_000]),
        pause_ms_max: draw.of(&[100, 3_000]),
        disconnect_ms: draw.of(&[0, 3_000, 500]),
        damage_ms: if draw.one_in(5) { draw.of(&[200, 1_000]) } else { 0 },
        damage: draw.of(&[
            None,
            Some(Damage::Rot),
            Some(Damage::Vanished),
            Some(Damage::Misdirected),
            Some(Damage::Stale),
            Some(Damage::Checkpoint),
        ]),
        failure_ms: if draw.one_in(6) { draw.of(&[1_000, 4_000]) } else { 0 },
    }
}
