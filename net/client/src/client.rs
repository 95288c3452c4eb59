//! The client: sends requests over the pool's connections and gives each a time-out.

use crate::error::ClientError;
use crate::options::ConnectOptions;
use crate::pool::Pool;
use crate::session::Call;
use overtake_wire::message::{Request, Response};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A client of a queue server. Cheap to clone; clones share its connections, and the last one to go closes them.
///
/// Any number of requests may be under way at a time. Lost connections are made again in the background; a request
/// waits for one up to its time-out.
///
/// ```no_run
/// # async fn example() -> Result<(), overtake_client::ClientError> {
/// use overtake_client::{Client, ConnectOptions, EnqueueMessage, Receive, Settle};
/// let client = Client::connect(ConnectOptions::default()).await?;
/// let message = EnqueueMessage { priority: 1, body: "hello".into(), ..Default::default() };
/// for outcome in client.enqueue("mail", vec![message]).await? {
///     println!("stored as {}", outcome?.id);
/// }
/// for message in client.receive(Receive::new("mail")).await? {
///     let ack = vec![message.receipt.to_string()];
///     client.settle(Settle { queue: "mail".into(), ack, ..Default::default() }).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
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
        let (pool, tasks) = Pool::start(&options).await?;
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
        let call = self.hand_over(request, deadline).await?;
        match tokio::time::timeout_at(deadline, call.answer()).await {
            Ok(Ok(Response::Refused(refusal))) => Err(ClientError::Refused(refusal)),
            Ok(outcome) => outcome,
            Err(_) => Err(ClientError::TimedOut),
        }
    }

    /// Gives the request to a connection. One that was lost a moment ago has not taken it: the next one gets it.
    async fn hand_over(&self, request: &Request, deadline: Instant) -> Result<Call, ClientError> {
        loop {
            let link = self.inner.pool.link(deadline).await?;
            match tokio::time::timeout_at(deadline, link.session(request).call(request)).await {
                // The task that keeps the connection takes it out of the pool.
                Ok(Err(ClientError::ConnectionLost)) => tokio::task::yield_now().await,
                Ok(outcome) => return outcome,
                Err(_) => {
                    let reason = "too much waits to be sent".to_owned();
                    return Err(ClientError::Connect { server: link.server().to_string(), reason });
                }
            }
        }
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
