//! The deterministic core of one CPU core: one value that takes events and puts out what is to be done.
//!
//! [`Core::step`] is called for each event of a loop turn, [`Core::drain`] once at the turn's end: it proposes what the
//! events asked for, writes one journal batch for all shards of the core, answers what has become durable and
//! committed, and publishes heads that moved. No clock, disk, socket, thread or randomness in here: the shell and the
//! simulator carry those, and the same events always give the same outputs.

pub mod cache;
mod calls;
mod claim;
pub mod clock;
pub mod config;
mod convert;
mod directory;
mod enqueue;
pub mod event;
mod gather;
pub mod identity;
pub mod mesh;
mod metrics;
pub mod page;
pub mod planner;
mod queues;
mod quota;
mod receive;
mod redrive;
mod replica;
mod sessions;
mod settle;
mod storage;
mod view;
mod waiting;

pub use config::{CoreConfig, Rights, TenantConfig, TokenConfig};
pub use event::{Event, Output, SessionId};

use crate::calls::{LocalReply, PendingCall};
use crate::clock::ShardClock;
use crate::directory::{DirectoryCopy, DirectoryHost};
use crate::mesh::Caller;
use crate::metrics::Counters;
use crate::quota::{Quotas, TenantRates};
use crate::receive::{Waiting, WakeTimers};
use crate::replica::Replica;
use crate::sessions::{Forwarded, Sessions};
use crate::storage::Storage;
use crate::view::HeadView;
use overtake_base::hash::Map;
use overtake_base::random::Random;
use overtake_base::{CoreId, MessageId, Now, QueueId, ShardId, UnixMillis};
use overtake_queue::answer::EnqueueOutcome;
use overtake_queue::scheduler::Scheduler;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Rounds of propose, apply and wake within one drain; what is left then waits for the next turn.
const DRAIN_ROUNDS_MAX: usize = 8;

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
    pub(crate) now: Now,
    pub(crate) time: UnixMillis,
    pub(crate) clock: ShardClock,
    pub(crate) ids: Random,
    pub(crate) last_id: MessageId,
    pub(crate) storage: Storage,
    pub(crate) replicas: BTreeMap<ShardId, Replica>,
    pub(crate) directory: DirectoryCopy,
    pub(crate) host: Option<DirectoryHost>,
    pub(crate) view: HeadView,
    pub(crate) schedulers: Map<QueueId, Scheduler>,
    pub(crate) sessions: Sessions,
    pub(crate) operations: Map<OperationId, Operation>,
    pub(crate) calls: Map<u64, PendingCall>,
    pub(crate) forwards: Map<u64, Forwarded>,
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
    pub(crate) stopped: bool,
    pub(crate) next_number: u64,
    pub(crate) out: Vec<Output>,
}

impl Core {
    /// A core that has yet to recover; its first outputs are disk operations.
    #[must_use]
    pub fn new(config: CoreConfig, now: Now) -> Self {
        let seed = config.seed ^ (u64::from(config.core.0) << 48);
        let mut core = Self {
            storage: Storage::new(&config),
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
            operations: Map::default(),
            calls: Map::default(),
            forwards: Map::default(),
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
            Event::SessionOpened { session } => self.open_session(session),
            Event::Frame { session, frame } => self.frame(session, &frame),
            Event::SessionClosed { session } => self.close_session(session),
            Event::Mesh { from, message } => self.mesh(from, message),
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
        self.expire_timers();
        self.ask_for_room();
        for _ in 0..DRAIN_ROUNDS_MAX {
            let progress = self.propose_and_apply()
                | self.take_local_replies()
                | self.pump_waiters()
                | self.grant_wanted();
            if !progress {
                break;
            }
        }
        self.write_journal();
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
        [shard_deadline, ask, self.timers.next(), self.storage.next_wake()].into_iter().flatten().min()
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
        let machines = self.replicas.iter().map(|(shard, replica)| (shard.0, &replica.machine));
        machines.map(|(shard, machine)| (shard, machine.applied(), machine.digest())).collect()
    }

    fn set_now(&mut self, now: Now) {
        self.now = now;
        self.time = self.clock.read(now);
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
        self.end_waits();
    }

    /// Once nothing is under way any more, vouches for the journal's last batches and says so.
    fn finish_stop(&mut self) {
        if !self.stopping || self.stopped {
            return;
        }
        let quiet = self.operations.is_empty()
            && self.calls.is_empty()
            && self.forwards.is_empty()
            && self.replicas.values().all(|replica| !replica.is_busy());
        if quiet && self.seal_journal() {
            self.stopped = true;
            self.out.push(Output::Stopped);
        }
    }
}
