//! A group's log as consensus reads it through the `Storage` trait. Every entry after the compaction point is in memory,
//! whether it is durable already or only on its way to the disk; what is before it is in the journal.

use crate::older::Older;
use crate::types::{EntryKind, LogEntry};
use core::cell::RefCell;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use std::collections::VecDeque;

/// Bytes that an entry weighs beyond its data when messages are cut to size.
pub const ENTRY_OVERHEAD_BYTES: usize = 32;

/// Entries `compacted.index + 1 ..`, without gaps.
pub struct LogTail {
    initial: RaftState,
    /// Index and term of the last entry that is not in memory; 0, 0 = none.
    compacted: (u64, u64),
    entries: VecDeque<LogEntry>,
    /// Bytes of those.
    bytes: usize,
    /// What is before them. Consensus asks for it through a shared reference.
    older: RefCell<Older>,
    /// What the state machine holds: a snapshot of it may be offered.
    applied: u64,
}

fn weight(entry: &LogEntry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD_BYTES
}

impl LogTail {
    /// A tail of validated parts. `entries` start right after `compacted`; `older` are the runs of terms before.
    pub fn new(
        conf_state: ConfState,
        hard_state: HardState,
        compacted: (u64, u64),
        older: &[(u64, u64)],
        entries: VecDeque<LogEntry>,
    ) -> Self {
        let bytes = entries.iter().map(weight).sum();
        let older = RefCell::new(Older::new(compacted, older));
        let applied = compacted.0;
        Self { initial: RaftState::new(hard_state, conf_state), compacted, entries, bytes, older, applied }
    }

    /// The part that is in the journal only.
    pub fn older(&mut self) -> &mut Older {
        self.older.get_mut()
    }

    /// The state machine holds everything up to `index`.
    pub fn applied(&mut self, index: u64) {
        self.applied = index;
    }

    /// Whether entries of the journal are wanted that nobody was asked for.
    pub fn wants_older(&self) -> bool {
        self.older.borrow().has_news()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Index of the oldest entry that is in memory (or will be next).
    pub fn first(&self) -> u64 {
        self.compacted.0 + 1
    }

    /// Index of the newest entry.
    pub fn last(&self) -> u64 {
        self.compacted.0 + self.entries.len() as u64
    }

    /// The entry at `index`.
    pub fn entry(&self, index: u64) -> Option<&LogEntry> {
        let offset = index.checked_sub(self.first())?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    /// Term of the entry at `index`, also for the last one forgotten.
    fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.compacted.0 {
            return Some(self.compacted.1);
        }
        if index < self.compacted.0 {
            return self.older.borrow().term_at(index, self.compacted.0);
        }
        self.entry(index).map(|entry| entry.term)
    }

    /// Puts `entry` at its index and drops what was there and after.
    pub fn append(&mut self, entry: LogEntry) {
        assert!(
            (self.first()..=self.last() + 1).contains(&entry.index),
            "an entry that leaves a gap, or replaces a forgotten (so committed) one, would corrupt the log"
        );
        let kept = (entry.index - self.first()) as usize;
        self.bytes -= self.entries.range(kept..).map(weight).sum::<usize>();
        self.entries.truncate(kept);
        self.bytes += weight(&entry);
        self.entries.push_back(entry);
    }

    /// Leaves entries up to `index` to the journal.
    pub fn compact(&mut self, index: u64) {
        if index > self.last() {
            return;
        }
        let older = self.older.get_mut();
        while self.compacted.0 < index
            && let Some(entry) = self.entries.pop_front()
        {
            self.bytes -= weight(&entry);
            older.push(entry.index, entry.term);
            self.compacted = (entry.index, entry.term);
        }
    }

    /// The journal does not hold entries up to `index` any more.
    pub fn forget(&mut self, index: u64) {
        let end = self.compacted.0;
        if index >= end {
            *self.older.get_mut() = Older::new(self.compacted, &[]);
        } else {
            self.older.get_mut().forget(index, end);
        }
    }

    /// Entries that were read from the journal, as many as fit; else asks for them.
    fn older_entries(
        &self,
        low: u64,
        high: u64,
        room_bytes: u64,
        context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low < self.older.borrow().first() || !context.can_async() {
            return Err(Error::Store(StorageError::Compacted));
        }
        let mut older = self.older.borrow_mut();
        let read = older.entries(low);
        if read.is_empty() {
            older.want(low, context);
            return Err(Error::Store(StorageError::LogTemporarilyUnavailable));
        }
        Ok(fitting(read.iter().take_while(|entry| entry.index < high), room_bytes))
    }
}

/// The library's form of an entry.
pub fn to_raft(entry: &LogEntry) -> Entry {
    let entry_type = match entry.kind {
        EntryKind::Normal => EntryType::EntryNormal,
        EntryKind::Membership => EntryType::EntryConfChangeV2,
    };
    Entry { entry_type, term: entry.term, index: entry.index, data: entry.data.clone(), ..Entry::default() }
}

/// Our form of an entry. A change of membership that was just proposed bears the library's bytes, and beside them ours.
pub fn from_raft(entry: Entry) -> LogEntry {
    let (kind, data) = match entry.entry_type {
        EntryType::EntryNormal => (EntryKind::Normal, entry.data),
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 if entry.context.is_empty() => {
            (EntryKind::Membership, entry.data)
        }
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => (EntryKind::Membership, entry.context),
    };
    LogEntry { term: entry.term, index: entry.index, kind, data }
}

/// The first entries, as many as fit, but one at least.
fn fitting<'a>(entries: impl Iterator<Item = &'a LogEntry>, mut room_bytes: u64) -> Vec<Entry> {
    let mut out = Vec::new();
    for entry in entries {
        let bytes = weight(entry) as u64;
        if bytes > room_bytes && !out.is_empty() {
            break;
        }
        room_bytes = room_bytes.saturating_sub(bytes);
        out.push(to_raft(entry));
    }
    out
}

impl Storage for LogTail {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        let room_bytes = max_size.into().unwrap_or(u64::MAX);
        if low < self.first() {
            return self.older_entries(low, high, room_bytes, context);
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let from = (low - self.first()) as usize;
        let to = (high - self.first()) as usize;
        Ok(fitting(self.entries.range(from..to), room_bytes))
    }

    fn term(&self, index: u64) -> Result<u64> {
        self.term_at(index).ok_or(Error::Store(if index < self.older.borrow().first() {
            StorageError::Compacted
        } else {
            StorageError::Unavailable
        }))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.older.borrow().first())
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    /// Only its index: what a snapshot of a shard is made of is known to the shard's machine and to the journal, and
    /// fetched past this crate.
    fn snapshot(&self, request_index: u64, _to: u64) -> Result<Snapshot> {
        let Some(term) = self.term_at(self.applied).filter(|term| *term > 0) else {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        };
        if self.applied < request_index {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (self.applied, term);
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry { term, index, kind: EntryKind::Normal, data: Bytes::from(vec![0; 68]) }
    }

    fn one() -> ConfState {
        ConfState { voters: vec![1], ..ConfState::default() }
    }

    fn tail(terms: &[u64]) -> LogTail {
        let entries = (1..).zip(terms).map(|(index, term)| entry(index, *term)).collect();
        LogTail::new(one(), HardState::default(), (0, 0), &[], entries)
    }

    fn read(tail: &LogTail, low: u64, high: u64, max: u64) -> Result<Vec<u64>> {
        let entries = tail.entries(low, high, max, GetEntriesContext::empty(false))?;
        Ok(entries.iter().map(|e| e.index).collect())
    }

    #[test]
    fn an_entry_replaces_those_at_its_index_and_after() {
        let mut tail = tail(&[1, 1, 1, 2]);
        tail.append(entry(3, 3));
        assert_eq!((tail.last(), tail.term(3)), (3, Ok(3)));
        tail.append(entry(4, 3));
        assert_eq!(tail.entry(4).map(|e| e.term), Some(3));
        assert_eq!(tail.entry(5), None);
        assert_eq!(tail.entry(0), None);
    }

    #[test]
    fn compaction_keeps_the_term_of_its_point() {
        let mut tail = tail(&[1, 2, 3, 4]);
        tail.compact(2);
        assert_eq!((tail.first(), tail.last(), tail.first_index()), (3, 4, Ok(1)));
        assert_eq!((tail.term(1), tail.term(2)), (Ok(1), Ok(2)));
        assert_eq!(read(&tail, 1, 4, u64::MAX), Err(Error::Store(StorageError::Compacted)), "not at once");
        tail.forget(2);
        assert_eq!(tail.first_index(), Ok(3));
        assert_eq!(tail.term(2), Ok(2));
        assert_eq!(tail.term(1), Err(Error::Store(StorageError::Compacted)));
        assert_eq!(tail.term(5), Err(Error::Store(StorageError::Unavailable)));
        assert_eq!(read(&tail, 2, 4, u64::MAX), Err(Error::Store(StorageError::Compacted)));
        for again in [0, 1, 2, 9] {
            tail.compact(again);
            assert_eq!(tail.first(), 3, "compacting to {again} changes nothing");
        }
        tail.compact(4);
        assert_eq!((tail.first(), tail.last(), tail.term(4)), (5, 4, Ok(4)));
        tail.append(entry(5, 4));
        assert_eq!(tail.last(), 5);
    }

    #[test]
    fn what_only_the_journal_holds_is_asked_for_and_handed_on() {
        let mut tail = tail(&[1, 1, 2, 2, 3]);
        tail.compact(4);
        let ask = |tail: &LogTail, low| tail.entries(low, 6, u64::MAX, GetEntriesContext::empty(true));
        for _ in 0..2 {
            assert_eq!(ask(&tail, 2), Err(Error::Store(StorageError::LogTemporarilyUnavailable)));
        }
        assert!(tail.wants_older());
        let mut asked = Vec::new();
        tail.older().take_news(&mut asked);
        assert_eq!((asked, tail.wants_older()), (vec![2], false));
        let told = tail.older().take_read(2, vec![entry(2, 1), entry(3, 2)]);
        assert_eq!(told.len(), 2);
        let found = |low| ask(&tail, low).map(|entries| entries.iter().map(|e| e.index).collect::<Vec<_>>());
        assert_eq!((found(2), found(3), found(5)), (Ok(vec![2, 3]), Ok(vec![3]), Ok(vec![5])));
        assert_eq!((1..=5).map(|index| tail.term(index).unwrap()).collect::<Vec<_>>(), [1, 1, 2, 2, 3]);
        tail.forget(3);
        assert_eq!((tail.first_index(), tail.term(3), tail.term(4)), (Ok(4), Ok(2), Ok(2)));
        assert_eq!(ask(&tail, 2), Err(Error::Store(StorageError::Compacted)));
        assert_eq!(tail.bytes(), 100);
    }

    #[test]
    fn terms_before_a_checkpoint_are_known_from_the_journal() {
        let entries = [entry(8, 5)].into();
        let tail = LogTail::new(one(), HardState::default(), (7, 4), &[(3, 1), (5, 4)], entries);
        assert_eq!((tail.first_index(), tail.term(2)), (Ok(4), Err(Error::Store(StorageError::Compacted))));
        assert_eq!((3..=8).map(|index| tail.term(index).unwrap()).collect::<Vec<_>>(), [1, 1, 4, 4, 4, 5]);
    }

    #[test]
    fn reads_stop_at_their_size_but_hold_one_entry() {
        let tail = tail(&[1, 1, 1]);
        assert_eq!(read(&tail, 1, 4, 0), Ok(vec![1]));
        assert_eq!(read(&tail, 1, 4, 200), Ok(vec![1, 2]));
        assert_eq!(read(&tail, 1, 4, u64::MAX), Ok(vec![1, 2, 3]));
        assert_eq!(read(&tail, 2, 2, 0), Ok(vec![]));
        assert_eq!(read(&tail, 1, 5, 0), Err(Error::Store(StorageError::Unavailable)));
    }

    #[test]
    #[should_panic(expected = "leaves a gap")]
    fn a_gap_is_never_stored() {
        tail(&[1]).append(entry(3, 1));
    }
}
