//! A reference model of a shard: what `overtake_queue::machine` promises, said as plainly as it can be. Messages stand
//! in a plain list, everything is found by looking at all of them, and whatever can be computed is not stored. Nothing that
//! decides is the machine's own: who is next, what a cap allows and how long a failure is held back are said here anew.
//!
//! The model takes decoded commands, the machine takes entries; where a payload stands in an entry the model finds by
//! looking for its bytes.

pub mod claims;
pub mod lease;
pub mod message;
pub mod mutation;
pub mod queue;
pub mod rate;
pub mod redrive;
pub mod sanity;
pub mod scheduler;
pub mod settle;
pub mod views;

use mutation::Mutation;
use overtake_base::{QueueConfig, QueueId, UnixMillis};
use overtake_queue::answer::Answer;
use overtake_queue::command::{Batch, Command};
use queue::Queue;
use std::collections::BTreeMap;

/// What all queues of a shard share.
pub struct Shard {
    pub now: UnixMillis,
    pub last_sequence: u64,
    /// Changes of messages' states so far: what is due in the same millisecond happens in the order in which it was set.
    pub changes: u64,
    pub mutation: Mutation,
}

impl Shard {
    pub fn has(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }
}

/// One shard.
pub struct Model {
    pub shard: Shard,
    pub queues: BTreeMap<QueueId, Queue>,
}

/// What is next to happen by itself in a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// To the message that changed its state as the n-th of the shard.
    Message(u64),
    /// To a level: it is starved. After the messages of the same time, which may leave it without visible work.
    Level(u8),
}

impl Model {
    pub fn new(mutation: Mutation) -> Self {
        let shard = Shard { now: UnixMillis(0), last_sequence: 0, changes: 0, mutation };
        Self { shard, queues: BTreeMap::new() }
    }

    /// Applies the batch that stands in the log entry `index`.
    pub fn apply(&mut self, index: u64, batch: &Batch, entry: &[u8]) -> Vec<Answer> {
        self.shard.now = self.shard.now.max(batch.time);
        self.advance();
        batch.commands.iter().map(|command| self.run(index, command, entry)).collect()
    }

    fn advance(&mut self) {
        while let Some((_, due, id)) = self.first_due().filter(|(at, ..)| *at <= self.shard.now) {
            if let Some(queue) = self.queues.get_mut(&id) {
                match due {
                    Due::Message(change) => queue.message_due(&mut self.shard, change),
                    Due::Level(level) => queue.level_starved(&self.shard, level),
                }
            }
        }
        for queue in self.queues.values_mut().filter(|queue| !queue.is_limited_elsewhere()) {
            queue.run_jobs(&mut self.shard, None);
        }
    }

    fn first_due(&self) -> Option<(UnixMillis, Due, QueueId)> {
        let of_queue = |(id, queue): (&QueueId, &Queue)| {
            let messages = queue
                .messages
                .iter()
                .filter_map(|message| Some((message.due(&self.shard)?, Due::Message(message.changed), *id)));
            let levels = (0..queue.config.levels)
                .filter_map(|level| Some((queue.starved_at(level)?, Due::Level(level), *id)));
            messages.chain(levels).min()
        };
        self.queues.iter().filter_map(of_queue).min()
    }

    /// When something happens by itself next.
    pub fn next_deadline(&self) -> UnixMillis {
        let due = self.first_due().map(|(at, ..)| at);
        let own = self.queues.values().filter(|queue| !queue.is_limited_elsewhere());
        let turns = own.flat_map(Queue::job_turns);
        due.into_iter().chain(turns).min().unwrap_or(UnixMillis::NEVER)
    }

    fn run(&mut self, index: u64, command: &Command, entry: &[u8]) -> Answer {
        let id = queue_of(command);
        if let Command::Configure { version, config, .. } = command {
            self.configure(id, *version, config);
            return Answer::Done;
        }
        let shard = &mut self.shard;
        let Some(queue) = self.queues.get_mut(&id) else { return Answer::NoQueue };
        match command {
            // What is in memory and what is not changes nothing.
            Command::Configure { .. } | Command::Spill { .. } | Command::Thaw { .. } => {}
            Command::Delete { .. } => {
                self.queues.remove(&id);
            }
            Command::Enqueue { messages, .. } => {
                let stored = messages.iter().map(|message| queue.enqueue(shard, index, message, entry));
                return Answer::Enqueued(stored.collect());
            }
            Command::Lease { lease, .. } => return Answer::Leased(queue.lease(shard, lease)),
            Command::Unlease { leases, .. } => leases.iter().for_each(|key| queue.unlease(shard, *key)),
            Command::Settle { ack, extend, release, .. } => {
                return Answer::Settled {
                    ack: ack.iter().map(|key| queue.ack(shard, *key)).collect(),
                    extend: extend.iter().map(|extension| queue.extend(shard, extension)).collect(),
                    release: release.iter().map(|returned| queue.release(shard, returned)).collect(),
                };
            }
            Command::Cancel { id, .. } => return Answer::Cancelled(queue.cancel(shard, *id)),
            Command::Purge { .. } => return Answer::Purged(queue.purge(shard)),
            Command::PurgeDeadLetters { .. } => return Answer::Purged(queue.purge_dead(shard)),
            Command::Redrive { redrive, .. } => return Answer::Redriven(queue.redrive(shard, redrive)),
            Command::RedriveTurns { room, .. } => {
                return Answer::Redriven(queue.run_jobs(shard, Some(*room)));
            }
            Command::Claim { key, id, .. } => return Answer::Claim(queue.claim(shard, key, *id)),
            Command::StoreClaimed { claim, message, .. } => {
                let outcome = queue.store_claimed(shard, index, *claim, message, entry);
                return Answer::Enqueued(vec![outcome]);
            }
            Command::EndClaim { key, id, end, .. } => queue.end_claim(shard, key, *id, *end),
            Command::FenceClaim { key, id, claim, .. } => {
                return Answer::Fenced(queue.fence_claim(shard, key, *id, *claim));
            }
            Command::NoteRefused { reason, count, .. } => queue.totals.refused[*reason as usize] += count,
        }
        Answer::Done
    }

    fn configure(&mut self, id: QueueId, version: u64, config: &QueueConfig) {
        match self.queues.get_mut(&id) {
            None => {
                let queue = Queue::new(version, config.clone(), self.shard.now, self.shard.mutation);
                self.queues.insert(id, queue);
            }
            Some(queue) if version > queue.version && config.levels == queue.config.levels => {
                queue.version = version;
                queue.scheduler.reconfigure(config);
                queue.limiter.reconfigure(&config.rate_caps, self.shard.now);
                queue.config = config.clone();
            }
            Some(_) => {}
        }
    }
}

/// The queue that a command is about.
pub fn queue_of(command: &Command) -> QueueId {
    match command {
        Command::Configure { queue, .. }
        | Command::Delete { queue }
        | Command::Enqueue { queue, .. }
        | Command::Lease { queue, .. }
        | Command::Unlease { queue, .. }
        | Command::Settle { queue, .. }
        | Command::Cancel { queue, .. }
        | Command::Purge { queue }
        | Command::PurgeDeadLetters { queue }
        | Command::Redrive { queue, .. }
        | Command::RedriveTurns { queue, .. }
        | Command::Claim { queue, .. }
        | Command::StoreClaimed { queue, .. }
        | Command::EndClaim { queue, .. }
        | Command::FenceClaim { queue, .. }
        | Command::NoteRefused { queue, .. }
        | Command::Spill { queue, .. }
        | Command::Thaw { queue, .. } => *queue,
    }
}
