//! A long backlog, most of it on disk only, survives kill -9 with its counts and its order. `OVERTAKE_BACKLOG` says how many
//! messages; by itself the test takes as many as must go through lane files.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_e2e::{Options, Server};
use serde_json::{Value, json};

/// More than one core keeps in memory.
const MESSAGES: u64 = 260_000;
const CALL: u64 = 1_000;

fn messages() -> u64 {
    std::env::var("OVERTAKE_BACKLOG").ok().and_then(|text| text.parse().ok()).unwrap_or(MESSAGES)
}

/// Messages whose records are only on disk.
fn on_disk_only(server: &Server) -> f64 {
    let text = server.client().call("GET", "/metrics").text();
    let value =
        text.lines().find_map(|line| line.strip_prefix("overtake_messages_on_disk_only ")?.parse().ok());
    value.expect("the metric")
}

#[test]
fn a_long_backlog_survives_a_kill_with_counts_and_order() {
    let all = messages();
    let mut server = Options { cores: 1, ..Options::default() }.start();
    // One shard: its order is exact.
    let queue = server.create("backlog", json!({"shards": 1, "lease_s": 600}));
    let mut next = 0;
    while next < all {
        let end = (next + CALL).min(all);
        let batch: Vec<Value> = (next..end)
            .map(|number| json!({"priority": 4, "headers": {"number": number.to_string()}, "body": "eHh4eHh4eHh4eHh4"}))
            .collect();
        let results = queue.batch(&batch);
        assert!(results.iter().all(|result| result["status"] == 202), "{results:?}");
        next = end;
    }
    let stored = queue.stats();
    overtake_e2e::eventually("much of it to be on disk only", || {
        (on_disk_only(&server) > 10_000.0).then_some(())
    });

    server.kill();
    server.start_again();

    let after = queue.stats();
    for field in ["visible", "delayed", "dlq", "totals"] {
        assert_eq!(after[field], stored[field], "{field}");
    }
    assert!(on_disk_only(&server) > 10_000.0, "it is still on disk");
    let mut received = 0;
    while received < all {
        let some = queue.receive(json!({"max": CALL, "wait_s": 10}));
        assert!(!some.is_empty(), "{received} of {all} came");
        for message in &some {
            assert_eq!(message.headers["number"], received.to_string(), "in order");
            received += 1;
        }
        let receipts: Vec<&str> = some.iter().map(|message| message.receipt.as_str()).collect();
        let settled = queue.settle(json!({"ack": receipts}));
        let results = settled.as_object().expect("outcomes by receipt");
        assert!(results.values().all(|outcome| outcome == "ok"), "{settled}");
    }
    let end = queue.stats();
    assert_eq!(end["totals"]["acked"], json!(all));
    assert_eq!(end["totals"]["enqueued"], json!(all));
}
