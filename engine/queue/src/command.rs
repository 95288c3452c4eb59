//! What can be asked of a shard through its log. One log entry is one [`Batch`]: the shard time that its leader
//! stamped, and commands that are applied in order. Time enters the state machine nowhere else.

use bytes::Bytes;
use overtake_base::queue_config::QueueConfig;
use overtake_base::{BlockId, Level, MessageId, QueueId, Sequence, UnixMillis};

/// One log entry of a shard.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// Shard time; never before that of the entry before.
    pub time: UnixMillis,
    /// Applied in order. None at all is a tick: time passes, due work is done.
    pub commands: Vec<Command>,
}

/// One command.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Create the queue here, or change its configuration. A version that is not newer is ignored.
    Configure { queue: QueueId, version: u64, config: QueueConfig },
    /// Forget the queue and everything in it.
    Delete { queue: QueueId },
    /// Store messages.
    Enqueue { queue: QueueId, messages: Vec<NewMessage> },
    /// Hand out leases.
    Lease { queue: QueueId, lease: Lease },
    /// Take back leases that reached nobody: the messages return to their places and the deliveries are not counted
    /// (their receipts were never shown to anyone, so the number may be given again).
    Unlease { queue: QueueId, leases: Vec<LeaseKey> },
    /// End, extend and return leases; each is answered separately.
    Settle { queue: QueueId, ack: Vec<LeaseKey>, extend: Vec<Extension>, release: Vec<Return> },
    /// Delete a visible or delayed message.
    Cancel { queue: QueueId, id: MessageId },
    /// Delete all visible and delayed messages.
    Purge { queue: QueueId },
    /// Delete all dead letters.
    PurgeDeadLetters { queue: QueueId },
    /// Bring dead letters back.
    Redrive { queue: QueueId, redrive: Redrive },
    /// Remember a client-made id for the dedup window here, where its id belongs, though its message lives where its dedup
    /// key belongs: a repeat of the id alone is then recognised.
    RememberId { queue: QueueId, id: MessageId },
    /// Count refusals that never reached a log, so that totals survive restarts.
    NoteRefused { queue: QueueId, reason: RefusedReason, count: u64 },
    /// Take messages out of memory, or their payloads out of the log, into a block. One entry makes one block at most:
    /// a second spill in it does nothing.
    Spill { queue: QueueId, spill: Spill },
    /// Bring the messages of a block's run back into memory. The records are the block's own, as they were drafted.
    Thaw { queue: QueueId, block: BlockId, records: Bytes },
}

/// What a spill takes. Only payloads that stand in log entries up to `up_to_index`, or in blocks, are taken: what is on
/// its way through the log while the leader decides is never touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spill {
    /// Which messages.
    pub what: SpillWhat,
    /// Of which log entries.
    pub up_to_index: u64,
    /// Messages that expire or are due before this stay in memory: they would have to come back at once.
    pub horizon: UnixMillis,
    /// Nothing is done for fewer messages; walks over payloads do not ask.
    pub messages_min: u32,
    /// At most so many messages; a walk over payloads looks at so many.
    pub messages_max: u32,
    /// Stop after so many bytes of payloads.
    pub bytes_max: u64,
}

/// Which messages a spill takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpillWhat {
    /// Visible messages of a lane, behind its first `keep` and behind its runs.
    Lane { level: Level, keep: u32 },
    /// Messages that have not been visible yet, the last to be due first.
    Delayed,
    /// Only the payloads of whatever is in memory, from log entries and from blocks of which little else is needed: a
    /// walk over living messages, then one over dead letters, in the order of their ids after `after`.
    Payloads { dead: bool, after: Option<MessageId> },
}

/// A message to store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMessage {
    /// Its id, made by the client or by the core that took the request.
    pub id: MessageId,
    /// True where the client made the id: it is then remembered for the dedup window.
    pub client_made_id: bool,
    /// Its level.
    pub priority: Level,
    /// When it becomes visible.
    pub visible: VisibleWhen,
    /// 1..=256 bytes.
    pub dedup_key: Option<Bytes>,
    /// Time to live from its first visibility, in milliseconds; the queue's retention where absent.
    pub expires_in_ms: Option<u64>,
    /// Opaque here.
    pub headers: Bytes,
    /// Opaque everywhere.
    pub body: Bytes,
}

/// When a new message becomes visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VisibleWhen {
    /// At once.
    Now,
    /// At a time; one in the past means at once.
    At(UnixMillis),
    /// So many milliseconds after the batch's shard time.
    AfterMs(u64),
}

/// A request for leases.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// At most so many messages.
    pub max: u32,
    /// Stop after so many payload bytes; one message is always allowed.
    pub max_bytes: u64,
    /// Lease time in milliseconds; the queue's where absent.
    pub lease_ms: Option<u64>,
    /// Label of the worker.
    pub worker: Option<Box<str>>,
    /// Who chooses the levels.
    pub choice: LevelChoice,
}

/// Who chooses the levels of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LevelChoice {
    /// The shard's own scheduler, message by message: exact for a queue on one shard.
    Scheduled,
    /// Most urgent first, only levels 0..=this; takes no part in shares (a receive with `max_priority`).
    UpTo(Level),
    /// The receive planner of a core, which sees several shards, has chosen.
    Picks(Vec<Pick>),
}

/// A planner's choice: up to `count` messages of `level`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pick {
    /// The level.
    pub level: Level,
    /// How many.
    pub count: u32,
    /// Owed to a share: exactly this level. Otherwise messages of a more urgent level go first if there are any by now.
    pub share: bool,
}

/// Names one lease of one message: fencing token included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseKey {
    /// The message's place in the shard.
    pub sequence: Sequence,
    /// Its deliveries at that lease.
    pub deliveries: u32,
}

/// One extension of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension {
    /// Which lease.
    pub key: LeaseKey,
    /// New expiry from now, in milliseconds.
    pub lease_ms: u64,
}

/// One return of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Return {
    /// Which lease.
    pub key: LeaseKey,
    /// When it may be delivered again; the queue's back-off (or at once) where absent.
    pub delay_ms: Option<u64>,
    /// Kept with the message; at most `ERROR_BYTES_MAX` bytes.
    pub error: Option<Box<str>>,
}

/// A redrive of dead letters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redrive {
    /// Which.
    pub selection: RedriveSelection,
    /// The level they get; their old one where absent.
    pub priority: Option<Level>,
    /// At most so many per thousand seconds; all at once where absent. With a rate the redrive is a durable job.
    pub rate_per_1000_s: Option<u64>,
}

/// Which dead letters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RedriveSelection {
    /// All.
    All,
    /// Those of these ids.
    Ids(Vec<MessageId>),
    /// Those that had this level.
    FromPriority(Level),
}

/// Why an enqueue was refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RefusedReason {
    /// `max_depth`.
    Depth,
    /// `max_bytes`.
    Bytes,
    /// A tenant's rate.
    Rate,
    /// Disk head-room.
    Disk,
    /// No leader or no quorum.
    NoQuorum,
}
