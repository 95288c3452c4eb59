//! What clients asked and what they were answered, as it was, in virtual time. Checkers judge it afterwards.

use bytes::Bytes;
use overtake_base::hash::stable;
use overtake_base::{MessageId, UnixMillis};
use overtake_wire::message::{EnqueueMessage, Headers, Request, Response};

/// Number of a message that was made: its content names it.
pub type Number = u64;

const NUMBER_HEADER: &str = "number";
const NUMBER_BYTES: usize = size_of::<Number>();

/// One request.
#[derive(Debug)]
pub struct Call {
    /// Number of the queue it is about.
    pub queue: usize,
    /// Number of the node that it was sent to.
    pub node: usize,
    /// Virtual time it was sent.
    pub start_ns: u64,
    /// What was asked.
    pub request: Request,
    /// For an enqueue: the messages' numbers.
    pub numbers: Vec<Number>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a request.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing yet.
    Open,
    /// An answer, at a virtual time.
    Answered(u64, Response),
    /// The connection is gone: nobody knows.
    Lost,
}

impl Call {
    /// When it was answered, and what.
    #[must_use]
    pub fn answer(&self) -> Option<(u64, &Response)> {
        match &self.outcome {
            Outcome::Answered(at_ns, response) => Some((*at_ns, response)),
            Outcome::Open | Outcome::Lost => None,
        }
    }
}

/// A message that was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// Number of its queue.
    pub queue: usize,
    /// As it is sent, each time.
    pub message: EnqueueMessage,
}

/// A stretch of virtual time in which the node could not do its work in time.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub from_ns: u64,
    pub to_ns: u64,
}

/// What was held up goes on for so long as if it still were, in nanoseconds.
const RECOVERY_NS: u64 = 1_000_000_000;

impl Outage {
    /// One that did not end before the run did.
    #[must_use]
    pub fn from_on(from_ns: u64) -> Self {
        Self { from_ns, to_ns: u64::MAX }
    }
}

/// Everything that a checker may look at.
#[derive(Default, Debug)]
pub struct History {
    /// In the order sent.
    pub calls: Vec<Call>,
    /// By number.
    pub made: Vec<Made>,
    /// In the order of their beginning.
    pub outages: Vec<Outage>,
    /// When shards got new leaders, which others hear of a moment later: virtual times.
    pub elected_ns: Vec<u64>,
    /// When the end began: configurations are not the plan's any more.
    pub end_from_ns: Option<u64>,
    /// There are several nodes: what was leased for an answered receive may have been lost between them.
    pub lossy: bool,
    /// Messages for a client that has not read its earlier answers go back, and its receive is answered empty.
    pub little_room: bool,
}

impl History {
    /// Notes a request; gives its place.
    pub fn ask(
        &mut self,
        queue: usize,
        node: usize,
        start_ns: u64,
        request: Request,
        numbers: Vec<Number>,
    ) -> usize {
        self.calls.push(Call { queue, node, start_ns, request, numbers, outcome: Outcome::Open });
        self.calls.len() - 1
    }

    /// True where the call was made before the end began.
    #[must_use]
    pub fn calls_before_end(&self, call: &Call) -> bool {
        self.end_from_ns.is_none_or(|end_ns| call.start_ns < end_ns)
    }

    /// True where the node was undisturbed from one time to another, and for a while before.
    #[must_use]
    pub fn was_well(&self, from_ns: u64, to_ns: u64) -> bool {
        !self
            .outages
            .iter()
            .any(|outage| outage.from_ns <= to_ns && outage.to_ns.saturating_add(RECOVERY_NS) >= from_ns)
    }

    /// True where besides no leader changed: calls between nodes came to whom they were meant for.
    #[must_use]
    pub fn was_steady(&self, from_ns: u64, to_ns: u64) -> bool {
        let range = from_ns.saturating_sub(RECOVERY_NS)..=to_ns.saturating_add(RECOVERY_NS);
        self.was_well(from_ns, to_ns) && !self.elected_ns.iter().any(|at_ns| range.contains(at_ns))
    }
}

/// Content that names its message: by its first bytes, by a header, or by its id alone.
#[must_use]
pub fn content(number: Number, body_bytes: usize, by_header: bool, by_id: bool) -> (Headers, Bytes) {
    let mut headers = Headers::new();
    let mut body = Vec::with_capacity(body_bytes.max(NUMBER_BYTES));
    if by_header {
        headers.push((NUMBER_HEADER.into(), number.to_string()));
        headers.push(("trace".into(), format!("{:x}", stable(&number.to_le_bytes()))));
    } else if !by_id {
        body.extend_from_slice(&number.to_le_bytes());
    }
    while body.len() < body_bytes {
        let more = stable(&[number.to_le_bytes(), (body.len() as u64).to_le_bytes()].concat());
        let left = body_bytes - body.len();
        body.extend_from_slice(&more.to_le_bytes()[..left.min(8)]);
    }
    (headers, body.into())
}

/// An id that a client makes for a message.
#[must_use]
pub fn client_id(number: Number, wall: UnixMillis) -> MessageId {
    const CLIENT: u128 = 0x5e5e << 64;
    MessageId::new(wall.0, CLIENT | u128::from(number))
}

/// The message that content and id name.
#[must_use]
pub fn identify(id: MessageId, headers: &Headers, body: &[u8]) -> Option<Number> {
    let random = id.0 & ((1 << 80) - 1);
    if random >> 64 == 0x5e5e && random & 0xffff_ffff_0000_0000 == 0 {
        return Some(random as u64);
    }
    if let Some((_, number)) = headers.iter().find(|(name, _)| name == NUMBER_HEADER) {
        return number.parse().ok();
    }
    body.get(..NUMBER_BYTES).and_then(|bytes| bytes.try_into().ok()).map(Number::from_le_bytes)
}
