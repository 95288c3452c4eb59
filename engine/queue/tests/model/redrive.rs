//! Dead letters coming back in the model: at once, or as a job with a rate.

use super::Shard;
use super::mutation::Mutation;
use super::queue::Queue;
use overtake_base::{Level, MessageId, UnixMillis};
use overtake_queue::command::{Redrive, RedriveSelection, Room};

/// A redrive with a rate. The dead letters that wait for it carry its number.
pub struct Job {
    number: u64,
    priority: Option<Level>,
    rate_per_1000_s: u64,
    /// Its turns are counted from here: the n-th is n × 1,000,000 / rate milliseconds later.
    begun: UnixMillis,
    moved: u64,
    /// At its last turn there was no room: it begins anew when there is.
    waits_for_room: bool,
}

impl Job {
    fn turn(&self) -> UnixMillis {
        match self.rate_per_1000_s {
            0 => UnixMillis::NEVER,
            rate => self.begun.plus_ms(self.moved * 1_000_000 / rate),
        }
    }
}

impl Queue {
    /// The chosen dead letters, by id.
    pub fn chosen(&self, selection: &RedriveSelection) -> Vec<MessageId> {
        let chosen =
            self.messages.iter().filter(|message| message.is_dead()).filter(|message| match selection {
                RedriveSelection::All => true,
                RedriveSelection::Ids(ids) => ids.contains(&message.id),
                RedriveSelection::FromPriority(level) => message.level == *level,
            });
        let mut ids: Vec<MessageId> = chosen.map(|message| message.id).collect();
        ids.sort();
        ids
    }

    pub fn redrive(&mut self, shard: &mut Shard, redrive: &Redrive) -> u64 {
        let chosen = self.chosen(&redrive.selection);
        let Some(rate_per_1000_s) =
            redrive.rate_per_1000_s.filter(|_| !shard.has(Mutation::RedriveHasNoPace))
        else {
            let mut granted = self.is_limited_elsewhere().then(|| redrive.room.unwrap_or_default());
            let moved =
                chosen.iter().take_while(|id| self.redrive_one(shard, **id, redrive.priority, &mut granted));
            return moved.count() as u64;
        };
        if chosen.is_empty() {
            return 0;
        }
        self.jobs_made += 1;
        for message in self.messages.iter_mut().filter(|message| chosen.contains(&message.id)) {
            message.job = Some(self.jobs_made);
        }
        self.jobs.push(Job {
            number: self.jobs_made,
            priority: redrive.priority,
            rate_per_1000_s,
            begun: shard.now,
            moved: 0,
            waits_for_room: false,
        });
        if !self.is_limited_elsewhere() {
            self.run_jobs(shard, None);
        }
        chosen.len() as u64
    }

    /// Brings one dead letter back to the tail, if there is room.
    fn redrive_one(
        &mut self,
        shard: &mut Shard,
        id: MessageId,
        priority: Option<Level>,
        granted: &mut Option<Room>,
    ) -> bool {
        let Some(at) = self.find(id) else { return false };
        let bytes = self.messages[at].body_bytes;
        let refused = self.refusal(shard, bytes);
        if refused.is_some() && !shard.has(Mutation::RedriveNeedsNoRoom) {
            return false;
        }
        if let Some(room) = granted {
            if (room.messages == 0 || room.bytes < bytes) && !shard.has(Mutation::GrantsIgnored) {
                return false;
            }
            room.messages = room.messages.saturating_sub(1);
            room.bytes = room.bytes.saturating_sub(bytes);
        }
        let level = priority.map_or(self.messages[at].level, |level| self.level(level));
        let message = &mut self.messages[at];
        message.level = level;
        message.job = None;
        if !shard.has(Mutation::RedriveKeepsFailures) {
            message.failures = 0;
        }
        if shard.has(Mutation::RedriveForgetsDeliveries) {
            message.deliveries = 0;
        }
        self.totals.redriven += 1;
        self.appear(shard, at);
        true
    }

    /// The dead letter that is next for a job: its lowest id.
    fn next_of(&self, job: &Job) -> Option<(MessageId, u64)> {
        let waiting =
            self.messages.iter().filter(|message| message.is_dead() && message.job == Some(job.number));
        waiting.map(|message| (message.id, message.body_bytes)).min()
    }

    /// The queue is on other shards too, and its limits are kept elsewhere: room must be granted.
    pub fn is_limited_elsewhere(&self) -> bool {
        let limited = self.config.max_depth.is_some() || self.config.max_bytes.is_some();
        limited && self.config.shards > 1
    }

    /// Takes all turns that have come, as far as there is room; gives how many it took.
    pub fn run_jobs(&mut self, shard: &mut Shard, mut granted: Option<Room>) -> u64 {
        let mut taken = 0;
        for mut job in core::mem::take(&mut self.jobs) {
            // Over a second late, it was waiting for the grant.
            if granted.is_some() && shard.now.since(job.turn()) > 1_000 {
                (job.begun, job.moved) = (shard.now, 0);
            }
            while let Some((id, body_bytes)) = self.next_of(&job).filter(|_| job.turn() <= shard.now) {
                if self.refusal(shard, body_bytes).is_some() {
                    job.waits_for_room = granted.is_none();
                    break;
                }
                if job.waits_for_room {
                    (job.begun, job.moved, job.waits_for_room) = (shard.now, 0, false);
                }
                if !self.redrive_one(shard, id, job.priority, &mut granted) {
                    job.waits_for_room = false;
                    break;
                }
                job.moved += 1;
                taken += 1;
            }
            if self.next_of(&job).is_some() {
                self.jobs.push(job);
            }
        }
        taken
    }

    /// When the jobs have something to do. One without room has not: what makes room is an entry of its own.
    pub fn job_turns(&self) -> impl Iterator<Item = UnixMillis> + '_ {
        let turn =
            |job| self.next_of(job).filter(|(_, body_bytes)| self.has_room(*body_bytes)).map(|_| job.turn());
        self.jobs.iter().filter_map(turn)
    }

    fn has_room(&self, body_bytes: u64) -> bool {
        self.config.max_depth.is_none_or(|max| self.depth() < max)
            && self.config.max_bytes.is_none_or(|max| self.body_bytes() + body_bytes <= max)
    }
}
