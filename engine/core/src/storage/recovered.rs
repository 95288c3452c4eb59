//! What recovery found of a shard, made into a replica that goes on.

use super::Phase;
use crate::Core;
use crate::directory::DirectoryHost;
use crate::replica::Replica;
use crate::state::{self, ReplicaHead};
use overtake_base::ShardId;
use overtake_log::RecoveredShard;
use overtake_queue::directory::Directory;
use overtake_queue::machine::Machine;
use overtake_replication::types::{EntryKind, GroupConfig, HardState, LogEntry, RecoveredGroup};
use overtake_replication::{Group, GroupError};

/// What a checkpoint says of the replica, and the state machine's part of it.
fn split_state(found: &RecoveredShard) -> Result<(ReplicaHead, Option<&[u8]>), String> {
    let Some(checkpoint) = &found.checkpoint else { return Ok((ReplicaHead::Plain, None)) };
    let (head, data) = state::split(&checkpoint.data).map_err(|error| error.to_string())?;
    Ok((head, Some(data)))
}

impl Core {
    /// What recovery found of a shard, where there is a replica to go on with; one that this node is to have and that was
    /// never here, or is not any more, begins with nothing once all others are there.
    pub(super) fn found_replica(
        &mut self,
        shard: ShardId,
        found: Option<RecoveredShard>,
    ) -> Option<RecoveredShard> {
        let found = found.unwrap_or_default();
        let head = found.checkpoint.as_ref().map(|checkpoint| state::split(&checkpoint.data));
        if let (Some(Ok((ReplicaHead::Gone, _))), Some(checkpoint)) = (head, &found.checkpoint) {
            self.changes.gone_at.insert(shard, (checkpoint.index, checkpoint.term));
            self.forget_shard(shard);
            return None;
        }
        let holds = found.checkpoint.is_some() || !found.entries.is_empty();
        let founds = self.map.is_on(self.me.node, shard) && self.map.founders(shard).contains(&self.me.node);
        (holds || founds).then_some(found)
    }

    pub(crate) fn recover_replica(&self, shard: ShardId, found: RecoveredShard) -> Result<Replica, String> {
        let (head, data) = split_state(&found)?;
        let machine = match data {
            Some(data) => Machine::restore(shard, data).map_err(|e| e.to_string())?,
            None => Machine::new(shard),
        };
        let checkpoint_index = found.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.index);
        let group = self.recover_group(shard, head, found).map_err(|e| e.to_string())?;
        Ok(Replica::new(shard, group, machine, checkpoint_index, self.config.entry_bytes_max))
    }

    pub(crate) fn recover_directory(&self, found: RecoveredShard) -> Result<DirectoryHost, String> {
        let shards = self.config.shards;
        let (head, data) = split_state(&found)?;
        let directory = match data {
            Some(data) => Directory::restore(shards, data).map_err(|e| e.to_string())?,
            None => Directory::new(shards),
        };
        let checkpoint_index = found.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.index);
        let group = self.recover_group(ShardId::DIRECTORY, head, found).map_err(|e| e.to_string())?;
        Ok(DirectoryHost::new(group, directory, checkpoint_index))
    }

    fn recover_group(
        &self,
        shard: ShardId,
        head: ReplicaHead,
        found: RecoveredShard,
    ) -> Result<Group, GroupError> {
        let (term, vote, commit) = found.hard_state.unwrap_or_default();
        let checkpoint =
            found.checkpoint.as_ref().map_or((0, 0), |checkpoint| (checkpoint.index, checkpoint.term));
        let mut entries = Vec::new();
        for entry in found.entries.into_iter().filter(|entry| entry.index > checkpoint.0) {
            let kind = match entry.kind {
                0 => EntryKind::Normal,
                1 => EntryKind::Membership,
                _ => return Err(GroupError::Corrupt("an entry of an unknown kind")),
            };
            entries.push(LogEntry { term: entry.term, index: entry.index, kind, data: entry.data });
        }
        let config = GroupConfig {
            shard,
            node: self.config.node,
            voters: self.map.founders(shard).to_vec(),
            seed: self.config.seed ^ u64::from(shard.0),
        };
        let hard_state = HardState { term, vote, commit };
        let older = if self.map.is_single() { Vec::new() } else { self.terms_before(shard, checkpoint) };
        let membership = match head {
            ReplicaHead::Of(membership) => Some(membership),
            ReplicaHead::Plain => None,
            ReplicaHead::Gone => return Err(GroupError::Corrupt("there is no replica here any more")),
        };
        let recovered = RecoveredGroup { hard_state, checkpoint, membership, entries, older };
        let mut group = Group::new(config, recovered)?;
        if group.is_alone() {
            // The only voter need not wait for an election time-out.
            group.campaign();
        }
        Ok(group)
    }

    /// The runs of terms of the entries up to `checkpoint` that the journal holds without a gap.
    fn terms_before(&self, shard: ShardId, (checkpoint, checkpoint_term): (u64, u64)) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let Phase::Running(journal) = &self.storage.phase else { return runs };
        // The entries before a checkpoint that came from a peer are of another log.
        if journal.entry_term(shard, checkpoint) != Some(checkpoint_term) {
            return runs;
        }
        let Some((first, last)) = journal.entry_range(shard).filter(|(_, last)| *last >= checkpoint) else {
            return runs;
        };
        for index in first..=last.min(checkpoint) {
            let Some(term) = journal.entry_term(shard, index) else { return Vec::new() };
            if runs.last().is_none_or(|(_, run)| *run != term) {
                runs.push((index, term));
            }
        }
        runs
    }
}
