//! Limits that span shards, kept exactly by the queue's home core: depth in messages and bytes, delivery caps; and the
//! enqueue rates of tenants, kept by each tenant's home core.
//!
//! Depth is what the shards last told, plus what was let in and is not answered yet. That is never less than the truth,
//! so depth is never exceeded; before anything is refused the shards are asked, so nothing is refused early. They are
//! asked too before a core that begins to be a queue's home lets in the first: it may not have been told of all of them.

use crate::config::CoreConfig;
use crate::directory::QueueEntry;
use crate::enqueue::{Admitted, Placed, take_round};
use crate::gather::GatherKind;
use crate::sessions::Origin;
use crate::{Core, Operation, OperationId};
use overtake_base::hash::Map;
use overtake_base::queue_config::QueueConfig;
use overtake_base::{QueueId, ShardId, UnixMillis};
use overtake_queue::command::{RefusedReason, Room};
use overtake_queue::rate::{RateLimiter, TokenBucket};
use overtake_wire::message::Refusal;
use std::collections::{BTreeMap, VecDeque};

/// Limits of all queues at home on this core.
#[derive(Default)]
pub(crate) struct Quotas {
    depth: Map<QueueId, DepthQuota>,
    caps: Map<QueueId, RateLimiter>,
}

#[derive(Default)]
struct DepthQuota {
    line: VecDeque<OperationId>,
    in_flight: Admitted,
    /// All shards have told their depth since this core is the queue's home.
    known: bool,
    /// The shards have been asked for the first of the line.
    asked: Asked,
}

#[derive(Default, PartialEq, Eq)]
enum Asked {
    #[default]
    No,
    Waiting,
    Answered,
}

impl Quotas {
    pub(crate) fn configure(&mut self, queue: QueueId, config: &QueueConfig, now: UnixMillis) {
        if config.rate_caps.is_empty() {
            self.caps.remove(&queue);
        } else {
            match self.caps.get_mut(&queue) {
                Some(limiter) => limiter.reconfigure(&config.rate_caps, now),
                None => {
                    self.caps.insert(queue, RateLimiter::new(&config.rate_caps, now));
                }
            }
        }
    }

    /// Forgets a deleted queue; gives the enqueues that stood in line.
    pub(crate) fn remove(&mut self, queue: QueueId) -> VecDeque<OperationId> {
        self.caps.remove(&queue);
        self.depth.remove(&queue).map(|quota| quota.line).unwrap_or_default()
    }

    /// The caps of a queue over several shards that is at home here; none where it has no caps.
    pub(crate) fn caps(&self, queue: QueueId) -> Option<&RateLimiter> {
        self.caps.get(&queue)
    }

    /// The same, to take deliveries of.
    pub(crate) fn caps_mut(&mut self, queue: QueueId) -> Option<&mut RateLimiter> {
        self.caps.get_mut(&queue)
    }

    /// This core begins to be a queue's home: deliveries elsewhere and depths are not known here.
    pub(crate) fn home_moved_here(&mut self, queue: QueueId, now: UnixMillis) {
        if let Some(limiter) = self.caps.get_mut(&queue) {
            limiter.empty(now);
        }
        if let Some(quota) = self.depth.get_mut(&queue) {
            quota.known = false;
        }
    }

    pub(crate) fn line_up(&mut self, queue: QueueId, operation: OperationId) {
        self.depth.entry(queue).or_default().line.push_back(operation);
    }

    /// Counts what is let in until it is settled.
    pub(crate) fn let_in(&mut self, queue: QueueId, admitted: Admitted) {
        let quota = self.depth.entry(queue).or_default();
        quota.in_flight.messages += admitted.messages;
        quota.in_flight.bytes += admitted.bytes;
    }

    /// Puts an enqueue first in line that has more to store, now that what was let in is answered.
    pub(crate) fn next_round(&mut self, queue: QueueId, operation: OperationId, admitted: Admitted) {
        self.settled(queue, admitted);
        self.depth.entry(queue).or_default().line.push_front(operation);
    }

    pub(crate) fn settled(&mut self, queue: QueueId, admitted: Admitted) {
        if let Some(quota) = self.depth.get_mut(&queue) {
            quota.in_flight.messages = quota.in_flight.messages.saturating_sub(admitted.messages);
            quota.in_flight.bytes = quota.in_flight.bytes.saturating_sub(admitted.bytes);
        }
    }
}

/// What was found of the first messages of a round.
struct Judged {
    /// For each, whether and why it does not fit.
    refusals: Vec<Option<RefusedReason>>,
    admitted: Admitted,
}

/// Judges each message by itself, in order. It ends at one for which there is no room, but would be if one let in before
/// it turned out to be a repeat.
fn judge(round: &[Placed], used: Admitted, max_depth: Option<u64>, max_bytes: Option<u64>) -> Judged {
    let mut judged = Judged { refusals: Vec::with_capacity(round.len()), admitted: Admitted::default() };
    let mut may_be_less = false;
    for placed in round {
        let Admitted { messages, bytes } = judged.admitted;
        let more = placed.body_bytes();
        let reason = if max_depth.is_some_and(|max| used.messages + messages + 1 > max) {
            Some(RefusedReason::Depth)
        } else if max_bytes.is_some_and(|max| used.bytes + bytes + more > max) {
            Some(RefusedReason::Bytes)
        } else {
            None
        };
        if reason.is_some() && may_be_less {
            break;
        }
        if reason.is_none() {
            judged.admitted = Admitted { messages: messages + 1, bytes: bytes + more };
            may_be_less |= placed.may_repeat();
        }
        judged.refusals.push(reason);
    }
    judged
}

impl Core {
    /// Lets in what fits of the enqueues and redrives in line, and then of redrive jobs.
    pub(crate) fn admit(&mut self, queue: QueueId) {
        self.admit_line(queue);
        self.grant_turns(queue);
    }

    /// The room that the queue has by what is known.
    pub(crate) fn free_room(&self, queue: &QueueEntry) -> Room {
        let (id, config) = (queue.record.id, &queue.record.config);
        let (depth, bytes) = self.view.queue(id).map_or((0, 0), crate::view::QueueHeads::depth);
        let in_flight = self.quotas.depth.get(&id).map(|quota| quota.in_flight).unwrap_or_default();
        let left = |max: Option<u64>, used: u64| max.map_or(u64::MAX, |max| max.saturating_sub(used));
        Room {
            messages: left(config.max_depth, depth + in_flight.messages),
            bytes: left(config.max_bytes, bytes + in_flight.bytes),
        }
    }

    /// A redrive is first in line. False where the line has to wait.
    fn admit_redrive(&mut self, queue: QueueId, operation: OperationId) -> bool {
        let Some(Operation::Redrive(state)) = self.operations.get(&operation) else { return true };
        let free = self.free_room(&state.queue);
        let Some(quota) = self.quotas.depth.get_mut(&queue) else { return true };
        if quota.asked == Asked::No {
            quota.asked = Asked::Waiting;
            self.ask_depth(queue);
            return false;
        }
        let others = quota.in_flight != Admitted::default();
        if !self.grant_redrive(operation, free, others) {
            return false;
        }
        if let Some(quota) = self.quotas.depth.get_mut(&queue) {
            quota.asked = Asked::No;
            quota.line.pop_front();
        }
        true
    }

    fn admit_line(&mut self, queue: QueueId) {
        while let Some(quota) = self.quotas.depth.get_mut(&queue) {
            let Some(operation) = quota.line.front().copied() else { return };
            if quota.asked == Asked::Waiting || !self.knows_depth(queue) {
                return;
            }
            if matches!(self.operations.get(&operation), Some(Operation::Redrive(_))) {
                if self.admit_redrive(queue, operation) {
                    continue;
                }
                return;
            }
            let Some(quota) = self.quotas.depth.get_mut(&queue) else { return };
            let Some(Operation::Enqueue(mut state)) = self.operations.remove(&operation) else {
                quota.line.pop_front();
                continue;
            };
            let config = state.queue.as_ref().map(|entry| entry.record.config.clone());
            let (max_depth, max_bytes) = config.map_or((None, None), |c| (c.max_depth, c.max_bytes));
            let (depth, bytes) = self.view.queue(queue).map_or((0, 0), crate::view::QueueHeads::depth);
            let used =
                Admitted { messages: depth + quota.in_flight.messages, bytes: bytes + quota.in_flight.bytes };
            let mut round = take_round(&mut state.pending);
            let Judged { refusals, admitted } = judge(&round, used, max_depth, max_bytes);
            let refuses = refusals.iter().any(Option::is_some);
            // What is under way may turn out to be repeats: then its answers are waited for.
            let waits = refuses && quota.in_flight != Admitted::default();
            if waits || refuses && quota.asked == Asked::No {
                state.put_back(round);
                self.operations.insert(operation, Operation::Enqueue(state));
                if !waits {
                    quota.asked = Asked::Waiting;
                    self.ask_depth(queue);
                }
                return;
            }
            quota.asked = Asked::No;
            quota.in_flight.messages += admitted.messages;
            quota.in_flight.bytes += admitted.bytes;
            quota.line.pop_front();
            state.admitted = admitted;
            state.put_back(round.split_off(refusals.len()));
            for (placed, refusal) in round.iter_mut().zip(refusals) {
                placed.refused = refusal;
            }
            self.store(operation, state, round);
        }
    }

    /// False where nothing is to be let in before the shards, which are being asked, have told their depth.
    pub(crate) fn knows_depth(&mut self, queue: QueueId) -> bool {
        let quota = self.quotas.depth.entry(queue).or_default();
        let known = quota.known;
        if !known && quota.asked != Asked::Waiting {
            quota.asked = Asked::Waiting;
            self.ask_depth(queue);
        }
        known
    }

    fn ask_depth(&mut self, queue: QueueId) {
        let Some(entry) = self.directory.by_id(queue).cloned() else { return };
        let shards = entry.shards.clone();
        let nobody = Origin::Operation(0);
        self.gather(nobody, entry, GatherKind::Depth, &shards, |queue| crate::mesh::Read::Summary { queue });
    }

    /// Every shard has told its depth, which the view knows, or some could not be asked: what they told last counts then,
    /// and where they never told, nothing is let in.
    pub(crate) fn depth_told(&mut self, queue: QueueId, failure: Option<Refusal>) {
        let Some(quota) = self.quotas.depth.get_mut(&queue) else { return };
        if let Some(refusal) = failure.filter(|_| !quota.known) {
            quota.asked = Asked::No;
            let line = core::mem::take(&mut quota.line);
            // Who wants room for turns of a redrive asks again by itself.
            self.room_wanted.forget(queue);
            return line.into_iter().for_each(|operation| self.refuse_in_line(operation, &refusal));
        }
        quota.known = true;
        quota.asked = Asked::Answered;
        self.admit(queue);
    }
}

/// Enqueue rates of tenants.
pub(crate) struct TenantRates {
    homes: BTreeMap<Box<str>, (ShardId, TokenBucket)>,
}

impl TenantRates {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let limited = config.tenants.iter().filter_map(|tenant| Some((tenant, tenant.enqueue_per_s?)));
        let homes = limited
            .map(|(tenant, per_s)| {
                let hash = overtake_base::hash::stable(tenant.name.as_bytes());
                let home = ShardId((hash % u64::from(config.shards)) as u16);
                (tenant.name.as_str().into(), (home, TokenBucket::new(per_s, UnixMillis(0))))
            })
            .collect();
        Self { homes }
    }

    /// The shard whose leader accounts for a tenant; none where its rate is not limited.
    pub(crate) fn home(&self, tenant: &str) -> Option<ShardId> {
        self.homes.get(tenant).map(|(home, _)| *home)
    }

    /// This core begins to lead the home of some tenants. What they had left elsewhere is not known here: they begin with
    /// nothing, so that a rate holds however often its home moves.
    pub(crate) fn home_moved_here(&mut self, shard: ShardId, now: UnixMillis) {
        for (home, bucket) in self.homes.values_mut() {
            if *home == shard {
                bucket.empty(now);
            }
        }
    }

    /// Takes `count` messages of the tenant's rate, or says in how many milliseconds to try again.
    pub(crate) fn take(&mut self, tenant: &str, count: u64, now: UnixMillis) -> Result<(), u32> {
        let Some((_, bucket)) = self.homes.get_mut(tenant) else { return Ok(()) };
        if bucket.try_take(count, now) {
            Ok(())
        } else {
            Err(u32::try_from(bucket.ready_at(count, now).since(now)).unwrap_or(u32::MAX).clamp(1, 60_000))
        }
    }
}
