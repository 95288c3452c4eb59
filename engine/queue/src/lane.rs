//! One lane: the messages of one level of one queue on this shard. What is visible stands in the order of sequences;
//! a message that comes back has its old sequence, so it is in its old place, in front of whatever came later.

use crate::shared::Shared;
use crate::sorted_slots::SortedSlots;
use crate::stats::Waits;
use overtake_base::{BlockId, Level, QueueId, UnixMillis};
use std::collections::BTreeMap;

/// One lane.
#[derive(Default)]
pub(crate) struct Lane {
    /// Visible messages in memory.
    pub(crate) ready: SortedSlots<u64>,
    /// Runs of visible messages on disk, by their first sequence. They never overlap: a run is made of what stands behind
    /// all others. Messages in memory may stand between and in them.
    pub(crate) runs: BTreeMap<u64, BlockId>,
    /// Messages in those runs.
    pub(crate) cold: u64,
    /// Messages of this level in runs of delayed messages.
    pub(crate) cold_delayed: u64,
    /// Delayed messages in memory.
    pub(crate) delayed: u64,
    pub(crate) leased: u64,
    pub(crate) waits: Waits,
    pub(crate) hunger: Hunger,
}

impl Lane {
    /// Visible messages, wherever they stand.
    pub(crate) fn visible(&self) -> u64 {
        self.ready.len() as u64 + self.cold
    }

    /// Delayed messages, wherever they stand.
    pub(crate) fn all_delayed(&self) -> u64 {
        self.delayed + self.cold_delayed
    }
}

/// How long a lane with visible work has had no delivery.
#[derive(Default)]
pub(crate) struct Hunger {
    /// The last delivery, or when the lane got visible work after having none.
    pub(crate) since: UnixMillis,
    /// The alert was counted; it is not again before a delivery.
    pub(crate) counted: bool,
    /// Where the lane stands in the shard's alarms.
    pub(crate) alarm_at: Option<UnixMillis>,
}

impl Hunger {
    /// When the lane is starved. Longer than the alert, so a millisecond after it.
    pub(crate) fn deadline(&self, starvation_ms: u64) -> UnixMillis {
        self.since.plus_ms(starvation_ms).plus_ms(1)
    }

    /// The lane got visible work.
    pub(crate) fn begin(&mut self, shared: &mut Shared, queue: QueueId, level: Level, starvation_ms: u64) {
        self.since = shared.time;
        self.counted = false;
        self.set_alarm(shared, queue, level, starvation_ms);
    }

    /// The lane has no visible work any more.
    pub(crate) fn end(&mut self, shared: &mut Shared, queue: QueueId, level: Level) {
        if let Some(at) = self.alarm_at.take() {
            shared.alarms.remove(&(at, queue, level));
        }
    }

    /// A delivery. The alarm stays where it is, too early now; it looks again when it goes off.
    pub(crate) fn feed(&mut self, shared: &mut Shared, queue: QueueId, level: Level, starvation_ms: u64) {
        self.since = shared.time;
        if self.counted {
            self.counted = false;
            self.set_alarm(shared, queue, level, starvation_ms);
        }
    }

    /// (Re)sets the alarm, unless the alert has been counted already.
    pub(crate) fn set_alarm(
        &mut self,
        shared: &mut Shared,
        queue: QueueId,
        level: Level,
        starvation_ms: u64,
    ) {
        self.end(shared, queue, level);
        if !self.counted {
            let at = self.deadline(starvation_ms);
            shared.alarms.insert((at, queue, level));
            self.alarm_at = Some(at);
        }
    }

    /// The alarm went off: true where the lane is starved. One that stood too early is set anew, also where the lane's
    /// deadline has come by now: what else was due before it may take the lane's visible work away.
    pub(crate) fn alarm(
        &mut self,
        shared: &mut Shared,
        queue: QueueId,
        level: Level,
        starvation_ms: u64,
    ) -> bool {
        let stood_at = self.alarm_at;
        self.end(shared, queue, level);
        self.counted = stood_at.is_some_and(|at| self.deadline(starvation_ms) <= at);
        self.set_alarm(shared, queue, level, starvation_ms);
        self.counted
    }
}
