//! The contract of receives: bounds, leases given, waiting and waking, order on one shard, rate caps.

use overtake_e2e::answer::Message;
use overtake_e2e::raw::RawRequest;
use overtake_e2e::shape::{check_names_number, text};
use overtake_e2e::time::sleep_ms;
use overtake_e2e::{Options, Queue, Server, eventually, now_ms};
use serde_json::{Value, json};
use std::time::Instant;

/// Long enough for a request to be with the server, also on a busy machine.
const SETTLE_DOWN_MS: u64 = 700;

#[test]
fn fields_out_of_range_are_refused() {
    let server = Server::start();
    let queue = server.create("bounds", json!({}));
    for (fields, bound) in [
        (json!({"max": 0}), Some(1_000)),
        (json!({"max": 1_001}), Some(1_000)),
        (json!({"max": "1"}), None),
        (json!({"wait_s": 21}), Some(20)),
        (json!({"wait_s": -1}), Some(20)),
        (json!({"wait_s": 0.5}), None),
        (json!({"lease_s": 0}), Some(43_200)),
        (json!({"lease_s": 43_201}), Some(43_200)),
        (json!({"max_priority": 5}), None),
        (json!({"max_priority": -1}), None),
        (json!({"worker": "w".repeat(129)}), Some(128)),
        (json!({"worker": 7}), None),
        (json!({"batch": 7}), None),
    ] {
        let field = fields.as_object().and_then(|fields| fields.keys().next().cloned()).unwrap_or_default();
        let reply = queue.post("/receive", &fields);
        assert_eq!(reply.status, 400, "{fields}: {}", reply.text());
        let problem = reply.problem_of(400, &field);
        if let Some(bound) = bound {
            check_names_number(&problem, bound);
        }
    }
    queue.fill(&[0, 1, 2, 3, 4], 4);
    assert_eq!(queue.receive_count(10, json!({})).len(), 10);
    let fields = json!({
        "max": null, "wait_s": null, "lease_s": 43_200, "max_priority": 4, "worker": "w".repeat(128),
    });
    let rest = queue.receive(fields);
    assert!(
        !rest.is_empty() && rest.iter().all(|message| message.lease_expires_at_ms > now_ms() + 43_000_000)
    );
    queue.stats();
}

#[test]
fn an_empty_queue_answers_an_empty_list_after_the_wait() {
    let server = Server::start();
    let queue = server.create("empty", json!({}));
    assert_eq!(queue.receive(json!({})), []);
    queue.enqueue(json!({"priority": 0, "delay_s": 60}));
    let start = Instant::now();
    assert_eq!(queue.receive(json!({"wait_s": 1})), []);
    assert!(start.elapsed().as_millis() >= 990, "it waits as long as it was told");
    queue.put(3, "less urgent");
    assert_eq!(queue.receive(json!({"max_priority": 2})), [], "only levels 0 to max_priority");
    assert_eq!(queue.receive(json!({"max_priority": 3})).len(), 1);
}

#[test]
fn a_queue_on_one_shard_is_exactly_ordered() {
    let server = Options { cores: 2, ..Options::default() }.start();
    let queue = server.create("exact", json!({"shards": 1, "scheduling": "strict"}));
    queue.fill(&[4, 0, 2, 1, 3], 60);
    let mut got: Vec<String> = Vec::new();
    for (until, max) in [(50, 1), (100, 7), (300, 1_000)] {
        while got.len() < until {
            let messages = queue.receive(json!({"max": max.min(until - got.len()), "wait_s": 20}));
            assert!(!messages.is_empty(), "only {} came", got.len());
            got.extend(messages.iter().map(Message::text));
        }
    }
    let expected: Vec<String> =
        (0..5).flat_map(|level| (0..60).map(move |number| format!("{level}-{number}"))).collect();
    assert_eq!(got, expected, "levels in order, first in first out within a level");
    let stats = queue.stats();
    assert_eq!(stats["totals"]["share_deliveries"], 0, "strict has no shares");
    assert_eq!(stats["totals"]["inversions"], 0);
}

#[test]
fn over_several_shards_nothing_is_lost_or_given_twice() {
    let server = Options { cores: 2, shards: None, ..Options::default() }.start();
    let queue = server.create("spread", json!({}));
    queue.fill(&[0, 1, 2, 3, 4], 100);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = Queue::new(server.client(), "spread");
            std::thread::spawn(move || {
                let mut bodies = Vec::new();
                loop {
                    let messages = queue.receive(json!({"max": 23, "wait_s": 1}));
                    if messages.is_empty() {
                        return bodies;
                    }
                    let receipts: Vec<&str> = messages.iter().map(|m| m.receipt.as_str()).collect();
                    let results = queue.settle(json!({"ack": receipts}));
                    assert!(
                        results.as_object().is_some_and(|map| map.values().all(|outcome| outcome == "ok"))
                    );
                    bodies.extend(messages.iter().map(|message| message.text()));
                }
            })
        })
        .collect();
    let mut bodies: Vec<String> = Vec::new();
    for worker in workers {
        bodies.extend(worker.join().expect("a worker"));
    }
    bodies.sort();
    let mut expected: Vec<String> =
        (0..5).flat_map(|level| (0..100).map(move |number| format!("{level}-{number}"))).collect();
    expected.sort();
    assert_eq!(bodies, expected);
    let stats = queue.stats();
    assert_eq!((&stats["totals"]["acked"], &stats["totals"]["deliveries"]), (&json!(500), &json!(500)));
}

#[test]
fn urgent_work_overtakes_over_several_shards() {
    let server = Options { cores: 2, shards: None, ..Options::default() }.start();
    let queue = server.create("urgent", json!({"reserve": 0, "floor": 0}));
    queue.fill(&[2, 3, 4], 60);
    queue.fill(&[0], 20);
    sleep_ms(200);
    // The bound: nothing two or more levels less urgent, once the urgent work has been visible for over 100 ms.
    let first = queue.receive_count(20, json!({}));
    assert!(first.iter().all(|message| message.priority == 0), "{first:?}");
    let stats = queue.stats();
    assert_eq!((&stats["totals"]["inversions"], &stats["visible"]["p0"]), (&json!(0), &json!(0)));
}

#[test]
fn a_waiting_receive_wakes_for_whatever_becomes_visible() {
    let server = Options { cores: 2, ..Options::default() }.start();
    let queue = server.create("wake", json!({}));
    for (what, fields) in
        [("an enqueue", json!({"priority": 4})), ("a delay", json!({"priority": 2, "delay_s": 1}))]
    {
        let waiter = wait_in_background(&server, "wake", json!({}));
        sleep_ms(SETTLE_DOWN_MS);
        let id = queue.enqueue(fields);
        let message = waiter.join().expect("a waiter");
        assert_eq!(message["id"], *id, "{what} wakes the waiter");
        assert_eq!(queue.ack(text(&message, "receipt")), "ok");
    }
    let id = queue.put(1, "x");
    let held = queue.receive_one(json!({"lease_s": 2}));
    let waiter = wait_in_background(&server, "wake", json!({}));
    let message = waiter.join().expect("a waiter");
    assert!(now_ms() >= held.lease_expires_at_ms, "a lease never ends early");
    assert_eq!(
        (&message["id"], &message["deliveries"]),
        (&json!(id), &json!(2)),
        "an expired lease wakes the waiter"
    );
    let released = wait_in_background(&server, "wake", json!({}));
    sleep_ms(SETTLE_DOWN_MS);
    assert_eq!(queue.release(text(&message, "receipt")), "ok");
    assert_eq!(released.join().expect("a waiter")["deliveries"], 3, "a release wakes the waiter");
    queue.stats();
}

/// Waits for one message as long as a receive may; gives it, or null.
fn wait_in_background(server: &Server, queue: &str, mut fields: Value) -> std::thread::JoinHandle<Value> {
    fields["max"] = 1.into();
    fields["wait_s"] = 20.into();
    let queue = Queue::new(server.client(), queue);
    std::thread::spawn(move || queue.post("/receive", &fields).expect(200)["messages"][0].clone())
}

#[test]
fn the_longest_waiter_that_may_take_a_message_is_served_first() {
    let server = Server::start();
    let queue = server.create("waiters", json!({}));
    let urgent_only = wait_in_background(&server, "waiters", json!({"max_priority": 0, "worker": "urgent"}));
    sleep_ms(SETTLE_DOWN_MS);
    let first = wait_in_background(&server, "waiters", json!({"worker": "first"}));
    sleep_ms(SETTLE_DOWN_MS);
    let second = wait_in_background(&server, "waiters", json!({"worker": "second"}));
    sleep_ms(SETTLE_DOWN_MS);
    let worker_of = |id: &str| text(&queue.inspect(id), "worker").to_owned();

    let low = queue.put(3, "for the first who may take it");
    assert_eq!(first.join().expect("a waiter")["id"], *low);
    assert_eq!(worker_of(&low), "first");
    let stats = queue.stats();
    assert_eq!(stats["workers"], json!({"first": 1}), "one message, one lease");
    let high = queue.put(0, "for the one who waits longest now");
    assert_eq!(urgent_only.join().expect("a waiter")["id"], *high);
    let last = queue.put(1, "for the last");
    assert_eq!(second.join().expect("a waiter")["id"], *last);
    assert_eq!(queue.stats()["totals"]["deliveries"], 3);
}

#[test]
fn a_waiter_that_hangs_up_holds_no_lease() {
    let server = Options { cores: 2, ..Options::default() }.start();
    let queue = server.create("hang-up", json!({"lease_s": 600}));
    let body = json!({"wait_s": 20, "max": 10}).to_string();
    for round in 0..3 {
        let waiters: Vec<RawRequest> = (0..5)
            .map(|_| RawRequest::send(server.http(), "POST", &queue.path("/receive"), body.as_bytes()))
            .collect();
        sleep_ms(SETTLE_DOWN_MS);
        waiters.into_iter().for_each(RawRequest::hang_up);
        // In the last round the message comes at the same moment.
        if round < 2 {
            sleep_ms(SETTLE_DOWN_MS);
        }
        let id = queue.put(0, "for somebody who is there");
        let message =
            eventually("the message to come to somebody", || queue.receive(json!({"wait_s": 1})).pop());
        assert_eq!(message.id, id);
        assert_eq!(message.deliveries, 1, "a delivery to nobody was counted: {message:?}");
        assert_eq!(queue.ack(&message.receipt), "ok");
    }
    let stats = queue.stats();
    assert_eq!((&stats["leased"], &stats["totals"]["acked"]), (&json!(0), &json!(3)));
}

#[test]
fn a_cap_of_zero_pauses_a_level_or_the_queue() {
    let server = Server::start();
    let queue = server.create("pause", json!({"rate_caps": {"p0": 0}}));
    queue.fill(&[0, 3], 5);
    let mut messages = vec![queue.receive_one(json!({}))];
    messages.extend(queue.receive_count(4, json!({})));
    assert!(messages.iter().all(|message| message.priority == 3), "level 0 is paused: {messages:?}");
    assert_eq!(queue.receive(json!({"wait_s": 1})), []);
    queue.update(json!({"rate_caps": {"queue": 0}}));
    queue.put(1, "x");
    assert_eq!(queue.receive(json!({"wait_s": 1})), [], "the queue is paused");
    assert_eq!(queue.ack(&messages[0].receipt), "ok", "acks go on");
    queue.update(json!({"rate_caps": null}));
    assert_eq!(queue.receive_count(6, json!({})).len(), 6);
    queue.stats();
}

#[test]
fn a_rate_cap_is_not_exceeded() {
    let server = Options { cores: 2, ..Options::default() }.start();
    let queue = server.create("capped", json!({"rate_caps": {"queue": 20}}));
    let levels = server.create("level-capped", json!({"rate_caps": {"p1": 20}, "shards": 1}));
    let spread = server.create("level-capped-over-shards", json!({"rate_caps": {"p1": 20}}));
    queue.fill(&[0, 1], 40);
    for levels in [&levels, &spread] {
        levels.fill(&[1], 80);
        levels.fill(&[4], 50);
    }
    let run = |queue: &Queue, wanted: &dyn Fn(u64) -> bool| {
        let start = Instant::now();
        let mut delivered = 0u32;
        while delivered < 70 {
            let messages = queue.receive(json!({"max": 50, "wait_s": 20}));
            delivered += messages.iter().filter(|message| wanted(message.priority)).count() as u32;
            // At most the burst of one second and what the time that has passed allows, 5 % more.
            let allowed = 20.0 * (start.elapsed().as_secs_f64() + 1.0) * 1.05;
            assert!(f64::from(delivered) <= allowed + 1.0, "{delivered} delivered, {allowed} allowed");
            assert!(start.elapsed().as_secs() < 60, "the cap lets nothing through: {delivered}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(&queue, &|_| true));
        for levels in [&levels, &spread] {
            scope.spawn(|| run(levels, &|priority| priority == 1));
        }
    });
    for levels in [&levels, &spread] {
        assert_eq!(levels.stats()["visible"]["p4"], 0, "another level is not held up by the cap");
    }
}
