//! What is to change next about who holds which shard. A pure function of the members and of which nodes answer: the leader
//! of the directory asks again and again, and puts each step into the directory's log. In this order:
//!
//! 1. A node that was given up and holds nothing any more is removed.
//! 2. A shard with fewer replicas than it could have gets one more.
//! 3. A replica on a node that drains, or was given up, goes to another node.
//! 4. Where an operator asked for it, replicas go from the node with the most to the one with the fewest.
//!
//! A place is the better the fewer of the shard's other replicas are in its zone, and then the fewer replicas it holds. No
//! step puts two replicas of a shard into one zone that were in two, unless there is no other place.

use overtake_base::{NodeId, ShardId};
use overtake_queue::members::{Holders, MemberState, Members, MembersCommand, REPLICAS};

/// Moves under way at the same time: each sends a whole state over the network.
const MOVES_MAX: usize = 4;
/// The same to one node.
const MOVES_TO_ONE_MAX: usize = 2;

/// The next step, if there is one that can be made now.
#[must_use]
pub fn next(members: &Members, answers: &dyn Fn(NodeId) -> bool) -> Option<MembersCommand> {
    let lost = members
        .nodes
        .iter()
        .find(|(node, member)| member.state == MemberState::Lost && members.held_by(**node) == 0);
    if let Some((node, _)) = lost {
        return Some(MembersCommand::Remove { node: *node });
    }
    let moving = members.all().filter(|(_, holders)| holders.is_moving()).count();
    if moving >= MOVES_MAX {
        return None;
    }
    let plan = Plan { members, answers };
    let (mut steps, still) = (Vec::new(), || members.all().filter(|(_, holders)| !holders.is_moving()));
    steps.extend(still().filter_map(|(shard, holders)| plan.complete(shard, holders)));
    // Those that may be gone for good go first: their shards have one replica less.
    for state in [MemberState::Lost, MemberState::Draining] {
        steps.extend(still().filter_map(|(shard, holders)| plan.evacuate(shard, holders, state)));
    }
    let step = steps.into_iter().find(|step| plan.has_room(step));
    if step.is_some() || !members.rebalancing || moving > 0 {
        return step;
    }
    Some(plan.balance().unwrap_or(MembersCommand::Rebalance { on: false }))
}

struct Plan<'a> {
    members: &'a Members,
    answers: &'a dyn Fn(NodeId) -> bool,
}

impl Plan<'_> {
    fn zone(&self, node: NodeId) -> Option<&str> {
        self.members.nodes.get(&node).map(|member| &*member.zone)
    }

    fn state(&self, node: NodeId) -> Option<MemberState> {
        self.members.nodes.get(&node).map(|member| member.state)
    }

    fn stays(&self, node: NodeId) -> bool {
        matches!(self.state(node), Some(MemberState::Active | MemberState::Joining))
    }

    fn has_room(&self, step: &MembersCommand) -> bool {
        let MembersCommand::Move { adding: Some(node), .. } = step else { return true };
        let coming = self.members.all().filter(|(_, holders)| holders.adding == Some(*node)).count();
        coming < MOVES_TO_ONE_MAX
    }

    /// How many of `others` share the zone of a node.
    fn crowding(&self, node: NodeId, others: &[NodeId]) -> usize {
        others.iter().filter(|other| **other != node && self.zone(**other) == self.zone(node)).count()
    }

    /// The best place for one more replica beside `others`.
    fn place(&self, holders: &Holders, others: &[NodeId]) -> Option<NodeId> {
        let free = |node: &NodeId| {
            self.state(*node) == Some(MemberState::Active) && !holders.is_on(*node) && (self.answers)(*node)
        };
        let candidates = self.members.nodes.keys().copied().filter(free);
        candidates.min_by_key(|node| (self.crowding(*node, others), self.members.held_by(*node), *node))
    }

    fn wanted(&self) -> usize {
        REPLICAS.min(self.members.usable().count())
    }

    fn staying(&self, holders: &Holders) -> Vec<NodeId> {
        holders.replicas.iter().copied().filter(|node| self.stays(*node)).collect()
    }

    /// One replica more, where there are too few.
    fn complete(&self, shard: ShardId, holders: &Holders) -> Option<MembersCommand> {
        if holders.replicas.len() >= self.wanted() {
            return None;
        }
        let adding = self.place(holders, &self.staying(holders))?;
        Some(MembersCommand::Move { shard, adding: Some(adding), removing: None })
    }

    /// A replica goes from a node that is to hold nothing; where enough others stay, without a new place.
    fn evacuate(&self, shard: ShardId, holders: &Holders, from: MemberState) -> Option<MembersCommand> {
        let removing = holders.replicas.iter().copied().find(|node| self.state(*node) == Some(from))?;
        let staying = self.staying(holders);
        if staying.len() >= self.wanted() {
            return Some(MembersCommand::Move { shard, adding: None, removing: Some(removing) });
        }
        let adding = self.place(holders, &staying)?;
        Some(MembersCommand::Move { shard, adding: Some(adding), removing: Some(removing) })
    }

    /// A replica goes to a node that has two fewer at least, unless its shard would come to share a zone more.
    fn balance(&self) -> Option<MembersCommand> {
        let active = |node: &NodeId| self.state(*node) == Some(MemberState::Active) && (self.answers)(*node);
        let mut nodes: Vec<(usize, NodeId)> = (self.members.nodes.keys().copied())
            .filter(active)
            .map(|node| (self.members.held_by(node), node))
            .collect();
        nodes.sort_unstable();
        for (most, from) in nodes.iter().rev() {
            for (fewest, to) in &nodes {
                if most < &(fewest + 2) {
                    break;
                }
                let fits = |holders: &Holders| {
                    let others: Vec<NodeId> =
                        holders.replicas.iter().copied().filter(|node| node != from).collect();
                    holders.replicas.contains(from)
                        && !holders.is_on(*to)
                        && self.crowding(*to, &others) <= self.crowding(*from, &others)
                };
                if let Some((shard, _)) = self.members.all().find(|(_, holders)| fits(holders)) {
                    return Some(MembersCommand::Move { shard, adding: Some(*to), removing: Some(*from) });
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterMap, MapNode};
    use overtake_queue::members::NewMember;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn members(zones: &[u8], shards: u16) -> Members {
        let node = |zone: &u8| MapNode { zone: format!("z{zone}"), cores: 2, ..MapNode::default() };
        let nodes: BTreeMap<NodeId, MapNode> = (1..).map(NodeId).zip(zones.iter().map(node)).collect();
        (**ClusterMap::new(nodes, shards).members()).clone()
    }

    fn add(members: &mut Members, node: u64, zone: u8) {
        let member =
            NewMember { zone: format!("z{zone}").into(), address: "".into(), http: "".into(), cores: 2 };
        members.run(MembersCommand::Put { node: NodeId(node), member }).unwrap();
        set(members, node, MemberState::Active);
    }

    fn set(members: &mut Members, node: u64, state: MemberState) -> bool {
        members.run(MembersCommand::SetState { node: NodeId(node), state, force: true }).is_ok()
    }

    fn zones_of(members: &Members, shard: ShardId) -> usize {
        let replicas = &members.holders(shard).unwrap().replicas;
        replicas.iter().map(|node| &members.nodes[node].zone).collect::<BTreeSet<_>>().len()
    }

    /// Takes steps until there are none, each move done at once. What it comes to is the same again.
    fn run(members: &mut Members) -> usize {
        let mut steps = 0;
        while let Some(step) = next(members, &|_| true) {
            steps += 1;
            assert!(steps < 2_000, "it does not come to an end");
            let moved = match step {
                MembersCommand::Move { shard, .. } => Some((shard, zones_of(members, shard))),
                _ => None,
            };
            members.run(step).unwrap();
            if let Some((shard, before)) = moved {
                let holders = members.holders(shard).unwrap().clone();
                let mut voters = holders.replicas;
                voters.retain(|node| Some(*node) != holders.removing);
                voters.extend(holders.adding);
                let index = holders.index + 1;
                members.run(MembersCommand::Holds { shard, index, voters }).unwrap();
                assert!(!members.holders(shard).unwrap().is_moving());
                if members.rebalancing {
                    assert!(zones_of(members, shard) >= before, "balance costs no zone");
                }
            }
        }
        steps
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn nodes_come_and_go_and_every_shard_finds_its_places(
            zones in prop::collection::vec(0..4_u8, 2..6),
            shards in 1..12_u16,
            acts in prop::collection::vec((0..4_u8, 0..4_u8, 1..9_u64), 1..8),
        ) {
            let mut members = members(&zones, shards);
            let mut newest = zones.len() as u64;
            for (act, zone, node) in acts {
                match act {
                    0 => { newest += 1; add(&mut members, newest, zone); }
                    1 => { set(&mut members, node, MemberState::Draining); }
                    2 => { set(&mut members, node, MemberState::Lost); }
                    _ => { members.run(MembersCommand::Rebalance { on: true }).unwrap(); }
                }
                let balances = act == 3;
                run(&mut members);
                let usable: Vec<NodeId> = members.usable().map(|(node, _)| node).collect();
                let wanted = REPLICAS.min(usable.len());
                for (shard, holders) in members.all() {
                    let replicas: BTreeSet<_> = holders.replicas.iter().collect();
                    prop_assert_eq!(replicas.len(), holders.replicas.len());
                    prop_assert!(holders.replicas.len() >= wanted, "{:?} has too few", shard);
                    prop_assert!(holders.replicas.iter().all(|node| usable.contains(node)), "{:?} was left behind", shard);
                }
                prop_assert!(!members.nodes.values().any(|member| member.state == MemberState::Lost));
                let in_zones: BTreeSet<_> = usable.iter().map(|node| &members.nodes[node].zone).collect();
                if balances && in_zones.len() == usable.len() {
                    // Zones are no obstacle then.
                    let held: Vec<usize> = usable.iter().map(|node| members.held_by(*node)).collect();
                    prop_assert!(held.iter().max().unwrap() - held.iter().min().unwrap() < 2, "{:?}", held);
                }
                prop_assert!(next(&members, &|_| true).is_none());
            }
        }
    }

    #[test]
    fn a_replica_goes_to_the_zone_that_lacks_one() {
        let mut members = members(&[0, 1, 2], 4);
        add(&mut members, 4, 1);
        add(&mut members, 5, 0);
        assert!(set(&mut members, 1, MemberState::Draining));
        assert!(run(&mut members) >= 5);
        assert_eq!((members.held_by(NodeId(1)), members.held_by(NodeId(5))), (0, 5));
        assert!(members.all().all(|(shard, _)| zones_of(&members, shard) == 3));
    }

    #[test]
    fn few_moves_are_under_way_at_once_and_none_to_a_node_that_does_not_answer() {
        let mut members = members(&[0, 1, 2], 9);
        add(&mut members, 4, 3);
        set(&mut members, 1, MemberState::Lost);
        assert_eq!(next(&members, &|node| node != NodeId(4)), None);
        for _ in 0..MOVES_TO_ONE_MAX {
            let step = next(&members, &|_| true).unwrap();
            members.run(step).unwrap();
        }
        assert_eq!(next(&members, &|_| true), None);
    }
}
