//! Looking at messages, and deleting those that are not leased.

use super::{Id, Nothing, Query, Queue};
use crate::backend::unexpected;
use crate::body::Json;
use crate::input::query::{Page, PeekQuery};
use crate::json;
use crate::openapi::{ReadProblems, WriteProblems};
use crate::problem::Problem;
use crate::reply;
use crate::state::Caller;
use axum::response::Response as HttpResponse;
use overtake_wire::message::{Request, Response};

/// Messages without leasing them
#[utoipa::path(
    get, path = "/v1/queues/{queue}/messages", tag = "messages",
    params(("queue" = String, Path, description = "Name of the queue"), PeekQuery, Page),
    responses((status = 200, description = "One page", body = json::Peeked), ReadProblems)
)]
pub(crate) async fn peek(
    caller: Caller,
    Queue(queue): Queue,
    Query(PeekQuery { state, priority, page }): Query<PeekQuery>,
) -> Result<HttpResponse, Problem> {
    let request = Request::Peek { queue, states: state, priority, limit: page.limit, after: page.after };
    match caller.call(request).await? {
        Response::Peeked { messages, next } => {
            Ok(reply::ok(&json::Peeked { messages: messages.into_iter().map(Into::into).collect(), next }))
        }
        other => Err(unexpected(other)),
    }
}

/// One message: where it is, and why it has not been delivered
#[utoipa::path(
    get, path = "/v1/queues/{queue}/messages/{id}", tag = "messages",
    params(("queue" = String, Path, description = "Name of the queue"), ("id" = String, Path, description = "The message")),
    responses((status = 200, description = "Where it is and why", body = json::Inspected), ReadProblems)
)]
pub(crate) async fn inspect(
    caller: Caller,
    Queue(queue): Queue,
    Id(id): Id,
    _: Query<Nothing>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::Inspect { queue, id }).await? {
        Response::Inspected(inspected) => Ok(reply::ok(&json::Inspected::from(inspected))),
        other => Err(unexpected(other)),
    }
}

/// Cancel a visible or delayed message
///
/// 409 while it is leased.
#[utoipa::path(
    delete, path = "/v1/queues/{queue}/messages/{id}", tag = "messages",
    params(("queue" = String, Path, description = "Name of the queue"), ("id" = String, Path, description = "The message")),
    responses((status = 204, description = "Cancelled"), WriteProblems)
)]
pub(crate) async fn cancel(
    caller: Caller,
    Queue(queue): Queue,
    Id(id): Id,
    _: Query<Nothing>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::Cancel { queue, id }).await? {
        Response::Done => Ok(reply::no_content()),
        other => Err(unexpected(other)),
    }
}

/// Delete all visible and delayed messages
#[utoipa::path(
    post, path = "/v1/queues/{queue}/purge", tag = "messages",
    params(("queue" = String, Path, description = "Name of the queue")),
    responses((status = 200, description = "How many were deleted", body = json::Purged), WriteProblems)
)]
pub(crate) async fn purge(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
    _: Json<Nothing>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::Purge { queue }).await? {
        Response::Purged { purged } => Ok(reply::ok(&json::Purged { purged })),
        other => Err(unexpected(other)),
    }
}
