//! One queue of a server, as a test uses it: each call checks status and shape of its answer before handing it out.

use crate::answer::{
    CONFIG_FIELDS, DEAD_FIELDS, INSPECTED_FIELDS, Message, PEEKED_FIELDS, check_history_entry,
};
use crate::client::{Client, Reply};
use crate::shape::{self, Kind, count, list};
use crate::stats::check_stats;
use serde_json::{Value, json};

/// A queue by name.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: String,
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
