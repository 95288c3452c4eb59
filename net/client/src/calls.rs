//! One method for each request, with the response's own type.

use crate::client::Client;
use crate::error::ClientError;
use crate::session::unexpected;
use bytes::Bytes;
use overtake_base::{MessageId, QueueConfig, QueueConfigPatch};
use overtake_wire::message::{
    ClusterChange, DeadLetter, Delivered, EnqueueMessage, Enqueued, Inspected, Metric, NodeStatus,
    PeekStates, PeekedMessage, QueueListed, Receive, Redrive, Refusal, Request, Response, Settle, Settled,
    ShardStatus, Stats,
};

/// Outcomes of a settle, in the order of its three lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SettledLists {
    pub ack: Vec<Settled>,
    pub extend: Vec<Settled>,
    pub release: Vec<Settled>,
}

/// One page of a listing.
#[derive(Clone, PartialEq, Debug)]
pub struct Page<T> {
    /// The entries.
    pub entries: Vec<T>,
    /// Pass it as `after` to get the next page; none after the last one.
    pub next: Option<String>,
}

/// Sends the request and takes the one response that belongs to it.
macro_rules! ask {
    ($client:expr, $request:expr, $($pattern:pat => $value:expr),+) => {
        match $client.request($request).await? {
            $($pattern => Ok($value),)+
            other => Err(unexpected(&other)),
        }
    };
}

impl Client {
    /// Creates a queue (`true`) or changes the fields that the patch names. Gives the whole configuration.
    pub async fn put_queue(
        &self,
        queue: &str,
        patch: QueueConfigPatch,
    ) -> Result<(bool, QueueConfig), ClientError> {
        let request = Request::PutQueue { queue: queue.to_owned(), patch };
        ask!(self, request, Response::QueuePut { created, config } => (created, config))
    }

    /// A queue's configuration.
    pub async fn get_queue(&self, queue: &str) -> Result<QueueConfig, ClientError> {
        ask!(self, Request::GetQueue { queue: queue.to_owned() }, Response::Queue { config } => config)
    }

    /// Up to `limit` (1..=1000) queues by name.
    pub async fn list_queues(
        &self,
        limit: u32,
        after: Option<String>,
    ) -> Result<Page<QueueListed>, ClientError> {
        let request = Request::ListQueues { limit, after };
        ask!(self, request, Response::Queues { queues, next } => Page { entries: queues, next })
    }

    /// Deletes a queue with its messages.
    pub async fn delete_queue(&self, queue: &str) -> Result<(), ClientError> {
        ask!(self, Request::DeleteQueue { queue: queue.to_owned() }, Response::Done => ())
    }

    /// Stores messages, 1..=1000 in one call, and gives each one's outcome in order. Never retries by itself: whether a
    /// repeat is safe depends on the messages' ids and dedup keys. [`crate::Producer`] does.
    pub async fn enqueue(
        &self,
        queue: &str,
        messages: Vec<EnqueueMessage>,
    ) -> Result<Vec<Result<Enqueued, Refusal>>, ClientError> {
        let count = messages.len();
        let request = Request::Enqueue { queue: queue.to_owned(), messages };
        match self.request(request).await? {
            Response::Enqueued { results } if results.len() == count => Ok(results),
            other => Err(unexpected(&other)),
        }
    }

    /// Leases the most urgent messages. Dropping the future takes the receive back.
    pub async fn receive(&self, receive: Receive) -> Result<Vec<Delivered>, ClientError> {
        ask!(self, Request::Receive(receive), Response::Received { messages } => messages)
    }

    /// Ends, extends and gives back leases. Safe to repeat.
    pub async fn settle(&self, settle: Settle) -> Result<SettledLists, ClientError> {
        let counts = [settle.ack.len(), settle.extend.len(), settle.release.len()];
        match self.request(Request::Settle(settle)).await? {
            Response::Settled { ack, extend, release }
                if [ack.len(), extend.len(), release.len()] == counts =>
            {
                Ok(SettledLists { ack, extend, release })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Counts and totals of a queue.
    pub async fn stats(&self, queue: &str) -> Result<Stats, ClientError> {
        ask!(self, Request::Stats { queue: queue.to_owned() }, Response::Stats(stats) => stats)
    }

    /// Messages without leasing them.
    pub async fn peek(
        &self,
        queue: &str,
        states: PeekStates,
        priority: Option<u32>,
        limit: u32,
        after: Option<String>,
    ) -> Result<Page<PeekedMessage>, ClientError> {
        let request = Request::Peek { queue: queue.to_owned(), states, priority, limit, after };
        ask!(self, request, Response::Peeked { messages, next } => Page { entries: messages, next })
    }

    /// Where a message is, and why it was not delivered.
    pub async fn inspect(&self, queue: &str, id: MessageId) -> Result<Inspected, ClientError> {
        let request = Request::Inspect { queue: queue.to_owned(), id };
        ask!(self, request, Response::Inspected(inspected) => inspected)
    }

    /// Deletes a visible or delayed message.
    pub async fn cancel(&self, queue: &str, id: MessageId) -> Result<(), ClientError> {
        ask!(self, Request::Cancel { queue: queue.to_owned(), id }, Response::Done => ())
    }

    /// Deletes all visible and delayed messages and gives their number.
    pub async fn purge(&self, queue: &str) -> Result<u64, ClientError> {
        ask!(self, Request::Purge { queue: queue.to_owned() }, Response::Purged { purged } => purged)
    }

    /// Dead letters.
    pub async fn dlq_list(
        &self,
        queue: &str,
        limit: u32,
        after: Option<String>,
    ) -> Result<Page<DeadLetter>, ClientError> {
        let request = Request::DlqList { queue: queue.to_owned(), limit, after };
        ask!(self, request, Response::DeadLetters { messages, next } => Page { entries: messages, next })
    }

    /// Brings dead letters back and gives the number that will move.
    pub async fn dlq_redrive(&self, redrive: Redrive) -> Result<u64, ClientError> {
        ask!(self, Request::DlqRedrive(redrive), Response::Redriven { moved } => moved)
    }

    /// Deletes all dead letters and gives their number.
    pub async fn dlq_purge(&self, queue: &str) -> Result<u64, ClientError> {
        ask!(self, Request::DlqPurge { queue: queue.to_owned() }, Response::Purged { purged } => purged)
    }

    /// Nodes and shards of the cluster.
    pub async fn cluster(&self) -> Result<(Vec<NodeStatus>, Vec<ShardStatus>), ClientError> {
        ask!(self, Request::Cluster, Response::Cluster { nodes, shards } => (nodes, shards))
    }

    /// Changes the cluster; gives what a node keeps of it.
    pub async fn change_cluster(&self, change: ClusterChange) -> Result<Bytes, ClientError> {
        ask!(self, Request::ChangeCluster(change), Response::ClusterChanged { members } => members)
    }

    /// Shards of the node that have no leader or no quorum; none = ready.
    pub async fn ready(&self) -> Result<Vec<u16>, ClientError> {
        ask!(self, Request::Ready, Response::Readiness { not_ready } => not_ready)
    }

    /// Counters of the node.
    pub async fn metrics(&self) -> Result<Vec<Metric>, ClientError> {
        ask!(self, Request::Metrics, Response::Metrics { values } => values)
    }
}
