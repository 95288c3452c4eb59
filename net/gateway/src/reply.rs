//! Successful answers.

use crate::problem::{Kind, Problem};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// An answer in JSON. Nothing a queue says stays true for long, so nothing of it is cached.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            (status, [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], body).into_response()
        }
        Err(e) => {
            Problem::new(Kind::Internal, format!("the answer could not be written: {e}")).into_response()
        }
    }
}

/// An answer in JSON with status 200.
pub(crate) fn ok(value: &impl Serialize) -> Response {
    json(StatusCode::OK, value)
}

/// Done, nothing to say.
pub(crate) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
