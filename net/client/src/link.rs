//! One connection with a stream for each sort of traffic, so that what is large never stands before what is urgent.

use crate::address::ServerAddress;
use crate::error::ClientError;
use crate::quic::{Connector, no_connection};
use crate::session::{Greeting, Session, Welcome};
use overtake_wire::message::Request;
use quinn::{Connection, ConnectionStats, Endpoint, VarInt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How long a closing connection may take to say so to the server.
const CLOSE_WAIT: Duration = Duration::from_millis(250);

/// How often it is looked whether a server still speaks. Looks are counted, not time, so that a client that was
/// stopped for a while does not take its own sleep for the server's.
const LOOK: Duration = Duration::from_millis(100);
/// Looks without a sign of life, with something sent that a living server confirms at once, after which others are
/// asked first.
const DOUBTFUL_LOOKS: u32 = 3;
/// And after which the connection is given up where another server answers: what waits on it is better asked there.
const SILENT_LOOKS: u32 = 6;
/// Round trips that a confirmation may take on top, since packets are lost on long ways.
const PATIENT_ROUND_TRIPS: u32 = 4;
/// And where no other does, still long before its idle time-out.
const LONELY_LOOKS: u32 = 50;

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
    welcome: Welcome,
    doubtful: AtomicBool,
}

impl Link {
    pub(crate) async fn establish(
        connector: &Connector,
        server: &ServerAddress,
        first: usize,
        token: &str,
    ) -> Result<Self, ClientError> {
        let (endpoint, connection) = connector.connect(server, first).await?;
        match greet(connector, &server.to_string(), &connection, token).await {
            Ok((sessions, welcome)) => {
                Ok(Self { connection, endpoint, sessions, welcome, doubtful: AtomicBool::new(false) })
            }
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

    pub(crate) const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// True where the server has not confirmed for a while what was sent.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Relaxed)
    }

    /// Resolves when the connection is gone, for whatever reason. `others_answer`: whether another server does.
    pub(crate) async fn lost(&self, others_answer: impl Fn() -> bool) -> String {
        tokio::select! {
            reason = self.connection.closed() => reason.to_string(),
            () = self.silent(others_answer) => "nothing comes from the server any more".to_owned(),
        }
    }

    /// Resolves when a server has confirmed nothing for too long. A machine that lost its power says no goodbye.
    async fn silent(&self, others_answer: impl Fn() -> bool) {
        let mut silence = Silence::default();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let stats = self.connection.stats();
            silence.look(&Seen::of(&stats));
            let looks = silence.looks.saturating_sub(looks_of(stats.path.rtt * PATIENT_ROUND_TRIPS));
            self.doubtful.store(looks >= DOUBTFUL_LOOKS, Ordering::Relaxed);
            if looks >= LONELY_LOOKS || looks >= SILENT_LOOKS && others_answer() {
                return;
            }
        }
    }

    /// Ends the connection; everything pending on it fails.
    pub(crate) async fn close(&self) {
        self.sessions.iter().for_each(|session| session.lose());
        self.connection.close(VarInt::from_u32(0), b"");
        // Without this the server would learn of it only by its idle time-out.
        let _ = tokio::time::timeout(CLOSE_WAIT, self.endpoint.wait_idle()).await;
    }
}

type Greeted = ([Arc<Session>; LANES], Welcome);

async fn greet(
    connector: &Connector,
    server: &str,
    connection: &Connection,
    token: &str,
) -> Result<Greeted, ClientError> {
    let failed = |reason: String| ClientError::Connect { server: server.to_string(), reason };
    match tokio::time::timeout(connector.timeout(), sessions(connection, token)).await {
        // A server that refuses the client's certificate says so after the client took the handshake for done.
        Ok(Err(ClientError::ConnectionLost)) => Err(match connection.close_reason() {
            Some(reason) => no_connection(server, &reason),
            None => failed("a stream was reset".into()),
        }),
        Ok(outcome) => outcome,
        Err(_) => Err(failed("no welcome in time".into())),
    }
}

async fn sessions(connection: &Connection, token: &str) -> Result<Greeted, ClientError> {
    // All are greeted before the first answer is waited for: one round trip for all.
    let open = || Greeting::open(connection, token);
    let [a, b, c, d] = [open().await?, open().await?, open().await?, open().await?];
    let (a, welcome) = a.welcomed(connection).await?;
    let sessions = [
        a,
        b.welcomed(connection).await?.0,
        c.welcomed(connection).await?.0,
        d.welcomed(connection).await?.0,
    ];
    Ok((sessions, welcome))
}

/// What went over a connection so far.
#[derive(Clone, Copy, Default)]
struct Seen {
    received: u64,
    /// Frames sent that the other side must confirm.
    asked: u64,
}

impl Seen {
    fn of(stats: &ConnectionStats) -> Self {
        let sent = &stats.frame_tx;
        // Whichever of these QUIC takes to probe a peer that does not answer.
        let asked = [
            sent.stream,
            sent.ping,
            sent.immediate_ack,
            sent.crypto,
            sent.new_connection_id,
            sent.retire_connection_id,
            sent.max_data,
            sent.max_stream_data,
            sent.reset_stream,
            sent.stop_sending,
        ];
        Self { received: stats.udp_rx.datagrams, asked: asked.iter().sum() }
    }
}

/// Whole looks in a time.
fn looks_of(time: Duration) -> u32 {
    u32::try_from(time.as_millis() / LOOK.as_millis()).unwrap_or(u32::MAX)
}

/// Counts looks in a row at which something was asked and nothing had come.
#[derive(Default)]
struct Silence {
    looks: u32,
    /// At the last look at which something had come.
    last: Seen,
}

impl Silence {
    fn look(&mut self, now: &Seen) {
        if now.received != self.last.received {
            *self = Self { looks: 0, last: *now };
        } else if now.asked > self.last.asked {
            self.looks += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_must_be_confirmed_and_is_not_makes_a_silence() {
        let mut silence = Silence::default();
        let mut look = |received, asked| {
            silence.look(&Seen { received, asked });
            silence.looks
        };
        assert_eq!(look(5, 5), 0);
        // Nothing was sent: nothing is to be heard.
        assert_eq!((look(5, 5), look(5, 5)), (0, 0));
        assert_eq!((look(5, 6), look(5, 6), look(5, 8)), (1, 2, 3));
        assert_eq!((look(6, 9), look(6, 9), look(6, 10)), (0, 0, 1));
    }
}
