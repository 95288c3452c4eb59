//! Sending: in an open loop whatever the server does, or in a closed loop by callers that each wait for their answer.

use super::meter;
use super::run::Run;
use super::stamp::Stamp;
use super::{LoadError, Tasks, ended};
use crate::load::shape::Course;
use crate::pacer::{self, Due, Timetable as _};
use bytes::Bytes;
use overtake_base::limits::REQUEST_BYTES_MAX;
use overtake_client::{
    ClientError, Delay, EnqueueMessage, Enqueued, ErrorCode, MessageId, Refusal, Request, Response,
};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// What a message costs in a request beyond its body, at most.
const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// Messages without an outcome, and bytes of them, above which an open loop gives up: the server is too slow for it by far.
const UNDER_WAY_MAX: u64 = 250_000;
const UNDER_WAY_BYTES_MAX: u64 = 1 << 30;
/// How long an enqueue of unknown fate is repeated, and one that came while the server was away for a moment.
const RETRY_FOR: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A message that has no outcome yet.
#[derive(Clone, Copy)]
struct Pending {
    number: u64,
    due_ns: u64,
    /// The first message of the dedup key that it repeats.
    first: Option<MessageId>,
    /// A try may have stored it: that a repeat is refused says nothing of that one.
    may_be_stored: bool,
}

/// Makes a message that is due now.
fn make(run: &Run, due_ns: u64) -> (Pending, EnqueueMessage) {
    let state = &mut *run.state.borrow_mut();
    let number = state.next_number;
    state.next_number += 1;
    let planned = state.sequence.next_message(state.keyed.is_some());
    let visible_ns = due_ns + planned.delay_s * 1_000_000_000;
    let repeated = state.keyed.filter(|_| planned.repeats);
    let key_of = |number: u64| Bytes::from(format!("{:016x}-{number}", run.number));
    let dedup_key = match repeated {
        Some((first, _)) => Some(key_of(first)),
        None => state.sequence.keyed().then(|| key_of(number)),
    };
    let id = state.ids.next_id_for(dedup_key.as_deref());
    if state.verify {
        state.own.sent(number, id, planned.level as u8, visible_ns, planned.delay_s > 0);
    }
    state.meter.counts.sent += 1;
    state.under_way += 1;
    let delay = match planned.delay_s {
        0 => Delay::None,
        delay_s => Delay::AfterS(delay_s),
    };
    let body = Stamp { run: run.number, number, due_ns, visible_ns }.body(planned.body_bytes as usize);
    let message = EnqueueMessage {
        priority: planned.level,
        id: Some(id),
        delay,
        dedup_key,
        body,
        ..EnqueueMessage::default()
    };
    let first = repeated.map(|(_, id)| id);
    (Pending { number, due_ns, first, may_be_stored: false }, message)
}

/// One call: its messages, and what is known of each.
#[derive(Default)]
struct Batch {
    pending: Vec<Pending>,
    messages: Vec<EnqueueMessage>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, (pending, message): (Pending, EnqueueMessage)) {
        self.bytes += message.body.len() + MESSAGE_OVERHEAD_BYTES;
        self.pending.push(pending);
        self.messages.push(message);
    }

    fn is_full(&self, most: usize, largest: usize) -> bool {
        self.pending.len() >= most || self.bytes + largest + MESSAGE_OVERHEAD_BYTES > REQUEST_BYTES_MAX
    }
}

/// Sends everything when it is due.
pub(super) async fn open_loop(
    run: Rc<Run>,
    course: Course,
    batch: usize,
    largest: usize,
) -> Result<(), LoadError> {
    let mut due = pacer::start(course.clone(), course.total()).map_err(LoadError::Io)?;
    let mut calls = Tasks::new();
    let under_way_max = UNDER_WAY_MAX.min(UNDER_WAY_BYTES_MAX / (largest + MESSAGE_OVERHEAD_BYTES) as u64);
    loop {
        let next_due = tokio::select! {
            next = due.recv() => next,
            () = run.sending_end.wait() => None,
        };
        let Some(Due { first, end }) = next_due else { break };
        let mut next = Batch::default();
        for number in first..end {
            let due_ns = run.clock.at(course.due(number));
            let late = run.clock.now().saturating_sub(due_ns);
            run.state.borrow_mut().meter.record(meter::SEND_LATE, late);
            next.add(make(&run, due_ns));
            if next.is_full(batch, largest) || number + 1 == end {
                let batch = core::mem::take(&mut next);
                let run = run.clone();
                // The next ones are due, whatever this one is asked to wait for.
                calls.spawn_local(async move { call(run, batch).await.map(drop) });
            }
            if run.state.borrow().under_way > under_way_max {
                return Err(LoadError::Overloaded(under_way_max));
            }
        }
        while let Some(one) = calls.try_join_next() {
            ended(one)?;
        }
    }
    join(calls).await
}

/// Callers that send, wait for the answer, and send again, until `until`.
pub(super) async fn closed_loop(
    run: Rc<Run>,
    callers: u32,
    until: Instant,
    batch: usize,
    largest: usize,
) -> Result<(), LoadError> {
    let mut tasks = Tasks::new();
    for _ in 0..callers {
        let run = run.clone();
        tasks.spawn_local(async move {
            while Instant::now() < until && !run.sending_end.has_come() {
                let due_ns = run.clock.now();
                let mut next = Batch::default();
                while !next.is_full(batch, largest) {
                    next.add(make(&run, due_ns));
                }
                let pause = call(run.clone(), next).await?;
                if !pause.is_zero() {
                    tokio::select! {
                        () = tokio::time::sleep(pause.min(until.saturating_duration_since(Instant::now()))) => {}
                        () = run.sending_end.wait() => {}
                    }
                }
            }
            Ok(())
        });
    }
    join(tasks).await
}

async fn join(mut tasks: JoinSet<Result<(), LoadError>>) -> Result<(), LoadError> {
    while let Some(one) = tasks.join_next().await {
        ended(one)?;
    }
    Ok(())
}

/// Whether a refusal is one of a server that starts, stops or changes its leader: whoever wants to store something
/// waits for it, and so does this tool, or the measurement would leave out just what the outage held up.
fn is_away(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::NoQuorum | ErrorCode::Stopping)
}

/// Sends a batch until each of its messages has an outcome. What has an unknown fate, or found the server away, is repeated
/// with the same id. Gives how long the server asks the caller to stay away.
async fn call(run: Rc<Run>, mut batch: Batch) -> Result<Duration, LoadError> {
    let give_up = Instant::now() + RETRY_FOR;
    loop {
        let mut refused = None;
        let request =
            Request::Enqueue { queue: run.queue.clone(), messages: core::mem::take(&mut batch.messages) };
        let answer = run.client().request_ref(&request).await;
        let Request::Enqueue { messages, .. } = request else { return Ok(Duration::ZERO) };
        let unknown = match answer {
            Ok(Response::Enqueued { results }) if results.len() == batch.pending.len() => {
                let mut unknown = Batch::default();
                for ((pending, message), result) in batch.pending.iter().zip(messages).zip(results) {
                    let fate_unknown = result.as_ref().is_err_and(|refusal| refusal.stored_unknown);
                    refused = result.as_ref().err().cloned().or(refused);
                    if outcome(&run, *pending, result) == Outcome::Again {
                        let may_be_stored = pending.may_be_stored || fate_unknown;
                        unknown.add((Pending { may_be_stored, ..*pending }, message));
                    }
                }
                unknown
            }
            Ok(_) => return Err(ClientError::Protocol("not an answer to an enqueue".into()).into()),
            Err(ClientError::Refused(refusal)) if refusal.retry_is_safe() && !refusal.stored_unknown => {
                let mut unknown = Batch::default();
                for (pending, message) in batch.pending.iter().zip(messages) {
                    if outcome(&run, *pending, Err(refusal.clone())) == Outcome::Again {
                        unknown.add((*pending, message));
                    }
                }
                refused = Some(refusal);
                unknown
            }
            Err(error) if error.fate_unknown() || error.retry_is_safe() => {
                run.trouble(&error);
                let may_be_stored = error.fate_unknown();
                batch.pending.iter_mut().for_each(|pending| pending.may_be_stored |= may_be_stored);
                Batch { messages, ..batch }
            }
            Err(error) => return Err(error.into()),
        };
        if unknown.pending.is_empty() {
            let asked_ms = refused.and_then(|refusal| refusal.retry_after_ms).unwrap_or(0);
            return Ok(Duration::from_millis(asked_ms.into()));
        }
        if let Some(refusal) = &refused {
            run.trouble(&ClientError::Refused(refusal.clone()));
        }
        if Instant::now() >= give_up || run.sending_end.has_come() {
            let state = &mut *run.state.borrow_mut();
            for pending in &unknown.pending {
                state.under_way -= 1;
                match &refused {
                    Some(refusal) if !refusal.stored_unknown && !pending.may_be_stored => {
                        state.refused(refusal);
                        state.own.refused(pending.number);
                    }
                    _ => {
                        state.meter.counts.unknown += 1;
                        state.own.unknown(pending.number);
                    }
                }
            }
            return Ok(Duration::ZERO);
        }
        batch = unknown;
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

#[derive(PartialEq, Eq)]
enum Outcome {
    Known,
    /// To be tried again.
    Again,
}

fn outcome(run: &Run, pending: Pending, result: Result<Enqueued, Refusal>) -> Outcome {
    let now_ns = run.clock.now();
    let state = &mut *run.state.borrow_mut();
    match result {
        Ok(Enqueued { id, duplicate, .. }) => {
            let tag = if duplicate && pending.first.is_some() { meter::REPEAT } else { meter::ENQUEUE };
            state.meter.record(tag, now_ns.saturating_sub(pending.due_ns));
            state.meter.counts.confirmed += 1;
            state.meter.last_confirmed_ns = now_ns;
            if pending.first.is_some() {
                state.meter.counts.duplicates += u64::from(duplicate);
            } else if state.sequence.keyed() {
                state.keyed = Some((pending.number, id));
            }
            if state.verify {
                state.own.confirmed(pending.number, id, duplicate, pending.first, now_ns);
            }
        }
        Err(refusal) if refusal.stored_unknown || pending.may_be_stored || is_away(&refusal) => {
            return Outcome::Again;
        }
        Err(refusal) => {
            state.refused(&refusal);
            if state.verify {
                state.own.refused(pending.number);
            }
        }
    }
    state.under_way -= 1;
    Outcome::Known
}
