//! From a peer endpoint's configuration to that of quinn-proto and rustls. The only clocks are the instants and the wall
//! time that calls bring.

use super::name::NodeName;
use crate::config::{TokenClock, TransportError, Wall, derive, endpoint, unusable};
use crate::connection_id::Router;
use crate::limits;
use overtake_base::random::Random;
use overtake_base::{NodeId, UnixMillis};
use overtake_wire::peer::{ALPN_PEER, PeerHello};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, ConnectionId, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, VarInt,
};
use ring::hkdf;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, version};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a peer endpoint is made from.
pub struct PeerConfig {
    /// What this core says of itself.
    pub hello: PeerHello,
    /// The node's certificate chain, DER, its own first. It bears the node's [`NodeName`].
    pub certificates: Vec<Vec<u8>>,
    /// Its private key, DER.
    pub private_key: Vec<u8>,
    /// The cluster's authority, DER; several while it is being replaced.
    pub authorities: Vec<Vec<u8>>,
    /// The other nodes.
    pub nodes: Vec<PeerNode>,
    /// The node's secret: the same on all its cores, and after a restart, so that peers of the last run are told at once
    /// that their connections are gone.
    pub secret: [u8; 32],
    /// Fresh random bytes, different for each core and each start.
    pub seed: [u8; 32],
    /// The wall clock, for the validity of certificates.
    pub wall: UnixMillis,
}

/// Another node.
#[derive(Clone, Debug)]
pub struct PeerNode {
    /// Its id.
    pub node: NodeId,
    /// Its cores.
    pub cores: u16,
    /// Where its core 0 listens; core *n* listens *n* ports above. None where it is not known yet.
    pub address: Option<SocketAddr>,
    /// Identity of its data folder, where it has been seen before.
    pub store: Option<u128>,
}

pub(super) struct Built {
    pub(super) endpoint: EndpointConfig,
    /// For peers on other hosts, and on this one, where datagrams may be larger.
    pub(super) server: [Arc<ServerConfig>; 2],
    pub(super) client: [ClientConfig; 2],
    pub(super) wall: Arc<Wall>,
    pub(super) clock: Arc<TokenClock>,
}

pub(super) fn build(config: &PeerConfig) -> Result<Built, TransportError> {
    let wall = Arc::new(Wall::new(config.wall));
    let provider = Arc::new(crate::config::provider());
    let roots = crate::config::roots(&config.authorities)?;
    let chain: Vec<CertificateDer<'static>> =
        config.certificates.iter().map(|der| der.clone().into()).collect();
    check_own(config, &chain, &roots, &provider)?;

    let secret = derive(&config.secret, "peers");
    let router = Router { key: core::array::from_fn(|i| secret[i]), cores: config.hello.cores };
    let endpoint = endpoint(&secret, &config.seed, config.hello.core, router)?;
    let clock = Arc::new(TokenClock::default());
    let tls = server_tls(config, &chain, &roots, &provider, &wall)?;
    let token_salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"peer retry tokens");
    let mut server = ServerConfig::new(Arc::new(tls), Arc::new(token_salt.extract(&secret)));
    server.time_source(clock.clone());
    server.validation_token.sent(0).log(Arc::new(quinn_proto::NoneTokenLog));
    server.max_incoming(1).incoming_buffer_size(0).incoming_buffer_size_total(0);
    let tls = client_tls(config, &chain, &roots, &provider, &wall)?;
    let mut client = ClientConfig::new(Arc::new(tls));
    client.initial_dst_cid_provider(first_ids(derive(&config.seed, "peer first ids")));
    client.token_store(Arc::new(quinn_proto::NoneTokenStore));

    let sizes = [limits::MTU_DISCOVERY_BYTES_MAX, limits::MTU_DISCOVERY_LOOPBACK_BYTES_MAX];
    let [far, near] = sizes.map(quic);
    let (far, near) = (Arc::new(far?), Arc::new(near?));
    let server = [&far, &near].map(|quic| {
        let mut server = server.clone();
        server.transport_config(quic.clone());
        Arc::new(server)
    });
    let client = [&far, &near].map(|quic| {
        let mut client = client.clone();
        client.transport_config(quic.clone());
        client
    });
    Ok(Built { endpoint, server, client, wall, clock })
}

/// Refuses a certificate that no peer would take.
fn check_own(
    config: &PeerConfig,
    chain: &[CertificateDer<'static>],
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<(), TransportError> {
    let PeerHello { node, cluster, .. } = config.hello;
    let name = NodeName { node, cluster };
    let Some((own, others)) = chain.split_first() else { return Err(unusable(&"there is none")) };
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
    let verifier = verifier.map_err(|error| unusable(&error))?;
    let expected = server_name(name)?;
    let now = UnixTime::since_unix_epoch(Duration::from_millis(config.wall.0));
    verifier.verify_server_cert(own, others, &expected, &[], now).map_err(|error| {
        unusable(&format!("it is not good for {name} under the cluster's authority: {error}"))
    })?;
    Ok(())
}

fn server_name(name: NodeName) -> Result<ServerName<'static>, TransportError> {
    ServerName::try_from(name.to_string()).map_err(|error| unusable(&error))
}

fn server_tls(
    config: &PeerConfig,
    chain: &[CertificateDer<'static>],
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    wall: &Arc<Wall>,
) -> Result<QuicServerConfig, TransportError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|error| unusable(&error))?;
    let mut tls = rustls::ServerConfig::builder_with_details(provider.clone(), wall.clone())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| unusable(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.to_vec(), key(config)?)
        .map_err(|error| unusable(&error))?;
    tls.alpn_protocols = vec![ALPN_PEER.to_vec()];
    tls.max_early_data_size = 0;
    tls.send_tls13_tickets = 0;
    QuicServerConfig::try_from(tls).map_err(|error| unusable(&error))
}

fn client_tls(
    config: &PeerConfig,
    chain: &[CertificateDer<'static>],
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    wall: &Arc<Wall>,
) -> Result<QuicClientConfig, TransportError> {
    let mut tls = rustls::ClientConfig::builder_with_details(provider.clone(), wall.clone())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| unusable(&error))?
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain.to_vec(), key(config)?)
        .map_err(|error| unusable(&error))?;
    tls.alpn_protocols = vec![ALPN_PEER.to_vec()];
    // Each link proves itself: nothing is resumed.
    tls.resumption = rustls::client::Resumption::disabled();
    QuicClientConfig::try_from(tls).map_err(|error| unusable(&error))
}

fn key(config: &PeerConfig) -> Result<PrivateKeyDer<'static>, TransportError> {
    PrivateKeyDer::try_from(config.private_key.clone()).map_err(|error| unusable(&error))
}

/// The ids that first packets are sent to: unpredictable, and from our own seed.
fn first_ids(seed: [u8; 32]) -> Arc<dyn Fn() -> ConnectionId + Send + Sync> {
    let seed = u64::from_le_bytes(core::array::from_fn(|i| seed[i]));
    let random = Mutex::new(Random::new(seed, "peer first ids"));
    Arc::new(move || {
        let mut random = random.lock().unwrap_or_else(PoisonError::into_inner);
        let halves = [random.next_u64(), random.next_u64()].map(u64::to_le_bytes);
        ConnectionId::new(&halves.concat())
    })
}

fn quic(mtu_discovery_bytes_max: u16) -> Result<quinn_proto::TransportConfig, TransportError> {
    let idle = IdleTimeout::try_from(limits::PEER_IDLE).map_err(|_| TransportError::Limit("PEER_IDLE"))?;
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(mtu_discovery_bytes_max);
    let mut quic = quinn_proto::TransportConfig::default();
    quic.max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(limits::PEER_RECEIVE_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(limits::PEER_RECEIVE_WINDOW_BYTES))
        .send_window(limits::PEER_SEND_WINDOW_BYTES)
        .initial_rtt(limits::PEER_FIRST_RTT)
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(limits::PEER_KEEP_ALIVE))
        .mtu_discovery_config(Some(mtu));
    Ok(quic)
}
