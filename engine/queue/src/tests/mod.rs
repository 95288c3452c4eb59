//! Tests of the state machine through its own door: encoded entries in, answers out.

mod claims;
mod cold;
mod dead;
mod deadlines;
mod enqueue;
mod invariants;
mod lease;
mod settle;
mod snapshot;

use crate::answer::{Answer, ClaimOutcome, Delivery, EnqueueOutcome, MessageView, QueueStats, SettleOutcome};
use crate::cold::Loaded;
use crate::command::{
    Batch, Command, Extension, Lease, LeaseKey, LevelChoice, NewMessage, Redrive, RedriveSelection, Return,
    Spill, SpillWhat, VisibleWhen,
};
use crate::entry::encode_batch;
use crate::machine::{Machine, PeekFilter};
use bytes::Bytes;
use overtake_base::queue_config::Scheduling;
use overtake_base::{Level, MessageId, QueueConfig, QueueId, ShardId, UnixMillis};

pub(crate) const QUEUE: QueueId = QueueId(7);
pub(crate) const START: u64 = 1_700_000_000_000;

/// A shard with one queue, and a clock that the test moves.
pub(crate) struct Shard {
    pub(crate) machine: Machine,
    pub(crate) index: u64,
    pub(crate) now: u64,
    version: u64,
}

/// A configuration without shares, so that a test sees the plain order.
pub(crate) fn strict() -> QueueConfig {
    QueueConfig { scheduling: Scheduling::Strict, ..QueueConfig::with_defaults(5, 1) }
}

pub(crate) fn message(id: u128, level: u8) -> NewMessage {
    NewMessage {
        id: MessageId(id),
        client_made_id: false,
        priority: Level(level),
        visible: VisibleWhen::Now,
        dedup_key: None,
        expires_in_ms: None,
        headers: Bytes::new(),
        body: Bytes::from_static(b"body"),
    }
}

impl Shard {
    pub(crate) fn new(config: QueueConfig) -> Self {
        let mut shard = Self { machine: Machine::new(ShardId(3)), index: 0, now: START, version: 0 };
        shard.configure(config);
        shard
    }

    pub(crate) fn apply(&mut self, commands: Vec<Command>) -> Vec<Answer> {
        // Gaps: not every entry of a log is one of the state machine.
        self.index += 1 + self.index % 2;
        let mut entry = Vec::new();
        encode_batch(&Batch { time: UnixMillis(self.now), commands }, &mut entry);
        let mut answers = Vec::new();
        self.machine.apply(self.index, &entry.into(), &mut answers).unwrap();
        answers
    }

    pub(crate) fn one(&mut self, command: Command) -> Answer {
        self.apply(vec![command]).remove(0)
    }

    /// Time passes, and a tick with it.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.apply(Vec::new());
    }

    pub(crate) fn configure(&mut self, config: QueueConfig) {
        self.version += 1;
        let version = self.version;
        assert_eq!(self.one(Command::Configure { queue: QUEUE, version, config }), Answer::Done);
    }

    pub(crate) fn enqueue(&mut self, messages: Vec<NewMessage>) -> Vec<EnqueueOutcome> {
        match self.one(Command::Enqueue { queue: QUEUE, messages }) {
            Answer::Enqueued(outcomes) => outcomes,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn claim(&mut self, key: &'static str, id: u128) -> ClaimOutcome {
        match self.one(Command::Claim { queue: QUEUE, key: key.into(), id: MessageId(id) }) {
            Answer::Claim(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn stored(&mut self, messages: Vec<NewMessage>) {
        assert!(self.enqueue(messages).iter().all(|outcome| *outcome == EnqueueOutcome::Stored));
    }

    pub(crate) fn lease_with(&mut self, lease: Lease) -> Vec<Delivery> {
        match self.one(Command::Lease { queue: QUEUE, lease }) {
            Answer::Leased(deliveries) => deliveries,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn lease_by(&mut self, max: u32, choice: LevelChoice) -> Vec<Delivery> {
        self.lease_with(Lease { max, max_bytes: u64::MAX, lease_ms: None, worker: None, choice })
    }

    pub(crate) fn lease(&mut self, max: u32) -> Vec<Delivery> {
        self.lease_by(max, LevelChoice::Scheduled)
    }

    pub(crate) fn ids(&mut self, max: u32) -> Vec<u128> {
        self.lease(max).iter().map(|delivery| delivery.id.0).collect()
    }

    pub(crate) fn settle(
        &mut self,
        ack: Vec<LeaseKey>,
        extend: Vec<Extension>,
        release: Vec<Return>,
    ) -> [Vec<SettleOutcome>; 3] {
        match self.one(Command::Settle { queue: QUEUE, ack, extend, release }) {
            Answer::Settled { ack, extend, release } => [ack, extend, release],
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ack(&mut self, key: LeaseKey) -> SettleOutcome {
        self.settle(vec![key], vec![], vec![])[0][0]
    }

    pub(crate) fn release(
        &mut self,
        key: LeaseKey,
        delay_ms: Option<u64>,
        error: Option<&str>,
    ) -> SettleOutcome {
        let returned = Return { key, delay_ms, error: error.map(Into::into) };
        self.settle(vec![], vec![], vec![returned])[2][0]
    }

    pub(crate) fn redrive(&mut self, selection: RedriveSelection, rate_per_1000_s: Option<u64>) -> u64 {
        let redrive = Redrive { selection, priority: None, rate_per_1000_s, room: None };
        match self.one(Command::Redrive { queue: QUEUE, redrive }) {
            Answer::Redriven(count) => count,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn id_lookup(&self, queue: QueueId, id: MessageId) -> bool {
        self.machine.id_lookup(queue, id, self.machine.time(), &Loaded::default()).unwrap()
    }

    pub(crate) fn inspect(&self, queue: QueueId, id: MessageId) -> Option<MessageView> {
        self.machine.inspect(queue, id, &Loaded::default()).unwrap()
    }

    pub(crate) fn peek(
        &self,
        queue: QueueId,
        filter: PeekFilter,
        after: Option<MessageId>,
        limit: usize,
    ) -> Vec<MessageView> {
        self.machine.peek(queue, filter, after, limit, &Loaded::default()).unwrap()
    }

    /// Takes up to `messages_max` messages out of memory; gives how many.
    pub(crate) fn spill(&mut self, what: SpillWhat, messages_max: u32) -> u32 {
        let spill = Spill {
            what,
            up_to_index: self.index,
            horizon: UnixMillis(0),
            messages_min: 1,
            messages_max,
            bytes_max: u64::MAX,
        };
        match self.one(Command::Spill { queue: QUEUE, spill }) {
            Answer::Spilled(spilled) => spilled.payloads,
            other => panic!("{other:?}"),
        }
    }

    /// The same for a lane, behind its first `keep`.
    pub(crate) fn spill_lane(&mut self, level: u8, keep: u32, messages_max: u32) -> u32 {
        self.spill(SpillWhat::Lane { level: Level(level), keep }, messages_max)
    }

    /// Statistics, with the promise that every enqueued message is somewhere.
    pub(crate) fn stats(&self) -> QueueStats {
        let stats = self.machine.stats(QUEUE, self.machine.time()).unwrap();
        assert_conserved(&stats);
        stats
    }

    pub(crate) fn total_visible(&self) -> u64 {
        self.stats().visible.iter().sum()
    }
}

pub(crate) fn assert_conserved(stats: &QueueStats) {
    let sum = |list: &[u64]| list.iter().sum::<u64>();
    let totals = &stats.totals;
    let living = sum(&stats.visible) + sum(&stats.delayed) + sum(&stats.leased) + stats.dead;
    let ended = totals.acked + totals.cancelled + totals.purged + totals.expired;
    assert_eq!(totals.enqueued, living + ended, "{stats:?}");
}
