//! The connection of a command: options from flags, and the client's errors as exit codes and sentences.

use super::refusal;
use crate::cli::Server;
use crate::exit::{Exit, Failure};
use overtake_client::{Client, ClientError, ConnectOptions, Credentials, ServerAddress, Trust};
use std::net::ToSocketAddrs as _;
use std::time::Duration;

/// The longest that connecting may take; `--timeout` can only shorten it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What the flags say about the server, as the client takes it.
pub fn options(server: &Server) -> Result<ConnectOptions, Failure> {
    let named: Vec<&str> = server.connect.split(',').map(str::trim).collect();
    let mut servers = Vec::new();
    for name in &named {
        let wrong =
            |_| Failure::usage(format!("--connect {name}: expected HOST:PORT, like node1.example:7400"));
        servers.push(name.parse::<ServerAddress>().map_err(wrong)?);
    }
    // A certificate of each node of a cluster is good for this name; one name must do for all.
    let host = match servers.as_slice() {
        [one] => one.host(),
        _ => "localhost".to_owned(),
    };
    let trust = match &server.ca {
        Some(file) => Trust::from_file(file).map_err(|error| failure(&error, server))?,
        None if named.iter().all(|name| is_loopback(name)) => Trust::LoopbackOnly,
        None => return Err(certificate_needed(&server.connect)),
    };
    let credentials = match (&server.cert, &server.key) {
        (Some(certificate), Some(key)) => {
            let read = Credentials::from_pem_files(certificate, key);
            Some(read.map_err(|error| failure(&error, server))?)
        }
        _ => None,
    };
    Ok(ConnectOptions {
        servers,
        credentials,
        server_name: host,
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
        // The client's options have names of their own.
        ClientError::Options(what) => Failure::usage(match what.split_once(": ") {
            Some(("trust", what)) => format!("--ca {what}"),
            Some(("credentials", what)) => format!("--cert, --key: {what}"),
            _ => what.clone(),
        }),
        ClientError::ServerCertificate { reason, .. } => {
            Failure::new(Exit::NoConnection, certificate_refused(named, reason))
        }
        ClientError::ClientCertificate { .. } if named.cert.is_some() => Failure::new(
            Exit::NotAllowed,
            format!(
                "{server} does not take the certificate of --cert; is it of the cluster's authority, and not expired?"
            ),
        ),
        ClientError::ClientCertificate { .. } => Failure::new(
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
    match &named.ca {
        Some(file) => format!(
            "the certificate of {} is not the one in {}, or not for this name ({reason}); take a copy of \
             tls/certificate.pem in that server's data folder",
            named.connect,
            file.display()
        ),
        None => format!("the certificate of {} is not usable ({reason})", named.connect),
    }
}

/// Whether all that a name stands for now is on this machine. One that is not known is left to the client, which goes on
/// with the others, and connects to nothing else without a certificate.
fn is_loopback(server: &str) -> bool {
    match server.to_socket_addrs() {
        Ok(mut addresses) => addresses.all(|address| address.ip().is_loopback()),
        Err(_) => true,
    }
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
        assert_eq!(made.servers, ["127.0.0.1:7400".parse().unwrap()]);
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
        let (server_name, reason) = ("10.0.0.1:7400".to_owned(), "BadSignature".to_owned());
        let other = ClientError::ServerCertificate { server: server_name.clone(), reason };
        let named = Server { ca: Some("their.pem".into()), ..server("10.0.0.1:7400") };
        let failed = failure(&other, &named);
        assert_eq!(failed.exit, Exit::NoConnection);
        assert!(failed.message.contains("10.0.0.1:7400 is not the one in their.pem"), "{failed}");
        let wants =
            ClientError::ClientCertificate { server: server_name, reason: "certificate required".into() };
        assert!(failure(&wants, &named).message.contains("wants a certificate of the client's own"));
        let shown = Server { cert: Some("mine.pem".into()), ..named };
        assert!(failure(&wants, &shown).message.contains("does not take the certificate of --cert"));
        assert_eq!(failure(&wants, &shown).exit, Exit::NotAllowed);
    }

    #[test]
    fn a_certificate_file_must_hold_certificates() {
        let mut with_ca = server("127.0.0.1:7400");
        with_ca.ca = Some("/nowhere/ca.pem".into());
        assert!(options(&with_ca).unwrap_err().message.contains("/nowhere/ca.pem"));
        with_ca.ca = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into());
        let refused = options(&with_ca).unwrap_err();
        assert!(refused.message.contains("neither PEM nor DER"), "{refused}");
        assert!(refused.message.starts_with("--ca ") && refused.exit == Exit::Usage, "{refused}");
    }
}
