//! Replicas that come and go while the group goes on: over a network that delivers everything, in order, at once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use overtake_base::{NodeId, ShardId};
use overtake_replication::{
    EntryKind, Group, GroupConfig, GroupOutput, HardState, LogEntry, Membership, MembershipChange,
    RecoveredGroup, Role, SnapshotOffer,
};
use std::collections::BTreeMap;

const SHARD: ShardId = ShardId(4);

#[derive(Default)]
struct World {
    groups: BTreeMap<u64, Group>,
    applied: BTreeMap<u64, Vec<LogEntry>>,
    offers: BTreeMap<u64, SnapshotOffer>,
}

fn nodes(ids: &[u64]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

impl World {
    fn of(voters: &[u64]) -> Self {
        let mut world = Self::default();
        voters.iter().for_each(|node| world.begin(*node, voters, RecoveredGroup::default()));
        world
    }

    fn begin(&mut self, node: u64, voters: &[u64], recovered: RecoveredGroup) {
        let config = GroupConfig { shard: SHARD, node: NodeId(node), voters: nodes(voters), seed: 7 };
        self.groups.insert(node, Group::new(config, recovered).unwrap());
        self.applied.insert(node, Vec::new());
    }

    /// Everybody takes turns until nobody has anything to say.
    fn settle(&mut self) {
        for _ in 0..200 {
            let mut sent = Vec::new();
            for (node, group) in &mut self.groups {
                let mut out = GroupOutput::default();
                if group.has_output() {
                    group.output(&mut out);
                    if let Some(number) = out.persist {
                        group.persisted(number);
                    }
                    for entry in &out.committed {
                        group.apply_membership(entry).unwrap();
                        group.applied(entry.index);
                    }
                    self.applied.get_mut(node).unwrap().append(&mut out.committed);
                    self.offers.extend(out.offer.map(|offer| (*node, offer)));
                }
                let messages = out.messages.into_iter().chain(out.messages_after_sync);
                sent.extend(messages.map(|(to, bytes)| (NodeId(*node), to, bytes)));
            }
            if sent.is_empty() {
                return;
            }
            for (from, to, bytes) in sent {
                if let Some(group) = self.groups.get_mut(&to.0) {
                    group.step(from, &bytes).unwrap();
                }
            }
        }
        panic!("they do not come to rest");
    }

    fn lead(&mut self, node: u64) {
        self.groups.get_mut(&node).unwrap().campaign();
        self.settle();
        assert!(self.groups[&node].is_leader());
    }

    fn propose(&mut self, node: u64) {
        self.groups.get_mut(&node).unwrap().propose(Bytes::from_static(b"entry")).unwrap();
        self.settle();
    }

    fn change(&mut self, node: u64, changes: &[(Role, u64)]) {
        let changes = changes.iter().map(|(role, node)| (*role, NodeId(*node))).collect();
        self.groups.get_mut(&node).unwrap().propose_membership(&MembershipChange(changes));
        self.settle();
    }

    fn tick(&mut self, node: u64, times: usize) {
        for _ in 0..times {
            self.groups.get_mut(&node).unwrap().tick();
            self.settle();
        }
    }

    /// Gives a replica what it was offered, as a restart from that state.
    fn give(&mut self, from: u64, to: u64) {
        let offer = self.offers.remove(&to).unwrap();
        let giver = &self.groups[&from];
        let index = giver.last_applied();
        assert!(index >= offer.index);
        let hard_state = self.groups[&to].hard_state();
        let recovered = RecoveredGroup {
            hard_state: HardState { commit: 0, ..hard_state },
            checkpoint: (index, self.applied[&from].last().unwrap().term),
            membership: Some(giver.membership().clone()),
            ..RecoveredGroup::default()
        };
        self.begin(to, &[], recovered);
        self.groups.get_mut(&to).unwrap().follow(offer.from, offer.term);
        self.settle();
    }

    fn voters(&self, node: u64) -> (Vec<NodeId>, Vec<NodeId>, Vec<NodeId>) {
        let Membership { voters, outgoing, learners, .. } = self.groups[&node].membership().clone();
        (voters, outgoing, learners)
    }
}

#[test]
fn a_voter_is_exchanged_for_a_newcomer_that_was_brought_up_first() {
    let mut world = World::of(&[1, 2, 3]);
    world.lead(1);
    world.propose(1);
    world.begin(4, &[], RecoveredGroup::default());
    world.change(1, &[(Role::Learner, 4)]);
    world.tick(1, 4);
    assert!(world.groups[&4].is_hollow());
    assert!(!world.groups[&1].has_caught_up(NodeId(4)), "it has nothing yet");
    assert!(world.applied[&4].is_empty(), "a replica without a state takes no log");
    world.give(1, 4);
    world.tick(1, 4);
    assert!(!world.groups[&4].is_hollow() && world.groups[&1].has_caught_up(NodeId(4)));
    world.propose(1);
    assert_eq!(world.applied[&4].last().unwrap().data[..], b"entry"[..]);

    // Transfers to one that stays, exchanges, and leaves the joint configuration.
    world.groups.get_mut(&1).unwrap().transfer(NodeId(2));
    world.settle();
    world.change(2, &[(Role::Voter, 4), (Role::None, 1)]);
    assert_eq!(world.voters(2), (nodes(&[2, 3, 4]), nodes(&[1, 2, 3]), vec![]));
    world.change(2, &[(Role::Learner, 9)]);
    assert!(world.groups[&2].membership().learners.is_empty(), "not while it is joint");
    world.change(2, &[]);
    world.tick(2, 4);
    for node in [2, 3, 4] {
        assert_eq!(world.voters(node), (nodes(&[2, 3, 4]), vec![], vec![]), "node {node}");
    }
    // Who is gone can neither lead nor disturb.
    let term = world.groups[&2].term();
    world.tick(1, 60);
    assert_eq!((world.groups[&2].term(), world.groups[&2].is_leader()), (term, true));
    // The newcomer votes: two of the three suffice.
    world.groups.remove(&3);
    world.propose(2);
    assert_eq!(world.groups[&2].commit(), world.groups[&2].last_index());
}

/// It held the log when it was dropped and wanted again before its leader knew of the one or the other.
#[test]
fn a_replica_that_begins_anew_under_its_old_id_is_brought_up_again() {
    let mut world = World::of(&[1, 2, 3]);
    world.lead(1);
    world.propose(1);
    let hard_state = world.groups[&3].hard_state();
    let recovered =
        RecoveredGroup { hard_state: HardState { commit: 0, ..hard_state }, ..RecoveredGroup::default() };
    world.begin(3, &[], recovered);
    world.propose(1);
    world.tick(1, 8);
    assert!(world.groups[&3].is_hollow() && !world.groups[&1].has_caught_up(NodeId(3)));
    world.give(1, 3);
    world.tick(1, 4);
    world.propose(1);
    assert!(!world.groups[&3].is_hollow() && world.groups[&1].has_caught_up(NodeId(3)));
    assert_eq!(world.applied[&3].last().unwrap().data[..], b"entry"[..]);
}

#[test]
fn in_a_joint_configuration_both_majorities_are_needed() {
    let mut world = World::of(&[1, 2, 3]);
    world.lead(1);
    for node in [4, 5] {
        world.begin(node, &[], RecoveredGroup::default());
        world.change(1, &[(Role::Learner, node)]);
        world.tick(1, 4);
        world.give(1, node);
        world.tick(1, 4);
    }
    world.change(1, &[(Role::Voter, 4), (Role::Voter, 5), (Role::None, 2), (Role::None, 3)]);
    assert!(world.groups[&1].membership().is_joint());
    let old: Vec<Group> = [2, 3].into_iter().filter_map(|node| world.groups.remove(&node)).collect();
    let before = world.groups[&1].commit();
    world.propose(1);
    assert_eq!(world.groups[&1].commit(), before, "the new majority alone commits nothing");
    drop(old);
}

#[test]
fn a_leader_that_leaves_the_group_leads_no_more() {
    let mut world = World::of(&[1, 2, 3]);
    world.lead(1);
    world.change(1, &[(Role::None, 1)]);
    assert!(!world.groups[&1].is_leader());
    assert_eq!(world.voters(1).0, nodes(&[2, 3]));
    world.tick(1, 60);
    assert!(!world.groups[&1].is_leader());
    // The others notice that nobody leads.
    (0..20).for_each(|_| [2, 3].into_iter().for_each(|node| world.tick(node, 1)));
    let leader = [2, 3].into_iter().find(|node| world.groups[node].is_leader()).unwrap();
    world.propose(leader);
}

#[test]
fn changes_that_the_state_knows_are_not_made_twice() {
    let membership = Membership { index: 5, voters: nodes(&[1, 2, 3]), ..Membership::default() };
    let change = MembershipChange(vec![(Role::Voter, NodeId(3)), (Role::None, NodeId(4))]);
    let data = change.encode();
    let entry = LogEntry { term: 1, index: 5, kind: EntryKind::Membership, data };
    let mut world = World::default();
    let recovered = RecoveredGroup {
        hard_state: HardState { term: 1, vote: 0, commit: 5 },
        checkpoint: (4, 1),
        membership: Some(membership.clone()),
        entries: vec![entry],
        ..RecoveredGroup::default()
    };
    world.begin(1, &[], recovered);
    world.settle();
    assert_eq!(world.groups[&1].membership(), &membership);
    assert_eq!(world.groups[&1].last_applied(), 5);
}
