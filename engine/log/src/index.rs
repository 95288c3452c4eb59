//! Where the entries of one shard stand in the journal: 24 bytes an entry, in order of index, without gaps.

use std::collections::VecDeque;

/// A place in the journal. Sequences and offsets compare as one position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Position {
    /// Segment.
    pub(crate) sequence: u64,
    /// Byte in it.
    pub(crate) offset: u64,
}

/// Where one entry's record stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// The entry's term.
    pub(crate) term: u64,
    /// The low half of the segment's sequence. Live segments are far fewer than 2^32, so it names one of them.
    pub(crate) sequence_low: u32,
    /// Byte of the record's header in the segment.
    pub(crate) offset: u32,
    /// Bytes of data.
    pub(crate) data_bytes: u32,
}

const _: () = assert!(size_of::<Place>() == 24);

/// The newest hard state of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HardState {
    pub(crate) term: u64,
    pub(crate) vote: u64,
    pub(crate) commit: u64,
}

/// What the journal knows of one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardIndex {
    /// Index of the first of `places`.
    first: u64,
    places: VecDeque<Place>,
    /// Entries below this one are not needed any more.
    pub(crate) released: u64,
    /// Entries below this one are not needed for this replica's own sake.
    pub(crate) released_here: u64,
    /// Newest hard state appended.
    pub(crate) hard_state: Option<HardState>,
    /// Batch of the newest hard state appended.
    pub(crate) hard_state_batch: u64,
    /// Segment of the newest hard state that is durable.
    pub(crate) hard_state_sequence: Option<u64>,
    /// Serial of the newest checkpoint written.
    pub(crate) checkpoint_serial: u64,
}

impl ShardIndex {
    /// Puts an entry at `index`: it replaces those at its index and after; past the end it starts the log anew.
    pub(crate) fn put(&mut self, index: u64, place: Place) {
        match index.checked_sub(self.first) {
            Some(kept) if kept <= self.places.len() as u64 => self.places.truncate(kept as usize),
            _ => self.places.clear(),
        }
        if self.places.is_empty() {
            self.first = index;
        }
        self.places.push_back(place);
    }

    /// The shard's log is another one from now on; what else is known of the shard stays.
    pub(crate) fn replace(&mut self, other: Self) {
        (self.first, self.places) = (other.first, other.places);
    }

    /// The first of the newest entries whose data, with a record's head each, is at most so many bytes.
    pub(crate) fn first_of_newest(&self, bytes: u64) -> u64 {
        let mut left = bytes;
        let mut first = self.first + self.places.len() as u64;
        for place in self.places.iter().rev() {
            let Some(rest) =
                left.checked_sub(u64::from(place.data_bytes) + crate::record::HEADER_BYTES as u64)
            else {
                break;
            };
            left = rest;
            first -= 1;
        }
        first
    }

    /// Forgets the entries at `index` and after.
    pub(crate) fn truncate(&mut self, index: u64) {
        self.places.truncate(index.saturating_sub(self.first) as usize);
    }

    /// Forgets the entries before `index`.
    pub(crate) fn release_before(&mut self, index: u64) {
        self.released = self.released.max(index);
        let gone = index.saturating_sub(self.first).min(self.places.len() as u64);
        self.places.drain(..gone as usize);
        self.first += gone;
        if self.places.len() * 4 < self.places.capacity() {
            self.places.shrink_to(self.places.len() * 2);
        }
    }

    /// Where the entry stands, if it is here.
    pub(crate) fn get(&self, index: u64) -> Option<&Place> {
        self.places.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    /// First and last index here.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let last = (self.places.len() as u64).checked_sub(1)?;
        Some((self.first, self.first + last))
    }

    /// The entry at `index` is the last one, and of all others none is needed, and this one only for other replicas.
    pub(crate) fn is_last_and_for_others(&self, index: u64) -> bool {
        self.released == index
            && self.released_here > index
            && self.range().is_some_and(|(_, last)| last == index)
    }

    /// Entries here.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn place(mark: u32) -> Place {
        Place { term: 0, sequence_low: 0, offset: mark, data_bytes: 0 }
    }

    proptest! {
        /// Against a map: putting and releasing in any order.
        #[test]
        fn the_index_is_a_map_without_gaps(steps in proptest::collection::vec((0u64..40, any::<bool>()), 1..100)) {
            let mut index = ShardIndex::default();
            let mut model = BTreeMap::new();
            for (mark, (at, put)) in steps.into_iter().enumerate() {
                if put {
                    let fits = model.keys().next().is_some_and(|first| *first <= at)
                        && model.keys().last().is_some_and(|last| at <= last + 1);
                    if fits { model.split_off(&at); } else { model.clear(); }
                    model.insert(at, mark as u32);
                    index.put(at, place(mark as u32));
                } else {
                    model = model.split_off(&at);
                    index.release_before(at);
                }
                for at in 0..45 {
                    prop_assert_eq!(index.get(at).map(|p| p.offset), model.get(&at).copied());
                }
                let range = model.keys().next().zip(model.keys().last()).map(|(a, b)| (*a, *b));
                prop_assert_eq!(index.range(), range);
            }
        }
    }
}
