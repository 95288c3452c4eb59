//! Each promise of the ledger: broken once, and kept in every way that looks like breaking it.

use super::*;

const S: u64 = 1_000_000_000;
const LEASE_MS: u64 = 30_000;

fn id(number: u64) -> MessageId {
    MessageId::new(1, u128::from(number))
}

/// A ledger with messages 0..count sent at 0 and confirmed at 1 s; message n has level n modulo 5.
fn ledger(count: u64) -> Ledger {
    let mut ledger = Ledger::new(true);
    for number in 0..count {
        ledger.sent(number, id(number), (number % 5) as u8, 0, false);
        ledger.confirmed(number, id(number), false, None, S);
    }
    ledger
}

fn delivery(number: u64, deliveries: u32, at_s: u64) -> Delivery {
    Delivery {
        number,
        id: id(number),
        level: (number % 5) as u8,
        visible_ns: 0,
        deliveries,
        lease_expires_ms: at_s * 1_000 + LEASE_MS,
        share: false,
        received_ns: (at_s * S - S / 10, at_s * S),
        any_level: true,
    }
}

fn ack(number: u64, deliveries: u32) -> SettleTry {
    SettleTry { number, deliveries, ack: true, repeated: false }
}

#[track_caller]
fn broken(ledger: &Ledger, expected: &[Broken]) {
    let found: Vec<_> = ledger.violations.told.iter().map(|violation| violation.broken).collect();
    assert_eq!(found, expected, "{:?}", ledger.violations.told);
    assert_eq!(ledger.violations.total(), expected.len() as u64);
}

#[test]
fn a_message_that_is_delivered_and_acked_is_done() {
    let mut ledger = ledger(1);
    assert_eq!(ledger.outstanding(), 1);
    assert_eq!(ledger.delivered(&delivery(0, 1, 2)), Seen::First);
    ledger.settled(ack(0, 1), Settled::Ok, 3 * S);
    assert_eq!((ledger.outstanding(), ledger.left()), (0, vec![]));
    broken(&ledger, &[]);
}

#[test]
fn delivered_after_its_ack_is_told() {
    let mut ledger = ledger(1);
    ledger.delivered(&delivery(0, 1, 2));
    ledger.settled(ack(0, 1), Settled::Ok, 3 * S);
    assert_eq!(ledger.delivered(&delivery(0, 2, 60)), Seen::Wrong);
    broken(&ledger, &[Broken::Twice]);
}

#[test]
fn delivered_again_needs_a_cause() {
    // Under a running lease.
    let mut running = ledger(1);
    running.delivered(&delivery(0, 1, 2));
    assert_eq!(running.delivered(&delivery(0, 2, 10)), Seen::Wrong);
    broken(&running, &[Broken::Twice]);
    // With a smaller fencing number.
    let mut fenced = ledger(1);
    fenced.delivered(&delivery(0, 2, 2));
    fenced.delivered(&delivery(0, 2, 60));
    broken(&fenced, &[Broken::Twice]);
    // After the lease ran out, after a release, after an ack that has no known fate and the lease's end.
    let mut expired = ledger(1);
    expired.delivered(&delivery(0, 1, 2));
    assert_eq!(expired.delivered(&delivery(0, 2, 33)), Seen::Again { failures: 1 });
    assert_eq!(expired.delivered(&delivery(0, 3, 64)), Seen::Again { failures: 2 });
    broken(&expired, &[]);
    let mut released = ledger(1);
    released.delivered(&delivery(0, 1, 2));
    released.giving_back(0);
    assert_eq!(released.delivered(&delivery(0, 2, 3)), Seen::Again { failures: 1 });
    broken(&released, &[]);
}

#[test]
fn an_answer_that_came_after_its_lease_says_nothing() {
    let mut ledger = ledger(1);
    ledger.delivered(&delivery(0, 2, 60));
    ledger.settled(ack(0, 2), Settled::Ok, 61 * S);
    let late = Delivery { lease_expires_ms: 32_000, ..delivery(0, 1, 62) };
    assert_eq!(ledger.delivered(&late), Seen::Late);
    broken(&ledger, &[]);
}

#[test]
fn what_was_refused_or_never_sent_must_not_come() {
    let mut ledger = Ledger::new(true);
    ledger.sent(0, id(0), 0, 0, false);
    ledger.refused(0);
    assert_eq!(ledger.delivered(&delivery(0, 1, 2)), Seen::Wrong);
    assert_eq!(ledger.delivered(&delivery(7, 1, 2)), Seen::Wrong);
    broken(&ledger, &[Broken::Phantom, Broken::Phantom]);
}

#[test]
fn of_unknown_fate_both_is_right() {
    let mut ledger = Ledger::new(true);
    for number in 0..2 {
        ledger.sent(number, id(number), number as u8, 0, false);
        ledger.unknown(number);
    }
    assert_eq!(ledger.delivered(&delivery(0, 1, 2)), Seen::First);
    ledger.settled(ack(0, 1), Settled::Ok, 3 * S);
    assert_eq!((ledger.left(), ledger.outstanding()), (vec![], 0));
    broken(&ledger, &[]);
}

#[test]
fn a_delivery_may_overtake_its_confirmation() {
    let mut ledger = Ledger::new(true);
    ledger.sent(0, id(0), 0, 0, false);
    assert_eq!(ledger.delivered(&delivery(0, 1, 2)), Seen::First);
    ledger.settled(ack(0, 1), Settled::Ok, 2 * S);
    ledger.confirmed(0, id(0), false, None, 3 * S);
    assert_eq!((ledger.outstanding(), ledger.left()), (0, vec![]));
    broken(&ledger, &[]);
}

#[test]
fn another_level_id_time_or_body_is_told() {
    let mut ledger = ledger(4);
    ledger.delivered(&Delivery { level: 3, ..delivery(0, 1, 2) });
    ledger.delivered(&Delivery { id: id(9), ..delivery(1, 1, 2) });
    ledger.delivered(&Delivery { visible_ns: 5, ..delivery(2, 1, 2) });
    ledger.damaged(id(3));
    broken(&ledger, &[Broken::Changed; 4]);
}

#[test]
fn a_delayed_message_must_not_come_early() {
    let come = |at_s| {
        let mut ledger = Ledger::new(true);
        ledger.sent(0, id(0), 0, 10 * S, true);
        ledger.confirmed(0, id(0), false, None, S);
        ledger.delivered(&Delivery { visible_ns: 10 * S, ..delivery(0, 1, at_s) });
        ledger
    };
    broken(&come(9), &[Broken::Early]);
    broken(&come(10), &[]);
}

#[test]
fn a_repeated_key_must_name_the_first_and_store_nothing() {
    let repeat = |answered, duplicate| {
        let mut ledger = ledger(1);
        ledger.sent(1, id(1), 0, 0, false);
        ledger.confirmed(1, answered, duplicate, Some(id(0)), 2 * S);
        ledger
    };
    broken(&repeat(id(0), true), &[]);
    broken(&repeat(id(1), false), &[Broken::Dedup]);
    broken(&repeat(id(5), true), &[Broken::Dedup]);
    let mut stored = repeat(id(0), true);
    stored.delivered(&delivery(1, 1, 3));
    broken(&stored, &[Broken::Phantom]);
}

#[test]
fn a_repeat_after_a_lost_answer_names_its_own_id() {
    let mut ledger = Ledger::new(true);
    ledger.sent(0, id(0), 0, 0, false);
    ledger.confirmed(0, id(0), true, None, S);
    broken(&ledger, &[]);
    ledger.sent(1, id(1), 0, 0, false);
    ledger.confirmed(1, id(8), true, None, S);
    broken(&ledger, &[Broken::Dedup]);
}

#[test]
fn a_running_lease_must_count() {
    for outcome in [Settled::Stale, Settled::Unknown] {
        let mut early = ledger(1);
        early.delivered(&delivery(0, 1, 2));
        early.settled(ack(0, 1), outcome, 10 * S);
        broken(&early, &[Broken::Lease]);
        let mut late = ledger(1);
        late.delivered(&delivery(0, 1, 2));
        late.settled(ack(0, 1), outcome, 40 * S);
        broken(&late, &[]);
    }
    // A repeat of an ack whose answer was lost finds nothing: it was acked.
    let mut repeated = ledger(1);
    repeated.delivered(&delivery(0, 1, 2));
    repeated.settled(SettleTry { repeated: true, ..ack(0, 1) }, Settled::Unknown, 3 * S);
    broken(&repeated, &[]);
    assert_eq!(repeated.outstanding(), 0);
}

#[test]
fn order_is_judged_for_first_deliveries() {
    // P0 (message 0) confirmed at 1 s; P2 (message 2) delivered at 2 s by a receive that began at 1.9 s.
    let overtaken = |p0: Delivery, p2: Delivery| {
        let mut ledger = ledger(3);
        ledger.delivered(&p2);
        ledger.delivered(&p0);
        ledger
    };
    broken(&overtaken(delivery(0, 1, 3), delivery(2, 1, 2)), &[Broken::Order]);
    broken(&overtaken(delivery(0, 1, 3), Delivery { share: true, ..delivery(2, 1, 2) }), &[]);
    broken(&overtaken(delivery(0, 2, 3), delivery(2, 1, 2)), &[]);
    broken(&overtaken(delivery(0, 1, 2), delivery(2, 1, 2)), &[]);
}

#[test]
fn what_is_left_must_be_there() {
    let mut ledger = ledger(3);
    ledger.delivered(&delivery(1, 1, 2));
    ledger.settled(ack(1, 1), Settled::Ok, 3 * S);
    assert_eq!(ledger.left(), [(0, id(0)), (2, id(2))]);
    ledger.missing(2);
    broken(&ledger, &[Broken::Lost]);
}

#[test]
fn messages_of_other_processes_are_judged_by_their_deliveries() {
    let mut ledger = Ledger::new(false);
    assert_eq!(ledger.delivered(&delivery(5, 1, 2)), Seen::First);
    ledger.settled(ack(5, 1), Settled::Ok, 3 * S);
    broken(&ledger, &[]);
    assert_eq!(ledger.delivered(&delivery(5, 2, 60)), Seen::Wrong);
    broken(&ledger, &[Broken::Twice]);
    assert!(ledger.left().is_empty());
}
