//! Opens a core's journal: looks at every file, follows the chain of batches, and hands over a journal that goes on
//! where the chain ends. It never guesses: a torn tail is cut, everything else that is wrong is an error.
//!
//! Before the journal is handed over, the batches that nothing vouched for and the newest segment's header are written
//! again where they stand (they were read, but may not have been durable: a process that was killed leaves them in the
//! disk's cache), and an opening batch of a new epoch is made durable. Only then can anything be
//! written after it, so no batch of this epoch can ever be mistaken for one of an earlier or a later opening.

use crate::config::JournalConfig;
use crate::disk::{BLOCK_BYTES, DiskCompletion, DiskDone, DiskOperation, DiskOperationKind, FileName};
use crate::error::JournalError;
use crate::inventory::{Inventory, Plan};
use crate::journal::Journal;
use crate::load::Load;
use crate::replay::{CheckpointChoice, CheckpointFound, RecoveredShard, Replay};
use crate::scan::{CutTail, Scanner};
use crate::segments::{Free, Live, Segments};
use crate::{checkpoint, writer::ChainEnd};
use bytes::Bytes;
use overtake_base::ShardId;
use overtake_base::planted::{Bug, is_planted};
use std::collections::{BTreeMap, VecDeque};

/// What recovery read, for the operator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Segments that the journal consists of.
    pub segments: usize,
    /// Batches in it.
    pub batches: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Where batches were dropped that had not become durable.
    pub cut_tail: Option<CutTail>,
    /// Checkpoints that could not be read and that the older one of the shard stands in for.
    pub damaged_checkpoints: Vec<FileName>,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// Every shard that left something.
    pub shards: BTreeMap<ShardId, RecoveredShard>,
    /// What was read.
    pub report: RecoveryReport,
}

/// A file to read whole.
#[derive(Clone, Copy, Debug)]
enum Target {
    Checkpoint { shard: ShardId, header: checkpoint::CheckpointHeader },
    Segment { sequence: u64, file: u32 },
    Unreadable { file: u32 },
}

#[derive(Debug)]
enum Phase {
    Listing,
    Inventory,
    Loading(Box<Loading>),
    Rewriting { left: usize, opening: Box<Opening> },
    Opening { journal: Box<Journal>, recovered: Recovered },
    Ended,
}

/// Reading the files one after the other.
#[derive(Debug)]
struct Loading {
    plan: Plan,
    targets: VecDeque<Target>,
    current: Option<(Target, Load)>,
    choices: BTreeMap<ShardId, CheckpointChoice>,
    scanner: Scanner,
    replay: Replay,
}

/// All that the journal is made from.
#[derive(Debug)]
struct Opening {
    end: ChainEnd,
    segments: Segments,
    indexes: BTreeMap<ShardId, crate::index::ShardIndex>,
    staged: BTreeMap<ShardId, crate::index::ShardIndex>,
    recovered: Recovered,
}

/// The recovery of one core's folder, as a state machine over the disk seam.
#[derive(Debug)]
pub struct Recovery {
    config: JournalConfig,
    next_operation: u64,
    inventory: Inventory,
    phase: Phase,
}

impl Recovery {
    /// A recovery that has not begun. A configuration that cannot work is reported by the first completion.
    #[must_use]
    pub fn new(config: JournalConfig) -> Self {
        let inventory = Inventory::new(&config);
        Self { config, next_operation: 1, inventory, phase: Phase::Listing }
    }

    /// Puts out the first operation.
    pub fn start(&mut self, out: &mut Vec<DiskOperation>) {
        self.operation(DiskOperationKind::List, out);
    }

    /// Takes what became of an operation. Answers the journal when it is open; later completions go to it. After an
    /// error the recovery is over.
    pub fn complete(
        &mut self,
        completion: DiskCompletion,
        out: &mut Vec<DiskOperation>,
    ) -> Result<Option<(Journal, Recovered)>, JournalError> {
        let phase = core::mem::replace(&mut self.phase, Phase::Ended);
        if let Phase::Opening { mut journal, recovered } = phase {
            journal.complete(completion, out)?;
            return self.go_on_opening(journal, recovered, out);
        }
        let id = completion.id;
        let done = completion.result.map_err(|error| JournalError::Disk(error.detail))?;
        let next = match phase {
            Phase::Listing => self.listed(done, out)?,
            Phase::Inventory => self.examined(id, &done, out)?,
            Phase::Loading(loading) => self.loaded(loading, id, &done, out)?,
            Phase::Rewriting { left, opening } => Phase::Rewriting { left: left - 1, opening },
            Phase::Opening { .. } | Phase::Ended => {
                return Err(JournalError::Disk("a completion after the end of recovery".into()));
            }
        };
        match next {
            Phase::Rewriting { left: 0, opening } => self.write_opening(*opening, out),
            next => {
                self.phase = next;
                Ok(None)
            }
        }
    }

    fn operation(&mut self, kind: DiskOperationKind, out: &mut Vec<DiskOperation>) -> u64 {
        let id = self.next_operation;
        self.next_operation += 1;
        out.push(DiskOperation { id, kind });
        id
    }

    fn listed(&mut self, done: DiskDone, out: &mut Vec<DiskOperation>) -> Result<Phase, JournalError> {
        self.config.check()?;
        let DiskDone::Listed(files) = done else {
            return Err(JournalError::Disk("listing the folder answered something else".into()));
        };
        for (file, bytes) in files {
            if let Some(kind) = self.inventory.file(file, bytes) {
                let id = self.operation(kind, out);
                self.inventory.asked(id, file);
            }
        }
        self.plan_when_examined(out)
    }

    fn examined(
        &mut self,
        id: u64,
        done: &DiskDone,
        out: &mut Vec<DiskOperation>,
    ) -> Result<Phase, JournalError> {
        if let Some(kind) = self.inventory.answered(id, done)? {
            let removal = self.operation(kind, out);
            self.inventory.removal_started(removal);
        }
        self.plan_when_examined(out)
    }

    fn plan_when_examined(&mut self, out: &mut Vec<DiskOperation>) -> Result<Phase, JournalError> {
        if !self.inventory.is_complete() {
            return Ok(Phase::Inventory);
        }
        let plan = self.inventory.plan()?;
        let mut targets = VecDeque::new();
        let mut choices = BTreeMap::new();
        for (shard, slots) in &plan.checkpoints {
            let headers =
                slots.headers.iter().map(|header| Target::Checkpoint { shard: *shard, header: *header });
            targets.extend(headers);
            let damaged = slots.damaged.clone();
            choices.insert(*shard, CheckpointChoice { damaged, ..CheckpointChoice::default() });
        }
        targets.extend(
            plan.segments.iter().map(|(sequence, file)| Target::Segment { sequence: *sequence, file: *file }),
        );
        targets.extend(plan.unreadable.iter().map(|file| Target::Unreadable { file: *file }));
        let oldest = plan.segments.keys().next().copied().unwrap_or(1);
        let scanner = Scanner::new(self.config.store, self.config.core, oldest);
        let loading = Loading { plan, targets, current: None, choices, scanner, replay: Replay::default() };
        self.next_load(Box::new(loading), out)
    }

    /// Begins to read the next file, or goes on when all were.
    fn next_load(
        &mut self,
        mut loading: Box<Loading>,
        out: &mut Vec<DiskOperation>,
    ) -> Result<Phase, JournalError> {
        while let Some(target) = loading.targets.pop_front() {
            let (file, bytes) = match target {
                Target::Checkpoint { shard, header } => {
                    if loading.choices.get(&shard).is_some_and(|choice| choice.found.is_some()) {
                        continue;
                    }
                    let bytes = header.state_bytes.saturating_add(checkpoint::HEADER_BYTES as u64);
                    (FileName::Checkpoint(shard.0, header.slot()), bytes)
                }
                Target::Segment { file, .. } | Target::Unreadable { file } => {
                    if matches!(target, Target::Segment { .. }) {
                        loading.hand_over_checkpoints();
                    }
                    (FileName::Segment(file), self.config.segment_bytes)
                }
            };
            let load = Load::start(file, bytes, |kind| self.operation(kind, out));
            loading.current = Some((target, load));
            return Ok(Phase::Loading(loading));
        }
        self.open(*loading, out)
    }

    fn loaded(
        &mut self,
        mut loading: Box<Loading>,
        id: u64,
        done: &DiskDone,
        out: &mut Vec<DiskOperation>,
    ) -> Result<Phase, JournalError> {
        let Some((target, mut load)) = loading.current.take() else {
            return Err(JournalError::Disk("a completion that belongs to no read".into()));
        };
        if !load.part(id, done)? {
            loading.current = Some((target, load));
            return Ok(Phase::Loading(loading));
        }
        loading.take(target, load.into_bytes())?;
        self.next_load(loading, out)
    }

    /// All files were read: the end of the chain is known.
    fn open(&mut self, mut loading: Loading, out: &mut Vec<DiskOperation>) -> Result<Phase, JournalError> {
        loading.hand_over_checkpoints();
        if is_planted(Bug::SkipSync) {
            loading.scanner.unproven.clear();
        }
        let (end, cut_tail) = loading.scanner.finish()?;
        if loading.scanner.batches == 0 {
            self.inventory.check_not_gone()?;
        }
        let replayed = loading.replay.finish(end.at.sequence)?;
        let plan = loading.plan;
        let mut live: VecDeque<Live> = replayed.live.into();
        if live.is_empty() {
            live.push_back(Live { sequence: end.at.sequence, ..Live::default() });
        }
        let ready = (plan.segments.iter())
            .filter(|(sequence, _)| **sequence > end.at.sequence)
            .map(|(sequence, file)| (*sequence, *file))
            .collect();
        let unreadable = plan.unreadable.iter().map(|file| Free { file: *file, sequence: 0 });
        let free = plan.free.iter().copied().chain(unreadable).collect();
        let report = RecoveryReport {
            segments: live.len(),
            batches: loading.scanner.batches,
            bytes: loading.scanner.bytes,
            cut_tail,
            damaged_checkpoints: (plan.checkpoints.values())
                .filter_map(|slots| slots.damaged.as_ref().map(|(file, _)| *file))
                .collect(),
        };
        let segments = Segments::new(live, ready, free, plan.oldest, &self.config);
        let recovered = Recovered { shards: replayed.shards, report };
        let mut left = loading.scanner.unproven.len();
        if let Some((file, header)) = plan.newest.filter(|_| !is_planted(Bug::SkipSync)) {
            left += 1;
            let file = FileName::Segment(file);
            let data = Bytes::from(header.encode_block());
            self.operation(DiskOperationKind::Write { file, offset: 0, data }, out);
        }
        for batch in loading.scanner.unproven {
            let file = FileName::Segment(batch.file);
            self.operation(DiskOperationKind::Write { file, offset: batch.offset, data: batch.data }, out);
        }
        let (indexes, staged) = (replayed.indexes, replayed.staged);
        let opening = Opening { end, segments, indexes, staged, recovered };
        Ok(Phase::Rewriting { left, opening: Box::new(opening) })
    }

    fn write_opening(
        &mut self,
        opening: Opening,
        out: &mut Vec<DiskOperation>,
    ) -> Result<Option<(Journal, Recovered)>, JournalError> {
        let Opening { end, segments, indexes, staged, recovered } = opening;
        let config = self.config.clone();
        let mut journal =
            Journal::new(config, self.next_operation, end, segments, indexes).with_staged(staged);
        journal.write_opening(out);
        self.go_on_opening(Box::new(journal), recovered, out)
    }

    /// Hands the journal over once its opening batch is durable.
    fn go_on_opening(
        &mut self,
        mut journal: Box<Journal>,
        recovered: Recovered,
        out: &mut Vec<DiskOperation>,
    ) -> Result<Option<(Journal, Recovered)>, JournalError> {
        journal.flush(out);
        if journal.is_open() {
            return Ok(Some((*journal, recovered)));
        }
        if journal.disk_full() && journal.usage().writes_in_flight == 0 {
            return Err(JournalError::Disk(
                "no room to begin a segment: free some space and start again".into(),
            ));
        }
        self.phase = Phase::Opening { journal, recovered };
        Ok(None)
    }
}

impl Loading {
    fn take(&mut self, target: Target, bytes: Bytes) -> Result<(), JournalError> {
        match target {
            Target::Checkpoint { shard, header } => {
                let data = bytes.slice(checkpoint::HEADER_BYTES.min(bytes.len())..);
                let choice = self.choices.entry(shard).or_default();
                if checkpoint::state_checksum(&data) == header.state_checksum {
                    choice.serial = header.serial;
                    choice.found = Some(CheckpointFound { index: header.index, term: header.term, data });
                } else {
                    let damage = (
                        FileName::Checkpoint(shard.0, header.slot()),
                        String::from("the state's checksum does not fit"),
                    );
                    choice.damaged = Some(damage.clone());
                    if let Some(slots) = self.plan.checkpoints.get_mut(&shard) {
                        slots.damaged = Some(damage);
                    }
                }
                Ok(())
            }
            Target::Segment { sequence, file } => {
                self.scanner.segment(sequence, file, &bytes, &mut self.replay)
            }
            Target::Unreadable { file } => {
                let newest = self.plan.segments.keys().next_back().copied().unwrap_or(0);
                self.scanner.unreadable(file, newest, &bytes)
            }
        }
    }

    /// The replay must know the checkpoints before the first entry.
    fn hand_over_checkpoints(&mut self) {
        for (shard, choice) in core::mem::take(&mut self.choices) {
            self.replay.checkpoint(shard, choice);
        }
    }
}

const _: () = assert!(checkpoint::HEADER_BYTES < BLOCK_BYTES);
