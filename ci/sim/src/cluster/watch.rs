//! What must hold of the nodes together at every moment, whatever clients see: one leader a term, and one state of a shard
//! at one place of its log, on every replica and in every life.

use overtake_base::hash::stable;
use overtake_core::Core;
use std::collections::BTreeMap;

/// Places of one log whose states are remembered.
const PLACES_MAX: usize = 512;
/// One in so many places of a log is looked at: a digest of a large state is dear.
const ONE_IN: u64 = 3;

/// See the module's text.
#[derive(Default, Debug)]
pub struct Watch {
    /// Node that leads, by shard and term.
    leaders: BTreeMap<(u16, u64), usize>,
    /// By shard: digest by log index.
    states: BTreeMap<u16, BTreeMap<u64, u64>>,
    /// What was looked at last, by node and core, and by shard.
    seen: BTreeMap<(usize, usize), BTreeMap<u16, u64>>,
    /// States that were the same on another replica or in another life.
    pub compared: u64,
    /// When terms got their leaders: virtual times.
    pub elected_ns: Vec<u64>,
}

impl Watch {
    /// Looks at a core after its turn. What is wrong, if anything.
    pub fn look(&mut self, node: usize, core: usize, now_ns: u64, value: &Core) -> Option<String> {
        for (shard, term) in value.leads() {
            let known = self.leaders.entry((shard.0, term)).or_insert_with(|| {
                self.elected_ns.push(now_ns);
                node
            });
            if *known != node {
                return Some(format!(
                    "shard {shard} has two leaders in term {term}: nodes {known} and {node}"
                ));
            }
        }
        let seen = self.seen.entry((node, core)).or_default();
        let states = value.digests_where(|shard, index| {
            let before = seen.entry(shard).or_default();
            let news = *before != index && stable(&index.to_le_bytes()).is_multiple_of(ONE_IN);
            *before = index;
            news
        });
        for (shard, index, digest) in states {
            let known = self.states.entry(shard).or_default();
            match known.get(&index) {
                Some(other) if *other != digest => {
                    return Some(format!(
                        "shard {shard} has two states at log index {index}, one on node {node}"
                    ));
                }
                Some(_) => self.compared += 1,
                None => {
                    known.insert(index, digest);
                    if known.len() > PLACES_MAX {
                        known.pop_first();
                    }
                }
            }
        }
        None
    }

    /// A node begins a new life: what it shows is looked at anew.
    pub fn forget(&mut self, node: usize) {
        self.seen.retain(|(of, _), _| *of != node);
    }
}
