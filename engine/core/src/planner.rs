//! The receive planner: which levels the next deliveries come from, and which shards are asked for them.
//!
//! Levels are chosen message by message by the queue's scheduler over the heads of all shards. Each level is then taken
//! from the shards whose heads are oldest, from three at a time, and from further ones only where those are short. What a
//! rate cap holds back is not planned: a queue on one shard is capped by the shard, whose limiter is looked at first; for
//! one on several shards the home core's limiter is charged here.

use crate::view::{Claim, QueueHeads};
use overtake_base::limits::RECEIVE_PULLS_MAX;
use overtake_base::{Level, ShardId, UnixMillis};
use overtake_queue::answer::LevelSummary;
use overtake_queue::command::{LevelChoice, Pick};
use overtake_queue::rate::RateLimiter;
use overtake_queue::scheduler::{LevelSet, Scheduler};
use std::collections::BTreeSet;

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

/// How many messages of a level rate caps leave to receives, beside those that are under way.
#[must_use]
pub fn allowed(heads: &QueueHeads, limiter: Option<&RateLimiter>, level: Level, now: UnixMillis) -> u64 {
    let Some(limiter) = limiter else { return u64::MAX };
    let (all, of_level) = heads.claimed(level);
    let of_queue = limiter.allows(now).saturating_sub(all);
    of_queue.min(limiter.allows_of_level(level, now).saturating_sub(of_level))
}

/// Plans a receive of a queue that lives on one shard: the shard itself chooses, so its order is exact. `limiter` is the
/// shard's.
#[must_use]
pub fn plan_one_shard(
    heads: &QueueHeads,
    hidden: &BTreeSet<ShardId>,
    shard: ShardId,
    wanted: Wanted,
    limiter: Option<&RateLimiter>,
    now: UnixMillis,
) -> Option<Pull> {
    let mut left = u64::from(wanted.max);
    if let Some(limiter) = limiter {
        left = left.min(limiter.allows(now).saturating_sub(heads.claimed(Level(0)).0));
    }
    let (mut max, mut claims) = (0, Vec::new());
    for (shard, summary) in heads.available(wanted.ceiling.unwrap_or(Level(u8::MAX)), hidden) {
        let count = summary.visible.min(left).min(allowed(heads, limiter, summary.level, now));
        if count > 0 {
            claims.push(Claim { shard, level: summary.level, count });
            left -= count;
            max += u32::try_from(count).unwrap_or(0);
        }
    }
    let choice = wanted.ceiling.map_or(LevelChoice::Scheduled, LevelChoice::UpTo);
    (max > 0).then_some(Pull { shard, max, choice, claims })
}

/// Plans a receive over several shards. Charges the scheduler and the limiter; what does not come must be given back.
pub fn plan_many_shards(
    heads: &QueueHeads,
    hidden: &BTreeSet<ShardId>,
    scheduler: &mut Scheduler,
    wanted: Wanted,
    now: UnixMillis,
    mut limiter: Option<&mut RateLimiter>,
) -> Vec<Pull> {
    let ceiling = wanted.ceiling.unwrap_or(Level(u8::MAX));
    let mut lanes: Vec<(ShardId, LevelSummary)> = heads.available(ceiling, hidden).collect();
    lanes.sort_by_key(|(shard, summary)| (summary.level, summary.head_since, *shard));
    let mut levels = totals(&lanes);
    let all: LevelSet = levels.iter().map(|total| total.level).collect();
    let mut barred = limiter.as_ref().map_or(LevelSet::default(), |limiter| limiter.barred(all, now));
    let mut picks = Picks::default();
    for _ in 0..wanted.max {
        let visible: LevelSet =
            levels.iter().filter(|total| total.left > 0).map(|total| total.level).collect();
        let visible = visible.without(barred);
        let head_since = |level: Level| {
            levels.iter().find(|l| l.level == level).map_or(UnixMillis::NEVER, |l| l.head_since)
        };
        let choice = match wanted.ceiling {
            Some(_) => visible.first().map(|level| (level, false)),
            None => scheduler.next(visible, &head_since, now),
        };
        let Some((level, share)) = choice else { break };
        let Some(total) = levels.iter_mut().find(|l| l.level == level) else { break };
        total.left -= 1;
        picks.add(level, share);
        if let Some(limiter) = &mut limiter {
            limiter.try_take(level, now);
            barred = limiter.barred(all, now);
        }
    }
    let without_tokens =
        |level: &Level| limiter.as_ref().is_some_and(|l| l.allows_of_level(*level, now) == 0);
    let (pulls, unplaced) = spread(&lanes, &picks.0, all.iter().filter(without_tokens).collect());
    for pick in unplaced {
        give_back(scheduler, wanted, limiter.as_deref_mut(), pick);
    }
    pulls
}

/// Gives scheduler and limiter back what was planned and does not come.
pub fn give_back(
    scheduler: &mut Scheduler,
    wanted: Wanted,
    mut limiter: Option<&mut RateLimiter>,
    pick: Pick,
) {
    for _ in 0..pick.count {
        // With a ceiling the scheduler was not asked.
        if wanted.ceiling.is_none() {
            scheduler.refund(pick.level, pick.share);
        }
        if let Some(limiter) = &mut limiter {
            limiter.give_back(pick.level);
        }
    }
}

struct LevelTotal {
    level: Level,
    left: u64,
    head_since: UnixMillis,
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

/// Spreads picks over the shards that can serve them; `lanes` is sorted by level, then by age of the head. Also gives what
/// would take more shards than one receive may ask.
fn spread(lanes: &[(ShardId, LevelSummary)], picks: &[Pick], barred: LevelSet) -> (Vec<Pull>, Vec<Pick>) {
    let mut spread = Spread { pulls: Vec::new(), barred };
    let mut left: Vec<u64> = lanes.iter().map(|(_, summary)| summary.visible).collect();
    let mut unplaced = Vec::new();
    for pick in picks {
        let of_level: Vec<usize> = (0..lanes.len()).filter(|i| lanes[*i].1.level == pick.level).collect();
        let mut need = u64::from(pick.count);
        for group in of_level.chunks(SHARDS_AT_ONCE) {
            for (position, lane) in group.iter().enumerate() {
                // An even part each, and what the others cannot give from the last ones.
                let fair = need.div_ceil((group.len() - position) as u64);
                let takes = spread.give(lanes[*lane].0, *pick, fair.min(left[*lane]));
                left[*lane] -= takes;
                need -= takes;
            }
            for lane in group {
                let takes = spread.give(lanes[*lane].0, *pick, need.min(left[*lane]));
                left[*lane] -= takes;
                need -= takes;
            }
        }
        if need > 0 {
            unplaced.push(Pick { count: u32::try_from(need).unwrap_or(u32::MAX), ..*pick });
        }
    }
    (spread.pulls, unplaced)
}

struct Spread {
    pulls: Vec<Pull>,
    /// Levels whose own caps are used up.
    barred: LevelSet,
}

impl Spread {
    /// Asks a shard for `count` messages of a pick; gives how many it is asked for: none where it would be one shard too
    /// many.
    fn give(&mut self, shard: ShardId, pick: Pick, count: u64) -> u64 {
        let known = self.pulls.iter().position(|pull| pull.shard == shard);
        if count == 0 || known.is_none() && self.pulls.len() == RECEIVE_PULLS_MAX {
            return 0;
        }
        let position = known.unwrap_or_else(|| {
            let choice = LevelChoice::Picks { picks: Vec::new(), barred: self.barred };
            self.pulls.push(Pull { shard, max: 0, choice, claims: Vec::new() });
            self.pulls.len() - 1
        });
        let count_u32 = u32::try_from(count).unwrap_or(u32::MAX);
        let pull = &mut self.pulls[position];
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
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::VersionedSummary;
    use crate::view::HeadView;
    use overtake_base::queue_config::{RateCaps, Scheduling};
    use overtake_base::{QueueConfig, QueueId};
    use overtake_queue::answer::Summary;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NOW: UnixMillis = UnixMillis(1_000);

    /// No shard is hidden.
    const ALL: BTreeSet<ShardId> = BTreeSet::new();

    fn view_of(lanes: &[(u16, u8, u64, u64)]) -> HeadView {
        let mut view = HeadView::default();
        for shard in 0..100 {
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
        plan_many_shards(heads, &ALL, &mut scheduler, Wanted { max, ceiling }, NOW, None)
    }

    /// Levels and counts of a plan.
    fn counts(pulls: &[Pull]) -> BTreeMap<u8, u64> {
        let mut counts = BTreeMap::new();
        for claim in pulls.iter().flat_map(|pull| &pull.claims) {
            *counts.entry(claim.level.0).or_default() += claim.count;
        }
        counts
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

    #[test]
    fn a_level_that_a_cap_holds_back_costs_the_others_nothing() {
        let view = view_of(&[(0, 0, 50, 10), (3, 1, 50, 20), (4, 3, 50, 30)]);
        let heads = view.queue(QueueId(1)).unwrap();
        for scheduling in [Scheduling::Weighted, Scheduling::Aging, Scheduling::Strict] {
            for (max, cap) in [(1, 0), (10, 0), (10, 3)] {
                let config = QueueConfig {
                    scheduling,
                    reserve_ppm: 0,
                    floor_ppm: 0,
                    ..QueueConfig::with_defaults(5, 8)
                };
                let mut scheduler = Scheduler::new(&config);
                let caps = RateCaps { queue: None, levels: [(0, cap)].into() };
                let mut limiter = RateLimiter::new(&caps, NOW);
                for ceiling in [None, Some(Level(1))] {
                    let wanted = Wanted { max, ceiling };
                    let pulls =
                        plan_many_shards(heads, &ALL, &mut scheduler, wanted, NOW, Some(&mut limiter));
                    let counts = counts(&pulls);
                    assert_eq!(
                        counts.values().sum::<u64>(),
                        u64::from(max),
                        "{scheduling:?} {ceiling:?}: {counts:?}"
                    );
                    assert_eq!(counts.get(&0).copied(), (cap > 0 && ceiling.is_none()).then_some(cap));
                    let told = |pull: &Pull| matches!(pull.choice, LevelChoice::Picks { barred, .. } if barred.contains(Level(0)));
                    assert!(pulls.iter().all(told), "the shards know that level 0 is held back");
                }
            }
        }
    }

    #[test]
    fn a_cap_of_the_queue_ends_a_plan() {
        let view = view_of(&[(0, 0, 50, 10), (3, 1, 50, 20)]);
        let heads = view.queue(QueueId(1)).unwrap();
        let mut scheduler = Scheduler::new(&QueueConfig::with_defaults(5, 8));
        let mut limiter = RateLimiter::new(&RateCaps { queue: Some(7), levels: [(0, 5)].into() }, NOW);
        let mut take = |max, now| {
            let wanted = Wanted { max, ceiling: None };
            counts(&plan_many_shards(heads, &ALL, &mut scheduler, wanted, now, Some(&mut limiter)))
        };
        assert_eq!(take(100, NOW), [(0, 5), (1, 2)].into());
        assert_eq!(take(100, NOW), BTreeMap::new());
        assert_eq!(take(1, NOW.plus_ms(150)), [(1, 1)].into(), "level 0 needs 200 ms");
    }

    #[test]
    fn one_shard_is_asked_for_what_its_caps_leave_beside_what_is_under_way() {
        let mut view = view_of(&[(0, 0, 50, 10), (0, 1, 50, 20)]);
        let caps = RateCaps { queue: Some(7), levels: [(0, 2)].into() };
        let limiter = RateLimiter::new(&caps, NOW);
        let plan = |view: &HeadView, max, ceiling| {
            let heads = view.queue(QueueId(1)).unwrap();
            plan_one_shard(heads, &ALL, ShardId(0), Wanted { max, ceiling }, Some(&limiter), NOW)
        };
        let first = plan(&view, 5, None).unwrap();
        assert_eq!((first.max, counts(core::slice::from_ref(&first))), (5, [(0, 2), (1, 3)].into()));
        first.claims.iter().for_each(|claim| view.claim(QueueId(1), *claim));
        assert_eq!(plan(&view, 5, Some(Level(0))), None, "nothing is put into the log for nothing");
        let second = plan(&view, 5, None).unwrap();
        assert_eq!((second.max, counts(core::slice::from_ref(&second))), (2, [(1, 2)].into()));
        second.claims.iter().for_each(|claim| view.claim(QueueId(1), *claim));
        assert_eq!(plan(&view, 5, None), None);
    }

    #[test]
    fn a_receive_asks_no_more_shards_than_fit_into_an_answer() {
        let lanes: Vec<_> = (0..100).flat_map(|shard| [(shard, 0, 1, 5), (shard, 4, 1, 6)]).collect();
        let view = view_of(&lanes);
        let heads = view.queue(QueueId(1)).unwrap();
        let mut scheduler = Scheduler::new(&QueueConfig::with_defaults(5, 8));
        let caps = RateCaps { queue: Some(1_000), levels: BTreeMap::new() };
        let mut limiter = RateLimiter::new(&caps, NOW);
        let mut taken = 0;
        for _ in 0..10 {
            let wanted = Wanted { max: 200, ceiling: None };
            let pulls = plan_many_shards(heads, &ALL, &mut scheduler, wanted, NOW, Some(&mut limiter));
            assert_eq!(pulls.len(), RECEIVE_PULLS_MAX);
            taken += counts(&pulls).values().sum::<u64>();
            assert_eq!(limiter.allows(NOW), 1_000 - taken, "what no shard was asked for is given back");
        }
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
            let there: u64 = heads.available(ceiling.unwrap_or(Level(99)), &ALL).map(|(_, s)| s.visible).sum();
            let pulls = plan(&view, max, ceiling);
            prop_assert_eq!(pulls.iter().map(|p| u64::from(p.max)).sum::<u64>(), there.min(u64::from(max)));
            for pull in &pulls {
                for claim in &pull.claims {
                    let visible = heads.available(Level(99), &ALL)
                        .find(|(shard, s)| *shard == claim.shard && s.level == claim.level).map_or(0, |(_, s)| s.visible);
                    prop_assert!(claim.count <= visible);
                    prop_assert!(ceiling.is_none_or(|ceiling| claim.level <= ceiling));
                }
            }
        }
    }
}
