//! Deadlines: a tick at one changes something, one before it nothing; starvation; bounded work.

use super::{QUEUE, START, Shard, message, strict};
use crate::answer::SettleOutcome;
use crate::command::{NewMessage, VisibleWhen};
use crate::machine::ADVANCE_ITEMS_MAX;
use overtake_base::queue_config::Starvation;
use overtake_base::{QueueConfig, UnixMillis};

#[test]
fn an_idle_shard_needs_no_ticks() {
    let mut shard = Shard::new(strict());
    assert_eq!(shard.machine.next_deadline(), UnixMillis::NEVER);
    shard.stored(vec![message(1, 0)]);
    let key = shard.lease(1)[0].key;
    shard.ack(key);
    assert_eq!(shard.machine.next_deadline(), UnixMillis::NEVER);
}

#[test]
fn a_starved_level_is_counted_once_a_period() {
    let mut shard = Shard::new(QueueConfig { starvation: Starvation::All(10), retention_s: 500, ..strict() });
    shard.stored(vec![message(1, 0), message(2, 0), message(3, 3)]);
    shard.pass(6_000);
    let key = shard.lease(1)[0].key;
    assert_eq!(shard.machine.next_deadline(), UnixMillis(START + 10_001), "level 3");
    shard.pass(4_000);
    assert_eq!(shard.stats().totals.starvation_events, 0);
    shard.pass(1);
    assert_eq!(shard.stats().totals.starvation_events, 1);
    assert_eq!(shard.machine.next_deadline(), UnixMillis(START + 16_001), "level 0 was fed at 6 s");
    shard.pass(6_000);
    assert_eq!(shard.stats().totals.starvation_events, 2);
    assert_eq!(shard.ack(key), SettleOutcome::Ok);
    shard.pass(100_000);
    assert_eq!(shard.stats().totals.starvation_events, 2, "no delivery, no new period");
    shard.lease(1);
    shard.stored(vec![message(4, 0)]);
    shard.pass(10_001);
    assert_eq!(shard.stats().totals.starvation_events, 3);
}

#[test]
fn a_changed_alert_acts_at_once() {
    let mut shard = Shard::new(QueueConfig { starvation: Starvation::All(1_000), ..strict() });
    shard.stored(vec![message(1, 0)]);
    shard.configure(QueueConfig { starvation: Starvation::All(1), ..strict() });
    assert_eq!(shard.machine.next_deadline(), UnixMillis(START + 1_001));
    shard.pass(1_001);
    assert_eq!(shard.stats().totals.starvation_events, 1);
}

#[test]
fn much_due_work_is_done_in_parts_and_nothing_of_it_is_believed_meanwhile() {
    let mut shard = Shard::new(QueueConfig { lease_s: 1, retention_s: 100, ..strict() });
    let count = ADVANCE_ITEMS_MAX + 1_000;
    for part in 0..count / 8 {
        shard.stored((0..8).map(|n| message((part * 8 + n) as u128, 0)).collect());
    }
    let keys: Vec<_> = shard.lease(count as u32).iter().map(|d| d.key).collect();
    shard.pass(1_000);
    assert_eq!(shard.total_visible(), ADVANCE_ITEMS_MAX as u64);
    assert!(shard.machine.next_deadline() <= UnixMillis(shard.now));
    assert_eq!(shard.stats().leased[0], 1_000);
    // The rest comes with the next entry; a receipt of it is stale in the same entry already.
    assert_eq!(shard.ack(keys[count - 1]), SettleOutcome::Stale);
    assert_eq!(shard.total_visible(), count as u64);
    // Far more than one entry's work expires; what is left of it is not delivered.
    shard.now += 100_000;
    assert!(shard.lease(1).is_empty());
    assert_eq!(shard.stats().totals.expired, count as u64);
}

#[test]
fn many_delayed_messages_of_one_moment_come_in_the_order_they_were_sent() {
    let mut shard = Shard::new(strict());
    let at = VisibleWhen::At(UnixMillis(START + 86_400_000));
    for part in 0..20u128 {
        let late = |n| NewMessage { visible: at, ..message(10_000 - (part * 100 + n), 0) };
        shard.stored((0..100).map(late).collect());
    }
    // Ticks when the machine asks for them, until the moment has come.
    let mut ticks = 0;
    while shard.total_visible() == 0 {
        let deadline = shard.machine.next_deadline().0;
        assert!(deadline > shard.now && deadline <= START + 86_400_000);
        shard.now = deadline;
        shard.apply(Vec::new());
        ticks += 1;
    }
    assert!(ticks <= 8, "{ticks}");
    assert_eq!(shard.now, START + 86_400_000);
    assert_eq!(shard.ids(2_000), (0..2_000u128).map(|n| 10_000 - n).collect::<Vec<_>>());
    assert_eq!(shard.machine.summary(QUEUE).unwrap().levels, []);
}
