//! Receiving messages, and what ends their leases.

use super::{Nothing, Query, Queue};
use crate::backend::unexpected;
use crate::body::{FromJson, Json};
use crate::input::Fault;
use crate::input::receive::ReceiveRequest;
use crate::input::settle::SettleRequest;
use crate::json;
use crate::openapi::{ReadProblems, WriteProblems};
use crate::problem::{Kind, Problem};
use crate::reply;
use crate::state::Caller;
use axum::response::Response as HttpResponse;
use overtake_wire::message::{Request, Response, Settled};

impl FromJson for ReceiveRequest {
    fn from_json(bytes: &[u8]) -> Result<Self, Fault> {
        Self::parse(bytes)
    }
}

impl FromJson for SettleRequest {
    fn from_json(bytes: &[u8]) -> Result<Self, Fault> {
        Self::parse(bytes)
    }
}

/// Lease the most urgent messages
///
/// Returns as soon as one message can be had, and an empty list after `wait_s`. A client that disconnects while it
/// waits holds no lease.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/receive", tag = "leases",
    params(("queue" = String, Path, description = "Name of the queue")),
    request_body(content = Option<ReceiveRequest>, content_type = "application/json"),
    responses((status = 200, description = "Leased messages, or none", body = json::Received), ReadProblems)
)]
pub(crate) async fn receive(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
    Json { value: request, held: _held }: Json<ReceiveRequest>,
) -> Result<HttpResponse, Problem> {
    let receive = request.into_wire(queue);
    let waits = receive.wait_s > 0;
    let answer = tokio::select! {
        // An answer that is there is given: its messages are leased.
        biased;
        answer = caller.call(Request::Receive(receive)) => answer?,
        // Dropping the call takes the receive back, so that stopping waits for no one who waits.
        () = caller.stopping(), if waits => Response::Received { messages: Vec::new() },
    };
    match answer {
        Response::Received { messages } => {
            Ok(reply::ok(&json::Received { messages: messages.into_iter().map(Into::into).collect() }))
        }
        other => Err(unexpected(other)),
    }
}

/// End, extend or give back leases
///
/// Each receipt has its own outcome: `ok`; `stale` where the message is there but this is not its current lease;
/// `unknown` where there is no such message any more, or the receipt is malformed.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/ack", tag = "leases",
    params(("queue" = String, Path, description = "Name of the queue")),
    request_body(content = SettleRequest, content_type = "application/json"),
    responses((status = 200, description = "Outcomes by receipt", body = json::SettleOutcomes), WriteProblems)
)]
pub(crate) async fn ack(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
    Json { value: request, held: _held }: Json<SettleRequest>,
) -> Result<HttpResponse, Problem> {
    let (settle, receipts) = request.into_wire(queue);
    let outcomes: Vec<Settled> = match caller.call(Request::Settle(settle)).await? {
        Response::Settled { ack, extend, release } => ack.into_iter().chain(extend).chain(release).collect(),
        other => return Err(unexpected(other)),
    };
    if outcomes.len() != receipts.len() {
        return Err(Problem::new(Kind::Internal, "the server sent another number of outcomes than receipts"));
    }
    let results = receipts.into_iter().zip(outcomes.into_iter().map(Into::into)).collect();
    Ok(reply::ok(&json::SettleOutcomes { results: json::Pairs(results) }))
}
