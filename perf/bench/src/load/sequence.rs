//! What the load consists of: the level, size, delay and key of each message, and what becomes of each delivery. Drawn
//! from seeded streams, one for each concern, so that a run can be repeated.

use super::stamp::STAMP_BYTES;
use crate::{duration, mix};
use core::str::FromStr;
use overtake_base::limits::{BODY_BYTES_MAX, DELAY_S_MAX, LEVELS_MAX};
use overtake_base::random::Random;
use std::time::Duration;

/// Shares are told in millionths.
pub const MILLION: u32 = 1_000_000;
/// Sum of the shares of a mix, at most.
const MIX_SUM_MAX: u32 = 10_000;
/// Failures that one message gets by chance: below the deliveries after which a queue gives a message up.
const FAILURES_MAX: u32 = 3;

/// A part of something, `10%` or `0.5%`, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share(pub u32);

impl Share {
    /// All of it.
    pub const ALL: Self = Self(1_000_000);
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
        match number {
            Some(percent) if (0.0..=100.0).contains(&percent) => Ok(Self((percent * 1e4).round() as u32)),
            _ => Err(format!("{text:?} is not a share, like 10% or 0.5%")),
        }
    }
}

/// Shares of levels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mix(pub Vec<u32>);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shares: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
        let sum = |shares: &[u32]| shares.iter().fold(0u32, |sum, share| sum.saturating_add(*share));
        match shares {
            Ok(shares) if (1..=MIX_SUM_MAX).contains(&sum(&shares)) && shares.len() <= LEVELS_MAX => {
                Ok(Self(shares))
            }
            _ => Err(format!(
                "{text:?} is not a mix: one whole number for each level, P0 first, like 2,8,20,30,40; their sum 1 to {MIX_SUM_MAX}"
            )),
        }
    }
}

/// How long bodies are, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BodySize {
    /// All the same.
    Fixed(u32),
    /// Evenly between two sizes, both included.
    Between(u32, u32),
    /// Sizes with weights.
    Weighted(Vec<(u32, u32)>),
}

impl FromStr for BodySize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| match text.parse::<u32>() {
            Ok(bytes) if (STAMP_BYTES..=BODY_BYTES_MAX).contains(&(bytes as usize)) => Ok(bytes),
            _ => Err(format!(
                "{text:?} is not a body size of {STAMP_BYTES} to {BODY_BYTES_MAX} bytes; write 1024, 200-4000 or 512:70,4096:25,65536:5 (size:weight)"
            )),
        };
        if text.contains(':') {
            let weighted = text.split(',').map(|part| {
                let (bytes, weight) = part.split_once(':').unwrap_or((part, ""));
                let weight = weight.parse().ok().filter(|weight| (1..=1_000_000).contains(weight));
                Ok((size(bytes)?, weight.ok_or_else(|| format!("{part:?} has no weight of 1 to 1000000"))?))
            });
            return weighted.collect::<Result<Vec<_>, String>>().map(Self::Weighted);
        }
        match text.split_once('-') {
            Some((from, to)) => match (size(from)?, size(to)?) {
                (from, to) if from <= to => Ok(Self::Between(from, to)),
                _ => Err(format!("{text:?}: the smaller size comes first")),
            },
            None => size(text).map(Self::Fixed),
        }
    }
}

impl BodySize {
    fn draw(&self, random: &mut Random) -> u32 {
        match self {
            Self::Fixed(bytes) => *bytes,
            Self::Between(from, to) => from + random.below(u64::from(to - from) + 1) as u32,
            Self::Weighted(sizes) => {
                let mut at = random.below(sizes.iter().map(|(_, weight)| u64::from(*weight)).sum());
                for (bytes, weight) in sizes {
                    match at.checked_sub(u64::from(*weight)) {
                        Some(rest) => at = rest,
                        None => return *bytes,
                    }
                }
                STAMP_BYTES as u32
            }
        }
    }

    /// The largest size.
    #[must_use]
    pub fn largest(&self) -> u32 {
        match self {
            Self::Fixed(bytes) | Self::Between(_, bytes) => *bytes,
            Self::Weighted(sizes) => sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        }
    }
}

/// A share of messages that is delayed, and by how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelayedShare {
    /// Which part.
    pub share: Share,
    /// Delay, in whole seconds.
    pub delay_s: u64,
}

impl FromStr for DelayedShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?} is not a delay, like 10%:5s (whole seconds)");
        let (share, delay) = text.split_once(':').ok_or_else(expected)?;
        let (share, delay) = (share.parse()?, duration::parse(delay)?);
        let whole = delay.subsec_nanos() == 0 && (1..=DELAY_S_MAX).contains(&delay.as_secs());
        if whole { Ok(Self { share, delay_s: delay.as_secs() }) } else { Err(expected()) }
    }
}

/// What one message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    /// 0 is the most urgent.
    pub level: u32,
    /// Length of its body.
    pub body_bytes: u32,
    /// Delay; 0 for none.
    pub delay_s: u64,
    /// It repeats the dedup key of an earlier message.
    pub repeats: bool,
}

/// What the load consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// Shares of levels.
    pub mix: Mix,
    /// Body sizes.
    pub body: BodySize,
    /// Delayed messages.
    pub delay: Option<DelayedShare>,
    /// Messages that repeat a dedup key.
    pub dedup: Share,
}

/// Draws one message after the other.
#[derive(Clone, Debug)]
pub struct Sequence {
    content: Content,
    levels: Vec<u32>,
    next: usize,
    sizes: Random,
    delays: Random,
    repeats: Random,
}

impl Sequence {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(content: Content, seed: u64) -> Self {
        let random = |concern| Random::new(seed, concern);
        Self {
            levels: mix::spread(&content.mix.0),
            next: 0,
            sizes: random("body sizes"),
            delays: random("delays"),
            repeats: random("dedup keys"),
            content,
        }
    }

    /// Whether messages have dedup keys.
    #[must_use]
    pub const fn keyed(&self) -> bool {
        self.content.dedup.0 > 0
    }

    /// The next message. One repeats a key only where there is one to repeat.
    pub fn next_message(&mut self, has_key: bool) -> Planned {
        let level = self.levels.get(self.next).copied().unwrap_or_default();
        self.next = (self.next + 1) % self.levels.len().max(1);
        let delay = self.content.delay.filter(|delay| self.delays.chance_ppm(delay.share.0));
        Planned {
            level,
            body_bytes: self.content.body.draw(&mut self.sizes),
            delay_s: delay.map_or(0, |delay| delay.delay_s),
            repeats: self.repeats.chance_ppm(self.content.dedup.0) && has_key,
        }
    }
}

/// What a consumer does with a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Ack.
    Ack,
    /// Release with an error.
    Fail,
    /// Nothing: the lease runs out.
    Abandon,
}

/// Draws what becomes of deliveries.
#[derive(Clone, Debug)]
pub struct Fates {
    fail: Share,
    abandon: Share,
    random: Random,
}

impl Fates {
    /// The fates of this seed.
    #[must_use]
    pub fn new(fail: Share, abandon: Share, seed: u64) -> Self {
        Self { fail, abandon, random: Random::new(seed, "fates") }
    }

    /// The fate of a delivery, of a message that failed so often before.
    pub fn draw(&mut self, failures: u32) -> Fate {
        let at = self.random.below(u64::from(MILLION)) as u32;
        if failures >= FAILURES_MAX || at >= self.fail.0.saturating_add(self.abandon.0) {
            Fate::Ack
        } else if at < self.fail.0 {
            Fate::Fail
        } else {
            Fate::Abandon
        }
    }
}

/// How long a consumer works on a message; 0 for not at all.
pub fn work(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { duration::parse(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(body: &str, delay: Option<&str>, dedup: &str) -> Sequence {
        let content = Content {
            mix: "2,8,20,30,40".parse().unwrap(),
            body: body.parse().unwrap(),
            delay: delay.map(|text| text.parse().unwrap()),
            dedup: dedup.parse().unwrap(),
        };
        Sequence::new(content, 7)
    }

    #[test]
    fn a_sequence_has_what_was_asked_for_and_can_be_repeated() {
        let draw = || {
            let mut sequence = sequence("100-200", Some("10%:5s"), "5%");
            (0..100_000).map(|_| sequence.next_message(true)).collect::<Vec<_>>()
        };
        let drawn = draw();
        let part = |is: &dyn Fn(&Planned) -> bool| drawn.iter().filter(|m| is(m)).count();
        assert_eq!(
            [0, 1, 2, 3, 4].map(|level| part(&|m| m.level == level)),
            [2_000, 8_000, 20_000, 30_000, 40_000]
        );
        assert!((9_500..10_500).contains(&part(&|m| m.delay_s == 5)));
        assert!((4_700..5_300).contains(&part(&|m| m.repeats)));
        assert!(part(&|m| m.body_bytes == 100) > 800 && part(&|m| m.body_bytes == 200) > 800);
        assert_eq!(part(&|m| !(100..=200).contains(&m.body_bytes)), 0);
        assert_eq!(drawn, draw());
        assert!(!sequence("100", None, "100%").next_message(false).repeats);
    }

    #[test]
    fn weighted_sizes_come_by_weight() {
        let mut sequence = sequence("512:70,4096:30", None, "0%");
        let large = (0..10_000).filter(|_| sequence.next_message(false).body_bytes == 4_096).count();
        assert!((2_800..3_200).contains(&large), "{large}");
        assert!(!sequence.keyed());
    }

    #[test]
    fn fates_come_by_share_and_end() {
        let mut fates = Fates::new(Share(100_000), Share(50_000), 1);
        let drawn: Vec<_> = (0..100_000).map(|_| fates.draw(0)).collect();
        let part = |fate| drawn.iter().filter(|f| **f == fate).count();
        assert!((9_500..10_500).contains(&part(Fate::Fail)) && (4_700..5_300).contains(&part(Fate::Abandon)));
        let mut always = Fates::new(Share(MILLION), Share(0), 1);
        assert_eq!(
            [0, 1, 2, 3, 9].map(|failures| always.draw(failures)),
            [Fate::Fail, Fate::Fail, Fate::Fail, Fate::Ack, Fate::Ack]
        );
    }

    #[test]
    fn wrong_texts_are_refused() {
        for bad in ["10", "%", "-1%", "101%", "NaN%"] {
            assert!(bad.parse::<Share>().is_err(), "{bad}");
        }
        for bad in ["", "0,0", "1,x", "9999,2", "-1"] {
            assert!(bad.parse::<Mix>().is_err(), "{bad}");
        }
        for bad in ["", "47", "131073", "200-100", "100:0", "100:x", "100:1,5:1", "1k"] {
            assert!(bad.parse::<BodySize>().is_err(), "{bad}");
        }
        for bad in ["10%", "5s", "10%:500ms", "10%:1500ms", "x:5s"] {
            assert!(bad.parse::<DelayedShare>().is_err(), "{bad}");
        }
        assert_eq!("0.5%".parse(), Ok(Share(5_000)));
        assert_eq!(work("0"), Ok(Duration::ZERO));
    }
}
