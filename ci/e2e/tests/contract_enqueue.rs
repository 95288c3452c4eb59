//! The contract of enqueues: fields and their bounds, batches, raw bodies, delays, dedup by key and by id.

use overtake_base::MessageId;
use overtake_e2e::shape::{Kind, check_names_number, count, encode_body, exactly, text};
use overtake_e2e::time::{STAMP_MS, format_rfc3339_ms, sleep_past};
use overtake_e2e::{Queue, Server, eventually, now_ms};
use serde_json::{Value, json};

const DAY_MS: u64 = 86_400_000;

fn new_id(at_ms: u64, random: u128) -> String {
    MessageId::new(at_ms, random).to_string()
}

#[test]
fn a_message_comes_back_as_it_went_in() {
    let server = Server::start();
    let queue = server.create("echo", json!({"lease_s": 40}));
    let every_byte: Vec<u8> = (0..=255).collect();
    let largest = vec![0xA5; 131_072];
    for (priority, body) in [(0, Vec::new()), (1, every_byte), (4, largest)] {
        let headers = json!({"traceparent": "00-0af7-b7ad-01", "Größe": "ß\n\"\\"});
        let before_ms = now_ms();
        let id = queue.enqueue(json!({"priority": priority, "body": encode_body(&body), "headers": headers}));
        let after_ms = now_ms();
        let sent_ms = now_ms();
        let message = queue.receive_one(json!({"worker": "w-1"}));
        assert_eq!((&message.id, message.priority, message.deliveries), (&id, priority, 1));
        assert!(message.body == body, "the body changed");
        assert_eq!(message.headers, headers);
        assert!(
            (before_ms - STAMP_MS..=after_ms + STAMP_MS).contains(&message.enqueued_at_ms),
            "{}",
            message.enqueued_at_ms
        );
        assert!(message.lease_expires_at_ms + STAMP_MS >= sent_ms + 40_000, "the queue's lease, from now");
        let receipt: overtake_base::Receipt = message.receipt.parse().expect("checked");
        assert_eq!(u64::from(receipt.deliveries), message.deliveries);
        assert_eq!(queue.ack(&message.receipt), "ok");
    }
    let ids: Vec<String> = (0..20).map(|_| queue.put(2, "x")).collect();
    let times: Vec<u64> = ids.iter().map(|id| id.parse::<MessageId>().expect("checked").time_ms()).collect();
    assert!(times.is_sorted(), "ids sort by time");
    queue.stats();
}

#[test]
fn fields_out_of_range_are_refused_and_nothing_is_stored() {
    let server = Server::start();
    let queue = server.create("bounds", json!({"retention_s": 100}));
    let far_ms = now_ms() + 367 * DAY_MS;
    let cases: Vec<(&str, Value, Option<u64>)> = vec![
        ("priority", json!({}), None),
        ("priority", json!({"priority": null}), None),
        ("priority", json!({"priority": 5}), None),
        ("priority", json!({"priority": 100}), None),
        ("priority", json!({"priority": -1}), None),
        ("priority", json!({"priority": "0"}), None),
        ("priority", json!({"priority": 0.5}), None),
        ("body", json!({"priority": 0, "body": null}), None),
        ("body", json!({"priority": 0, "body": "not base64!"}), None),
        ("body", json!({"priority": 0, "body": "YQ"}), None),
        ("body", json!({"priority": 0, "body": "_-8="}), None),
        ("body", json!({"priority": 0, "body": 7}), None),
        ("delay_s", json!({"priority": 0, "delay_s": -1}), Some(31_622_400)),
        ("delay_s", json!({"priority": 0, "delay_s": 31_622_401}), Some(31_622_400)),
        ("delay_s", json!({"priority": 0, "delay_s": 1.5}), None),
        ("deliver_at", json!({"priority": 0, "deliver_at": far_ms}), None),
        ("deliver_at", json!({"priority": 0, "deliver_at": format_rfc3339_ms(far_ms)}), None),
        ("deliver_at", json!({"priority": 0, "deliver_at": "tomorrow"}), None),
        ("deliver_at", json!({"priority": 0, "deliver_at": "2030-01-01T00:00:00+01:00"}), None),
        ("deliver_at", json!({"priority": 0, "deliver_at": "2030-02-30T00:00:00Z"}), None),
        ("dedup_key", json!({"priority": 0, "dedup_key": ""}), Some(256)),
        ("dedup_key", json!({"priority": 0, "dedup_key": "k".repeat(257)}), Some(256)),
        ("dedup_key", json!({"priority": 0, "dedup_key": 5}), None),
        ("expires_in_s", json!({"priority": 0, "expires_in_s": 0}), Some(100)),
        ("expires_in_s", json!({"priority": 0, "expires_in_s": 101}), Some(100)),
        ("headers", json!({"priority": 0, "headers": []}), None),
        ("headers", json!({"priority": 0, "headers": {"a": 1}}), None),
        ("headers", json!({"priority": 0, "headers": {"a": "x".repeat(4_096)}}), Some(4_096)),
        ("id", json!({"priority": 0, "id": "m_1"}), None),
        ("id", json!({"priority": 0, "id": new_id(now_ms() - 2 * DAY_MS, 1)}), None),
        ("id", json!({"priority": 0, "id": new_id(now_ms() + 2 * DAY_MS, 1)}), None),
        ("id", json!({"priority": 0, "id": new_id(now_ms(), 1).to_lowercase()}), None),
        ("urgent", json!({"priority": 0, "urgent": true}), None),
    ];
    for (field, message, bound) in &cases {
        let reply = queue.try_enqueue(message.clone());
        assert_eq!(reply.status, 400, "{message}: {}", reply.text());
        let problem = reply.problem_of(400, field);
        if let Some(bound) = bound {
            // Where retention bounds the life, either bound may be named.
            if *field != "expires_in_s" {
                check_names_number(&problem, *bound);
            }
        }
        let single = queue.batch(&[message_with_body(message)]);
        assert_eq!(single[0]["status"], 400, "{message}: {}", single[0]);
    }
    let both = json!({"priority": 0, "delay_s": 1, "deliver_at": now_ms() + 1_000});
    queue.try_enqueue(both).problem(400);
    let too_large = json!({"priority": 0, "body": encode_body(&vec![0; 131_073])});
    queue.try_enqueue(too_large.clone()).problem(413);
    assert_eq!(queue.batch(&[too_large])[0]["status"], 413);
    assert_eq!(count(&queue.stats()["totals"], "enqueued"), 0, "nothing is stored");

    for fine in [
        json!({"priority": 4, "delay_s": 31_622_400}),
        json!({"priority": 0, "deliver_at": now_ms() + 365 * DAY_MS, "delay_s": null}),
        json!({"priority": 0, "dedup_key": "k".repeat(256), "deliver_at": null, "headers": null}),
        json!({"priority": 0, "expires_in_s": 100, "id": null}),
        json!({"priority": 0, "headers": {"a": "x".repeat(4_095)}}),
        json!({"priority": 0, "id": new_id(now_ms() - DAY_MS + 60_000, 1)}),
        json!({"priority": 0, "id": new_id(now_ms() + DAY_MS - 60_000, 1)}),
    ] {
        queue.enqueue(fine);
    }
    assert_eq!(count(&queue.stats()["totals"], "enqueued"), 7);
}

fn message_with_body(message: &Value) -> Value {
    let mut message = message.clone();
    if message.get("body").is_none() {
        message["body"] = "".into();
    }
    message
}

#[test]
fn a_batch_has_an_outcome_for_each_message() {
    let server = Server::start();
    let queue = server.create("batch", json!({}));
    let id = new_id(now_ms(), 7);
    let results = queue.batch(&[
        json!({"priority": 0, "body": "YQ==", "dedup_key": "k"}),
        json!({"priority": 9, "body": ""}),
        json!({"priority": 1, "body": "", "dedup_key": "k"}),
        json!({"priority": 4, "body": "", "id": id}),
        json!({"priority": 4, "body": "", "id": id}),
        json!({"priority": 0, "body": "", "delay_s": 1, "deliver_at": 1}),
    ]);
    let statuses: Vec<u64> = results.iter().map(|result| count(result, "status")).collect();
    assert_eq!(statuses, [202, 400, 202, 202, 202, 400]);
    assert_eq!(results[1]["field"], "priority");
    assert_eq!(results[2]["id"], results[0]["id"]);
    assert_eq!((&results[2]["duplicate"], &results[4]["duplicate"]), (&json!(true), &json!(true)));
    assert_eq!((&results[3]["id"], &results[4]["id"]), (&json!(id), &json!(id)));
    assert!(results[0].get("duplicate").is_none() && results[3].get("duplicate").is_none());
    assert_eq!(count(&queue.stats()["totals"], "enqueued"), 2);

    let post = |body: Value| queue.post("/messages/batch", &body);
    let message = json!({"priority": 0, "body": ""});
    check_names_number(&post(json!({"messages": []})).problem_of(400, "messages"), 1_000);
    check_names_number(
        &post(json!({"messages": vec![message.clone(); 1_001]})).problem_of(400, "messages"),
        1_000,
    );
    post(json!({})).problem_of(400, "messages");
    post(json!({"messages": [message], "atomic": true})).problem_of(400, "atomic");
    let full = queue.batch(&vec![message.clone(); 1_000]);
    assert!(full.iter().all(|result| result["status"] == 202));
    assert_eq!(count(&queue.stats()["totals"], "enqueued"), 1_002);
}

#[test]
fn a_raw_body_takes_its_fields_from_headers() {
    let server = Server::start();
    let queue = server.create("raw", json!({}));
    let raw = |headers: &[(&str, &str)], body: &[u8]| {
        let mut all = vec![("content-type", "application/octet-stream")];
        all.extend_from_slice(headers);
        queue.client().try_call("POST", &queue.path("/messages"), &all, Some(body)).expect("an answer")
    };
    let id = new_id(now_ms(), 99);
    let body = [0, 159, 146, 150];
    let reply = raw(
        &[
            ("overtake-priority", "3"),
            ("overtake-id", &id),
            ("overtake-dedup-key", "raw-key"),
            ("overtake-expires-in-s", "600"),
            ("overtake-header-traceparent", "00-1"),
            ("Overtake-Header-Shape", "round"),
        ],
        &body,
    );
    assert_eq!(reply.expect(202)["id"], *id);
    let message = queue.receive_one(json!({}));
    assert_eq!((message.id.as_str(), message.priority, message.body.as_slice()), (id.as_str(), 3, &body[..]));
    assert_eq!(message.headers, json!({"traceparent": "00-1", "shape": "round"}), "names are lower case");
    let again = raw(&[("overtake-priority", "0"), ("overtake-dedup-key", "raw-key")], &body).expect(202);
    assert_eq!((&again["duplicate"], &again["id"]), (&json!(true), &json!(id)));

    let at = (now_ms() + 3_600_000).to_string();
    for delay in [("overtake-delay-s", "3600"), ("overtake-deliver-at", at.as_str())] {
        let id = text(&raw(&[("overtake-priority", "0"), delay], b"later").expect(202), "id").to_owned();
        assert_eq!(queue.inspect(&id)["state"], "delayed");
    }
    for (headers, field) in [
        (vec![], "priority"),
        (vec![("overtake-priority", "x")], "priority"),
        (vec![("overtake-priority", "5")], "priority"),
        (vec![("overtake-priority", "0"), ("overtake-delay-s", "-1")], "delay_s"),
        (vec![("overtake-priority", "0"), ("overtake-id", "m_1")], "id"),
        (vec![("overtake-priority", "0"), ("overtake-urgency", "9")], ""),
    ] {
        let problem = raw(&headers, b"").problem(400);
        let named = problem["field"].as_str().unwrap_or_default().to_ascii_lowercase().replace('-', "_");
        assert!(named.contains(field), "{headers:?} should name {field}: {problem}");
    }
    raw(&[("overtake-priority", "0")], &vec![0; 131_073]).problem(413);
    raw(&[("overtake-priority", "0")], &vec![1; 131_072]).expect(202);
    raw(&[("overtake-priority", "0")], b"").expect(202);
    assert_eq!(count(&queue.stats()["totals"], "enqueued"), 5);
}

#[test]
fn a_delayed_message_comes_when_due_and_never_before() {
    let server = Server::start();
    let queue = server.create("delay", json!({"shards": 1, "scheduling": "strict"}));
    let due_ms = now_ms() + 1_500;
    let as_text = queue.enqueue(json!({"priority": 0, "deliver_at": format_rfc3339_ms(due_ms)}));
    let as_number = queue.enqueue(json!({"priority": 0, "deliver_at": due_ms + 300}));
    let before_ms = now_ms();
    let relative = queue.enqueue(json!({"priority": 0, "delay_s": 2}));
    let past = queue.enqueue(json!({"priority": 0, "deliver_at": 1}));
    let visible = queue.put(4, "less urgent, not delayed");
    assert_eq!(queue.inspect(&as_text)["deliver_at"], *format_rfc3339_ms(due_ms));
    let delayed = queue.stats();
    assert_eq!(delayed["delayed"]["p0"], 3, "{delayed}");

    assert_eq!(queue.receive_one(json!({})).id, past, "a time in the past means now");
    assert_eq!(queue.receive_one(json!({})).id, visible, "a delayed message blocks nothing");
    for (id, due_ms) in
        [(as_text, due_ms), (as_number, due_ms + 300), (relative, before_ms + 2_000 - STAMP_MS)]
    {
        let message = queue.receive_one(json!({}));
        let now_ms = now_ms();
        assert_eq!(message.id, id, "each enters the tail when due");
        assert!(now_ms >= due_ms, "{id} due {due_ms}, delivered {now_ms}");
    }
    queue.stats();
}

#[test]
fn a_dedup_key_names_the_first_message_whatever_became_of_it() {
    let server = Server::start();
    let queue = server.create("dedup", json!({"max_deliveries": 1}));
    let with_key = |key: &str| json!({"priority": 0, "dedup_key": key});
    let repeat = |key: &str, id: &str, fate: &str| {
        assert_eq!(queue.enqueue_duplicate(json!({"priority": 3, "dedup_key": key})), id, "{fate}");
    };
    let enqueue_and_lease = |key: &str| {
        let id = queue.enqueue(with_key(key));
        let message = queue.receive_one(json!({"max_priority": 0}));
        assert_eq!(message.id, id);
        message
    };
    let acked = enqueue_and_lease("acked");
    repeat("acked", &acked.id, "leased");
    assert_eq!(queue.ack(&acked.receipt), "ok");
    repeat("acked", &acked.id, "acked");
    let dead = enqueue_and_lease("dead");
    assert_eq!(queue.release(&dead.receipt), "ok");
    eventually("the message to be dead", || (queue.stats()["dlq"] == 1).then_some(()));
    repeat("dead", &dead.id, "dead");
    let expired = queue.enqueue(json!({"priority": 0, "dedup_key": "expired", "expires_in_s": 1}));
    eventually("the message to expire", || (queue.stats()["totals"]["expired"] == 1).then_some(()));
    repeat("expired", &expired, "expired");
    let cancelled = queue.enqueue(with_key("cancelled"));
    assert_eq!(queue.cancel(&cancelled), 204);
    repeat("cancelled", &cancelled, "cancelled");
    let purged = queue.enqueue(with_key("purged"));
    repeat("purged", &purged, "visible");
    assert_eq!(queue.purge(), 1);
    repeat("purged", &purged, "purged");
    let delayed = queue.enqueue(json!({"priority": 0, "dedup_key": "delayed", "delay_s": 3600}));
    repeat("delayed", &delayed, "delayed");
    assert_eq!(count(&queue.stats()["totals"], "enqueued"), 6, "repeats store nothing");
    let other = server.create("other", json!({}));
    other.enqueue(with_key("acked"));
}

#[test]
fn a_key_is_free_after_its_window_which_repeats_do_not_extend() {
    let server = Server::start();
    let queue = server.create("window", json!({"dedup_window_s": 2}));
    let message = json!({"priority": 0, "dedup_key": "k"});
    let first = queue.enqueue(message.clone());
    let answered_ms = now_ms();
    sleep_past(answered_ms + 800);
    let early = queue.try_enqueue(message.clone()).expect(202);
    if now_ms() < answered_ms + 1_900 {
        assert_eq!(early["id"], *first);
        assert_eq!(early["duplicate"], true);
    }
    sleep_past(answered_ms + 2_100);
    let second = queue.enqueue(message);
    assert_ne!(second, first, "the window has ended; the repeat did not extend it");

    let off = server.create("off", json!({"dedup_window_s": 0}));
    let message = json!({"priority": 0, "dedup_key": "k"});
    assert_ne!(off.enqueue(message.clone()), off.enqueue(message), "0 is off");
}

#[test]
fn a_client_made_id_is_stored_once() {
    let server = Server::start();
    let queue = server.create("ids", json!({}));
    let id = new_id(now_ms(), 1);
    let message = json!({"priority": 2, "id": id, "body": "YQ=="});
    assert_eq!(queue.enqueue(message.clone()), id);
    assert_eq!(queue.enqueue_duplicate(message.clone()), id);
    assert_eq!(queue.enqueue_duplicate(json!({"priority": 0, "id": id})), id, "whatever else differs");
    let leased = queue.receive_one(json!({}));
    assert_eq!((leased.id.as_str(), leased.priority), (id.as_str(), 2));
    assert_eq!(queue.enqueue_duplicate(message.clone()), id);
    assert_eq!(queue.ack(&leased.receipt), "ok");
    assert_eq!(queue.enqueue_duplicate(message), id, "within its window");
    assert_eq!(queue.receive(json!({})), []);

    // With both given, the key decides first, and a repeat claims nothing.
    let (one, two) = (new_id(now_ms(), 2), new_id(now_ms(), 3));
    queue.enqueue(json!({"priority": 0, "id": one, "dedup_key": "k"}));
    assert_eq!(queue.enqueue_duplicate(json!({"priority": 0, "id": two, "dedup_key": "k"})), one);
    assert_eq!(queue.enqueue(json!({"priority": 0, "id": two})), two, "the repeat did not claim its id");
    check_found(&queue, &one);
    check_found(&queue, &two);
}

#[test]
fn a_client_made_id_is_known_whatever_key_it_comes_with() {
    let server = Server::start();
    for shards in [1, 4] {
        let queue = server.create(&format!("ids-{shards}"), json!({"shards": shards}));
        for number in 0..8 {
            let id = new_id(now_ms(), number);
            queue.enqueue(json!({"priority": 0, "id": id, "dedup_key": format!("k{number}")}));
            assert_eq!(queue.enqueue_duplicate(json!({"priority": 0, "id": id})), id, "without its key");
            let other = format!("free{number}");
            let repeat = json!({"priority": 0, "id": id, "dedup_key": other});
            assert_eq!(queue.enqueue_duplicate(repeat), id, "with another key");
            queue.enqueue(json!({"priority": 0, "dedup_key": other}));
        }
    }
}

fn check_found(queue: &Queue, id: &str) {
    let found = queue.inspect(id);
    assert_eq!(found["state"], "visible", "{found}");
}

#[test]
fn dedup_is_asked_before_limits() {
    let server = Server::start();
    let queue = server.create("full", json!({"max_depth": 1}));
    let by_key = json!({"priority": 0, "dedup_key": "k"});
    let first = queue.enqueue(by_key.clone());
    queue.try_enqueue(json!({"priority": 0})).problem(429);
    assert_eq!(queue.enqueue_duplicate(by_key), first);
    assert_eq!(queue.purge(), 1);
    let id = new_id(now_ms(), 5);
    let by_id = json!({"priority": 0, "id": id});
    assert_eq!(queue.enqueue(by_id.clone()), id);
    queue.try_enqueue(json!({"priority": 0})).problem(429);
    assert_eq!(queue.enqueue_duplicate(by_id), id);
}

#[test]
fn an_answer_has_exactly_the_fields_of_the_contract() {
    let server = Server::start();
    let queue = server.create("answer", json!({}));
    let answer = queue.try_enqueue(json!({"priority": 0})).expect(202);
    exactly(&answer, &[("id", Kind::Id), ("shard", Kind::Count)], &[]);
    assert!(count(&answer, "shard") < 4, "{answer}");
    assert_eq!(queue.inspect(text(&answer, "id"))["shard"], answer["shard"]);
    let keyed = queue.try_enqueue(json!({"priority": 0, "dedup_key": "k"})).expect(202);
    let again = queue.try_enqueue(json!({"priority": 0, "dedup_key": "k"})).expect(202);
    assert_eq!(keyed["shard"], again["shard"]);
}
