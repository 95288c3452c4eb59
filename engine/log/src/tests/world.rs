//! A journal on a simulated disk next to a model of what it must remember.

use super::disk::Disk;
use crate::disk::{DiskOperation, FileName};
use crate::{
    CheckpointFound, Completed, Journal, JournalConfig, JournalError, Record, Recovered, RecoveredEntry,
    RecoveredShard, Recovery,
};
use bytes::Bytes;
use overtake_base::random::Random;
use overtake_base::{CoreId, ShardId};
use std::collections::BTreeMap;

pub(super) const RECORD_BYTES_MAX: usize = 9_000;
const SHARDS: u64 = 3;

pub(super) fn config() -> JournalConfig {
    JournalConfig {
        store: 77,
        core: CoreId(2),
        begun: false,
        segment_bytes: 64 * 1024,
        writes_in_flight_max: 3,
        record_bytes_max: RECORD_BYTES_MAX,
        batch_bytes_max: 20_000,
        segments_ahead: 1,
        segments_free_max: 3,
    }
}

/// A record with its own bytes.
#[derive(Clone, Debug)]
pub(super) enum Appended {
    Entry { shard: ShardId, term: u64, index: u64, data: Bytes },
    HardState { shard: ShardId, state: (u64, u64, u64) },
}

/// What is known of a shard's checkpoints and releases.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The newest that is durable.
    pub(super) checkpoint: Option<CheckpointFound>,
    /// Being written, oldest first.
    pub(super) under_way: Vec<CheckpointFound>,
    pub(super) released: u64,
}

/// What the journal must remember.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// Everything appended, with its batch.
    pub(super) appended: Vec<(u64, Appended)>,
    pub(super) known: BTreeMap<ShardId, Known>,
    /// Highest batch that was reported durable.
    pub(super) durable: u64,
}

/// Entries and hard state of one shard.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) entries: BTreeMap<u64, (u64, Bytes)>,
    pub(super) hard_state: Option<(u64, u64, u64)>,
}

impl Model {
    /// The shards' logs after all batches up to this one.
    pub(super) fn logs(&self, batch: u64) -> BTreeMap<ShardId, Log> {
        let mut logs: BTreeMap<ShardId, Log> = BTreeMap::new();
        for (_, record) in self.appended.iter().filter(|(at, _)| *at <= batch) {
            match record {
                Appended::Entry { shard, term, index, data } => {
                    let log = logs.entry(*shard).or_default();
                    log.entries.split_off(index);
                    if log.entries.keys().next_back().is_some_and(|last| last + 1 != *index) {
                        log.entries.clear();
                    }
                    log.entries.insert(*index, (*term, data.clone()));
                }
                Appended::HardState { shard, state } => {
                    logs.entry(*shard).or_default().hard_state = Some(*state);
                }
            }
        }
        logs
    }
}

/// Runs recovery to its end, the disk completing in any order.
pub(super) fn recover(disk: &mut Disk, config: JournalConfig) -> Result<(Journal, Recovered), JournalError> {
    recover_until(disk, config, u64::MAX).map(|opened| opened.expect("recovery waits for nothing"))
}

/// The same, but the power fails after so many completions: `None` if it was not done by then.
pub(super) fn recover_until(
    disk: &mut Disk,
    config: JournalConfig,
    completions: u64,
) -> Result<Option<(Journal, Recovered)>, JournalError> {
    let mut recovery = Recovery::new(config);
    let mut out = Vec::new();
    recovery.start(&mut out);
    disk.submit(&mut out);
    for _ in 0..completions {
        let Some(completion) = disk.complete_one() else { break };
        let opened = recovery.complete(completion, &mut out)?;
        disk.submit(&mut out);
        if opened.is_some() {
            return Ok(opened);
        }
    }
    Ok(None)
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) disk: Disk,
    pub(super) journal: Journal,
    pub(super) model: Model,
    pub(super) random: Random,
    pub(super) out: Vec<DiskOperation>,
    /// What came of pieces of the scrub.
    pub(super) scrubbed: Vec<crate::Scrubbed>,
    reads: BTreeMap<u64, (ShardId, u64)>,
    next_token: u64,
    term: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut disk = Disk::new(seed);
        let (journal, recovered) = recover(&mut disk, config()).expect("an empty folder opens");
        assert_eq!(
            recovered,
            Recovered {
                report: crate::RecoveryReport { segments: 1, ..Default::default() },
                ..Recovered::default()
            }
        );
        let model = Model { durable: journal.durable(), ..Model::default() };
        let random = Random::new(seed, "world");
        Self {
            disk,
            journal,
            model,
            random,
            out: Vec::new(),
            scrubbed: Vec::new(),
            reads: BTreeMap::new(),
            next_token: 0,
            term: 0,
        }
    }

    pub(super) fn shard(&mut self) -> ShardId {
        ShardId(self.random.below(SHARDS) as u16)
    }

    fn log(&self, shard: ShardId) -> Log {
        self.model.logs(u64::MAX).remove(&shard).unwrap_or_default()
    }

    /// Index after the shard's last entry, or after its checkpoint.
    fn next_index(&self, shard: ShardId) -> u64 {
        let checkpoint = self.checkpoint_index(shard);
        let last = self.log(shard).entries.keys().next_back().copied().unwrap_or(0);
        last.max(checkpoint) + 1
    }

    fn checkpoint_index(&self, shard: ShardId) -> u64 {
        let known = self.model.known.get(&shard);
        let newest = known.and_then(|known| known.under_way.last().or(known.checkpoint.as_ref()));
        newest.map_or(0, |found| found.index)
    }

    fn newer_term(&mut self) -> u64 {
        self.term += 1;
        self.term
    }

    pub(super) fn append_entry(&mut self, shard: ShardId, index: u64, data: Bytes) {
        // Terms never go down, and a replacing entry has a newer one.
        let term = self.newer_term();
        let batch = self.journal.append(Record::Entry { shard, term, index, kind: 5, data: &data });
        self.model.appended.push((batch, Appended::Entry { shard, term, index, data }));
    }

    pub(super) fn append_next(&mut self, shard: ShardId) {
        let index = self.next_index(shard);
        let data = self.data();
        self.append_entry(shard, index, data);
    }

    fn data(&mut self) -> Bytes {
        let long = self.random.below(10) == 0;
        let length = self.random.below(if long { RECORD_BYTES_MAX as u64 } else { 600 });
        (0..length).map(|_| self.random.next_u64() as u8).collect()
    }

    /// Replaces entries after the checkpoint.
    fn append_replacing(&mut self, shard: ShardId) {
        let first = self.checkpoint_index(shard) + 1;
        let index = first + self.random.below(self.next_index(shard) - first + 1);
        let data = self.data();
        self.append_entry(shard, index, data);
    }

    fn append_hard_state(&mut self, shard: ShardId) {
        let state = (self.random.below(99), self.random.below(99), self.random.below(99));
        let (term, vote, commit) = state;
        let batch = self.journal.append(Record::HardState { shard, term, vote, commit });
        self.model.appended.push((batch, Appended::HardState { shard, state }));
    }

    pub(super) fn flush(&mut self) {
        self.journal.flush(&mut self.out);
        self.disk.submit(&mut self.out);
    }

    /// Writes a checkpoint of what is durable.
    pub(super) fn checkpoint(&mut self, shard: ShardId) {
        let durable = self.model.logs(self.model.durable).remove(&shard).unwrap_or_default();
        let now = self.log(shard);
        // Not beyond what has been replaced since.
        let last = durable.entries.iter().rev().find(|(index, entry)| now.entries.get(index) == Some(entry));
        let Some((index, (term, _))) = last.map(|(index, entry)| (*index, entry.clone())) else { return };
        if index > self.checkpoint_index(shard) {
            self.write_checkpoint(shard, index, term);
        }
    }

    pub(super) fn write_checkpoint(&mut self, shard: ShardId, index: u64, term: u64) {
        let data = Bytes::from(format!("state of {shard} at {index}"));
        self.journal.write_checkpoint(shard, index, term, data.clone(), &mut self.out);
        self.disk.submit(&mut self.out);
        let known = self.model.known.entry(shard).or_default();
        known.under_way.push(CheckpointFound { index, term, data });
    }

    /// A snapshot from elsewhere: a checkpoint past the end of the log, then an entry after it.
    fn install_snapshot(&mut self, shard: ShardId) {
        let index = self.next_index(shard) + 5;
        let term = self.newer_term();
        self.write_checkpoint(shard, index, term);
        while !self.model.known[&shard].under_way.is_empty() {
            self.complete_one();
        }
        self.append_next(shard);
    }

    fn release(&mut self, shard: ShardId) {
        let known = self.model.known.entry(shard).or_default();
        let Some(checkpoint) = &known.checkpoint else { return };
        let most = checkpoint.index + 1 - known.released.min(checkpoint.index + 1);
        known.released += self.random.below(most + 1);
        let released = known.released;
        self.journal.release_before(shard, released);
    }

    fn read(&mut self, shard: ShardId) {
        let index = self.random.below(self.next_index(shard) + 1);
        self.next_token += 1;
        let found = self.journal.read_entry(shard, index, self.next_token, &mut self.out);
        self.disk.submit(&mut self.out);
        let released = self.model.known.get(&shard).map_or(0, |known| known.released);
        let expected = self.log(shard).entries.contains_key(&index) && index >= released;
        assert_eq!(found, expected, "entry {index} of {shard}, released before {released}");
        if found {
            self.reads.insert(self.next_token, (shard, index));
        }
    }

    pub(super) fn complete_one(&mut self) -> Option<Completed> {
        let completion = self.disk.complete_one()?;
        let completed = self.journal.complete(completion, &mut self.out).expect("no disk fails here");
        self.disk.submit(&mut self.out);
        assert!(self.journal.durable() >= self.model.durable, "durable goes back");
        self.model.durable = self.journal.durable();
        self.scrubbed.extend(completed.scrubbed.clone());
        for read in &completed.reads {
            let (shard, index) = self.reads.remove(&read.token).expect("asked once");
            let now = self.log(shard).entries.get(&index).map(|(_, data)| data.clone());
            match &read.result {
                Ok(data) => assert_eq!(Some(data), now.as_ref()),
                // Gone: released or replaced in the meantime.
                Err(error) => assert_eq!(*error, crate::ReadError::Gone),
            }
        }
        if let Some(written) = completed.checkpoint {
            let known = self.model.known.get_mut(&written.shard).expect("a checkpoint was begun");
            let at =
                known.under_way.iter().position(|found| found.index == written.index).expect("under way");
            let found = known.under_way.remove(at);
            let newest = known.checkpoint.as_ref().map_or(0, |found| found.index);
            if written.written && found.index > newest {
                known.checkpoint = Some(found);
            }
        }
        Some(completed)
    }

    /// Changes bits of a byte on the disk.
    pub(super) fn flip(&mut self, file: FileName, at: u64, bits: u8) {
        self.disk.files.get_mut(&file).expect("a file")[at as usize] ^= bits;
    }

    /// One random thing.
    pub(super) fn step(&mut self) {
        let shard = self.shard();
        match self.random.below(100) {
            0..35 => self.append_next(shard),
            35..40 => self.append_replacing(shard),
            40..46 => self.append_hard_state(shard),
            46..60 => self.flush(),
            60..83 => drop(self.complete_one()),
            83..86 if self.model.known.get(&shard).is_none_or(|known| known.under_way.is_empty()) => {
                self.checkpoint(shard);
            }
            86..92 => self.release(shard),
            92..96 => self.read(shard),
            96 => {
                self.journal.vouch(&mut self.out);
                self.disk.submit(&mut self.out);
            }
            97 if self.model.known.get(&shard).is_none_or(|known| known.under_way.is_empty()) => {
                self.install_snapshot(shard);
            }
            _ => {}
        }
    }

    /// Writes all that was appended, and vouches for it.
    pub(super) fn seal(&mut self) {
        self.journal.seal(&mut self.out);
        self.disk.submit(&mut self.out);
        while !self.journal.is_idle() {
            self.complete_one();
            self.flush();
        }
    }

    /// The power fails and comes back, perhaps several times before recovery is through.
    pub(super) fn crash(&mut self) {
        self.disk.lose_power();
        for _ in 0..self.random.below(3) {
            let completions = self.random.below(60);
            let opened = recover_until(&mut self.disk, config(), completions).expect("recovery");
            drop(opened);
            self.disk.lose_power();
        }
        let (journal, recovered) = recover(&mut self.disk, config()).expect("recovery");
        // What was recovered does not tell whether a batch was kept whose entries a snapshot stands for.
        let kept = check_where(&self.model, &recovered, |batch| {
            self.model.logs(batch).iter().all(|(shard, log)| {
                let released = self.model.known.get(shard).map_or(0, |known| known.released);
                let found = recovered.shards.get(shard).and_then(|shard| shard.checkpoint.as_ref());
                let replaced = found.filter(|found| is_replaced(log, found.index + 1, found.term));
                let end = replaced.map_or(u64::MAX, |found| found.index + 1);
                let mut kept = log.entries.range(released.min(end)..end);
                kept.all(|(index, (term, _))| journal.entry_term(*shard, *index) == Some(*term))
            })
        });
        self.reads.clear();
        // What is left is the past from now on.
        self.model.appended.retain(|(batch, _)| *batch <= kept);
        let logs = self.model.logs(u64::MAX);
        for (shard, known) in &mut self.model.known {
            known.under_way.clear();
            known.checkpoint = recovered.shards.get(shard).and_then(|shard| shard.checkpoint.clone());
            let Some((log, found)) = logs.get(shard).zip(known.checkpoint.as_ref()) else { continue };
            if is_replaced(log, found.index + 1, found.term) {
                self.model.appended.retain(|(_, record)| {
                    !matches!(record, Appended::Entry { shard: of, index, .. } if of == shard && *index > found.index)
                });
            }
        }
        self.journal = journal;
        for (shard, known) in &self.model.known {
            self.journal.release_before(*shard, known.released);
        }
        self.model.durable = self.journal.durable();
        self.read_everything();
    }

    /// Every entry that was not released can be read.
    pub(super) fn read_everything(&mut self) {
        for (shard, log) in self.model.logs(u64::MAX) {
            let released = self.model.known.get(&shard).map_or(0, |known| known.released);
            for (index, (term, _)) in log.entries.range(released..) {
                self.next_token += 1;
                self.reads.insert(self.next_token, (shard, *index));
                assert!(
                    self.journal.read_entry(shard, *index, self.next_token, &mut self.out),
                    "{shard} {index}"
                );
                assert_eq!(self.journal.entry_term(shard, *index), Some(*term));
            }
        }
        self.disk.submit(&mut self.out);
        while !self.reads.is_empty() {
            let completed = self.complete_one().expect("reads are under way");
            assert!(completed.reads.iter().all(|read| read.result.is_ok()));
            self.flush();
        }
    }

    pub(super) fn segment_files(&self) -> Vec<FileName> {
        self.disk.files.keys().filter(|file| matches!(file, FileName::Segment(_))).copied().collect()
    }
}

/// Checks that what was recovered is what was appended up to some batch, and that this batch is not before the last
/// durable one; answers the batch.
pub(super) fn check(model: &Model, recovered: &Recovered) -> u64 {
    check_where(model, recovered, |_| true)
}

/// The same, of several such batches the newest that `fits`.
fn check_where(model: &Model, recovered: &Recovered, fits: impl Fn(u64) -> bool) -> u64 {
    for (shard, known) in &model.known {
        let found = recovered.shards.get(shard).and_then(|shard| shard.checkpoint.clone());
        let newer = found.as_ref().is_some_and(|found| known.under_way.contains(found));
        assert!(newer || found == known.checkpoint, "{found:?} {known:?}");
    }
    let mut batches: Vec<u64> = model.appended.iter().map(|(batch, _)| *batch).collect();
    batches.dedup();
    let mut candidates = batches.into_iter().rev().take_while(|batch| *batch > model.durable);
    let found = candidates.find(|batch| differing(model, *batch, recovered).is_none() && fits(*batch));
    let kept = found.unwrap_or(model.durable);
    if let Some(difference) = differing(model, kept, recovered) {
        panic!("batch {kept} was durable: {difference}");
    }
    kept
}

/// What follows the last entry of a snapshot is of another log where its term is older.
fn is_replaced(log: &Log, after: u64, snapshot_term: u64) -> bool {
    log.entries.get(&after).is_some_and(|(term, _)| *term < snapshot_term)
}

/// How what was recovered differs from what was appended up to this batch.
fn differing(model: &Model, batch: u64, recovered: &Recovered) -> Option<String> {
    let logs = model.logs(batch);
    for shard in recovered.shards.keys().chain(logs.keys()) {
        let RecoveredShard { hard_state, entries, checkpoint } =
            recovered.shards.get(shard).cloned().unwrap_or_default();
        let log = logs.get(shard).cloned().unwrap_or_default();
        let (after, snapshot_term) = checkpoint.map_or((1, 0), |found| (found.index + 1, found.term));
        let expected: Vec<_> = (log.entries.range(after..))
            .filter(|_| !is_replaced(&log, after, snapshot_term))
            .map(|(index, (term, data))| RecoveredEntry {
                term: *term,
                index: *index,
                kind: 5,
                data: data.clone(),
            })
            .collect();
        if entries != expected || hard_state != log.hard_state {
            let places = |list: &[RecoveredEntry]| list.iter().map(|e| (e.index, e.term)).collect::<Vec<_>>();
            return Some(format!(
                "shard {shard}: {:?} {hard_state:?} instead of {:?} {:?}",
                places(&entries),
                places(&expected),
                log.hard_state
            ));
        }
    }
    None
}

/// A journal of several segments with everything vouched for.
pub(super) fn sealed(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..250 {
        world.step();
    }
    world.seal();
    world
}
