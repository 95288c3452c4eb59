//! The part of a group's log that is kept in memory: every entry after the compaction point, whether it is durable
//! already or only on its way to the disk. Consensus reads it through the `Storage` trait.

use crate::types::{EntryKind, LogEntry};
use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use std::collections::VecDeque;

/// Bytes that an entry weighs beyond its data when messages are cut to size.
pub const ENTRY_OVERHEAD_BYTES: usize = 32;

/// Entries `compacted.index + 1 ..`, without gaps.
pub struct LogTail {
    initial: RaftState,
    /// Index and term of the last entry that was forgotten; 0, 0 = none.
    compacted: (u64, u64),
    entries: VecDeque<LogEntry>,
}

impl LogTail {
    /// A tail of validated parts. `entries` start right after `compacted`.
    pub fn new(
        voters: &[u64],
        hard_state: HardState,
        compacted: (u64, u64),
        entries: VecDeque<LogEntry>,
    ) -> Self {
        let conf_state = ConfState { voters: voters.to_vec(), ..ConfState::default() };
        Self { initial: RaftState::new(hard_state, conf_state), compacted, entries }
    }

    /// Index of the oldest entry that is still here (or will be next).
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
        self.entry(index).map(|entry| entry.term)
    }

    /// Puts `entry` at its index and drops what was there and after.
    pub fn append(&mut self, entry: LogEntry) {
        assert!(
            (self.first()..=self.last() + 1).contains(&entry.index),
            "an entry that leaves a gap, or replaces a forgotten (so committed) one, would corrupt the log"
        );
        self.entries.truncate((entry.index - self.first()) as usize);
        self.entries.push_back(entry);
    }

    /// Forgets entries up to `index`, keeping its term.
    pub fn compact(&mut self, index: u64) {
        let Some(term) = self.term_at(index) else { return };
        if index >= self.first() {
            self.entries.drain(..(index - self.compacted.0) as usize);
            self.compacted = (index, term);
        }
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

/// Our form of an entry.
pub fn from_raft(entry: Entry) -> LogEntry {
    let kind = match entry.entry_type {
        EntryType::EntryNormal => EntryKind::Normal,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => EntryKind::Membership,
    };
    LogEntry { term: entry.term, index: entry.index, kind, data: entry.data }
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
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low < self.first() {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let from = (low - self.first()) as usize;
        let to = (high - self.first()) as usize;
        let mut room_bytes = max_size.into().unwrap_or(u64::MAX);
        let mut out = Vec::with_capacity(to.saturating_sub(from));
        for entry in self.entries.range(from..to) {
            let bytes = (entry.data.len() + ENTRY_OVERHEAD_BYTES) as u64;
            if bytes > room_bytes && !out.is_empty() {
                break;
            }
            room_bytes = room_bytes.saturating_sub(bytes);
            out.push(to_raft(entry));
        }
        Ok(out)
    }

    fn term(&self, index: u64) -> Result<u64> {
        self.term_at(index).ok_or(Error::Store(if index < self.first() {
            StorageError::Compacted
        } else {
            StorageError::Unavailable
        }))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    /// A peer that needs entries older than the tail waits: what a snapshot of a shard is made of is known to the
    /// shard's machine and to the journal, not to this crate.
    fn snapshot(&self, _request_index: u64, _to: u64) -> Result<Snapshot> {
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry { term, index, kind: EntryKind::Normal, data: Bytes::from(vec![0; 68]) }
    }

    fn tail(terms: &[u64]) -> LogTail {
        let entries = (1..).zip(terms).map(|(index, term)| entry(index, *term)).collect();
        LogTail::new(&[1], HardState::default(), (0, 0), entries)
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
        assert_eq!((tail.first(), tail.last()), (3, 4));
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
