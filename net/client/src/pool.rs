//! The connections of a client: made at the start, made again when lost, handed out in turn.

use crate::address::ServerAddress;
use crate::backoff::Backoff;
use crate::error::ClientError;
use crate::link::Link;
use crate::options::{CONNECTIONS_MAX, ConnectOptions};
use crate::quic::Connector;
use overtake_base::limits::TOKEN_BYTES_MAX;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What the tasks that keep connections share with those who use them.
pub(crate) struct Pool {
    links: watch::Sender<Links>,
    next: AtomicUsize,
}

#[derive(Default)]
struct Links {
    up: Vec<Arc<Link>>,
    failure: Option<ClientError>,
    closed: bool,
}

impl Pool {
    /// Connects, and keeps connecting in the background. An error where no connection could be made at first.
    pub(crate) async fn start(
        options: &ConnectOptions,
    ) -> Result<(Arc<Self>, Vec<JoinHandle<()>>), ClientError> {
        check(options)?;
        let connector = Arc::new(Connector::new(options)?);
        let pool = Arc::new(Self { links: watch::Sender::new(Links::default()), next: AtomicUsize::new(0) });
        let (first, mut outcomes) = mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        for number in 0..options.connections {
            for server in &options.servers {
                let keeper = Keeper {
                    pool: pool.clone(),
                    connector: connector.clone(),
                    server: server.clone(),
                    number,
                    token: options.token.clone(),
                    connections: options.connections,
                };
                tasks.push(tokio::spawn(keeper.run(first.clone())));
            }
        }
        drop(first);
        let mut failure = ClientError::Closed;
        while let Some(outcome) = outcomes.recv().await {
            match outcome {
                Ok(()) => return Ok((pool, tasks)),
                Err(error) => failure = error,
            }
        }
        pool.close();
        Err(failure)
    }

    /// A connection that is up, each in turn; waits for one until `deadline`.
    pub(crate) async fn link(&self, deadline: Instant) -> Result<Arc<Link>, ClientError> {
        if let Some(link) = self.pick(&[]) {
            return Ok(link);
        }
        let mut links = self.links.subscribe();
        let changed = links.wait_for(|links| links.closed || !links.up.is_empty());
        let waited = tokio::time::timeout_at(deadline, changed).await.is_ok();
        match self.pick(&[]) {
            Some(link) => Ok(link),
            None => {
                let links = self.links.borrow();
                Err(match &links.failure {
                    _ if links.closed => ClientError::Closed,
                    Some(failure) => failure.clone(),
                    // Lost again in this very moment, or never found out why within a short time-out.
                    None => ClientError::Connect {
                        server: "any server".into(),
                        reason: if waited { "connection lost" } else { "no connection in time" }.into(),
                    },
                })
            }
        }
    }

    /// A connection to a server that is not among `avoided`, each in turn; one whose server seems to be gone only where
    /// there is no other.
    pub(crate) fn pick(&self, avoided: &[SocketAddr]) -> Option<Arc<Link>> {
        let links = self.links.borrow();
        let up = &links.up;
        let turn = if up.len() > 1 { self.next.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let mut last_resort = None;
        for step in 0..up.len() {
            let link = &up[turn.wrapping_add(step) % up.len()];
            if avoided.contains(&link.server()) {
                continue;
            }
            if !link.is_doubtful() {
                return Some(link.clone());
            }
            last_resort.get_or_insert(link);
        }
        last_resort.cloned()
    }

    /// Whether a server other than this one answers.
    pub(crate) fn others_answer(&self, server: SocketAddr) -> bool {
        self.links.borrow().up.iter().any(|link| link.server() != server && !link.is_doubtful())
    }

    /// What is up now.
    pub(crate) fn up(&self) -> Vec<Arc<Link>> {
        self.links.borrow().up.clone()
    }

    /// Takes in a new connection. With `spread` only where its core does not have its part of the connections already.
    fn add(&self, link: &Arc<Link>, connections: usize, spread: bool) -> bool {
        self.links.send_if_modified(|links| {
            let (welcome, server) = (link.welcome(), link.server());
            let part = connections.div_ceil(usize::from(welcome.cores.max(1)));
            let same = |up: &&Arc<Link>| up.server() == server && up.welcome().core == welcome.core;
            if spread && links.up.iter().filter(same).count() >= part {
                return false;
            }
            links.failure = None;
            links.up.push(link.clone());
            true
        })
    }

    /// Tells the background tasks to end their connections and then themselves.
    pub(crate) fn close(&self) {
        self.links.send_modify(|links| links.closed = true);
    }
}

fn check(options: &ConnectOptions) -> Result<(), ClientError> {
    let refuse = |what: &str| Err(ClientError::Options(what.into()));
    if options.servers.is_empty() {
        return refuse("servers: name at least one");
    }
    if !(1..=CONNECTIONS_MAX).contains(&options.connections) {
        return refuse("connections: 1..=64 to each server");
    }
    if options.token.len() > TOKEN_BYTES_MAX {
        return refuse("token: at most 256 bytes");
    }
    Ok(())
}

/// Keeps one connection to one server.
struct Keeper {
    pool: Arc<Pool>,
    connector: Arc<Connector>,
    server: ServerAddress,
    /// Which of the connections to it: where a name has several addresses, each begins with another one.
    number: usize,
    token: String,
    /// To this server, by all its keepers.
    connections: usize,
}

/// How often a connection that came to a core with enough of them is made anew. The kernel draws the core by the
/// client's port.
const SPREAD_TRIES: u32 = 16;

impl Keeper {
    async fn run(self, first: mpsc::UnboundedSender<Result<(), ClientError>>) {
        let mut first = Some(first);
        let mut backoff = Backoff::default();
        let mut closing = self.pool.links.subscribe();
        let mut spread_tries = SPREAD_TRIES;
        loop {
            let established = tokio::select! {
                established = Link::establish(&self.connector, &self.server, self.number, &self.token) => established,
                _ = closing.wait_for(|links| links.closed) => return,
            };
            let outcome = match established {
                Ok(link) => {
                    backoff = Backoff::default();
                    let link = Arc::new(link);
                    if !self.pool.add(&link, self.connections, spread_tries > 0) {
                        spread_tries -= 1;
                        tokio::spawn(async move { link.close().await });
                        continue;
                    }
                    spread_tries = SPREAD_TRIES;
                    if let Some(first) = first.take() {
                        let _ = first.send(Ok(()));
                    }
                    let closed = tokio::select! {
                        _ = closing.wait_for(|links| links.closed) => true,
                        reason = link.lost(|| self.pool.others_answer(link.server())) => {
                            tracing::debug!(server = %self.server, reason, "connection lost");
                            false
                        }
                    };
                    self.pool.links.send_modify(|links| links.up.retain(|up| !Arc::ptr_eq(up, &link)));
                    link.close().await;
                    if closed {
                        return;
                    }
                    ClientError::Connect { server: self.server.to_string(), reason: "connection lost".into() }
                }
                Err(error) => {
                    tracing::debug!(server = %self.server, %error, "no connection");
                    error
                }
            };
            self.pool.links.send_modify(|links| links.failure = Some(outcome.clone()));
            if let Some(first) = first.take() {
                let _ = first.send(Err(outcome));
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                _ = closing.wait_for(|links| links.closed) => return,
            }
        }
    }
}
