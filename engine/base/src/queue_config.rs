//! A queue's configuration: fields, defaults, bounds, the patch that changes it, and its bytes.
//!
//! Fractions are kept as integers (parts per million, millionths) so that every replica computes the same shares.

use crate::codec::{Malformed, Reader, Writer};
use crate::limits::{
    AGING_S_DEFAULT, DEDUP_WINDOW_S_DEFAULT, DEPTH_MAX, LEASE_S_DEFAULT, LEASE_S_MAX, LEVELS_DEFAULT,
    LEVELS_MAX, MAX_DELIVERIES_DEFAULT, MAX_DELIVERIES_MAX, PERIOD_S_MAX, RATE_MAX, RETENTION_S_DEFAULT,
    SHARDS_MAX, SHARE_PPM_MAX, STARVATION_S_DEFAULT, WEIGHT_MICRO_MAX,
};
use std::collections::BTreeMap;

/// How a queue chooses the level of its next delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scheduling {
    /// Level 0 first, the others by weight, with a reserve and a floor.
    #[default]
    Weighted,
    /// Level order only.
    Strict,
    /// A message becomes one level more urgent for each `aging_s` waited; with a reserve and a floor.
    Aging,
}

/// When a level that has visible work and no delivery counts as starved, in seconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Starvation {
    /// The same for all levels.
    All(u64),
    /// One for each level, level 0 first.
    PerLevel(Vec<u64>),
}

/// Delivery rate caps, per second, with a burst of one second. 0 pauses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RateCaps {
    /// For the whole queue.
    pub queue: Option<u64>,
    /// For single levels.
    pub levels: BTreeMap<u8, u64>,
}

impl RateCaps {
    /// True where nothing is capped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_none() && self.levels.is_empty()
    }
}

/// Delay before a failed delivery returns: `first_s × factor^(failures − 1)`, at most `max_s`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// After the first failure, in seconds, 0..=`DELAY_S_MAX`.
    pub first_s: u64,
    /// Growth for each further failure, in millionths, 1,000,000..=1,000,000,000 (1 to 1000).
    pub factor_micro: u64,
    /// At most, in seconds, 0..=`DELAY_S_MAX`.
    pub max_s: u64,
}

/// Smallest and largest `factor_micro`.
pub const BACKOFF_FACTOR_MICRO: core::ops::RangeInclusive<u64> = 1_000_000..=1_000_000_000;

impl Backoff {
    /// Milliseconds to wait after the `failures`-th failure (1 = first).
    #[must_use]
    pub fn delay_ms(self, failures: u32) -> u64 {
        let max_ms = u128::from(self.max_s) * 1_000;
        let mut delay_micro_ms = u128::from(self.first_s) * 1_000 * 1_000_000;
        for _ in 1..failures {
            if delay_micro_ms >= max_ms * 1_000_000 || delay_micro_ms == 0 || self.factor_micro == 1_000_000 {
                break;
            }
            delay_micro_ms = delay_micro_ms * u128::from(self.factor_micro) / 1_000_000;
        }
        u64::try_from((delay_micro_ms / 1_000_000).min(max_ms)).unwrap_or(u64::MAX)
    }
}

/// The whole configuration of one queue. Field names are those of the HTTP contract.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    /// Priority levels, 1..=100. Fixed at creation.
    pub levels: u8,
    /// Shards the queue is spread over. Fixed at creation.
    pub shards: u16,
    /// How the next level is chosen.
    pub scheduling: Scheduling,
    /// One weight for each level, in millionths, each above 0.
    pub weights_micro: Vec<u64>,
    /// Least part of deliveries for levels 1.. while they have work, in parts per million.
    pub reserve_ppm: u32,
    /// Least part for the two least urgent levels, in parts per million.
    pub floor_ppm: u32,
    /// Waiting that makes a message one level more urgent (`aging` only), in seconds.
    pub aging_s: u64,
    /// Failed deliveries before a message is dead.
    pub max_deliveries: u32,
    /// Lease of a receive that does not say, in seconds.
    pub lease_s: u32,
    /// How long a dedup key or an id is remembered, in seconds; 0 = dedup keys are off.
    pub dedup_window_s: u64,
    /// How long a message lives from its first visibility, in seconds.
    pub retention_s: u64,
    /// Most messages visible, delayed and leased together.
    pub max_depth: Option<u64>,
    /// Most body bytes of those.
    pub max_bytes: Option<u64>,
    /// Delivery rate caps.
    pub rate_caps: RateCaps,
    /// Whether expired messages go to the dead-letter queue.
    pub dead_letter_expired: bool,
    /// Delay before a failed delivery returns.
    pub backoff: Option<Backoff>,
    /// Starvation alert.
    pub starvation: Starvation,
}

/// Why a configuration was refused: the field, and what is allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigRefused {
    /// Name of the field at fault, as in the HTTP contract.
    pub field: &'static str,
    /// What is allowed.
    pub detail: String,
    /// True where the value is well-formed but contradicts what was fixed at creation.
    pub conflict: bool,
}

/// One field of a patch: left alone (`None`), set, or put back to its default (`Some(None)`).
pub type Change<T> = Option<Option<T>>;

/// A change of a configuration; fields not named stay as they are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueConfigPatch {
    pub levels: Change<u8>,
    pub shards: Change<u16>,
    pub scheduling: Change<Scheduling>,
    pub weights_micro: Change<Vec<u64>>,
    pub reserve_ppm: Change<u32>,
    pub floor_ppm: Change<u32>,
    pub aging_s: Change<u64>,
    pub max_deliveries: Change<u32>,
    pub lease_s: Change<u32>,
    pub dedup_window_s: Change<u64>,
    pub retention_s: Change<u64>,
    pub max_depth: Change<u64>,
    pub max_bytes: Change<u64>,
    pub rate_caps: Change<RateCaps>,
    pub dead_letter_expired: Change<bool>,
    pub backoff: Change<Backoff>,
    pub starvation: Change<Starvation>,
}

/// Default weights: 50/25/13/7/5 for five levels, else 50, then each half of the one before, rounded up.
#[must_use]
pub fn default_weights_micro(levels: u8) -> Vec<u64> {
    if levels == 5 {
        return [50, 25, 13, 7, 5].iter().map(|w| w * 1_000_000).collect();
    }
    core::iter::successors(Some(50u64), |w| Some(w.div_ceil(2)))
        .take(usize::from(levels))
        .map(|w| w * 1_000_000)
        .collect()
}

impl QueueConfig {
    /// True where limits span shards: a shard alone cannot keep them.
    #[must_use]
    pub fn shares_limits(&self) -> bool {
        self.shards > 1 && (self.max_depth.is_some() || self.max_bytes.is_some())
    }

    /// The configuration of a queue that says nothing, spread over `shards` shards.
    #[must_use]
    pub fn with_defaults(levels: u8, shards: u16) -> Self {
        Self {
            levels,
            shards,
            scheduling: Scheduling::default(),
            weights_micro: default_weights_micro(levels),
            reserve_ppm: 100_000,
            floor_ppm: 50_000,
            aging_s: AGING_S_DEFAULT,
            max_deliveries: MAX_DELIVERIES_DEFAULT,
            lease_s: LEASE_S_DEFAULT,
            dedup_window_s: DEDUP_WINDOW_S_DEFAULT,
            retention_s: RETENTION_S_DEFAULT,
            max_depth: None,
            max_bytes: None,
            rate_caps: RateCaps::default(),
            dead_letter_expired: false,
            backoff: None,
            starvation: Starvation::All(STARVATION_S_DEFAULT),
        }
    }

    /// The configuration that `patch` makes of nothing, on a node whose shard set has `shard_set` shards.
    pub fn create(patch: &QueueConfigPatch, shard_set: u16) -> Result<Self, ConfigRefused> {
        let levels = patch.levels.flatten().unwrap_or(LEVELS_DEFAULT);
        let shards = patch.shards.flatten().unwrap_or(shard_set);
        range("levels", u64::from(levels), 1, LEVELS_MAX as u64)?;
        range("shards", u64::from(shards), 1, u64::from(shard_set.min(SHARDS_MAX)))?;
        let mut config = Self::with_defaults(levels, shards);
        config.change(patch);
        config.validate()?;
        Ok(config)
    }

    /// The configuration that `patch` makes of this one, on a node whose shard set has `shard_set` shards. `levels` and
    /// `shards` may only be named as they are; putting one back to its default names that.
    pub fn update(&self, patch: &QueueConfigPatch, shard_set: u16) -> Result<Self, ConfigRefused> {
        let fixed = |field, now: u64, wanted: Option<u64>| match wanted {
            Some(wanted) if wanted != now => Err(ConfigRefused {
                field,
                detail: format!(
                    "{field} is {now} since the queue was created and cannot change; delete the queue or create another"
                ),
                conflict: true,
            }),
            _ => Ok(()),
        };
        let levels = patch.levels.map(|levels| u64::from(levels.unwrap_or(LEVELS_DEFAULT)));
        let shards = patch.shards.map(|shards| u64::from(shards.unwrap_or(shard_set)));
        fixed("levels", u64::from(self.levels), levels)?;
        fixed("shards", u64::from(self.shards), shards)?;
        let mut config = self.clone();
        config.change(patch);
        config.validate()?;
        Ok(config)
    }

    fn change(&mut self, patch: &QueueConfigPatch) {
        let default = Self::with_defaults(self.levels, self.shards);
        fn set<T: Clone>(field: &mut T, change: &Change<T>, default: T) {
            if let Some(change) = change {
                *field = change.clone().unwrap_or(default);
            }
        }
        fn set_option<T: Clone>(field: &mut Option<T>, change: &Change<T>) {
            if let Some(change) = change {
                field.clone_from(change);
            }
        }
        set(&mut self.scheduling, &patch.scheduling, default.scheduling);
        set(&mut self.weights_micro, &patch.weights_micro, default.weights_micro);
        set(&mut self.reserve_ppm, &patch.reserve_ppm, default.reserve_ppm);
        set(&mut self.floor_ppm, &patch.floor_ppm, default.floor_ppm);
        set(&mut self.aging_s, &patch.aging_s, default.aging_s);
        set(&mut self.max_deliveries, &patch.max_deliveries, default.max_deliveries);
        set(&mut self.lease_s, &patch.lease_s, default.lease_s);
        set(&mut self.dedup_window_s, &patch.dedup_window_s, default.dedup_window_s);
        set(&mut self.retention_s, &patch.retention_s, default.retention_s);
        set_option(&mut self.max_depth, &patch.max_depth);
        set_option(&mut self.max_bytes, &patch.max_bytes);
        set(&mut self.rate_caps, &patch.rate_caps, default.rate_caps);
        set(&mut self.dead_letter_expired, &patch.dead_letter_expired, default.dead_letter_expired);
        set_option(&mut self.backoff, &patch.backoff);
        set(&mut self.starvation, &patch.starvation, default.starvation);
    }

    /// Checks every field against its bounds.
    pub fn validate(&self) -> Result<(), ConfigRefused> {
        let levels = usize::from(self.levels);
        range("levels", u64::from(self.levels), 1, LEVELS_MAX as u64)?;
        range("shards", u64::from(self.shards), 1, u64::from(SHARDS_MAX))?;
        if self.weights_micro.len() != levels {
            return refuse("weights", format!("{levels} numbers, one for each level, level 0 first"));
        }
        if self.weights_micro.iter().any(|w| !(1..=WEIGHT_MICRO_MAX).contains(w)) {
            return refuse("weights", "each a number above 0 and at most 1000000000".into());
        }
        if self.reserve_ppm > SHARE_PPM_MAX {
            return refuse("reserve", "a fraction 0..=0.5".into());
        }
        if self.floor_ppm > SHARE_PPM_MAX {
            return refuse("floor", "a fraction 0..=0.5".into());
        }
        range("aging_s", self.aging_s, 1, PERIOD_S_MAX)?;
        range("max_deliveries", u64::from(self.max_deliveries), 1, u64::from(MAX_DELIVERIES_MAX))?;
        range("lease_s", u64::from(self.lease_s), 1, u64::from(LEASE_S_MAX))?;
        range("dedup_window_s", self.dedup_window_s, 0, PERIOD_S_MAX)?;
        range("retention_s", self.retention_s, 1, PERIOD_S_MAX)?;
        if let Some(depth) = self.max_depth {
            range("max_depth", depth, 1, DEPTH_MAX)?;
        }
        if let Some(bytes) = self.max_bytes {
            range("max_bytes", bytes, 1, DEPTH_MAX)?;
        }
        for (level, rate) in &self.rate_caps.levels {
            if usize::from(*level) >= levels {
                return refuse(
                    "rate_caps",
                    format!("queue and p0..=p{}, this queue has {levels} levels", levels - 1),
                );
            }
            range("rate_caps", *rate, 0, RATE_MAX)?;
        }
        range("rate_caps", self.rate_caps.queue.unwrap_or(0), 0, RATE_MAX)?;
        if let Some(backoff) = self.backoff {
            range("backoff.first_s", backoff.first_s, 0, crate::limits::DELAY_S_MAX)?;
            range("backoff.max_s", backoff.max_s, 0, crate::limits::DELAY_S_MAX)?;
            if !BACKOFF_FACTOR_MICRO.contains(&backoff.factor_micro) {
                return refuse("backoff.factor", "a number 1..=1000".into());
            }
        }
        match &self.starvation {
            Starvation::All(s) => range("starvation_s", *s, 1, PERIOD_S_MAX)?,
            Starvation::PerLevel(list) if list.len() == levels => {
                list.iter().try_for_each(|s| range("starvation_s", *s, 1, PERIOD_S_MAX))?;
            }
            Starvation::PerLevel(_) => {
                return refuse("starvation_s", format!("one number, or {levels}, one for each level"));
            }
        }
        Ok(())
    }

    /// Starvation alert of one level, in milliseconds.
    #[must_use]
    pub fn starvation_ms(&self, level: u8) -> u64 {
        1_000
            * match &self.starvation {
                Starvation::All(s) => *s,
                Starvation::PerLevel(list) => {
                    list.get(usize::from(level)).copied().unwrap_or(STARVATION_S_DEFAULT)
                }
            }
    }

    /// Appends the configuration's bytes.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u8(self.levels);
        out.u16(self.shards);
        out.u8(match self.scheduling {
            Scheduling::Weighted => 0,
            Scheduling::Strict => 1,
            Scheduling::Aging => 2,
        });
        encode_list(out, &self.weights_micro);
        out.u32(self.reserve_ppm);
        out.u32(self.floor_ppm);
        out.u64(self.aging_s);
        out.u32(self.max_deliveries);
        out.u32(self.lease_s);
        out.u64(self.dedup_window_s);
        out.u64(self.retention_s);
        out.option(self.max_depth, Writer::u64);
        out.option(self.max_bytes, Writer::u64);
        encode_rate_caps(out, &self.rate_caps);
        out.bool(self.dead_letter_expired);
        out.option(self.backoff, encode_backoff);
        encode_starvation(out, &self.starvation);
    }

    /// Reads and validates a configuration.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let config = Self {
            levels: input.u8("levels")?,
            shards: input.u16("shards")?,
            scheduling: decode_scheduling(input)?,
            weights_micro: decode_list(input)?,
            reserve_ppm: input.u32("reserve")?,
            floor_ppm: input.u32("floor")?,
            aging_s: input.u64("aging_s")?,
            max_deliveries: input.u32("max_deliveries")?,
            lease_s: input.u32("lease_s")?,
            dedup_window_s: input.u64("dedup_window_s")?,
            retention_s: input.u64("retention_s")?,
            max_depth: input.option("max_depth", |r| r.u64("max_depth"))?,
            max_bytes: input.option("max_bytes", |r| r.u64("max_bytes"))?,
            rate_caps: decode_rate_caps(input)?,
            dead_letter_expired: input.bool("dead_letter_expired")?,
            backoff: input.option("backoff", decode_backoff)?,
            starvation: decode_starvation(input)?,
        };
        config.validate().map_err(|_| Malformed("queue configuration out of bounds"))?;
        Ok(config)
    }
}

impl QueueConfigPatch {
    /// Refuses what contradicts itself. Asked of those who set it now; what was set before this was asked stays valid.
    pub fn makes_sense(&self) -> Result<(), ConfigRefused> {
        match self.backoff {
            Some(Some(Backoff { first_s, max_s, .. })) if first_s > max_s => {
                refuse("backoff.max_s", format!("at least backoff.first_s, {first_s}"))
            }
            _ => Ok(()),
        }
    }

    /// Appends the patch's bytes: for each field 0 (left alone), 1 (default) or 2 and the value.
    pub fn encode(&self, out: &mut Writer<'_>) {
        fn change<T>(out: &mut Writer<'_>, change: &Change<T>, write: impl FnOnce(&mut Writer<'_>, &T)) {
            match change {
                None => out.u8(0),
                Some(None) => out.u8(1),
                Some(Some(value)) => {
                    out.u8(2);
                    write(out, value);
                }
            }
        }
        change(out, &self.levels, |w, v| w.u8(*v));
        change(out, &self.shards, |w, v| w.u16(*v));
        change(out, &self.scheduling, |w, v| {
            w.u8(match v {
                Scheduling::Weighted => 0,
                Scheduling::Strict => 1,
                Scheduling::Aging => 2,
            });
        });
        change(out, &self.weights_micro, |w, v| encode_list(w, v));
        change(out, &self.reserve_ppm, |w, v| w.u32(*v));
        change(out, &self.floor_ppm, |w, v| w.u32(*v));
        change(out, &self.aging_s, |w, v| w.u64(*v));
        change(out, &self.max_deliveries, |w, v| w.u32(*v));
        change(out, &self.lease_s, |w, v| w.u32(*v));
        change(out, &self.dedup_window_s, |w, v| w.u64(*v));
        change(out, &self.retention_s, |w, v| w.u64(*v));
        change(out, &self.max_depth, |w, v| w.u64(*v));
        change(out, &self.max_bytes, |w, v| w.u64(*v));
        change(out, &self.rate_caps, encode_rate_caps);
        change(out, &self.dead_letter_expired, |w, v| w.bool(*v));
        change(out, &self.backoff, |w, v| encode_backoff(w, *v));
        change(out, &self.starvation, encode_starvation);
    }

    /// Reads a patch; its values are checked when it is applied.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        fn change<T>(
            input: &mut Reader<'_>,
            read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
        ) -> Result<Change<T>, Malformed> {
            match input.u8("change")? {
                0 => Ok(None),
                1 => Ok(Some(None)),
                2 => Ok(Some(Some(read(input)?))),
                _ => Err(Malformed("change")),
            }
        }
        Ok(Self {
            levels: change(input, |r| r.u8("levels"))?,
            shards: change(input, |r| r.u16("shards"))?,
            scheduling: change(input, decode_scheduling)?,
            weights_micro: change(input, decode_list)?,
            reserve_ppm: change(input, |r| r.u32("reserve"))?,
            floor_ppm: change(input, |r| r.u32("floor"))?,
            aging_s: change(input, |r| r.u64("aging_s"))?,
            max_deliveries: change(input, |r| r.u32("max_deliveries"))?,
            lease_s: change(input, |r| r.u32("lease_s"))?,
            dedup_window_s: change(input, |r| r.u64("dedup_window_s"))?,
            retention_s: change(input, |r| r.u64("retention_s"))?,
            max_depth: change(input, |r| r.u64("max_depth"))?,
            max_bytes: change(input, |r| r.u64("max_bytes"))?,
            rate_caps: change(input, decode_rate_caps)?,
            dead_letter_expired: change(input, |r| r.bool("dead_letter_expired"))?,
            backoff: change(input, decode_backoff)?,
            starvation: change(input, decode_starvation)?,
        })
    }
}

fn range(field: &'static str, value: u64, low: u64, high: u64) -> Result<(), ConfigRefused> {
    if (low..=high).contains(&value) { Ok(()) } else { refuse(field, format!("{low}..={high}")) }
}

fn refuse(field: &'static str, allowed: String) -> Result<(), ConfigRefused> {
    Err(ConfigRefused { field, detail: format!("{field} must be {allowed}"), conflict: false })
}

fn encode_list(out: &mut Writer<'_>, list: &[u64]) {
    out.u8(u8::try_from(list.len()).unwrap_or(u8::MAX));
    list.iter().for_each(|value| out.u64(*value));
}

fn decode_list(input: &mut Reader<'_>) -> Result<Vec<u64>, Malformed> {
    let count = usize::from(input.u8("list")?);
    if count > LEVELS_MAX {
        return Err(Malformed("list"));
    }
    (0..count).map(|_| input.u64("list")).collect()
}

fn decode_scheduling(input: &mut Reader<'_>) -> Result<Scheduling, Malformed> {
    match input.u8("scheduling")? {
        0 => Ok(Scheduling::Weighted),
        1 => Ok(Scheduling::Strict),
        2 => Ok(Scheduling::Aging),
        _ => Err(Malformed("scheduling")),
    }
}

fn encode_rate_caps(out: &mut Writer<'_>, caps: &RateCaps) {
    out.option(caps.queue, Writer::u64);
    out.u8(u8::try_from(caps.levels.len()).unwrap_or(u8::MAX));
    for (level, rate) in &caps.levels {
        out.u8(*level);
        out.u64(*rate);
    }
}

fn decode_rate_caps(input: &mut Reader<'_>) -> Result<RateCaps, Malformed> {
    let queue = input.option("rate_caps", |r| r.u64("rate_caps"))?;
    let count = input.u8("rate_caps")?;
    let mut levels = BTreeMap::new();
    for _ in 0..count {
        if levels.insert(input.u8("rate_caps")?, input.u64("rate_caps")?).is_some() {
            return Err(Malformed("rate_caps: a level is named twice"));
        }
    }
    Ok(RateCaps { queue, levels })
}

fn encode_backoff(out: &mut Writer<'_>, backoff: Backoff) {
    out.u64(backoff.first_s);
    out.u64(backoff.factor_micro);
    out.u64(backoff.max_s);
}

fn decode_backoff(input: &mut Reader<'_>) -> Result<Backoff, Malformed> {
    Ok(Backoff {
        first_s: input.u64("backoff")?,
        factor_micro: input.u64("backoff")?,
        max_s: input.u64("backoff")?,
    })
}

fn encode_starvation(out: &mut Writer<'_>, starvation: &Starvation) {
    match starvation {
        Starvation::All(s) => {
            out.u8(0);
            out.u64(*s);
        }
        Starvation::PerLevel(list) => {
            out.u8(1);
            encode_list(out, list);
        }
    }
}

fn decode_starvation(input: &mut Reader<'_>) -> Result<Starvation, Malformed> {
    match input.u8("starvation_s")? {
        0 => Ok(Starvation::All(input.u64("starvation_s")?)),
        1 => Ok(Starvation::PerLevel(decode_list(input)?)),
        _ => Err(Malformed("starvation_s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_weights_are_those_of_the_contract() {
        assert_eq!(default_weights_micro(5), [50, 25, 13, 7, 5].map(|w| w * 1_000_000));
        assert_eq!(default_weights_micro(8), [50, 25, 13, 7, 4, 2, 1, 1].map(|w| w * 1_000_000));
        assert_eq!(default_weights_micro(100).len(), 100);
    }

    #[test]
    fn null_puts_a_field_back_to_its_default() {
        let patch =
            QueueConfigPatch { lease_s: Some(Some(7)), max_depth: Some(Some(9)), ..Default::default() };
        let config = QueueConfig::create(&patch, 8).unwrap();
        assert_eq!((config.lease_s, config.max_depth), (7, Some(9)));
        let patch = QueueConfigPatch { lease_s: Some(None), max_depth: Some(None), ..Default::default() };
        let config = config.update(&patch, 8).unwrap();
        assert_eq!((config.lease_s, config.max_depth), (30, None));
    }

    #[test]
    fn a_backoff_begins_below_its_end() {
        let check = |first_s, max_s| {
            let backoff = Some(Some(Backoff { first_s, factor_micro: 2_000_000, max_s }));
            QueueConfigPatch { backoff, ..Default::default() }.makes_sense()
        };
        let refused = check(100, 5).unwrap_err();
        assert_eq!(
            (refused.field, &*refused.detail),
            ("backoff.max_s", "backoff.max_s must be at least backoff.first_s, 100")
        );
        assert!(check(5, 5).is_ok() && check(0, 0).is_ok());
        assert!(QueueConfigPatch::default().makes_sense().is_ok());
    }

    #[test]
    fn levels_and_shards_cannot_change() {
        let config = QueueConfig::create(&QueueConfigPatch::default(), 8).unwrap();
        let patch = QueueConfigPatch { levels: Some(Some(6)), ..Default::default() };
        assert!(config.update(&patch, 8).is_err_and(|e| e.conflict && e.field == "levels"));
        // Back to a default that is another one is a change too.
        let patch = QueueConfigPatch { levels: Some(None), shards: Some(None), ..Default::default() };
        assert_eq!(config.update(&patch, 8).unwrap(), config);
        assert!(config.update(&patch, 4).is_err_and(|e| e.conflict && e.field == "shards"));
        let six = QueueConfigPatch { levels: Some(Some(6)), ..Default::default() };
        let six = QueueConfig::create(&six, 8).unwrap();
        assert!(six.update(&patch, 8).is_err_and(|e| e.conflict && e.field == "levels"));
        let patch = QueueConfigPatch { levels: Some(Some(5)), shards: Some(Some(8)), ..Default::default() };
        assert_eq!(config.update(&patch, 8).unwrap(), config);
    }

    #[test]
    fn bytes_hold_every_field() {
        let config = QueueConfig {
            rate_caps: RateCaps { queue: Some(0), levels: [(0, 5), (3, 7)].into() },
            backoff: Some(Backoff { first_s: 1, factor_micro: 1_500_000, max_s: 60 }),
            starvation: Starvation::PerLevel(vec![1, 2, 3, 4, 5]),
            max_bytes: Some(12),
            ..QueueConfig::with_defaults(5, 8)
        };
        let mut bytes = Vec::new();
        config.encode(&mut Writer(&mut bytes));
        let mut reader = Reader::new(&bytes);
        assert_eq!(QueueConfig::decode(&mut reader), Ok(config));
        assert_eq!(reader.left(), 0);
        for cut in 0..bytes.len() {
            assert!(QueueConfig::decode(&mut Reader::new(&bytes[..cut])).is_err());
        }
    }

    #[test]
    fn a_level_has_one_rate_cap() {
        let mut bytes = vec![0, 2];
        for cap in [5, 6u64] {
            bytes.push(1);
            bytes.extend(cap.to_le_bytes());
        }
        let error = decode_rate_caps(&mut Reader::new(&bytes)).unwrap_err();
        assert!(error.0.contains("named twice"), "{error}");
        bytes[11] = 2;
        assert_eq!(decode_rate_caps(&mut Reader::new(&bytes)).unwrap().levels, [(1, 5), (2, 6)].into());
    }

    #[test]
    fn backoff_grows_and_stops() {
        let backoff = Backoff { first_s: 2, factor_micro: 2_000_000, max_s: 10 };
        assert_eq!(
            [1, 2, 3, 4, 1_000_000].map(|n| backoff.delay_ms(n)),
            [2_000, 4_000, 8_000, 10_000, 10_000]
        );
        let flat = Backoff { first_s: 2, factor_micro: 1_000_000, max_s: 10 };
        assert_eq!(flat.delay_ms(1_000_000), 2_000);
    }
}
