//! The listener: binds, accepts, serves, stops.

use crate::body::BodyBudget;
use crate::connection::Connections;
use crate::options::GatewayOptions;
use crate::routes;
use crate::servers::Servers;
use crate::state::Gateway;
use core::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Why a gateway does not run.
#[derive(Debug)]
pub enum GatewayError {
    /// The listener could not be bound.
    Bind {
        /// Where to.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The thread or its runtime could not be made.
    Start(io::Error),
    /// The gateway's thread ended by a panic.
    Panicked,
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { address, source } if source.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "address in use: {address}; another process listens there for HTTP")
            }
            Self::Bind { address, source } => write!(f, "cannot listen on {address} for HTTP: {source}"),
            Self::Start(source) => write!(f, "cannot start the HTTP gateway: {source}"),
            Self::Panicked => f.write_str("the HTTP gateway's thread ended by a panic"),
        }
    }
}

impl core::error::Error for GatewayError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. } | Self::Start(source) => Some(source),
            Self::Panicked => None,
        }
    }
}

/// Serves until `shutdown` comes, then stops accepting and ends after the requests under way, at the latest after
/// `stop_timeout`. Servers need not be there yet: requests are answered with 503 until they are.
///
/// # Errors
/// [`GatewayError::Bind`] where the listener cannot be bound.
pub async fn serve(options: GatewayOptions, shutdown: impl Future) -> Result<(), GatewayError> {
    let listener = bind(options.listen)?;
    run(options, listener, shutdown).await
}

/// A gateway on a thread of its own.
#[derive(Debug)]
pub struct GatewayHandle {
    /// Where it listens; the port is chosen where `listen` named port 0.
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<Result<(), GatewayError>>,
}

impl GatewayHandle {
    /// Tells the gateway to stop and returns at once; see [`GatewayHandle::join`].
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until the gateway has ended: call [`GatewayHandle::stop`] before.
    ///
    /// # Errors
    /// What ended it, where it was not told to stop.
    pub fn join(self) -> Result<(), GatewayError> {
        self.thread.join().unwrap_or(Err(GatewayError::Panicked))
    }
}

/// Starts a gateway on a thread of its own, named `overtake-http`. It is bound when this returns.
///
/// # Errors
/// [`GatewayError::Bind`] where the listener cannot be bound, [`GatewayError::Start`] where there is no thread for it.
pub fn spawn(options: GatewayOptions) -> Result<GatewayHandle, GatewayError> {
    let listener = bind(options.listen)?;
    let address = listener.local_addr().map_err(GatewayError::Start)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(GatewayError::Start)?;
    let (stop, mut stopped) = watch::channel(false);
    let thread = std::thread::Builder::new()
        .name("overtake-http".into())
        .spawn(move || {
            // A handle that was dropped counts as one that told the gateway to stop.
            let shutdown = async move { stopped.wait_for(|stop| *stop).await.is_ok() };
            runtime.block_on(run(options, listener, shutdown))
        })
        .map_err(GatewayError::Start)?;
    Ok(GatewayHandle { address, stop, thread })
}

fn bind(address: SocketAddr) -> Result<std::net::TcpListener, GatewayError> {
    let bound = std::net::TcpListener::bind(address);
    let listener = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|source| GatewayError::Bind { address, source })
}

async fn run(
    options: GatewayOptions,
    listener: std::net::TcpListener,
    shutdown: impl Future,
) -> Result<(), GatewayError> {
    let listener = TcpListener::from_std(listener).map_err(GatewayError::Start)?;
    let servers = Servers::quic(options.connect.clone(), options.tokens_max);
    accept(&options, servers, listener, shutdown).await;
    Ok(())
}

/// Accepts connections until `shutdown`, then waits for them to end.
pub(crate) async fn accept(
    options: &GatewayOptions,
    servers: Servers,
    listener: TcpListener,
    shutdown: impl Future,
) {
    let (stop, stopping) = watch::channel(false);
    let gateway = Gateway {
        servers,
        auth: options.auth,
        own_token: options.connect.token.clone(),
        body_timeout: options.body_timeout,
        bodies: BodyBudget::new(options.body_bytes_max),
        stopping: stopping.clone(),
    };
    let gateway = Arc::new(gateway);
    let connections = Connections::new(options, routes::router(gateway.clone()));
    let mut tasks = JoinSet::new();
    tokio::select! {
        never = accept_all(options.connections_max, &listener, &connections, &stopping, &mut tasks) => match never {},
        _ = shutdown => {}
    }
    drop(listener);
    stop.send_replace(true);
    let ended =
        tokio::time::timeout(options.stop_timeout, async { while tasks.join_next().await.is_some() {} });
    if ended.await.is_err() {
        tracing::warn!(
            connections = tasks.len(),
            "HTTP requests were still under way when the time to stop was over"
        );
        tasks.shutdown().await;
    }
    if tokio::time::timeout(options.stop_timeout, gateway.servers.close()).await.is_err() {
        tracing::warn!("the servers did not take leave in time");
    }
}

async fn accept_all(
    connections_max: usize,
    listener: &TcpListener,
    connections: &Connections,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> core::convert::Infallible {
    const PAUSE: Duration = Duration::from_millis(50);
    let room = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
    loop {
        // The semaphore is never closed; were it, a pause is all that can be done.
        let Ok(place) = room.clone().acquire_owned().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while tasks.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are written whole: waiting for more to send only adds delay.
                let _ = stream.set_nodelay(true);
                let connection = connections.clone().serve(stream, stopping.clone());
                tasks.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            // A client that was gone before it was accepted, or no file descriptors left: neither ends the listener.
            Err(error) => {
                tracing::warn!(%error, "an HTTP connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
