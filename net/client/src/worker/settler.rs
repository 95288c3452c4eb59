//! Gathers acks, extensions and releases of many messages into few requests. What comes while a request is under way
//! goes with the next one.

use crate::backoff::Backoff;
use crate::calls::SettledLists;
use crate::client::Client;
use crate::error::ClientError;
use overtake_base::hash::Set;
use overtake_base::limits::SETTLE_RECEIPTS_MAX;
use overtake_wire::message::{Extend, Release, Settle, Settled};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What shall happen to one lease.
pub(super) enum Settlement {
    Ack(String),
    Extend(String),
    /// With the error's text.
    Release(String, String),
}

impl Settlement {
    fn receipt(&self) -> &str {
        match self {
            Self::Ack(receipt) | Self::Extend(receipt) | Self::Release(receipt, _) => receipt,
        }
    }
}

type Order = (Settlement, oneshot::Sender<Settled>);

pub(super) struct Settler {
    orders: Mutex<Option<mpsc::UnboundedSender<Order>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Settler {
    pub(super) fn start(client: Client, queue: &str, lease_s: u32) -> Self {
        let (orders, taken) = mpsc::unbounded_channel();
        let clerk = Clerk { client, queue: queue.to_owned(), lease_s };
        Self { orders: Mutex::new(Some(orders)), task: Mutex::new(Some(tokio::spawn(clerk.run(taken)))) }
    }

    /// Gives the outcome; none where it could not be told within a lease's time.
    pub(super) async fn settle(&self, settlement: Settlement) -> Option<Settled> {
        let (outcome, told) = oneshot::channel();
        let sent = match &*self.orders.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(orders) => orders.send((settlement, outcome)).is_ok(),
            None => false,
        };
        if sent { told.await.ok() } else { None }
    }

    /// Returns when everything that was ordered is done.
    pub(super) async fn finish(&self) {
        drop(self.orders.lock().unwrap_or_else(PoisonError::into_inner).take());
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            let _ = task.await;
        }
    }
}

struct Clerk {
    client: Client,
    queue: String,
    lease_s: u32,
}

impl Clerk {
    async fn run(self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut put_off: Option<Order> = None;
        loop {
            let Some(first) = (match put_off.take() {
                Some(order) => Some(order),
                None => orders.recv().await,
            }) else {
                return;
            };
            let mut named = Set::from_iter([first.0.receipt().to_owned()]);
            let mut batch = vec![first];
            while batch.len() < SETTLE_RECEIPTS_MAX
                && let Ok(order) = orders.try_recv()
            {
                // An extension whose message is done in the same moment: a call may name a receipt once.
                if !named.insert(order.0.receipt().to_owned()) {
                    put_off = Some(order);
                    break;
                }
                batch.push(order);
            }
            self.settle(batch).await;
        }
    }

    /// Repeating a settle is safe. After a lease's time there is nothing left to save.
    async fn settle(&self, batch: Vec<Order>) {
        let give_up = Instant::now() + Duration::from_secs(u64::from(self.lease_s));
        let mut backoff = Backoff::default();
        let request = self.request(&batch);
        loop {
            let error = match self.client.settle(request.clone()).await {
                Ok(lists) => return tell(batch, lists),
                Err(error) => error,
            };
            let pause = backoff.next_delay();
            let hopeless = !error.retry_is_safe() && !error.fate_unknown();
            if hopeless || matches!(error, ClientError::Protocol(_)) || Instant::now() + pause >= give_up {
                tracing::warn!(queue = self.queue, %error, messages = batch.len(), "cannot settle");
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn request(&self, batch: &[Order]) -> Settle {
        let mut settle = Settle { queue: self.queue.clone(), ..Settle::default() };
        for (settlement, _) in batch {
            match settlement {
                Settlement::Ack(receipt) => settle.ack.push(receipt.clone()),
                Settlement::Extend(receipt) => {
                    settle.extend.push(Extend { receipt: receipt.clone(), lease_s: self.lease_s });
                }
                Settlement::Release(receipt, error) => settle.release.push(Release {
                    receipt: receipt.clone(),
                    delay_s: None,
                    error: Some(error.clone()),
                }),
            }
        }
        settle
    }
}

fn tell(batch: Vec<Order>, lists: SettledLists) {
    let (mut ack, mut extend, mut release) =
        (lists.ack.into_iter(), lists.extend.into_iter(), lists.release.into_iter());
    for (settlement, outcome) in batch {
        let settled = match settlement {
            Settlement::Ack(_) => ack.next(),
            Settlement::Extend(_) => extend.next(),
            Settlement::Release(..) => release.next(),
        };
        if let Some(settled) = settled {
            let _ = outcome.send(settled);
        }
    }
}
