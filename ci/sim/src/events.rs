//! What will happen, ordered by virtual time and the order of scheduling, nothing else.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// See the module's text. Only short keys are sifted through the heap; what happens stays where it was put.
#[derive(Debug)]
pub struct Events<T> {
    /// Time, number, and the event's place.
    order: BinaryHeap<Reverse<(u64, u64, usize)>>,
    places: Vec<Option<T>>,
    free: Vec<usize>,
    number: u64,
}

impl<T> Default for Events<T> {
    fn default() -> Self {
        Self { order: BinaryHeap::new(), places: Vec::new(), free: Vec::new(), number: 0 }
    }
}

impl<T> Events<T> {
    /// Something will happen at a virtual time.
    pub fn push(&mut self, at_ns: u64, event: T) {
        self.number += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(event);
        self.order.push(Reverse((at_ns, self.number, place)));
    }

    /// What happens next: its virtual time, its number, and what it is.
    pub fn pop(&mut self) -> Option<(u64, u64, T)> {
        let Reverse((at_ns, number, place)) = self.order.pop()?;
        let event = self.places[place].take()?;
        self.free.push(place);
        Some((at_ns, number, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_scheduled() {
        let mut events = Events::default();
        for (at_ns, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            events.push(at_ns, event);
        }
        assert_eq!(events.pop(), Some((3, 2, 'a')));
        events.push(4, 'x');
        let rest: Vec<char> = core::iter::from_fn(|| events.pop()).map(|(.., event)| event).collect();
        assert_eq!(rest, ['b', 'x', 'c', 'd']);
    }
}
