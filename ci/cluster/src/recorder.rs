//! Writes down what clients ask and are answered, as a history of the simulator: the same requests and responses, with
//! the time since the recording began where the simulator has virtual time.

use overtake_base::UnixMillis;
use overtake_client::{Client, ClientError};
use overtake_e2e::now_ms;
use overtake_sim::clocks::Clocks;
use overtake_sim::history::{History, Made, Number, Outage, Outcome};
use overtake_wire::message::{EnqueueMessage, Request, Response};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// How far the time that a node stamps may be from this machine's clock, in milliseconds: a process may be held up
/// between looking at its clock and using it. Far less than any jump of a clock here, far more than any hold-up.
const CLOCK_ERROR_MS: u64 = 10_000;
/// The one queue of a history.
const QUEUE: usize = 0;

/// A history that is being written.
pub struct Recorder {
    begun: Instant,
    begun_at: UnixMillis,
    history: Mutex<History>,
}

impl Default for Recorder {
    /// An empty one, which begins now. Real machines are never known to be undisturbed: what the checkers hold against
    /// time limits only on nodes that are well is not held against these, and what is leased may be lost between nodes.
    fn default() -> Self {
        let always = Outage { from_ns: 0, to_ns: u64::MAX };
        let history = History { outages: vec![always], lossy: true, ..History::default() };
        Self { begun: Instant::now(), begun_at: UnixMillis(now_ms()), history: Mutex::new(history) }
    }
}

impl Recorder {
    /// Time since it began.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// What the nodes' shard clocks may show, whatever happens to their wall clocks.
    #[must_use]
    pub fn clocks(&self) -> Clocks {
        let mut clocks = Clocks::of_cluster(CLOCK_ERROR_MS);
        clocks.started(0, self.begun_at);
        clocks
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("nobody fails while it is held")
    }

    /// Looks at what is there so far.
    pub fn look<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.history())
    }

    /// Writes by hand.
    #[cfg(test)]
    pub(crate) fn change(&self, change: impl FnOnce(&mut History)) {
        change(&mut self.history());
    }

    /// From now on the configuration is not the plan's any more.
    pub fn end_begins(&self) {
        self.history().end_from_ns = Some(self.now_ns());
    }

    /// The whole history, once nobody writes any more.
    #[must_use]
    pub fn into_history(self) -> History {
        self.history.into_inner().expect("nobody failed while it was held")
    }

    /// Notes a message that is going to be sent, perhaps several times.
    pub fn make(&self, make: impl FnOnce(Number) -> EnqueueMessage) -> Number {
        let mut history = self.history();
        let number = history.made.len() as Number;
        history.made.push(Made { queue: QUEUE, message: make(number) });
        number
    }

    /// The messages of these numbers, as they are sent.
    #[must_use]
    pub fn made(&self, numbers: &[Number]) -> Vec<EnqueueMessage> {
        let history = self.history();
        numbers.iter().map(|number| history.made[*number as usize].message.clone()).collect()
    }

    /// Asks, and writes down what came of it. A request that may never have been sent counts as one of unknown fate.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub async fn ask(
        &self,
        client: &Client,
        request: Request,
        numbers: Vec<Number>,
    ) -> Result<Response, ClientError> {
        // The client chooses the node, and may change it; nothing is judged here by which one it was.
        let node = 0;
        let call = self.history().ask(QUEUE, node, self.now_ns(), request.clone(), numbers);
        let answer = client.request_ref(&request).await;
        let outcome = match &answer {
            Ok(response) => Outcome::Answered(self.now_ns(), response.clone()),
            Err(ClientError::Refused(refusal)) => {
                Outcome::Answered(self.now_ns(), Response::Refused(refusal.clone()))
            }
            Err(_) => Outcome::Lost,
        };
        self.history().calls[call].outcome = outcome;
        answer
    }
}
