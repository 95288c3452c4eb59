//! Freeing segments: the oldest one is free when no shard needs an entry in it and no hard state lives only there.

use super::Journal;
use crate::config::BatchNumber;
use crate::index::{HardState, ShardIndex};
use crate::record::Record;
use overtake_base::ShardId;
use overtake_base::planted::{Bug, is_planted};

impl Journal {
    /// The shard needs an entry of a segment in which its highest index is `highest`.
    pub(super) fn needs(&self, shard: ShardId, highest: u64) -> bool {
        self.shards.get(&shard).is_none_or(|shard| highest >= shard.released)
    }

    /// Nothing of the shard is needed any more but its hard state: its newest checkpoint says that it is not here.
    pub fn forget(&mut self, shard: ShardId) {
        self.trim_staged(shard, 0);
        self.release_before(shard, u64::MAX);
    }

    /// A shard that was forgotten comes back by a snapshot, whose entries may be older than some that were here.
    pub fn expect_anew(&mut self, shard: ShardId) {
        self.shards.entry(shard).or_default().released = 0;
    }

    /// Term, vote and commit, as last appended.
    #[must_use]
    pub fn hard_state(&self, shard: ShardId) -> Option<(u64, u64, u64)> {
        let HardState { term, vote, commit } = self.shards.get(&shard)?.hard_state?;
        Some((term, vote, commit))
    }

    /// The shard is durable up to `index`, by a checkpoint. Says so in the journal too, unless that is said already, before
    /// entries up to there are let go of: else an older checkpoint that took the place of the newest ones would pass for
    /// all that there ever was.
    pub fn note_committed(&mut self, shard: ShardId, index: u64) {
        if let Some((term, vote, commit)) = self.hard_state(shard)
            && commit < index
        {
            self.append(Record::HardState { shard, term, vote, commit: index });
        }
    }

    /// Frees the oldest segments that nothing needs. A hard state whose only copy is in one is appended again; the
    /// segment is free when that copy is durable.
    pub(super) fn recycle(&mut self) {
        while self.recycle_wanted {
            let Some((oldest, next)) = self.segments.oldest_and_next() else { break };
            // Recovery begins in the segment after; a durable batch there carries the chain on.
            let durable = self.writer.durable();
            if next.first_batch == 0 || next.first_batch > durable {
                return;
            }
            if oldest.highest.iter().any(|(shard, highest)| self.needs(*shard, *highest)) {
                break;
            }
            if oldest.hard_states > 0 && !is_planted(Bug::HardStateRecycled) {
                let (sequence, last_batch) = (oldest.sequence, oldest.last_batch);
                self.append_hard_states_again(sequence, last_batch);
                return;
            }
            self.segments.free_oldest();
            self.bytes_since_recycle = 0;
        }
        self.recycle_wanted = false;
    }

    fn append_hard_states_again(&mut self, sequence: u64, last_batch: BatchNumber) {
        let alone = |index: &ShardIndex| {
            index.hard_state_sequence == Some(sequence) && index.hard_state_batch <= last_batch
        };
        let records: Vec<_> = (self.shards.iter())
            .filter(|(_, index)| alone(index))
            .filter_map(|(shard, index)| Some((*shard, index.hard_state?)))
            .collect();
        for (shard, HardState { term, vote, commit }) in records {
            self.append(Record::HardState { shard, term, vote, commit });
        }
    }
}
