//! The machine against a reference model: random plans of thousands of commands, everything that can be asked compared
//! after every batch.

#![expect(clippy::expect_used, reason = "what cannot be missing in a test's own helpers ends the test")]

mod comparison;
mod model;

use bytes::Bytes;
use comparison::plan::{Draft, Turn, draft, plan};
use comparison::resolve::run;
use comparison::{Pair, START};
use model::mutation::Mutation;
use overtake_base::queue_config::Starvation;
use overtake_base::{Level, MessageId, QueueConfig, QueueId};
use overtake_queue::answer::{Answer, SettleOutcome, Totals};
use overtake_queue::command::{Command, Lease, LevelChoice, NewMessage, VisibleWhen};
use overtake_queue::machine::ADVANCE_ITEMS_MAX;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// Cases of a test that does not say: enough to find a fault, in seconds. `PROPTEST_CASES` asks for more.
fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 4_000,
        ..ProptestConfig::with_cases(asked.unwrap_or(cases))
    }
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn machine_and_model_agree(first in draft(), turns in plan(700)) {
        prop_assert_eq!(run(&first, &turns, Mutation::None).err().map(PlainText), None);
    }

    /// Many short lives: most faults need few steps, and more configurations are tried.
    #[test]
    fn machine_and_model_agree_from_the_start(plans in prop::collection::vec((draft(), plan(25)), 8)) {
        for (first, turns) in plans {
            prop_assert_eq!(run(&first, &turns, Mutation::None).err().map(PlainText), None);
        }
    }
}

/// Shows a difference with its line breaks.
#[derive(PartialEq)]
struct PlainText(String);

impl core::fmt::Debug for PlainText {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same plans in every run of the tests.
fn fixed_plans(count: usize, turns: usize) -> Vec<(Draft, Vec<Turn>)> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config(1), rng);
    let strategy = (draft(), plan(turns));
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("nothing is filtered").current()).collect()
}

/// Every fault planted in the model is found: the comparison can fail.
#[test]
fn planted_faults_are_found() {
    let plans = fixed_plans(120, 120);
    let finds =
        |mutation: &Mutation| plans.iter().any(|(first, turns)| run(first, turns, *mutation).is_err());
    let unfound: Vec<Mutation> = Mutation::ALL.into_iter().filter(|mutation| !finds(mutation)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
    assert!(!finds(&Mutation::None));
}

/// Plans come to everything that is counted. Inversions come of planners' picks that pass over a level with a cap of its own.
#[test]
fn plans_reach_everything() {
    let (mut commands, mut messages, mut totals, mut cold) = (0, 0, Totals::default(), [0; 3]);
    for (first, turns) in fixed_plans(12, 700) {
        let reached = run(&first, &turns, Mutation::None).unwrap();
        commands += reached.commands;
        messages = messages.max(reached.messages);
        totals.add(&reached.totals);
        cold.iter_mut().zip(reached.cold).for_each(|(sum, more)| *sum += more);
    }
    println!("{commands} commands, {messages} messages, {cold:?} spilled, moved and thawed");
    assert!(cold.iter().all(|count| *count > 300), "{cold:?} spilled, moved and thawed");
    assert!(commands > 12 * 1_000, "{commands} commands");
    assert!(messages > 100, "at most {messages} messages");
    let counted = [
        totals.enqueued,
        totals.acked,
        totals.cancelled,
        totals.purged,
        totals.expired,
        totals.dead_lettered,
        totals.redriven,
        totals.deliveries,
        totals.share_deliveries,
        totals.lease_expirations,
        totals.releases,
        totals.stale_receipts,
        totals.starvation_events,
        totals.inversions,
    ];
    assert!(counted.into_iter().chain(totals.refused).all(|count| count > 0), "{totals:?}");
}

const A: QueueId = QueueId(1);
const B: QueueId = QueueId(2);

/// Messages of one kind, two hundred to a command.
fn messages(queue: QueueId, ids: core::ops::Range<usize>, ttl_ms: u64, visible: VisibleWhen) -> Vec<Command> {
    let message = |id: usize| NewMessage {
        id: MessageId(id as u128),
        client_made_id: false,
        priority: Level(0),
        visible,
        dedup_key: None,
        expires_in_ms: Some(ttl_ms),
        headers: Bytes::from(format!("message {id:08}")),
        body: Bytes::new(),
    };
    let chunks = ids.clone().step_by(200).map(|from| from..(from + 200).min(ids.end));
    chunks.map(|ids| Command::Enqueue { queue, messages: ids.map(message).collect() }).collect()
}

fn lease(queue: QueueId, max: usize) -> Command {
    let lease = Lease {
        max: max as u32,
        max_bytes: u64::MAX,
        lease_ms: Some(10_000),
        worker: None,
        choice: LevelChoice::UpTo(Level(0)),
    };
    Command::Lease { queue, lease }
}

/// More is due than one entry works off. What the machine has not come to, it does not believe either: all answers are
/// those of the model, which does everything at once; and a few ticks later nothing differs any more.
#[test]
fn what_an_entry_leaves_undone_is_not_believed() {
    let each = ADVANCE_ITEMS_MAX * 2 / 3;
    let mut pair = Pair::new(Mutation::None);
    let config = QueueConfig { starvation: Starvation::All(1_000_000), ..QueueConfig::with_defaults(1, 1) };
    let create = |queue| Command::Configure { queue, version: 1, config: config.clone() };
    pair.apply(START, vec![create(A), create(B)]).unwrap();
    let due = START.plus_ms(10_000);
    let leased = messages(A, 0..each, 1_000_000, VisibleWhen::Now);
    let delayed = messages(A, each..2 * each, 1_000_000, VisibleWhen::At(due));
    let expiring = messages(B, 2 * each..3 * each, 10_000, VisibleWhen::Now);
    let fresh = messages(B, 3 * each..3 * each + 1, 1_000_000, VisibleWhen::Now);
    for command in leased.into_iter().chain([lease(A, each)]).chain(delayed).chain(expiring).chain(fresh) {
        let (answers, expected) = pair.apply_only(START, &[command]).unwrap();
        assert_eq!(answers, expected);
    }
    let settle = Command::Settle { queue: A, ack: pair.keys.clone(), extend: vec![], release: vec![] };
    let (answers, expected) = pair.apply_only(due, &[settle, lease(B, 10)]).unwrap();
    assert_eq!(answers, expected);
    let [Answer::Settled { ack, .. }, Answer::Leased(deliveries)] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    assert!(ack.len() == each && ack.iter().all(|outcome| *outcome == SettleOutcome::Stale));
    assert_eq!(
        deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(),
        [MessageId(3 * each as u128)]
    );
    let mut ticks = 0;
    while pair.machine.next_deadline() <= due {
        pair.apply_only(due, &[]).unwrap();
        ticks += 1;
    }
    assert!((1..5).contains(&ticks), "{ticks} ticks");
    pair.compare().unwrap();
}

/// The work of a level is gone before its alert, but one entry comes to both: nothing was starved. The delivery in
/// between moved the alert, which the machine only learns when the old one goes off.
#[test]
fn work_that_ended_before_the_alert_was_not_starved() {
    let mut pair = Pair::new(Mutation::None);
    let config = QueueConfig { starvation: Starvation::All(5), ..QueueConfig::with_defaults(1, 1) };
    let mut commands = vec![Command::Configure { queue: A, version: 1, config }];
    commands.extend(messages(A, 0..1, 1_000_000, VisibleWhen::Now));
    commands.extend(messages(A, 1..2, 7_000, VisibleWhen::Now));
    pair.apply(START, commands).unwrap();
    pair.apply(START.plus_ms(4_000), vec![lease(A, 1)]).unwrap();
    let settle = Command::Settle { queue: A, ack: pair.keys.clone(), extend: vec![], release: vec![] };
    pair.apply(START.plus_ms(4_500), vec![settle]).unwrap();
    pair.apply(START.plus_ms(20_000), vec![]).unwrap();
    let totals = pair.machine.stats(A, pair.machine.time()).unwrap().totals;
    assert_eq!((totals.acked, totals.expired, totals.starvation_events), (1, 1, 0));
}
