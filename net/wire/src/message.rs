//! The requests that clients make and the responses they get: plain values, no bytes. Field names are those of the
//! HTTP contract, so that a refusal's `field` means the same on every way in.

use bytes::Bytes;
use overtake_base::queue_config::{QueueConfig, QueueConfigPatch};
use overtake_base::{MessageId, Receipt, UnixMillis};

/// Names and values, in the order given.
pub type Headers = Vec<(String, String)>;

/// What a client asks for. Fields are those of the HTTP contract.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// First request of a connection; says who is calling. Without auth the token is empty.
    Hello { token: String },
    /// Create a queue or change its configuration.
    PutQueue { queue: String, patch: QueueConfigPatch },
    /// A queue's configuration.
    GetQueue { queue: String },
    /// Queues by name, after `after`.
    ListQueues { limit: u32, after: Option<String> },
    /// Delete a queue with its messages.
    DeleteQueue { queue: String },
    /// Store messages.
    Enqueue { queue: String, messages: Vec<EnqueueMessage> },
    /// Lease the most urgent messages.
    Receive(Receive),
    /// Take back an earlier receive of this connection that still waits; answered by that receive, empty.
    CancelReceive { request: u64 },
    /// End, extend or give back leases.
    Settle(Settle),
    /// Take back leases of an answer that reached nobody: the deliveries did not happen, and count nowhere.
    Undelivered { queue: String, receipts: Vec<String> },
    /// Counts and totals of a queue.
    Stats { queue: String },
    /// Messages without leasing them.
    Peek { queue: String, states: PeekStates, priority: Option<u32>, limit: u32, after: Option<String> },
    /// One message: where it is, and why it was not delivered.
    Inspect { queue: String, id: MessageId },
    /// Delete a visible or delayed message.
    Cancel { queue: String, id: MessageId },
    /// Delete all visible and delayed messages.
    Purge { queue: String },
    /// Dead letters.
    DlqList { queue: String, limit: u32, after: Option<String> },
    /// Bring dead letters back.
    DlqRedrive(Redrive),
    /// Delete all dead letters.
    DlqPurge { queue: String },
    /// Nodes and shards.
    Cluster,
    /// Whether every led shard has a quorum.
    Ready,
    /// Counters of the node, for monitoring.
    Metrics,
    /// Add, drain, remove or replace a node of the cluster, or spread replicas evenly.
    ChangeCluster(ClusterChange),
}

/// A change of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClusterChange {
    /// A node is in the cluster from now on; or one that is says other addresses or another zone.
    Add(NewNode),
    /// It gives away what it leads and holds; `undo`: it holds replicas again. `force`: though others are too few.
    Drain { node: u64, undo: bool, force: bool },
    /// It is forgotten. `force`: it is dead; what it held goes to others first.
    Remove { node: u64, force: bool },
    /// A node is dead: what it held goes to others, `new` among them.
    Replace { dead: u64, new: u64 },
    /// Replicas are to be spread evenly.
    Rebalance,
}

/// A node that comes to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewNode {
    pub id: u64,
    pub zone: String,
    /// Where its core 0 listens for other nodes, `HOST:PORT`.
    pub address: String,
    /// Where its HTTP front end listens.
    pub http: String,
    pub cores: u16,
}

/// One message to store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EnqueueMessage {
    /// 0..levels-1.
    pub priority: u32,
    /// Client-made id, for safe retries.
    pub id: Option<MessageId>,
    /// When it becomes visible.
    pub delay: Delay,
    /// 1..=256 bytes.
    pub dedup_key: Option<Bytes>,
    /// 1..=retention.
    pub expires_in_s: Option<u64>,
    /// Names and values.
    pub headers: Headers,
    /// 0..=131072 bytes.
    pub body: Bytes,
}

/// When a message becomes visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delay {
    /// Now.
    #[default]
    None,
    /// At a time; a time in the past means now.
    At(UnixMillis),
    /// So many seconds after it was accepted.
    AfterS(u64),
}

/// A receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receive {
    /// Name of the queue.
    pub queue: String,
    /// 1..=1000.
    pub max: u32,
    /// 0..=20.
    pub wait_s: u32,
    /// 1..=43200; the queue's where absent.
    pub lease_s: Option<u32>,
    /// Only levels 0..=this.
    pub max_priority: Option<u32>,
    /// Label of the worker.
    pub worker: Option<String>,
}

impl Receive {
    /// A receive of at most 10 messages that does not wait and leaves the rest to the queue.
    #[must_use]
    pub fn new(queue: impl Into<String>) -> Self {
        Self { queue: queue.into(), max: 10, wait_s: 0, lease_s: None, max_priority: None, worker: None }
    }
}

/// Ends, extensions and returns of leases. Receipts are texts, since a malformed one has an answer of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settle {
    /// Name of the queue.
    pub queue: String,
    /// Delete these.
    pub ack: Vec<String>,
    /// Set a new expiry from now.
    pub extend: Vec<Extend>,
    /// Return these.
    pub release: Vec<Release>,
}

/// One extension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extend {
    /// Which lease.
    pub receipt: String,
    /// 1..=43200.
    pub lease_s: u32,
}

/// One return.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Release {
    /// Which lease.
    pub receipt: String,
    /// When it may be delivered again; the queue's back-off (or at once) where absent.
    pub delay_s: Option<u64>,
    /// Kept with the message; cut at 4096 bytes.
    pub error: Option<String>,
}

/// States that a peek shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeekStates {
    pub visible: bool,
    pub delayed: bool,
    pub leased: bool,
}

/// A redrive of dead letters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redrive {
    /// Name of the queue.
    pub queue: String,
    /// Which.
    pub selection: RedriveSelection,
    /// The level they get; their old one where absent.
    pub priority: Option<u32>,
    /// At most so many a second.
    pub max_per_s: Option<u64>,
    /// Only count.
    pub dry_run: bool,
}

/// Which dead letters a redrive takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RedriveSelection {
    /// All.
    All,
    /// Those of these ids.
    Ids(Vec<MessageId>),
    /// Those that had this level.
    FromPriority(u32),
}

/// What a client gets. Fields are those of the HTTP contract.
#[derive(Clone, PartialEq, Debug)]
pub enum Response {
    /// The request was refused; nothing was stored unless `refusal.stored_unknown`.
    Refused(Refusal),
    /// To `Hello`.
    Welcome { node: u64, core: u16, cores: u16, version: String },
    /// To `PutQueue`.
    QueuePut { created: bool, config: QueueConfig },
    /// To `GetQueue`.
    Queue { config: QueueConfig },
    /// To `ListQueues`.
    Queues { queues: Vec<QueueListed>, next: Option<String> },
    /// To `DeleteQueue` and `Cancel`.
    Done,
    /// To `Enqueue`: one outcome for each message, in order.
    Enqueued { results: Vec<Result<Enqueued, Refusal>> },
    /// To `Receive` (also after `CancelReceive`).
    Received { messages: Vec<Delivered> },
    /// To `Settle`: outcomes in the order of the request's three lists.
    Settled { ack: Vec<Settled>, extend: Vec<Settled>, release: Vec<Settled> },
    /// To `Stats`.
    Stats(Stats),
    /// To `Peek`.
    Peeked { messages: Vec<PeekedMessage>, next: Option<String> },
    /// To `Inspect`.
    Inspected(Inspected),
    /// To `Purge` and `DlqPurge`.
    Purged { purged: u64 },
    /// To `DlqList`.
    DeadLetters { messages: Vec<DeadLetter>, next: Option<String> },
    /// To `DlqRedrive`: how many will move.
    Redriven { moved: u64 },
    /// To `Cluster`.
    Cluster { nodes: Vec<NodeStatus>, shards: Vec<ShardStatus> },
    /// To `Ready`: shards without a leader or quorum; empty = ready.
    Readiness { not_ready: Vec<u16> },
    /// To `ChangeCluster`: all that a node keeps of its cluster, for one that joins.
    ClusterChanged { members: Bytes },
    /// To `Metrics`: name with labels in Prometheus form, value, in a stable order.
    Metrics { values: Vec<Metric> },
}

/// Why a request, or one message of it, was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The kind; decides the HTTP status and whether a retry is safe.
    pub code: ErrorCode,
    /// Name of the field at fault.
    pub field: Option<String>,
    /// What is wrong, what is allowed, what to do next.
    pub detail: String,
    /// When to try again.
    pub retry_after_ms: Option<u32>,
    /// True where a proposal may still commit: retry with the same id or dedup key.
    pub stored_unknown: bool,
}

/// Kinds of refusal. The number is the wire's and never changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum ErrorCode {
    /// Malformed, missing or out of range (HTTP 400).
    Invalid = 1,
    /// No or unknown token (401).
    Unauthorized = 2,
    /// The token lacks the right (403).
    Forbidden = 3,
    /// No such queue or message (404).
    NotFound = 4,
    /// Contradicts the state: fixed configuration, leased message (409).
    Conflict = 5,
    /// Body over 131,072 bytes or request over 2 MiB (413).
    TooLarge = 6,
    /// `max_depth` reached (429, reason depth).
    Depth = 7,
    /// `max_bytes` reached (429, reason depth in HTTP; counted as bytes).
    Bytes = 8,
    /// Rate limit (429, reason rate).
    Rate = 9,
    /// No leader or no quorum (503).
    NoQuorum = 10,
    /// Disk head-room (507).
    Disk = 11,
    /// A fault of ours (500).
    Internal = 12,
    /// The server is stopping (503).
    Stopping = 13,
}

/// A stored message, or the first one that its dedup key or id names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enqueued {
    /// Its id.
    pub id: MessageId,
    /// Its shard.
    pub shard: u16,
    /// True where the dedup window answered and nothing was stored.
    pub duplicate: bool,
}

/// One delivered message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivered {
    pub id: MessageId,
    pub priority: u8,
    pub receipt: Receipt,
    pub deliveries: u32,
    pub enqueued_at: UnixMillis,
    pub lease_expires_at: UnixMillis,
    pub headers: Headers,
    /// Given to a share while something more urgent was visible.
    pub share: bool,
    pub body: Bytes,
}

/// Outcome of one receipt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Done.
    Ok,
    /// The message is there, but this is not its current lease.
    Stale,
    /// No such message any more, or a malformed receipt.
    Unknown,
}

/// One queue of a listing.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueListed {
    pub name: String,
    pub config: QueueConfig,
    /// Visible, delayed and leased.
    pub depth: u64,
}

/// Counts, ages and totals. Lists have one entry for each level.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stats {
    pub visible: Vec<u64>,
    pub delayed: Vec<u64>,
    pub leased: Vec<u64>,
    pub dlq: u64,
    pub oldest_age_ms: Vec<Option<u64>>,
    pub wait_ms: Vec<Option<WaitMs>>,
    pub totals: Totals,
    /// Leased messages by worker label.
    pub workers: Vec<(String, u64)>,
}

/// Wait from first visibility to first delivery over the last minutes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct WaitMs {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
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
    pub refused_depth: u64,
    pub refused_bytes: u64,
    pub refused_rate: u64,
    pub refused_disk: u64,
    pub refused_no_quorum: u64,
}

/// State of one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageState {
    Visible,
    Delayed,
    Leased,
    Dead,
}

/// A message seen by a peek.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeekedMessage {
    pub id: MessageId,
    pub priority: u8,
    pub state: MessageState,
    pub deliveries: u32,
    pub enqueued_at: UnixMillis,
    /// While delayed.
    pub deliver_at: Option<UnixMillis>,
    /// While leased.
    pub lease_expires_at: Option<UnixMillis>,
    pub headers: Headers,
    pub body: Bytes,
}

/// Where a message is, and why it was not delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    pub id: MessageId,
    pub priority: u8,
    pub state: MessageState,
    pub shard: u16,
    pub enqueued_at: UnixMillis,
    pub deliver_at: Option<UnixMillis>,
    pub lease_expires_at: Option<UnixMillis>,
    pub worker: Option<String>,
    pub deliveries: u32,
    /// Visible messages that are more urgent or before it, on its shard.
    pub ahead: Option<u64>,
    pub why: String,
}

/// A dead letter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetter {
    pub id: MessageId,
    pub priority: u8,
    pub deliveries: u32,
    pub last_error: String,
    pub dead_at: UnixMillis,
    /// The last ten: when, what.
    pub history: Vec<(UnixMillis, String)>,
    pub enqueued_at: UnixMillis,
    pub headers: Headers,
    pub body: Bytes,
}

/// One node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStatus {
    pub id: u64,
    pub zone: String,
    pub http: String,
    pub alive: bool,
    pub state: NodeState,
    /// Replicas that it has or gets, of shards and of the directory of queues.
    pub replicas: u32,
}

/// What is to become of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NodeState {
    /// It was added, and has not been heard of yet.
    Joining = 1,
    /// It holds replicas.
    Active = 2,
    /// It gives away what it leads and holds.
    Draining = 3,
    /// It was given up; what it held goes to others.
    Lost = 4,
}

/// One shard of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardStatus {
    pub shard: u16,
    pub leader: Option<u64>,
    pub replicas: Vec<u64>,
    /// The node that is to get a replica, and the one that is to lose its own.
    pub adding: Option<u64>,
    pub removing: Option<u64>,
}

/// One value of the node's metrics.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Prometheus name, without labels.
    pub name: String,
    /// Label pairs.
    pub labels: Vec<(String, String)>,
    pub value: f64,
    /// Monotone counter, else gauge.
    pub counter: bool,
}
