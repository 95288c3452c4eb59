//! What a group was configured with and what it found on disk, checked before consensus starts from it: the library
//! panics on most of what is refused here, and would run on silently with the rest.

use crate::NUMBER_MAX;
use crate::error::GroupError;
use crate::membership::{MEMBERS_MAX, Membership, MembershipChange};
use crate::types::{EntryKind, GroupConfig, HardState, RecoveredGroup};
use overtake_base::NodeId;

/// A start that consensus can go on from.
pub struct Start {
    /// Who is in the group.
    pub membership: Membership,
    /// Its commit covers the checkpoint.
    pub hard_state: HardState,
}

/// Checks a configuration and what was recovered.
pub fn validate(config: &GroupConfig, recovered: &RecoveredGroup) -> Result<Start, GroupError> {
    let membership = match &recovered.membership {
        Some(membership) => membership.clone(),
        None => Membership::of(config.voters.clone()),
    };
    validate_members(&membership)?;
    let stranger = recovered.membership.is_none() && !config.voters.contains(&config.node);
    let holds = recovered.checkpoint.0 > 0 || !recovered.entries.is_empty();
    if stranger && (holds || !config.voters.is_empty()) {
        return Err(GroupError::Config("this node is not among the voters"));
    }
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
    Ok(Start { membership, hard_state: HardState { term, vote, commit: commit.max(checkpoint_index) } })
}

fn validate_members(membership: &Membership) -> Result<(), GroupError> {
    let all = [&membership.voters, &membership.outgoing, &membership.learners];
    for (list, learns) in all.into_iter().zip([false, false, true]) {
        let mut sorted = list.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != list.len() {
            return Err(GroupError::Config("a member is named twice"));
        }
        if list.len() > MEMBERS_MAX {
            return Err(GroupError::Config("more than 31 members"));
        }
        if sorted.first() == Some(&NodeId(0)) {
            return Err(GroupError::Config("node ids count from 1"));
        }
        let votes = |node: &NodeId| membership.voters.contains(node) || membership.outgoing.contains(node);
        if learns && list.iter().any(votes) {
            return Err(GroupError::Config("a learner that votes"));
        }
    }
    if membership.voters.is_empty() && (membership.index > 0 || membership.is_joint()) {
        return Err(GroupError::Config("a group without voters"));
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
        if entry.kind == EntryKind::Membership && MembershipChange::decode(&entry.data).is_err() {
            return Err(GroupError::Corrupt("a change of membership that cannot be read"));
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
            membership: None,
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
        assert_eq!(
            (start.membership, start.hard_state),
            (Membership::of(vec![NodeId(1)]), HardState::default())
        );
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
        for voters in [&[2, 3][..], &[1, 1], &[0, 1], &many] {
            assert!(matches!(
                validate(&config(voters), &RecoveredGroup::default()),
                Err(GroupError::Config(_))
            ));
        }
        // Who comes to a group that exists begins with nothing.
        assert!(validate(&config(&[]), &RecoveredGroup::default()).is_ok());
        assert!(matches!(validate(&config(&[]), &sound()), Err(GroupError::Config(_))));
    }

    #[test]
    fn the_checkpoint_says_who_is_in_the_group() {
        let nodes = |ids: &[u64]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
        let of = |voters: &[u64], outgoing: &[u64], learners: &[u64]| Membership {
            index: 5,
            voters: nodes(voters),
            outgoing: nodes(outgoing),
            learners: nodes(learners),
        };
        let start = |membership: &Membership| {
            let recovered = RecoveredGroup { membership: Some(membership.clone()), ..sound() };
            validate(&config(&[1, 2, 3]), &recovered).map(|start| start.membership)
        };
        for good in [of(&[4, 2, 3], &[], &[]), of(&[4, 2, 3], &[1, 2, 3], &[]), of(&[2, 3, 4], &[], &[1])] {
            assert_eq!(start(&good), Ok(good));
        }
        for bad in [of(&[], &[], &[1]), of(&[2, 2], &[], &[]), of(&[2, 3], &[], &[3]), of(&[2], &[0], &[])] {
            assert!(start(&bad).is_err(), "{bad:?}");
        }
    }
}
