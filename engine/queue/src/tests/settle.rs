//! Ends of leases: who may end one, where the message goes, and when it is too much.

use super::{QUEUE, START, Shard, message, strict};
use crate::answer::{SettleOutcome, ViewState};
use crate::command::{Command, Extension, LeaseKey, NewMessage};
use overtake_base::queue_config::Backoff;
use overtake_base::{Level, MessageId, QueueConfig, QueueId, Sequence, UnixMillis};

use SettleOutcome::{Ok, Stale, Unknown};

#[test]
fn each_receipt_has_its_own_answer() {
    let mut shard = Shard::new(strict());
    shard.stored((1..=4).map(|id| message(id, 0)).collect());
    let keys: Vec<LeaseKey> = shard.lease(4).iter().map(|d| d.key).collect();
    let newer = LeaseKey { deliveries: 2, ..keys[0] };
    let nobody = LeaseKey { sequence: Sequence(99), deliveries: 1 };
    let extend = vec![Extension { key: keys[2], lease_ms: 60_000 }, Extension { key: newer, lease_ms: 1 }];
    let release = vec![crate::command::Return { key: keys[3], delay_ms: None, error: None }];
    let outcomes = shard.settle(vec![keys[0], keys[1], newer, nobody], extend, release);
    assert_eq!(outcomes, [vec![Ok, Ok, Unknown, Unknown], vec![Ok, Unknown], vec![Ok]]);
    assert_eq!(shard.ack(keys[3]), Stale, "an older delivery's receipt");
    assert_eq!(shard.ack(LeaseKey { sequence: Sequence(0), deliveries: 0 }), Unknown);
    let leased = shard.inspect(QUEUE, MessageId(3)).unwrap().state;
    assert_eq!(leased, ViewState::Leased { expires_at: UnixMillis(START + 60_000), worker: None });
    assert_eq!(shard.stats().totals.stale_receipts, 1);
}

#[test]
fn another_queues_receipt_is_unknown() {
    let mut shard = Shard::new(strict());
    shard.one(Command::Configure { queue: QueueId(8), version: 1, config: strict() });
    shard.stored(vec![message(1, 0)]);
    let key = shard.lease(1)[0].key;
    let other = Command::Settle { queue: QueueId(8), ack: vec![key], extend: vec![], release: vec![] };
    let answer = shard.one(other);
    let unknown = crate::answer::Answer::Settled { ack: vec![Unknown], extend: vec![], release: vec![] };
    assert_eq!(answer, unknown);
    assert_eq!(shard.ack(key), Ok);
}

#[test]
fn an_expired_lease_returns_to_its_old_place() {
    let mut shard = Shard::new(strict());
    shard.stored((1..=4).map(|id| message(id, 0)).collect());
    let first = shard.lease(2);
    shard.now += 29_999;
    assert_eq!(shard.settle(vec![], vec![Extension { key: first[1].key, lease_ms: 1 }], vec![])[1], [Ok]);
    shard.pass(1);
    assert_eq!(shard.ack(first[0].key), Stale);
    let again = shard.lease(4);
    assert_eq!(again.iter().map(|d| d.id.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(again[0].key, LeaseKey { deliveries: 2, ..first[0].key });
    let totals = shard.stats().totals;
    assert_eq!((totals.lease_expirations, totals.stale_receipts), (2, 1));
}

#[test]
fn an_ack_at_the_very_expiry_is_too_late() {
    let mut shard = Shard::new(strict());
    shard.stored(vec![message(1, 0), message(2, 0)]);
    let keys: Vec<_> = shard.lease(2).iter().map(|d| d.key).collect();
    shard.now += 29_999;
    assert_eq!(shard.ack(keys[0]), Ok);
    shard.now += 1;
    assert_eq!(shard.ack(keys[1]), Stale);
}

#[test]
fn a_release_with_delay_waits_and_blocks_nobody() {
    let mut shard = Shard::new(strict());
    shard.stored((1..=3).map(|id| message(id, 0)).collect());
    let key = shard.lease(1)[0].key;
    shard.release(key, Some(5_000), Some("later"));
    assert_eq!(shard.stats().delayed[0], 1);
    assert_eq!(shard.ids(1), [2]);
    shard.pass(4_999);
    assert_eq!(shard.total_visible(), 1);
    shard.pass(1);
    assert_eq!(shard.ids(1), [1], "its old place is in front");
}

#[test]
fn backoff_delays_what_names_no_delay() {
    let backoff = Backoff { first_s: 1, factor_micro: 2_000_000, max_s: 3 };
    let mut shard = Shard::new(QueueConfig { backoff: Some(backoff), max_deliveries: 9, ..strict() });
    shard.stored(vec![message(1, 0)]);
    for wait_ms in [1_000, 2_000, 3_000, 3_000] {
        let key = shard.lease(1)[0].key;
        shard.release(key, None, None);
        assert_eq!(shard.machine.next_deadline(), UnixMillis(shard.now + wait_ms));
        shard.pass(wait_ms);
    }
    let key = shard.lease(1)[0].key;
    shard.release(key, Some(0), None);
    assert_eq!(shard.total_visible(), 1, "a delay that is named goes first, also none");
}

#[test]
fn too_many_failures_make_a_dead_letter_with_its_story() {
    let mut shard = Shard::new(QueueConfig { max_deliveries: 3, ..strict() });
    shard.stored(vec![message(1, 2)]);
    let key = shard.lease(1)[0].key;
    shard.release(key, None, Some("broken"));
    shard.lease(1);
    shard.pass(30_000);
    let key = shard.lease(1)[0].key;
    shard.release(key, None, None);
    assert_eq!(shard.ack(key), Unknown, "a dead letter is not in the queue any more");
    let dead = shard.machine.dead_letters(QUEUE, None, 10).remove(0);
    assert_eq!((dead.id, dead.priority, dead.deliveries), (MessageId(1), Level(2), 3));
    assert_eq!(&*dead.last_error, "broken", "the last text given");
    let story: Vec<_> = dead.history.iter().map(|(at, what)| (at.0 - START, &**what)).collect();
    assert_eq!(story, [(0, "broken"), (30_000, "lease expired"), (30_000, "released")]);
    assert_eq!((shard.stats().dead, shard.stats().totals.dead_lettered), (1, 1));
    let view = shard.inspect(QUEUE, MessageId(1)).unwrap();
    assert_eq!((view.state, view.last_error.as_deref()), (ViewState::Dead, Some("broken")));
}

#[test]
fn a_look_by_id_tells_why_the_last_delivery_failed() {
    let mut shard = Shard::new(strict());
    shard.stored(vec![message(1, 0)]);
    let error = |shard: &Shard| shard.inspect(QUEUE, MessageId(1)).unwrap().last_error;
    assert_eq!(error(&shard), None, "nothing failed yet");
    shard.lease(1);
    shard.pass(30_000);
    assert_eq!(error(&shard).as_deref(), Some("lease expired"));
    let key = shard.lease(1)[0].key;
    shard.release(key, Some(5_000), Some("mail server away"));
    assert_eq!(error(&shard).as_deref(), Some("mail server away"));
}

#[test]
fn history_keeps_the_last_ten_and_errors_are_cut() {
    let mut shard = Shard::new(QueueConfig { max_deliveries: 12, ..strict() });
    shard.stored(vec![message(1, 0)]);
    let long = "é".repeat(3_000);
    for n in 0..12 {
        shard.now += 1;
        let key = shard.lease(1)[0].key;
        shard.release(key, None, Some(if n == 11 { &long } else { "x" }));
    }
    let dead = shard.machine.dead_letters(QUEUE, None, 10).remove(0);
    assert_eq!(dead.history.len(), 10);
    assert_eq!(dead.history[0].0, UnixMillis(START + 3));
    assert_eq!(dead.last_error.len(), 4_096);
}

#[test]
fn a_message_that_dies_by_expiry_says_so() {
    let mut shard = Shard::new(QueueConfig { max_deliveries: 1, ..strict() });
    shard.stored(vec![message(1, 0)]);
    shard.lease(1);
    shard.pass(30_000);
    assert_eq!(&*shard.machine.dead_letters(QUEUE, None, 1)[0].last_error, "lease expired");
}

#[test]
fn a_leased_message_can_be_acked_after_its_time_but_not_come_back() {
    let mut shard = Shard::new(QueueConfig { lease_s: 100, ..strict() });
    let short = |id| NewMessage { expires_in_ms: Some(1_000), ..message(id, 0) };
    shard.stored(vec![short(1), short(2), short(3)]);
    let keys: Vec<_> = shard.lease(3).iter().map(|d| d.key).collect();
    shard.pass(2_000);
    assert_eq!(shard.ack(keys[0]), Ok);
    shard.release(keys[1], None, None);
    shard.one(Command::Unlease { queue: QUEUE, leases: vec![keys[2]] });
    let stats = shard.stats();
    assert_eq!((stats.totals.acked, stats.totals.expired), (1, 2));
}

#[test]
fn a_queue_can_keep_what_expires() {
    let mut shard = Shard::new(QueueConfig { dead_letter_expired: true, retention_s: 5, ..strict() });
    shard.stored(vec![message(1, 0), message(2, 0)]);
    let key = shard.lease(1)[0].key;
    shard.release(key, Some(60_000), None);
    shard.pass(5_000);
    let dead = shard.machine.dead_letters(QUEUE, None, 10);
    assert!(dead.iter().all(|dead| &*dead.last_error == "expired"));
    assert_eq!((dead.len(), shard.stats().totals.dead_lettered, shard.stats().totals.expired), (2, 2, 0));
}
