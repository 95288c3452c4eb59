//! Enqueue: dedup by key and id, limits, delays, cancel and purge.

use super::{QUEUE, START, Shard, message, strict};
use crate::answer::{Answer, CancelOutcome, EnqueueOutcome, ViewState};
use crate::command::{Command, NewMessage, RefusedReason, VisibleWhen};
use crate::machine::PeekFilter;
use overtake_base::{MessageId, QueueConfig, UnixMillis};

fn keyed(id: u128, key: &'static str) -> NewMessage {
    NewMessage { dedup_key: Some(key.into()), ..message(id, 0) }
}

fn client_made(id: u128) -> NewMessage {
    NewMessage { client_made_id: true, ..message(id, 0) }
}

fn duplicate(id: u128) -> EnqueueOutcome {
    EnqueueOutcome::Duplicate(MessageId(id))
}

#[test]
fn a_key_is_remembered_for_its_window_also_when_the_message_is_gone() {
    let mut shard = Shard::new(QueueConfig { dedup_window_s: 10, ..strict() });
    assert_eq!(shard.enqueue(vec![keyed(1, "a"), keyed(2, "a")]), [EnqueueOutcome::Stored, duplicate(1)]);
    let key = shard.lease(1)[0].key;
    shard.ack(key);
    shard.now += 9_999;
    // A repeat does not extend the window.
    assert_eq!(shard.enqueue(vec![keyed(3, "a")]), [duplicate(1)]);
    shard.now += 1;
    assert_eq!(shard.enqueue(vec![keyed(4, "a")]), [EnqueueOutcome::Stored]);
    assert_eq!(shard.machine.dedup_lookup(QUEUE, b"a", UnixMillis(0)), Some(MessageId(4)));
    assert_eq!(shard.stats().totals.enqueued, 2);
}

#[test]
fn the_key_decides_first_and_a_repeat_claims_nothing() {
    let mut shard = Shard::new(strict());
    shard.stored(vec![keyed(1, "a"), client_made(2)]);
    let both = NewMessage { dedup_key: Some("a".into()), ..client_made(2) };
    assert_eq!(shard.enqueue(vec![both]), [duplicate(1)]);
    let new_key = NewMessage { dedup_key: Some("b".into()), ..client_made(2) };
    assert_eq!(shard.enqueue(vec![new_key]), [duplicate(2)]);
    assert_eq!(shard.machine.dedup_lookup(QUEUE, b"b", UnixMillis(0)), None);
    let new_id = NewMessage { dedup_key: Some("a".into()), ..client_made(3) };
    assert_eq!(shard.enqueue(vec![new_id]), [duplicate(1)]);
    assert!(!shard.id_lookup(QUEUE, MessageId(3)));
}

#[test]
fn only_client_made_ids_are_remembered_after_the_message() {
    let mut shard = Shard::new(QueueConfig { dedup_window_s: 10, ..strict() });
    shard.stored(vec![message(1, 0), client_made(2)]);
    assert_eq!(shard.enqueue(vec![message(1, 0), client_made(2)]), [duplicate(1), duplicate(2)]);
    for delivery in shard.lease(2) {
        shard.ack(delivery.key);
    }
    assert_eq!(shard.enqueue(vec![message(1, 0), client_made(2)]), [EnqueueOutcome::Stored, duplicate(2)]);
    shard.now += 10_000;
    assert_eq!(shard.enqueue(vec![client_made(2)]), [EnqueueOutcome::Stored]);
}

#[test]
fn a_living_id_is_a_repeat_after_its_window_too() {
    let mut shard = Shard::new(QueueConfig { dedup_window_s: 1, max_deliveries: 1, ..strict() });
    shard.stored(vec![client_made(1)]);
    let key = shard.lease(1)[0].key;
    shard.release(key, None, None);
    assert_eq!(shard.stats().dead, 1);
    shard.pass(5_000);
    assert_eq!(shard.enqueue(vec![client_made(1)]), [duplicate(1)]);
    shard.one(Command::PurgeDeadLetters { queue: QUEUE });
    assert_eq!(shard.enqueue(vec![client_made(1)]), [EnqueueOutcome::Stored]);
}

#[test]
fn without_a_window_keys_are_off() {
    let mut shard = Shard::new(QueueConfig { dedup_window_s: 0, ..strict() });
    shard.stored(vec![keyed(1, "a"), keyed(2, "a")]);
}

#[test]
fn depth_is_never_exceeded_and_repeats_are_answered_before_it() {
    let mut shard = Shard::new(QueueConfig { max_depth: Some(2), ..strict() });
    let outcomes = shard.enqueue(vec![keyed(1, "a"), message(2, 0), message(3, 0), keyed(4, "a")]);
    let full = EnqueueOutcome::Refused(RefusedReason::Depth);
    assert_eq!(outcomes, [EnqueueOutcome::Stored, EnqueueOutcome::Stored, full, duplicate(1)]);
    // Leased messages count; acked ones do not.
    let key = shard.lease(1)[0].key;
    assert_eq!(shard.enqueue(vec![message(5, 0)]), [full]);
    shard.ack(key);
    shard.stored(vec![message(6, 0)]);
    assert_eq!(shard.stats().totals.refused, [2, 0, 0, 0, 0]);
}

#[test]
fn body_bytes_are_limited() {
    let mut shard = Shard::new(QueueConfig { max_bytes: Some(7), ..strict() });
    let refused = EnqueueOutcome::Refused(RefusedReason::Bytes);
    assert_eq!(shard.enqueue(vec![message(1, 0), message(2, 0)]), [EnqueueOutcome::Stored, refused]);
    let short = NewMessage { body: "abc".into(), ..message(3, 0) };
    shard.stored(vec![short]);
    assert_eq!(shard.machine.summary(QUEUE).unwrap().body_bytes, 7);
}

#[test]
fn a_delayed_message_becomes_visible_at_its_time_and_enters_the_tail() {
    let mut shard = Shard::new(strict());
    let at = |id, visible| NewMessage { visible, ..message(id, 0) };
    shard.stored(vec![
        at(1, VisibleWhen::AfterMs(500)),
        at(2, VisibleWhen::At(UnixMillis(START + 300))),
        at(3, VisibleWhen::At(UnixMillis(5))),
    ]);
    assert_eq!(shard.machine.next_deadline(), UnixMillis(START + 300));
    assert_eq!(shard.inspect(QUEUE, MessageId(1)).unwrap().sequence, None);
    shard.pass(299);
    assert_eq!((shard.total_visible(), shard.stats().delayed[0]), (1, 2));
    shard.pass(300);
    shard.stored(vec![message(4, 0)]);
    let deliveries = shard.lease(10);
    assert_eq!(deliveries.iter().map(|d| d.id.0).collect::<Vec<_>>(), [3, 2, 1, 4]);
    assert!(deliveries.is_sorted_by_key(|d| d.key.sequence));
    assert!(deliveries.iter().take(3).all(|d| d.enqueued_at == UnixMillis(START)));
}

#[test]
fn cancel_and_purge_take_what_is_not_leased() {
    let mut shard = Shard::new(strict());
    let late = NewMessage { visible: VisibleWhen::AfterMs(1_000), ..message(9, 4) };
    shard.stored(vec![message(1, 0), message(2, 0), message(3, 1), late]);
    shard.lease(1);
    let cancel = |shard: &mut Shard, id| shard.one(Command::Cancel { queue: QUEUE, id: MessageId(id) });
    assert_eq!(cancel(&mut shard, 1), Answer::Cancelled(CancelOutcome::Leased));
    assert_eq!(cancel(&mut shard, 2), Answer::Cancelled(CancelOutcome::Cancelled));
    assert_eq!(cancel(&mut shard, 2), Answer::Cancelled(CancelOutcome::NotFound));
    assert_eq!(shard.one(Command::Purge { queue: QUEUE }), Answer::Purged(2));
    let stats = shard.stats();
    assert_eq!((stats.totals.cancelled, stats.totals.purged, stats.leased[0]), (1, 2, 1));
}

#[test]
fn messages_are_peeked_in_pages_and_inspected_with_what_is_ahead() {
    let mut shard = Shard::new(strict());
    shard.stored((1..=300).map(|id| message(id, (id % 3) as u8)).collect());
    shard.lease(1);
    let all = PeekFilter { visible: true, delayed: true, leased: true, priority: None };
    let first = shard.peek(QUEUE, all, None, 200);
    let rest = shard.peek(QUEUE, all, Some(first[199].id), 200);
    assert!(first.iter().chain(&rest).map(|view| view.id.0).eq(1..=300));
    let leased = PeekFilter { visible: false, ..all };
    assert_eq!(shard.peek(QUEUE, leased, None, 10)[0].id, MessageId(3));
    // 100 of level 0, one of them leased; 250 is the 84th of level 1.
    let view = shard.inspect(QUEUE, MessageId(250)).unwrap();
    assert_eq!(view.state, ViewState::Visible { ahead: Some(99 + 83) });
    assert_eq!(shard.inspect(QUEUE, MessageId(999)), None);
}

#[test]
fn a_deleted_queue_is_gone_with_everything() {
    let mut shard = Shard::new(strict());
    shard.stored(vec![keyed(1, "a"), message(2, 1)]);
    shard.lease(1);
    assert!(shard.machine.oldest_live_index().is_some());
    assert_eq!(shard.one(Command::Delete { queue: QUEUE }), Answer::Done);
    assert_eq!(shard.one(Command::Purge { queue: QUEUE }), Answer::NoQueue);
    assert_eq!(shard.machine.next_deadline(), UnixMillis::NEVER);
    assert_eq!(shard.machine.oldest_live_index(), None);
    let mut changed = Vec::new();
    shard.machine.drain_changed(|id| changed.push(id));
    assert_eq!(changed, [QUEUE]);
    shard.configure(strict());
    shard.stored(vec![keyed(1, "a")]);
}

#[test]
fn an_old_version_of_a_configuration_is_ignored() {
    let mut shard = Shard::new(strict());
    let config = QueueConfig { lease_s: 99, ..strict() };
    shard.one(Command::Configure { queue: QUEUE, version: 1, config: config.clone() });
    assert_eq!(shard.machine.config(QUEUE), Some(&strict()));
    shard.one(Command::Configure { queue: QUEUE, version: 5, config: config.clone() });
    assert_eq!((shard.machine.config(QUEUE), shard.machine.queue_version(QUEUE)), (Some(&config), Some(5)));
}

#[test]
fn a_window_ends_at_the_time_asked_for_though_the_shard_stands_still() {
    let mut shard = Shard::new(QueueConfig { dedup_window_s: 5, ..strict() });
    shard.stored(vec![keyed(1, "k"), client_made(2)]);
    let by_key = |ms| shard.machine.dedup_lookup(QUEUE, b"k", shard.machine.time().plus_ms(ms));
    assert_eq!([0, 4_999, 5_000].map(by_key), [Some(MessageId(1)), Some(MessageId(1)), None]);
}
