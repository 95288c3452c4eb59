//! The last entry of a shard's log, where it is needed for other replicas alone, must not keep a segment: an idle shard
//! would keep all segments since its last entry for ever. Such an entry is appended again, as hard states are.
//!
//! That changes nothing of the log: an entry replaces those at its index and after, and after the last one there are none.
//! The segment is free when the new copy is durable; until then a crash finds the old one.

use super::reads::at_place;
use super::{Journal, Purpose, ReadError};
use crate::config::BatchNumber;
use crate::disk::{DiskDone, DiskError, DiskOperation};
use crate::error::JournalError;
use crate::index::{Place, ShardIndex};
use crate::record::Record;
use overtake_base::ShardId;
use overtake_base::planted::{Bug, is_planted};
use std::collections::BTreeMap;

/// Live segments that last entries may keep, where there is room: to move them more often is dear.
const KEPT_SEGMENTS: usize = 4;

/// Last entries that are being moved: the batch of the new copy, once it was appended.
#[derive(Default, Debug)]
pub(super) struct Moves(BTreeMap<ShardId, Option<BatchNumber>>);

impl Moves {
    /// Forgets moves that are durable. True where there were any.
    pub(super) fn durable(&mut self, durable: BatchNumber) -> bool {
        let before = self.0.len();
        self.0.retain(|_, batch| batch.is_none_or(|batch| batch > durable));
        self.0.len() < before
    }
}

impl Journal {
    /// Moves the last entries that alone keep the oldest segment.
    pub(super) fn move_last_entries(&mut self, out: &mut Vec<DiskOperation>) {
        let kept = if self.segments.is_full() { 1 } else { KEPT_SEGMENTS };
        let wanted = self.segments.counts().0 > kept && self.moves.0.is_empty() && !self.closing;
        if !wanted || is_planted(Bug::IdleShardsPin) {
            return;
        }
        let pinning = self.pinning();
        let can_move = |(shard, highest): &(ShardId, u64)| {
            let index = self.shards.get(shard).filter(|_| !self.staged.contains_key(shard));
            index.is_some_and(|index| index.is_last_and_for_others(*highest))
        };
        if !pinning.iter().all(can_move) {
            return;
        }
        for (shard, index) in pinning {
            let Some(place) = self.shards.get(&shard).and_then(|known| known.get(index)).copied() else {
                continue;
            };
            if let Some((file, kind)) = self.read_of(place) {
                self.moves.0.insert(shard, None);
                self.start(Purpose::Move { file, shard, index, place }, kind, out);
            }
        }
    }

    /// The entry was read: it is appended again, if it still is the last one of its shard.
    pub(super) fn moved(
        &mut self,
        file: u32,
        (shard, index, place): (ShardId, u64, Place),
        result: Result<DiskDone, DiskError>,
    ) -> Result<(), JournalError> {
        self.moves.0.remove(&shard);
        let is_last = |known: &ShardIndex| {
            known.get(index) == Some(&place) && known.range().is_some_and(|(_, last)| last == index)
        };
        if self.closing || !self.shards.get(&shard).is_some_and(is_last) {
            return Ok(());
        }
        match at_place(file, shard, index, place, result) {
            Ok((kind, data)) if data.len() <= self.config.record_bytes_max => {
                let record = Record::Entry { shard, term: place.term, index, kind, data: &data };
                let batch = self.append(record);
                self.moves.0.insert(shard, Some(batch));
                Ok(())
            }
            Ok(_) | Err(ReadError::Gone) => Ok(()),
            Err(ReadError::Damaged(error)) => Err(error),
        }
    }

    /// Takes last entries off the oldest segment that have a durable copy in a later one.
    pub(super) fn forget_moved(&mut self) {
        let Some((oldest, _)) = self.segments.oldest_and_next() else { return };
        let sequence = oldest.sequence;
        for (shard, highest) in self.pinning() {
            let index = self.shards.get(&shard).filter(|_| !self.staged.contains_key(&shard));
            let place = index.filter(|index| index.is_last_and_for_others(highest));
            let Some(place) = place.and_then(|index| index.get(highest)).copied() else { continue };
            let at = self.position(place);
            if at.sequence > sequence
                && at < self.writer.durable_end()
                && let Some(highest) =
                    self.segments.get_mut(sequence).and_then(|live| live.highest.get_mut(&shard))
            {
                *highest -= 1;
            }
        }
    }
}
