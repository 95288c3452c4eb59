//! Freeing segments: the oldest one is free when no shard needs an entry in it and no hard state lives only there.

use super::Journal;
use crate::config::BatchNumber;
use crate::disk::DiskOperation;
use crate::index::{HardState, ShardIndex};
use crate::record::Record;
use overtake_base::ShardId;
use overtake_base::planted::{Bug, is_planted};

impl Journal {
    /// The shard needs an entry of a segment in which its highest index is `highest`.
    pub(super) fn needs(&self, shard: ShardId, highest: u64) -> bool {
        self.shards.get(&shard).is_none_or(|shard| highest >= shard.released)
    }

    /// Frees the oldest segments that nothing needs. A hard state whose only copy is in one is appended again; the
    /// segment is free when that copy is durable.
    pub(super) fn recycle(&mut self, out: &mut Vec<DiskOperation>) {
        while self.recycle_wanted {
            self.forget_moved();
            let Some((oldest, next)) = self.segments.oldest_and_next() else { break };
            // Recovery begins in the segment after; a durable batch there carries the chain on.
            let durable = self.writer.durable();
            if next.first_batch == 0 || next.first_batch > durable {
                return;
            }
            if oldest.highest.iter().any(|(shard, highest)| self.needs(*shard, *highest)) {
                self.move_last_entries(out);
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
