//! The contract of queues: create, update, show, list, delete, auto-create; every field of a configuration with its
//! default and its bounds.

use overtake_e2e::queue::pages;
use overtake_e2e::shape::{Kind, check_names_number, count, exactly, list, text};
use overtake_e2e::{Options, Server};
use serde_json::{Value, json};

const PERIOD_S_MAX: u64 = 31_622_400;
const DEPTH_MAX: u64 = 1_000_000_000_000_000;

#[test]
fn a_new_queue_has_the_defaults_of_the_contract() {
    let server = Server::start();
    let config = server.create("defaults", json!({})).config();
    let expected = json!({
        "levels": 5, "shards": 4, "scheduling": "weighted", "weights": [50, 25, 13, 7, 5],
        "aging_s": 1800, "max_deliveries": 5, "lease_s": 30, "dedup_window_s": 600, "retention_s": 345_600,
        "max_depth": null, "max_bytes": null, "dead_letter_expired": false, "backoff": null,
    });
    for (field, value) in expected.as_object().into_iter().flatten() {
        assert!(same(&config[field], value), "{field}: {} is not {value}", config[field]);
    }
    assert!(same(&config["reserve"], &json!(0.1)) && same(&config["floor"], &json!(0.05)), "{config}");
    assert!(same(&config["starvation_s"], &json!(60)), "{config}");
    let caps = &config["rate_caps"];
    assert!(caps.as_object().is_none_or(|caps| caps.values().all(Value::is_null)), "no caps: {config}");

    let eight = server.create("eight", json!({"levels": 8, "shards": 1})).config();
    assert!(same(&eight["weights"], &json!([50, 25, 13, 7, 4, 2, 1, 1])), "{eight}");
    let hundred = server.create("hundred", json!({"levels": 100})).config();
    assert_eq!(list(&hundred, "weights").len(), 100);
    let stats = server.queue("hundred").stats();
    assert_eq!(stats["visible"]["p99"], 0);
}

#[test]
fn every_field_is_kept_changed_alone_and_put_back_by_null() {
    let server = Server::start();
    let all = json!({
        "levels": 3, "shards": 2, "scheduling": "aging", "weights": [4, 2.5, 1], "reserve": 0.2, "floor": 0,
        "aging_s": 60, "max_deliveries": 7, "lease_s": 45, "dedup_window_s": 0, "retention_s": 3600,
        "max_depth": 1000, "max_bytes": 1_000_000, "rate_caps": {"queue": 100, "p0": 5},
        "dead_letter_expired": true, "backoff": {"first_s": 2, "factor": 1.5, "max_s": 60},
        "starvation_s": [5, 60, 600],
    });
    let queue = server.create("all", all.clone());
    for (field, value) in all.as_object().into_iter().flatten() {
        let config = queue.config();
        assert!(same(&config[field], value), "{field}: {} is not {value}", config[field]);
    }
    let created = queue.config();
    let defaults = server.create("plain", json!({"levels": 3, "shards": 2})).config();

    queue.update(json!({}));
    assert_eq!(queue.config(), created, "an update that names nothing changes nothing");
    let changes = json!({
        "scheduling": "strict", "weights": [1, 1, 1], "reserve": 0.5, "floor": 0.5, "aging_s": 1,
        "max_deliveries": 1, "lease_s": 1, "dedup_window_s": 1, "retention_s": 1, "max_depth": 1, "max_bytes": 1,
        "rate_caps": {"p2": 0}, "dead_letter_expired": false,
        "backoff": {"first_s": 1, "factor": 1, "max_s": 1}, "starvation_s": 1,
    });
    for (field, value) in changes.as_object().into_iter().flatten() {
        let before = queue.config();
        queue.update(json!({field: value}));
        let after = queue.config();
        for name in before.as_object().into_iter().flatten().map(|(name, _)| name) {
            let expected = if name == field { value } else { &before[name] };
            assert!(same(&after[name], expected), "{name} after changing {field}: {}", after[name]);
        }
        queue.update(json!({field: null}));
        assert_eq!(queue.config()[field], defaults[field], "null puts {field} back to its default");
        queue.update(json!({field: value}));
    }
}

#[test]
fn levels_and_shards_are_fixed() {
    let server = Server::start();
    let queue = server.create("fixed", json!({"levels": 3, "shards": 2}));
    let client = queue.client();
    for change in [json!({"levels": 4}), json!({"shards": 1}), json!({"lease_s": 9, "levels": 2})] {
        let field = if change.get("levels").is_some() { "levels" } else { "shards" };
        client.json("PUT", &queue.path(""), &change).problem_of(409, field);
    }
    assert_eq!(queue.config()["lease_s"], 30, "a refused update changes nothing");
    queue.update(json!({"levels": 3, "shards": 2, "lease_s": 8}));
    assert_eq!(queue.config()["lease_s"], 8, "the same levels and shards may be named");
}

#[test]
fn values_out_of_range_are_refused_with_field_and_bound() {
    let server = Server::start();
    let client = server.client();
    let (period, depth) = (PERIOD_S_MAX + 1, DEPTH_MAX + 1);
    let cases: Vec<(Value, Option<u64>)> = vec![
        (json!({"levels": 0}), Some(100)),
        (json!({"levels": 101}), Some(100)),
        (json!({"levels": 2.5}), None),
        (json!({"levels": "5"}), None),
        (json!({"shards": 0}), None),
        (json!({"shards": 5}), Some(4)),
        (json!({"scheduling": "fair"}), None),
        (json!({"weights": [1, 2]}), Some(5)),
        (json!({"weights": [1, 1, 1, 1, 0]}), None),
        (json!({"weights": [1, 1, 1, 1, -1]}), None),
        (json!({"weights": 5}), None),
        (json!({"reserve": 0.51}), None),
        (json!({"reserve": -0.1}), None),
        (json!({"floor": 0.51}), None),
        (json!({"floor": "0.1"}), None),
        (json!({"aging_s": 0}), Some(PERIOD_S_MAX)),
        (json!({"aging_s": period}), Some(PERIOD_S_MAX)),
        (json!({"max_deliveries": 0}), Some(1_000_000)),
        (json!({"max_deliveries": 1_000_001}), Some(1_000_000)),
        (json!({"lease_s": 0}), Some(43_200)),
        (json!({"lease_s": 43_201}), Some(43_200)),
        (json!({"lease_s": 1.5}), None),
        (json!({"dedup_window_s": -1}), Some(PERIOD_S_MAX)),
        (json!({"dedup_window_s": period}), Some(PERIOD_S_MAX)),
        (json!({"retention_s": 0}), Some(PERIOD_S_MAX)),
        (json!({"retention_s": period}), Some(PERIOD_S_MAX)),
        (json!({"max_depth": 0}), Some(DEPTH_MAX)),
        (json!({"max_depth": depth}), Some(DEPTH_MAX)),
        (json!({"max_bytes": 0}), Some(DEPTH_MAX)),
        (json!({"max_bytes": depth}), Some(DEPTH_MAX)),
        (json!({"rate_caps": {"p5": 1}}), None),
        (json!({"rate_caps": {"fast": 1}}), None),
        (json!({"rate_caps": {"queue": -1}}), Some(1_000_000_000)),
        (json!({"rate_caps": {"p0": 1_000_000_001}}), Some(1_000_000_000)),
        (json!({"rate_caps": 5}), None),
        (json!({"dead_letter_expired": "yes"}), None),
        (json!({"backoff": {"first_s": 1, "factor": 0.5, "max_s": 1}}), None),
        (json!({"backoff": {"first_s": 1, "factor": 2}}), None),
        (json!({"backoff": {"first_s": 1, "factor": 2, "max_s": 1, "jitter": 1}}), None),
        (json!({"starvation_s": 0}), Some(PERIOD_S_MAX)),
        (json!({"starvation_s": [1, 2]}), Some(5)),
        (json!({"starvation_s": [1, 1, 1, 1, period]}), Some(PERIOD_S_MAX)),
        (json!({"priority_boost": 1}), None),
    ];
    for (config, bound) in cases {
        let field = config.as_object().and_then(|config| config.keys().next().cloned()).unwrap_or_default();
        let reply = client.json("PUT", "/v1/queues/ranges", &config);
        assert_eq!(reply.status, 400, "{config}: {}", reply.text());
        let problem = reply.problem_of(400, &field);
        if let Some(bound) = bound {
            check_names_number(&problem, bound);
        }
    }
    client.call("GET", "/v1/queues/ranges").problem(404);
    for (config, field) in [
        (json!({"dedup_window_s": PERIOD_S_MAX, "retention_s": PERIOD_S_MAX}), "dedup_window_s"),
        (json!({"max_depth": DEPTH_MAX, "max_bytes": DEPTH_MAX}), "max_depth"),
        (json!({"rate_caps": {"queue": 0, "p4": 1_000_000_000}}), "rate_caps"),
        (json!({"reserve": 0, "floor": 0.5}), "floor"),
        (json!({"lease_s": 43_200, "max_deliveries": 1_000_000}), "lease_s"),
    ] {
        let path = format!("/v1/queues/bounds-of-{field}");
        client.json("PUT", &path, &config).expect_status(201);
        assert!(same(&client.get(&path)[field], &config[field]), "the bound itself is allowed: {config}");
    }
}

#[test]
fn names_keep_to_the_alphabet() {
    let server = Server::start();
    let client = server.client();
    for good in ["a", "A-Z_0.9", &"x".repeat(128)] {
        client.json("PUT", &format!("/v1/queues/{good}"), &json!({})).expect_status(201);
        client.json("PUT", &format!("/v1/queues/{good}"), &json!({})).expect_status(200);
    }
    for bad in [".a", "a%20b", "%C3%A4", &"x".repeat(129), "a%00"] {
        client.json("PUT", &format!("/v1/queues/{bad}"), &json!({})).problem(400);
    }
}

#[test]
fn a_queue_that_was_never_created_answers_404() {
    let server = Server::start();
    let client = server.client();
    let id = "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX";
    let calls = [
        ("GET", String::new(), None),
        ("DELETE", String::new(), None),
        ("POST", "/messages".into(), Some(json!({"priority": 0, "body": ""}))),
        ("POST", "/messages/batch".into(), Some(json!({"messages": [{"priority": 0, "body": ""}]}))),
        ("POST", "/receive".into(), Some(json!({}))),
        ("POST", "/ack".into(), Some(json!({"ack": ["r_0_1_1"]}))),
        ("GET", "/stats".into(), None),
        ("GET", "/messages".into(), None),
        ("GET", format!("/messages/{id}"), None),
        ("DELETE", format!("/messages/{id}"), None),
        ("POST", "/purge".into(), None),
        ("GET", "/dlq".into(), None),
        ("POST", "/dlq/redrive".into(), Some(json!({"all": true}))),
        ("POST", "/dlq/purge".into(), None),
    ];
    for (method, rest, body) in &calls {
        let path = format!("/v1/queues/never{rest}");
        let reply = match body {
            Some(body) => client.json(method, &path, body),
            None => client.call(method, &path),
        };
        assert!(is_not_there(&reply.status, reply.body.as_slice()), "{method} {path}: {}", reply.text());
    }
    client.call("GET", "/v1/queues/never").problem(404);
}

/// 404, or a batch whose only message is answered 404.
fn is_not_there(status: &u16, body: &[u8]) -> bool {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    *status == 404 || (*status == 200 && value["results"][0]["status"] == 404)
}

#[test]
fn queues_are_listed_in_pages() {
    let server = Server::start();
    let client = server.client();
    let empty = client.get("/v1/queues");
    exactly(&empty, &[("queues", Kind::List), ("next", Kind::Any)], &[]);
    assert_eq!((list(&empty, "queues").len(), empty["next"].is_null()), (0, true));
    let mut names: Vec<String> = (0..23).map(|number| format!("list-{number}")).collect();
    for name in &names {
        server.create(name, json!({}));
    }
    server.queue("list-7").fill(&[0, 4], 3);
    names.sort();
    for limit in [1, 7, 23, 24, 1_000] {
        let all = pages(&client, &format!("/v1/queues?limit={limit}"), "queues");
        let mut listed: Vec<&str> = all.iter().map(|queue| text(queue, "name")).collect();
        listed.sort_unstable();
        assert_eq!(listed, names, "limit {limit}: each queue once");
        for queue in &all {
            exactly(queue, &[("name", Kind::Text), ("config", Kind::Object), ("depth", Kind::Count)], &[]);
            let depth = if queue["name"] == "list-7" { 6 } else { 0 };
            assert_eq!(count(queue, "depth"), depth, "{queue}");
            assert_eq!(queue["config"], server.queue(text(queue, "name")).config());
        }
        let first = client.get(&format!("/v1/queues?limit={limit}"));
        assert_eq!(list(&first, "queues").len(), limit.min(23));
    }
    for (query, field) in
        [("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("page=2", "page")]
    {
        client.call("GET", &format!("/v1/queues?{query}")).problem_of(400, field);
    }
}

#[test]
fn a_deleted_queue_takes_everything_with_it() {
    let server = Server::start();
    let queue = server.create("gone", json!({"max_deliveries": 1}));
    let client = queue.client().clone();
    queue.enqueue(json!({"priority": 0, "dedup_key": "k"}));
    queue.fill(&[0, 1, 2], 5);
    queue.enqueue(json!({"priority": 0, "delay_s": 3600}));
    let leased = queue.receive_one(json!({}));
    let reply = client.call("DELETE", &queue.path(""));
    reply.expect_status(204);
    assert!(reply.body.is_empty());
    client.call("GET", &queue.path("")).problem(404);
    client.call("GET", &queue.path("/stats")).problem(404);
    client.call("DELETE", &queue.path("")).problem(404);

    let queue = server.create("gone", json!({"levels": 2}));
    let stats = queue.stats();
    assert_eq!(count(&stats["totals"], "enqueued"), 0, "a queue of the same name starts anew: {stats}");
    assert_eq!(queue.ack(&leased.receipt), "unknown", "an old receipt means nothing to it");
    queue.enqueue(json!({"priority": 0, "dedup_key": "k"}));
    assert_eq!(queue.receive(json!({"max": 10, "wait_s": 5})).len(), 1, "only its own message");
    queue.stats();
}

#[test]
fn auto_create_makes_a_queue_at_its_first_accepted_enqueue() {
    for options in
        [Options { auto_create: true, ..Options::default() }, Options { dev: true, ..Options::default() }]
    {
        auto_creates(&options.start());
    }
}

fn auto_creates(server: &Server) {
    let queue = server.queue("auto");
    let client = queue.client();
    for (rest, body) in [("/receive", json!({})), ("/messages", json!({"priority": 5, "body": ""}))] {
        let reply = queue.post(rest, &body);
        assert!(matches!(reply.status, 400 | 404), "{rest}: {}", reply.text());
        client.call("GET", &queue.path("")).problem(404);
    }
    let id = queue.put(3, "first");
    assert_eq!(queue.config(), server.create("made", json!({})).config());
    assert_eq!(queue.receive_one(json!({})).id, id);
    let results = server.queue("auto-batch").batch(&[json!({"priority": 1, "body": ""})]);
    assert_eq!(results[0]["status"], 202);
    assert_eq!(count(&server.queue("auto-batch").stats()["totals"], "enqueued"), 1);
    queue.stats();
}

/// The same JSON, where `50` and `50.0` are the same number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(_), Value::Number(_)) => one.as_f64() == other.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(name, value)| b.get(name).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}
