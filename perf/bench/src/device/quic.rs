//! Both ends of a QUIC connection that is only there to be measured. The certificate is made on the spot and nobody checks
//! it: nothing secret travels.

use overtake_measure::table::Latencies;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 1_024;
/// First byte of a stream: each message is answered by one byte; or all are counted, and the count is the answer.
const ECHO: u8 = 0;
const COUNT: u8 = 1;
const CHUNK: usize = 64 * MESSAGE_BYTES;
const CONNECT: Duration = Duration::from_secs(5);

/// What was measured.
pub(super) struct Measured {
    pub echo: Latencies,
    pub echo_seconds: f64,
    pub messages_per_second: f64,
}

/// Answers on `socket` until `stop`, or for ever.
pub(super) fn answer(socket: UdpSocket, stop: Option<Arc<AtomicBool>>) -> io::Result<()> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(io::Error::other)?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key.into())
        .map_err(io::Error::other)?;
    crate::runtime()?.block_on(async move {
        let endpoint =
            Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?;
        let serve = async {
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        while let Ok((send, receive)) = connection.accept_bi().await {
                            tokio::spawn(answer_stream(send, receive));
                        }
                    }
                });
            }
        };
        match stop {
            None => serve.await,
            Some(stop) => tokio::select! {
                () = serve => {}
                () = async {
                    while !stop.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                } => {}
            },
        }
        Ok(())
    })
}

async fn answer_stream(mut send: quinn::SendStream, mut receive: quinn::RecvStream) {
    let mut kind = [0];
    if receive.read_exact(&mut kind).await.is_err() {
        return;
    }
    let (mut bytes, mut answered) = (0u64, 0u64);
    while let Ok(Some(chunk)) = receive.read_chunk(usize::MAX, true).await {
        bytes += chunk.bytes.len() as u64;
        let messages = bytes / MESSAGE_BYTES as u64;
        if kind[0] == ECHO && messages > answered {
            let answer = vec![0; (messages - answered) as usize];
            answered = messages;
            if send.write_all(&answer).await.is_err() {
                return;
            }
        }
    }
    if kind[0] == COUNT {
        let _ = send.write_all(&bytes.to_le_bytes()).await;
    }
    let _ = send.finish();
}

/// Measures the connection to the other end, on a thread of its own: the caller's may have a runtime already.
pub(super) fn measure(address: SocketAddr, duration: Duration) -> io::Result<Measured> {
    let thread = std::thread::spawn(move || measure_here(address, duration));
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the measurement of QUIC panicked")))
}

fn measure_here(address: SocketAddr, duration: Duration) -> io::Result<Measured> {
    crate::runtime()?.block_on(async move {
        let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let endpoint = Endpoint::client(any)?;
        let connecting =
            endpoint.connect_with(client_config()?, address, "localhost").map_err(io::Error::other)?;
        let connection = tokio::time::timeout(CONNECT, connecting).await.map_err(|_| {
            let what = format!("no answer from {address}: is `overtake-perf device --listen` running there?");
            io::Error::new(io::ErrorKind::TimedOut, what)
        })?;
        let connection = connection.map_err(io::Error::other)?;
        let (echo, echo_seconds) = echo(&connection, duration).await?;
        let messages_per_second = stream(&connection, duration).await?;
        connection.close(0u32.into(), b"");
        endpoint.wait_idle().await;
        Ok(Measured { echo, echo_seconds, messages_per_second })
    })
}

async fn echo(connection: &Connection, duration: Duration) -> io::Result<(Latencies, f64)> {
    let (mut send, mut receive) = connection.open_bi().await.map_err(io::Error::other)?;
    send.write_all(&[ECHO]).await.map_err(io::Error::other)?;
    let (message, mut answer) = ([0; MESSAGE_BYTES], [0]);
    let (start, mut latencies) = (Instant::now(), Latencies::default());
    while start.elapsed() < duration {
        let at = Instant::now();
        send.write_all(&message).await.map_err(io::Error::other)?;
        receive.read_exact(&mut answer).await.map_err(io::Error::other)?;
        latencies.record(at.elapsed());
    }
    let seconds = start.elapsed().as_secs_f64();
    let _ = send.finish();
    Ok((latencies, seconds))
}

async fn stream(connection: &Connection, duration: Duration) -> io::Result<f64> {
    let (mut send, mut receive) = connection.open_bi().await.map_err(io::Error::other)?;
    send.write_all(&[COUNT]).await.map_err(io::Error::other)?;
    let chunk = vec![0; CHUNK];
    let start = Instant::now();
    while start.elapsed() < duration {
        send.write_all(&chunk).await.map_err(io::Error::other)?;
    }
    let _ = send.finish();
    let mut count = [0; 8];
    receive.read_exact(&mut count).await.map_err(io::Error::other)?;
    Ok(u64::from_le_bytes(count) as f64 / MESSAGE_BYTES as f64 / start.elapsed().as_secs_f64())
}

fn client_config() -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).map_err(io::Error::other)?)))
}

/// Takes any certificate.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
