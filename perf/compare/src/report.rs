//! The table and the plots of a comparison.

use crate::measure::{Cycles, Paced, Single};
use core::fmt::Write as _;
use overtake_measure::encoding::EncodedHistogram;
use overtake_measure::hlog::{Interval, Log};
use overtake_measure::plot::{Kind, Named, plot};
use overtake_measure::results::{Measure, Results};
use overtake_measure::table::{Latencies, Row, milliseconds, thousands};
use std::path::Path;

/// What was measured of one system. What is absent failed, or was not asked for; `failures` says so.
#[derive(Default)]
pub struct Outcome {
    pub name: String,
    pub strict: bool,
    pub settings: String,
    /// How to install it.
    pub install: String,
    pub version: String,
    pub batched: Option<Cycles>,
    pub single: Option<Single>,
    pub paced: Vec<(u64, Paced)>,
    pub memory_per_message: Option<f64>,
    pub backlog: Option<Paced>,
    pub restart_s: Option<f64>,
    pub failures: Vec<String>,
}

/// How the comparison was made.
pub struct About<'a> {
    pub command: &'a str,
    pub machine: &'a str,
    pub date: &'a str,
    pub body_bytes: usize,
    pub backlog: u64,
    pub skipped: &'a [String],
    pub note: Option<&'a str>,
}

/// A cell of latencies: p50 / p99 / p99.9 in milliseconds.
fn latencies(values: &Latencies) -> String {
    if values.count() == 0 {
        return "–".into();
    }
    let at = |quantile| milliseconds(values.histogram().value_at_quantile(quantile));
    format!("{} / {} / {}", at(0.5), at(0.99), at(0.999))
}

fn rate(value: f64) -> String {
    // Three digits are more than such a measurement repeats.
    let unit = 10f64.powf((value.max(1.0).log10().floor() - 2.0).max(0.0));
    thousands(((value / unit).round() * unit) as u64)
}

fn with_spread(cycles: &Cycles) -> String {
    let (slowest, fastest) = (rate(cycles.slowest_per_second), rate(cycles.fastest_per_second));
    format!("{} ({slowest}–{fastest})", rate(cycles.per_second))
}

/// The whole document.
pub fn markdown(about: &About<'_>, limits: &[Row], outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "# Overtake and what people would use instead\n\nThe same job on each: {} byte bodies, levels P0..P4 = 2/8/20/30/40 %, every enqueue confirmed, received most urgent first,\nthen acked. All systems ran one after the other on one machine, each alone, with the load generator beside it.\n\n- command: `{}`\n- machine: {}\n- date: {}\n\n",
        about.body_bytes, about.command, about.machine, about.date
    );
    if let Some(note) = about.note {
        let _ = writeln!(text, "{note}\n");
    }
    text += "*Strict*: what is confirmed survives a power cut. *Relaxed*: the setting that many run instead; it may lose the last moments.\n\n";
    text += "One message a call: the best of 16, 64 and 256 callers, each with a connection of its own. In brackets the slowest and\nthe fastest fifth of the time. The load generator is one process on the same cores: where it uses more CPU than the\nserver, it is part of what limits the figure.\n\nOne run: a rate moves by a tenth or two from run to run, and a tail by more, since one pause of the machine or one checkpoint\nof a server makes the 99th percentile of seconds. A system that is slower at a low rate than at a high one met one.\n\n";
    text += "| system | cycles/s, batched | cycles/s, one message a call | server CPU s per 1 M cycles | load generator CPU s per 1 M | bytes written per payload byte |\n|---|---|---|---|---|---|\n";
    for outcome in outcomes {
        let measured = outcome.batched.filter(|cycles| cycles.per_second > 0.0);
        let cell = |of: fn(&Cycles) -> f64| {
            measured.as_ref().map_or_else(|| "–".into(), |cycles| format!("{:.1}", of(cycles)))
        };
        let single = outcome.single.map_or_else(
            || "–".into(),
            |single| format!("{}, {} callers", with_spread(&single.cycles), single.callers),
        );
        let _ = writeln!(
            text,
            "| {} | {} | {single} | {} | {} | {} |",
            titled(outcome),
            outcome.batched.as_ref().map_or_else(|| "–".into(), with_spread),
            cell(|cycles| cycles.cpu_s_per_million),
            cell(|cycles| cycles.load_cpu_s_per_million),
            cell(|cycles| cycles.written_per_payload),
        );
    }
    text += "\nRabbitMQ's protocol does not confirm acks: its cycles end when the ack is sent, those of all others when it is answered.\n";
    let rates: Vec<u64> = outcomes
        .iter()
        .map(|o| o.paced.iter().map(|(rate, _)| *rate).collect::<Vec<_>>())
        .max_by_key(Vec::len)
        .unwrap_or_default();
    text += "\nOpen loop, milliseconds from when each message was due, p50 / p99 / p99.9:\n\n| system |";
    for rate in &rates {
        let rate = thousands(*rate);
        let _ = write!(
            text,
            " confirm at {rate}/s | P0 delivered at {rate}/s | all levels delivered at {rate}/s |"
        );
    }
    let _ = writeln!(text, " P0 at 200/s behind {} P4, 4 workers busy 4 ms each |", thousands(about.backlog));
    text += "|---|";
    text += &"---|".repeat(rates.len() * 3 + 1);
    text.push('\n');
    for outcome in outcomes {
        let _ = write!(text, "| {} |", titled(outcome));
        for rate in &rates {
            let _ = match outcome.paced.iter().find(|(other, _)| other == rate) {
                Some((_, paced)) if paced.missing > 0 => {
                    write!(text, " {} | not sustained | not sustained |", latencies(&paced.confirm))
                }
                Some((_, paced)) => {
                    write!(
                        text,
                        " {} | {} | {} |",
                        latencies(&paced.confirm),
                        latencies(&paced.p0),
                        latencies(&paced.all)
                    )
                }
                None => write!(text, " – | – | – |"),
            };
        }
        let backlog = outcome.backlog.as_ref().map_or_else(
            || "–".into(),
            |paced| match paced.missing {
                0 => latencies(&paced.p0),
                missing => format!("{}, {} not delivered", latencies(&paced.p0), thousands(missing)),
            },
        );
        let _ = writeln!(text, " {backlog} |");
    }
    text += "\n*Not sustained*: five seconds after the last message was due, P0 messages had still not been delivered.\n";
    let _ = writeln!(
        text,
        "\nA backlog of {} messages of {} bytes:\n\n| system | memory per message, page cache not counted | kill -9 to the first delivery |\n|---|---|---|",
        thousands(about.backlog),
        about.body_bytes
    );
    for outcome in outcomes {
        let memory = outcome.memory_per_message.map_or_else(|| "–".into(), |bytes| format!("{bytes:.0} B"));
        let restart = outcome.restart_s.map_or_else(|| "–".into(), |seconds| format!("{seconds:.2} s"));
        let _ = writeln!(text, "| {} | {memory} | {restart} |", titled(outcome));
    }
    text += "\nMemory is what the server grew by, divided by the messages: caches of a fixed size are in it, and weigh the less the longer\nthe backlog is. What one message more takes of Overtake is measured by `overtake-perf storage`.\n";
    text += "\nThe machine's own limits, measured in the same run:\n\n| limit | per second | p50 / p99 / p99.9 ms | |\n|---|---|---|---|\n";
    for row in limits {
        let per_second = row.per_second.map_or_else(|| "–".into(), rate);
        let cell = row.latencies.as_ref().map_or_else(|| "–".into(), latencies);
        let _ = writeln!(
            text,
            "| {} | {per_second} | {cell} | {} |",
            row.name.trim_start_matches("limit: "),
            row.note
        );
    }
    text += "\nSettings:\n\n";
    for outcome in outcomes {
        let version =
            if outcome.version.is_empty() { String::new() } else { format!(" ({})", outcome.version) };
        let (name, settings, install) = (&outcome.name, &outcome.settings, &outcome.install);
        let _ = writeln!(text, "- **{name}**{version}: {settings}. Installed with `{install}`.");
    }
    let failures =
        outcomes.iter().flat_map(|o| o.failures.iter().map(move |failure| format!("{}: {failure}", o.name)));
    let notes: Vec<String> = failures.chain(about.skipped.iter().cloned()).collect();
    if !notes.is_empty() {
        text += "\nNot measured:\n\n";
        text.extend(notes.iter().map(|note| format!("- {note}\n")));
    }
    text
}

fn titled(outcome: &Outcome) -> String {
    if outcome.strict { format!("**{}**", outcome.name) } else { format!("*relaxed:* {}", outcome.name) }
}

/// Percentile curves of P0 at the highest rate of all strict systems, as SVG. None where nothing was measured.
pub fn plot_p0(
    outcomes: &[Outcome],
    title: &str,
    of: impl Fn(&Outcome) -> Option<&Paced>,
) -> Option<Result<String, String>> {
    let logs: Vec<(String, Log)> = outcomes
        .iter()
        .filter(|outcome| outcome.strict)
        .filter_map(|outcome| {
            let paced = of(outcome).filter(|paced| paced.missing == 0 && paced.p0.count() > 0)?;
            let histogram = EncodedHistogram::new(paced.p0.histogram()).ok()?;
            let interval = Interval { tag: "P0".into(), start_ms: 0, length_ms: 1_000, histogram };
            Some((outcome.name.clone(), Log { intervals: vec![interval], ..Log::default() }))
        })
        .collect();
    if logs.is_empty() {
        return None;
    }
    let named: Vec<Named<'_>> = logs.iter().map(|(name, log)| Named { name, log }).collect();
    Some(plot(&named, &[Kind::Percentiles], title).map(|picture| picture.to_svg()))
}

/// The figures for tools.
pub fn results(outcomes: &[Outcome], limits: &[Row], at_s: u64, cores: u32) -> Results {
    let mut rows: Vec<Row> = limits.to_vec();
    for outcome in outcomes {
        let key: String = outcome
            .name
            .chars()
            .map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
            .collect();
        let mut add = |what: &str, per_second: Option<f64>, cpu: Option<f64>, values: Option<&Latencies>| {
            rows.push(Row {
                key: format!("compare.{key}.{what}"),
                name: format!("{}: {what}", outcome.name),
                per_second,
                cpu_s_per_million: cpu,
                latencies: values.cloned(),
                ..Row::default()
            });
        };
        if let Some(cycles) = outcome.batched {
            add("batched", Some(cycles.per_second), Some(cycles.cpu_s_per_million), None);
        }
        if let Some(Single { cycles, .. }) = outcome.single {
            add("single", Some(cycles.per_second), Some(cycles.cpu_s_per_million), None);
        }
        for (rate, paced) in &outcome.paced {
            add(&format!("confirm.{rate}"), None, None, Some(&paced.confirm));
            add(&format!("p0.{rate}"), None, None, Some(&paced.p0));
        }
        if let Some(paced) = &outcome.backlog {
            add("p0.backlog", None, None, Some(&paced.p0));
        }
    }
    let mut results = Results::new("compare", at_s, cores, &[]);
    results.measures = rows.iter().map(Measure::from).collect();
    results
}

/// Writes a file, and says which one could not be written.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn outcome(name: &str, strict: bool) -> Outcome {
        let mut paced = Paced::default();
        paced.confirm.record(Duration::from_millis(2));
        paced.p0.record(Duration::from_millis(3));
        Outcome {
            name: name.into(),
            strict,
            settings: "all of them".into(),
            install: "make it so".into(),
            batched: Some(Cycles {
                per_second: 123_456.0,
                slowest_per_second: 100_100.0,
                fastest_per_second: 150_000.0,
                load_cpu_s_per_million: 3.21,
                cpu_s_per_million: 9.87,
                written_per_payload: 1.25,
            }),
            single: Some(Single {
                callers: 64,
                cycles: Cycles {
                    per_second: 4_321.0,
                    slowest_per_second: 4_000.0,
                    fastest_per_second: 5_000.0,
                    cpu_s_per_million: 1.0,
                    load_cpu_s_per_million: 1.0,
                    written_per_payload: 1.0,
                },
            }),
            paced: vec![(2_000, paced)],
            memory_per_message: Some(1_234.4),
            failures: vec!["restart: did not come up".into()],
            ..Outcome::default()
        }
    }

    fn about() -> About<'static> {
        About {
            command: "overtake-perf compare",
            machine: "a machine",
            date: "today",
            body_bytes: 1_024,
            backlog: 1_000_000,
            skipped: &[],
            note: Some("a note"),
        }
    }

    #[test]
    fn a_document_has_every_system_setting_and_failure() {
        let outcomes = [outcome("A", true), outcome("B", false)];
        let text = markdown(&about(), &[], &outcomes);
        assert!(
            text.contains(
                "| **A** | 123,000 (100,000–150,000) | 4,320 (4,000–5,000), 64 callers | 9.9 | 3.2 | 1.2 |"
            ),
            "{text}"
        );
        assert!(text.contains("\na note\n"), "{text}");
        assert!(text.contains("| *relaxed:* B | 123,000 (100,000–150,000) |"), "{text}");
        assert!(text.contains("2.001 / 2.001 / 2.001 | 3.000 / 3.000 / 3.000"), "{text}");
        assert!(
            text.contains("| 1234 B | – |")
                && text.contains("- **A**: all of them. Installed with `make it so`."),
            "{text}"
        );
        assert!(
            text.contains("- B: restart: did not come up") && text.contains("behind 1,000,000 P4"),
            "{text}"
        );
        assert!(
            plot_p0(&outcomes, "x", |o| o.paced.first().map(|(_, p)| p))
                .unwrap()
                .unwrap()
                .contains("latency by percentile")
        );
    }

    #[test]
    fn what_was_not_sustained_is_not_shown_as_a_latency() {
        let mut late = outcome("A", true);
        late.paced[0].1.missing = 7;
        assert!(markdown(&about(), &[], &[late]).contains("| not sustained |"));
    }
}
