//! The model alone, held against what the contract says of every history: whoever trusts the comparison trusts this.

use super::Model;
use super::mutation::Mutation;
use super::queue::Queue;
use bytes::Bytes;
use overtake_base::{Level, MessageId, QueueConfig, QueueId, Sequence, UnixMillis};
use overtake_queue::answer::{Answer, Delivery};
use overtake_queue::command::{
    Batch, Command, Lease, LeaseKey, LevelChoice, NewMessage, Redrive, RedriveSelection, Return, VisibleWhen,
};
use overtake_queue::entry::encode_batch;
use proptest::prelude::*;
use std::collections::BTreeSet;

const QUEUE: QueueId = QueueId(1);
const DEPTH_MAX: u64 = 20;

#[derive(Clone, Debug)]
enum Op {
    Enqueue { level: u8, delay_ms: u64, expires_in_ms: u64 },
    Lease { max: u32, lease_ms: u64 },
    Ack(usize),
    Release(usize, u64),
    Cancel(u128),
    Purge,
    Redrive,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..3, 0u64..900, 1u64..3_000).prop_map(|(level, delay_ms, expires_in_ms)| {
            Op::Enqueue { level, delay_ms: delay_ms.saturating_sub(500), expires_in_ms }
        }),
        4 => (1u32..4, 1u64..900).prop_map(|(max, lease_ms)| Op::Lease { max, lease_ms }),
        2 => (0usize..9).prop_map(Op::Ack),
        2 => (0usize..9, 0u64..300).prop_map(|(lease, delay_ms)| Op::Release(lease, delay_ms)),
        1 => (1u128..200).prop_map(Op::Cancel),
        1 => Just(Op::Purge),
        1 => Just(Op::Redrive),
    ]
}

fn command(op: &Op, made: &mut u128, given: &[LeaseKey]) -> Command {
    let key = |back: usize| given.iter().rev().nth(back).copied();
    let none = LeaseKey { sequence: Sequence(0), deliveries: 0 };
    let settle = |ack, release| Command::Settle { queue: QUEUE, ack, extend: Vec::new(), release };
    match *op {
        Op::Enqueue { level, delay_ms, expires_in_ms } => {
            *made += 1;
            let message = NewMessage {
                id: MessageId(*made),
                client_made_id: false,
                priority: Level(level),
                visible: VisibleWhen::AfterMs(delay_ms),
                dedup_key: None,
                expires_in_ms: Some(expires_in_ms),
                headers: Bytes::from(made.to_string()),
                body: Bytes::new(),
            };
            Command::Enqueue { queue: QUEUE, messages: vec![message] }
        }
        Op::Lease { max, lease_ms } => {
            let (lease_ms, choice) = (Some(lease_ms), LevelChoice::UpTo(Level(2)));
            let lease = Lease { max, max_bytes: u64::MAX, lease_ms, worker: None, choice };
            Command::Lease { queue: QUEUE, lease }
        }
        Op::Ack(back) => settle(vec![key(back).unwrap_or(none)], Vec::new()),
        Op::Release(back, delay_ms) => {
            let (key, delay_ms) = (key(back).unwrap_or(none), Some(delay_ms));
            settle(Vec::new(), vec![Return { key, delay_ms, error: None }])
        }
        Op::Cancel(id) => Command::Cancel { queue: QUEUE, id: MessageId(id) },
        Op::Purge => Command::Purge { queue: QUEUE },
        Op::Redrive => {
            let (selection, priority) = (RedriveSelection::All, None);
            Command::Redrive {
                queue: QUEUE,
                redrive: Redrive { selection, priority, rate_per_1000_s: None, room: None },
            }
        }
    }
}

/// What holds of a queue at any time.
fn check(queue: &Queue, now: UnixMillis) {
    let totals = &queue.totals;
    let gone = totals.acked + totals.cancelled + totals.purged + totals.expired;
    assert_eq!(totals.enqueued, queue.messages.len() as u64 + gone, "conservation");
    assert!(queue.depth() <= DEPTH_MAX, "depth");
    let ids: BTreeSet<MessageId> = queue.messages.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), queue.messages.len(), "an id is there once");
    let sequences: BTreeSet<_> = queue.messages.iter().filter_map(|message| message.sequence).collect();
    let placed = queue.messages.iter().filter(|message| message.sequence.is_some()).count();
    assert_eq!(sequences.len(), placed, "a sequence is there once");
    assert!(totals.dead_lettered - totals.redriven <= totals.enqueued, "dead letters");
    assert!(totals.deliveries >= totals.acked + totals.releases, "every ack and release had a delivery");
    assert_eq!(now.0 > 0, queue.version > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn the_model_keeps_the_contract(turns in prop::collection::vec((0u64..400, op()), 1..300)) {
        let config = QueueConfig {
            max_depth: Some(DEPTH_MAX), max_deliveries: 3, ..QueueConfig::with_defaults(3, 1)
        };
        let mut model = Model::new(Mutation::None);
        let (mut now, mut made, mut given) = (UnixMillis(1), 0, Vec::<LeaseKey>::new());
        let mut commands = vec![Command::Configure { queue: QUEUE, version: 1, config }];
        for (index, (ms, op)) in (1..).zip(&turns) {
            now = now.plus_ms(*ms);
            commands.push(command(op, &mut made, &given));
            let batch = Batch { time: now, commands: core::mem::take(&mut commands) };
            let mut entry = Vec::new();
            encode_batch(&batch, &mut entry);
            let in_order = lanes(&model);
            for answer in model.apply(index, &batch, &entry) {
                let Answer::Leased(deliveries) = answer else { continue };
                for Delivery { key, priority, lease_expires_at, .. } in &deliveries {
                    prop_assert!(!given.contains(key), "a lease is handed out once");
                    prop_assert!(*lease_expires_at > now);
                    let passed = |(level, sequence): &(Level, Sequence)| {
                        (*level, *sequence) < (*priority, key.sequence) && is_visible(&model, *sequence)
                    };
                    prop_assert!(!in_order.iter().any(passed), "something more urgent, or older, was passed over");
                    given.push(*key);
                }
            }
            check(&model.queues[&QUEUE], now);
        }
    }
}

/// What is visible, with its place.
fn lanes(model: &Model) -> Vec<(Level, Sequence)> {
    let messages = model.queues.get(&QUEUE).map_or([].as_slice(), |queue| &queue.messages);
    let visible = messages.iter().filter(|message| message.is_visible());
    visible.filter_map(|message| Some((message.level, message.sequence?))).collect()
}

fn is_visible(model: &Model, sequence: Sequence) -> bool {
    lanes(model).iter().any(|(_, visible)| *visible == sequence)
}
