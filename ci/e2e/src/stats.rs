//! Stats: every field of its type, every level present, and conserved.

use crate::shape::{self, Field, Kind, count};
use serde_json::Value;

const STATS_FIELDS: [Field<'static>; 9] = [
    ("visible", Kind::Object),
    ("delayed", Kind::Object),
    ("leased_by_level", Kind::Object),
    ("leased", Kind::Count),
    ("dlq", Kind::Count),
    ("oldest_age_s", Kind::Object),
    ("wait_ms", Kind::Object),
    ("totals", Kind::Object),
    ("workers", Kind::Object),
];
/// Every total but `refused`.
pub const TOTALS: [&str; 14] = [
    "enqueued",
    "acked",
    "cancelled",
    "purged",
    "expired",
    "dead_lettered",
    "redriven",
    "deliveries",
    "share_deliveries",
    "inversions",
    "lease_expirations",
    "releases",
    "stale_receipts",
    "starvation_events",
];

/// Fails unless stats have every field of its type, every level, and are conserved.
#[track_caller]
pub fn check_stats(stats: &Value) {
    shape::exactly(stats, &STATS_FIELDS, &[]);
    let levels = stats["visible"].as_object().map_or(0, serde_json::Map::len);
    let names: Vec<String> = (0..levels).map(|level| format!("p{level}")).collect();
    let each = |kind| names.iter().map(|name| (name.as_str(), kind)).collect::<Vec<Field<'_>>>();
    for field in ["visible", "delayed", "leased_by_level"] {
        shape::exactly(&stats[field], &each(Kind::Count), &[]);
    }
    shape::exactly(&stats["oldest_age_s"], &each(Kind::NumberOrNull), &[]);
    shape::exactly(&stats["wait_ms"], &each(Kind::ObjectOrNull), &[]);
    for wait in stats["wait_ms"].as_object().into_iter().flatten().map(|(_, wait)| wait) {
        if !wait.is_null() {
            let kind = Kind::NumberOrNull;
            shape::exactly(wait, &[("p50", kind), ("p99", kind), ("p999", kind)], &[]);
        }
    }
    let mut totals: Vec<Field<'_>> = TOTALS.iter().map(|name| (*name, Kind::Count)).collect();
    totals.push(("refused", Kind::Object));
    shape::exactly(&stats["totals"], &totals, &[]);
    let reasons = ["depth", "bytes", "rate", "disk", "no_quorum"].map(|reason| (reason, Kind::Count));
    shape::exactly(&stats["totals"]["refused"], &[], &reasons);
    assert!(stats["workers"].as_object().is_some_and(|map| map.values().all(Value::is_u64)), "{stats}");
    assert_eq!(sum_levels(stats, "leased_by_level"), count(stats, "leased"), "leased by level: {stats}");
    let totals = &stats["totals"];
    let there = sum_levels(stats, "visible")
        + sum_levels(stats, "delayed")
        + count(stats, "leased")
        + count(stats, "dlq");
    let gone: u64 = ["acked", "cancelled", "purged", "expired"].iter().map(|name| count(totals, name)).sum();
    assert_eq!(count(totals, "enqueued"), there + gone, "not conserved: {stats}");
}

/// Sum of a per-level field of stats.
#[track_caller]
pub fn sum_levels(stats: &Value, field: &str) -> u64 {
    stats[field].as_object().into_iter().flatten().filter_map(|(_, value)| value.as_u64()).sum()
}

/// One total of stats.
#[track_caller]
pub fn total(stats: &Value, name: &str) -> u64 {
    count(&stats["totals"], name)
}

/// How often enqueues were refused for a reason; a reason that is not listed counts 0.
pub fn refused_for(stats: &Value, reason: &str) -> u64 {
    stats["totals"]["refused"][reason].as_u64().unwrap_or(0)
}
