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
        // Without this, methods that may have a body would get an empty chunked one.
        let body = body.or(matches!(method, "POST" | "PUT" | "PATCH").then_some(&[]));
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// Answers each request on one connection with the same reply; gives the requests it got.
    fn answering(requests: usize, reply: String) -> (SocketAddr, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(socket);
            (0..requests)
                .map(|_| {
                    let (mut head, mut length) = (String::new(), 0);
                    while !head.ends_with("\r\n\r\n") {
                        let from = head.len();
                        assert_ne!(reader.read_line(&mut head).unwrap(), 0);
                        if let Some(text) = head[from..].to_lowercase().strip_prefix("content-length:") {
                            length = text.trim().parse().unwrap();
                        }
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    reader.get_mut().write_all(reply.as_bytes()).unwrap();
                    head + &String::from_utf8(body).unwrap()
                })
                .collect()
        });
        (address, thread)
    }

    #[test]
    fn a_refusal_is_a_reply_and_the_connection_is_kept() {
        let problem = json!({
            "type": "t", "title": "x", "status": 429, "detail": "d", "field": "a.b", "reason": "depth",
        });
        let problem = problem.to_string();
        let reply = format!(
            "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
             content-length: {}\r\n\r\n{problem}",
            problem.len()
        );
        let (address, requests) = answering(4, reply);
        let client = Client::new(address).with_token("secret");
        client.json("POST", "/p?x=1", &json!({"a": 1})).problem_of(429, "a");
        client.call("POST", "/p").problem(429);
        client.call("DELETE", "/p%20q").problem(429);
        client.call("PATCH", "/p").problem(429);
        let requests = requests.join().unwrap();
        assert!(requests[0].starts_with("POST /p?x=1 HTTP/1.1\r\n"), "{}", requests[0]);
        assert!(
            requests[0].ends_with("{\"a\":1}") && requests[0].contains("Bearer secret"),
            "{}",
            requests[0]
        );
        assert!(requests[2].starts_with("DELETE /p%20q HTTP/1.1\r\n"), "{}", requests[2]);
    }

    #[test]
    fn an_answer_that_never_comes_is_an_error_and_nothing_is_sent_twice() {
        let (address, requests) = answering(1, String::new());
        let client = Client::new(address);
        assert!(client.try_json("POST", "/p", &json!({})).is_err());
        assert_eq!(requests.join().unwrap().len(), 1);
        assert!(client.try_call("GET", "/p", &[], None).is_err(), "nobody listens");
    }
}
