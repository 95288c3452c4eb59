//! Looks at the queue in every way, cancels, redrives, and changes the configuration of another queue.

use super::{Actor, PAUSE_MS, counts_of};
use crate::client::Reply;
use crate::history::{Call, What};
use crate::time::{now_ms, sleep_ms};
use serde_json::json;
use std::sync::atomic::Ordering;

/// Largest value of the register: it is a `lease_s`.
const REGISTER_MAX: u64 = 43_200;

pub(super) fn run(mut actor: Actor, side: &str) -> Vec<Call> {
    let mut register = 0;
    while !actor.stopped() {
        match actor.random.below(8) {
            0 | 1 => stats(&mut actor),
            2 | 3 => cancel(&mut actor),
            4 => look(&actor, "/messages?state=visible,delayed,leased&limit=50"),
            5 => look(&actor, "/dlq?limit=50"),
            6 => redrive(&mut actor),
            _ => {
                register = (register + 1).min(REGISTER_MAX);
                set_register(&actor, side, register);
            }
        }
        sleep_ms(PAUSE_MS);
    }
    actor.calls
}

fn get(actor: &Actor, rest: &str) -> Option<Reply> {
    let reply = actor.queue.client().try_call("GET", &actor.queue.path(rest), &[], None).ok()?;
    if reply.status == 503 {
        return None;
    }
    reply.expect(200);
    Some(reply)
}

fn look(actor: &Actor, rest: &str) {
    if let Some(reply) = get(actor, rest) {
        crate::shape::list(&reply.value(), "messages");
    }
}

fn stats(actor: &mut Actor) {
    let start_ms = now_ms();
    let Some(reply) = get(actor, "/stats") else { return };
    let counts = counts_of(&reply.value());
    actor.record(start_ms, now_ms(), What::Stats(counts));
}

fn redrive(actor: &mut Actor) {
    let (start_ms, end_ms, reply) = actor.post("/dlq/redrive", &json!({"all": true}));
    // One that was refused did nothing; one of unknown fate may have been done, but not after its server was gone.
    if reply.is_none_or(|reply| reply.status != 503 || reply.value()["stored"] == "unknown") {
        actor.record(start_ms, end_ms, What::Redrive);
    }
}

/// Cancels a message that was enqueued a moment ago, or is being.
fn cancel(actor: &mut Actor) {
    let drawn = {
        let recent = actor.shared.recent.lock().expect("no actor fails while it holds the ids");
        let at = actor.random.below(recent.len() as u64) as usize;
        recent.get(at).cloned()
    };
    let Some(id) = drawn else { return };
    let start_ms = now_ms();
    let path = actor.queue.path(&format!("/messages/{id}"));
    let reply = actor.queue.client().try_call("DELETE", &path, &[], None).ok();
    let cancelled = match reply.as_ref().map(|reply| reply.status) {
        None | Some(503) => None,
        Some(204) => Some(true),
        Some(404 | 409) => Some(false),
        Some(_) => panic!("a cancel was answered {}", reply.map(|reply| reply.text()).unwrap_or_default()),
    };
    actor.record(start_ms, now_ms(), What::Cancel { id, cancelled });
}

fn set_register(actor: &Actor, side: &str, value: u64) {
    let path = format!("/v1/queues/{side}");
    let reply = actor.queue.client().try_json("PUT", &path, &json!({"lease_s": value}));
    if reply.is_ok_and(|reply| reply.status == 200) {
        actor.shared.register.store(value, Ordering::SeqCst);
    }
}
