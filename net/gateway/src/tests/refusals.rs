//! What is refused, with which status, headers and members.

use super::bench::{Answered, ask, ask_with};
use super::{Answer, Canned};
use crate::backend::CallError;
use axum::body::Body;
use bytes::Bytes;
use overtake_wire::message::{Refusal, Request, Response};
use serde_json::json;

const JSON: (&str, &str) = ("content-type", "application/json");
const RAW: (&str, &str) = ("content-type", "application/octet-stream");
const ID: &str = "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX";

fn nobody() -> Canned {
    Canned::new(|request| panic!("nobody should be asked: {request:?}"))
}

/// Every route of the contract, with a body it takes.
fn every_call() -> Vec<(String, &'static str)> {
    [
        ("PUT /v1/queues/q", "{}"),
        ("GET /v1/queues/q", ""),
        ("GET /v1/queues", ""),
        ("DELETE /v1/queues/q", ""),
        ("POST /v1/queues/q/messages", r#"{"priority":0,"body":""}"#),
        ("POST /v1/queues/q/messages/batch", r#"{"messages":[{"priority":0,"body":""}]}"#),
        ("POST /v1/queues/q/receive", "{}"),
        ("POST /v1/queues/q/ack", r#"{"ack":["r_1_1_1"]}"#),
        ("GET /v1/queues/q/stats", ""),
        ("GET /v1/queues/q/messages", ""),
        ("GET /v1/queues/q/messages/ID", ""),
        ("DELETE /v1/queues/q/messages/ID", ""),
        ("POST /v1/queues/q/purge", ""),
        ("GET /v1/queues/q/dlq", ""),
        ("POST /v1/queues/q/dlq/redrive", r#"{"all":true}"#),
        ("POST /v1/queues/q/dlq/purge", ""),
        ("GET /v1/cluster", ""),
    ]
    .into_iter()
    .map(|(call, body)| (call.replace("ID", ID), body))
    .collect()
}

#[test]
fn refusals_of_the_servers_pass_through_on_every_route() {
    let refusals = [
        (Refusal::invalid("priority", "priority must be 0..=4"), 400),
        (Refusal::unauthorized("unknown token"), 401),
        (Refusal::forbidden("the token may not"), 403),
        (Refusal::not_found("no such queue"), 404),
        (Refusal::conflict("leased"), 409),
        (Refusal::too_large("body", "too large"), 413),
        (Refusal::depth("full", 1_500), 429),
        (Refusal::rate("slow down", 10), 429),
        (Refusal::internal("a fault"), 500),
        (Refusal::no_quorum("no leader", 100), 503),
        (Refusal::disk("disk is full", 5_000), 507),
    ];
    for (refusal, status) in refusals {
        for answer in [Ok(Response::Refused(refusal.clone())), Err(CallError::Refused(refusal.clone()))] {
            let canned = Canned::new(move |_| match answer.clone() {
                Ok(response) => Answer::Response(response),
                Err(error) => Answer::Fails(error),
            });
            for (call, body) in every_call() {
                let answered = ask(&canned, &call, body);
                assert_eq!((answered.status, answered.field()), (status, refusal.field.clone()), "{call}");
                let json = answered.json();
                let detail = json["detail"].as_str().unwrap();
                if status == 401 {
                    // The caller of a gateway without auth can only tell whoever runs it.
                    assert!(
                        detail.starts_with(&refusal.detail) && detail.contains("--auth"),
                        "{call}: {detail}"
                    );
                } else {
                    assert_eq!(detail, refusal.detail, "{call}");
                }
                assert_eq!(answered.header("retry-after").is_some(), [429, 503, 507].contains(&status));
            }
        }
    }
}

#[test]
fn a_single_message_is_refused_like_a_request() {
    let canned = Canned::response(Response::Enqueued { results: vec![Err(Refusal::depth("full", 1_500))] });
    let answered = ask(&canned, "POST /v1/queues/q/messages", r#"{"priority":0,"body":""}"#);
    assert_eq!((answered.status, answered.header("retry-after")), (429, Some("2")));
    assert_eq!(answered.json()["reason"], "depth");
    let unknown = Refusal::fate_unknown("leader lost", 10);
    let canned = Canned::response(Response::Enqueued { results: vec![Err(unknown)] });
    let answered = ask(&canned, "POST /v1/queues/q/messages", r#"{"priority":0,"body":""}"#);
    assert_eq!((answered.status, answered.header("retry-after")), (503, Some("1")));
    assert_eq!(answered.json()["stored"], "unknown");
}

#[test]
fn what_changes_something_and_was_not_answered_is_of_unknown_fate() {
    let lost = Canned::new(|_| Answer::Fails(CallError::FateUnknown("the connection was lost".into())));
    let down = Canned::new(|_| Answer::Fails(CallError::Unreachable("nobody listens".into())));
    for (call, body) in every_call() {
        let answered = ask(&lost, &call, body);
        let reads = call.starts_with("GET") || call.ends_with("/receive");
        let stored = if reads { json!(null) } else { json!("unknown") };
        assert_eq!((answered.status, &answered.json()["stored"]), (503, &stored), "{call}");
        assert!(answered.header("retry-after").is_some());
        let answered = ask(&down, &call, body);
        assert_eq!((answered.status, &answered.json()["stored"]), (503, &json!(null)), "{call}");
        assert_eq!(answered.field(), None);
    }
    let dry_run = ask(&lost, "POST /v1/queues/q/dlq/redrive", r#"{"all":true,"dry_run":true}"#);
    assert_eq!(dry_run.json()["stored"], json!(null));
}

#[test]
fn answers_of_another_kind_are_faults() {
    let canned = Canned::response(Response::Welcome { node: 1, core: 0, cores: 1, version: String::new() });
    for (call, body) in every_call() {
        assert_eq!(ask(&canned, &call, body).status, 500, "{call}");
    }
    for call in ["GET /readyz", "GET /metrics"] {
        assert_eq!(ask(&canned, call, "").status, 500, "{call}");
    }
}

#[test]
fn monitors_are_held_to_the_same_rules() {
    for call in ["GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json"] {
        let answered = ask(&nobody(), &format!("{call}?verbose=1"), "");
        assert_eq!((answered.status, answered.field().as_deref()), (400, Some("verbose")), "{call}");
    }
}

#[test]
fn unknown_query_parameters_fields_and_names_are_refused_on_every_route() {
    for (call, body) in every_call() {
        let answered = ask(&nobody(), &format!("{call}?colour=1"), body);
        assert_eq!((answered.status, answered.field().as_deref()), (400, Some("colour")), "{call}");
        if call.contains("/queues/q") {
            for name in ["%20", ".a", "%ff"] {
                let answered =
                    ask(&nobody(), &call.replacen("/queues/q", &format!("/queues/{name}"), 1), body);
                assert_eq!(
                    (answered.status, answered.field().as_deref()),
                    (400, Some("queue")),
                    "{call} {name}"
                );
            }
        }
        if call.starts_with('P') {
            let answered = ask(&nobody(), &call, r#"{"colour":1}"#);
            assert_eq!((answered.status, answered.field().as_deref()), (400, Some("colour")), "{call}");
            let answered = ask(&nobody(), &call, "{\n\"a");
            assert_eq!((answered.status, answered.field()), (400, None), "{call}");
            assert!(answered.json()["detail"].as_str().unwrap().contains("line 2 column"), "{call}");
            assert_eq!(
                ask_with(&nobody(), false, &call, &[("content-type", "text/plain")], "{}").status,
                415
            );
            assert_eq!(ask_with(&nobody(), false, &call, &[], "{}").status, 415);
            let gzip = [JSON, ("content-encoding", "gzip")];
            assert_eq!(ask_with(&nobody(), false, &call, &gzip, "{}").status, 415);
        }
        if call.contains(ID) {
            let answered = ask(&nobody(), &call.replace(ID, "m_x"), body);
            assert_eq!((answered.status, answered.field().as_deref()), (400, Some("id")), "{call}");
        }
    }
}

#[test]
fn bodies_that_must_be_there_are_missed() {
    for call in ["POST /v1/queues/q/messages/batch", "POST /v1/queues/q/dlq/redrive"] {
        assert_eq!(ask_with(&nobody(), false, call, &[JSON], "").status, 400, "{call}");
    }
    assert_eq!(ask_with(&nobody(), false, "POST /v1/queues/q/messages", &[JSON], "").status, 400);
    assert_eq!(ask_with(&nobody(), false, "POST /v1/queues/q/messages", &[], "").status, 415);
    for count in [0, 1_001] {
        let batch = format!("{{\"messages\":[{}]}}", vec!["{}"; count].join(","));
        let answered = ask(&nobody(), "POST /v1/queues/q/messages/batch", &batch);
        assert_eq!((answered.status, answered.field().as_deref()), (400, Some("messages")));
    }
}

#[test]
fn raw_messages_are_checked_like_json_ones() {
    let call = "POST /v1/queues/q/messages";
    let answered = ask_with(&nobody(), false, call, &[RAW, ("Overtake-Colour", "1")], "x");
    assert_eq!((answered.status, answered.field().as_deref()), (400, Some("overtake-colour")));
    let answered = ask_with(&nobody(), false, call, &[RAW], "x");
    assert_eq!((answered.status, answered.field().as_deref()), (400, Some("priority")));
    let large = [RAW, ("Overtake-Priority", "0")];
    let answered = ask_with(&nobody(), false, call, &large, vec![0u8; 131_073]);
    assert_eq!((answered.status, answered.field().as_deref()), (413, Some("body")));
    let answered =
        ask_with(&nobody(), false, call, &[JSON, ("Overtake-Priority", "1")], r#"{"priority":1,"body":""}"#);
    assert_eq!((answered.status, answered.field().as_deref()), (400, Some("overtake-priority")));
}

fn chunked(total: usize) -> Body {
    use core::pin::Pin;
    use core::task::{Context, Poll};
    struct Chunks(usize);
    impl http_body::Body for Chunks {
        type Data = Bytes;
        type Error = core::convert::Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            let bytes = self.0.min(10_000);
            self.0 -= bytes;
            Poll::Ready((bytes > 0).then(|| Ok(http_body::Frame::data(Bytes::from(vec![b' '; bytes])))))
        }
    }
    Body::new(Chunks(total))
}

#[test]
fn requests_end_at_two_mebibytes() {
    let call = "POST /v1/queues/q/receive";
    for total in [2 * 1024 * 1024 + 1, 3_000_000, 50_000_000] {
        let answered = ask_with(&nobody(), false, call, &[JSON], chunked(total));
        assert_eq!((answered.status, answered.field()), (413, None));
    }
    let declared = [JSON, ("content-length", "99999999")];
    assert_eq!(ask_with(&nobody(), false, call, &declared, "{}").status, 413);
    let spaces = ask_with(&nobody(), false, call, &[JSON], chunked(2 * 1024 * 1024));
    assert!(
        spaces.status == 400 && spaces.json()["detail"].as_str().unwrap().contains("EOF"),
        "{}",
        spaces.text()
    );
}

#[test]
fn unknown_routes_and_methods_are_problems_too() {
    for call in ["GET /", "GET /v1", "GET /v1/queues/q/nope", "GET /v1/queues/"] {
        let answered = ask(&nobody(), call, "");
        assert_eq!((answered.status, answered.field()), (404, None), "{call}");
    }
    for (call, allow) in [
        ("POST /v1/queues", "GET,HEAD"),
        ("PATCH /v1/queues/q", "GET,HEAD,PUT,DELETE"),
        ("GET /v1/queues/q/receive", "POST"),
        ("GET /v1/queues/q/messages/batch", "POST"),
        ("DELETE /healthz", "GET,HEAD"),
    ] {
        let answered: Answered = ask(&nobody(), call, "");
        assert_eq!((answered.status, answered.field()), (405, None), "{call}");
        assert_eq!(answered.header("allow"), Some(allow), "{call}");
        let allow = allow.split(',').collect::<Vec<_>>().join(", ");
        let detail = answered.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.ends_with(&format!("it has {allow}")), "{call}: {detail}");
    }
}

#[test]
fn an_unknown_queue_says_how_to_create_one() {
    let refusal =
        Refusal { field: Some("queue".into()), ..Refusal::not_found("there is no queue named 'q'") };
    let canned = Canned::response(Response::Refused(refusal));
    let answered = ask(&canned, "GET /v1/queues/q/stats", "");
    assert_eq!((answered.status, answered.field().as_deref()), (404, Some("queue")));
    assert_eq!(answered.json()["detail"], "there is no queue named 'q'; PUT /v1/queues/{queue} creates one");
}

#[test]
fn with_auth_every_route_needs_a_token_that_the_servers_know() {
    let canned = Canned::response(Response::Done).with_token("good");
    let bearer = |token| [("authorization", token)];
    for (call, body) in every_call() {
        for headers in [&[][..], &bearer("Bearer bad"), &bearer("Basic good")] {
            let answered = ask_with(&canned, true, &call, headers, body);
            assert_eq!((answered.status, answered.field()), (401, None), "{call}");
            assert!(answered.header("www-authenticate").is_some_and(|v| v.starts_with("Bearer")), "{call}");
        }
    }
    assert!(canned.asked().is_empty());
    assert_eq!(ask_with(&canned, true, "DELETE /v1/queues/q", &bearer("Bearer good"), "").status, 204);
    assert_eq!(canned.asked()[0].0, "good");
    let open = Canned::response(Response::Readiness { not_ready: vec![] });
    assert_eq!(ask_with(&open, true, "GET /readyz", &[], "").status, 200);
    assert_eq!(ask_with(&open, true, "GET /healthz", &[], "").status, 200);
    assert_eq!(
        open.asked(),
        [(String::new(), Request::Ready)],
        "what the gateway's own token may see stays its own"
    );
}

#[test]
fn a_node_that_is_not_ready_says_which_shards() {
    let canned = Canned::response(Response::Readiness { not_ready: vec![3, 7] });
    let answered = ask(&canned, "GET /readyz", "");
    assert_eq!((answered.status, answered.header("retry-after")), (503, Some("1")));
    assert!(answered.json()["detail"].as_str().unwrap().ends_with("shards 3, 7"));
}
