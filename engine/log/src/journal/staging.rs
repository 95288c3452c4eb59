//! Snapshots that come from a peer. Their entries are staged beside the shard's log while that goes on being the replica's
//! log; the snapshot's state is written as the shard's checkpoint, which is the moment from which recovery takes the
//! staged entries for the log; a record says so for later.

use super::Journal;
use crate::config::BatchNumber;
use crate::index::ShardIndex;
use crate::record::Record;
use overtake_base::ShardId;
use std::collections::BTreeMap;

impl Journal {
    /// What recovery found staged.
    pub(crate) fn with_staged(mut self, staged: BTreeMap<ShardId, ShardIndex>) -> Self {
        self.staged = staged;
        self
    }

    /// First and last index of the entries that are staged, without gaps.
    #[must_use]
    pub fn staged_range(&self, shard: ShardId) -> Option<(u64, u64)> {
        self.staged.get(&shard)?.range()
    }

    /// Forgets staged entries: those before `first`, and all of them where they do not reach back to it.
    pub fn trim_staged(&mut self, shard: ShardId, first: u64) {
        let Some(staged) = self.staged.get_mut(&shard) else { return };
        if staged.range().is_some_and(|(from, _)| from <= first) {
            staged.release_before(first);
        } else {
            self.staged.remove(&shard);
        }
    }

    /// The shard's checkpoint is the peer's: the staged entries are the shard's log from now on. Everything that was
    /// staged must be durable, and the checkpoint that ends where they end.
    pub fn install(&mut self, shard: ShardId, term: u64, index: u64) -> BatchNumber {
        self.append(Record::Installed { shard, term, index })
    }

    pub(super) fn installed(&mut self, shard: ShardId) {
        let staged = self.staged.remove(&shard).unwrap_or_default();
        self.shards.entry(shard).or_default().replace(staged);
        self.recycle_wanted = true;
    }

    /// Terms of the shard's entries from `first` to `last`: as many as take at most so many bytes, but one at least where
    /// the journal holds it.
    #[must_use]
    pub fn terms_within(&self, shard: ShardId, first: u64, last: u64, bytes: u64) -> Vec<u64> {
        let Some(shard) = self.shards.get(&shard) else { return Vec::new() };
        let mut left = bytes;
        let mut terms = Vec::new();
        for place in (first..=last).map_while(|index| shard.get(index)) {
            let takes = u64::from(place.data_bytes);
            if takes > left && !terms.is_empty() {
                break;
            }
            left = left.saturating_sub(takes);
            terms.push(place.term);
        }
        terms
    }

    /// The first of the shard's newest entries that take at most so many bytes.
    #[must_use]
    pub fn first_of_newest(&self, shard: ShardId, bytes: u64) -> u64 {
        self.shards.get(&shard).map_or(0, |shard| shard.first_of_newest(bytes))
    }
}
