//! The bound on order, judged from outside: no message is delivered while one two or more levels more urgent has been
//! visible for over 100 ms, unless the delivery was owed to a share.
//!
//! A client does not see when the server decided. It knows that a delivery was decided between the start and the end of
//! its receive, and that a message was visible from its confirmation until the receive that took it, which cannot have
//! decided before it started. A violation is told only where it is one whatever happened in between.

use overtake_base::limits::INVERSION_BOUND_MS;
use std::collections::VecDeque;

/// Levels between that are let be.
const LEVELS_APART: usize = 2;
const BOUND_NS: u64 = INVERSION_BOUND_MS * 1_000_000;
/// How long a receive can be under way: 20 s of waiting and what a request may take. Older ends are kept as one.
const RECEIVE_NS_MAX: u64 = 60_000_000_000;

/// Deliveries of one level that were not owed to a share: when a receive ended, and the latest start of all receives that
/// had ended by then. Both only grow.
type Ends = VecDeque<(u64, u64)>;

/// What was delivered, as far as order needs it.
#[derive(Clone, Debug, Default)]
pub struct Order {
    levels: Vec<Ends>,
}

impl Order {
    /// A receive that ran from `start_ns` to `end_ns` delivered a message of this level; not for shares, and not for
    /// receives that were bound to urgent levels. Calls come in the order of `end_ns`.
    pub fn delivered(&mut self, level: usize, start_ns: u64, end_ns: u64) {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Ends::new);
        }
        let ends = &mut self.levels[level];
        let latest = ends.back().map_or(0, |(_, latest)| *latest);
        if ends.is_empty() || start_ns > latest {
            ends.push_back((end_ns, start_ns));
        }
        while ends.len() > 1 && ends[1].0 + RECEIVE_NS_MAX < end_ns {
            ends.pop_front();
        }
    }

    /// Whether a message of this level, visible from `visible_ns` on and taken by a receive that started at `start_ns`,
    /// was overtaken against the bound; gives the level that did.
    #[must_use]
    pub fn overtaken(&self, level: usize, visible_ns: u64, start_ns: u64) -> Option<usize> {
        (level + LEVELS_APART..self.levels.len()).find(|other| {
            let ends = &self.levels[*other];
            let ended = ends.partition_point(|(end_ns, _)| *end_ns < start_ns);
            ended > 0 && ends[ended - 1].1 > visible_ns + BOUND_NS
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn only_a_certain_overtaking_is_told() {
        let mut order = Order::default();
        // P2 is decided between 200 and 210.
        order.delivered(2, 200 * MS, 210 * MS);
        // Visible from 50, taken by a receive that started at 220: overtaken for certain.
        assert_eq!(order.overtaken(0, 50 * MS, 220 * MS), Some(2));
        // Not over the bound at the earliest time of the decision.
        assert_eq!(order.overtaken(0, 100 * MS, 220 * MS), None);
        // Its own receive may have decided before that of P2.
        assert_eq!(order.overtaken(0, 50 * MS, 205 * MS), None);
        // A neighbouring level may overtake.
        assert_eq!(order.overtaken(1, 50 * MS, 220 * MS), None);
        assert_eq!(order.overtaken(2, 50 * MS, 220 * MS), None);
    }

    #[test]
    fn an_early_long_receive_does_not_hide_a_late_short_one() {
        let mut order = Order::default();
        order.delivered(4, 300 * MS, 310 * MS);
        order.delivered(4, 10 * MS, 320 * MS);
        assert_eq!(order.overtaken(0, 100 * MS, 330 * MS), Some(4));
        assert_eq!(order.overtaken(0, 100 * MS, 305 * MS), None);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_past_is_not_forgotten() {
        let mut order = Order::default();
        for second in 0..100_000 {
            order.delivered(3, second * 1_000 * MS, second * 1_000 * MS + MS);
        }
        assert!(order.levels[3].len() < 100);
        assert_eq!(order.overtaken(0, 0, 100_000_000 * MS), Some(3));
    }
}
