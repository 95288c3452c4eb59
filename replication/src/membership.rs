//! Who votes in a group, and changes of that. A change is a log entry; it counts from when a replica applies it. Changes of
//! several voters at once go through a joint configuration, in which both majorities are needed for everything.
//!
//! ```text
//! change:     u8 count | each: u8 role (1 voter, 2 learner, 3 none) | u64 node      none = leave the joint configuration
//! membership: u64 index | three lists (voters, outgoing voters, learners): u8 count | each: u64 node
//! ```

use crate::error::GroupError;
use crate::group::Group;
use crate::types::{EntryKind, LogEntry};
use bytes::Bytes;
use overtake_base::{Malformed, NodeId, Reader, Writer};
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};

/// Most nodes of a list.
pub(crate) const MEMBERS_MAX: usize = 31;

/// Who is in a group, as of an entry of its log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Membership {
    /// Index of the newest change in it; 0 = none was made yet.
    pub index: u64,
    /// Those who vote.
    pub voters: Vec<NodeId>,
    /// In a joint configuration those who voted before: their majority is needed too.
    pub outgoing: Vec<NodeId>,
    /// Those who are sent the log, and have no voice.
    pub learners: Vec<NodeId>,
}

impl Membership {
    /// The beginning of a group of these voters.
    #[must_use]
    pub fn of(mut voters: Vec<NodeId>) -> Self {
        voters.sort_unstable();
        Self { voters, ..Self::default() }
    }

    /// Whether two majorities are needed.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Appends the bytes.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u64(self.index);
        for list in [&self.voters, &self.outgoing, &self.learners] {
            out.u8(u8::try_from(list.len()).unwrap_or(u8::MAX));
            list.iter().for_each(|node| out.u64(node.0));
        }
    }

    /// Reads what [`Membership::encode`] wrote.
    ///
    /// # Errors
    /// Where the bytes are no membership of a group.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let index = input.u64("membership index")?;
        let mut list = || {
            let count = usize::from(input.u8("members")?);
            if count > MEMBERS_MAX {
                return Err(Malformed("members"));
            }
            (0..count).map(|_| Ok(NodeId(input.u64("member")?))).collect::<Result<Vec<NodeId>, Malformed>>()
        };
        Ok(Self { index, voters: list()?, outgoing: list()?, learners: list()? })
    }

    pub(crate) fn to_raft(&self) -> ConfState {
        let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<u64>>();
        ConfState {
            voters: ids(&self.voters),
            voters_outgoing: ids(&self.outgoing),
            learners: ids(&self.learners),
            ..ConfState::default()
        }
    }

    fn from_raft(index: u64, state: &ConfState) -> Self {
        let nodes = |ids: &[u64]| {
            let mut nodes: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
            nodes.sort_unstable();
            nodes
        };
        Self {
            index,
            voters: nodes(&state.voters),
            outgoing: nodes(&state.voters_outgoing),
            learners: nodes(&state.learners),
        }
    }
}

/// What a node is to be in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It votes.
    Voter,
    /// It is sent the log.
    Learner,
    /// It is not in the group.
    None,
}

/// A change of membership. One of several nodes goes through a joint configuration; none leaves that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MembershipChange(pub Vec<(Role, NodeId)>);

impl MembershipChange {
    /// The end of a joint configuration.
    pub const LEAVE: Self = Self(Vec::new());

    /// Its bytes, as they stand in the log.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::new();
        let mut out = Writer(&mut bytes);
        out.u8(u8::try_from(self.0.len()).unwrap_or(u8::MAX));
        for (role, node) in &self.0 {
            out.u8(match role {
                Role::Voter => 1,
                Role::Learner => 2,
                Role::None => 3,
            });
            out.u64(node.0);
        }
        bytes.into()
    }

    /// Reads what [`MembershipChange::encode`] wrote.
    ///
    /// # Errors
    /// Where the bytes are no change.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = Reader::new(bytes);
        let count = usize::from(input.u8("changes")?);
        if count > MEMBERS_MAX {
            return Err(Malformed("changes"));
        }
        let mut changes = Vec::with_capacity(count);
        for _ in 0..count {
            let role = match input.u8("role")? {
                1 => Role::Voter,
                2 => Role::Learner,
                3 => Role::None,
                _ => return Err(Malformed("role")),
            };
            match NodeId(input.u64("node")?) {
                NodeId(0) => return Err(Malformed("node")),
                node => changes.push((role, node)),
            }
        }
        input.finish("end of a change of membership")?;
        Ok(Self(changes))
    }

    fn to_raft(&self) -> ConfChangeV2 {
        let mut change = ConfChangeV2::default();
        if self.0.len() > 1 {
            change.set_transition(ConfChangeTransition::Explicit);
        }
        let single = |(role, node): &(Role, NodeId)| {
            let mut single = ConfChangeSingle { node_id: node.0, ..ConfChangeSingle::default() };
            single.set_change_type(match role {
                Role::Voter => ConfChangeType::AddNode,
                Role::Learner => ConfChangeType::AddLearnerNode,
                Role::None => ConfChangeType::RemoveNode,
            });
            single
        };
        change.set_changes(self.0.iter().map(single).collect::<Vec<_>>().into());
        change
    }
}

impl Group {
    /// Who is in the group, as far as this replica has applied its log.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Appends a change of membership. Nothing is done where one is under way that is not applied yet, or this replica does
    /// not lead.
    pub fn propose_membership(&mut self, change: &MembershipChange) {
        let raft = &self.raft.raft;
        let leave = change.0.is_empty();
        if !self.is_caught_up_as_leader() || raft.has_pending_conf() || self.membership.is_joint() != leave {
            return;
        }
        // The library reads its own bytes of a proposal, once, here; what is written and sent are ours. Where it is refused
        // it is proposed again.
        let _ = self.raft.propose_conf_change(change.encode().to_vec(), change.to_raft());
    }

    /// Applies a committed change. Those that the replica's state knows already change nothing.
    ///
    /// # Errors
    /// Where the entry is no change that can be made: then this replica is not what the leader takes it for.
    pub fn apply_membership(&mut self, entry: &LogEntry) -> Result<(), GroupError> {
        if entry.kind != EntryKind::Membership || entry.index <= self.membership.index {
            return Ok(());
        }
        let change = MembershipChange::decode(&entry.data)?;
        let leaves = change.0.is_empty() && !self.membership.voters.contains(&self.node)
            || change.0.iter().any(|(role, node)| *node == self.node && *role != Role::Voter);
        if leaves && self.is_leader() {
            // The library counts a leader's own log among the voters', and panics where it is not one of them.
            let term = self.term();
            self.raft.raft.become_follower(term, raft::INVALID_ID);
        }
        let made = self.raft.raft.apply_conf_change(&change.to_raft());
        let state = made.map_err(|_| GroupError::Corrupt("a change of membership that cannot be made"))?;
        self.membership = Membership::from_raft(entry.index, &state);
        self.keep_timeout();
        Ok(())
    }

    /// A leader: whether a node of the group holds all but the newest few entries.
    #[must_use]
    pub fn has_caught_up(&self, peer: NodeId) -> bool {
        let snapshot = raft::ProgressState::Snapshot;
        let progress = self.raft.raft.prs().get(peer.0);
        self.could_lead(peer) && progress.is_some_and(|p| p.state != snapshot && p.matched > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change() -> MembershipChange {
        MembershipChange(vec![
            (Role::Voter, NodeId(4)),
            (Role::Learner, NodeId(0x0102)),
            (Role::None, NodeId(1)),
        ])
    }

    #[test]
    fn golden_bytes() {
        let own = change().encode();
        let golden: Vec<u8> = [
            &[3_u8][..],
            &[1, 4, 0, 0, 0, 0, 0, 0, 0],
            &[2, 2, 1, 0, 0, 0, 0, 0, 0],
            &[3, 1, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(own, golden);
        assert_eq!(MembershipChange::LEAVE.encode()[..], [0]);
        let nodes = |ids: &[u64]| ids.iter().copied().map(NodeId).collect();
        let membership =
            Membership { index: 7, voters: nodes(&[2, 3]), outgoing: nodes(&[1]), learners: nodes(&[4]) };
        let mut bytes = Vec::new();
        membership.encode(&mut Writer(&mut bytes));
        let golden: Vec<u8> = [
            &[7_u8, 0, 0, 0, 0, 0, 0, 0][..],
            &[2, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
            &[1, 1, 0, 0, 0, 0, 0, 0, 0],
            &[1, 4, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(bytes, golden);
        assert_eq!(Membership::decode(&mut Reader::new(&bytes)), Ok(membership));
        for cut in 0..bytes.len() {
            assert!(Membership::decode(&mut Reader::new(&bytes[..cut])).is_err(), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_change_or_not(bytes: Vec<u8>) {
            if let Ok(change) = MembershipChange::decode(&bytes) {
                prop_assert_eq!(&change.encode()[..], &bytes[..], "one spelling");
            }
            let _ = Membership::decode(&mut Reader::new(&bytes));
        }
    }
}
