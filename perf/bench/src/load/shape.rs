//! How the rate of an open loop changes over its time: steady, ramps, steps, bursts. Exact by number: message n is due at
//! one time, whatever the clock looks like when somebody asks.

use crate::duration;
use crate::pacer::Timetable;
use core::str::FromStr;
use std::time::{Duration, Instant};

/// Most steps of a shape.
const STEPS_MAX: usize = 1_000;
/// Largest factor of the rate.
const FACTOR_MAX: f64 = 1_000.0;

/// The course of the rate, in multiples of the rate that was asked for.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Shape {
    /// Always the same.
    #[default]
    Steady,
    /// Linear from one multiple to another over the whole duration.
    Ramp(f64, f64),
    /// Equally long steps.
    Steps(Vec<f64>),
    /// `times` the rate during the first `length` of every `period`, the plain rate else.
    Burst {
        /// Multiple of the rate.
        times: f64,
        /// How long a burst is.
        length: Duration,
        /// From the start of one to the start of the next.
        period: Duration,
    },
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{text:?} is not a shape: steady, ramp:0.1-2, steps:0.5,1,2 or burst:4/2s/30s (4 times for 2s of every 30s)"
            )
        };
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "steady" if rest.is_empty() => Ok(Self::Steady),
            "ramp" => {
                let (from, to) = rest.split_once('-').ok_or_else(expected)?;
                let (from, to) = (factor(from)?, factor(to)?);
                if from + to == 0.0 { Err(expected()) } else { Ok(Self::Ramp(from, to)) }
            }
            "steps" => {
                let steps = rest.split(',').map(factor).collect::<Result<Vec<_>, _>>()?;
                let ok = (1..=STEPS_MAX).contains(&steps.len()) && steps.iter().any(|step| *step > 0.0);
                if ok { Ok(Self::Steps(steps)) } else { Err(expected()) }
            }
            "burst" => {
                let mut parts = rest.split('/');
                let mut part = || parts.next().ok_or_else(expected);
                let times = factor(part()?)?;
                let (length, period) = (duration::parse(part()?)?, duration::parse(part()?)?);
                if parts.next().is_some() || length >= period || period < Duration::from_millis(100) {
                    return Err(format!(
                        "{text:?}: a burst is shorter than its period, and that is 100ms or more"
                    ));
                }
                Ok(Self::Burst { times, length, period })
            }
            _ => Err(expected()),
        }
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=FACTOR_MAX).contains(&value) => Ok(value),
        _ => Err(format!("{text:?} is not a multiple of the rate, 0 to {FACTOR_MAX}")),
    }
}

/// A stretch of time in which the rate is linear.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from_s: f64,
    length_s: f64,
    /// Messages due before it.
    before: f64,
    /// Rates at its start and at its end, a second.
    rates: (f64, f64),
}

impl Stretch {
    fn count(&self) -> f64 {
        self.length_s * f64::midpoint(self.rates.0, self.rates.1)
    }

    /// Messages due up to `at_s` from the start of the stretch.
    fn count_at(&self, at_s: f64) -> f64 {
        let growth = (self.rates.1 - self.rates.0) / self.length_s;
        self.before + at_s * (self.rates.0 + growth * at_s / 2.0)
    }

    /// When so many are due, from the start of the stretch.
    fn time_of(&self, count: f64) -> f64 {
        let wanted = (count - self.before).max(0.0);
        let growth = (self.rates.1 - self.rates.0) / self.length_s;
        // The stable form of the root: it is also right where the rate does not change.
        let root = (self.rates.0 * self.rates.0 + 2.0 * growth * wanted).max(0.0).sqrt();
        let speed = self.rates.0 + root;
        if wanted > 0.0 { (2.0 * wanted / speed).min(self.length_s) } else { 0.0 }
    }
}

/// A shape at a rate, over a duration, from a start on.
#[derive(Clone, Debug)]
pub struct Course {
    start: Instant,
    stretches: Vec<Stretch>,
    total: u64,
}

impl Course {
    /// The course of `rate` messages a second, shaped, for `duration`.
    #[must_use]
    pub fn new(shape: &Shape, rate: u64, duration: Duration, start: Instant) -> Self {
        let (rate, all_s) = (rate as f64, duration.as_secs_f64());
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut add = |length_s: f64, from: f64, to: f64| {
            let (from_s, before) = stretches
                .last()
                .map_or((0.0, 0.0), |last| (last.from_s + last.length_s, last.before + last.count()));
            let length_s = length_s.min(all_s - from_s);
            if length_s > 0.0 {
                stretches.push(Stretch { from_s, length_s, before, rates: (from * rate, to * rate) });
            }
        };
        match shape {
            Shape::Steady => add(all_s, 1.0, 1.0),
            Shape::Ramp(from, to) => add(all_s, *from, *to),
            Shape::Steps(steps) => {
                steps.iter().for_each(|step| add(all_s / steps.len() as f64, *step, *step));
            }
            Shape::Burst { times, length, period } => {
                for _ in 0..(all_s / period.as_secs_f64()).ceil() as u64 {
                    add(length.as_secs_f64(), *times, *times);
                    add((*period - *length).as_secs_f64(), 1.0, 1.0);
                }
            }
        }
        let total = stretches.last().map_or(0.0, |last| last.before + last.count());
        // What is a hair below a whole number is that number.
        Self { start, stretches, total: ((total + 1e-6) as u64).max(1) }
    }

    /// Messages of the whole course.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }
}

impl Timetable for Course {
    fn due(&self, number: u64) -> Instant {
        let count = number as f64;
        let at = self.stretches.partition_point(|stretch| stretch.before <= count).saturating_sub(1);
        let Some(stretch) = self.stretches.get(at) else { return self.start };
        self.start + Duration::from_secs_f64(stretch.from_s + stretch.time_of(count))
    }

    fn count_due(&self, now: Instant) -> u64 {
        let Some(since) = now.checked_duration_since(self.start) else { return 0 };
        let since_s = since.as_secs_f64();
        let at = self.stretches.partition_point(|stretch| stretch.from_s <= since_s).saturating_sub(1);
        let Some(stretch) = self.stretches.get(at) else { return 0 };
        let count = stretch.count_at((since_s - stretch.from_s).min(stretch.length_s));
        (count as u64 + 1).min(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(shape: &str, rate: u64, seconds: u64) -> Course {
        Course::new(&shape.parse().unwrap(), rate, Duration::from_secs(seconds), Instant::now())
    }

    /// Messages due in each second.
    fn by_second(course: &Course, seconds: u64) -> Vec<u64> {
        let counted = |second| {
            let from = course.start + Duration::from_secs(second);
            (0..course.total)
                .filter(|n| (from..from + Duration::from_secs(1)).contains(&course.due(*n)))
                .count()
        };
        (0..seconds).map(|second| counted(second) as u64).collect()
    }

    #[test]
    fn rates_follow_the_shape() {
        assert_eq!(by_second(&course("steady", 100, 3), 3), [100, 100, 100]);
        assert_eq!(by_second(&course("ramp:0-2", 100, 2), 2), [50, 150]);
        assert_eq!(by_second(&course("steps:0.5,1,2", 100, 3), 3), [50, 100, 200]);
        assert_eq!(by_second(&course("burst:4/1s/3s", 10, 7), 7), [40, 10, 10, 40, 10, 10, 40]);
        assert_eq!(by_second(&course("steps:1,0,1", 10, 3), 3)[0], 10);
        assert_eq!(course("ramp:1-0", 1_000, 10).total(), 5_000);
    }

    #[test]
    fn what_is_due_is_what_was_counted() {
        for shape in ["steady", "ramp:0.1-2", "ramp:2-0", "steps:0.5,1,2", "burst:4/200ms/1s", "steps:0,1"] {
            let course = course(shape, 777, 5);
            let mut last = course.start;
            for number in 0..course.total {
                let due = course.due(number);
                assert!(due >= last, "{shape} {number}");
                // Times are told to nanoseconds, and rates are floating numbers: a microsecond apart they agree.
                let near = Duration::from_micros(1);
                assert!(course.count_due(due + near) > number, "{shape} {number}");
                assert!(number == 0 || course.count_due(due - near) <= number + 1, "{shape} {number}");
                last = due;
            }
            assert!(last <= course.start + Duration::from_secs(5), "{shape}");
        }
    }

    #[test]
    fn other_texts_are_no_shapes() {
        for bad in [
            "",
            "flat",
            "ramp",
            "ramp:1",
            "ramp:0-0",
            "ramp:-1-2",
            "steps:",
            "steps:0,0",
            "burst:4/30s/2s",
            "burst:4/1s",
            "burst:x/1s/2s",
            "steps:NaN",
            "steady:1",
            "burst:2/1ms/2ms",
            "burst:2/1s/2s/3s",
        ] {
            assert!(bad.parse::<Shape>().is_err(), "{bad}");
        }
    }
}
