//! Answers about messages and configurations: their fields, and a delivered message taken apart.

use crate::shape::{self, Field, Kind, count};
use serde_json::Value;

pub(crate) const MESSAGE_FIELDS: [Field<'static>; 8] = [
    ("id", Kind::Id),
    ("priority", Kind::Count),
    ("receipt", Kind::Receipt),
    ("deliveries", Kind::Count),
    ("enqueued_at", Kind::Time),
    ("lease_expires_at", Kind::Time),
    ("headers", Kind::TextMap),
    ("body", Kind::Body),
];
pub(crate) const PEEKED_FIELDS: [Field<'static>; 7] = [
    ("id", Kind::Id),
    ("priority", Kind::Count),
    ("state", Kind::Text),
    ("deliveries", Kind::Count),
    ("enqueued_at", Kind::Time),
    ("headers", Kind::TextMap),
    ("body", Kind::Body),
];
pub(crate) const INSPECTED_FIELDS: [Field<'static>; 7] = [
    ("id", Kind::Id),
    ("priority", Kind::Count),
    ("state", Kind::Text),
    ("shard", Kind::Count),
    ("enqueued_at", Kind::Time),
    ("deliveries", Kind::Count),
    ("why", Kind::Text),
];
pub(crate) const DEAD_FIELDS: [Field<'static>; 9] = [
    ("id", Kind::Id),
    ("priority", Kind::Count),
    ("deliveries", Kind::Count),
    ("last_error", Kind::Text),
    ("dead_at", Kind::Time),
    ("history", Kind::List),
    ("enqueued_at", Kind::Time),
    ("headers", Kind::TextMap),
    ("body", Kind::Body),
];
/// Every field of a configuration.
pub const CONFIG_FIELDS: [Field<'static>; 17] = [
    ("levels", Kind::Count),
    ("shards", Kind::Count),
    ("scheduling", Kind::Text),
    ("weights", Kind::List),
    ("reserve", Kind::Number),
    ("floor", Kind::Number),
    ("aging_s", Kind::Count),
    ("max_deliveries", Kind::Count),
    ("lease_s", Kind::Count),
    ("dedup_window_s", Kind::Count),
    ("retention_s", Kind::Count),
    ("max_depth", Kind::CountOrNull),
    ("max_bytes", Kind::CountOrNull),
    ("rate_caps", Kind::ObjectOrNull),
    ("dead_letter_expired", Kind::Bool),
    ("backoff", Kind::ObjectOrNull),
    ("starvation_s", Kind::Any),
];

/// One delivered message, its fields taken out of their JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub id: String,
    pub priority: u64,
    pub receipt: String,
    pub deliveries: u64,
    pub enqueued_at_ms: u64,
    pub lease_expires_at_ms: u64,
    pub share: bool,
    pub headers: Value,
    pub body: Vec<u8>,
}

impl Message {
    /// Takes a delivered message apart; fails where it is not of the contract's shape.
    #[track_caller]
    pub fn from_json(value: &Value) -> Self {
        shape::exactly(value, &MESSAGE_FIELDS, &[("share", Kind::Bool)]);
        Self {
            id: shape::text(value, "id").into(),
            priority: count(value, "priority"),
            receipt: shape::text(value, "receipt").into(),
            deliveries: count(value, "deliveries"),
            enqueued_at_ms: shape::time_ms(value, "enqueued_at"),
            lease_expires_at_ms: shape::time_ms(value, "lease_expires_at"),
            share: value["share"].as_bool().unwrap_or(false),
            headers: value["headers"].clone(),
            body: shape::decode_body(shape::text(value, "body")).unwrap_or_default(),
        }
    }

    /// Its body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The contract says "when, what" and leaves the names open.
#[track_caller]
pub(crate) fn check_history_entry(entry: &Value) {
    let texts: Vec<&str> = entry.as_object().into_iter().flatten().filter_map(|(_, v)| v.as_str()).collect();
    let times = texts.iter().filter(|text| crate::time::parse_rfc3339_ms(text).is_some()).count();
    assert!(times == 1 && texts.len() == 2, "a history entry says when and what: {entry}");
}
