//! The links to other nodes' cores, and what is under way on them. A link is an ordered stream that may break at any time;
//! what was under way is then lost, and nothing of it arrives on the next link of the same pair.

use crate::cluster::Address;
use std::collections::{BTreeMap, BTreeSet};

/// See the module's text.
#[derive(Default)]
pub(crate) struct Links {
    peers: BTreeMap<Address, Peer>,
}

#[derive(Default)]
struct Peer {
    up: bool,
    /// Counts the links of this pair; a reply that was meant for an earlier one would be taken for another call's.
    number: u32,
    /// Numbers of what was asked on this link and not answered.
    asked: BTreeSet<u64>,
}

impl Links {
    /// A new link is there.
    pub(crate) fn up(&mut self, peer: Address) {
        let peer = self.peers.entry(peer).or_default();
        peer.up = true;
        peer.number = peer.number.wrapping_add(1);
    }

    /// The link is gone: what was asked on it.
    pub(crate) fn down(&mut self, peer: Address) -> BTreeSet<u64> {
        let peer = self.peers.entry(peer).or_default();
        peer.up = false;
        core::mem::take(&mut peer.asked)
    }

    /// True where a message can be handed to the link.
    pub(crate) fn is_up(&self, peer: Address) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.up)
    }

    /// All peers with a link.
    pub(crate) fn all_up(&self) -> impl Iterator<Item = Address> + '_ {
        self.peers.iter().filter(|(_, peer)| peer.up).map(|(address, _)| *address)
    }

    /// The number of the present link.
    pub(crate) fn number(&self, peer: Address) -> u32 {
        self.peers.get(&peer).map_or(0, |peer| peer.number)
    }

    /// Something is asked on the link.
    pub(crate) fn note(&mut self, peer: Address, number: u64) {
        self.peers.entry(peer).or_default().asked.insert(number);
    }

    /// What was asked on the link and not answered.
    pub(crate) fn asked(&self, peer: Address) -> impl Iterator<Item = u64> + '_ {
        self.peers.get(&peer).into_iter().flat_map(|peer| peer.asked.iter().copied())
    }

    /// It was answered, or is not wanted any more.
    pub(crate) fn forget(&mut self, peer: Address, number: u64) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.asked.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_base::{CoreId, NodeId};

    #[test]
    fn what_was_asked_is_given_back_with_the_link_that_took_it() {
        let peer = Address { node: NodeId(2), core: CoreId(1) };
        let mut links = Links::default();
        assert!(!links.is_up(peer));
        links.up(peer);
        let first = links.number(peer);
        links.note(peer, 5);
        links.note(peer, 6);
        links.forget(peer, 5);
        assert_eq!(links.down(peer), [6].into());
        assert!(!links.is_up(peer) && links.down(peer).is_empty());
        links.up(peer);
        assert_ne!(links.number(peer), first);
    }
}
