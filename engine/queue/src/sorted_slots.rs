//! An ordered index of message slots that keeps no keys of its own: chunks of slot numbers in key order, with one
//! lower bound for each chunk. About five bytes a message, where an ordered map of ids would take forty.
//!
//! The key of a slot (its id, its sequence) is read from the message itself through `key_of`. Appending, taking the
//! first and removing a known slot touch no message at all.

use std::collections::VecDeque;

/// Slots of one chunk, at most.
const CHUNK_SLOTS: usize = 128;
/// A chunk this small is joined with a small neighbour, so that survivors do not hold nearly empty chunks.
const CHUNK_SPARSE: usize = 32;

struct Chunk<K> {
    /// Not above any key in this chunk, above every key in the chunk before.
    bound: K,
    slots: Vec<u32>,
}

/// Slots in the order of their keys; keys are distinct.
pub(crate) struct SortedSlots<K> {
    chunks: VecDeque<Chunk<K>>,
    len: usize,
}

impl<K> Default for SortedSlots<K> {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), len: 0 }
    }
}

impl<K: Copy + Ord> SortedSlots<K> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot with the lowest key.
    pub(crate) fn first(&self) -> Option<u32> {
        self.chunks.front()?.slots.first().copied()
    }

    /// Adds a slot whose key is not in the index yet.
    pub(crate) fn insert(&mut self, key: K, slot: u32, key_of: impl Fn(u32) -> K) {
        self.len += 1;
        let Some(place) = self.chunk_of(key) else {
            self.chunks.push_back(Chunk { bound: key, slots: vec![slot] });
            return;
        };
        let last = place + 1 == self.chunks.len();
        let chunk = &mut self.chunks[place];
        if key < chunk.bound || chunk.slots.is_empty() {
            chunk.bound = key;
        }
        let at_end = chunk.slots.last().is_none_or(|slot| key_of(*slot) < key);
        if chunk.slots.len() < CHUNK_SLOTS {
            let at =
                if at_end { chunk.slots.len() } else { chunk.slots.partition_point(|s| key_of(*s) < key) };
            chunk.slots.insert(at, slot);
        } else if at_end && last {
            // Growing at the end leaves full chunks behind.
            self.chunks.push_back(Chunk { bound: key, slots: vec![slot] });
        } else {
            let mut upper = chunk.slots.split_off(CHUNK_SLOTS / 2);
            let bound = key_of(upper[0]);
            let into = if key < bound { &mut chunk.slots } else { &mut upper };
            into.insert(into.partition_point(|s| key_of(*s) < key), slot);
            self.chunks.insert(place + 1, Chunk { bound, slots: upper });
        }
    }

    /// Removes a slot by its key; false where it is not there.
    pub(crate) fn remove(&mut self, key: K, slot: u32) -> bool {
        let Some(place) = self.chunk_of(key) else { return false };
        let chunk = &mut self.chunks[place];
        let Some(at) = chunk.slots.iter().position(|s| *s == slot) else { return false };
        chunk.slots.remove(at);
        self.len -= 1;
        if chunk.slots.len() < CHUNK_SPARSE {
            self.thin_out(place);
        }
        true
    }

    /// Drops an empty chunk (but keeps one, so that a lane with few messages does not allocate), joins small ones.
    fn thin_out(&mut self, place: usize) {
        if self.chunks.len() == 1 {
            return;
        }
        if self.chunks[place].slots.is_empty() {
            self.chunks.remove(place);
            return;
        }
        // The front chunk of a lane runs empty by itself; joining it again and again would move slots for nothing.
        let next = place + 1;
        if place == 0 || next >= self.chunks.len() || self.chunks[next].slots.len() >= CHUNK_SPARSE {
            return;
        }
        if let Some(mut upper) = self.chunks.remove(next) {
            self.chunks[place].slots.append(&mut upper.slots);
        }
    }

    /// The slot with exactly this key.
    pub(crate) fn get(&self, key: K, key_of: impl Fn(u32) -> K) -> Option<u32> {
        let chunk = &self.chunks[self.chunk_of(key)?];
        let at = chunk.slots.partition_point(|slot| key_of(*slot) < key);
        chunk.slots.get(at).copied().filter(|slot| key_of(*slot) == key)
    }

    /// How many slots have a lower key.
    pub(crate) fn rank(&self, key: K, key_of: impl Fn(u32) -> K) -> usize {
        let Some(place) = self.chunk_of(key) else { return 0 };
        let before: usize = self.chunks.iter().take(place).map(|chunk| chunk.slots.len()).sum();
        before + self.chunks[place].slots.partition_point(|slot| key_of(*slot) < key)
    }

    /// All slots, in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.chunks.iter().flat_map(|chunk| chunk.slots.iter().copied())
    }

    /// All slots, the highest key first.
    pub(crate) fn iter_back(&self) -> impl Iterator<Item = u32> + '_ {
        self.chunks.iter().rev().flat_map(|chunk| chunk.slots.iter().rev().copied())
    }

    /// Slots with keys above `after` (all where absent), in key order.
    pub(crate) fn iter_after<'a>(
        &'a self,
        after: Option<K>,
        key_of: impl Fn(u32) -> K + 'a,
    ) -> impl Iterator<Item = u32> + 'a {
        let place = after.and_then(|key| self.chunk_of(key)).unwrap_or(0);
        self.chunks
            .iter()
            .skip(place)
            .flat_map(|chunk| chunk.slots.iter().copied())
            .skip_while(move |slot| after.is_some_and(|after| key_of(*slot) <= after))
    }

    /// The chunk that `key` is in or belongs into; none where there is no chunk at all.
    fn chunk_of(&self, key: K) -> Option<usize> {
        let last = self.chunks.len().checked_sub(1)?;
        if self.chunks[last].bound <= key {
            return Some(last);
        }
        if last == 0 || self.chunks[1].bound > key {
            return Some(0);
        }
        Some(self.chunks.partition_point(|chunk| chunk.bound <= key).saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::SortedSlots;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        // Keys are slots times seven modulo a prime: any order of keys, each slot with one key of its own.
        #[test]
        fn agrees_with_an_ordered_map(ops in prop::collection::vec((0u32..2_000, any::<bool>()), 1..3_000)) {
            let key_of = |slot: u32| u64::from(slot) * 7 % 2_003;
            let mut index = SortedSlots::default();
            let mut map = BTreeMap::new();
            for (slot, add) in ops {
                let key = key_of(slot);
                if add {
                    if map.insert(key, slot).is_none() {
                        index.insert(key, slot, key_of);
                    }
                } else {
                    prop_assert_eq!(index.remove(key, slot), map.remove(&key).is_some());
                }
                prop_assert_eq!(index.first(), map.values().next().copied());
            }
            prop_assert_eq!(index.len(), map.len());
            prop_assert!(index.iter().eq(map.values().copied()));
            prop_assert!(index.iter_back().eq(map.values().rev().copied()));
            for key in (0..2_003).step_by(37) {
                prop_assert_eq!(index.get(key, key_of), map.get(&key).copied());
                prop_assert_eq!(index.rank(key, key_of), map.range(..key).count());
                prop_assert!(index.iter_after(Some(key), key_of).eq(map.range(key + 1..).map(|(_, s)| *s)));
            }
        }
    }

    #[test]
    fn a_long_lane_drained_from_the_front_keeps_its_order() {
        let mut index = SortedSlots::default();
        for slot in 0..10_000 {
            index.insert(slot, slot, |s| s);
        }
        for slot in 0..10_000 {
            assert_eq!(index.first(), Some(slot));
            assert!(index.remove(slot, slot));
        }
        assert!(index.is_empty());
    }
}
