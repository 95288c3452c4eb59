//! The contract of HTTP itself: routes, media types, sizes, problem documents, health, metrics, OpenAPI, HTTP/2.

use overtake_e2e::raw::{http2_get_is_ok, status_of};
use overtake_e2e::shape::{Kind, count, exactly, list};
use overtake_e2e::{Client, Options, Server};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const ROUTES: [(&str, &[&str]); 17] = [
    ("/v1/queues", &["get"]),
    ("/v1/queues/{queue}", &["put", "get", "delete"]),
    ("/v1/queues/{queue}/messages", &["post", "get"]),
    ("/v1/queues/{queue}/messages/batch", &["post"]),
    ("/v1/queues/{queue}/messages/{id}", &["get", "delete"]),
    ("/v1/queues/{queue}/receive", &["post"]),
    ("/v1/queues/{queue}/ack", &["post"]),
    ("/v1/queues/{queue}/stats", &["get"]),
    ("/v1/queues/{queue}/purge", &["post"]),
    ("/v1/queues/{queue}/dlq", &["get"]),
    ("/v1/queues/{queue}/dlq/redrive", &["post"]),
    ("/v1/queues/{queue}/dlq/purge", &["post"]),
    ("/v1/cluster", &["get"]),
    ("/healthz", &["get"]),
    ("/readyz", &["get"]),
    ("/metrics", &["get"]),
    ("/openapi.json", &["get"]),
];

#[test]
fn openapi_names_every_route() {
    let server = Server::start();
    let document = server.client().get("/openapi.json");
    assert!(
        document["openapi"].as_str().is_some_and(|version| version.starts_with("3.")),
        "{}",
        document["openapi"]
    );
    let paths = document["paths"].as_object().expect("paths");
    for (route, methods) in ROUTES {
        for method in methods {
            // The document describes itself or not, as it likes.
            let there = paths.get(route).is_some_and(|path| path.get(method).is_some());
            assert!(there || route == "/openapi.json", "{method} {route} is missing");
        }
    }
    for (path, operations) in paths {
        let route = ROUTES.iter().find(|(route, _)| route == path);
        let methods = route.unwrap_or_else(|| panic!("{path} is not in the contract")).1;
        for method in operations.as_object().into_iter().flatten().map(|(method, _)| method) {
            assert!(methods.contains(&method.as_str()) || method == "parameters", "{method} {path}");
        }
    }
}

#[test]
fn other_routes_and_methods_are_refused() {
    let server = Server::start();
    server.create("q", json!({}));
    let client = server.client();
    for (route, methods) in ROUTES {
        let path = route.replace("{queue}", "q").replace("{id}", "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX");
        for method in ["get", "put", "post", "delete", "patch"] {
            if !methods.contains(&method) {
                let reply = client.call(&method.to_uppercase(), &path);
                assert!(matches!(reply.status, 404 | 405), "{method} {path}: {}", reply.text());
                reply.problem(reply.status);
            }
        }
    }
    for path in ["/v2/queues", "/v1", "/v1/queues/q/", "/v1/queues/q/none", "/v1/queues/q/dlq/none"] {
        client.call("GET", path).problem(404);
    }
}

#[test]
fn a_body_must_be_json_of_the_right_type() {
    let server = Server::start();
    let queue = server.create("types", json!({}));
    let client = queue.client();
    let message = json!({"priority": 0, "body": ""}).to_string();
    let post = |rest: &str, content_type: &str, body: &[u8]| {
        let headers = [("content-type", content_type)];
        client.try_call("POST", &queue.path(rest), &headers, Some(body)).expect("an answer")
    };
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/xml"] {
        for rest in ["/messages", "/messages/batch", "/receive", "/ack", "/dlq/redrive"] {
            post(rest, content_type, message.as_bytes()).problem(415);
        }
    }
    post("/messages/batch", "application/octet-stream", b"x").problem(415);
    post("/messages", "application/json; charset=utf-8", message.as_bytes()).expect(202);
    for rest in ["/messages", "/messages/batch", "/receive", "/ack", "/dlq/redrive"] {
        for malformed in
            ["{", "nul", "[]", "5", "\"text\"", "{\"a\":1}x", "{\"priority\":1,\"priority\":2}", "\u{feff}{}"]
        {
            post(rest, "application/json", malformed.as_bytes()).problem(400);
        }
        post(rest, "application/json", b"{\"\xff\": 1}").problem(400);
        let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
        post(rest, "application/json", deep.as_bytes()).problem(400);
    }
    assert_eq!(count(&queue.stats()["totals"], "enqueued"), 1);
}

#[test]
fn unknown_query_parameters_are_refused_everywhere() {
    let server = Server::start();
    server.create("q", json!({}));
    let client = server.client();
    for (route, methods) in ROUTES {
        let path = route.replace("{queue}", "q").replace("{id}", "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX");
        if !path.starts_with("/v1") {
            continue;
        }
        for method in methods.iter() {
            let path = format!("{path}?typo=1");
            let reply = if matches!(*method, "post" | "put") {
                client.json(&method.to_uppercase(), &path, &json!({}))
            } else {
                client.call(&method.to_uppercase(), &path)
            };
            assert_eq!(reply.status, 400, "{method} {path}: {}", reply.text());
            reply.problem(400);
        }
    }
    client.call("GET", "/v1/queues?limit=5&limit=6").problem(400);
    assert_eq!(client.call("GET", "/v1/queues/q").status, 200, "nothing was deleted");
}

#[test]
fn too_much_is_refused() {
    let server = Server::start();
    let queue = server.create("large", json!({}));
    let body = vec![b' '; 2 * 1024 * 1024 + 1];
    for rest in ["/messages", "/messages/batch", "/receive", "/ack"] {
        assert_eq!(status_of(server.http(), "POST", &queue.path(rest), &body), 413, "{rest}");
    }
    // In base64, eleven bodies of the largest size are just below the limit.
    let largest = json!({"priority": 0, "body": overtake_e2e::shape::encode_body(&vec![1; 131_072])});
    let results = queue.batch(&vec![largest.clone(); 11]);
    assert!(results.iter().all(|result| result["status"] == 202));
    let receipts: Vec<String> =
        queue.receive_count(11, json!({})).into_iter().map(|message| message.receipt).collect();
    queue.settle(json!({"ack": receipts}));
    assert_eq!(queue.stats()["totals"]["acked"], 11);
}

#[test]
fn health_readiness_and_cluster() {
    let server = Options { cores: 2, ..Options::default() }.start();
    let client = server.client();
    for path in ["/healthz", "/readyz"] {
        client.call("GET", path).expect_status(200);
    }
    let cluster = client.get("/v1/cluster");
    exactly(&cluster, &[("nodes", Kind::List), ("shards", Kind::List)], &[]);
    let [node] = list(&cluster, "nodes") else { panic!("one node: {cluster}") };
    exactly(
        node,
        &[("id", Kind::Any), ("zone", Kind::Any), ("http", Kind::Text), ("alive", Kind::Bool)],
        &[],
    );
    assert_eq!((&node["alive"], &node["http"]), (&json!(true), &json!(server.http().to_string())));
    let mut shards = BTreeSet::new();
    for shard in list(&cluster, "shards") {
        exactly(shard, &[("shard", Kind::Count), ("leader", Kind::Any), ("replicas", Kind::List)], &[]);
        assert_eq!(shard["leader"], node["id"], "{cluster}");
        assert_eq!(shard["replicas"], json!([node["id"]]), "{cluster}");
        shards.insert(count(shard, "shard"));
    }
    assert!((0..4).all(|shard| shards.contains(&shard)), "{cluster}");
}

#[test]
fn metrics_are_prometheus_text() {
    let server = Server::start();
    let queue = server.create("measured", json!({}));
    queue.fill(&[0, 3], 10);
    let received = queue.receive_count(5, json!({}));
    queue.ack(&received[0].receipt);
    let metrics = read_metrics(&server.client());
    for (name, expected) in
        [("overtake_enqueued_total", 20.0), ("overtake_deliveries_total", 5.0), ("overtake_acked_total", 1.0)]
    {
        assert_eq!(metrics.get(name), Some(&expected), "{name} of {metrics:?}");
    }
    let names: BTreeSet<&str> = metrics.keys().map(|key| key.split('{').next().unwrap_or_default()).collect();
    assert!(names.iter().any(|name| name.starts_with("overtake_")), "{names:?}");
    assert!(metrics.values().all(|value| value.is_finite()), "{metrics:?}");
}

/// Every sample by name and labels, each once; fails on a line that is not of the text format.
fn read_metrics(client: &Client) -> BTreeMap<String, f64> {
    let reply = client.call("GET", "/metrics");
    reply.expect_status(200);
    let content_type = reply.header("content-type").unwrap_or_default();
    assert!(content_type.starts_with("text/plain"), "{content_type}");
    let body = String::from_utf8_lossy(&reply.body);
    assert!(body.ends_with('\n'), "the last line ends too");
    let mut samples = BTreeMap::new();
    let mut typed = BTreeSet::new();
    for line in body.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# TYPE ") {
            let (name, kind) = comment.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(matches!(kind, "counter" | "gauge" | "histogram" | "summary" | "untyped"), "{line}");
            assert!(typed.insert(name.to_owned()), "typed twice: {line}");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            let name = series.split('{').next().unwrap_or_default();
            assert!(
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':'),
                "{line}"
            );
            assert_eq!(series.contains('{'), series.ends_with('}'), "{line}");
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
            assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    samples
}

#[test]
fn http2_with_prior_knowledge_is_answered() {
    let server = Server::start();
    assert!(http2_get_is_ok(server.http(), "/healthz"));
    assert!(http2_get_is_ok(server.http(), "/v1/queues"));
    assert!(!http2_get_is_ok(server.http(), "/v1/queues/none"), "only 200 counts");
}

#[test]
fn a_problem_says_what_to_do() {
    let server = Server::start();
    let client = server.client();
    let not_found = client.call("GET", "/v1/queues/none").problem(404);
    let invalid = client.json("PUT", "/v1/queues/a", &json!({"lease_s": 0})).problem(400);
    assert_ne!(not_found["type"], invalid["type"], "kinds are told apart");
    assert_eq!(invalid["field"], "lease_s");
    let unknown: Value = client.json("PUT", "/v1/queues/a", &json!({"leases": 1})).problem(400);
    assert_eq!(unknown["field"], "leases", "{unknown}");
}
