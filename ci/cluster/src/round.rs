//! One fault under load, from beginning to verdict: how long the shards of the node that it was done to were away, and
//! whether any promise was broken.

use crate::fault::Fault;
use crate::judge::{self, Verdict};
use crate::load::{Load, Seen, Traffic};
use crate::nodes::{NODES, Nodes};
use crate::recorder::Recorder;
use overtake_e2e::time::{eventually, sleep_ms};
use overtake_wire::message::{ErrorCode, Response};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The load is under way for so long before anything goes wrong.
const BEFORE_MS: u64 = 1_000;
/// Far longer than anything may take.
const GIVE_UP: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// How a round goes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What is done.
    pub fault: Fault,
    /// To which node.
    pub node: usize,
    /// What clients do meanwhile.
    pub traffic: Traffic,
    /// How long it lasts at least, also where everything is back before.
    pub lasts: Duration,
}

impl Plan {
    /// A round that lasts until everything is back.
    #[must_use]
    pub const fn new(fault: Fault, node: usize, traffic: Traffic) -> Self {
        Self { fault, node, traffic, lasts: Duration::ZERO }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Round {
    /// Shards that the node led.
    pub led: BTreeSet<u16>,
    /// When each of them delivered a message again that was made after the fault; from its beginning, or from its end where
    /// nothing new can be taken before.
    pub back: BTreeMap<u16, Duration>,
    /// Whether the other nodes took over what the node led, as the fault wants it: what shows that it took hold.
    pub was_led_by_others: bool,
    /// What the checkers say.
    pub verdict: Verdict,
    /// Messages that nobody answered for.
    pub given_up: u64,
}

impl Round {
    /// Until the last shard was back, if it was.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        self.back.values().max().copied().filter(|_| self.missing().is_empty())
    }

    /// Shards that did not come back.
    #[must_use]
    pub fn missing(&self) -> Vec<u16> {
        self.led.iter().filter(|shard| !self.back.contains_key(shard)).copied().collect()
    }

    /// Fails where a promise was broken, and names all that were; where a shard did not come back; and where nobody
    /// noticed the fault.
    pub fn check(&self) {
        let violations = &self.verdict.violations;
        assert!(violations.is_empty(), "broken promises: {violations:#?}");
        assert_eq!(self.given_up, 0, "messages that nobody answered for");
        assert!(self.missing().is_empty(), "shards {:?} did not deliver again", self.missing());
        assert!(self.was_led_by_others, "the node led on as if nothing were wrong");
    }
}

/// Runs a round with a queue of its own.
#[must_use]
pub fn run(nodes: &mut Nodes, queue: &str, plan: Plan) -> Round {
    let Plan { fault, node, traffic, lasts } = plan;
    let recorder = Arc::new(Recorder::default());
    let told = judge::plan(queue, fault == Fault::DiskFull);
    judge::create(nodes.options(), &recorder, &told);
    let other = (node + 1) % NODES;
    eventually("the node to lead something", || {
        (!nodes.cluster.led_by(node, other).is_empty()).then_some(())
    });
    let (sender, seen) = channel();
    let load = Load::start(nodes.options(), recorder.clone(), queue, traffic, sender);
    sleep_ms(BEFORE_MS);
    load.check_alive();
    let led = nodes.cluster.led_by(node, other);
    let (begin, mut from_ns) = (Instant::now(), recorder.now_ns());
    fault.begin(nodes, node);
    let mut back = BTreeMap::new();
    if fault.is_survived() {
        back = wait_for(&led, from_ns, &seen);
    } else {
        wait_for_a_refusal(&recorder);
    }
    let mut was_led_by_others = !fault.moves_leaders();
    while !was_led_by_others && begin.elapsed() < GIVE_UP {
        was_led_by_others = nodes.cluster.leads(other)[node] == 0;
        std::thread::sleep(LOOK);
    }
    std::thread::sleep(lasts.saturating_sub(begin.elapsed()));
    if !fault.is_survived() {
        from_ns = recorder.now_ns();
    }
    fault.end(nodes, node);
    if !fault.is_survived() {
        back = wait_for(&led, from_ns, &seen);
    }
    load.check_alive();
    let given_up = load.finish();
    let verdict = judge::judge(nodes.options(), recorder, &told);
    Round { led, back, was_led_by_others, verdict, given_up }
}

/// Waits until each of these shards delivered something that was made after a time, and says how long after that time.
fn wait_for(shards: &BTreeSet<u16>, from_ns: u64, seen: &Receiver<Seen>) -> BTreeMap<u16, Duration> {
    let start = Instant::now();
    let mut back = BTreeMap::new();
    while back.len() < shards.len() && start.elapsed() < GIVE_UP {
        let Ok(Seen { shard, at_ns, made_ns }) = seen.recv_timeout(LOOK) else { continue };
        if made_ns > from_ns && shards.contains(&shard) {
            back.entry(shard).or_insert(Duration::from_nanos(at_ns - from_ns));
        }
    }
    back
}

fn wait_for_a_refusal(recorder: &Recorder) {
    let (start, mut looked) = (Instant::now(), 0);
    let refused = |looked: &mut usize| {
        recorder.look(|history| {
            let new = &history.calls[*looked..];
            let is_refusal = |call: &overtake_sim::history::Call| match call.answer() {
                Some((_, Response::Enqueued { results })) => {
                    results.iter().any(|result| result.as_ref().is_err_and(|r| r.code == ErrorCode::Disk))
                }
                _ => false,
            };
            // Answers of earlier calls may still come, so the last ones are looked at again.
            let found = new.iter().any(is_refusal);
            *looked = history.calls.len().saturating_sub(2_000);
            found
        })
    };
    while !refused(&mut looked) {
        assert!(start.elapsed() < 2 * GIVE_UP, "a full disk refused nothing");
        std::thread::sleep(LOOK);
    }
}
