//! Values by numbers that are given one after the other: neighbours stand beside each other in pages, so that looking up
//! those of one batch touches memory once, and a page without values takes none.

use std::collections::BTreeMap;

/// Numbers of one page.
const PAGE: u64 = 256;

/// A map from numbers.
#[derive(Clone, Debug)]
pub struct Pages<T> {
    pages: BTreeMap<u64, Page<T>>,
}

#[derive(Clone, Debug)]
struct Page<T> {
    values: usize,
    slots: Vec<Option<T>>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self { pages: BTreeMap::new() }
    }
}

impl<T> Pages<T> {
    /// Puts a value, in the place of an earlier one.
    pub fn insert(&mut self, number: u64, value: T) {
        let empty = || Page { values: 0, slots: (0..PAGE).map(|_| None).collect() };
        let page = self.pages.entry(number / PAGE).or_insert_with(empty);
        if let Some(slot) = page.slots.get_mut((number % PAGE) as usize) {
            page.values += usize::from(slot.replace(value).is_none());
        }
    }

    /// The value of a number.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&T> {
        self.pages.get(&(number / PAGE))?.slots.get((number % PAGE) as usize)?.as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.pages.get_mut(&(number / PAGE))?.slots.get_mut((number % PAGE) as usize)?.as_mut()
    }

    /// Takes a value out.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let page = self.pages.get_mut(&(number / PAGE))?;
        let value = page.slots.get_mut((number % PAGE) as usize)?.take()?;
        page.values -= 1;
        if page.values == 0 {
            self.pages.remove(&(number / PAGE));
        }
        Some(value)
    }

    /// All values, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.pages.iter().flat_map(|(page, values)| {
            let numbered = values.slots.iter().enumerate();
            numbered.filter_map(move |(at, slot)| Some((page * PAGE + at as u64, slot.as_ref()?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_base::random::Random;

    #[test]
    fn pages_are_a_map_and_empty_ones_are_gone() {
        let mut random = Random::new(1, "pages");
        let (mut pages, mut model) = (Pages::default(), BTreeMap::new());
        let numbers = |random: &mut Random| {
            let near = random.below(2_000);
            if random.below(50) == 0 { u64::MAX - near } else { near }
        };
        for value in 0..20_000 {
            let number = numbers(&mut random);
            match random.below(3) {
                0 => assert_eq!(pages.remove(number), model.remove(&number)),
                1 => {
                    pages.insert(number, value);
                    model.insert(number, value);
                }
                _ => {
                    assert_eq!(pages.get(number), model.get(&number));
                    assert_eq!(pages.get_mut(number), model.get_mut(&number));
                }
            }
        }
        assert!(pages.iter().map(|(number, value)| (number, *value)).eq(model.clone()));
        assert!(model.iter().all(|(number, value)| pages.remove(*number) == Some(*value)));
        assert!(pages.pages.is_empty());
    }
}
