//! QUIC set up for this protocol: one socket for each connection, windows for large answers, large packets on loopback.

use crate::error::ClientError;
use crate::options::ConnectOptions;
use overtake_wire::RESPONSE_FRAME_BYTES_MAX;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig,
    VarInt,
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
}

impl Connector {
    pub(crate) fn new(options: &ConnectOptions) -> Result<Self, ClientError> {
        let tls = crate::tls::configuration(&options.trust, options.credentials.as_ref(), &options.servers)?;
        let crypto =
            QuicClientConfig::try_from(tls).map_err(|error| ClientError::Options(format!("tls: {error}")))?;
        Ok(Self {
            server_name: options.server_name.clone(),
            timeout: options.connect_timeout,
            crypto: Arc::new(crypto),
            keep_alive: if options.servers.len() > 1 { KEEP_ALIVE_OF_SEVERAL } else { KEEP_ALIVE },
        })
    }

    /// How long each step of connecting may take.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Connects to `server` from a socket of its own: servers spread connections over their cores by the address they
    /// come from.
    pub(crate) async fn connect(&self, server: SocketAddr) -> Result<(Endpoint, Connection), ClientError> {
        let failed = |reason: String| ClientError::Connect { server: server.to_string(), reason };
        let endpoint = endpoint(server).map_err(|error| failed(format!("no socket: {error}")))?;
        let mut config = ClientConfig::new(self.crypto.clone());
        config.transport_config(Arc::new(transport(server.ip().is_loopback(), self.keep_alive)));
        let connecting = endpoint
            .connect_with(config, server, &self.server_name)
            .map_err(|error| failed(error.to_string()))?;
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(Ok(connection)) => Ok((endpoint, connection)),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {:?}", self.timeout))),
        }
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
