//! What was measured, and the table it is printed as.

use core::fmt::Write as _;
use hdrhistogram::Histogram;
use std::time::Duration;

/// Latencies in nanoseconds, to three digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(crate::hlog::histogram())
    }
}

impl Latencies {
    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Latencies counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The histogram behind it.
    #[must_use]
    pub const fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }

    fn quantile(&self, quantile: f64) -> String {
        percentile_of(&self.0, quantile * 100.0)
    }
}

impl From<Histogram<u64>> for Latencies {
    fn from(histogram: Histogram<u64>) -> Self {
        Self(histogram)
    }
}

/// Marks a percentile of too few values, see [`FEW_VALUES`].
const FEW: char = '*';
/// Stands below a table in which a percentile is marked.
const FEW_VALUES: &str = "* the highest value: there are too few for this percentile\n";

/// A percentile in milliseconds. Where not one value in all of them is above it, it is only the highest one, and marked.
#[must_use]
pub fn percentile_of(values: &Histogram<u64>, percentile: f64) -> String {
    if values.is_empty() {
        return "-".into();
    }
    marked(values.value_at_percentile(percentile), too_few(values.len(), percentile))
}

/// Whether not one in so many values is above a percentile. It is the highest one then, and says little.
#[must_use]
pub fn too_few(values: u64, percentile: f64) -> bool {
    // Compared with a little room: 100 - 99.9 is not exactly a tenth.
    (values as f64) * (100.0 - percentile) < 100.0 - 1e-6
}

/// A percentile in milliseconds, with a mark where there are too few values for it.
#[must_use]
pub fn marked(ns: u64, few: bool) -> String {
    let mut text = milliseconds(ns);
    if few {
        text.push(FEW);
    }
    text
}

/// What has to stand below a table, if anything.
#[must_use]
pub fn legend(table: &str) -> &'static str {
    if table.contains(FEW) { FEW_VALUES } else { "" }
}

/// Nanoseconds as milliseconds, with as many decimals as the eye needs.
#[must_use]
pub fn milliseconds(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 10.0 { format!("{ms:.3}") } else { format!("{ms:.1}") }
}

/// One line of the table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Name that stays the same whatever the options: what other tools look for in a results file.
    pub key: String,
    /// What was measured, for people.
    pub name: String,
    /// Messages or calls a second.
    pub per_second: Option<f64>,
    /// Latencies.
    pub latencies: Option<Latencies>,
    /// Bytes a second, where that is what counts.
    pub bytes_per_second: Option<f64>,
    /// CPU time of the server for a million messages, in seconds.
    pub cpu_s_per_million: Option<f64>,
    /// Deliveries of a message beyond its first one, on average.
    pub retries: Option<f64>,
    /// Resident memory of the server for a message more that waits, in bytes.
    pub memory_bytes_per_message: Option<f64>,
    /// What else is worth knowing.
    pub note: String,
}

/// The table as text, one line for each row, columns aligned.
#[must_use]
pub fn render(rows: &[Row]) -> String {
    let mut cells =
        vec![["measure", "per second", "p50 ms", "p99 ms", "p99.9 ms", "note"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| {
        let quantile = |q| row.latencies.as_ref().map_or_else(String::new, |latencies| latencies.quantile(q));
        [
            row.name.clone(),
            row.per_second.map_or_else(String::new, |n| thousands(n.round().max(0.0) as u64)),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            row.note.clone(),
        ]
    }));
    let table = align(&cells, [true, false, false, false, false, true]);
    let legend = legend(&table);
    table + legend
}

/// Cells as lines, columns aligned, with a rule below the first line. `left` says which columns start at their left.
#[must_use]
pub fn align<const COLUMNS: usize>(cells: &[[String; COLUMNS]], left: [bool; COLUMNS]) -> String {
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = core::array::from_fn(width);
    let mut text = String::new();
    for (index, row) in cells.iter().enumerate() {
        for column in 0..COLUMNS {
            let (gap, cell, width) = (if column == 0 { "" } else { "  " }, &row[column], widths[column]);
            let _ = if left[column] {
                write!(text, "{gap}{cell:<width$}")
            } else {
                write!(text, "{gap}{cell:>width$}")
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        if index == 0 {
            let _ = writeln!(text, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (COLUMNS - 1)));
        }
    }
    text
}

/// A number with a comma between each three digits.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 12, 999, 1_000, 1_234_567].map(thousands), ["0", "12", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latencies = Latencies::default();
        for us in 1..=1_000 {
            latencies.record(Duration::from_micros(us));
        }
        latencies.record(Duration::from_secs(1_000_000));
        assert_eq!((latencies.quantile(0.5), latencies.count()), ("0.501".into(), 1_001));
        // One of 1,001 values is above the 99.9th percentile, and none above the 99.99th.
        assert_eq!(latencies.quantile(0.999), "1.000");
        assert!(latencies.quantile(0.9999).ends_with('*'));
        assert_eq!(Latencies::default().quantile(0.5), "-");
    }

    #[test]
    fn columns_line_up() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_millis(12));
        let rows = [
            Row { name: "a".into(), per_second: Some(1_234.4), ..Row::default() },
            Row { name: "longer".into(), latencies: Some(latencies), note: "n".into(), ..Row::default() },
        ];
        let text = render(&rows);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "measure  per second  p50 ms  p99 ms  p99.9 ms  note");
        assert_eq!(lines[2], "a             1,234");
        assert_eq!(lines[3], "longer                12.0*   12.0*     12.0*  n");
        assert_eq!(lines[4], FEW_VALUES.trim_end());
    }
}
