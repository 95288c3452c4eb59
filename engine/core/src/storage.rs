//! The core's disk: recovery, the journal, group outputs on their way to it, payloads that are read back, checkpoints.

mod checkpoints;
mod giving_up;
mod recovered;

use crate::blocks::Drafts;
use crate::cold::ReadFor;
use crate::config::CoreConfig;
use crate::fetch::Fetches;
use crate::repair::{GivingUp, Progress};
use crate::replica::Seen;
use crate::{Core, Output};
use bytes::Bytes;
use checkpoints::Checkpoints;
use giving_up::Marking;
use overtake_base::hash::Map;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{BlockId, NodeId, QueueId, ShardId};
use overtake_log::disk::{DiskCompletion, DiskOperation};
use overtake_log::lanes::{BlockPart, LANES_OPERATION, Lanes, LanesConfig, LanesRecovery, NewBlock};
use overtake_log::{
    BatchNumber, EntryRead, Journal, JournalConfig, JournalError, JournalUsage, RESTORE, ReadError, Record,
    Recovered, Recovery, mark,
};
use overtake_queue::answer::Place;
use overtake_replication::types::{EntryKind, GroupOutput, HardState, LogEntry};
use std::collections::VecDeque;

/// Idle time after which the journal's last batches are vouched for, in nanoseconds.
const VOUCH_AFTER_NS: u64 = 50_000_000;
/// How often a full disk is tried again, in nanoseconds.
const RETRY_FULL_NS: u64 = 1_000_000_000;

/// See the module's text.
pub(crate) struct Storage {
    config: JournalConfig,
    phase: Phase,
    lanes: LanesPhase,
    /// What the journal holds, until the lanes are open too.
    recovered: Option<Recovered>,
    pub(crate) drafts: Drafts,
    operations: Vec<DiskOperation>,
    /// Operations that were put out and not completed yet.
    under_way: usize,
    /// Group outputs that become durable with a batch, oldest first.
    persisting: VecDeque<Persisting>,
    /// Stretches of entries that are read for followers.
    stretches: Map<u64, Stretch>,
    pub(crate) fetches: Fetches,
    pub(crate) cache: crate::cache::EntryCache,
    pub(crate) checkpoints: Checkpoints,
    vouch_at_ns: Option<u64>,
    retry_full_at_ns: Option<u64>,
}

/// A group's output on its way to the disk.
struct Persisting {
    batch: BatchNumber,
    shard: ShardId,
    /// The group's number for it.
    number: u64,
    /// What peers are told once it is durable.
    messages: Vec<(NodeId, Bytes)>,
}

/// Entries of a shard that are being read for a follower.
struct Stretch {
    shard: ShardId,
    low: u64,
    /// Their terms and, once read, their data.
    entries: Vec<(u64, Option<(EntryKind, Bytes)>)>,
    reading: usize,
}

enum Phase {
    Recovering(Recovery),
    /// The journal is damaged; see `repair`.
    GivingUp(GivingUp),
    /// Damage was come upon while running: the folder is being marked, so that the next start gives it up.
    Marking(Marking),
    Running(Journal),
    Failed,
}

enum LanesPhase {
    Recovering(LanesRecovery),
    Running(Lanes),
    Failed,
}

fn lanes_config(config: &CoreConfig) -> LanesConfig {
    LanesConfig {
        store: config.store,
        core: config.core,
        file_bytes: config.cold.lane_file_bytes,
        spare_files: config.cold.spare_files,
    }
}

/// Files that are whole by themselves, and do not belong together.
fn contradicts(shard: ShardId, detail: &str) -> String {
    format!("shard {shard}: {detail}: a file is damaged, older than it should be, or missing; {RESTORE}")
}

impl Storage {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        let journal = config.journal();
        Self {
            config: journal.clone(),
            phase: Phase::Recovering(Recovery::new(journal)),
            lanes: LanesPhase::Recovering(LanesRecovery::new(lanes_config(config))),
            recovered: None,
            drafts: Drafts::default(),
            operations: Vec::new(),
            under_way: 0,
            persisting: VecDeque::new(),
            stretches: Map::default(),
            fetches: Fetches::default(),
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

    /// Whether a block finds room on a full disk.
    pub(crate) fn make_lanes_room(&mut self) -> bool {
        let LanesPhase::Running(lanes) = &mut self.lanes else { return false };
        lanes.make_room(&mut self.operations)
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
        let LanesPhase::Running(lanes) = &mut self.lanes else { return };
        lanes.flush(&mut self.operations);
    }

    /// Asks for a part of a block; false where it is not on disk.
    pub(crate) fn read_block(&mut self, shard: ShardId, block: BlockId, part: BlockPart, token: u64) -> bool {
        let LanesPhase::Running(lanes) = &mut self.lanes else { return false };
        lanes.read(shard, block, part, token, &mut self.operations)
    }

    /// Reads the next piece of the journal or the lane files to see whether it is what was written; false at the end.
    pub(crate) fn scrub(&mut self, lanes: bool) -> bool {
        match (&mut self.phase, &mut self.lanes) {
            (Phase::Running(journal), _) if !lanes => journal.scrub(&mut self.operations),
            (_, LanesPhase::Running(open)) if lanes => open.scrub(&mut self.operations),
            _ => false,
        }
    }

    /// Asks for a log entry; false where the journal does not hold it.
    pub(crate) fn read_entry(&mut self, shard: ShardId, index: u64, token: u64) -> bool {
        let Phase::Running(journal) = &mut self.phase else { return false };
        journal.read_entry(shard, index, token, &mut self.operations)
    }

    pub(crate) fn write_block(&mut self, new: &NewBlock) {
        let LanesPhase::Running(lanes) = &mut self.lanes else { return };
        lanes.write(new);
        lanes.flush(&mut self.operations);
    }

    /// Writes a block that another replica gave. False where it cannot be.
    pub(crate) fn store_block(
        &mut self,
        shard: ShardId,
        block: BlockId,
        records: Bytes,
        payloads: Bytes,
    ) -> bool {
        let LanesPhase::Running(lanes) = &mut self.lanes else { return false };
        let stored = lanes.store(shard, block, records, payloads);
        lanes.flush(&mut self.operations);
        stored
    }

    /// The shard's state is another one: what its log wanted written is of no use.
    pub(crate) fn forget_drafts(&mut self, shard: ShardId) {
        let blocks = self.drafts.forget_shard(shard);
        if let Some(lanes) = self.lanes_mut() {
            blocks.into_iter().for_each(|block| lanes.forget_unwritten(shard, block));
        }
    }

    /// Shards that need the journal's oldest segment, each with its highest index there.
    pub(crate) fn pinning(&self) -> Vec<(ShardId, u64)> {
        if let Phase::Running(journal) = &self.phase { journal.pinning() } else { Vec::new() }
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
    fn persist(&mut self, shard: ShardId, output: &mut GroupOutput) {
        let Phase::Running(journal) = &mut self.phase else { return };
        let mut batch = journal.durable();
        for LogEntry { term, index, kind, data } in &output.entries {
            let (term, index, kind) = (*term, *index, *kind as u8);
            if is_planted(Bug::ConflictKept) && journal.entry_term(shard, index).is_some() {
                continue;
            }
            batch = journal.append(Record::Entry { shard, term, index, kind, data });
        }
        if let Some(HardState { term, vote, commit }) = output.hard_state {
            batch = journal.append(Record::HardState { shard, term, vote, commit });
        }
        if let Some(number) = output.persist {
            let messages = core::mem::take(&mut output.messages_after_sync);
            self.persisting.push_back(Persisting { batch, shard, number, messages });
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
        self.storage.under_way += self.storage.operations.len();
        self.out.extend(self.storage.operations.drain(..).map(Output::Disk));
    }

    /// Takes a disk completion.
    pub(crate) fn disk(&mut self, completion: DiskCompletion) {
        self.storage.under_way -= 1;
        if completion.id & LANES_OPERATION != 0 {
            return self.lanes_disk(completion);
        }
        match core::mem::replace(&mut self.storage.phase, Phase::Failed) {
            Phase::Recovering(mut recovery) => {
                match recovery.complete(completion, &mut self.storage.operations) {
                    Ok(None) => self.storage.phase = Phase::Recovering(recovery),
                    Ok(Some((journal, recovered))) => self.journal_opened(journal, recovered),
                    Err(error) => self.recovery_failed(&error),
                }
            }
            Phase::GivingUp(mut giving_up) => {
                match giving_up.complete(completion, &mut self.storage.operations) {
                    Progress::On => self.storage.phase = Phase::GivingUp(giving_up),
                    Progress::Done => {
                        self.storage.phase = Phase::Recovering(Recovery::new(self.storage.config.clone()));
                        self.storage.lanes =
                            LanesPhase::Recovering(LanesRecovery::new(lanes_config(&self.config)));
                        self.start_recovery();
                    }
                    Progress::Failed(error) => self.disk_failed(&error),
                }
            }
            Phase::Running(mut journal) => match journal.complete(completion, &mut self.storage.operations) {
                Ok(completed) => {
                    self.storage.phase = Phase::Running(journal);
                    self.entries_read(completed.reads);
                    if let Some(written) = completed.checkpoint {
                        self.checkpoint_written(written.shard, written.index, written.written);
                    }
                    if let Some(piece) = completed.scrubbed {
                        self.scrubbed(piece);
                    }
                    self.note_durable();
                }
                Err(error) => self.disk_failed(&error),
            },
            Phase::Marking(marking) => self.marking_went_on(marking, &completion),
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
                    Err(error) => self.recovery_failed(&error),
                }
            }
            LanesPhase::Running(mut lanes) => {
                match lanes.complete(completion, &mut self.storage.operations) {
                    Ok(completed) => {
                        self.storage.lanes = LanesPhase::Running(lanes);
                        completed.written.into_iter().for_each(|key| self.block_written(key));
                        completed.reads.into_iter().for_each(|read| self.block_read(read));
                        if let Some(piece) = completed.scrubbed {
                            self.scrubbed(piece);
                        }
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

    /// What is on the disk is not what was written. Others can rebuild it, or there is nothing to go on with.
    fn recovery_failed(&mut self, error: &JournalError) {
        if error.is_damage() && self.could_be_rebuilt() {
            self.be_rebuilt(&error.to_string());
        } else {
            self.disk_failed(error);
        }
    }

    /// What the files hold, each whole by itself, does not make a replica.
    fn not_recovered(&mut self, detail: &str) {
        if self.could_be_rebuilt() {
            return self.be_rebuilt(detail);
        }
        self.storage.fail();
        self.fatal(format!("core {}: {detail}", self.config.core));
    }

    fn be_rebuilt(&mut self, detail: &str) {
        if !self.storage.is_giving_up() {
            self.storage.phase = Phase::GivingUp(GivingUp::Asking);
            self.storage.recovered = None;
            self.replicas.clear();
            self.begin_repair(detail);
        }
    }

    /// A disk that failed once is not trusted again: nothing more is answered from it.
    fn disk_failed(&mut self, error: &JournalError) {
        self.storage.fail();
        if error.is_damage() && self.could_be_rebuilt() {
            self.storage.mark_given_up(error);
            return self.put_out_operations();
        }
        self.fatal(format!("core {}: {error}", self.config.core));
    }

    fn recovered(&mut self, mut recovered: Recovered) {
        let core = self.config.core;
        let mark = recovered.shards.remove(&mark::MARK).and_then(|found| found.checkpoint);
        let begun = mark.as_ref().is_some_and(|mark| mark.index == mark::BEGUN);
        let given_up = mark.is_some();
        if given_up && !begun && !self.begin_again(&mut recovered) {
            return self.be_rebuilt("its folder is marked as damaged, and no repair has come to its end");
        }
        if let Some(unknown) = recovered.shards.keys().find(|shard| self.config.core_of(**shard) != core) {
            let detail =
                format!("core {core}: the journal holds shard {unknown}, which belongs to another core");
            return self.fatal(detail);
        }
        let mut replayed_bytes = 0;
        for shard in self.config.own_shards() {
            let Some(found) = self.found_replica(shard, recovered.shards.remove(&shard)) else { continue };
            replayed_bytes += found.entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
            match self.recover_replica(shard, found) {
                Ok(mut replica) => {
                    if let Err(detail) = self.take_in_blocks(&mut replica) {
                        return self.not_recovered(&detail);
                    }
                    self.replicas.insert(shard, replica);
                    self.sweep_blocks(shard);
                }
                Err(detail) => return self.not_recovered(&contradicts(shard, &detail)),
            }
        }
        if core.0 == 0
            && let Some(found) =
                self.found_replica(ShardId::DIRECTORY, recovered.shards.remove(&ShardId::DIRECTORY))
        {
            match self.recover_directory(found) {
                Ok(host) => self.host = Some(host),
                Err(detail) => return self.not_recovered(&contradicts(ShardId::DIRECTORY, &detail)),
            }
        }
        for file in &recovered.report.damaged_checkpoints {
            self.out.push(Output::Warning(format!(
                "core {core}: {file} is damaged; the checkpoint before it and the journal stand in, and nothing is lost; \
                 look after this disk"
            )));
        }
        self.directory.start.recovered = true;
        self.members_applied();
        self.fit_replicas();
        if given_up {
            self.groups().into_iter().for_each(|shard| self.begin_silent(shard));
        }
        self.storage.checkpoints.replayed(replayed_bytes);
    }

    /// Tells groups which of their outputs have become durable.
    fn note_durable(&mut self) {
        let Phase::Running(journal) = &self.storage.phase else { return };
        let durable = journal.durable();
        while let Some(first) = self.storage.persisting.front()
            && (first.batch <= durable || is_planted(Bug::AcknowledgeBeforeSync))
            && let Some(Persisting { shard, number, messages, .. }) = self.storage.persisting.pop_front()
        {
            if let Some(group) = self.group_mut(shard) {
                group.persisted(number);
            }
            self.tell_peers(shard, messages);
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
            replica.ask_for_reads();
            if replica.group.has_output() {
                moved = true;
                replica.group.output(&mut output);
                self.storage.persist(shard, &mut output);
                for entry in &output.committed {
                    if let Err(malformed) = replica.apply(entry, &mut self.storage.cache, &mut done) {
                        let detail = format!("shard {shard}, log index {}: {malformed}", entry.index);
                        return self.undecodable(detail);
                    }
                }
                replica.reads_allowed(&output.reads);
                let offer = output.offer.take();
                let now = Seen::of(&replica.group);
                let before = core::mem::replace(&mut replica.seen, now);
                if !output.committed.is_empty() {
                    replica.group.trim();
                    self.learn_heads(shard);
                    self.take_block_news(shard);
                    self.look_at_thaws(shard);
                    self.sweep_blocks(shard);
                }
                self.peers_told(shard, &mut output);
                self.leader_seen(shard, before, now);
                if let Some(offer) = offer {
                    self.snapshot_offered(shard, offer);
                }
            }
            moved |= self.answer_reads(shard);
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
        let now = Seen::of(&host.group);
        let before = core::mem::replace(&mut host.seen, now);
        self.storage.persist(ShardId::DIRECTORY, output);
        for entry in &output.committed {
            if let Err(malformed) = self.directory_apply(entry) {
                return self
                    .undecodable(format!("directory of queues, log index {}: {malformed}", entry.index));
            }
        }
        if let Some(host) = &mut self.host {
            host.group.trim();
        }
        self.peers_told(ShardId::DIRECTORY, output);
        // Applying may have made this replica one that serves.
        let served = self.host.as_ref().map_or(now, |host| Seen::of(&host.group));
        if let Some(host) = &mut self.host {
            host.seen = served;
        }
        self.leader_seen(ShardId::DIRECTORY, before, served);
        if let Some(offer) = output.offer.take() {
            self.snapshot_offered(ShardId::DIRECTORY, offer);
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
                self.storage.checkpoints.owe(journal.usage().bytes_written);
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

    fn entries_read(&mut self, reads: Vec<EntryRead>) {
        for EntryRead { token, shard, index, kind, result } in reads {
            let kind = if kind == 0 { EntryKind::Normal } else { EntryKind::Membership };
            if let Err(ReadError::Damaged(error)) = &result {
                return self.disk_failed(error);
            }
            if self.part_read(token, index, result.as_ref().ok().map(|data| (kind, data))) {
                continue;
            }
            if self.storage.stretches.contains_key(&token) {
                self.stretch_read(token, index, result.ok().map(|data| (kind, data)));
                continue;
            }
            let place = Place::Entry(index);
            if let Some((key, ReadFor::Draft(_))) = self.cold.reads.remove(&token) {
                self.payload_collected(key, place, result.ok().as_ref());
                continue;
            }
            match result {
                Ok(entry) => self.payloads_fetched(token, shard, place, Some(entry)),
                // The messages are gone (acked or expired) while they were read: there is nothing to hand out.
                Err(_) => self.payloads_fetched(token, shard, place, None),
            }
        }
    }

    /// Reads entries from `low` on for a follower: a few, as far as the journal holds them and memory does not.
    pub(crate) fn read_stretch(&mut self, shard: ShardId, low: u64) {
        const ENTRIES_MAX: u64 = 32;
        let end = self.group_mut(shard).map_or(low, |group| group.first_in_memory());
        let token = self.next_number();
        let Phase::Running(journal) = &mut self.storage.phase else { return };
        let mut entries = Vec::new();
        for index in low..end.min(low + ENTRIES_MAX) {
            let Some(term) = journal.entry_term(shard, index) else { break };
            if !journal.read_entry(shard, index, token, &mut self.storage.operations) {
                break;
            }
            entries.push((term, None));
        }
        let reading = entries.len();
        if reading == 0 {
            if let Some(group) = self.group_mut(shard) {
                group.older_read(low, Vec::new());
            }
            return;
        }
        self.storage.stretches.insert(token, Stretch { shard, low, entries, reading });
        self.put_out_operations();
    }

    /// One entry of a stretch was read, or is gone.
    fn stretch_read(&mut self, token: u64, index: u64, data: Option<(EntryKind, Bytes)>) {
        let Some(stretch) = self.storage.stretches.get_mut(&token) else { return };
        if let Some((_, place)) = stretch.entries.get_mut((index - stretch.low) as usize) {
            *place = data;
        }
        stretch.reading -= 1;
        if stretch.reading > 0 {
            return;
        }
        let Some(Stretch { shard, low, entries, .. }) = self.storage.stretches.remove(&token) else { return };
        let whole = (low..).zip(entries).map_while(|(index, (term, data))| {
            let (kind, data) = data?;
            Some(LogEntry { term, index, kind, data })
        });
        let whole = whole.collect();
        if let Some(group) = self.group_mut(shard) {
            group.older_read(low, whole);
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
            self.note_head(shard, queue);
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
