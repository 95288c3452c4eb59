//! Ways on which nothing overtakes anything, and how long they take.

use overtake_base::random::Random;
use overtake_core::{Address, SessionId};
use std::collections::BTreeMap;

/// A way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    /// From a client to its core.
    ToCore(SessionId),
    /// From a core to its client.
    ToClient(SessionId),
    /// The ring from one core of a node to another.
    Ring(Address, Address),
    /// The stream from a core of one node to a core of another.
    Stream(Address, Address),
}

/// The latest arrival of each way that was used.
#[derive(Default, Debug)]
pub struct Ways(BTreeMap<Way, u64>);

impl Ways {
    /// When something arrives that would at `at_ns` if it were alone on its way.
    pub fn arrival(&mut self, way: Way, at_ns: u64) -> u64 {
        let latest_ns = self.0.entry(way).or_default();
        *latest_ns = (*latest_ns).max(at_ns);
        *latest_ns
    }

    /// Whoever comes to these ways finds nobody before it.
    pub fn clear(&mut self, which: impl Fn(&Way) -> bool) {
        self.0.retain(|way, _| !which(way));
    }
}

/// What takes longer now and then.
#[derive(Clone, Copy, Default, Debug)]
pub struct Slowness {
    /// How much longer at most, in nanoseconds.
    pub most_ns: u64,
    /// How often, in parts per million.
    pub ppm: u32,
    /// How often it did.
    pub times: u64,
}

impl Slowness {
    /// From now on it takes that much longer at most, that often. What happened is kept in mind.
    pub fn set(&mut self, most_ns: u64, ppm: u32) {
        (self.most_ns, self.ppm) = (most_ns, ppm);
    }

    /// How much longer it takes this time at most.
    pub fn draw(&mut self, random: &mut Random) -> u64 {
        if !random.chance_ppm(self.ppm) {
            return 0;
        }
        self.times += 1;
        self.most_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overtakes_on_a_way_that_is_full() {
        let mut ways = Ways::default();
        let (one, other) = (Way::ToCore(SessionId(1)), Way::ToCore(SessionId(2)));
        assert_eq!(ways.arrival(one, 50), 50);
        assert_eq!((ways.arrival(one, 20), ways.arrival(one, 70)), (50, 70));
        assert_eq!(ways.arrival(other, 20), 20);
        ways.clear(|way| *way == one);
        assert_eq!((ways.arrival(one, 20), ways.arrival(other, 10)), (20, 20));
    }
}
