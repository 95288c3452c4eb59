//! What a group was configured with and what it found on disk, checked before consensus starts from it: the library
//! panics on most of what is refused here, and would run on silently with the rest.

use crate::NUMBER_MAX;
use crate::error::GroupError;
use crate::types::{EntryKind, GroupConfig, HardState, RecoveredGroup};

/// Most voters of a group.
const VOTERS_MAX: usize = 31;

/// A start that consensus can go on from.
pub struct Start {
    /// The voters' ids.
    pub voters: Vec<u64>,
    /// Its commit covers the checkpoint.
    pub hard_state: HardState,
}

/// Checks a configuration and what was recovered.
pub fn validate(config: &GroupConfig, recovered: &RecoveredGroup) -> Result<Start, GroupError> {
    let voters = if recovered.voters.is_empty() { &config.voters } else { &recovered.voters };
    let voters: Vec<u64> = voters.iter().map(|node| node.0).collect();
    validate_voters(config.node.0, &voters)?;
    let (checkpoint_index, checkpoint_term) = recovered.checkpoint;
    if (checkpoint_index == 0) != (checkpoint_term == 0) {
        return Err(GroupError::Corrupt("a checkpoint has both an index and a term, or neither"));
    }
    validate_older(recovered)?;
    let (last_index, last_term) = validate_entries(recovered)?;
    let HardState { term, vote, commit } = recovered.hard_state;
    if term > NUMBER_MAX || last_index > NUMBER_MAX {
        return Err(GroupError::Corrupt("a term or an index is out of range"));
    }
    if term < last_term {
        return Err(GroupError::Corrupt("an entry is of a term that the node has not seen"));
    }
    if commit > last_index {
        return Err(GroupError::Corrupt("the log ends before what is known to be committed"));
    }
    Ok(Start { voters, hard_state: HardState { term, vote, commit: commit.max(checkpoint_index) } })
}

fn validate_voters(node: u64, voters: &[u64]) -> Result<(), GroupError> {
    let mut sorted = voters.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != voters.len() {
        return Err(GroupError::Config("a voter is named twice"));
    }
    if voters.len() > VOTERS_MAX {
        return Err(GroupError::Config("more than 31 voters"));
    }
    if sorted.first() == Some(&0) {
        return Err(GroupError::Config("node ids count from 1"));
    }
    if !voters.contains(&node) {
        return Err(GroupError::Config("this node is not among the voters"));
    }
    Ok(())
}

fn validate_older(recovered: &RecoveredGroup) -> Result<(), GroupError> {
    let (checkpoint, checkpoint_term) = recovered.checkpoint;
    let mut before = (0, 0);
    for (first, term) in &recovered.older {
        let fits = *first > before.0 && *first <= checkpoint && *term > before.1 && *term <= checkpoint_term;
        if !fits {
            return Err(GroupError::Corrupt("entries before the checkpoint are out of order"));
        }
        before = (*first, *term);
    }
    Ok(())
}

/// Index and term of the last entry.
fn validate_entries(recovered: &RecoveredGroup) -> Result<(u64, u64), GroupError> {
    let (mut index, mut term) = recovered.checkpoint;
    for entry in &recovered.entries {
        if Some(entry.index) != index.checked_add(1) {
            return Err(GroupError::Corrupt("entries do not follow each other from the checkpoint on"));
        }
        if entry.term < term || entry.term == 0 {
            return Err(GroupError::Corrupt("terms of entries go down"));
        }
        if entry.kind != EntryKind::Normal {
            return Err(GroupError::Corrupt("a membership change, which this version never writes"));
        }
        (index, term) = (entry.index, entry.term);
    }
    Ok((index, term))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LogEntry;
    use bytes::Bytes;
    use overtake_base::{NodeId, ShardId};

    fn config(voters: &[u64]) -> GroupConfig {
        GroupConfig {
            shard: ShardId(0),
            node: NodeId(1),
            voters: voters.iter().copied().map(NodeId).collect(),
            seed: 0,
        }
    }

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry { term, index, kind: EntryKind::Normal, data: Bytes::new() }
    }

    fn sound() -> RecoveredGroup {
        RecoveredGroup {
            hard_state: HardState { term: 5, vote: 2, commit: 7 },
            checkpoint: (6, 3),
            voters: vec![],
            entries: vec![entry(7, 3), entry(8, 5)],
            older: vec![(2, 1), (4, 3)],
        }
    }

    fn refused(change: impl FnOnce(&mut RecoveredGroup)) -> bool {
        let mut recovered = sound();
        change(&mut recovered);
        matches!(validate(&config(&[1, 2, 3]), &recovered), Err(GroupError::Corrupt(_)))
    }

    #[test]
    fn a_sound_recovery_is_taken() {
        assert!(!refused(|_| ()));
        let start = validate(&config(&[1]), &RecoveredGroup::default()).unwrap();
        assert_eq!((start.voters, start.hard_state), (vec![1], HardState::default()));
    }

    #[test]
    fn a_checkpoint_is_committed() {
        let recovered = RecoveredGroup { hard_state: HardState { term: 5, vote: 0, commit: 2 }, ..sound() };
        assert_eq!(validate(&config(&[1]), &recovered).unwrap().hard_state.commit, 6);
    }

    #[test]
    fn contradictions_are_refused() {
        assert!(refused(|r| r.hard_state.commit = 9));
        assert!(refused(|r| r.hard_state.term = 4));
        assert!(refused(|r| r.hard_state.term = u64::MAX));
        assert!(refused(|r| r.checkpoint = (6, 0)));
        assert!(refused(|r| r.checkpoint = (0, 3)));
        assert!(refused(|r| r.checkpoint = (5, 3)));
        assert!(refused(|r| r.entries[1].index = 9));
        assert!(refused(|r| r.entries[1].term = 2));
        assert!(refused(|r| r.entries[0].kind = EntryKind::Membership));
        assert!(refused(|r| {
            r.checkpoint = (u64::MAX, 3);
            r.entries[0].index = 0;
        }));
        assert!(refused(|r| {
            r.checkpoint = (u64::MAX, 3);
            r.entries.clear();
        }));
        assert!(refused(|r| r.older[1].0 = 2));
        assert!(refused(|r| r.older[1].0 = 7));
        assert!(refused(|r| r.older[1].1 = 4));
        assert!(refused(|r| r.older[0].1 = 0));
        assert!(refused(|r| r.entries.clear()), "the log ends before its commit");
    }

    #[test]
    fn impossible_voters_are_refused() {
        let many: Vec<u64> = (1..=32).collect();
        for voters in [&[][..], &[2, 3], &[1, 1], &[0, 1], &many] {
            assert!(matches!(
                validate(&config(voters), &RecoveredGroup::default()),
                Err(GroupError::Config(_))
            ));
        }
    }
}
