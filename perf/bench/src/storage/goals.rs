//! What a server's storage is asked to do, and whether this run did it.

use overtake_measure::plan::COLD_MESSAGE_BYTES;
use overtake_measure::table::align;

/// One thing that is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    Memory,
    Restart,
    ShortWrites,
    LongWrites,
    WriteRate,
    DrainRate,
    UrgentLatency,
    PinnedDisk,
    ReleasesDisk,
}

/// The bound that is asked for, and what is aimed at.
struct Asked {
    what: &'static str,
    unit: &'static str,
    bound: f64,
    aim: f64,
    /// More is better.
    more: bool,
}

impl Goal {
    const fn asked(self) -> Asked {
        let (what, unit, bound, aim, more) = match self {
            Self::Memory => (
                "resident memory for each message more in a backlog",
                "bytes",
                COLD_MESSAGE_BYTES as f64,
                1.0,
                false,
            ),
            Self::Restart => ("from kill -9 to the first delivery", "s", 3.0, 1.0, false),
            Self::ShortWrites => {
                ("bytes written for each of a body: acked at once, 1 KiB", "times", 1.3, 1.1, false)
            }
            Self::LongWrites => {
                ("bytes written for each of a body: a long backlog, 1 KiB", "times", 2.4, 2.1, false)
            }
            Self::WriteRate => {
                ("journal against the disk by itself, batches of the same size", "%", 60.0, 85.0, true)
            }
            Self::DrainRate => {
                ("drain of a cold backlog against reading the disk in order", "%", 40.0, 70.0, true)
            }
            Self::UrgentLatency => {
                ("P0 p99 while a cold backlog drains, against idle", "times", 2.0, 1.3, false)
            }
            Self::PinnedDisk => {
                ("disk while much passes and two messages stay for ever", "MiB", 1_024.0, 512.0, false)
            }
            Self::ReleasesDisk => (
                "disk while messages are released again and again: second half against first",
                "times",
                1.2,
                1.05,
                false,
            ),
        };
        Asked { what, unit, bound, aim, more }
    }
}

fn number(value: f64, unit: &str) -> String {
    if value.abs() < 100.0 { format!("{value:.2} {unit}") } else { format!("{value:.0} {unit}") }
}

/// The table of what was asked of what was measured.
pub(super) fn render(found: &[(Goal, f64)]) -> String {
    let mut cells = vec![["asked", "measured", "bound", "aim", ""].map(str::to_owned)];
    cells.extend(found.iter().map(|(goal, value)| {
        let asked = goal.asked();
        let reaches = |bound: f64| if asked.more { *value >= bound } else { *value <= bound };
        let verdict = match (reaches(asked.bound), reaches(asked.aim)) {
            (_, true) => "aim reached",
            (true, false) => "reached",
            (false, false) => "missed",
        };
        [
            asked.what.to_owned(),
            number(*value, asked.unit),
            format!(
                "{} {}",
                if asked.more { "at least" } else { "at most" },
                number(asked.bound, asked.unit)
            ),
            number(asked.aim, asked.unit),
            verdict.to_owned(),
        ]
    }));
    align(&cells, [true, false, false, false, true])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_better_for_rates_and_worse_for_the_rest() {
        let lines =
            |found: &[(Goal, f64)]| render(found).lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
        let verdicts = lines(&[
            (Goal::Memory, 0.4),
            (Goal::Memory, 3.0),
            (Goal::Memory, 5.0),
            (Goal::DrainRate, 80.0),
            (Goal::DrainRate, 50.0),
            (Goal::DrainRate, 10.0),
        ]);
        let expected = ["aim reached", " reached", "missed", "aim reached", " reached", "missed"];
        assert_eq!(verdicts.len(), expected.len());
        assert!(
            verdicts[0].contains("at most 4.00 bytes") && verdicts[3].contains("at least 40.00 %"),
            "{verdicts:?}"
        );
        for (line, verdict) in verdicts.iter().zip(expected) {
            assert!(line.trim_end().ends_with(verdict), "{line}");
        }
    }
}
