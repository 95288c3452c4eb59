//! Storing messages: one, from JSON or as it is, and batches.

use super::{Nothing, Query, Queue};
use crate::backend::unexpected;
use crate::body::{FromJson, Json, MediaType, RequestBody, unsupported};
use crate::input::Fault;
use crate::input::message::{NewMessage, NewMessages, parse_batch};
use crate::input::raw_message;
use crate::json::{self, BatchOutcome, BatchOutcomes};
use crate::openapi::EnqueueProblems;
use crate::problem::{Kind, Problem};
use crate::reply;
use crate::state::Caller;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response as HttpResponse;
use overtake_wire::message::{EnqueueMessage, Enqueued, Refusal, Request, Response};

/// Store a message
///
/// Answered once it is on stable storage of a quorum. With `application/octet-stream` the body is the message's, and
/// the other fields are `Overtake-*` headers, `Overtake-Header-NAME` for each of `headers`.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/messages", tag = "messages",
    params(
        ("queue" = String, Path, description = "Name of the queue"),
        ("Overtake-Priority" = Option<u32>, Header, description = "Level; needed with a raw body, not allowed with JSON", minimum = 0, maximum = 99),
        ("Overtake-Deliver-At" = Option<String>, Header, description = "Raw body: RFC 3339 ending in Z, or Unix milliseconds"),
        ("Overtake-Delay-S" = Option<u64>, Header, description = "Raw body: seconds until it becomes visible", minimum = 0, maximum = 31_622_400),
        ("Overtake-Dedup-Key" = Option<String>, Header, description = "Raw body: 1..=256 bytes of UTF-8"),
        ("Overtake-Expires-In-S" = Option<u64>, Header, description = "Raw body: seconds from first visibility", minimum = 1, maximum = 31_622_400),
        ("Overtake-Id" = Option<String>, Header, description = "Raw body: id made by the client"),
    ),
    request_body(content((NewMessage = "application/json"), ("application/octet-stream"))),
    responses(
        (status = 202, description = "Stored, or answered by the dedup window", body = json::Enqueued),
        EnqueueProblems,
    )
)]
pub(crate) async fn enqueue(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
    headers: HeaderMap,
    body: RequestBody,
) -> Result<HttpResponse, Problem> {
    let message = match body.media_type {
        MediaType::Json => {
            raw_message::refuse_headers(&headers)?;
            NewMessage::parse(&body.bytes)?
        }
        MediaType::OctetStream => raw_message::parse(&headers, body.bytes.clone())?,
        MediaType::Absent | MediaType::Other => {
            return Err(unsupported(
                "this route takes Content-Type: application/json (UTF-8), or application/octet-stream with Overtake-* headers",
            ));
        }
    };
    let mut results = store(&caller, queue, vec![message.into_wire()]).await?;
    match results.pop() {
        Some(Ok(enqueued)) => Ok(reply::json(StatusCode::ACCEPTED, &json::Enqueued::from(enqueued))),
        Some(Err(refusal)) => Err(refusal.into()),
        None => Err(Problem::new(Kind::Internal, "the server sent no outcome for the message")),
    }
}

/// A batch as read: messages, and faults in the place of malformed ones.
pub(crate) struct Batch(Vec<Result<NewMessage, Fault>>);

impl FromJson for Batch {
    fn from_json(bytes: &[u8]) -> Result<Self, Fault> {
        parse_batch(bytes).map(Self)
    }
}

/// Store a batch of messages
///
/// 1..=1000 messages; each has its own outcome, and a malformed or refused one stops no other.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/messages/batch", tag = "messages",
    params(("queue" = String, Path, description = "Name of the queue")),
    request_body(content = NewMessages, content_type = "application/json"),
    responses(
        (status = 200, description = "One outcome for each message, in order", body = json::BatchOutcomes),
        EnqueueProblems,
    )
)]
pub(crate) async fn enqueue_batch(
    caller: Caller,
    Queue(queue): Queue,
    _: Query<Nothing>,
    Json { value: Batch(batch), held: _held }: Json<Batch>,
) -> Result<HttpResponse, Problem> {
    let mut messages = Vec::with_capacity(batch.len());
    let mut faults = Vec::with_capacity(batch.len());
    for read in batch {
        faults.push(match read {
            Ok(message) => {
                messages.push(message.into_wire());
                None
            }
            Err(fault) => Some(fault),
        });
    }
    let stored = if messages.is_empty() { Vec::new() } else { store(&caller, queue, messages).await? };
    let mut stored = stored.into_iter();
    let missing = || Err(Refusal::internal("the server sent no outcome for this message"));
    let results = faults.into_iter().map(|fault| match fault {
        Some(fault) => refused(fault.into()),
        None => match stored.next().unwrap_or_else(missing) {
            Ok(enqueued) => {
                BatchOutcome::Stored { status: StatusCode::ACCEPTED.as_u16(), enqueued: enqueued.into() }
            }
            Err(refusal) => refused(refusal.into()),
        },
    });
    Ok(reply::ok(&BatchOutcomes { results: results.collect() }))
}

async fn store(
    caller: &Caller,
    queue: String,
    messages: Vec<EnqueueMessage>,
) -> Result<Vec<Result<Enqueued, Refusal>>, Problem> {
    match caller.call(Request::Enqueue { queue, messages }).await? {
        Response::Enqueued { results } => Ok(results),
        other => Err(unexpected(other)),
    }
}

fn refused(problem: Problem) -> BatchOutcome {
    BatchOutcome::Refused {
        status: problem.status,
        detail: problem.detail,
        field: problem.field,
        reason: problem.reason,
        stored: problem.stored,
    }
}
