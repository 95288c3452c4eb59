//! What cores say to each other, on one node and from node to node. Messages of one pair of cores arrive in the order sent.

use crate::cluster::Address;
use crate::identity::Tenant;
use crate::page::Page;
pub use crate::snapshots::{BlockBytes, SnapshotAsk, SnapshotPart, StateHead, StatePart};
use bytes::Bytes;
use overtake_base::{MessageId, NodeId, QueueId, ShardId, UnixMillis};
use overtake_queue::answer::{Answer, DeadLetterView, Delivery, KeyState, MessageView, QueueStats, Summary};
use overtake_queue::command::{Command, RedriveSelection, Room};
use overtake_queue::directory::{DirectoryCommand, QueueRecord};
use overtake_queue::entry::Payload;
use overtake_queue::machine::PeekFilter;
use overtake_queue::members::Members;
use overtake_wire::message::{Metric, Request, Response};
use std::sync::Arc;

/// One message of the mesh.
#[derive(Debug)]
pub enum MeshMessage {
    /// Ask a shard of the receiving core.
    Call { call: u64, shard: ShardId, request: ShardRequest },
    /// What it said; with its newest summary of the queue, which may be ahead of the board.
    Reply { call: u64, reply: ShardReply, summary: Option<VersionedSummary> },
    /// Carry out a client's whole request there: the receiving core has what this one lacks (waiters, quotas). A receive
    /// waits `wait_ms`, whatever it says itself: part of its wait may be over.
    Forward { call: u64, tenant: Tenant, request: Request, rate_checked: bool, wait_ms: u32 },
    /// The response.
    ForwardReply { call: u64, response: Response },
    /// Nothing was done: what the sending core was taken to have it has not, or not any more. To a `Forward` or a
    /// `DirectoryCall`.
    ForwardMoved { call: u64 },
    /// The forwarded receive need not wait any more.
    ForwardCancel { call: u64 },
    /// The leader of the directory has these queues, at this index of its log; more follow unless it is the `last` part.
    /// Sent when it begins to lead, and at the beginning of every link.
    DirectorySnapshot { index: u64, records: Vec<Arc<QueueRecord>>, last: bool },
    /// A queue was created, changed or deleted. Answered when the shards that the receiving core leads know.
    DirectoryChange { index: u64, change: u64, record: Arc<QueueRecord>, deleted: bool },
    /// Answer to a `DirectoryChange`.
    DirectoryKnown { change: u64 },
    /// To the core that leads the directory.
    DirectoryCall { call: u64, command: DirectoryCommand },
    /// Whether some receive of the queue waits on the sending core, its home: then all receives go there, so that the
    /// longest waiter is served first.
    Waiters { queue: QueueId, some: bool },
    /// Redrive jobs of a shard want room of the queue's home, the receiving core: what the turns that have come would take,
    /// and the body bytes of the first.
    RoomWanted { queue: QueueId, shard: ShardId, room: Room, first: u64 },
    /// The sending core serves, and its clock shows this.
    Serving { time: UnixMillis },
    /// Who leads a shard, as the sending core's replica knows it; from another node: the sending node does.
    Leader { shard: ShardId, term: u64, leader: Option<NodeId> },
    /// Heads of shards that the sending core leads and the receiving node holds no replica of.
    Summaries { summaries: Vec<VersionedSummary> },
    /// Up to where every voter of a shard holds its log, as its leader, the sending core, knows.
    Held { shards: Vec<(ShardId, u64)> },
    /// The sending core lost what its replicas of these shards promised; its logs end at these places now. What do the
    /// other voters know?
    ReplicaAsk { number: u64, shards: Vec<(ShardId, u64)> },
    /// Newest term and last index of replicas that lost nothing.
    ReplicaTold { number: u64, shards: Vec<(ShardId, u64, u64)> },
    /// What do the receiving node's clocks show? `asked_ns` is the sender's own monotonic clock.
    ClockAsk { asked_ns: u64 },
    /// The wall clock, and shard time where the node knows it.
    Clock { asked_ns: u64, wall: UnixMillis, time: Option<UnixMillis> },
    /// A replica of the sending core that is being rebuilt wants the next part of a snapshot.
    SnapshotAsk(SnapshotAsk),
    /// The part; `number` is the ask's.
    SnapshotPart { shard: ShardId, number: u64, part: SnapshotPart },
    /// The sending core leads a shard, whose voters an entry of its log has changed: does the receiver's disk say so?
    VouchAsk { shard: ShardId, index: u64 },
    /// It does.
    Vouched { shard: ShardId, index: u64 },
    /// The sending core's disk hangs, or goes on: it can lead nothing meanwhile.
    Stuck { stuck: bool },
    /// Who is in the cluster, as the sending core knows it.
    Members { members: Arc<Members> },
    /// Words of replicas of several shards to those of the receiving core, which only they understand.
    Raft { messages: Vec<(ShardId, Bytes)> },
}

/// A summary and the log index it was made at.
#[derive(Clone, Debug)]
pub struct VersionedSummary {
    /// Where it comes from.
    pub shard: ShardId,
    /// Grows with the shard's log.
    pub version: u64,
    /// What is there.
    pub summary: Summary,
}

/// What a shard can be asked.
#[derive(Clone, Debug)]
pub enum ShardRequest {
    /// Something that changes it: goes through the log.
    Command(Command),
    /// A look at its state.
    Read(Read),
}

/// Looks at a shard's state.
#[derive(Clone, Debug)]
pub enum Read {
    /// Statistics of a queue.
    Stats { queue: QueueId },
    /// Messages in id order.
    Peek { queue: QueueId, filter: PeekFilter, after: Option<MessageId>, limit: usize },
    /// One message.
    Inspect { queue: QueueId, id: MessageId },
    /// Dead letters in id order.
    DeadLetters { queue: QueueId, after: Option<MessageId>, limit: usize },
    /// How many dead letters a redrive would take.
    CountDead { queue: QueueId, selection: RedriveSelection },
    /// What is known of a dedup key; where that is nothing, whether a message with this id is there.
    Lookup { queue: QueueId, key: Option<Bytes>, id: Option<MessageId> },
    /// Whether the message with this id was stored under a dedup key of another shard.
    StoredUnder { queue: QueueId, id: MessageId, key: Bytes },
    /// Nothing but the summary that comes with every reply.
    Summary { queue: QueueId },
    /// Counters of the core that hosts the shard, and its part of the statistics of a tenant's queues.
    Metrics { tenant: Tenant },
}

/// What a shard says.
#[derive(Debug)]
pub enum ShardReply {
    /// To commands other than leases.
    Answer(Answer),
    /// To a lease.
    Leased(Vec<(Delivery, Payload)>),
    /// To `Stats`; none where the queue is not there.
    Stats(Option<QueueStats>),
    /// To `Peek`.
    Peeked(Page<(MessageView, Payload)>),
    /// To `Inspect`.
    Inspected(Option<MessageView>),
    /// To `DeadLetters`.
    DeadLetters(Page<(DeadLetterView, Payload)>),
    /// To `CountDead`.
    Count(u64),
    /// To `Lookup` and `StoredUnder`.
    Found(KeyState),
    /// To `Summary`.
    Summary,
    /// To `Metrics`; the queues by name.
    Metrics(Vec<Metric>, Vec<(Box<str>, QueueStats)>),
    /// Nothing was done, and another replica may be the one to ask: who leads in which term, if that is known. Within a
    /// node what was asked comes back.
    NotLeader { term: u64, leader: Option<NodeId>, request: Option<Box<ShardRequest>> },
    /// Nothing was done, or (`unknown`) nobody knows.
    Failed { unknown: bool, detail: &'static str },
}

/// Who waits for a shard's reply: a call number of a core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Caller {
    /// The core.
    pub at: Address,
    /// The link that it asked on; on another one its number is not to be used.
    pub link: u32,
    /// Its number for the call.
    pub call: u64,
}
