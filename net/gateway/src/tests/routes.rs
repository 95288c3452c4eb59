//! Every route's success: what the servers are asked, and the JSON that comes of their answer.

use super::bench::{ask, ask_with};
use super::{Answer, Canned};
use bytes::Bytes;
use overtake_base::{MessageId, QueueConfig, QueueConfigPatch, Receipt, Sequence, ShardId, UnixMillis};
use overtake_wire::message::*;
use serde_json::json;

const ID: &str = "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX";

fn id() -> MessageId {
    ID.parse().unwrap()
}

fn headers() -> Headers {
    vec![("traceparent".into(), "00-1".into())]
}

#[test]
fn queues_are_created_changed_read_listed_and_deleted() {
    let config = QueueConfig::with_defaults(5, 8);
    let printed = serde_json::to_value(crate::json::QueueConfig::from(&config)).unwrap();

    for (created, status) in [(true, 201), (false, 200)] {
        let canned = Canned::response(Response::QueuePut { created, config: config.clone() });
        let answered = ask(&canned, "PUT /v1/queues/mail", r#"{"lease_s":60,"max_depth":null}"#);
        assert_eq!((answered.status, answered.json()), (status, printed.clone()));
        let patch = QueueConfigPatch {
            lease_s: Some(Some(60)),
            max_depth: Some(None),
            ..QueueConfigPatch::default()
        };
        assert_eq!(canned.asked()[0].1, Request::PutQueue { queue: "mail".into(), patch });
        assert_eq!(ask(&canned, "PUT /v1/queues/mail", "").status, status);
    }

    let canned = Canned::response(Response::Queue { config: config.clone() });
    let answered = ask(&canned, "GET /v1/queues/mail", "");
    assert_eq!((answered.status, answered.json()), (200, printed.clone()));
    assert_eq!(answered.header("content-type"), Some("application/json"));
    assert_eq!(canned.asked()[0].1, Request::GetQueue { queue: "mail".into() });

    let queues = vec![QueueListed { name: "mail".into(), config, depth: 3 }];
    let canned = Canned::response(Response::Queues { queues, next: Some("mail".into()) });
    let answered = ask(&canned, "GET /v1/queues?limit=1&after=a%20b", "");
    let want = json!({ "queues": [{ "name": "mail", "config": printed, "depth": 3 }], "next": "mail" });
    assert_eq!((answered.status, answered.json()), (200, want));
    assert_eq!(canned.asked()[0].1, Request::ListQueues { limit: 1, after: Some("a b".into()) });

    let canned = Canned::response(Response::Done);
    let answered = ask(&canned, "DELETE /v1/queues/mail", "");
    assert_eq!((answered.status, answered.body.len()), (204, 0));
    assert_eq!(canned.asked()[0].1, Request::DeleteQueue { queue: "mail".into() });
}

#[test]
fn messages_are_stored_from_json_and_raw() {
    for duplicate in [false, true] {
        let canned = Canned::response(Response::Enqueued {
            results: vec![Ok(Enqueued { id: id(), shard: 19, duplicate })],
        });
        let mut want = json!({ "id": ID, "shard": 19 });
        if duplicate {
            want["duplicate"] = json!(true);
        }
        let answered = ask(&canned, "POST /v1/queues/q/messages", r#"{"priority":1,"body":"AAE="}"#);
        assert_eq!((answered.status, answered.json()), (202, want.clone()));
        let raw = [
            ("content-type", "application/octet-stream"),
            ("Overtake-Priority", "1"),
            ("Overtake-Header-Trace", "t"),
        ];
        let answered = ask_with(&canned, false, "POST /v1/queues/q/messages", &raw, vec![0u8, 1]);
        assert_eq!((answered.status, answered.json()), (202, want));
        let message =
            EnqueueMessage { priority: 1, body: Bytes::from_static(b"\0\x01"), ..Default::default() };
        let with_header = EnqueueMessage { headers: vec![("trace".into(), "t".into())], ..message.clone() };
        let asked: Vec<Request> = canned.asked().into_iter().map(|(_, request)| request).collect();
        let enqueue = |message| Request::Enqueue { queue: "q".into(), messages: vec![message] };
        assert_eq!(asked, [enqueue(message), enqueue(with_header)]);
    }
}

#[test]
fn batches_keep_their_order_and_send_only_what_is_well_formed() {
    let results = vec![
        Ok(Enqueued { id: id(), shard: 1, duplicate: false }),
        Err(Refusal::depth("the queue is full", 2_000)),
        Err(Refusal::fate_unknown("leader lost", 100)),
        Ok(Enqueued { id: id(), shard: 2, duplicate: true }),
    ];
    let canned = Canned::response(Response::Enqueued { results });
    let big = "A".repeat(174_768);
    let batch = format!(
        r#"{{"messages":[{{"priority":0,"body":""}},{{"priority":"0","body":""}},{{"priority":1,"body":""}},
            {{"priority":0,"body":"{big}"}},7,{{"priority":2,"body":""}},{{"priority":3,"body":""}}]}}"#
    );
    let answered = ask(&canned, "POST /v1/queues/q/messages/batch", &batch);
    assert_eq!(answered.status, 200);
    let results = answered.json()["results"].as_array().unwrap().clone();
    assert_eq!(results[0], json!({ "status": 202, "id": ID, "shard": 1 }));
    assert_eq!((&results[1]["status"], &results[1]["field"]), (&json!(400), &json!("priority")));
    assert_eq!(results[2], json!({ "status": 429, "detail": "the queue is full", "reason": "depth" }));
    assert_eq!((&results[3]["status"], &results[3]["field"]), (&json!(413), &json!("body")));
    assert_eq!(results[4], json!({ "status": 400, "detail": "the message must be an object" }));
    assert_eq!(results[5], json!({ "status": 503, "detail": "leader lost", "stored": "unknown" }));
    assert_eq!(results[6], json!({ "status": 202, "id": ID, "shard": 2, "duplicate": true }));
    let Request::Enqueue { messages, .. } = &canned.asked()[0].1 else { panic!("not an enqueue") };
    assert_eq!(messages.iter().map(|m| m.priority).collect::<Vec<_>>(), [0, 1, 2, 3]);

    let answered = ask(&canned, "POST /v1/queues/q/messages/batch", r#"{"messages":[{}]}"#);
    assert_eq!((answered.status, answered.json()["results"][0]["status"].as_u64()), (200, Some(400)));
    assert_eq!(canned.asked().len(), 1, "a batch without a well-formed message asks nobody");
}

#[test]
fn messages_are_received() {
    let receipt = Receipt { shard: ShardId(3), sequence: Sequence(1_001), deliveries: 2 };
    let delivered = |share| Delivered {
        id: id(),
        priority: 1,
        receipt,
        deliveries: 2,
        enqueued_at: UnixMillis(0),
        lease_expires_at: UnixMillis(30_000),
        headers: headers(),
        share,
        body: Bytes::from_static(b"hi"),
    };
    let canned = Canned::response(Response::Received { messages: vec![delivered(false), delivered(true)] });
    let answered = ask(
        &canned,
        "POST /v1/queues/q/receive",
        r#"{"max":2,"wait_s":1,"lease_s":9,"max_priority":4,"worker":"w"}"#,
    );
    let mut want = json!({
        "id": ID, "priority": 1, "receipt": "r_3_1001_2", "deliveries": 2,
        "enqueued_at": "1970-01-01T00:00:00.000Z", "lease_expires_at": "1970-01-01T00:00:30.000Z",
        "headers": { "traceparent": "00-1" }, "body": "aGk="
    });
    assert_eq!((answered.status, &answered.json()["messages"][0]), (200, &want));
    want["share"] = json!(true);
    assert_eq!(answered.json()["messages"][1], want);
    let receive = Receive {
        queue: "q".into(),
        max: 2,
        wait_s: 1,
        lease_s: Some(9),
        max_priority: Some(4),
        worker: Some("w".into()),
    };
    assert_eq!(canned.asked()[0].1, Request::Receive(receive));

    let canned = Canned::response(Response::Received { messages: vec![] });
    let answered = ask(&canned, "POST /v1/queues/q/receive", "");
    assert_eq!((answered.status, answered.text()), (200, r#"{"messages":[]}"#));
    let receive =
        Receive { queue: "q".into(), max: 10, wait_s: 0, lease_s: None, max_priority: None, worker: None };
    assert_eq!(canned.asked()[0].1, Request::Receive(receive));
}

#[test]
fn leases_are_settled_by_receipt() {
    let canned = Canned::response(Response::Settled {
        ack: vec![Settled::Ok, Settled::Unknown],
        extend: vec![Settled::Stale],
        release: vec![Settled::Ok],
    });
    let answered = ask(
        &canned,
        "POST /v1/queues/q/ack",
        r#"{"ack":["r_1_2_3","x"],"extend":[{"receipt":"r_1_9_1","lease_s":5}],"release":["r_1_1_1"]}"#,
    );
    let want = r#"{"results":{"r_1_2_3":"ok","x":"unknown","r_1_9_1":"stale","r_1_1_1":"ok"}}"#;
    assert_eq!((answered.status, answered.text()), (200, want));

    let canned = Canned::response(Response::Settled { ack: vec![], extend: vec![], release: vec![] });
    assert_eq!(ask(&canned, "POST /v1/queues/q/ack", r#"{"ack":["r_1_2_3"]}"#).status, 500);
    assert_eq!(ask(&canned, "POST /v1/queues/q/ack", "{}").text(), r#"{"results":{}}"#);
}

#[test]
fn stats_show_every_level() {
    let totals =
        Totals { enqueued: 1, acked: 2, refused_depth: 3, refused_no_quorum: 4, ..Totals::default() };
    let stats = Stats {
        visible: vec![3, 0],
        delayed: vec![0, 1],
        leased: vec![5, 6],
        dlq: 71,
        oldest_age_ms: vec![Some(20), None],
        wait_ms: vec![Some(WaitMs { p50: 0.5, p99: 1.0, p999: 2.25 }), None],
        totals,
        workers: vec![("w-1".into(), 11)],
    };
    let canned = Canned::response(Response::Stats(stats));
    let answered = ask(&canned, "GET /v1/queues/q/stats", "");
    let want = json!({
        "visible": { "p0": 3, "p1": 0 }, "delayed": { "p0": 0, "p1": 1 }, "leased_by_level": { "p0": 5, "p1": 6 },
        "leased": 11, "dlq": 71, "oldest_age_s": { "p0": 0.02, "p1": null },
        "wait_ms": { "p0": { "p50": 0.5, "p99": 1.0, "p999": 2.25 }, "p1": null },
        "totals": {
            "enqueued": 1, "acked": 2, "cancelled": 0, "purged": 0, "expired": 0, "dead_lettered": 0, "redriven": 0,
            "deliveries": 0, "share_deliveries": 0, "inversions": 0, "lease_expirations": 0, "releases": 0,
            "stale_receipts": 0, "starvation_events": 0,
            "refused": { "depth": 3, "bytes": 0, "rate": 0, "disk": 0, "no_quorum": 4 }
        },
        "workers": { "w-1": 11 }
    });
    assert_eq!((answered.status, answered.json()), (200, want));
}

#[test]
fn messages_are_peeked_inspected_cancelled_and_purged() {
    let peeked = |state, deliver_at, lease_expires_at| PeekedMessage {
        id: id(),
        priority: 2,
        state,
        deliveries: 0,
        enqueued_at: UnixMillis(1),
        deliver_at,
        lease_expires_at,
        headers: vec![],
        body: Bytes::new(),
    };
    let messages = vec![
        peeked(MessageState::Visible, None, None),
        peeked(MessageState::Delayed, Some(UnixMillis(5)), None),
        peeked(MessageState::Leased, None, Some(UnixMillis(6))),
    ];
    let canned = Canned::response(Response::Peeked { messages, next: None });
    let answered = ask(&canned, "GET /v1/queues/q/messages?state=delayed&priority=2&limit=3&after=x", "");
    let base = json!({
        "id": ID, "priority": 2, "state": "visible", "deliveries": 0, "enqueued_at": "1970-01-01T00:00:00.001Z",
        "headers": {}, "body": ""
    });
    let mut delayed = base.clone();
    delayed["state"] = json!("delayed");
    delayed["deliver_at"] = json!("1970-01-01T00:00:00.005Z");
    let mut leased = base.clone();
    leased["state"] = json!("leased");
    leased["lease_expires_at"] = json!("1970-01-01T00:00:00.006Z");
    assert_eq!(answered.json(), json!({ "messages": [base, delayed, leased], "next": null }));
    let states = PeekStates { visible: false, delayed: true, leased: false };
    let request =
        Request::Peek { queue: "q".into(), states, priority: Some(2), limit: 3, after: Some("x".into()) };
    assert_eq!(canned.asked()[0].1, request);

    let inspected = Inspected {
        id: id(),
        priority: 0,
        state: MessageState::Dead,
        shard: 4,
        enqueued_at: UnixMillis(0),
        deliver_at: None,
        lease_expires_at: None,
        worker: None,
        deliveries: 5,
        ahead: None,
        why: "dead".into(),
    };
    let canned = Canned::response(Response::Inspected(inspected.clone()));
    let answered = ask(&canned, &format!("GET /v1/queues/q/messages/{ID}"), "");
    let want = json!({
        "id": ID, "priority": 0, "state": "dead", "shard": 4, "enqueued_at": "1970-01-01T00:00:00.000Z",
        "deliveries": 5, "why": "dead"
    });
    assert_eq!((answered.status, answered.json()), (200, want));
    assert_eq!(canned.asked()[0].1, Request::Inspect { queue: "q".into(), id: id() });
    let leased = Inspected {
        lease_expires_at: Some(UnixMillis(1)),
        deliver_at: Some(UnixMillis(1)),
        worker: Some("w".into()),
        ahead: Some(7),
        ..inspected
    };
    let answered =
        ask(&Canned::response(Response::Inspected(leased)), &format!("GET /v1/queues/q/messages/{ID}"), "");
    assert_eq!((&answered.json()["worker"], &answered.json()["ahead"]), (&json!("w"), &json!(7)));

    let canned = Canned::response(Response::Done);
    assert_eq!(ask(&canned, &format!("DELETE /v1/queues/q/messages/{ID}"), "").status, 204);
    assert_eq!(canned.asked()[0].1, Request::Cancel { queue: "q".into(), id: id() });

    let canned = Canned::response(Response::Purged { purged: 9 });
    for (call, body, request) in [
        ("POST /v1/queues/q/purge", "", Request::Purge { queue: "q".into() }),
        ("POST /v1/queues/q/dlq/purge", "{}", Request::DlqPurge { queue: "q".into() }),
    ] {
        let answered = ask(&canned, call, body);
        assert_eq!((answered.status, answered.json()), (200, json!({ "purged": 9 })));
        assert_eq!(canned.asked().pop().unwrap().1, request);
    }
}

#[test]
fn dead_letters_are_listed_and_redriven() {
    let letter = DeadLetter {
        id: id(),
        priority: 1,
        deliveries: 5,
        last_error: "smtp".into(),
        dead_at: UnixMillis(9_000),
        history: vec![(UnixMillis(8_000), "lease expired".into())],
        enqueued_at: UnixMillis(0),
        headers: headers(),
        body: Bytes::from_static(b"x"),
    };
    let canned = Canned::response(Response::DeadLetters { messages: vec![letter], next: Some("n".into()) });
    let answered = ask(&canned, "GET /v1/queues/q/dlq?limit=7", "");
    let want = json!({
        "id": ID, "priority": 1, "deliveries": 5, "last_error": "smtp", "dead_at": "1970-01-01T00:00:09.000Z",
        "history": [{ "when": "1970-01-01T00:00:08.000Z", "what": "lease expired" }],
        "enqueued_at": "1970-01-01T00:00:00.000Z", "headers": { "traceparent": "00-1" }, "body": "eA=="
    });
    assert_eq!((answered.status, answered.json()), (200, json!({ "messages": [want], "next": "n" })));
    assert_eq!(canned.asked()[0].1, Request::DlqList { queue: "q".into(), limit: 7, after: None });

    let canned = Canned::response(Response::Redriven { moved: 4 });
    let answered =
        ask(&canned, "POST /v1/queues/q/dlq/redrive", r#"{"all":true,"priority":0,"max_per_s":5}"#);
    assert_eq!((answered.status, answered.json()), (202, json!({ "moved": 4 })));
    let redrive = Redrive {
        queue: "q".into(),
        selection: RedriveSelection::All,
        priority: Some(0),
        max_per_s: Some(5),
        dry_run: false,
    };
    assert_eq!(canned.asked()[0].1, Request::DlqRedrive(redrive));
}

#[test]
fn operators_see_cluster_health_readiness_and_metrics() {
    let canned = Canned::new(|request| {
        Answer::Response(match request {
            Request::Cluster => Response::Cluster {
                nodes: vec![NodeStatus {
                    id: 1,
                    zone: "a".into(),
                    http: "h:1".into(),
                    alive: true,
                    state: NodeState::Active,
                    replicas: 2,
                }],
                shards: vec![ShardStatus {
                    shard: 0,
                    leader: None,
                    replicas: vec![1, 2],
                    adding: Some(3),
                    removing: None,
                }],
            },
            Request::Ready => Response::Readiness { not_ready: vec![] },
            Request::Metrics => Response::Metrics {
                values: vec![Metric {
                    name: "overtake_up".into(),
                    labels: vec![],
                    value: 1.0,
                    counter: false,
                }],
            },
            _ => Response::Done,
        })
    });
    let want = json!({
        "nodes": [{ "id": 1, "zone": "a", "http": "h:1", "alive": true }],
        "shards": [{ "shard": 0, "leader": null, "replicas": [1, 2] }]
    });
    assert_eq!(ask(&canned, "GET /v1/cluster", "").json(), want);
    assert_eq!(ask(&canned, "GET /healthz", "").json(), json!({ "status": "ok" }));
    assert_eq!(ask(&canned, "GET /readyz", "").json(), json!({ "ready": true }));
    let metrics = ask(&canned, "GET /metrics", "");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(metrics.text().ends_with("# TYPE overtake_up gauge\novertake_up 1\n"));
    assert_eq!(ask(&canned, "GET /openapi.json", "").json()["openapi"], "3.1.0");
    assert_eq!(ask(&canned, "HEAD /v1/cluster", "").body, b"");
}
