//! Dedup keys of messages that live on another shard: two shards, and every step between them by hand.

use super::{QUEUE, Shard, message, strict};
use crate::answer::{Answer, ClaimOutcome, EnqueueOutcome, KeyState};
use crate::command::{ClaimEnd, ClaimTicket, Command, NewMessage, RefusedReason};
use overtake_base::limits::{CLAIM_MS, CLAIMS_OF_KEY_MAX};
use overtake_base::{MessageId, QueueConfig, UnixMillis};

const KEY: &str = "k";
/// As late as can be.
const NOW: UnixMillis = UnixMillis::NEVER;

fn made(id: u128) -> NewMessage {
    NewMessage { client_made_id: true, dedup_key: Some(KEY.into()), ..message(id, 0) }
}

/// The shard of the key and the shard of the ids.
struct Two {
    key: Shard,
    id: Shard,
}

impl Two {
    fn new(config: QueueConfig) -> Self {
        Self { key: Shard::new(config.clone()), id: Shard::new(config) }
    }

    fn claimed(&mut self, id: u128) -> ClaimTicket {
        match self.key.claim(KEY, id) {
            ClaimOutcome::Claimed(claim) => claim,
            other => panic!("{other:?}"),
        }
    }

    fn store(&mut self, id: u128, claim: ClaimTicket) -> EnqueueOutcome {
        match self.id.one(Command::StoreClaimed { queue: QUEUE, claim, message: made(id) }) {
            Answer::Enqueued(outcomes) => outcomes[0],
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, id: u128, end: ClaimEnd) {
        let command = Command::EndClaim { queue: QUEUE, key: KEY.into(), id: MessageId(id), end };
        assert_eq!(self.key.one(command), Answer::Done);
    }

    fn fence(&mut self, id: u128, claim: ClaimTicket) -> bool {
        self.fenced(id, claim).is_some()
    }

    fn fenced(&mut self, id: u128, claim: ClaimTicket) -> Option<UnixMillis> {
        let command = Command::FenceClaim { queue: QUEUE, key: KEY.into(), id: MessageId(id), claim };
        match self.id.one(command) {
            Answer::Fenced(stored) => stored,
            other => panic!("{other:?}"),
        }
    }

    fn key_state(&self) -> KeyState {
        self.key.machine.key_state(QUEUE, KEY.as_bytes(), self.key.machine.time())
    }

    fn is_pending(&self, id: u128) -> bool {
        matches!(self.key_state(), KeyState::Pending(pending) if pending.id == MessageId(id))
    }

    fn pass(&mut self, ms: u64) {
        self.key.pass(ms);
        self.id.pass(ms);
    }
}

#[test]
fn a_key_answers_only_for_what_was_stored() {
    let mut two = Two::new(QueueConfig { dedup_window_s: 10, ..strict() });
    let claim = two.claimed(1);
    assert!(two.is_pending(1));
    // Nobody else gets it meanwhile, from wherever.
    assert!(matches!(two.key.claim(KEY, 2), ClaimOutcome::Pending(pending) if pending.id == MessageId(1)));
    assert!(matches!(two.key.enqueue(vec![made(3)])[0], EnqueueOutcome::Pending(_)));
    assert_eq!(two.key.machine.dedup_lookup(QUEUE, KEY.as_bytes(), two.key.machine.time()), None);
    assert_eq!(two.store(1, claim), EnqueueOutcome::Stored);
    two.pass(3);
    two.end(1, ClaimEnd::Stored(NOW));
    assert_eq!(two.key.claim(KEY, 2), ClaimOutcome::Taken(MessageId(1)));
    assert_eq!(two.key.enqueue(vec![made(3)]), [EnqueueOutcome::Duplicate(MessageId(1))]);
    two.pass(9_999);
    assert_eq!(two.key_state(), KeyState::Taken(MessageId(1)));
    two.pass(1);
    assert_eq!(two.key_state(), KeyState::Free);
}

#[test]
fn what_came_to_nothing_frees_the_key_unless_another_attempt_is_under_way() {
    let mut two = Two::new(QueueConfig { max_depth: Some(1), ..strict() });
    two.id.stored(vec![message(99, 0)]);
    let (first, second) = (two.claimed(1), two.claimed(1));
    assert_ne!(first.number, second.number);
    assert_eq!(two.store(1, first), EnqueueOutcome::Refused(RefusedReason::Depth));
    two.end(1, ClaimEnd::NotStored(first.number));
    assert!(two.is_pending(1), "the other attempt may still store it");
    two.end(1, ClaimEnd::NotStored(first.number));
    assert!(two.is_pending(1), "said twice is said once");
    let key = two.id.lease(1)[0].key;
    two.id.ack(key);
    assert_eq!(two.store(1, second), EnqueueOutcome::Stored);
    two.end(1, ClaimEnd::NotStored(second.number));
    assert_eq!(two.key_state(), KeyState::Free);
}

#[test]
fn a_fence_settles_what_a_crash_left() {
    let mut two = Two::new(strict());
    // Stored, and never told.
    let claim = two.claimed(1);
    two.store(1, claim);
    assert!(two.fence(1, claim));
    two.end(1, ClaimEnd::Stored(NOW));
    assert_eq!(two.key_state(), KeyState::Taken(MessageId(1)));
    // Never stored, and now it never will be: also when the command only comes now.
    let mut two = Two::new(strict());
    let claim = two.claimed(1);
    assert!(!two.fence(1, claim));
    assert_eq!(two.store(1, claim), EnqueueOutcome::Late);
    two.end(1, ClaimEnd::Void(claim.number));
    let other = two.claimed(2);
    assert_eq!(two.store(2, other), EnqueueOutcome::Stored);
    // What the first one says late changes nothing.
    two.end(1, ClaimEnd::NotStored(claim.number));
    two.end(1, ClaimEnd::Stored(NOW));
    assert!(two.is_pending(2));
}

#[test]
fn a_fence_ends_no_claim_that_is_newer() {
    let mut two = Two::new(strict());
    let first = two.claimed(1);
    assert!(!two.fence(1, first));
    let again = two.claimed(1);
    two.end(1, ClaimEnd::Void(first.number));
    assert!(two.is_pending(1));
    assert_eq!(two.store(1, first), EnqueueOutcome::Late);
    assert_eq!(two.store(1, again), EnqueueOutcome::Stored);
}

#[test]
fn past_its_deadline_a_claim_stores_nothing_by_the_time_of_the_ids_shard() {
    let mut two = Two::new(strict());
    let (claim, other) = (two.claimed(1), two.claimed(1));
    two.id.pass(CLAIM_MS);
    assert_eq!(two.store(1, claim), EnqueueOutcome::Stored);
    two.id.pass(1);
    assert_eq!(two.store(2, other), EnqueueOutcome::Late);
    // A fence is kept until then and no longer.
    let mut two = Two::new(strict());
    let claim = two.claimed(1);
    two.fence(1, claim);
    two.id.pass(CLAIM_MS);
    assert_eq!(two.store(1, claim), EnqueueOutcome::Late);
    let digest = two.id.machine.digest();
    two.id.pass(1);
    assert_ne!(two.id.machine.digest(), digest);
    assert_eq!(two.store(1, claim), EnqueueOutcome::Late);
}

#[test]
fn an_id_that_was_stored_without_the_key_claims_nothing() {
    let mut two = Two::new(strict());
    two.id.stored(vec![NewMessage { dedup_key: None, ..made(1) }]);
    let claim = two.claimed(1);
    assert_eq!(two.store(1, claim), EnqueueOutcome::Duplicate(MessageId(1)));
    // The claimer is gone before it can say so: the fence finds no message of that key.
    assert!(!two.fence(1, claim));
    two.end(1, ClaimEnd::Void(claim.number));
    assert_eq!(two.key_state(), KeyState::Free);
    // Under the same key it is the same message.
    let (claim, again) = (two.claimed(2), two.claimed(2));
    assert_eq!(two.store(2, claim), EnqueueOutcome::Stored);
    assert_eq!(two.store(2, again), EnqueueOutcome::StoredBefore(two.id.machine.time()));
}

#[test]
fn an_id_is_unique_after_its_window_while_its_message_lives() {
    let mut two = Two::new(QueueConfig { dedup_window_s: 1, ..strict() });
    let claim = two.claimed(1);
    assert_eq!(two.store(1, claim), EnqueueOutcome::Stored);
    two.end(1, ClaimEnd::Stored(NOW));
    two.pass(5_000);
    let claim = two.claimed(1);
    assert_eq!(two.store(1, claim), EnqueueOutcome::Duplicate(MessageId(1)));
    assert_eq!(
        two.id.enqueue(vec![NewMessage { dedup_key: None, ..made(1) }]),
        [EnqueueOutcome::Duplicate(MessageId(1))]
    );
}

#[test]
fn claims_of_one_key_are_bounded_and_without_a_window_there_are_none() {
    let mut two = Two::new(strict());
    (0..CLAIMS_OF_KEY_MAX).for_each(|_| {
        two.claimed(1);
    });
    assert!(matches!(two.key.claim(KEY, 1), ClaimOutcome::Pending(_)));
    let mut off = Two::new(QueueConfig { dedup_window_s: 0, ..strict() });
    assert_eq!(off.key.claim(KEY, 1), ClaimOutcome::Off);
}

#[test]
fn a_claim_that_nobody_ends_is_forgotten_when_its_window_must_be_over() {
    let mut two = Two::new(QueueConfig { dedup_window_s: 5, ..strict() });
    let empty = two.key.machine.digest();
    two.claimed(1);
    two.pass(CLAIM_MS + 4_999);
    assert!(two.is_pending(1));
    two.pass(1);
    assert_eq!(two.key_state(), KeyState::Free);
    assert_ne!(two.key.machine.digest(), empty, "numbers go on");
}

#[test]
fn the_window_runs_from_the_storing_however_late_that_is_told() {
    let mut two = Two::new(QueueConfig { dedup_window_s: 30, ..strict() });
    let claim = two.claimed(1);
    two.pass(5);
    let stored_at = two.id.machine.time();
    two.store(1, claim);
    two.pass(20_000);
    assert_eq!(two.fenced(1, claim), Some(stored_at));
    two.end(1, ClaimEnd::Stored(stored_at));
    two.pass(9_999);
    assert_eq!(two.key_state(), KeyState::Taken(MessageId(1)));
    two.pass(1);
    assert_eq!(two.key_state(), KeyState::Free);
}
