//! The good end that every run must come to once nothing goes wrong any more: every request is answered, every lease and
//! delay ends, every queue can be drained, and what comes out is kept for the checkers to account for.

use crate::run::Stopped;
use crate::swarm::Swarm;
use overtake_base::QueueConfigPatch;
use overtake_wire::message::{
    DeadLetter, Delivered, ErrorCode, Receive, Request, Response, Settle, Settled, Stats,
};

const NANOS_PER_MS: u64 = 1_000_000;
/// Longer than anything that workloads ask for, in milliseconds: waits, leases, delays, back-offs; and a tenth more, for
/// a clock that is being slowed down.
const QUIET_MS: u64 = 34_000;
/// What is looked at as soon as everything is answered is given so long to come to rest, in milliseconds.
const REST_MS: u64 = 1_000;
/// A question is answered within this once everything is quiet, in nanoseconds: no call waits for what is long over.
const PROMPT_NS_MAX: u64 = 1_000 * NANOS_PER_MS;
/// Lease while draining, in seconds: none runs out meanwhile, and workloads ask for no such one.
pub const DRAIN_LEASE_S: u32 = 100;
/// A lease that was asked for while draining has ended after so many milliseconds, also by a clock that is being slowed
/// down.
const DRAIN_LEASE_OVER_MS: u64 = DRAIN_LEASE_S as u64 * 1_100;
/// Receives that may be needed to drain a queue: a bound on a drain that never ends.
const DRAIN_RECEIVES_MAX: usize = 10_000;

/// What was left.
#[derive(Debug)]
pub struct End {
    /// By queue; none where the queue is gone.
    pub queues: Vec<Option<QueueEnd>>,
}

/// What was left in a queue.
#[derive(Debug)]
pub struct QueueEnd {
    /// When everything was quiet.
    pub quiet: Stats,
    /// What was received then, in order.
    pub drained: Vec<Delivered>,
    /// Leases whose messages nobody got: a node that came upon damage gave up before it answered.
    pub lost_leases: u64,
    /// The dead letters, in order of their ids.
    pub dead: Vec<DeadLetter>,
    /// When everything drained was acked.
    pub after: Stats,
}

/// A run, as its end is brought about.
pub trait Driver {
    /// What the seed decided.
    fn plan(&self) -> &Swarm;
    /// Virtual time in nanoseconds.
    fn time_ns(&self) -> u64;
    /// From now on configurations are not the plan's any more.
    fn end_begins(&mut self);
    /// True where nothing is held up any more by what went wrong before.
    fn is_calm(&self) -> bool;
    /// Requests under way on living connections.
    fn open(&self) -> usize;
    /// Asks to be looked at again after so many nanoseconds.
    fn look_after(&mut self, after_ns: u64);
    /// Lets happen what is next. True where it was the time to look again.
    fn step(&mut self) -> Result<bool, Stopped>;
    /// Asks as the auditor, and waits for the answer.
    fn ask(&mut self, queue: usize, request: Request) -> Result<Response, Stopped>;
    /// True where a node gave up since the end began: it came upon damage, and its peers repair it.
    fn gave_up(&self) -> bool;
    /// The auditor goes; the next question comes on a new connection, to a core that the seed chooses.
    fn auditor_leaves(&mut self);

    /// Lets time pass.
    fn until(&mut self, time_ns: u64) -> Result<(), Stopped> {
        while self.time_ns() < time_ns {
            self.look_after((time_ns - self.time_ns()).min(100 * NANOS_PER_MS));
            while !self.step()? {}
        }
        Ok(())
    }
}

/// Asks, and is answered at once.
fn ask(run: &mut dyn Driver, queue: usize, request: Request) -> Result<Response, Stopped> {
    let from_ns = run.time_ns();
    let text = crate::tale::short(&request);
    let response = run.ask(queue, request)?;
    match run.time_ns() - from_ns {
        took_ns if took_ns > PROMPT_NS_MAX => {
            let took_ms = took_ns / NANOS_PER_MS;
            Err(format!("long after nothing is wrong any more, it took {took_ms} ms to answer: {text}")
                .into())
        }
        _ => Ok(response),
    }
}

/// Brings a run to its end.
pub fn come_to_an_end(run: &mut dyn Driver) -> Result<End, Stopped> {
    all_answered(run)?;
    run.end_begins();
    let mut queues = Vec::new();
    for queue in 0..run.plan().queues.len() {
        queues.push(drain(run, queue)?);
    }
    Ok(End { queues })
}

/// Whatever is asked is answered. Most seeds go on as soon as it is: to wait for nothing is dear.
fn all_answered(run: &mut dyn Driver) -> Result<(), Stopped> {
    let until_ns = run.time_ns() + QUIET_MS * NANOS_PER_MS;
    let ends_ns = run.time_ns() + run.plan().rest_ms() * NANOS_PER_MS;
    let unrest = |run: &mut dyn Driver| run.open() > 0 || !run.is_calm() || run.time_ns() < ends_ns;
    while run.time_ns() < until_ns && unrest(run) {
        wait(run, REST_MS)?;
    }
    match run.open() {
        0 => wait(run, REST_MS),
        open => Err(format!("{open} requests are not answered, long after nothing is wrong any more").into()),
    }
}

fn wait(run: &mut dyn Driver, ms: u64) -> Result<(), Stopped> {
    let until_ns = run.time_ns() + ms * NANOS_PER_MS;
    run.until(until_ns)
}

fn drain(run: &mut dyn Driver, queue: usize) -> Result<Option<QueueEnd>, Stopped> {
    let name = run.plan().queues[queue].name.clone();
    // Redrives go on without a depth, deliveries without a cap.
    let patch = QueueConfigPatch {
        rate_caps: Some(None),
        max_depth: Some(None),
        max_bytes: Some(None),
        ..QueueConfigPatch::default()
    };
    match ask(run, queue, Request::GetQueue { queue: name.clone() })? {
        Response::Queue { .. } => {}
        Response::Refused(refusal) if refusal.code == ErrorCode::NotFound => return Ok(None),
        other => return Err(format!("{name}: {other:?}").into()),
    }
    ask(run, queue, Request::PutQueue { queue: name.clone(), patch })?;
    let quiet = when_quiet(run, queue, &name)?;
    // On another core perhaps, which has not just been told what is there.
    run.auditor_leaves();
    let mut drained = receive_and_ack(run, queue, &name)?;
    let mut after = stats(run, queue, &name)?;
    let lost_leases = after.leased.iter().sum();
    if lost_leases > 0 && run.gave_up() {
        wait(run, DRAIN_LEASE_OVER_MS)?;
        drained.extend(receive_and_ack(run, queue, &name)?);
        after = stats(run, queue, &name)?;
    }
    let dead = list_dead(run, queue, &name)?;
    Ok(Some(QueueEnd { quiet, drained, lost_leases, dead, after }))
}

fn receive_and_ack(run: &mut dyn Driver, queue: usize, name: &str) -> Result<Vec<Delivered>, Stopped> {
    let drained = receive_all(run, queue, name)?;
    for some in drained.chunks(500) {
        let ack: Vec<String> = some.iter().map(|message| message.receipt.to_string()).collect();
        let settle = Settle { queue: name.into(), ack, ..Settle::default() };
        match ask(run, queue, Request::Settle(settle))? {
            Response::Settled { ack, .. } if ack.iter().all(|settled| *settled == Settled::Ok) => {}
            other => return Err(format!("{name}: acks of a healthy node's current leases: {other:?}").into()),
        }
    }
    Ok(drained)
}

/// Redrives with a rate may still bring something back; and a time that was given by a clock that was hours ahead takes
/// hours to come.
fn when_quiet(run: &mut dyn Driver, queue: usize, name: &str) -> Result<Stats, Stopped> {
    const LOOKS_MAX: usize = 400;
    const SHORT_LOOKS: usize = 40;
    let mut before = stats(run, queue, name)?;
    for look in 0..LOOKS_MAX {
        wait(run, if look < SHORT_LOOKS { 2_500 } else { 120_000 })?;
        let now = stats(run, queue, name)?;
        let busy = now.leased.iter().chain(&now.delayed).sum::<u64>();
        if busy == 0 && now.totals == before.totals {
            return Ok(now);
        }
        before = now;
    }
    Err(format!("{name} does not come to rest: {before:?}").into())
}

fn stats(run: &mut dyn Driver, queue: usize, name: &str) -> Result<Stats, Stopped> {
    match ask(run, queue, Request::Stats { queue: name.into() })? {
        Response::Stats(stats) => Ok(stats),
        other => Err(format!("{name}: {other:?}").into()),
    }
}

fn receive_all(run: &mut dyn Driver, queue: usize, name: &str) -> Result<Vec<Delivered>, Stopped> {
    let mut drained = Vec::new();
    for round in 0..DRAIN_RECEIVES_MAX {
        let max = [1, 7, 3, 100][(queue + round / 16) % 4];
        let receive = Receive { max, lease_s: Some(DRAIN_LEASE_S), ..Receive::new(name) };
        match ask(run, queue, Request::Receive(receive))? {
            Response::Received { messages } if messages.is_empty() => return Ok(drained),
            Response::Received { messages } => drained.extend(messages),
            other => return Err(format!("{name}: {other:?}").into()),
        }
    }
    Err(format!("{name} never gets empty").into())
}

fn list_dead(run: &mut dyn Driver, queue: usize, name: &str) -> Result<Vec<DeadLetter>, Stopped> {
    let mut dead = Vec::new();
    let mut after = None;
    loop {
        match ask(run, queue, Request::DlqList { queue: name.into(), limit: 30, after })? {
            Response::DeadLetters { messages, next } => {
                dead.extend(messages);
                after = next;
            }
            other => return Err(format!("{name}: {other:?}").into()),
        }
        if after.is_none() {
            return Ok(dead);
        }
    }
}
