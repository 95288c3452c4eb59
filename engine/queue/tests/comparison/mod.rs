//! Machine and model side by side: the same batches go to both, and everything that can be asked is compared.

pub mod disk;
pub mod plan;
pub mod resolve;

use crate::model::Model;
use crate::model::mutation::Mutation;
use bytes::Bytes;
use core::fmt::Debug;
use disk::Disk;
use overtake_base::{Level, MessageId, QueueId, ShardId, UnixMillis};
use overtake_queue::answer::{
    Answer, ClaimOutcome, DeadLetterView, MessageView, QueueStats, Spilled, Summary,
};
use overtake_queue::command::{Batch, ClaimTicket, Command, LeaseKey, RedriveSelection};
use overtake_queue::entry::encode_batch;
use overtake_queue::machine::{Machine, PeekFilter};
use std::collections::{BTreeMap, BTreeSet};

pub const SHARD: ShardId = ShardId(3);
pub const START: UnixMillis = UnixMillis(1_700_000_000_000);
/// Timers up to this number are searched one by one; for more, the machine may name a time before the first one.
const EXACT_TIMERS: usize = 60;
const EVERYTHING: PeekFilter = PeekFilter { visible: true, delayed: true, leased: true, priority: None };

/// What differs, in words.
pub type Difference = String;

pub fn same<T: PartialEq + Debug>(what: &str, machine: &T, model: &T) -> Result<(), Difference> {
    if machine == model {
        return Ok(());
    }
    Err(format!("{what}\n machine: {machine:?}\n   model: {model:?}"))
}

fn hold(what: &str, holds: bool) -> Result<(), Difference> {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// All that is seen of a queue.
#[derive(PartialEq, Debug)]
pub struct Seen {
    version: Option<u64>,
    pub stats: Option<QueueStats>,
    summary: Option<Summary>,
    messages: Vec<MessageView>,
    dead: Vec<DeadLetterView>,
    inspected: Vec<Option<MessageView>>,
}

pub struct Pair {
    pub machine: Machine,
    /// The machine's blocks. The model knows nothing of them.
    pub disk: Disk,
    pub model: Model,
    pub index: u64,
    /// Leases handed out, in that order.
    pub keys: Vec<LeaseKey>,
    /// Ids that were ever given to a message, in that order.
    pub ids: Vec<MessageId>,
    /// Those of them that a client made.
    pub client_made: BTreeSet<MessageId>,
    /// Dedup keys that were ever given.
    pub dedup_keys: BTreeSet<Bytes>,
    /// Claims made, in that order.
    pub claims: Vec<MadeClaim>,
    pub commands: u64,
    /// What the last batch's spill came to, where it had one.
    pub last_spilled: Option<Spilled>,
}

/// A claim as its claimer knows it.
#[derive(Clone)]
pub struct MadeClaim {
    pub queue: QueueId,
    pub key: Bytes,
    pub id: MessageId,
    pub claim: ClaimTicket,
}

impl Pair {
    pub fn new(mutation: Mutation) -> Self {
        Self {
            machine: Machine::new(SHARD),
            disk: Disk::default(),
            model: Model::new(mutation),
            index: 0,
            keys: Vec::new(),
            ids: Vec::new(),
            client_made: BTreeSet::new(),
            dedup_keys: BTreeSet::new(),
            claims: Vec::new(),
            commands: 0,
            last_spilled: None,
        }
    }

    pub fn now(&self) -> UnixMillis {
        self.model.shard.now
    }

    /// Applies a batch to both and compares the answers, and everything that can be read. Like a leader, first brings
    /// back what the batch needs of runs.
    pub fn apply(&mut self, time: UnixMillis, commands: Vec<Command>) -> Result<(), Difference> {
        self.thaw_due(time)?;
        self.thaw_needed(time, &commands)?;
        let before = self.summaries();
        let (answers, expected) = self.apply_only(time, &commands)?;
        let asked = commands.iter().filter(|c| !matches!(c, Command::Spill { .. } | Command::Thaw { .. }));
        for (at, command) in asked.enumerate() {
            let (answer, expected) = (answers.get(at), expected.get(at));
            same(&format!("answer {at} at {time} to {command:?}"), &answer, &expected)?;
        }
        same("answers", &answers.len(), &expected.len())?;
        self.compare_changed(&before)?;
        self.compare()
    }

    /// Applies a batch to both; gives the machine's answers and the model's.
    pub fn apply_only(
        &mut self,
        time: UnixMillis,
        commands: &[Command],
    ) -> Result<(Vec<Answer>, Vec<Answer>), Difference> {
        self.note(commands);
        let batch = Batch { time, commands: commands.to_vec() };
        let mut entry = Vec::new();
        encode_batch(&batch, &mut entry);
        let entry = Bytes::from(entry);
        self.index += 1 + self.index % 3;
        let mut answers = Vec::new();
        same("applying", &self.machine.apply(self.index, &entry, &mut answers), &Ok(()))?;
        // Deliveries name blocks that may be gone by the end of the entry.
        self.disk.take_drafts(&mut self.machine);
        self.disk.resolve_answers(&mut answers)?;
        self.disk.drop_gone(&mut self.machine)?;
        self.last_spilled = answers.iter().find_map(|answer| match answer {
            Answer::Spilled(spilled) => Some(*spilled),
            _ => None,
        });
        answers.retain(|answer| !matches!(answer, Answer::Spilled(_) | Answer::Thawed(_)));
        for answer in &answers {
            if let Answer::Leased(deliveries) = answer {
                self.keys.extend(deliveries.iter().map(|delivery| delivery.key));
            }
        }
        for (command, answer) in commands.iter().zip(&answers) {
            if let (Command::Claim { queue, key, id }, Answer::Claim(ClaimOutcome::Claimed(claim))) =
                (command, answer)
            {
                self.claims.push(MadeClaim { queue: *queue, key: key.clone(), id: *id, claim: *claim });
            }
        }
        let of_model = |command: &Command| !matches!(command, Command::Spill { .. } | Command::Thaw { .. });
        let batch = Batch { time, commands: batch.commands.into_iter().filter(of_model).collect() };
        let expected = self.model.apply(self.index, &batch, &entry);
        Ok((answers, expected))
    }

    /// Compares everything that can be read.
    pub fn compare(&self) -> Result<(), Difference> {
        self.compare_shard()?;
        self.model.queues.keys().try_for_each(|id| self.compare_queue(*id))
    }

    fn note(&mut self, commands: &[Command]) {
        self.commands += commands.len() as u64;
        for command in commands {
            if let Command::Enqueue { messages, .. } = command {
                self.ids.extend(messages.iter().map(|message| message.id));
                let made = messages.iter().filter(|message| message.client_made_id);
                self.client_made.extend(made.map(|message| message.id));
                self.dedup_keys.extend(messages.iter().filter_map(|message| message.dedup_key.clone()));
            }
            if let Command::StoreClaimed { message, .. } = command {
                self.ids.push(message.id);
                self.dedup_keys.extend(message.dedup_key.clone());
            }
        }
    }

    fn summaries(&self) -> BTreeMap<QueueId, Option<Summary>> {
        self.machine.queues().map(|id| (id, self.machine.summary(id))).collect()
    }

    /// A queue whose summary changed is always named, and each only once.
    fn compare_changed(&mut self, before: &BTreeMap<QueueId, Option<Summary>>) -> Result<(), Difference> {
        let mut named = Vec::new();
        self.machine.drain_changed(|id| named.push(id));
        let distinct: BTreeSet<QueueId> = named.iter().copied().collect();
        same("changed queues named once", &named.len(), &distinct.len())?;
        for id in before.keys().copied().chain(self.machine.queues()) {
            let was = before.get(&id).cloned().flatten();
            let changed = was != self.machine.summary(id);
            hold(&format!("queue {id} changed and was not named"), !changed || distinct.contains(&id))?;
        }
        Ok(())
    }

    fn compare_shard(&self) -> Result<(), Difference> {
        same("time", &self.machine.time(), &self.now())?;
        same("applied", &self.machine.applied(), &self.index)?;
        let queues: Vec<QueueId> = self.machine.queues().collect();
        same("queues", &queues, &self.model.queues.keys().copied().collect())?;
        same("oldest live index", &self.machine.oldest_live_index(), &self.disk.oldest_entry(&self.machine))?;
        let (deadline, expected) = (self.deadline(), self.model.next_deadline());
        let messages: usize = self.model.queues.values().map(|queue| queue.messages.len()).sum();
        if messages < EXACT_TIMERS {
            same("next deadline", &deadline, &expected)?;
        }
        hold(&format!("deadline {deadline} is after {expected}"), deadline <= expected)
    }

    fn compare_queue(&self, id: QueueId) -> Result<(), Difference> {
        let queue = &self.model.queues[&id];
        let now = self.now();
        same("config", &self.machine.config(id), &Some(&queue.config))?;
        let (machine, model) = (self.seen_of_machine(id), self.seen_of_model(id));
        if machine != model {
            // The smallest part that differs is what is worth reading.
            same(&format!("stats of {id}"), &machine.stats, &model.stats)?;
            same(&format!("summary of {id}"), &machine.summary, &model.summary)?;
            machine.messages.iter().zip(&model.messages).try_for_each(|(a, b)| same("peek", a, b))?;
            machine.dead.iter().zip(&model.dead).try_for_each(|(a, b)| same("dead letter", a, b))?;
            machine.inspected.iter().zip(&model.inspected).try_for_each(|(a, b)| same("inspect", a, b))?;
            same(&format!("queue {id}"), &machine, &model)?;
        }
        conserves(&machine)?;
        if let Some(limiter) = self.machine.limiter(id) {
            let levels = (0..queue.config.levels).map(Level);
            let ready: Vec<UnixMillis> = levels.map(|level| limiter.ready_at(level, now)).collect();
            same("when caps allow a delivery", &ready, &queue.ready_at(now))?;
        }
        let capped = !queue.config.rate_caps.is_empty();
        same("caps", &self.machine.limiter(id).is_some(), &capped)?;
        for key in &self.dedup_keys {
            let claimed = queue.key_claimed(key, now);
            let found = self.machine.dedup_lookup(id, key, self.machine.time());
            same(&format!("dedup key {key:?}"), &found, &claimed)?;
            let state = self.machine.key_state(id, key, self.machine.time());
            same(&format!("dedup key {key:?}"), &state, &queue.key_state(key, now))?;
        }
        for message in self.sample_of_ids() {
            let lives = queue.id_lives(message, now);
            let now = self.machine.time();
            let found =
                self.disk.read(&self.machine, |machine, loaded| machine.id_lookup(id, message, now, loaded));
            // An id that was made here is never made again: in runs nobody looks for it.
            if found || !lives || self.client_made.contains(&message) {
                same(&format!("id {message}"), &found, &lives)?;
            }
        }
        self.compare_pages(id)
    }

    /// Listings by page and by filter, each batch another.
    fn compare_pages(&self, id: QueueId) -> Result<(), Difference> {
        let queue = &self.model.queues[&id];
        let turn = self.index as usize;
        let after = (!self.ids.is_empty()).then(|| self.ids[turn * 7 % self.ids.len()]);
        let level = Level((turn % (usize::from(queue.config.levels) + 1)) as u8);
        let filter = PeekFilter {
            visible: turn & 1 == 0,
            delayed: turn & 2 == 0,
            leased: turn & 4 == 0,
            priority: (turn & 8 == 0).then_some(level),
        };
        let limit = turn % 5;
        let page = self.peek(id, filter, after, limit);
        same("page of messages", &page, &queue.peek(filter, after, limit))?;
        let page = self.dead_letters(id, after, limit);
        same("page of dead letters", &page, &queue.dead_letters(after, limit))?;
        let ids = after.into_iter().chain(self.ids.iter().copied().take(9)).collect();
        let selections =
            [RedriveSelection::All, RedriveSelection::FromPriority(level), RedriveSelection::Ids(ids)];
        for selection in selections {
            let count = queue.chosen(&selection).len() as u64;
            same("dead letters chosen", &self.machine.count_dead(id, &selection), &count)?;
        }
        Ok(())
    }

    /// The last ids, and a few old ones.
    fn sample_of_ids(&self) -> impl Iterator<Item = MessageId> + '_ {
        let step = self.ids.len() / 24 + 1;
        self.ids.iter().rev().take(12).chain(self.ids.iter().step_by(step)).copied()
    }

    fn seen_of_machine(&self, id: QueueId) -> Seen {
        let without_waits = |mut stats: QueueStats| {
            stats.waits.clear();
            stats
        };
        Seen {
            version: self.machine.queue_version(id),
            stats: self.machine.stats(id, self.machine.time()).map(without_waits),
            summary: self.machine.summary(id),
            messages: self.peek(id, EVERYTHING, None, usize::MAX),
            dead: self.dead_letters(id, None, usize::MAX),
            inspected: self.sample_of_ids().map(|message| self.inspect(id, message)).collect(),
        }
    }

    fn seen_of_model(&self, id: QueueId) -> Seen {
        let queue = &self.model.queues[&id];
        Seen {
            version: Some(queue.version),
            stats: Some(queue.stats()),
            summary: Some(queue.summary(id)),
            messages: queue.peek(EVERYTHING, None, usize::MAX),
            dead: queue.dead_letters(None, usize::MAX),
            inspected: self.sample_of_ids().map(|message| queue.inspect(message)).collect(),
        }
    }

    /// Everything that is seen of the shard.
    pub fn seen(&self) -> Vec<Seen> {
        self.machine.queues().map(|id| self.seen_of_machine(id)).collect()
    }

    /// Lets time come to the deadline that the machine names: before it nothing happens, at it something does.
    pub fn pass_deadline(&mut self) -> Result<(), Difference> {
        let deadline = self.deadline();
        if deadline == UnixMillis::NEVER {
            return Ok(());
        }
        if deadline.0 > self.now().0 + 1 {
            let before = self.seen();
            self.apply(UnixMillis(deadline.0 - 1), Vec::new())?;
            same("a tick before the deadline", &self.seen(), &before)?;
        }
        // For many timers the machine may name a time at which it only looks closer; not more often than its wheel has
        // levels.
        for _ in 0..12 {
            let (before, digest) = (self.seen(), self.machine.digest());
            let deadline = self.deadline();
            self.apply(deadline.max(self.now()), Vec::new())?;
            if self.seen() != before || self.machine.digest() != digest {
                return Ok(());
            }
        }
        Err(format!("nothing happens at the deadline {deadline}"))
    }

    /// Goes on with a machine that was made of a snapshot.
    pub fn restore(&mut self) -> Result<(), Difference> {
        let mut bytes = Vec::new();
        self.machine.snapshot(&mut bytes);
        let restored = Machine::restore(SHARD, &bytes).map_err(|error| format!("restoring: {error}"))?;
        same("digest after restoring", &restored.digest(), &self.machine.digest())?;
        same("deadline after restoring", &restored.next_deadline(), &self.machine.next_deadline())?;
        let mut again = Vec::new();
        restored.snapshot(&mut again);
        hold("a snapshot of what was restored is the same", again == bytes)?;
        let before = self.seen();
        self.machine = restored;
        same("what is seen after restoring", &self.seen(), &before)?;
        self.machine.drain_changed(|_| ());
        Ok(())
    }
}

/// enqueued = visible + delayed + leased + dead letters + acked + cancelled + purged + expired.
fn conserves(seen: &Seen) -> Result<(), Difference> {
    let stats = seen.stats.clone().unwrap_or_default();
    let totals = &stats.totals;
    let living: u64 = stats.visible.iter().chain(&stats.delayed).chain(&stats.leased).sum();
    let gone = totals.acked + totals.cancelled + totals.purged + totals.expired;
    same("conservation", &(living + stats.dead + gone), &totals.enqueued)
}
