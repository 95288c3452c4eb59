//! Times as the contract writes them: in as RFC 3339 ending in `Z` or Unix milliseconds, out as RFC 3339 with
//! milliseconds and `Z`. Years 1970 to 9999; the calendar is the proleptic Gregorian one, without leap seconds.

use overtake_base::UnixMillis;

/// The last millisecond of the year 9999, the last that RFC 3339 can write.
pub(crate) const LAST_MS: u64 = 253_402_300_799_999;

const MS_PER_DAY: u64 = 86_400_000;
const DAYS_PER_ERA: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_EPOCH: u64 = 719_468;

/// Reads an RFC 3339 time ending in `Z`. Fractions finer than a millisecond are rounded up, so that nothing that
/// waits for the time comes before it.
pub fn parse(text: &str) -> Option<UnixMillis> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = bytes.get(from..to)?;
        digits.iter().try_fold(0, |n, d| d.is_ascii_digit().then(|| n * 10 + u64::from(d - b'0')))
    };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !marks.iter().all(|(at, mark)| bytes.get(*at) == Some(mark)) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap_second = second == 60 && hour == 23 && minute == 59;
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && (second < 60 || leap_second);
    if !in_range {
        return None;
    }
    let fraction_ms = fraction_ms(bytes.get(19..)?)?;
    let seconds = (hour * 60 + minute) * 60 + second;
    let ms = days_since_epoch(year, month, day) * MS_PER_DAY + seconds * 1_000 + fraction_ms;
    Some(UnixMillis(ms.min(LAST_MS)))
}

/// `Z`, or a point, digits and `Z`: the fraction in milliseconds, rounded up.
fn fraction_ms(rest: &[u8]) -> Option<u64> {
    let digits = match rest {
        [b'Z'] => return Some(0),
        [b'.', digits @ .., b'Z'] if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => digits,
        _ => return None,
    };
    let ms = (0..3).fold(0, |ms, i| ms * 10 + digits.get(i).map_or(0, |d| u64::from(d - b'0')));
    let finer = digits.iter().skip(3).any(|d| *d != b'0');
    Some(ms + u64::from(finer))
}

/// The time as text, 24 characters; a time after the year 9999 is written as the last one before.
pub(crate) fn format(time: UnixMillis) -> [u8; 24] {
    let ms = time.0.min(LAST_MS);
    let (year, month, day) = date_of(ms / MS_PER_DAY);
    let ms_of_day = ms % MS_PER_DAY;
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let mut put = |from: usize, digits: usize, mut value: u64| {
        for place in (from..from + digits).rev() {
            text[place] = b'0' + (value % 10) as u8;
            value /= 10;
        }
    };
    put(0, 4, year);
    put(5, 2, month);
    put(8, 2, day);
    put(11, 2, ms_of_day / 3_600_000);
    put(14, 2, ms_of_day / 60_000 % 60);
    put(17, 2, ms_of_day / 1_000 % 60);
    put(20, 3, ms_of_day % 1_000);
    text
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Years are counted from March here, so that the leap day is a year's last day and months have a regular pattern
/// of lengths: month m (0 = March) starts on day (153 m + 2) / 5.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - DAYS_TO_EPOCH
}

/// The inverse of [`days_since_epoch`].
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_TO_EPOCH;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(ms: u64) -> String {
        String::from_utf8(format(UnixMillis(ms)).to_vec()).unwrap()
    }

    fn ms(text: &str) -> Option<u64> {
        parse(text).map(|t| t.0)
    }

    #[test]
    fn known_instants() {
        for (want, at) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("2024-02-29T12:00:00.000Z", 1_709_208_000_000),
            ("2100-03-01T00:00:00.000Z", 4_107_542_400_000),
            ("9999-12-31T23:59:59.999Z", LAST_MS),
        ] {
            assert_eq!(text(at), want);
            assert_eq!(ms(want), Some(at));
        }
        assert_eq!(text(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn fractions_round_up_and_leap_seconds_count_on() {
        assert_eq!(ms("1970-01-01T00:00:01Z"), Some(1_000));
        assert_eq!(ms("1970-01-01T00:00:01.5Z"), Some(1_500));
        assert_eq!(ms("1970-01-01T00:00:01.0010000Z"), Some(1_001));
        assert_eq!(ms("1970-01-01T00:00:01.0010001Z"), Some(1_002));
        assert_eq!(ms("1970-01-01T00:00:01.999999999Z"), Some(2_000));
        assert_eq!(ms("2016-12-31T23:59:60Z"), ms("2017-01-01T00:00:00Z"));
        assert_eq!(ms("9999-12-31T23:59:59.9999Z"), Some(LAST_MS));
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in [
            "",
            "Z",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00+00:00",
            "2024-01-01 00:00:00Z",
            "2024-01-01t00:00:00Z",
            "2024-01-01T00:00:00z",
            "2023-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-01-32T00:00:00Z",
            "2024-01-00T00:00:00Z",
            "2024-04-31T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:60Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00.1xZ",
            "1969-12-31T23:59:59Z",
            "10000-01-01T00:00:00Z",
            "2024-01-01T00:00:00ZZ",
            "2024-01-01T00:00:00Zä",
            "２024-01-01T00:00:00Z",
            "+024-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_another_calendar(at in 0..=LAST_MS) {
            let other = time::OffsetDateTime::from_unix_timestamp((at / 1_000) as i64).unwrap();
            let want = format!(
                "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
                other.year(), u8::from(other.month()), other.day(), other.hour(), other.minute(), other.second(), at % 1_000,
            );
            prop_assert_eq!(text(at), want.as_str());
            prop_assert_eq!(ms(&want), Some(at));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,30}") {
            let _ = parse(&text);
        }
    }

    #[test]
    fn every_day_of_eight_thousand_years_survives() {
        for day in 0..=LAST_MS / MS_PER_DAY {
            let (year, month, date) = date_of(day);
            assert_eq!(days_since_epoch(year, month, date), day);
        }
    }
}
