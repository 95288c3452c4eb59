//! `receive --exec`: a worker. Receives, runs the command for each message and settles by its verdict; the consumer keeps
//! the leases of everything it holds. The first stop finishes the running message and gives the others back; the second
//! ends the running one, too.

use super::process::{self, Process, Verdict};
use super::stop::Stop;
use super::{Session, is_no_queue};
use crate::exit::{Exit, Failure, Outcome};
use overtake_client::{Consumer, LeasedMessage, Settled, Settling};
use std::time::Duration;

/// Between tries to reach a server that is away.
pub const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Between two tries of a queue that is not there yet.
pub const QUEUE_PAUSE: Duration = Duration::from_secs(1);
/// After two failed messages in a row; twice as long after each further one.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);
/// The longest of those pauses.
const FAILURE_PAUSE_MAX: Duration = Duration::from_secs(30);

/// A worker on one queue.
pub struct Worker<'a> {
    /// Where remarks go.
    pub session: &'a Session,
    /// Name of the queue.
    pub queue: &'a str,
    /// Run for each message, through the shell.
    pub command: &'a str,
    /// Go on until stopped.
    pub follow: bool,
    /// When to stop.
    pub stop: Stop,
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    acked: u64,
    released: u64,
    /// Done or failed, but the lease had ended before that could be said.
    lost: u64,
    /// Failed messages since the last one that was done.
    failures_in_a_row: u32,
}

/// How long to wait before the next message: where all fail, something else than the messages may be at fault, and a
/// worker that goes on at full speed would make dead letters of a whole queue.
fn failure_pause(failures_in_a_row: u32) -> Duration {
    match failures_in_a_row.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => (FAILURE_PAUSE * 2u32.saturating_pow(doublings.min(16))).min(FAILURE_PAUSE_MAX),
    }
}

impl Worker<'_> {
    /// Works until there is nothing more (without `follow`) or until stopped.
    pub async fn run(&self, consumer: &mut Consumer) -> Outcome {
        let mut tally = Tally::default();
        let mut told = false;
        while !self.stop.is_asked() {
            let received = tokio::select! {
                received = consumer.receive() => received,
                () = self.stop.asked() => Ok(Vec::new()),
            };
            match received {
                Ok(messages) => {
                    let empty = messages.is_empty();
                    self.handle(messages, &mut tally).await?;
                    if !self.follow {
                        return Ok(self.outcome(empty, tally));
                    }
                }
                Err(error) if self.follow && error.passes() => {
                    self.session.screen.note(&format!("overtake: {error}; trying again"));
                    self.pause(RETRY_PAUSE.max(error.retry_after())).await;
                }
                // A worker may start before its producer.
                Err(error) if self.follow && is_no_queue(&error) => {
                    if !core::mem::replace(&mut told, true) {
                        let failure = self.session.failure_of_queue(error, self.queue);
                        self.session.screen.note(&format!("overtake: {failure}; waiting for it"));
                    }
                    self.pause(QUEUE_PAUSE).await;
                }
                Err(error) => return Err(self.session.failure_of_queue(error, self.queue)),
            }
        }
        Ok(self.outcome(false, tally))
    }

    fn outcome(&self, empty: bool, tally: Tally) -> Exit {
        let Tally { acked, released, lost, .. } = tally;
        let screen = self.session.screen;
        if screen.is_json() {
            let json = || serde_json::json!({ "acked": acked, "given_back": released, "lease_lost": lost });
            // A reader that is gone does not change what was done.
            let _ = screen.answer(json, |_| String::new());
        } else if empty {
            screen.note("nothing to receive");
        } else {
            let lost_text = if lost > 0 { format!(", {lost} whose lease had ended") } else { String::new() };
            screen.note(&format!("{acked} acked, {released} given back{lost_text}"));
        }
        if empty {
            return Exit::Nothing;
        }
        // A worker that was stopped did its duty, whatever single messages did.
        if (released + lost == 0) || self.follow { Exit::Ok } else { Exit::Failed }
    }

    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.stop.asked() => {}
        }
    }

    async fn handle(&self, messages: Vec<LeasedMessage>, tally: &mut Tally) -> Result<(), Failure> {
        let mut held = messages.into_iter();
        while !self.stop.is_asked() {
            let Some(message) = held.next() else { return Ok(()) };
            // One whose lease was lost while it waited is not started: it is somebody else's.
            if message.is_lost() {
                drop(message.into_message());
                continue;
            }
            let (id, verdict) = (message.id, self.work(&message).await);
            let (settling, count) = match &verdict {
                Verdict::Done => (message.ack(), &mut tally.acked),
                Verdict::Failed(error) => {
                    // What the command said on standard error was passed on already.
                    self.session.screen.note(&format!("{id}: {}; given back", status_of(error)));
                    (message.release(error.clone()), &mut tally.released)
                }
                // No message is at fault: its delivery does not count.
                Verdict::CannotRun(_) => (message.return_unseen(), &mut tally.released),
            };
            match self.settled(settling).await? {
                Settled::Ok => *count += 1,
                Settled::Stale | Settled::Unknown => {
                    let note = format!("{id}: its lease had ended; it may be delivered again");
                    self.session.screen.note(&note);
                    tally.lost += 1;
                }
            }
            let done = verdict == Verdict::Done;
            tally.failures_in_a_row = if done { 0 } else { tally.failures_in_a_row.saturating_add(1) };
            if let Verdict::CannotRun(error) = verdict {
                self.give_back(held, tally).await?;
                let what = format!("the command cannot be run ({error}); this worker ends, {id} is back");
                return Err(Failure::new(Exit::Failed, what));
            }
            self.calm_down(tally.failures_in_a_row).await;
        }
        self.give_back(held, tally).await
    }

    /// Pauses after failures in a row, where this worker goes on for ever. What it holds meanwhile stays leased.
    async fn calm_down(&self, failures_in_a_row: u32) {
        let pause = failure_pause(failures_in_a_row);
        if !self.follow || pause.is_zero() || self.stop.is_asked() {
            return;
        }
        let shown = crate::render::units::span(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        let note = format!("{failures_in_a_row} failures in a row; the next message in {shown}");
        self.session.screen.note(&note);
        self.pause(pause).await;
    }

    /// Returns what was never started, to be delivered elsewhere at once and without a failure.
    async fn give_back(
        &self,
        held: impl Iterator<Item = LeasedMessage>,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let returns: Vec<Settling> = held.map(LeasedMessage::return_unseen).collect();
        for returned in returns {
            tally.released += u64::from(self.settled(returned).await? == Settled::Ok);
        }
        Ok(())
    }

    async fn settled(&self, settling: Settling) -> Result<Settled, Failure> {
        settling.await.map_err(|error| self.session.failure(error))
    }

    /// Runs the command for one message.
    async fn work(&self, message: &LeasedMessage) -> Verdict {
        let process = match Process::start(self.command, self.queue, message) {
            Ok(process) => process,
            Err(verdict) => return verdict,
        };
        let group = process.group();
        let ended = process.wait();
        tokio::pin!(ended);
        let mut interrupted = false;
        loop {
            tokio::select! {
                verdict = &mut ended => return match verdict {
                    Verdict::Failed(_) if interrupted => Verdict::Failed("interrupted".to_owned()),
                    verdict => verdict,
                },
                () = self.stop.insisted(), if !interrupted => {
                    process::end(group);
                    interrupted = true;
                }
            }
        }
    }
}

/// The start of an error text of [`Verdict`]: `exit status: 3` of `exit status: 3: no such user`.
fn status_of(error: &str) -> &str {
    let is_status = |part: &str| part.chars().all(|c| c.is_ascii_digit() || c == ' ');
    let mut parts = error.splitn(3, ": ");
    match (parts.next(), parts.next()) {
        (Some(what), Some(number)) if is_status(number) => &error[..what.len() + 2 + number.len()],
        _ => error.lines().next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_failures_in_a_row() {
        let ms = |failures| failure_pause(failures).as_millis();
        assert_eq!(
            [0, 1, 2, 3, 4, 7, 8, 9, u32::MAX].map(ms),
            [0, 0, 500, 1_000, 2_000, 16_000, 30_000, 30_000, 30_000]
        );
    }

    #[test]
    fn a_remark_names_the_status_only() {
        for (error, status) in [
            ("exit status: 3: one\ntwo", "exit status: 3"),
            ("exit status: 3", "exit status: 3"),
            ("signal: 9 (SIGKILL)", "signal: 9 (SIGKILL)"),
            ("interrupted", "interrupted"),
            ("cannot start the command: no such file", "cannot start the command: no such file"),
        ] {
            assert_eq!(status_of(error), status);
        }
    }
}
