//! Messages one by one or in batches, for those who settle by hand.

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::ClientError;
use crate::lease::LeasedMessage;
use crate::settler::Settler;
use overtake_base::limits::{LEASE_S_MAX, RECEIVE_MESSAGES_MAX, WAIT_S_MAX};
use overtake_wire::message::Receive;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How a consumer takes messages.
#[derive(Clone, Debug)]
pub struct ConsumerOptions {
    /// Messages of one receive, 1..=1000. [`Consumer::next`] hands them out one after the other, so that with more
    /// than one what comes meanwhile waits behind them, however urgent it is. Default: 10.
    pub max: u32,
    /// How long [`Consumer::receive`] waits for the first message, 0..=20 s. Default: 20.
    pub wait_s: u32,
    /// Lease of each message, 1..=43200 s. Default: 30.
    pub lease_s: u32,
    /// Only messages of levels 0..=this.
    pub max_priority: Option<u32>,
    /// Label under which the queue's statistics show the consumer.
    pub label: Option<String>,
    /// Extend the lease of each message that is held whenever half of it is over. Without it only messages that wait
    /// to be handed out are kept, and half a lease or more is left when [`Consumer::next`] gives one. Default: false.
    pub keep_leases: bool,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self { max: 10, wait_s: WAIT_S_MAX, lease_s: 30, max_priority: None, label: None, keep_leases: false }
    }
}

/// Takes messages of one queue. Their acks, extensions and releases are gathered and sent in batches behind.
///
#[doc = concat!("```\n", include_str!("../docs/consumer.rs"), "```")]
pub struct Consumer {
    client: Client,
    receive: Receive,
    settler: Arc<Settler>,
    lease_s: u32,
    keep_leases: bool,
    waiting: VecDeque<LeasedMessage>,
}

impl Consumer {
    /// A consumer of `queue`. Options out of range are brought to the nearest that can work. Must be called within a
    /// tokio runtime.
    #[must_use]
    pub fn new(client: Client, queue: &str, options: ConsumerOptions) -> Self {
        let lease_s = options.lease_s.clamp(1, LEASE_S_MAX);
        let receive = Receive {
            queue: queue.to_owned(),
            max: options.max.clamp(1, RECEIVE_MESSAGES_MAX),
            wait_s: options.wait_s.min(WAIT_S_MAX),
            lease_s: Some(lease_s),
            max_priority: options.max_priority,
            worker: options.label,
        };
        let lease = Duration::from_secs(u64::from(lease_s));
        let settler = Arc::new(Settler::start(client.clone(), queue, lease));
        Self { client, receive, settler, lease_s, keep_leases: options.keep_leases, waiting: VecDeque::new() }
    }

    /// One receive: the most urgent messages, at most `max`; none where there are none within `wait_s`. Dropping the
    /// future takes the receive back.
    ///
    /// # Errors
    /// Those of [`Client::receive`].
    pub async fn receive(&mut self) -> Result<Vec<LeasedMessage>, ClientError> {
        if !self.waiting.is_empty() {
            return Ok(core::mem::take(&mut self.waiting).into_iter().map(|m| self.hand_out(m)).collect());
        }
        let keep_s = self.keep_leases.then_some(self.lease_s);
        let messages = self.client.receive(self.receive.clone()).await?;
        Ok(messages
            .into_iter()
            .map(|message| LeasedMessage::hold(message, self.settler.clone(), keep_s))
            .collect())
    }

    /// The next message; waits for it as long as it takes. Connections that are lost and servers that cannot serve for
    /// the moment are waited for, too. Dropping the future loses no message.
    ///
    /// # Errors
    /// Those of [`Client::receive`] that do not pass by themselves, for example where there is no such queue.
    pub async fn next(&mut self) -> Result<LeasedMessage, ClientError> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(message) = self.waiting.pop_front() {
                // A message that waited so long that its lease was lost is somebody else's.
                if message.is_lost() {
                    drop(message.into_message());
                    continue;
                }
                return Ok(self.hand_out(message));
            }
            // A consumer that does not wait would ask without end.
            let receive = Receive { wait_s: self.receive.wait_s.max(1), ..self.receive.clone() };
            match self.client.receive(receive).await {
                Ok(messages) => {
                    backoff = Backoff::default();
                    let hold =
                        |message| LeasedMessage::hold(message, self.settler.clone(), Some(self.lease_s));
                    self.waiting = messages.into_iter().map(hold).collect();
                }
                Err(error) if error.passes() => {
                    tracing::debug!(queue = self.receive.queue, %error, "cannot receive for now");
                    tokio::time::sleep(backoff.next_delay().max(error.retry_after())).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn hand_out(&self, mut message: LeasedMessage) -> LeasedMessage {
        if !self.keep_leases {
            message.stop_keeping();
        }
        message
    }

    /// Returns when everything that was settled before this call has its outcome.
    pub async fn flush(&self) {
        self.settler.flush().await;
    }

    /// Gives back what was received and not handed out, and returns when everything settled has its outcome. Messages
    /// that were handed out stay with their holders.
    pub async fn close(mut self) {
        for message in self.waiting.drain(..) {
            drop(message.return_unseen());
        }
        self.settler.flush().await;
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        for message in self.waiting.drain(..) {
            drop(message.return_unseen());
        }
    }
}
