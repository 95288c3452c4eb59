//! A disk that fills up, on a file system of a few hundred MiB: enqueues are refused in time and nothing of them is stored,
//! everything else goes on, also after a kill, and when there is room again nobody has to restart anything.

use overtake_e2e::shape::{count, encode_body, text};
use overtake_e2e::small_disk::SmallDisk;
use overtake_e2e::stats::total;
use overtake_e2e::{Options, Queue, Server, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const DISK_MIB: u64 = 680;
const BALLAST_MIB: usize = 180;
const BODY_BYTES: usize = 100_000;
const BATCH: usize = 10;
/// More than the disk has room for.
const BATCHES_MAX: usize = (DISK_MIB as usize) * 1_024 * 1_024 / BODY_BYTES / BATCH;

/// Enqueues until something is refused; gives the ids of what was stored.
fn fill(queue: &Queue, body: &str) -> BTreeSet<String> {
    let mut stored = BTreeSet::new();
    for _ in 0..BATCHES_MAX {
        let messages: Vec<Value> = (0..BATCH).map(|_| json!({"priority": 3, "body": body})).collect();
        let results = queue.batch(&messages);
        for result in &results {
            match result["status"].as_u64() {
                Some(202) => assert!(stored.insert(text(result, "id").to_owned()), "an id twice: {result}"),
                Some(507) => {}
                _ => panic!("neither stored nor refused for the disk: {result}"),
            }
        }
        if results.iter().any(|result| result["status"] == 507) {
            return stored;
        }
    }
    panic!("{} messages of {BODY_BYTES} bytes are stored on a disk of {DISK_MIB} MiB", stored.len());
}

fn is_full(server: &Server) -> bool {
    let reply = server.client().call("GET", "/metrics");
    reply.text().lines().any(|line| line.starts_with("overtake_disk_full") && line.ends_with(" 1"))
}

fn stored_and_counted(queue: &Queue, stored: usize) {
    let stats = queue.stats();
    assert_eq!(total(&stats, "enqueued"), stored as u64, "what was refused is not stored: {stats}");
}

#[test]
fn a_full_disk_refuses_enqueues_and_nothing_else() {
    let Some(disk) = SmallDisk::new(DISK_MIB) else { return };
    let ballast = disk.ballast(BALLAST_MIB);
    let mut server = Options::default().start_on(&disk.path().join("data"));
    let queue = server.create("full", json!({"shards": 1}));
    let body = encode_body(&vec![b'x'; BODY_BYTES]);

    let mut stored = fill(&queue, &body);
    assert!(stored.len() > 500, "{} messages fit", stored.len());
    assert!(is_full(&server));
    let problem = queue.try_enqueue(json!({"priority": 0})).problem(507);
    assert!(text(&problem, "detail").contains("disk"), "{problem}");
    stored_and_counted(&queue, stored.len());

    // What takes little room goes on: leases, acks, releases, changes of a configuration.
    let leased = queue.receive(json!({"max": 10, "lease_s": 600}));
    assert!(!leased.is_empty());
    assert_eq!(queue.ack(&leased[0].receipt), "ok");
    assert!(stored.remove(&leased[0].id));
    let mut acked = 1;
    for message in &leased[1..] {
        assert_eq!(queue.release(&message.receipt), "ok");
    }
    queue.update(json!({"lease_s": 77}));

    // Nor does a start need room that is not there.
    server.kill();
    server.start_again();
    assert_eq!(queue.config()["lease_s"], 77);
    stored_and_counted(&queue, stored.len() + acked);
    assert_eq!(count(&queue.stats(), "dlq"), 0);
    eventually("the disk to be known as full again", || {
        queue.try_enqueue(json!({"priority": 3, "body": body})).status.eq(&507).then_some(())
    });

    // Room on the disk, from whoever else used it.
    let before = total(&queue.stats(), "enqueued");
    drop(ballast);
    eventually("enqueues to be accepted again", || {
        let reply = queue.try_enqueue(json!({"priority": 3, "body": body}));
        (reply.status == 202).then(|| stored.insert(text(&reply.expect(202), "id").to_owned()))
    });
    assert!(total(&queue.stats(), "enqueued") > before);
    stored.extend(fill(&queue, &body));

    // Room from what is acked.
    let mut left = stored.clone();
    while left.len() > stored.len() / 2 {
        acked += take(&queue, &mut left);
    }
    eventually("acks to make room", || {
        let reply = queue.try_enqueue(json!({"priority": 3, "body": body}));
        (reply.status == 202).then(|| left.insert(text(&reply.expect(202), "id").to_owned()))
    });
    while !left.is_empty() {
        acked += take(&queue, &mut left);
    }
    assert_eq!(total(&queue.stats(), "acked"), acked as u64);
    assert!(!is_full(&server));
    assert!(server.terminate().success());
}

/// Receives and acks some; each must be one that is left, in full.
fn take(queue: &Queue, left: &mut BTreeSet<String>) -> usize {
    let messages = queue.receive(json!({"max": 50, "wait_s": 5}));
    assert!(!messages.is_empty(), "{} messages do not come", left.len());
    let receipts: Vec<&str> = messages.iter().map(|message| message.receipt.as_str()).collect();
    for message in &messages {
        assert!(left.remove(&message.id), "{} was not stored, or came twice", message.id);
        assert!(message.body.is_empty() || message.body.len() == BODY_BYTES);
    }
    let results = queue.settle(json!({"ack": receipts}));
    assert!(receipts.iter().all(|receipt| results[receipt] == "ok"), "{results}");
    messages.len()
}
