//! The journal of one core: records of all its shards go into batches, batches into segments, each batch with one
//! durable write. Nothing is reported durable before everything appended earlier is.

mod answers;
mod reads;
mod recycle;
mod scrub;
mod staging;

pub use answers::{CheckpointWritten, Completed, EntryRead, JournalUsage, ReadError};

use crate::checkpoint::{CheckpointHeader, state_checksum};
use crate::config::{BatchNumber, JournalConfig};
use crate::disk::{DiskCompletion, DiskError, DiskOperation, DiskOperationKind, FileName};
use crate::error::JournalError;
use crate::index::{HardState, Place, Position, ShardIndex};
use crate::record::Record;
use crate::segment::SegmentHeader;
use crate::segments::{Segments, Step};
use crate::writer::{ChainEnd, Writer};
use bytes::Bytes;
use overtake_base::ShardId;
use overtake_base::hash::Map;
use overtake_base::planted::{Bug, is_planted};
use reads::WaitingRead;
use scrub::ScrubRead;
use std::collections::BTreeMap;

/// What an operation under way is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Batch(BatchNumber),
    Allocate,
    Header,
    Remove(u32),
    Read { file: u32, token: u64, shard: ShardId, index: u64, place: Place },
    Checkpoint { shard: ShardId, index: u64 },
    Scrub(ScrubRead),
    Mark,
}

/// The journal. Made by [`crate::Recovery`].
#[derive(Debug)]
pub struct Journal {
    config: JournalConfig,
    next_operation: u64,
    operations: Map<u64, Purpose>,
    writer: Writer,
    segments: Segments,
    shards: BTreeMap<ShardId, ShardIndex>,
    /// Entries of snapshots that are coming in.
    staged: BTreeMap<ShardId, ShardIndex>,
    waiting_reads: Vec<WaitingRead>,
    /// The oldest segment may have become free.
    recycle_wanted: bool,
    opening: BatchNumber,
    closing: bool,
    bytes_since_recycle: u64,
    bytes_written: u64,
    batches_written: u64,
    /// Where the scrub goes on.
    scrub_at: Option<Position>,
}

impl Journal {
    /// A journal that goes on at the end of a chain whose batches are all durable.
    pub(crate) fn new(
        config: JournalConfig,
        next_operation: u64,
        end: ChainEnd,
        segments: Segments,
        shards: BTreeMap<ShardId, ShardIndex>,
    ) -> Self {
        Self {
            writer: Writer::new(config.clone(), end),
            config,
            next_operation,
            operations: Map::default(),
            segments,
            shards,
            staged: BTreeMap::new(),
            waiting_reads: Vec::new(),
            recycle_wanted: true,
            opening: 0,
            closing: false,
            bytes_since_recycle: 0,
            bytes_written: 0,
            batches_written: 0,
            scrub_at: None,
        }
    }

    /// Appends to the open batch and answers its number. The bytes are copied here, once.
    ///
    /// # Panics
    /// Where an entry's data is longer than [`JournalConfig::record_bytes_max`]: it might fit no segment.
    pub fn append(&mut self, record: Record<'_>) -> BatchNumber {
        if let Record::Entry { data, .. } | Record::Staged { data, .. } = record {
            assert!(data.len() <= self.config.record_bytes_max, "an entry of {} bytes", data.len());
        }
        let (batch, at) = self.writer.append(&record, &mut self.segments);
        match record {
            Record::Entry { shard, term, index, data, .. }
            | Record::Staged { shard, term, index, data, .. } => {
                let place = place(term, at, data.len());
                let staged = matches!(record, Record::Staged { .. });
                let shards = if staged { &mut self.staged } else { &mut self.shards };
                shards.entry(shard).or_default().put(index, place);
                if let Some(live) = self.segments.get_mut(at.sequence) {
                    let highest = live.highest.entry(shard).or_default();
                    *highest = (*highest).max(index);
                }
            }
            Record::HardState { shard, term, vote, commit } => {
                let shard = self.shards.entry(shard).or_default();
                shard.hard_state = Some(HardState { term, vote, commit });
                shard.hard_state_batch = batch;
            }
            Record::Installed { shard, .. } => self.installed(shard),
        }
        batch
    }

    /// Writes what was appended, as far as the window has room and segments are ready; also prepares segments. Call it
    /// once a turn, and again after completions.
    pub fn flush(&mut self, out: &mut Vec<DiskOperation>) {
        self.recycle();
        if self.closing && self.writer.is_idle() && !self.writer.is_vouched() {
            self.writer.open_empty(&mut self.segments);
        }
        while let Some(batch) = self.writer.seal_next(&mut self.segments) {
            self.bytes_since_recycle += batch.data.len() as u64;
            self.bytes_written += batch.data.len() as u64;
            self.batches_written += 1;
            let file = FileName::Segment(batch.file);
            let kind = DiskOperationKind::Write { file, offset: batch.offset, data: batch.data };
            self.start(Purpose::Batch(batch.number), kind, out);
        }
        self.prepare(out);
    }

    /// Writes an empty batch that says that everything before it is durable, unless that has been said or something is
    /// still under way. Until then, damage to the last batches looks like a torn tail to recovery.
    pub fn vouch(&mut self, out: &mut Vec<DiskOperation>) {
        if self.writer.is_idle() && !self.writer.is_vouched() {
            self.writer.open_empty(&mut self.segments);
            self.flush(out);
        }
    }

    /// Begins a clean end: writes what is left, then vouches for all of it. Go on with [`Journal::complete`] and
    /// [`Journal::flush`] until [`Journal::is_idle`].
    pub fn seal(&mut self, out: &mut Vec<DiskOperation>) {
        self.closing = true;
        self.flush(out);
    }

    /// Takes what became of an operation. An error is final: nothing may be answered from this disk any more.
    pub fn complete(
        &mut self,
        completion: DiskCompletion,
        out: &mut Vec<DiskOperation>,
    ) -> Result<Completed, JournalError> {
        let mut completed = Completed::default();
        let Some(purpose) = self.operations.remove(&completion.id) else {
            return Err(JournalError::Disk(format!("completion {} belongs to no operation", completion.id)));
        };
        let failed = |error: DiskError| JournalError::Disk(error.detail);
        match purpose {
            Purpose::Batch(number) => {
                if !is_planted(Bug::GoOnAfterFailedWrite) {
                    completion.result.map_err(failed)?;
                }
                self.writer.written(number);
                completed.durable_moved = self.move_durable();
                self.start_waiting_reads(&mut completed, out);
            }
            Purpose::Allocate => match completion.result {
                Ok(_) => self.segments.allocated(),
                Err(error) if error.full => {
                    let step = self.segments.allocation_failed();
                    self.start_step(step, out);
                }
                Err(error) => return Err(failed(error)),
            },
            Purpose::Header => {
                completion.result.map_err(failed)?;
                self.segments.header_written();
            }
            Purpose::Remove(file) => {
                completion.result.map_err(failed)?;
                self.segments.removed(file);
            }
            Purpose::Mark => drop(completion.result.map_err(failed)?),
            Purpose::Read { file, token, shard, index, place } => {
                let read = self.entry_read(file, shard, index, place, completion.result);
                let kind = read.as_ref().map_or(0, |(kind, _)| *kind);
                let result = read.map(|(_, data)| data);
                completed.reads.push(EntryRead { token, shard, index, kind, result });
            }
            Purpose::Scrub(read) => self.scrub_read(read, completion.result, &mut completed, out)?,
            Purpose::Checkpoint { shard, index } => {
                let written = match completion.result {
                    Ok(_) => true,
                    Err(error) if error.full => false,
                    Err(error) => return Err(failed(error)),
                };
                if !written {
                    self.segments.set_full();
                }
                completed.checkpoint = Some(CheckpointWritten { shard, index, written });
            }
        }
        self.prepare(out);
        Ok(completed)
    }

    /// All batches up to this one are durable.
    #[must_use]
    pub fn durable(&self) -> BatchNumber {
        self.writer.durable()
    }

    /// Term of an entry that is in the journal.
    #[must_use]
    pub fn entry_term(&self, shard: ShardId, index: u64) -> Option<u64> {
        Some(self.shards.get(&shard)?.get(index)?.term)
    }

    /// First and last index of the shard's entries in the journal.
    #[must_use]
    pub fn entry_range(&self, shard: ShardId) -> Option<(u64, u64)> {
        self.shards.get(&shard)?.range()
    }

    /// Writes a checkpoint of the shard over the older of its two; [`Completed::checkpoint`] tells when it is durable.
    /// `index` and `term` are of the last entry that `state` contains. Every entry up to it must be durable here (or
    /// the state come from a peer's snapshot): a state that knows entries which a power loss may still take would
    /// leave payloads behind that are nowhere. One at a time for each shard.
    pub fn write_checkpoint(
        &mut self,
        shard: ShardId,
        index: u64,
        term: u64,
        state: Bytes,
        out: &mut Vec<DiskOperation>,
    ) {
        let known = self.shards.entry(shard).or_default();
        known.checkpoint_serial += 1;
        let header = CheckpointHeader {
            core: self.config.core,
            store: self.config.store,
            shard,
            serial: known.checkpoint_serial,
            index,
            term,
            state_bytes: state.len() as u64,
            state_checksum: state_checksum(&state),
        };
        let kind = DiskOperationKind::Replace {
            file: FileName::Checkpoint(shard.0, header.slot()),
            data: Bytes::from(header.encode_file(&state)),
        };
        self.start(Purpose::Checkpoint { shard, index }, kind, out);
    }

    /// The shard needs no entry below `index` any more: the state is in a durable checkpoint, and no live payload is
    /// there. To be able to fall back to the older checkpoint, keep the entries after that one.
    pub fn release_before(&mut self, shard: ShardId, index: u64) {
        self.shards.entry(shard).or_default().release_before(index);
        self.recycle_wanted = true;
    }

    /// The shards whose entries keep the oldest segment from being freed, each with its highest index there: releasing
    /// past those frees the segment. Empty where only the newest segment is live.
    #[must_use]
    pub fn pinning(&self) -> Vec<(ShardId, u64)> {
        let Some((oldest, _)) = self.segments.oldest_and_next() else { return Vec::new() };
        let needed = |(shard, highest): &(&ShardId, &u64)| self.needs(**shard, **highest);
        oldest.highest.iter().filter(needed).map(|(shard, highest)| (*shard, *highest)).collect()
    }

    /// Whether a batch is being written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.writer.writes_in_flight() > 0
    }

    /// Figures.
    #[must_use]
    pub fn usage(&self) -> JournalUsage {
        let (live, ready, free) = self.segments.counts();
        JournalUsage {
            segments_live: live,
            segments_ready: ready,
            segments_free: free,
            file_bytes: (live + ready + free) as u64 * self.config.segment_bytes,
            bytes_since_recycle: self.bytes_since_recycle,
            bytes_written: self.bytes_written,
            batches_written: self.batches_written,
            index_entries: self.shards.values().map(ShardIndex::len).sum(),
            backlog_bytes: self.writer.backlog_bytes(),
            writes_in_flight: self.writer.writes_in_flight(),
        }
    }

    /// Bytes appended that are not durable yet. The journal takes everything; refusing is the core's part.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.writer.backlog_bytes()
    }

    /// The last allocation or checkpoint found no room: refuse what grows. What is left in the live segment and the
    /// ready ones is for what shrinks.
    #[must_use]
    pub fn disk_full(&self) -> bool {
        self.segments.is_full()
    }

    /// Tries again after the disk was full. Call it now and then; [`Journal::disk_full`] tells what came of it.
    pub fn retry_allocation(&mut self, out: &mut Vec<DiskOperation>) {
        self.segments.retry();
        self.prepare(out);
    }

    /// Nothing is open or under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let vouched = !self.closing || self.writer.is_vouched();
        self.writer.is_idle() && vouched && self.operations.is_empty() && self.waiting_reads.is_empty()
    }

    /// Writes the opening batch: it holds nothing, but nothing may follow it before it is durable.
    pub(crate) fn write_opening(&mut self, out: &mut Vec<DiskOperation>) {
        self.opening = self.writer.next_number();
        self.writer.open_empty(&mut self.segments);
        self.flush(out);
    }

    /// The opening batch is durable.
    pub(crate) fn is_open(&self) -> bool {
        self.writer.durable() >= self.opening
    }

    /// Removes the mark of a folder that was given up: its replicas are whole.
    pub fn remove_mark(&mut self, out: &mut Vec<DiskOperation>) {
        for file in crate::mark::FILES {
            self.start(Purpose::Mark, DiskOperationKind::Remove { file }, out);
        }
    }

    fn start(&mut self, purpose: Purpose, kind: DiskOperationKind, out: &mut Vec<DiskOperation>) {
        let id = self.next_operation;
        self.next_operation += 1;
        self.operations.insert(id, purpose);
        out.push(DiskOperation { id, kind });
    }

    fn prepare(&mut self, out: &mut Vec<DiskOperation>) {
        while let Some(step) = self.segments.next_step() {
            self.start_step(Some(step), out);
        }
    }

    fn start_step(&mut self, step: Option<Step>, out: &mut Vec<DiskOperation>) {
        match step {
            Some(Step::Allocate { file, urgent }) => {
                let bytes = self.config.segment_bytes;
                let kind = DiskOperationKind::Allocate { file: FileName::Segment(file), bytes, urgent };
                self.start(Purpose::Allocate, kind, out);
            }
            Some(Step::WriteHeader { file, sequence, oldest }) => {
                let header = SegmentHeader {
                    core: self.config.core,
                    store: self.config.store,
                    sequence,
                    oldest,
                    segment_bytes: self.config.segment_bytes,
                };
                let block = header.encode_block();
                let file = FileName::Segment(file);
                let kind = DiskOperationKind::Write { file, offset: 0, data: Bytes::from(block) };
                self.start(Purpose::Header, kind, out);
            }
            Some(Step::Remove(file)) => {
                let kind = DiskOperationKind::Remove { file: FileName::Segment(file) };
                self.start(Purpose::Remove(file), kind, out);
            }
            None => {}
        }
    }

    /// Takes in batches that have become durable, in order.
    fn move_durable(&mut self) -> bool {
        let mut moved = false;
        while let Some(batch) = self.writer.next_durable() {
            moved = true;
            for shard in batch.hard_states {
                let Some(index) = self.shards.get_mut(&shard) else { continue };
                let before = index.hard_state_sequence.replace(batch.sequence);
                if let Some(live) = before.and_then(|sequence| self.segments.get_mut(sequence)) {
                    live.hard_states -= 1;
                }
                if let Some(live) = self.segments.get_mut(batch.sequence) {
                    live.hard_states += 1;
                }
            }
        }
        moved
    }
}

/// A record's place, as the index keeps it.
pub(crate) fn place(term: u64, at: Position, data_bytes: usize) -> Place {
    // Offsets and lengths are bounded by the segment's length, which is below 4 GiB.
    Place { term, sequence_low: at.sequence as u32, offset: at.offset as u32, data_bytes: data_bytes as u32 }
}
