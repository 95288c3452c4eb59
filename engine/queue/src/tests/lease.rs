//! Leases: order, shares, ceilings, planners' picks, rate caps, and undoing.

use super::{QUEUE, START, Shard, message, strict};
use crate::command::{Command, Lease, LevelChoice, NewMessage, Pick};
use crate::scheduler::LevelSet;
use overtake_base::queue_config::{RateCaps, Scheduling};
use overtake_base::{Level, QueueConfig, UnixMillis};

fn pick(level: u8, count: u32, share: bool) -> Pick {
    Pick { level: Level(level), count, share }
}

#[test]
fn most_urgent_first_and_first_in_first_out() {
    let mut shard = Shard::new(strict());
    shard.stored(vec![message(1, 2), message(2, 0), message(3, 2), message(4, 0), message(5, 1)]);
    assert_eq!(shard.ids(10), [2, 4, 5, 1, 3]);
    let delivery_expiry = UnixMillis(START + 30_000);
    assert_eq!(shard.machine.next_deadline(), delivery_expiry);
}

#[test]
fn the_shards_own_scheduler_keeps_the_shares_and_marks_them() {
    let mut shard = Shard::new(QueueConfig::with_defaults(5, 1));
    shard.stored((0..1_000).map(|id| message(id, if id < 900 { 0 } else { 4 })).collect());
    let deliveries = shard.lease(500);
    let shares: Vec<_> = deliveries.iter().filter(|d| d.share).collect();
    assert_eq!(shares.len(), 50, "a reserve of 0.10");
    assert!(shares.iter().all(|d| d.priority == Level(4)));
    let totals = shard.stats().totals;
    assert_eq!((totals.deliveries, totals.share_deliveries, totals.inversions), (500, 50, 0));
}

#[test]
fn a_ceiling_takes_no_part_in_shares() {
    let mut shard = Shard::new(QueueConfig::with_defaults(5, 1));
    shard.stored((0..200).map(|id| message(id, (id % 5) as u8)).collect());
    let deliveries = shard.lease_by(1_000, LevelChoice::UpTo(Level(1)));
    assert_eq!(deliveries.len(), 80);
    assert!(deliveries.iter().all(|d| d.priority <= Level(1) && !d.share));
    assert!(deliveries.is_sorted_by_key(|d| d.priority));
}

#[test]
fn a_pick_goes_to_something_more_urgent_but_a_share_does_not() {
    let mut shard = Shard::new(QueueConfig::with_defaults(5, 8));
    shard.stored(vec![message(1, 0), message(2, 2), message(3, 2), message(4, 4)]);
    let picks = vec![pick(2, 2, false), pick(4, 3, true), pick(1, 5, false)];
    let deliveries = shard.lease_by(100, LevelChoice::Picks { picks, barred: LevelSet::default() });
    assert_eq!(
        deliveries.iter().map(|d| (d.id.0, d.share)).collect::<Vec<_>>(),
        [(1, false), (2, false), (4, true)]
    );
}

#[test]
fn age_makes_more_urgent() {
    let config =
        QueueConfig { scheduling: Scheduling::Aging, aging_s: 10, ..QueueConfig::with_defaults(5, 1) };
    let mut shard = Shard::new(config);
    shard.stored(vec![message(1, 4)]);
    shard.pass(30_000);
    shard.stored(vec![message(2, 2), message(3, 0)]);
    // Effective levels are 1, 2 and 0.
    let deliveries = shard.lease_by(10, LevelChoice::UpTo(Level(4)));
    assert_eq!(deliveries.iter().map(|d| d.id.0).collect::<Vec<_>>(), [3, 1, 2]);
    assert_eq!(shard.stats().totals.inversions, 0);
}

#[test]
fn bytes_stop_a_lease_after_the_first_message() {
    let mut shard = Shard::new(strict());
    shard.stored((1..=4).map(|id| message(id, 0)).collect());
    let lease = |max_bytes| Lease {
        max: 10,
        max_bytes,
        lease_ms: Some(1_000),
        worker: None,
        choice: LevelChoice::Scheduled,
    };
    // A payload is the body's 4 bytes and two lengths.
    assert_eq!(shard.lease_with(lease(1)).len(), 1);
    assert_eq!(shard.lease_with(lease(35)).len(), 2);
}

#[test]
fn caps_hold_back_their_level_only() {
    let caps = RateCaps { queue: Some(4), levels: [(0, 1)].into() };
    let mut shard = Shard::new(QueueConfig { rate_caps: caps, ..strict() });
    shard.stored((0..20).map(|id| message(id, (id % 3) as u8)).collect());
    shard.pass(200);
    let levels: Vec<u8> = shard.lease(20).iter().map(|d| d.priority.0).collect();
    assert_eq!(levels, [0, 1, 1, 1]);
    let ready = |shard: &Shard| {
        let limiter = shard.machine.limiter(QUEUE).unwrap();
        [0, 1].map(|level| limiter.ready_at(Level(level), UnixMillis(shard.now)).0 - shard.now)
    };
    assert_eq!(ready(&shard), [800, 50]);
    shard.pass(250);
    assert_eq!(ready(&shard), [550, 0]);
    assert_eq!(shard.lease(20).len(), 1);
    assert_eq!(shard.stats().totals.inversions, 0, "what a cap holds back is not passed over");
}

/// The planner accounts for the caps of a queue over several shards: the shard delivers nothing that the planner knows to
/// be held back, puts nothing in a pick's place that has a cap of its own, and calls nothing of it an inversion.
#[test]
fn a_shard_of_several_leaves_the_caps_to_the_planner() {
    let caps = RateCaps { queue: None, levels: [(0, 100)].into() };
    for scheduling in [Scheduling::Weighted, Scheduling::Aging, Scheduling::Strict] {
        let config = QueueConfig { rate_caps: caps.clone(), scheduling, ..QueueConfig::with_defaults(5, 8) };
        let mut shard = Shard::new(config);
        shard.stored((0..40).map(|id| message(id, [0, 1, 3][id as usize % 3])).collect());
        shard.pass(1_000);
        let barred: LevelSet = [Level(0)].into_iter().collect();
        let of = |picks: Vec<Pick>, barred| LevelChoice::Picks { picks, barred };
        let mut levels = |choice| {
            shard.lease_by(100, choice).iter().map(|delivery| delivery.priority.0).collect::<Vec<_>>()
        };
        assert_eq!(levels(of(vec![pick(0, 1, false), pick(1, 2, false)], barred)), [0, 1, 1]);
        assert_eq!(levels(of(vec![pick(3, 2, true)], barred)), [3, 3]);
        assert_eq!(
            levels(of(vec![pick(3, 2, false)], LevelSet::default())),
            [1, 1],
            "level 0 is not charged"
        );
        assert_eq!(levels(of(vec![pick(0, 2, false)], LevelSet::default())), [0, 0]);
        assert_eq!(levels(of(vec![pick(1, 20, false)], barred)).len(), 9);
        assert_eq!(levels(of(vec![pick(3, 2, false)], barred)), [3, 3]);
        assert_eq!(shard.stats().totals.inversions, 0, "what a cap holds back is not passed over");
    }
}

#[test]
fn an_expired_message_is_never_delivered_wherever_it_stands() {
    let mut shard = Shard::new(strict());
    let short = |id| NewMessage { expires_in_ms: Some(1_000), ..message(id, 0) };
    shard.stored(vec![message(1, 0), short(2), message(3, 0), short(4)]);
    assert_eq!(shard.machine.next_deadline(), UnixMillis(START + 1_000));
    shard.pass(1_000);
    assert_eq!(shard.total_visible(), 2);
    assert_eq!(shard.ids(10), [1, 3]);
    assert_eq!(shard.stats().totals.expired, 2);
}

#[test]
fn a_lease_that_reached_nobody_leaves_no_trace() {
    let mut shard = Shard::new(strict());
    shard.stored((0..100).map(|id| message(id, if id < 50 { 0 } else { 4 })).collect());
    let before = shard.machine.digest();
    let (waits, totals) = (shard.stats().waits, shard.stats().totals);
    let deliveries = shard.lease(40);
    let leases = deliveries.iter().rev().map(|d| d.key).collect();
    shard.one(Command::Unlease { queue: QUEUE, leases });
    let stats = shard.stats();
    assert_eq!((stats.totals, stats.leased[0]), (totals, 0));
    assert_ne!(stats.waits, waits, "that it waited stays counted, once");
    assert_ne!(shard.machine.digest(), before);
    let again = shard.lease(40);
    let keys = |deliveries: &[crate::answer::Delivery]| deliveries.iter().map(|d| d.key).collect::<Vec<_>>();
    assert_eq!(keys(&again), keys(&deliveries), "the same messages under the same numbers");
    let recorded: u64 = shard.stats().waits.iter().flatten().map(|(_, count)| count).sum();
    assert_eq!(recorded, 40);
}

#[test]
fn workers_are_counted_while_they_hold_leases() {
    let mut shard = Shard::new(strict());
    shard.stored((0..3).map(|id| message(id, 0)).collect());
    let lease = |worker: &str, max| Lease {
        max,
        max_bytes: u64::MAX,
        lease_ms: None,
        worker: Some(worker.into()),
        choice: LevelChoice::Scheduled,
    };
    let b = shard.lease_with(lease("b", 2));
    shard.lease_with(lease("a", 1));
    assert_eq!(shard.stats().workers, [("a".into(), 1), ("b".into(), 2)]);
    shard.ack(b[0].key);
    shard.release(b[1].key, None, None);
    assert_eq!(shard.stats().workers, [("a".into(), 1)]);
}

#[test]
fn levels_beyond_the_queue_do_no_harm() {
    let mut shard = Shard::new(strict());
    shard.stored(vec![message(1, 200)]);
    let picks = vec![pick(250, 1, true)];
    assert_eq!(shard.lease_by(1, LevelChoice::Picks { picks, barred: LevelSet::default() }).len(), 1);
    assert!(shard.lease_by(1, LevelChoice::UpTo(Level(255))).is_empty());
}
