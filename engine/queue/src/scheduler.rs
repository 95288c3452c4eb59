//! Which level the next delivery comes from. Integers only; used by a shard for a queue of its own, and by a core's
//! receive planner for a queue over several shards.
//!
//! Two credits make reserve and floor exact. While less urgent levels have work, each delivery adds `reserve` to the
//! first credit, and a delivery to one of them takes a whole one away; at a whole one the delivery is owed to them. The
//! floor's credit does the same for the two least urgent levels. A credit stays between minus one and one delivery and
//! one step, so over any N deliveries in which the levels have work throughout, they get more than N × fraction − 3, and
//! nothing is banked while they have none. Only what was chosen and did not come is owed on top, until the levels have no
//! work.
//!
//! Among levels 1.. a stride scheduler shares by weight. A second one, to which each delivery to the floor's two levels
//! counts, says which of them is next where the floor gives. Each level has a virtual time; a delivery moves it on by one step, 2^40 × 10^15 / weight (in millionths,
//! rounded down), and the level that is earliest is next, of equal ones the most urgent. The *present* is the time of the
//! earliest level that has work, and no level is before it: one that comes back from idleness starts at the present.
//! What a level gets out of its turn (from the floor, or by age) counts, but moves it to one step after the present at
//! most, so that nobody has to pay back for long; nor is it further ahead than one of its new steps when weights change.
//! Kept is only each level's *lead* over the present, so no number grows. (Waldspurger and Weihl, "Stride scheduling",
//! 1995.)

use overtake_base::codec::{Malformed, Reader, Writer};
use overtake_base::limits::{LEVELS_MAX, RECEIVE_MESSAGES_MAX};
use overtake_base::planted::{Bug, is_planted};
use overtake_base::queue_config::{QueueConfig, Scheduling};
use overtake_base::{Level, UnixMillis};

/// A whole delivery, in the unit of the credits.
const ONE: i64 = 1_000_000;
/// Numerator of the strides: weights are millionths up to 10^15, so that every stride is at least 2^40.
const STRIDE_ONE: u128 = 1_000_000_000_000_000 << 40;
/// Most that refunds can make owed: one receive's deliveries, and what a credit holds by itself.
const CREDIT_MAX: i64 = (RECEIVE_MESSAGES_MAX as i64 + 1) * ONE;
/// No lead is longer: a step is at most 2^90, and refunds make a lead at most as long as one receive's steps are.
const LEAD_MAX: u128 = 1 << 110;

/// A set of levels.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LevelSet(u128);

impl LevelSet {
    /// One bit for each level, level 0 the lowest.
    #[must_use]
    pub fn bits(self) -> u128 {
        self.0
    }

    /// What [`LevelSet::bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

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

    /// Those that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those of either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
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
    steps: Vec<u128>,
    /// Below 0 by up to one delivery after one that the floor forced.
    reserve_credit: i64,
    floor_credit: i64,
    /// Among levels 1.. by weight.
    leads: Leads,
    /// Among the floor's levels: who is next where the floor gives.
    floor_leads: Leads,
}

/// A level chosen for the next delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The level.
    pub level: Level,
    /// Owed to a share, while a more urgent level had visible work.
    pub share: bool,
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
            steps: Vec::new(),
            reserve_credit: 0,
            floor_credit: 0,
            leads: Leads(vec![0; levels]),
            floor_leads: Leads(vec![0; levels]),
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
        self.steps =
            config.weights_micro.iter().map(|weight| STRIDE_ONE / u128::from((*weight).max(1))).collect();
        self.leads.shorten(&self.steps);
        self.floor_leads.shorten(&self.steps);
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
        let choice = self.choose(visible, head_since, now)?;
        self.charge(choice, visible);
        Some((choice.level, choice.share))
    }

    /// The same, without charging it: a choice that comes to nothing leaves no trace.
    #[must_use]
    pub fn choose(
        &self,
        visible: LevelSet,
        head_since: &dyn Fn(Level) -> UnixMillis,
        now: UnixMillis,
    ) -> Option<Choice> {
        let first = visible.first()?;
        if self.mode == Scheduling::Strict {
            return Some(Choice { level: first, share: false });
        }
        let lower = visible.without_most_urgent();
        let tail = visible.and(self.floor_levels);
        let natural = self.natural(visible, head_since, now);
        let floor_owed = !tail.is_empty() && self.floor_credit + self.floor_ppm >= ONE;
        let reserve_owed = !lower.is_empty() && self.reserve_credit + self.reserve_ppm >= ONE;
        let level = if floor_owed && !tail.contains(natural) && !is_planted(Bug::NoFloor) {
            self.floor_leads.earliest(tail)
        } else if reserve_owed && natural == Level(0) && !is_planted(Bug::NoReserve) {
            self.natural(lower, head_since, now)
        } else {
            natural
        };
        let share = match self.mode {
            Scheduling::Weighted => level != first,
            Scheduling::Aging => level != natural,
            Scheduling::Strict => false,
        };
        Some(Choice { level, share })
    }

    /// Counts a delivery that was chosen among levels with `visible` work.
    pub fn charge(&mut self, choice: Choice, visible: LevelSet) {
        if self.mode == Scheduling::Strict {
            return;
        }
        let level = choice.level;
        let lower = visible.without_most_urgent();
        let tail = visible.and(self.floor_levels);
        let earn = |credit: i64, ppm: i64, none: bool| {
            if none { credit.min(ONE) } else { (credit + ppm).min(CREDIT_MAX) }
        };
        self.reserve_credit = earn(self.reserve_credit, self.reserve_ppm, lower.is_empty());
        self.floor_credit = earn(self.floor_credit, self.floor_ppm, tail.is_empty());
        if tail.contains(level) {
            self.floor_leads.deliver(level, tail, &self.steps);
        }
        if level == Level(0) {
            return;
        }
        // What level 0 leaves by itself is no advance on the reserve; what the floor forces is.
        let least = if visible.contains(Level(0)) { -ONE } else { 0 };
        self.reserve_credit = (self.reserve_credit - ONE).max(least);
        if self.floor_levels.contains(level) {
            self.floor_credit = (self.floor_credit - ONE).max(0);
        }
        self.leads.deliver(level, lower, &self.steps);
    }

    /// Takes a charged delivery back that did not happen. It may leave up to one step of credit behind, which only favours
    /// the less urgent.
    pub fn refund(&mut self, level: Level, share: bool) {
        if self.mode == Scheduling::Strict || level == Level(0) {
            return;
        }
        self.reserve_credit = (self.reserve_credit + ONE).min(CREDIT_MAX);
        if self.floor_levels.contains(level) {
            self.floor_credit = (self.floor_credit + ONE).min(CREDIT_MAX);
        }
        self.floor_leads.step_back(level, &self.steps);
        if share {
            // Its credit makes up for it.
            self.leads.step_back(level, &self.steps);
        } else {
            self.leads.take_back(level, &self.steps);
        }
    }

    /// What the mode chooses where nothing is owed.
    fn natural(&self, among: LevelSet, head_since: &dyn Fn(Level) -> UnixMillis, now: UnixMillis) -> Level {
        let first = among.first().unwrap_or(Level(0));
        match self.mode {
            Scheduling::Strict => first,
            Scheduling::Weighted if first == Level(0) => first,
            Scheduling::Weighted => self.leads.earliest(among),
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

    /// Appends the history (not the configuration).
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u64(self.reserve_credit.cast_unsigned());
        out.u64(self.floor_credit.cast_unsigned());
        out.u8(u8::try_from(self.leads.0.len()).unwrap_or(u8::MAX));
        for (lead, floor_lead) in self.leads.0.iter().zip(&self.floor_leads.0) {
            out.u128(*lead);
            out.u128(*floor_lead);
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
            scheduler.leads.0[level] = lead(input)?;
            scheduler.floor_leads.0[level] = lead(input)?;
        }
        Ok(scheduler)
    }
}

/// How far each level is ahead of the present, in virtual time.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Leads(Vec<u128>);

impl Leads {
    /// The level that is next; of equal ones the most urgent.
    fn earliest(&self, among: LevelSet) -> Level {
        among.iter().min_by_key(|level| (self.0[usize::from(level.0)], *level)).unwrap_or(Level(0))
    }

    /// A delivery to `level`, one of those `among` that have work: the present moves to the earliest of them.
    fn deliver(&mut self, level: Level, among: LevelSet, steps: &[u128]) {
        let passed = among.iter().map(|level| self.0[usize::from(level.0)]).min().unwrap_or(0);
        self.0.iter_mut().for_each(|lead| *lead = lead.saturating_sub(passed));
        let at = usize::from(level.0);
        self.0[at] = self.0[at].max(steps[at]);
    }

    /// A delivery did not happen: the level is a step earlier, and may be before all others then.
    fn take_back(&mut self, level: Level, steps: &[u128]) {
        let at = usize::from(level.0);
        let Some(step) = steps.get(at).copied() else { return };
        let missing = step.saturating_sub(self.0[at]);
        self.step_back(level, steps);
        for (_, lead) in self.0.iter_mut().enumerate().skip(1).filter(|(other, _)| *other != at) {
            *lead = (*lead + missing).min(LEAD_MAX);
        }
    }

    /// The level is a step earlier, but not before the present.
    fn step_back(&mut self, level: Level, steps: &[u128]) {
        let at = usize::from(level.0);
        if let (Some(lead), Some(step)) = (self.0.get_mut(at), steps.get(at)) {
            *lead = lead.saturating_sub(*step);
        }
    }

    /// No lead is longer than a step.
    fn shorten(&mut self, steps: &[u128]) {
        self.0.iter_mut().zip(steps).for_each(|(lead, step)| *lead = (*lead).min(*step));
    }
}

fn credit(input: &mut Reader<'_>) -> Result<i64, Malformed> {
    let credit = input.u64("scheduler credit")?.cast_signed();
    if (-ONE..=CREDIT_MAX).contains(&credit) { Ok(credit) } else { Err(Malformed("scheduler credit")) }
}

fn lead(input: &mut Reader<'_>) -> Result<u128, Malformed> {
    let lead = input.u128("scheduler lead")?;
    if lead <= LEAD_MAX { Ok(lead) } else { Err(Malformed("scheduler lead")) }
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

    /// Counts within 3 of their exact parts: of `deliveries`, each level gets `parts` hundred-thousandths.
    fn check_parts(counts: &[usize], deliveries: usize, parts: &[(usize, f64)]) {
        for (level, part) in parts {
            let (got, exact) = (counts[*level] as f64, deliveries as f64 * part);
            assert!(
                (got - exact).abs() <= 3.0,
                "level {level} got {got} instead of {exact}: {:?}",
                &counts[..5]
            );
        }
    }

    #[test]
    fn the_floors_levels_share_by_weight_also_after_one_was_idle() {
        let levels = |p1: f64, p2: f64, floor: f64| {
            [(0, 1.0 - p1 - p2 - floor), (1, p1), (2, p2), (3, floor * 7.0 / 12.0), (4, floor * 5.0 / 12.0)]
        };
        for idle in [3, 4] {
            let busy = 7 - idle;
            for flooded in [set(&[0, 1, busy]), set(&[0, busy]), set(&[busy]), set(&[0, 1, 2])] {
                let mut scheduler = Scheduler::new(&config(5, Scheduling::Weighted, 100_000, 50_000));
                counts(&mut scheduler, flooded, 1_000_000);
                let after = counts(&mut scheduler, set(&[0, 1, 2, 3, 4]), 20_000);
                check_parts(&after, 20_000, &levels(0.05 * 25.0 / 38.0, 0.05 * 13.0 / 38.0, 0.05));

                let mut scheduler = Scheduler::new(&config(5, Scheduling::Weighted, 50_000, 50_000));
                counts(&mut scheduler, flooded, 1_000_000);
                let after = counts(&mut scheduler, set(&[0, 1, 2, 3, 4]), 20_000);
                check_parts(&after, 20_000, &levels(0.0, 0.0, 0.05));
            }
        }
    }

    /// Also where the weights give the floor's levels a part of what the floor is, or all of it and more.
    #[test]
    fn the_floors_levels_share_by_weight_whatever_the_floor() {
        for floor_ppm in (0..=100_000).step_by(2_500) {
            let mut scheduler = Scheduler::new(&config(5, Scheduling::Weighted, 100_000, floor_ppm));
            let counts = counts(&mut scheduler, set(&[0, 1, 2, 3, 4]), 100_000);
            let floor = (f64::from(floor_ppm) / 1e6).max(0.1 * 12.0 / 50.0);
            assert_eq!(counts[0], 90_000);
            // Where the floor is about what the weights give, it sometimes acts though the weights were about to.
            let tail = counts[3] + counts[4];
            assert!((tail as f64 - 100_000.0 * floor).abs() <= 151.0, "{floor_ppm}: {:?}", &counts[..5]);
            check_parts(&counts, tail, &[(3, 7.0 / 12.0), (4, 5.0 / 12.0)]);
            check_parts(&counts, 10_000 - tail, &[(1, 25.0 / 38.0), (2, 13.0 / 38.0)]);
        }
    }

    #[test]
    fn no_number_grows_however_small_the_weights() {
        let mut config = config(5, Scheduling::Weighted, 500_000, 500_000);
        config.weights_micro = vec![1; 5];
        let mut scheduler = Scheduler::new(&config);
        let sets = [set(&[0, 1, 2, 3, 4]), set(&[0, 4]), set(&[3, 4])];
        for (round, visible) in (0u32..3_000).zip(sets.into_iter().cycle()) {
            scheduler.next(visible, &same_age, UnixMillis(0));
            if round % 7 == 0 {
                scheduler.refund(Level(1 + (round % 4) as u8), round % 2 == 0);
            }
        }
        let step = STRIDE_ONE;
        assert!(scheduler.leads.0.iter().chain(&scheduler.floor_leads.0).all(|lead| *lead <= 100 * step));
        let mut bytes = Vec::new();
        scheduler.encode(&mut Writer(&mut bytes));
        assert_eq!(Scheduler::decode(&mut Reader::new(&bytes), &config), Ok(scheduler));
    }

    #[test]
    fn a_changed_weight_counts_at_once() {
        let mut config = config(5, Scheduling::Weighted, 0, 0);
        config.weights_micro = vec![1, 1_000_000, 1_000_000, 1_000_000, 1];
        let mut scheduler = Scheduler::new(&config);
        counts(&mut scheduler, set(&[4]), 1);
        config.weights_micro = vec![1_000_000; 5];
        scheduler.reconfigure(&config);
        let after = counts(&mut scheduler, set(&[1, 2, 3, 4]), 400);
        check_parts(&after, 400, &[(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)]);
    }

    #[test]
    fn what_did_not_come_is_made_up_for() {
        let mut scheduler = Scheduler::new(&config(5, Scheduling::Weighted, 100_000, 50_000));
        counts(&mut scheduler, set(&[0, 4]), 1_000);
        (0..10).for_each(|_| scheduler.refund(Level(4), true));
        assert_eq!(counts(&mut scheduler, set(&[0, 4]), 100)[4], 20, "ten, and those of these hundred");
        // Of levels that share by weight, too.
        for _ in 0..100 {
            scheduler.next(set(&[1, 2]), &same_age, UnixMillis(0));
        }
        (0..10).for_each(|_| scheduler.refund(Level(2), false));
        let after = counts(&mut scheduler, set(&[1, 2]), 380);
        assert!(after[2].abs_diff(130 + 10 - 3) <= 4, "{:?}", &after[..5]);
        // But nothing is owed any more to who has no work.
        (0..500).for_each(|_| scheduler.refund(Level(4), true));
        counts(&mut scheduler, set(&[0]), 10);
        let after = counts(&mut scheduler, set(&[0, 4]), 100);
        assert!(after[4] <= 11, "{:?}", &after[..5]);
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
