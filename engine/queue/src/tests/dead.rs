//! Redrives: at once, with a rate, with and without room; and deleting dead letters.

use super::{QUEUE, Shard, message, strict};
use crate::answer::{Answer, EnqueueOutcome};
use crate::command::{Command, Redrive, RedriveSelection};
use overtake_base::{Level, MessageId, QueueConfig, UnixMillis};

/// A queue with dead letters 1..=count, of levels 0, 1, 2, 0, 1, …
fn with_dead(count: u128, config: QueueConfig) -> Shard {
    let mut shard = Shard::new(QueueConfig { max_deliveries: 1, ..config });
    for id in 1..=count {
        shard.stored(vec![message(id, ((id - 1) % 3) as u8)]);
        let key = shard.lease(1)[0].key;
        shard.release(key, None, Some("no"));
    }
    assert_eq!(shard.stats().dead, count as u64);
    shard
}

#[test]
fn a_redriven_message_is_new_but_for_its_id_and_its_deliveries() {
    let mut shard = with_dead(2, strict());
    shard.stored(vec![message(50, 0)]);
    assert_eq!(shard.redrive(RedriveSelection::All, None), 2);
    let deliveries = shard.lease(10);
    let seen: Vec<_> = deliveries.iter().map(|d| (d.id.0, d.priority.0, d.key.deliveries)).collect();
    assert_eq!(seen, [(50, 0, 1), (1, 0, 2), (2, 1, 2)], "the tail, and deliveries go on");
    assert_eq!((shard.stats().totals.redriven, shard.stats().dead), (2, 0));
    // Its failures start anew: with one allowed it dies at the next one.
    shard.release(deliveries[1].key, None, None);
    assert_eq!(shard.stats().dead, 1);
}

#[test]
fn dead_letters_are_chosen_by_id_and_by_level() {
    let mut shard = with_dead(6, strict());
    let ids = RedriveSelection::Ids(vec![MessageId(4), MessageId(2), MessageId(4), MessageId(99)]);
    assert_eq!(shard.machine.count_dead(QUEUE, &ids), 2);
    let redrive = Redrive { selection: ids, priority: Some(Level(4)), rate_per_1000_s: None, room: None };
    assert_eq!(shard.one(Command::Redrive { queue: QUEUE, redrive }), Answer::Redriven(2));
    assert_eq!(shard.stats().visible, [0, 0, 0, 0, 2]);
    assert_eq!(shard.redrive(RedriveSelection::FromPriority(Level(2)), None), 2);
    assert_eq!(shard.stats().visible, [0, 0, 2, 0, 2]);
    assert_eq!(shard.one(Command::PurgeDeadLetters { queue: QUEUE }), Answer::Purged(2));
    assert_eq!(shard.stats().totals.purged, 2);
}

#[test]
fn a_rate_is_kept_and_survives_a_restart() {
    let mut shard = with_dead(5, strict());
    // Two a second.
    assert_eq!(shard.redrive(RedriveSelection::All, Some(2_000)), 5);
    assert_eq!((shard.total_visible(), shard.stats().dead), (1, 4));
    assert_eq!(shard.machine.next_deadline(), UnixMillis(shard.now + 500));
    shard.pass(1_000);
    assert_eq!(shard.total_visible(), 3);
    let mut bytes = Vec::new();
    shard.machine.snapshot(&mut bytes);
    shard.machine = crate::machine::Machine::restore(overtake_base::ShardId(3), &bytes).unwrap();
    shard.pass(499);
    assert_eq!(shard.total_visible(), 3);
    shard.pass(10_000);
    assert_eq!((shard.total_visible(), shard.stats().dead), (5, 0));
    // What is left is the starvation alert of visible work, and retention.
    assert!(shard.machine.next_deadline() > UnixMillis(shard.now + 1_000));
}

#[test]
fn a_redrive_waits_for_room() {
    let mut shard = with_dead(4, QueueConfig { max_depth: Some(2), ..strict() });
    shard.stored(vec![message(50, 0)]);
    assert_eq!(shard.redrive(RedriveSelection::All, None), 1, "as many as there is room for");
    assert_eq!(shard.redrive(RedriveSelection::All, Some(1_000)), 3);
    shard.pass(5_000);
    assert_eq!((shard.total_visible(), shard.stats().dead), (2, 3));
    assert!(shard.machine.next_deadline() > UnixMillis(shard.now), "nothing to do while there is no room");
    let key = shard.lease(1)[0].key;
    shard.ack(key);
    assert!(shard.machine.next_deadline() <= UnixMillis(shard.now));
    shard.pass(0);
    assert_eq!(
        (shard.total_visible(), shard.stats().dead),
        (2, 2),
        "one, not all that it could not do before"
    );
}

#[test]
fn a_later_redrive_takes_over() {
    let mut shard = with_dead(3, strict());
    assert_eq!(shard.redrive(RedriveSelection::All, Some(0)), 3);
    shard.pass(1_000_000);
    assert_eq!(shard.stats().dead, 3, "a rate of 0 pauses");
    let now = RedriveSelection::Ids(vec![MessageId(2)]);
    assert_eq!(shard.redrive(now, None), 1);
    assert_eq!(shard.redrive(RedriveSelection::All, Some(1_000_000_000)), 2);
    shard.pass(1);
    assert_eq!(shard.total_visible(), 3);
    assert_eq!(shard.stats().totals.redriven, 3);
}

#[test]
fn a_dead_letter_lives() {
    let mut shard = with_dead(1, strict());
    assert_eq!(shard.enqueue(vec![message(1, 0)]), [EnqueueOutcome::Duplicate(MessageId(1))]);
    assert!(shard.id_lookup(QUEUE, MessageId(1)));
    assert_eq!(shard.machine.summary(QUEUE).unwrap().depth, 0, "but does not count for depth");
    assert!(shard.machine.oldest_live_index().is_some(), "and its payload is kept");
}
