//! Short histories of one queue, told by hand, for the tests of what concludes from them.

use crate::checkers::Case;
use crate::clocks::Clocks;
use crate::facts::gather;
use crate::history::{Call, History, Made, Number, Outage, Outcome, content};
use crate::swarm::{QueuePlan, Swarm};
use overtake_base::queue_config::Scheduling;
use overtake_base::{MessageId, Receipt, Sequence, ShardId, UnixMillis};
use overtake_wire::message::{Delay, Delivered, EnqueueMessage, Enqueued, Receive, Request, Response};

const NANOS_PER_MS: u64 = 1_000_000;
const LEASE_S: u32 = 7;

/// A first delivery: of which message, its shard and sequence, and when it was leased, in milliseconds.
pub(crate) type Got = (Number, u16, u64, u64);

/// A history in which the clock of every shard shows virtual time, and requests take effect when they are sent.
#[derive(Default)]
pub(crate) struct Sample {
    history: History,
    enqueued_ms: Vec<u64>,
    /// Deliveries that the queue allows; 5 where absent.
    max_deliveries: Option<u32>,
}

impl Sample {
    /// Of a queue that allows so many deliveries.
    pub(crate) fn allowing(max_deliveries: u32) -> Self {
        Self { max_deliveries: Some(max_deliveries), ..Self::default() }
    }

    /// A message is stored.
    pub(crate) fn enqueue(&mut self, at_ms: u64, priority: u32, delay: Delay) -> Number {
        let number = self.history.made.len() as Number;
        let (headers, body) = content(number, 8, false, false);
        let message = EnqueueMessage { priority, headers, body, delay, ..EnqueueMessage::default() };
        let request = Request::Enqueue { queue: "queue-0".into(), messages: vec![message.clone()] };
        let enqueued = Enqueued { id: id(number), shard: 0, duplicate: false };
        let stored = Response::Enqueued { results: vec![Ok(enqueued)] };
        self.history.made.push(Made { queue: 0, message });
        self.enqueued_ms.push(at_ms);
        self.call(at_ms, request, vec![number], at_ms + 1, stored);
        number
    }

    /// A receive is answered with these, in this order.
    pub(crate) fn receive(&mut self, start_ms: u64, end_ms: u64, got: &[Got]) {
        let receive = Receive { lease_s: Some(LEASE_S), ..Receive::new("queue-0") };
        let messages = got.iter().map(|got| self.delivered(*got)).collect();
        self.call(start_ms, Request::Receive(receive), Vec::new(), end_ms, Response::Received { messages });
    }

    /// A receive is answered with a message that is at this level by now, and on its way for so many times.
    pub(crate) fn receive_moved(&mut self, at_ms: u64, number: Number, priority: u8, deliveries: u32) {
        let mut moved = self.delivered((number, 0, 9, at_ms));
        (moved.priority, moved.deliveries, moved.receipt.deliveries) = (priority, deliveries, deliveries);
        let received = Response::Received { messages: vec![moved] };
        self.ask(at_ms, Request::Receive(Receive::new("queue-0")), received);
    }

    /// Something else is asked, and answered at once.
    pub(crate) fn ask(&mut self, at_ms: u64, request: Request, response: Response) {
        self.call(at_ms, request, Vec::new(), at_ms + 10, response);
    }

    /// Something is held up.
    pub(crate) fn outage(&mut self, from_ms: u64, to_ms: u64) {
        let (from_ns, to_ns) = (from_ms * NANOS_PER_MS, to_ms * NANOS_PER_MS);
        self.history.outages.push(Outage { from_ns, to_ns });
    }

    /// Shows it to a checker: of a queue with so many shards.
    pub(crate) fn show<T>(&self, shards: u16, to: impl FnOnce(&Case<'_>) -> T) -> T {
        let mut plan = Swarm::of_seed(0);
        let queue = plan.queues[0].clone();
        let scheduling = Scheduling::Weighted;
        plan.queues = vec![QueuePlan {
            shards,
            scheduling,
            levels: 5,
            max_deliveries: self.max_deliveries.unwrap_or(5),
            dead_letter_expired: false,
            backoff_max_s: 0,
            capped: false,
            ..queue
        }];
        let mut clocks = Clocks::default();
        clocks.started(0, UnixMillis(0));
        let facts = gather(&plan, &self.history, &clocks, None);
        to(&Case { queue: &facts[0], plan: &plan, history: &self.history, clocks: &clocks })
    }

    fn delivered(&self, (number, shard, sequence, leased_ms): Got) -> Delivered {
        let message = &self.history.made[number as usize].message;
        Delivered {
            id: id(number),
            priority: u8::try_from(message.priority).unwrap_or(u8::MAX),
            receipt: Receipt { shard: ShardId(shard), sequence: Sequence(sequence), deliveries: 1 },
            deliveries: 1,
            enqueued_at: UnixMillis(self.enqueued_ms[number as usize]),
            lease_expires_at: UnixMillis(leased_ms + u64::from(LEASE_S) * 1_000),
            headers: message.headers.clone(),
            share: false,
            body: message.body.clone(),
        }
    }

    fn call(
        &mut self,
        start_ms: u64,
        request: Request,
        numbers: Vec<Number>,
        end_ms: u64,
        response: Response,
    ) {
        let start_ns = start_ms * NANOS_PER_MS;
        let outcome = Outcome::Answered(end_ms * NANOS_PER_MS, response);
        self.history.calls.push(Call { queue: 0, node: 0, start_ns, request, numbers, outcome });
    }
}

pub(crate) fn id(number: Number) -> MessageId {
    MessageId::new(1, u128::from(number))
}
