//! The contract of dead letters: how messages die, listing, redrive, purge.

use overtake_e2e::shape::{check_names_number, count, list, text};
use overtake_e2e::stats::total;
use overtake_e2e::time::{STAMP_MS, parse_rfc3339_ms, sleep_ms};
use overtake_e2e::{Queue, Server, eventually, now_ms};
use serde_json::{Value, json};

fn ids(messages: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = messages.iter().map(|message| text(message, "id").to_owned()).collect();
    ids.sort();
    ids
}

#[test]
fn a_message_dies_after_max_deliveries_with_its_history() {
    let server = Server::start();
    let queue = server.create("dies", json!({"max_deliveries": 3}));
    let before_ms = now_ms();
    let headers = json!({"trace": "1"});
    let id = queue.enqueue(json!({"priority": 2, "body": "YQ==", "headers": headers}));
    let first = queue.receive_one(json!({}));
    assert_eq!(queue.release_with(&first.receipt, json!({"error": "disk on fire"})), "ok");
    let second = queue.receive_one(json!({}));
    assert_eq!(queue.release(&second.receipt), "ok");
    assert_eq!(queue.stats()["dlq"], 0, "two failures are not three");
    let third = queue.receive_one(json!({"lease_s": 1}));
    assert_eq!((&third.id, third.deliveries), (&id, 3));
    let dead = eventually("it to be dead without another poll", || queue.dlq().pop());
    assert!(now_ms() >= third.lease_expires_at_ms, "never early");

    assert_eq!(
        (text(&dead, "id"), count(&dead, "priority"), count(&dead, "deliveries")),
        (id.as_str(), 2, 3)
    );
    assert_eq!((&dead["headers"], &dead["body"]), (&headers, &json!("YQ==")));
    assert_eq!(dead["last_error"], "disk on fire", "the last text given");
    let dead_at_ms = parse_rfc3339_ms(text(&dead, "dead_at")).unwrap_or(0);
    assert!(dead_at_ms >= third.lease_expires_at_ms && dead_at_ms <= now_ms() + STAMP_MS);
    assert!(parse_rfc3339_ms(text(&dead, "enqueued_at")).is_some_and(|at_ms| at_ms + STAMP_MS >= before_ms));
    let history = list(&dead, "history");
    assert_eq!(history.len(), 3, "{dead}");
    let all = json!(history).to_string();
    assert!(all.contains("disk on fire") && all.contains("lease expired"), "{all}");

    let inspected = queue.inspect(&id);
    assert_eq!((&inspected["state"], &inspected["deliveries"]), (&json!("dead"), &json!(3)));
    for receipt in [&first.receipt, &third.receipt] {
        assert_eq!(queue.ack(receipt), "unknown", "a dead letter is not in the queue");
    }
    assert_eq!(queue.cancel(&id), 404);
    assert_eq!(queue.receive(json!({})), []);
    let stats = queue.stats();
    assert_eq!((total(&stats, "dead_lettered"), total(&stats, "lease_expirations")), (1, 1));
}

#[test]
fn the_last_error_is_the_last_text_or_the_reason() {
    let server = Server::start();
    let one_try = |name: &str| server.create(name, json!({"max_deliveries": 1, "dead_letter_expired": true}));
    let dead_of = |queue: &Queue| eventually("a dead letter", || queue.dlq().pop());

    let queue = one_try("released");
    queue.put(0, "x");
    assert_eq!(queue.release(&queue.receive_one(json!({})).receipt), "ok");
    assert_eq!(dead_of(&queue)["last_error"], "released");
    let queue = one_try("lapsed");
    queue.put(0, "x");
    queue.receive_one(json!({"lease_s": 1}));
    assert_eq!(dead_of(&queue)["last_error"], "lease expired");
    let queue = one_try("expired");
    queue.enqueue(json!({"priority": 0, "expires_in_s": 1}));
    assert_eq!(dead_of(&queue)["last_error"], "expired");
    let queue = one_try("long");
    queue.put(0, "x");
    let error = format!("{}ß", "x".repeat(4_095));
    assert_eq!(queue.release_with(&queue.receive_one(json!({})).receipt, json!({"error": error})), "ok");
    let kept = dead_of(&queue);
    assert_eq!(text(&kept, "last_error"), &error[..4_095], "cut at its end, between characters");

    let queue = server.create("history", json!({"max_deliveries": 13}));
    queue.put(0, "x");
    for number in 1..=13 {
        let message = queue.receive_one(json!({}));
        assert_eq!(queue.release_with(&message.receipt, json!({"error": format!("error {number}")})), "ok");
    }
    let dead = dead_of(&queue);
    let history = list(&dead, "history");
    assert_eq!((history.len(), count(&dead, "deliveries")), (10, 13), "the last ten");
    for (entry, number) in history.iter().zip(4..) {
        assert!(entry.to_string().contains(&format!("error {number}")), "{number}: {entry}");
    }
}

#[test]
fn dead_letters_are_listed_in_pages_and_purged() {
    let server = Server::start();
    let queue = server.create("pages", json!({"max_deliveries": 1}));
    queue.fill(&[0, 1, 2], 9);
    queue.kill_all(27, "no");
    let all = ids(&queue.dlq());
    assert_eq!(all.len(), 27);
    for limit in [1, 10, 27, 1_000] {
        let paged = queue.pages(&format!("/dlq?limit={limit}"), "messages");
        assert_eq!(ids(&paged), all, "limit {limit}");
    }
    for (query, field) in [("limit=0", "limit"), ("limit=1001", "limit"), ("state=dead", "state")] {
        queue.client().call("GET", &queue.path(&format!("/dlq?{query}"))).problem_of(400, field);
    }
    queue.put(0, "alive");
    assert_eq!(queue.dlq_purge(), 27);
    assert_eq!((queue.dlq(), queue.dlq_purge()), (vec![], 0));
    let stats = queue.stats();
    assert_eq!((total(&stats, "purged"), &stats["visible"]["p0"]), (27, &json!(1)));
}

#[test]
fn a_redrive_names_exactly_one_selection() {
    let server = Server::start();
    let queue = server.create("selection", json!({"max_deliveries": 1}));
    let id = queue.put(0, "x");
    queue.kill_all(1, "no");
    for (fields, bound) in [
        (json!({}), None),
        (json!({"all": true, "from_priority": 0}), None),
        (json!({"all": true, "ids": [id]}), None),
        (json!({"all": false}), None),
        (json!({"ids": ["m_1"]}), None),
        (json!({"ids": vec![id.clone(); 1_001]}), None),
        (json!({"from_priority": 5}), None),
        (json!({"all": true, "priority": 5}), None),
        (json!({"all": true, "max_per_s": -1}), Some(1_000_000_000)),
        (json!({"all": true, "max_per_s": 1_000_000_001}), Some(1_000_000_000)),
        (json!({"all": true, "dry_run": 1}), None),
        (json!({"all": true, "force": true}), None),
    ] {
        let problem = queue.post("/dlq/redrive", &fields).problem(400);
        if let Some(bound) = bound {
            check_names_number(&problem, bound);
        }
    }
    assert_eq!(queue.dlq().len(), 1, "nothing moved");
}

#[test]
fn a_redriven_message_starts_anew_at_the_tail() {
    let server = Server::start();
    let queue = server.create("redrive", json!({"max_deliveries": 1, "shards": 1, "scheduling": "strict"}));
    let old: Vec<String> = (0..6).map(|number| queue.put(number % 3, &format!("{number}"))).collect();
    queue.kill_all(6, "no");
    let alive = queue.put(0, "alive");

    assert_eq!(queue.redrive(json!({"all": true, "dry_run": true})), 6);
    assert_eq!(queue.redrive(json!({"from_priority": 1, "dry_run": true})), 2);
    assert_eq!(queue.dlq().len(), 6, "a dry run moves nothing");

    assert_eq!(
        queue.redrive(json!({"ids": [old[0], "m_01JZ8D3V9QF3W3Q8B3M1S6T7VX"]})),
        1,
        "those that are there"
    );
    let messages = queue.receive_count(2, json!({}));
    assert_eq!(
        messages.iter().map(|m| &m.id).collect::<Vec<_>>(),
        [&alive, &old[0]],
        "a new sequence: the tail"
    );
    assert_eq!(messages[1].deliveries, 2, "deliveries go on counting");
    assert_eq!(queue.ack(&messages[1].receipt), "ok");
    assert_eq!(queue.ack(&messages[0].receipt), "ok");

    assert_eq!(queue.redrive(json!({"from_priority": 1, "priority": 4})), 2);
    let messages = queue.receive_count(2, json!({}));
    assert!(messages.iter().all(|m| m.priority == 4 && m.deliveries == 2), "{messages:?}");
    assert_eq!(queue.release(&messages[0].receipt), "ok");
    eventually("it to be dead again", || (queue.stats()["dlq"] == 4).then_some(()));
    assert_eq!(queue.ack(&messages[1].receipt), "ok");
    assert_eq!(queue.redrive(json!({"from_priority": 4})), 1, "the level it had");
    assert_eq!(queue.redrive(json!({"all": true})), 3);
    let last = queue.receive_count(4, json!({}));
    assert_eq!(last.iter().map(|m| m.priority).collect::<Vec<_>>(), [0, 2, 2, 4]);
    assert_eq!(last[3].deliveries, 3);
    let stats = queue.stats();
    assert_eq!((total(&stats, "redriven"), total(&stats, "dead_lettered"), &stats["dlq"]), (7, 7, &json!(0)));
}

#[test]
fn a_redrive_resets_the_attempts() {
    let server = Server::start();
    let queue = server.create("attempts", json!({"max_deliveries": 2}));
    let id = queue.put(0, "x");
    let fail = || assert_eq!(queue.release(&queue.receive_one(json!({})).receipt), "ok");
    fail();
    fail();
    eventually("it to be dead", || (queue.stats()["dlq"] == 1).then_some(()));
    assert_eq!(queue.redrive(json!({"ids": [id]})), 1);
    fail();
    let message = queue.receive_one(json!({}));
    assert_eq!((message.id, message.deliveries), (id, 4), "the second attempt of two");
    queue.stats();
}

#[test]
fn a_rate_limited_redrive_keeps_its_messages_until_their_turn() {
    let server = Server::start();
    let queue = server.create("slow", json!({"max_deliveries": 1}));
    queue.fill(&[0], 6);
    queue.kill_all(6, "no");
    assert_eq!(queue.redrive(json!({"all": true, "max_per_s": 0})), 6, "how many will move");
    sleep_ms(1_500);
    let stats = queue.stats();
    assert_eq!((&stats["dlq"], &stats["visible"]["p0"]), (&json!(6), &json!(0)), "0 pauses");

    let slow = server.create("slower", json!({"max_deliveries": 1}));
    slow.fill(&[1], 6);
    slow.kill_all(6, "no");
    let start_ms = now_ms();
    assert_eq!(slow.redrive(json!({"all": true, "max_per_s": 2})), 6);
    eventually("all to have moved", || {
        let stats = slow.stats();
        let moved = 6 - count(&stats, "dlq");
        // Burst one second, and what the time allows.
        let allowed = 2 + 2 * (now_ms() - start_ms + 1_000) / 1_000;
        assert!(moved <= allowed, "{moved} moved, {allowed} allowed");
        (moved == 6).then_some(())
    });
    assert_eq!(slow.receive_count(6, json!({})).len(), 6);
    assert_eq!(total(&slow.stats(), "redriven"), 6);
}

#[test]
fn a_rate_limited_redrive_waits_for_room() {
    let server = Server::start();
    let queue = server.create("room", json!({"max_deliveries": 1, "max_depth": 3, "shards": 1}));
    queue.fill(&[0], 3);
    queue.kill_all(3, "no");
    queue.fill(&[0], 3);
    assert_eq!(queue.redrive(json!({"all": true, "max_per_s": 100})), 3);
    sleep_ms(500);
    assert_eq!(queue.stats()["dlq"], 3, "there is no room");
    for _ in 0..6 {
        let message = queue.receive_one(json!({}));
        let stats = queue.stats();
        assert!(
            count(&stats, "leased") + count(&stats["visible"], "p0") <= 3,
            "depth is never exceeded: {stats}"
        );
        assert_eq!(queue.ack(&message.receipt), "ok");
    }
    assert_eq!(total(&queue.stats(), "redriven"), 3);
}
