//! Head summaries for nodes that hold no replica of a shard (those that do see the heads in their own replica, which is as
//! new as the last word of the leader): at once where something urgent becomes visible or an empty queue does not stay
//! empty, else a little later, all changes of that time together.

use crate::cluster::Address;
use crate::mesh::{MeshMessage, VersionedSummary};
use crate::{Core, Output};
use overtake_base::hash::Map;
use overtake_base::{Level, NodeId, QueueId, ShardId};
use overtake_queue::answer::Summary;
use std::collections::BTreeSet;

/// How late a change may be told that nobody waits for, in nanoseconds.
const PACE_NS: u64 = 20_000_000;
/// Levels up to this one are told at once.
const URGENT: Level = Level(1);
/// Summaries of one message: it fits a frame.
const SUMMARIES_MAX: usize = 1_000;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Telling {
    /// Changed and not told.
    changed: BTreeSet<(ShardId, QueueId)>,
    /// Whether anything urgent, and anything at all, was visible when it was told last.
    told: Map<(ShardId, QueueId), (bool, bool)>,
    due_ns: Option<u64>,
}

impl Telling {
    /// When something is to be told though nothing happened.
    pub(crate) fn next_wake(&self) -> Option<u64> {
        self.due_ns
    }
}

fn visibility(summary: &Summary) -> (bool, bool) {
    let urgent = summary.levels.iter().any(|level| level.level <= URGENT);
    (urgent, !summary.levels.is_empty())
}

impl Core {
    /// The nodes that hold no replica of a shard.
    fn strangers(&self, shard: ShardId) -> Vec<NodeId> {
        let replicas = self.map.replicas(shard);
        self.map.nodes().map(|(node, _)| node).filter(|node| !replicas.contains(node)).collect()
    }

    /// The heads of a queue on a shard of this core changed.
    pub(crate) fn note_head(&mut self, shard: ShardId, queue: QueueId) {
        if self.replicas.get(&shard).is_none_or(|replica| !replica.serves()) {
            return;
        }
        if self.strangers(shard).is_empty() {
            return;
        }
        let now = self.own_summary(shard, queue).map_or((false, false), |own| visibility(&own.summary));
        let told = self.telling.told.get(&(shard, queue)).copied().unwrap_or_default();
        let at_once = (now.0 && !told.0) || (now.1 && !told.1);
        let due_ns = self.now.monotonic_ns + if at_once { 0 } else { PACE_NS };
        self.telling.changed.insert((shard, queue));
        self.telling.due_ns = Some(self.telling.due_ns.map_or(due_ns, |before| before.min(due_ns)));
    }

    /// Tells what is due.
    pub(crate) fn tell_heads(&mut self) {
        if self.telling.due_ns.is_none_or(|due_ns| due_ns > self.now.monotonic_ns) {
            return;
        }
        self.telling.due_ns = None;
        let changed = core::mem::take(&mut self.telling.changed);
        let peers: Vec<Address> = self.links.all_up().collect();
        for to in peers {
            let for_it = |shard: ShardId| !self.map.replicas(shard).contains(&to.node);
            let summaries: Vec<VersionedSummary> = changed
                .iter()
                .filter(|(shard, _)| for_it(*shard))
                .filter_map(|(shard, queue)| self.own_summary(*shard, *queue))
                .collect();
            self.send_summaries(to, &summaries);
        }
        for key in changed {
            let now = self.own_summary(key.0, key.1).map(|own| visibility(&own.summary));
            match now {
                Some(now) => drop(self.telling.told.insert(key, now)),
                None => drop(self.telling.told.remove(&key)),
            }
        }
    }

    fn send_summaries(&mut self, to: Address, summaries: &[VersionedSummary]) {
        for some in summaries.chunks(SUMMARIES_MAX) {
            let message = MeshMessage::Summaries { summaries: some.to_vec() };
            self.out.push(Output::Mesh { to, message });
        }
    }

    /// Tells a peer everything about a shard that this core leads, if its node has no replica.
    pub(crate) fn tell_all_heads(&mut self, shard: ShardId, to: Address) {
        if self.map.replicas(shard).contains(&to.node) {
            return;
        }
        let Some(replica) = self.replicas.get(&shard).filter(|replica| replica.serves()) else { return };
        let queues: Vec<QueueId> = replica.machine.queues().collect();
        let all: Vec<VersionedSummary> =
            queues.into_iter().filter_map(|queue| self.own_summary(shard, queue)).collect();
        self.send_summaries(to, &all);
    }
}
