//! The contract of leases: ack, extend, release, expiry, receipts, back-off.

use overtake_base::Receipt;
use overtake_e2e::answer::Message;
use overtake_e2e::shape::{check_names_number, count, text, time_ms};
use overtake_e2e::time::{STAMP_MS, sleep_past};
use overtake_e2e::{Server, eventually, now_ms};
use serde_json::{Value, json};

#[test]
fn fields_out_of_range_are_refused_and_nothing_is_done() {
    let server = Server::start();
    let queue = server.create("bounds", json!({}));
    queue.put(0, "x");
    let message = queue.receive_one(json!({}));
    let receipt = &message.receipt;
    for (field, fields, bound) in [
        ("ack", json!({"ack": receipt}), None),
        ("ack", json!({"ack": [5]}), None),
        ("extend", json!({"extend": [receipt]}), None),
        ("extend", json!({"extend": [{"receipt": receipt}]}), None),
        ("extend", json!({"extend": [{"receipt": receipt, "lease_s": 0}]}), Some(43_200)),
        ("extend", json!({"extend": [{"receipt": receipt, "lease_s": 43_201}]}), Some(43_200)),
        ("extend", json!({"extend": [{"receipt": receipt, "lease_s": 5, "x": 1}]}), None),
        ("release", json!({"release": [{"delay_s": 5}]}), None),
        ("release", json!({"release": [{"receipt": receipt, "delay_s": -1}]}), Some(31_622_400)),
        ("release", json!({"release": [{"receipt": receipt, "delay_s": 31_622_401}]}), Some(31_622_400)),
        ("release", json!({"release": [{"receipt": receipt, "error": 5}]}), None),
        ("nack", json!({"nack": [receipt]}), None),
    ] {
        let reply = queue.post("/ack", &fields);
        assert_eq!(reply.status, 400, "{fields}: {}", reply.text());
        let problem = reply.problem_of(400, field);
        if let Some(bound) = bound {
            check_names_number(&problem, bound);
        }
    }
    for twice in [
        json!({"ack": [receipt, receipt]}),
        json!({"ack": [receipt], "release": [receipt]}),
        json!({"extend": [{"receipt": receipt, "lease_s": 5}], "release": [{"receipt": receipt}]}),
    ] {
        queue.post("/ack", &twice).problem(400);
    }
    assert_eq!(queue.inspect(&message.id)["state"], "leased", "nothing was done");
    assert_eq!(queue.settle(json!({})), json!({}));
    assert_eq!(queue.settle(json!({"ack": null, "extend": [], "release": []})), json!({}));
    assert_eq!(queue.ack(receipt), "ok");
}

#[test]
fn each_receipt_is_answered_by_itself() {
    let server = Server::start();
    let queue = server.create("many", json!({}));
    queue.fill(&[0, 1, 2], 10);
    let messages = queue.receive_count(30, json!({}));
    let receipts: Vec<&str> = messages.iter().map(|message| message.receipt.as_str()).collect();
    let extend: Vec<Value> =
        receipts[10..20].iter().map(|receipt| json!({"receipt": receipt, "lease_s": 900})).collect();
    let mut ack: Vec<&str> = receipts[..10].to_vec();
    ack.extend(["r_0_999999999_1", "r_999_1_1", "not a receipt", "r_0_1", ""]);
    let release = json!([receipts[20], {"receipt": receipts[21], "delay_s": 3600}, {"receipt": receipts[22], "error": "e"}]);
    let before_ms = now_ms();
    let results = queue.settle(json!({"ack": ack, "extend": extend, "release": release}));
    assert_eq!(results.as_object().map(serde_json::Map::len), Some(28), "{results}");
    for receipt in &receipts[..23] {
        assert_eq!(results[*receipt], "ok", "{receipt}");
    }
    for receipt in &ack[10..] {
        assert_eq!(results[*receipt], "unknown", "{receipt}");
    }
    for message in &messages[10..20] {
        let expires_ms = time_ms(&queue.inspect(&message.id), "lease_expires_at");
        assert!(expires_ms + STAMP_MS >= before_ms + 900_000, "a new expiry from now");
    }
    let stats = queue.stats();
    assert_eq!((count(&stats, "leased"), &stats["totals"]["acked"]), (17, &json!(10)));
    assert_eq!(stats["totals"]["releases"], 3);
    for message in &messages[..10] {
        assert_eq!(queue.ack(&message.receipt), "unknown", "acked already");
        assert_eq!(queue.extend(&message.receipt, 5), "unknown");
        assert_eq!(queue.release(&message.receipt), "unknown");
    }
}

#[test]
fn a_stale_receipt_touches_nothing() {
    let server = Server::start();
    let queue = server.create("stale", json!({"max_deliveries": 100}));
    let id = queue.put(2, "x");
    let old = queue.receive_one(json!({}));
    assert_eq!(queue.release(&old.receipt), "ok");
    let each = |receipt: &str| {
        [
            queue.ack(receipt),
            queue.extend(receipt, 5),
            queue.release(receipt),
            queue.release_with(receipt, json!({"delay_s": 60})),
        ]
    };
    assert_eq!(each(&old.receipt), ["stale"; 4], "visible again: this is no lease any more");
    let current = queue.receive_one(json!({"lease_s": 500}));
    assert_eq!((&current.id, current.deliveries), (&id, 2));
    assert_eq!(each(&old.receipt), ["stale"; 4], "another lease");
    let seen = queue.inspect(&id);
    assert_eq!((&seen["state"], &seen["deliveries"]), (&json!("leased"), &json!(2)));
    assert_eq!(time_ms(&seen, "lease_expires_at"), current.lease_expires_at_ms, "untouched");
    let parsed: Receipt = current.receipt.parse().expect("checked");
    let future = Receipt { deliveries: parsed.deliveries + 1, ..parsed }.to_string();
    assert_ne!(queue.ack(&future), "ok", "a delivery that has not been made");
    let stats = queue.stats();
    assert!(count(&stats["totals"], "stale_receipts") >= 8, "{stats}");
    assert_eq!(queue.ack(&current.receipt), "ok");
    assert_eq!(each(&old.receipt), ["unknown"; 4], "the message is gone");
    let other = server.create("other", json!({}));
    other.put(0, "x");
    assert_eq!(queue.ack(&other.receive_one(json!({})).receipt), "unknown", "another queue's receipt");
    assert_eq!(other.stats()["leased"], 1);
}

#[test]
fn an_expired_lease_returns_to_the_front_of_its_lane() {
    let server = Server::start();
    let queue = server.create("expiry", json!({"shards": 1, "scheduling": "strict", "lease_s": 1}));
    let ids: Vec<String> = (0..4).map(|number| queue.put(3, &format!("{number}"))).collect();
    let first = queue.receive_count(2, json!({}));
    assert_eq!(first.iter().map(|m| &m.id).collect::<Vec<_>>(), [&ids[0], &ids[1]]);
    let back =
        eventually("both to come back", || (queue.stats()["totals"]["lease_expirations"] == 2).then(now_ms));
    assert!(back >= first[1].lease_expires_at_ms, "a lease never ends early");
    let again = queue.receive_count(4, json!({"lease_s": 60}));
    assert_eq!(
        again.iter().map(|m| &m.id).collect::<Vec<_>>(),
        ids.iter().collect::<Vec<_>>(),
        "in their old places"
    );
    assert_eq!(again.iter().map(|m| m.deliveries).collect::<Vec<_>>(), [2, 2, 1, 1]);
    assert!(again.iter().all(|message| message.priority == 3));
    for message in &first {
        assert_eq!(queue.ack(&message.receipt), "stale", "a later delivery holds it");
    }
    for message in &again {
        assert_eq!(queue.ack(&message.receipt), "ok");
    }
    queue.stats();
}

#[test]
fn a_receipt_is_stale_after_its_lease_and_an_extension_keeps_it() {
    let server = Server::start();
    let queue = server.create("extend", json!({"shards": 1}));
    let [kept, lost, shortened] = ["kept", "lost", "shortened"].map(|body| {
        queue.put(0, body);
        queue.receive_one(json!({"lease_s": if body == "shortened" { 600 } else { 2 }}))
    });
    let sent_ms = now_ms();
    assert_eq!(queue.extend(&kept.receipt, 4), "ok");
    assert_eq!(queue.extend(&shortened.receipt, 1), "ok", "from now, also to less");
    let mut back: Vec<Message> = queue.receive_count(2, json!({"lease_s": 600}));
    let back_ms = now_ms();
    back.sort_by_key(Message::text);
    assert_eq!(back.iter().map(Message::text).collect::<Vec<_>>(), ["lost", "shortened"]);
    assert!(back_ms >= lost.lease_expires_at_ms && back_ms + STAMP_MS >= sent_ms + 1_000, "never early");
    assert_eq!(queue.ack(&lost.receipt), "stale");
    let third = queue.receive_one(json!({}));
    assert_eq!((&third.id, third.deliveries), (&kept.id, 2));
    assert!(now_ms() + STAMP_MS >= sent_ms + 4_000, "the extension holds");
    queue.stats();
}

#[test]
fn a_released_message_returns_at_once_or_when_due() {
    let server = Server::start();
    let queue = server.create("release", json!({"shards": 1, "scheduling": "strict", "max_deliveries": 50}));
    let ids: Vec<String> = (0..3).map(|number| queue.put(1, &format!("{number}"))).collect();
    let first = queue.receive(json!({"max": 1})).remove(0);
    assert_eq!(queue.release(&first.receipt), "ok");
    let again = queue.receive(json!({"max": 1})).remove(0);
    assert_eq!((&again.id, again.deliveries, again.priority), (&ids[0], 2, 1), "in its old place");

    let sent_ms = now_ms();
    assert_eq!(queue.release_with(&again.receipt, json!({"delay_s": 2, "error": "later"})), "ok");
    let seen = queue.inspect(&ids[0]);
    assert_eq!(seen["state"], "delayed");
    assert!(time_ms(&seen, "deliver_at") + STAMP_MS >= sent_ms + 2_000);
    assert_eq!(queue.stats()["delayed"]["p1"], 1);
    assert_eq!(queue.ack(&again.receipt), "stale", "the lease has ended");
    let next = queue.receive(json!({"max": 1})).remove(0);
    assert_eq!(next.id, ids[1], "it does not block its lane");
    eventually("it to be due", || (queue.inspect(&ids[0])["state"] == "visible").then_some(()));
    assert!(now_ms() + STAMP_MS >= sent_ms + 2_000, "never early");
    let third = queue.receive(json!({"max": 1})).remove(0);
    assert_eq!((&third.id, third.deliveries), (&ids[0], 3), "in its old place, before the third");
    assert_eq!(queue.stats()["totals"]["releases"], 2);
}

#[test]
fn a_failure_without_a_delay_waits_for_the_back_off() {
    let server = Server::start();
    let backoff = json!({"first_s": 1, "factor": 2, "max_s": 3});
    let queue = server.create("backoff", json!({"backoff": backoff, "max_deliveries": 50}));
    let id = queue.put(0, "x");
    let mut due_ms = 0;
    // 1 s × 2^(failures − 1), at most 3 s; the second failure is an expiry.
    for (failure, delay_ms) in [(1, 1_000), (2, 2_000), (3, 3_000)] {
        let message = queue.receive_one(json!({"lease_s": if failure == 2 { 1 } else { 60 }}));
        assert!(now_ms() >= due_ms, "failure {failure}: never early");
        let mut failed_ms = now_ms();
        if failure == 2 {
            eventually("the lease to end", || (queue.inspect(&id)["state"] == "delayed").then_some(()));
            failed_ms = message.lease_expires_at_ms;
        } else {
            assert_eq!(queue.release(&message.receipt), "ok");
        }
        due_ms = time_ms(&queue.inspect(&id), "deliver_at");
        assert!(due_ms + STAMP_MS >= failed_ms + delay_ms, "failure {failure}: {failed_ms} to {due_ms}");
        assert!(due_ms <= now_ms() + delay_ms + STAMP_MS, "failure {failure}: no longer than said");
    }
    let message = queue.receive_one(json!({}));
    assert_eq!(queue.release_with(&message.receipt, json!({"delay_s": 0})), "ok");
    assert_eq!(queue.inspect(&id)["state"], "visible", "a release that names a delay is not backed off");
    queue.stats();
}

#[test]
fn an_expired_message_is_never_delivered_wherever_it_stands() {
    let server = Server::start();
    let queue = server.create("ttl", json!({"shards": 1, "scheduling": "strict"}));
    let leased = ["acked", "released"].map(|_| {
        let id = queue.enqueue(json!({"priority": 0, "expires_in_s": 2}));
        let message = queue.receive_one(json!({"lease_s": 600}));
        assert_eq!(message.id, id);
        (message.receipt, now_ms() + 2_000)
    });
    let keep_first = queue.put(0, "keep");
    let short: Vec<String> =
        (0..3).map(|_| queue.enqueue(json!({"priority": 0, "expires_in_s": 1}))).collect();
    let keep_last = queue.put(0, "keep");
    let due_later = queue.enqueue(json!({"priority": 0, "delay_s": 3, "expires_in_s": 1}));
    eventually("the three to expire", || (queue.stats()["totals"]["expired"] == 3).then_some(()));
    for id in &short {
        queue.client().call("GET", &queue.path(&format!("/messages/{id}"))).problem(404);
    }
    let messages = queue.receive_count(2, json!({}));
    assert_eq!(messages.iter().map(|m| &m.id).collect::<Vec<_>>(), [&keep_first, &keep_last]);
    let late = queue.receive_one(json!({"lease_s": 1}));
    assert_eq!(late.id, due_later, "its time runs from when it first became visible");
    sleep_past(leased[1].1);
    assert_eq!(queue.ack(&leased[0].0), "ok", "a leased message can be acked after its time");
    assert_eq!(queue.release(&leased[1].0), "ok");
    eventually("the released and the abandoned one to expire", || {
        (queue.stats()["totals"]["expired"] == 5).then_some(())
    });
    assert_eq!(queue.stats()["dlq"], 0);
}

#[test]
fn retention_is_the_life_of_messages_that_do_not_say() {
    let server = Server::start();
    let queue = server.create("retention", json!({"retention_s": 1, "dead_letter_expired": true}));
    let id = queue.put(4, "x");
    let dead = eventually("it to be dead", || queue.dlq().pop());
    assert_eq!((text(&dead, "id"), text(&dead, "last_error")), (id.as_str(), "expired"));
    let stats = queue.stats();
    assert_eq!((&stats["dlq"], &stats["totals"]["dead_lettered"]), (&json!(1), &json!(1)));
    sleep_past(now_ms() + 1_200);
    assert_eq!(queue.stats()["dlq"], 1, "a dead letter does not expire");
}
