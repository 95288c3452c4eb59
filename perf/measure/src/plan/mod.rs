//! Capacity planning: from an expected load and from what was measured on the planner's own hardware to nodes, cores,
//! shards, disk, network and memory. Each line says how it was worked out, in numbers that can be checked by hand.
//!
//! "About" means rounded to the digits shown; working goes on with the exact value.

mod exact;
mod hardware;
mod held;
mod node;
mod sizing;

pub use exact::Exact;
pub use hardware::{CpuCost, DiskRate, Hardware};
pub use held::{Measured, Missed, NoRate, Origin, P99, Sustained, Targets, sustained};
pub use node::{Node, Sizes};

use crate::table::{align, thousands};
use overtake_base::limits::{DEDUP_WINDOW_S_DEFAULT, SHARDS_MAX};

/// Seconds of a day.
const DAY_S: u128 = 86_400;
/// Operations of a message that succeeds at once: enqueue, receive, ack.
const OPERATIONS: u128 = 3;
/// Operations of one more try: another receive, and the release or the expiry before it.
const OPERATIONS_OF_RETRY: u128 = 2;
/// Operations a second of one leader in the usual design: what the number of shards is worked out from.
const OPERATIONS_OF_LEADER: u128 = 6_000;
/// Backlog of an ordinary day: what arrives in an hour of the least urgent levels, drained within an hour.
const NORMAL_BACKLOG_S: u128 = 3_600;
const NORMAL_BACKLOG_LEVELS: usize = 2;
/// Most messages a day that a load may grow to.
const MESSAGES_PER_DAY_MAX: u128 = 1_000_000_000_000_000;
/// Memory of a message that waits on disk, at most, in bytes: its sequence as a difference, 12 bits of filter, its part of
/// its run. `storage` measures it, and holds it against this.
pub const COLD_MESSAGE_BYTES: u128 = 4;

/// The expected load, and what has to be survived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// Messages a day.
    pub messages_per_day: u128,
    /// Growth in a year: 0.2 is a fifth more.
    pub growth: Exact,
    /// Years of it.
    pub years: u32,
    /// Peak rate in multiples of the average.
    pub peak_factor: Exact,
    /// Bytes of a body, on average.
    pub body_bytes: u128,
    /// Shares of the levels, P0 first.
    pub mix: Vec<u32>,
    /// Days that messages are kept at most.
    pub retention_days: Exact,
    /// Hours that consumers may be gone.
    pub outage_hours: Exact,
    /// Further tries of a message, on average.
    pub retries: Exact,
    /// Copies of each message.
    pub replicas: u128,
    /// Failure domains, of which one may be lost.
    pub zones: u128,
    /// How long ids are remembered that clients made, in seconds.
    pub dedup_window_s: u64,
}

impl Default for Load {
    /// The load that the system is designed for.
    fn default() -> Self {
        Self {
            messages_per_day: 1_200_000_000,
            growth: Exact::whole(0),
            years: 1,
            peak_factor: Exact::whole(4),
            body_bytes: 1_000,
            mix: crate::plan::DESIGN_MIX.to_vec(),
            retention_days: Exact::whole(4),
            outage_hours: Exact::whole(24),
            retries: Exact::ratio(1, 10),
            replicas: 3,
            zones: 3,
            dedup_window_s: DEDUP_WINDOW_S_DEFAULT,
        }
    }
}

/// Mix of levels of the design, in percent.
pub const DESIGN_MIX: [u32; 5] = [2, 8, 20, 30, 40];

/// One line of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// What it is.
    pub quantity: String,
    /// How it was worked out.
    pub working: String,
    /// What came out.
    pub result: String,
}

fn line(quantity: &str, working: impl Into<String>, result: impl Into<String>) -> Line {
    Line { quantity: quantity.into(), working: working.into(), result: result.into() }
}

/// A plan: what the load means, and what it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The load.
    pub load: Vec<Line>,
    /// What it takes.
    pub sizing: Vec<Line>,
    /// What is assumed and was not measured.
    pub assumptions: Vec<String>,
    /// Why it cannot be done, each with the resource that rules it out.
    pub impossible: Vec<String>,
}

/// What follows from the load alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Derived {
    messages_per_day: Exact,
    peak: Exact,
    ingest_bytes: Exact,
    normal_backlog: Exact,
    worst_backlog: Exact,
    operations: Exact,
    shards: u128,
}

/// Works out a plan.
#[must_use]
pub fn plan(load: &Load, node: &Node, hardware: &Hardware) -> Plan {
    let derived = derive(load);
    let mut plan = Plan {
        load: describe(load, &derived),
        sizing: Vec::new(),
        assumptions: Vec::new(),
        impossible: Vec::new(),
    };
    if derived.messages_per_day.float() > MESSAGES_PER_DAY_MAX as f64 {
        let most = long_count(MESSAGES_PER_DAY_MAX);
        plan.impossible.push(format!("growth: more than {most} messages a day come out of it"));
        return plan;
    }
    sizing::add(load, &derived, node, hardware, &mut plan);
    plan
}

/// Messages a day after some years of growth: whole ones, year by year.
fn grown(load: &Load) -> u128 {
    let mut messages = load.messages_per_day;
    for _ in 0..load.years {
        messages = Exact::whole(messages)
            .times(Exact::whole(1).plus(load.growth))
            .up()
            .min(MESSAGES_PER_DAY_MAX + 1);
    }
    messages
}

fn derive(load: &Load) -> Derived {
    let messages_per_day = Exact::whole(grown(load));
    let average = messages_per_day.over(Exact::whole(DAY_S));
    let peak = average.times(load.peak_factor);
    let operations = Exact::whole(OPERATIONS).plus(load.retries.times(Exact::whole(OPERATIONS_OF_RETRY)));
    let sum: u128 = load.mix.iter().map(|share| u128::from(*share)).sum();
    let least: u128 = load.mix.iter().rev().take(NORMAL_BACKLOG_LEVELS).map(|share| u128::from(*share)).sum();
    let kept_s = load.retention_days.times(Exact::whole(DAY_S));
    let outage_s = load.outage_hours.times(Exact::whole(3_600));
    // What is older than the retention is gone.
    let worst_s = if outage_s.float() > kept_s.float() { kept_s } else { outage_s };
    let leaders = peak.times(operations).over(Exact::whole(OPERATIONS_OF_LEADER)).up();
    Derived {
        messages_per_day,
        peak,
        ingest_bytes: peak.times(Exact::whole(load.body_bytes)),
        normal_backlog: average.times(Exact::whole(NORMAL_BACKLOG_S)).times(Exact::ratio(least, sum)),
        worst_backlog: average.times(worst_s),
        operations,
        shards: leaders.clamp(1, SHARDS_MAX.into()).next_power_of_two(),
    }
}

/// The table of the load.
fn describe(load: &Load, derived: &Derived) -> Vec<Line> {
    let sum: u128 = load.mix.iter().map(|share| u128::from(*share)).sum();
    let percent = |share: u32| Exact::ratio(u128::from(share) * 100, sum);
    let mix: Vec<String> =
        load.mix.iter().enumerate().map(|(level, share)| format!("P{level} {} %", percent(*share))).collect();
    let average = derived.messages_per_day.over(Exact::whole(DAY_S));
    let (peak, body) = (rate(derived.peak, 2), bytes(Exact::whole(load.body_bytes)));
    let urgent = Exact::ratio(u128::from(load.mix.first().copied().unwrap_or(0)), sum);
    let kept_h = load.retention_days.times(Exact::whole(24));
    let capped = load.outage_hours.float() > kept_h.float();
    let down = match (capped, load.outage_hours.float()) {
        (true, _) => {
            format!("consumers down for longer than the {} that messages are kept", days(load.retention_days))
        }
        (false, 24.0) => "consumers down for a day".into(),
        (false, _) => format!("consumers down for {} hours", load.outage_hours),
    };
    let (normal, body_bytes) = (derived.normal_backlog.about(1), Exact::whole(load.body_bytes));
    let worst = derived.worst_backlog.times(body_bytes);
    let copies = worst.times(Exact::whole(load.replicas));
    let mut lines = vec![
        line(
            "messages",
            format!(
                "{} a day, {body} average, kept {} at most",
                long_count(load.messages_per_day),
                days(load.retention_days)
            ),
            "",
        ),
        line("mix", mix.join(", "), ""),
    ];
    if load.growth != Exact::whole(0) && load.years > 0 {
        let factor = format!(" × {}", Exact::whole(1).plus(load.growth));
        let years = load.years;
        let factors = if years <= 5 { factor.repeat(years as usize) } else { format!("{factor} ^ {years}") };
        let grown = derived.messages_per_day.about(3);
        lines.push(line(
            "growth",
            format!(
                "{}{factors}, {years} {}",
                count(load.messages_per_day),
                if years == 1 { "year" } else { "years" }
            ),
            format!("{} a day", long_count(grown)),
        ));
    }
    lines.extend([
        line(
            "average enqueue rate",
            format!("{} / 86,400 s", count(derived.messages_per_day.about(3))),
            format!("about {}/s", rate(average, 3)),
        ),
        line(
            "peak enqueue rate",
            format!("{} × average, at batch kick-offs", load.peak_factor),
            format!("about {peak}/s"),
        ),
        line(
            "operations a message",
            format!("enqueue, receive, ack, about {} retries", load.retries),
            format!("about {}", derived.operations),
        ),
        line(
            "peak operations",
            format!("{peak} × {}", derived.operations),
            format!("about {}/s", rate(derived.peak.times(derived.operations), 2)),
        ),
        line(
            "P0 at peak",
            format!("{} % of {peak}", percent(load.mix.first().copied().unwrap_or(0))),
            format!("about {}/s", rate(derived.peak.times(urgent), 2)),
        ),
        line(
            "ingest at peak",
            format!("{peak} × {body}"),
            format!("about {}/s", bytes_about(derived.ingest_bytes, 2)),
        ),
        line(
            "normal backlog",
            format!("mostly P{}, drained within an hour", load.mix.len().saturating_sub(1)),
            format!("about {} messages, {}", count(normal), bytes(Exact::whole(normal).times(body_bytes))),
        ),
        line(
            "worst backlog",
            down,
            format!("{}, {} on {}", bytes_about(worst, 3), bytes_about(copies, 3), replicas(load.replicas)),
        ),
        line(
            "shards",
            "about 6,000 operations/s a leader in the usual design",
            format!("{}, room to double", derived.shards),
        ),
    ]);
    lines
}

impl Plan {
    /// The plan as text.
    #[must_use]
    pub fn render(&self) -> String {
        let cells = |head: [&str; 3], lines: &[Line]| {
            let mut cells = vec![head.map(str::to_owned)];
            let row = |line: &Line| [line.quantity.clone(), line.working.clone(), line.result.clone()];
            cells.extend(lines.iter().map(row));
            align(&cells, [true; 3])
        };
        let mut text = cells(["the load", "working", "result"], &self.load);
        text.push('\n');
        if !self.sizing.is_empty() {
            text += &cells(["what it takes", "working", "result"], &self.sizing);
        }
        if !self.assumptions.is_empty() {
            text += "\nassumed, not measured:\n";
            text.extend(self.assumptions.iter().map(|assumption| format!("- {assumption}\n")));
        }
        if !self.impossible.is_empty() {
            text += "\nIMPOSSIBLE as it is:\n";
            text.extend(self.impossible.iter().map(|reason| format!("- {reason}\n")));
        }
        text
    }
}

/// A rate, with so many digits.
fn rate(value: Exact, digits: u32) -> String {
    thousands(u64::try_from(value.about(digits)).unwrap_or(u64::MAX))
}

/// A count with a letter for its thousands.
fn count(number: u128) -> String {
    scaled(Exact::whole(number), &[(1_000_000_000, " B"), (1_000_000, " M")], "")
}

fn long_count(number: u128) -> String {
    scaled(Exact::whole(number), &[(1_000_000_000, " billion"), (1_000_000, " million")], "")
}

/// Bytes in powers of a thousand.
fn bytes(value: Exact) -> String {
    const UNITS: [(u128, &str); 5] = [
        (1_000_000_000_000_000, " PB"),
        (1_000_000_000_000, " TB"),
        (1_000_000_000, " GB"),
        (1_000_000, " MB"),
        (1_000, " KB"),
    ];
    scaled(value, &UNITS, " B")
}

/// The same, of a number of which only so many digits count.
fn bytes_about(value: Exact, digits: u32) -> String {
    bytes(Exact::whole(value.about(digits)))
}

/// Bits a second, of which only so many digits count.
fn bits_about(value: Exact, digits: u32) -> String {
    let units = [(1_000_000_000, " Gbit/s"), (1_000_000, " Mbit/s"), (1_000, " kbit/s")];
    scaled(Exact::whole(value.about(digits)), &units, " bit/s")
}

/// A whole number.
fn plain(number: u128) -> String {
    thousands(u64::try_from(number).unwrap_or(u64::MAX))
}

fn scaled(value: Exact, units: &[(u128, &str)], plain: &str) -> String {
    match units.iter().find(|(unit, _)| value.float() >= *unit as f64) {
        Some((unit, name)) => format!("{}{name}", value.over(Exact::whole(*unit))),
        None => format!("{}{plain}", thousands(u64::try_from(value.about(15)).unwrap_or(u64::MAX))),
    }
}

fn days(days: Exact) -> String {
    if days == Exact::whole(1) { "1 day".into() } else { format!("{days} days") }
}

fn replicas(count: u128) -> String {
    const WORDS: [&str; 10] = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    match WORDS.get(count as usize) {
        Some(&"one") => "one replica".into(),
        Some(word) => format!("{word} replicas"),
        None => format!("{count} replicas"),
    }
}

#[cfg(test)]
mod tests;
