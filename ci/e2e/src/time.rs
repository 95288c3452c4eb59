//! Wall time as the contract writes it, and waiting for what the contract promises "within".
//!
//! Upper bounds of the contract (50 ms, 1 s) are not asserted: a busy machine is no bug. [`eventually`] is generous;
//! what must never be *early* is asserted exactly.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long something promised "within a second" is waited for before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A server stamps what it does with the time at which its turn began, which on a busy machine is a little before the
/// request was sent. What the contract counts "from now" may therefore seem that much too short from outside.
pub const STAMP_MS: u64 = 100;

/// Unix milliseconds of this machine's clock, which the server under test reads too.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    u64::try_from(since.as_millis()).expect("a time in this age")
}

/// Sleeps until the clock has passed `unix_ms`.
pub fn sleep_past(unix_ms: u64) {
    while now_ms() <= unix_ms {
        std::thread::sleep(Duration::from_millis(unix_ms + 1 - now_ms().min(unix_ms)));
    }
}

/// Sleeps `ms` milliseconds.
pub fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Tries until `attempt` gives a value; fails, naming `what`, when [`PATIENCE`] is over.
#[track_caller]
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Unix milliseconds of `YYYY-MM-DDTHH:MM:SS.mmmZ`, the one form in which times go out. None for any other text.
pub fn parse_rfc3339_ms(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let shape = b"0000-00-00T00:00:00.000Z";
    let fits = bytes.len() == shape.len()
        && bytes.iter().zip(shape).all(|(b, s)| if *s == b'0' { b.is_ascii_digit() } else { b == s });
    if !fits {
        return None;
    }
    let number = |from: usize, to: usize| text[from..to].parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second, milli) = (number(11, 13)?, number(14, 16)?, number(17, 19)?, number(20, 23)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_from_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    u64::try_from(seconds * 1_000 + milli).ok()
}

/// The same form, of a time.
pub fn format_rfc3339_ms(unix_ms: u64) -> String {
    let (days, in_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (mut year, mut left) = (1970i64, i64::try_from(days).expect("a time in this age"));
    loop {
        let length = days_from_epoch(year + 1, 1, 1) - days_from_epoch(year, 1, 1);
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let start = days_from_epoch(year, 1, 1);
    let month = (1..=12).rev().find(|m| days_from_epoch(year, *m, 1) - start <= left).unwrap_or(1);
    let day = left - (days_from_epoch(year, month, 1) - start) + 1;
    let (second, milli) = (in_day / 1_000, in_day % 1_000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{milli:03}Z",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

/// Days from 1970-01-01 in the Gregorian calendar; years start in March so that the leap day is the last.
fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    let shifted = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    shifted * 365 + shifted / 4 - shifted / 100 + shifted / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, ms) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T12:34:56.789Z", 951_827_696_789),
            ("2026-11-30T11:49:16.001Z", 1_796_039_356_001),
            ("2024-12-31T23:59:59.999Z", 1_735_689_599_999),
        ] {
            assert_eq!(parse_rfc3339_ms(text), Some(ms));
            assert_eq!(format_rfc3339_ms(ms), text);
        }
    }

    #[test]
    fn other_forms_are_not_times() {
        for text in ["", "2026-11-30T11:49:16Z", "2026-11-30T11:49:16.001+00:00", "2026-13-30T11:49:16.001Z"]
        {
            assert_eq!(parse_rfc3339_ms(text), None, "{text}");
        }
    }

    #[test]
    fn every_day_of_a_century_survives_its_text() {
        for day in 0..36_525 {
            let ms = day * 86_400_000 + 12_345_678;
            assert_eq!(parse_rfc3339_ms(&format_rfc3339_ms(ms)), Some(ms));
        }
    }
}
