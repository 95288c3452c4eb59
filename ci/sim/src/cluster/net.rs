//! The network between nodes: one reliable, ordered stream for each pair of cores of different nodes, that breaks when its
//! way is cut, when an end dies, or by itself. Each end notices in its own time; until then it sends into the void. A
//! broken stream never delivers again; when both ends have noticed, a new one is made.

use overtake_base::NodeId;
use overtake_core::Address;
use std::collections::{BTreeMap, BTreeSet};

/// A pair of cores, the lower address first.
pub type Pair = (Address, Address);

/// The stream of a pair.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stream {
    /// Counts streams of the pair; what was sent on an earlier one never arrives.
    pub number: u64,
    /// Whether the lower and the higher end take it for whole.
    pub up: [bool; 2],
    /// From which virtual time on what the lower and the higher end sends is lost.
    pub lost_from_ns: [Option<u64>; 2],
    /// Its ends are being told of a break.
    pub breaking: bool,
}

/// See the module's text.
#[derive(Default, Debug)]
pub struct Net {
    streams: BTreeMap<Pair, Stream>,
    /// Ordered pairs of nodes that nothing passes between, by their places.
    cut: BTreeSet<(usize, usize)>,
    /// Streams that were made, and that broke.
    pub made: u64,
    /// See above.
    pub broken: u64,
}

/// The pair that two addresses make, and which end the first one is.
#[must_use]
pub fn pair(from: Address, to: Address) -> (Pair, usize) {
    if from < to { ((from, to), 0) } else { ((to, from), 1) }
}

impl Stream {
    /// What an end sends from a virtual time on is lost.
    pub fn lose(&mut self, end: usize, from_ns: u64) {
        let lost = &mut self.lost_from_ns[end];
        *lost = Some(lost.map_or(from_ns, |before| before.min(from_ns)));
    }

    /// Whether what an end sent at a virtual time is lost.
    #[must_use]
    pub fn loses(&self, end: usize, sent_ns: u64) -> bool {
        self.lost_from_ns[end].is_some_and(|from_ns| sent_ns >= from_ns)
    }
}

impl Net {
    /// A network of these pairs, without streams yet.
    #[must_use]
    pub fn new(pairs: impl Iterator<Item = Pair>) -> Self {
        Self { streams: pairs.map(|pair| (pair, Stream::default())).collect(), ..Self::default() }
    }

    /// Pairs that were not there before.
    pub fn add(&mut self, pairs: impl Iterator<Item = Pair>) {
        self.streams.extend(pairs.map(|pair| (pair, Stream::default())));
    }

    /// A node is gone for good.
    pub fn remove(&mut self, node: NodeId) {
        self.streams.retain(|(low, high), _| low.node != node && high.node != node);
    }

    /// All pairs.
    #[must_use]
    pub fn pairs(&self) -> Vec<Pair> {
        self.streams.keys().copied().collect()
    }

    /// The stream of a pair.
    pub fn stream(&mut self, pair: Pair) -> &mut Stream {
        self.streams.entry(pair).or_default()
    }

    /// True where every pair has a whole stream that both ends know.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.streams.values().all(|stream| stream.up == [true; 2] && !stream.breaking)
    }

    /// Whether anything passes from one node to another.
    #[must_use]
    pub fn passes(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Nothing passes any more from one node to another.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    /// Everything passes again.
    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// True while anything is cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }
}
