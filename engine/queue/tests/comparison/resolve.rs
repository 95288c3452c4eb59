//! Turns the places that a plan names into the queues, messages and leases that there are, and runs it.

use super::plan::{
    Action, Choice, ClaimStep, Draft, Id, Key, Passing, Post, QUEUES, SpillDraft, SpillKind, Step, Text,
    Turn, When, Which,
};
use super::{Difference, MadeClaim, Pair, START};
use crate::model::mutation::Mutation;
use bytes::Bytes;
use overtake_base::{Level, MessageId, QueueConfig, QueueId, Sequence, UnixMillis};
use overtake_queue::answer::Totals;
use overtake_queue::command::{
    ClaimEnd, Command, Extension, Lease, LeaseKey, LevelChoice, NewMessage, Pick, Redrive, RedriveSelection,
    Return, Room, Spill, SpillWhat, VisibleWhen,
};
use proptest::sample::Index;
use std::collections::BTreeMap;

/// A case under way.
struct Run {
    pair: Pair,
    /// The queue that stands in each place: its id and levels.
    queues: Vec<(QueueId, u8)>,
    last_deleted: QueueId,
    last_queue: u32,
    version: u64,
    messages_made: u64,
    /// Where walks over payloads go on.
    walks: BTreeMap<(QueueId, bool), MessageId>,
}

/// What a case came to.
pub struct Reached {
    pub commands: u64,
    /// Of all queues that there were at the end.
    pub totals: Totals,
    /// Most messages and dead letters at a time.
    pub messages: usize,
    /// Messages that left memory, payloads that moved without their messages, and runs that came back.
    pub cold: [u64; 3],
}

/// Runs a plan, with a fault in the model or none.
pub fn run(first: &Draft, turns: &[Turn], mutation: Mutation) -> Result<Reached, Difference> {
    let pair = Pair::new(mutation);
    let mut run = Run {
        pair,
        queues: Vec::new(),
        last_deleted: QueueId(0),
        last_queue: 0,
        version: 0,
        messages_made: 0,
        walks: BTreeMap::new(),
    };
    let created = (0..QUEUES).map(|_| run.create(first)).collect();
    run.pair.apply(START, created)?;
    let mut messages = 0;
    for turn in turns {
        run.turn(turn)?;
        messages = messages.max(run.pair.model.queues.values().map(|queue| queue.messages.len()).sum());
    }
    let mut totals = Totals::default();
    run.pair.model.queues.values().for_each(|queue| totals.add(&queue.totals));
    let disk = &run.pair.disk;
    let cold = [disk.spilled, disk.moved, disk.thawed];
    Ok(Reached { commands: run.pair.commands, totals, messages, cold })
}

impl Run {
    fn turn(&mut self, turn: &Turn) -> Result<(), Difference> {
        let time = match turn.passes {
            Passing::Ms(ms) => self.pair.now().plus_ms(ms),
            Passing::Back(ms) => UnixMillis(self.pair.now().0 - ms),
            Passing::ToDeadline => {
                self.pair.pass_deadline()?;
                self.pair.now()
            }
        };
        let mut commands: Vec<Command> = turn.steps.iter().flat_map(|step| self.commands(step)).collect();
        commands.extend(turn.spills.as_ref().map(|draft| self.spill(draft)));
        self.pair.apply(time, commands)?;
        self.walked(turn);
        if let Some(block) = turn.thaws.and_then(|pick| self.pair.some_run(pick)) {
            self.pair.thaw_wrongly(block)?;
            // It may have ended meanwhile.
            if self.pair.machine.queue_of_run(block).is_some() {
                self.pair.thaw_blocks(self.pair.now(), &[block])?;
            }
            self.pair.compare()?;
        }
        if turn.restores {
            self.pair.restore()?;
        }
        Ok(())
    }

    fn spill(&mut self, draft: &SpillDraft) -> Command {
        let (queue, levels) = self.queues[usize::from(draft.queue)];
        let what = match draft.what {
            SpillKind::Lane { level, keep } => SpillWhat::Lane { level: level_of(levels, level), keep },
            SpillKind::Delayed => SpillWhat::Delayed,
            SpillKind::Payloads { dead } => {
                SpillWhat::Payloads { dead, after: self.walks.get(&(queue, dead)).copied() }
            }
        };
        let spill = Spill {
            what,
            up_to_index: self.pair.index.saturating_sub(draft.behind),
            horizon: self.pair.now().plus_ms(draft.ahead_ms),
            messages_min: draft.messages.0,
            messages_max: draft.messages.1,
            bytes_max: draft.bytes_max,
        };
        Command::Spill { queue, spill }
    }

    /// Remembers where a walk over payloads goes on.
    fn walked(&mut self, turn: &Turn) {
        let Some(SpillDraft { queue, what: SpillKind::Payloads { dead }, .. }) = turn.spills else { return };
        let key = (self.queues[usize::from(queue)].0, dead);
        match self.pair.last_spilled.and_then(|spilled| spilled.next) {
            Some(next) => self.walks.insert(key, next),
            None => self.walks.remove(&key),
        };
    }

    fn create(&mut self, config: &Draft) -> Command {
        let config = config.config(None);
        self.last_queue += 1;
        let queue = QueueId(self.last_queue);
        self.queues.push((queue, config.levels));
        self.configure(queue, config)
    }

    fn configure(&mut self, queue: QueueId, config: QueueConfig) -> Command {
        self.version += 1;
        Command::Configure { queue, version: self.version, config }
    }

    fn commands(&mut self, step: &Step) -> Vec<Command> {
        let (queue, levels) = self.queues[usize::from(step.queue)];
        let command = match &step.action {
            Action::Configure { config, newer: true } => self.configure(queue, config.config(Some(levels))),
            Action::Configure { config, newer: false } => {
                Command::Configure { queue, version: 1, config: config.config(None) }
            }
            Action::Recreate { config } => {
                let created = self.create(config);
                self.last_deleted = queue;
                self.queues.swap_remove(usize::from(step.queue));
                return vec![Command::Delete { queue }, created];
            }
            Action::ToDeleted => Command::Purge { queue: self.last_deleted },
            Action::Enqueue(posts) => {
                let messages = posts.iter().map(|post| self.message(levels, post)).collect();
                Command::Enqueue { queue, messages }
            }
            Action::Flood { levels: which, each, taken } => {
                let posts = which.iter().flat_map(|level| (0..*each).map(|_| Post::plain(*level)));
                let messages = posts.map(|post| self.message(levels, &post)).collect();
                let lease = Lease {
                    max: u32::from(*taken),
                    max_bytes: u64::MAX,
                    lease_ms: Some(500),
                    worker: None,
                    choice: LevelChoice::Scheduled,
                };
                return vec![Command::Enqueue { queue, messages }, Command::Lease { queue, lease }];
            }
            Action::Lease { max, max_bytes, lease_ms, worker, choice } => {
                let lease = Lease {
                    max: *max,
                    max_bytes: *max_bytes,
                    lease_ms: *lease_ms,
                    worker: worker.map(|n| format!("worker {n}").into()),
                    choice: level_choice(levels, choice),
                };
                Command::Lease { queue, lease }
            }
            Action::Unlease(keys) => Command::Unlease { queue, leases: self.keys(queue, keys) },
            Action::Settle { ack, extend, release } => self.settle(queue, ack, extend, release),
            Action::Cancel(id) => Command::Cancel { queue, id: self.id(id) },
            Action::Purge => Command::Purge { queue },
            Action::PurgeDeadLetters => Command::PurgeDeadLetters { queue },
            Action::RedriveTurns { messages, bytes } => {
                Command::RedriveTurns { queue, room: Room { messages: *messages, bytes: *bytes } }
            }
            Action::Redrive { which, priority, rate_per_1000_s, room } => {
                let redrive = Redrive {
                    selection: self.selection(levels, which),
                    priority: priority.map(|level| level_of(levels, level)),
                    rate_per_1000_s: *rate_per_1000_s,
                    room: room.map(|(messages, bytes)| Room { messages, bytes }),
                };
                Command::Redrive { queue, redrive }
            }
            Action::Claim(key, id) => Command::Claim { queue, key: dedup_key(*key), id: self.id(id) },
            Action::OfClaim(..) if self.pair.claims.is_empty() => Command::Purge { queue: self.last_deleted },
            Action::OfClaim(at, step) => self.of_claim(levels, at, step),
            Action::NoteRefused(reason, count) => {
                Command::NoteRefused { queue, reason: *reason, count: *count }
            }
        };
        vec![command]
    }

    /// Mostly of the last claims: their times run out.
    fn of_claim(&mut self, levels: u8, at: &Index, step: &ClaimStep) -> Command {
        let claims = &self.pair.claims;
        let MadeClaim { queue, key, id, claim } =
            claims[claims.len() - 1 - at.index(claims.len().min(12))].clone();
        let end = match step {
            ClaimStep::Store(post) => {
                let message = self.message(levels, post);
                let message = NewMessage { id, client_made_id: true, dedup_key: Some(key), ..message };
                return Command::StoreClaimed { queue, claim, message };
            }
            ClaimStep::Fence => return Command::FenceClaim { queue, key, id, claim },
            ClaimStep::Stored(ago_ms) => ClaimEnd::Stored(UnixMillis(self.pair.now().0 - ago_ms)),
            ClaimStep::NotStored => ClaimEnd::NotStored(claim.number),
            ClaimStep::Void => ClaimEnd::Void(claim.number),
        };
        Command::EndClaim { queue, key, id, end }
    }

    fn message(&mut self, levels: u8, post: &Post) -> NewMessage {
        self.messages_made += 1;
        let now = self.pair.now();
        NewMessage {
            id: self.id(&post.id),
            // An id that was made here is never made again.
            client_made_id: post.client_made_id || matches!(post.id, Id::Few(_)),
            priority: level_of(levels, post.priority),
            visible: match post.visible {
                When::Now => VisibleWhen::Now,
                When::AfterMs(ms) => VisibleWhen::AfterMs(ms),
                When::At(ms) => VisibleWhen::At(UnixMillis(now.0.saturating_add_signed(ms))),
            },
            dedup_key: post.dedup_key.map(dedup_key),
            expires_in_ms: post.expires_in_ms,
            headers: Bytes::from(format!("message {:08}", self.messages_made)),
            body: Bytes::from(vec![b'.'; post.body_bytes]),
        }
    }

    /// New ids do not come in order: nothing is promised about the order of clients' clocks.
    fn id(&mut self, id: &Id) -> MessageId {
        let made = self.messages_made;
        let fresh = MessageId::new(made * 40_503 % 65_536, u128::from(made) + (1 << 40));
        match id {
            Id::Few(n) => MessageId::new(u64::from(*n) * 2_500, 0),
            Id::Given(at) if !self.pair.ids.is_empty() => *at.get(&self.pair.ids),
            Id::Given(_) | Id::Fresh => fresh,
        }
    }

    fn keys(&self, queue: QueueId, keys: &[Key]) -> Vec<LeaseKey> {
        keys.iter().map(|key| self.key(queue, key)).collect()
    }

    fn key(&self, queue: QueueId, key: &Key) -> LeaseKey {
        let made_up = |behind: u64, deliveries| LeaseKey {
            sequence: Sequence((self.pair.model.shard.last_sequence + 1).saturating_sub(behind)),
            deliveries,
        };
        match key {
            Key::Running(at) => self.running(queue, at).unwrap_or(made_up(1, 1)),
            Key::Former(at) if !self.pair.keys.is_empty() => *at.get(&self.pair.keys),
            Key::Former(_) => made_up(0, 1),
            Key::MadeUp(behind, deliveries) => made_up(*behind, *deliveries),
        }
    }

    fn running(&self, queue: QueueId, at: &Index) -> Option<LeaseKey> {
        let queue = self.pair.model.queues.get(&queue)?;
        let keys: Vec<LeaseKey> = queue
            .messages
            .iter()
            .filter(|message| message.is_leased())
            .filter_map(|message| {
                Some(LeaseKey { sequence: message.sequence?, deliveries: message.deliveries })
            })
            .collect();
        (!keys.is_empty()).then(|| *at.get(&keys))
    }

    fn settle(
        &self,
        queue: QueueId,
        ack: &[Key],
        extend: &[(Key, u64)],
        release: &[(Key, Option<u64>, Option<Text>)],
    ) -> Command {
        let extend = extend.iter().map(|(key, ms)| Extension { key: self.key(queue, key), lease_ms: *ms });
        let release = release.iter().map(|(key, delay_ms, text)| Return {
            key: self.key(queue, key),
            delay_ms: *delay_ms,
            error: text.as_ref().map(|text| match text {
                Text::Short(n) => "x".repeat(usize::from(*n)).into(),
                Text::Long(n) => ("x".repeat(usize::from(*n)) + &"€".repeat(1_500)).into(),
            }),
        });
        Command::Settle {
            queue,
            ack: self.keys(queue, ack),
            extend: extend.collect(),
            release: release.collect(),
        }
    }

    fn selection(&mut self, levels: u8, which: &Which) -> RedriveSelection {
        match which {
            Which::All => RedriveSelection::All,
            Which::Ids(ids) => RedriveSelection::Ids(ids.iter().map(|id| self.id(id)).collect()),
            Which::FromPriority(level) => RedriveSelection::FromPriority(level_of(levels, *level)),
        }
    }
}

fn dedup_key(n: u8) -> Bytes {
    Bytes::from(vec![b'k', n])
}

/// Levels from 100 on stay beyond the queue's.
fn level_of(levels: u8, level: u8) -> Level {
    Level(if level < 100 { level % levels } else { level })
}

fn level_choice(levels: u8, choice: &Choice) -> LevelChoice {
    match choice {
        Choice::Scheduled => LevelChoice::Scheduled,
        Choice::UpTo(level) => LevelChoice::UpTo(level_of(levels, *level)),
        Choice::Picks(picks, barred) => LevelChoice::Picks {
            picks: picks
                .iter()
                .map(|(level, count, share)| Pick {
                    level: level_of(levels, *level),
                    count: *count,
                    share: *share,
                })
                .collect(),
            barred: barred.iter().map(|level| Level(level % levels)).collect(),
        },
    }
}
