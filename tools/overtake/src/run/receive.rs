//! `overtake receive`: print, print and ack, or hand to a worker.

use super::stop::Stop;
use super::worker::{QUEUE_PAUSE, RETRY_PAUSE, Worker};
use super::{Session, is_no_queue, process};
use crate::cli::messages::ReceiveArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::render::messages as render;
use overtake_base::limits::{LEASE_S_DEFAULT, WAIT_S_MAX};
use overtake_client::{Consumer, ConsumerOptions, Delivered, Receive, Settle, Settled};
use overtake_gateway::json;
use std::cell::Cell;

/// Messages of one receive that names no number, as in the HTTP API.
const MAX_DEFAULT: u32 = 10;

/// A queue to receive from.
struct Source<'a> {
    session: &'a Session,
    receive: Receive,
    /// Waits for a queue that is not there yet: a consumer may start before its producer.
    follow: bool,
    told: Cell<bool>,
}

impl Source<'_> {
    async fn receive(&self) -> Result<Vec<Delivered>, Failure> {
        loop {
            let error = match self.session.client.receive(self.receive.clone()).await {
                Ok(messages) => return Ok(messages),
                Err(error) if self.follow && is_no_queue(&error) => error,
                Err(error) => return Err(self.session.failure_of_queue(error, &self.receive.queue)),
            };
            if !self.told.replace(true) {
                let failure = self.session.failure_of_queue(error, &self.receive.queue);
                self.session.screen.note(&format!("overtake: {failure}; waiting for it"));
            }
            tokio::time::sleep(QUEUE_PAUSE).await;
        }
    }

    async fn settle(&self, settle: Settle) -> Result<Vec<Settled>, Failure> {
        let settled =
            self.session.client.settle(settle).await.map_err(|error| self.session.failure(error))?;
        Ok([settled.ack, settled.extend, settled.release].concat())
    }
}

/// Receives as the arguments say.
pub async fn run(session: &Session, args: ReceiveArgs) -> Outcome {
    let stop = Stop::listen()?;
    let ReceiveArgs { queue, max, wait_s, lease_s, max_priority, worker, follow, exec, ack } = args;
    // Without any wait, following would ask without end.
    let wait_s = if follow { wait_s.unwrap_or(WAIT_S_MAX).max(1) } else { wait_s.unwrap_or(0) };
    if let Some(command) = exec {
        process::check(&command).await.map_err(Failure::usage)?;
        let options = ConsumerOptions {
            // A worker that works on one message at a time takes one: more would wait behind it, however urgent what
            // comes meanwhile.
            max: max.unwrap_or(1),
            wait_s,
            lease_s: lease_s.unwrap_or(LEASE_S_DEFAULT),
            max_priority,
            label: worker,
            keep_leases: true,
        };
        let mut consumer = Consumer::new(session.client.clone(), &queue, options);
        let worker = Worker { session, queue: &queue, command: &command, follow, stop };
        let outcome = worker.run(&mut consumer).await;
        // What a failure left unsettled is given back before the connection ends.
        consumer.close().await;
        return outcome;
    }
    let max = max.unwrap_or(MAX_DEFAULT);
    let receive = Receive { queue, max, wait_s, lease_s, max_priority, worker };
    print(&Source { session, receive, follow, told: Cell::new(false) }, follow, ack, &stop).await
}

async fn print(source: &Source<'_>, follow: bool, ack: bool, stop: &Stop) -> Outcome {
    let screen = source.session.screen;
    let mut goes_on = false;
    loop {
        let messages = tokio::select! {
            messages = source.receive() => match messages {
                Err(failure) if follow && is_passing(&failure) => {
                    screen.note(&format!("overtake: {failure}; trying again"));
                    tokio::select! {
                        () = tokio::time::sleep(RETRY_PAUSE) => {}
                        () = stop.asked() => {}
                    }
                    continue;
                }
                messages => messages?,
            },
            () = stop.asked() => return Ok(if follow { Exit::Ok } else { Exit::Nothing }),
        };
        if !(follow && messages.is_empty()) {
            screen.answer(
                || json::Received { messages: messages.iter().cloned().map(Into::into).collect() },
                |view| render::delivered(&messages, goes_on, view),
            )?;
            goes_on = !messages.is_empty();
        }
        let mut exit = Exit::Ok;
        if ack && !messages.is_empty() {
            exit = acked(source, &messages).await?;
        }
        if !follow {
            if messages.is_empty() {
                screen.note("nothing to receive");
                return Ok(Exit::Nothing);
            }
            return Ok(exit);
        }
    }
}

async fn acked(source: &Source<'_>, messages: &[Delivered]) -> Outcome {
    let ack: Vec<String> = messages.iter().map(|message| message.receipt.to_string()).collect();
    let settle = Settle { queue: source.receive.queue.clone(), ack, ..Settle::default() };
    let late = source.settle(settle).await?.iter().filter(|outcome| **outcome != Settled::Ok).count();
    if late == 0 {
        return Ok(Exit::Ok);
    }
    source.session.screen.note(&format!("{late} not acked: the lease had ended"));
    Ok(Exit::Nothing)
}

/// True where the same call may succeed in a while.
fn is_passing(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::NoConnection | Exit::Unknown | Exit::Later)
}
