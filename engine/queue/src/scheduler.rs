//! Which level the next delivery comes from. Integers only; used by a shard for a queue of its own, and by a core's
//! receive planner for a queue over several shards.
//!
//! Two credits make reserve and floor exact. While less urgent levels have work, each delivery adds `reserve` to the
//! first credit, and a delivery to one of them takes a whole one away; at a whole one the delivery is owed to them. The
//! floor's credit does the same for the two least urgent levels. A credit stays between minus one and one delivery and
//! one step, so over any N deliveries in which the levels have work throughout, they get more than N × fraction − 3, and
//! nothing is banked while they have none.
//!
//! Among levels 1.. a stride scheduler shares by weight: each level has a virtual time ("pass") that a delivery moves on
//! by 1/weight, and the lowest pass is next. A level that comes back from idleness starts at the present; what the
//! floor gave a level counts, up to one step, so that the others make up for it. (Waldspurger and Weihl, "Stride
//! scheduling", 1995.)

use overtake_base::codec::{Malformed, Reader, Writer};
use overtake_base::limits::LEVELS_MAX;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::queue_config::{QueueConfig, Scheduling};
use overtake_base::{Level, UnixMillis};

/// A whole delivery, in the unit of the credits.
const ONE: i64 = 1_000_000;
/// Numerator of the strides: weights are millionths up to 10^15, so that every stride is at least 2^40.
const STRIDE_ONE: u128 = 1_000_000_000_000_000 << 40;
/// Virtual time beyond which all passes are moved back together.
const PASS_MAX: u128 = 1 << 110;

/// A set of levels.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LevelSet(u128);

impl LevelSet {
    /// Adds a level.
    pub fn insert(&mut self, level: Level) {
        self.0 |= 1 << level.0;
    }

    /// Takes a level out.
    pub fn remove(&mut self, level: Level) {
        self.0 &= !(1 << level.0);
    }

    /// Whether the level is in it.
    #[must_use]
    pub fn contains(self, level: Level) -> bool {
        self.0 >> level.0 & 1 == 1
    }

    /// The most urgent level.
    #[must_use]
    pub fn first(self) -> Option<Level> {
        (self.0 != 0).then(|| Level(self.0.trailing_zeros() as u8))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Those that are at most `ceiling`.
    #[must_use]
    pub fn up_to(self, ceiling: Level) -> Self {
        if ceiling.0 >= 127 { self } else { Self(self.0 & ((1 << (ceiling.0 + 1)) - 1)) }
    }

    /// All of them, most urgent first.
    pub fn iter(self) -> impl Iterator<Item = Level> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let level = Self(left).first()?;
            left &= left - 1;
            Some(level)
        })
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn without_most_urgent(self) -> Self {
        Self(self.0 & !1)
    }
}

impl FromIterator<Level> for LevelSet {
    fn from_iter<I: IntoIterator<Item = Level>>(levels: I) -> Self {
        let mut set = Self::default();
        levels.into_iter().for_each(|level| set.insert(level));
        set
    }
}

/// See the module's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scheduler {
    mode: Scheduling,
    aging_ms: u64,
    reserve_ppm: i64,
    floor_ppm: i64,
    floor_levels: LevelSet,
    strides: Vec<u128>,
    /// Below 0 by up to one delivery after one that the floor forced.
    reserve_credit: i64,
    floor_credit: i64,
    /// Virtual time of each level among levels 1.. by weight.
    passes: Vec<u128>,
    /// The same for what the floor gives.
    floor_passes: Vec<u128>,
}

impl Scheduler {
    /// A scheduler without history.
    #[must_use]
    pub fn new(config: &QueueConfig) -> Self {
        let levels = usize::from(config.levels);
        let mut scheduler = Self {
            mode: config.scheduling,
            aging_ms: 1,
            reserve_ppm: 0,
            floor_ppm: 0,
            floor_levels: LevelSet::default(),
            strides: Vec::new(),
            reserve_credit: 0,
            floor_credit: 0,
            passes: vec![0; levels],
            floor_passes: vec![0; levels],
        };
        scheduler.reconfigure(config);
        scheduler
    }

    /// Takes a changed configuration; credits and virtual times go on.
    pub fn reconfigure(&mut self, config: &QueueConfig) {
        self.mode = config.scheduling;
        self.aging_ms = config.aging_s.saturating_mul(1_000).max(1);
        self.reserve_ppm = i64::from(config.reserve_ppm);
        self.floor_ppm = i64::from(config.floor_ppm);
        self.floor_levels = (1..config.levels).rev().take(2).map(Level).collect();
        self.strides =
            config.weights_micro.iter().map(|weight| STRIDE_ONE / u128::from((*weight).max(1))).collect();
    }

    /// Chooses the level of the next delivery among those that have `visible` work, and charges it. `head_since` gives
    /// the first visibility of a level's head. The flag says that the delivery is owed to a share while a more urgent
    /// level had visible work.
    pub fn next(
        &mut self,
        visible: LevelSet,
        head_since: &dyn Fn(Level) -> UnixMillis,
        now: UnixMillis,
    ) -> Option<(Level, bool)> {
        let first = visible.first()?;
        if self.mode == Scheduling::Strict {
            return Some((first, false));
        }
        let lower = visible.without_most_urgent();
        let tail = visible.and(self.floor_levels);
        if !lower.is_empty() {
            self.reserve_credit += self.reserve_ppm;
        }
        if !tail.is_empty() {
            self.floor_credit += self.floor_ppm;
        }
        let natural = self.natural(visible, head_since, now);
        let level = if self.floor_credit >= ONE
            && !tail.is_empty()
            && !tail.contains(natural)
            && !is_planted(Bug::NoFloor)
        {
            self.by_floor(tail)
        } else if self.reserve_credit >= ONE
            && !lower.is_empty()
            && natural == Level(0)
            && !is_planted(Bug::NoReserve)
        {
            self.natural(lower, head_since, now)
        } else {
            natural
        };
        self.charge(level, visible);
        let share = match self.mode {
            Scheduling::Weighted => level != first,
            Scheduling::Aging => level != natural,
            Scheduling::Strict => false,
        };
        Some((level, share))
    }

    /// Takes a chosen delivery back that did not happen. It may leave up to one step of credit behind, which only favours
    /// the less urgent.
    pub fn refund(&mut self, level: Level, _share: bool) {
        if self.mode == Scheduling::Strict || level == Level(0) {
            return;
        }
        self.reserve_credit = (self.reserve_credit + ONE).min(ONE + self.reserve_ppm);
        if self.floor_levels.contains(level) {
            self.floor_credit = (self.floor_credit + ONE).min(ONE + self.floor_ppm);
        }
        let at = usize::from(level.0);
        if let (Some(pass), Some(stride)) = (self.passes.get_mut(at), self.strides.get(at)) {
            *pass = pass.saturating_sub(*stride);
        }
    }

    /// What the mode chooses where nothing is owed.
    fn natural(&self, among: LevelSet, head_since: &dyn Fn(Level) -> UnixMillis, now: UnixMillis) -> Level {
        let first = among.first().unwrap_or(Level(0));
        match self.mode {
            Scheduling::Strict => first,
            Scheduling::Weighted if first == Level(0) => first,
            Scheduling::Weighted => lowest(among, &self.passes),
            Scheduling::Aging => among
                .iter()
                .min_by_key(|level| {
                    let since = head_since(*level);
                    let effective = u64::from(level.0).saturating_sub(now.since(since) / self.aging_ms);
                    (effective, since, *level)
                })
                .unwrap_or(first),
        }
    }

    fn by_floor(&mut self, tail: LevelSet) -> Level {
        let level = lowest(tail, &self.floor_passes);
        let at = usize::from(level.0);
        let present = self.floor_passes[at];
        self.floor_passes[at] += self.strides[at];
        for other in tail.iter() {
            let pass = &mut self.floor_passes[usize::from(other.0)];
            *pass = (*pass).max(present);
        }
        level
    }

    fn charge(&mut self, level: Level, visible: LevelSet) {
        let lower = visible.without_most_urgent();
        if level == Level(0) {
            return;
        }
        // What level 0 leaves by itself is no advance on the reserve; what the floor forces is.
        let least = if visible.contains(Level(0)) { -ONE } else { 0 };
        self.reserve_credit = (self.reserve_credit - ONE).max(least);
        if self.floor_levels.contains(level) {
            self.floor_credit = (self.floor_credit - ONE).max(0);
        }
        // The present is the lowest pass among those with work; whoever is idle is kept there.
        let Some(present) = lower.iter().map(|level| self.passes[usize::from(level.0)]).min() else { return };
        let at = usize::from(level.0);
        // A delivery that the floor forced counts as the level's own, up to one step ahead of the present.
        let ahead_max = (present + self.strides[at]).max(self.passes[at]);
        self.passes[at] = (self.passes[at] + self.strides[at]).min(ahead_max);
        for (idle, pass) in self.passes.iter_mut().enumerate().skip(1) {
            if !lower.contains(Level(idle as u8)) {
                *pass = (*pass).max(present);
            }
        }
        if present > PASS_MAX {
            self.passes.iter_mut().for_each(|pass| *pass = pass.saturating_sub(present));
        }
    }

    /// Appends the history (not the configuration).
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u64(self.reserve_credit.cast_unsigned());
        out.u64(self.floor_credit.cast_unsigned());
        out.u8(u8::try_from(self.passes.len()).unwrap_or(u8::MAX));
        for (pass, floor_pass) in self.passes.iter().zip(&self.floor_passes) {
            out.u128(*pass);
            out.u128(*floor_pass);
        }
    }

    /// Reads the history of a scheduler of a queue with `config`.
    pub fn decode(input: &mut Reader<'_>, config: &QueueConfig) -> Result<Self, Malformed> {
        let mut scheduler = Self::new(config);
        scheduler.reserve_credit = credit(input)?;
        scheduler.floor_credit = credit(input)?;
        let levels = usize::from(input.u8("scheduler levels")?);
        if levels != usize::from(config.levels) || levels > LEVELS_MAX {
            return Err(Malformed("scheduler levels"));
        }
        for level in 0..levels {
            scheduler.passes[level] = pass(input)?;
            scheduler.floor_passes[level] = pass(input)?;
        }
        Ok(scheduler)
    }
}

/// The level with the lowest pass; of equal ones the most urgent.
fn lowest(among: LevelSet, passes: &[u128]) -> Level {
    among.iter().min_by_key(|level| (passes[usize::from(level.0)], *level)).unwrap_or(Level(0))
}

fn credit(input: &mut Reader<'_>) -> Result<i64, Malformed> {
    let credit = input.u64("scheduler credit")?.cast_signed();
    if (-ONE..=2 * ONE).contains(&credit) { Ok(credit) } else { Err(Malformed("scheduler credit")) }
}

fn pass(input: &mut Reader<'_>) -> Result<u128, Malformed> {
    let pass = input.u128("scheduler pass")?;
    if pass < 1 << 120 { Ok(pass) } else { Err(Malformed("scheduler pass")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(levels: u8, scheduling: Scheduling, reserve_ppm: u32, floor_ppm: u32) -> QueueConfig {
        QueueConfig { scheduling, reserve_ppm, floor_ppm, ..QueueConfig::with_defaults(levels, 1) }
    }

    fn set(levels: &[u8]) -> LevelSet {
        levels.iter().copied().map(Level).collect()
    }

    fn same_age(_: Level) -> UnixMillis {
        UnixMillis(0)
    }

    fn counts(scheduler: &mut Scheduler, visible: LevelSet, deliveries: usize) -> Vec<usize> {
        let mut counts = vec![0; 101];
        for _ in 0..deliveries {
            let (level, share) = scheduler.next(visible, &same_age, UnixMillis(0)).unwrap();
            assert_eq!(share, Some(level) != visible.first());
            counts[usize::from(level.0)] += 1;
        }
        counts
    }

    #[test]
    fn reserve_and_floor_are_exact_under_a_flood() {
        let mut scheduler = Scheduler::new(&config(5, Scheduling::Weighted, 100_000, 50_000));
        let counts = counts(&mut scheduler, set(&[0, 1, 2, 3, 4]), 100_000);
        assert_eq!(counts[0], 90_000);
        assert_eq!(counts[3] + counts[4], 5_000);
        // Inside the floor by weight 7 : 5; the rest of the reserve by weight 25 : 13.
        assert!(counts[3].abs_diff(2_917) <= 2, "{counts:?}");
        assert!(counts[1].abs_diff(3_289) <= 2, "{counts:?}");
    }

    #[test]
    fn without_level_0_the_others_share_by_weight() {
        let mut scheduler = Scheduler::new(&config(5, Scheduling::Weighted, 100_000, 50_000));
        let counts = counts(&mut scheduler, set(&[1, 2, 3, 4]), 50_000);
        assert_eq!(counts[1..5], [25_000, 13_000, 7_000, 5_000]);
    }

    #[test]
    fn weights_below_the_floor_are_lifted_to_it() {
        let mut config = config(4, Scheduling::Weighted, 0, 200_000);
        config.weights_micro = vec![1_000_000, 98_000_000, 1_000_000, 1_000_000];
        let counts = counts(&mut Scheduler::new(&config), set(&[1, 2, 3]), 10_000);
        assert!(counts[1].abs_diff(8_000) <= 2 && counts[2].abs_diff(counts[3]) <= 2, "{counts:?}");
    }

    #[test]
    fn after_a_flood_nobody_has_to_pay_back() {
        let mut scheduler = Scheduler::new(&config(5, Scheduling::Weighted, 100_000, 100_000));
        counts(&mut scheduler, set(&[0, 1, 2, 3, 4]), 100_000);
        let after = counts(&mut scheduler, set(&[1, 2, 3, 4]), 500);
        for (level, expected) in [(1, 250usize), (2, 130), (3, 70), (4, 50)] {
            assert!(after[level].abs_diff(expected) <= 2, "{after:?}");
        }
    }

    #[test]
    fn age_lifts_a_level_and_is_no_share() {
        let mut config = config(5, Scheduling::Aging, 0, 0);
        config.aging_s = 10;
        let mut scheduler = Scheduler::new(&config);
        let since = |level: Level| UnixMillis(if level == Level(4) { 0 } else { 30_000 });
        let now = UnixMillis(35_000);
        // Level 4 has waited 35 s: effective level 1, as old work it goes before level 1.
        assert_eq!(scheduler.next(set(&[1, 4]), &since, now), Some((Level(4), false)));
        assert_eq!(scheduler.next(set(&[0, 4]), &since, now), Some((Level(0), false)));
        assert_eq!(scheduler.next(set(&[0, 4]), &since, UnixMillis(60_000)), Some((Level(4), false)));
    }

    #[test]
    fn strict_knows_no_shares() {
        let mut scheduler = Scheduler::new(&config(100, Scheduling::Strict, 500_000, 500_000));
        for _ in 0..1_000 {
            assert_eq!(scheduler.next(set(&[3, 50, 99]), &same_age, UnixMillis(0)), Some((Level(3), false)));
        }
    }

    #[test]
    fn one_level_is_no_trouble() {
        let mut scheduler = Scheduler::new(&config(1, Scheduling::Weighted, 500_000, 500_000));
        assert_eq!(scheduler.next(set(&[0]), &same_age, UnixMillis(0)), Some((Level(0), false)));
        assert_eq!(scheduler.next(LevelSet::default(), &same_age, UnixMillis(0)), None);
    }

    /// Runs of deliveries, each with a fixed set of levels that have work.
    fn runs() -> impl Strategy<Value = Vec<(u8, usize)>> {
        proptest::collection::vec((1u8..32, 1usize..200), 1..20)
    }

    proptest! {
        #[test]
        fn shares_hold_over_every_window_and_nothing_is_banked(
            runs in runs(), reserve_ppm in 0u32..=500_000, floor_ppm in 0u32..=500_000, aging: bool,
        ) {
            let mode = if aging { Scheduling::Aging } else { Scheduling::Weighted };
            let mut scheduler = Scheduler::new(&config(5, mode, reserve_ppm, floor_ppm));
            for (bits, length) in runs {
                let visible = set(&(0..5).filter(|l| bits >> l & 1 == 1).collect::<Vec<_>>());
                let (mut lower, mut tail) = (0u64, 0u64);
                for delivery in 1..=length as u64 {
                    let (level, _) = scheduler.next(visible, &same_age, UnixMillis(0)).unwrap();
                    prop_assert!(visible.contains(level));
                    lower += u64::from(level.0 > 0);
                    tail += u64::from(level.0 > 2);
                    let least = |ppm: u32| (delivery * u64::from(ppm) / 1_000_000).saturating_sub(2);
                    if visible.0 & !1 != 0 {
                        prop_assert!(lower >= least(reserve_ppm));
                    }
                    if visible.0 & 0b11000 != 0 {
                        prop_assert!(tail >= least(floor_ppm));
                    }
                    // At most the greater of both fractions goes past level 0, and what credit could be left from before.
                    if visible.contains(Level(0)) && !aging {
                        let most = delivery * u64::from(reserve_ppm.max(floor_ppm)) / 1_000_000 + 3;
                        prop_assert!(lower <= most, "{lower} > {most}");
                    }
                }
            }
        }

        #[test]
        fn bytes_keep_the_history(runs in runs(), more in 1u8..32) {
            let config = config(5, Scheduling::Weighted, 123_456, 45_678);
            let mut scheduler = Scheduler::new(&config);
            for (bits, length) in runs {
                let visible = set(&(0..5).filter(|l| bits >> l & 1 == 1).collect::<Vec<_>>());
                for _ in 0..length {
                    scheduler.next(visible, &same_age, UnixMillis(0));
                }
            }
            let mut bytes = Vec::new();
            scheduler.encode(&mut Writer(&mut bytes));
            let mut back = Scheduler::decode(&mut Reader::new(&bytes), &config).unwrap();
            prop_assert_eq!(&back, &scheduler);
            let visible = set(&(0..5).filter(|l| more >> l & 1 == 1).collect::<Vec<_>>());
            for _ in 0..100 {
                let expected = scheduler.next(visible, &same_age, UnixMillis(0));
                prop_assert_eq!(back.next(visible, &same_age, UnixMillis(0)), expected);
            }
        }
    }
}
