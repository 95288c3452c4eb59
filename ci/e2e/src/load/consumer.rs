//! Receives, and acks, extends, returns or abandons what it got; now and then uses a receipt that is no longer good.

use super::{Actor, body_of, counts_of};
use crate::answer::Message;
use crate::history::{Action, Call, Counts, Delivery, Settle, SettleOutcome, What};
use crate::queue::Queue;
use crate::shape::list;
use crate::time::{eventually, now_ms};
use overtake_base::Receipt;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const RECEIVE_MAX: u64 = 20;
const LEASE_S_MAX: u64 = 3;
/// Old receipts kept to be tried later.
const OLD_MAX: usize = 50;

pub(super) fn run(mut actor: Actor) -> Vec<Call> {
    let mut old: Vec<Delivery> = Vec::new();
    while !actor.stopped() {
        let deliveries = receive(&mut actor);
        let mut orders: Vec<(Delivery, Action)> = Vec::new();
        for delivery in deliveries {
            match actor.random.below(100) {
                0..70 => orders.push((delivery, Action::Ack)),
                70..80 => orders.push((delivery, Action::Release { delay_ms: 0 })),
                80..85 => orders.push((delivery, Action::Release { delay_ms: 1_000 })),
                85..90 => orders.push((delivery, Action::Extend { lease_ms: 2_000 })),
                _ if old.len() < OLD_MAX => old.push(delivery),
                _ => {}
            }
        }
        if !old.is_empty() && actor.chance(10) {
            let at = actor.random.below(old.len() as u64) as usize;
            let action = [Action::Ack, Action::Extend { lease_ms: 1_000 }, Action::Release { delay_ms: 0 }];
            let action = action[actor.random.below(3) as usize];
            orders.push((old.swap_remove(at), action));
        }
        if !orders.is_empty() {
            settle(&mut actor, &orders);
        }
    }
    actor.calls
}

fn receive(actor: &mut Actor) -> Vec<Delivery> {
    let fields = json!({
        "max": 1 + actor.random.below(RECEIVE_MAX),
        "wait_s": actor.random.below(2),
        "lease_s": 1 + actor.random.below(LEASE_S_MAX),
        "worker": "load",
    });
    let (start_ms, end_ms, reply) = actor.post("/receive", &fields);
    // Without an answer nothing was seen; messages that were leased come back when their leases end.
    let Some(reply) = reply else { return Vec::new() };
    if reply.status == 503 {
        crate::time::sleep_ms(super::PAUSE_MS);
        return Vec::new();
    }
    let answer = reply.expect(200);
    let deliveries: Vec<Delivery> =
        list(&answer, "messages").iter().map(|value| delivery(&Message::from_json(value))).collect();
    if !deliveries.is_empty() {
        actor.record(start_ms, end_ms, What::Receive(deliveries.clone()));
    }
    deliveries
}

fn delivery(message: &Message) -> Delivery {
    let receipt: Receipt = message.receipt.parse().expect("its shape was checked");
    assert_eq!(u64::from(receipt.deliveries), message.deliveries, "{message:?}");
    Delivery {
        id: message.id.clone(),
        receipt: message.receipt.clone(),
        deliveries: message.deliveries,
        lease_expires_at_ms: message.lease_expires_at_ms,
        intact: message.body == body_of(&message.id),
    }
}

fn settle(actor: &mut Actor, orders: &[(Delivery, Action)]) {
    let (mut ack, mut extend, mut release) = (Vec::new(), Vec::new(), Vec::new());
    let named: BTreeMap<&str, &(Delivery, Action)> =
        orders.iter().map(|order| (order.0.receipt.as_str(), order)).collect();
    for (receipt, (_, action)) in &named {
        match action {
            Action::Ack => ack.push(json!(receipt)),
            Action::Extend { lease_ms } => {
                extend.push(json!({"receipt": receipt, "lease_s": lease_ms / 1_000}))
            }
            Action::Release { delay_ms: 0 } => release.push(json!(receipt)),
            Action::Release { delay_ms } => {
                release.push(json!({"receipt": receipt, "delay_s": delay_ms / 1_000, "error": "load"}));
            }
        }
    }
    let (start_ms, end_ms, reply) =
        actor.post("/ack", &json!({"ack": ack, "extend": extend, "release": release}));
    let results = reply.filter(|reply| reply.status != 503).map(|reply| reply.expect(200)["results"].clone());
    for (receipt, (delivery, action)) in named {
        let outcome = outcome_of(results.as_ref(), receipt);
        let settle =
            Settle { id: delivery.id.clone(), deliveries: delivery.deliveries, action: *action, outcome };
        actor.record(start_ms, end_ms, What::Settle(settle));
    }
}

fn outcome_of(results: Option<&Value>, receipt: &str) -> SettleOutcome {
    match results.map(|results| results[receipt].as_str()) {
        None => SettleOutcome::Unknown,
        Some(Some("ok")) => SettleOutcome::Ok,
        Some(Some("stale" | "unknown")) => SettleOutcome::Rejected,
        Some(other) => panic!("{receipt} was answered {other:?}"),
    }
}

/// Receives and acks until the queue has nothing visible, delayed or leased; gives what was seen and the last counts.
pub fn drain(queue: &Queue) -> (Vec<Call>, Counts) {
    let mut calls = Vec::new();
    let counts = eventually("the queue to be empty", || {
        loop {
            let start_ms = now_ms();
            let messages = queue.receive(json!({"max": 1_000, "lease_s": 30}));
            if messages.is_empty() {
                break;
            }
            let deliveries: Vec<Delivery> = messages.iter().map(delivery).collect();
            let end_ms = now_ms();
            calls.push(Call { start_ms, end_ms, what: What::Receive(deliveries.clone()) });
            let receipts: Vec<&str> = deliveries.iter().map(|d| d.receipt.as_str()).collect();
            let start_ms = now_ms();
            let results = queue.settle(json!({"ack": receipts}));
            let end_ms = now_ms();
            for delivery in &deliveries {
                let outcome = outcome_of(Some(&results), &delivery.receipt);
                let (id, deliveries) = (delivery.id.clone(), delivery.deliveries);
                let settle = Settle { id, deliveries, action: Action::Ack, outcome };
                calls.push(Call { start_ms, end_ms, what: What::Settle(settle) });
            }
        }
        let counts = counts_of(&queue.stats());
        (counts.visible + counts.delayed + counts.leased == 0).then_some(counts)
    });
    (calls, counts)
}
