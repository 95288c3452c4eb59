//! Receives that wait: queued per (queue, level ceiling) by arrival, so that the longest waiter that may take a message
//! is found at once and nobody else wakes; and the timers that end waits.

use crate::OperationId;
use crate::mesh::Caller;
use core::ops::Bound;
use overtake_base::hash::Set;
use overtake_base::{Level, QueueId};
use std::collections::{BTreeMap, BTreeSet};

/// All waiting receives of this core.
#[derive(Default)]
pub(crate) struct Waiting {
    rooms: BTreeMap<QueueId, Room>,
    touched: BTreeSet<QueueId>,
    /// Queues with waiters on another core, their home.
    elsewhere: Set<QueueId>,
    /// Receives that other cores forwarded here, for their cancellation.
    forwarded: BTreeMap<Caller, OperationId>,
    /// Queues whose waiters are looked at again at a monotonic instant in nanoseconds, when a rate cap allows more.
    wakes: BTreeMap<QueueId, u64>,
}

/// The waiters of one queue.
#[derive(Default)]
struct Room {
    /// By ceiling, then by arrival.
    waiters: BTreeMap<Level, BTreeMap<u64, OperationId>>,
    /// Receives that only wait for others' claims to be settled.
    unsettled: BTreeMap<u64, OperationId>,
    announced: bool,
}

/// Where a receive of a session is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReceiveAt {
    /// On this core.
    Here(OperationId),
    /// On the queue's home core.
    There {
        /// That core.
        core: overtake_base::CoreId,
        /// This core's number for the forwarded request.
        call: u64,
    },
}

impl Waiting {
    /// Something about the queue's heads changed: its waiters are looked at before the turn ends.
    pub(crate) fn touch(&mut self, queue: QueueId) {
        if self.rooms.contains_key(&queue) {
            self.touched.insert(queue);
        }
    }

    /// The next queue after `last` that was touched; it is not any more.
    pub(crate) fn next_touched(&mut self, last: Option<QueueId>) -> Option<QueueId> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let queue = *self.touched.range((from, Bound::Unbounded)).next()?;
        self.touched.take(&queue)
    }

    /// True where the queue was touched; it is not any more.
    pub(crate) fn take_touched(&mut self, queue: QueueId) -> bool {
        self.touched.remove(&queue)
    }

    /// Lets a receive wait in its place of the line.
    pub(crate) fn add(&mut self, queue: QueueId, ceiling: Level, arrival: u64, operation: OperationId) {
        let room = self.rooms.entry(queue).or_default();
        room.waiters.entry(ceiling).or_default().insert(arrival, operation);
    }

    pub(crate) fn add_unsettled(&mut self, queue: QueueId, arrival: u64, operation: OperationId) {
        self.rooms.entry(queue).or_default().unsettled.insert(arrival, operation);
    }

    pub(crate) fn take_unsettled(&mut self, queue: QueueId) -> BTreeMap<u64, OperationId> {
        self.rooms.get_mut(&queue).map(|room| core::mem::take(&mut room.unsettled)).unwrap_or_default()
    }

    /// The longest waiter that may take a message of `level`; it leaves the room.
    pub(crate) fn take_longest(&mut self, queue: QueueId, level: Level) -> Option<OperationId> {
        let room = self.rooms.get_mut(&queue)?;
        let (ceiling, arrival) = room
            .waiters
            .range(level..)
            .filter_map(|(ceiling, waiters)| Some((*ceiling, *waiters.first_key_value()?.0)))
            .min_by_key(|(_, arrival)| *arrival)?;
        room.waiters.get_mut(&ceiling)?.remove(&arrival)
    }

    /// Takes one receive out, wherever it waits. True where it did wait.
    pub(crate) fn remove(&mut self, queue: QueueId, ceiling: Level, arrival: u64) -> bool {
        let Some(room) = self.rooms.get_mut(&queue) else { return false };
        let waited = room.waiters.get_mut(&ceiling).is_some_and(|waiters| waiters.remove(&arrival).is_some());
        room.unsettled.remove(&arrival).is_some() || waited
    }

    /// Takes everyone out of a queue's room.
    pub(crate) fn take_all(&mut self, queue: QueueId) -> Vec<OperationId> {
        let Some(room) = self.rooms.get_mut(&queue) else { return Vec::new() };
        let waiters = core::mem::take(&mut room.waiters);
        let unsettled = core::mem::take(&mut room.unsettled);
        waiters.into_values().flatten().chain(unsettled).map(|(_, operation)| operation).collect()
    }

    /// Queues with a room.
    pub(crate) fn queues(&self) -> Vec<QueueId> {
        self.rooms.keys().copied().collect()
    }

    /// Where it changed whether anyone waits for the queue: the news. Forgets empty rooms.
    pub(crate) fn news(&mut self, queue: QueueId) -> Option<bool> {
        let room = self.rooms.get_mut(&queue)?;
        room.waiters.retain(|_, waiters| !waiters.is_empty());
        let some = !room.waiters.is_empty();
        let changed = some != room.announced;
        room.announced = some;
        if !some && room.unsettled.is_empty() {
            self.rooms.remove(&queue);
        }
        changed.then_some(some)
    }

    /// Receives waiting here.
    pub(crate) fn count(&self) -> usize {
        self.rooms.values().flat_map(|room| room.waiters.values()).map(BTreeMap::len).sum()
    }

    pub(crate) fn set_elsewhere(&mut self, queue: QueueId, some: bool) {
        if some {
            self.elsewhere.insert(queue);
        } else {
            self.elsewhere.remove(&queue);
        }
    }

    /// True where the queue's home core has waiters, which come first.
    pub(crate) fn is_elsewhere(&self, queue: QueueId) -> bool {
        self.elsewhere.contains(&queue)
    }

    pub(crate) fn note_forwarded(&mut self, caller: Caller, operation: OperationId) {
        self.forwarded.insert(caller, operation);
    }

    pub(crate) fn forget_forwarded(&mut self, caller: Caller) -> Option<OperationId> {
        self.forwarded.remove(&caller)
    }

    /// Whether anyone waits here for the queue.
    pub(crate) fn any(&self, queue: QueueId) -> bool {
        self.rooms.get(&queue).is_some_and(|room| room.waiters.values().any(|waiters| !waiters.is_empty()))
    }

    /// Changes when a queue's waiters are looked at again; gives when they were to be.
    pub(crate) fn set_wake(&mut self, queue: QueueId, at_ns: Option<u64>) -> Option<u64> {
        match at_ns {
            Some(at_ns) => self.wakes.insert(queue, at_ns),
            None => self.wakes.remove(&queue),
        }
    }

    /// That time has come.
    pub(crate) fn wake(&mut self, queue: QueueId) {
        self.wakes.remove(&queue);
        self.touch(queue);
    }
}

/// What a timer is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Wake {
    /// The wait of a receive ends.
    Receive(OperationId),
    /// A rate cap of the queue allows a delivery.
    Queue(QueueId),
    /// A message of an enqueue looks again at its claimed dedup key: its part.
    Enqueue(OperationId, usize),
}

/// Timers on the monotonic clock, in nanoseconds.
#[derive(Default)]
pub(crate) struct WakeTimers(BTreeSet<(u64, Wake)>);

impl WakeTimers {
    pub(crate) fn add(&mut self, at_ns: u64, wake: Wake) {
        self.0.insert((at_ns, wake));
    }

    pub(crate) fn remove(&mut self, at_ns: u64, wake: Wake) {
        self.0.remove(&(at_ns, wake));
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.0.first().map(|(at_ns, _)| *at_ns)
    }

    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<Wake> {
        let (at_ns, wake) = *self.0.first()?;
        (at_ns <= now_ns).then(|| {
            self.0.pop_first();
            wake
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_waiter_that_may_take_it_is_first() {
        let mut waiting = Waiting::default();
        let queue = QueueId(1);
        waiting.add(queue, Level(0), 1, 11);
        waiting.add(queue, Level(4), 2, 12);
        waiting.add(queue, Level(2), 3, 13);
        assert_eq!(waiting.take_longest(queue, Level(2)), Some(12));
        assert_eq!(waiting.take_longest(queue, Level(2)), Some(13));
        assert_eq!(waiting.take_longest(queue, Level(2)), None);
        assert_eq!(waiting.take_longest(queue, Level(0)), Some(11));
    }

    #[test]
    fn news_comes_only_with_a_change() {
        let mut waiting = Waiting::default();
        let queue = QueueId(1);
        waiting.add(queue, Level(4), 1, 11);
        assert_eq!((waiting.news(queue), waiting.news(queue)), (Some(true), None));
        assert!(waiting.remove(queue, Level(4), 1));
        assert_eq!((waiting.news(queue), waiting.news(queue)), (Some(false), None));
        assert!(waiting.queues().is_empty());
    }
}
