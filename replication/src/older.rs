//! The part of a group's log that only the journal holds: its terms are here, its entries are asked for when a follower
//! needs them, and come some turns later.

use crate::types::LogEntry;
use raft::GetEntriesContext;
use std::collections::{BTreeMap, VecDeque};

/// Stretches of read entries that are kept until a follower was sent them: one for each follower that lags.
const STRETCHES_MAX: usize = 4;
/// Callbacks that one read answers.
const CALLBACKS_MAX: usize = 8;

/// See the module's text.
#[derive(Default)]
pub struct Older {
    /// Index and term of the last entry that is nowhere any more; 0, 0 = none.
    gone: (u64, u64),
    /// First index and term of each run of entries of one term.
    runs: VecDeque<(u64, u64)>,
    /// What was read, by its first index.
    read: BTreeMap<u64, Vec<LogEntry>>,
    /// First indexes that are wanted: who is to be told, and whether it was asked for.
    wanted: BTreeMap<u64, (Vec<GetEntriesContext>, bool)>,
}

impl Older {
    /// Entries of these runs are in the journal. Unless the log begins with them, the first one itself is given up: the
    /// term before the first entry that can be read must be known.
    pub fn new(gone: (u64, u64), runs: &[(u64, u64)]) -> Self {
        let gone = match runs.first() {
            Some((1, _)) => (0, 0),
            Some(first) => *first,
            None => gone,
        };
        Self { gone, runs: runs.iter().copied().collect(), ..Self::default() }
    }

    /// Index of the oldest entry that can be read.
    pub fn first(&self) -> u64 {
        self.gone.0 + 1
    }

    /// Term of an entry before `end`, or of the last one gone.
    pub fn term_at(&self, index: u64, end: u64) -> Option<u64> {
        if index == self.gone.0 {
            return Some(self.gone.1);
        }
        if index < self.gone.0 || index >= end {
            return None;
        }
        let after = self.runs.partition_point(|(first, _)| *first <= index);
        self.runs.get(after.checked_sub(1)?).map(|(_, term)| *term)
    }

    /// One more entry is in the journal only.
    pub fn push(&mut self, index: u64, term: u64) {
        if self.runs.back().is_none_or(|(_, last)| *last != term) {
            self.runs.push_back((index, term));
        }
    }

    /// The journal does not hold entries up to `index`, which is before `end`, any more.
    pub fn forget(&mut self, index: u64, end: u64) {
        let Some(term) = self.term_at(index, end).filter(|_| index > self.gone.0) else { return };
        self.gone = (index, term);
        while self.runs.get(1).is_some_and(|(first, _)| *first <= index + 1) {
            self.runs.pop_front();
        }
        self.read = self.read.split_off(&(index + 1));
        self.wanted = self.wanted.split_off(&(index + 1));
    }

    /// Entries from `low` on that were read.
    pub fn entries(&self, low: u64) -> &[LogEntry] {
        let Some((first, entries)) = self.read.range(..=low).next_back() else { return &[] };
        entries.get((low - first) as usize..).unwrap_or_default()
    }

    /// Wants entries from `low` on; `context` is told when they are here.
    pub fn want(&mut self, low: u64, context: GetEntriesContext) {
        let (callbacks, _) = self.wanted.entry(low).or_default();
        if callbacks.len() == CALLBACKS_MAX {
            callbacks.remove(0);
        }
        callbacks.push(context);
    }

    /// Whether something is wanted that was not asked for.
    pub fn has_news(&self) -> bool {
        self.wanted.values().any(|(_, asked)| !asked)
    }

    /// First indexes of what is to be read now.
    pub fn take_news(&mut self, out: &mut Vec<u64>) {
        for (low, (_, asked)) in &mut self.wanted {
            if !core::mem::replace(asked, true) {
                out.push(*low);
            }
        }
    }

    /// Takes what was read from `low` on; gives back who is to be told.
    pub fn take_read(&mut self, low: u64, entries: Vec<LogEntry>) -> Vec<GetEntriesContext> {
        let Some((callbacks, _)) = self.wanted.remove(&low) else { return Vec::new() };
        if !entries.is_empty() {
            while self.read.len() >= STRETCHES_MAX {
                self.read.pop_first();
            }
            self.read.insert(low, entries);
        }
        callbacks
    }
}
