//! Gathers acks, extensions and releases of many messages into few requests. What comes while a request is under way
//! goes with the next one.

use crate::backoff::Backoff;
use crate::calls::SettledLists;
use crate::client::Client;
use crate::error::ClientError;
use crate::session::unexpected;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use overtake_base::hash::Set;
use overtake_base::limits::SETTLE_RECEIPTS_MAX;
use overtake_wire::message::{Extend, Release, Request, Response, Settle, Settled};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// What shall happen to one lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Settlement {
    Ack,
    Extend {
        lease_s: u32,
    },
    Release {
        delay_s: Option<u64>,
        error: Option<String>,
    },
    /// Nobody has looked at the message: its delivery did not happen.
    Unseen,
}

/// The outcome of an ack, an extension or a release, to be awaited. It is sent also where this is dropped.
///
/// An ack whose answer was lost is repeated; where the repeat finds the message gone, the first one is taken to have
/// done it, and the outcome is [`Settled::Ok`].
///
/// # Errors
/// Where it could not be told to a server within a lease's time, the error of the last try.
#[derive(Debug)]
#[must_use = "await it for the outcome, or `drop` it"]
pub struct Settling(oneshot::Receiver<Result<Settled, ClientError>>);

impl Future for Settling {
    type Output = Result<Settled, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|outcome| outcome.unwrap_or(Err(ClientError::Closed)))
    }
}

struct Order {
    receipt: String,
    settlement: Settlement,
    outcome: oneshot::Sender<Result<Settled, ClientError>>,
}

enum Input {
    Order(Order),
    Flush(oneshot::Sender<()>),
}

/// Takes orders for leases of one queue. Its task ends when it is dropped and everything ordered is done.
pub(crate) struct Settler {
    inputs: mpsc::UnboundedSender<Input>,
}

impl Settler {
    /// Orders are tried for `lease`: after that there is nothing left to save.
    pub(crate) fn start(client: Client, queue: &str, lease: Duration) -> Self {
        let (inputs, taken) = mpsc::unbounded_channel();
        let clerk = Clerk { client, queue: queue.to_owned(), lease };
        tokio::spawn(clerk.run(taken));
        Self { inputs }
    }

    pub(crate) fn order(&self, receipt: &str, settlement: Settlement) -> Settling {
        let (outcome, told) = oneshot::channel();
        let order = Order { receipt: receipt.to_owned(), settlement, outcome };
        // The task is gone only with its runtime; then the outcome says that the client is closed.
        let _ = self.inputs.send(Input::Order(order));
        Settling(told)
    }

    /// Returns when everything that was ordered before is done.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.inputs.send(Input::Flush(done)).is_ok() {
            let _ = flushed.await;
        }
    }
}

struct Clerk {
    client: Client,
    queue: String,
    lease: Duration,
}

impl Clerk {
    async fn run(self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        let mut put_off: Option<Input> = None;
        loop {
            let Some(first) = (match put_off.take() {
                Some(input) => Some(input),
                None => inputs.recv().await,
            }) else {
                return;
            };
            let first = match first {
                Input::Order(order) => order,
                Input::Flush(done) => {
                    let _ = done.send(());
                    continue;
                }
            };
            let mut named = Set::from_iter([first.receipt.clone()]);
            let mut batch = vec![first];
            while batch.len() < SETTLE_RECEIPTS_MAX
                && let Ok(input) = inputs.try_recv()
            {
                match input {
                    Input::Order(order) if named.insert(order.receipt.clone()) => batch.push(order),
                    // A flush; or an extension whose message is done in the same moment: a call may name a receipt once.
                    later => {
                        put_off = Some(later);
                        break;
                    }
                }
            }
            let (unseen, seen): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|order| order.settlement == Settlement::Unseen);
            for batch in [seen, unseen] {
                if !batch.is_empty() {
                    self.settle(batch).await;
                }
            }
        }
    }

    /// Repeating a settle is safe.
    async fn settle(&self, batch: Vec<Order>) {
        let give_up = Instant::now() + self.lease;
        let mut backoff = Backoff::default();
        let mut answer_lost = false;
        let request = self.request(&batch);
        loop {
            let error = match self.send(&request).await {
                Ok(lists) => return tell(batch, lists, answer_lost),
                Err(error) => error,
            };
            answer_lost |= error.fate_unknown();
            let pause = backoff.next_delay().max(error.retry_after());
            let hopeless = !error.retry_is_safe() && !error.fate_unknown();
            if hopeless || matches!(error, ClientError::Protocol(_)) || Instant::now() + pause >= give_up {
                tracing::warn!(queue = self.queue, %error, messages = batch.len(), "cannot settle");
                for order in batch {
                    let _ = order.outcome.send(Err(error.clone()));
                }
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn send(&self, request: &Request) -> Result<SettledLists, ClientError> {
        match request {
            Request::Settle(settle) => self.client.settle(settle.clone()).await,
            request => match self.client.request_ref(request).await? {
                // To what nobody has seen, and about which nothing is told.
                Response::Done => Ok(SettledLists::default()),
                other => Err(unexpected(&other)),
            },
        }
    }

    fn request(&self, batch: &[Order]) -> Request {
        if batch.iter().all(|order| order.settlement == Settlement::Unseen) {
            let receipts = batch.iter().map(|order| order.receipt.clone()).collect();
            return Request::Undelivered { queue: self.queue.clone(), receipts };
        }
        let mut settle = Settle { queue: self.queue.clone(), ..Settle::default() };
        for Order { receipt, settlement, .. } in batch {
            let receipt = receipt.clone();
            match settlement {
                Settlement::Ack => settle.ack.push(receipt),
                Settlement::Extend { lease_s } => settle.extend.push(Extend { receipt, lease_s: *lease_s }),
                Settlement::Release { delay_s, error } => {
                    settle.release.push(Release { receipt, delay_s: *delay_s, error: error.clone() });
                }
                Settlement::Unseen => {}
            }
        }
        Request::Settle(settle)
    }
}

fn tell(batch: Vec<Order>, lists: SettledLists, answer_lost: bool) {
    let (mut ack, mut extend, mut release) =
        (lists.ack.into_iter(), lists.extend.into_iter(), lists.release.into_iter());
    for Order { settlement, outcome, .. } in batch {
        let settled = match settlement {
            Settlement::Ack => ack.next().map(|settled| match settled {
                Settled::Unknown if answer_lost => Settled::Ok,
                settled => settled,
            }),
            Settlement::Extend { .. } => extend.next(),
            // Whichever try did it, or the lease's end: the message is no longer held, which is all a release is for.
            Settlement::Release { .. } => {
                release.next().map(|settled| if answer_lost { Settled::Ok } else { settled })
            }
            Settlement::Unseen => Some(Settled::Ok),
        };
        if let Some(settled) = settled {
            let _ = outcome.send(Ok(settled));
        }
    }
}
