//! What can be asked of a shard through its log. One log entry is one [`Batch`]: the shard time that its leader
//! stamped, and commands that are applied in order. Time enters the state machine nowhere else.

use crate::scheduler::LevelSet;
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
    /// Take the turns of redrive jobs that have come, as far as there is room: only needed where the queue's home keeps its
    /// limits, because it is on several shards.
    RedriveTurns { queue: QueueId, room: Room },
    /// Claim a dedup key, on its shard, for a message that lives on another one. See `claims.rs`.
    Claim { queue: QueueId, key: Bytes, id: MessageId },
    /// Store a message, on its id's shard, whose dedup key was claimed on another one.
    StoreClaimed { queue: QueueId, claim: ClaimTicket, message: NewMessage },
    /// Tell, on the key's shard, what became of a claim.
    EndClaim { queue: QueueId, key: Bytes, id: MessageId, end: ClaimEnd },
    /// Ask, on the id's shard, whether the message was stored under this key; if it was not, it never will be under this
    /// claim or an earlier one.
    FenceClaim { queue: QueueId, key: Bytes, id: MessageId, claim: ClaimTicket },
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

/// One claim of a dedup key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClaimTicket {
    /// Counts the claims of the queue on the key's shard.
    pub number: u64,
    /// From then on, by the time of the shard that it lives on, the message is not stored under this claim.
    pub deadline: UnixMillis,
}

/// What became of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimEnd {
    /// The message was stored under this key, at this time by its own shard or a moment later: the key answers for it,
    /// for its window from then.
    Stored(UnixMillis),
    /// The claim of this number stored nothing, and will not.
    NotStored(u64),
    /// A fence says that neither the claim of this number nor an earlier one stored anything, or will.
    Void(u64),
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
    /// The receive planner of a core, which sees several shards, has chosen. Beyond its picks, a rate cap holds back the
    /// levels in `barred`: they stand in for nothing, and nothing passes them over.
    Picks { picks: Vec<Pick>, barred: LevelSet },
}

/// A planner's choice: up to `count` messages of `level`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pick {
    /// The level.
    pub level: Level,
    /// How many.
    pub count: u32,
    /// Owed to a share: exactly this level. Otherwise messages of a more urgent level go first if there are any by now;
    /// but not of one with a rate cap of its own, for which the planner accounts.
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
    /// What the queue's home grants, where it keeps the queue's limits: without it nothing is brought back at once then.
    pub room: Option<Room>,
}

/// Room in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// For so many messages.
    pub messages: u64,
    /// And so many body bytes.
    pub bytes: u64,
}

impl Room {
    /// Takes one message's room, if it fits.
    pub fn take(&mut self, body_bytes: u64) -> bool {
        let fits = self.messages > 0 && self.bytes >= body_bytes;
        if fits {
            *self = Self { messages: self.messages - 1, bytes: self.bytes - body_bytes };
        }
        fits
    }
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
