//! The core's disk: recovery, the journal, group outputs on their way to it, payloads that are read back, checkpoints.

use crate::config::CoreConfig;
use crate::directory::DirectoryHost;
use crate::mesh::{Caller, ShardReply};
use crate::page::Page;
use crate::replica::Replica;
use crate::{Core, Output};
use bytes::Bytes;
use overtake_base::hash::Map;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{MessageId, QueueId, ShardId};
use overtake_log::disk::{DiskCompletion, DiskOperation};
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
use std::collections::VecDeque;

/// Journal segments kept ready.
const SEGMENTS_AHEAD: u32 = 2;
/// Idle time after which the journal's last batches are vouched for, in nanoseconds.
const VOUCH_AFTER_NS: u64 = 50_000_000;
/// How often a full disk is tried again, in nanoseconds.
const RETRY_FULL_NS: u64 = 1_000_000_000;

/// See the module's text.
pub(crate) struct Storage {
    phase: Phase,
    operations: Vec<DiskOperation>,
    /// Group outputs that become durable with a batch, oldest first.
    persisting: VecDeque<(BatchNumber, ShardId, u64)>,
    fetches: Map<u64, Fetch>,
    cache: crate::cache::EntryCache,
    checkpoints: Checkpoints,
    vouch_at_ns: Option<u64>,
    retry_full_at_ns: Option<u64>,
}

enum Phase {
    Recovering(Recovery),
    Running(Journal),
    Failed,
}

/// Progress of checkpointing: one shard after the other, so that each stalls the core only briefly.
#[derive(Default)]
struct Checkpoints {
    waiting: VecDeque<ShardId>,
    writing: bool,
    bytes_written_then: u64,
    /// Rounds to make because the disk is full, however little was written: what was acked makes room only when the log
    /// before it is not needed any more, and that is after the second checkpoint.
    owed_to_full_disk: u8,
}

/// Rounds of checkpoints after which nothing is kept but what lives.
const ROUNDS_TO_FREE: u8 = 2;

/// Replies that need payloads.
pub(crate) enum FetchKind {
    Leased(Vec<Delivery>),
    /// With the id up to which the page is whole, where there is more.
    Peeked(Vec<MessageView>, Option<MessageId>),
    Dead(Vec<DeadLetterView>, Option<MessageId>),
}

impl FetchKind {
    fn payloads(&self) -> Vec<PayloadRef> {
        match self {
            Self::Leased(items) => items.iter().map(|item| item.payload).collect(),
            Self::Peeked(items, _) => items.iter().map(|item| item.payload).collect(),
            Self::Dead(items, _) => items.iter().map(|item| item.payload).collect(),
        }
    }

    fn with(self, payloads: Vec<Payload>) -> ShardReply {
        match self {
            Self::Leased(items) => ShardReply::Leased(items.into_iter().zip(payloads).collect()),
            Self::Peeked(items, upto) => {
                ShardReply::Peeked(Page { items: items.into_iter().zip(payloads).collect(), upto })
            }
            Self::Dead(items, upto) => {
                ShardReply::DeadLetters(Page { items: items.into_iter().zip(payloads).collect(), upto })
            }
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
    /// Entries being read.
    reading: usize,
}

impl Storage {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let journal = JournalConfig {
            store: config.store,
            core: config.core,
            segment_bytes: config.segment_bytes,
            writes_in_flight_max: config.writes_in_flight_max,
            record_bytes_max: config.entry_bytes_max,
            batch_bytes_max: config.batch_bytes_max,
            segments_ahead: SEGMENTS_AHEAD,
        };
        Self {
            phase: Phase::Recovering(Recovery::new(journal)),
            operations: Vec::new(),
            persisting: VecDeque::new(),
            fetches: Map::default(),
            cache: crate::cache::EntryCache::new(config.cache_bytes),
            checkpoints: Checkpoints::default(),
            vouch_at_ns: None,
            retry_full_at_ns: None,
        }
    }

    /// True where there is no room for what grows.
    pub(crate) fn is_full(&self) -> bool {
        matches!(&self.phase, Phase::Running(journal) if journal.disk_full())
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
        self.put_out_operations();
    }

    fn put_out_operations(&mut self) {
        self.out.extend(self.storage.operations.drain(..).map(Output::Disk));
    }

    /// Takes a disk completion.
    pub(crate) fn disk(&mut self, completion: DiskCompletion) {
        match core::mem::replace(&mut self.storage.phase, Phase::Failed) {
            Phase::Recovering(mut recovery) => {
                match recovery.complete(completion, &mut self.storage.operations) {
                    Ok(None) => self.storage.phase = Phase::Recovering(recovery),
                    Ok(Some((journal, recovered))) => {
                        self.storage.phase = Phase::Running(journal);
                        self.recovered(recovered);
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

    /// A disk that failed once is not trusted again: nothing more is answered from it.
    fn disk_failed(&mut self, error: &JournalError) {
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
        for file in &recovered.report.damaged_checkpoints {
            self.out.push(Output::Warning(format!(
                "core {core}: {file} is damaged; the checkpoint before it and the journal stand in, and nothing is lost; \
                 look after this disk"
            )));
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
        Ok(Replica::new(shard, group, machine, checkpoint_index, self.config.entry_bytes_max))
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
        if !matches!(self.storage.phase, Phase::Running(_)) {
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
        self.storage.phase = Phase::Failed;
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
            None if journal.disk_full() => self.storage.retry_full_at_ns = Some(now_ns + RETRY_FULL_NS),
            Some(at_ns) if at_ns <= now_ns => {
                self.storage.retry_full_at_ns = None;
                let checkpoints = &mut self.storage.checkpoints;
                if journal.usage().bytes_written > checkpoints.bytes_written_then {
                    checkpoints.owed_to_full_disk = ROUNDS_TO_FREE;
                }
                journal.retry_allocation(&mut self.storage.operations);
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
        let references = kind.payloads();
        let payloads = vec![None; references.len()];
        let mut fetch = Fetch { caller, shard, queue, kind, references, payloads, reading: 0 };
        let token = self.next_number();
        let mut missing: Vec<u64> = Vec::new();
        for (reference, payload) in fetch.references.iter().zip(&mut fetch.payloads) {
            let Place::Entry(index) = reference.place else { continue };
            match self.storage.cache.get(shard, index).map(|entry| read_payload(entry, *reference)) {
                Some(Ok(read)) => *payload = Some(read),
                Some(Err(malformed)) => {
                    return self.payload_lost(shard, index, &malformed.to_string());
                }
                None if missing.contains(&index) => {}
                None => missing.push(index),
            }
        }
        for index in &missing {
            self.counters.payload_reads += 1;
            let Phase::Running(journal) = &mut self.storage.phase else { return };
            if !journal.read_entry(shard, *index, token, &mut self.storage.operations) {
                return self.payload_lost(shard, *index, "the journal does not hold it");
            }
        }
        self.put_out_operations();
        fetch.reading = missing.len();
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
            let Some(mut fetch) = self.storage.fetches.remove(&token) else { continue };
            fetch.reading -= 1;
            match result {
                Ok(entry) => {
                    if let Err(detail) = fill(&mut fetch, index, &entry) {
                        return self.payload_lost(shard, index, &detail);
                    }
                    self.storage.cache.insert(shard, index, entry);
                }
                // The messages are gone (acked or expired) while they were read: there is nothing to hand out.
                Err(ReadError::Gone) => drop_entry(&mut fetch, index),
                Err(ReadError::Damaged(error)) => return self.disk_failed(&error),
            }
            self.go_on_fetching(token, fetch);
        }
    }

    fn payload_lost(&mut self, shard: ShardId, index: u64, why: &str) {
        self.fatal(format!("shard {shard}: the payload in log entry {index} cannot be read: {why}"));
        self.storage.phase = Phase::Failed;
    }

    fn begin_checkpoints(&mut self) {
        let written = self.storage.usage().bytes_written;
        let full = self.storage.is_full();
        let checkpoints = &mut self.storage.checkpoints;
        let owed = full && checkpoints.owed_to_full_disk > 0 && checkpoints.waiting.is_empty();
        if owed || written - checkpoints.bytes_written_then.min(written) >= self.config.checkpoint_bytes {
            checkpoints.bytes_written_then = written;
            checkpoints.owed_to_full_disk = checkpoints.owed_to_full_disk.saturating_sub(1);
            if checkpoints.waiting.is_empty() {
                checkpoints.waiting.extend(self.replicas.keys().copied());
                checkpoints.waiting.extend(self.host.is_some().then_some(ShardId::DIRECTORY));
            }
        }
        if checkpoints.writing {
            return;
        }
        let Some(shard) = checkpoints.waiting.pop_front() else { return };
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
            let needed = replica.first_needed_index();
            let first_needed = if is_planted(Bug::ReleasePayloads) { index + 1 } else { needed };
            replica.checkpoint_index = index;
            journal.release_before(shard, first_needed);
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
        for queue in changed {
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

fn fill(fetch: &mut Fetch, index: u64, entry: &Bytes) -> Result<(), String> {
    for (reference, payload) in fetch.references.iter().zip(&mut fetch.payloads) {
        if reference.place == Place::Entry(index) {
            *payload = Some(read_payload(entry, *reference).map_err(|malformed| malformed.to_string())?);
        }
    }
    Ok(())
}

/// Takes the items of a released entry out of a fetch.
fn drop_entry(fetch: &mut Fetch, index: u64) {
    let keep: Vec<bool> =
        fetch.references.iter().map(|reference| reference.place != Place::Entry(index)).collect();
    fn retain<T>(items: &mut Vec<T>, keep: &[bool]) {
        let mut keep = keep.iter();
        items.retain(|_| *keep.next().unwrap_or(&true));
    }
    retain(&mut fetch.references, &keep);
    retain(&mut fetch.payloads, &keep);
    match &mut fetch.kind {
        FetchKind::Leased(items) => retain(items, &keep),
        FetchKind::Peeked(items, _) => retain(items, &keep),
        FetchKind::Dead(items, _) => retain(items, &keep),
    }
}
