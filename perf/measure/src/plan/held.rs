//! Which rates of a load test held: what came in also left over the same time, and latencies were what they should be.
//!
//! An open loop says when messages were due (`send.late` counts them), so its time is cut into stretches of one rate, and
//! each stretch is judged as a whole: a stall is in the stretch in which it happened, and the interval in which everything
//! catches up is no higher rate. A closed loop has one rate by nature: all of it is one stretch.

use crate::encoding::EncodedHistogram;
use crate::hlog::{Interval, Log, histogram};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Intervals shorter than this say nothing about a rate.
const INTERVAL_MS_MIN: u64 = 100;
/// Rates of this part of another one, or above it, are the same rate: those of a steady load scatter by less.
const SAME_RATE: f64 = 0.9;
/// Messages that may be under way without being a backlog: so many seconds' worth of them.
const UNDER_WAY_S: f64 = 0.1;
/// Part of what came in that may be counted in the next stretch.
const SCATTER: f64 = 0.02;
const ENQUEUE: &str = "enqueue";
const P0: &str = "deliver.P0";
const DELIVER: &str = "deliver.";
/// Repeats of a dedup key: confirmed, and rightly never delivered.
const REPEAT: &str = "enqueue.repeat";
/// One value for each message that was due, in an open loop.
const DUE: &str = "send.late";

/// Latencies that must hold at the 99th percentile, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Targets {
    /// Confirmation of an enqueue.
    pub enqueue_ms: f64,
    /// Delivery of P0.
    pub p0_ms: f64,
}

impl Default for Targets {
    fn default() -> Self {
        Self { enqueue_ms: 50.0, p0_ms: 50.0 }
    }
}

/// The highest rate of a log that held.
#[derive(Clone, PartialEq, Debug)]
pub struct Sustained {
    /// The log.
    pub name: String,
    /// Cores of the server that was measured, and where that comes from.
    pub server_cores: (u128, Origin),
    /// Copies that it kept of each message, and where that comes from.
    pub server_replicas: (u128, Origin),
    /// Messages a second; none where no rate held.
    pub per_second: Option<f64>,
    /// 99th percentile of all messages at that rate; of all of the log where none held.
    pub enqueue_p99: P99,
    /// The same of P0, where it was measured.
    pub p0_p99: Option<P99>,
    /// How late the load tool itself was, where the log says so: the latencies contain it.
    pub late_p99: Option<P99>,
    /// The lowest rate that did not hold, and why. None: the limit of the test was seen, not that of the machine.
    pub missed: Option<(f64, Missed)>,
    /// The highest rate above that one that held again: something disturbed the test, or the machine holds it by chance.
    pub held_above: Option<f64>,
}

/// Where a number comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The planner said so.
    Given,
    /// The file says so.
    File,
    /// Nobody said anything.
    Assumed,
}

impl Origin {
    /// What was given, else what the file says, else an assumption.
    #[must_use]
    pub fn known(given: Option<u32>, file: Option<u32>, assumed: u128) -> (u128, Self) {
        match (given, file) {
            (Some(number), _) => (number.into(), Self::Given),
            (None, Some(number)) => (number.into(), Self::File),
            (None, None) => (assumed, Self::Assumed),
        }
    }
}

/// Why a rate did not hold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Missed {
    /// Confirmations came too late.
    Enqueue(P99),
    /// Deliveries of P0 came too late.
    P0(P99),
    /// So many a second were due, and so many were confirmed.
    NotConfirmed(f64, f64),
    /// So many a second came in, and so many left.
    NotDelivered(f64, f64),
}

/// A 99th percentile, and of how many values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct P99 {
    /// Milliseconds.
    pub ms: f64,
    /// Values.
    pub values: u64,
}

impl P99 {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self { ms: histogram.value_at_quantile(0.99) as f64 / 1e6, values: histogram.len() }
    }
}

/// A log that says nothing about rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRate {
    /// Nothing was enqueued in it, or only for a moment.
    Enqueues,
    /// Nothing was delivered in it.
    Deliveries,
}

/// What happened in a span of time as long as the longest interval.
#[derive(Default)]
struct Slot<'a> {
    due: f64,
    confirmed: f64,
    repeats: f64,
    delivered: f64,
    /// Those that lie mostly in it.
    enqueue: Vec<&'a Interval>,
    p0: Vec<&'a Interval>,
    late: Vec<&'a Interval>,
}

/// A stretch of one rate.
#[derive(Default)]
struct Stretch<'a> {
    slots: Vec<Slot<'a>>,
    seconds: f64,
    /// Of all messages that came in before it, those that had not left.
    backlog: f64,
}

impl<'a> Stretch<'a> {
    fn sum(&self, of: impl Fn(&Slot<'a>) -> f64) -> f64 {
        self.slots.iter().map(of).sum()
    }

    /// What came in a second: what was due, or in a closed loop what was confirmed.
    fn per_second(&self) -> f64 {
        self.sum(Slot::came) / self.seconds.max(1e-3)
    }

    /// Messages that are under way at this rate without being a backlog.
    fn under_way(&self) -> f64 {
        self.per_second() * UNDER_WAY_S
    }

    /// It only works off what an earlier stretch left.
    fn catches_up(&self) -> bool {
        self.backlog > self.under_way() && self.sum(Slot::left_over) <= 0.0
    }
}

impl Slot<'_> {
    fn came(&self) -> f64 {
        if self.due > 0.0 { self.due } else { self.confirmed + self.repeats }
    }

    /// By how much more came in than left; below nothing where it was the other way round.
    fn left_over(&self) -> f64 {
        self.came() - self.repeats - self.delivered
    }
}

/// Spreads the intervals over slots as long as the longest one, by how far they overlap: processes do not start together,
/// and those of merged logs are longer than those of one.
fn slots(log: &Log) -> Option<(f64, BTreeMap<u64, Slot<'_>>)> {
    let counts = |interval: &&Interval| {
        [ENQUEUE, DUE, REPEAT].contains(&interval.tag.as_str()) || interval.tag.starts_with(DELIVER)
    };
    let intervals = || log.intervals.iter().filter(counts).filter(|interval| !interval.histogram.is_empty());
    let width_ms = intervals().map(|interval| interval.length_ms).max()?.max(1);
    let start_ms = intervals().map(|interval| interval.start_ms).min()?;
    let mut slots: BTreeMap<u64, Slot<'_>> = BTreeMap::new();
    for interval in intervals() {
        let (from_ms, to_ms) = (interval.start_ms - start_ms, interval.end_ms() - start_ms);
        let count = interval.histogram.len() as f64;
        for slot in from_ms / width_ms..=to_ms.saturating_sub(1).max(from_ms) / width_ms {
            let begin = (slot * width_ms).max(from_ms);
            let overlap = (slot + 1).saturating_mul(width_ms).min(to_ms).saturating_sub(begin);
            let part = if interval.length_ms == 0 { 1.0 } else { overlap as f64 / interval.length_ms as f64 };
            let slot = slots.entry(slot).or_default();
            match interval.tag.as_str() {
                ENQUEUE => slot.confirmed += count * part,
                DUE => slot.due += count * part,
                REPEAT => slot.repeats += count * part,
                _ => slot.delivered += count * part,
            }
        }
        let middle = slots.entry(from_ms.saturating_add(interval.length_ms / 2) / width_ms).or_default();
        match interval.tag.as_str() {
            ENQUEUE => middle.enqueue.push(interval),
            P0 => middle.p0.push(interval),
            DUE => middle.late.push(interval),
            _ => {}
        }
    }
    Some((width_ms as f64 / 1e3, slots))
}

/// The slots in which messages came in, without the first and the last where they are so only in part; what was confirmed
/// after that belongs to the last one.
fn trim(mut slots: BTreeMap<u64, Slot<'_>>) -> BTreeMap<u64, Slot<'_>> {
    let open = slots.values().any(|slot| slot.due > 0.0);
    let comes = |slot: &Slot<'_>| if open { slot.due } else { slot.confirmed };
    let Some(end) = slots.iter().rev().find(|(_, slot)| comes(slot) > 0.0).map(|(at, _)| *at + 1) else {
        return slots;
    };
    let mut tail = slots.split_off(&end);
    if slots.len() > 2 {
        let at = |number: usize| slots.values().nth(number).map_or(0.0, comes);
        let (first, second) = (at(0), at(1));
        let (before, last) = (at(slots.len() - 2), at(slots.len() - 1));
        if last < before * SAME_RATE {
            tail.extend(slots.pop_last());
        }
        if first < second * SAME_RATE && slots.len() > 2 {
            slots.pop_first();
        }
    }
    if let Some(mut last) = slots.last_entry() {
        for slot in tail.into_values() {
            last.get_mut().enqueue.extend(slot.enqueue);
            last.get_mut().p0.extend(slot.p0);
        }
    }
    slots
}

/// The stretches, in the order of time.
fn stretches(slots: BTreeMap<u64, Slot<'_>>, slot_s: f64) -> Vec<Stretch<'_>> {
    let open = slots.values().any(|slot| slot.due > 0.0);
    let (mut stretches, mut last_at, mut backlog) = (Vec::<Stretch<'_>>::new(), None, 0.0);
    for (at, slot) in slots {
        let gap = last_at.map_or(0, |last| at - last - 1);
        let fits = stretches.last().is_some_and(|stretch| {
            let (rate, now) = (stretch.per_second(), slot.due / slot_s);
            !open || (gap == 0 && now >= rate * SAME_RATE && now * SAME_RATE <= rate)
        });
        if !fits {
            stretches.push(Stretch { backlog, ..Stretch::default() });
        }
        // What left may have been there before anything came in.
        backlog = f64::max(0.0, backlog + slot.left_over());
        if let Some(stretch) = stretches.last_mut() {
            // A closed loop in which nothing is confirmed for a while stands still: that is time, too.
            stretch.seconds += slot_s * (1 + if open { 0 } else { gap }) as f64;
            stretch.slots.push(slot);
        }
        last_at = Some(at);
    }
    stretches
}

/// All stretches of one rate.
struct Rate {
    per_second: f64,
    enqueue: Histogram<u64>,
    p0: Histogram<u64>,
    late: Histogram<u64>,
    missed: Option<Missed>,
}

impl Rate {
    fn new(stretches: &[Stretch<'_>], targets: Targets) -> Self {
        let (mut enqueue, mut p0, mut late) = (histogram(), histogram(), histogram());
        for slot in stretches.iter().flat_map(|stretch| &stretch.slots) {
            slot.enqueue.iter().for_each(|interval| add(&mut enqueue, &interval.histogram));
            slot.p0.iter().for_each(|interval| add(&mut p0, &interval.histogram));
            slot.late.iter().for_each(|interval| add(&mut late, &interval.histogram));
        }
        let seconds = stretches.iter().map(|stretch| stretch.seconds).sum::<f64>().max(1e-3);
        let sum =
            |of: fn(&Slot<'_>) -> f64| stretches.iter().map(|stretch| stretch.sum(of)).sum::<f64>() / seconds;
        let (came, confirmed, left_over) = (
            sum(|slot| slot.came()),
            sum(|slot| slot.confirmed + slot.repeats),
            sum(|slot| slot.left_over()),
        );
        let allowed = came * SCATTER + came * UNDER_WAY_S * stretches.len() as f64 / seconds;
        let waits = stretches.iter().any(|stretch| stretch.backlog > stretch.under_way());
        let (enqueue_p99, p0_p99) = (P99::of(&enqueue), P99::of(&p0));
        let missed = if confirmed + allowed < came {
            Some(Missed::NotConfirmed(came, confirmed))
        } else if left_over > if waits { 0.0 } else { allowed } {
            Some(Missed::NotDelivered(came, came - left_over))
        } else if enqueue.is_empty() || enqueue_p99.ms > targets.enqueue_ms {
            Some(Missed::Enqueue(enqueue_p99))
        } else if !p0.is_empty() && p0_p99.ms > targets.p0_ms {
            Some(Missed::P0(p0_p99))
        } else {
            None
        };
        Self { per_second: came, enqueue, p0, late, missed }
    }
}

/// None of nothing.
fn some_p99(values: &Histogram<u64>) -> Option<P99> {
    (!values.is_empty()).then(|| P99::of(values))
}

fn add(sum: &mut Histogram<u64>, values: &EncodedHistogram) {
    // All values of a log fit the bounds that every histogram of ours has; others are clamped to them.
    for (value, count) in values.recorded() {
        sum.saturating_record_n(value, count);
    }
}

/// What the planner says of the server that a log was measured on, before what the log says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// Its cores.
    pub cores: Option<u32>,
    /// Copies that it kept of each message.
    pub replicas: Option<u32>,
}

/// Finds the highest rate of a log of `load` that held, with no lower rate that did not.
///
/// # Errors
/// Where the log says nothing about rates.
pub fn sustained(name: &str, log: &Log, measured: Measured, targets: Targets) -> Result<Sustained, NoRate> {
    let long = |tag: &str| {
        log.intervals.iter().any(|interval| {
            interval.tag.starts_with(tag)
                && interval.length_ms >= INTERVAL_MS_MIN
                && !interval.histogram.is_empty()
        })
    };
    if !long(ENQUEUE) {
        return Err(NoRate::Enqueues);
    }
    if !long(DELIVER) {
        return Err(NoRate::Deliveries);
    }
    let (slot_s, slots) = slots(log).ok_or(NoRate::Enqueues)?;
    let mut stretches = stretches(trim(slots), slot_s);
    stretches.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let all = Rate::new(&stretches, targets);
    stretches.retain(|stretch| !stretch.catches_up());
    let mut rates = Vec::new();
    let mut rest = &stretches[..];
    while let Some(first) = rest.first() {
        let same = rest.partition_point(|stretch| stretch.per_second() * SAME_RATE <= first.per_second());
        let (rate, others) = rest.split_at(same.max(1));
        rates.push(Rate::new(rate, targets));
        rest = others;
    }
    let held = rates.iter().take_while(|rate| rate.missed.is_none()).count();
    let best = held.checked_sub(1).and_then(|at| rates.get(at));
    let told = best.unwrap_or(&all);
    Ok(Sustained {
        name: name.into(),
        server_cores: Origin::known(measured.cores, log.server_cores, 1),
        server_replicas: Origin::known(measured.replicas, log.server_replicas, 1),
        per_second: best.map(|rate| rate.per_second),
        enqueue_p99: P99::of(&told.enqueue),
        p0_p99: some_p99(&told.p0),
        late_p99: some_p99(&told.late),
        missed: rates.get(held).and_then(|rate| Some((rate.per_second, rate.missed?))),
        held_above: rates.iter().skip(held).rfind(|rate| rate.missed.is_none()).map(|rate| rate.per_second),
    })
}
