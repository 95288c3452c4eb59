//! Logs of several processes, or of several runs, made into one.

use crate::encoding::EncodedHistogram;
use crate::hlog::{Interval, Log};
use std::collections::BTreeMap;

/// Adds intervals of the same tag that started in the same span of time, as long as the longest interval of all logs, and
/// sorts them by time and tag. Nothing is lost: the counts of what comes out are those of what went in.
///
/// # Errors
/// Where two histograms cannot be added; says of which tag.
pub fn merge(logs: &[Log]) -> Result<Log, String> {
    let all = || logs.iter().flat_map(|log| &log.intervals);
    let span_ms = all().map(|interval| interval.length_ms).max().unwrap_or(0).max(1);
    let first_ms = all().map(|interval| interval.start_ms).min().unwrap_or(0);
    let mut spans: BTreeMap<(u64, &str), Vec<&Interval>> = BTreeMap::new();
    for interval in all() {
        // Processes do not start in the same millisecond: what starts within half a span of another belongs to it.
        let span = (interval.start_ms - first_ms + span_ms / 2) / span_ms;
        spans.entry((span, &interval.tag)).or_default().push(interval);
    }
    Ok(Log {
        intervals: spans.into_values().map(|span| added(&span)).collect::<Result<_, _>>()?,
        server_cores: agreed(logs, |log| log.server_cores),
        server_replicas: agreed(logs, |log| log.server_replicas),
    })
}

/// Two logs, by their places, that hold the same interval: same tag, time and values. Two processes never measure that, so
/// one of them is a copy of the other, or was made of it, and together they would count twice.
#[must_use]
pub fn counted_twice(logs: &[Log]) -> Option<(usize, usize)> {
    let mut seen: BTreeMap<(&str, u64), Vec<(usize, &Interval)>> = BTreeMap::new();
    for (place, log) in logs.iter().enumerate() {
        // A single value, now and then, two processes can have in common.
        for interval in log.intervals.iter().filter(|interval| interval.histogram.len() > 1) {
            let same = seen.entry((&interval.tag, interval.start_ms)).or_default();
            let twice = same.iter().find(|(other, was)| *other != place && *was == interval);
            if let Some((other, _)) = twice {
                return Some((*other, place));
            }
            same.push((place, interval));
        }
    }
    None
}

/// One interval out of those of the same tag and span, whose counters alone are laid out meanwhile.
fn added(span: &[&Interval]) -> Result<Interval, String> {
    let (first, others) = span.split_first().ok_or("a span of time without intervals")?;
    let mut sum = Interval::clone(first);
    if others.is_empty() {
        return Ok(sum);
    }
    let failed = |error| format!("intervals of tag {:?} cannot be added: {error}", first.tag);
    let mut histogram = first.histogram.decode().map_err(failed)?;
    for interval in others {
        let end_ms = sum.end_ms().max(interval.end_ms());
        sum.start_ms = sum.start_ms.min(interval.start_ms);
        sum.length_ms = end_ms - sum.start_ms;
        interval.histogram.add_to(&mut histogram).map_err(failed)?;
    }
    sum.histogram = EncodedHistogram::new(&histogram).map_err(failed)?;
    Ok(sum)
}

/// Processes that load the same server say the same of it; what they do not agree on is not known.
fn agreed(logs: &[Log], says: impl Fn(&Log) -> Option<u32>) -> Option<u32> {
    let mut said = logs.iter().filter_map(says);
    let first = said.next()?;
    said.all(|number| number == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlog::histogram;

    #[test]
    fn processes_that_agree_on_the_server_tell_its_cores() {
        let said = |all: &[Option<u32>]| {
            let logs: Vec<Log> =
                all.iter().map(|cores| Log { server_cores: *cores, ..log(0, &["a"]) }).collect();
            merge(&logs).unwrap().server_cores
        };
        assert_eq!(said(&[Some(2), None, Some(2)]), Some(2));
        assert_eq!((said(&[Some(2), Some(3)]), said(&[None])), (None, None));
    }

    fn log(start_ms: u64, tags: &[&str]) -> Log {
        let intervals = tags.iter().zip(0..).map(|(tag, number)| {
            let mut histogram = histogram();
            histogram.saturating_record(1_000 * (number + 1));
            let histogram = EncodedHistogram::new(&histogram).unwrap();
            Interval { tag: (*tag).into(), start_ms: start_ms + 1_000 * number, length_ms: 1_000, histogram }
        });
        Log { intervals: intervals.collect(), ..Log::default() }
    }

    #[test]
    fn intervals_of_the_same_time_and_tag_are_added() {
        let merged = merge(&[log(50_000, &["a", "a", "b"]), log(50_400, &["a", "a", "a"])]).unwrap();
        let told: Vec<_> = merged
            .intervals
            .iter()
            .map(|i| (i.tag.as_str(), i.start_ms, i.length_ms, i.histogram.len()))
            .collect();
        assert_eq!(
            told,
            [
                ("a", 50_000, 1_400, 2),
                ("a", 51_000, 1_400, 2),
                ("a", 52_400, 1_000, 1),
                ("b", 52_000, 1_000, 1)
            ]
        );
    }

    #[test]
    fn what_would_count_twice_is_found() {
        let many = |start_ms: u64, values: u64| {
            let mut log = log(start_ms, &["a", "b"]);
            let mut histogram = log.intervals[1].histogram.decode().unwrap();
            (0..values).for_each(|value| histogram.saturating_record(value * 1_000));
            log.intervals[1].histogram = EncodedHistogram::new(&histogram).unwrap();
            log
        };
        assert_eq!(counted_twice(&[many(0, 9), many(0, 8), many(0, 9)]), Some((0, 2)));
        assert_eq!(counted_twice(&[many(0, 9), many(1, 9), many(0, 8)]), None);
        assert_eq!(counted_twice(&[log(0, &["a"]), log(0, &["a"])]), None, "one value each");
        let producers = log(0, &["x"]);
        let merged = merge(&[many(0, 9), producers.clone()]).unwrap();
        assert_eq!(counted_twice(&[merged, many(0, 9), producers]), Some((0, 1)));
    }

    #[test]
    fn runs_at_other_times_stay_apart() {
        let merged = merge(&[log(900_000, &["a"]), log(0, &["a"])]).unwrap();
        assert_eq!(merged.intervals.iter().map(|i| i.start_ms).collect::<Vec<_>>(), [0, 900_000]);
        assert_eq!(merge(&[]).unwrap(), Log::default());
    }
}
