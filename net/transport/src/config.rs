//! From our configuration to that of quinn-proto and rustls. Everything random is derived from the two seeds given, and
//! the only clock is the `now` that calls bring; what TLS itself draws for its keys is the one exception.

use crate::admission::AdmissionLimits;
use crate::connection_id::{Generator, Router};
use crate::limits;
use core::fmt;
use overtake_base::random::Random;
use overtake_base::{CoreId, UnixMillis};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TimeSource, VarInt};
use ring::{hkdf, hmac};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// What a transport is made from.
pub struct TransportConfig {
    /// The certificate chain, DER, the server's own first.
    pub certificates: Vec<Vec<u8>>,
    /// Its private key, DER (PKCS #8, SEC 1 or PKCS #1).
    pub private_key: Vec<u8>,
    /// Authorities of which clients must show a certificate, DER; none: clients need none.
    pub client_authorities: Vec<Vec<u8>>,
    /// The wall clock, for the validity of clients' certificates.
    pub wall: UnixMillis,
    /// The core this transport runs on.
    pub core: CoreId,
    /// Cores of the node.
    pub cores: u16,
    /// The node's secret: the same on all its cores, and after a restart, so that clients of the last run are told at
    /// once that their connections are gone.
    pub secret: [u8; 32],
    /// Fresh random bytes, different for each core and each start.
    pub seed: [u8; 32],
    /// Bounds on who may connect.
    pub admission: AdmissionLimits,
}

/// Why a transport could not be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransportError {
    /// The certificate or the key cannot be used; says why.
    Certificate(String),
    /// A constant of this crate is out of the range that the library takes.
    Limit(&'static str),
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(detail) => write!(f, "the certificate or its key cannot be used: {detail}"),
            Self::Limit(which) => write!(f, "out of range: {which}"),
        }
    }
}

impl core::error::Error for TransportError {}

/// The wall clock as calls brought it, for the validity of certificates.
#[derive(Debug)]
pub(crate) struct Wall(AtomicU64);

impl Wall {
    pub(crate) fn new(wall: UnixMillis) -> Self {
        Self(AtomicU64::new(wall.0))
    }

    pub(crate) fn set(&self, wall: UnixMillis) {
        self.0.store(wall.0, Ordering::Relaxed);
    }
}

impl TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(self.0.load(Ordering::Relaxed))))
    }
}

/// The authorities that are trusted, of which there must be one.
pub(crate) fn roots(authorities: &[Vec<u8>]) -> Result<Arc<RootCertStore>, TransportError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone().into()).map_err(|error| unusable(&error))?;
    }
    Ok(Arc::new(roots))
}

/// Milliseconds since the transport was made, as the clock of Retry tokens.
#[derive(Default)]
pub(crate) struct TokenClock(AtomicU64);

impl TokenClock {
    pub(crate) fn set(&self, since_start: Duration) {
        self.0.store(u64::try_from(since_start.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl TimeSource for TokenClock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) struct Built {
    pub(crate) endpoint: EndpointConfig,
    /// For clients on other hosts.
    pub(crate) server: Arc<ServerConfig>,
    /// For clients on this host: the same with larger datagrams.
    pub(crate) loopback: Arc<ServerConfig>,
    pub(crate) router: Router,
    pub(crate) clock: Arc<TokenClock>,
    pub(crate) wall: Arc<Wall>,
}

/// A key of its own for each purpose.
pub(crate) fn derive(key: &[u8; 32], purpose: &str) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), purpose.as_bytes());
    core::array::from_fn(|i| tag.as_ref()[i])
}

/// What an endpoint of `core` needs: ids that carry the core, resets that outlive the process, randomness of our own.
pub(crate) fn endpoint(
    secret: &[u8; 32],
    seed: &[u8; 32],
    core: CoreId,
    router: Router,
) -> Result<EndpointConfig, TransportError> {
    let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &derive(secret, "stateless reset"));
    let mut endpoint = EndpointConfig::new(Arc::new(reset_key));
    endpoint
        .max_udp_payload_size(limits::TRANSMIT_BYTES_MAX as u16)
        .map_err(|_| TransportError::Limit("TRANSMIT_BYTES_MAX"))?;
    endpoint.rng_seed(Some(derive(seed, "endpoint")));
    let id_seed = derive(seed, "connection ids");
    endpoint.cid_generator(move || {
        let seed = u64::from_le_bytes(core::array::from_fn(|i| id_seed[i]));
        Box::new(Generator { router, core, random: Random::new(seed, "connection ids") })
    });
    Ok(endpoint)
}

/// *ring* with AES-128 before AES-256: the side that dials decides, and 128 bits cost a quarter less.
pub(crate) fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

/// A certificate or key that cannot be used.
pub(crate) fn unusable(error: &dyn fmt::Display) -> TransportError {
    TransportError::Certificate(error.to_string())
}

pub(crate) fn build(config: &TransportConfig) -> Result<Built, TransportError> {
    let id_key = derive(&config.secret, "connection ids");
    let router = Router { key: core::array::from_fn(|i| id_key[i]), cores: config.cores };
    let endpoint = endpoint(&config.secret, &config.seed, config.core, router)?;

    let wall = Arc::new(Wall::new(config.wall));
    let tls: Arc<QuicServerConfig> = Arc::new(tls(config, &wall)?);
    let token_salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"retry tokens");
    let clock = Arc::new(TokenClock::default());
    let mut server = ServerConfig::new(tls, Arc::new(token_salt.extract(&config.secret)));
    server.time_source(clock.clone());
    // Tokens for later connections would spare a round trip only above the Retry threshold.
    server.validation_token.sent(0).log(Arc::new(quinn_proto::NoneTokenLog));
    // A knocking client is accepted, refused or sent back at once: nothing waits between.
    server.max_incoming(1).incoming_buffer_size(0).incoming_buffer_size_total(0);
    server.transport_config(Arc::new(quic(limits::MTU_DISCOVERY_BYTES_MAX)?));
    let mut loopback = server.clone();
    loopback.transport_config(Arc::new(quic(limits::MTU_DISCOVERY_LOOPBACK_BYTES_MAX)?));
    Ok(Built { endpoint, server: Arc::new(server), loopback: Arc::new(loopback), router, clock, wall })
}

fn tls(config: &TransportConfig, wall: &Arc<Wall>) -> Result<QuicServerConfig, TransportError> {
    let certificates = config.certificates.iter().map(|der| CertificateDer::from(der.clone())).collect();
    let key = PrivateKeyDer::try_from(config.private_key.clone()).map_err(|error| unusable(&error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_details(provider.clone(), wall.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unusable(&error))?;
    let builder = if config.client_authorities.is_empty() {
        builder.with_no_client_auth()
    } else {
        let roots = roots(&config.client_authorities)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        builder.with_client_cert_verifier(verifier.map_err(|error| unusable(&error))?)
    };
    let mut tls = builder.with_single_cert(certificates, key).map_err(|error| unusable(&error))?;
    tls.alpn_protocols = vec![overtake_wire::ALPN_CLIENT.to_vec()];
    // No early data, and no tickets: cores share no session cache that could honour them.
    tls.max_early_data_size = 0;
    tls.send_tls13_tickets = 0;
    QuicServerConfig::try_from(tls).map_err(|error| unusable(&error))
}

fn quic(mtu_discovery_bytes_max: u16) -> Result<quinn_proto::TransportConfig, TransportError> {
    let idle = IdleTimeout::try_from(limits::IDLE).map_err(|_| TransportError::Limit("IDLE"))?;
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(mtu_discovery_bytes_max);
    let mut quic = quinn_proto::TransportConfig::default();
    quic.max_concurrent_bidi_streams(VarInt::from_u32(limits::STREAMS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(limits::STREAM_RECEIVE_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(limits::RECEIVE_WINDOW_BYTES))
        .send_window(limits::SEND_WINDOW_BYTES)
        .max_idle_timeout(Some(idle))
        .mtu_discovery_config(Some(mtu));
    Ok(quic)
}
