//! How a client connects, and whom it trusts.

use crate::address::ServerAddress;
use crate::error::ClientError;
use core::fmt;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Where to connect to, as whom, and how long to wait.
///
/// ```
/// use overtake_client::ConnectOptions;
/// let servers = vec!["node1.example:7400".parse()?, "10.0.0.2:7400".parse()?];
/// let options = ConnectOptions { servers, ..ConnectOptions::default() };
/// # Ok::<(), overtake_client::ClientError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Nodes; any node serves any queue. At least one. Default: `127.0.0.1:7400`.
    pub servers: Vec<ServerAddress>,
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
            servers: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7_400)).into()],
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

impl Credentials {
    /// Reads PEM files: the chain, the client's own certificate first, and its private key.
    ///
    /// # Errors
    /// [`ClientError::Options`], which names the file.
    pub fn from_pem_files(
        certificates: impl AsRef<Path>,
        private_key: impl AsRef<Path>,
    ) -> Result<Self, ClientError> {
        let (chain, key) = (certificates.as_ref(), private_key.as_ref());
        let certificates =
            certificates_of(&read("credentials", chain)?).map_err(wrong("credentials", chain))?;
        let private_key = PrivateKeyDer::from_pem_slice(&read("credentials", key)?)
            .map_err(|error| wrong("credentials", key)(error.to_string()))?;
        Ok(Self { certificates, private_key: private_key.secret_der().to_vec() })
    }
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
    /// [`Trust::from_file`] reads them from files, PEM too.
    Certificates(Vec<Vec<u8>>),
}

impl Trust {
    /// Trusts the certificates of a file: PEM with one or several, or the DER of one.
    ///
    /// # Errors
    /// [`ClientError::Options`], which names the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ClientError> {
        let path = path.as_ref();
        certificates_of(&read("trust", path)?).map(Self::Certificates).map_err(wrong("trust", path))
    }

    /// The same of bytes that are here already.
    ///
    /// # Errors
    /// [`ClientError::Options`] where there is no certificate in them.
    pub fn from_bytes(certificates: &[u8]) -> Result<Self, ClientError> {
        let refused = |what| ClientError::Options(format!("trust: {what}"));
        certificates_of(certificates).map(Self::Certificates).map_err(refused)
    }
}

fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, ClientError> {
    fs::read(path).map_err(|error| wrong(option, path)(error.to_string()))
}

fn wrong(option: &'static str, path: &Path) -> impl Fn(String) -> ClientError {
    move |what| ClientError::Options(format!("{option}: {}: {what}", path.display()))
}

/// Certificates as DER, from PEM or from the DER of one.
fn certificates_of(bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    // A sequence with a length of more than 127 bytes: no text begins like that.
    if let [0x30, 0x81..=0x84, ..] = bytes {
        return Ok(vec![bytes.to_vec()]);
    }
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(bytes).map(|der| der.map(|der| der.to_vec())).collect();
    match found {
        Ok(found) if found.is_empty() => Err("there is no certificate in it, neither PEM nor DER".into()),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("the PEM in it is damaged: {error}")),
    }
}
