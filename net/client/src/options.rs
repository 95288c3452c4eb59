//! How a client connects, and whom it trusts.

use core::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Where to connect to, as whom, and how long to wait.
///
/// ```
/// use overtake_client::ConnectOptions;
/// let options = ConnectOptions { servers: vec!["127.0.0.1:7400".parse()?], ..ConnectOptions::default() };
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Nodes; any node serves any queue. At least one. Default: `127.0.0.1:7400`.
    pub servers: Vec<SocketAddr>,
    /// The name that the servers' certificates are for. Default: `localhost`.
    pub server_name: String,
    /// Bearer token; empty without auth.
    pub token: String,
    /// Which certificates are taken.
    pub trust: Trust,
    /// The certificate that the client shows; servers of a cluster may ask for one. Default: none.
    pub credentials: Option<Credentials>,
    /// Connections to each server, 1..=64. Each has a socket of its own, so that several reach several cores of a
    /// server. Default: 1.
    pub connections: usize,
    /// How long a request may take, its `wait_s` not counted. Default: 10 s.
    pub request_timeout: Duration,
    /// How long one attempt to connect may take. Default: 5 s.
    pub connect_timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            servers: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7_400))],
            server_name: "localhost".into(),
            token: String::new(),
            trust: Trust::default(),
            credentials: None,
            connections: 1,
            request_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// A certificate of the client's own, as `overtake cert client` issues it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The chain, DER, the client's own first.
    pub certificates: Vec<Vec<u8>>,
    /// Its private key, DER.
    pub private_key: Vec<u8>,
}

impl fmt::Debug for Credentials {
    /// Without the key, so that it reaches no log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("certificates", &self.certificates.len()).finish_non_exhaustive()
    }
}

/// Most connections to one server.
pub(crate) const CONNECTIONS_MAX: usize = 64;

/// Which certificates a client takes.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// Any certificate, but only of a server on a loopback address: nobody stands in between there. Connecting to
    /// another address is refused.
    #[default]
    LoopbackOnly,
    /// DER of certificates: a server's own (then its name is not compared), or those of authorities that issue them.
    Certificates(Vec<Vec<u8>>),
}
