//! A shard's whole state as bytes: what a checkpoint holds, and what a new replica is sent. A restored machine goes on
//! exactly as the one it was made of, down to the order in which timers of the same millisecond fire.
//!
//! ```text
//! u32 magic | u8 format | u16 shard | u64 applied | u64 time | u64 last sequence | u64 last order of a timer
//! u64 time of the timer wheel | u32 blocks | each block, with what stays in memory of its run
//! u32 queues | each queue, with the records of its messages in memory
//! u64 checksum of everything before
//! ```

use crate::answer::{Place, Totals};
use crate::blocks::Block;
use crate::dead::RedriveJob;
use crate::dedup::Dedup;
use crate::lane::Hunger;
use crate::life_cycle::State;
use crate::machine::Machine;
use crate::message::Message;
use crate::queue::Queue;
use crate::rate::RateLimiter;
use crate::record::{RECORD_BYTES_MIN, read_record, write_record};
use crate::run::{Run, RunKind};
use crate::scheduler::Scheduler;
use crate::shared::Shared;
use crate::stats::Waits;
use crate::timers::Timers;
use overtake_base::checksum::checksum;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, Level, Malformed, QueueConfig, QueueId, Reader, ShardId, UnixMillis, Writer};
use std::collections::BTreeMap;

const MAGIC: u32 = u32::from_le_bytes(*b"OVMS");
const FORMAT: u8 = 5;
/// Checksum domains of snapshots and of digests.
const SNAPSHOT_DOMAIN: u64 = 0x6d61_6368_696e_6501;
const DIGEST_DOMAIN: u64 = 0x6d61_6368_696e_6502;
const CHECKSUM_BYTES: usize = 8;
/// Fewest bytes of a block.
const BLOCK_BYTES_MIN: usize = 21;
/// About what a record takes.
const RECORD_BYTES_USUAL: usize = 40;

impl Machine {
    /// Appends the shard's whole state.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        let start = out.len();
        // Growing by doubling would copy most of a large snapshot once more.
        out.reserve(self.shared.messages.len() * RECORD_BYTES_USUAL);
        let mut writer = Writer(out);
        writer.u32(MAGIC);
        writer.u8(FORMAT);
        writer.u16(self.shard.0);
        writer.u64(self.applied);
        writer.u64(self.shared.time.0);
        writer.u64(self.shared.last_sequence);
        writer.u64(self.shared.last_order);
        writer.u64(self.shared.timers.base());
        writer.u32(self.shared.blocks.blocks.len() as u32);
        for (id, block) in &self.shared.blocks.blocks {
            write_block(&mut writer, *id, block);
        }
        writer.u32(self.queues.len() as u32);
        for queue in self.queues.values() {
            write_queue(&mut writer, queue, &self.shared);
            writer.u32((queue.ids.len() + queue.dead.len()) as u32);
            let mut previous = None;
            for slot in queue.ids.iter().chain(queue.dead.iter()) {
                write_record(&mut writer, &self.shared, previous, slot);
                previous = Some(slot);
            }
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
        machine.shared.last_order = input.u64("last order")?;
        machine.shared.timers = Timers::starting_at(input.u64("timer time")?);
        let mut blocks = BTreeMap::new();
        for _ in 0..input.count(usize::MAX, BLOCK_BYTES_MIN, "blocks")? {
            let (id, block) = read_block(&mut input)?;
            blocks.insert(id, block);
        }
        for _ in 0..input.count(usize::MAX, 1, "queues")? {
            let queue = read_queue(&mut input, &mut machine.shared, &mut blocks)?;
            if machine.queues.insert(queue.id, queue).is_some() {
                return Err(Malformed("queue twice"));
            }
        }
        input.finish("snapshot")?;
        if is_planted(Bug::SequenceTwice) {
            machine.shared.last_sequence = machine.shared.last_sequence.saturating_sub(1);
        }
        // Blocks are taken in with their queues; one that is needed has a queue, or payloads of messages.
        let needed = machine.shared.blocks.blocks.values().all(|block| block.live > 0);
        if needed && blocks.is_empty() { Ok(machine) } else { Err(Malformed("blocks")) }
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
                write_record(&mut Writer(&mut bytes), &self.shared, None, slot);
                digest = checksum(digest, &bytes);
            }
        }
        for (id, block) in &self.shared.blocks.blocks {
            bytes.clear();
            write_block(&mut Writer(&mut bytes), *id, block);
            digest = checksum(digest, &bytes);
        }
        digest
    }
}

fn write_block(out: &mut Writer<'_>, id: BlockId, block: &Block) {
    out.u64(id.0);
    out.u32(block.queue.0);
    out.u64(block.bytes);
    out.option(block.run.as_deref(), |out, run| run.encode(out));
}

fn read_block(input: &mut Reader<'_>) -> Result<(BlockId, RestoredBlock), Malformed> {
    let id = BlockId(input.u64("block")?);
    let queue = QueueId(input.u32("block queue")?);
    let bytes = input.u64("block bytes")?;
    let run = input.option("block run", |input| Run::decode(input))?;
    Ok((id, RestoredBlock { queue, bytes, run }))
}

/// A block on its way into a restored machine.
struct RestoredBlock {
    queue: QueueId,
    bytes: u64,
    run: Option<Run>,
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

fn read_queue(
    input: &mut Reader<'_>,
    shared: &mut Shared,
    blocks: &mut BTreeMap<BlockId, RestoredBlock>,
) -> Result<Queue, Malformed> {
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
    for (block, RestoredBlock { bytes, run, .. }) in blocks.extract_if(.., |_, block| block.queue == id) {
        restore_block(&mut queue, shared, block, bytes, run)?;
    }
    let mut previous = None;
    for _ in 0..input.count(usize::MAX, RECORD_BYTES_MIN, "messages")? {
        previous = Some(read_message(input, previous.as_ref(), &mut queue, shared)?);
    }
    // The lanes' own hunger, in place of the one that filling them began.
    for (level, hunger) in (0u8..).map(Level).zip(hungers) {
        let lane = &mut queue.lanes[usize::from(level.0)];
        lane.hunger.end(shared, id, level);
        if let Some(at) = hunger.alarm_at {
            if lane.visible() == 0 {
                return Err(Malformed("lane alarm"));
            }
            shared.alarms.insert((at, id, level));
        }
        lane.hunger = hunger;
    }
    Ok(queue)
}

/// Takes a block in, with its run and what that counts. Runs of a lane do not overlap.
fn restore_block(
    queue: &mut Queue,
    shared: &mut Shared,
    block: BlockId,
    bytes: u64,
    run: Option<Run>,
) -> Result<(), Malformed> {
    if let Some(run) = &run {
        run.check_levels(queue.config.levels)?;
        if let RunKind::Visible(level) = run.kind {
            let lane = &queue.lanes[usize::from(level.0)];
            let before = lane.runs.range(..=run.last).next_back();
            let overlaps = before
                .and_then(|(_, block)| shared.blocks.run(*block))
                .is_some_and(|before| before.last >= run.first);
            if overlaps || run.last > shared.last_sequence {
                return Err(Malformed("runs of a lane"));
            }
            queue.visible.insert(level);
        }
        queue.count_run(run, block, true);
    }
    shared.blocks.add(block, queue.id, bytes, run.map(Box::new));
    Ok(())
}

/// Takes a message in, and gives its record as it was read.
fn read_message(
    input: &mut Reader<'_>,
    previous: Option<&Message>,
    queue: &mut Queue,
    shared: &mut Shared,
) -> Result<Message, Malformed> {
    let (mut message, extra) =
        read_record(input, previous, queue.id, queue.config.levels, shared.last_sequence)?;
    let read = message;
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
    if let Place::Block(block) = message.payload.place
        && shared.blocks.get(block).is_none_or(|block| block.queue != queue.id)
    {
        return Err(Malformed("payload block"));
    }
    if message.order > shared.last_order {
        return Err(Malformed("order of timers"));
    }
    queue.admit(shared, message, extra);
    Ok(read)
}
