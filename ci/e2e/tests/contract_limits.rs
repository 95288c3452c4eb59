//! The contract of limits: depth in messages and in bytes, exact for small limits also over several shards; what is
//! refused and what goes on.

use overtake_e2e::shape::{count, encode_body};
use overtake_e2e::stats::{refused_for, sum_levels, total};
use overtake_e2e::{Options, Queue, Server};
use serde_json::{Value, json};

fn many_shards() -> Server {
    Options { cores: 2, shards: None, ..Options::default() }.start()
}

#[test]
fn depth_is_exact_and_counts_visible_delayed_and_leased() {
    let server = many_shards();
    for shards in [json!(null), json!(1)] {
        let queue = server.create(&format!("depth-{shards}"), json!({"max_depth": 10, "shards": shards}));
        for number in 0..10 {
            match number % 3 {
                0 => _ = queue.enqueue(json!({"priority": 0, "delay_s": 3600})),
                _ => _ = queue.put(number % 5, "x"),
            }
        }
        let leased = queue.receive_count(4, json!({}));
        for _ in 0..3 {
            let problem = queue.try_enqueue(json!({"priority": 0})).problem(429);
            assert_eq!(problem["reason"], "depth");
        }
        let stats = queue.stats();
        assert_eq!((total(&stats, "enqueued"), refused_for(&stats, "depth")), (10, 3), "{stats}");
        queue.try_enqueue(json!({"priority": 0, "delay_s": 5})).problem(429);

        assert_eq!(queue.extend(&leased[0].receipt, 60), "ok");
        assert_eq!(queue.release(&leased[1].receipt), "ok");
        assert_eq!(queue.ack(&leased[2].receipt), "ok", "acks go on");
        queue.put(0, "one place is free");
        queue.try_enqueue(json!({"priority": 0})).problem(429);
        assert!(!queue.receive(json!({"wait_s": 20})).is_empty(), "leases go on");
        let results = queue.batch(&vec![json!({"priority": 0, "body": ""}); 3]);
        assert!(results.iter().all(|result| result["status"] == 429), "{results:?}");
        queue.update(json!({"max_depth": 12}));
        queue.put(0, "there is more room");
        queue.put(0, "there is more room");
        queue.try_enqueue(json!({"priority": 0})).problem(429);
        queue.update(json!({"max_depth": null}));
        queue.fill(&[0], 20);
        queue.stats();
    }
}

#[test]
fn a_batch_is_stored_up_to_the_limit() {
    let server = many_shards();
    let queue = server.create("batch", json!({"max_depth": 20}));
    let results = queue.batch(&vec![json!({"priority": 1, "body": ""}); 35]);
    let stored = results.iter().filter(|result| result["status"] == 202).count();
    let refused = results.iter().filter(|result| result["status"] == 429).count();
    assert_eq!((stored, refused), (20, 15));
    let stats = queue.stats();
    assert_eq!((total(&stats, "enqueued"), refused_for(&stats, "depth")), (20, 15), "counted in messages");
    assert_eq!(queue.purge(), 20);
    assert_eq!(queue.batch(&vec![json!({"priority": 1, "body": ""}); 20]).len(), 20);
    assert_eq!(total(&queue.stats(), "enqueued"), 40, "what was purged makes room");
}

#[test]
fn bytes_are_exact() {
    let server = many_shards();
    let queue = server.create("bytes", json!({"max_bytes": 1_000}));
    let body = |bytes: usize| json!({"priority": 0, "body": encode_body(&vec![7; bytes])});
    for _ in 0..9 {
        queue.enqueue(body(100));
    }
    let problem = queue.try_enqueue(body(101)).problem(429);
    assert_eq!(problem["reason"], "depth");
    queue.enqueue(body(100));
    queue.try_enqueue(body(1)).problem(429);
    queue.enqueue(json!({"priority": 0, "headers": {"a": "only bodies count"}}));
    let stats = queue.stats();
    assert_eq!((total(&stats, "enqueued"), refused_for(&stats, "bytes")), (11, 2), "{stats}");
    let message = loop {
        let message = queue.receive_one(json!({}));
        if message.body.len() == 100 {
            break message;
        }
    };
    queue.try_enqueue(body(1)).problem(429);
    assert_eq!(queue.ack(&message.receipt), "ok");
    queue.enqueue(body(60));
    queue.enqueue(body(40));
    queue.try_enqueue(body(1)).problem(429);
    queue.stats();
}

#[test]
fn dead_letters_take_no_room_and_an_unlimited_redrive_is_not_lost() {
    let server = Server::start();
    let queue = server.create("dead", json!({"max_depth": 4, "max_deliveries": 1}));
    queue.fill(&[0], 4);
    queue.kill_all(4, "no");
    queue.fill(&[0], 4);
    queue.try_enqueue(json!({"priority": 0})).problem(429);
    let stats = queue.stats();
    assert_eq!((count(&stats, "dlq"), sum_levels(&stats, "visible")), (4, 4));

    assert_eq!(queue.redrive(json!({"all": true})), 0, "there is no room, on none of the shards");
    assert_eq!(queue.dlq().len(), 4, "nothing is lost");
    for message in queue.receive_count(3, json!({})) {
        assert_eq!(queue.ack(&message.receipt), "ok");
    }
    assert_eq!(queue.redrive(json!({"all": true})), 3, "as many as there is room for");
    let stats = queue.stats();
    assert_eq!((count(&stats, "dlq"), sum_levels(&stats, "visible") + count(&stats, "leased")), (1, 4));
}

#[test]
fn depth_is_never_exceeded_by_many_at_once() {
    let server = many_shards();
    let queue = server.create("race", json!({"max_depth": 60}));
    let accepted: usize = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..4)
            .map(|number| {
                let queue = Queue::new(server.client(), "race");
                scope.spawn(move || {
                    (0..40).filter(|_| enqueue_or_full(&queue, json!({"priority": number}))).count()
                })
            })
            .collect();
        producers.into_iter().map(|producer| producer.join().expect("a producer")).sum()
    });
    let stats = queue.stats();
    assert_eq!(accepted, 60, "{stats}");
    assert_eq!((total(&stats, "enqueued"), refused_for(&stats, "depth")), (60, 100), "{stats}");
}

/// True where it was stored, false where the queue was full.
fn enqueue_or_full(queue: &Queue, fields: Value) -> bool {
    let reply = queue.try_enqueue(fields);
    if reply.status == 202 {
        return true;
    }
    assert_eq!(reply.problem(429)["reason"], "depth");
    false
}
