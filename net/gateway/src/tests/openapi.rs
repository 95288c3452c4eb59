//! The description says what the gateway does: same routes, same fields, same ranges.

use super::Canned;
use super::bench::ask;
use crate::input::dlq::RedriveRequest;
use crate::input::message::NewMessage;
use crate::input::query::{Page, PeekQuery};
use crate::input::receive::ReceiveRequest;
use crate::input::settle::SettleRequest;
use crate::input::{Fault, config};
use crate::openapi;
use crate::routes;
use overtake_wire::message::Response;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

fn document() -> Value {
    serde_json::from_str(openapi::text()).unwrap()
}

fn described() -> BTreeSet<String> {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        item.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    operations.collect()
}

#[test]
fn routes_and_description_are_the_same() {
    let canned = Canned::response(Response::Done);
    let mut routed = BTreeSet::new();
    for (path, _) in routes::table() {
        let concrete = path.replace("{queue}", "q").replace("{id}", "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX");
        for method in METHODS {
            if ask(&canned, &format!("{} {concrete}", method.to_uppercase()), "").status != 405 {
                routed.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
    }
    assert_eq!(routed, described());
}

#[test]
fn the_routes_are_those_of_the_contract() {
    let contract = [
        "DELETE /v1/queues/{queue}",
        "DELETE /v1/queues/{queue}/messages/{id}",
        "GET /healthz",
        "GET /metrics",
        "GET /openapi.json",
        "GET /readyz",
        "GET /v1/cluster",
        "GET /v1/queues",
        "GET /v1/queues/{queue}",
        "GET /v1/queues/{queue}/dlq",
        "GET /v1/queues/{queue}/messages",
        "GET /v1/queues/{queue}/messages/{id}",
        "GET /v1/queues/{queue}/stats",
        "POST /v1/queues/{queue}/ack",
        "POST /v1/queues/{queue}/dlq/purge",
        "POST /v1/queues/{queue}/dlq/redrive",
        "POST /v1/queues/{queue}/messages",
        "POST /v1/queues/{queue}/messages/batch",
        "POST /v1/queues/{queue}/purge",
        "POST /v1/queues/{queue}/receive",
        "PUT /v1/queues/{queue}",
    ];
    assert_eq!(described().into_iter().collect::<Vec<_>>(), contract);
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_operation_says_how_it_fails() {
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 15, "{found:?}");
    for reference in found {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
            let Some(refused) = responses.get("400") else {
                assert!(["/healthz", "/openapi.json"].contains(&path.as_str()), "{method} {path}");
                continue;
            };
            let schema = &refused["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/Problem", "{method} {path}");
        }
    }
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
}

fn schema(name: &str) -> Value {
    let schema = document()["components"]["schemas"][name].clone();
    assert!(schema["properties"].is_object(), "{name}: {schema}");
    schema
}

fn names(schema: &Value) -> BTreeSet<&str> {
    schema["properties"].as_object().unwrap().keys().map(String::as_str).collect()
}

type Read = fn(&[u8]) -> Result<(), Fault>;

/// Requests: schema, fields that are read, how they are read, and what else a request needs.
fn requests() -> Vec<(&'static str, &'static [&'static str], Read, Value)> {
    vec![
        (
            "NewMessage",
            NewMessage::FIELDS,
            |b| NewMessage::parse(b).map(drop),
            json!({ "priority": 0, "body": "" }),
        ),
        ("ReceiveRequest", ReceiveRequest::FIELDS, |b| ReceiveRequest::parse(b).map(drop), json!({})),
        ("SettleRequest", SettleRequest::FIELDS, |b| SettleRequest::parse(b).map(drop), json!({})),
        ("RedriveRequest", RedriveRequest::FIELDS, |b| RedriveRequest::parse(b).map(drop), json!({})),
        ("QueueConfigUpdate", config::FIELDS, |b| config::parse_config(b).map(drop), json!({})),
    ]
}

#[test]
fn described_fields_are_those_that_are_read() {
    for (name, fields, _, _) in requests() {
        assert_eq!(names(&schema(name)), fields.iter().copied().collect(), "{name}");
    }
    let required = |name: &str| schema(name)["required"].clone();
    assert_eq!(required("NewMessage"), json!(["priority", "body"]));
    assert_eq!(required("ExtendItem"), json!(["receipt", "lease_s"]));
    for optional in ["ReceiveRequest", "SettleRequest", "RedriveRequest", "QueueConfigUpdate"] {
        assert_eq!(required(optional), Value::Null, "{optional}");
    }
    let document = document();
    for (path, names) in [
        ("/v1/queues", Page::NAMES),
        ("/v1/queues/{queue}/dlq", Page::NAMES),
        ("/v1/queues/{queue}/messages", PeekQuery::NAMES),
    ] {
        let parameters = document["paths"][path]["get"]["parameters"].as_array().unwrap();
        let query: BTreeSet<&str> = parameters
            .iter()
            .filter(|parameter| parameter["in"] == "query")
            .map(|parameter| {
                assert_eq!(parameter["required"], false);
                parameter["name"].as_str().unwrap()
            })
            .collect();
        assert_eq!(query, names.iter().copied().collect(), "{path}");
    }
}

/// The schema itself, or the one beside null.
fn bounded(property: &Value) -> Option<&Value> {
    let alternatives = property["oneOf"].as_array().into_iter().flatten();
    core::iter::once(property).chain(alternatives).find(|schema| schema["maximum"].is_number())
}

#[test]
fn described_ranges_are_those_that_are_kept() {
    let mut checked = 0;
    for (name, _, read, base) in requests() {
        let schema = schema(name);
        for (field, property) in schema["properties"].as_object().unwrap() {
            let Some(bounds) = bounded(property) else { continue };
            let (low, high) = (bounds["minimum"].as_f64().unwrap(), bounds["maximum"].as_f64().unwrap());
            let step = if bounds["type"] == "number" || high < 1.0 { 0.001 } else { 1.0 };
            let outcome = |value: f64| {
                let mut request = base.clone();
                request[field] = if step < 1.0 { json!(value) } else { json!(value as i64) };
                read(request.to_string().as_bytes())
            };
            for (value, good) in [(low, true), (high, true), (low - step, false), (high + step, false)] {
                assert_eq!(outcome(value).is_ok(), good, "{name}.{field} = {value}: {:?}", outcome(value));
            }
            checked += 1;
        }
    }
    assert!(checked >= 20, "{checked}");
}
