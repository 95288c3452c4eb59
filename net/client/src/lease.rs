//! One lease in hand: keeps it while it is needed and ends it once, one way or the other.

use crate::settler::{Settlement, Settler, Settling};
use core::ops::Deref;
use overtake_wire::message::{Delivered, Settled};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a message is released with that was dropped without a word.
const DROPPED: &str = "dropped before it was settled";

/// Extends a lease of `lease_s` whenever half of it is over. Returns when the lease is lost, which is known from the
/// server only: while none answers, trying goes on.
pub(crate) async fn keep(settler: &Settler, receipt: &str, lease_s: u32) {
    loop {
        tokio::time::sleep(Duration::from_secs(u64::from(lease_s)) / 2).await;
        if let Ok(Settled::Stale | Settled::Unknown) =
            settler.order(receipt, Settlement::Extend { lease_s }).await
        {
            tracing::warn!(receipt, "a lease was lost while its message was held");
            return;
        }
    }
}

/// A received message whose lease is held: to be acked, extended or released by hand. Gives the message's fields by
/// itself ([`Delivered`]).
///
/// Dropped without being settled it is released, with an error text that says so. A process that dies says nothing:
/// its messages come back when their leases expire.
#[derive(Debug)]
pub struct LeasedMessage {
    message: Delivered,
    lease: Lease,
}

struct Lease {
    settler: Arc<Settler>,
    receipt: String,
    settled: bool,
    keeper: Option<Keeper>,
}

#[derive(Debug)]
struct Keeper {
    task: JoinHandle<()>,
    lost: watch::Receiver<bool>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl core::fmt::Debug for Lease {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lease").field("receipt", &self.receipt).field("settled", &self.settled).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.settled {
            drop(self.end(Settlement::Release { delay_s: None, error: Some(DROPPED.into()) }));
        }
    }
}

impl Lease {
    fn end(&mut self, settlement: Settlement) -> Settling {
        self.settled = true;
        // Before the order, so that no extension comes behind it.
        self.keeper = None;
        self.settler.order(&self.receipt, settlement)
    }
}

impl LeasedMessage {
    /// Holds `message`. With `keep_s` its lease is extended by that whenever half of it is over.
    pub(crate) fn hold(message: Delivered, settler: Arc<Settler>, keep_s: Option<u32>) -> Self {
        let receipt = message.receipt.to_string();
        let keeper = keep_s.map(|lease_s| {
            let (lose, lost) = watch::channel(false);
            let (settler, receipt) = (settler.clone(), receipt.clone());
            let task = tokio::spawn(async move {
                keep(&settler, &receipt, lease_s).await;
                lose.send_replace(true);
            });
            Keeper { task, lost }
        });
        Self { message, lease: Lease { settler, receipt, settled: false, keeper } }
    }

    /// Lets the lease run from now on.
    pub(crate) fn stop_keeping(&mut self) {
        self.lease.keeper = None;
    }

    /// The message is done: deletes it. Sent at once, together with what else is to be settled; the outcome need not
    /// be awaited.
    pub fn ack(mut self) -> Settling {
        self.lease.end(Settlement::Ack)
    }

    /// Sets the lease's end to `lease_s` (1..=43200) from now.
    pub fn extend(&self, lease_s: u32) -> Settling {
        self.lease.settler.order(&self.lease.receipt, Settlement::Extend { lease_s })
    }

    /// Gives the message back: it could not be worked on. The queue decides when it is delivered again.
    pub fn release(mut self, error: impl Into<String>) -> Settling {
        self.lease.end(Settlement::Release { delay_s: None, error: Some(error.into()) })
    }

    /// Gives the message back, to be delivered again after `delay_s` (0: at once), with or without an error text that
    /// is kept.
    pub fn release_after(mut self, delay_s: u64, error: Option<String>) -> Settling {
        self.lease.end(Settlement::Release { delay_s: Some(delay_s), error })
    }

    /// Gives the message back as if it had never been delivered: for one that nobody has looked at. Unlike a release this
    /// counts no failure.
    pub fn return_unseen(mut self) -> Settling {
        self.lease.end(Settlement::Unseen)
    }

    /// True where the lease was found lost while it was kept: the message is somebody else's by now, and its ack will
    /// be answered as stale.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lease.keeper.as_ref().is_some_and(|keeper| *keeper.lost.borrow())
    }

    /// The message without its lease, which runs out by itself unless it is settled by its receipt
    /// ([`crate::Client::settle`]).
    #[must_use]
    pub fn into_message(self) -> Delivered {
        let Self { message, mut lease } = self;
        lease.settled = true;
        message
    }
}

impl Deref for LeasedMessage {
    type Target = Delivered;

    fn deref(&self) -> &Delivered {
        &self.message
    }
}
