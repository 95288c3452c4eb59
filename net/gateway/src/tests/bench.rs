//! Asks the router one request and reads the whole answer, without sockets.

use super::Canned;
use crate::body::BodyBudget;
use crate::routes;
use crate::servers::Servers;
use crate::state::Gateway;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answered {
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    pub(crate) fn text(&self) -> &str {
        core::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The `field` of a problem document.
    pub(crate) fn field(&self) -> Option<String> {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        let json = self.json();
        assert_eq!(json["status"], self.status);
        assert!(json["type"].is_string() && json["title"].is_string() && json["detail"].is_string());
        json["field"].as_str().map(str::to_owned)
    }
}

pub(crate) fn gateway(canned: &Canned, auth: bool) -> Gateway {
    Gateway {
        servers: Servers::Canned(canned.clone()),
        auth,
        own_token: "own".into(),
        body_timeout: Duration::from_secs(5),
        bodies: BodyBudget::new(1 << 24),
        stopping: watch::channel(false).1,
    }
}

/// `call` is `METHOD path`.
pub(crate) fn ask_with(
    canned: &Canned,
    auth: bool,
    call: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Answered {
    let (method, path) = call.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body.into()).unwrap();
    let router = TowerToHyperService::new(routes::router(Arc::new(gateway(canned, auth))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (parts, body) = router.call(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Answered { status: parts.status.as_u16(), headers: parts.headers, body }
    })
}

/// A request without a body, or with a JSON one.
pub(crate) fn ask(canned: &Canned, call: &str, json: &str) -> Answered {
    let headers: &[_] = if json.is_empty() { &[] } else { &[("content-type", "application/json")] };
    ask_with(canned, false, call, headers, json.to_owned())
}
