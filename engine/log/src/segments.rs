//! The files of the journal: which segments are live, which are ready to be written next, and how a free file becomes
//! ready. Files are prepared one at a time and in order of sequence, in the background, so that no batch waits.
//!
//! A file's life: *blank* (allocated, zeros) or *free* (its segment is not needed any more) → *preparing* (its header
//! with the next sequence is being written) → *ready* → *live* → free. Only the oldest live segment is ever freed, so
//! the live ones have consecutive sequences, and a header's `oldest` says where the journal begins.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::config::JournalConfig;
use overtake_base::ShardId;

/// A segment that holds batches, or is about to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub(crate) sequence: u64,
    /// The file; `None` until a ready one is there.
    pub(crate) file: Option<u32>,
    /// Number of its first batch; 0 before there is one.
    pub(crate) first_batch: u64,
    /// Number of its last batch.
    pub(crate) last_batch: u64,
    /// Highest index of each shard that has entries here.
    pub(crate) highest: BTreeMap<ShardId, u64>,
    /// Shards whose newest durable hard state is here.
    pub(crate) hard_states: usize,
}

/// A file whose content is not needed, with the sequence that its header may still show (0: blank).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Free {
    pub(crate) file: u32,
    pub(crate) sequence: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Preparing {
    Allocating { file: u32, urgent: bool },
    Header { file: u32, sequence: u64, oldest: u64 },
}

/// What to do next in the background.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Allocate { file: u32, urgent: bool },
    WriteHeader { file: u32, sequence: u64, oldest: u64 },
    Remove(u32),
}

/// All segment files of a core.
#[derive(Debug)]
pub(crate) struct Segments {
    live: VecDeque<Live>,
    ready: VecDeque<(u64, u32)>,
    free: VecDeque<Free>,
    preparing: Option<Preparing>,
    /// Numbers that are taken, also by files being removed.
    files: BTreeSet<u32>,
    ready_target: usize,
    /// Free files that are kept while there is room.
    free_max: usize,
    /// Sequence of the next file that is prepared.
    next_sequence: u64,
    /// Highest `oldest` in a header that is durable: files of lower sequences may go without looking like a loss.
    durable_oldest: u64,
    full: bool,
    /// Not even the room that is kept free was enough.
    exhausted: bool,
    /// The next allocation is to find out whether there is room again.
    retrying: bool,
}

impl Segments {
    /// `live` must not be empty; a live segment without a file gets the next ready one.
    pub(crate) fn new(
        live: VecDeque<Live>,
        ready: VecDeque<(u64, u32)>,
        free: VecDeque<Free>,
        durable_oldest: u64,
        config: &JournalConfig,
    ) -> Self {
        let files = (live.iter().filter_map(|live| live.file))
            .chain(ready.iter().map(|(_, file)| *file))
            .chain(free.iter().map(|free| free.file))
            .collect();
        let last_with_file = live.iter().rev().find(|live| live.file.is_some()).map(|live| live.sequence);
        let next_sequence = (ready.back().map(|(sequence, _)| *sequence).or(last_with_file))
            .map_or_else(|| live.front().map_or(1, |live| live.sequence), |sequence| sequence + 1);
        Self {
            live,
            ready,
            free,
            preparing: None,
            files,
            // One more than asked for: the reserve that is left when the disk is full.
            ready_target: config.segments_ahead as usize + 1,
            free_max: config.segments_free_max.max(config.segments_ahead + 1) as usize,
            next_sequence,
            durable_oldest,
            full: false,
            exhausted: false,
            retrying: false,
        }
    }

    /// The oldest live segment, if it is not also the newest.
    pub(crate) fn oldest_and_next(&self) -> Option<(&Live, &Live)> {
        self.live.front().zip(self.live.get(1))
    }

    /// Sequence of the oldest live segment.
    pub(crate) fn oldest_sequence(&self) -> u64 {
        self.live.front().map_or(self.next_sequence, |live| live.sequence)
    }

    /// The live segment of this sequence.
    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut Live> {
        let at = sequence.checked_sub(self.oldest_sequence())?;
        self.live.get_mut(usize::try_from(at).ok()?)
    }

    /// The full sequence of a live segment, from its low half.
    pub(crate) fn full_sequence(&self, low: u32) -> u64 {
        let oldest = self.oldest_sequence();
        oldest + u64::from(low.wrapping_sub(oldest as u32))
    }

    /// Begins the live segment after the newest one.
    pub(crate) fn begin(&mut self, sequence: u64) {
        debug_assert_eq!(self.live.back().map(|live| live.sequence + 1), Some(sequence));
        self.live.push_back(Live { sequence, ..Live::default() });
    }

    /// File of a live segment; takes a ready one where it has none yet. `None`: none is ready.
    pub(crate) fn file_for_writing(&mut self, sequence: u64) -> Option<u32> {
        let ready = self.ready.front().copied();
        let live = self.get_mut(sequence)?;
        if live.file.is_none() {
            let (_, file) = ready.filter(|(ready, _)| *ready == sequence)?;
            live.file = Some(file);
            self.ready.pop_front();
        }
        self.get_mut(sequence)?.file
    }

    /// Frees the oldest live segment.
    pub(crate) fn free_oldest(&mut self) {
        if let Some(Live { sequence, file: Some(file), .. }) = self.live.pop_front() {
            self.free.push_back(Free { file, sequence });
        }
    }

    /// The next thing to do in the background, taken to be under way from now on.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.next_preparation().or_else(|| self.next_removal())
    }

    fn next_preparation(&mut self) -> Option<Step> {
        if self.preparing.is_some() {
            return None;
        }
        if self.ready.len() < self.ready_target {
            if let Some(free) = self.free.pop_front() {
                return Some(self.write_header(free.file, self.next_sequence));
            }
            // The last one is for what shrinks: acks, leases, checkpoints. Without any, room is used that enqueues never get.
            let urgent = self.ready.is_empty();
            if self.full && !self.retrying && (!urgent || self.exhausted) {
                return None;
            }
            let file = (0..).find(|number| !self.files.contains(number))?;
            self.files.insert(file);
            self.preparing = Some(Preparing::Allocating { file, urgent });
            return Some(Step::Allocate { file, urgent });
        }
        if core::mem::take(&mut self.retrying) {
            // Segments were freed: that is room.
            self.full = false;
        }
        // Files that are too many can only be removed once a durable header says that they are not needed: write the
        // newest ready one again.
        if self.free.len() > self.free_kept()
            && self.free.front().is_some_and(|free| free.sequence >= self.durable_oldest)
            && self.ready.len() > 1
        {
            let (sequence, file) = self.ready.pop_back()?;
            return Some(self.write_header(file, sequence));
        }
        None
    }

    fn write_header(&mut self, file: u32, sequence: u64) -> Step {
        let oldest = self.oldest_sequence();
        self.preparing = Some(Preparing::Header { file, sequence, oldest });
        Step::WriteHeader { file, sequence, oldest }
    }

    fn free_kept(&self) -> usize {
        if self.full { self.ready_target } else { self.free_max }
    }

    fn next_removal(&mut self) -> Option<Step> {
        let removable = self.free.len() > self.free_kept()
            && self.free.front().is_some_and(|free| free.sequence < self.durable_oldest);
        let free = if removable { self.free.pop_front()? } else { return None };
        Some(Step::Remove(free.file))
    }

    /// The allocation is done; the file is blank.
    pub(crate) fn allocated(&mut self) {
        if let Some(Preparing::Allocating { file, urgent }) = self.preparing.take() {
            self.full &= urgent;
            self.retrying &= urgent;
            self.free.push_front(Free { file, sequence: 0 });
        }
    }

    /// There was no room: what was made of the file is to be removed.
    pub(crate) fn allocation_failed(&mut self) -> Option<Step> {
        self.set_full();
        let Some(Preparing::Allocating { file, urgent }) = self.preparing.take() else { return None };
        self.exhausted |= urgent;
        Some(Step::Remove(file))
    }

    /// The header being written is durable.
    pub(crate) fn header_written(&mut self) {
        if let Some(Preparing::Header { file, sequence, oldest }) = self.preparing.take() {
            self.durable_oldest = self.durable_oldest.max(oldest);
            self.next_sequence = self.next_sequence.max(sequence + 1);
            self.ready.push_back((sequence, file));
        }
    }

    /// The file is gone.
    pub(crate) fn removed(&mut self, file: u32) {
        self.files.remove(&file);
    }

    /// The last allocation found no room.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Remembers that there is no room.
    pub(crate) fn set_full(&mut self) {
        self.full = true;
        self.retrying = false;
    }

    /// It is worth trying again. Until that has come out well the disk counts as full: what grows would take the room
    /// that is left for what shrinks, a little each time.
    pub(crate) fn retry(&mut self) {
        self.retrying = self.full;
        self.exhausted = false;
    }

    /// Numbers of live, ready and free files.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.live.len(), self.ready.len(), self.free.len())
    }
}
