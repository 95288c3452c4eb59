//! Whom to trust: TLS 1.3 with *ring*, certificates checked as [`Trust`] says.

use crate::address::ServerAddress;
use crate::error::ClientError;
use crate::options::{Credentials, Trust};
use overtake_wire::ALPN_CLIENT;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// The TLS configuration for `trust`. An error names the option at fault.
pub(crate) fn configuration(
    trust: &Trust,
    credentials: Option<&Credentials>,
    servers: &[ServerAddress],
) -> Result<rustls::ClientConfig, ClientError> {
    let provider = Arc::new(provider());
    let verifier = Verifier {
        any: matches!(trust, Trust::LoopbackOnly),
        pinned: pinned(trust),
        authorities: authorities(trust, &provider)?,
        algorithms: provider.signature_verification_algorithms,
    };
    if verifier.any
        && let Some(server) =
            servers.iter().filter_map(ServerAddress::address).find(|it| !it.ip().is_loopback())
    {
        return Err(not_loopback(&server));
    }
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| ClientError::Options(format!("tls: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut configuration = match credentials {
        None => builder.with_no_client_auth(),
        Some(Credentials { certificates, private_key }) => {
            let refused =
                |what: &dyn core::fmt::Display| ClientError::Options(format!("credentials: {what}"));
            let chain = certificates.iter().map(|der| CertificateDer::from(der.clone())).collect();
            let key = PrivateKeyDer::try_from(private_key.clone()).map_err(|error| refused(&error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| refused(&error))?
        }
    };
    configuration.alpn_protocols = vec![ALPN_CLIENT.to_vec()];
    Ok(configuration)
}

/// Why a server is not connected to whose certificate nobody vouches for.
pub(crate) fn not_loopback(server: &dyn core::fmt::Display) -> ClientError {
    ClientError::Options(format!(
        "trust: {server} is not a loopback address; pass the server's certificate or that of its authority (Trust::from_file)"
    ))
}

/// *ring* with AES-128 before AES-256: servers take the client's order, and 128 bits cost a quarter less.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

fn certificates(trust: &Trust) -> &[Vec<u8>] {
    match trust {
        Trust::LoopbackOnly => &[],
        Trust::Certificates(list) => list,
    }
}

fn pinned(trust: &Trust) -> Vec<CertificateDer<'static>> {
    certificates(trust).iter().map(|der| CertificateDer::from(der.clone())).collect()
}

fn authorities(
    trust: &Trust,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<WebPkiServerVerifier>>, ClientError> {
    let list = pinned(trust);
    if list.is_empty() {
        return match trust {
            Trust::LoopbackOnly => Ok(None),
            Trust::Certificates(_) => Err(ClientError::Options("trust: no certificate given".into())),
        };
    }
    let refused = |what: &dyn core::fmt::Display| ClientError::Options(format!("trust: {what}"));
    let mut roots = RootCertStore::empty();
    for certificate in list {
        roots.add(certificate).map_err(|error| refused(&error))?;
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map(Some)
        .map_err(|error| refused(&error))
}

/// Takes a certificate that is trusted itself, or that a trusted one issued; on loopback any. That the server holds
/// the certificate's key is checked always.
#[derive(Debug)]
struct Verifier {
    any: bool,
    pinned: Vec<CertificateDer<'static>>,
    authorities: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.any || self.pinned.iter().any(|pinned| pinned == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        match &self.authorities {
            Some(verifier) => {
                verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            None => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
