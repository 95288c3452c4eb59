//! What a log says for each tag: count, rate and percentiles.

use crate::hlog::{Log, histogram};
use crate::table::{align, legend, milliseconds, percentile_of, thousands};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Percentiles that are printed.
pub const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// Everything measured under one tag.
#[derive(Clone, Debug)]
pub struct Total {
    /// All values.
    pub histogram: Histogram<u64>,
    /// Start of its first interval, in milliseconds since 1970.
    pub start_ms: u64,
    /// End of its last interval.
    pub end_ms: u64,
}

impl Total {
    /// Values a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.histogram.len() as f64 * 1e3 / (self.end_ms - self.start_ms).max(1) as f64
    }
}

/// The totals of each tag of a log.
///
/// # Errors
/// Where histograms of one tag cannot be added.
pub fn totals(log: &Log) -> Result<BTreeMap<String, Total>, String> {
    let mut totals: BTreeMap<String, Total> = BTreeMap::new();
    for interval in &log.intervals {
        let (start_ms, end_ms) = (interval.start_ms, interval.end_ms());
        let empty = || Total { histogram: histogram(), start_ms, end_ms };
        let total = totals.entry(interval.tag.clone()).or_insert_with(empty);
        total.start_ms = total.start_ms.min(start_ms);
        total.end_ms = total.end_ms.max(end_ms);
        let added = interval.histogram.add_to(&mut total.histogram);
        added.map_err(|error| format!("intervals of tag {:?} cannot be added: {error}", interval.tag))?;
    }
    Ok(totals)
}

/// What a person calls a tag. A file of others may hold anything: what would move the cursor, or turn the direction of
/// writing, is shown as its number.
#[must_use]
pub fn name_of(tag: &str) -> String {
    if tag.is_empty() {
        return "(no tag)".into();
    }
    let mut name = String::new();
    for letter in tag.chars() {
        // `char::escape_debug` knows what cannot be printed; quotes can.
        match letter {
            '\'' | '"' | '\\' => name.push(letter),
            _ => name.extend(letter.escape_debug()),
        }
    }
    name
}

/// The totals as a table, in milliseconds.
#[must_use]
pub fn render(totals: &BTreeMap<String, Total>) -> String {
    let head = ["tag", "count", "per second", "mean ms", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
    let mut cells = vec![head.map(str::to_owned)];
    for (tag, total) in totals {
        let values = &total.histogram;
        let percentile = |at: usize| percentile_of(values, PERCENTILES[at]);
        cells.push([
            name_of(tag),
            thousands(values.len()),
            thousands(total.per_second().round() as u64),
            milliseconds(values.mean().round() as u64),
            percentile(0),
            percentile(1),
            percentile(2),
            percentile(3),
            percentile(4),
            milliseconds(values.max()),
        ]);
    }
    let table = align(&cells, core::array::from_fn(|column| column == 0));
    let legend = legend(&table);
    table + legend
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::EncodedHistogram;
    use crate::hlog::Interval;

    #[test]
    fn a_name_does_nothing_to_the_terminal() {
        assert_eq!((name_of(""), name_of("deliver.P0")), ("(no tag)".into(), "deliver.P0".into()));
        assert_eq!(name_of("größe \"x\" 'y'"), "größe \"x\" 'y'");
        let name = name_of("a\x1b[31mb\u{9b}c\u{202e}d\r\x07");
        assert_eq!(name, "a\\u{1b}[31mb\\u{9b}c\\u{202e}d\\r\\u{7}");
    }

    #[test]
    fn intervals_of_a_tag_are_one_line() {
        let interval = |tag: &str, start_ms, values: core::ops::Range<u64>| {
            let mut histogram = histogram();
            values.for_each(|ms| histogram.saturating_record(ms * 1_000_000));
            let histogram = EncodedHistogram::new(&histogram).unwrap();
            Interval { tag: tag.into(), start_ms, length_ms: 500, histogram }
        };
        let log = Log {
            intervals: vec![
                interval("deliver.P0", 1_000, 1..501),
                interval("deliver.P0", 1_500, 501..1_001),
                interval("", 0, 0..0),
            ],
            ..Log::default()
        };
        let text = render(&totals(&log).unwrap());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["(no", "tag)", "0", "0", "0.000", "-", "-", "-", "-", "-", "0.000"]);
        let p0 = [
            "deliver.P0",
            "1,000",
            "1,000",
            "500.5",
            "500.2",
            "900.2",
            "990.4",
            "1000.3",
            "1000.3*",
            "1000.3",
        ];
        assert_eq!(lines[3], p0);
    }
}
