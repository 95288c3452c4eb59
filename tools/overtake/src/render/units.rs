//! Numbers with their units, short enough for a column.

use overtake_base::UnixMillis;

/// `1234567` → `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1536` → `1.5 KiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1_024 {
        return format!("{number} B");
    }
    let mut tenths = u128::from(number) * 10 / 1_024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1_024;
        unit += 1;
    }
    decimal(tenths, UNITS[unit])
}

/// A span of time, rounded: `350 ms`, `2.5 s`, `45 s`, `12 min`, `3.2 h`, `4 d`.
pub fn span(ms: u64) -> String {
    /// Milliseconds of each unit, and from how many of it on the next one is used.
    const UNITS: [(u64, u64, &str); 4] =
        [(1_000, 60, "s"), (60_000, 60, "min"), (3_600_000, 24, "h"), (86_400_000, u64::MAX, "d")];
    if ms < 1_000 {
        return format!("{ms} ms");
    }
    let rounded = |unit_ms: u64| (u128::from(ms) + u128::from(unit_ms / 2)) / u128::from(unit_ms);
    let fits = |(unit_ms, limit, _): &&(u64, u64, &str)| rounded(*unit_ms) < u128::from(*limit);
    let (unit_ms, _, name) = UNITS.iter().find(fits).unwrap_or(&UNITS[3]);
    let tenths = rounded(unit_ms / 10);
    if tenths >= 100 { format!("{} {name}", rounded(*unit_ms)) } else { decimal(tenths, name) }
}

/// A time as the API writes it: `2026-01-31T12:00:00.000Z`.
pub fn time(at: UnixMillis) -> String {
    let text = serde_json::to_value(overtake_gateway::json::Time(at)).ok();
    text.as_ref().and_then(|text| text.as_str()).unwrap_or_default().to_owned()
}

/// A configured number of seconds, exactly: `30 s`, `10 min`, `4 d`, `90 s`.
pub fn seconds(s: u64) -> String {
    match s {
        0 => "0 s".to_owned(),
        s if s % 86_400 == 0 => format!("{} d", s / 86_400),
        s if s % 3_600 == 0 => format!("{} h", s / 3_600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

/// A wait in milliseconds with three digits that matter.
pub fn wait_ms(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.2} ms")
    } else if ms < 1_000.0 {
        format!("{ms:.0} ms")
    } else {
        // A wait is not negative and far below 2^53 ms; a damaged one saturates.
        span(ms as u64)
    }
}

/// An instant as seen from `now`: `3 s ago`, `in 12 min`.
pub fn relative(now: UnixMillis, at: UnixMillis) -> String {
    if at > now { format!("in {}", span(at.since(now))) } else { format!("{} ago", span(now.since(at))) }
}

/// A rate: `12,300/s`.
pub fn rate(number: u64, ms: u64) -> String {
    let per_s = u128::from(number) * 1_000 / u128::from(ms.max(1));
    format!("{}/s", count(u64::try_from(per_s).unwrap_or(u64::MAX)))
}

/// Millionths as the decimal they stand for: `500000` → `0.5`.
pub fn millionths(number: u64) -> String {
    let text = format!("{}.{:06}", number / 1_000_000, number % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn decimal(tenths: u128, unit: &str) -> String {
    if tenths >= 100 || tenths.is_multiple_of(10) {
        format!("{} {unit}", tenths / 10)
    } else {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_groups() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(
            [0, 1_023, 1_024, 1_536, 10_240, 1 << 20, u64::MAX].map(bytes),
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "10 KiB", "1 MiB", "15 EiB"]
        );
    }

    #[test]
    fn spans_choose_their_unit() {
        assert_eq!(
            [0, 999, 1_000, 2_500, 29_996, 59_499, 59_999, 60_000, 5_400_000, 86_399_999, 400_000_000]
                .map(span),
            ["0 ms", "999 ms", "1 s", "2.5 s", "30 s", "59 s", "1 min", "1 min", "1.5 h", "1 d", "4.6 d"]
        );
        assert_eq!(
            [0, 30, 90, 600, 7_200, 345_600].map(seconds),
            ["0 s", "30 s", "90 s", "10 min", "2 h", "4 d"]
        );
        assert_eq!([0.213, 9.5, 42.4, 1_500.0].map(wait_ms), ["0.21 ms", "9.50 ms", "42 ms", "1.5 s"]);
    }

    #[test]
    fn instants_are_relative() {
        let now = UnixMillis(100_000);
        assert_eq!(relative(now, UnixMillis(97_000)), "3 s ago");
        assert_eq!(relative(now, UnixMillis(100_000)), "0 ms ago");
        assert_eq!(span(u64::MAX), "213503982335 d");
        assert_eq!(relative(now, UnixMillis(820_000)), "in 12 min");
    }

    #[test]
    fn rates_and_millionths_stay_exact() {
        assert_eq!((rate(24_600, 2_000), rate(5, 0)), ("12,300/s".to_owned(), "5,000/s".to_owned()));
        assert_eq!([0, 1, 500_000, 50_000_000].map(millionths), ["0", "0.000001", "0.5", "50"]);
    }
}
