//! Dead letters: look at them, bring them back, delete them.

use super::{Nothing, Query, Queue};
use crate::backend::unexpected;
use crate::body::{FromJson, Json};
use crate::input::Fault;
use crate::input::dlq::RedriveRequest;
use crate::input::query::Page;
use crate::json;
use crate::openapi::{ReadProblems, WriteProblems};
use crate::problem::Problem;
use crate::reply;
use crate::state::Caller;
use axum::http::StatusCode;
use axum::response::Response as HttpResponse;
use overtake_wire::message::{Request, Response};

impl FromJson for RedriveRequest {
    fn from_json(bytes: &[u8]) -> Result<Self, Fault> {
        Self::parse(bytes)
    }
}

/// Dead letters
#[utoipa::path(
    get, path = "/v1/queues/{queue}/dlq", tag = "dead letters",
    params(("queue" = String, Path, description = "Name of the queue"), Page),
    responses((status = 200, description = "One page", body = json::DeadLetters), ReadProblems)
)]
pub(crate) async fn list_dead_letters(
    caller: Caller,
    Queue(queue): Queue,
    Query(Page { limit, after }): Query<Page>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::DlqList { queue, limit, after }).await? {
        Response::DeadLetters { messages, next } => Ok(reply::ok(&json::DeadLetters {
            messages: messages.into_iter().map(Into::into).collect(),
            next,
        })),
        other => Err(unexpected(other)),
    }
}

/// Bring dead letters back
///
/// They go to the tail of their level, or of `priority`; with `max_per_s` they stay dead letters until their turn.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dlq/redrive", tag = "dead letters",
    params(("queue" = String, Path, description = "Name of the queue")),
    request_body(content = RedriveRequest, content_type = "application/json"),
    responses((status = 202, description = "How many will move", body = json::Redriven), WriteProblems)
)]
pub(crate) async fn redrive(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
    Json { value: request, held: _held }: Json<RedriveRequest>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::DlqRedrive(request.into_wire(queue)?)).await? {
        Response::Redriven { moved } => Ok(reply::json(StatusCode::ACCEPTED, &json::Redriven { moved })),
        other => Err(unexpected(other)),
    }
}

/// Delete all dead letters
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dlq/purge", tag = "dead letters",
    params(("queue" = String, Path, description = "Name of the queue")),
    responses((status = 200, description = "How many were deleted", body = json::Purged), WriteProblems)
)]
pub(crate) async fn purge_dead_letters(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
    _: Json<Nothing>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::DlqPurge { queue }).await? {
        Response::Purged { purged } => Ok(reply::ok(&json::Purged { purged })),
        other => Err(unexpected(other)),
    }
}
