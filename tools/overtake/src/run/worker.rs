//! `receive --exec`: a worker. Receives, runs the command for each message, settles by its verdict, and keeps the
//! leases of everything it holds. The first stop finishes the running message and gives the others back; the second
//! ends the running one, too.

use super::process::{self, Process, Verdict};
use super::stop::Stop;
use crate::exit::{Exit, Failure, Outcome};
use crate::screen::Screen;
use overtake_wire::message::{Delivered, Extend, Release, Settle, Settled};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// The side of a server that a worker needs.
pub trait Leases {
    /// Leases the most urgent messages.
    async fn receive(&self) -> Result<Vec<Delivered>, Failure>;
    /// Outcomes in the order of the three lists, one list after the other.
    async fn settle(&self, settle: Settle) -> Result<Vec<Settled>, Failure>;
}

/// Between tries to reach a server that is away.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// A worker on one queue.
#[derive(Debug)]
pub struct Worker<'a, L> {
    /// Where messages come from.
    pub leases: &'a L,
    /// Name of the queue.
    pub queue: &'a str,
    /// Run for each message, through the shell.
    pub command: &'a str,
    /// Leases are taken and extended for so long.
    pub lease_s: u32,
    /// Go on until stopped.
    pub follow: bool,
    /// When to stop.
    pub stop: Stop,
    /// Where remarks go.
    pub screen: Screen,
}

/// What a worker did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    acked: u64,
    released: u64,
    /// Done or failed, but the lease had ended before that could be said.
    lost: u64,
}

impl<L: Leases> Worker<'_, L> {
    /// Works until there is nothing more (without `follow`) or until stopped.
    pub async fn run(&self) -> Outcome {
        let mut tally = Tally::default();
        while !self.stop.is_asked() {
            match self.next().await {
                Ok(messages) => {
                    let empty = messages.is_empty();
                    self.handle(messages, &mut tally).await?;
                    if !self.follow {
                        return Ok(self.outcome(empty, tally));
                    }
                }
                Err(failure) if self.follow && is_passing(&failure) => {
                    self.screen.note(&format!("overtake: {failure}; trying again"));
                    self.pause(RETRY_PAUSE).await;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(self.outcome(false, tally))
    }

    fn outcome(&self, empty: bool, tally: Tally) -> Exit {
        let Tally { acked, released, lost } = tally;
        if empty {
            self.screen.note("nothing to receive");
            return Exit::Nothing;
        }
        let lost_text = if lost > 0 { format!(", {lost} whose lease had ended") } else { String::new() };
        self.screen.note(&format!("{acked} acked, {released} given back{lost_text}"));
        // A worker that was stopped did its duty, whatever single messages did.
        if (released + lost == 0) || self.follow { Exit::Ok } else { Exit::Failed }
    }

    async fn next(&self) -> Result<Vec<Delivered>, Failure> {
        tokio::select! {
            messages = self.leases.receive() => messages,
            () = self.stop.asked() => Ok(Vec::new()),
        }
    }

    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.stop.asked() => {}
        }
    }

    async fn handle(&self, messages: Vec<Delivered>, tally: &mut Tally) -> Result<(), Failure> {
        let mut held = VecDeque::from(messages);
        while !self.stop.is_asked() {
            let Some(message) = held.pop_front() else { return Ok(()) };
            let error = self.work(&message, &mut held).await;
            let done = error.is_none();
            let mut settle = Settle { queue: self.queue.to_owned(), ..Settle::default() };
            let receipt = message.receipt.to_string();
            match error {
                None => settle.ack.push(receipt),
                Some(error) => {
                    self.screen.note(&format!("{}: {error}", message.id));
                    settle.release.push(Release { receipt, delay_s: None, error: Some(error) });
                }
            }
            match self.settle(settle).await? {
                Settled::Ok if done => tally.acked += 1,
                Settled::Ok => tally.released += 1,
                Settled::Stale | Settled::Unknown => {
                    self.screen
                        .note(&format!("{}: its lease had ended; it may be delivered again", message.id));
                    tally.lost += 1;
                }
            }
        }
        self.give_back(held, tally).await
    }

    /// Returns what was never started, to be delivered elsewhere at once.
    async fn give_back(&self, held: VecDeque<Delivered>, tally: &mut Tally) -> Result<(), Failure> {
        if held.is_empty() {
            return Ok(());
        }
        let release = |message: &Delivered| Release {
            receipt: message.receipt.to_string(),
            delay_s: Some(0),
            error: None,
        };
        let release: Vec<Release> = held.iter().map(release).collect();
        let settle = Settle { queue: self.queue.to_owned(), release, ..Settle::default() };
        let outcomes = self.leases.settle(settle).await?;
        tally.released += outcomes.iter().filter(|outcome| **outcome == Settled::Ok).count() as u64;
        Ok(())
    }

    /// Runs the command for one message. Returns why it failed.
    async fn work(&self, message: &Delivered, held: &mut VecDeque<Delivered>) -> Option<String> {
        let process = match Process::start(self.command, self.queue, message) {
            Ok(process) => process,
            Err(Verdict::Done) => return None,
            Err(Verdict::Failed(error)) => return Some(error),
        };
        let group = process.group();
        let ended = process.wait();
        tokio::pin!(ended);
        let period = Duration::from_secs(u64::from(self.lease_s)) / 3;
        let mut beat = tokio::time::interval_at(Instant::now() + period, period);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut interrupted = false;
        loop {
            tokio::select! {
                verdict = &mut ended => return match verdict {
                    Verdict::Done => None,
                    Verdict::Failed(_) if interrupted => Some("interrupted".to_owned()),
                    Verdict::Failed(error) => Some(error),
                },
                _ = beat.tick() => self.keep(message, held).await,
                () = self.stop.insisted(), if !interrupted => {
                    process::end(group);
                    interrupted = true;
                }
            }
        }
    }

    /// Extends the leases of the running message and of those that wait for their turn; forgets those that are lost.
    async fn keep(&self, running: &Delivered, held: &mut VecDeque<Delivered>) {
        let all = std::iter::once(running).chain(held.iter());
        let extend: Vec<Extend> = all
            .map(|message| Extend { receipt: message.receipt.to_string(), lease_s: self.lease_s })
            .collect();
        let settle = Settle { queue: self.queue.to_owned(), extend, ..Settle::default() };
        match self.leases.settle(settle).await {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter().map(|outcome| outcome == Settled::Ok);
                if outcomes.next() == Some(false) {
                    self.screen
                        .note(&format!("{}: its lease was lost; it may run elsewhere, too", running.id));
                }
                held.retain(|_| outcomes.next() != Some(false));
            }
            Err(failure) => self.screen.note(&format!("overtake: leases were not extended: {failure}")),
        }
    }

    /// Settles one message, trying again while its lease may still hold. An ack that got through in a try whose
    /// answer was lost is told as unknown in the next one: then it was done.
    async fn settle(&self, settle: Settle) -> Result<Settled, Failure> {
        let deadline = Instant::now() + Duration::from_secs(u64::from(self.lease_s));
        let mut answer_lost = false;
        loop {
            match self.leases.settle(settle.clone()).await {
                Ok(outcomes) => {
                    return Ok(match outcomes.first() {
                        Some(Settled::Unknown) if answer_lost => Settled::Ok,
                        Some(outcome) => *outcome,
                        None => Settled::Unknown,
                    });
                }
                Err(failure) if is_passing(&failure) && Instant::now() < deadline => {
                    answer_lost |= failure.exit == Exit::Unknown;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// True where the same call may succeed in a while.
fn is_passing(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::NoConnection | Exit::Unknown | Exit::Later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Format;
    use bytes::Bytes;
    use overtake_base::{MessageId, Receipt, Sequence, ShardId, UnixMillis};
    use std::cell::RefCell;

    /// A server that hands out what it has and writes down what it is told.
    #[derive(Default)]
    struct Shelf {
        deliveries: RefCell<VecDeque<Result<Vec<Delivered>, Failure>>>,
        told: RefCell<Vec<String>>,
        settle_failures: RefCell<VecDeque<Failure>>,
        outcome: RefCell<Option<Settled>>,
    }

    impl Leases for Shelf {
        async fn receive(&self) -> Result<Vec<Delivered>, Failure> {
            let next = self.deliveries.borrow_mut().pop_front();
            match next {
                Some(next) => next,
                None => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    Ok(Vec::new())
                }
            }
        }

        async fn settle(&self, settle: Settle) -> Result<Vec<Settled>, Failure> {
            let mut told = self.told.borrow_mut();
            told.extend(settle.ack.iter().map(|receipt| format!("ack {receipt}")));
            told.extend(settle.extend.iter().map(|extend| format!("extend {}", extend.receipt)));
            for release in &settle.release {
                let error = release.error.as_deref().unwrap_or("-");
                told.push(format!("release {} {:?} {error}", release.receipt, release.delay_s));
            }
            if let Some(failure) = self.settle_failures.borrow_mut().pop_front() {
                return Err(failure);
            }
            let outcome = self.outcome.borrow().unwrap_or(Settled::Ok);
            Ok(vec![outcome; settle.ack.len() + settle.extend.len() + settle.release.len()])
        }
    }

    fn message(sequence: u64, body: &'static str) -> Delivered {
        Delivered {
            id: MessageId(u128::from(sequence)),
            priority: 0,
            receipt: Receipt { shard: ShardId(0), sequence: Sequence(sequence), deliveries: 1 },
            deliveries: 1,
            enqueued_at: UnixMillis(0),
            lease_expires_at: UnixMillis(0),
            headers: vec![],
            share: false,
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    fn worker<'a>(shelf: &'a Shelf, command: &'a str, stop: Stop) -> Worker<'a, Shelf> {
        let screen = Screen::new(Format::Table);
        Worker { leases: shelf, queue: "jobs", command, lease_s: 30, follow: false, stop, screen }
    }

    fn shelf(messages: &[Delivered]) -> Shelf {
        let shelf = Shelf::default();
        shelf.deliveries.borrow_mut().push_back(Ok(messages.to_vec()));
        shelf
    }

    #[tokio::test]
    async fn verdicts_become_acks_and_releases() {
        let shelf = shelf(&[message(1, "good"), message(2, "bad")]);
        let (_, stop) = Stop::by_hand();
        let command = "test \"$(cat)\" = good || { echo no such user >&2; exit 3; }";
        assert_eq!(worker(&shelf, command, stop).run().await, Ok(Exit::Failed));
        assert_eq!(
            *shelf.told.borrow(),
            ["ack r_0_1_1", "release r_0_2_1 None exit status: 3: no such user"]
        );
    }

    #[tokio::test]
    async fn nothing_there_has_its_own_exit_code() {
        let (_, stop) = Stop::by_hand();
        assert_eq!(worker(&Shelf::default(), "true", stop).run().await, Ok(Exit::Nothing));
    }

    #[tokio::test]
    async fn a_stop_finishes_the_running_message_and_gives_the_others_back() {
        let shelf = shelf(&[message(1, ""), message(2, ""), message(3, "")]);
        let (hand, stop) = Stop::by_hand();
        let mut worker = worker(&shelf, "sleep 0.3", stop);
        worker.follow = true;
        let press = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            hand.press();
        };
        let (outcome, ()) = tokio::join!(worker.run(), press);
        assert_eq!(outcome, Ok(Exit::Ok));
        assert_eq!(
            *shelf.told.borrow(),
            ["ack r_0_1_1", "release r_0_2_1 Some(0) -", "release r_0_3_1 Some(0) -"]
        );
    }

    #[tokio::test]
    async fn a_second_stop_ends_the_running_message() {
        let shelf = shelf(&[message(1, "")]);
        let (hand, stop) = Stop::by_hand();
        let press = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            hand.press();
            hand.press();
        };
        let worker = worker(&shelf, "sleep 60; true", stop);
        let (outcome, ()) = tokio::join!(worker.run(), press);
        assert_eq!(outcome, Ok(Exit::Failed));
        assert_eq!(*shelf.told.borrow(), ["release r_0_1_1 None interrupted"]);
    }

    #[tokio::test]
    async fn leases_are_kept_while_it_runs() {
        let shelf = shelf(&[message(1, ""), message(2, "")]);
        let (_, stop) = Stop::by_hand();
        let mut worker = worker(&shelf, "sleep 0.6", stop);
        worker.lease_s = 1;
        assert_eq!(worker.run().await, Ok(Exit::Ok));
        let told = shelf.told.borrow();
        let first_ack = told.iter().position(|what| what == "ack r_0_1_1").unwrap();
        assert_eq!(told[..2], ["extend r_0_1_1", "extend r_0_2_1"], "the waiting one is kept, too");
        assert!(first_ack >= 2 && told.contains(&"ack r_0_2_1".to_owned()));
    }

    #[tokio::test]
    async fn a_message_whose_lease_was_lost_is_not_started() {
        let shelf = shelf(&[message(1, ""), message(2, "")]);
        *shelf.outcome.borrow_mut() = Some(Settled::Stale);
        let (_, stop) = Stop::by_hand();
        let mut worker = worker(&shelf, "sleep 0.6", stop);
        worker.lease_s = 1;
        assert_eq!(worker.run().await, Ok(Exit::Failed));
        assert!(!shelf.told.borrow().iter().any(|what| what == "ack r_0_2_1"));
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_tried_again() {
        let shelf = shelf(&[message(1, "")]);
        shelf.deliveries.borrow_mut().push_front(Err(Failure::new(Exit::NoConnection, "away")));
        shelf.settle_failures.borrow_mut().push_back(Failure::new(Exit::Unknown, "lost"));
        *shelf.outcome.borrow_mut() = Some(Settled::Unknown);
        let (hand, stop) = Stop::by_hand();
        let mut worker = worker(&shelf, "true", stop);
        worker.follow = true;
        let press = async {
            while shelf.told.borrow().len() < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            hand.press();
        };
        let (outcome, ()) = tokio::join!(worker.run(), press);
        assert_eq!(outcome, Ok(Exit::Ok));
        assert_eq!(*shelf.told.borrow(), ["ack r_0_1_1", "ack r_0_1_1"]);
    }

    #[tokio::test]
    async fn a_refusal_that_stays_ends_the_worker() {
        let shelf = Shelf::default();
        shelf.deliveries.borrow_mut().push_back(Err(Failure::new(Exit::Nothing, "no such queue")));
        let (_, stop) = Stop::by_hand();
        let mut worker = worker(&shelf, "true", stop);
        worker.follow = true;
        assert_eq!(worker.run().await.unwrap_err().exit, Exit::Nothing);
    }
}
