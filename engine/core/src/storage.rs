//! The core's disk: recovery, the journal, group outputs on their way to it, payloads that are read back, checkpoints.

use crate::blocks::Drafts;
use crate::cold::ReadFor;
use crate::config::CoreConfig;
use crate::directory::DirectoryHost;
use crate::mesh::{Caller, ShardReply};
use crate::replica::Replica;
use crate::{Core, Output};
use bytes::Bytes;
use overtake_base::hash::Map;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, QueueId, ShardId};
use overtake_log::disk::{DiskCompletion, DiskOperation};
use overtake_log::lanes::{BlockPart, LANES_OPERATION, Lanes, LanesConfig, LanesRecovery, NewBlock};
use overtake_log::{
    BatchNumber, EntryRead, Journal, JournalConfig, JournalError, JournalUsage, ReadError, Record, Recovered,
    RecoveredShard, Recovery,
};
use overtake_queue::answer::{DeadLetterView, Delivery, MessageView, PayloadRef, Place};
use overtake_queue::directory::Directory;
use overtake_queue::entry::{Payload, read_payload};
use overtake_queue::machine::Machine;
use overtake_replication::types::{EntryKind, GroupConfig, GroupOutput, HardState, LogEntry, RecoveredGroup};
use overtake_replication::{Group, GroupError};
use std::collections::{BTreeMap, VecDeque};

/// Journal segments kept ready.
const SEGMENTS_AHEAD: u32 = 2;
/// Idle time after which the journal's last batches are vouched for, in nanoseconds.
const VOUCH_AFTER_NS: u64 = 50_000_000;
/// How often a full disk is tried again, in nanoseconds.
const RETRY_FULL_NS: u64 = 1_000_000_000;

/// See the module's text.
pub(crate) struct Storage {
    phase: Phase,
    lanes: LanesPhase,
    /// What the journal holds, until the lanes are open too.
    recovered: Option<Recovered>,
    pub(crate) drafts: Drafts,
    operations: Vec<DiskOperation>,
    /// Group outputs that become durable with a batch, oldest first.
    persisting: VecDeque<(BatchNumber, ShardId, u64)>,
    fetches: BTreeMap<u64, Fetch>,
    /// Which reply a read is for, and what it reads of a block.
    fetch_of: Map<u64, (u64, BlockPart)>,
    pub(crate) cache: crate::cache::EntryCache,
    checkpoints: Checkpoints,
    vouch_at_ns: Option<u64>,
    retry_full_at_ns: Option<u64>,
}

enum Phase {
    Recovering(Recovery),
    Running(Journal),
    Failed,
}

enum LanesPhase {
    Recovering(LanesRecovery),
    Running(Lanes),
    Failed,
}

/// Progress of checkpointing: one shard after the other, so that each stalls the core only briefly.
#[derive(Default)]
struct Checkpoints {
    waiting: VecDeque<ShardId>,
    writing: bool,
    bytes_written_then: u64,
}

/// Replies that need payloads.
pub(crate) enum FetchKind {
    Leased(Vec<Delivery>),
    Peeked(Vec<MessageView>),
    Dead(Vec<DeadLetterView>),
}

impl FetchKind {
    fn payloads(&self) -> Vec<PayloadRef> {
        match self {
            Self::Leased(items) => items.iter().map(|item| item.payload).collect(),
            Self::Peeked(items) => items.iter().map(|item| item.payload).collect(),
            Self::Dead(items) => items.iter().map(|item| item.payload).collect(),
        }
    }

    fn with(self, payloads: Vec<Payload>) -> ShardReply {
        match self {
            Self::Leased(items) => ShardReply::Leased(items.into_iter().zip(payloads).collect()),
            Self::Peeked(items) => ShardReply::Peeked(items.into_iter().zip(payloads).collect()),
            Self::Dead(items) => ShardReply::DeadLetters(items.into_iter().zip(payloads).collect()),
        }
    }
}

struct Fetch {
    caller: Caller,
    shard: ShardId,
    queue: QueueId,
    kind: FetchKind,
    references: Vec<PayloadRef>,
    payloads: Vec<Option<Payload>>,
    /// Reads under way.
    reading: usize,
}

impl Storage {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let journal = JournalConfig {
            store: config.store,
            core: config.core,
            segment_bytes: config.segment_bytes,
            writes_in_flight_max: config.writes_in_flight_max,
            batch_bytes_max: config.batch_bytes_max,
            segments_ahead: SEGMENTS_AHEAD,
        };
        Self {
            phase: Phase::Recovering(Recovery::new(journal)),
            lanes: LanesPhase::Recovering(LanesRecovery::new(LanesConfig {
                store: config.store,
                core: config.core,
                file_bytes: config.cold.lane_file_bytes,
                spare_files: config.cold.spare_files,
            })),
            recovered: None,
            drafts: Drafts::default(),
            operations: Vec::new(),
            persisting: VecDeque::new(),
            fetches: BTreeMap::new(),
            fetch_of: Map::default(),
            cache: crate::cache::EntryCache::new(config.cache_bytes),
            checkpoints: Checkpoints::default(),
            vouch_at_ns: None,
            retry_full_at_ns: None,
        }
    }

    /// True where there is no room for what grows.
    pub(crate) fn is_full(&self) -> bool {
        matches!(&self.phase, Phase::Running(journal) if journal.disk_full()) || self.lanes_full()
    }

    /// True where there is no room for blocks.
    pub(crate) fn lanes_full(&self) -> bool {
        self.lanes().is_some_and(Lanes::disk_full)
    }

    /// Everything is recovered, and the disk has not failed.
    pub(crate) fn is_running(&self) -> bool {
        matches!((&self.phase, &self.lanes), (Phase::Running(_), LanesPhase::Running(_)))
    }

    pub(crate) fn lanes(&self) -> Option<&Lanes> {
        if let LanesPhase::Running(lanes) = &self.lanes { Some(lanes) } else { None }
    }

    pub(crate) fn lanes_mut(&mut self) -> Option<&mut Lanes> {
        if let LanesPhase::Running(lanes) = &mut self.lanes { Some(lanes) } else { None }
    }

    pub(crate) fn flush_lanes(&mut self) {
        if let LanesPhase::Running(lanes) = &mut self.lanes {
            lanes.flush(&mut self.operations);
        }
    }

    /// Asks for a part of a block; false where it is not on disk.
    pub(crate) fn read_block(&mut self, shard: ShardId, block: BlockId, part: BlockPart, token: u64) -> bool {
        let LanesPhase::Running(lanes) = &mut self.lanes else { return false };
        lanes.read(shard, block, part, token, &mut self.operations)
    }

    /// Asks for a log entry; false where the journal does not hold it.
    pub(crate) fn read_entry(&mut self, shard: ShardId, index: u64, token: u64) -> bool {
        let Phase::Running(journal) = &mut self.phase else { return false };
        journal.read_entry(shard, index, token, &mut self.operations)
    }

    pub(crate) fn write_block(&mut self, new: &NewBlock) {
        if let LanesPhase::Running(lanes) = &mut self.lanes {
            lanes.write(new);
            lanes.flush(&mut self.operations);
        }
    }

    /// Shards that need the journal's oldest segment, each with its highest index there.
    pub(crate) fn pinning(&self) -> Vec<(ShardId, u64)> {
        if let Phase::Running(journal) = &self.phase { journal.pinning() } else { Vec::new() }
    }

    /// Checkpoints the shard so many times, soon.
    pub(crate) fn want_checkpoints(&mut self, shard: ShardId, times: usize) {
        self.checkpoints.waiting.extend(core::iter::repeat_n(shard, times));
    }

    /// Nothing is answered from this disk any more.
    pub(crate) fn fail(&mut self) {
        self.phase = Phase::Failed;
        self.lanes = LanesPhase::Failed;
    }

    /// Accepted bytes that wait for the disk.
    pub(crate) fn backlog_bytes(&self) -> usize {
        if let Phase::Running(journal) = &self.phase { journal.backlog_bytes() } else { 0 }
    }

    pub(crate) fn usage(&self) -> JournalUsage {
        if let Phase::Running(journal) = &self.phase { journal.usage() } else { JournalUsage::default() }
    }

    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// When, on the monotonic clock, something is to be done though nothing happened.
    pub(crate) fn next_wake(&self) -> Option<u64> {
        [self.vouch_at_ns, self.retry_full_at_ns].into_iter().flatten().min()
    }

    /// Appends what a group wants durable, and remembers which batch that is.
    fn persist(&mut self, shard: ShardId, output: &GroupOutput) {
        let Phase::Running(journal) = &mut self.phase else { return };
        let mut batch = journal.durable();
        for LogEntry { term, index, kind, data } in &output.entries {
            let (term, index, kind) = (*term, *index, *kind as u8);
            batch = journal.append(Record::Entry { shard, term, index, kind, data });
        }
        if let Some(HardState { term, vote, commit }) = output.hard_state {
            batch = journal.append(Record::HardState { shard, term, vote, commit });
        }
        if let Some(number) = output.persist {
            self.persisting.push_back((batch, shard, number));
        }
    }
}

impl Core {
    pub(crate) fn start_recovery(&mut self) {
        if let Phase::Recovering(recovery) = &mut self.storage.phase {
            recovery.start(&mut self.storage.operations);
        }
        if let LanesPhase::Recovering(recovery) = &mut self.storage.lanes {
            recovery.start(&mut self.storage.operations);
        }
        self.put_out_operations();
    }

    pub(crate) fn put_out_operations(&mut self) {
        self.out.extend(self.storage.operations.drain(..).map(Output::Disk));
    }

    /// Takes a disk completion.
    pub(crate) fn disk(&mut self, completion: DiskCompletion) {
        if completion.id & LANES_OPERATION != 0 {
            return self.lanes_disk(completion);
        }
        match core::mem::replace(&mut self.storage.phase, Phase::Failed) {
            Phase::Recovering(mut recovery) => {
                match recovery.complete(completion, &mut self.storage.operations) {
                    Ok(None) => self.storage.phase = Phase::Recovering(recovery),
                    Ok(Some((journal, recovered))) => {
                        self.storage.phase = Phase::Running(journal);
                        self.storage.recovered = Some(recovered);
                        self.recovered_both();
                    }
                    Err(error) => self.disk_failed(&error),
                }
            }
            Phase::Running(mut journal) => match journal.complete(completion, &mut self.storage.operations) {
                Ok(completed) => {
                    self.storage.phase = Phase::Running(journal);
                    self.entries_read(completed.reads);
                    if let Some(written) = completed.checkpoint {
                        self.checkpoint_written(written.shard, written.index, written.written);
                    }
                    self.note_durable();
                }
                Err(error) => self.disk_failed(&error),
            },
            Phase::Failed => {}
        }
        self.put_out_operations();
    }

    /// Takes a completion of the lanes.
    fn lanes_disk(&mut self, completion: DiskCompletion) {
        match core::mem::replace(&mut self.storage.lanes, LanesPhase::Failed) {
            LanesPhase::Recovering(mut recovery) => {
                match recovery.complete(completion, &mut self.storage.operations) {
                    Ok(None) => self.storage.lanes = LanesPhase::Recovering(recovery),
                    Ok(Some(lanes)) => {
                        self.storage.lanes = LanesPhase::Running(lanes);
                        self.recovered_both();
                    }
                    Err(error) => self.disk_failed(&error),
                }
            }
            LanesPhase::Running(mut lanes) => {
                match lanes.complete(completion, &mut self.storage.operations) {
                    Ok(completed) => {
                        self.storage.lanes = LanesPhase::Running(lanes);
                        completed.written.into_iter().for_each(|key| self.block_written(key));
                        completed.reads.into_iter().for_each(|read| self.block_read(read));
                        self.pump_drafts();
                    }
                    Err(error) => self.disk_failed(&error),
                }
            }
            LanesPhase::Failed => {}
        }
        self.put_out_operations();
    }

    /// The shards are made when both the journal and the lanes are open.
    fn recovered_both(&mut self) {
        if self.storage.is_running()
            && let Some(recovered) = self.storage.recovered.take()
        {
            self.recovered(recovered);
        }
    }

    /// A disk that failed once is not trusted again: nothing more is answered from it.
    fn disk_failed(&mut self, error: &JournalError) {
        self.storage.fail();
        self.fatal(format!("core {}: {error}", self.config.core));
    }

    fn recovered(&mut self, mut recovered: Recovered) {
        let core = self.config.core;
        if let Some(unknown) = recovered.shards.keys().find(|shard| self.config.core_of(**shard) != core) {
            let detail =
                format!("core {core}: the journal holds shard {unknown}, which belongs to another core");
            return self.fatal(detail);
        }
        for shard in self.config.own_shards() {
            let found = recovered.shards.remove(&shard).unwrap_or_default();
            match self.recover_replica(shard, found) {
                Ok(replica) => {
                    let lanes = self.storage.lanes();
                    let missing = |block: &BlockId| lanes.is_some_and(|lanes| !lanes.contains(shard, *block));
                    if let Some(block) = replica.machine.blocks().find(missing) {
                        return self.block_missing((shard, block));
                    }
                    self.replicas.insert(shard, replica);
                }
                Err(detail) => return self.fatal(format!("core {core}: shard {shard}: {detail}")),
            }
        }
        if core.0 == 0 {
            let found = recovered.shards.remove(&ShardId::DIRECTORY).unwrap_or_default();
            match self.recover_directory(found) {
                Ok(host) => self.host = Some(host),
                Err(detail) => return self.fatal(format!("core {core}: directory of queues: {detail}")),
            }
        }
        self.directory.start.recovered = true;
        self.storage.checkpoints.bytes_written_then = self.storage.usage().bytes_written;
    }

    fn recover_replica(&self, shard: ShardId, found: RecoveredShard) -> Result<Replica, String> {
        let machine = match &found.checkpoint {
            Some(checkpoint) => Machine::restore(shard, &checkpoint.data).map_err(|e| e.to_string())?,
            None => Machine::new(shard),
        };
        let checkpoint_index = found.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.index);
        let group = self.recover_group(shard, found).map_err(|e| e.to_string())?;
        Ok(Replica::new(shard, group, machine, checkpoint_index))
    }

    fn recover_directory(&self, found: RecoveredShard) -> Result<DirectoryHost, String> {
        let shards = self.config.shards;
        let directory = match &found.checkpoint {
            Some(checkpoint) => Directory::restore(shards, &checkpoint.data).map_err(|e| e.to_string())?,
            None => Directory::new(shards),
        };
        let checkpoint_index = found.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.index);
        let group = self.recover_group(ShardId::DIRECTORY, found).map_err(|e| e.to_string())?;
        Ok(DirectoryHost::new(group, directory, checkpoint_index))
    }

    fn recover_group(&self, shard: ShardId, found: RecoveredShard) -> Result<Group, GroupError> {
        let (term, vote, commit) = found.hard_state.unwrap_or_default();
        let checkpoint =
            found.checkpoint.as_ref().map_or((0, 0), |checkpoint| (checkpoint.index, checkpoint.term));
        let mut entries = Vec::new();
        for entry in found.entries.into_iter().filter(|entry| entry.index > checkpoint.0) {
            let kind = match entry.kind {
                0 => EntryKind::Normal,
                1 => EntryKind::Membership,
                _ => return Err(GroupError::Corrupt("an entry of an unknown kind")),
            };
            entries.push(LogEntry { term: entry.term, index: entry.index, kind, data: entry.data });
        }
        let config = GroupConfig {
            shard,
            node: self.config.node,
            voters: vec![self.config.node],
            seed: self.config.seed ^ u64::from(shard.0),
        };
        let hard_state = HardState { term, vote, commit };
        let mut group =
            Group::new(config, RecoveredGroup { hard_state, checkpoint, voters: Vec::new(), entries })?;
        // The only voter need not wait for an election time-out.
        group.campaign();
        Ok(group)
    }

    /// Tells groups which of their outputs have become durable.
    fn note_durable(&mut self) {
        let Phase::Running(journal) = &self.storage.phase else { return };
        let durable = journal.durable();
        while let Some((batch, shard, number)) = self.storage.persisting.front().copied()
            && (batch <= durable || is_planted(Bug::AcknowledgeBeforeSync))
        {
            self.storage.persisting.pop_front();
            if shard == ShardId::DIRECTORY {
                if let Some(host) = &mut self.host {
                    host.group.persisted(number);
                }
            } else if let Some(replica) = self.replicas.get_mut(&shard) {
                replica.group.persisted(number);
            }
        }
    }

    /// Proposes this turn's commands, takes the groups' outputs, applies what is committed. True where anything moved.
    pub(crate) fn propose_and_apply(&mut self) -> bool {
        if !self.storage.is_running() {
            return false;
        }
        let mut moved = self.advance_start();
        let shards: Vec<ShardId> = self.replicas.keys().copied().collect();
        let mut done = Vec::new();
        let mut output = GroupOutput::default();
        for shard in shards {
            let Some(replica) = self.replicas.get_mut(&shard) else { continue };
            replica.propose(self.time, &mut done);
            if replica.group.has_output() {
                moved = true;
                replica.group.output(&mut output);
                self.storage.persist(shard, &output);
                for entry in &output.committed {
                    if let Err(malformed) = replica.apply(entry, &mut self.storage.cache, &mut done) {
                        let detail = format!("shard {shard}, log index {}: {malformed}", entry.index);
                        return self.undecodable(detail);
                    }
                }
                let applied = output.committed.last().map(|entry| entry.index);
                if let Some(applied) = applied {
                    replica.group.compact(applied);
                    self.learn_heads(shard);
                    self.take_block_news(shard);
                    self.look_at_thaws(shard);
                    self.sweep_blocks(shard);
                }
            }
            if !done.is_empty() {
                moved = true;
                self.commands_done(shard, &mut done);
            }
        }
        moved | self.run_directory(&mut output)
    }

    fn undecodable(&mut self, detail: String) -> bool {
        self.fatal(format!(
            "a committed log entry cannot be read, another version wrote it or it is damaged: {detail}"
        ));
        self.storage.fail();
        false
    }

    fn run_directory(&mut self, output: &mut GroupOutput) -> bool {
        let Some(host) = self.host.as_mut().filter(|host| host.group.has_output()) else { return false };
        host.group.output(output);
        self.storage.persist(ShardId::DIRECTORY, output);
        for entry in &output.committed {
            if let Err(malformed) = self.directory_apply(entry) {
                return self
                    .undecodable(format!("directory of queues, log index {}: {malformed}", entry.index));
            }
        }
        if let (Some(host), Some(last)) = (&mut self.host, output.committed.last()) {
            host.group.compact(last.index);
        }
        true
    }

    /// Ends the turn's journal batch: one durable write for all shards of the core.
    pub(crate) fn write_journal(&mut self) {
        let now_ns = self.now.monotonic_ns;
        self.begin_checkpoints();
        let full = self.storage.is_full();
        let Phase::Running(journal) = &mut self.storage.phase else { return };
        journal.flush(&mut self.storage.operations);
        let quiet = journal.usage().writes_in_flight == 0 && journal.backlog_bytes() == 0;
        match self.storage.vouch_at_ns {
            _ if !quiet => self.storage.vouch_at_ns = Some(now_ns + VOUCH_AFTER_NS),
            Some(at_ns) if at_ns <= now_ns => {
                self.storage.vouch_at_ns = None;
                journal.vouch(&mut self.storage.operations);
            }
            _ => {}
        }
        match self.storage.retry_full_at_ns {
            None if full => self.storage.retry_full_at_ns = Some(now_ns + RETRY_FULL_NS),
            Some(at_ns) if at_ns <= now_ns => {
                self.storage.retry_full_at_ns = None;
                journal.retry_allocation(&mut self.storage.operations);
                if let LanesPhase::Running(lanes) = &mut self.storage.lanes {
                    lanes.retry_allocation(&mut self.storage.operations);
                }
            }
            _ => {}
        }
        self.put_out_operations();
    }

    /// Vouches for the last batches before a clean end. True once that is durable.
    pub(crate) fn seal_journal(&mut self) -> bool {
        let Phase::Running(journal) = &mut self.storage.phase else { return true };
        journal.seal(&mut self.storage.operations);
        let sealed = journal.is_idle();
        self.put_out_operations();
        sealed
    }

    /// Completes a reply with the payloads it names, from memory or from disk.
    pub(crate) fn fetch(&mut self, caller: Caller, shard: ShardId, queue: QueueId, kind: FetchKind) {
        let drafts = &self.storage.drafts;
        let references: Vec<PayloadRef> =
            kind.payloads().into_iter().map(|payload| drafts.resolve(shard, payload)).collect();
        let payloads = vec![None; references.len()];
        let mut fetch = Fetch { caller, shard, queue, kind, references, payloads, reading: 0 };
        let token = self.next_number();
        let mut missing: BTreeMap<Place, Vec<PayloadRef>> = BTreeMap::new();
        for (reference, payload) in fetch.references.iter().zip(&mut fetch.payloads) {
            let whole = self.storage.cache.get(shard, reference.place);
            match whole.map(|whole| read_payload(whole, *reference)) {
                Some(Ok(read)) => *payload = Some(read),
                Some(Err(malformed)) => {
                    return self.payload_lost(shard, reference.place, &malformed.to_string());
                }
                None => missing.entry(reference.place).or_default().push(*reference),
            }
        }
        for (place, references) in missing {
            let parts = match place {
                Place::Entry(_) => vec![BlockPart::Whole],
                Place::Block(_) => crate::blocks::parts(&references),
            };
            for part in parts {
                self.counters.payload_reads += 1;
                fetch.reading += 1;
                let part_token = self.next_number();
                self.storage.fetch_of.insert(part_token, (token, part));
                let asked = match place {
                    Place::Entry(index) => self.storage.read_entry(shard, index, part_token),
                    Place::Block(block) => {
                        self.cold.reads.insert(part_token, ((shard, block), ReadFor::Fetch));
                        self.storage.read_block(shard, block, part, part_token)
                    }
                };
                if !asked {
                    return self.payload_lost(shard, place, "it is not on disk");
                }
            }
        }
        self.put_out_operations();
        self.go_on_fetching(token, fetch);
    }

    fn go_on_fetching(&mut self, token: u64, fetch: Fetch) {
        if fetch.reading > 0 {
            self.storage.fetches.insert(token, fetch);
            return;
        }
        let payloads: Vec<Payload> = fetch.payloads.into_iter().flatten().collect();
        assert!(
            payloads.len() == fetch.references.len(),
            "a body would be delivered with another message's id"
        );
        let reply = fetch.kind.with(payloads);
        self.reply(fetch.caller, fetch.shard, Some(fetch.queue), reply);
    }

    fn entries_read(&mut self, reads: Vec<EntryRead>) {
        for EntryRead { token, shard, index, result } in reads {
            let place = Place::Entry(index);
            if let Some((key, ReadFor::Draft(_))) = self.cold.reads.remove(&token) {
                match result {
                    Ok(entry) => self.payload_collected(key, place, Some(&entry)),
                    Err(ReadError::Gone) => self.payload_collected(key, place, None),
                    Err(ReadError::Damaged(error)) => return self.disk_failed(&error),
                }
                continue;
            }
            let Some((token, mut fetch)) = self.fetch_of(token) else { continue };
            match result {
                Ok(entry) => {
                    if let Err(detail) = fill(&mut fetch, place, &entry) {
                        return self.payload_lost(shard, place, &detail);
                    }
                    self.storage.cache.insert(shard, place, entry);
                }
                // The messages are gone (acked or expired) while they were read: there is nothing to hand out.
                Err(ReadError::Gone) => drop_place(&mut fetch, place),
                Err(ReadError::Damaged(error)) => return self.disk_failed(&error),
            }
            self.go_on_fetching(token, fetch);
        }
    }

    /// The reply that a read was for.
    fn fetch_of(&mut self, token: u64) -> Option<(u64, Fetch)> {
        let (token, _) = self.storage.fetch_of.remove(&token)?;
        let mut fetch = self.storage.fetches.remove(&token)?;
        fetch.reading -= 1;
        Some((token, fetch))
    }

    /// A block, or one payload of it, that was read for a reply.
    pub(crate) fn payloads_read(&mut self, token: u64, shard: ShardId, block: BlockId, bytes: Bytes) {
        let place = Place::Block(block);
        let part = self.storage.fetch_of.get(&token).map(|(_, part)| *part);
        let Some((token, mut fetch)) = self.fetch_of(token) else { return };
        let filled = match part {
            Some(BlockPart::Payload { offset, length }) => {
                fill_one(&mut fetch, (place, offset, length), &bytes)
            }
            _ => fill(&mut fetch, place, &bytes),
        };
        if let Err(detail) = filled {
            return self.payload_lost(shard, place, &detail);
        }
        if part == Some(BlockPart::Whole) {
            self.storage.cache.insert(shard, place, bytes);
        }
        self.go_on_fetching(token, fetch);
    }

    fn payload_lost(&mut self, shard: ShardId, place: Place, why: &str) {
        let place = match place {
            Place::Entry(index) => format!("log entry {index}"),
            Place::Block(block) => format!("block {block}"),
        };
        self.fatal(format!("shard {shard}: the payload in {place} cannot be read: {why}"));
        self.storage.fail();
    }

    fn begin_checkpoints(&mut self) {
        let written = self.storage.usage().bytes_written;
        let checkpoints = &mut self.storage.checkpoints;
        if written - checkpoints.bytes_written_then.min(written) >= self.config.checkpoint_bytes {
            checkpoints.bytes_written_then = written;
            if checkpoints.waiting.is_empty() {
                checkpoints.waiting.extend(self.replicas.keys().copied());
                checkpoints.waiting.extend(self.host.is_some().then_some(ShardId::DIRECTORY));
            }
        }
        if checkpoints.writing {
            return;
        }
        // A state that knows a block which a power loss may still take would leave messages behind that are nowhere.
        let ready = |shard: &ShardId| !self.storage.drafts.has_any_of(*shard);
        let Some(at) = checkpoints.waiting.iter().position(ready) else { return };
        let Some(shard) = checkpoints.waiting.remove(at) else { return };
        let mut state = Vec::new();
        let index = match self.replicas.get(&shard) {
            Some(replica) => {
                replica.machine.snapshot(&mut state);
                replica.machine.applied()
            }
            None => {
                let Some(host) = &self.host else { return };
                state = host.directory.snapshot();
                host.applied
            }
        };
        let Phase::Running(journal) = &mut self.storage.phase else { return };
        let Some(term) = journal.entry_term(shard, index) else { return };
        self.storage.checkpoints.writing = true;
        journal.write_checkpoint(shard, index, term, Bytes::from(state), &mut self.storage.operations);
    }

    fn checkpoint_written(&mut self, shard: ShardId, index: u64, written: bool) {
        self.storage.checkpoints.writing = false;
        let Phase::Running(journal) = &mut self.storage.phase else { return };
        if !written {
            return;
        }
        self.counters.checkpoints += 1;
        // The entries after the checkpoint before this one stay, so that recovery can fall back to it.
        if let Some(replica) = self.replicas.get_mut(&shard) {
            // Payloads on their way into blocks or into replies are read where they were.
            let drafts = self.storage.drafts.oldest_entry(shard);
            let fetches = self.storage.fetches.values().filter(|fetch| fetch.shard == shard);
            let fetched =
                fetches.flat_map(|fetch| &fetch.references).filter_map(|reference| match reference.place {
                    Place::Entry(index) => Some(index),
                    Place::Block(_) => None,
                });
            let needed = drafts.into_iter().chain(fetched).fold(replica.first_needed_index(), u64::min);
            let first_needed = if is_planted(Bug::ReleasePayloads) { index + 1 } else { needed };
            // Recovery may begin with the checkpoint before this one, and none older.
            let before = core::mem::replace(&mut replica.checkpoint_index, index);
            journal.release_before(shard, first_needed);
            self.free_blocks(shard, before);
        } else if let Some(host) = &mut self.host {
            journal.release_before(shard, host.checkpoint_index + 1);
            host.checkpoint_index = index;
        }
    }

    /// Takes the heads of a shard of this core into its view, and marks them for the board.
    pub(crate) fn learn_heads(&mut self, shard: ShardId) {
        let Some(replica) = self.replicas.get_mut(&shard) else { return };
        let mut changed = Vec::new();
        replica.machine.drain_changed(|queue| changed.push(queue));
        let cold = replica.machine.cold_messages() > 0;
        for queue in changed {
            if cold {
                self.cold.ahead.insert((shard, queue));
            }
            self.to_publish.insert((shard, queue));
            if let Some(newest) = self.own_summary(shard, queue)
                && self.view.update(queue, &newest)
                && !is_planted(Bug::LostWakeUp)
            {
                self.waiting.touch(queue);
            }
        }
    }

    /// The same for all shards, once at the start.
    pub(crate) fn learn_own_heads(&mut self) {
        let all: Vec<(ShardId, QueueId)> = self
            .replicas
            .iter()
            .flat_map(|(shard, replica)| replica.machine.queues().map(|queue| (*shard, queue)))
            .collect();
        for (shard, queue) in all {
            self.to_publish.insert((shard, queue));
            if let Some(newest) = self.own_summary(shard, queue) {
                self.view.update(queue, &newest);
            }
        }
    }

    /// Puts the heads that changed in this turn on the board.
    pub(crate) fn publish_changes(&mut self) {
        if self.config.cores == 1 {
            return self.to_publish.clear();
        }
        for (shard, queue) in core::mem::take(&mut self.to_publish) {
            let version = self.replicas.get(&shard).map_or(0, |replica| replica.machine.applied());
            let (summary, gone) = match self.own_summary(shard, queue) {
                Some(newest) => (newest.summary, false),
                None => {
                    let levels = Vec::new();
                    (overtake_queue::answer::Summary { queue, depth: 0, body_bytes: 0, levels }, true)
                }
            };
            self.out.push(Output::Publish { shard, version, summary, gone });
        }
    }
}

fn fill(fetch: &mut Fetch, place: Place, whole: &Bytes) -> Result<(), String> {
    for (reference, payload) in fetch.references.iter().zip(&mut fetch.payloads) {
        if reference.place == place {
            *payload = Some(read_payload(whole, *reference).map_err(|malformed| malformed.to_string())?);
        }
    }
    Ok(())
}

/// Takes in one payload that was read by itself.
fn fill_one(
    fetch: &mut Fetch,
    (place, offset, length): (Place, u32, u32),
    bytes: &Bytes,
) -> Result<(), String> {
    for (reference, payload) in fetch.references.iter().zip(&mut fetch.payloads) {
        if (reference.place, reference.offset, reference.length) == (place, offset, length) {
            let alone = PayloadRef { offset: 0, ..*reference };
            *payload = Some(read_payload(bytes, alone).map_err(|malformed| malformed.to_string())?);
        }
    }
    Ok(())
}

/// Takes the items of a released entry out of a fetch.
fn drop_place(fetch: &mut Fetch, place: Place) {
    let keep: Vec<bool> = fetch.references.iter().map(|reference| reference.place != place).collect();
    fn retain<T>(items: &mut Vec<T>, keep: &[bool]) {
        let mut keep = keep.iter();
        items.retain(|_| *keep.next().unwrap_or(&true));
    }
    retain(&mut fetch.references, &keep);
    retain(&mut fetch.payloads, &keep);
    match &mut fetch.kind {
        FetchKind::Leased(items) => retain(items, &keep),
        FetchKind::Peeked(items) => retain(items, &keep),
        FetchKind::Dead(items) => retain(items, &keep),
    }
}
