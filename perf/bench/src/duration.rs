//! Durations as people write them on a command line: `500ms`, `10s`, `2m`.

use std::time::Duration;

/// Reads a number with a unit, above zero and at most a day. The error says what is expected.
pub fn parse(text: &str) -> Result<Duration, String> {
    const DAY_MS: u64 = 86_400_000;
    let expected = || format!("{text:?} is not a duration above 0 and up to a day, like 500ms, 10s or 2m");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(expected()),
    };
    let number: u64 = digits.parse().map_err(|_| expected())?;
    match number.checked_mul(unit_ms) {
        Some(ms @ 1..=DAY_MS) => Ok(Duration::from_millis(ms)),
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_everything_else_is_refused() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "10", "0s", "-1s", "1.5s", "10 s", "99999999999999999999s", "25h", "5d", "1é"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
