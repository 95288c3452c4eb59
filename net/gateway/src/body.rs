//! Request bodies: bounded in size, in time, and all together in memory.

use crate::input::Fault;
use crate::problem::{Kind, Problem};
use crate::state::Shared;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use overtake_base::limits::REQUEST_BYTES_MAX;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A body over the limit is read on up to so many bytes, and forgotten: a client that gets an answer while it still
/// writes often sees only a broken connection.
const DISCARDED_BYTES_MAX: usize = 4 * REQUEST_BYTES_MAX;

/// Bodies are accounted for in units of this many bytes.
const UNIT_BYTES: usize = 1_024;

/// A share of the memory for bodies; given back when the request is answered.
pub(crate) struct Held {
    budget: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

/// Memory for the bodies of all requests under way.
#[derive(Clone)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl BodyBudget {
    /// A budget of `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS))))
    }

    fn hold(&self) -> Held {
        Held { budget: self.0.clone(), permit: None, bytes: 0 }
    }
}

impl Held {
    /// Takes `bytes` more. Memory is charged as it fills, so that a slow client holds no more than it sent.
    fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let before = self.bytes.div_ceil(UNIT_BYTES);
        self.bytes += bytes;
        let more = u32::try_from(self.bytes.div_ceil(UNIT_BYTES) - before).unwrap_or(u32::MAX);
        let Ok(permit) = self.budget.clone().try_acquire_many_owned(more) else {
            return Err(Problem::new(
                Kind::Unavailable,
                "too many large requests at once; nothing was stored, try again",
            ));
        };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            empty => *empty = Some(permit),
        }
        Ok(())
    }
}

/// What a body says it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MediaType {
    /// No `Content-Type`.
    Absent,
    /// `application/json`.
    Json,
    /// `application/octet-stream`.
    OctetStream,
    /// Anything else.
    Other,
}

/// A whole body.
pub(crate) struct RequestBody {
    pub(crate) media_type: MediaType,
    pub(crate) bytes: Bytes,
    pub(crate) held: Held,
}

impl FromRequest<Shared> for RequestBody {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Shared) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let media_type = media_type(&parts.headers)?;
        let declared = parts.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if declared.is_some_and(|bytes| bytes > DISCARDED_BYTES_MAX) {
            return Err(too_large());
        }
        let mut held = gateway.bodies.hold();
        let read = tokio::time::timeout(gateway.body_timeout, collect(body, &mut held)).await;
        let bytes = read.unwrap_or_else(|_| {
            Err(Problem::new(
                Kind::RequestTimeout,
                "the request's body did not arrive in time; nothing was stored",
            ))
        })?;
        Ok(Self { media_type, bytes, held })
    }
}

async fn collect(mut body: Body, held: &mut Held) -> Result<Bytes, Problem> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    let mut total = 0;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|e| Problem::from(Fault::request(format!("the request's body broke off: {e}"))))?;
        let Ok(data) = frame.into_data() else { continue };
        total += data.len();
        if total > DISCARDED_BYTES_MAX {
            break;
        }
        if total > REQUEST_BYTES_MAX {
            (first, rest) = (None, BytesMut::new());
            continue;
        }
        held.grow(data.len())?;
        match &first {
            None => first = Some(data),
            Some(start) => {
                if rest.is_empty() {
                    rest.extend_from_slice(start);
                }
                rest.extend_from_slice(&data);
            }
        }
    }
    if total > REQUEST_BYTES_MAX {
        return Err(too_large());
    }
    Ok(if rest.is_empty() { first.unwrap_or_default() } else { rest.freeze() })
}

fn too_large() -> Problem {
    Problem::new(Kind::TooLarge, format!("a request may be at most {REQUEST_BYTES_MAX} bytes"))
}

fn media_type(headers: &HeaderMap) -> Result<MediaType, Problem> {
    let coded =
        headers.get_all(CONTENT_ENCODING).iter().any(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"));
    if coded {
        return Err(Problem::new(
            Kind::UnsupportedMediaType,
            "Content-Encoding is not supported; send the body as it is",
        ));
    }
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(MediaType::Absent),
        (Some(value), None) => value.to_str().unwrap_or_default(),
        (Some(_), Some(_)) => return Ok(MediaType::Other),
    };
    let mut parts = value.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    if kind.eq_ignore_ascii_case("application/octet-stream") {
        return Ok(MediaType::OctetStream);
    }
    let utf8 = parts.filter(|p| !p.is_empty()).all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    });
    Ok(if utf8 && kind.eq_ignore_ascii_case("application/json") { MediaType::Json } else { MediaType::Other })
}

impl RequestBody {
    /// The JSON text; empty where there is no body.
    pub(crate) fn json(&self) -> Result<&[u8], Problem> {
        if self.media_type == MediaType::Json || self.bytes.is_empty() {
            Ok(&self.bytes)
        } else {
            Err(unsupported("this route takes Content-Type: application/json (UTF-8)"))
        }
    }
}

/// The answer to a body of a type that the route does not take.
pub(crate) fn unsupported(detail: &str) -> Problem {
    Problem::new(Kind::UnsupportedMediaType, detail)
}

/// Requests that are read from a JSON body.
pub(crate) trait FromJson: Sized {
    /// Reads the body, which is empty where the request has none.
    fn from_json(bytes: &[u8]) -> Result<Self, Fault>;
}

/// A request read from its JSON body, and the memory it holds.
pub(crate) struct Json<T> {
    pub(crate) value: T,
    pub(crate) held: Held,
}

impl<T: FromJson> FromRequest<Shared> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Shared) -> Result<Self, Problem> {
        let body = RequestBody::from_request(request, gateway).await?;
        let value = T::from_json(body.json()?)?;
        Ok(Self { value, held: body.held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn content_types_are_told_apart() {
        for (value, want) in [
            ("application/json", MediaType::Json),
            ("Application/JSON; charset=UTF-8", MediaType::Json),
            ("application/json;charset=\"utf-8\";", MediaType::Json),
            ("application/json; charset=latin1", MediaType::Other),
            ("application/octet-stream", MediaType::OctetStream),
            ("text/plain", MediaType::Other),
            ("application/jsonx", MediaType::Other),
            ("", MediaType::Other),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!(media_type(&headers).unwrap(), want, "{value}");
        }
        assert_eq!(media_type(&HeaderMap::new()).unwrap(), MediaType::Absent);
        let coded = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(media_type(&coded).unwrap_err().status, 415);
    }

    #[test]
    fn the_budget_is_charged_by_what_arrived_and_given_back() {
        let budget = BodyBudget::new(10 * UNIT_BYTES);
        let mut one = budget.hold();
        for _ in 0..8 {
            one.grow(UNIT_BYTES / 2).unwrap();
        }
        assert_eq!(budget.0.available_permits(), 6);
        let mut two = budget.hold();
        assert_eq!(two.grow(7 * UNIT_BYTES).unwrap_err().status, 503);
        drop(one);
        budget.hold().grow(10 * UNIT_BYTES).unwrap();
        assert_eq!(budget.0.available_permits(), 10);
    }
}
