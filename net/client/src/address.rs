//! Where a server is: an address, or a name that is looked up whenever a connection is made.

use crate::error::ClientError;
use core::fmt;
use core::str::FromStr;
use std::io;
use std::net::SocketAddr;

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;
/// Longest name of a host, as DNS has it.
const NAME_BYTES_MAX: usize = 253;

/// A server, as `HOST:PORT`: `10.0.0.1:7400`, `[::1]:7400`, `node1.example:7400`.
///
/// A name is looked up at every attempt to connect, so that a server may move. Where it has several addresses, the
/// connections to it ([`crate::ConnectOptions::connections`]) begin with different ones, and each passes over those that
/// do not answer. To be connected to several nodes for certain, name them as several servers.
///
/// ```
/// use overtake_client::ServerAddress;
/// let server: ServerAddress = "node1.example:7400".parse()?;
/// assert_eq!(server.to_string(), "node1.example:7400");
/// assert!("node1.example".parse::<ServerAddress>().is_err());
/// # Ok::<(), overtake_client::ClientError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerAddress(Place);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Place {
    Address(SocketAddr),
    Name { host: String, port: u16 },
}

impl ServerAddress {
    /// The address, where it needs no looking up.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Place::Address(address) => Some(*address),
            Place::Name { .. } => None,
        }
    }

    /// The host's name or IP address, without brackets.
    #[must_use]
    pub fn host(&self) -> String {
        match &self.0 {
            Place::Address(address) => address.ip().to_string(),
            Place::Name { host, .. } => host.clone(),
        }
    }

    /// Its addresses, now. Servers listen on IPv4 unless told otherwise: those first.
    pub(crate) async fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = match &self.0 {
            Place::Address(address) => return Ok(vec![*address]),
            Place::Name { host, port } => (host.as_str(), *port),
        };
        let mut found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found.dedup();
        found.truncate(ADDRESSES_MAX);
        if found.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(found) }
    }
}

impl From<SocketAddr> for ServerAddress {
    fn from(address: SocketAddr) -> Self {
        Self(Place::Address(address))
    }
}

impl FromStr for ServerAddress {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let wrong =
            || ClientError::Options(format!("servers: {text:?} is not HOST:PORT, like node1.example:7400"));
        if let Ok(address) = text.parse::<SocketAddr>() {
            return if address.port() == 0 { Err(wrong()) } else { Ok(address.into()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || host.len() > NAME_BYTES_MAX || !host.chars().all(in_name) {
            return Err(wrong());
        }
        Ok(Self(Place::Name { host: host.to_owned(), port }))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Address(address) => address.fmt(f),
            Place::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_names_or_numbers_and_a_port() {
        for good in ["10.0.0.1:7400", "[::1]:7400", "node1.example:7400", "localhost:1", "a_b-c:65535"] {
            let server: ServerAddress = good.parse().unwrap();
            assert_eq!(server.to_string(), good);
            assert_eq!(server.address().is_some(), good.starts_with(['1', '[']), "{good}");
        }
        assert_eq!("[::1]:7400".parse::<ServerAddress>().unwrap().host(), "::1");
        for bad in [
            "",
            ":",
            ":7400",
            "node1",
            "node1:",
            "node1:x",
            "node1:0",
            "10.0.0.1:0",
            "node1:65536",
            "::1:7400",
            "a b:1",
            "http://node1:7401",
            "node1:7400/x",
            "n\u{f6}de:1",
        ] {
            let error = bad.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(error.contains("is not HOST:PORT"), "{bad}: {error}");
        }
        assert!(format!("{}:1", "a".repeat(254)).parse::<ServerAddress>().is_err());
    }

    #[tokio::test]
    async fn a_name_is_looked_up() {
        let server: ServerAddress = "localhost:7400".parse().unwrap();
        let found = server.look_up().await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7_400));
        assert!(found[0].is_ipv4() || found.iter().all(SocketAddr::is_ipv6));
        let nowhere: ServerAddress = "nowhere.invalid:7400".parse().unwrap();
        nowhere.look_up().await.unwrap_err();
    }
}
