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
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// The side of a server that a worker needs.
pub trait Leases {
    /// Leases the most urgent messages.
    async fn receive(&self) -> Result<Vec<Delivered>, Failure>;
    /// Outcomes in the order of the three lists, one list after the other.
    async fn settle(&self, settle: Settle) -> Result<Vec<Settled>, Failure>;
}

/// Between tries to reach a server that is away.
pub const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// After two failed messages in a row; twice as long after each further one.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);
/// The longest of those pauses.
const FAILURE_PAUSE_MAX: Duration = Duration::from_secs(30);

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
        let Tally { acked, released, lost, .. } = tally;
        if self.screen.is_json() {
            let json = || serde_json::json!({ "acked": acked, "given_back": released, "lease_lost": lost });
            // A reader that is gone does not change what was done.
            let _ = self.screen.answer(json, |_| String::new());
        } else if empty {
            self.screen.note("nothing to receive");
        } else {
            let lost_text = if lost > 0 { format!(", {lost} whose lease had ended") } else { String::new() };
            self.screen.note(&format!("{acked} acked, {released} given back{lost_text}"));
        }
        if empty {
            return Exit::Nothing;
        }
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
            let verdict = self.work(&message, &mut held).await;
            let done = verdict == Verdict::Done;
            let mut settle = Settle { queue: self.queue.to_owned(), ..Settle::default() };
            let receipt = message.receipt.to_string();
            match &verdict {
                Verdict::Done => settle.ack.push(receipt),
                Verdict::Failed(error) | Verdict::CannotRun(error) => {
                    // What the command said on standard error was passed on already.
                    self.screen.note(&format!("{}: {}; given back", message.id, status_of(error)));
                    settle.release.push(Release { receipt, delay_s: None, error: Some(error.clone()) });
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
            tally.failures_in_a_row = if done { 0 } else { tally.failures_in_a_row.saturating_add(1) };
            if let Verdict::CannotRun(error) = verdict {
                self.give_back(held, tally).await?;
                let what =
                    format!("the command cannot be run ({error}); this worker ends, {} is back", message.id);
                return Err(Failure::new(Exit::Failed, what));
            }
            self.calm_down(tally.failures_in_a_row, &mut held).await;
        }
        self.give_back(held, tally).await
    }

    /// Pauses after failures in a row, where this worker goes on for ever. What it holds meanwhile stays leased.
    async fn calm_down(&self, failures_in_a_row: u32, held: &mut VecDeque<Delivered>) {
        let pause = failure_pause(failures_in_a_row);
        if !self.follow || pause.is_zero() || self.stop.is_asked() {
            return;
        }
        let shown = crate::render::units::span(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        self.screen.note(&format!("{failures_in_a_row} failures in a row; the next message in {shown}"));
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        let mut beat = self.beat();
        loop {
            tokio::select! {
                () = &mut over => return,
                () = self.stop.asked() => return,
                _ = beat.tick() => self.keep(None, held).await,
            }
        }
    }

    /// When leases are to be extended.
    fn beat(&self) -> Interval {
        let period = Duration::from_secs(u64::from(self.lease_s)) / 3;
        let mut beat = tokio::time::interval_at(Instant::now() + period, period);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beat
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

    /// Runs the command for one message.
    async fn work(&self, message: &Delivered, held: &mut VecDeque<Delivered>) -> Verdict {
        let process = match Process::start(self.command, self.queue, message) {
            Ok(process) => process,
            Err(verdict) => return verdict,
        };
        let group = process.group();
        let ended = process.wait();
        tokio::pin!(ended);
        let mut beat = self.beat();
        let mut interrupted = false;
        loop {
            tokio::select! {
                verdict = &mut ended => return match verdict {
                    Verdict::Failed(_) if interrupted => Verdict::Failed("interrupted".to_owned()),
                    verdict => verdict,
                },
                _ = beat.tick() => self.keep(Some(message), held).await,
                () = self.stop.insisted(), if !interrupted => {
                    process::end(group);
                    interrupted = true;
                }
            }
        }
    }

    /// Extends the leases of the running message and of those that wait for their turn; forgets those that are lost.
    async fn keep(&self, running: Option<&Delivered>, held: &mut VecDeque<Delivered>) {
        if running.is_none() && held.is_empty() {
            return;
        }
        let all = running.into_iter().chain(held.iter());
        let extend: Vec<Extend> = all
            .map(|message| Extend { receipt: message.receipt.to_string(), lease_s: self.lease_s })
            .collect();
        let settle = Settle { queue: self.queue.to_owned(), extend, ..Settle::default() };
        match self.leases.settle(settle).await {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter().map(|outcome| outcome == Settled::Ok);
                if let Some(running) = running
                    && outcomes.next() == Some(false)
                {
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

/// The start of an error text of [`Verdict`]: `exit status: 3` of `exit status: 3: no such user`.
fn status_of(error: &str) -> &str {
    let is_status = |part: &str| part.chars().all(|c| c.is_ascii_digit() || c == ' ');
    let mut parts = error.splitn(3, ": ");
    match (parts.next(), parts.next()) {
        (Some(what), Some(number)) if is_status(number) => &error[..what.len() + 2 + number.len()],
        _ => error.lines().next().unwrap_or_default(),
    }
}

/// True where the same call may succeed in a while.
pub fn is_passing(failure: &Failure) -> bool {
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
    async fn a_command_that_cannot_run_ends_the_worker_and_all_messages_are_back() {
        let shelf = shelf(&[message(1, ""), message(2, "")]);
        let (_, stop) = Stop::by_hand();
        let mut worker = worker(&shelf, "exit 127", stop);
        worker.follow = true;
        let failure = worker.run().await.unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert!(failure.message.contains("cannot be run (exit status: 127)"), "{failure}");
        assert_eq!(
            *shelf.told.borrow(),
            ["release r_0_1_1 None exit status: 127", "release r_0_2_1 Some(0) -"]
        );
    }

    #[tokio::test]
    async fn failures_in_a_row_make_a_pause_in_which_leases_are_kept() {
        let shelf = shelf(&[message(1, ""), message(2, ""), message(3, ""), message(4, "")]);
        let (hand, stop) = Stop::by_hand();
        let mut worker = worker(&shelf, "exit 1", stop);
        (worker.follow, worker.lease_s) = (true, 1);
        // Three fail: the pause after the third is longer than a third of the lease.
        let press = async {
            while !shelf.told.borrow().iter().any(|what| what == "extend r_0_4_1") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            hand.press();
        };
        let (outcome, ()) = tokio::join!(worker.run(), press);
        assert_eq!(outcome, Ok(Exit::Ok));
        let told = shelf.told.borrow();
        assert_eq!(told.last().unwrap(), "release r_0_4_1 Some(0) -", "a stop ends the pause: {told:?}");
    }

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
