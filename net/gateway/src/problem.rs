//! Errors as RFC 9457 problem documents: which status, headers and members each kind of refusal has.

use crate::input::Fault;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use overtake_wire::message::{ErrorCode, Refusal};
use serde::Serialize;
use utoipa::ToSchema;

/// Media type of problem documents.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// What went wrong (RFC 9457).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[schema(examples(json!({
    "type": "urn:overtake:problem:invalid", "title": "Bad Request", "status": 400,
    "detail": "lease_s must be a whole number 1..=43200", "field": "lease_s"
})))]
pub(crate) struct Problem {
    /// Names the kind of problem; stable.
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    /// The status in words.
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    pub(crate) status: u16,
    /// What is wrong, what is allowed, what to do next.
    pub(crate) detail: String,
    /// The field at fault, where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// With 429: `depth` or `rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) reason: Option<&'static str>,
    /// With 503: `unknown` where the request may still take effect; retrying with the same `id` or `dedup_key` is safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) stored: Option<&'static str>,
    /// `Retry-After` of the answer, with 429, 503 and 507.
    #[serde(skip)]
    #[schema(ignore)]
    retry_after_s: Option<u32>,
    /// `Allow` of the answer, with 405.
    #[serde(skip)]
    #[schema(ignore)]
    allow: Option<Box<HeaderValue>>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $status:ident $urn:literal;)*) => {
        /// Kinds of problems. The texts are part of the contract with clients that switch on `type`.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
        #[schema(as = ProblemType)]
        pub(crate) enum Kind {
            $($(#[$doc])* #[serde(rename = $urn)] $name,)*
        }

        impl Kind {
            fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }
        }
    };
}

kinds! {
    /// A field or the request is malformed, missing or out of range.
    Invalid BAD_REQUEST "urn:overtake:problem:invalid";
    /// No token, or an unknown one.
    Unauthorized UNAUTHORIZED "urn:overtake:problem:unauthorized";
    /// The token lacks the right.
    Forbidden FORBIDDEN "urn:overtake:problem:forbidden";
    /// No such queue, message or route.
    NotFound NOT_FOUND "urn:overtake:problem:not-found";
    /// The route has other methods.
    MethodNotAllowed METHOD_NOT_ALLOWED "urn:overtake:problem:method-not-allowed";
    /// The request's body did not arrive in time.
    RequestTimeout REQUEST_TIMEOUT "urn:overtake:problem:request-timeout";
    /// Contradicts the state.
    Conflict CONFLICT "urn:overtake:problem:conflict";
    /// The body or the request is too large.
    TooLarge PAYLOAD_TOO_LARGE "urn:overtake:problem:too-large";
    /// The body's type is not one the route takes.
    UnsupportedMediaType UNSUPPORTED_MEDIA_TYPE "urn:overtake:problem:unsupported-media-type";
    /// The queue is at its limit of messages.
    Depth TOO_MANY_REQUESTS "urn:overtake:problem:depth";
    /// The queue is at its limit of bytes.
    Bytes TOO_MANY_REQUESTS "urn:overtake:problem:bytes";
    /// Too many requests or messages per second.
    Rate TOO_MANY_REQUESTS "urn:overtake:problem:rate";
    /// A fault of the server.
    Internal INTERNAL_SERVER_ERROR "urn:overtake:problem:internal";
    /// No leader or no quorum.
    NoQuorum SERVICE_UNAVAILABLE "urn:overtake:problem:no-quorum";
    /// The server is stopping.
    Stopping SERVICE_UNAVAILABLE "urn:overtake:problem:stopping";
    /// The servers cannot be reached, or did not answer in time.
    Unavailable SERVICE_UNAVAILABLE "urn:overtake:problem:unavailable";
    /// Disk head-room.
    Disk INSUFFICIENT_STORAGE "urn:overtake:problem:disk";
}

impl Problem {
    /// A problem of a kind.
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let status = kind.status();
        let mut problem = Self {
            kind,
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            reason: None,
            stored: None,
            retry_after_s: matches!(status.as_u16(), 429 | 503 | 507).then_some(1),
            allow: None,
        };
        match kind {
            Kind::Depth | Kind::Bytes => problem.reason = Some("depth"),
            Kind::Rate => problem.reason = Some("rate"),
            _ => {}
        }
        problem
    }

    /// The fate of a request that changes something is not known.
    pub(crate) fn stored_unknown(mut self) -> Self {
        self.stored = Some("unknown");
        self
    }

    /// A 405 that names the methods there are.
    pub(crate) fn method_not_allowed(method: &str, allow: Option<HeaderValue>) -> Self {
        let allowed = allow.as_ref().and_then(|a| a.to_str().ok()).unwrap_or("none");
        let allowed = allowed.split(',').map(str::trim).collect::<Vec<_>>().join(", ");
        let mut problem = Self::new(
            Kind::MethodNotAllowed,
            format!("{method} is not a method of this route; it has {allowed}"),
        );
        problem.allow = allow.map(Box::new);
        problem
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        let kind = if fault.too_large { Kind::TooLarge } else { Kind::Invalid };
        let mut problem = Self::new(kind, fault.to_string());
        problem.field = fault.field;
        problem
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal.code {
            ErrorCode::Invalid => Kind::Invalid,
            ErrorCode::Unauthorized => Kind::Unauthorized,
            ErrorCode::Forbidden => Kind::Forbidden,
            ErrorCode::NotFound => Kind::NotFound,
            ErrorCode::Conflict => Kind::Conflict,
            ErrorCode::TooLarge => Kind::TooLarge,
            ErrorCode::Depth => Kind::Depth,
            ErrorCode::Bytes => Kind::Bytes,
            ErrorCode::Rate => Kind::Rate,
            ErrorCode::NoQuorum => Kind::NoQuorum,
            ErrorCode::Disk => Kind::Disk,
            ErrorCode::Internal => Kind::Internal,
            ErrorCode::Stopping => Kind::Stopping,
        };
        let no_queue = refusal.code == ErrorCode::NotFound && refusal.field.as_deref() == Some("queue");
        let next = if no_queue { "; PUT /v1/queues/{queue} creates one" } else { "" };
        let mut problem = Self::new(kind, refusal.detail + next);
        problem.field = refusal.field;
        if refusal.stored_unknown {
            problem = problem.stored_unknown();
        }
        // Whole seconds, rounded up: a client that waits as told is not refused again for coming too soon.
        let seconds = refusal.retry_after_ms.unwrap_or(0).div_ceil(1_000).max(1);
        problem.retry_after_s = problem.retry_after_s.map(|_| seconds);
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, *allow);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"overtake\""));
        }
        (status, headers, body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: ErrorCode) -> Refusal {
        Refusal { code, field: None, detail: "why".into(), retry_after_ms: None, stored_unknown: false }
    }

    #[test]
    fn every_code_has_its_status() {
        for (code, status, reason) in [
            (ErrorCode::Invalid, 400, None),
            (ErrorCode::Unauthorized, 401, None),
            (ErrorCode::Forbidden, 403, None),
            (ErrorCode::NotFound, 404, None),
            (ErrorCode::Conflict, 409, None),
            (ErrorCode::TooLarge, 413, None),
            (ErrorCode::Depth, 429, Some("depth")),
            (ErrorCode::Bytes, 429, Some("depth")),
            (ErrorCode::Rate, 429, Some("rate")),
            (ErrorCode::NoQuorum, 503, None),
            (ErrorCode::Disk, 507, None),
            (ErrorCode::Internal, 500, None),
            (ErrorCode::Stopping, 503, None),
        ] {
            let problem = Problem::from(refusal(code));
            assert_eq!((problem.status, problem.reason), (status, reason), "{code:?}");
            let response = problem.into_response();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM_JSON);
            assert_eq!(response.headers().contains_key(RETRY_AFTER), [429, 503, 507].contains(&status));
            assert_eq!(response.headers().contains_key(WWW_AUTHENTICATE), status == 401);
        }
    }

    #[test]
    fn retry_after_is_rounded_up_and_never_zero() {
        for (ms, seconds) in
            [(None, "1"), (Some(0), "1"), (Some(1), "1"), (Some(1_001), "2"), (Some(5_000), "5")]
        {
            let response =
                Problem::from(Refusal { retry_after_ms: ms, ..refusal(ErrorCode::Rate) }).into_response();
            let all: Vec<_> = response.headers().get_all(RETRY_AFTER).iter().collect();
            assert_eq!(all, [seconds]);
        }
    }

    #[test]
    fn documents_have_the_members_of_the_contract() {
        let fault = Fault::of("lease_s", "must be a whole number 1..=43200");
        assert_eq!(
            serde_json::to_string(&Problem::from(fault)).unwrap(),
            r#"{"type":"urn:overtake:problem:invalid","title":"Bad Request","status":400,"detail":"lease_s must be a whole number 1..=43200","field":"lease_s"}"#
        );
        let unknown = Refusal { stored_unknown: true, ..refusal(ErrorCode::NoQuorum) };
        assert_eq!(
            serde_json::to_string(&Problem::from(unknown)).unwrap(),
            r#"{"type":"urn:overtake:problem:no-quorum","title":"Service Unavailable","status":503,"detail":"why","stored":"unknown"}"#
        );
    }
}
