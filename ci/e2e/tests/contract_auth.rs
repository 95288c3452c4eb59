//! The contract of tokens and tenants: who may do what, whose queues are whose, and how fast a tenant may store.

use overtake_e2e::shape::list;
use overtake_e2e::stats::{refused_for, total};
use overtake_e2e::{Options, Queue, Server, eventually};
use serde_json::{Value, json};
use std::time::Instant;

const CONFIG: &str = r#"
[[tokens]]
token = "all-of-north"
tenant = "north"
rights = ["enqueue", "receive", "read", "admin"]
[[tokens]]
token = "all-of-south"
tenant = "south"
rights = ["enqueue", "receive", "read", "admin"]
[[tokens]]
token = "producer"
tenant = "north"
rights = ["enqueue"]
[[tokens]]
token = "worker"
tenant = "north"
rights = ["receive"]
[[tokens]]
token = "viewer"
tenant = "north"
rights = ["read"]
[[tenants]]
name = "south"
enqueue_per_s = 20
"#;

fn start() -> Server {
    Options { config: Some(CONFIG), ..Options::default() }.start()
}

fn queue(server: &Server, token: &str) -> Queue {
    Queue::new(server.client().with_token(token), "shared-name")
}

#[test]
fn without_a_known_token_nothing_is_done() {
    let server = start();
    let north = queue(&server, "all-of-north");
    north.client().json("PUT", &north.path(""), &json!({})).expect_status(201);
    for client in [server.client(), server.client().with_token("unknown"), server.client().with_token("")] {
        for path in ["/v1/queues", "/v1/queues/shared-name", "/v1/queues/shared-name/stats", "/v1/cluster"] {
            let reply = client.call("GET", path);
            reply.problem(401);
            assert!(reply.header("www-authenticate").is_some(), "{path}: {}", reply.text());
        }
        client.json("POST", &north.path("/messages"), &json!({"priority": 0, "body": ""})).problem(401);
        client.json("POST", &north.path("/receive"), &json!({})).problem(401);
        client.call("DELETE", &north.path("")).problem(401);
    }
    for path in ["/healthz", "/readyz"] {
        server.client().call("GET", path).expect_status(200);
    }
    let other_scheme = [("authorization", "Basic all-of-north")];
    server.client().try_call("GET", "/v1/queues", &other_scheme, None).expect("an answer").problem(401);
    assert_eq!(total(&north.stats(), "enqueued"), 0);
}

#[test]
fn metrics_name_queues_only_to_those_who_may_read_them() {
    let server = start();
    let north = queue(&server, "all-of-north");
    north.client().json("PUT", &north.path(""), &json!({})).expect_status(201);
    north.put(0, "x");
    for (client, sees) in [
        (server.client(), false),
        (server.client().with_token("producer"), false),
        (server.client().with_token("all-of-south"), false),
        (server.client().with_token("viewer"), true),
    ] {
        let reply = client.call("GET", "/metrics");
        reply.expect_status(200);
        let text = reply.text();
        assert!(text.contains("\novertake_enqueued_total 1\n"), "{text}");
        assert_eq!(text.contains("shared-name"), sees, "{text}");
    }
}

#[test]
fn a_token_may_do_what_its_rights_say() {
    let server = start();
    let north = queue(&server, "all-of-north");
    north.client().json("PUT", &north.path(""), &json!({})).expect_status(201);
    let id = north.put(0, "x");
    let one = format!("/messages/{id}");
    let calls: [(&str, &str, &str, Option<Value>); 12] = [
        ("producer", "POST", "/messages", Some(json!({"priority": 1, "body": ""}))),
        ("worker", "POST", "/receive", Some(json!({"max_priority": 0}))),
        ("worker", "POST", "/ack", Some(json!({"ack": ["r_0_1000_1"]}))),
        ("viewer", "GET", "", None),
        ("viewer", "GET", "/stats", None),
        ("viewer", "GET", "/messages", None),
        ("viewer", "GET", &one, None),
        ("viewer", "GET", "/dlq", None),
        ("nobody", "PUT", "", Some(json!({"lease_s": 5}))),
        ("nobody", "POST", "/purge", None),
        ("nobody", "POST", "/dlq/redrive", Some(json!({"all": true}))),
        ("nobody", "DELETE", "", None),
    ];
    for (may, method, rest, body) in &calls {
        for token in ["producer", "worker", "viewer"] {
            let client = server.client().with_token(token);
            let reply = match body {
                Some(body) => client.json(method, &north.path(rest), body),
                None => client.call(method, &north.path(rest)),
            };
            if token == *may {
                assert!(matches!(reply.status, 200 | 202), "{token} {method} {rest}: {}", reply.text());
            } else {
                reply.problem(403);
            }
        }
    }
    assert_eq!(north.config()["lease_s"], 30, "nothing was done");
    assert_eq!(total(&north.stats(), "enqueued"), 2);
}

#[test]
fn tenants_do_not_see_each_other() {
    let server = start();
    let (north, south) = (queue(&server, "all-of-north"), queue(&server, "all-of-south"));
    north.client().json("PUT", &north.path(""), &json!({"levels": 2})).expect_status(201);
    south.client().call("GET", &south.path("")).problem(404);
    assert!(list(&south.client().get("/v1/queues"), "queues").is_empty());
    south.client().json("PUT", &south.path(""), &json!({"levels": 3})).expect_status(201);
    let id = north.put(0, "north's");
    south.put(0, "south's");
    assert_eq!((&north.config()["levels"], &south.config()["levels"]), (&json!(2), &json!(3)));
    south.client().call("GET", &south.path(&format!("/messages/{id}"))).problem(404);
    let message = north.receive_one(json!({}));
    assert_eq!(message.text(), "north's");
    assert_ne!(south.ack(&message.receipt), "ok", "a receipt is good in its own queue only");
    assert_eq!(north.ack(&message.receipt), "ok");
    south.client().call("DELETE", &south.path("")).expect_status(204);
    assert_eq!(list(&north.client().get("/v1/queues"), "queues").len(), 1);
    north.stats();
}

#[test]
fn a_tenant_stores_no_faster_than_its_rate() {
    let server = start();
    let (north, south) = (queue(&server, "all-of-north"), queue(&server, "all-of-south"));
    for queue in [&north, &south] {
        queue.client().json("PUT", &queue.path(""), &json!({})).expect_status(201);
    }
    let (start, mut stored, mut refused) = (Instant::now(), 0u32, 0u64);
    eventually("sixty to be stored", || {
        let reply = south.try_enqueue(json!({"priority": 0}));
        if reply.status == 202 {
            stored += 1;
            // A burst of one second, what the time that has passed allows, and 5 %.
            let allowed = 20.0 * (start.elapsed().as_secs_f64() + 1.0) * 1.05 + 1.0;
            assert!(f64::from(stored) <= allowed, "{stored} stored, {allowed} allowed");
        } else {
            assert_eq!(reply.problem(429)["reason"], "rate");
            refused += 1;
        }
        (stored == 60).then_some(())
    });
    let results = south.batch(&vec![json!({"priority": 0, "body": ""}); 200]);
    let more = results.iter().filter(|result| result["status"] == 202).count() as u64;
    assert!(results.iter().all(|result| matches!(result["status"].as_u64(), Some(202 | 429))));
    assert!(more < 200, "a batch is no way around it");
    let stats = south.stats();
    assert_eq!(total(&stats, "enqueued"), 60 + more);
    assert_eq!(refused_for(&stats, "rate"), refused + 200 - more, "counted in messages");
    north.fill(&[0], 300);
    assert_eq!(total(&north.stats(), "enqueued"), 300, "another tenant is not held up");
    assert!(!south.receive(json!({})).is_empty(), "leases go on");
}
