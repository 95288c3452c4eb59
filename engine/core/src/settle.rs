//! Acks, extensions and releases: receipts are sorted by shard, each is answered separately.

use crate::convert::{failed, refused};
use crate::identity::Tenant;
use crate::mesh::{ShardReply, ShardRequest};
use crate::sessions::Origin;
use crate::{Core, Operation, OperationId};
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Receipt, ShardId};
use overtake_queue::answer::{Answer, SettleOutcome};
use overtake_queue::command::{Command, Extension, LeaseKey, Return};
use overtake_wire::message::{Refusal, Response, Settle, Settled};
use std::collections::BTreeMap;

/// A settle request under way.
pub(crate) struct SettleOperation {
    origin: Origin,
    ack: Vec<Settled>,
    extend: Vec<Settled>,
    release: Vec<Settled>,
    parts: Vec<Part>,
    outstanding: usize,
    failed: Option<Refusal>,
    /// Some shard did its part.
    any_done: bool,
}

/// Places in the request's three lists that one shard answers.
#[derive(Default)]
struct Part {
    ack: Vec<usize>,
    extend: Vec<usize>,
    release: Vec<usize>,
}

#[derive(Default)]
struct Lists {
    ack: Vec<LeaseKey>,
    extend: Vec<Extension>,
    release: Vec<Return>,
    places: Part,
}

impl Core {
    pub(crate) fn start_settle(&mut self, origin: Origin, tenant: &Tenant, settle: &Settle) {
        let queue = match self.find_queue(tenant, &settle.queue) {
            Ok(queue) => queue,
            Err(refusal) => return self.respond(origin, refused(refusal)),
        };
        if is_planted(Bug::FullRefusesAcks) && self.storage.is_full() {
            return self.respond(origin, refused(Refusal::disk("no room on disk", 1_000)));
        }
        let mut shards: BTreeMap<ShardId, Lists> = BTreeMap::new();
        // A receipt that is malformed or names a shard that the queue is not on stays `Unknown`.
        let known =
            |text: &str| text.parse::<Receipt>().ok().filter(|receipt| queue.shards.contains(&receipt.shard));
        let key = |receipt: Receipt| LeaseKey { sequence: receipt.sequence, deliveries: receipt.deliveries };
        for (place, text) in settle.ack.iter().enumerate() {
            if let Some(receipt) = known(text) {
                let lists = shards.entry(receipt.shard).or_default();
                lists.ack.push(key(receipt));
                lists.places.ack.push(place);
            }
        }
        for (place, extend) in settle.extend.iter().enumerate() {
            if let Some(receipt) = known(&extend.receipt) {
                let lists = shards.entry(receipt.shard).or_default();
                let lease_ms = u64::from(extend.lease_s) * 1_000;
                lists.extend.push(Extension { key: key(receipt), lease_ms });
                lists.places.extend.push(place);
            }
        }
        for (place, release) in settle.release.iter().enumerate() {
            if let Some(receipt) = known(&release.receipt) {
                let lists = shards.entry(receipt.shard).or_default();
                lists.release.push(Return {
                    key: key(receipt),
                    delay_ms: release.delay_s.map(|s| s * 1_000),
                    error: release.error.as_deref().map(Into::into),
                });
                lists.places.release.push(place);
            }
        }
        let mut state = SettleOperation {
            origin,
            ack: vec![Settled::Unknown; settle.ack.len()],
            extend: vec![Settled::Unknown; settle.extend.len()],
            release: vec![Settled::Unknown; settle.release.len()],
            parts: Vec::with_capacity(shards.len()),
            outstanding: shards.len(),
            failed: None,
            any_done: false,
        };
        if shards.is_empty() {
            return self.settled(state);
        }
        let operation = self.next_number();
        let mut commands = Vec::with_capacity(shards.len());
        for (shard, Lists { ack, extend, release, places }) in shards {
            state.parts.push(places);
            commands.push((shard, Command::Settle { queue: queue.record.id, ack, extend, release }));
        }
        self.operations.insert(operation, Operation::Settle(state));
        for (part, (shard, command)) in commands.into_iter().enumerate() {
            self.call(operation, part, shard, ShardRequest::Command(command));
        }
    }

    pub(crate) fn settle_replied(
        &mut self,
        operation: OperationId,
        mut state: SettleOperation,
        part: usize,
        reply: ShardReply,
    ) {
        state.outstanding -= 1;
        let places = core::mem::take(&mut state.parts[part]);
        match reply {
            ShardReply::Answer(Answer::Settled { ack, extend, release }) => {
                state.any_done = true;
                fill(&mut state.ack, &places.ack, &ack);
                fill(&mut state.extend, &places.extend, &extend);
                fill(&mut state.release, &places.release, &release);
            }
            // The queue is gone: its messages are not known any more.
            ShardReply::Answer(_) => {}
            reply => state.failed = Some(failed(&reply)),
        }
        if state.outstanding > 0 {
            self.operations.insert(operation, Operation::Settle(state));
        } else {
            self.settled(state);
        }
    }

    fn settled(&mut self, state: SettleOperation) {
        let SettleOperation { origin, ack, extend, release, failed, any_done, .. } = state;
        let response = match failed {
            None => Response::Settled { ack, extend, release },
            Some(_) if any_done => {
                let detail =
                    "some shards of the queue settled their receipts and some could not; look, then retry";
                refused(Refusal::fate_unknown(detail, 1_000))
            }
            Some(refusal) => refused(refusal),
        };
        self.respond(origin, response);
    }
}

fn fill(results: &mut [Settled], places: &[usize], outcomes: &[SettleOutcome]) {
    for (place, outcome) in places.iter().zip(outcomes) {
        results[*place] = match outcome {
            SettleOutcome::Ok => Settled::Ok,
            SettleOutcome::Stale => Settled::Stale,
            SettleOutcome::Unknown => Settled::Unknown,
        };
    }
}
