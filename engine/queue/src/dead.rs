//! Dead letters: choosing them, bringing them back (at once or as a durable job with a rate), deleting them.
//!
//! A dead letter stays in the dead-letter queue until its turn. Both ways wait for room: depth is never exceeded, so a
//! redrive at once brings back as many as there is room for. A shard knows the room of a queue that is on no other shard.
//! For a queue on several, the home accounts for the limits: then nothing is brought back but into room that it grants.

use crate::command::{Redrive, RedriveSelection, Room};
use crate::life_cycle::Event;
use crate::message::NO_SEQUENCE;
use crate::queue::Queue;
use crate::shared::Shared;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Level, Malformed, MessageId, Reader, UnixMillis, Writer};
use std::collections::VecDeque;

/// Milliseconds of the thousand seconds that a rate is given for.
const RATE_PERIOD_MS: u128 = 1_000_000;
/// A turn that comes so late in room that was granted was waiting for it: the pace begins anew.
const LATE_MS: u64 = 1_000;
/// Most turns that are asked room for at a time.
const TURNS_MAX: u64 = 256;

/// A redrive with a rate, under way.
pub(crate) struct RedriveJob {
    /// Dead letters that wait for this job say so; a later redrive takes them over.
    number: u32,
    ids: VecDeque<MessageId>,
    priority: Option<Level>,
    rate_per_1000_s: u64,
    /// The pace is counted from here.
    begun: UnixMillis,
    moved: u64,
    /// There was no room at its last turn: the pace begins anew when there is, instead of catching up in a burst.
    blocked: bool,
}

impl RedriveJob {
    fn next_turn(&self) -> UnixMillis {
        if self.rate_per_1000_s == 0 {
            return UnixMillis::NEVER;
        }
        let after = u128::from(self.moved) * RATE_PERIOD_MS / u128::from(self.rate_per_1000_s);
        self.begun.plus_ms(u64::try_from(after).unwrap_or(u64::MAX))
    }

    pub(crate) fn encode(&self, out: &mut Writer<'_>) {
        out.u32(self.number);
        out.option(self.priority, |out, level| out.u8(level.0));
        out.u64(self.rate_per_1000_s);
        out.u64(self.begun.0);
        out.u64(self.moved);
        out.bool(self.blocked);
        out.u32(u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
        self.ids.iter().for_each(|id| out.u128(id.0));
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut job = Self {
            number: input.u32("job")?,
            priority: input.option("job priority", |input| Ok(Level(input.u8("job priority")?)))?,
            rate_per_1000_s: input.u64("job rate")?,
            begun: UnixMillis(input.u64("job begun")?),
            moved: input.u64("job moved")?,
            blocked: input.bool("job blocked")?,
            ids: VecDeque::new(),
        };
        for _ in 0..input.count(usize::MAX, 16, "job ids")? {
            job.ids.push_back(MessageId(input.u128("job id")?));
        }
        Ok(job)
    }
}

impl Queue {
    /// Slots of the chosen dead letters, in the order of their ids.
    fn chosen_dead(&self, shared: &Shared, selection: &RedriveSelection) -> Vec<u32> {
        match selection {
            RedriveSelection::All => self.dead.iter().collect(),
            RedriveSelection::FromPriority(level) => {
                self.dead.iter().filter(|slot| shared.messages[*slot].level == *level).collect()
            }
            RedriveSelection::Ids(ids) => {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids.dedup();
                let key_of = |slot: u32| shared.messages[slot].id().0;
                ids.iter().filter_map(|id| self.dead.get(id.0, key_of)).collect()
            }
        }
    }

    pub(crate) fn count_dead(&self, shared: &Shared, selection: &RedriveSelection) -> u64 {
        match selection {
            RedriveSelection::All => self.dead.len() as u64,
            _ => self.chosen_dead(shared, selection).len() as u64,
        }
    }

    /// Brings dead letters back; gives how many moved, or will move where there is a rate.
    pub(crate) fn redrive(&mut self, shared: &mut Shared, redrive: &Redrive) -> u64 {
        let chosen = self.chosen_dead(shared, &redrive.selection);
        let Some(rate_per_1000_s) = redrive.rate_per_1000_s else {
            let mut room = self.config.shares_limits().then(|| redrive.room.unwrap_or_default());
            let fitting = chosen
                .iter()
                .take_while(|slot| self.redrive_one(shared, **slot, redrive.priority, room.as_mut()));
            let moved = fitting.count() as u64;
            self.drop_idle_jobs(shared);
            return moved;
        };
        if chosen.is_empty() {
            return 0;
        }
        self.last_job = self.last_job.wrapping_add(1);
        let number = self.last_job;
        for slot in &chosen {
            shared.messages.extra_mut(*slot).job = Some(number);
        }
        let job = RedriveJob {
            number,
            ids: chosen.iter().map(|slot| shared.messages[*slot].id()).collect(),
            priority: redrive.priority,
            rate_per_1000_s,
            begun: shared.time,
            moved: 0,
            blocked: false,
        };
        self.jobs.push(job);
        shared.jobs.insert(self.id);
        if self.config.shares_limits() {
            self.drop_idle_jobs(shared);
        } else {
            self.run_jobs(shared, usize::MAX, None);
        }
        chosen.len() as u64
    }

    /// Brings one dead letter back; false where there is no room.
    fn redrive_one(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        priority: Option<Level>,
        granted: Option<&mut Room>,
    ) -> bool {
        let body_bytes = u64::from(shared.messages[slot].body_bytes);
        if self.room_for(body_bytes).is_err() || granted.is_some_and(|room| !room.take(body_bytes)) {
            return false;
        }
        self.totals.redriven += 1;
        let level = priority.map(|level| self.level(level));
        let retention_ms = self.retention_ms();
        self.shift(shared, slot, Event::Redrive, |shared, slot| {
            if let Some(extra) = shared.messages.extra_if_any(slot) {
                extra.job = None;
            }
            let message = &mut shared.messages[slot];
            message.failures = 0;
            if is_planted(Bug::RedriveResetsDeliveries) {
                message.deliveries = 0;
            }
            message.level = level.unwrap_or(message.level);
            message.sequence = NO_SEQUENCE;
            shared.appear(slot, retention_ms);
        });
        true
    }

    /// Takes the turns of redrive jobs that have come, at most `max`; gives how many were taken.
    pub(crate) fn run_jobs(
        &mut self,
        shared: &mut Shared,
        max: usize,
        mut granted: Option<&mut Room>,
    ) -> usize {
        let mut jobs = core::mem::take(&mut self.jobs);
        let mut taken = 0;
        for job in &mut jobs {
            taken += self.run_job(shared, job, max - taken, granted.as_deref_mut());
        }
        self.jobs = jobs;
        self.drop_idle_jobs(shared);
        taken
    }

    /// Drops the jobs that nothing waits for. Done whenever dead letters go, so that the front of a job always waits.
    fn drop_idle_jobs(&mut self, shared: &mut Shared) {
        let mut jobs = core::mem::take(&mut self.jobs);
        jobs.retain_mut(|job| self.next_of_job(shared, job).is_some());
        self.jobs = jobs;
        if self.jobs.is_empty() {
            shared.jobs.remove(&self.id);
        }
    }

    /// Gives how many turns were taken.
    fn run_job(
        &mut self,
        shared: &mut Shared,
        job: &mut RedriveJob,
        max: usize,
        mut granted: Option<&mut Room>,
    ) -> usize {
        if granted.is_some() && shared.time.since(job.next_turn()) > LATE_MS {
            (job.begun, job.moved) = (shared.time, 0);
        }
        for taken in 0..max {
            let Some(slot) = self.next_of_job(shared, job) else { return taken };
            if job.next_turn() > shared.time {
                return taken;
            }
            if job.blocked && self.room_for(u64::from(shared.messages[slot].body_bytes)).is_ok() {
                (job.begun, job.moved, job.blocked) = (shared.time, 0, false);
            }
            if !self.redrive_one(shared, slot, job.priority, granted.as_deref_mut()) {
                job.blocked = granted.is_none();
                return taken;
            }
            job.ids.pop_front();
            job.moved += 1;
        }
        max
    }

    /// The dead letter whose turn is next. Ids that were deleted, brought back or taken over meanwhile are dropped.
    fn next_of_job(&self, shared: &Shared, job: &mut RedriveJob) -> Option<u32> {
        while let Some(id) = job.ids.front() {
            let slot = self.dead.get(id.0, |slot| shared.messages[slot].id().0);
            let waits =
                |slot: &u32| shared.messages.extra(*slot).is_some_and(|extra| extra.job == Some(job.number));
            if let Some(slot) = slot.filter(waits) {
                return Some(slot);
            }
            job.ids.pop_front();
        }
        None
    }

    /// When a redrive job has something to do. Without room it has nothing: what makes room is an entry of its own.
    pub(crate) fn next_job_turn(&self, shared: &Shared) -> UnixMillis {
        let turn = |job: &RedriveJob| {
            if self.job_has_room(shared, job) { job.next_turn() } else { UnixMillis::NEVER }
        };
        self.jobs.iter().map(turn).min().unwrap_or(UnixMillis::NEVER)
    }

    /// When the next turn of any job comes, with room or without.
    pub(crate) fn next_turn(&self) -> UnixMillis {
        self.jobs.iter().map(RedriveJob::next_turn).min().unwrap_or(UnixMillis::NEVER)
    }

    /// The room that the turns which have come would take, and the body bytes of the first of them.
    pub(crate) fn room_wanted(&self, shared: &Shared, now: UnixMillis) -> (Room, u64) {
        let (mut room, mut first) = (Room::default(), None);
        for job in self.jobs.iter().filter(|job| job.next_turn() <= now) {
            let late = now.since(job.next_turn()) > LATE_MS;
            let passed_ms = u128::from(now.since(job.begun));
            let due = passed_ms * u128::from(job.rate_per_1000_s) / RATE_PERIOD_MS + 1;
            let due = due.saturating_sub(u128::from(job.moved)).max(1);
            let due = if late { 1 } else { u64::try_from(due).unwrap_or(TURNS_MAX).min(TURNS_MAX) };
            let slot = |id: &MessageId| self.dead.get(id.0, |slot| shared.messages[slot].id().0);
            for slot in job.ids.iter().filter_map(slot).take(due as usize) {
                let body_bytes = u64::from(shared.messages[slot].body_bytes);
                room = Room { messages: room.messages + 1, bytes: room.bytes + body_bytes };
                first.get_or_insert(body_bytes);
            }
        }
        (room, first.unwrap_or(0))
    }

    /// Whether there is room for the job's next dead letter.
    fn job_has_room(&self, shared: &Shared, job: &RedriveJob) -> bool {
        let next = job.ids.front().and_then(|id| self.dead.get(id.0, |slot| shared.messages[slot].id().0));
        next.is_none_or(|slot| self.room_for(u64::from(shared.messages[slot].body_bytes)).is_ok())
    }

    /// Deletes all dead letters.
    pub(crate) fn purge_dead(&mut self, shared: &mut Shared) -> u64 {
        let slots: Vec<u32> = self.dead.iter().collect();
        for slot in &slots {
            self.shift(shared, *slot, Event::PurgeDead, |_, _| {});
        }
        self.totals.purged += slots.len() as u64;
        self.drop_idle_jobs(shared);
        slots.len() as u64
    }
}
