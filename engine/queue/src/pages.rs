//! Small pages of numbers over a growing key: sequences to slots, and how many live payloads each log entry holds.
//! Keys come in order and die mostly in order, so a page is a short array that is freed when nothing in it lives.

use overtake_base::hash::Map;
use std::collections::BTreeMap;

const PAGE_BITS: u32 = 6;
const PAGE_KEYS: usize = 1 << PAGE_BITS;

const fn place(key: u64) -> (u64, usize) {
    (key >> PAGE_BITS, key as usize & (PAGE_KEYS - 1))
}

struct Page {
    /// Keys of this page that are in use.
    used: u32,
    /// 0 where not in use.
    values: [u32; PAGE_KEYS],
}

impl Page {
    fn boxed() -> Box<Self> {
        Box::new(Self { used: 0, values: [0; PAGE_KEYS] })
    }
}

/// Sequence to slot.
#[derive(Default)]
pub(crate) struct Sequences(Map<u64, Box<Page>>);

impl Sequences {
    pub(crate) fn insert(&mut self, sequence: u64, slot: u32) {
        let (page, at) = place(sequence);
        let page = self.0.entry(page).or_insert_with(Page::boxed);
        if page.values[at] == 0 {
            page.used += 1;
        }
        page.values[at] = slot + 1;
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<u32> {
        let (page, at) = place(sequence);
        self.0.get(&page)?.values[at].checked_sub(1)
    }

    pub(crate) fn remove(&mut self, sequence: u64) {
        let (number, at) = place(sequence);
        let Some(page) = self.0.get_mut(&number) else { return };
        if page.values[at] == 0 {
            return;
        }
        page.values[at] = 0;
        page.used -= 1;
        if page.used == 0 {
            self.0.remove(&number);
        }
    }
}

/// Live payloads of each log entry.
#[derive(Default)]
pub(crate) struct LivePayloads {
    pages: BTreeMap<u64, Box<Page>>,
    /// Entries whose last payload is gone, until someone asks.
    emptied: Vec<u64>,
}

impl LivePayloads {
    pub(crate) fn add(&mut self, index: u64) {
        let (page, at) = place(index);
        let page = self.pages.entry(page).or_insert_with(Page::boxed);
        if page.values[at] == 0 {
            page.used += 1;
        }
        page.values[at] += 1;
    }

    /// Whether the entry holds a live payload.
    pub(crate) fn has(&self, index: u64) -> bool {
        let (page, at) = place(index);
        self.pages.get(&page).is_some_and(|page| page.values[at] > 0)
    }

    /// Takes the entries that hold no live payload any more since the last time.
    pub(crate) fn take_emptied(&mut self) -> Vec<u64> {
        let mut emptied = core::mem::take(&mut self.emptied);
        // One that lost its messages while it was applied may have brought more.
        emptied.retain(|index| !self.has(*index));
        emptied
    }

    pub(crate) fn remove(&mut self, index: u64) {
        let (number, at) = place(index);
        let Some(page) = self.pages.get_mut(&number) else { return };
        page.values[at] = page.values[at].saturating_sub(1);
        if page.values[at] == 0 {
            self.emptied.push(index);
            page.used -= 1;
            if page.used == 0 {
                self.pages.remove(&number);
            }
        }
    }

    /// The lowest log index with a live payload.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let (number, page) = self.pages.first_key_value()?;
        let at = page.values.iter().position(|count| *count > 0)?;
        Some(number << PAGE_BITS | at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::{LivePayloads, Sequences};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn sequences_agree_with_a_map(ops in prop::collection::vec((0u64..300, any::<bool>()), 1..500)) {
            let (mut pages, mut map) = (Sequences::default(), BTreeMap::new());
            for (slot, (key, add)) in ops.into_iter().enumerate() {
                if add {
                    pages.insert(key, slot as u32);
                    map.insert(key, slot as u32);
                } else {
                    pages.remove(key);
                    map.remove(&key);
                }
            }
            prop_assert!((0..300).all(|key| pages.get(key) == map.get(&key).copied()));
        }

        #[test]
        fn the_oldest_live_entry_is_known(ops in prop::collection::vec((0u64..300, any::<bool>()), 1..500)) {
            let (mut pages, mut map) = (LivePayloads::default(), BTreeMap::<u64, u32>::new());
            for (key, add) in ops {
                if add {
                    pages.add(key);
                    *map.entry(key).or_default() += 1;
                } else if let Some(count) = map.get_mut(&key) {
                    pages.remove(key);
                    *count -= 1;
                    if *count == 0 {
                        map.remove(&key);
                        prop_assert_eq!(pages.take_emptied(), vec![key]);
                    }
                }
                prop_assert_eq!(pages.take_emptied(), Vec::<u64>::new());
                prop_assert_eq!(pages.has(key), map.contains_key(&key));
                prop_assert_eq!(pages.oldest(), map.keys().next().copied());
            }
        }
    }
}
