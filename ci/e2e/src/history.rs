//! What clients saw, as plain values: calls with the time they were made, the time their answer came, and the answer.
//! Times are Unix milliseconds of the one clock that clients and server share.

use std::collections::BTreeSet;

/// A call of one client. An answer that never came is an unknown fate: the call may have been carried out or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// When the request was sent.
    pub start_ms: u64,
    /// When its answer was there, or the connection was seen to be gone.
    pub end_ms: u64,
    /// What was asked and answered.
    pub what: What,
}

/// What was asked and answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// An enqueue of one message under a client-made id.
    Enqueue(Enqueue),
    /// Messages that one receive brought.
    Receive(Vec<Delivery>),
    /// One receipt of an ack, extend or release.
    Settle(Settle),
    /// A cancel; `None` is an unknown fate, else whether it was cancelled.
    Cancel { id: String, cancelled: Option<bool> },
    /// A redrive of all dead letters that was done, or whose fate is unknown. Such a one takes effect before its
    /// connection is gone or never: what a killed server had not written is lost with it.
    Redrive,
    /// A look at the counts.
    Stats(Counts),
}

/// One try to store a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enqueue {
    /// The client-made id.
    pub id: String,
    /// The dedup key, if one was given.
    pub key: Option<String>,
    /// Not to be delivered before, in Unix milliseconds; 0 where it was not delayed.
    pub due_ms: u64,
    /// Its time to live from its first visibility, if one was given.
    pub expires_in_ms: Option<u64>,
    /// What came back.
    pub outcome: EnqueueOutcome,
}

/// What an enqueue was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnqueueOutcome {
    /// Stored, or stored before: the id it is known by.
    Accepted { id: String, duplicate: bool },
    /// Refused, nothing stored.
    Refused,
    /// No answer, or one that says it is not known.
    Unknown,
}

/// One delivered message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Its id.
    pub id: String,
    /// Proof of the lease.
    pub receipt: String,
    /// Deliveries, this one counted.
    pub deliveries: u64,
    /// When the lease ends.
    pub lease_expires_at_ms: u64,
    /// Whether the body was the one that was enqueued under this id.
    pub intact: bool,
}

/// One receipt of an ack call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settle {
    /// The message.
    pub id: String,
    /// The fencing number in the receipt.
    pub deliveries: u64,
    /// What was asked.
    pub action: Action,
    /// What came back.
    pub outcome: SettleOutcome,
}

/// What to do with a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Delete the message.
    Ack,
    /// Give the lease a new end, so many milliseconds from now.
    Extend { lease_ms: u64 },
    /// Return the message, not to be delivered for so many milliseconds.
    Release { delay_ms: u64 },
}

/// What a receipt was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettleOutcome {
    /// Done.
    Ok,
    /// Not the current lease, or no such message: nothing done.
    Rejected,
    /// No answer.
    Unknown,
}

/// Counts of stats, summed over levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub visible: u64,
    pub delayed: u64,
    pub leased: u64,
    pub dlq: u64,
    pub enqueued: u64,
    pub acked: u64,
    pub cancelled: u64,
    pub purged: u64,
    pub expired: u64,
    pub deliveries: u64,
}

/// What was there at the end, when nobody used the queue any more.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct End {
    /// Ids of visible, delayed and leased messages.
    pub live: BTreeSet<String>,
    /// Ids of dead letters.
    pub dead: BTreeSet<String>,
    /// The last counts.
    pub counts: Counts,
    /// After how many failed deliveries a message of this queue is dead.
    pub max_deliveries: u64,
}
