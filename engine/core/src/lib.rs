//! The deterministic core of one CPU core: one value that takes events and puts out what is to be done.
//!
//! [`Core::step`] is called for each event of a loop turn, [`Core::drain`] once at the turn's end: it proposes what the
//! events asked for, writes one journal batch for all shards of the core, answers what has become durable and
//! committed, and publishes heads that moved. No clock, disk, socket, thread or randomness in here: the shell and the
//! simulator carry those, and the same events always give the same outputs.

mod answers;
mod blocks;
pub mod cache;
mod calls;
mod claim;
pub mod clock;
pub mod cluster;
pub mod codec;
mod cold;
pub mod config;
mod convert;
mod directory;
mod enqueue;
mod errands;
pub mod event;
mod fetch;
mod gather;
pub mod identity;
mod leaders;
mod links;
mod members;
pub mod mesh;
mod metrics;
pub mod page;
mod peers;
pub mod placement;
pub mod planner;
mod pressure;
mod proposals;
mod queues;
mod quota;
mod receive;
mod redrive;
mod repair;
mod replica;
mod scrub;
mod sessions;
mod settle;
mod snapshots;
pub mod state;
mod storage;
mod stuck;
mod summaries;
mod time;
mod view;
mod waiting;

pub use cluster::Address;
pub use config::{
    AnswerConfig, ColdConfig, CoreConfig, PeerConfig, Rights, ScrubConfig, TenantConfig, TokenConfig,
};
pub use convert::{dead_letter, peeked};
pub use event::{ConnectionId, Event, Output, SessionId};

use crate::answers::Answers;
use crate::calls::NO_OPERATION;
use crate::calls::{LocalReply, PendingCall};
use crate::clock::ShardClock;
use crate::cluster::ClusterMap;
use crate::cold::Cold;
use crate::directory::{DirectoryCopy, DirectoryHost};
use crate::errands::Errand;
use crate::leaders::Leaders;
use crate::links::Links;
use crate::members::Changes;
use crate::mesh::Caller;
use crate::metrics::Counters;
use crate::quota::{Quotas, TenantRates};
use crate::receive::{Waiting, WakeTimers};
use crate::replica::Replica;
use crate::scrub::Scrub;
use crate::sessions::Sessions;
use crate::snapshots::Snapshots;
use crate::storage::Storage;
use crate::summaries::Telling;
use crate::time::NodeClocks;
use crate::view::HeadView;
use overtake_base::hash::Map;
use overtake_base::random::Random;
use overtake_base::{CoreId, MessageId, NodeId, Now, QueueId, ShardId, UnixMillis};
use overtake_queue::answer::EnqueueOutcome;
use overtake_queue::scheduler::Scheduler;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Rounds of propose, apply and wake within one drain; what is left then waits for the next turn.
const DRAIN_ROUNDS_MAX: usize = 8;

/// How long a stop waits for what is under way where a quorum may be missing, in nanoseconds.
const STOP_PATIENCE_NS: u64 = 5_000_000_000;
/// How long a stop waits for other nodes to lead what it led, in nanoseconds.
const HAND_OVER_NS: u64 = 2_000_000_000;

/// Raft messages to one core.
#[derive(Default)]
pub(crate) struct ToPeer {
    pub(crate) messages: Vec<(ShardId, bytes::Bytes)>,
    pub(crate) bytes: usize,
}

/// Names an operation of this core; never used twice.
pub(crate) type OperationId = u64;

/// Something a client asked for that takes more than one step.
pub(crate) enum Operation {
    Enqueue(enqueue::EnqueueOperation),
    Receive(receive::ReceiveOperation),
    Settle(settle::SettleOperation),
    Gather(gather::GatherOperation),
    Redrive(redrive::RedriveOperation),
    Grant(redrive::GrantOperation),
    Configure(directory::ConfigureOperation),
}

/// See the crate's text.
pub struct Core {
    pub(crate) config: CoreConfig,
    /// This core's own address.
    pub(crate) me: Address,
    pub(crate) map: ClusterMap,
    pub(crate) leaders: Leaders,
    pub(crate) links: Links,
    /// Shards that receives are planned without, since no leader of theirs can be reached.
    pub(crate) hidden: BTreeSet<ShardId>,
    /// Raft messages of this turn.
    pub(crate) to_peers: BTreeMap<Address, ToPeer>,
    pub(crate) next_tick_ns: Option<u64>,
    /// Since when this core leads each shard that it last led.
    pub(crate) lead_since_ns: BTreeMap<ShardId, u64>,
    pub(crate) next_transfer_ns: u64,
    /// Up to where every voter holds the log of a shard, as far as this core was told.
    pub(crate) held: BTreeMap<ShardId, u64>,
    pub(crate) next_held_ns: u64,
    pub(crate) telling: Telling,
    pub(crate) snapshots: Snapshots,
    pub(crate) changes: Changes,
    pub(crate) repairs: repair::Repairs,
    pub(crate) now: Now,
    pub(crate) time: UnixMillis,
    pub(crate) clock: ShardClock,
    pub(crate) clocks: NodeClocks,
    pub(crate) ids: Random,
    pub(crate) last_id: MessageId,
    pub(crate) storage: Storage,
    pub(crate) cold: Cold,
    pub(crate) pressure: pressure::Pressure,
    pub(crate) stuck: stuck::Stuck,
    pub(crate) scrub: Scrub,
    pub(crate) replicas: BTreeMap<ShardId, Replica>,
    pub(crate) directory: DirectoryCopy,
    pub(crate) host: Option<DirectoryHost>,
    pub(crate) view: HeadView,
    pub(crate) schedulers: Map<QueueId, Scheduler>,
    pub(crate) sessions: Sessions,
    pub(crate) answers: Answers,
    pub(crate) operations: Map<OperationId, Operation>,
    pub(crate) calls: Map<u64, PendingCall>,
    /// Calls in the order in which their time is over.
    pub(crate) call_ends: VecDeque<(u64, u64)>,
    pub(crate) errands: Map<u64, Errand>,
    /// Enqueues that found no room on disk: what they are answered once it is counted.
    pub(crate) refusing: Map<Caller, Vec<EnqueueOutcome>>,
    pub(crate) local_replies: VecDeque<LocalReply>,
    pub(crate) waiting: Waiting,
    pub(crate) timers: WakeTimers,
    pub(crate) quotas: Quotas,
    pub(crate) room_wanted: redrive::RoomWanted,
    pub(crate) tenant_rates: TenantRates,
    pub(crate) counters: Counters,
    /// Cores that serve.
    pub(crate) serving: BTreeSet<CoreId>,
    /// Heads that changed in this turn.
    pub(crate) to_publish: BTreeSet<(ShardId, QueueId)>,
    pub(crate) stopping: bool,
    /// When a stop no longer waits for what is under way, and for others to lead.
    pub(crate) stop_by_ns: u64,
    pub(crate) hand_over_by_ns: u64,
    /// This core takes no more part in anything.
    pub(crate) retired: bool,
    pub(crate) stopped: bool,
    pub(crate) next_number: u64,
    pub(crate) out: Vec<Output>,
}

impl Core {
    /// A core that has yet to recover; its first outputs are disk operations.
    #[must_use]
    pub fn new(config: CoreConfig, now: Now) -> Self {
        let seed = config.seed ^ (u64::from(config.core.0) << 48);
        let map = ClusterMap::of(&config);
        let mut core = Self {
            storage: Storage::new(&config),
            me: Address { node: config.node, core: config.core },
            hidden: if map.is_single() { BTreeSet::new() } else { (0..config.shards).map(ShardId).collect() },
            clocks: NodeClocks::new(map.is_single()),
            map,
            leaders: Leaders::default(),
            links: Links::default(),
            to_peers: BTreeMap::new(),
            next_tick_ns: None,
            lead_since_ns: BTreeMap::new(),
            next_transfer_ns: 0,
            held: BTreeMap::new(),
            next_held_ns: 0,
            telling: Telling::default(),
            snapshots: Snapshots::default(),
            changes: Changes::default(),
            cold: Cold::new(&config.cold),
            pressure: pressure::Pressure::default(),
            stuck: stuck::Stuck::default(),
            scrub: Scrub::default(),
            repairs: repair::Repairs::default(),
            now,
            time: UnixMillis(0),
            clock: ShardClock::new(),
            ids: Random::new(seed, "message ids"),
            last_id: MessageId(0),
            replicas: BTreeMap::new(),
            directory: DirectoryCopy::default(),
            host: None,
            view: HeadView::default(),
            schedulers: Map::default(),
            sessions: Sessions::default(),
            answers: Answers::new(config.answers),
            operations: Map::default(),
            calls: Map::default(),
            call_ends: VecDeque::new(),
            errands: Map::default(),
            refusing: Map::default(),
            local_replies: VecDeque::new(),
            waiting: Waiting::default(),
            timers: WakeTimers::default(),
            quotas: Quotas::default(),
            room_wanted: redrive::RoomWanted::default(),
            tenant_rates: TenantRates::new(&config),
            counters: Counters::default(),
            serving: BTreeSet::new(),
            to_publish: BTreeSet::new(),
            stopping: false,
            stop_by_ns: 0,
            hand_over_by_ns: 0,
            retired: false,
            stopped: false,
            next_number: 0,
            out: Vec::new(),
            config,
        };
        core.time = core.clock.read(now);
        core.start_recovery();
        core
    }

    /// Takes one event.
    pub fn step(&mut self, now: Now, event: Event, outputs: &mut Vec<Output>) {
        self.set_now(now);
        match event {
            Event::SessionOpened { session, connection } => self.open_session(session, connection),
            Event::Frame { session, frame } => self.frame(session, &frame),
            Event::SessionClosed { session } => self.close_session(session),
            Event::Taken { session, bytes } => self.answers.taken(session, bytes),
            Event::Mesh { from, message } => self.mesh(from, message),
            Event::PeerUp { peer } => self.peer_up(peer),
            Event::PeerDown { peer } => self.peer_down(peer),
            Event::Disk(completion) => self.disk(completion),
            Event::Summary { shard, version, summary } => {
                self.learn(mesh::VersionedSummary { shard, version, summary });
            }
            Event::Tick => {}
            Event::Stop => self.stop(),
        }
        outputs.append(&mut self.out);
    }

    /// Ends a turn.
    pub fn drain(&mut self, now: Now, outputs: &mut Vec<Output>) {
        self.set_now(now);
        self.watch_disk();
        self.expire_timers();
        self.ask_for_room();
        self.expire_calls();
        self.start_parked();
        self.tick_repairs();
        self.tick_groups();
        self.manage_cold();
        self.go_on_scrubbing();
        for _ in 0..DRAIN_ROUNDS_MAX {
            let progress = self.propose_and_apply()
                | self.take_local_replies()
                | self.pump_waiters()
                | self.grant_wanted();
            if !progress {
                break;
            }
        }
        self.advance_snapshots();
        self.advance_going();
        self.write_journal();
        self.flush_peers();
        self.tell_heads();
        self.publish_changes();
        self.finish_stop();
        outputs.append(&mut self.out);
    }

    /// When, in monotonic nanoseconds, [`Core::drain`] wants to be called though nothing happened.
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        let shard_deadline = self
            .replicas
            .values()
            .map(Replica::next_deadline)
            .min()
            .filter(|deadline| *deadline != UnixMillis::NEVER)
            .map(|deadline| self.clock.monotonic_at(deadline));
        let ask = self.next_ask().map(|at| self.clock.monotonic_at(at));
        let tick = self.next_tick_ns.filter(|_| !self.retired);
        let call_end = self.call_ends.front().map(|(end_ns, _)| *end_ns);
        let heads = self.telling.next_wake();
        let scrub = self.scrub.next_wake().filter(|_| !self.stopping && self.storage.is_running());
        let disk = [self.storage.next_wake(), self.cold.next_wake(), scrub];
        let parked = self.answers.wants_turn().then_some(self.now.monotonic_ns);
        let rebuilding = [parked, self.snapshots.next_wake(), self.next_repair_ns()];
        let own = [shard_deadline, ask, self.timers.next(), tick, call_end, heads];
        own.into_iter().chain(disk).chain(rebuilding).flatten().min()
    }

    /// The shards that this core leads, with the term it leads them in.
    pub fn leads(&self) -> impl Iterator<Item = (ShardId, u64)> {
        let host = self.host.iter().map(|host| (ShardId::DIRECTORY, &host.group));
        let groups = self.replicas.iter().map(|(shard, replica)| (*shard, &replica.group)).chain(host);
        groups.filter(|(_, group)| group.is_leader()).map(|(shard, group)| (shard, group.term()))
    }

    /// Replicas of this core that were rebuilt from a snapshot of another node.
    #[must_use]
    pub fn rebuilt(&self) -> u64 {
        self.snapshots.rebuilt
    }

    /// True where no replica of this core is being repaired after damage to its disk.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.directory.start.recovered && !self.is_being_repaired()
    }

    /// Damaged journals that this core gave up.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.repairs.given_up
    }

    /// True where this core can reach a leader of every shard and of the directory.
    #[must_use]
    pub fn knows_all_leaders(&self) -> bool {
        self.hidden.is_empty() && self.leader_of(ShardId::DIRECTORY).is_some()
    }

    /// Shards whose leader this core does not know or cannot reach, with what it has heard: term and leader.
    #[must_use]
    pub fn leaders_missed(&self) -> Vec<(ShardId, u64, Option<NodeId>)> {
        let all = (0..self.config.shards).map(ShardId).chain([ShardId::DIRECTORY]);
        let missed = all.filter(|shard| self.leader_of(*shard).is_none());
        missed
            .map(|shard| (shard, self.leaders.of(shard)))
            .map(|(shard, (term, node))| (shard, term, node))
            .collect()
    }

    /// True where this core answers requests.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.serving.contains(&self.config.core)
    }

    /// Shard, log index and state digest of each shard of this core: equal at equal index on every replica, and before
    /// and after a restart.
    #[must_use]
    pub fn digests(&self) -> Vec<(u16, u64, u64)> {
        self.digests_where(|_, _| true)
    }

    /// The same of those that are wanted: digests of large states are dear.
    pub fn digests_where(&self, mut wanted: impl FnMut(u16, u64) -> bool) -> Vec<(u16, u64, u64)> {
        let mut digests = Vec::new();
        for (shard, Replica { machine, .. }) in &self.replicas {
            if wanted(shard.0, machine.applied()) {
                digests.push((shard.0, machine.applied(), machine.digest()));
            }
        }
        if let Some(DirectoryHost { directory, .. }) = &self.host
            && wanted(ShardId::DIRECTORY.0, directory.applied())
        {
            digests.push((ShardId::DIRECTORY.0, directory.applied(), directory.digest()));
        }
        digests
    }

    fn set_now(&mut self, now: Now) {
        self.now = now;
        self.time = self.clock.read(self.clocks.followed(now));
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub(crate) fn fatal(&mut self, detail: String) {
        self.out.push(Output::Fatal(detail));
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.stop_by_ns = self.now.monotonic_ns + STOP_PATIENCE_NS;
        self.hand_over_by_ns = self.now.monotonic_ns + HAND_OVER_NS;
        self.end_parked();
        self.end_waits();
        if !self.map.is_single() {
            self.hand_over();
        }
    }

    /// Once nothing is under way any more, vouches for the journal's last batches and says so.
    fn finish_stop(&mut self) {
        if !self.stopping || self.stopped {
            return;
        }
        let quiet = self.operations.is_empty()
            && self.calls.is_empty()
            && self.errands.is_empty()
            && self.replicas.values().all(|replica| !replica.is_busy());
        // Without a quorum some things never end.
        let now_ns = self.now.monotonic_ns;
        let single = self.map.is_single();
        let late = !single && now_ns >= self.stop_by_ns;
        let quiet = quiet && (single || now_ns >= self.hand_over_by_ns || self.has_handed_over());
        self.retired |= quiet || late;
        if self.retired && self.seal_journal() {
            self.stopped = true;
            self.out.push(Output::Stopped);
        }
    }
}
