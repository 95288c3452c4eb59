//! The receive planner: which levels the next deliveries come from, and which shards are asked for them.
//!
//! Levels are chosen message by message by the queue's scheduler over the heads of all shards. Each level is then taken
//! from the shards whose heads are oldest, from three at a time, and from further ones only where those are short.

use crate::view::{Claim, QueueHeads};
use overtake_base::{Level, ShardId, UnixMillis};
use overtake_queue::answer::LevelSummary;
use overtake_queue::command::{LevelChoice, Pick};
use overtake_queue::scheduler::{LevelSet, Scheduler};

/// Shards that one level is first taken from.
const SHARDS_AT_ONCE: usize = 3;

/// What a receive wants.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Messages, at most.
    pub max: u32,
    /// Only levels 0..=this; takes no part in shares.
    pub ceiling: Option<Level>,
}

/// One shard's part of a receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pull {
    /// The shard.
    pub shard: ShardId,
    /// Messages, at most.
    pub max: u32,
    /// The levels.
    pub choice: LevelChoice,
    /// What it is expected to take.
    pub claims: Vec<Claim>,
}

/// Plans a receive of a queue that lives on one shard: the shard itself chooses, so its order is exact.
#[must_use]
pub fn plan_one_shard(heads: &QueueHeads, shard: ShardId, wanted: Wanted) -> Option<Pull> {
    let mut left = u64::from(wanted.max);
    let mut claims = Vec::new();
    for (shard, summary) in heads.available(wanted.ceiling.unwrap_or(Level(u8::MAX))) {
        let count = summary.visible.min(left);
        if count > 0 {
            claims.push(Claim { shard, level: summary.level, count });
            left -= count;
        }
    }
    let choice = wanted.ceiling.map_or(LevelChoice::Scheduled, LevelChoice::UpTo);
    let max = wanted.max - u32::try_from(left).unwrap_or(0);
    (!claims.is_empty()).then_some(Pull { shard, max, choice, claims })
}

/// Plans a receive over several shards. Charges the scheduler; what does not come must be refunded to it.
/// `allowed` bounds a level's deliveries (rate caps) and is told of each one taken.
pub fn plan_many_shards(
    heads: &QueueHeads,
    scheduler: &mut Scheduler,
    wanted: Wanted,
    now: UnixMillis,
    mut allowed: impl FnMut(Level) -> bool,
) -> Vec<Pull> {
    let ceiling = wanted.ceiling.unwrap_or(Level(u8::MAX));
    let mut lanes: Vec<(ShardId, LevelSummary)> = heads.available(ceiling).collect();
    lanes.sort_by_key(|(shard, summary)| (summary.level, summary.head_since, *shard));
    let mut levels = totals(&lanes);
    let mut picks = Picks::default();
    for _ in 0..wanted.max {
        let visible: LevelSet = levels.iter().filter(|l| l.left > 0 && !l.barred).map(|l| l.level).collect();
        let head_since = |level: Level| {
            levels.iter().find(|l| l.level == level).map_or(UnixMillis::NEVER, |l| l.head_since)
        };
        let choice = match wanted.ceiling {
            Some(_) => visible.first().map(|level| (level, false)),
            None => scheduler.next(visible, &head_since, now),
        };
        let Some((level, share)) = choice else { break };
        let Some(total) = levels.iter_mut().find(|l| l.level == level) else { break };
        if allowed(level) {
            total.left -= 1;
            picks.add(level, share);
        } else {
            total.barred = true;
            if wanted.ceiling.is_none() {
                scheduler.refund(level, share);
            }
        }
    }
    spread(&lanes, &picks.0)
}

struct LevelTotal {
    level: Level,
    left: u64,
    head_since: UnixMillis,
    barred: bool,
}

fn totals(lanes: &[(ShardId, LevelSummary)]) -> Vec<LevelTotal> {
    let mut totals: Vec<LevelTotal> = Vec::new();
    for (_, summary) in lanes {
        match totals.last_mut() {
            Some(total) if total.level == summary.level => total.left += summary.visible,
            _ => totals.push(LevelTotal {
                level: summary.level,
                left: summary.visible,
                head_since: summary.head_since,
                barred: false,
            }),
        }
    }
    totals
}

#[derive(Default)]
struct Picks(Vec<Pick>);

impl Picks {
    fn add(&mut self, level: Level, share: bool) {
        match self.0.iter_mut().find(|pick| pick.level == level && pick.share == share) {
            Some(pick) => pick.count += 1,
            None => self.0.push(Pick { level, count: 1, share }),
        }
    }
}

/// Spreads picks over the shards that can serve them; `lanes` is sorted by level, then by age of the head.
fn spread(lanes: &[(ShardId, LevelSummary)], picks: &[Pick]) -> Vec<Pull> {
    let mut pulls: Vec<Pull> = Vec::new();
    let mut left: Vec<u64> = lanes.iter().map(|(_, summary)| summary.visible).collect();
    for pick in picks {
        let of_level: Vec<usize> = (0..lanes.len()).filter(|i| lanes[*i].1.level == pick.level).collect();
        let mut need = u64::from(pick.count);
        for group in of_level.chunks(SHARDS_AT_ONCE) {
            for (position, lane) in group.iter().enumerate() {
                // An even part each, and what the others cannot give from the last ones.
                let fair = need.div_ceil((group.len() - position) as u64);
                let takes = fair.min(left[*lane]);
                give(&mut pulls, lanes[*lane].0, *pick, takes);
                left[*lane] -= takes;
                need -= takes;
            }
            for lane in group {
                let takes = need.min(left[*lane]);
                give(&mut pulls, lanes[*lane].0, *pick, takes);
                left[*lane] -= takes;
                need -= takes;
            }
        }
    }
    pulls
}

fn give(pulls: &mut Vec<Pull>, shard: ShardId, pick: Pick, count: u64) {
    if count == 0 {
        return;
    }
    let count_u32 = u32::try_from(count).unwrap_or(u32::MAX);
    let position = pulls.iter().position(|pull| pull.shard == shard).unwrap_or_else(|| {
        pulls.push(Pull {
            shard,
            max: 0,
            choice: LevelChoice::Picks { picks: Vec::new(), barred: LevelSet::default() },
            claims: Vec::new(),
        });
        pulls.len() - 1
    });
    let pull = &mut pulls[position];
    pull.max += count_u32;
    if let LevelChoice::Picks { picks, .. } = &mut pull.choice {
        match picks.iter_mut().find(|known| known.level == pick.level && known.share == pick.share) {
            Some(known) => known.count += count_u32,
            None => picks.push(Pick { count: count_u32, ..pick }),
        }
    }
    match pull.claims.iter_mut().find(|claim| claim.level == pick.level) {
        Some(claim) => claim.count += count,
        None => pull.claims.push(Claim { shard, level: pick.level, count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::VersionedSummary;
    use crate::view::HeadView;
    use overtake_base::{QueueConfig, QueueId};
    use overtake_queue::answer::Summary;
    use proptest::prelude::*;

    fn view_of(lanes: &[(u16, u8, u64, u64)]) -> HeadView {
        let mut view = HeadView::default();
        for shard in 0..8 {
            let mut levels: Vec<LevelSummary> = lanes
                .iter()
                .filter(|lane| lane.0 == shard)
                .map(|lane| LevelSummary {
                    level: Level(lane.1),
                    visible: lane.2,
                    head_since: UnixMillis(lane.3),
                })
                .collect();
            levels.sort_by_key(|summary| summary.level);
            levels.dedup_by_key(|summary| summary.level);
            let summary = Summary { queue: QueueId(1), depth: 0, body_bytes: 0, levels };
            view.update(QueueId(1), &VersionedSummary { shard: ShardId(shard), version: 1, summary });
        }
        view
    }

    fn plan(view: &HeadView, max: u32, ceiling: Option<Level>) -> Vec<Pull> {
        let mut scheduler = Scheduler::new(&QueueConfig::with_defaults(5, 8));
        let heads = view.queue(QueueId(1)).unwrap();
        plan_many_shards(heads, &mut scheduler, Wanted { max, ceiling }, UnixMillis(1_000), |_| true)
    }

    #[test]
    fn one_message_is_taken_from_the_oldest_head() {
        let view = view_of(&[(0, 0, 5, 30), (3, 0, 5, 10), (7, 0, 5, 20)]);
        let pulls = plan(&view, 1, None);
        assert_eq!(pulls.len(), 1);
        assert_eq!(pulls[0].shard, ShardId(3));
    }

    #[test]
    fn a_large_receive_asks_three_shards_first() {
        let lanes: Vec<_> = (0..8).map(|shard| (shard, 1, 1_000, u64::from(shard))).collect();
        let pulls = plan(&view_of(&lanes), 300, None);
        assert_eq!(
            pulls.iter().map(|pull| (pull.shard.0, pull.max)).collect::<Vec<_>>(),
            [(0, 100), (1, 100), (2, 100)]
        );
    }

    proptest! {
        #[test]
        fn takes_as_much_as_there_is_and_never_more(
            lanes in proptest::collection::vec((0u16..8, 0u8..5, 1u64..40, 0u64..100), 0..30),
            max in 1u32..200,
            ceiling in proptest::option::of(0u8..5),
        ) {
            let view = view_of(&lanes);
            let ceiling = ceiling.map(Level);
            let heads = view.queue(QueueId(1)).unwrap();
            let there: u64 = heads.available(ceiling.unwrap_or(Level(99))).map(|(_, s)| s.visible).sum();
            let pulls = plan(&view, max, ceiling);
            prop_assert_eq!(pulls.iter().map(|p| u64::from(p.max)).sum::<u64>(), there.min(u64::from(max)));
            for pull in &pulls {
                for claim in &pull.claims {
                    let visible = heads.available(Level(99))
                        .find(|(shard, s)| *shard == claim.shard && s.level == claim.level).map_or(0, |(_, s)| s.visible);
                    prop_assert!(claim.count <= visible);
                    prop_assert!(ceiling.is_none_or(|ceiling| claim.level <= ceiling));
                }
            }
        }
    }
}
