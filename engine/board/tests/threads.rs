//! The board with real threads, and what readers learn of queues that come and go.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use overtake_base::random::Random;
use overtake_board::{Board, BoardLevel, BoardSummary};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// A summary all of whose numbers follow from `value`, so that a mixture of two is noticed.
fn summary(queue: u32, value: u64) -> BoardSummary {
    let levels = (0..value % 20).map(|i| BoardLevel {
        level: i as u8,
        visible: value + i,
        head_since_ms: value * 2 + i,
    });
    BoardSummary {
        queue,
        shard: 0,
        gone: false,
        version: value * 5,
        depth: value,
        body_bytes: value * 3,
        levels: levels.collect(),
    }
}

#[test]
fn readers_on_other_threads_see_whole_summaries_and_the_last_of_each() {
    const QUEUES: u32 = 3_000;
    let mut cores = Board::for_cores(3);
    let (mut writer, _) = cores.remove(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (_, mut reader) in cores {
            let done = &done;
            scope.spawn(move || {
                let mut last = BTreeMap::new();
                loop {
                    let finished = done.load(Ordering::Acquire);
                    reader.changed(|seen| {
                        assert_eq!(*seen, summary(seen.queue, seen.depth));
                        let before = last.insert(seen.queue, seen.depth);
                        assert!(before.is_none_or(|before| before <= seen.depth));
                    });
                    if finished {
                        break;
                    }
                }
                assert_eq!(last.len(), QUEUES as usize);
                assert!(last.iter().all(|(queue, value)| *value == 1_000_000 + u64::from(*queue)));
            });
        }
        let mut random = Random::new(1, "writer");
        for value in 0..200_000 {
            // Mostly few queues, so that readers meet writes.
            let range = if value % 10 == 0 { u64::from(QUEUES) } else { 4 };
            writer.publish(&summary(random.below(range) as u32, value)).unwrap();
        }
        for queue in 0..QUEUES {
            writer.publish(&summary(queue, 1_000_000 + u64::from(queue))).unwrap();
        }
        done.store(true, Ordering::Release);
    });
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u32, u64),
    Gone(u32),
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..12u32, 0..1_000u64).prop_map(|(queue, value)| Step::Publish(queue, value)),
        (0..12u32).prop_map(Step::Gone),
        Just(Step::Look),
    ]
}

proptest! {
    #[test]
    fn a_reader_ends_up_with_what_was_shown(steps in proptest::collection::vec(step(), 0..200)) {
        let mut cores = Board::for_cores(2);
        let (mut reader, mut writer) = (cores.remove(1).1, cores.remove(0).0);
        let (mut shown, mut seen) = (BTreeMap::new(), BTreeMap::new());
        for step in steps.into_iter().chain([Step::Look]) {
            match step {
                Step::Publish(queue, value) => {
                    shown.insert(queue, summary(queue, value));
                    writer.publish(&summary(queue, value)).unwrap();
                }
                Step::Gone(queue) => {
                    shown.remove(&queue);
                    writer.publish(&BoardSummary { queue, gone: true, ..Default::default() }).unwrap();
                }
                Step::Look => {
                    reader.changed(|summary| {
                        if summary.gone {
                            seen.remove(&summary.queue);
                        } else {
                            seen.insert(summary.queue, summary.clone());
                        }
                    });
                    prop_assert_eq!(&seen, &shown);
                }
            }
        }
    }
}

#[test]
fn a_core_does_not_read_its_own_summaries_and_nothing_is_seen_twice() {
    let mut cores = Board::for_cores(2);
    let (mut writer, mut own) = cores.remove(0);
    let (_, mut other) = cores.remove(0);
    writer.publish(&summary(1, 5)).unwrap();
    own.changed(|_| panic!("its own summary"));
    let mut count = 0;
    other.changed(|_| count += 1);
    other.changed(|_| count += 1);
    assert_eq!(count, 1);
}
