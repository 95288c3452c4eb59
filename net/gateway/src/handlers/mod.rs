//! One function per route: read the request, ask the servers, print the answer.
//!
//! The order of arguments is the order of checks: who calls (401), the path and the query (400), then the body.

pub(crate) mod dlq;
pub(crate) mod enqueue;
pub(crate) mod leases;
pub(crate) mod messages;
pub(crate) mod operations;
pub(crate) mod queues;

use crate::body::FromJson;
use crate::input::Fault;
use crate::input::object::Object;
use crate::input::query::{self, Page, PeekQuery};
use crate::problem::{Kind, Problem};
use crate::state::Shared;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use overtake_base::{MessageId, QueueName};

/// The queue that the path names.
pub(crate) struct Queue(pub(crate) String);

impl FromRequestParts<Shared> for Queue {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Shared) -> Result<Self, Problem> {
        let name = path_parameter(parts, gateway, "queue").await?;
        match name.parse::<QueueName>() {
            Ok(_) => Ok(Self(name)),
            Err(not_valid) => Err(Problem::from(Fault::of("queue", format!("is not valid: {not_valid}")))),
        }
    }
}

/// The message that the path names.
pub(crate) struct Id(pub(crate) MessageId);

impl FromRequestParts<Shared> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Shared) -> Result<Self, Problem> {
        let text = path_parameter(parts, gateway, "id").await?;
        Ok(Self(crate::input::message::id(&text)?))
    }
}

async fn path_parameter(parts: &mut Parts, gateway: &Shared, name: &str) -> Result<String, Problem> {
    let parameters = RawPathParams::from_request_parts(parts, gateway)
        .await
        .map_err(|_| Problem::from(Fault::of(name, "must be percent-encoded UTF-8")))?;
    parameters
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, value)| value.to_owned())
        .ok_or_else(|| Problem::new(Kind::Internal, format!("this route has no {name}")))
}

/// Query parameters, checked against those that the route has.
pub(crate) struct Query<T>(pub(crate) T);

pub(crate) trait FromQuery: Sized {
    fn from_query(query: Option<&str>) -> Result<Self, Fault>;
}

impl<T: FromQuery> FromRequestParts<Shared> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Problem> {
        Ok(Self(T::from_query(parts.uri.query())?))
    }
}

/// Neither query parameters nor fields.
pub(crate) struct Nothing;

impl FromQuery for Nothing {
    fn from_query(query: Option<&str>) -> Result<Self, Fault> {
        query::none(query).map(|()| Self)
    }
}

impl FromJson for Nothing {
    fn from_json(bytes: &[u8]) -> Result<Self, Fault> {
        if !bytes.is_empty() {
            Object::parse(bytes, &[])?;
        }
        Ok(Self)
    }
}

impl FromQuery for Page {
    fn from_query(query: Option<&str>) -> Result<Self, Fault> {
        Self::parse(query)
    }
}

impl FromQuery for PeekQuery {
    fn from_query(query: Option<&str>) -> Result<Self, Fault> {
        Self::parse(query)
    }
}
