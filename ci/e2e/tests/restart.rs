//! Restarts: after SIGTERM everything is there; after kill -9, at any moment and under load, everything that was
//! answered is there and nothing else is.

use overtake_base::random::Random;
use overtake_e2e::answer::Message;
use overtake_e2e::checker::check;
use overtake_e2e::history::End;
use overtake_e2e::load::{self, Load};
use overtake_e2e::shape::{count, text, time_ms};
use overtake_e2e::stats::{TOTALS, total};
use overtake_e2e::time::sleep_ms;
use overtake_e2e::{Gateway, Options, Queue, Server, eventually, now_ms};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const KILLS: u32 = 20;
const TERMINATIONS: u32 = 5;

#[test]
fn everything_is_there_after_sigterm() {
    everything_is_there_after(Server::restart);
}

#[test]
fn everything_is_there_after_a_kill() {
    everything_is_there_after(|server| {
        server.kill();
        server.start_again();
    });
}

fn everything_is_there_after(restart: fn(&mut Server)) {
    let mut server = Options { cores: 2, ..Options::default() }.start();
    let config = json!({
        "levels": 3, "scheduling": "strict", "weights": [3, 2, 1], "reserve": 0.25, "floor": 0.125, "aging_s": 77,
        "max_deliveries": 2, "lease_s": 44, "retention_s": 9_999, "max_depth": 500, "max_bytes": 1_000_000,
        "dead_letter_expired": true, "starvation_s": [9, 99, 999],
    });
    let queue = server.create("all", config);
    let gone = server.create("gone", json!({}));
    gone.put(0, "goes with its queue");
    gone.client().call("DELETE", &gone.path("")).expect_status(204);

    // One message in each state, with a total for each.
    let fail = |times: usize| {
        for _ in 0..times {
            let message = queue.receive_one(json!({"max_priority": 2}));
            assert_eq!(queue.release_with(&message.receipt, json!({"error": "broken"})), "ok");
        }
        message_gone_dead(&queue)
    };
    queue.enqueue(json!({"priority": 1, "body": "ZGVhZA==", "headers": {"a": "b"}}));
    let dead = fail(2);
    let acked = queue.enqueue(json!({"priority": 0, "dedup_key": "acked"}));
    assert_eq!(queue.ack(&queue.receive_one(json!({})).receipt), "ok");
    let cancelled = queue.enqueue(json!({"priority": 0, "dedup_key": "cancelled"}));
    assert_eq!(queue.cancel(&cancelled), 204);
    queue.fill(&[0, 1], 5);
    assert_eq!(queue.purge(), 10);
    let leased: Vec<Message> = (0..3)
        .map(|number| {
            queue.put(number, "leased");
            queue.receive_one(json!({"lease_s": 600, "worker": "w"}))
        })
        .collect();
    let lapsing = {
        queue.put(2, "lapsing");
        queue.receive_one(json!({"lease_s": 3}))
    };
    let due_ms = now_ms() + 3_000;
    let due_soon = queue.enqueue(json!({"priority": 0, "deliver_at": due_ms}));
    let due_late = queue.enqueue(json!({"priority": 1, "delay_s": 3600, "dedup_key": "late"}));
    queue.fill(&[2, 1, 0], 50);
    let before = (queue.config(), queue.stats(), queue.dlq(), peeked(&queue));

    restart(&mut server);

    let after = (queue.config(), queue.stats(), queue.dlq(), peeked(&queue));
    assert_eq!(after.0, before.0);
    for field in ["visible", "delayed", "leased_by_level", "workers"] {
        // What was due in between may have moved.
        if now_ms() < due_ms.min(lapsing.lease_expires_at_ms) {
            assert_eq!(after.1[field], before.1[field], "{field}");
        }
    }
    for name in TOTALS.iter().filter(|name| !matches!(**name, "starvation_events" | "lease_expirations")) {
        assert_eq!(total(&after.1, name), total(&before.1, name), "{name}");
    }
    assert_eq!(after.2, before.2, "dead letters");
    assert_eq!(after.3, before.3, "the same messages");
    gone.client().call("GET", &gone.path("")).problem(404);
    assert_eq!(queue.enqueue_duplicate(json!({"priority": 0, "dedup_key": "acked"})), acked);
    assert_eq!(queue.enqueue_duplicate(json!({"priority": 0, "dedup_key": "cancelled"})), cancelled);
    assert_eq!(queue.enqueue_duplicate(json!({"priority": 0, "dedup_key": "late"})), due_late);
    for message in &leased {
        let seen = queue.inspect(&message.id);
        assert_eq!((&seen["state"], &seen["worker"]), (&json!("leased"), &json!("w")));
        assert_eq!(time_ms(&seen, "lease_expires_at"), message.lease_expires_at_ms, "a lease holds");
    }
    assert_eq!(queue.ack(&leased[0].receipt), "ok");
    assert_eq!(queue.release(&leased[1].receipt), "ok");

    let mut bodies = Vec::new();
    let mut seen = BTreeSet::new();
    eventually("all to come", || {
        for message in queue.receive(json!({"max": 100, "lease_s": 600})) {
            assert!(message.id != due_soon || now_ms() >= due_ms, "a delayed message came early");
            assert!(
                message.id != lapsing.id || now_ms() >= lapsing.lease_expires_at_ms,
                "a lease ended early"
            );
            assert!(seen.insert(message.id.clone()), "{message:?} came twice");
            bodies.push(message.text());
        }
        (seen.len() == 153).then_some(())
    });
    for id in [&due_soon, &leased[1].id, &lapsing.id] {
        assert!(seen.contains(id), "{id} is missing");
    }
    bodies.retain(|body| body.contains('-'));
    bodies.sort();
    let mut filled: Vec<String> =
        (0..3).flat_map(|level| (0..50).map(move |number| format!("{level}-{number}"))).collect();
    filled.sort();
    assert_eq!(bodies, filled);
    assert_eq!(queue.redrive(json!({"ids": [dead]})), 1);
    queue.stats();
}

/// Waits for the only dead letter; gives its id.
fn message_gone_dead(queue: &Queue) -> String {
    text(&eventually("a dead letter", || queue.dlq().pop()), "id").to_owned()
}

/// Every message as a peek shows it, by id, without what changes with time.
fn peeked(queue: &Queue) -> Vec<Value> {
    let mut messages = queue.pages("/messages?limit=1000", "messages");
    messages.sort_by_key(|message| text(message, "id").to_owned());
    for message in &mut messages {
        for field in ["state", "deliver_at", "lease_expires_at"] {
            message.as_object_mut().map(|message| message.remove(field));
        }
    }
    messages
}

#[test]
fn a_window_and_a_slow_redrive_go_on_after_a_restart() {
    let mut server = Server::start();
    let queue = server.create("window", json!({"dedup_window_s": 4}));
    let slow = server.create("slow", json!({"max_deliveries": 1}));
    slow.fill(&[0], 6);
    slow.kill_all(6, "no");
    assert_eq!(slow.redrive(json!({"all": true, "max_per_s": 2})), 6);
    let id = queue.enqueue(json!({"priority": 0, "dedup_key": "k"}));
    let answered_ms = now_ms();
    server.restart();
    let again = queue.try_enqueue(json!({"priority": 0, "dedup_key": "k"})).expect(202);
    if now_ms() < answered_ms + 3_900 {
        assert_eq!((&again["id"], &again["duplicate"]), (&json!(id), &json!(true)));
    }
    let messages = slow.receive_count(6, json!({}));
    assert_eq!(messages.len(), 6, "the redrive goes on");
    eventually("the window to end", || {
        let answer = queue.try_enqueue(json!({"priority": 0, "dedup_key": "k"})).expect(202);
        (answer["id"] != *id).then_some(())
    });
    assert!(now_ms() >= answered_ms + 3_900 || again["id"] != *id, "the window ended early");
    assert_eq!((count(&slow.stats(), "dlq"), total(&slow.stats(), "redriven")), (0, 6));
}

#[test]
fn sigterm_lets_requests_under_way_end() {
    let mut server = Server::start();
    let queue = server.create("waits", json!({}));
    let waiter = {
        let queue = Queue::new(server.client(), "waits");
        std::thread::spawn(move || {
            queue.client().try_json("POST", &queue.path("/receive"), &json!({"wait_s": 20}))
        })
    };
    sleep_ms(700);
    assert!(server.terminate().success(), "a waiting receive does not hold the server up");
    if let Ok(reply) = waiter.join().expect("a waiter") {
        assert!(matches!(reply.status, 200 | 503), "{}", reply.text());
    }
    server.start_again();
    assert_eq!(queue.stats()["leased"], 0);
    queue.put(0, "x");
    assert_eq!(queue.receive_one(json!({})).deliveries, 1);
}

#[test]
fn a_gateway_of_its_own_outlives_its_server() {
    let mut server = Server::start();
    let queue = server.create("far", json!({}));
    let gateway = Gateway::start(&server);
    let client = gateway.client();
    let far = Queue::new(client.clone(), "far");
    let id = far.put(1, "through the gateway");
    let message = queue.receive_one(json!({}));
    assert_eq!((&message.id, message.text().as_str()), (&id, "through the gateway"));
    assert_eq!(far.ack(&message.receipt), "ok");
    assert_eq!(far.stats()["totals"], queue.stats()["totals"]);

    server.kill();
    client.call("GET", "/healthz").expect_status(200);
    client.call("GET", "/readyz").problem(503);
    far.try_enqueue(json!({"priority": 0})).problem(503);
    server.start_again();
    gateway.wait_until_ready();
    let id = far.put(0, "after the restart");
    assert_eq!(far.receive_one(json!({})).id, id);
    far.stats();
}

#[test]
fn kill_9_under_load_breaks_no_promise() {
    under_load(KILLS, "kill", |server| {
        server.kill();
        server.start_again();
    });
}

#[test]
fn sigterm_under_load_breaks_no_promise() {
    under_load(TERMINATIONS, "terminate", Server::restart);
}

fn under_load(restarts: u32, concern: &str, restart: fn(&mut Server)) {
    let seed = now_ms();
    println!("seed {seed}");
    let mut server = Options { cores: 2, ..Options::default() }.start();
    let queue = server.create("load", load::queue_config());
    let side = server.create("side", json!({}));
    let mut random = Random::new(seed, concern);
    let load = Load::start(server.http(), "load", "side", seed);
    for _ in 0..restarts {
        sleep_ms(100 + random.below(500));
        load.check_alive();
        restart(&mut server);
        let register = load.register();
        let lease_s = count(&side.config(), "lease_s");
        assert!(
            register == 0 || lease_s >= register,
            "a change that was answered is lost: {lease_s} < {register}"
        );
    }
    sleep_ms(300);
    let mut history = load.finish();
    let (drained, counts) = load::drain(&queue);
    history.extend(drained);
    let dead = queue.dlq().iter().map(|message| text(message, "id").to_owned()).collect();
    let live = queue.pages("/messages?limit=1000", "messages");
    assert!(live.is_empty(), "{live:?}");
    let end = End { live: BTreeSet::new(), dead, counts, max_deliveries: load::MAX_DELIVERIES };
    let violations = check(&history, &end);
    println!("{} calls, {counts:?}", history.len());
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    let seen = load::coverage(&history);
    println!("{seen:?}");
    // A server that ends in good order may leave nobody without an answer.
    assert!(
        restarts < KILLS || seen.values().all(|times| *times > 0),
        "the load did not try everything: {seen:?}"
    );
}
