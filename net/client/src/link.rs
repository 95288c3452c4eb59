//! One connection with a stream for each sort of traffic, so that what is large never stands before what is urgent.

use crate::error::ClientError;
use crate::quic::Connector;
use crate::session::{Greeting, Session};
use overtake_wire::message::Request;
use quinn::{Connection, Endpoint, VarInt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a closing connection may take to say so to the server.
const CLOSE_WAIT: Duration = Duration::from_millis(250);

/// The streams of a connection.
#[derive(Clone, Copy)]
enum Lane {
    /// Large answers, and requests that wait.
    Receive,
    /// Large requests with small answers.
    Enqueue,
    /// Small both ways.
    Settle,
    /// Everything else: rare, some of it large.
    Other,
}

const LANES: usize = 4;

impl Lane {
    const fn of(request: &Request) -> Self {
        match request {
            Request::Receive(_) => Self::Receive,
            Request::Enqueue { .. } => Self::Enqueue,
            Request::Settle(_) => Self::Settle,
            _ => Self::Other,
        }
    }
}

/// A connection that is up.
pub(crate) struct Link {
    connection: Connection,
    endpoint: Endpoint,
    sessions: [Arc<Session>; LANES],
}

impl Link {
    pub(crate) async fn establish(
        connector: &Connector,
        server: SocketAddr,
        token: &str,
    ) -> Result<Self, ClientError> {
        let (endpoint, connection) = connector.connect(server).await?;
        match greet(connector, server, &connection, token).await {
            Ok(sessions) => Ok(Self { connection, endpoint, sessions }),
            Err(error) => {
                // Streams that were welcomed before another was not have tasks that hold the connection.
                connection.close(VarInt::from_u32(0), b"");
                Err(error)
            }
        }
    }

    pub(crate) fn session(&self, request: &Request) -> &Arc<Session> {
        &self.sessions[Lane::of(request) as usize]
    }

    pub(crate) fn server(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Resolves when the connection is gone, for whatever reason.
    pub(crate) async fn lost(&self) -> String {
        self.connection.closed().await.to_string()
    }

    /// Ends the connection; everything pending on it fails.
    pub(crate) async fn close(&self) {
        self.sessions.iter().for_each(|session| session.lose());
        self.connection.close(VarInt::from_u32(0), b"");
        // Without this the server would learn of it only by its idle time-out.
        let _ = tokio::time::timeout(CLOSE_WAIT, self.endpoint.wait_idle()).await;
    }
}

async fn greet(
    connector: &Connector,
    server: SocketAddr,
    connection: &Connection,
    token: &str,
) -> Result<[Arc<Session>; LANES], ClientError> {
    let failed = |reason: String| ClientError::Connect { server: server.to_string(), reason };
    match tokio::time::timeout(connector.timeout(), sessions(connection, token)).await {
        Ok(Err(ClientError::ConnectionLost)) => Err(failed(
            connection.close_reason().map_or("a stream was reset".into(), |reason| reason.to_string()),
        )),
        Ok(outcome) => outcome,
        Err(_) => Err(failed("no welcome in time".into())),
    }
}

async fn sessions(connection: &Connection, token: &str) -> Result<[Arc<Session>; LANES], ClientError> {
    // All are greeted before the first answer is waited for: one round trip for all.
    let open = || Greeting::open(connection, token);
    let [a, b, c, d] = [open().await?, open().await?, open().await?, open().await?];
    Ok([
        a.welcomed(connection).await?,
        b.welcomed(connection).await?,
        c.welcomed(connection).await?,
        d.welcomed(connection).await?,
    ])
}
