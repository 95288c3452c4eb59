//! What every measurement sends: prepared requests, receives, acks.

use super::{Bench, BenchError};
use crate::mix;
use bytes::Bytes;
use overtake_client::{
    Client, ClientError, Delivered, EnqueueMessage, Receive, Refusal, Request, Response, Settle,
};
use std::sync::Arc;

/// Whether a body is one of those that measurements send: all the same letter, or a time and then nothing.
pub(super) fn is_own(body: &[u8]) -> bool {
    let rest = body.get(8..).unwrap_or_default();
    body.len() >= 16 && (body.iter().all(|byte| *byte == b'x') || rest.iter().all(|byte| *byte == 0))
}

/// How long a consumer waits for a message before it looks whether the measurement is over, in seconds.
pub(super) const WAIT_S: u32 = 1;

/// Enqueues of `size` messages, as many as hold the mix of levels exactly. Bodies are one and the same memory.
pub(super) fn enqueues(bench: &Bench<'_>, size: usize) -> Arc<[Request]> {
    let body = Bytes::from(vec![b'x'; bench.options.body as usize]);
    let levels = mix::levels();
    let mut level = levels.iter().copied().cycle();
    let mut message = || EnqueueMessage {
        priority: level.next().unwrap_or_default(),
        body: body.clone(),
        ..EnqueueMessage::default()
    };
    (0..mix::batches(size))
        .map(|_| Request::Enqueue {
            queue: bench.queue.clone(),
            messages: (0..size).map(|_| message()).collect(),
        })
        .collect()
}

/// Sends an enqueue; every message of it must be stored.
pub(crate) async fn enqueue(client: &Client, request: &Request) -> Result<(), BenchError> {
    match client.request_ref(request).await? {
        Response::Enqueued { results } => match results.into_iter().find_map(Result::err) {
            None => Ok(()),
            Some(refusal) => Err(ClientError::Refused(refusal).into()),
        },
        _ => Err(ClientError::Protocol("not an answer to an enqueue".into()).into()),
    }
}

/// A receive of at most `max` messages that waits.
pub(super) fn receive(bench: &Bench<'_>, max: u32) -> Request {
    Request::Receive(Receive { max, wait_s: WAIT_S, ..Receive::new(bench.queue.as_str()) })
}

/// Sends a receive.
pub(crate) async fn received(client: &Client, request: &Request) -> Result<Vec<Delivered>, BenchError> {
    match client.request_ref(request).await? {
        Response::Received { messages } => Ok(messages),
        _ => Err(ClientError::Protocol("not an answer to a receive".into()).into()),
    }
}

/// The settle that acks these messages.
pub(crate) fn acks(queue: &str, messages: &[Delivered]) -> Settle {
    let ack = messages.iter().map(|message| message.receipt.to_string()).collect();
    Settle { queue: queue.to_owned(), ack, ..Settle::default() }
}

/// Acks; every ack must be taken.
pub(crate) async fn ack(client: &Client, settle: Settle) -> Result<(), BenchError> {
    if settle.ack.is_empty() {
        return Ok(());
    }
    let settled = client.settle(settle).await?.ack;
    let lost = settled.iter().filter(|settled| **settled != overtake_client::Settled::Ok).count();
    if lost == 0 {
        return Ok(());
    }
    Err(ClientError::Refused(Refusal::conflict(format!("{lost} of {} acks were not taken", settled.len())))
        .into())
}
