//! Requests that ask several shards and put the answers together: statistics, peeks, look-ups, purges, redrives.

use crate::convert::{dead_letter, failed, inspected, peeked, refused, stats};
use crate::directory::QueueEntry;
use crate::enqueue::shard_of;
use crate::errands::Task;
use crate::identity::Tenant;
use crate::mesh::{Read, ShardReply, ShardRequest};
use crate::metrics::queue_metrics;
use crate::page::merge_pages;
use crate::sessions::Origin;
use crate::{Core, Operation, OperationId};
use overtake_base::{Level, MessageId, QueueId, Receipt, ShardId, UnixMillis};
use overtake_queue::answer::{Answer, CancelOutcome, QueueStats};
use overtake_queue::command::{Command, LeaseKey, RedriveSelection};
use overtake_queue::machine::PeekFilter;
use overtake_wire::message::{self, Metric, Refusal, Request, Response};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Shards of one redrive are asked at rates in thousandths of a message per second.
const RATE_SCALE: u128 = 1_000;

/// A request that waits for its shards.
pub(crate) struct GatherOperation {
    origin: Origin,
    queue: Option<Arc<QueueEntry>>,
    kind: GatherKind,
    shards: Vec<ShardId>,
    replies: Vec<Option<ShardReply>>,
    outstanding: usize,
}

/// What is gathered.
pub(crate) enum GatherKind {
    Stats,
    Peek {
        limit: usize,
    },
    DeadLetters {
        limit: usize,
    },
    /// Look-up by id, on the shard that it lives on.
    Inspect,
    Cancel,
    Purge,
    /// First the dead letters are counted, then (unless it is a dry run) brought back.
    RedriveCount {
        redrive: message::Redrive,
    },
    Redrive,
    /// Leases that reached nobody are undone.
    Undelivered,
    /// The depths of a queue's shards, for its quota.
    Depth,
    Metrics,
}

impl Core {
    /// Starts one of the requests that need nothing but gathering.
    pub(crate) fn start_gather(&mut self, origin: Origin, tenant: &Tenant, request: Request) {
        if matches!(request, Request::Metrics) {
            return self.gather_metrics(origin, tenant);
        }
        let queue = match request.queue().map(|name| self.find_queue(tenant, name)) {
            Some(Ok(queue)) => queue,
            Some(Err(refusal)) => return self.respond(origin, refused(refusal)),
            None => return self.respond(origin, refused(Refusal::internal("a request that names no queue"))),
        };
        let takes_room = matches!(&request, Request::DlqRedrive(redrive) if redrive.max_per_s.is_none() && !redrive.dry_run);
        if takes_room && queue.needs_quota() && self.leader_of(queue.home()) != Some(self.me) {
            if let Origin::Core(caller) = origin {
                return self.send_back(caller);
            }
            self.send_errand(origin, queue.home(), Task::Other { tenant: tenant.clone(), request });
            return;
        }
        if let Err(refusal) = self.start_queue_gather(origin, &queue, request) {
            self.respond(origin, refused(refusal));
        }
    }

    fn start_queue_gather(
        &mut self,
        origin: Origin,
        entry: &Arc<QueueEntry>,
        request: Request,
    ) -> Result<(), Refusal> {
        let shards = entry.shards.clone();
        let levels = entry.record.config.levels;
        let e = entry.clone();
        match request {
            Request::Stats { .. } => {
                self.gather(origin, e, GatherKind::Stats, &shards, |queue| Read::Stats { queue })
            }
            Request::Peek { states, priority, limit, after, .. } => {
                let priority = priority.map(|p| level_of(p, levels, "priority")).transpose()?;
                let after = after.as_deref().map(cursor).transpose()?;
                let filter = PeekFilter {
                    visible: states.visible,
                    delayed: states.delayed,
                    leased: states.leased,
                    priority,
                };
                let limit = limit as usize;
                let read = |queue| Read::Peek { queue, filter, after, limit };
                self.gather(origin, e, GatherKind::Peek { limit }, &shards, read);
            }
            Request::DlqList { limit, after, .. } => {
                let after = after.as_deref().map(cursor).transpose()?;
                let limit = limit as usize;
                let read = |queue| Read::DeadLetters { queue, after, limit };
                self.gather(origin, e, GatherKind::DeadLetters { limit }, &shards, read);
            }
            Request::Inspect { id, .. } => {
                let shards = [shard_of(entry, id)];
                self.gather(origin, e, GatherKind::Inspect, &shards, |queue| Read::Inspect { queue, id });
            }
            Request::Cancel { id, .. } => {
                let command = Command::Cancel { queue: entry.record.id, id };
                self.command_all(origin, e, GatherKind::Cancel, &[shard_of(entry, id)], &command);
            }
            Request::Purge { .. } => {
                let command = Command::Purge { queue: entry.record.id };
                self.command_all(origin, e, GatherKind::Purge, &shards, &command);
            }
            Request::DlqPurge { .. } => {
                let command = Command::PurgeDeadLetters { queue: entry.record.id };
                self.command_all(origin, e, GatherKind::Purge, &shards, &command);
            }
            Request::Undelivered { receipts, .. } => {
                let mut shards: BTreeMap<ShardId, Vec<LeaseKey>> = BTreeMap::new();
                for receipt in receipts.iter().filter_map(|text| text.parse::<Receipt>().ok()) {
                    let Receipt { shard, sequence, deliveries } = receipt;
                    if entry.shards.contains(&shard) {
                        shards.entry(shard).or_default().push(LeaseKey { sequence, deliveries });
                    }
                }
                let unlease = |leases| Command::Unlease { queue: entry.record.id, leases };
                let requests = shards
                    .into_iter()
                    .map(|(shard, leases)| (shard, ShardRequest::Command(unlease(leases))))
                    .collect();
                self.ask(origin, Some(e), GatherKind::Undelivered, requests);
            }
            Request::DlqRedrive(redrive) => {
                let selection = selection_of(&redrive.selection, levels)?;
                redrive.priority.map(|p| level_of(p, levels, "priority")).transpose()?;
                let kind = GatherKind::RedriveCount { redrive };
                let read = |queue| Read::CountDead { queue, selection: selection.clone() };
                self.gather(origin, e, kind, &shards, read);
            }
            _ => return Err(Refusal::internal("a request that cannot be gathered")),
        }
        Ok(())
    }

    /// Asks the same of several shards.
    pub(crate) fn gather(
        &mut self,
        origin: Origin,
        queue: Arc<QueueEntry>,
        kind: GatherKind,
        shards: &[ShardId],
        read: impl Fn(QueueId) -> Read,
    ) {
        let id = queue.record.id;
        let requests = shards.iter().map(|shard| (*shard, ShardRequest::Read(read(id)))).collect();
        self.ask(origin, Some(queue), kind, requests);
    }

    fn command_all(
        &mut self,
        origin: Origin,
        queue: Arc<QueueEntry>,
        kind: GatherKind,
        shards: &[ShardId],
        command: &Command,
    ) {
        let requests = shards.iter().map(|shard| (*shard, ShardRequest::Command(command.clone()))).collect();
        self.ask(origin, Some(queue), kind, requests);
    }

    fn ask(
        &mut self,
        origin: Origin,
        queue: Option<Arc<QueueEntry>>,
        kind: GatherKind,
        requests: Vec<(ShardId, ShardRequest)>,
    ) {
        let operation = self.next_number();
        let shards: Vec<ShardId> = requests.iter().map(|(shard, _)| *shard).collect();
        let replies = shards.iter().map(|_| None).collect();
        let outstanding = shards.len();
        let state = GatherOperation { origin, queue, kind, shards, replies, outstanding };
        if outstanding == 0 {
            return self.gathered(state);
        }
        self.operations.insert(operation, Operation::Gather(state));
        for (part, (shard, request)) in requests.into_iter().enumerate() {
            self.call(operation, part, shard, request);
        }
    }

    /// Each core of this node tells its counters. It is named by a shard that belongs to it, if there are as many.
    fn gather_metrics(&mut self, origin: Origin, tenant: &Tenant) {
        let shards = (0..self.config.cores).map(ShardId);
        let requests = shards
            .map(|shard| (shard, ShardRequest::Read(Read::Metrics { tenant: tenant.clone() })))
            .collect();
        self.ask(origin, None, GatherKind::Metrics, requests);
    }

    pub(crate) fn gather_replied(
        &mut self,
        operation: OperationId,
        mut state: GatherOperation,
        part: usize,
        reply: ShardReply,
    ) {
        state.outstanding -= 1;
        state.replies[part] = Some(reply);
        if state.outstanding > 0 {
            self.operations.insert(operation, Operation::Gather(state));
        } else {
            self.gathered(state);
        }
    }

    fn gathered(&mut self, mut state: GatherOperation) {
        let origin = state.origin;
        let replies: Vec<(ShardId, ShardReply)> = state
            .shards
            .iter()
            .copied()
            .zip(core::mem::take(&mut state.replies).into_iter().flatten())
            .collect();
        if matches!(state.kind, GatherKind::Depth) {
            if let Some(queue) = &state.queue {
                let id = queue.record.id;
                let failure = replies.iter().find(|(_, reply)| matches!(reply, ShardReply::Failed { .. }));
                self.depth_told(id, failure.map(|(_, reply)| failed(reply)));
            }
            return;
        }
        if let Some((_, reply)) = replies.iter().find(|(_, reply)| matches!(reply, ShardReply::Failed { .. }))
        {
            let refusal = match failed(reply) {
                // Commands that other shards carried out cannot be taken back.
                _ if replies.iter().any(|(_, reply)| matches!(reply, ShardReply::Answer(_))) => {
                    Refusal::fate_unknown("some shards of the queue did it and some could not; retry", 1_000)
                }
                refusal => refusal,
            };
            return self.respond(origin, refused(refusal));
        }
        if replies
            .iter()
            .any(|(_, reply)| matches!(reply, ShardReply::Answer(Answer::NoQueue) | ShardReply::Stats(None)))
        {
            return self.respond(origin, refused(Refusal::not_found("the queue was deleted")));
        }
        let response = match state.kind {
            GatherKind::Stats => Response::Stats(stats(sum_stats(replies), self.time())),
            GatherKind::Peek { limit } => peek_page(replies, limit),
            GatherKind::DeadLetters { limit } => dead_page(replies, limit),
            GatherKind::Purge => {
                Response::Purged { purged: replies.iter().map(|(_, reply)| count_of(reply)).sum() }
            }
            GatherKind::Redrive => {
                Response::Redriven { moved: replies.iter().map(|(_, reply)| count_of(reply)).sum() }
            }
            GatherKind::Undelivered => Response::Done,
            GatherKind::Metrics => metrics_page(replies, self.time()),
            GatherKind::Inspect => inspected_page(state.queue.as_deref(), replies),
            GatherKind::Cancel => cancelled(&replies),
            GatherKind::RedriveCount { redrive } => {
                return self.redrive_counted(origin, state.queue, redrive, replies);
            }
            GatherKind::Depth => return,
        };
        self.respond(origin, response);
    }

    fn redrive_counted(
        &mut self,
        origin: Origin,
        queue: Option<Arc<QueueEntry>>,
        redrive: message::Redrive,
        replies: Vec<(ShardId, ShardReply)>,
    ) {
        let Some(queue) = queue else { return };
        let counts: Vec<(ShardId, u64)> =
            replies.iter().map(|(shard, reply)| (*shard, count_of(reply))).collect();
        let total: u64 = counts.iter().map(|(_, count)| count).sum();
        if redrive.dry_run || total == 0 {
            return self.respond(origin, Response::Redriven { moved: total });
        }
        let levels = queue.record.config.levels;
        let Ok(selection) = selection_of(&redrive.selection, levels) else { return };
        let priority = redrive.priority.and_then(|p| u8::try_from(p).ok()).map(Level);
        if redrive.max_per_s.is_none() && queue.needs_quota() {
            return self.redrive_into_room(origin, queue, selection, priority, counts);
        }
        let id = queue.record.id;
        // Each shard moves at its part of the rate, so that together they keep it.
        let rate = |count: u64| {
            let per_s = redrive.max_per_s?;
            let part = u128::from(per_s) * RATE_SCALE * u128::from(count) / u128::from(total);
            Some(u64::try_from(part).unwrap_or(u64::MAX).max(u64::from(per_s > 0)))
        };
        let requests = counts
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(shard, count)| {
                let redrive = overtake_queue::command::Redrive {
                    selection: selection.clone(),
                    priority,
                    rate_per_1000_s: rate(count),
                    room: None,
                };
                (shard, ShardRequest::Command(Command::Redrive { queue: id, redrive }))
            })
            .collect();
        self.ask(origin, Some(queue), GatherKind::Redrive, requests);
    }
}

fn inspected_page(queue: Option<&QueueEntry>, replies: Vec<(ShardId, ShardReply)>) -> Response {
    let capped = queue.is_some_and(QueueEntry::is_capped);
    let found = replies.into_iter().find_map(|(shard, reply)| match reply {
        ShardReply::Inspected(Some(view)) => Some(inspected(shard, view, capped)),
        _ => None,
    });
    found.map_or_else(|| refused(no_message()), Response::Inspected)
}

fn cancelled(replies: &[(ShardId, ShardReply)]) -> Response {
    match replies.first() {
        Some((_, ShardReply::Answer(Answer::Cancelled(CancelOutcome::Cancelled)))) => Response::Done,
        Some((_, ShardReply::Answer(Answer::Cancelled(CancelOutcome::Leased)))) => {
            let detail = "the message is leased; it can be cancelled when it is back, or acked by its worker";
            refused(Refusal::conflict(detail))
        }
        Some((_, ShardReply::Answer(Answer::Cancelled(CancelOutcome::Dead)))) => {
            let detail = "the message is a dead letter, which cannot be cancelled: redrive it, or purge the dead letters";
            refused(Refusal::not_found(detail))
        }
        _ => refused(no_message()),
    }
}

fn no_message() -> Refusal {
    Refusal::not_found("no such message in this queue: acked, expired, cancelled or never there")
}

fn level_of(priority: u32, levels: u8, field: &str) -> Result<Level, Refusal> {
    u8::try_from(priority).ok().filter(|level| *level < levels).map(Level).ok_or_else(|| {
        Refusal::invalid(field, format!("{field} must be 0..={}, this queue has {levels} levels", levels - 1))
    })
}

fn selection_of(selection: &message::RedriveSelection, levels: u8) -> Result<RedriveSelection, Refusal> {
    Ok(match selection {
        message::RedriveSelection::All => RedriveSelection::All,
        message::RedriveSelection::Ids(ids) => RedriveSelection::Ids(ids.clone()),
        message::RedriveSelection::FromPriority(priority) => {
            RedriveSelection::FromPriority(level_of(*priority, levels, "from_priority")?)
        }
    })
}

/// A cursor is the id of the last message of the page before.
fn cursor(text: &str) -> Result<MessageId, Refusal> {
    text.parse().map_err(|_| Refusal::invalid("after", "after must be the 'next' of the page before"))
}

fn count_of(reply: &ShardReply) -> u64 {
    match reply {
        ShardReply::Count(count) | ShardReply::Answer(Answer::Purged(count) | Answer::Redriven(count)) => {
            *count
        }
        _ => 0,
    }
}

fn sum_stats(replies: Vec<(ShardId, ShardReply)>) -> QueueStats {
    let mut sum: Option<QueueStats> = None;
    for (_, reply) in replies {
        if let ShardReply::Stats(Some(part)) = reply {
            match &mut sum {
                Some(sum) => sum.add(&part),
                None => sum = Some(part),
            }
        }
    }
    sum.unwrap_or_default()
}

fn peek_page(replies: Vec<(ShardId, ShardReply)>, limit: usize) -> Response {
    let pages = replies.into_iter().filter_map(|(_, reply)| match reply {
        ShardReply::Peeked(page) => Some(page),
        _ => None,
    });
    let (found, next) = merge_pages(pages, limit);
    let messages = found.into_iter().map(|(view, payload)| peeked(view, payload)).collect();
    Response::Peeked { messages, next: next.map(|id| id.to_string()) }
}

fn dead_page(replies: Vec<(ShardId, ShardReply)>, limit: usize) -> Response {
    let pages = replies.into_iter().filter_map(|(_, reply)| match reply {
        ShardReply::DeadLetters(page) => Some(page),
        _ => None,
    });
    let (found, next) = merge_pages(pages, limit);
    let messages = found.into_iter().map(|(view, payload)| dead_letter(view, payload)).collect();
    Response::DeadLetters { messages, next: next.map(|id| id.to_string()) }
}

/// The cores' values, those of the same name and labels added up; then those of the queues.
fn metrics_page(replies: Vec<(ShardId, ShardReply)>, now: UnixMillis) -> Response {
    type Key = (String, Vec<(String, String)>);
    let mut sums: BTreeMap<Key, (f64, bool)> = BTreeMap::new();
    let mut queues: BTreeMap<Box<str>, QueueStats> = BTreeMap::new();
    for (_, reply) in replies {
        let ShardReply::Metrics(metrics, parts) = reply else { continue };
        for (name, part) in parts {
            queues.entry(name).or_default().add(&part);
        }
        for Metric { name, labels, value, counter } in metrics {
            sums.entry((name, labels)).or_insert((0.0, counter)).0 += value;
        }
    }
    let values = sums
        .into_iter()
        .map(|((name, labels), (value, counter))| Metric { name, labels, value, counter })
        .chain(queues.iter().flat_map(|(name, stats)| queue_metrics(name, stats, now)))
        .collect();
    Response::Metrics { values }
}
