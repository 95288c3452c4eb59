//! What the load tells: a line for each interval, and the table and notes at the end.

use super::meter::{self, Counts, Told};
use super::run::{Run, State};
use super::{Cpu, LoadOptions, LookedUp, Verified, stays};
use core::fmt::Write as _;
use overtake_measure::table::{Latencies, Row, milliseconds, render, thousands};
use std::rc::Rc;
use std::time::Duration;

/// Above this part of the server's CPU time the load tool is too expensive to be let out of account.
const OWN_PART_MAX: f64 = 1.0 / 3.0;
/// Above this part of one core, its one thread is busy.
const BUSY_MIN: f64 = 0.9;
/// Above this part of the enqueues, what was refused used too much of the CPU time to divide it by what was not.
const REFUSED_MAX: f64 = 0.1;
/// Messages that were sent later than this after their time, at the 99th percentile, make latencies the tool's own.
const LATE_NS_MAX: u64 = 2_000_000;

/// How long the server may take to say how much waits.
const STATS_WITHIN: Duration = Duration::from_millis(500);

/// Tells each interval.
pub(super) struct Progress<'a> {
    run: Rc<Run>,
    tell: &'a mut dyn FnMut(&str),
    start_ns: u64,
}

impl<'a> Progress<'a> {
    pub(super) fn new(run: &Rc<Run>, tell: &'a mut dyn FnMut(&str)) -> Self {
        Self { run: run.clone(), tell, start_ns: run.clock.now() }
    }

    pub(super) async fn tell(&mut self) -> std::io::Result<()> {
        let now_ns = self.run.clock.now();
        let (told, violations, trouble) = {
            let mut state = self.run.state.borrow_mut();
            let told = state.meter.end_interval(now_ns / 1_000_000)?;
            (told, state.violations().total(), state.trouble.take())
        };
        // A server that does not answer in time is no reason to be silent.
        let client = self.run.client();
        let stats = tokio::time::timeout(STATS_WITHIN, client.stats(&self.run.queue)).await;
        let backlog = stats.ok().and_then(Result::ok).map(|stats| stays(&stats));
        let mut line = line((now_ns - self.start_ns) / 1_000_000_000, &told, backlog, violations);
        if let Some(trouble) = trouble {
            let _ = write!(line, "  trying again: {trouble}");
        }
        (self.tell)(&line);
        Ok(())
    }
}

fn line(at_s: u64, told: &Told, backlog: Option<u64>, violations: u64) -> String {
    let per_second = |count: u64| thousands(count * 1_000 / told.length_ms);
    let mut text = format!(
        "{at_s:>5} s  sent {}/s  confirmed {}/s  delivered {}/s  acked {}/s",
        per_second(told.counts.sent),
        per_second(told.counts.confirmed),
        per_second(told.counts.delivered),
        per_second(told.counts.acked)
    );
    let p99 =
        |name: &String| told.p99_ns.iter().find(|(other, _)| other == name).map(|(_, ns)| milliseconds(*ns));
    if let Some(enqueue) = p99(&"enqueue".to_owned()) {
        let _ = write!(text, "  p99 ms: enqueue {enqueue}");
    }
    for (name, ns) in &told.p99_ns {
        if let Some(level) = name.strip_prefix("deliver.") {
            let _ = write!(text, " {level} {}", milliseconds(*ns));
        }
    }
    let _ = write!(text, "  backlog {}", backlog.map_or_else(|| "?".into(), thousands));
    if violations > 0 {
        let _ = write!(text, "  VIOLATIONS {violations}");
    }
    text
}

/// Confirmations that go on for longer than this many times the time asked for came late.
const KEPT_UP: f64 = 1.05;
/// A process that used no CPU at all was not the server of more messages than these.
const IDLE_MESSAGES_MAX: u64 = 1_000;

/// What a run began with, and whether it came to its end.
#[derive(Clone, Copy, Default)]
pub(super) struct Start {
    /// Messages of other runs that were there.
    pub left: usize,
    /// And more of them.
    pub more: bool,
    /// Nodes of the server.
    pub nodes: Option<u32>,
    pub interrupted: bool,
}

/// What is told at the end.
pub(super) struct Report {
    pub rows: Vec<Row>,
    pub text: String,
    pub violations: u64,
}

impl Report {
    pub(super) fn new(
        options: &LoadOptions,
        state: &State,
        before: Cpu,
        after: Cpu,
        verified: &Verified,
        start: Start,
    ) -> Self {
        let seconds = (after.at - before.at).as_secs_f64();
        let used = |from: Option<std::time::Duration>, to: Option<std::time::Duration>| {
            Some(to?.checked_sub(from?)?.as_secs_f64())
        };
        let counts = state.meter.counts;
        let idle = |used: &f64| *used <= 0.0 && counts.confirmed + counts.delivered > IDLE_MESSAGES_MAX;
        let own = used(before.own, after.own);
        // What some nodes of a cluster use is not what a message costs.
        let missing = match start.nodes {
            Some(nodes) if !options.server_pid.is_empty() => nodes > options.server_pid.len() as u32,
            _ => false,
        };
        let (idle, server) = match used(before.server, after.server) {
            Some(_) if missing => (false, None),
            Some(used) if idle(&used) => (true, None),
            used => (false, used),
        };
        // One of several producers does not know how many messages the server had in all.
        let only_produces = options.produce && !options.consume;
        let cycles = if only_produces { 0 } else { counts.acked };
        let asked_over = options.duration.as_secs_f64();
        // What was confirmed later than it was due was not confirmed at the rate at which it was sent.
        let rate_over = asked_over.max(state.meter.confirmed_over_s()).min(seconds);
        let mut rows = Vec::new();
        let mut add =
            |key: &str, name: &str, tag: usize, count: Option<u64>, over_s: f64, cpu: Option<f64>| {
                let values = state.meter.total(tag).filter(|values| !values.is_empty());
                if values.is_none() && count.unwrap_or(0) == 0 {
                    return;
                }
                rows.push(Row {
                    key: format!("load.{key}"),
                    name: name.to_owned(),
                    per_second: count.map(|count| count as f64 / over_s.max(1e-3)),
                    latencies: values.map(|values| Latencies::from(values.clone())),
                    cpu_s_per_million: cpu,
                    ..Row::default()
                });
            };
        let (per_million, cost_note) = cost(server, cycles, counts);
        add("enqueue", "enqueue, due to confirmed", meter::ENQUEUE, Some(counts.confirmed), rate_over, None);
        let mut level = 0;
        while state.meter.total(meter::deliver(level)).is_some() {
            let values = state.meter.total(meter::deliver(level)).map(|values| values.len());
            let name = format!("deliver P{level}, due to first delivery");
            add(&format!("deliver.P{level}"), &name, meter::deliver(level), values, seconds, None);
            level += 1;
        }
        add(
            "settle",
            "acks and releases; latency of each call",
            meter::SETTLE,
            Some(counts.acked + counts.released),
            seconds,
            per_million,
        );
        add("send.late", "the load tool's own lateness", meter::SEND_LATE, None, seconds, None);
        if let Some(settle) = rows.iter_mut().find(|row| row.cpu_s_per_million.is_some()) {
            // What it costs that messages came again is in the CPU of a message.
            settle.retries = Some(counts.redelivered as f64 / cycles.max(1) as f64);
        }
        let violations = state.violations();
        let mut text = render(&rows);
        let _ = writeln!(
            text,
            "\nsent {}, confirmed {}, duplicates {}, refused {}, fate unknown {}; delivered {}, again {}, acked {}, released {}, abandoned {}, stale {}",
            thousands(counts.sent),
            thousands(counts.confirmed),
            thousands(counts.duplicates),
            thousands(counts.refused),
            thousands(counts.unknown),
            thousands(counts.delivered),
            thousands(counts.redelivered),
            thousands(counts.acked),
            thousands(counts.released),
            thousands(counts.abandoned),
            thousands(counts.stale)
        );
        for (count, first) in state.refusals.values() {
            let _ = writeln!(text, "refused {}, like this one: {first}", thousands(*count));
        }
        if let Some(trouble) = &state.last_trouble {
            let unknown = match counts.unknown {
                0 => String::new(),
                count => format!("; {} enqueues were given up after 30 s, stored or not", thousands(count)),
            };
            let _ = writeln!(
                text,
                "NOTE: calls failed and were tried again, the last time because: {trouble}{unknown}"
            );
        }
        if let Some(own) = own {
            let _ = write!(text, "CPU in {seconds:.1} s: load tool {own:.2} s");
            if let Some(server) = server {
                let _ = write!(text, ", server {server:.2} s");
            }
            if let Some(per_million) = per_million {
                let _ = write!(text, ", {per_million:.1} s per million messages");
            } else if server.is_some() && only_produces {
                text += "; what a message costs is told by the process that consumes, with --server-pid";
            }
            text.push('\n');
        }
        text += &cost_note;
        if idle {
            text += "NOTE: the processes of --server-pid did nothing: they are not the server\n";
        } else if missing {
            let _ = writeln!(
                text,
                "NOTE: --server-pid names {} of {} nodes: the server's CPU time is not known",
                options.server_pid.len(),
                start.nodes.unwrap_or(0)
            );
        } else if server.is_none() && !options.server_pid.is_empty() {
            text +=
                "NOTE: a process of --server-pid has ended meanwhile: the server's CPU time is not known\n";
        }
        if rate_over > asked_over * KEPT_UP && options.concurrency.is_none() && counts.confirmed > 0 {
            let _ = writeln!(
                text,
                "NOTE: the last confirmation came {:.1} s after the last message was due: the rate was not kept up with",
                rate_over - asked_over
            );
        }
        if start.left > 0 {
            let _ = writeln!(
                text,
                "NOTE: {}{} messages of other runs were there at the start: they count where they are delivered; --fresh \
                 begins with an empty queue",
                if start.more { "more than " } else { "" },
                thousands(start.left as u64)
            );
        }
        if start.interrupted {
            text.push_str("NOTE: interrupted: less was sent than was asked for\n");
        }
        bottleneck(&mut text, state, seconds, own, server);
        verdict(&mut text, state, verified);
        for (broken, count) in &violations.counts {
            let _ = writeln!(text, "VIOLATED: {}: {}", broken.text(), thousands(*count));
        }
        for violation in &violations.told {
            let _ = writeln!(text, "  {violation}");
        }
        Self { rows, text, violations: violations.total() }
    }
}

/// CPU seconds of the server for a million messages, and a note where that is not told.
fn cost(server_s: Option<f64>, cycles: u64, counts: Counts) -> (Option<f64>, String) {
    // Below a tick of its clock a process used nothing, and no message costs nothing.
    let Some(used_s) = server_s.filter(|used| *used > 0.0 && cycles > 0) else {
        return (None, String::new());
    };
    let answered = counts.confirmed + counts.refused;
    let refused = counts.refused as f64 / answered.max(1) as f64;
    if refused <= REFUSED_MAX {
        return (Some(used_s * 1e6 / cycles as f64), String::new());
    }
    let percent = (refused * 100.0).floor();
    (
        None,
        format!(
            "NOTE: {percent} % of the enqueues were refused, which takes CPU time too: what a message costs is not known; \
             stay below the limits of the queue to measure it\n"
        ),
    )
}

/// Says where the load tool itself, and not the server, may have set the figures.
fn bottleneck(text: &mut String, state: &State, seconds: f64, own: Option<f64>, server: Option<f64>) {
    if let (Some(own), Some(server)) = (own, server)
        && own > server * OWN_PART_MAX
    {
        let percent = own * 100.0 / server.max(1e-3);
        let _ = writeln!(
            text,
            "NOTE: the load tool used {percent:.0} % of the server's CPU time, more than a third: on one machine it slows the server down"
        );
    }
    if own.is_some_and(|own| own > seconds * BUSY_MIN) {
        let _ = writeln!(
            text,
            "NOTE: the load tool's thread was busy all the time: it is the bottleneck. Run several processes and merge their .hlog files"
        );
    }
    let late = state.meter.total(meter::SEND_LATE).filter(|late| !late.is_empty());
    let late_ns = late.map_or(0, |late| late.value_at_quantile(0.99));
    if late_ns > LATE_NS_MAX {
        let _ = writeln!(
            text,
            "NOTE: the load tool was late: 1 % of the messages were sent {} ms or more after their time, which their latencies contain",
            milliseconds(late_ns)
        );
    }
}

fn verdict(text: &mut String, state: &State, verified: &Verified) {
    let LookedUp { left, asked, there, taken, shared } = match verified {
        Verified::Looked(looked_up) => *looked_up,
        Verified::Not(why) => {
            let _ = writeln!(
                text,
                "not verified ({why}); violations until then: {}",
                thousands(state.violations().total())
            );
            return;
        }
    };
    let _ = write!(text, "verified: ");
    if left == 0 && state.meter.counts.sent == 0 {
        let _ = write!(text, "nothing was sent here");
    } else if left == 0 {
        let _ = write!(text, "every confirmed message was delivered and acked");
    } else {
        let (left, asked, there) = (thousands(left as u64), thousands(asked as u64), thousands(there as u64));
        let _ =
            write!(text, "{left} confirmed messages not acked; {asked} looked up, {there} are on the server");
        if taken > 0 {
            let _ = write!(text, ", {} were taken by other processes", thousands(taken as u64));
        }
        if shared {
            let _ = write!(
                text,
                " or are lost, which cannot be told apart: others sent to this queue, too (give each run a queue of its own)"
            );
        }
    }
    if !state.others.is_empty() {
        let _ = write!(text, "; messages of {} other runs were checked for doubles only", state.others.len());
    }
    let _ = writeln!(text, "; violations: {}", thousands(state.violations().total()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_rates_and_latencies() {
        let counts = Counts { sent: 500, confirmed: 400, delivered: 300, acked: 200, ..Counts::default() };
        let p99_ns = vec![
            ("enqueue".to_owned(), 1_500_000),
            ("settle".to_owned(), 1),
            ("deliver.P0".to_owned(), 12_000_000),
        ];
        let told = Told { counts, length_ms: 500, p99_ns };
        assert_eq!(
            line(7, &told, Some(12_345), 3),
            "    7 s  sent 1,000/s  confirmed 800/s  delivered 600/s  acked 400/s  p99 ms: enqueue 1.500 P0 12.0  backlog 12,345  VIOLATIONS 3"
        );
    }

    #[test]
    fn what_a_message_costs_is_not_told_where_many_were_refused() {
        let counts = |confirmed, refused| Counts { confirmed, refused, ..Counts::default() };
        assert_eq!(cost(Some(0.5), 10_000, counts(10_000, 1_000)), (Some(50.0), String::new()));
        let (none, note) = cost(Some(0.69), 350, counts(350, 115_550));
        assert!(none.is_none() && note.starts_with("NOTE: 99 % of the enqueues were refused"), "{note}");
        assert!(cost(Some(0.5), 10_000, counts(10_000, 1_200)).0.is_none());
        for unknown in [None, Some(0.0)] {
            assert_eq!(cost(unknown, 10_000, counts(10_000, 0)), (None, String::new()));
        }
    }
}
