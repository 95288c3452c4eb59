//! Queues: create, configure, list, delete, count.

use super::{Nothing, Query, Queue};
use crate::backend::unexpected;
use crate::body::{FromJson, Json};
use crate::input::Fault;
use crate::input::config::parse_config;
use crate::input::query::Page;
use crate::json;
use crate::json::QueueConfigUpdate;
use crate::openapi::{ReadProblems, WriteProblems};
use crate::problem::Problem;
use crate::reply;
use crate::state::Caller;
use axum::http::StatusCode;
use axum::response::Response as HttpResponse;
use overtake_base::QueueConfigPatch;
use overtake_wire::message::{Request, Response};

impl FromJson for QueueConfigPatch {
    fn from_json(bytes: &[u8]) -> Result<Self, Fault> {
        parse_config(bytes)
    }
}

/// Create a queue, or change its configuration
///
/// A change names only the fields it changes and acts on later deliveries and failures; null puts a field back to its
/// default. `levels` and `shards` cannot change later. Fractions keep six decimal places.
#[utoipa::path(
    put, path = "/v1/queues/{queue}", tag = "queues",
    params(("queue" = String, Path, description = "Name of the queue", max_length = 128, pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")),
    request_body(content = QueueConfigUpdate, content_type = "application/json",
        example = json!({ "levels": 5, "max_deliveries": 3, "backoff": { "first_s": 1, "factor": 2, "max_s": 300 } })),
    responses(
        (status = 200, description = "Changed; the configuration as it is now", body = json::QueueConfig),
        (status = 201, description = "Created; the configuration as it is now", body = json::QueueConfig),
        WriteProblems,
    )
)]
pub(crate) async fn put_queue(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
    Json { value: patch, held: _held }: Json<QueueConfigPatch>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::PutQueue { queue, patch }).await? {
        Response::QueuePut { created, config } => {
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            Ok(reply::json(status, &json::QueueConfig::from(&config)))
        }
        other => Err(unexpected(other)),
    }
}

/// A queue's configuration
#[utoipa::path(
    get, path = "/v1/queues/{queue}", tag = "queues",
    params(("queue" = String, Path, description = "Name of the queue")),
    responses((status = 200, description = "Every field", body = json::QueueConfig), ReadProblems)
)]
pub(crate) async fn get_queue(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::GetQueue { queue }).await? {
        Response::Queue { config } => Ok(reply::ok(&json::QueueConfig::from(&config))),
        other => Err(unexpected(other)),
    }
}

/// Queues by name
#[utoipa::path(
    get, path = "/v1/queues", tag = "queues", params(Page),
    responses((status = 200, description = "One page", body = json::Queues), ReadProblems)
)]
pub(crate) async fn list_queues(
    caller: Caller,
    Query(Page { limit, after }): Query<Page>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::ListQueues { limit, after }).await? {
        Response::Queues { queues, next } => {
            Ok(reply::ok(&json::Queues { queues: queues.into_iter().map(Into::into).collect(), next }))
        }
        other => Err(unexpected(other)),
    }
}

/// Delete a queue with its messages
#[utoipa::path(
    delete, path = "/v1/queues/{queue}", tag = "queues",
    params(("queue" = String, Path, description = "Name of the queue")),
    responses((status = 204, description = "Deleted"), WriteProblems)
)]
pub(crate) async fn delete_queue(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::DeleteQueue { queue }).await? {
        Response::Done => Ok(reply::no_content()),
        other => Err(unexpected(other)),
    }
}

/// Counts, ages and totals of a queue
///
/// Exact for what was answered before the request. Every level is present.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/stats", tag = "queues",
    params(("queue" = String, Path, description = "Name of the queue")),
    responses((status = 200, description = "Counts, ages and totals", body = json::Stats), ReadProblems)
)]
pub(crate) async fn stats(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
) -> Result<HttpResponse, Problem> {
    match caller.call(Request::Stats { queue }).await? {
        Response::Stats(stats) => Ok(reply::ok(&json::Stats::from(stats))),
        other => Err(unexpected(other)),
    }
}
