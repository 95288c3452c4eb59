//! `receive --exec`: a worker. Receives, runs the command for each message and settles by its verdict; the consumer keeps
//! the leases of everything it holds. The first stop finishes the running message and gives the others back; the second
//! ends the running one, too.

use super::Session;
use super::process::{self, Process, Verdict};
use super::stop::Stop;
use crate::exit::{Exit, Failure, Outcome};
use overtake_client::{Consumer, LeasedMessage, Settled, Settling};
use std::time::Duration;

/// Between tries to reach a server that is away.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

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
}

impl Worker<'_> {
    /// Works until there is nothing more (without `follow`) or until stopped.
    pub async fn run(&self, consumer: &mut Consumer) -> Outcome {
        let mut tally = Tally::default();
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
                Err(error) => return Err(self.session.failure(error)),
            }
        }
        Ok(self.outcome(false, tally))
    }

    fn outcome(&self, empty: bool, tally: Tally) -> Exit {
        let Tally { acked, released, lost } = tally;
        let screen = self.session.screen;
        if empty {
            screen.note("nothing to receive");
            return Exit::Nothing;
        }
        let lost_text = if lost > 0 { format!(", {lost} whose lease had ended") } else { String::new() };
        screen.note(&format!("{acked} acked, {released} given back{lost_text}"));
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
            let (id, error) = (message.id, self.work(&message).await);
            let (settling, done) = match error {
                None => (message.ack(), &mut tally.acked),
                Some(error) => {
                    self.session.screen.note(&format!("{id}: {error}"));
                    (message.release(error), &mut tally.released)
                }
            };
            match self.settled(settling).await? {
                Settled::Ok => *done += 1,
                Settled::Stale | Settled::Unknown => {
                    let note = format!("{id}: its lease had ended; it may be delivered again");
                    self.session.screen.note(&note);
                    tally.lost += 1;
                }
            }
        }
        // What was never started, to be delivered elsewhere at once.
        let releases: Vec<Settling> = held.map(|message| message.release_after(0, None)).collect();
        for release in releases {
            tally.released += u64::from(self.settled(release).await? == Settled::Ok);
        }
        Ok(())
    }

    async fn settled(&self, settling: Settling) -> Result<Settled, Failure> {
        settling.await.map_err(|error| self.session.failure(error))
    }

    /// Runs the command for one message. Returns why it failed.
    async fn work(&self, message: &LeasedMessage) -> Option<String> {
        let process = match Process::start(self.command, self.queue, message) {
            Ok(process) => process,
            Err(Verdict::Done) => return None,
            Err(Verdict::Failed(error)) => return Some(error),
        };
        let group = process.group();
        let ended = process.wait();
        tokio::pin!(ended);
        let mut interrupted = false;
        loop {
            tokio::select! {
                verdict = &mut ended => return match verdict {
                    Verdict::Done => None,
                    Verdict::Failed(_) if interrupted => Some("interrupted".to_owned()),
                    Verdict::Failed(error) => Some(error),
                },
                () = self.stop.insisted(), if !interrupted => {
                    process::end(group);
                    interrupted = true;
                }
            }
        }
    }
}
