//! Messages whose dedup key cannot be decided by one command: it belongs to another shard than their id, or it is claimed
//! for a message that may or may not be stored. What the steps are for, and why a crash between them does no harm, stands
//! in `overtake_queue`'s `claims.rs`.
//!
//! Whoever finds its key claimed waits a moment for the outcome, and then settles it: a fence on the shard of the claim's
//! message says whether that was stored. Nothing that is kept here matters for safety.

use crate::convert::failed;
use crate::directory::QueueEntry;
use crate::enqueue::shard_of;
use crate::mesh::{Read, ShardReply, ShardRequest};
use bytes::Bytes;
use overtake_base::{MessageId, QueueId, ShardId, UnixMillis};
use overtake_queue::answer::{Answer, ClaimOutcome, EnqueueOutcome, KeyState, PendingClaim};
use overtake_queue::command::{ClaimEnd, ClaimTicket, Command, NewMessage, RefusedReason};
use overtake_wire::message::{Enqueued, Refusal};

/// Pauses between two looks at a claimed key, in nanoseconds: the first one, then twice the one before, up to the last.
const PAUSE_FIRST_NS: u64 = 1_000_000;
const PAUSE_LAST_NS: u64 = 50_000_000;
/// A claim this old is not waited for, in milliseconds: its claimer is gone, or too slow.
const PATIENCE_MS: u64 = 500;
/// Longest wait for all claims that one message meets, in nanoseconds.
const WAIT_NS_MAX: u64 = 5_000_000_000;
/// When to try again where the key is still contested, in milliseconds.
const RETRY_MS: u32 = 200;

/// One such message on its way.
pub(crate) struct Claimer {
    pub place: usize,
    queue: QueueId,
    /// Where it is stored, and where its key belongs: these may be the same.
    shard: ShardId,
    key_shard: ShardId,
    key: Bytes,
    message: NewMessage,
    /// Why it is refused where it is no repeat.
    refused: Option<RefusedReason>,
    claim: Option<ClaimTicket>,
    /// The claim in its way.
    other: Option<PendingClaim>,
    since_ns: u64,
    pause_ns: u64,
}

/// What a reply about such a message answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClaimStep {
    /// Is it a repeat, by its key, by the key of a claim in its way, by its id? For one that is refused otherwise.
    LookByKey,
    LookAtOther,
    LookById,
    Claim,
    Store,
    /// Stored by one command: id and key belong to one shard.
    StoreThere,
    Pause,
    Fence,
    Void,
}

/// What is to be done next.
pub(crate) enum Next {
    Ask(ClaimStep, ShardId, ShardRequest),
    /// Until this monotonic time.
    Pause(u64),
    Done(Result<Enqueued, Refusal>),
    /// A shard's refusal, counted there.
    Refused(RefusedReason),
    /// Refused before any shard was asked to store it: to be counted.
    Note(RefusedReason),
    /// A shard does not know the queue.
    NoQueue,
}

/// The next step, and a command that nobody needs to wait for.
pub(crate) struct Turn {
    pub next: Next,
    pub aside: Option<(ShardId, Command)>,
}

impl From<Next> for Turn {
    fn from(next: Next) -> Self {
        Self { next, aside: None }
    }
}

impl Claimer {
    pub(crate) fn new(
        queue: &QueueEntry,
        place: usize,
        shard: ShardId,
        message: NewMessage,
        refused: Option<RefusedReason>,
        now_ns: u64,
    ) -> Self {
        let key = message.dedup_key.clone().unwrap_or_default();
        Self {
            place,
            queue: queue.record.id,
            shard,
            key_shard: queue.shard_at(overtake_base::routing::of_key(&key)),
            key,
            message,
            refused,
            claim: None,
            other: None,
            since_ns: now_ns,
            pause_ns: PAUSE_FIRST_NS,
        }
    }

    pub(crate) fn begin(&mut self) -> Next {
        if self.refused.is_none() {
            return self.attempt();
        }
        let id = (self.shard == self.key_shard && self.message.client_made_id).then_some(self.message.id);
        let read = Read::Lookup { queue: self.queue, key: Some(self.key.clone()), id };
        Next::Ask(ClaimStep::LookByKey, self.key_shard, ShardRequest::Read(read))
    }

    /// Begins with its key found claimed.
    pub(crate) fn begin_behind(&mut self, queue: &QueueEntry, other: PendingClaim, now_ns: u64) -> Next {
        if self.refused.is_some() { self.look_at(queue, other) } else { self.wait(queue, other, now_ns) }
    }

    /// Takes a step's reply.
    pub(crate) fn take(
        &mut self,
        queue: &QueueEntry,
        step: ClaimStep,
        reply: &ShardReply,
        (now, now_ns): (UnixMillis, u64),
    ) -> Turn {
        match (step, reply) {
            (ClaimStep::Pause, _) | (ClaimStep::Void, ShardReply::Answer(Answer::Done)) => {
                self.attempt().into()
            }
            (_, ShardReply::Answer(Answer::NoQueue)) => Next::NoQueue.into(),
            (ClaimStep::LookByKey, ShardReply::Found(KeyState::Pending(other))) => {
                self.look_at(queue, *other).into()
            }
            (
                ClaimStep::LookByKey | ClaimStep::LookAtOther | ClaimStep::LookById,
                ShardReply::Found(KeyState::Taken(first)),
            ) => self.repeat(queue, *first).into(),
            (ClaimStep::LookByKey | ClaimStep::LookAtOther, ShardReply::Found(_))
                if self.message.client_made_id =>
            {
                let read = Read::Lookup { queue: self.queue, key: None, id: Some(self.message.id) };
                Next::Ask(ClaimStep::LookById, self.shard, ShardRequest::Read(read)).into()
            }
            (_, ShardReply::Found(_)) => Next::Note(self.refused.unwrap_or(RefusedReason::Depth)).into(),
            (ClaimStep::Claim, ShardReply::Answer(Answer::Claim(outcome))) => {
                self.claimed(queue, *outcome, now_ns).into()
            }
            (ClaimStep::Store | ClaimStep::StoreThere, ShardReply::Answer(Answer::Enqueued(outcomes))) => {
                match outcomes.first() {
                    Some(outcome) => self.stored(queue, *outcome, now, now_ns),
                    None => Next::Done(Err(failed(reply))).into(),
                }
            }
            (ClaimStep::Fence, ShardReply::Answer(Answer::Fenced(stored))) => self.fenced(queue, *stored),
            (ClaimStep::Store, ShardReply::Failed { unknown: false, .. }) => {
                Turn { next: Next::Done(Err(failed(reply))), aside: self.end(None) }
            }
            // Where it was to be stored nobody knows; everywhere else nothing was.
            (ClaimStep::Store | ClaimStep::StoreThere, reply) => Next::Done(Err(failed(reply))).into(),
            (_, ShardReply::Failed { detail, .. }) => {
                Next::Done(Err(Refusal::no_quorum(*detail, RETRY_MS))).into()
            }
            (_, reply) => Next::Done(Err(failed(reply))).into(),
        }
    }

    fn attempt(&mut self) -> Next {
        if self.shard == self.key_shard {
            let messages = vec![self.message.clone()];
            return self.command(ClaimStep::StoreThere, Command::Enqueue { queue: self.queue, messages });
        }
        let (queue, key, id) = (self.queue, self.key.clone(), self.message.id);
        self.command(ClaimStep::Claim, Command::Claim { queue, key, id })
    }

    fn command(&self, step: ClaimStep, command: Command) -> Next {
        let at_key = matches!(step, ClaimStep::Claim | ClaimStep::Void);
        let shard = if at_key { self.key_shard } else { self.shard };
        Next::Ask(step, shard, ShardRequest::Command(command))
    }

    fn claimed(&mut self, queue: &QueueEntry, outcome: ClaimOutcome, now_ns: u64) -> Next {
        match outcome {
            ClaimOutcome::Claimed(claim) => {
                self.claim = Some(claim);
                let message = self.message.clone();
                self.command(ClaimStep::Store, Command::StoreClaimed { queue: self.queue, claim, message })
            }
            ClaimOutcome::Taken(first) => self.repeat(queue, first),
            ClaimOutcome::Pending(other) => self.wait(queue, other, now_ns),
            ClaimOutcome::Off => {
                let message = NewMessage { dedup_key: None, ..self.message.clone() };
                let command = Command::Enqueue { queue: self.queue, messages: vec![message] };
                self.command(ClaimStep::StoreThere, command)
            }
        }
    }

    fn stored(&mut self, queue: &QueueEntry, outcome: EnqueueOutcome, now: UnixMillis, now_ns: u64) -> Turn {
        let next = match outcome {
            EnqueueOutcome::Stored => {
                let (id, shard) = (self.message.id, self.shard.0);
                Next::Done(Ok(Enqueued { id, shard, duplicate: false }))
            }
            EnqueueOutcome::StoredBefore(_) => self.repeat(queue, self.message.id),
            EnqueueOutcome::Duplicate(first) => self.repeat(queue, first),
            EnqueueOutcome::Refused(reason) => Next::Refused(reason),
            EnqueueOutcome::Pending(other) => self.wait(queue, other, now_ns),
            EnqueueOutcome::Late => self.again(now_ns),
        };
        let stored_at = match outcome {
            EnqueueOutcome::Stored => Some(now),
            EnqueueOutcome::StoredBefore(at) => Some(at),
            _ => None,
        };
        Turn { next, aside: self.end(stored_at) }
    }

    fn again(&mut self, now_ns: u64) -> Next {
        if now_ns.saturating_sub(self.since_ns) < WAIT_NS_MAX {
            return self.pause(now_ns);
        }
        let detail = "another message with this dedup_key is being stored, or the clocks of two nodes differ too much; \
                      try again";
        Next::Done(Err(Refusal::no_quorum(detail, RETRY_MS)))
    }

    fn pause(&mut self, now_ns: u64) -> Next {
        let until_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_LAST_NS);
        Next::Pause(until_ns)
    }

    /// Something else may be stored under the key: waits for the outcome, or finds it out.
    fn wait(&mut self, queue: &QueueEntry, other: PendingClaim, now_ns: u64) -> Next {
        if other.age_ms < PATIENCE_MS {
            return self.again(now_ns);
        }
        self.other = Some(other);
        let (key, PendingClaim { id, claim, .. }) = (self.key.clone(), other);
        let command = Command::FenceClaim { queue: self.queue, key, id, claim };
        Next::Ask(ClaimStep::Fence, shard_of(queue, id), ShardRequest::Command(command))
    }

    fn fenced(&mut self, queue: &QueueEntry, stored: Option<UnixMillis>) -> Turn {
        let Some(PendingClaim { id, claim, .. }) = self.other else { return self.attempt().into() };
        let end = |end| Command::EndClaim { queue: self.queue, key: self.key.clone(), id, end };
        if let Some(at) = stored {
            let told = end(ClaimEnd::Stored(at));
            return Turn { next: self.repeat(queue, id), aside: Some((self.key_shard, told)) };
        }
        self.command(ClaimStep::Void, end(ClaimEnd::Void(claim.number))).into()
    }

    fn look_at(&self, queue: &QueueEntry, other: PendingClaim) -> Next {
        let (id, key) = (other.id, self.key.clone());
        let read = Read::StoredUnder { queue: self.queue, id, key };
        Next::Ask(ClaimStep::LookAtOther, shard_of(queue, id), ShardRequest::Read(read))
    }

    /// Says on the key's shard what became of the claim.
    fn end(&mut self, stored_at: Option<UnixMillis>) -> Option<(ShardId, Command)> {
        let claim = self.claim.take()?;
        let end = stored_at.map_or(ClaimEnd::NotStored(claim.number), ClaimEnd::Stored);
        let (queue, key, id) = (self.queue, self.key.clone(), self.message.id);
        Some((self.key_shard, Command::EndClaim { queue, key, id, end }))
    }

    fn repeat(&self, queue: &QueueEntry, first: MessageId) -> Next {
        Next::Done(Ok(Enqueued { id: first, shard: shard_of(queue, first).0, duplicate: true }))
    }
}
