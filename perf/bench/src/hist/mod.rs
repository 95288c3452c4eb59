//! `hist`: prints, merges, compares and draws histogram logs.

use crate::duration;
use clap::{Args, Subcommand, ValueEnum};
use overtake_measure::hlog::{Log, LogWriter, read, server_comments};
use overtake_measure::merge::{counted_twice, merge};
use overtake_measure::plot::{Kind, Named, plot};
use overtake_measure::regression::{Bound, compare};
use overtake_measure::summary::{name_of, totals};
use overtake_measure::{regression, summary};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to do with the logs.
#[derive(Args, Clone, Debug)]
pub struct HistOptions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Counts, rates and percentiles of each tag; several files are put together.
    Print {
        #[command(flatten)]
        files: Files,
    },
    /// One log out of those of several processes: intervals of the same time and tag are added.
    Merge {
        #[command(flatten)]
        files: Files,
        /// Where to write it.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Percentiles of B against those of A; exit code 1 where B is slower than allowed. What only one of them measured is
    /// told, and is no regression.
    Compare {
        /// Before.
        a: PathBuf,
        /// After.
        b: PathBuf,
        /// Growth of a percentile that is still taken, with its %.
        #[arg(long, default_value = "10%", value_parser = percent)]
        max_regression: f64,
        /// Percentiles to compare, separated by commas or spaces: 50,99.9.
        #[arg(long, default_values_t = [50.0, 99.0], value_delimiter = ',', num_args = 1.., value_parser = percentile)]
        percentile: Vec<f64>,
        /// Growth that is taken whatever its percentage: below it is noise.
        #[arg(long, value_parser = duration::parse)]
        ignore_below: Option<Duration>,
        /// Only these tags. Without it all but `send.late`, the load tool's own lateness.
        #[arg(long, value_delimiter = ',')]
        tag: Vec<String>,
    },
    /// Draws each file over the others, as SVG or PNG.
    Plot {
        #[command(flatten)]
        files: Files,
        /// Where to write it; its name ends in .svg or .png.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Charts, below each other, separated by commas or spaces.
        #[arg(long, value_enum, value_delimiter = ',', num_args = 1.., default_values_t = [Chart::Percentiles, Chart::Time])]
        chart: Vec<Chart>,
        /// Percentile of the chart over time.
        #[arg(long, default_value_t = 99.0, value_parser = percentile)]
        percentile: f64,
        /// Heading.
        #[arg(long, default_value = "")]
        title: String,
    },
}

#[derive(Args, Clone, Debug)]
struct Files {
    /// Histogram logs.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only these tags. Without it all; a plot leaves out `send.late`, the load tool's own lateness.
    #[arg(long, value_delimiter = ',')]
    tag: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Chart {
    /// Latency by percentile.
    Percentiles,
    /// A percentile over time.
    Time,
    /// Values a second over time.
    Rate,
}

/// What to print, and whether a check failed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Printed {
    /// For standard output.
    pub text: String,
    /// Something got slower than allowed.
    pub check_failed: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    // Without the sign nobody knows whether 0.1 is a tenth or a thousandth.
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    number
        .filter(|percent| (0.0..=1e6).contains(percent))
        .ok_or_else(|| format!("{text:?} is not a bound, like 10% (with the sign)"))
}

fn percentile(text: &str) -> Result<f64, String> {
    let number = text.strip_prefix('p').unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|p| (0.0..=100.0).contains(p))
        .ok_or_else(|| format!("{text:?} is not a percentile of 0 to 100; name files before it"))
}

/// Reads a log; the error names the file, and the line at fault.
pub fn load(path: &Path) -> Result<Log, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    read(&path.display().to_string(), &bytes).map_err(|error| error.to_string())
}

/// Keeps intervals of these tags; all where none is named.
fn only(mut log: Log, tags: &[String]) -> Result<Log, String> {
    if let Some(missing) = tags.iter().find(|tag| log.intervals.iter().all(|interval| interval.tag != **tag))
    {
        let mut there: Vec<String> = log.intervals.iter().map(|interval| name_of(&interval.tag)).collect();
        there.sort_unstable();
        there.dedup();
        return Err(format!("no interval has the tag {missing:?}; there are: {}", there.join(", ")));
    }
    log.intervals.retain(|interval| tags.is_empty() || tags.contains(&interval.tag));
    Ok(log)
}

/// The same, but without a tag named the load tool's own lateness is left out: it says nothing of the server.
fn of_server(log: Log, tags: &[String]) -> Result<Log, String> {
    let mut log = only(log, tags)?;
    log.intervals.retain(|interval| !tags.is_empty() || interval.tag != "send.late");
    Ok(log)
}

/// Whether both names lead to one file, however they are written.
fn same_file(a: &Path, b: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    file(a).is_some_and(|one| file(b) == Some(one))
}

impl Files {
    fn load(&self) -> Result<Vec<Log>, String> {
        self.files.iter().map(|path| load(path)).collect()
    }

    /// All files as one log. What would count twice is refused: rates would double, and plans would go by them.
    fn merged(&self) -> Result<Log, String> {
        for (place, path) in self.files.iter().enumerate() {
            if self.files[..place].iter().any(|other| same_file(other, path)) {
                return Err(format!(
                    "{} is named twice, and would count twice: name it once",
                    path.display()
                ));
            }
        }
        let logs = self.load()?;
        if let Some((one, other)) = counted_twice(&logs) {
            let name = |place: usize| self.files.get(place).map(|path| path.display().to_string());
            return Err(format!(
                "{} and {} hold the same measurements, which would count twice: leave one of them out (is one a copy, or \
                 merged of others?)",
                name(one).unwrap_or_default(),
                name(other).unwrap_or_default()
            ));
        }
        only(merge(&logs)?, &self.tag)
    }
}

/// Runs the command.
pub fn run(options: &HistOptions) -> Result<Printed, String> {
    match &options.command {
        Command::Print { files } => {
            let totals = totals(&files.merged()?)?;
            Ok(Printed { text: summary::render(&totals), check_failed: false })
        }
        Command::Merge { files, output } => {
            if let Some(input) = files.files.iter().find(|path| same_file(path, output)) {
                return Err(format!(
                    "{} is one of the files to merge, and would be overwritten: write to another one with -o, and leave out \
                     what an earlier merge wrote",
                    input.display()
                ));
            }
            let merged = files.merged()?;
            let fail = |error: std::io::Error| format!("{}: {error}", output.display());
            let mut text = Vec::new();
            let start_ms = merged.intervals.iter().map(|interval| interval.start_ms).min().unwrap_or(0);
            let comment = format!("overtake-perf hist merge, {} files", files.files.len());
            let mut comments = vec![comment];
            comments.extend(server_comments(merged.server_cores, merged.server_replicas));
            let comments: Vec<&str> = comments.iter().map(String::as_str).collect();
            let mut writer = LogWriter::new(&mut text, &comments, start_ms).map_err(fail)?;
            merged.intervals.iter().try_for_each(|interval| writer.write(interval)).map_err(fail)?;
            fs::write(output, text).map_err(fail)?;
            Ok(Printed::default())
        }
        Command::Compare { a, b, max_regression, percentile, ignore_below, tag } => {
            let of = |path: &Path| {
                let log =
                    of_server(load(path)?, tag).map_err(|error| format!("{}: {error}", path.display()))?;
                totals(&log)
            };
            let ignore_ns =
                ignore_below.map_or(0, |below| u64::try_from(below.as_nanos()).unwrap_or(u64::MAX));
            let bound = Bound { max_percent: *max_regression, ignore_ns };
            let changes = compare(&of(a)?, &of(b)?, percentile, bound);
            if changes.iter().all(|change| change.before_ns.is_none() || change.after_ns.is_none()) {
                return Err(format!(
                    "{} and {} have no tag in common: nothing to compare",
                    a.display(),
                    b.display()
                ));
            }
            let regressions = changes.iter().filter(|change| change.regressed).count();
            let mut verdict = match regressions {
                0 => format!("no regression over {max_regression} %\n"),
                1 => format!("1 regression over {max_regression} %\n"),
                count => format!("{count} regressions over {max_regression} %\n"),
            };
            let gone =
                changes.iter().filter(|change| change.after_ns.is_none()).map(|change| name_of(&change.tag));
            let gone: BTreeSet<String> = gone.collect();
            if !gone.is_empty() {
                let names = gone.into_iter().collect::<Vec<_>>().join(", ");
                verdict += &format!("no longer measured, and so not compared: {names}\n");
            }
            Ok(Printed { text: regression::render(&changes) + &verdict, check_failed: regressions > 0 })
        }
        Command::Plot { files, output, chart, percentile, title } => {
            draw(files, output, chart, *percentile, title).map(|()| Printed::default())
        }
    }
}

fn draw(files: &Files, output: &Path, charts: &[Chart], percentile: f64, title: &str) -> Result<(), String> {
    let as_png = match output.extension().and_then(|end| end.to_str()) {
        Some("png") => true,
        Some("svg") => false,
        _ => return Err(format!("{}: a plot's name ends in .svg or .png", output.display())),
    };
    let mut logs = Vec::new();
    for (path, log) in files.files.iter().zip(files.load()?) {
        logs.push(of_server(log, &files.tag).map_err(|error| format!("{}: {error}", path.display()))?);
    }
    let names: Vec<String> = files
        .files
        .iter()
        .map(|path| path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()))
        .collect();
    let named: Vec<Named<'_>> = names.iter().zip(&logs).map(|(name, log)| Named { name, log }).collect();
    let kinds: Vec<Kind> = charts
        .iter()
        .map(|chart| match chart {
            Chart::Percentiles => Kind::Percentiles,
            Chart::Time => Kind::OverTime(percentile),
            Chart::Rate => Kind::Rate,
        })
        .collect();
    let picture = plot(&named, &kinds, title)?;
    let bytes = if as_png { picture.to_png()? } else { picture.to_svg().into_bytes() };
    fs::write(output, bytes).map_err(|error| format!("{}: {error}", output.display()))
}
