//! What operators and their monitors ask: cluster, liveness, readiness, metrics, this interface's description.

use super::{Nothing, Query};
use crate::backend::unexpected;
use crate::json;
use crate::metrics;
use crate::openapi::{self, ReadProblems};
use crate::problem::{Kind, Problem};
use crate::reply;
use crate::state::{Caller, Monitor};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response as HttpResponse};
use overtake_wire::message::{Request, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Nodes and shards
#[utoipa::path(
    get, path = "/v1/cluster", tag = "operations",
    responses((status = 200, description = "The cluster as the answering node sees it", body = json::Cluster), ReadProblems)
)]
pub(crate) async fn cluster(caller: Caller, _: Query<Nothing>) -> Result<HttpResponse, Problem> {
    match caller.call(Request::Cluster).await? {
        Response::Cluster { nodes, shards } => Ok(reply::ok(&json::Cluster {
            nodes: nodes.into_iter().map(Into::into).collect(),
            shards: shards.into_iter().map(Into::into).collect(),
        })),
        other => Err(unexpected(other)),
    }
}

/// That the process answers at all.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`.
    #[schema(value_type = String)]
    status: &'static str,
}

/// Liveness
///
/// Answers as long as the process runs; needs no token.
#[utoipa::path(
    get, path = "/healthz", tag = "operations", security(()),
    responses((status = 200, description = "Alive", body = Health))
)]
pub(crate) async fn healthz(_: Query<Nothing>) -> HttpResponse {
    reply::ok(&Health { status: "ok" })
}

/// That requests will be served.
#[derive(Serialize, ToSchema)]
pub(crate) struct Readiness {
    /// True.
    ready: bool,
}

/// Readiness
///
/// 200 where all led shards have a quorum, else 503; needs no token.
#[utoipa::path(
    get, path = "/readyz", tag = "operations", security(()),
    responses((status = 200, description = "Ready", body = Readiness), ReadProblems)
)]
pub(crate) async fn readyz(Monitor(caller): Monitor, _: Query<Nothing>) -> Result<HttpResponse, Problem> {
    match caller.call(Request::Ready).await? {
        Response::Readiness { not_ready } if not_ready.is_empty() => {
            Ok(reply::ok(&Readiness { ready: true }))
        }
        Response::Readiness { not_ready } => {
            let shards: Vec<String> = not_ready.iter().map(ToString::to_string).collect();
            let detail = format!("no leader or no quorum in shards {}", shards.join(", "));
            Err(Problem::new(Kind::NoQuorum, detail))
        }
        other => Err(unexpected(other)),
    }
}

/// Metrics of the node as Prometheus text
///
/// Needs no token. Those of queues (the first 200 by name) are shown where the server runs without auth, else to a token
/// with the right `read`, for the queues of its tenant.
#[utoipa::path(
    get, path = "/metrics", tag = "operations", security(()),
    responses((status = 200, description = "Prometheus text format 0.0.4", body = String, content_type = "text/plain"), ReadProblems)
)]
pub(crate) async fn metrics(Monitor(caller): Monitor, _: Query<Nothing>) -> Result<HttpResponse, Problem> {
    match caller.call(Request::Metrics).await? {
        Response::Metrics { values } => {
            let headers = [(CONTENT_TYPE, metrics::CONTENT_TYPE), (CACHE_CONTROL, "no-store")];
            Ok((headers, metrics::text(&values)).into_response())
        }
        other => Err(unexpected(other)),
    }
}

/// This interface's description
#[utoipa::path(
    get, path = "/openapi.json", tag = "operations", security(()),
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json"))
)]
pub(crate) async fn openapi_json(_: Query<Nothing>) -> HttpResponse {
    ([(CONTENT_TYPE, "application/json")], openapi::text()).into_response()
}
