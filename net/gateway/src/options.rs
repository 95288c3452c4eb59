//! How a gateway listens, whom it asks, and its bounds.

use overtake_client::ConnectOptions;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Where to listen, which servers to ask, and every bound of the listener.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Address of the plain HTTP listener (HTTP/1.1, and HTTP/2 with prior knowledge). Default: `127.0.0.1:7401`.
    pub listen: SocketAddr,
    /// The servers. `token` is the gateway's own: that of every request without `auth`, and with it that of readiness
    /// and metrics asked for without a token. `connections` is per token.
    pub connect: ConnectOptions,
    /// Whether requests need `Authorization: Bearer TOKEN`. Default: no.
    pub auth: bool,
    /// Tokens whose connections are kept; those used last stay. Default: 256.
    pub tokens_max: usize,
    /// Connections at a time; further ones wait in the listener's backlog. Default: 4,096.
    pub connections_max: usize,
    /// HTTP/2 streams of one connection at a time. Default: 256.
    pub streams_max: u32,
    /// Headers of one request, HTTP/1.1; more are answered with 431. Default: 100.
    pub headers_max: usize,
    /// Bytes of one request's line and headers. Default: 64 KiB.
    pub head_bytes_max: usize,
    /// Memory for request bodies under way, in bytes; requests beyond are answered with 503. Default: 256 MiB.
    pub body_bytes_max: usize,
    /// How long a request's head may take to arrive, and how long an HTTP/1.1 connection may be idle. Default: 60 s.
    pub head_timeout: Duration,
    /// How long a body may take to arrive. Default: 30 s.
    pub body_timeout: Duration,
    /// How long a connection may have no request under way while none of its bytes are taken by the client.
    /// Default: 75 s.
    pub idle_timeout: Duration,
    /// How long requests under way may take to end after the gateway was told to stop. Default: 10 s.
    pub stop_timeout: Duration,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7_401)),
            connect: ConnectOptions::default(),
            auth: false,
            tokens_max: 256,
            connections_max: 4_096,
            streams_max: 256,
            headers_max: 100,
            head_bytes_max: 64 * 1_024,
            body_bytes_max: 256 * 1_024 * 1_024,
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            stop_timeout: Duration::from_secs(10),
        }
    }
}
