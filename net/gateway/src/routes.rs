//! Which handler answers which path and method.

use crate::handlers::{dlq, enqueue, leases, messages, operations, queues};
use crate::problem::{Kind, Problem};
use crate::state::Shared;
use axum::Router;
use axum::extract::Request;
use axum::http::header::ALLOW;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get, post};

/// Every path, with its methods.
pub(crate) fn table() -> Vec<(&'static str, MethodRouter<Shared>)> {
    vec![
        ("/v1/queues", get(queues::list_queues)),
        ("/v1/queues/{queue}", get(queues::get_queue).put(queues::put_queue).delete(queues::delete_queue)),
        ("/v1/queues/{queue}/messages", get(messages::peek).post(enqueue::enqueue)),
        ("/v1/queues/{queue}/messages/batch", post(enqueue::enqueue_batch)),
        ("/v1/queues/{queue}/messages/{id}", get(messages::inspect).delete(messages::cancel)),
        ("/v1/queues/{queue}/receive", post(leases::receive)),
        ("/v1/queues/{queue}/ack", post(leases::ack)),
        ("/v1/queues/{queue}/stats", get(queues::stats)),
        ("/v1/queues/{queue}/purge", post(messages::purge)),
        ("/v1/queues/{queue}/dlq", get(dlq::list_dead_letters)),
        ("/v1/queues/{queue}/dlq/redrive", post(dlq::redrive)),
        ("/v1/queues/{queue}/dlq/purge", post(dlq::purge_dead_letters)),
        ("/v1/cluster", get(operations::cluster)),
        ("/healthz", get(operations::healthz)),
        ("/readyz", get(operations::readyz)),
        ("/metrics", get(operations::metrics)),
        ("/openapi.json", get(operations::openapi_json)),
    ]
}

/// The router with all its paths; every other answer is a problem document too.
pub(crate) fn router(gateway: Shared) -> Router {
    let router =
        table().into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods));
    let router: Router = router.fallback(not_found).with_state(gateway);
    // Around the whole router: it names a route's methods only in what leaves it.
    Router::new().fallback_service(router).layer(middleware::from_fn(method_problems))
}

async fn not_found(request: Request) -> Problem {
    const SHOWN_CHARACTERS_MAX: usize = 200;
    let path: String = request.uri().path().chars().take(SHOWN_CHARACTERS_MAX).collect();
    Problem::new(Kind::NotFound, format!("there is no route {path}; GET /openapi.json lists all"))
}

/// The router knows which methods a path has, but says so without a body: the problem document keeps its `Allow`.
async fn method_problems(request: Request, next: Next) -> Response {
    let method: Method = request.method().clone();
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow: Option<HeaderValue> = response.headers().get(ALLOW).cloned();
    Problem::method_not_allowed(method.as_str(), allow).into_response()
}
