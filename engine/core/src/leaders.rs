//! Who leads which shard, as far as this core has heard, and whether it can be reached.

use crate::cluster::Address;
use crate::mesh::MeshMessage;
use crate::receive::Wake;
use crate::{Core, Output};
use overtake_base::{NodeId, ShardId};
use std::collections::BTreeMap;

/// How long a former leader has to answer what it was asked, in nanoseconds.
const DOUBT_NS: u64 = 300_000_000;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Leaders {
    known: BTreeMap<ShardId, Known>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Known {
    term: u64,
    leader: Option<NodeId>,
}

impl Leaders {
    /// A replica of this node says so: it is believed also where it says that it hears nobody. True where that is news.
    fn set(&mut self, shard: ShardId, term: u64, leader: Option<NodeId>) -> bool {
        let known = self.known.entry(shard).or_default();
        let told = Known { term, leader };
        let news = term >= known.term && *known != told;
        if news {
            *known = told;
        }
        news
    }

    /// Another node says so: only what is newer, or fills a gap, is taken.
    fn hint(&mut self, shard: ShardId, term: u64, leader: NodeId) -> bool {
        let known = self.known.entry(shard).or_default();
        let news = term > known.term || term == known.term && known.leader.is_none();
        if news {
            *known = Known { term, leader: Some(leader) };
        }
        news
    }

    /// A node that was taken for the leader of this or an earlier term says that it is none: it will not be again
    /// before a later term.
    fn refute(&mut self, shard: ShardId, node: NodeId, term: u64) -> bool {
        let known = self.known.entry(shard).or_default();
        let was = known.leader == Some(node) && term >= known.term;
        if was {
            known.leader = None;
        }
        was
    }

    /// Term and leader.
    pub(crate) fn of(&self, shard: ShardId) -> (u64, Option<NodeId>) {
        self.known.get(&shard).map_or((0, None), |known| (known.term, known.leader))
    }
}

impl Core {
    /// The core that leads a shard, if it is known and can be reached.
    pub(crate) fn leader_of(&self, shard: ShardId) -> Option<Address> {
        if self.map.is_single() {
            return self.map.host(self.me.node, shard);
        }
        let (_, leader) = self.leaders.of(shard);
        let address = self.map.host(leader?, shard)?;
        self.is_reachable(address).then_some(address)
    }

    /// The core to ask about a shard: its leader, or where no replica of this node would know it, any replica.
    pub(crate) fn whom_to_ask(&self, shard: ShardId) -> Option<Address> {
        self.leader_of(shard).or_else(|| {
            let replicas = self.map.replicas(shard);
            let hosts = replicas.iter().filter_map(|node| self.map.host(*node, shard));
            let knows = replicas.contains(&self.me.node);
            hosts.filter(|host| !knows && self.is_reachable(*host)).min_by_key(|host| {
                // Not for ever the same one, which may be as clueless as this core.
                host.node.0.wrapping_add(self.next_number) % replicas.len().max(1) as u64
            })
        })
    }

    pub(crate) fn is_reachable(&self, address: Address) -> bool {
        address.node == self.me.node || self.links.is_up(address)
    }

    /// A replica of this core, or of another core of this node, knows a leader, or knows none any more.
    pub(crate) fn leader_told(&mut self, shard: ShardId, term: u64, leader: Option<NodeId>) {
        if self.leaders.set(shard, term, leader) {
            self.leader_changed(shard);
        }
    }

    /// Another node says who leads.
    pub(crate) fn leader_hinted(&mut self, shard: ShardId, term: u64, leader: NodeId) {
        if self.leaders.hint(shard, term, leader) {
            self.leader_changed(shard);
        }
    }

    /// A node that was asked as the leader says that it is none.
    pub(crate) fn leader_refuted(&mut self, shard: ShardId, node: NodeId, term: u64) {
        if self.leaders.refute(shard, node, term) {
            self.leader_changed(shard);
        }
    }

    fn leader_changed(&mut self, shard: ShardId) {
        self.note_reach(shard);
        self.homes_moved(shard);
        if self.leader_of(shard).is_some() {
            self.doubt(shard);
        }
    }

    /// What is with a former leader of a shard is not waited for much longer, though the link to it may be there: it may
    /// have been cut off, and nobody noticed yet.
    fn doubt(&mut self, shard: ShardId) {
        let leader = self.leader_of(shard);
        let hosts = self.map.replicas(shard).iter().filter_map(|node| self.map.host(*node, shard));
        let former = hosts.filter(|host| Some(*host) != leader);
        let asked: Vec<u64> = former.flat_map(|host| self.links.asked(host)).collect();
        for number in asked {
            self.timers.add(self.now.monotonic_ns + DOUBT_NS, Wake::Doubt(number));
        }
    }

    /// Something may still be with a former leader of its shard.
    pub(crate) fn doubt_over(&mut self, number: u64) {
        let Some((shard, to)) = self.call_at(number).or_else(|| self.errand_at(number)) else { return };
        if self.leader_of(shard).is_none_or(|leader| leader == to) {
            return;
        }
        self.links.forget(to, number);
        if !self.call_lost(number) {
            self.errand_lost(number);
        }
    }

    /// Keeps the set of shards that receives are planned without.
    pub(crate) fn note_reach(&mut self, shard: ShardId) {
        if shard == ShardId::DIRECTORY || self.map.is_single() {
            return;
        }
        let leader = self.leader_of(shard);
        // A leader that has yet to hear from a majority gives nothing.
        if leader.is_none() || leader == Some(self.me) && !self.serves(shard) {
            self.hidden.insert(shard);
        } else if self.hidden.remove(&shard) {
            self.waiting.touch_all();
        }
    }

    /// The same for all shards, after a link came or went.
    pub(crate) fn note_all_reach(&mut self) {
        for shard in (0..self.config.shards).map(ShardId) {
            self.note_reach(shard);
        }
    }

    /// A replica of this core has other news of its leader than before: tells who must know.
    pub(crate) fn tell_leader(&mut self, shard: ShardId, term: u64, leader: Option<NodeId>) {
        if self.map.is_single() {
            return;
        }
        self.leader_told(shard, term, leader);
        let leads = |shard| MeshMessage::Leader { shard, term, leader };
        for to in self.siblings() {
            self.out.push(Output::Mesh { to, message: leads(shard) });
        }
        if leader == Some(self.me.node) {
            let peers: Vec<Address> = self.links.all_up().collect();
            for to in peers {
                self.out.push(Output::Mesh { to, message: leads(shard) });
            }
        }
    }

    /// The other cores of this node.
    pub(crate) fn siblings(&self) -> impl Iterator<Item = Address> + use<> {
        let me = self.me;
        let cores = (0..self.config.cores).map(overtake_base::CoreId);
        cores.filter(move |core| *core != me.core).map(move |core| Address { node: me.node, core })
    }

    /// The other cores of this node, and those of other nodes that a link leads to.
    pub(crate) fn all_others(&self) -> Vec<Address> {
        self.siblings().chain(self.links.all_up()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId(3);

    #[test]
    fn hints_are_taken_only_where_they_are_newer() {
        let mut leaders = Leaders::default();
        assert!(leaders.hint(SHARD, 2, NodeId(1)));
        assert!(!leaders.hint(SHARD, 2, NodeId(2)), "one leader a term");
        assert!(!leaders.hint(SHARD, 1, NodeId(2)));
        assert!(leaders.hint(SHARD, 3, NodeId(2)));
        assert_eq!(leaders.of(SHARD), (3, Some(NodeId(2))));
        assert!(!leaders.refute(SHARD, NodeId(1), 3) && !leaders.refute(SHARD, NodeId(2), 2));
        assert!(leaders.refute(SHARD, NodeId(2), 3));
        assert_eq!(leaders.of(SHARD), (3, None));
        assert!(leaders.hint(SHARD, 3, NodeId(2)));
    }

    #[test]
    fn the_own_replica_is_believed_also_where_it_hears_nobody() {
        let mut leaders = Leaders::default();
        assert!(leaders.set(SHARD, 2, Some(NodeId(1))));
        assert!(leaders.set(SHARD, 2, None));
        assert!(!leaders.set(SHARD, 2, None));
        assert!(!leaders.set(SHARD, 1, Some(NodeId(1))), "late");
    }
}
