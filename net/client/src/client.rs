//! The client: sends requests over the pool's connections and gives each a time-out.

use crate::error::ClientError;
use crate::options::ConnectOptions;
use crate::pool::Pool;
use crate::session::Call;
use overtake_wire::message::{ErrorCode, Refusal, Request, Response};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A client of a queue server. Cheap to clone; clones share its connections, and the last one to go closes them.
///
/// Any number of requests may be under way at a time. Lost connections are made again in the background; a request
/// waits for one up to its time-out. With several servers requests go to each in turn: one that is gone, or that
/// confirms nothing any more, is left out until it is back, and what one refuses because it does not lead, has no
/// quorum, or is stopping, is asked of the others before the refusal is handed on. Requests that change nothing are
/// asked again where their connection is lost; for others that is the caller's choice ([`ClientError::fate_unknown`]),
/// which [`crate::Producer`], [`crate::Consumer`] and [`crate::Worker`] make.
///
#[doc = concat!("```\n", include_str!("../docs/client.rs"), "```")]
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// Said where an address is reached by TCP and not by this protocol.
const OTHER_PORT: &str = "; something answers there by TCP: is it the address of HTTP? The binary protocol has one of its own, \
                          on UDP, with port 7400 where nothing else was said";
/// How long a server may take to answer by TCP.
const TCP_TIMEOUT: Duration = Duration::from_millis(500);

/// Whether it is the usual mistake: the address of the other port.
async fn answers_tcp(server: &str) -> bool {
    let connect = tokio::net::TcpStream::connect(server);
    tokio::time::timeout(TCP_TIMEOUT, connect).await.is_ok_and(|connected| connected.is_ok())
}

struct Inner {
    pool: Arc<Pool>,
    request_timeout: Duration,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.pool.close();
    }
}

impl Client {
    /// Connects to the servers. Returns as soon as one connection is up; the others follow in the background.
    ///
    /// # Errors
    /// [`ClientError::Options`] where the options cannot work; where no server could be reached, the error of the last
    /// one tried ([`ClientError::Connect`], or [`ClientError::Refused`] where the token was not taken).
    pub async fn connect(options: ConnectOptions) -> Result<Self, ClientError> {
        let (pool, tasks) = match Pool::start(&options).await {
            Err(ClientError::Connect { server, reason }) => {
                let hint = if answers_tcp(&server).await { OTHER_PORT } else { "" };
                return Err(ClientError::Connect { server, reason: reason + hint });
            }
            started => started?,
        };
        let inner = Inner { pool, request_timeout: options.request_timeout, tasks: Mutex::new(tasks) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Sends any request and gives its response; a refusal is an error. Bounds that need no state are checked here, so
    /// that a refusal for them costs no round trip.
    ///
    /// Dropping the future forgets the request: it may still be carried out. A receive is taken back, and messages
    /// that were already on their way are released.
    ///
    /// # Errors
    /// Every kind of [`ClientError`] but `Options`.
    pub async fn request(&self, request: Request) -> Result<Response, ClientError> {
        self.request_ref(&request).await
    }

    /// [`Client::request`] for a request that is sent many times.
    ///
    /// # Errors
    /// As there.
    pub async fn request_ref(&self, request: &Request) -> Result<Response, ClientError> {
        request.validate()?;
        let wait = match request {
            Request::Receive(receive) => Duration::from_secs(u64::from(receive.wait_s)),
            _ => Duration::ZERO,
        };
        let deadline = Instant::now() + self.inner.request_timeout + wait;
        let mut unable: Vec<SocketAddr> = Vec::new();
        loop {
            let (server, call) = self.hand_over(request, deadline, &unable).await?;
            match tokio::time::timeout_at(deadline, call.answer()).await {
                Ok(Ok(Response::Refused(refusal))) => {
                    unable.push(server);
                    if !may_be_served_elsewhere(&refusal) || self.inner.pool.pick(&unable).is_none() {
                        return Err(ClientError::Refused(refusal));
                    }
                }
                Ok(Err(ClientError::ConnectionLost)) if only_looks(request) => {}
                Ok(outcome) => return outcome,
                Err(_) => return Err(ClientError::TimedOut),
            }
        }
    }

    /// Gives the request to a connection, of a server that is not `unable` where there is one. One that was lost a
    /// moment ago has not taken it: the next one gets it.
    async fn hand_over(
        &self,
        request: &Request,
        deadline: Instant,
        unable: &[SocketAddr],
    ) -> Result<(SocketAddr, Call), ClientError> {
        loop {
            let link = match self.inner.pool.pick(unable) {
                Some(link) => link,
                None => self.inner.pool.link(deadline).await?,
            };
            match tokio::time::timeout_at(deadline, link.session(request).call(request)).await {
                // The task that keeps the connection takes it out of the pool.
                Ok(Err(ClientError::ConnectionLost)) => tokio::task::yield_now().await,
                Ok(outcome) => return outcome.map(|call| (link.server(), call)),
                Err(_) => {
                    let reason = "too much waits to be sent".to_owned();
                    return Err(ClientError::Connect { server: link.server().to_string(), reason });
                }
            }
        }
    }

    /// The connections that are up, for those who watch over a client.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        let status = |link: &Arc<crate::link::Link>| {
            let welcome = link.welcome();
            ConnectionStatus {
                server: link.server(),
                node: welcome.node,
                core: welcome.core,
                cores: welcome.cores,
                version: welcome.version.clone(),
                answering: !link.is_doubtful(),
            }
        };
        self.inner.pool.up().iter().map(status).collect()
    }

    /// Ends the connections. What is under way fails with [`ClientError::ConnectionLost`], later requests with
    /// [`ClientError::Closed`]. Returns when the servers were told.
    pub async fn close(&self) {
        self.inner.pool.close();
        let tasks = core::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            let _ = task.await;
        }
    }
}

/// One connection that is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionStatus {
    /// Its server's address.
    pub server: SocketAddr,
    /// The node that answered there.
    pub node: u64,
    /// The core that serves the connection.
    pub core: u16,
    /// Cores of the node.
    pub cores: u16,
    /// Version of the server.
    pub version: String,
    /// False where the server has confirmed nothing for a second: others are asked first.
    pub answering: bool,
}

/// The server did nothing and cannot for now; another one may: it leads, or is not stopping.
fn may_be_served_elsewhere(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::NoQuorum | ErrorCode::Stopping) && refusal.retry_is_safe()
}

/// True for requests that change nothing, so that they are simply asked again where the connection is lost.
const fn only_looks(request: &Request) -> bool {
    match request {
        Request::GetQueue { .. }
        | Request::ListQueues { .. }
        | Request::Stats { .. }
        | Request::Peek { .. }
        | Request::Inspect { .. }
        | Request::DlqList { .. }
        | Request::Cluster
        | Request::Ready
        | Request::Metrics => true,
        Request::Hello { .. }
        | Request::PutQueue { .. }
        | Request::DeleteQueue { .. }
        | Request::Enqueue { .. }
        | Request::Receive(_)
        | Request::CancelReceive { .. }
        | Request::Undelivered { .. }
        | Request::Settle(_)
        | Request::Cancel { .. }
        | Request::Purge { .. }
        | Request::DlqRedrive(_)
        | Request::DlqPurge { .. }
        | Request::ChangeCluster(_) => false,
    }
}
