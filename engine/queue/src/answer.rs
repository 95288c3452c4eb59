//! What a shard answers: one [`Answer`] for each command of a batch, in order; and the views that reads return.

use crate::command::{ClaimTicket, LeaseKey, RefusedReason};
use overtake_base::{BlockId, Level, MessageId, QueueId, Sequence, UnixMillis};

/// Answer to one command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The queue is not on this shard (deleted, or never created).
    NoQueue,
    /// To `Configure`, `Delete`, `Unlease`, `EndClaim` and `NoteRefused`.
    Done,
    /// To `Enqueue` and `StoreClaimed`: one for each message, in order.
    Enqueued(Vec<EnqueueOutcome>),
    /// To `Lease`: deliveries in the order they were chosen. Fewer than asked, also none, is normal.
    Leased(Vec<Delivery>),
    /// To `Settle`: in the order of its three lists.
    Settled { ack: Vec<SettleOutcome>, extend: Vec<SettleOutcome>, release: Vec<SettleOutcome> },
    /// To `Cancel`.
    Cancelled(CancelOutcome),
    /// To `Purge` and `PurgeDeadLetters`.
    Purged(u64),
    /// To `Redrive`: how many moved or will move.
    Redriven(u64),
    /// To `Claim`.
    Claim(ClaimOutcome),
    /// To `FenceClaim`: when the message was stored under the key, if it was.
    Fenced(Option<UnixMillis>),
    /// To `Spill`.
    Spilled(Spilled),
    /// To `Thaw`: false where the run is gone, or the records are not its own.
    Thawed(bool),
}

/// Outcome of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimOutcome {
    /// The key is claimed: the message can be stored.
    Claimed(ClaimTicket),
    /// The key answers for this message, which may be the one that it was to be claimed for.
    Taken(MessageId),
    /// It is claimed for another message that may or may not be stored.
    Pending(PendingClaim),
    /// The queue has no dedup window: its keys mean nothing.
    Off,
}

/// A claim that nobody has ended yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingClaim {
    /// The message that the key is claimed for.
    pub id: MessageId,
    /// The newest claim for it.
    pub claim: ClaimTicket,
    /// How long ago that was.
    pub age_ms: u64,
}

/// What is known of a dedup key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyState {
    /// Nothing: a message with it would be stored.
    Free,
    /// It answers for this message.
    Taken(MessageId),
    /// It is claimed.
    Pending(PendingClaim),
}

/// What a spill did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spilled {
    /// Payloads that stand in the new block now; none where there is no new block.
    pub payloads: u32,
    /// Where a walk over payloads goes on; none at its end.
    pub next: Option<MessageId>,
}

/// Outcome for one message of an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnqueueOutcome {
    /// Stored under its id.
    Stored,
    /// Nothing stored: the dedup key or id was seen; this is the first message's id.
    Duplicate(MessageId),
    /// Nothing stored.
    Refused(RefusedReason),
    /// Nothing stored: the dedup key is claimed for a message of another shard, which may or may not be stored.
    Pending(PendingClaim),
    /// Nothing stored: this message was stored before, at this time, under this same claimed key.
    StoredBefore(UnixMillis),
    /// Nothing stored: the claim's deadline has passed, or the claim was fenced off.
    Late,
}

/// One delivered message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    pub id: MessageId,
    pub key: LeaseKey,
    pub priority: Level,
    /// Delivered to a share, while something more urgent was visible.
    pub share: bool,
    pub enqueued_at: UnixMillis,
    pub lease_expires_at: UnixMillis,
    pub payload: PayloadRef,
}

/// Where a message's headers and body stand. The same on every replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PayloadRef {
    /// In what.
    pub place: Place,
    /// First byte of the payload in it.
    pub offset: u32,
    /// Its bytes: headers, body and their lengths.
    pub length: u32,
}

/// What a payload stands in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The log entry of this index.
    Entry(u64),
    /// The payloads of a block of cold messages.
    Block(BlockId),
}

/// Outcome for one receipt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettleOutcome {
    /// Done.
    Ok,
    /// The message is there, but this is not its current lease.
    Stale,
    /// No such message in this queue.
    Unknown,
}

/// Outcome of a cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelOutcome {
    /// Deleted.
    Cancelled,
    /// It is leased.
    Leased,
    /// It is a dead letter.
    Dead,
    /// No such message.
    NotFound,
}

/// Per queue: what other cores need to know to choose a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Which queue.
    pub queue: QueueId,
    /// Visible, delayed and leased messages.
    pub depth: u64,
    /// Their body bytes.
    pub body_bytes: u64,
    /// Each non-empty level, most urgent first.
    pub levels: Vec<LevelSummary>,
}

/// One non-empty level of a summary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LevelSummary {
    /// The level.
    pub level: Level,
    /// Visible messages.
    pub visible: u64,
    /// First visibility of the one that is delivered next.
    pub head_since: UnixMillis,
}

/// A message as a peek or look-up sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageView {
    pub id: MessageId,
    pub priority: Level,
    pub state: ViewState,
    pub deliveries: u32,
    pub enqueued_at: UnixMillis,
    /// None until it first becomes visible.
    pub sequence: Option<Sequence>,
    /// Why its last failed delivery failed. Only look-ups by id tell it.
    pub last_error: Option<Box<str>>,
    pub payload: PayloadRef,
}

/// State of a viewed message, with what belongs to the state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ViewState {
    /// `ahead`: visible messages of more urgent levels, and of its own level before it. Only look-ups by id count it.
    Visible {
        ahead: Option<u64>,
    },
    Delayed {
        until: UnixMillis,
    },
    Leased {
        expires_at: UnixMillis,
        worker: Option<Box<str>>,
    },
    Dead,
}

/// A dead letter as a listing sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetterView {
    pub id: MessageId,
    pub priority: Level,
    pub deliveries: u32,
    pub enqueued_at: UnixMillis,
    pub dead_at: UnixMillis,
    pub last_error: Box<str>,
    pub history: Vec<(UnixMillis, Box<str>)>,
    pub payload: PayloadRef,
}

/// One shard's part of a queue's statistics; parts of several shards are added with [`QueueStats::add`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueStats {
    pub visible: Vec<u64>,
    pub delayed: Vec<u64>,
    pub leased: Vec<u64>,
    pub dead: u64,
    pub body_bytes: u64,
    /// First visibility of the oldest visible message of each level.
    pub oldest_since: Vec<Option<UnixMillis>>,
    /// Waits from first visibility to first delivery over the last minutes: for each level (milliseconds, count) pairs.
    pub waits: Vec<Vec<(u64, u64)>>,
    pub totals: Totals,
    /// Leased messages by worker label, sorted.
    pub workers: Vec<(Box<str>, u64)>,
}

/// Totals since the queue was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    pub enqueued: u64,
    pub acked: u64,
    pub cancelled: u64,
    pub purged: u64,
    pub expired: u64,
    pub dead_lettered: u64,
    pub redriven: u64,
    pub deliveries: u64,
    pub share_deliveries: u64,
    pub inversions: u64,
    pub lease_expirations: u64,
    pub releases: u64,
    pub stale_receipts: u64,
    pub starvation_events: u64,
    /// By [`RefusedReason`], in its order.
    pub refused: [u64; 5],
}
