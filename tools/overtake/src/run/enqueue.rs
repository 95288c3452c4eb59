//! `overtake enqueue`: one message, or a message for each line.

use super::{Session, lines, refusal};
use crate::cli::Format;
use crate::cli::messages::EnqueueArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::render::messages as render;
use crate::render::units::{count, rate};
use crate::screen::Screen;
use bytes::Bytes;
use overtake_client::{
    ClientError, Confirmation, Delay, EnqueueMessage, Enqueued, MessageIds, Producer, ProducerOptions,
};
use overtake_gateway::json;
use std::collections::VecDeque;
use std::io::{self, BufReader, IsTerminal, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// Outcomes that are waited for at a time.
const WAITING_MAX: usize = 10_000;
/// Between two lines of progress.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
/// Without any outcome for so long, the person is told that lines wait.
const STALL: Duration = Duration::from_secs(2);
/// Failed lines that are told one by one.
const FAILURES_TOLD: u64 = 20;

/// Stores what the arguments say.
pub async fn run(session: &Session, args: EnqueueArgs) -> Outcome {
    if args.lines { many(session, &args).await } else { one(session, args).await }
}

fn message(args: &EnqueueArgs) -> EnqueueMessage {
    EnqueueMessage {
        priority: args.priority,
        id: args.id,
        delay: match (args.delay_s, args.deliver_at) {
            (Some(seconds), _) => Delay::AfterS(seconds),
            (None, Some(at)) => Delay::At(at),
            (None, None) => Delay::None,
        },
        dedup_key: args.dedup_key.as_ref().map(|key| Bytes::copy_from_slice(key.as_bytes())),
        expires_in_s: args.expires_in_s,
        headers: args.header.clone(),
        body: Bytes::new(),
    }
}

async fn one(session: &Session, args: EnqueueArgs) -> Outcome {
    let queue = args.queue.clone();
    let mut message = message(&args);
    message.body = body(&args)?;
    if message.id.is_none() && message.dedup_key.is_none() {
        // An id of our own makes a repeat safe where the answer gets lost.
        message.id = Some(MessageIds::new().next_id());
    }
    let id = message.id;
    let stored = session.client.enqueue(&args.queue, vec![message]).await;
    let stored = stored.and_then(|all| {
        let first = all.into_iter().next();
        first.unwrap_or_else(|| Err(overtake_client::Refusal::internal("no outcome"))).map_err(Into::into)
    });
    match stored {
        Ok(stored) => {
            session.screen.answer(|| json::Enqueued::from(stored), |_| render::enqueued(&stored))?;
            Ok(Exit::Ok)
        }
        Err(error) => {
            let mut failure = session.failure_of_queue(error, &queue);
            if let (Exit::Unknown, Some(id)) = (failure.exit, id) {
                failure.message.push_str(&format!("; repeat it with --id {id}"));
            }
            Err(failure)
        }
    }
}

/// One byte more than allowed is read at most.
fn body(args: &EnqueueArgs) -> Result<Bytes, Failure> {
    let body = read_body(args)?;
    let max = overtake_base::limits::BODY_BYTES_MAX;
    if body.len() > max {
        return Err(Failure::new(Exit::Failed, format!("the message is longer than {max} bytes (128 KiB)")));
    }
    if body.is_empty() && args.body.is_none() && args.file.is_none() {
        return Err(Failure::usage("standard input is empty; for an empty message say '' as the message"));
    }
    Ok(body)
}

fn read_body(args: &EnqueueArgs) -> Result<Bytes, Failure> {
    let limit = overtake_base::limits::BODY_BYTES_MAX as u64 + 1;
    let read = |input: &mut dyn Read| {
        let mut body = Vec::new();
        input.take(limit).read_to_end(&mut body).map(|_| Bytes::from(body))
    };
    let open = |path: &Path| std::fs::File::open(path).and_then(|mut file| read(&mut file));
    match (&args.body, &args.file) {
        (Some(text), _) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        (None, Some(path)) => open(path)
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot read {}: {error}", path.display()))),
        (None, None) => {
            if io::stdin().is_terminal() {
                Screen::new(Format::Table).note("type the message; Ctrl-D ends it");
            }
            read(&mut io::stdin().lock())
        }
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot read standard input: {error}"))),
    }
}

/// What became of the lines so far.
#[derive(Clone, Debug)]
struct Tally {
    stored: u64,
    duplicates: u64,
    failed: u64,
    /// Lines with nothing but blanks, which are no messages.
    blank: u64,
    /// The exit code of the failures, where they agree.
    exit: Option<Exit>,
    started: Instant,
    shown: Instant,
    /// The last outcome, or the last remark that there is none.
    moved: Instant,
}

async fn many(session: &Session, args: &EnqueueArgs) -> Outcome {
    let template = message(args);
    // One request at a time keeps the order of the lines.
    let options = ProducerOptions {
        batch_messages: overtake_base::limits::BATCH_MESSAGES_MAX,
        batch_bytes: overtake_base::limits::REQUEST_BYTES_MAX / 2,
        linger: Duration::from_millis(5),
        in_flight: 1,
        retry_for: session.remote.server.timeout,
        ..ProducerOptions::default()
    };
    let producer = Producer::new(session.client.clone(), &args.queue, options);
    let mut input = lines::read(BufReader::with_capacity(64 * 1024, io::stdin()));
    let mut waiting: VecDeque<(u64, Confirmation)> = VecDeque::new();
    let now = Instant::now();
    let mut tally = Tally {
        stored: 0,
        duplicates: 0,
        failed: 0,
        blank: 0,
        exit: None,
        started: now,
        shown: now,
        moved: now,
    };
    let ended = loop {
        let line = tokio::select! {
            biased;
            line = input.recv(), if waiting.len() < WAITING_MAX => line,
            outcome = oldest(&mut waiting), if !waiting.is_empty() => {
                let (number, outcome) = outcome;
                tally.count(session, number, outcome)?;
                continue;
            }
            () = tally.stalled(), if !waiting.is_empty() => {
                tally.tell_stall(session, waiting.len());
                continue;
            }
        };
        let line = match line {
            None => break Ok(()),
            Some(Err(error)) => {
                break Err(Failure::new(Exit::Failed, format!("cannot read standard input: {error}")));
            }
            Some(Ok(line)) => line,
        };
        if line.body.as_ref().is_some_and(|body| body.iter().all(u8::is_ascii_whitespace)) {
            tally.blank += 1;
            continue;
        }
        let Some(body) = line.body else {
            let refusal =
                overtake_client::Refusal::too_large("body", "the line is longer than a body may be");
            tally.count(session, line.number, Err(refusal.into()))?;
            continue;
        };
        if waiting.is_empty() {
            tally.moved = Instant::now();
        }
        let sending = producer.send(EnqueueMessage { body: body.into(), ..template.clone() });
        tokio::pin!(sending);
        let sent = loop {
            tokio::select! {
                biased;
                sent = &mut sending => break sent,
                () = tally.stalled() => tally.tell_stall(session, waiting.len()),
            }
        };
        match sent {
            Ok(confirmation) => waiting.push_back((line.number, confirmation)),
            Err(error) => tally.count(session, line.number, Err(error))?,
        }
    };
    while !waiting.is_empty() {
        tokio::select! {
            biased;
            (number, outcome) = oldest(&mut waiting) => tally.count(session, number, outcome)?,
            () = tally.stalled() => tally.tell_stall(session, waiting.len()),
        }
    }
    producer.close().await;
    tally.end(session)?;
    ended?;
    Ok(tally.exit.unwrap_or(Exit::Ok))
}

/// The outcome of the line that waits longest. Outcomes come in the order of the lines, but for repeats. The line stays
/// in its place until its outcome is there, so that a caller may stop waiting.
async fn oldest(waiting: &mut VecDeque<(u64, Confirmation)>) -> (u64, Result<Enqueued, ClientError>) {
    match waiting.front_mut() {
        Some((number, confirmation)) => {
            let outcome = (*number, confirmation.await);
            waiting.pop_front();
            outcome
        }
        None => std::future::pending().await,
    }
}

impl Tally {
    fn count(
        &mut self,
        session: &Session,
        number: u64,
        outcome: Result<Enqueued, ClientError>,
    ) -> Result<(), Failure> {
        self.moved = Instant::now();
        match outcome {
            Ok(stored) => {
                self.stored += u64::from(!stored.duplicate);
                self.duplicates += u64::from(stored.duplicate);
                if session.screen.is_json() {
                    session.screen.answer(|| json::Enqueued::from(stored), |_| String::new())?;
                }
            }
            Err(error) => {
                let failure = match &error {
                    ClientError::Refused(refused) => refusal::failure(refused),
                    _ => session.failure(error),
                };
                self.failed += 1;
                self.exit = match self.exit {
                    Some(exit) if exit != failure.exit => Some(Exit::Failed),
                    _ => Some(failure.exit),
                };
                session.screen.progress_done();
                if self.failed <= FAILURES_TOLD {
                    session
                        .screen
                        .note(&format!("line {number}: {}", crate::render::text::one_line(&failure.message)));
                } else if self.failed == FAILURES_TOLD + 1 {
                    session.screen.note("further failures are only counted");
                }
            }
        }
        if self.shown.elapsed() > PROGRESS_PERIOD {
            self.shown = Instant::now();
            session.screen.progress(&self.text());
        }
        Ok(())
    }

    /// Comes back where no outcome came for a while.
    async fn stalled(&self) {
        tokio::time::sleep_until((self.moved + STALL).into()).await;
    }

    fn tell_stall(&mut self, session: &Session, waiting: usize) {
        self.moved = Instant::now();
        session.screen.progress_done();
        session.screen.note(&format!(
            "overtake: {} lines wait: the queue is full, its rate is used up, or the server is away; trying again for \
             up to {} s each",
            count(waiting as u64),
            session.remote.server.timeout.as_secs_f64()
        ));
    }

    fn text(&self) -> String {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut text = format!("{} stored ({})", count(self.stored), rate(self.stored, ms));
        for (number, what) in
            [(self.duplicates, "duplicates"), (self.failed, "failed"), (self.blank, "blank lines left out")]
        {
            if number > 0 {
                text.push_str(&format!(", {} {what}", count(number)));
            }
        }
        text
    }

    fn end(&self, session: &Session) -> Result<(), Failure> {
        session.screen.progress_done();
        if session.screen.is_json() {
            session.screen.note(&self.text());
            return Ok(());
        }
        session.screen.print(&(self.text() + "\n"))
    }
}
