//! Messages with both a client-made id and a dedup key that belong to different shards.
//!
//! The message lives where its key belongs. A repeat of the id alone would look for it where the id belongs, so the id is
//! remembered there too, for the dedup window. Both shards are asked first, the key deciding; the message is stored
//! before its id is remembered, so that a crash in between can leave a repeat that is stored twice, never one that is
//! answered and not stored.

use crate::convert::failed;
use crate::directory::QueueEntry;
use crate::enqueue::{EnqueueOperation, Part, Placed, note_refused, result_of, shard_of};
use crate::mesh::{Read, ShardReply, ShardRequest};
use overtake_base::{MessageId, ShardId};
use overtake_queue::answer::{Answer, EnqueueOutcome};
use overtake_queue::command::{Command, NewMessage, RefusedReason};
use overtake_wire::message::{Enqueued, Refusal};

/// One such message on its way.
pub(crate) struct Stray {
    place: usize,
    id: MessageId,
    /// Where it is stored, and where its id belongs.
    shard: ShardId,
    id_shard: ShardId,
    message: Option<NewMessage>,
    /// Why it is refused where it is no repeat.
    refused: Option<RefusedReason>,
    by_key: Option<MessageId>,
    by_id: bool,
    looks_left: u8,
    failed: Option<Refusal>,
}

/// What a reply about a stray message answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StrayStep {
    LookByKey,
    LookById,
    Store,
    Remember(Enqueued),
}

/// Whether a message's id and key belong to different shards.
pub(crate) fn is_stray(queue: &QueueEntry, placed: &Placed) -> bool {
    let message = &placed.message;
    message.client_made_id && message.dedup_key.is_some() && shard_of(queue, message.id, None) != placed.shard
}

/// Asks both shards whether the message is a repeat; one that is none is then stored, or refused where there is a reason.
pub(crate) fn look_before(
    state: &mut EnqueueOperation,
    queue: &QueueEntry,
    placed: Placed,
    refused: Option<RefusedReason>,
    requests: &mut Vec<(ShardId, ShardRequest)>,
) {
    let Placed { place, shard, message } = placed;
    let (id, key) = (message.id, message.dedup_key.clone());
    let id_shard = shard_of(queue, id, None);
    let stray = state.strays.len();
    state.strays.push(Stray {
        place,
        id,
        shard,
        id_shard,
        message: Some(message),
        refused,
        by_key: None,
        by_id: false,
        looks_left: 2,
        failed: None,
    });
    let queue = queue.record.id;
    state.parts.push(Part::Stray(stray, StrayStep::LookByKey));
    requests.push((shard, ShardRequest::Read(Read::Lookup { queue, key, id: None })));
    state.parts.push(Part::Stray(stray, StrayStep::LookById));
    requests.push((id_shard, ShardRequest::Read(Read::Lookup { queue, key: None, id: Some(id) })));
}

/// Takes a step's reply; gives the next step's request, its part pushed, where there is one.
pub(crate) fn stray_replied(
    state: &mut EnqueueOperation,
    number: usize,
    step: StrayStep,
    reply: &ShardReply,
) -> Option<(ShardId, ShardRequest)> {
    let queue = state.queue.as_ref()?.record.id;
    let stray = &mut state.strays[number];
    let place = stray.place;
    match (step, reply) {
        (StrayStep::LookByKey, ShardReply::Found(found)) => stray.by_key = *found,
        (StrayStep::LookById, ShardReply::Found(found)) => stray.by_id = found.is_some(),
        (StrayStep::Store, ShardReply::Answer(Answer::Enqueued(outcomes))) => {
            let outcome = outcomes.first().copied().unwrap_or(EnqueueOutcome::Stored);
            let result = result_of(stray.shard, stray.id, outcome, state.retry_ms);
            // A repeat claims nothing; one of itself may come from a crash before its id was remembered.
            if let Ok(stored) = &result
                && stored.id == stray.id
            {
                let command = Command::RememberId { queue, id: stray.id };
                state.parts.push(Part::Stray(number, StrayStep::Remember(*stored)));
                return Some((stray.id_shard, ShardRequest::Command(command)));
            }
            state.results[place] = Some(result);
            return None;
        }
        (StrayStep::Remember(stored), _) => {
            state.results[place] = Some(Ok(stored));
            return None;
        }
        (StrayStep::Store, ShardReply::Answer(_)) => {
            state.results[place] = Some(Err(Refusal::not_found("the queue was deleted")));
            return None;
        }
        (StrayStep::Store, reply) => {
            state.results[place] = Some(Err(failed(reply)));
            return None;
        }
        (StrayStep::LookByKey | StrayStep::LookById, reply) => stray.failed = Some(failed(reply)),
    }
    stray.looks_left -= 1;
    if stray.looks_left > 0 {
        return None;
    }
    let repeat = |id, shard: ShardId| Some(Ok(Enqueued { id, shard: shard.0, duplicate: true }));
    if let Some(refusal) = stray.failed.take() {
        state.results[place] = Some(Err(refusal));
    } else if let Some(first) = stray.by_key {
        state.results[place] = repeat(first, stray.shard);
    } else if stray.by_id {
        state.results[place] = repeat(stray.id, stray.id_shard);
    } else if let Some(reason) = stray.refused {
        return note_refused(state, place, reason);
    } else if let Some(message) = stray.message.take() {
        let shard = stray.shard;
        state.parts.push(Part::Stray(number, StrayStep::Store));
        return Some((shard, ShardRequest::Command(Command::Enqueue { queue, messages: vec![message] })));
    }
    None
}
