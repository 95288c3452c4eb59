//! A shard's whole state as bytes: what a checkpoint holds, and what a new replica is sent. A restored machine goes on
//! exactly as the one it was made of, down to the order in which timers of the same millisecond fire.
//!
//! ```text
//! u32 magic | u8 format | u16 shard | u64 applied | u64 time | u64 last sequence | u32 queues | each queue
//! u64 time of the timer wheel | u32 timers | each: u32 number of a message, counted as they stand above
//! u64 checksum of everything before
//! ```

use crate::answer::Totals;
use crate::dead::RedriveJob;
use crate::dedup::Dedup;
use crate::lane::Hunger;
use crate::life_cycle::State;
use crate::machine::Machine;
use crate::queue::Queue;
use crate::rate::RateLimiter;
use crate::record::{RECORD_BYTES_MIN, read_record, write_record};
use crate::scheduler::Scheduler;
use crate::shared::Shared;
use crate::stats::Waits;
use overtake_base::checksum::checksum;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Level, Malformed, QueueConfig, QueueId, Reader, ShardId, UnixMillis, Writer};

const MAGIC: u32 = u32::from_le_bytes(*b"OVMS");
const FORMAT: u8 = 3;
/// Checksum domains of snapshots and of digests.
const SNAPSHOT_DOMAIN: u64 = 0x6d61_6368_696e_6501;
const DIGEST_DOMAIN: u64 = 0x6d61_6368_696e_6502;
const CHECKSUM_BYTES: usize = 8;

impl Machine {
    /// Appends the shard's whole state.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let messages: usize = self.queues.values().map(|queue| queue.ids.len() + queue.dead.len()).sum();
        // Growing by doubling would copy most of a large snapshot once more.
        out.reserve(messages * (RECORD_BYTES_MIN + size_of::<u32>()));
        let mut writer = Writer(out);
        writer.u32(MAGIC);
        writer.u8(FORMAT);
        writer.u16(self.shard.0);
        writer.u64(self.applied);
        writer.u64(self.shared.time.0);
        writer.u64(self.shared.last_sequence);
        writer.u32(self.queues.len() as u32);
        let mut numbers = vec![u32::MAX; self.shared.messages.slots()];
        let mut number = 0;
        for queue in self.queues.values() {
            write_queue(&mut writer, queue, &self.shared);
            writer.u32((queue.ids.len() + queue.dead.len()) as u32);
            for slot in queue.ids.iter().chain(queue.dead.iter()) {
                write_record(&mut writer, &self.shared, slot);
                numbers[slot as usize] = number;
                number += 1;
            }
        }
        writer.u64(self.shared.timers.base());
        writer.u32(self.shared.timers.iter(&self.shared.messages).count() as u32);
        for slot in self.shared.timers.iter(&self.shared.messages) {
            writer.u32(numbers[slot as usize]);
        }
        let sum = checksum(SNAPSHOT_DOMAIN, &out[start..]);
        Writer(out).u64(sum);
    }

    /// Puts the checksum of a snapshot behind its content.
    pub fn seal_snapshot(content: &mut Vec<u8>) {
        let sum = checksum(SNAPSHOT_DOMAIN, content);
        Writer(content).u64(sum);
    }

    /// The machine that `bytes` were made of; it must be of this shard.
    pub fn restore(shard: ShardId, bytes: &[u8]) -> Result<Self, Malformed> {
        let (content, sum) = bytes
            .split_at_checked(bytes.len().saturating_sub(CHECKSUM_BYTES))
            .ok_or(Malformed("snapshot"))?;
        if sum != checksum(SNAPSHOT_DOMAIN, content).to_le_bytes() {
            return Err(Malformed("snapshot checksum"));
        }
        let mut input = Reader::new(content);
        if input.u32("snapshot magic")? != MAGIC || input.u8("snapshot format")? != FORMAT {
            return Err(Malformed("snapshot format"));
        }
        if input.u16("snapshot shard")? != shard.0 {
            return Err(Malformed("snapshot of another shard"));
        }
        let mut machine = Self::new(shard);
        machine.applied = input.u64("applied")?;
        machine.shared.time = UnixMillis(input.u64("time")?);
        machine.shared.last_sequence = input.u64("last sequence")?;
        let mut slots = Vec::new();
        for _ in 0..input.count(usize::MAX, 1, "queues")? {
            let queue = read_queue(&mut input, &mut machine.shared, &mut slots)?;
            if machine.queues.insert(queue.id, queue).is_some() {
                return Err(Malformed("queue twice"));
            }
        }
        read_timers(&mut input, &mut machine.shared, &slots)?;
        input.finish("snapshot")?;
        if is_planted(Bug::SequenceTwice) {
            machine.shared.last_sequence = machine.shared.last_sequence.saturating_sub(1);
        }
        Ok(machine)
    }

    /// A fingerprint of everything that answers depend on. Replicas that applied the same entries have the same one.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        let mut digest = DIGEST_DOMAIN ^ self.shared.last_sequence;
        for queue in self.queues.values() {
            bytes.clear();
            write_queue(&mut Writer(&mut bytes), queue, &self.shared);
            digest = checksum(digest, &bytes);
            for slot in queue.ids.iter().chain(queue.dead.iter()) {
                bytes.clear();
                write_record(&mut Writer(&mut bytes), &self.shared, slot);
                digest = checksum(digest, &bytes);
            }
        }
        digest
    }
}

fn write_queue(out: &mut Writer<'_>, queue: &Queue, shared: &Shared) {
    out.u32(queue.id.0);
    out.u64(queue.version);
    queue.config.encode(out);
    queue.scheduler.encode(out);
    out.option(queue.limiter.as_ref(), |out, limiter| limiter.encode(out));
    queue.totals.encode(out);
    for lane in &queue.lanes {
        out.u64(lane.hunger.since.0);
        out.bool(lane.hunger.counted);
        out.option(lane.hunger.alarm_at, |out, at| out.u64(at.0));
        lane.waits.encode(out);
    }
    out.u32(queue.last_job);
    out.u32(queue.jobs.len() as u32);
    queue.jobs.iter().for_each(|job| job.encode(out));
    queue.dedup.encode(out, shared.time);
}

fn read_queue(input: &mut Reader<'_>, shared: &mut Shared, slots: &mut Vec<u32>) -> Result<Queue, Malformed> {
    let id = QueueId(input.u32("queue id")?);
    let version = input.u64("queue version")?;
    let config = QueueConfig::decode(input)?;
    let mut queue = Queue::new(id, version, config, shared.time);
    queue.scheduler = Scheduler::decode(input, &queue.config)?;
    queue.limiter = input.option("limiter", RateLimiter::decode)?;
    queue.totals = Totals::decode(input)?;
    let mut hungers = Vec::new();
    for lane in &mut queue.lanes {
        hungers.push(Hunger {
            since: UnixMillis(input.u64("lane since")?),
            counted: input.bool("lane starved")?,
            alarm_at: input.option("lane alarm", |input| Ok(UnixMillis(input.u64("lane alarm")?)))?,
        });
        lane.waits = Waits::decode(input)?;
    }
    queue.last_job = input.u32("last job")?;
    for _ in 0..input.count(usize::MAX, 1, "jobs")? {
        queue.jobs.push(RedriveJob::decode(input)?);
    }
    if !queue.jobs.is_empty() {
        shared.jobs.insert(id);
    }
    queue.dedup = Dedup::decode(input)?;
    queue.schedule_forgetting(shared);
    for _ in 0..input.count(usize::MAX, RECORD_BYTES_MIN, "messages")? {
        slots.push(read_message(input, &mut queue, shared)?);
    }
    // The lanes' own hunger, in place of the one that filling them began.
    for (level, hunger) in (0u8..).map(Level).zip(hungers) {
        let lane = &mut queue.lanes[usize::from(level.0)];
        lane.hunger.end(shared, id, level);
        if let Some(at) = hunger.alarm_at {
            if lane.ready.is_empty() {
                return Err(Malformed("lane alarm"));
            }
            shared.alarms.insert((at, id, level));
        }
        lane.hunger = hunger;
    }
    Ok(queue)
}

fn read_message(input: &mut Reader<'_>, queue: &mut Queue, shared: &mut Shared) -> Result<u32, Malformed> {
    let (mut message, extra) = read_record(input, queue.id, queue.config.levels, shared.last_sequence)?;
    if is_planted(Bug::ForgetLeases) && message.state == State::Leased {
        message.state = State::Visible;
    }
    if is_planted(Bug::ForgetDelays) && message.state == State::Delayed {
        message.due = UnixMillis::NEVER;
    }
    let living = message.state != State::Dead;
    if queue.find(shared, message.id()).is_some() || living && shared.by_sequence(message.sequence).is_some()
    {
        return Err(Malformed("message twice"));
    }
    Ok(queue.admit(shared, message, extra))
}

/// Sets all timers anew, in the order in which they stood.
fn read_timers(input: &mut Reader<'_>, shared: &mut Shared, slots: &[u32]) -> Result<(), Malformed> {
    let base = input.u64("timer time")?;
    let timed = slots.iter().filter(|slot| shared.messages[**slot].timer_at().is_some()).count();
    let count = input.count(usize::MAX, 4, "timers")?;
    shared.timers = crate::timers::Timers::starting_at(base);
    let mut set = vec![false; slots.len()];
    for _ in 0..count {
        let number = input.u32("timer")? as usize;
        let slot = *slots.get(number).ok_or(Malformed("timer"))?;
        if core::mem::replace(&mut set[number], true) || shared.messages[slot].timer_at().is_none() {
            return Err(Malformed("timer"));
        }
        shared.set_timer(slot);
    }
    if count == timed { Ok(()) } else { Err(Malformed("timers")) }
}
