//! The binary protocol by hand, for what no client of ours would send: frames are bytes, put together as
//! `net/wire/PROTOCOL.md` says, on QUIC streams that the test opens itself.

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, TransportConfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The kinds that the tests name.
pub mod kind {
    pub const HELLO: u8 = 1;
    pub const PUT_QUEUE: u8 = 2;
    pub const GET_QUEUE: u8 = 3;
    pub const ENQUEUE: u8 = 6;
    pub const RECEIVE: u8 = 7;
    pub const CANCEL_RECEIVE: u8 = 8;
    pub const PEEK: u8 = 11;
    pub const READY: u8 = 19;
    pub const REFUSED: u8 = 128;
    pub const WELCOME: u8 = 129;
    pub const QUEUE_PUT: u8 = 130;
    pub const QUEUE: u8 = 131;
    pub const RECEIVED: u8 = 135;
    pub const PEEKED: u8 = 138;
    pub const READINESS: u8 = 144;
}

/// A whole frame.
pub fn frame(number: u64, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(9 + payload.len()).expect("a short frame").to_le_bytes().to_vec();
    frame.extend_from_slice(&number.to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(payload);
    frame
}

/// A `text`.
pub fn text(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).expect("a short text").to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// A `Hello` of this version without a token.
pub fn hello(version: u16) -> Vec<u8> {
    frame(0, kind::HELLO, &[&version.to_le_bytes()[..], &text("")].concat())
}

/// Trusts the server whose data folder this is, offers `alpn`, and stays connected.
pub fn client_config(data: &Path, alpn: &str) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    let certificates =
        CertificateDer::pem_file_iter(data.join("tls/certificate.pem")).expect("a certificate");
    for certificate in certificates {
        roots.add(certificate.expect("PEM")).expect("a certificate");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("suites of QUIC")));
    let mut transport = TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_secs(10)));
    config.transport_config(Arc::new(transport));
    config
}

/// A socket of its own for connections.
pub fn endpoint() -> Endpoint {
    Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port")
}

/// Connects to the server whose data folder this is, offering `alpn`. The endpoint must be kept.
pub async fn connect(server: SocketAddr, data: &Path, alpn: &str) -> Result<(Endpoint, Connection), String> {
    let endpoint = endpoint();
    let config = client_config(data, alpn);
    let connecting = endpoint.connect_with(config, server, "localhost").expect("a valid name");
    let connection = connecting.await.map_err(|error| error.to_string())?;
    Ok((endpoint, connection))
}

/// One stream, read frame by frame.
#[derive(Debug)]
pub struct Stream {
    pub send: SendStream,
    pub receive: RecvStream,
}

impl Stream {
    /// Opens a stream; nothing is sent yet.
    pub async fn open(connection: &Connection) -> Self {
        let (send, receive) = connection.open_bi().await.expect("the connection is up");
        Self { send, receive }
    }

    /// Sends bytes. A server that has already stopped the stream takes none, which shows in what it answers.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = self.send.write_all(bytes).await;
    }

    /// The next frame: its number, kind and payload; or how the stream ended: `Ok` where it was finished, else the code
    /// of its reset.
    pub async fn next(&mut self) -> Result<(u64, u8, Vec<u8>), Result<(), u64>> {
        let mut head = [0; 13];
        if let Err(error) = self.receive.read_exact(&mut head).await {
            return Err(match error {
                quinn::ReadExactError::FinishedEarly(0) => Ok(()),
                quinn::ReadExactError::ReadError(quinn::ReadError::Reset(code)) => Err(code.into_inner()),
                other => panic!("{other}"),
            });
        }
        let number = |range: core::ops::Range<usize>| {
            head[range].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let mut payload = vec![0; usize::try_from(number(0..4)).expect("a length") - 9];
        self.receive.read_exact(&mut payload).await.expect("a whole frame");
        Ok((number(4..12), head[12], payload))
    }

    /// The code with which the server gave up answering, whether or not anything before was read.
    pub async fn reset(&mut self) -> Option<u64> {
        self.receive.received_reset().await.expect("the connection is up").map(|code| code.into_inner())
    }

    /// The code with which the server told us to send no more.
    pub async fn stopped(&mut self) -> Option<u64> {
        self.send.stopped().await.expect("the connection is up").map(|code| code.into_inner())
    }
}
