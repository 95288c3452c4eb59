//! What time it is, for nodes together: which wall clock the shard clock follows.
//!
//! A node by itself follows its own wall clock. Nodes of a cluster ask each other for theirs, and each follows the one in
//! the middle, its own among them: the jump of one moves nothing. A node that starts takes the shard time of those that
//! run (its own wall clock may have jumped while it was down), and stands for no election before it knows it. Where all
//! start at once the wall clock in the middle is the beginning.
//!
//! An answer that took long is not used: a reading is wrong by half of what its way took, at most.

use crate::cluster::Address;
use crate::mesh::MeshMessage;
use crate::{Core, Output};
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{NodeId, Now, UnixMillis};
use std::collections::BTreeMap;

const NANOS_PER_MS: u64 = 1_000_000;
/// An answer that took longer is used only where there is no better one, in nanoseconds.
const GOOD_WAY_NS: u64 = 10_000_000;
/// An answer that took longer is not used, in nanoseconds.
const WAY_NS_MAX: u64 = 200_000_000;
/// A good reading is not replaced by a worse one for so long, in nanoseconds.
const FRESH_NS: u64 = 15_000_000_000;
/// Time between two questions, in nanoseconds; and while the time is not known.
const ASK_NS: u64 = 5_000_000_000;
const ASK_UNSETTLED_NS: u64 = 100_000_000;
/// A reading is used for so long, in nanoseconds.
const READING_NS: u64 = 30_000_000_000;
/// A node that starts waits so long for nodes that say nothing, in nanoseconds.
const PATIENCE_NS: u64 = 1_000_000_000;
/// The same where those that were heard disagree and none of them knows the time: one whose logs tell may be about to. A
/// cluster in which nothing was ever stored waits for all of its nodes then.
const DISPUTE_PATIENCE_NS: u64 = 5_000_000_000;
/// A node whose wall clock is further off than this from the one in the middle leads nothing, in milliseconds.
const OFF_MS_MAX: u64 = 1_000;

/// What another node's clocks showed.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// On this core's monotonic clock.
    at_ns: u64,
    /// It did not take long.
    good: bool,
    wall_ms: u64,
    /// Its shard clock; none while it does not know the time itself.
    time_ms: Option<u64>,
}

impl Reading {
    fn now(&self, shown_ms: u64, now_ns: u64) -> u64 {
        shown_ms + now_ns.saturating_sub(self.at_ns) / NANOS_PER_MS
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct NodeClocks {
    settled: bool,
    readings: BTreeMap<NodeId, Reading>,
    next_ask_ns: u64,
    first_heard_ns: Option<u64>,
    /// That they disagree was told.
    warned: bool,
    /// What the wall clock in the middle is ahead of this core's monotonic clock.
    middle_ms: Option<i64>,
    /// The same of this node's own.
    own_ms: i64,
}

impl NodeClocks {
    pub(crate) fn new(is_single: bool) -> Self {
        Self {
            settled: is_single,
            readings: BTreeMap::new(),
            next_ask_ns: 0,
            first_heard_ns: None,
            warned: false,
            middle_ms: None,
            own_ms: 0,
        }
    }

    /// What the shard clock is to follow.
    pub(crate) fn followed(&self, now: Now) -> Now {
        match self.middle_ms {
            Some(ahead_ms) if !is_planted(Bug::OwnWallClock) => {
                let wall = UnixMillis((now.monotonic_ns / NANOS_PER_MS).saturating_add_signed(ahead_ms));
                Now { wall, ..now }
            }
            _ => now,
        }
    }

    /// Whether this node knows what time it is.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Looks which wall clock is the one in the middle. Of two that are, it is the one that is nearer to `time`.
    fn find_middle(&mut self, now: Now, time: UnixMillis) {
        let now_ns = now.monotonic_ns;
        self.readings.retain(|_, reading| now_ns.saturating_sub(reading.at_ns) < READING_NS);
        let mut walls: Vec<u64> =
            self.readings.values().map(|reading| reading.now(reading.wall_ms, now_ns)).collect();
        walls.push(now.wall.0);
        walls.sort_unstable();
        let (low, high) = (walls[(walls.len() - 1) / 2], walls[walls.len() / 2]);
        let wall = if time.0.abs_diff(low) <= time.0.abs_diff(high) { low } else { high };
        let monotonic_ms = (now_ns / NANOS_PER_MS).cast_signed();
        self.middle_ms = (walls.len() > 1).then(|| wall.cast_signed() - monotonic_ms);
        self.own_ms = now.wall.0.cast_signed() - monotonic_ms;
    }

    /// How long ago another node was heard first; 0 where none was.
    fn waited_ns(&self, now_ns: u64) -> u64 {
        self.first_heard_ns.map_or(0, |first_ns| now_ns - first_ns)
    }

    /// Where a node that starts begins, if it knows: not before `floor`, where its logs have been already.
    fn beginning(&self, nodes: usize, floor: UnixMillis, now: Now) -> Option<UnixMillis> {
        let now_ns = now.monotonic_ns;
        let heard = self.readings.values().filter(|reading| reading.good).count() + 1;
        let waited_ns = self.waited_ns(now_ns);
        let late = waited_ns >= PATIENCE_NS;
        let middle = |mut times: Vec<u64>| {
            times.sort_unstable();
            let likely: Vec<u64> = times.iter().copied().filter(|time| *time >= floor.0).collect();
            let times = if likely.is_empty() { times } else { likely };
            times.get((times.len().checked_sub(1)?) / 2).copied().map(UnixMillis)
        };
        let running =
            self.readings.values().filter_map(|r| Some(r.now(r.time_ms?, now_ns))).collect::<Vec<_>>();
        if !running.is_empty() && (heard > nodes / 2 || late) {
            return middle(running);
        }
        if self.readings.is_empty() || heard < nodes && !late {
            return None;
        }
        let walls = self.readings.values().map(|reading| reading.now(reading.wall_ms, now_ns));
        let walls: Vec<u64> = walls.chain([now.wall.0]).collect();
        let first_ms = walls.iter().min().copied().unwrap_or_default();
        let disputed = heard < nodes && walls.iter().any(|wall| wall.abs_diff(first_ms) > OFF_MS_MAX);
        // Where nothing was ever stored nothing tells who is right, and nobody waits for anything.
        if disputed && (waited_ns < DISPUTE_PATIENCE_NS || floor.0 == 0) {
            return None;
        }
        middle(walls)
    }

    /// Whether a node's wall clock, as far as it is known, is too far off for it to lead.
    fn is_off(&self, node: NodeId, me: NodeId, now_ns: u64) -> bool {
        let Some(middle_ms) = self.middle_ms else { return false };
        let monotonic_ms = (now_ns / NANOS_PER_MS).cast_signed();
        let ahead_ms = if node == me {
            self.own_ms
        } else {
            let Some(reading) = self.readings.get(&node) else { return false };
            reading.now(reading.wall_ms, now_ns).cast_signed() - monotonic_ms
        };
        // Of two clocks nobody knows which one is wrong.
        self.readings.len() > 1 && ahead_ms.abs_diff(middle_ms) > OFF_MS_MAX
    }
}

impl Core {
    /// What the clock shows that this core stamps shard time from; none before it knows the time.
    #[must_use]
    pub fn shown_time(&self) -> Option<UnixMillis> {
        self.clocks.settled.then_some(self.time)
    }

    /// Another core asks what this node's clocks show.
    pub(crate) fn clock_asked(&mut self, from: Address, asked_ns: u64) {
        let time = self.clocks.settled.then_some(self.time);
        let message = MeshMessage::Clock { asked_ns, wall: self.now.wall, time };
        self.out.push(Output::Mesh { to: from, message });
    }

    /// What another node's clocks showed.
    pub(crate) fn clock_told(
        &mut self,
        from: Address,
        asked_ns: u64,
        wall: UnixMillis,
        time: Option<UnixMillis>,
    ) {
        let now_ns = self.now.monotonic_ns;
        let Some(way_ns) = now_ns.checked_sub(asked_ns).filter(|way_ns| *way_ns <= WAY_NS_MAX) else {
            return;
        };
        let (at_ns, good) = (asked_ns + way_ns / 2, way_ns <= GOOD_WAY_NS);
        self.clocks.first_heard_ns.get_or_insert(now_ns);
        let known = self.clocks.readings.get(&from.node);
        if !good && known.is_some_and(|known| known.good && now_ns < known.at_ns + FRESH_NS) {
            return;
        }
        let reading = Reading { at_ns, good, wall_ms: wall.0, time_ms: time.map(|time| time.0) };
        self.clocks.readings.insert(from.node, reading);
        self.look_at_clocks();
    }

    fn look_at_clocks(&mut self) {
        self.clocks.find_middle(self.now, self.time);
        if self.clocks.settled || !self.directory.start.recovered {
            return;
        }
        let floor =
            self.replicas.values().map(|replica| replica.machine.time()).max().unwrap_or(UnixMillis(0));
        let nodes = self.map.nodes().count();
        let Some(beginning) = self.clocks.beginning(nodes, floor, self.now) else {
            return self.warn_of_dispute(nodes);
        };
        self.clocks.settled = true;
        if !is_planted(Bug::OwnWallClock) {
            self.clock.begin_at(self.now, beginning);
        }
        self.clock.raise_to(floor);
        self.time = self.clock.read(self.clocks.followed(self.now));
    }

    /// Tells once that the nodes that were heard are too few to know the time, which they have been for long.
    fn warn_of_dispute(&mut self, nodes: usize) {
        let now_ns = self.now.monotonic_ns;
        if self.clocks.waited_ns(now_ns) < DISPUTE_PATIENCE_NS
            || self.clocks.readings.is_empty()
            || core::mem::replace(&mut self.clocks.warned, true)
        {
            return;
        }
        let walls: Vec<String> = (self.clocks.readings.iter())
            .map(|(node, reading)| format!("node {}: {} ms", node.0, reading.now(reading.wall_ms, now_ns)))
            .collect();
        self.out.push(Output::Warning(format!(
            "waiting to know what time it is: {} of {nodes} nodes were heard, nothing stored here tells which wall clock is \
             right, and they differ ({}; here {}); set the clocks, or start the other nodes",
            walls.len() + 1,
            walls.join(", "),
            self.now.wall
        )));
    }

    /// Asks a core that a link has come to.
    pub(crate) fn ask_clock(&mut self, to: Address) {
        let message = MeshMessage::ClockAsk { asked_ns: self.now.monotonic_ns };
        self.out.push(Output::Mesh { to, message });
    }

    /// Asks the other nodes now and then.
    pub(crate) fn tick_clocks(&mut self) {
        let now_ns = self.now.monotonic_ns;
        if now_ns >= self.clocks.next_ask_ns {
            self.clocks.next_ask_ns = now_ns + if self.clocks.settled { ASK_NS } else { ASK_UNSETTLED_NS };
            // Any core of a node knows its clocks; each asks its counterpart.
            let mut asked = None;
            for peer in self.links.all_up().collect::<Vec<_>>() {
                if asked != Some(peer.node) {
                    asked = Some(peer.node);
                    self.ask_clock(peer);
                }
            }
        }
        self.look_at_clocks();
    }

    /// Whether a node's wall clock is too far off for it to lead.
    pub(crate) fn clock_is_off(&self, node: NodeId) -> bool {
        self.clocks.is_off(node, self.me.node, self.now.monotonic_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn now(wall_ms: u64) -> Now {
        Now { monotonic_ns: 5_000 * NANOS_PER_MS, wall: UnixMillis(wall_ms) }
    }

    fn clocks(readings: &[(u64, Option<u64>)]) -> NodeClocks {
        let mut clocks = NodeClocks::new(false);
        for (node, (wall_ms, time_ms)) in (2..).zip(readings) {
            let at_ns = now(0).monotonic_ns;
            let reading = Reading { at_ns, good: true, wall_ms: *wall_ms, time_ms: *time_ms };
            clocks.readings.insert(NodeId(node), reading);
        }
        clocks
    }

    fn followed(own: u64, others: &[u64]) -> u64 {
        let mut clocks = clocks(&others.iter().map(|wall| (*wall, None)).collect::<Vec<_>>());
        clocks.find_middle(now(own), UnixMillis(2 * HOUR_MS));
        clocks.followed(now(own)).wall.0
    }

    #[test]
    fn the_jump_of_one_clock_moves_nothing() {
        let base = 2 * HOUR_MS;
        for jumped in [base - HOUR_MS, base + HOUR_MS] {
            assert_eq!(followed(jumped, &[base, base + 1]), if jumped < base { base } else { base + 1 });
            assert_eq!(followed(base, &[jumped, base]), base);
            assert_eq!(followed(base, &[jumped]), base);
            assert_eq!(followed(jumped, &[base]), base);
        }
        assert_eq!(followed(77, &[]), 77, "nobody else is heard");
    }

    #[test]
    fn a_start_takes_the_time_of_those_that_run() {
        let base = 2 * HOUR_MS;
        let begin = |own, others: &[(u64, Option<u64>)], floor| {
            clocks(others).beginning(3, UnixMillis(floor), now(own)).map(|time| time.0)
        };
        assert_eq!(begin(base + HOUR_MS, &[(base, Some(base + 7))], 0), Some(base + 7));
        assert_eq!(begin(base, &[(base, None)], 0), None, "one may yet be heard that runs");
        assert_eq!(begin(base + HOUR_MS, &[(base, None), (base - 1, None)], 0), Some(base));
        assert_eq!(begin(base, &[(base + 1, None), (base - HOUR_MS, None)], base - 9), Some(base));
    }

    #[test]
    fn two_of_three_that_disagree_begin_only_where_a_log_tells() {
        let base = 2 * HOUR_MS;
        let begin = |other, waited_ns, floor| {
            let mut clocks = clocks(&[(other, None)]);
            clocks.first_heard_ns = Some(now(0).monotonic_ns - waited_ns);
            clocks.beginning(3, UnixMillis(floor), now(base)).map(|time| time.0)
        };
        for other in [base - HOUR_MS, base + HOUR_MS] {
            assert_eq!(begin(other, PATIENCE_NS, base - 9), None, "who knows the time may be about to come");
            assert_eq!(begin(other, 5 * PATIENCE_NS, base - 9), Some(base));
            assert_eq!(begin(other, 5 * PATIENCE_NS, 0), None);
        }
        assert_eq!(begin(base - 3, PATIENCE_NS, 0), Some(base - 3), "they agree");
    }

    #[test]
    fn who_is_off_is_known_where_three_are_heard() {
        let base = 2 * HOUR_MS;
        let off = |own, others: &[u64]| {
            let mut clocks = clocks(&others.iter().map(|wall| (*wall, None)).collect::<Vec<_>>());
            clocks.find_middle(now(own), UnixMillis(base));
            (1..4).map(|node| clocks.is_off(NodeId(node), NodeId(1), now(0).monotonic_ns)).collect::<Vec<_>>()
        };
        assert_eq!(off(base, &[base + 5, base - 5]), [false; 3]);
        assert_eq!(off(base - HOUR_MS, &[base + 5, base]), [true, false, false]);
        assert_eq!(off(base, &[base, base + HOUR_MS]), [false, false, true]);
        assert_eq!(off(base, &[base + HOUR_MS]), [false; 3]);
    }
}
