//! Changes of a queue's configuration. A field left out stays as it is; null puts it back to its default.
//!
//! Fractions are kept in millionths: a number with more digits is rounded to the nearest one, after its range was
//! checked.

use super::fault::Fault;
use super::object::{Object, Value};
use overtake_base::limits::{
    DELAY_S_MAX, DEPTH_MAX, LEASE_S_MAX, LEVELS_MAX, MAX_DELIVERIES_MAX, PERIOD_S_MAX, RATE_MAX, SHARDS_MAX,
    SHARE_PPM_MAX, WEIGHT_MICRO_MAX,
};
use overtake_base::queue_config::{
    BACKOFF_FACTOR_MICRO, Backoff, Change, QueueConfigPatch, RateCaps, Scheduling, Starvation,
};

/// Every field of a configuration, in the order of the contract.
pub(crate) const FIELDS: &[&str] = &[
    "levels",
    "shards",
    "scheduling",
    "weights",
    "reserve",
    "floor",
    "aging_s",
    "max_deliveries",
    "lease_s",
    "dedup_window_s",
    "retention_s",
    "max_depth",
    "max_bytes",
    "rate_caps",
    "dead_letter_expired",
    "backoff",
    "starvation_s",
];

const MICRO: i64 = 6;

/// Reads the body of a `PUT` of a queue; an empty one changes nothing.
///
/// # Errors
/// The first field that is unknown, repeated, of a wrong type or out of its range. Whether the number of `weights`
/// fits `levels`, and what else depends on the queue, is for the servers to say.
pub fn parse_config(bytes: &[u8]) -> Result<QueueConfigPatch, Fault> {
    let object = if bytes.is_empty() { Object::empty(FIELDS) } else { Object::parse(bytes, FIELDS)? };
    Ok(QueueConfigPatch {
        levels: change(&object, "levels", |v| small(v, LEVELS_MAX as u8))?,
        shards: change(&object, "shards", |v| small(v, SHARDS_MAX))?,
        scheduling: change(&object, "scheduling", scheduling)?,
        weights_micro: change(&object, "weights", weights)?,
        reserve_ppm: change(&object, "reserve", share)?,
        floor_ppm: change(&object, "floor", share)?,
        aging_s: change(&object, "aging_s", |v| v.whole(1, PERIOD_S_MAX))?,
        max_deliveries: change(&object, "max_deliveries", |v| v.whole_u32(1, MAX_DELIVERIES_MAX))?,
        lease_s: change(&object, "lease_s", |v| v.whole_u32(1, LEASE_S_MAX))?,
        dedup_window_s: change(&object, "dedup_window_s", |v| v.whole(0, PERIOD_S_MAX))?,
        retention_s: change(&object, "retention_s", |v| v.whole(1, PERIOD_S_MAX))?,
        max_depth: change(&object, "max_depth", |v| v.whole(1, DEPTH_MAX))?,
        max_bytes: change(&object, "max_bytes", |v| v.whole(1, DEPTH_MAX))?,
        rate_caps: change(&object, "rate_caps", rate_caps)?,
        dead_letter_expired: change(&object, "dead_letter_expired", Value::boolean)?,
        backoff: change(&object, "backoff", backoff)?,
        starvation: change(&object, "starvation_s", starvation)?,
    })
}

fn change<'a, T>(
    object: &Object<'a>,
    name: &'static str,
    read: impl FnOnce(Value<'a>) -> Result<T, Fault>,
) -> Result<Change<T>, Fault> {
    object.named(name).map(|value| value.map(read).transpose()).transpose()
}

/// A whole number 1..=`high` of a small type.
fn small<T: TryFrom<u64> + Into<u64> + Copy>(value: Value<'_>, high: T) -> Result<T, Fault> {
    value.whole(1, high.into()).map(|n| T::try_from(n).unwrap_or(high))
}

fn scheduling(value: Value<'_>) -> Result<Scheduling, Fault> {
    const SCHEDULING: &str = "must be \"weighted\", \"strict\" or \"aging\"";
    match &*value.text(SCHEDULING)? {
        "weighted" => Ok(Scheduling::Weighted),
        "strict" => Ok(Scheduling::Strict),
        "aging" => Ok(Scheduling::Aging),
        _ => Err(value.fault(SCHEDULING)),
    }
}

/// Any number above 0 counts as one millionth at least.
fn weights(value: Value<'_>) -> Result<Vec<u64>, Fault> {
    let mut weights = Vec::new();
    value.list(1, LEVELS_MAX, |item| {
        let weight = item
            .number(MICRO)
            .filter(|n| n.is_positive())
            .and_then(|n| n.rounded_in(0, WEIGHT_MICRO_MAX))
            .ok_or_else(|| item.fault("must be a number above 0 and at most 1000000000"))?;
        weights.push(weight.max(1));
        Ok(())
    })?;
    Ok(weights)
}

fn share(value: Value<'_>) -> Result<u32, Fault> {
    value
        .number(MICRO)
        .and_then(|n| n.rounded_in(0, u64::from(SHARE_PPM_MAX)))
        .and_then(|ppm| u32::try_from(ppm).ok())
        .ok_or_else(|| value.fault("must be a fraction 0..=0.5"))
}

fn rate_caps(value: Value<'_>) -> Result<RateCaps, Fault> {
    const EXPECTED: &str =
        "must be an object of queue, p0, p1, …, each a whole number 0..=1000000000 per second";
    let mut caps = RateCaps::default();
    let mut seen = std::collections::BTreeSet::new();
    value.entries(EXPECTED, |name, cap| {
        let level = level_of(name);
        if level.is_none() && name != "queue" {
            let shown: String = name.chars().take(64).collect();
            return Err(Fault::of(shown, "is not a known field; known fields: queue, p0, p1, … p99")
                .within("rate_caps"));
        }
        if !seen.insert(level) {
            return Err(Fault::of(name, "is given twice").within("rate_caps"));
        }
        if cap.raw() == "null" {
            return Ok(());
        }
        let cap = cap.whole(0, RATE_MAX).map_err(|fault| Fault::of(name, fault.text).within("rate_caps"))?;
        match level {
            Some(level) => _ = caps.levels.insert(level, cap),
            None => caps.queue = Some(cap),
        }
        Ok(())
    })?;
    Ok(caps)
}

/// The level that `p0`..`p99` names.
fn level_of(name: &str) -> Option<u8> {
    let digits = name.strip_prefix('p')?;
    let canonical = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|level| canonical && usize::from(*level) < LEVELS_MAX)
}

fn backoff(value: Value<'_>) -> Result<Backoff, Fault> {
    const SECONDS: &str = "must be a whole number 0..=31622400";
    const FACTOR: &str = "must be a number 1..=1000";
    value.object(&["first_s", "factor", "max_s"], |object| {
        let factor = object.required("factor", FACTOR)?;
        let (low, high) = (*BACKOFF_FACTOR_MICRO.start(), *BACKOFF_FACTOR_MICRO.end());
        Ok(Backoff {
            first_s: object.required("first_s", SECONDS)?.whole(0, DELAY_S_MAX)?,
            factor_micro: factor
                .number(MICRO)
                .and_then(|n| n.rounded_in(low, high))
                .ok_or_else(|| factor.fault(FACTOR))?,
            max_s: object.required("max_s", SECONDS)?.whole(0, DELAY_S_MAX)?,
        })
    })
}

fn starvation(value: Value<'_>) -> Result<Starvation, Fault> {
    if !value.is_list() {
        return value.whole(1, PERIOD_S_MAX).map(Starvation::All).map_err(|_| {
            value.fault("must be a whole number 1..=31622400, or a list of them, one for each level")
        });
    }
    let mut seconds = Vec::new();
    value.list(1, LEVELS_MAX, |item| {
        seconds.push(item.whole(1, PERIOD_S_MAX)?);
        Ok(())
    })?;
    Ok(Starvation::PerLevel(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_arrives() {
        let patch = parse_config(
            br#"{ "levels": 3, "shards": 1, "scheduling": "aging", "weights": [50, 2.5, 1e-9], "reserve": 0.25,
                "floor": 0, "aging_s": 60, "max_deliveries": 9, "lease_s": 43200, "dedup_window_s": 0,
                "retention_s": 31622400, "max_depth": 1000000000000000, "max_bytes": 1,
                "rate_caps": { "queue": 100, "p0": 0, "p2": 7, "p1": null }, "dead_letter_expired": true,
                "backoff": { "first_s": 1, "factor": 1.5, "max_s": 60 }, "starvation_s": [1, 2, 3] }"#,
        )
        .unwrap();
        let want = QueueConfigPatch {
            levels: Some(Some(3)),
            shards: Some(Some(1)),
            scheduling: Some(Some(Scheduling::Aging)),
            weights_micro: Some(Some(vec![50_000_000, 2_500_000, 1])),
            reserve_ppm: Some(Some(250_000)),
            floor_ppm: Some(Some(0)),
            aging_s: Some(Some(60)),
            max_deliveries: Some(Some(9)),
            lease_s: Some(Some(43_200)),
            dedup_window_s: Some(Some(0)),
            retention_s: Some(Some(31_622_400)),
            max_depth: Some(Some(1_000_000_000_000_000)),
            max_bytes: Some(Some(1)),
            rate_caps: Some(Some(RateCaps { queue: Some(100), levels: [(0, 0), (2, 7)].into() })),
            dead_letter_expired: Some(Some(true)),
            backoff: Some(Some(Backoff { first_s: 1, factor_micro: 1_500_000, max_s: 60 })),
            starvation: Some(Some(Starvation::PerLevel(vec![1, 2, 3]))),
        };
        assert_eq!(patch, want);
        let patch = parse_config(br#"{ "starvation_s": 60 }"#).unwrap();
        assert_eq!(
            patch,
            QueueConfigPatch { starvation: Some(Some(Starvation::All(60))), ..Default::default() }
        );
    }

    #[test]
    fn nothing_changes_nothing_and_null_resets() {
        assert_eq!(parse_config(b""), Ok(QueueConfigPatch::default()));
        assert_eq!(parse_config(b"{}"), Ok(QueueConfigPatch::default()));
        let nulls: Vec<String> = FIELDS.iter().map(|name| format!("\"{name}\":null")).collect();
        let patch = parse_config(format!("{{{}}}", nulls.join(",")).as_bytes()).unwrap();
        assert_eq!((patch.levels, patch.backoff, patch.starvation), (Some(None), Some(None), Some(None)));
        assert_eq!(
            (patch.weights_micro, patch.max_depth, patch.rate_caps),
            (Some(None), Some(None), Some(None))
        );
    }

    #[test]
    fn every_refusal_names_its_field() {
        for (field, bad) in [
            ("levels", "0"),
            ("levels", "101"),
            ("levels", "300"),
            ("levels", "5.5"),
            ("levels", "\"5\""),
            ("shards", "0"),
            ("shards", "1025"),
            ("shards", "1e99"),
            ("scheduling", "\"fair\""),
            ("scheduling", "1"),
            ("reserve", "0.5000000000001"),
            ("reserve", "-0.1"),
            ("floor", "1"),
            ("floor", "\"0\""),
            ("aging_s", "0"),
            ("max_deliveries", "0"),
            ("max_deliveries", "1000001"),
            ("lease_s", "43201"),
            ("dedup_window_s", "-1"),
            ("retention_s", "0"),
            ("retention_s", "31622401"),
            ("max_depth", "0"),
            ("max_depth", "1000000000000001"),
            ("max_bytes", "0.5"),
            ("dead_letter_expired", "1"),
            ("rate_caps", "[]"),
            ("starvation_s", "0"),
            ("starvation_s", "\"x\""),
            ("starvation_s", "[]"),
            ("weights", "[]"),
            ("weights", "5"),
            ("backoff", "5"),
            ("color", "1"),
        ] {
            let fault = parse_config(format!("{{\"{field}\":{bad}}}").as_bytes()).unwrap_err();
            assert_eq!(fault.field.as_deref(), Some(field), "{field} {bad}: {fault}");
        }
        for (json, field) in [
            (r#"{"weights":[1,0]}"#, "weights[1]"),
            (r#"{"weights":[1000000001]}"#, "weights[0]"),
            (r#"{"weights":[1,"2"]}"#, "weights[1]"),
            (r#"{"starvation_s":[1,0]}"#, "starvation_s[1]"),
            (r#"{"rate_caps":{"p100":1}}"#, "rate_caps.p100"),
            (r#"{"rate_caps":{"p01":1}}"#, "rate_caps.p01"),
            (r#"{"rate_caps":{"p0":-1}}"#, "rate_caps.p0"),
            (r#"{"rate_caps":{"p0":1,"p0":2}}"#, "rate_caps.p0"),
            (r#"{"rate_caps":{"queue":1.5}}"#, "rate_caps.queue"),
            (r#"{"backoff":{"first_s":1,"max_s":1}}"#, "backoff.factor"),
            (r#"{"backoff":{"first_s":1,"factor":0.5,"max_s":1}}"#, "backoff.factor"),
            (r#"{"backoff":{"first_s":-1,"factor":1,"max_s":1}}"#, "backoff.first_s"),
            (r#"{"backoff":{"first_s":1,"factor":1,"max_s":1,"min_s":1}}"#, "backoff.min_s"),
        ] {
            assert_eq!(parse_config(json.as_bytes()).unwrap_err().field.as_deref(), Some(field), "{json}");
        }
    }
}
