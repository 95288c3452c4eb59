//! Receiving: workers that take, work, and then ack, fail or forget.

use super::meter;
use super::run::Run;
use super::sequence::Fate;
use super::{LoadError, LoadOptions};
use overtake_client::{
    ClientError, Delivered, MessageId, Receive, Release, Request, Response, Settle, Settled,
};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a consumer waits for a message before it looks whether the run is over, in seconds.
const WAIT_S: u32 = 1;
/// How long a call that did not come through is repeated.
const RETRY_FOR: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// What a release says.
const ERROR_TEXT: &str = "failed by the load tool, as asked";
const GIVEN_BACK_TEXT: &str = "the load tool ended before this was worked on";

/// Why a consumer cannot go on.
#[derive(Debug)]
pub(super) enum Failed {
    /// The queue holds what the load tool did not make.
    ForeignMessage(MessageId),
}

/// One worker.
pub(super) struct Consumer {
    run: Rc<Run>,
    receive: Request,
    any_level: bool,
    work: Duration,
}

impl Consumer {
    pub(super) fn new(run: Rc<Run>, options: &LoadOptions) -> Self {
        let receive = Receive {
            max: options.take,
            wait_s: WAIT_S,
            lease_s: options.lease_s,
            max_priority: options.max_priority,
            ..Receive::new(run.queue.as_str())
        };
        let any_level = options.max_priority.is_none();
        Self { run, receive: Request::Receive(receive), any_level, work: options.work }
    }

    /// Works until the run stops.
    pub(super) async fn work(self) -> Result<(), LoadError> {
        let mut taken = self.take().await?;
        loop {
            if !self.work.is_zero() && !taken.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(self.work.saturating_mul(taken.len() as u32)) => {}
                    // What is not done by the end of the drain is not acked: it goes back as it came.
                    () = self.run.end.wait() => return self.give_back(taken).await,
                }
            }
            if self.run.end.has_come() {
                return self.settle(taken).await;
            }
            // The answer to the acks travels while the next messages are asked for.
            let (settled, next) = tokio::join!(self.settle(taken), self.take());
            settled?;
            taken = next?;
        }
    }

    /// Takes messages and notes each.
    async fn take(&self) -> Result<Vec<(Delivered, Fate)>, LoadError> {
        let mut give_up = None;
        let (start_ns, messages) = loop {
            let start_ns = self.run.clock.now();
            let answer = tokio::select! {
                answer = self.run.client().request_ref(&self.receive) => answer,
                // Takes the receive back; what is on its way is released.
                () = self.run.end.wait() => return Ok(vec![]),
            };
            match answer {
                Ok(Response::Received { messages }) => break (start_ns, messages),
                Ok(_) => return Err(ClientError::Protocol("not an answer to a receive".into()).into()),
                // Asking again is always right; what was delivered by a lost answer comes back after its lease.
                Err(error) => {
                    self.run.trouble(&error);
                    pause(error, &mut give_up).await?;
                }
            }
            if self.run.end.has_come() {
                return Ok(vec![]);
            }
        };
        let received = (start_ns, self.run.clock.now());
        let mut taken = Vec::with_capacity(messages.len());
        for message in messages {
            match self.run.delivered(&message, received, self.any_level) {
                Ok(fate) => taken.push((message, fate)),
                Err(Failed::ForeignMessage(id)) => {
                    return Err(LoadError::Foreign(id, self.run.queue.clone()));
                }
            }
        }
        Ok(taken)
    }

    /// Releases what was not worked on to its end.
    async fn give_back(&self, taken: Vec<(Delivered, Fate)>) -> Result<(), LoadError> {
        let taken = taken.into_iter().map(|(message, _)| (message, Fate::Fail)).collect();
        self.settle_saying(taken, GIVEN_BACK_TEXT).await
    }

    async fn settle(&self, taken: Vec<(Delivered, Fate)>) -> Result<(), LoadError> {
        self.settle_saying(taken, ERROR_TEXT).await
    }

    async fn settle_saying(&self, taken: Vec<(Delivered, Fate)>, error: &str) -> Result<(), LoadError> {
        let mut settle = Settle { queue: self.run.queue.clone(), ..Settle::default() };
        let (mut acks, mut releases) = (Vec::new(), Vec::new());
        for (message, fate) in taken {
            let receipt = message.receipt.to_string();
            match fate {
                Fate::Ack => {
                    settle.ack.push(receipt);
                    acks.push(message);
                }
                Fate::Fail => {
                    let error = Some(error.to_owned());
                    settle.release.push(Release { receipt, error, ..Release::default() });
                    self.run.giving_back(&message);
                    releases.push(message);
                }
                Fate::Abandon => self.run.state.borrow_mut().meter.counts.abandoned += 1,
            }
        }
        if acks.is_empty() && releases.is_empty() {
            return Ok(());
        }
        let request = Request::Settle(settle);
        let (start, mut repeated, mut give_up) = (Instant::now(), false, None);
        let (acked, released) = loop {
            match self.run.client().request_ref(&request).await {
                Ok(Response::Settled { ack, release, .. })
                    if ack.len() == acks.len() && release.len() == releases.len() =>
                {
                    break (ack, release);
                }
                Ok(_) => return Err(ClientError::Protocol("not an answer to a settle".into()).into()),
                Err(error) => {
                    repeated |= error.fate_unknown();
                    self.run.trouble(&error);
                    pause(error, &mut give_up).await?;
                }
            }
        };
        let latency = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.run.state.borrow_mut().meter.record(meter::SETTLE, latency);
        let note = |messages: &[Delivered], outcomes: Vec<Settled>, ack| {
            for (message, outcome) in messages.iter().zip(outcomes) {
                self.run.settled(message, ack, repeated, outcome);
            }
        };
        note(&acks, acked, true);
        note(&releases, released, false);
        Ok(())
    }
}

/// Waits before a call is repeated; gives the error back where that is no use, or was tried for long enough.
async fn pause(error: ClientError, give_up: &mut Option<Instant>) -> Result<(), LoadError> {
    let again = error.fate_unknown() || error.retry_is_safe();
    if !again || Instant::now() >= *give_up.get_or_insert_with(|| Instant::now() + RETRY_FOR) {
        return Err(error.into());
    }
    tokio::time::sleep(RETRY_PAUSE).await;
    Ok(())
}
