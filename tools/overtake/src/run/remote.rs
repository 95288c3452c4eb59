//! The connection of a command: options from flags, and the client's errors as exit codes and sentences.

use super::refusal;
use crate::certificates::{CertificateError, read_certificates, read_key};
use crate::cli::Server;
use crate::exit::{Exit, Failure};
use overtake_client::{Client, ClientError, ConnectOptions, Credentials, Trust};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// The longest that connecting may take; `--timeout` can only shorten it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How QUIC tells the TLS alert `certificate_required`.
const CERTIFICATE_REQUIRED: &str = "error 116";

/// What the flags say about the server, as the client takes it.
pub fn options(server: &Server) -> Result<ConnectOptions, Failure> {
    let named: Vec<&str> = server.connect.split(',').map(str::trim).collect();
    let mut addresses = Vec::new();
    for server in &named {
        // One that is not known now must not keep the others from being asked.
        match resolve(server) {
            Ok(found) => addresses.extend(found),
            Err(failure) if failure.exit == Exit::Usage || named.len() == 1 => return Err(failure),
            Err(failure) => drop(failure),
        }
    }
    if addresses.is_empty() {
        return Err(Failure::new(Exit::NoConnection, format!("cannot look up any of {}", server.connect)));
    }
    // A certificate of each node of a cluster is good for this name; one name must do for all.
    let host = match named.as_slice() {
        [one] => one.rsplit_once(':').map_or("localhost", |(host, _)| host),
        _ => "localhost",
    };
    let trust = match &server.ca {
        Some(file) => Trust::Certificates(certificates(file)?),
        None if addresses.iter().all(|address| address.ip().is_loopback()) => Trust::LoopbackOnly,
        None => return Err(certificate_needed(&server.connect)),
    };
    let credentials = match (&server.cert, &server.key) {
        (Some(certificate), Some(key)) => {
            let wrong = |error: CertificateError| Failure::usage(error.to_string());
            let certificates = read_certificates(certificate).map_err(wrong)?;
            Some(Credentials { certificates, private_key: read_key(key).map_err(wrong)? })
        }
        _ => None,
    };
    Ok(ConnectOptions {
        servers: addresses,
        credentials,
        server_name: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        token: server.token.clone().unwrap_or_default(),
        trust,
        request_timeout: server.timeout,
        connect_timeout: server.timeout.min(CONNECT_TIMEOUT),
        ..ConnectOptions::default()
    })
}

/// Without certificates only a server on this machine is trusted.
fn certificate_needed(server: &str) -> Failure {
    Failure::usage(format!(
        "{server} is not on this machine: name its certificate with --ca FILE, a copy of tls/certificate.pem in its \
         data folder"
    ))
}

/// Connects.
pub async fn connect(server: &Server) -> Result<Client, Failure> {
    let options = options(server)?;
    Client::connect(options).await.map_err(|error| failure(&error, server))
}

/// An error of the client as a failure.
pub fn failure(error: &ClientError, named: &Server) -> Failure {
    // As the person named it.
    let server = &named.connect;
    match error {
        ClientError::Refused(refused) => refusal::failure(refused),
        ClientError::Options(what) => Failure::usage(match what.strip_prefix("trust: ") {
            Some(what) => what.to_owned(),
            None => what.clone(),
        }),
        ClientError::Connect { reason, .. } if reason.contains("invalid peer certificate") => {
            Failure::new(Exit::NoConnection, certificate_refused(named, reason))
        }
        ClientError::Connect { reason, .. } if reason.contains(CERTIFICATE_REQUIRED) => Failure::new(
            Exit::NotAllowed,
            format!(
                "{server} wants a certificate of the client's own: --cert and --key (`overtake cert client`)"
            ),
        ),
        ClientError::Connect { reason, .. } => Failure::new(
            Exit::NoConnection,
            format!("cannot reach {server}: {reason}; is `overtake dev` running, or --connect right?"),
        ),
        ClientError::Closed => {
            Failure::new(Exit::NoConnection, format!("the connection to {server} is closed"))
        }
        ClientError::ConnectionLost | ClientError::TimedOut | ClientError::Protocol(_) => {
            Failure::new(Exit::Unknown, format!("{server}: {error}"))
        }
    }
}

/// An error of a request that only looks, as a failure: no answer came, so it may be asked again.
pub fn read_failure(error: &ClientError, named: &Server) -> Failure {
    match error {
        ClientError::ConnectionLost => no_answer(named, "the connection was lost"),
        ClientError::TimedOut => no_answer(named, "it took too long"),
        ClientError::Protocol(what) => no_answer(named, &format!("unexpected answer: {what}")),
        _ => failure(error, named),
    }
}

fn no_answer(named: &Server, why: &str) -> Failure {
    Failure::new(Exit::NoConnection, format!("no answer from {}: {why}; try again", named.connect))
}

/// The server shows another certificate than the one that is trusted.
fn certificate_refused(named: &Server, reason: &str) -> String {
    let why = reason.rsplit("invalid peer certificate: ").next().unwrap_or(reason);
    match &named.ca {
        Some(file) => format!(
            "the certificate of {} is not the one in {}, or not for this name ({why}); take a copy of \
             tls/certificate.pem in that server's data folder",
            named.connect,
            file.display()
        ),
        None => format!("the certificate of {} is not usable ({why})", named.connect),
    }
}

fn resolve(connect: &str) -> Result<Vec<SocketAddr>, Failure> {
    let wrong = |why: String| Failure::usage(format!("--connect {connect}: {why}; expected HOST:PORT"));
    if connect.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(wrong("no port".to_owned()));
    }
    match connect.to_socket_addrs() {
        Ok(addresses) => {
            let mut all: Vec<SocketAddr> = addresses.collect();
            // The servers listen on IPv4 unless told otherwise: try that first.
            all.sort_by_key(SocketAddr::is_ipv6);
            if all.is_empty() { Err(wrong("no address".to_owned())) } else { Ok(all) }
        }
        Err(error) => Err(Failure::new(Exit::NoConnection, format!("cannot look up {connect}: {error}"))),
    }
}

fn certificates(file: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let wrong = |why: &dyn std::fmt::Display| Failure::usage(format!("--ca {}: {why}", file.display()));
    let text = std::fs::read(file).map_err(|error| wrong(&error))?;
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&text).map(|der| der.map(|der| der.to_vec())).collect();
    let found = found.map_err(|error| wrong(&error))?;
    if found.is_empty() { Err(wrong(&"there is no PEM certificate in it")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(connect: &str) -> Server {
        Server {
            connect: connect.into(),
            token: None,
            ca: None,
            cert: None,
            key: None,
            timeout: Duration::from_secs(2),
        }
    }

    #[test]
    fn addresses_need_a_port() {
        let made = options(&server("127.0.0.1:7400")).unwrap();
        assert_eq!(made.servers, ["127.0.0.1:7400".parse::<SocketAddr>().unwrap()]);
        assert_eq!(
            (made.request_timeout, made.connect_timeout),
            (Duration::from_secs(2), Duration::from_secs(2))
        );
        assert_eq!(options(&server("[::1]:7400")).unwrap().server_name, "::1");
        let elsewhere = options(&server("192.0.2.1:7400")).unwrap_err();
        assert!(elsewhere.exit == Exit::Usage && elsewhere.message.contains("--ca FILE"));
        let several = options(&server("127.0.0.1:7400,127.0.0.1:7410, 127.0.0.1:7420")).unwrap();
        assert_eq!((several.servers.len(), several.server_name.as_str()), (3, "localhost"));
        for bad in ["localhost", "localhost:x", "", ":", "127.0.0.1:7400,", "127.0.0.1:7400,b"] {
            assert_eq!(options(&server(bad)).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn errors_say_what_to_do_next() {
        let away = ClientError::Connect { server: "127.0.0.1:7400".into(), reason: "timed out".into() };
        let failure_of = |error| failure(&error, &server("127.0.0.1:7400"));
        assert_eq!(failure_of(away.clone()).exit, Exit::NoConnection);
        assert!(failure_of(away).message.contains("is `overtake dev` running"));
        for error in [ClientError::ConnectionLost, ClientError::TimedOut, ClientError::Protocol("x".into())] {
            assert_eq!(failure_of(error.clone()).exit, Exit::Unknown);
            let read = read_failure(&error, &server("127.0.0.1:7400"));
            assert_eq!(read.exit, Exit::NoConnection, "a read has no unknown fate");
            assert!(read.message.ends_with("try again"), "{read}");
        }
        let reason = "the cryptographic handshake failed: error 51: invalid peer certificate: BadSignature";
        let other = ClientError::Connect { server: "10.0.0.1:7400".into(), reason: reason.into() };
        let named = Server { ca: Some("their.pem".into()), ..server("10.0.0.1:7400") };
        let failed = failure(&other, &named);
        assert_eq!(failed.exit, Exit::NoConnection);
        assert!(failed.message.contains("10.0.0.1:7400 is not the one in their.pem"), "{failed}");
    }

    #[test]
    fn a_certificate_file_must_hold_certificates() {
        let mut with_ca = server("127.0.0.1:7400");
        with_ca.ca = Some("/nowhere/ca.pem".into());
        assert!(options(&with_ca).unwrap_err().message.contains("/nowhere/ca.pem"));
        with_ca.ca = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into());
        assert!(options(&with_ca).unwrap_err().message.contains("no PEM certificate"));
    }
}
