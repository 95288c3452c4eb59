//! What all tasks of a run share. They are all on one thread, and nobody holds a borrow over an await.

use super::consume::Failed;
use super::ledger::{Delivery, Ledger, Seen, SettleTry, Violations};
use super::meter::{self, Meter};
use super::sequence::{Fate, Fates, Sequence};
use super::stamp::{NoStamp, Stamp};
use overtake_client::{Client, ClientError, Delivered, MessageId, MessageIds, Refusal, Settled};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Wall-clock time that never goes back while the process runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
    start_ns: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
    }

    pub(super) fn at(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.start);
        self.start_ns + u64::try_from(since.as_nanos()).unwrap_or(u64::MAX / 2)
    }

    pub(super) fn now(&self) -> u64 {
        self.at(Instant::now())
    }
}

/// The end of something, that tasks look at or wait for.
#[derive(Default)]
pub(super) struct Ending {
    has_come: Cell<bool>,
    comes: Notify,
}

impl Ending {
    /// From now on it has come.
    pub(super) fn set(&self) {
        self.has_come.set(true);
        self.comes.notify_waiters();
    }

    /// Whether it has come.
    pub(super) fn has_come(&self) -> bool {
        self.has_come.get()
    }

    /// Returns when it has come.
    pub(super) async fn wait(&self) {
        let comes = self.comes.notified();
        if !self.has_come() {
            comes.await;
        }
    }
}

/// A run.
pub(super) struct Run {
    pub clock: Clock,
    pub queue: String,
    pub number: u64,
    pub clients: Vec<Client>,
    /// Of everything.
    pub end: Ending,
    /// Of sending: nothing more is sent, and nothing is tried again; what is under way gets its outcome.
    pub sending_end: Ending,
    pub state: RefCell<State>,
    turn: Cell<usize>,
}

/// What changes.
pub(super) struct State {
    pub meter: Meter,
    pub sequence: Sequence,
    pub fates: Fates,
    pub ids: MessageIds,
    pub own: Ledger,
    pub others: HashMap<u64, Ledger>,
    pub verify: bool,
    pub next_number: u64,
    /// Messages sent and without an outcome.
    pub under_way: u64,
    /// Enqueues that were refused, by reason; of each reason what the first refusal said.
    pub refusals: BTreeMap<u16, (u64, String)>,
    /// Why calls fail that are tried again, since it was last told, and of all.
    pub trouble: Option<String>,
    pub last_trouble: Option<String>,
    /// A message whose dedup key is taken, to repeat.
    pub keyed: Option<(u64, MessageId)>,
}

impl Run {
    pub(super) fn new(clock: Clock, queue: String, number: u64, clients: Vec<Client>, state: State) -> Self {
        Self {
            clock,
            queue,
            number,
            clients,
            end: Ending::default(),
            sending_end: Ending::default(),
            state: RefCell::new(state),
            turn: Cell::new(0),
        }
    }

    /// The clients, each in turn.
    pub(super) fn client(&self) -> &Client {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        &self.clients[turn % self.clients.len()]
    }

    /// Notes a delivery and gives its fate.
    pub(super) fn delivered(
        &self,
        message: &Delivered,
        received: (u64, u64),
        any_level: bool,
    ) -> Result<Fate, Failed> {
        let state = &mut *self.state.borrow_mut();
        state.meter.counts.delivered += 1;
        let stamp = match Stamp::read(&message.body) {
            Ok(stamp) => stamp,
            Err(NoStamp::Foreign) => return Err(Failed::ForeignMessage(message.id)),
            Err(NoStamp::Damaged) => {
                state.own.damaged(message.id);
                return Ok(Fate::Ack);
            }
        };
        let seen = if state.verify {
            let ledger = state.ledger(stamp.run, self.number);
            ledger.delivered(&Delivery {
                number: stamp.number,
                id: message.id,
                level: message.priority,
                visible_ns: stamp.visible_ns,
                deliveries: message.deliveries,
                lease_expires_ms: message.lease_expires_at.0,
                share: message.share,
                received_ns: received,
                any_level,
            })
        } else if message.deliveries == 1 {
            Seen::First
        } else {
            Seen::Again { failures: message.deliveries - 1 }
        };
        let failures = match seen {
            Seen::First => 0,
            Seen::Again { failures } => failures,
            Seen::Late | Seen::Wrong => u32::MAX,
        };
        if seen == Seen::First {
            let latency = received.1.saturating_sub(stamp.visible_ns.max(stamp.due_ns));
            state.meter.record(meter::deliver(usize::from(message.priority)), latency);
        } else {
            state.meter.counts.redelivered += 1;
        }
        Ok(state.fates.draw(failures))
    }

    /// Notes why a call fails that is tried again.
    pub(super) fn trouble(&self, error: &ClientError) {
        let state = &mut *self.state.borrow_mut();
        if state.trouble.is_none() {
            state.last_trouble = Some(error.to_string());
            state.trouble.clone_from(&state.last_trouble);
        }
    }

    /// Notes that these leases are given back.
    pub(super) fn giving_back(&self, message: &Delivered) {
        let state = &mut *self.state.borrow_mut();
        if let (true, Ok(stamp)) = (state.verify, Stamp::read(&message.body)) {
            state.ledger(stamp.run, self.number).giving_back(stamp.number);
        }
    }

    /// Notes how an ack or a release was answered.
    pub(super) fn settled(&self, message: &Delivered, ack: bool, repeated: bool, outcome: Settled) {
        let now_ns = self.clock.now();
        let state = &mut *self.state.borrow_mut();
        match (outcome, ack) {
            (Settled::Ok, true) => state.meter.counts.acked += 1,
            (Settled::Ok, false) => state.meter.counts.released += 1,
            _ => state.meter.counts.stale += 1,
        }
        if let (true, Ok(stamp)) = (state.verify, Stamp::read(&message.body)) {
            let tried = SettleTry { number: stamp.number, deliveries: message.deliveries, ack, repeated };
            state.ledger(stamp.run, self.number).settled(tried, outcome, now_ns);
        }
    }
}

impl State {
    /// Counts a refused enqueue.
    pub(super) fn refused(&mut self, refusal: &Refusal) {
        self.meter.counts.refused += 1;
        let (count, _) = self.refusals.entry(refusal.code as u16).or_insert_with(|| (0, refusal.to_string()));
        *count += 1;
    }

    fn ledger(&mut self, run: u64, own: u64) -> &mut Ledger {
        if run == own { &mut self.own } else { self.others.entry(run).or_insert_with(|| Ledger::new(false)) }
    }

    /// Violations of all runs.
    pub(super) fn violations(&self) -> Violations {
        let mut all = self.own.violations.clone();
        for other in self.others.values() {
            for (broken, count) in &other.violations.counts {
                *all.counts.entry(*broken).or_default() += count;
            }
            all.told.extend(other.violations.told.iter().cloned());
        }
        all
    }
}
