//! What a core is told at its start.

use overtake_base::footprint::{
    ANSWER_BYTES_MAX, BACKLOG_BYTES_MAX, ENTRY_CACHE_BYTES, HOT_MESSAGES_MAX, JOURNAL_BYTES_MAX,
    LOG_KEEP_BYTES,
};
use overtake_base::limits::{BLOCK_MESSAGES_MAX, BLOCK_PAYLOAD_BYTES_TARGET};
use overtake_base::{CoreId, NodeId, ShardId};
use overtake_log::JournalConfig;
use overtake_queue::members::Members;
use std::sync::Arc;

/// Bytes of one journal segment. Fixed for a folder once it is made.
pub const SEGMENT_BYTES: u64 = 32 * 1024 * 1024;
/// Journal batches written at the same time by one core: the device is busy, and a batch grows meanwhile.
const WRITES_IN_FLIGHT_MAX: usize = 4;
/// Bytes of one journal batch.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Journal bytes of one core after which its shards are checkpointed.
const CHECKPOINT_BYTES: u64 = 256 * 1024 * 1024;
/// Journal segments kept ready.
const SEGMENTS_AHEAD: u32 = 2;
/// Journal segments kept that were written before: as many as one round of checkpoints may let go of.
const SEGMENTS_FREE_MAX: u32 = 12;
/// Bytes of one part of a snapshot for another node.
const SNAPSHOT_PART_BYTES: usize = 256 * 1024;

/// Everything a core must know; the same on every start of one data folder, but for the seed, addresses and access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreConfig {
    /// This node.
    pub node: NodeId,
    /// The failure domain it is labelled with.
    pub zone: String,
    /// Where its HTTP front end listens, for `GET /v1/cluster`.
    pub http: String,
    /// Where other nodes reach its core 0; empty where that is not known.
    pub address: String,
    /// This core.
    pub core: CoreId,
    /// Cores of this node.
    pub cores: u16,
    /// The other nodes that the cluster began with, the same on each; none for a node by itself.
    pub peers: Vec<PeerConfig>,
    /// The cluster as this node knew it last; none for one that begins.
    pub members: Option<Arc<Members>>,
    /// Shards of the shard set.
    pub shards: u16,
    /// Identity of the data folder.
    pub store: u128,
    /// This core's journal was begun before, as the data folder remembers: see [`crate::Output::JournalBegun`].
    pub journal_begun: bool,
    /// Seed of message ids and election time-outs; from the operating system in production.
    pub seed: u64,
    /// Version text of the program, told to clients.
    pub version: String,
    /// Whether the first enqueue to an unknown queue creates it.
    pub auto_create: bool,
    /// Who may call; empty = everyone may do everything, as tenant `default`.
    pub tokens: Vec<TokenConfig>,
    /// Limits of tenants.
    pub tenants: Vec<TenantConfig>,
    /// Bytes of one journal segment.
    pub segment_bytes: u64,
    /// Journal batches written at the same time, at most.
    pub writes_in_flight_max: usize,
    /// Bytes of one log entry, at most. It must hold the largest request; less allows shorter segments.
    pub entry_bytes_max: usize,
    /// Bytes of one journal batch, at most.
    pub batch_bytes_max: usize,
    /// Bytes of recent log entries kept in memory on this core.
    pub cache_bytes: usize,
    /// Most journal bytes after which the shards of this core are checkpointed; a quarter of it while states are small.
    pub checkpoint_bytes: u64,
    /// Bytes of log that each shard keeps for replicas that lag or are away; one that lacks more is rebuilt.
    pub log_keep_bytes: u64,
    /// Bytes of one part of a snapshot for another node, but for its last entry.
    pub snapshot_part_bytes: usize,
    /// Accepted bytes that wait for the disk, at most; beyond it enqueues are refused.
    pub backlog_bytes_max: usize,
    /// What is kept in memory, and what goes into blocks.
    pub cold: ColdConfig,
    /// How many bytes of answers may be on their way to clients.
    pub answers: AnswerConfig,
    /// How fast what is on disk is looked through.
    pub scrub: ScrubConfig,
}

/// How many bytes of answers may be on their way to clients of one core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerConfig {
    /// On one connection, for a read to be begun; half of it, for a receive.
    pub read_bytes: usize,
    /// On one connection, for received messages to be added to what its client has not taken.
    pub received_bytes: usize,
    /// On all connections together, for a read to be begun on one that has not taken its answers.
    pub core_bytes: usize,
    /// What reads begun in one turn may take together; one of any size always may.
    pub turn_bytes: usize,
    /// Messages that receives begun in one turn may ask for together; one of any number always may. Who waits for an
    /// urgent message waits for the turn of whoever takes much.
    pub turn_messages: u32,
}

impl Default for AnswerConfig {
    /// Together less than what the transport keeps for one connection before it cuts a stream off.
    fn default() -> Self {
        Self {
            read_bytes: 16 * 1024 * 1024,
            received_bytes: 24 * 1024 * 1024,
            core_bytes: ANSWER_BYTES_MAX,
            turn_bytes: 6 * 1024 * 1024,
            turn_messages: 256,
        }
    }
}

/// How fast what is on disk is looked through for damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubConfig {
    /// From one batch or block to the next, in nanoseconds.
    pub piece_every_ns: u64,
    /// From the beginning of one pass to that of the next, in nanoseconds; a pass may take longer.
    pub pass_every_ns: u64,
}

impl Default for ScrubConfig {
    /// About 4 MiB a second of blocks, and all of it once a day.
    fn default() -> Self {
        Self { piece_every_ns: 250_000_000, pass_every_ns: 24 * 3_600 * 1_000_000_000 }
    }
}

/// How much of the backlog this core keeps in memory and in its journal; what is beyond goes into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColdConfig {
    /// Bytes of one lane file; cannot be changed for a folder that has some.
    pub lane_file_bytes: u64,
    /// Lane files' worth of unneeded bytes before they are cleaned, besides half of what is needed.
    pub spare_files: u64,
    /// Messages and dead letters in memory, of all shards of this core.
    pub hot_messages_max: u64,
    /// Bytes of journal segments that are needed.
    pub journal_bytes_max: u64,
    /// Visible messages of a lane that stay in memory in front of its runs; less where there are very many lanes.
    pub keep_messages: u32,
    /// Fewest messages of a run.
    pub run_messages_min: u32,
    /// Most messages and payload bytes of a block.
    pub block_messages_max: u32,
    /// See there.
    pub block_bytes: u64,
    /// Runs come back so long before their first message is due or expires, in milliseconds.
    pub lead_ms: u64,
    /// Runs whose messages expire within this time of each other are left to end as a whole, in milliseconds.
    pub slack_ms: u64,
}

impl ColdConfig {
    /// For a node of so many cores.
    #[must_use]
    pub fn of_cores(cores: u16) -> Self {
        Self {
            lane_file_bytes: 32 * 1024 * 1024,
            spare_files: 6,
            hot_messages_max: HOT_MESSAGES_MAX,
            journal_bytes_max: JOURNAL_BYTES_MAX / u64::from(cores.max(1)),
            keep_messages: 4_096,
            run_messages_min: 64,
            block_messages_max: BLOCK_MESSAGES_MAX,
            block_bytes: BLOCK_PAYLOAD_BYTES_TARGET,
            lead_ms: 3_000,
            slack_ms: 500,
        }
    }
}

impl ColdConfig {
    /// Bytes of lane files that nothing needs before something is done about them, besides half of what is needed.
    pub(crate) fn unneeded_bytes_max(&self) -> u64 {
        self.lane_file_bytes * self.spare_files.max(1)
    }
}

/// Another node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerConfig {
    /// Its id.
    pub node: NodeId,
    /// The failure domain it is labelled with.
    pub zone: String,
    /// Where its HTTP front end listens.
    pub http: String,
    /// Where its core 0 listens for other nodes; empty where that is not known.
    pub address: String,
    /// Its cores.
    pub cores: u16,
}

/// One bearer token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenConfig {
    /// The secret.
    pub token: String,
    /// Whose queues it sees.
    pub tenant: String,
    /// What it may do.
    pub rights: Rights,
}

/// Limits of one tenant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantConfig {
    /// Its name.
    pub name: String,
    /// Accepted messages per second, with a burst of one second; absent = no limit.
    pub enqueue_per_s: Option<u64>,
}

/// What a caller may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Enqueue.
    pub enqueue: bool,
    /// Receive, ack, extend, release.
    pub receive: bool,
    /// Look at queues, messages, statistics.
    pub read: bool,
    /// Create, change, delete, purge, cancel, redrive.
    pub admin: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Self = Self { enqueue: true, receive: true, read: true, admin: true };
}

impl CoreConfig {
    /// One of the cores of a node by itself, with the sizes that servers have: everyone may do everything, and nobody is
    /// told where it listens.
    #[must_use]
    pub fn alone(core: CoreId, cores: u16, shards: u16, store: u128, seed: u64) -> Self {
        Self {
            node: NodeId(1),
            zone: String::new(),
            http: String::new(),
            address: String::new(),
            core,
            cores,
            peers: Vec::new(),
            members: None,
            shards,
            store,
            journal_begun: false,
            seed,
            version: env!("CARGO_PKG_VERSION").into(),
            auto_create: true,
            tokens: Vec::new(),
            tenants: Vec::new(),
            segment_bytes: SEGMENT_BYTES,
            writes_in_flight_max: WRITES_IN_FLIGHT_MAX,
            entry_bytes_max: overtake_log::record::DATA_BYTES_MAX,
            batch_bytes_max: BATCH_BYTES_MAX,
            cache_bytes: ENTRY_CACHE_BYTES / usize::from(cores.max(1)),
            checkpoint_bytes: CHECKPOINT_BYTES,
            log_keep_bytes: LOG_KEEP_BYTES,
            snapshot_part_bytes: SNAPSHOT_PART_BYTES,
            backlog_bytes_max: BACKLOG_BYTES_MAX,
            cold: ColdConfig::of_cores(cores),
            answers: AnswerConfig::default(),
            scrub: ScrubConfig::default(),
        }
    }

    /// What the core's journal is told.
    #[must_use]
    pub fn journal(&self) -> JournalConfig {
        JournalConfig {
            store: self.store,
            core: self.core,
            begun: self.journal_begun,
            segment_bytes: self.segment_bytes,
            writes_in_flight_max: self.writes_in_flight_max,
            record_bytes_max: self.entry_bytes_max,
            batch_bytes_max: self.batch_bytes_max,
            segments_ahead: SEGMENTS_AHEAD,
            segments_free_max: SEGMENTS_FREE_MAX,
        }
    }

    /// Which core of this node hosts a shard, if its replicas are there.
    #[must_use]
    pub fn core_of(&self, shard: ShardId) -> CoreId {
        crate::cluster::core_of(shard, self.cores)
    }

    /// The data shards that belong to this core on each node that holds a replica.
    pub fn own_shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (self.core.0..self.shards).step_by(usize::from(self.cores)).map(ShardId)
    }
}
