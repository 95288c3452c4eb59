//! Messages: stored, delivered, peeked at, looked for, settled.

use super::scalar::{Base64, Pairs, Text, Time};
use overtake_base::{MessageId, Receipt};
use overtake_wire::message;
use serde::Serialize;
use utoipa::ToSchema;

/// A stored message, or the first one that its dedup key or id names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Enqueued {
    /// Its id.
    #[schema(value_type = String, examples("m_01JZ8D3V9QF3W3Q8B3M1S6T7VX"))]
    pub id: Text<MessageId>,
    /// Its shard.
    pub shard: u16,
    /// True where the dedup window answered and nothing was stored; absent otherwise.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    #[schema(required = false)]
    pub duplicate: bool,
}

impl From<message::Enqueued> for Enqueued {
    fn from(enqueued: message::Enqueued) -> Self {
        Self { id: Text(enqueued.id), shard: enqueued.shard, duplicate: enqueued.duplicate }
    }
}

/// Outcomes of a batch, in its order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct BatchOutcomes {
    /// One for each message.
    pub results: Vec<BatchOutcome>,
}

/// Outcome of one message of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum BatchOutcome {
    /// Stored, or answered by the dedup window.
    Stored {
        /// 202.
        status: u16,
        /// What a single enqueue answers.
        #[serde(flatten)]
        enqueued: Enqueued,
    },
    /// Refused.
    Refused {
        /// As a single enqueue would answer.
        status: u16,
        /// What is wrong, and what is allowed.
        detail: String,
        /// The field at fault.
        #[serde(skip_serializing_if = "Option::is_none")]
        field: Option<String>,
        /// `depth` or `rate` with 429.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'static str>,
        /// `unknown` with 503 where the message may have been stored: retry with the same `id` or `dedup_key`.
        #[serde(skip_serializing_if = "Option::is_none")]
        stored: Option<&'static str>,
    },
}

/// Leased messages; empty where none came within `wait_s`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Received {
    /// Most urgent first.
    pub messages: Vec<Delivered>,
}

/// One delivered message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Delivered {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Text<MessageId>,
    /// Its level.
    pub priority: u8,
    /// Proof of this lease, for ack, extend and release.
    #[schema(value_type = String, examples("r_3_1001_1"))]
    pub receipt: Text<Receipt>,
    /// How often it was delivered, this delivery counted.
    pub deliveries: u32,
    /// When it was accepted.
    pub enqueued_at: Time,
    /// When the lease ends.
    pub lease_expires_at: Time,
    /// The producer's.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub headers: Pairs<String>,
    /// True where it went to a share while something more urgent was visible; absent otherwise.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    #[schema(required = false)]
    pub share: bool,
    /// The producer's.
    pub body: Base64,
}

impl From<message::Delivered> for Delivered {
    fn from(delivered: message::Delivered) -> Self {
        Self {
            id: Text(delivered.id),
            priority: delivered.priority,
            receipt: Text(delivered.receipt),
            deliveries: delivered.deliveries,
            enqueued_at: Time(delivered.enqueued_at),
            lease_expires_at: Time(delivered.lease_expires_at),
            headers: Pairs(delivered.headers),
            share: delivered.share,
            body: Base64(delivered.body),
        }
    }
}

/// Outcomes by receipt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct SettleOutcomes {
    /// Receipt and outcome, in the order of the request.
    #[schema(value_type = std::collections::BTreeMap<String, SettleOutcome>)]
    pub results: Pairs<SettleOutcome>,
}

/// Outcome of one receipt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SettleOutcome {
    /// Done.
    Ok,
    /// The message is there, but this is not its current lease.
    Stale,
    /// No such message any more, or a malformed receipt.
    Unknown,
}

impl From<message::Settled> for SettleOutcome {
    fn from(settled: message::Settled) -> Self {
        match settled {
            message::Settled::Ok => Self::Ok,
            message::Settled::Stale => Self::Stale,
            message::Settled::Unknown => Self::Unknown,
        }
    }
}

/// One page of messages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Peeked {
    /// Not leased by this.
    pub messages: Vec<PeekedMessage>,
    /// Where the next page goes on; null at the end.
    pub next: Option<String>,
}

/// A message seen by a peek.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct PeekedMessage {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Text<MessageId>,
    /// Its level.
    pub priority: u8,
    /// Where it is.
    pub state: State,
    /// How often it was delivered.
    pub deliveries: u32,
    /// When it was accepted.
    pub enqueued_at: Time,
    /// While delayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<Time>,
    /// While leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Time>,
    /// The producer's.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub headers: Pairs<String>,
    /// The producer's.
    pub body: Base64,
}

impl From<message::PeekedMessage> for PeekedMessage {
    fn from(peeked: message::PeekedMessage) -> Self {
        Self {
            id: Text(peeked.id),
            priority: peeked.priority,
            state: peeked.state.into(),
            deliveries: peeked.deliveries,
            enqueued_at: Time(peeked.enqueued_at),
            deliver_at: peeked.deliver_at.map(Time),
            lease_expires_at: peeked.lease_expires_at.map(Time),
            headers: Pairs(peeked.headers),
            body: Base64(peeked.body),
        }
    }
}

/// Where a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[schema(as = MessageState)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Visible,
    Delayed,
    Leased,
    Dead,
}

impl From<message::MessageState> for State {
    fn from(state: message::MessageState) -> Self {
        match state {
            message::MessageState::Visible => Self::Visible,
            message::MessageState::Delayed => Self::Delayed,
            message::MessageState::Leased => Self::Leased,
            message::MessageState::Dead => Self::Dead,
        }
    }
}

/// Where a message is, and why it was not delivered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Inspected {
    /// Its id.
    #[schema(value_type = String)]
    pub id: Text<MessageId>,
    /// Its level.
    pub priority: u8,
    /// Where it is.
    pub state: State,
    /// Its shard.
    pub shard: u16,
    /// When it was accepted.
    pub enqueued_at: Time,
    /// While delayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<Time>,
    /// While leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Time>,
    /// Label of the worker that has it, while leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// How often it was delivered.
    pub deliveries: u32,
    /// Visible messages before it on its shard, while visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// Why it has not been delivered, in words.
    pub why: String,
}

impl From<message::Inspected> for Inspected {
    fn from(inspected: message::Inspected) -> Self {
        Self {
            id: Text(inspected.id),
            priority: inspected.priority,
            state: inspected.state.into(),
            shard: inspected.shard,
            enqueued_at: Time(inspected.enqueued_at),
            deliver_at: inspected.deliver_at.map(Time),
            lease_expires_at: inspected.lease_expires_at.map(Time),
            worker: inspected.worker,
            deliveries: inspected.deliveries,
            ahead: inspected.ahead,
            why: inspected.why,
        }
    }
}
