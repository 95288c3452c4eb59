//! Brings a recorded run to the simulator's good end, on real nodes, and has its checkers judge all of it.
//!
//! Nothing here depends on how fast the machine is: the checkers hold time limits only against nodes that are known to
//! be well, which ours never are; what shard time alone says (leases, delays) is held exactly.

use crate::load::LEASE_S;
use crate::nodes::SHARDS;
use crate::recorder::Recorder;
use overtake_base::QueueConfigPatch;
use overtake_client::{Client, ClientError, ConnectOptions};
use overtake_sim::checkers::{self, Violation};
use overtake_sim::ending::{self, Driver};
use overtake_sim::history::History;
use overtake_sim::run::Stopped;
use overtake_sim::swarm::{FaultPlan, QueuePlan, Swarm};
use overtake_wire::message::{Request, Response, Settled};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Levels of the queue.
const LEVELS: u8 = 5;
/// So many that no fault makes a message die.
const MAX_DELIVERIES: u32 = 1_000;
const DEDUP_WINDOW_S: u64 = 600;
/// A question of the end is repeated for so long: a node may just have come back.
const GIVE_UP: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// What the checkers are told of a run beforehand: one queue over all shards.
#[must_use]
pub fn plan(queue: &str, disk_may_fill: bool) -> Swarm {
    let queue = QueuePlan {
        patch: Some(QueueConfigPatch {
            levels: Some(Some(LEVELS)),
            lease_s: Some(Some(LEASE_S)),
            max_deliveries: Some(Some(MAX_DELIVERIES)),
            dedup_window_s: Some(Some(DEDUP_WINDOW_S)),
            ..QueueConfigPatch::default()
        }),
        levels: LEVELS,
        max_deliveries: MAX_DELIVERIES,
        lease_s: LEASE_S,
        dedup_window_ms: DEDUP_WINDOW_S * 1_000,
        ..QueuePlan::by_itself(queue.to_owned(), SHARDS)
    };
    // What a seed draws for things that our clients do not do must not excuse anything.
    let mut plan = Swarm::of_seed(0);
    plan.faults = FaultPlan { disk_full_ms: u64::from(disk_may_fill), ..FaultPlan::default() };
    plan.shape.enqueue_per_s = None;
    plan.messages.expiry_ppm = 0;
    plan.work.cancel_receive_ppm = 0;
    plan.rests_long = false;
    plan.queues = vec![queue];
    plan
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// Messages whose enqueue was answered as stored.
    pub answered: u64,
    /// Enqueues of one message that were of unknown fate, and so repeated.
    pub unknown: u64,
    /// Messages refused for a full disk.
    pub refused: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Deliveries of messages that were delivered before, each after its lease was over or given back, or a violation.
    pub again: u64,
    /// Acks answered ok.
    pub acked: u64,
}

impl Verdict {
    /// Messages that were answered and are lost, or were there after their end.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.violations.iter().filter(|violation| violation.checker == "fate").count()
    }

    /// Messages that were delivered twice without cause, or by a receipt that was not the current one.
    #[must_use]
    pub fn doubled(&self) -> usize {
        self.violations.iter().filter(|violation| matches!(violation.checker, "leases" | "dedup")).count()
    }

    /// Adds what came of another run.
    pub fn add(&mut self, mut other: Self) {
        self.violations.append(&mut other.violations);
        self.answered += other.answered;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.delivered += other.delivered;
        self.again += other.again;
        self.acked += other.acked;
    }
}

/// Creates the plan's queue.
///
/// # Panics
/// Where the servers refuse it.
pub fn create(options: ConnectOptions, recorder: &Arc<Recorder>, plan: &Swarm) {
    let queue = &plan.queues[0];
    let request =
        Request::PutQueue { queue: queue.name.clone(), patch: queue.patch.clone().expect("a planned one") };
    let created = Auditor::new(options, recorder, plan).ask_patiently(&request);
    assert!(matches!(created, Ok(Response::QueuePut { .. })), "{created:?}");
}

/// Drains what is left, on nodes that are all well, and judges the whole history.
#[must_use]
pub fn judge(options: ConnectOptions, recorder: Arc<Recorder>, plan: &Swarm) -> Verdict {
    let mut auditor = Auditor::new(options, &recorder, plan);
    let ended = ending::come_to_an_end(&mut auditor);
    drop(auditor);
    let clocks = recorder.clocks();
    let history = Arc::into_inner(recorder).expect("nobody writes any more").into_history();
    let mut verdict = count(&history);
    let end = match ended {
        Ok(end) => Some(end),
        Err(Stopped::Broken(detail)) => {
            verdict.violations.push(Violation::new("liveness", detail));
            None
        }
        Err(Stopped::Damaged) => None,
    };
    verdict.violations.extend(checkers::check(plan, &history, &clocks, end.as_ref()));
    verdict
}

fn count(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let mut deliveries = BTreeMap::new();
    for call in &history.calls {
        match (&call.request, call.answer().map(|(_, response)| response)) {
            (_, Some(Response::Enqueued { results })) => {
                let errors = || results.iter().filter_map(|result| result.as_ref().err());
                verdict.answered += results.iter().flatten().count() as u64;
                verdict.unknown += errors().filter(|refusal| refusal.stored_unknown).count() as u64;
                verdict.refused += errors()
                    .filter(|refusal| refusal.code == overtake_wire::message::ErrorCode::Disk)
                    .count() as u64;
            }
            (Request::Enqueue { messages, .. }, None) => verdict.unknown += messages.len() as u64,
            (_, Some(Response::Received { messages })) => {
                for message in messages {
                    verdict.delivered += 1;
                    let before = deliveries.entry(message.id).or_insert(0_u64);
                    verdict.again += u64::from(*before > 0);
                    *before += 1;
                }
            }
            (_, Some(Response::Settled { ack, .. })) => {
                verdict.acked += ack.iter().filter(|settled| **settled == Settled::Ok).count() as u64;
            }
            _ => {}
        }
    }
    verdict
}

/// Whoever looks after the end: the simulator's own end, on real nodes.
struct Auditor<'a> {
    options: ConnectOptions,
    recorder: &'a Arc<Recorder>,
    plan: &'a Swarm,
    runtime: tokio::runtime::Runtime,
    client: Option<Client>,
    /// Time that was waited for. What answers take is not in it: a busy machine is no broken promise.
    waited_ns: u64,
    next_ns: u64,
}

impl<'a> Auditor<'a> {
    fn new(options: ConnectOptions, recorder: &'a Arc<Recorder>, plan: &'a Swarm) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { options, recorder, plan, runtime, client: None, waited_ns: 0, next_ns: 0 }
    }

    fn ask_patiently(&mut self, request: &Request) -> Result<Response, ClientError> {
        let (recorder, options) = (self.recorder, &self.options);
        let (runtime, client) = (&self.runtime, &mut self.client);
        runtime.block_on(async {
            let start = Instant::now();
            loop {
                let asked = match client {
                    Some(client) => recorder.ask(client, request.clone(), Vec::new()).await,
                    None => match Client::connect(options.clone()).await {
                        Ok(connected) => {
                            *client = Some(connected);
                            continue;
                        }
                        Err(error) => Err(error),
                    },
                };
                match asked {
                    Err(error) if error.passes() && start.elapsed() < GIVE_UP => {
                        tokio::time::sleep(PAUSE.max(error.retry_after())).await;
                    }
                    outcome => return outcome,
                }
            }
        })
    }
}

impl Drop for Auditor<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.runtime.block_on(client.close());
        }
    }
}

impl Driver for Auditor<'_> {
    fn plan(&self) -> &Swarm {
        self.plan
    }

    fn time_ns(&self) -> u64 {
        self.waited_ns
    }

    fn end_begins(&mut self) {
        self.recorder.end_begins();
    }

    fn is_calm(&self) -> bool {
        true
    }

    /// The clients have ended.
    fn open(&self) -> usize {
        0
    }

    fn look_after(&mut self, after_ns: u64) {
        self.next_ns = after_ns;
    }

    fn step(&mut self) -> Result<bool, Stopped> {
        std::thread::sleep(Duration::from_nanos(self.next_ns));
        self.waited_ns += self.next_ns;
        Ok(true)
    }

    fn ask(&mut self, _queue: usize, request: Request) -> Result<Response, Stopped> {
        match self.ask_patiently(&request) {
            Ok(response) => Ok(response),
            Err(ClientError::Refused(refusal)) => Ok(Response::Refused(refusal)),
            Err(error) => Err(format!("at the end, on nodes that are all ready: {error}").into()),
        }
    }

    /// What a node came upon is repaired before the end begins.
    fn gave_up(&self) -> bool {
        false
    }

    fn auditor_leaves(&mut self) {
        if let Some(client) = self.client.take() {
            self.runtime.block_on(client.close());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_base::{MessageId, Receipt, UnixMillis};
    use overtake_sim::ending::{End, QueueEnd};
    use overtake_sim::history::{Outcome, client_id, content};
    use overtake_wire::message::{Delivered, EnqueueMessage, Enqueued, Receive, Settle, Stats, Totals};

    const SECOND_NS: u64 = 1_000_000_000;

    /// A queue of one message, whose story is told step by step.
    struct Story {
        recorder: Recorder,
        at_ns: u64,
        wall_ms: u64,
        id: MessageId,
        totals: Totals,
    }

    impl Story {
        fn new() -> Self {
            let recorder = Recorder::default();
            let clocks = recorder.clocks();
            let wall_ms = clocks.low(0).0.midpoint(clocks.high(0).0);
            let id = client_id(0, UnixMillis(wall_ms));
            let (headers, body) = content(0, 20, false, false);
            recorder.make(|_| EnqueueMessage { id: Some(id), headers, body, ..EnqueueMessage::default() });
            let mut story = Self { recorder, at_ns: SECOND_NS, wall_ms, id, totals: Totals::default() };
            let request = Request::Enqueue { queue: "q".into(), messages: story.recorder.made(&[0]) };
            let enqueued = Enqueued { id, shard: 0, duplicate: false };
            story.call(request, vec![0], Response::Enqueued { results: vec![Ok(enqueued)] });
            story.totals.enqueued = 1;
            story
        }

        fn call(&mut self, request: Request, numbers: Vec<u64>, response: Response) {
            let at_ns = self.at_ns;
            self.at_ns += SECOND_NS;
            self.recorder.change(|history| {
                let call = history.ask(0, 0, at_ns, request, numbers);
                history.calls[call].outcome = Outcome::Answered(at_ns + SECOND_NS / 2, response);
            });
        }

        fn deliver(mut self, deliveries: u32, leased_after_ms: u64) -> Self {
            let made = self.recorder.made(&[0]).remove(0);
            let receipt = format!("r_0_1_{deliveries}").parse::<Receipt>().unwrap();
            let leased_at = self.wall_ms + leased_after_ms;
            let message = Delivered {
                id: self.id,
                priority: 0,
                receipt,
                deliveries,
                enqueued_at: UnixMillis(self.wall_ms + 1_000),
                lease_expires_at: UnixMillis(leased_at + u64::from(LEASE_S) * 1_000),
                headers: made.headers,
                share: false,
                body: made.body,
            };
            let receive = Receive { lease_s: Some(LEASE_S), ..Receive::new("q") };
            self.call(Request::Receive(receive), Vec::new(), Response::Received { messages: vec![message] });
            self.totals.deliveries += 1;
            self
        }

        fn ack(mut self, deliveries: u32) -> Self {
            let ack = vec![format!("r_0_1_{deliveries}")];
            let settle = Settle { queue: "q".into(), ack, ..Settle::default() };
            let response = Response::Settled { ack: vec![Settled::Ok], extend: vec![], release: vec![] };
            self.call(Request::Settle(settle), Vec::new(), response);
            self.totals.acked += 1;
            self
        }

        /// What the checkers say where nothing is left.
        fn end(self) -> Vec<String> {
            let zero = vec![0; usize::from(LEVELS)];
            let stats = Stats {
                visible: zero.clone(),
                delayed: zero.clone(),
                leased: zero,
                dlq: 0,
                oldest_age_ms: vec![None; usize::from(LEVELS)],
                wait_ms: vec![None; usize::from(LEVELS)],
                totals: self.totals,
                workers: Vec::new(),
            };
            let (drained, dead) = (Vec::new(), Vec::new());
            let end = QueueEnd { quiet: stats.clone(), drained, lost_leases: 0, dead, after: stats };
            let end = End { queues: vec![Some(end)] };
            let (plan, clocks) = (plan("q", false), self.recorder.clocks());
            let found = checkers::check(&plan, &self.recorder.into_history(), &clocks, Some(&end));
            found
                .into_iter()
                .map(|violation| format!("{}: {}", violation.checker, violation.detail))
                .collect()
        }
    }

    fn tells(found: &[String], checker: &str, what: &str) -> bool {
        found.iter().any(|violation| violation.starts_with(checker) && violation.contains(what))
    }

    #[test]
    fn a_message_that_is_delivered_and_acked_breaks_nothing() {
        assert_eq!(Story::new().deliver(1, 2_000).ack(1).end(), Vec::<String>::new());
        // A lease that ran out.
        assert_eq!(Story::new().deliver(1, 2_000).deliver(2, 4_000).ack(2).end(), Vec::<String>::new());
    }

    #[test]
    fn what_is_lost_is_told() {
        let mut story = Story::new();
        story.totals.expired = 1;
        assert!(tells(&story.end(), "fate", "was accepted and is lost"));
    }

    #[test]
    fn what_comes_twice_while_it_is_leased_is_told() {
        let found = Story::new().deliver(1, 2_000).deliver(2, 3_999).ack(2).end();
        assert!(tells(&found, "leases", "but delivered again"), "{found:?}");
    }

    #[test]
    fn what_comes_after_its_ack_is_told() {
        let found = Story::new().deliver(1, 2_000).ack(1).deliver(2, 4_500).end();
        assert!(tells(&found, "fate", "was delivered after its ack"), "{found:?}");
    }

    #[test]
    fn a_clock_that_jumped_with_its_node_is_told() {
        let found = Story::new().deliver(1, 3_600_000).ack(1).end();
        assert!(tells(&found, "leases", "was leased at"), "{found:?}");
    }

    #[test]
    fn a_number_that_is_not_counted_is_told() {
        let mut story = Story::new().deliver(1, 2_000).ack(1);
        story.totals.acked = 0;
        assert!(!story.end().is_empty());
    }

    #[test]
    fn what_nobody_made_is_told() {
        let mut story = Story::new();
        let receipt = "r_0_1_1".parse::<Receipt>().unwrap();
        let (headers, body) = content(7, 20, false, false);
        let stranger = Delivered {
            id: MessageId::new(story.wall_ms, 5),
            priority: 0,
            receipt,
            deliveries: 1,
            enqueued_at: UnixMillis(story.wall_ms),
            lease_expires_at: UnixMillis(story.wall_ms + 4_000),
            headers,
            share: false,
            body,
        };
        let response = Response::Received { messages: vec![stranger] };
        story.call(Request::Receive(Receive::new("q")), Vec::new(), response);
        assert!(tells(&story.end(), "content", "was never made"));
    }
}
