//! What recovery rebuilds from the records: the index of every shard, what each segment holds, and the entries after
//! each shard's checkpoint.

use crate::batch;
use crate::batch::BatchHeader;
use crate::disk::FileName;
use crate::error::JournalError;
use crate::index::{HardState, Position, ShardIndex};
use crate::journal::place;
use crate::record::Record;
use crate::segments::Live;
use bytes::Bytes;
use overtake_base::{Malformed, Reader, ShardId};
use std::collections::BTreeMap;

/// An entry found after the shard's checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveredEntry {
    /// Its term.
    pub term: u64,
    /// Its place in the shard's log.
    pub index: u64,
    /// What it is.
    pub kind: u8,
    /// Its bytes.
    pub data: Bytes,
}

/// The newest good checkpoint of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointFound {
    /// Last entry that the state contains.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The state.
    pub data: Bytes,
}

/// What is left of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveredShard {
    /// Term, vote and commit, as last written.
    pub hard_state: Option<(u64, u64, u64)>,
    /// The entries after the checkpoint (all, where there is none), without gaps. Older ones that are still in the
    /// journal can be read with [`crate::Journal::read_entry`].
    pub entries: Vec<RecoveredEntry>,
    /// The newest good checkpoint.
    pub checkpoint: Option<CheckpointFound>,
}

/// A checkpoint, and the slot that could not be read although it may have been newer.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointChoice {
    pub(crate) serial: u64,
    pub(crate) found: Option<CheckpointFound>,
    pub(crate) damaged: Option<(FileName, String)>,
}

#[derive(Debug, Default)]
struct ShardReplay {
    index: ShardIndex,
    checkpoint: CheckpointChoice,
    entries: Vec<RecoveredEntry>,
    /// Entries of a snapshot that was coming in.
    staged: ShardIndex,
}

impl ShardReplay {
    fn checkpoint_index(&self) -> u64 {
        self.checkpoint.found.as_ref().map_or(0, |found| found.index)
    }

    /// Like [`ShardIndex::put`], for the entries that are handed out.
    fn put(&mut self, entry: RecoveredEntry) {
        while self.entries.last().is_some_and(|last| last.index >= entry.index) {
            self.entries.pop();
        }
        if self.entries.last().is_some_and(|last| last.index + 1 != entry.index) {
            self.entries.clear();
        }
        if entry.index > self.checkpoint_index() {
            self.entries.push(entry);
        }
    }

    /// A snapshot's entries are the log from here on.
    fn installed(&mut self) {
        self.index.replace(core::mem::take(&mut self.staged));
        self.entries.clear();
    }

    /// A checkpoint that the log does not lead to came from a peer: the power was lost before the log said so.
    fn install_what_was_written(&mut self) {
        let Some(CheckpointFound { index, term, .. }) = self.checkpoint.found else { return };
        let foreign = match self.index.get(index) {
            Some(place) => place.term != term,
            None => self.index.range().is_none_or(|(first, last)| last < index || first > index + 1),
        };
        let ends_there = self.staged.range().is_some_and(|(_, last)| last == index);
        if foreign && ends_there && self.staged.get(index).is_some_and(|place| place.term == term) {
            self.installed();
        }
    }

    /// Checks that the checkpoint and the entries make a whole.
    fn finish(&mut self, shard: ShardId) -> Result<(), JournalError> {
        self.install_what_was_written();
        let checkpoint = self.checkpoint_index();
        // Entries of an older term than the checkpoint's are what a snapshot from the leader replaced.
        let checkpoint_term = self.checkpoint.found.as_ref().map_or(0, |found| found.term);
        if self.entries.first().is_some_and(|first| first.term < checkpoint_term) {
            self.entries.clear();
            self.index.truncate(checkpoint + 1);
        }
        let slot = (self.checkpoint.serial & 1) as u8;
        let damaged = |file, detail: String| Err(JournalError::Damaged { file, offset: 0, detail });
        match (self.entries.first(), &self.checkpoint.damaged) {
            (Some(first), _) if first.index > checkpoint + 1 => {
                let file = FileName::Checkpoint(shard.0, slot);
                let (file, cause) =
                    self.checkpoint.damaged.clone().unwrap_or((file, "missing or too old".into()));
                damaged(
                    file,
                    format!(
                        "{cause}; entries {} to {} of shard {shard} are in neither a checkpoint nor the journal",
                        checkpoint + 1,
                        first.index - 1
                    ),
                )
            }
            (None, Some((file, cause))) => damaged(
                *file,
                format!(
                    "{cause}; the journal holds no entries of shard {shard} after {checkpoint} to make up for it"
                ),
            ),
            _ => Ok(()),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    shards: BTreeMap<ShardId, ShardReplay>,
    live: BTreeMap<u64, Live>,
}

impl Replay {
    /// Before any batch: the shard has a checkpoint file.
    pub(crate) fn checkpoint(&mut self, shard: ShardId, choice: CheckpointChoice) {
        let replay = self.shards.entry(shard).or_default();
        replay.index.checkpoint_serial = choice.serial;
        replay.checkpoint = choice;
    }

    /// A segment that batches may follow in.
    pub(crate) fn segment(&mut self, sequence: u64, file: u32) {
        self.live.insert(sequence, Live { sequence, file: Some(file), ..Live::default() });
    }

    /// The next batch of the chain.
    pub(crate) fn batch(&mut self, header: &BatchHeader, payload: &[u8]) -> Result<(), Malformed> {
        let live = self.live.entry(header.sequence).or_default();
        live.first_batch = if live.first_batch == 0 { header.number } else { live.first_batch };
        live.last_batch = header.number;
        let mut reader = Reader::new(payload);
        for _ in 0..header.records {
            let offset = header.offset + (batch::HEADER_BYTES + reader.position()) as u64;
            let at = Position { sequence: header.sequence, offset };
            match Record::decode(&mut reader)? {
                Record::Entry { shard, term, index, kind, data } => {
                    let replay = self.shards.entry(shard).or_default();
                    replay.index.put(index, place(term, at, data.len()));
                    replay.put(RecoveredEntry { term, index, kind, data: Bytes::copy_from_slice(data) });
                    let highest = live.highest.entry(shard).or_default();
                    *highest = (*highest).max(index);
                }
                Record::Staged { shard, term, index, data, .. } => {
                    let replay = self.shards.entry(shard).or_default();
                    replay.staged.put(index, place(term, at, data.len()));
                    let highest = live.highest.entry(shard).or_default();
                    *highest = (*highest).max(index);
                }
                Record::Installed { shard, .. } => self.shards.entry(shard).or_default().installed(),
                Record::HardState { shard, term, vote, commit } => {
                    let index = &mut self.shards.entry(shard).or_default().index;
                    index.hard_state = Some(HardState { term, vote, commit });
                    index.hard_state_batch = header.number;
                    index.hard_state_sequence = Some(header.sequence);
                }
            }
        }
        reader.finish("bytes after the last record of a batch")
    }

    /// After the last batch: the live segments up to `last`, the shards' indexes, and what is handed out.
    pub(crate) fn finish(mut self, last: u64) -> Result<Replayed, JournalError> {
        self.live.retain(|sequence, _| *sequence <= last);
        let mut replayed = Replayed::default();
        for (shard, mut replay) in self.shards {
            replay.finish(shard)?;
            let home = replay.index.hard_state_sequence;
            if let Some(live) = home.and_then(|sequence| self.live.get_mut(&sequence)) {
                live.hard_states += 1;
            }
            replayed.shards.insert(
                shard,
                RecoveredShard {
                    hard_state: replay.index.hard_state.map(|h| (h.term, h.vote, h.commit)),
                    entries: replay.entries,
                    checkpoint: replay.checkpoint.found,
                },
            );
            replayed.indexes.insert(shard, replay.index);
            if replay.staged.range().is_some() {
                replayed.staged.insert(shard, replay.staged);
            }
        }
        replayed.live = self.live.into_values().collect();
        Ok(replayed)
    }
}

/// What replaying brought.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) live: Vec<Live>,
    pub(crate) indexes: BTreeMap<ShardId, ShardIndex>,
    pub(crate) staged: BTreeMap<ShardId, ShardIndex>,
    pub(crate) shards: BTreeMap<ShardId, RecoveredShard>,
}
