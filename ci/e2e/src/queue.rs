//! One queue of a server, as a test uses it: each call checks status and shape of its answer before handing it out.

use crate::client::{Client, Reply};
use crate::shape::{self, Field, Kind, count, list};
use serde_json::{Value, json};

/// Levels of a queue that does not say.
pub const LEVELS_DEFAULT: usize = 5;

const MESSAGE_FIELDS: [Field<'static>; 8] = [
    ("id", Kind::Id),
    ("priority", Kind::Count),
    ("receipt", Kind::Receipt),
    ("deliveries", Kind::Count),
    ("enqueued_at", Kind::Time),
    ("lease_expires_at", Kind::Time),
    ("headers", Kind::TextMap),
    ("body", Kind::Body),
];
const PEEKED_FIELDS: [Field<'static>; 7] = [
    ("id", Kind::Id),
    ("priority", Kind::Count),
    ("state", Kind::Text),
    ("deliveries", Kind::Count),
    ("enqueued_at", Kind::Time),
    ("headers", Kind::TextMap),
    ("body", Kind::Body),
];
const INSPECTED_FIELDS: [Field<'static>; 7] = [
    ("id", Kind::Id),
    ("priority", Kind::Count),
    ("state", Kind::Text),
    ("shard", Kind::Count),
    ("enqueued_at", Kind::Time),
    ("deliveries", Kind::Count),
    ("why", Kind::Text),
];
const DEAD_FIELDS: [Field<'static>; 9] = [
    ("id", Kind::Id),
    ("priority", Kind::Count),
    ("deliveries", Kind::Count),
    ("last_error", Kind::Text),
    ("dead_at", Kind::Time),
    ("history", Kind::List),
    ("enqueued_at", Kind::Time),
    ("headers", Kind::TextMap),
    ("body", Kind::Body),
];
const STATS_FIELDS: [Field<'static>; 9] = [
    ("visible", Kind::Object),
    ("delayed", Kind::Object),
    ("leased_by_level", Kind::Object),
    ("leased", Kind::Count),
    ("dlq", Kind::Count),
    ("oldest_age_s", Kind::Object),
    ("wait_ms", Kind::Object),
    ("totals", Kind::Object),
    ("workers", Kind::Object),
];
/// Every total but `refused`.
pub const TOTALS: [&str; 14] = [
    "enqueued",
    "acked",
    "cancelled",
    "purged",
    "expired",
    "dead_lettered",
    "redriven",
    "deliveries",
    "share_deliveries",
    "inversions",
    "lease_expirations",
    "releases",
    "stale_receipts",
    "starvation_events",
];
/// Every field of a configuration, and the reasons for `refused`.
pub const CONFIG_FIELDS: [Field<'static>; 17] = [
    ("levels", Kind::Count),
    ("shards", Kind::Count),
    ("scheduling", Kind::Text),
    ("weights", Kind::List),
    ("reserve", Kind::Number),
    ("floor", Kind::Number),
    ("aging_s", Kind::Count),
    ("max_deliveries", Kind::Count),
    ("lease_s", Kind::Count),
    ("dedup_window_s", Kind::Count),
    ("retention_s", Kind::Count),
    ("max_depth", Kind::CountOrNull),
    ("max_bytes", Kind::CountOrNull),
    ("rate_caps", Kind::ObjectOrNull),
    ("dead_letter_expired", Kind::Bool),
    ("backoff", Kind::ObjectOrNull),
    ("starvation_s", Kind::Any),
];

/// A queue by name.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: String,
}

/// One delivered message, its fields taken out of their JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub id: String,
    pub priority: u64,
    pub receipt: String,
    pub deliveries: u64,
    pub enqueued_at_ms: u64,
    pub lease_expires_at_ms: u64,
    pub share: bool,
    pub headers: Value,
    pub body: Vec<u8>,
}

impl Message {
    /// Takes a delivered message apart; fails where it is not of the contract's shape.
    #[track_caller]
    pub fn from_json(value: &Value) -> Self {
        shape::exactly(value, &MESSAGE_FIELDS, &[("share", Kind::Bool)]);
        Self {
            id: shape::text(value, "id").into(),
            priority: count(value, "priority"),
            receipt: shape::text(value, "receipt").into(),
            deliveries: count(value, "deliveries"),
            enqueued_at_ms: shape::time_ms(value, "enqueued_at"),
            lease_expires_at_ms: shape::time_ms(value, "lease_expires_at"),
            share: value["share"].as_bool().unwrap_or(false),
            headers: value["headers"].clone(),
            body: shape::decode_body(shape::text(value, "body")).unwrap_or_default(),
        }
    }

    /// Its body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Queue {
    /// The queue `name` as `client` reaches it.
    pub fn new(client: Client, name: &str) -> Self {
        Self { client, name: name.into() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client it is reached by.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Path of the queue and what follows.
    pub fn path(&self, rest: &str) -> String {
        format!("/v1/queues/{}{rest}", self.name)
    }

    /// Changes its configuration, which must exist already.
    #[track_caller]
    pub fn update(&self, config: Value) {
        self.client.json("PUT", &self.path(""), &config).expect_status(200);
    }

    /// Its configuration, every field.
    #[track_caller]
    pub fn config(&self) -> Value {
        let config = self.client.get(&self.path(""));
        shape::exactly(&config, &CONFIG_FIELDS, &[]);
        config
    }

    /// Posts JSON below the queue.
    #[track_caller]
    pub fn post(&self, rest: &str, body: &Value) -> Reply {
        self.client.json("POST", &self.path(rest), body)
    }

    /// Enqueues one message with these fields; `body` may be left out.
    #[track_caller]
    pub fn try_enqueue(&self, mut fields: Value) -> Reply {
        if fields.get("body").is_none() {
            fields["body"] = "".into();
        }
        self.post("/messages", &fields)
    }

    /// Enqueues one message, which must be stored; gives its id.
    #[track_caller]
    pub fn enqueue(&self, fields: Value) -> String {
        let answer = self.try_enqueue(fields).expect(202);
        shape::exactly(&answer, &[("id", Kind::Id), ("shard", Kind::Count)], &[]);
        shape::text(&answer, "id").into()
    }

    /// Enqueues one message whose dedup key or id is known; gives the first id.
    #[track_caller]
    pub fn enqueue_duplicate(&self, fields: Value) -> String {
        let answer = self.try_enqueue(fields).expect(202);
        shape::exactly(&answer, &[("id", Kind::Id), ("shard", Kind::Count), ("duplicate", Kind::Bool)], &[]);
        assert_eq!(answer["duplicate"], true);
        shape::text(&answer, "id").into()
    }

    /// Enqueues a text at a level; gives its id.
    #[track_caller]
    pub fn put(&self, priority: u64, text: &str) -> String {
        self.enqueue(json!({"priority": priority, "body": shape::encode_body(text.as_bytes())}))
    }

    /// Enqueues a batch; gives its results, each of the contract's shape.
    #[track_caller]
    pub fn batch(&self, messages: &[Value]) -> Vec<Value> {
        let answer = self.post("/messages/batch", &json!({"messages": messages})).expect(200);
        shape::exactly(&answer, &[("results", Kind::List)], &[]);
        let results = list(&answer, "results");
        assert_eq!(results.len(), messages.len(), "one result for each message");
        for result in results {
            if result["status"] == 202 {
                let fields = [("status", Kind::Count), ("id", Kind::Id), ("shard", Kind::Count)];
                shape::exactly(result, &fields, &[("duplicate", Kind::Bool)]);
            } else {
                let fields = [("status", Kind::Count), ("detail", Kind::Text)];
                shape::at_least(result, &fields, &[("field", Kind::Text)]);
            }
        }
        results.to_vec()
    }

    /// Fills levels with `count` messages each, in batches; bodies are `{level}-{number}`.
    #[track_caller]
    pub fn fill(&self, levels: &[u64], messages: usize) {
        let all: Vec<Value> = (0..messages)
            .flat_map(|number| levels.iter().map(move |level| (level, number)))
            .map(|(level, number)| {
                json!({"priority": level, "body": shape::encode_body(format!("{level}-{number}").as_bytes())})
            })
            .collect();
        for part in all.chunks(1_000) {
            for result in self.batch(part) {
                assert_eq!(result["status"], 202, "{result}");
            }
        }
    }

    /// Receives with these fields.
    #[track_caller]
    pub fn receive(&self, fields: Value) -> Vec<Message> {
        let answer = self.post("/receive", &fields).expect(200);
        shape::exactly(&answer, &[("messages", Kind::List)], &[]);
        let messages: Vec<Message> = list(&answer, "messages").iter().map(Message::from_json).collect();
        let max = fields["max"].as_u64().unwrap_or(10);
        assert!(messages.len() as u64 <= max, "more than max {max}: {answer}");
        messages
    }

    /// Receives one message, waiting for it as long as a receive may.
    #[track_caller]
    pub fn receive_one(&self, mut fields: Value) -> Message {
        fields["max"] = 1.into();
        fields["wait_s"] = 20.into();
        let mut messages = self.receive(fields);
        messages.pop().unwrap_or_else(|| panic!("nothing came within 20 s"))
    }

    /// Receives whatever can be had at once, over several calls where shards make it so, until `count` are there.
    #[track_caller]
    pub fn receive_count(&self, count: usize, fields: Value) -> Vec<Message> {
        let mut messages = Vec::new();
        while messages.len() < count {
            let mut fields = fields.clone();
            fields["max"] = (count - messages.len()).min(1_000).into();
            fields["wait_s"] = 20.into();
            let more = self.receive(fields);
            assert!(!more.is_empty(), "only {} of {count} messages came", messages.len());
            messages.extend(more);
        }
        messages
    }

    /// Ends, extends or returns leases; gives the results by receipt, one for each receipt named.
    #[track_caller]
    pub fn settle(&self, fields: Value) -> Value {
        let answer = self.post("/ack", &fields).expect(200);
        shape::exactly(&answer, &[("results", Kind::TextMap)], &[]);
        let results = answer["results"].clone();
        for (receipt, outcome) in results.as_object().into_iter().flatten() {
            assert!(matches!(outcome.as_str(), Some("ok" | "stale" | "unknown")), "{receipt}: {outcome}");
        }
        results
    }

    /// Outcome of acking one receipt.
    #[track_caller]
    pub fn ack(&self, receipt: &str) -> String {
        self.settle_one(receipt, json!({"ack": [receipt]}))
    }

    /// Outcome of extending one lease.
    #[track_caller]
    pub fn extend(&self, receipt: &str, lease_s: u64) -> String {
        self.settle_one(receipt, json!({"extend": [{"receipt": receipt, "lease_s": lease_s}]}))
    }

    /// Outcome of returning one message at once.
    #[track_caller]
    pub fn release(&self, receipt: &str) -> String {
        self.settle_one(receipt, json!({"release": [receipt]}))
    }

    /// Outcome of returning one message with a delay or an error.
    #[track_caller]
    pub fn release_with(&self, receipt: &str, mut fields: Value) -> String {
        fields["receipt"] = receipt.into();
        self.settle_one(receipt, json!({"release": [fields]}))
    }

    #[track_caller]
    fn settle_one(&self, receipt: &str, fields: Value) -> String {
        let results = self.settle(fields);
        assert_eq!(results.as_object().map(serde_json::Map::len), Some(1), "{results}");
        shape::text(&results, receipt).into()
    }

    /// Stats, every field of its type, and conserved.
    #[track_caller]
    pub fn stats(&self) -> Value {
        let stats = self.client.get(&self.path("/stats"));
        check_stats(&stats);
        stats
    }

    /// Messages seen without leasing them, one page.
    #[track_caller]
    pub fn peek(&self, query: &str) -> Vec<Value> {
        let answer = self.client.get(&self.path(&format!("/messages{query}")));
        shape::exactly(&answer, &[("messages", Kind::List), ("next", Kind::TextOrNull)], &[]);
        let messages = list(&answer, "messages");
        for message in messages {
            let optional = [("deliver_at", Kind::Time), ("lease_expires_at", Kind::Time)];
            shape::at_least(message, &PEEKED_FIELDS, &optional);
        }
        messages.to_vec()
    }

    /// Every page of a peek or of the dead letters, put together. `path` ends in a query without `after`.
    #[track_caller]
    pub fn pages(&self, path: &str, field: &str) -> Vec<Value> {
        pages(&self.client, &self.path(path), field)
    }

    /// Where one message is and why.
    #[track_caller]
    pub fn inspect(&self, id: &str) -> Value {
        let answer = self.client.get(&self.path(&format!("/messages/{id}")));
        let optional = [
            ("deliver_at", Kind::Time),
            ("lease_expires_at", Kind::Time),
            ("worker", Kind::Text),
            ("ahead", Kind::Count),
        ];
        shape::exactly(&answer, &INSPECTED_FIELDS, &optional);
        assert_eq!(answer["id"], id);
        assert!(!shape::text(&answer, "why").is_empty(), "{answer}");
        answer
    }

    /// Status of cancelling one message.
    #[track_caller]
    pub fn cancel(&self, id: &str) -> u16 {
        let reply = self.client.call("DELETE", &self.path(&format!("/messages/{id}")));
        if reply.status == 204 {
            assert!(reply.body.is_empty(), "{}", reply.text());
        } else {
            reply.problem(reply.status);
        }
        reply.status
    }

    /// Purges visible and delayed messages; gives their number.
    #[track_caller]
    pub fn purge(&self) -> u64 {
        self.purged("/purge")
    }

    /// Purges the dead letters; gives their number.
    #[track_caller]
    pub fn dlq_purge(&self) -> u64 {
        self.purged("/dlq/purge")
    }

    #[track_caller]
    fn purged(&self, rest: &str) -> u64 {
        let answer = self.client.call("POST", &self.path(rest)).expect(200);
        shape::exactly(&answer, &[("purged", Kind::Count)], &[]);
        count(&answer, "purged")
    }

    /// All dead letters.
    #[track_caller]
    pub fn dlq(&self) -> Vec<Value> {
        let messages = self.pages("/dlq?limit=100", "messages");
        for message in &messages {
            shape::exactly(message, &DEAD_FIELDS, &[]);
            let history = list(message, "history");
            assert!((1..=10).contains(&history.len()), "history has 1 to 10 entries: {message}");
            for entry in history {
                check_history_entry(entry);
            }
        }
        messages
    }

    /// Redrives; gives how many will move.
    #[track_caller]
    pub fn redrive(&self, fields: Value) -> u64 {
        let answer = self.post("/dlq/redrive", &fields).expect(202);
        shape::exactly(&answer, &[("moved", Kind::Count)], &[]);
        count(&answer, "moved")
    }

    /// Makes dead letters of what `put`s gave, by releasing until they are dead. The queue must have
    /// `max_deliveries` 1 and nothing else that is visible.
    #[track_caller]
    pub fn kill_all(&self, messages: usize, error: &str) {
        for message in self.receive_count(messages, json!({})) {
            assert_eq!(self.release_with(&message.receipt, json!({"error": error})), "ok");
        }
        crate::eventually("the messages to be dead", || {
            (count(&self.stats(), "dlq") >= messages as u64).then_some(())
        });
    }
}

/// Every page of a listing, put together. `path` ends in a query without `after`.
#[track_caller]
pub fn pages(client: &Client, path: &str, field: &str) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let cursor = after.as_deref().map(|after| format!("&after={}", escape(after))).unwrap_or_default();
        let page = client.get(&format!("{path}{cursor}"));
        shape::exactly(&page, &[(field, Kind::List), ("next", Kind::TextOrNull)], &[]);
        all.extend_from_slice(list(&page, field));
        assert!(all.len() < 1_000_000, "a listing without end");
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return all,
        }
    }
}

/// A text as part of a query.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The contract says "when, what" and leaves the names open.
#[track_caller]
fn check_history_entry(entry: &Value) {
    let texts: Vec<&str> = entry.as_object().into_iter().flatten().filter_map(|(_, v)| v.as_str()).collect();
    let times = texts.iter().filter(|text| crate::time::parse_rfc3339_ms(text).is_some()).count();
    assert!(times == 1 && texts.len() == 2, "a history entry says when and what: {entry}");
}

/// Fails unless stats have every field of its type, every level, and are conserved.
#[track_caller]
pub fn check_stats(stats: &Value) {
    shape::exactly(stats, &STATS_FIELDS, &[]);
    let levels = stats["visible"].as_object().map_or(0, serde_json::Map::len);
    let names: Vec<String> = (0..levels).map(|level| format!("p{level}")).collect();
    let each = |kind| names.iter().map(|name| (name.as_str(), kind)).collect::<Vec<Field<'_>>>();
    for field in ["visible", "delayed", "leased_by_level"] {
        shape::exactly(&stats[field], &each(Kind::Count), &[]);
    }
    shape::exactly(&stats["oldest_age_s"], &each(Kind::NumberOrNull), &[]);
    shape::exactly(&stats["wait_ms"], &each(Kind::ObjectOrNull), &[]);
    for wait in stats["wait_ms"].as_object().into_iter().flatten().map(|(_, wait)| wait) {
        if !wait.is_null() {
            let kind = Kind::NumberOrNull;
            shape::exactly(wait, &[("p50", kind), ("p99", kind), ("p999", kind)], &[]);
        }
    }
    let mut totals: Vec<Field<'_>> = TOTALS.iter().map(|name| (*name, Kind::Count)).collect();
    totals.push(("refused", Kind::Object));
    shape::exactly(&stats["totals"], &totals, &[]);
    let reasons = ["depth", "bytes", "rate", "disk", "no_quorum"].map(|reason| (reason, Kind::Count));
    shape::exactly(&stats["totals"]["refused"], &[], &reasons);
    assert!(stats["workers"].as_object().is_some_and(|map| map.values().all(Value::is_u64)), "{stats}");
    assert_eq!(sum_levels(stats, "leased_by_level"), count(stats, "leased"), "leased by level: {stats}");
    let totals = &stats["totals"];
    let there = sum_levels(stats, "visible")
        + sum_levels(stats, "delayed")
        + count(stats, "leased")
        + count(stats, "dlq");
    let gone: u64 = ["acked", "cancelled", "purged", "expired"].iter().map(|name| count(totals, name)).sum();
    assert_eq!(count(totals, "enqueued"), there + gone, "not conserved: {stats}");
}

/// Sum of a per-level field of stats.
#[track_caller]
pub fn sum_levels(stats: &Value, field: &str) -> u64 {
    stats[field].as_object().into_iter().flatten().filter_map(|(_, value)| value.as_u64()).sum()
}

/// One total of stats.
#[track_caller]
pub fn total(stats: &Value, name: &str) -> u64 {
    count(&stats["totals"], name)
}

/// How often enqueues were refused for a reason; a reason that is not listed counts 0.
pub fn refused_for(stats: &Value, reason: &str) -> u64 {
    stats["totals"]["refused"][reason].as_u64().unwrap_or(0)
}
