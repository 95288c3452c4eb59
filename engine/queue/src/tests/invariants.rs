//! Random histories: whatever happens, every message is somewhere, ticks come when they should, and a machine that was
//! restored on the way goes on like the one that was not.

use super::{QUEUE, SHARD_TIME, Shard, assert_conserved, message};
use crate::answer::Answer;
use crate::command::*;
use crate::machine::Machine;
use overtake_base::queue_config::{Backoff, RateCaps, Scheduling, Starvation};
use overtake_base::{Level, MessageId, QueueConfig, ShardId, UnixMillis};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Enqueue { id: u128, level: u8, delay_ms: u64, ttl_ms: Option<u64>, key: Option<u8> },
    Lease { max: u32, choice: u8, level: u8 },
    Settle { pick: usize, how: u8, delay_ms: Option<u64> },
    Redrive { rate: Option<u64>, level: Option<u8> },
    Cancel { id: u128 },
    Purge { dead: bool },
    Pass { ms: u64 },
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    let delay = prop_oneof![Just(0u64), 1u64..5_000];
    prop_oneof![
        6 => (0u128..60, 0u8..5, delay.clone(), prop::option::of(1u64..9_000), prop::option::weighted(0.2, 0u8..8))
            .prop_map(|(id, level, delay_ms, ttl_ms, key)| Step::Enqueue { id, level, delay_ms, ttl_ms, key }),
        4 => (1u32..6, 0u8..4, 0u8..5).prop_map(|(max, choice, level)| Step::Lease { max, choice, level }),
        5 => (any::<usize>(), 0u8..5, prop::option::of(delay))
            .prop_map(|(pick, how, delay_ms)| Step::Settle { pick, how, delay_ms }),
        1 => (prop::option::of(0u64..9_000), prop::option::of(0u8..5))
            .prop_map(|(rate, level)| Step::Redrive { rate, level }),
        1 => (0u128..60).prop_map(|id| Step::Cancel { id }),
        1 => any::<bool>().prop_map(|dead| Step::Purge { dead }),
        4 => prop_oneof![0u64..50, 0u64..4_000, 0u64..40_000].prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Restore),
    ]
}

fn config() -> impl Strategy<Value = QueueConfig> {
    (0u8..3, prop::option::of(3u64..12), any::<bool>(), any::<bool>(), prop::option::of(0u64..5)).prop_map(
        |(mode, max_depth, dead_letter_expired, backoff, cap)| QueueConfig {
            scheduling: [Scheduling::Weighted, Scheduling::Strict, Scheduling::Aging][usize::from(mode)],
            aging_s: 2,
            max_deliveries: 2,
            lease_s: 3,
            dedup_window_s: 4,
            retention_s: 15,
            max_depth,
            dead_letter_expired,
            backoff: backoff.then_some(Backoff { first_s: 1, factor_micro: 3_000_000, max_s: 5 }),
            starvation: Starvation::All(6),
            rate_caps: RateCaps { queue: cap, ..RateCaps::default() },
            ..QueueConfig::with_defaults(5, 1)
        },
    )
}

impl Shard {
    fn step(&mut self, step: &Step, leases: &mut Vec<LeaseKey>) -> Vec<Answer> {
        let command = match step.clone() {
            Step::Enqueue { id, level, delay_ms, ttl_ms, key } => Command::Enqueue {
                queue: QUEUE,
                messages: vec![NewMessage {
                    visible: VisibleWhen::AfterMs(delay_ms),
                    expires_in_ms: ttl_ms,
                    dedup_key: key.map(|key| vec![key].into()),
                    client_made_id: id % 2 == 0,
                    ..message(id, level)
                }],
            },
            Step::Lease { max, choice, level } => {
                let choice = match choice {
                    0 => LevelChoice::Scheduled,
                    1 => LevelChoice::UpTo(Level(level)),
                    _ => {
                        LevelChoice::Picks(vec![Pick { level: Level(level), count: max, share: choice == 2 }])
                    }
                };
                let worker = (level > 2).then(|| "w".into());
                Command::Lease {
                    queue: QUEUE,
                    lease: Lease { max, max_bytes: 30, lease_ms: None, worker, choice },
                }
            }
            Step::Settle { pick, how, delay_ms } => {
                if leases.is_empty() {
                    return Vec::new();
                }
                let key = leases[pick % leases.len()];
                match how {
                    0 => Command::Unlease { queue: QUEUE, leases: vec![key] },
                    1 => settle(|settle| settle.0.push(key)),
                    2 => settle(|settle| {
                        settle.1.push(Extension { key, lease_ms: delay_ms.unwrap_or(1).max(1) });
                    }),
                    _ => settle(|settle| {
                        let error = (how == 3).then(|| "text".into());
                        settle.2.push(Return { key, delay_ms, error });
                    }),
                }
            }
            Step::Redrive { rate, level } => {
                let redrive = Redrive {
                    selection: RedriveSelection::All,
                    priority: level.map(Level),
                    rate_per_1000_s: rate,
                };
                Command::Redrive { queue: QUEUE, redrive }
            }
            Step::Cancel { id } => Command::Cancel { queue: QUEUE, id: MessageId(id) },
            Step::Purge { dead: true } => Command::PurgeDeadLetters { queue: QUEUE },
            Step::Purge { dead: false } => Command::Purge { queue: QUEUE },
            Step::Pass { .. } | Step::Restore => return Vec::new(),
        };
        let answers = self.apply(vec![command]);
        for answer in &answers {
            if let Answer::Leased(deliveries) = answer {
                leases.extend(deliveries.iter().map(|delivery| delivery.key));
            }
        }
        answers
    }

    fn restored(&self) -> Machine {
        let mut bytes = Vec::new();
        self.machine.snapshot(&mut bytes);
        let restored = Machine::restore(ShardId(3), &bytes).unwrap();
        assert_eq!(restored.digest(), self.machine.digest());
        assert_eq!(restored.next_deadline(), self.machine.next_deadline());
        assert_eq!(restored.oldest_live_index(), self.machine.oldest_live_index());
        restored
    }
}

type SettleLists = (Vec<LeaseKey>, Vec<Extension>, Vec<Return>);

fn settle(fill: impl FnOnce(&mut SettleLists)) -> Command {
    let mut lists = SettleLists::default();
    fill(&mut lists);
    Command::Settle { queue: QUEUE, ack: lists.0, extend: lists.1, release: lists.2 }
}

/// What ticks may change: counts and messages. Windows that end change nothing by themselves.
fn seen(machine: &Machine) -> (crate::answer::QueueStats, Option<crate::answer::Summary>) {
    let mut stats = machine.stats(QUEUE, SHARD_TIME).unwrap();
    stats.waits.clear();
    (stats, machine.summary(QUEUE))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn histories(config in config(), steps in prop::collection::vec(step(), 1..120)) {
        let max_depth = config.max_depth.unwrap_or(u64::MAX);
        // A ceiling keeps a receive from what has aged below it; without one nothing is passed over.
        let aging = config.scheduling == Scheduling::Aging;
        let (mut one, mut two) = (Shard::new(config.clone()), Shard::new(config));
        let (mut leases, mut leases_of_two) = (Vec::new(), Vec::new());
        for step in &steps {
            match step {
                Step::Pass { ms } => {
                    let end = one.now + ms;
                    // Nothing happens before the deadline, something does at it.
                    while one.machine.next_deadline() <= UnixMillis(end) {
                        let deadline = one.machine.next_deadline().0.max(one.now);
                        if deadline > one.now + 1 {
                            let before = seen(&one.machine);
                            one.pass(deadline - 1 - one.now);
                            two.now = one.now;
                            two.apply(Vec::new());
                            prop_assert_eq!(&before, &seen(&one.machine));
                        }
                        let before = seen(&one.machine);
                        one.pass(deadline - one.now);
                        two.now = one.now;
                        two.apply(Vec::new());
                        prop_assert_ne!(before, seen(&one.machine));
                    }
                    one.pass(end - one.now);
                    two.now = one.now;
                    two.apply(Vec::new());
                }
                Step::Restore => two.machine = two.restored(),
                step => {
                    let answers = one.step(step, &mut leases);
                    prop_assert_eq!(&answers, &two.step(step, &mut leases_of_two));
                }
            }
            let stats = one.machine.stats(QUEUE, SHARD_TIME).unwrap();
            assert_conserved(&stats);
            prop_assert_eq!(&stats, &two.machine.stats(QUEUE, SHARD_TIME).unwrap());
            prop_assert_eq!(one.machine.digest(), two.machine.digest());
            prop_assert_eq!(one.machine.next_deadline(), two.machine.next_deadline());
            prop_assert!(one.machine.summary(QUEUE).unwrap().depth <= max_depth);
            if !aging {
                prop_assert_eq!(stats.totals.inversions, 0);
            }
        }
    }
}
