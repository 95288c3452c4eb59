//! One timer for each message: a hierarchical wheel whose lists run through the messages themselves, so that a timer
//! costs no memory of its own, and setting and clearing one takes the same short time whatever the backlog is.
//!
//! Level k of the wheel has 64 lists, each covering 64^k ms. A timer stands on the level of the highest 6-bit digit in
//! which its time differs from the wheel's own time; when the wheel comes to a list of a higher level, its timers move
//! down. Timers of the same millisecond always stand in the same list, and lists keep their order, so timers fire in
//! the order of (time, when they were set) whatever way the wheel went. A timer that was set before and comes back (with
//! a message that was on disk, or in a snapshot) makes its list unordered; such a list is sorted when its time comes.

use crate::message::{Messages, NONE};
use overtake_base::UnixMillis;

const DIGIT_BITS: u32 = 6;
const LISTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 11;
/// A list on a higher level is searched for its first timer up to this length. For a longer one the start of what the
/// list covers is good enough: the wheel moves its timers down then, which happens a few times in a timer's life.
const SEARCH_MAX: usize = 64;

const _: () = assert!(LEVELS as u32 * DIGIT_BITS >= u64::BITS);

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List { first: NONE, last: NONE };

pub(crate) struct Timers {
    /// Every timer before this has fired.
    base: u64,
    occupied: [u64; LEVELS],
    /// Lists that are not in the order in which their timers were set.
    unordered: [u64; LEVELS],
    lists: Box<[[List; LISTS]; LEVELS]>,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            base: 0,
            occupied: [0; LEVELS],
            unordered: [0; LEVELS],
            lists: Box::new([[EMPTY; LISTS]; LEVELS]),
        }
    }
}

impl Timers {
    /// No timers, at the time `base`.
    pub(crate) fn starting_at(base: u64) -> Self {
        Self { base, ..Self::default() }
    }

    /// The wheel's own time.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    fn place(&self, time: u64) -> (usize, usize) {
        let time = time.max(self.base);
        let differ = time ^ self.base;
        let level = if differ == 0 { 0 } else { ((63 - differ.leading_zeros()) / DIGIT_BITS) as usize };
        (level, digit(time, level))
    }

    /// Sets again a timer that was set earlier than others: its list is sorted when its time comes.
    pub(crate) fn set_back(&mut self, messages: &mut Messages, slot: u32, time: UnixMillis) {
        let (level, at) = self.place(time.0);
        self.set(messages, slot, time);
        self.unordered[level] |= 1 << at;
    }

    /// Sets the timer of a message that has none; one in the past fires next.
    pub(crate) fn set(&mut self, messages: &mut Messages, slot: u32, time: UnixMillis) {
        let (level, at) = self.place(time.0);
        let list = &mut self.lists[level][at];
        let message = &mut messages[slot];
        message.previous = list.last;
        message.next = NONE;
        match list.last {
            NONE => list.first = slot,
            last => messages[last].next = slot,
        }
        list.last = slot;
        self.occupied[level] |= 1 << at;
    }

    /// Clears the timer that was set for `time`.
    pub(crate) fn clear(&mut self, messages: &mut Messages, slot: u32, time: UnixMillis) {
        let (level, at) = self.place(time.0);
        let list = &mut self.lists[level][at];
        let (previous, next) = (messages[slot].previous, messages[slot].next);
        match previous {
            NONE => list.first = next,
            previous => messages[previous].next = next,
        }
        match next {
            NONE => list.last = previous,
            next => messages[next].previous = previous,
        }
        if list.first == NONE {
            self.occupied[level] &= !(1 << at);
            self.unordered[level] &= !(1 << at);
        }
    }

    /// Brings a list of one millisecond into the order in which its timers were set.
    fn sort(&mut self, messages: &mut Messages, at: usize) {
        let list = self.lists[0][at];
        let some = |slot: u32| (slot != NONE).then_some(slot);
        let mut slots: Vec<u32> =
            core::iter::successors(some(list.first), |slot| some(messages[*slot].next)).collect();
        slots.sort_by_key(|slot| messages[*slot].order);
        let mut previous = NONE;
        for slot in &slots {
            messages[*slot].previous = previous;
            if previous != NONE {
                messages[previous].next = *slot;
            }
            previous = *slot;
        }
        if let (Some(first), Some(last)) = (slots.first(), slots.last()) {
            messages[*last].next = NONE;
            self.lists[0][at] = List { first: *first, last: *last };
        }
        self.unordered[0] &= !(1 << at);
    }

    /// The first timer that is due at `now`; it stays set. Brings the wheel to it, or to `now` where there is none.
    pub(crate) fn first_due(&mut self, messages: &mut Messages, now: UnixMillis) -> Option<(u64, u32)> {
        while self.base <= now.0 {
            if let Some(at) = next_digit(self.occupied[0], digit(self.base, 0)) {
                let time = self.base & !(LISTS as u64 - 1) | at as u64;
                if time > now.0 {
                    break;
                }
                self.base = time;
                if self.unordered[0] & 1 << at != 0 {
                    self.sort(messages, at);
                }
                return Some((time, self.lists[0][at].first));
            }
            let Some((level, at, start)) = self.next_list() else { break };
            if start > now.0 {
                break;
            }
            self.base = start;
            self.move_down(messages, level, at);
        }
        self.advance(messages, now.0);
        None
    }

    /// No timer is due before `time`: the wheel can go there. Lists that it comes into move down.
    fn advance(&mut self, messages: &mut Messages, time: u64) {
        if time <= self.base {
            return;
        }
        self.base = time;
        for level in (1..LEVELS).rev() {
            let at = digit(time, level);
            if self.occupied[level] & 1 << at != 0 {
                self.move_down(messages, level, at);
            }
        }
    }

    fn move_down(&mut self, messages: &mut Messages, level: usize, at: usize) {
        let list = core::mem::replace(&mut self.lists[level][at], EMPTY);
        self.occupied[level] &= !(1 << at);
        let unordered = self.unordered[level] & 1 << at != 0;
        self.unordered[level] &= !(1 << at);
        let mut slot = list.first;
        while slot != NONE {
            let next = messages[slot].next;
            match messages[slot].timer_at() {
                Some(time) if unordered => self.set_back(messages, slot, time),
                Some(time) => self.set(messages, slot, time),
                None => {}
            }
            slot = next;
        }
    }

    /// The first occupied list above level 0: its place and the first time it covers.
    fn next_list(&self) -> Option<(usize, usize, u64)> {
        (1..LEVELS).find_map(|level| {
            let at = next_digit(self.occupied[level], digit(self.base, level))?;
            Some((level, at, start_of(self.base, level, at)))
        })
    }

    /// When the first timer fires, or a time not after it at which the wheel moves timers down.
    pub(crate) fn next(&self, messages: &Messages) -> UnixMillis {
        if let Some(at) = next_digit(self.occupied[0], digit(self.base, 0)) {
            return UnixMillis(self.base & !(LISTS as u64 - 1) | at as u64);
        }
        let Some((level, at, start)) = self.next_list() else { return UnixMillis::NEVER };
        let mut earliest = u64::MAX;
        let mut slot = self.lists[level][at].first;
        for _ in 0..SEARCH_MAX {
            if slot == NONE {
                return UnixMillis(earliest);
            }
            let message = &messages[slot];
            earliest = earliest.min(message.timer_at().map_or(u64::MAX, |time| time.0));
            slot = message.next;
        }
        UnixMillis(start)
    }

    /// All messages with timers.
    #[cfg(test)]
    pub(crate) fn iter<'a>(&'a self, messages: &'a Messages) -> impl Iterator<Item = u32> + 'a {
        self.lists.iter().flatten().flat_map(move |list| {
            let some = |slot: u32| (slot != NONE).then_some(slot);
            core::iter::successors(some(list.first), move |slot| some(messages[*slot].next))
        })
    }
}

const fn digit(time: u64, level: usize) -> usize {
    (time >> (level as u32 * DIGIT_BITS)) as usize & (LISTS - 1)
}

/// The first occupied place at or after `from`. On the wheel's own level nothing stands before it.
const fn next_digit(occupied: u64, from: usize) -> Option<usize> {
    let left = occupied >> from << from;
    if left == 0 { None } else { Some(left.trailing_zeros() as usize) }
}

const fn start_of(base: u64, level: usize, at: usize) -> u64 {
    let shift = level as u32 * DIGIT_BITS;
    let above = shift + DIGIT_BITS;
    let high = if above >= u64::BITS { 0 } else { base >> above << above };
    high | (at as u64) << shift
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::{PayloadRef, Place};
    use crate::life_cycle::State;
    use crate::message::Message;
    use overtake_base::{Level, MessageId, QueueId};
    use proptest::prelude::*;

    fn leased(messages: &mut Messages, due: u64, order: u64) -> u32 {
        let payload = PayloadRef { place: Place::Entry(1), offset: 0, length: 8 };
        let mut message = Message::new(MessageId(1), QueueId(1), Level(0), payload);
        message.state = State::Leased;
        message.due = UnixMillis(due);
        message.order = order;
        messages.insert(message)
    }

    #[derive(Clone, Debug)]
    enum Op {
        Set(u64),
        /// One leaves, and comes back behind whatever was set meanwhile.
        Leave(usize),
        ComeBack,
        Clear(usize),
        Advance(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let ahead = prop_oneof![0u64..3, 0u64..200, 0u64..100_000, 0u64..40_000_000_000];
        prop_oneof![
            4 => ahead.clone().prop_map(Op::Set),
            1 => any::<usize>().prop_map(Op::Leave),
            1 => Just(Op::ComeBack),
            1 => any::<usize>().prop_map(Op::Clear),
            2 => ahead.prop_map(Op::Advance),
        ]
    }

    proptest! {
        #[test]
        fn fires_in_the_order_of_time_and_setting(
            start in prop_oneof![Just(0u64), Just(1_700_000_000_000), any::<u64>().prop_map(|t| t >> 1)],
            ops in prop::collection::vec(op(), 1..200),
        ) {
            let (mut messages, mut timers) = (Messages::default(), Timers::default());
            let mut now = start;
            // In the order of setting; (time, slot).
            let mut model: Vec<(u64, u32)> = Vec::new();
            let mut away: Vec<(u64, u32)> = Vec::new();
            for (order, op) in (1..).zip(ops) {
                match op {
                    Op::Set(ahead) => {
                        let slot = leased(&mut messages, now + ahead, order);
                        timers.set(&mut messages, slot, UnixMillis(now + ahead));
                        model.push((now + ahead, slot));
                    }
                    Op::Leave(pick) if !model.is_empty() => {
                        let (time, slot) = model.remove(pick % model.len());
                        timers.clear(&mut messages, slot, UnixMillis(time));
                        away.push((time, slot));
                    }
                    Op::ComeBack => {
                        for (time, slot) in away.drain(..) {
                            timers.set_back(&mut messages, slot, UnixMillis(time));
                            model.push((time, slot));
                        }
                        model.sort_by_key(|(_, slot)| messages[*slot].order);
                    }
                    Op::Clear(pick) if !model.is_empty() => {
                        let (time, slot) = model.remove(pick % model.len());
                        timers.clear(&mut messages, slot, UnixMillis(time));
                    }
                    Op::Clear(_) | Op::Leave(_) => {}
                    Op::Advance(ms) => {
                        now += ms;
                        let mut due: Vec<_> = model.iter().copied().filter(|(time, _)| *time <= now).collect();
                        // One that comes back late fires at once.
                        due.iter_mut().for_each(|(time, _)| *time = (*time).max(timers.base()));
                        due.sort_by_key(|(time, _)| *time);
                        model.retain(|(time, _)| *time > now);
                        for expected in due {
                            prop_assert_eq!(timers.first_due(&mut messages, UnixMillis(now)), Some(expected));
                            timers.clear(&mut messages, expected.1, UnixMillis(expected.0));
                        }
                        prop_assert_eq!(timers.first_due(&mut messages, UnixMillis(now)), None);
                    }
                }
                // What came back late is due at once.
                let earliest = model.iter().map(|(time, _)| (*time).max(timers.base())).min().unwrap_or(u64::MAX);
                prop_assert!(timers.next(&messages).0 <= earliest);
                if model.len() < SEARCH_MAX {
                    prop_assert_eq!(timers.next(&messages).0.max(timers.base()), earliest);
                }
                prop_assert_eq!(timers.iter(&messages).count(), model.len());
            }
        }
    }
}
