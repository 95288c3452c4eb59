//! What this core knows of every queue's lanes on every shard of the node: the newest head summaries, less what its own
//! receives under way have already claimed.

use crate::mesh::VersionedSummary;
use overtake_base::hash::Map;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Level, QueueId, ShardId};
use overtake_queue::answer::LevelSummary;
use std::collections::{BTreeMap, BTreeSet};

/// The lanes of all queues.
#[derive(Debug, Default)]
pub struct HeadView {
    queues: Map<QueueId, QueueHeads>,
}

/// The lanes of one queue.
#[derive(Debug, Default)]
pub struct QueueHeads {
    shards: BTreeMap<ShardId, ShardHeads>,
    claims: u64,
}

#[derive(Debug, Default)]
struct ShardHeads {
    version: u64,
    depth: u64,
    body_bytes: u64,
    levels: Vec<LevelSummary>,
    claimed: BTreeMap<Level, u64>,
}

/// Messages that a receive under way expects of one level of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The shard.
    pub shard: ShardId,
    /// The level.
    pub level: Level,
    /// How many.
    pub count: u64,
}

impl HeadView {
    /// Takes a summary, unless a newer one is known. True where it was taken.
    pub fn update(&mut self, queue: QueueId, newest: &VersionedSummary) -> bool {
        let heads = self.queues.entry(queue).or_default().shards.entry(newest.shard).or_default();
        if newest.version < heads.version && !is_planted(Bug::StaleSummary) {
            return false;
        }
        heads.version = newest.version;
        heads.depth = newest.summary.depth;
        heads.body_bytes = newest.summary.body_bytes;
        heads.levels.clone_from(&newest.summary.levels);
        true
    }

    /// The lanes of `queue`.
    #[must_use]
    pub fn queue(&self, queue: QueueId) -> Option<&QueueHeads> {
        self.queues.get(&queue)
    }

    /// Forgets a deleted queue.
    pub fn remove(&mut self, queue: QueueId) {
        self.queues.remove(&queue);
    }

    /// Counts messages as spoken for.
    pub fn claim(&mut self, queue: QueueId, claim: Claim) {
        let heads = self.queues.entry(queue).or_default();
        heads.claims += claim.count;
        *heads.shards.entry(claim.shard).or_default().claimed.entry(claim.level).or_default() += claim.count;
    }

    /// Takes a claim back: its receive has been answered, and the summary says the rest.
    pub fn unclaim(&mut self, queue: QueueId, claim: Claim) {
        let Some(heads) = self.queues.get_mut(&queue) else { return };
        heads.claims = heads.claims.saturating_sub(claim.count);
        let Some(shard) = heads.shards.get_mut(&claim.shard) else { return };
        if let Some(claimed) = shard.claimed.get_mut(&claim.level) {
            *claimed = claimed.saturating_sub(claim.count);
            if *claimed == 0 {
                shard.claimed.remove(&claim.level);
            }
        }
    }
}

impl QueueHeads {
    /// Visible messages that nobody has claimed, at most `ceiling`, as (shard, level summary) in shard order; without
    /// the shards that cannot be reached.
    pub fn available<'a>(
        &'a self,
        ceiling: Level,
        hidden: &'a BTreeSet<ShardId>,
    ) -> impl Iterator<Item = (ShardId, LevelSummary)> + 'a {
        let shards = self.shards.iter().filter(|(shard, _)| !hidden.contains(shard));
        shards.flat_map(move |(shard, heads)| {
            heads.levels.iter().filter(move |summary| summary.level <= ceiling).filter_map(move |summary| {
                let claimed = heads.claimed.get(&summary.level).copied().unwrap_or(0);
                let visible = summary.visible.saturating_sub(claimed);
                (visible > 0).then_some((*shard, LevelSummary { visible, ..*summary }))
            })
        })
    }

    /// True where something unclaimed is visible at `ceiling` or more urgent.
    #[must_use]
    pub fn has_available(&self, ceiling: Level, hidden: &BTreeSet<ShardId>) -> bool {
        self.available(ceiling, hidden).next().is_some()
    }

    /// What receives under way have claimed: of all levels, and of one.
    #[must_use]
    pub fn claimed(&self, level: Level) -> (u64, u64) {
        let of_level = self.shards.values().filter_map(|heads| heads.claimed.get(&level));
        (self.claims, of_level.sum())
    }

    /// True while receives of this core are under way.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        self.claims > 0
    }

    /// Visible, delayed and leased messages, and their body bytes, as last told.
    #[must_use]
    pub fn depth(&self) -> (u64, u64) {
        self.shards
            .values()
            .fold((0, 0), |(depth, bytes), heads| (depth + heads.depth, bytes + heads.body_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_base::UnixMillis;
    use overtake_queue::answer::Summary;

    /// No shard is hidden.
    const ALL: BTreeSet<ShardId> = BTreeSet::new();

    #[test]
    fn what_cannot_be_reached_is_not_there() {
        let mut view = HeadView::default();
        view.update(QueueId(1), &summary(0, 7, 3));
        assert!(!view.queue(QueueId(1)).unwrap().has_available(Level(4), &[ShardId(0)].into()));
    }

    fn summary(shard: u16, version: u64, visible: u64) -> VersionedSummary {
        let level = LevelSummary { level: Level(2), visible, head_since: UnixMillis(5) };
        let levels = if visible > 0 { vec![level] } else { vec![] };
        VersionedSummary {
            shard: ShardId(shard),
            version,
            summary: Summary { queue: QueueId(1), depth: visible, body_bytes: 0, levels },
        }
    }

    #[test]
    fn an_older_summary_never_hides_a_newer_one() {
        let mut view = HeadView::default();
        assert!(view.update(QueueId(1), &summary(0, 7, 3)));
        assert!(!view.update(QueueId(1), &summary(0, 6, 0)));
        assert!(view.queue(QueueId(1)).unwrap().has_available(Level(4), &ALL));
    }

    #[test]
    fn claims_hide_what_they_claim_until_taken_back() {
        let mut view = HeadView::default();
        view.update(QueueId(1), &summary(0, 1, 3));
        let claim = Claim { shard: ShardId(0), level: Level(2), count: 3 };
        view.claim(QueueId(1), claim);
        let heads = view.queue(QueueId(1)).unwrap();
        assert!(!heads.has_available(Level(4), &ALL) && heads.has_claims());
        view.unclaim(QueueId(1), claim);
        let heads = view.queue(QueueId(1)).unwrap();
        assert!(
            heads.has_available(Level(2), &ALL)
                && !heads.has_available(Level(1), &ALL)
                && !heads.has_claims()
        );
    }
}
