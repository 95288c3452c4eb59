//! QUIC set up for this protocol: one socket for each connection, windows for large answers, large packets on loopback.

use crate::address::ServerAddress;
use crate::error::ClientError;
use crate::options::{ConnectOptions, Trust};
use crate::tls::not_loopback;
use overtake_wire::RESPONSE_FRAME_BYTES_MAX;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig,
    TransportConfig, TransportErrorCode, VarInt,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// What a server may send unread on one stream: one largest response and the next one behind it.
const STREAM_WINDOW_BYTES: u32 = RESPONSE_FRAME_BYTES_MAX as u32 + 1024 * 1024;
/// What a server may send unread on all streams.
const WINDOW_BYTES: u32 = 4 * RESPONSE_FRAME_BYTES_MAX as u32;
/// What may be sent and not acknowledged.
const SEND_WINDOW_BYTES: u64 = 8 * 1024 * 1024;
/// A connection from which nothing came for so long is lost.
const IDLE: Duration = Duration::from_secs(15);
/// A third of [`IDLE`], so that two lost packets do not end a healthy connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The same where there are several servers: a receive that waits at one that is gone is soon asked of another.
const KEEP_ALIVE_OF_SEVERAL: Duration = Duration::from_secs(1);
/// How far a server is taken to be before that is measured. Servers are near; a first packet that was lost, since the
/// server was just starting, is repeated after three times this and not after a second.
const INITIAL_RTT: Duration = Duration::from_millis(50);
/// Largest packet tried on loopback, where cost is by the packet. Several fit a socket buffer of default size.
const LOOPBACK_MTU_BYTES: u16 = 16_384;
/// What may come in one packet from loopback: all that UDP can carry.
const LOOPBACK_PAYLOAD_BYTES_MAX: u16 = 65_527;

/// Makes connections as the options say.
pub(crate) struct Connector {
    server_name: String,
    timeout: Duration,
    crypto: Arc<QuicClientConfig>,
    keep_alive: Duration,
    /// Only servers on loopback are connected to.
    loopback_only: bool,
}

impl Connector {
    pub(crate) fn new(options: &ConnectOptions) -> Result<Self, ClientError> {
        let tls = crate::tls::configuration(&options.trust, options.credentials.as_ref(), &options.servers)?;
        let crypto =
            QuicClientConfig::try_from(tls).map_err(|error| ClientError::Options(format!("tls: {error}")))?;
        // A name may stand for several.
        let several = options.servers.len() > 1 || options.servers.iter().any(|it| it.address().is_none());
        Ok(Self {
            server_name: options.server_name.clone(),
            timeout: options.connect_timeout,
            crypto: Arc::new(crypto),
            keep_alive: if several { KEEP_ALIVE_OF_SEVERAL } else { KEEP_ALIVE },
            loopback_only: matches!(options.trust, Trust::LoopbackOnly),
        })
    }

    /// How long each step of connecting may take.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Connects to the first address of `server` that answers, beginning with the one of number `first`, and going round.
    pub(crate) async fn connect(
        &self,
        server: &ServerAddress,
        first: usize,
    ) -> Result<(Endpoint, Connection), ClientError> {
        let failed = |reason: String| ClientError::Connect { server: server.to_string(), reason };
        let mut addresses = match tokio::time::timeout(self.timeout, server.look_up()).await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => return Err(failed(format!("cannot look it up: {error}"))),
            Err(_) => return Err(failed(format!("it was not looked up within {:?}", self.timeout))),
        };
        let turns = first % addresses.len().max(1);
        addresses.rotate_left(turns);
        let none = failed("it has no address".into());
        first_of(&addresses, none, |address| self.connect_to(server, address)).await
    }

    /// Connects from a socket of its own: servers spread connections over their cores by the address they come from.
    async fn connect_to(
        &self,
        server: &ServerAddress,
        address: SocketAddr,
    ) -> Result<(Endpoint, Connection), ClientError> {
        let named = match server.address() {
            Some(address) => address.to_string(),
            None => format!("{server} ({})", address.ip()),
        };
        if self.loopback_only && !address.ip().is_loopback() {
            return Err(not_loopback(&named));
        }
        let failed = |reason: String| ClientError::Connect { server: named.clone(), reason };
        let endpoint = endpoint(address).map_err(|error| failed(format!("no socket: {error}")))?;
        let mut config = ClientConfig::new(self.crypto.clone());
        config.transport_config(Arc::new(transport(address.ip().is_loopback(), self.keep_alive)));
        let connecting = endpoint
            .connect_with(config, address, &self.server_name)
            .map_err(|error| failed(error.to_string()))?;
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(Ok(connection)) => Ok((endpoint, connection)),
            Ok(Err(error)) => Err(no_connection(&named, &error)),
            Err(_) => Err(failed(format!("no answer within {:?}", self.timeout))),
        }
    }
}

/// What the first address gives that gives anything; the last failure where none does, or `none`.
async fn first_of<T, F: Future<Output = Result<T, ClientError>>>(
    addresses: &[SocketAddr],
    none: ClientError,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, ClientError> {
    let mut failure = none;
    for address in addresses {
        match connect(*address).await {
            Ok(connected) => return Ok(connected),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Alerts of TLS (RFC 8446, 6.2) about a certificate: bad, unsupported, revoked, expired, unknown (that, and its authority),
/// access denied; and about what proves that it is the sender's.
const CERTIFICATE_ALERTS: [u8; 8] = [42, 43, 44, 45, 46, 48, 49, 51];
/// The alert of a server that was shown no certificate.
const CERTIFICATE_REQUIRED: u8 = 116;

/// Why there is no connection, as an error.
pub(crate) fn no_connection(server: &str, error: &ConnectionError) -> ClientError {
    let is = |code: TransportErrorCode, alerts: &[u8]| {
        alerts.iter().any(|alert| code == TransportErrorCode::crypto(*alert))
    };
    let (server, reason) = (server.to_owned(), error.to_string());
    match error {
        ConnectionError::TransportError(error) if is(error.code, &CERTIFICATE_ALERTS) => {
            ClientError::ServerCertificate { server, reason: error.reason.clone() }
        }
        ConnectionError::ConnectionClosed(close)
            if is(close.error_code, &CERTIFICATE_ALERTS) || is(close.error_code, &[CERTIFICATE_REQUIRED]) =>
        {
            ClientError::ClientCertificate { server, reason }
        }
        _ => ClientError::Connect { server, reason },
    }
}

fn endpoint(server: SocketAddr) -> std::io::Result<Endpoint> {
    let local = if server.is_ipv4() {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
    } else {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
    };
    let mut config = EndpointConfig::default();
    if server.ip().is_loopback() {
        config.max_udp_payload_size(LOOPBACK_PAYLOAD_BYTES_MAX).map_err(std::io::Error::other)?;
    }
    let socket = std::net::UdpSocket::bind(local)?;
    Endpoint::new(config, None, socket, Arc::new(quinn::TokioRuntime))
}

fn transport(loopback: bool, keep_alive: Duration) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .keep_alive_interval(Some(keep_alive))
        .initial_rtt(INITIAL_RTT)
        .max_idle_timeout(IdleTimeout::try_from(IDLE).ok());
    if loopback {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(LOOPBACK_MTU_BYTES);
        // quinn puts up to ten packets into one segmented send, whatever their size; the kernel takes 64 KiB at most.
        config.mtu_discovery_config(Some(discovery)).enable_segmentation_offload(false);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[tokio::test]
    async fn an_address_that_does_not_answer_is_passed_over() {
        let addresses: Vec<SocketAddr> =
            ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|text| text.parse().unwrap()).to_vec();
        let failed = |server: &dyn ToString| ClientError::Connect {
            server: server.to_string(),
            reason: "away".into(),
        };
        let connect = |answering: Option<SocketAddr>| {
            let addresses = addresses.clone();
            async move {
                first_of(&addresses, failed(&"none"), |address| async move {
                    if Some(address) == answering { Ok(address) } else { Err(failed(&address)) }
                })
                .await
            }
        };
        for address in &addresses {
            assert_eq!(connect(Some(*address)).await, Ok(*address));
        }
        assert_eq!(connect(None).await, Err(failed(&addresses[2])));
    }

    #[test]
    fn a_certificate_that_a_server_wants_is_told_from_other_failures() {
        let closed = |error_code: TransportErrorCode| {
            let close = quinn::ConnectionClose { error_code, frame_type: None, reason: Bytes::new() };
            no_connection("s", &ConnectionError::ConnectionClosed(close))
        };
        for alert in [42, 48, CERTIFICATE_REQUIRED] {
            let error = closed(TransportErrorCode::crypto(alert));
            assert!(matches!(error, ClientError::ClientCertificate { .. }), "{alert}: {error}");
        }
        // No common protocol, too many connections, silence.
        for other in [
            closed(TransportErrorCode::crypto(120)),
            closed(TransportErrorCode::CONNECTION_REFUSED),
            no_connection("s", &ConnectionError::TimedOut),
        ] {
            assert!(matches!(other, ClientError::Connect { .. }), "{other}");
        }
    }
}
