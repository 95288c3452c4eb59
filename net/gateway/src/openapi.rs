//! The interface's description, generated from the handlers and the types they read and print.

use crate::handlers::{dlq, enqueue, leases, messages, operations, queues};
use crate::problem::{PROBLEM_JSON, Problem};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, Ref, RefOr, Response};
use utoipa::{IntoResponses, Modify, OpenApi};

/// The document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Overtake",
        description = "A priority queue: what matters most right now?\n\nUnknown fields and query parameters are refused; null for an optional field means absent. Errors are RFC 9457 problem documents."
    ),
    paths(
        queues::put_queue, queues::get_queue, queues::list_queues, queues::delete_queue, queues::stats,
        enqueue::enqueue, enqueue::enqueue_batch,
        leases::receive, leases::ack,
        messages::peek, messages::inspect, messages::cancel, messages::purge,
        dlq::list_dead_letters, dlq::redrive, dlq::purge_dead_letters,
        operations::cluster, operations::healthz, operations::readyz, operations::metrics, operations::openapi_json,
    ),
    components(schemas(Problem)),
    security((), ("token" = [])),
    tags(
        (name = "queues", description = "Create, configure, list, delete, count"),
        (name = "messages", description = "Store, look at, cancel"),
        (name = "leases", description = "Receive, ack, extend, release"),
        (name = "dead letters", description = "Look at, redrive, purge"),
        (name = "operations", description = "Cluster, liveness, readiness, metrics"),
    ),
    modifiers(&Token)
)]
pub(crate) struct Document;

/// The document as JSON text, made once.
pub(crate) fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| serde_json::to_string_pretty(&Document::openapi()).unwrap_or_default())
}

struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("Needed where the server runs with auth on"))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

/// Problems that every request can meet.
const READ: &[u16] = &[400, 401, 403, 404, 405, 408, 413, 415, 500, 503];
/// Problems of requests that change something.
const WRITE: &[u16] = &[409];
/// Problems of requests that store messages.
const ENQUEUE: &[u16] = &[429, 507];

/// Problems that every request can meet.
pub(crate) struct ReadProblems;
/// Problems of requests that change something.
pub(crate) struct WriteProblems;
/// Problems of requests that store messages.
pub(crate) struct EnqueueProblems;

impl IntoResponses for ReadProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        READ.iter().map(|status| problem(*status)).collect()
    }
}

impl IntoResponses for WriteProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        READ.iter().chain(WRITE).map(|status| problem(*status)).collect()
    }
}

impl IntoResponses for EnqueueProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        READ.iter().chain(WRITE).chain(ENQUEUE).map(|status| problem(*status)).collect()
    }
}

fn problem(status: u16) -> (String, RefOr<Response>) {
    let description = match status {
        400 => {
            "A field is malformed, missing or out of range: `field` and `detail` say which and what is allowed"
        }
        401 => "No token, or an unknown one",
        403 => "The token lacks the right",
        404 => "No such queue or message",
        405 => "The route has other methods",
        408 => "The body did not arrive in time",
        409 => "Contradicts the state",
        413 => "Body over 131,072 bytes after decoding, or request over 2 MiB",
        415 => "Not a media type that the route takes",
        429 => "A depth or rate limit: `reason` is `depth` or `rate`",
        503 => "No leader or no quorum; `stored` is `unknown` where the request may still take effect",
        507 => "Disk head-room",
        _ => "A fault of the server",
    };
    let mut response = ResponseBuilder::new()
        .description(description)
        .content(PROBLEM_JSON, Content::new(Some(Ref::from_schema_name("Problem"))));
    let header = match status {
        429 | 503 | 507 => Some(("Retry-After", Type::Integer, "Seconds, at least 1")),
        405 => Some(("Allow", Type::String, "The methods there are")),
        401 => Some(("WWW-Authenticate", Type::String, "Bearer")),
        _ => None,
    };
    if let Some((name, kind, description)) = header {
        let schema = ObjectBuilder::new().schema_type(kind).build();
        let header = HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build();
        response = response.header(name, header);
    }
    (status.to_string(), response.build().into())
}
