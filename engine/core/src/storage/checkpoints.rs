//! When the states of a core's shards are written, and what is let go of then.
//!
//! A round writes all shards, one after the other, so that each stalls the core only briefly. Rounds come as the journal
//! grows: often while the states are small, so that little journal is kept and read again at a start, and never so often
//! that states are a notable part of what is written. They also come where a round lets go of much: blocks that nothing
//! needs stay on disk until neither of a shard's two checkpoints knows them.

use super::{Phase, Storage};
use crate::{Core, state};
use bytes::Bytes;
use overtake_base::ShardId;
use overtake_base::planted::{Bug, is_planted};
use overtake_log::mark;
use std::collections::VecDeque;

/// Rounds after which nothing is kept but what lives: recovery may begin with the checkpoint before the newest.
const ROUNDS_TO_FREE: u8 = 2;
/// Of the bytes of all blocks this part may be unneeded, besides some files, before a round lets go of them.
const UNNEEDED_PART: u64 = 8;
/// Between two rounds the journal grows by so many times what the states took.
const JOURNAL_PER_STATE: u64 = 16;
/// The shortest way between two rounds is this part of the longest one.
const SHORTEST_PART: u64 = 4;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Checkpoints {
    waiting: VecDeque<ShardId>,
    writing: bool,
    /// Bytes of journal that were written when the last round began.
    bytes_written_then: u64,
    /// Bytes of entries that recovery replayed: they count as written since a round.
    replayed_bytes: u64,
    /// Bytes of states in this round, and in the one before.
    round_bytes: u64,
    last_round_bytes: u64,
    /// Bytes of all states since the start.
    bytes_written: u64,
    /// A state whose newest entry is not durable here yet (others may have committed it): it must not be found without
    /// it.
    ready: Option<ReadyCheckpoint>,
    /// Rounds to make because they free something, however little was written.
    owed: u8,
}

struct ReadyCheckpoint {
    shard: ShardId,
    index: u64,
    term: u64,
    state: Bytes,
}

impl Checkpoints {
    /// Something can be freed: as many rounds are made as that takes, unless nothing was written since the last one.
    pub(crate) fn owe(&mut self, bytes_written: u64) {
        if bytes_written > self.bytes_written_then {
            self.owed = ROUNDS_TO_FREE;
        }
    }

    /// Bytes of states that were written since the start.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// So much of the journal was replayed.
    pub(super) fn replayed(&mut self, bytes: u64) {
        self.replayed_bytes = bytes;
    }

    /// Bytes of journal from one round to the next, where `longest` are the most.
    fn every_bytes(&self, longest: u64) -> u64 {
        let states = self.round_bytes.max(self.last_round_bytes);
        (states * JOURNAL_PER_STATE).clamp(longest / SHORTEST_PART, longest)
    }

    /// Whether it is time for a round.
    fn is_due(&self, bytes_written: u64, longest: u64) -> bool {
        let since = bytes_written.saturating_sub(self.bytes_written_then) + self.replayed_bytes;
        self.owed > 0 && self.waiting.is_empty() || since >= self.every_bytes(longest)
    }

    fn begin_round(&mut self, bytes_written: u64, shards: impl Iterator<Item = ShardId>) {
        self.bytes_written_then = bytes_written;
        self.replayed_bytes = 0;
        self.owed = self.owed.saturating_sub(1);
        if self.waiting.is_empty() {
            self.last_round_bytes = core::mem::take(&mut self.round_bytes);
            self.waiting.extend(shards);
        }
    }
}

impl Storage {
    /// Checkpoints the shard so many times, soon.
    pub(crate) fn want_checkpoints(&mut self, shard: ShardId, times: usize) {
        self.checkpoints.waiting.extend(core::iter::repeat_n(shard, times));
    }

    /// A shard is not here any more: its state is not to be written.
    pub(crate) fn forget_checkpoints(&mut self, shard: ShardId) {
        self.checkpoints.waiting.retain(|waiting| *waiting != shard);
        self.checkpoints.ready.take_if(|ready| ready.shard == shard);
    }

    pub(crate) fn may_write_checkpoint(&self) -> bool {
        !self.checkpoints.writing && self.checkpoints.ready.is_none()
    }

    /// Writes a state whose entries are durable.
    pub(crate) fn write_checkpoint(&mut self, shard: ShardId, index: u64, term: u64, state: Bytes) {
        let Phase::Running(journal) = &mut self.phase else { return };
        self.checkpoints.writing = true;
        self.checkpoints.round_bytes += state.len() as u64;
        self.checkpoints.bytes_written += state.len() as u64;
        journal.write_checkpoint(shard, index, term, state, &mut self.operations);
    }

    /// Writes the checkpoint that waits, once its last entry is durable. True while there is one.
    ///
    /// It waits for that entry and no later one: on a full disk what was appended behind it may stay in memory until a
    /// checkpoint has made room.
    fn write_ready_checkpoint(&mut self) -> bool {
        let Some(ready) = self.checkpoints.ready.take() else { return false };
        let Phase::Running(journal) = &self.phase else { return false };
        match journal.is_durable(ready.shard, ready.index) {
            Some(true) => self.write_checkpoint(ready.shard, ready.index, ready.term, ready.state),
            Some(false) => self.checkpoints.ready = Some(ready),
            // The shard's log is another one by now.
            None => return false,
        }
        true
    }
}

impl Core {
    pub(super) fn begin_checkpoints(&mut self) {
        let written = self.storage.usage().bytes_written;
        if self.unneeded_block_bytes() > self.unneeded_block_bytes_max() {
            self.storage.checkpoints.owe(written);
        }
        if self.storage.checkpoints.is_due(written, self.config.checkpoint_bytes) {
            let directory = self.host.is_some().then_some(ShardId::DIRECTORY);
            self.storage.checkpoints.begin_round(written, self.replicas.keys().copied().chain(directory));
        }
        if self.storage.checkpoints.writing || self.storage.write_ready_checkpoint() {
            return;
        }
        // A state that knows a block which a power loss may still take would leave messages behind that are nowhere.
        let ready =
            |shard: &ShardId| !self.storage.drafts.has_any_of(*shard) || is_planted(Bug::BlockTrustedEarly);
        let Some(at) = self.storage.checkpoints.waiting.iter().position(ready) else { return };
        let Some(shard) = self.storage.checkpoints.waiting.remove(at) else { return };
        let mut state = Vec::new();
        state::encode(&self.replica_head(shard), &mut state);
        let index = match self.replicas.get(&shard) {
            Some(replica) => {
                replica.machine.snapshot(&mut state);
                replica.machine.applied()
            }
            None => {
                let Some(host) = &self.host else { return };
                state.extend_from_slice(&host.directory.snapshot());
                host.applied
            }
        };
        let Some(term) = self.storage.entry_term(shard, index) else { return };
        let state = Bytes::from(state);
        self.storage.checkpoints.ready = Some(ReadyCheckpoint { shard, index, term, state });
        self.storage.write_ready_checkpoint();
    }

    /// How many bytes of blocks that nothing needs may wait for the next round: the longer the backlog the more, so that
    /// while it drains states are not written again and again, whose syncs everybody's writes wait for.
    fn unneeded_block_bytes_max(&self) -> u64 {
        let blocks = self.storage.lanes().map_or(0, overtake_log::lanes::Lanes::live_bytes);
        self.config.cold.unneeded_bytes_max() / 2 + blocks / UNNEEDED_PART
    }

    /// About the bytes of blocks that nothing needs, and that checkpoints still know.
    fn unneeded_block_bytes(&self) -> u64 {
        let blocks: usize = self.replicas.values().map(|replica| replica.gone_blocks.len()).sum();
        let each = self.storage.lanes().map_or(0, overtake_log::lanes::Lanes::average_block_bytes);
        (blocks as u64).saturating_mul(each)
    }

    pub(super) fn checkpoint_written(&mut self, shard: ShardId, index: u64, written: bool) {
        if shard == mark::MARK {
            return;
        }
        self.storage.checkpoints.writing = false;
        if self.gone_written(shard, written) || self.snapshot_written(shard, index, written) {
            return;
        }
        let unheld = self.first_unheld(shard, index);
        let Phase::Running(journal) = &mut self.storage.phase else { return };
        if !written {
            return;
        }
        self.counters.checkpoints += 1;
        journal.note_committed(shard, index);
        // The entries after the checkpoint before this one stay, so that recovery can fall back to it; and those that
        // another replica may lack.
        if let Some(replica) = self.replicas.get_mut(&shard) {
            // Payloads on their way into blocks or into replies are read where they were.
            let drafts = self.storage.drafts.oldest_entry(shard).filter(|_| !is_planted(Bug::DraftReleased));
            let fetched = self.storage.fetches.oldest_entry(shard);
            let needed = replica.first_needed_index().min(unheld);
            let needed = drafts.into_iter().chain(fetched).fold(needed, u64::min);
            let first_needed = if is_planted(Bug::ReleasePayloads) { index + 1 } else { needed };
            // Recovery may begin with the checkpoint before this one, and none older.
            let before = core::mem::replace(&mut replica.checkpoint_index, index);
            journal.release_before(shard, first_needed);
            replica.group.released(first_needed);
            self.free_blocks(shard, before);
        } else if let Some(host) = self.host.as_mut().filter(|_| shard == ShardId::DIRECTORY) {
            let first_needed = (host.checkpoint_index + 1).min(unheld);
            journal.release_before(shard, first_needed);
            host.group.released(first_needed);
            host.checkpoint_index = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: u64 = 1_600;

    fn begin(checkpoints: &mut Checkpoints, written: u64) {
        checkpoints.begin_round(written, [ShardId(0), ShardId(1)].into_iter());
    }

    #[test]
    fn rounds_are_as_far_apart_as_their_states_are_large() {
        let mut checkpoints = Checkpoints::default();
        assert!(!checkpoints.is_due(399, LONGEST) && checkpoints.is_due(400, LONGEST));
        begin(&mut checkpoints, 400);
        assert!(!checkpoints.is_due(799, LONGEST) && checkpoints.is_due(800, LONGEST));
        checkpoints.round_bytes = 50;
        assert!(!checkpoints.is_due(1_199, LONGEST) && checkpoints.is_due(1_200, LONGEST));
        // Large states: the longest way.
        checkpoints.round_bytes = 5_000;
        assert!(!checkpoints.is_due(1_999, LONGEST) && checkpoints.is_due(2_000, LONGEST));
        checkpoints.waiting.clear();
        begin(&mut checkpoints, 2_000);
        assert_eq!((checkpoints.last_round_bytes, checkpoints.round_bytes), (5_000, 0));
        assert!(!checkpoints.is_due(3_599, LONGEST) && checkpoints.is_due(3_600, LONGEST));
    }

    #[test]
    fn what_a_start_replayed_counts_as_written() {
        let mut checkpoints = Checkpoints::default();
        checkpoints.replayed(300);
        assert!(!checkpoints.is_due(99, LONGEST) && checkpoints.is_due(100, LONGEST));
        begin(&mut checkpoints, 100);
        assert!(!checkpoints.is_due(499, LONGEST) && checkpoints.is_due(500, LONGEST));
    }

    /// Else a node with nothing to do would write for ever.
    #[test]
    fn two_rounds_are_owed_and_no_more_without_anything_written() {
        let mut checkpoints = Checkpoints::default();
        checkpoints.owe(0);
        assert!(!checkpoints.is_due(0, LONGEST), "nothing was written");
        let mut rounds = 0;
        for _ in 0..10 {
            checkpoints.owe(5);
            if checkpoints.is_due(5, LONGEST) {
                begin(&mut checkpoints, 5);
                checkpoints.waiting.clear();
                rounds += 1;
            }
        }
        assert_eq!(rounds, ROUNDS_TO_FREE);
    }
}
