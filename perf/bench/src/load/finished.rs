//! Numbers of messages that are done with, one bit each at most: a soak over days goes through billions.

use std::collections::HashMap;

/// Numbers of one block.
const BLOCK: u64 = 4_096;
const WORDS: usize = (BLOCK / 64) as usize;

/// A set of numbers. A block that is full takes no memory but its place.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Blocks of which a part is in the set, with the count of that part.
    parts: HashMap<u64, (u64, Box<[u64; WORDS]>)>,
    /// Blocks below this are full, unless they are in `parts`.
    full_below: u64,
    /// Full blocks from there on.
    full: std::collections::HashSet<u64>,
}

impl Finished {
    /// Adds a number; false where it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        let (block, bit) = (number / BLOCK, number % BLOCK);
        let (count, words) = self.parts.entry(block).or_insert_with(|| (0, Box::new([0; WORDS])));
        words[(bit / 64) as usize] |= 1 << (bit % 64);
        *count += 1;
        if *count == BLOCK {
            self.parts.remove(&block);
            self.full.insert(block);
            while self.full.remove(&self.full_below) {
                self.full_below += 1;
            }
        }
        true
    }

    /// Whether the number is in the set.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        let (block, bit) = (number / BLOCK, number % BLOCK);
        match self.parts.get(&block) {
            Some((_, words)) => words[(bit / 64) as usize] >> (bit % 64) & 1 == 1,
            None => block < self.full_below || self.full.contains(&block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_and_full_blocks_cost_nothing() {
        let mut finished = Finished::default();
        let order = |n: u64| if n.is_multiple_of(2) { n } else { 99_999 - n + 1 };
        for number in (0..100_000).map(order) {
            assert!(!finished.contains(number));
            assert!(finished.insert(number) && finished.contains(number) && !finished.insert(number));
        }
        assert!((0..100_000).all(|number| finished.contains(number)));
        assert!(!finished.contains(100_000) && !finished.contains(u64::MAX));
        assert_eq!((finished.parts.len(), finished.full.len()), (1, 0));
    }
}
