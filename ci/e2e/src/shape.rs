//! Shapes of the contract's answers: which fields, of which type, and no others.

use crate::time::parse_rfc3339_ms;
use base64::Engine as _;
use overtake_base::{MessageId, Receipt};
use serde_json::Value;

/// What a field must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number, 0 or more.
    Count,
    /// Any number, 0 or more.
    Number,
    /// A number, or null.
    NumberOrNull,
    /// A whole number, or null.
    CountOrNull,
    /// A text.
    Text,
    /// A text, or null.
    TextOrNull,
    /// RFC 3339 with milliseconds and Z.
    Time,
    /// `m_` and a ULID.
    Id,
    /// `r_{shard}_{sequence}_{deliveries}`.
    Receipt,
    /// Base64 with padding.
    Body,
    /// Texts by name.
    TextMap,
    /// A list.
    List,
    /// An object.
    Object,
    /// An object, or null.
    ObjectOrNull,
    /// Whatever it is.
    Any,
}

impl Kind {
    fn fits(self, value: &Value) -> bool {
        let text = value.as_str();
        match self {
            Self::Bool => value.is_boolean(),
            Self::Count => value.is_u64(),
            Self::Number => value.as_f64().is_some_and(|n| n >= 0.0),
            Self::NumberOrNull => value.is_null() || Self::Number.fits(value),
            Self::CountOrNull => value.is_null() || Self::Count.fits(value),
            Self::Text => value.is_string(),
            Self::TextOrNull => value.is_null() || value.is_string(),
            Self::Time => text.is_some_and(|text| parse_rfc3339_ms(text).is_some()),
            Self::Id => text.is_some_and(|text| text.parse::<MessageId>().is_ok()),
            Self::Receipt => text.is_some_and(|text| text.parse::<Receipt>().is_ok()),
            Self::Body => text.is_some_and(|text| decode_body(text).is_some()),
            Self::TextMap => value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
            Self::List => value.is_array(),
            Self::Object => value.is_object(),
            Self::ObjectOrNull => value.is_null() || value.is_object(),
            Self::Any => true,
        }
    }
}

/// A field and what it must be.
pub type Field<'a> = (&'a str, Kind);

/// Fails unless `value` is an object with all of `required`, any of `optional`, nothing else, each of its kind.
#[track_caller]
pub fn exactly(value: &Value, required: &[Field<'_>], optional: &[Field<'_>]) {
    at_least(value, required, optional);
    let Some(object) = value.as_object() else { return };
    for name in object.keys() {
        let known = required.iter().chain(optional).any(|(field, _)| field == name);
        assert!(known, "field {name:?} is not in the contract: {value}");
    }
}

/// Fails unless `value` is an object with all of `required`, and whatever it has of `optional` is of its kind.
#[track_caller]
pub fn at_least(value: &Value, required: &[Field<'_>], optional: &[Field<'_>]) {
    assert!(value.is_object(), "not an object: {value}");
    for (field, kind) in required {
        let Some(found) = value.get(*field) else { panic!("field {field:?} is missing: {value}") };
        assert!(kind.fits(found), "field {field:?} is not {kind:?}: {value}");
    }
    for (field, kind) in optional {
        let found = value.get(*field);
        assert!(found.is_none_or(|found| kind.fits(found)), "field {field:?} is not {kind:?}: {value}");
    }
}

/// Fails unless `problem` is an RFC 9457 document of this status.
#[track_caller]
pub fn check_problem(problem: &Value, status: u16) {
    exactly(
        problem,
        &[("type", Kind::Text), ("title", Kind::Text), ("status", Kind::Count), ("detail", Kind::Text)],
        &[("field", Kind::Text), ("reason", Kind::Text), ("stored", Kind::Text), ("instance", Kind::Text)],
    );
    assert_eq!(problem["status"], status, "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
}

/// Fails unless `detail` names the number, however it groups its digits.
#[track_caller]
pub fn check_names_number(problem: &Value, number: u64) {
    let detail = problem["detail"].as_str().unwrap_or_default();
    let plain: String = detail.chars().filter(|c| !matches!(c, ',' | '_')).collect();
    assert!(plain.contains(&number.to_string()), "the detail does not name the bound {number}: {problem}");
}

/// The bytes of a body; None where it is not base64 with padding.
pub fn decode_body(text: &str) -> Option<Vec<u8>> {
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// A body as it goes into JSON.
pub fn encode_body(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The time in a field.
#[track_caller]
pub fn time_ms(value: &Value, field: &str) -> u64 {
    let time = value[field].as_str().and_then(parse_rfc3339_ms);
    time.unwrap_or_else(|| panic!("{field} is no time: {value}"))
}

/// The number in a field.
#[track_caller]
pub fn count(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} is no count: {value}"))
}

/// The text in a field.
#[track_caller]
pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} is no text: {value}"))
}

/// The list in a field.
#[track_caller]
pub fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field} is no list: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::panic::catch_unwind;

    #[test]
    fn kinds_tell_values_apart() {
        for (kind, good, bad) in [
            (Kind::Bool, json!(true), json!("true")),
            (Kind::Count, json!(5), json!(-5)),
            (Kind::Count, json!(0), json!(1.5)),
            (Kind::Number, json!(0.5), json!(null)),
            (Kind::NumberOrNull, json!(null), json!("1")),
            (Kind::CountOrNull, json!(null), json!(1.5)),
            (Kind::Text, json!(""), json!(null)),
            (Kind::TextOrNull, json!(null), json!(1)),
            (Kind::Time, json!("2026-11-30T11:49:16.001Z"), json!("2026-11-30T11:49:16Z")),
            (Kind::Id, json!("m_01JZ8D3V9QF3W3Q8B3M1S6T7VX"), json!("01JZ8D3V9QF3W3Q8B3M1S6T7VX")),
            (Kind::Receipt, json!("r_1_2_3"), json!("r_1_2")),
            (Kind::Body, json!("YQ=="), json!("YQ")),
            (Kind::TextMap, json!({"a": "b"}), json!({"a": 1})),
            (Kind::List, json!([]), json!({})),
            (Kind::Object, json!({}), json!(null)),
            (Kind::ObjectOrNull, json!(null), json!([])),
        ] {
            assert!(kind.fits(&good), "{kind:?} {good}");
            assert!(!kind.fits(&bad), "{kind:?} {bad}");
        }
    }

    #[test]
    fn shapes_are_exact() {
        let check = |value: Value| {
            catch_unwind(|| exactly(&value, &[("a", Kind::Count)], &[("b", Kind::Text)])).is_ok()
        };
        assert!(check(json!({"a": 1})) && check(json!({"a": 1, "b": ""})));
        for bad in
            [json!({}), json!({"a": null}), json!({"a": 1, "b": 1}), json!({"a": 1, "c": 1}), json!([])]
        {
            assert!(!check(bad.clone()), "{bad}");
        }
    }
}
