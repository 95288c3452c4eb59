//! Enqueues single messages and batches with client-made ids, some with dedup keys, delays or a short life; retries
//! what got no answer, and sometimes gives up instead.

use super::{Actor, PAUSE_MS, RECENT_MAX, body_of};
use crate::client::Reply;
use crate::history::{Call, Enqueue, EnqueueOutcome, What};
use crate::shape::encode_body;
use crate::time::{now_ms, sleep_ms};
use overtake_base::MessageId;
use serde_json::{Value, json};

/// Keys are drawn from so many, so that all producers repeat each other's.
const KEYS: u64 = 2_000;
const BATCH_MAX: u64 = 20;
const SHORT_LIFE_S: u64 = 2;
const DELAY_MS_MAX: u64 = 3_000;
const LEVELS: u64 = 5;

pub(super) fn run(mut actor: Actor) -> Vec<Call> {
    while !actor.stopped() {
        let size = if actor.chance(30) { 2 + actor.random.below(BATCH_MAX - 1) } else { 1 };
        let messages: Vec<(Enqueue, Value)> = (0..size).map(|_| draw(&mut actor)).collect();
        remember(&actor, &messages);
        // Also after the stop one last answer is worth having, but a server that is gone is not waited for.
        while !send(&mut actor, &messages) && !actor.stopped() && !actor.chance(20) {}
    }
    actor.calls
}

fn draw(actor: &mut Actor) -> (Enqueue, Value) {
    let random = &mut actor.random;
    let bits = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
    let id = MessageId::new(now_ms(), bits).to_string();
    let key = random.chance_ppm(200_000).then(|| format!("key-{}", random.below(KEYS)));
    let due_ms = if random.chance_ppm(200_000) { now_ms() + 100 + random.below(DELAY_MS_MAX) } else { 0 };
    let short_life = due_ms == 0 && random.chance_ppm(40_000);
    let mut fields = json!({"id": id, "priority": random.below(LEVELS), "body": encode_body(&body_of(&id))});
    if let Some(key) = &key {
        fields["dedup_key"] = key.as_str().into();
    }
    if due_ms > 0 {
        fields["deliver_at"] = due_ms.into();
    }
    if short_life {
        fields["expires_in_s"] = SHORT_LIFE_S.into();
    }
    let expires_in_ms = short_life.then_some(SHORT_LIFE_S * 1_000);
    (Enqueue { id, key, due_ms, expires_in_ms, outcome: EnqueueOutcome::Unknown }, fields)
}

fn remember(actor: &Actor, messages: &[(Enqueue, Value)]) {
    let mut recent = actor.shared.recent.lock().expect("no actor fails while it holds the ids");
    recent.extend(messages.iter().map(|(enqueue, _)| enqueue.id.clone()));
    while recent.len() > RECENT_MAX {
        recent.pop_front();
    }
}

/// One try; true where the fate of every message is known.
fn send(actor: &mut Actor, messages: &[(Enqueue, Value)]) -> bool {
    let fields: Vec<&Value> = messages.iter().map(|(_, fields)| fields).collect();
    let (start_ms, end_ms, outcomes) = if let [single] = fields[..] {
        let (start_ms, end_ms, reply) = actor.post("/messages", single);
        (start_ms, end_ms, vec![single_outcome(reply.as_ref())])
    } else {
        let (start_ms, end_ms, reply) = actor.post("/messages/batch", &json!({"messages": fields}));
        (start_ms, end_ms, batch_outcomes(reply.as_ref(), messages.len()))
    };
    let known = !outcomes.contains(&EnqueueOutcome::Unknown);
    if outcomes.contains(&EnqueueOutcome::Refused) {
        sleep_ms(PAUSE_MS);
    }
    for ((enqueue, _), outcome) in messages.iter().zip(outcomes) {
        actor.record(start_ms, end_ms, What::Enqueue(Enqueue { outcome, ..enqueue.clone() }));
    }
    known
}

fn single_outcome(reply: Option<&Reply>) -> EnqueueOutcome {
    let Some(reply) = reply else { return EnqueueOutcome::Unknown };
    match reply.status {
        202 => accepted(&reply.value()),
        429 | 503 | 507 if reply.value()["stored"] == "unknown" => EnqueueOutcome::Unknown,
        429 | 503 | 507 => EnqueueOutcome::Refused,
        _ => panic!("an enqueue was answered {}", reply.text()),
    }
}

/// Outcomes of a batch, message by message.
fn batch_outcomes(reply: Option<&Reply>, messages: usize) -> Vec<EnqueueOutcome> {
    let Some(reply) = reply.filter(|reply| reply.status == 200) else {
        return vec![single_outcome(reply); messages];
    };
    let answer = reply.value();
    let results = crate::shape::list(&answer, "results");
    assert_eq!(results.len(), messages, "{answer}");
    results
        .iter()
        .map(|result| match result["status"].as_u64() {
            Some(202) => accepted(result),
            Some(503) if result["stored"] == "unknown" => EnqueueOutcome::Unknown,
            Some(429 | 503 | 507) => EnqueueOutcome::Refused,
            _ => panic!("a message of a batch was answered {result}"),
        })
        .collect()
}

fn accepted(answer: &Value) -> EnqueueOutcome {
    let id = crate::shape::text(answer, "id").to_owned();
    EnqueueOutcome::Accepted { id, duplicate: answer["duplicate"] == true }
}
