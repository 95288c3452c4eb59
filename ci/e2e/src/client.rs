//! A blocking HTTP client for one server: one call, one reply, no retries, no redirects, status codes as data.

use crate::shape;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use ureq::http::{HeaderMap, Method, Request};

/// Longer than any wait of the contract (20 s), so that only a hanging server meets it.
const CALL_LIMIT: Duration = Duration::from_secs(60);
const REPLY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Speaks to one server over kept-alive connections. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    address: SocketAddr,
    token: Option<String>,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Client {
    /// A client of the server at `address`.
    pub fn new(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(CALL_LIMIT))
            .build();
        Self { agent: config.new_agent(), address, token: None }
    }

    /// The same client, calling with a bearer token.
    pub fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    /// Where the server is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// One call; an error means that its fate is not known.
    pub fn try_call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Result<Reply, ureq::Error> {
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).expect("a method"))
            .uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = match body {
            Some(body) => self.agent.run(request.body(body).map_err(ureq::Error::Http)?)?,
            None => self.agent.run(request.body(()).map_err(ureq::Error::Http)?)?,
        };
        let body = response.body_mut().with_config().limit(REPLY_BYTES_MAX).read_to_vec()?;
        Ok(Reply { status: response.status().as_u16(), headers: response.headers().clone(), body })
    }

    /// One call with a JSON body; an error means that its fate is not known.
    pub fn try_json(&self, method: &str, path: &str, body: &Value) -> Result<Reply, ureq::Error> {
        let bytes = body.to_string();
        self.try_call(method, path, &[("content-type", "application/json")], Some(bytes.as_bytes()))
    }

    /// One call without a body.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str) -> Reply {
        match self.try_call(method, path, &[], None) {
            Ok(reply) => reply,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// One call with a JSON body.
    #[track_caller]
    pub fn json(&self, method: &str, path: &str, body: &Value) -> Reply {
        match self.try_json(method, path, body) {
            Ok(reply) => reply,
            Err(error) => panic!("{method} {path} {body}: {error}"),
        }
    }

    /// `GET`, which must answer 200 with JSON.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.call("GET", path).expect(200)
    }
}

impl Reply {
    /// The body as JSON.
    #[track_caller]
    pub fn value(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}): {}", self.text()),
        }
    }

    /// The body as text, for messages.
    pub fn text(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }

    /// A header's value, if it is there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The JSON of a reply that must have this status.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        self.expect_status(status);
        let content_type = self.header("content-type").unwrap_or_default();
        assert!(
            content_type.starts_with("application/json"),
            "content-type {content_type:?}: {}",
            self.text()
        );
        self.value()
    }

    /// Fails unless the reply has this status.
    #[track_caller]
    pub fn expect_status(&self, status: u16) {
        assert_eq!(self.status, status, "expected {status}, got {}", self.text());
    }

    /// The problem document of a refusal that must have this status.
    #[track_caller]
    pub fn problem(&self, status: u16) -> Value {
        self.expect_status(status);
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        let problem = self.value();
        shape::check_problem(&problem, status);
        if matches!(status, 429 | 503) {
            let seconds = self.header("retry-after").and_then(|text| text.parse::<u64>().ok());
            assert!(seconds.is_some(), "{status} without a Retry-After in seconds: {}", self.text());
        }
        problem
    }

    /// The problem document of a refusal for the sake of one field, or of something inside it.
    #[track_caller]
    pub fn problem_of(&self, status: u16, field: &str) -> Value {
        let problem = self.problem(status);
        let named = problem["field"].as_str().unwrap_or_default();
        let top = named.split(['.', '[']).next().unwrap_or_default();
        assert!(named == field || top == field, "expected field {field:?}: {problem}");
        problem
    }
}
