//! What every handler shares, and who is calling.

use crate::backend::{self, CallError};
use crate::body::BodyBudget;
use crate::problem::{Kind, Problem};
use crate::servers::{Servers, Session};
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use overtake_base::limits::TOKEN_BYTES_MAX;
use overtake_wire::message::{Request, Response};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Handed to every handler.
pub(crate) type Shared = Arc<Gateway>;

/// The gateway's state: nothing that outlives a request but connections.
pub(crate) struct Gateway {
    pub(crate) servers: Servers,
    /// Whether callers must show a token.
    pub(crate) auth: bool,
    /// The gateway's own token: for every request without auth.
    pub(crate) own_token: String,
    /// How long a body may take to arrive.
    pub(crate) body_timeout: Duration,
    pub(crate) bodies: BodyBudget,
    /// True once the gateway stops.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// The one who calls, as the servers know it.
pub(crate) struct Caller {
    gateway: Shared,
    session: Session,
}

impl FromRequestParts<Shared> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Shared) -> Result<Self, Problem> {
        let token = if gateway.auth {
            bearer(&parts.headers)?
                .ok_or_else(|| unauthorized("this server needs Authorization: Bearer TOKEN"))?
        } else {
            gateway.own_token.clone()
        };
        Self::connect(gateway, token).await
    }
}

/// Whoever asks for readiness or metrics: monitors often have no token. With auth, they then get what the servers tell
/// anybody, never what the gateway's own token may see.
pub(crate) struct Monitor(pub(crate) Caller);

impl FromRequestParts<Shared> for Monitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Shared) -> Result<Self, Problem> {
        let token = if gateway.auth { bearer(&parts.headers)? } else { Some(gateway.own_token.clone()) };
        Caller::connect(gateway, token.unwrap_or_default()).await.map(Self)
    }
}

impl Caller {
    /// Makes sure that the servers know the token, before anything of the request is looked at.
    async fn connect(gateway: &Shared, token: String) -> Result<Self, Problem> {
        match gateway.servers.session(token).await {
            Ok(session) => Ok(Self { gateway: gateway.clone(), session }),
            Err(error) => Err(problem(gateway, error, false)),
        }
    }

    /// Sends a request and waits for its answer, which is not a refusal. Dropping the future takes a receive back.
    pub(crate) async fn call(&self, request: Request) -> Result<Response, Problem> {
        let changes = backend::changes(&request);
        match self.session.request(request).await {
            Ok(Response::Refused(refusal)) => Err(self.refused(CallError::Refused(refusal), changes)),
            Ok(response) => Ok(response),
            Err(error) => Err(self.refused(error, changes)),
        }
    }

    fn refused(&self, error: CallError, changes: bool) -> Problem {
        if error.is_unauthorized() {
            self.gateway.servers.forget(&self.session);
        }
        problem(&self.gateway, error, changes)
    }

    /// Comes back when the gateway stops.
    pub(crate) async fn stopping(&self) {
        let mut stopping = self.gateway.stopping.clone();
        // A closed channel means the server is gone, which is as good as stopped.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }
}

/// Without auth it is the gateway that lacks a token, which its caller cannot mend.
fn problem(gateway: &Gateway, error: CallError, changes: bool) -> Problem {
    if error.is_unauthorized() && !gateway.auth {
        let mut problem = error.into_problem(changes);
        problem.detail.push_str(
            "; this gateway has no token that the servers know: whoever runs it must start it with --auth, so that \
             callers bring their own, or with --token",
        );
        return problem;
    }
    error.into_problem(changes)
}

fn bearer(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value,
        (Some(_), Some(_)) => return Err(unauthorized("Authorization is given twice")),
    };
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && (1..=TOKEN_BYTES_MAX).contains(&token.len()))
            .then_some(token)
    });
    token
        .map(|t| Some(t.to_owned()))
        .ok_or_else(|| unauthorized("Authorization must be Bearer and a token of 1..=256 bytes"))
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(Kind::Unauthorized, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn bearer_tokens_are_read_strictly() {
        let read = |values: &[&str]| {
            let headers = values.iter().map(|v| (AUTHORIZATION, HeaderValue::from_str(v).unwrap()));
            let mut map = HeaderMap::new();
            headers.for_each(|(name, value)| _ = map.append(name, value));
            bearer(&map)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["Bearer t1"]), Ok(Some("t1".into())));
        assert_eq!(read(&["bearer  t1 "]), Ok(Some("t1".into())));
        for bad in [
            &["Basic t1"][..],
            &["Bearer"],
            &["Bearer "],
            &["Bearer a", "Bearer b"],
            &[&format!("Bearer {}", "x".repeat(257))],
        ] {
            assert_eq!(read(bad).unwrap_err().status, 401, "{bad:?}");
        }
    }
}
