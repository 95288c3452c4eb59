//! Proves that the checker is quiet on good histories, and that it sees each violation.

use super::*;
use crate::history::Counts;
use std::mem::discriminant;

/// A history in the making; the clock moves on with each call.
#[derive(Clone, Default)]
struct Story {
    now_ms: u64,
    calls: Vec<Call>,
    end: End,
}

impl Story {
    fn call(&mut self, what: What) -> &mut Self {
        self.now_ms += 10;
        self.calls.push(Call { start_ms: self.now_ms, end_ms: self.now_ms + 5, what });
        self
    }

    fn wait(&mut self, ms: u64) -> &mut Self {
        self.now_ms += ms;
        self
    }

    fn enqueue_as(&mut self, enqueue: Enqueue) -> &mut Self {
        if matches!(enqueue.outcome, EnqueueOutcome::Accepted { duplicate: false, .. }) {
            self.end.counts.enqueued += 1;
        }
        self.call(What::Enqueue(enqueue))
    }

    fn enqueue(&mut self, id: &str) -> &mut Self {
        self.enqueue_as(plain(id))
    }

    fn deliver(&mut self, id: &str, deliveries: u64, lease_ms: u64) -> &mut Self {
        let delivery = Delivery {
            id: id.into(),
            receipt: format!("r_0_{id}_{deliveries}"),
            deliveries,
            lease_expires_at_ms: self.now_ms + 10 + lease_ms,
            intact: true,
        };
        self.end.counts.deliveries += 1;
        self.call(What::Receive(vec![delivery]))
    }

    fn settle(&mut self, id: &str, deliveries: u64, action: Action, outcome: SettleOutcome) -> &mut Self {
        if (action, outcome) == (Action::Ack, SettleOutcome::Ok) {
            self.end.counts.acked += 1;
        }
        self.call(What::Settle(Settle { id: id.into(), deliveries, action, outcome }))
    }

    fn ack(&mut self, id: &str, deliveries: u64) -> &mut Self {
        self.settle(id, deliveries, Action::Ack, SettleOutcome::Ok)
    }

    fn release(&mut self, id: &str, deliveries: u64, delay_ms: u64) -> &mut Self {
        self.settle(id, deliveries, Action::Release { delay_ms }, SettleOutcome::Ok)
    }

    fn cancel(&mut self, id: &str, cancelled: Option<bool>) -> &mut Self {
        self.end.counts.cancelled += u64::from(cancelled == Some(true));
        self.call(What::Cancel { id: id.into(), cancelled })
    }

    fn live(&mut self, id: &str) -> &mut Self {
        self.end.live.insert(id.into());
        self.end.counts.visible += 1;
        self
    }

    fn dead(&mut self, id: &str) -> &mut Self {
        self.end.dead.insert(id.into());
        self.end.counts.dlq += 1;
        self
    }

    fn found(&self) -> Vec<Violation> {
        check(&self.calls, &self.end)
    }

    #[track_caller]
    fn is_good(&self) {
        assert_eq!(self.found(), []);
    }

    /// Every violation found is of the kind of `expected`, and there is one.
    #[track_caller]
    fn shows(&self, expected: fn(String) -> Violation) {
        let found = self.found();
        let expected = discriminant(&expected(String::new()));
        let others: Vec<_> = found.iter().filter(|v| discriminant(*v) != expected).collect();
        assert!(!found.is_empty(), "nothing was found");
        assert!(others.is_empty(), "something else was found: {others:?}");
    }

    /// Among the violations found is one of the kind of `expected`.
    #[track_caller]
    fn shows_among_others(&self, expected: fn(String) -> Violation) {
        let expected = discriminant(&expected(String::new()));
        assert!(self.found().iter().any(|v| discriminant(v) == expected), "only {:?}", self.found());
    }
}

fn accepted(id: &str, duplicate: bool) -> EnqueueOutcome {
    EnqueueOutcome::Accepted { id: id.into(), duplicate }
}

fn plain(id: &str) -> Enqueue {
    Enqueue { id: id.into(), key: None, due_ms: 0, expires_in_ms: None, outcome: accepted(id, false) }
}

fn story() -> Story {
    Story { now_ms: 1_000_000, ..Story::default() }
}

#[test]
fn a_message_that_is_acked_or_there_or_dead_is_fine() {
    story().enqueue("a").deliver("a", 1, 1_000).ack("a", 1).is_good();
    story().enqueue("a").live("a").is_good();
    story().enqueue("a").deliver("a", 1, 1_000).release("a", 1, 0).dead("a").is_good();
    story().enqueue("a").deliver("a", 1, 100).wait(200).deliver("a", 2, 100).ack("a", 2).is_good();
    story().enqueue("a").cancel("a", Some(true)).is_good();
    story().enqueue("a").cancel("a", Some(false)).live("a").is_good();
}

#[test]
fn an_unknown_fate_may_be_either() {
    let unknown = Enqueue { outcome: EnqueueOutcome::Unknown, ..plain("a") };
    story().enqueue_as(unknown.clone()).is_good();
    let mut stored = story();
    stored.enqueue_as(unknown.clone()).live("a").end.counts.enqueued = 1;
    stored.is_good();
    story().enqueue_as(unknown).enqueue("a").deliver("a", 1, 100).ack("a", 1).is_good();
    let mut acked = story();
    acked.enqueue("a").deliver("a", 1, 1_000).settle("a", 1, Action::Ack, SettleOutcome::Unknown);
    acked.clone().live("a").is_good();
    acked.end.counts.acked = 1;
    acked.is_good();
    story().enqueue("a").cancel("a", None).live("a").is_good();
    let mut given_back = story();
    given_back.enqueue("a").deliver("a", 1, 10_000);
    given_back.settle("a", 1, Action::Release { delay_ms: 0 }, SettleOutcome::Unknown);
    given_back.deliver("a", 2, 10_000).live("a").is_good();
}

#[test]
fn a_lost_message_is_seen() {
    let mut lost = story();
    lost.enqueue("a").end.counts.acked = 1;
    lost.shows_among_others(Violation::Lost);
    // The answer came only with the second try, and the first one's fate was unknown.
    let unknown = Enqueue { outcome: EnqueueOutcome::Unknown, ..plain("a") };
    let mut retried = story();
    retried.enqueue_as(unknown).enqueue_as(Enqueue { outcome: accepted("a", true), ..plain("a") });
    retried.shows_among_others(Violation::Lost);
    // Rejected acks and cancels do not explain it.
    let mut rejected = story();
    rejected.enqueue("a").deliver("a", 1, 9).settle("a", 1, Action::Ack, SettleOutcome::Rejected);
    rejected.cancel("a", Some(false)).shows_among_others(Violation::Lost);
}

#[test]
fn a_first_message_that_only_a_repeat_names_is_not_lost_either() {
    let first = Enqueue { key: Some("k".into()), outcome: EnqueueOutcome::Unknown, ..plain("a") };
    let repeat = Enqueue { key: Some("k".into()), outcome: accepted("a", true), ..plain("b") };
    let mut good = story();
    good.enqueue_as(first.clone()).enqueue_as(repeat.clone()).live("a").end.counts.enqueued = 1;
    good.is_good();
    story().enqueue_as(first).enqueue_as(repeat).shows_among_others(Violation::Lost);
}

#[test]
fn a_delivery_after_an_ack_is_seen() {
    // Long after the answer.
    story()
        .enqueue("a")
        .deliver("a", 1, 50)
        .ack("a", 1)
        .wait(100)
        .deliver("a", 2, 50)
        .shows(Violation::AckedDelivered);
    // Delivered anew before an ack of the old lease was accepted.
    story()
        .enqueue("a")
        .deliver("a", 1, 10)
        .wait(100)
        .deliver("a", 2, 50)
        .ack("a", 1)
        .shows_among_others(Violation::AckedDelivered);
    story().enqueue("a").deliver("a", 1, 50).ack("a", 1).live("a").shows_among_others(Violation::AckedThere);
    story().enqueue("a").deliver("a", 1, 50).ack("a", 1).dead("a").shows_among_others(Violation::AckedThere);
}

#[test]
fn a_delivery_after_a_cancel_is_seen() {
    story().enqueue("a").cancel("a", Some(true)).deliver("a", 1, 50).shows(Violation::CancelledThere);
    story().enqueue("a").cancel("a", Some(true)).live("a").shows_among_others(Violation::CancelledThere);
}

#[test]
fn an_early_delivery_is_seen() {
    let due = Enqueue { due_ms: 1_000_500, ..plain("a") };
    story().enqueue_as(due.clone()).deliver("a", 1, 50).ack("a", 1).shows(Violation::Early);
    story().enqueue_as(due).wait(500).deliver("a", 1, 50).ack("a", 1).is_good();
}

#[test]
fn a_delivery_before_the_delay_of_its_release_is_seen() {
    let mut released = story();
    released.enqueue("a").deliver("a", 1, 50).release("a", 1, 300);
    released.clone().deliver("a", 2, 50).ack("a", 2).shows(Violation::Early);
    released.wait(300).deliver("a", 2, 50).ack("a", 2).is_good();
}

#[test]
fn a_redrive_explains_a_return_before_the_delay_only_of_what_can_have_died() {
    let mut released = story();
    released.enqueue("a").deliver("a", 1, 50).release("a", 1, 300);
    let mut other = released.clone();
    released.call(What::Redrive).deliver("a", 2, 50).ack("a", 2);
    released.end.max_deliveries = 2;
    released.shows(Violation::Early);
    released.end.max_deliveries = 1;
    released.is_good();
    other.end.max_deliveries = 1;
    other.deliver("a", 2, 50).ack("a", 2).call(What::Redrive).shows(Violation::Early);
}

#[test]
fn what_was_never_enqueued_is_seen() {
    story().deliver("x", 1, 50).shows_among_others(Violation::Phantom);
    story().live("x").shows_among_others(Violation::Phantom);
    story().dead("x").shows_among_others(Violation::Phantom);
    let refused = Enqueue { outcome: EnqueueOutcome::Refused, ..plain("a") };
    story().enqueue_as(refused.clone()).is_good();
    let mut stored = story();
    stored.enqueue_as(refused).live("a").end.counts.enqueued = 1;
    stored.shows_among_others(Violation::Phantom);
    let repeat = Enqueue { key: Some("k".into()), outcome: accepted("x", true), ..plain("b") };
    story().enqueue_as(repeat).shows_among_others(Violation::Phantom);
}

#[test]
fn a_repeat_that_was_stored_all_the_same_is_seen() {
    let first = Enqueue { key: Some("k".into()), ..plain("a") };
    let unknown = Enqueue { key: Some("k".into()), outcome: EnqueueOutcome::Unknown, ..plain("b") };
    let repeat = Enqueue { key: Some("k".into()), outcome: accepted("a", true), ..plain("b") };
    let mut told = story();
    told.enqueue_as(first).enqueue_as(unknown).enqueue_as(repeat).live("a");
    told.is_good();
    told.deliver("b", 1, 50).shows_among_others(Violation::Phantom);
}

#[test]
fn another_body_is_seen() {
    let mut story = story();
    story.enqueue("a").deliver("a", 1, 50).ack("a", 1);
    if let What::Receive(deliveries) = &mut story.calls[1].what {
        deliveries[0].intact = false;
    }
    story.shows(Violation::Corrupt);
}

#[test]
fn an_accepted_stale_receipt_is_seen() {
    for action in [Action::Extend { lease_ms: 50 }, Action::Release { delay_ms: 0 }] {
        story()
            .enqueue("a")
            .deliver("a", 1, 10)
            .wait(100)
            .deliver("a", 2, 1_000)
            .settle("a", 1, action, SettleOutcome::Ok)
            .live("a")
            .shows_among_others(Violation::StaleAccepted);
    }
    // Ended twice.
    let mut twice = story();
    twice.enqueue("a").deliver("a", 1, 1_000).release("a", 1, 0);
    twice.clone().live("a").is_good();
    twice.release("a", 1, 0).live("a").shows(Violation::StaleAccepted);
    // Extended after its ack.
    let mut extended = story();
    extended.enqueue("a").deliver("a", 1, 1_000).ack("a", 1);
    extended
        .settle("a", 1, Action::Extend { lease_ms: 9 }, SettleOutcome::Ok)
        .shows(Violation::StaleAccepted);
}

#[test]
fn overlapping_leases_are_seen() {
    story().enqueue("a").deliver("a", 1, 1_000).deliver("a", 2, 1_000).live("a").shows(Violation::Overlap);
    // An extension holds longer, and only if it was accepted.
    let mut extended = story();
    extended.enqueue("a").deliver("a", 1, 50);
    let extend = Action::Extend { lease_ms: 1_000 };
    extended
        .clone()
        .settle("a", 1, extend, SettleOutcome::Unknown)
        .wait(100)
        .deliver("a", 2, 9)
        .live("a")
        .is_good();
    extended
        .settle("a", 1, extend, SettleOutcome::Ok)
        .wait(100)
        .deliver("a", 2, 9)
        .live("a")
        .shows(Violation::Overlap);
    // An extension may also shorten, even one whose answer was lost.
    let mut shortened = story();
    shortened.enqueue("a").deliver("a", 1, 10_000);
    shortened.settle("a", 1, Action::Extend { lease_ms: 50 }, SettleOutcome::Unknown);
    shortened.wait(100).deliver("a", 2, 9).live("a").is_good();
}

#[test]
fn a_fencing_number_that_does_not_grow_is_seen() {
    let mut twice = story();
    twice.enqueue("a").deliver("a", 1, 10).wait(100).deliver("a", 1, 10).live("a");
    twice.shows(Violation::DeliveriesNotIncreasing);
    let mut back = story();
    back.enqueue("a").deliver("a", 2, 10).wait(100).deliver("a", 1, 10).live("a");
    back.shows_among_others(Violation::DeliveriesNotIncreasing);
}

#[test]
fn a_broken_dedup_is_seen() {
    let with_key = |id: &str, outcome| Enqueue { key: Some("k".into()), outcome, ..plain(id) };
    story()
        .enqueue_as(with_key("a", accepted("a", false)))
        .enqueue_as(with_key("b", accepted("a", true)))
        .live("a")
        .is_good();
    story()
        .enqueue_as(with_key("a", accepted("a", false)))
        .enqueue_as(with_key("b", accepted("b", false)))
        .live("a")
        .live("b")
        .shows(Violation::DedupBroken);
    story().enqueue("a").enqueue("a").live("a").shows_among_others(Violation::DedupBroken);
}

#[test]
fn a_delivery_after_its_time_to_live_is_seen() {
    let short = Enqueue { expires_in_ms: Some(100), ..plain("a") };
    story().enqueue_as(short.clone()).deliver("a", 1, 10).ack("a", 1).is_good();
    story()
        .enqueue_as(short.clone())
        .wait(200)
        .deliver("a", 1, 10)
        .live("a")
        .shows(Violation::ExpiredDelivered);
    let mut expired = story();
    expired.enqueue_as(short).end.counts.expired = 1;
    expired.is_good();
}

#[test]
fn a_redrive_gives_only_what_can_have_died_a_new_time_to_live() {
    let short = Enqueue { expires_in_ms: Some(100), ..plain("a") };
    let mut redriven = story();
    redriven.enqueue_as(short).deliver("a", 1, 1).wait(200).call(What::Redrive);
    let mut later = redriven.clone();
    redriven.deliver("a", 2, 50).ack("a", 2);
    redriven.end.max_deliveries = 2;
    redriven.shows(Violation::ExpiredDelivered);
    redriven.end.max_deliveries = 1;
    redriven.is_good();
    later.end.max_deliveries = 1;
    later.wait(200).deliver("a", 2, 50).ack("a", 2).shows(Violation::ExpiredDelivered);
}

#[test]
fn counts_that_do_not_fit_are_seen() {
    let good = story().enqueue("a").deliver("a", 1, 50).ack("a", 1).clone();
    good.is_good();
    for change in [
        |counts: &mut Counts| counts.enqueued += 1,
        |counts: &mut Counts| counts.acked += 1,
        |counts: &mut Counts| (counts.enqueued, counts.acked) = (2, 2),
        |counts: &mut Counts| (counts.acked, counts.cancelled) = (0, 1),
        |counts: &mut Counts| (counts.acked, counts.purged) = (0, 1),
        |counts: &mut Counts| (counts.acked, counts.expired) = (0, 1),
        |counts: &mut Counts| (counts.acked, counts.visible) = (0, 1),
        |counts: &mut Counts| (counts.acked, counts.dlq) = (0, 1),
        |counts: &mut Counts| counts.deliveries = 0,
    ] {
        let mut wrong = good.clone();
        change(&mut wrong.end.counts);
        wrong.shows(Violation::Counts);
    }
}

#[test]
fn a_total_that_goes_down_is_seen() {
    let mut story = story();
    let look = Counts { enqueued: 1, acked: 1, deliveries: 1, ..Counts::default() };
    story.enqueue("a").deliver("a", 1, 50).ack("a", 1).call(What::Stats(look)).is_good();
    story.call(What::Stats(Counts { visible: 1, acked: 0, ..look })).shows(Violation::Counts);
}
