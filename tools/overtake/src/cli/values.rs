//! Texts of the command line made into values: `K=V` pairs, fractions, lists, times. Every error says what is
//! allowed.

use overtake_base::UnixMillis;
use overtake_base::limits::{LEVELS_MAX, RATE_MAX};
use overtake_base::queue_config::{RateCaps, Scheduling, Starvation};
pub use overtake_config::text::{host_and_port, node_id, peer, zone};
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

/// A value and the word that puts a setting back to its default.
pub const DEFAULT_WORD: &str = "default";

/// A setting of a queue: a value, or `default` to put it back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting<T>(pub Option<T>);

/// Parses a setting with the parser of its value.
pub fn setting<T>(text: &str, value: impl FnOnce(&str) -> Result<T, String>) -> Result<Setting<T>, String> {
    if text == DEFAULT_WORD { Ok(Setting(None)) } else { value(text).map(|value| Setting(Some(value))) }
}

/// A setting whose value parses by itself, with what is allowed where it does not.
pub fn plain<T: FromStr>(text: &str) -> Result<Setting<T>, String> {
    setting(text, |text| text.parse().map_err(|_| "expected a number or `default`".to_owned()))
}

/// `true`, `false` or `default`.
pub fn switch(text: &str) -> Result<Setting<bool>, String> {
    setting(text, |text| text.parse().map_err(|_| "expected `true`, `false` or `default`".to_owned()))
}

/// `weighted`, `strict`, `aging` or `default`.
pub fn scheduling(text: &str) -> Result<Setting<Scheduling>, String> {
    setting(text, |text| match text {
        "weighted" => Ok(Scheduling::Weighted),
        "strict" => Ok(Scheduling::Strict),
        "aging" => Ok(Scheduling::Aging),
        _ => Err("expected `weighted`, `strict`, `aging` or `default`".to_owned()),
    })
}

/// `50,25,13`: one positive number for each level, level 0 first, in millionths.
pub fn weights(text: &str) -> Result<Setting<Vec<u64>>, String> {
    setting(text, |text| {
        text.split(',').map(|weight| scaled(weight.trim(), 6)).collect::<Result<Vec<u64>, String>>()
    })
}

/// A fraction 0..=0.5, in parts per million.
pub fn fraction_ppm(text: &str) -> Result<Setting<u32>, String> {
    setting(text, |text| match scaled(text, 6) {
        Ok(ppm @ 0..=500_000) => u32::try_from(ppm).map_err(|error| error.to_string()),
        _ => Err("expected a fraction 0..=0.5 or `default`".to_owned()),
    })
}

/// A back-off factor 1..=1000, in millionths.
pub fn factor_micro(text: &str) -> Result<u64, String> {
    match scaled(text, 6) {
        Ok(micro) if overtake_base::queue_config::BACKOFF_FACTOR_MICRO.contains(&micro) => Ok(micro),
        _ => Err("expected a number 1..=1000".to_owned()),
    }
}

/// A number of seconds for all levels, or a comma list with one for each.
pub fn starvation(text: &str) -> Result<Setting<Starvation>, String> {
    setting(text, |text| {
        let list: Result<Vec<u64>, _> = text.split(',').map(|seconds| seconds.trim().parse()).collect();
        match list.as_deref() {
            Ok([all]) => Ok(Starvation::All(*all)),
            Ok(list) => Ok(Starvation::PerLevel(list.to_vec())),
            Err(_) => Err("expected seconds, or a comma list with one for each level".to_owned()),
        }
    })
}

/// One `--rate-cap`: `queue=100`, `p0=5`, or `default` to lift all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RateCap {
    /// No caps at all.
    None,
    /// The whole queue.
    Queue(u64),
    /// One level.
    Level(u8, u64),
}

/// Parses a rate cap.
pub fn rate_cap(text: &str) -> Result<RateCap, String> {
    const EXPECTED: &str = "expected `queue=N`, `p0=N`, … (a second, 0 pauses) or `default`";
    if text == DEFAULT_WORD {
        return Ok(RateCap::None);
    }
    let (what, rate) = text.split_once('=').ok_or(EXPECTED)?;
    let rate = rate.parse().ok().filter(|rate| *rate <= RATE_MAX).ok_or(EXPECTED)?;
    if what == "queue" {
        return Ok(RateCap::Queue(rate));
    }
    let level = what.strip_prefix('p').and_then(|level| level.parse::<u8>().ok());
    match level {
        Some(level) if usize::from(level) < LEVELS_MAX => Ok(RateCap::Level(level, rate)),
        _ => Err(EXPECTED.to_owned()),
    }
}

/// All `--rate-cap`s together: what they set, or an error where they contradict each other.
pub fn rate_caps(caps: &[RateCap]) -> Result<Option<Setting<RateCaps>>, String> {
    if caps.is_empty() {
        return Ok(None);
    }
    if caps == [RateCap::None] {
        return Ok(Some(Setting(None)));
    }
    let mut all = RateCaps::default();
    for cap in caps {
        let before = match cap {
            RateCap::None => return Err("--rate-cap default stands alone".to_owned()),
            RateCap::Queue(rate) => all.queue.replace(*rate),
            RateCap::Level(level, rate) => all.levels.insert(*level, *rate),
        };
        if before.is_some() {
            return Err("--rate-cap names the same cap twice".to_owned());
        }
    }
    Ok(Some(Setting(Some(all))))
}

/// A header, `NAME=VALUE`.
pub fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// A time: RFC 3339 ending in Z, or Unix milliseconds.
pub fn time(text: &str) -> Result<UnixMillis, String> {
    overtake_gateway::json::parse_time(text).or_else(|| text.parse().ok().map(UnixMillis)).ok_or_else(|| {
        "expected a time like 2030-01-31T08:00:00Z, or Unix milliseconds like 1900000000000".to_owned()
    })
}

/// An address to listen on: numbers only, a name may stand for several.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected an address and a port like 127.0.0.1:7401, [::1]:7401, or 0.0.0.0:7401 for every network".to_owned()
    })
}

/// A level, with or without its P: `0`, `p0`, `P0`.
pub fn level(text: &str) -> Result<u32, String> {
    text.strip_prefix(['p', 'P'])
        .unwrap_or(text)
        .parse()
        .ok()
        .filter(|level| (*level as usize) < LEVELS_MAX)
        .ok_or_else(|| format!("expected a level 0..={} (0 is the most urgent)", LEVELS_MAX - 1))
}

/// Seconds, with decimals, more than 0 and at most a day.
pub fn timeout(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected seconds, more than 0 and at most 86400";
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(EXPECTED.to_owned()),
    }
}

/// A decimal number times 10^`digits`, exactly: no float stands between what was typed and what is stored.
fn scaled(text: &str, digits: usize) -> Result<u64, String> {
    const EXPECTED: &str = "expected a number with at most 6 decimals";
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > digits || !plain(whole) || !plain(fraction) {
        return Err(EXPECTED.to_owned());
    }
    format!("{whole}{fraction:0<digits$}").parse().map_err(|_| EXPECTED.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fractions_are_exact() {
        for (text, ppm) in [("0", 0), ("0.1", 100_000), ("0.05", 50_000), ("0.000001", 1), ("0.5", 500_000)] {
            assert_eq!(fraction_ppm(text), Ok(Setting(Some(ppm))), "{text}");
        }
        assert_eq!(fraction_ppm("default"), Ok(Setting(None)));
        for bad in ["0.51", "-0.1", "1e-3", ".5", "", "0.0000001", "99999999999999999999"] {
            assert!(fraction_ppm(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn weights_are_millionths() {
        assert_eq!(weights("50, 25,0.5"), Ok(Setting(Some(vec![50_000_000, 25_000_000, 500_000]))));
        assert!(weights("50,,1").is_err());
        assert!(weights("50,x").is_err());
    }

    #[test]
    fn rate_caps_gather_and_refuse_contradictions() {
        let parse = |texts: &[&str]| -> Result<_, String> {
            rate_caps(&texts.iter().map(|text| rate_cap(text)).collect::<Result<Vec<_>, _>>()?)
        };
        let caps = RateCaps { queue: Some(100), levels: [(0, 5)].into() };
        assert_eq!(parse(&["queue=100", "p0=5"]), Ok(Some(Setting(Some(caps)))));
        assert_eq!(parse(&["default"]), Ok(Some(Setting(None))));
        assert_eq!(parse(&[]), Ok(None));
        for bad in
            [&["p0=1", "p0=2"][..], &["queue=1", "default"], &["p100=1"], &["p=1"], &["queue"], &["queue=-1"]]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn starvation_is_one_or_a_list() {
        assert_eq!(starvation("60"), Ok(Setting(Some(Starvation::All(60)))));
        assert_eq!(starvation("1,2"), Ok(Setting(Some(Starvation::PerLevel(vec![1, 2])))));
        assert!(starvation("1,").is_err());
    }

    #[test]
    fn levels_may_wear_their_p() {
        assert_eq!((level("0"), level("p3"), level("P99")), (Ok(0), Ok(3), Ok(99)));
        for bad in ["", "p", "100", "-1", "pp1"] {
            assert!(level(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_rfc_3339_or_unix_milliseconds() {
        assert_eq!(time("1970-01-01T00:00:01.5Z"), Ok(UnixMillis(1_500)));
        assert_eq!(time("1900000000000"), Ok(UnixMillis(1_900_000_000_000)));
        for bad in ["tomorrow", "-1", "2030-01-31", "2030-01-31T08:00:00+01:00", ""] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_are_numbers_and_errors_show_one() {
        assert!(address("127.0.0.1:0").is_ok() && address("[::1]:7401").is_ok());
        for bad in ["localhost:7401", "127.0.0.1", "7401", ""] {
            assert!(address(bad).unwrap_err().contains("like 127.0.0.1:7401"), "{bad}");
        }
    }

    #[test]
    fn timeouts_stay_in_their_range() {
        assert_eq!(timeout("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(timeout(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = (weights(&text), fraction_ppm(&text), factor_micro(&text), starvation(&text));
            let _ = (rate_cap(&text), header(&text), time(&text), level(&text), timeout(&text));
            let _ = address(&text);
        }
    }
}
