//! The contract of looking and of taking away: peek, inspect, stats, cancel, purge.

use overtake_e2e::shape::{count, encode_body, text, time_ms};
use overtake_e2e::stats::{TOTALS, sum_levels, total};
use overtake_e2e::time::sleep_ms;
use overtake_e2e::{Queue, Server, eventually, now_ms};
use serde_json::{Value, json};

/// One message in each state; gives their ids: visible, delayed, leased, dead.
fn one_of_each(server: &Server, name: &str) -> (Queue, [String; 4]) {
    let queue = server.create(name, json!({"max_deliveries": 1}));
    let dead = queue.put(1, "dead");
    queue.kill_all(1, "gone wrong");
    let leased = queue.put(2, "leased");
    assert_eq!(queue.receive_one(json!({"worker": "w-7", "lease_s": 600})).id, leased);
    let delayed = queue.enqueue(json!({"priority": 4, "delay_s": 3600, "headers": {"h": "v"}}));
    let visible = queue.put(3, "visible");
    (queue, [visible, delayed, leased, dead])
}

fn sorted_ids(messages: &[Value]) -> Vec<&str> {
    let mut ids: Vec<&str> = messages.iter().map(|message| text(message, "id")).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn inspect_says_where_a_message_is_and_why() {
    let server = Server::start();
    let (queue, [visible, delayed, leased, dead]) = one_of_each(&server, "inspect");
    let now_ms = now_ms();
    let seen = queue.inspect(&visible);
    assert_eq!(
        (&seen["state"], &seen["priority"], &seen["deliveries"]),
        (&json!("visible"), &json!(3), &json!(0))
    );
    assert_eq!(seen["ahead"], 0);
    assert!(
        seen.get("deliver_at").is_none()
            && seen.get("lease_expires_at").is_none()
            && seen.get("worker").is_none()
    );
    let seen = queue.inspect(&delayed);
    assert_eq!(
        (&seen["state"], &seen["priority"], &seen["deliveries"]),
        (&json!("delayed"), &json!(4), &json!(0))
    );
    assert!(time_ms(&seen, "deliver_at") > now_ms + 3_500_000);
    let seen = queue.inspect(&leased);
    assert_eq!(
        (&seen["state"], &seen["deliveries"], &seen["worker"]),
        (&json!("leased"), &json!(1), &json!("w-7"))
    );
    assert!(time_ms(&seen, "lease_expires_at") > now_ms + 500_000);
    let seen = queue.inspect(&dead);
    assert_eq!((&seen["state"], &seen["priority"]), (&json!("dead"), &json!(1)));

    let client = queue.client();
    client.call("GET", &queue.path("/messages/m_01JZ8D3V9QF3W3Q8B3M1S6T7VX")).problem(404);
    client.call("GET", &queue.path("/messages/not-an-id")).problem(400);
    let other = server.create("other", json!({}));
    client.call("GET", &other.path(&format!("/messages/{visible}"))).problem(404);

    let lane = server.create("ahead", json!({"shards": 1}));
    lane.fill(&[0, 2], 3);
    let last = lane.put(2, "last");
    lane.fill(&[2, 4], 3);
    assert_eq!(lane.inspect(&last)["ahead"], 6, "three more urgent, three before it");
    lane.update(json!({"rate_caps": {"queue": 0}}));
    assert_ne!(lane.inspect(&last)["why"], "", "a paused queue is a reason too");
}

#[test]
fn peek_shows_messages_without_leasing_them() {
    let server = Server::start();
    let (queue, [visible, delayed, leased, _]) = one_of_each(&server, "peek");
    for (query, expected) in [
        ("", vec![&visible, &delayed, &leased]),
        ("?state=visible,delayed,leased", vec![&visible, &delayed, &leased]),
        ("?state=visible", vec![&visible]),
        ("?state=delayed", vec![&delayed]),
        ("?state=leased", vec![&leased]),
        ("?state=leased,visible", vec![&visible, &leased]),
        ("?priority=3", vec![&visible]),
        ("?priority=4&state=delayed", vec![&delayed]),
        ("?priority=4&state=visible", vec![]),
        ("?priority=0", vec![]),
    ] {
        let messages = queue.peek(query);
        let mut expected: Vec<&str> = expected.into_iter().map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(sorted_ids(&messages), expected, "{query}");
        for message in messages {
            let state = text(&message, "state");
            assert_eq!(message.get("deliver_at").is_some(), state == "delayed", "{message}");
            assert_eq!(message.get("lease_expires_at").is_some(), state == "leased", "{message}");
        }
    }
    assert_eq!(queue.peek("?state=delayed")[0]["headers"], json!({"h": "v"}));
    for (query, field) in [
        ("state=dead", "state"),
        ("state=visible,dead", "state"),
        ("priority=5", "priority"),
        ("priority=x", "priority"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("level=1", "level"),
    ] {
        queue.client().call("GET", &queue.path(&format!("/messages?{query}"))).problem_of(400, field);
    }
    queue.client().call("GET", &queue.path("/messages?after=nonsense")).problem_of(400, "after");
    assert_eq!(queue.stats()["totals"]["deliveries"], 2, "a peek is no delivery");

    let many = server.create("many", json!({}));
    many.fill(&[0, 1, 2, 3, 4], 25);
    for limit in [1, 40, 125, 1_000] {
        let all = many.pages(&format!("/messages?limit={limit}"), "messages");
        let mut ids = sorted_ids(&all);
        ids.dedup();
        assert_eq!((all.len(), ids.len()), (125, 125), "limit {limit}: each message once");
        let some = many.pages(&format!("/messages?state=visible&priority=2&limit={limit}"), "messages");
        assert_eq!(some.len(), 25, "limit {limit}");
    }
    assert_eq!(many.peek("").len(), 100, "the default limit");
}

#[test]
fn stats_count_what_was_answered_before() {
    let server = Server::start();
    let queue = server.create("stats", json!({}));
    let fresh = queue.stats();
    assert!(TOTALS.iter().all(|name| total(&fresh, name) == 0), "{fresh}");
    assert!(
        fresh["oldest_age_s"].as_object().is_some_and(|ages| ages.values().all(Value::is_null)),
        "{fresh}"
    );
    assert_eq!((&fresh["wait_ms"]["p0"], &fresh["workers"]), (&json!(null), &json!({})));
    for round in 1..=10u64 {
        queue.put(1, "x");
        queue.enqueue(json!({"priority": 2, "delay_s": 3600}));
        let stats = queue.stats();
        assert_eq!((&stats["delayed"]["p2"], &stats["visible"]["p1"]), (&json!(round), &json!(1)), "{stats}");
        let message = queue.receive_one(json!({"worker": "w"}));
        let stats = queue.stats();
        assert_eq!((&stats["leased_by_level"]["p1"], &stats["workers"]), (&json!(1), &json!({"w": 1})));
        assert_eq!(total(&stats, "deliveries"), round);
        assert_eq!(queue.ack(&message.receipt), "ok");
        let stats = queue.stats();
        assert_eq!(
            (total(&stats, "acked"), count(&stats, "leased"), &stats["workers"]),
            (round, 0, &json!({}))
        );
    }
    queue.put(4, "old");
    sleep_ms(300);
    let stats = queue.stats();
    let age_s = stats["oldest_age_s"]["p4"].as_f64().unwrap_or_default();
    assert!((0.29..60.0).contains(&age_s), "{stats}");
    let wait = &stats["wait_ms"]["p1"];
    let [p50, p99, p999] = ["p50", "p99", "p999"].map(|name| wait[name].as_f64().unwrap_or(-1.0));
    assert!(0.0 <= p50 && p50 <= p99 && p99 <= p999 && p999 < 60_000.0, "{stats}");
    assert!(stats["wait_ms"]["p4"].is_null() || stats["wait_ms"]["p4"]["p50"].is_null(), "{stats}");
}

#[test]
fn a_starved_level_is_counted() {
    let server = Server::start();
    let queue = server.create("starved", json!({"starvation_s": [1, 1, 1, 1, 1000]}));
    queue.put(0, "nobody comes");
    queue.put(4, "nobody comes");
    let stats = eventually("an alert", || {
        let stats = queue.stats();
        (total(&stats, "starvation_events") > 0).then_some(stats)
    });
    assert_eq!(total(&stats, "starvation_events"), 1, "level 4 may wait longer: {stats}");
    queue.receive_count(2, json!({}));
    queue.stats();
}

#[test]
fn cancel_deletes_what_is_visible_or_delayed() {
    let server = Server::start();
    let (queue, [visible, delayed, leased, dead]) = one_of_each(&server, "cancel");
    assert_eq!(queue.cancel(&leased), 409);
    assert_eq!(queue.inspect(&leased)["state"], "leased", "nothing was done");
    for id in [&visible, &delayed] {
        assert_eq!(queue.cancel(id), 204);
        assert_eq!(queue.cancel(id), 404);
        queue.client().call("GET", &queue.path(&format!("/messages/{id}"))).problem(404);
    }
    assert_eq!(queue.cancel(&dead), 404);
    assert_eq!(queue.cancel("m_01JZ8D3V9QF3W3Q8B3M1S6T7VX"), 404);
    assert_eq!(queue.receive(json!({"wait_s": 1})), []);
    let stats = queue.stats();
    assert_eq!((total(&stats, "cancelled"), count(&stats, "leased"), count(&stats, "dlq")), (2, 1, 1));

    let lane = server.create("lane", json!({"shards": 1}));
    let ids: Vec<String> = (0..5).map(|_| lane.put(0, "x")).collect();
    assert_eq!((lane.cancel(&ids[0]), lane.cancel(&ids[2])), (204, 204));
    let left: Vec<String> = lane.receive_count(3, json!({})).into_iter().map(|message| message.id).collect();
    assert_eq!(left, [ids[1].clone(), ids[3].clone(), ids[4].clone()], "the others keep their places");
    lane.stats();
}

#[test]
fn purge_deletes_all_that_is_visible_or_delayed() {
    let server = Server::start();
    let (queue, _) = one_of_each(&server, "purge");
    queue.fill(&[0, 1, 2, 3, 4], 20);
    assert_eq!(queue.purge(), 102);
    assert_eq!(queue.purge(), 0);
    let stats = queue.stats();
    assert_eq!((sum_levels(&stats, "visible"), sum_levels(&stats, "delayed")), (0, 0));
    assert_eq!((count(&stats, "leased"), count(&stats, "dlq"), total(&stats, "purged")), (1, 1, 102));
    queue.put(0, "new");
    assert_eq!(queue.receive_count(1, json!({})).len(), 1);
    queue.client().json("POST", &queue.path("/purge"), &json!({"all": true})).problem_of(400, "all");
}

#[test]
fn a_page_of_large_messages_is_cut_short_and_the_next_one_goes_on() {
    let server = Server::start();
    let queue = server.create("large", json!({"max_deliveries": 1}));
    let body = encode_body(&vec![b'x'; 131_072]);
    let mut ids: Vec<String> = (0..80).map(|_| queue.enqueue(json!({"priority": 1, "body": body}))).collect();
    ids.sort_unstable();
    let seen = queue.pages("/messages?limit=1000", "messages");
    assert_eq!(sorted_ids(&seen), ids);
    queue.kill_all(80, &"e".repeat(4_096));
    let seen = queue.pages("/dlq?limit=1000", "messages");
    assert_eq!(sorted_ids(&seen), ids);
}
