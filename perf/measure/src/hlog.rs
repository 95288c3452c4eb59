//! Interval histogram logs (`.hlog`): the text format, version 1.3, of the HdrHistogram family, which its tools in other
//! languages read and write too. Read and written here, and nowhere else.
//!
//! A line starting with `#` is a comment; two of them carry times: `#[StartTime: S …]` and `#[BaseTime: S …]`, in seconds
//! since 1970. Two more are ours, and plain comments to others: `#[ServerCores: N]` and `#[ServerReplicas: N]`, of the server that was
//! measured: its cores on all nodes, and the copies that it kept. A line starting with `"` is a legend. Every other line is one interval:
//!
//! ```text
//! [Tag=NAME,]start,length,maximum,histogram
//! ```
//!
//! `start` and `length` are seconds with decimals. `start` counts from the base time where there is one; without it from
//! the start time where it is more than a year before that, else from 1970. `maximum` is the largest value divided by a
//! unit of the writer's choice (a million here: nanoseconds in, milliseconds out); it is for people and not read.
//! `histogram` is base 64 of the compressed V2 encoding. A log has any order of tags, times and legends.

use crate::encoding::EncodedHistogram;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use core::fmt;
use hdrhistogram::Histogram;
use std::collections::BTreeSet;
use std::io::{self, Write};

/// Longest value told apart, in nanoseconds; longer ones count as this.
pub const VALUE_NS_MAX: u64 = 3_600_000_000_000;
/// Significant decimal digits of a value.
pub const DIGITS: u8 = 3;
/// What the maximum of an interval is divided by: nanoseconds become milliseconds.
const MAXIMUM_DIVISOR: f64 = 1e6;
/// A start that is more than this before the start time counts from it.
const YEAR_MS: u64 = 365 * 86_400_000;
/// No time is later than this: the year 3000, in seconds.
const TIME_S_MAX: f64 = 3.3e10;
/// Longest tag.
const TAG_BYTES_MAX: usize = 128;
/// Most tags of a log: each of them has its own sum, and no tool measures as many operations.
const TAGS_MAX: usize = 256;

/// An empty histogram of nanoseconds.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    // Fails only for bounds that are out of order or more than five digits.
    #[allow(clippy::expect_used, reason = "the bounds are constants")]
    Histogram::new_with_bounds(1, VALUE_NS_MAX, DIGITS).expect("bounds in order")
}

/// What was measured in one interval under one tag.
#[derive(Clone, PartialEq, Debug)]
pub struct Interval {
    /// Operation, or operation and level; empty without one.
    pub tag: String,
    /// Milliseconds since 1970.
    pub start_ms: u64,
    /// How long it was.
    pub length_ms: u64,
    /// The values, encoded: a log has many intervals.
    pub histogram: EncodedHistogram,
}

impl Interval {
    /// When it ended, in milliseconds since 1970.
    #[must_use]
    pub const fn end_ms(&self) -> u64 {
        self.start_ms.saturating_add(self.length_ms)
    }
}

/// A log, in the order of its lines.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Log {
    /// Its intervals.
    pub intervals: Vec<Interval>,
    /// Cores of the server that was measured, on all of its nodes, where the log says so.
    pub server_cores: Option<u32>,
    /// Copies that it kept of each message, where the log says so.
    pub server_replicas: Option<u32>,
}

/// Why a log cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogError {
    /// Name of the file.
    pub file: String,
    /// The line at fault, from 1; 0 where it is the file as a whole.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.what),
            line => write!(f, "{}, line {line}: {}", self.file, self.what),
        }
    }
}

impl core::error::Error for LogError {}

/// Reads a log; `file` names it in errors.
pub fn read(file: &str, bytes: &[u8]) -> Result<Log, LogError> {
    let error = |line, what: String| LogError { file: file.to_owned(), line, what };
    let mut reader = Reader::default();
    let mut log = Log::default();
    let mut tags = BTreeSet::new();
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let line = core::str::from_utf8(line)
            .map_err(|_| error(number, "not text: is this a histogram log?".into()))?;
        if let Some(interval) = reader.line(line.trim()).map_err(|what| error(number, what))? {
            if !tags.contains(&interval.tag) {
                tags.insert(interval.tag.clone());
            }
            if tags.len() > TAGS_MAX {
                return Err(error(number, format!("more than {TAGS_MAX} different tags: is this one log?")));
            }
            log.intervals.push(interval);
        }
    }
    (log.server_cores, log.server_replicas) = (reader.server_cores, reader.server_replicas);
    if log.intervals.is_empty() {
        return Err(error(
            0,
            "holds no intervals: nothing was measured, or it is not a histogram log".into(),
        ));
    }
    Ok(log)
}

/// Times that lines above have set.
#[derive(Default)]
struct Reader {
    start_ms: Option<u64>,
    base_ms: Option<u64>,
    server_cores: Option<u32>,
    server_replicas: Option<u32>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<Option<Interval>, String> {
        if line.is_empty() || line.starts_with('"') {
            return Ok(None);
        }
        if let Some(comment) = line.strip_prefix('#') {
            if let Some(rest) = comment.strip_prefix("[StartTime:") {
                self.start_ms = Some(header_time(rest, "StartTime")?);
            } else if let Some(rest) = comment.strip_prefix("[BaseTime:") {
                self.base_ms = Some(header_time(rest, "BaseTime")?);
            } else if let Some(rest) = comment.strip_prefix("[ServerCores:") {
                self.server_cores = Some(number(rest).ok_or("ServerCores is not a number of cores")?);
            } else if let Some(rest) = comment.strip_prefix("[ServerReplicas:") {
                self.server_replicas = Some(number(rest).ok_or("ServerReplicas is not a number of copies")?);
            }
            return Ok(None);
        }
        self.interval(line).map(Some)
    }

    fn interval(&self, line: &str) -> Result<Interval, String> {
        let (tag, fields) = match line.strip_prefix("Tag=") {
            Some(rest) => rest.split_once(',').ok_or("nothing follows the tag")?,
            None => ("", line),
        };
        if tag.len() > TAG_BYTES_MAX {
            return Err(format!("a tag of {} bytes; {TAG_BYTES_MAX} at most", tag.len()));
        }
        let fields: Vec<&str> = fields.split(',').map(str::trim).collect();
        let [start, length, maximum, encoded] = fields[..] else {
            return Err(format!(
                "{} fields where an interval has 4: start, length, maximum, histogram",
                fields.len()
            ));
        };
        let (start_ms, length_ms) = (seconds(start, "start")?, seconds(length, "length")?);
        seconds_or_value(maximum)?;
        Ok(Interval {
            tag: tag.to_owned(),
            start_ms: self.absolute(start_ms),
            length_ms,
            histogram: decode(encoded)?,
        })
    }

    fn absolute(&self, start_ms: u64) -> u64 {
        match (self.base_ms, self.start_ms) {
            (Some(base_ms), _) => base_ms.saturating_add(start_ms),
            (None, Some(from_ms)) if start_ms.saturating_add(YEAR_MS) < from_ms => from_ms + start_ms,
            _ => start_ms,
        }
    }
}

fn decode(encoded: &str) -> Result<EncodedHistogram, String> {
    let bytes = STANDARD
        .decode(encoded)
        .map_err(|error| format!("the histogram is not whole base 64 ({error}); is the line cut?"))?;
    EncodedHistogram::from_bytes(bytes).map_err(|error| format!("the histogram cannot be decoded: {error}"))
}

/// The whole number, not 0, before the closing bracket.
fn number(rest: &str) -> Option<u32> {
    rest.trim().trim_end_matches(']').parse().ok().filter(|number| *number > 0)
}

/// The number at the start of what follows `[StartTime:`, in milliseconds.
fn header_time(rest: &str, name: &str) -> Result<u64, String> {
    seconds(rest.trim_start().split([' ', ']']).next().unwrap_or_default(), name)
}

/// Seconds with decimals as milliseconds.
fn seconds(text: &str, name: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=TIME_S_MAX).contains(&value) => Ok((value * 1e3).round() as u64),
        _ => Err(format!("{name} is {text:?}, not a number of seconds")),
    }
}

fn seconds_or_value(text: &str) -> Result<(), String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(()),
        _ => Err(format!("maximum is {text:?}, not a number")),
    }
}

/// The comments that tell what is known of the server that was measured.
#[must_use]
pub fn server_comments(cores: Option<u32>, replicas: Option<u32>) -> Vec<String> {
    let cores = cores.map(|cores| format!("[ServerCores: {cores}]"));
    cores.into_iter().chain(replicas.map(|replicas| format!("[ServerReplicas: {replicas}]"))).collect()
}

/// Writes a log.
pub struct LogWriter<W> {
    out: W,
}

impl<W: Write> LogWriter<W> {
    /// Writes the head: comments (without `#`), the time from which intervals count, the legend.
    pub fn new(mut out: W, comments: &[&str], start_ms: u64) -> io::Result<Self> {
        for comment in comments.iter().flat_map(|comment| comment.lines()) {
            writeln!(out, "#{comment}")?;
        }
        writeln!(out, "#[Histogram log format version 1.3]")?;
        writeln!(out, "#[StartTime: {} (seconds since epoch)]", decimal(start_ms))?;
        writeln!(
            out,
            "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\""
        )?;
        Ok(Self { out })
    }

    /// Writes one interval. Characters that a tag cannot hold become `_`.
    pub fn write(&mut self, interval: &Interval) -> io::Result<()> {
        if !interval.tag.is_empty() {
            let kept = |c: char| if c == ',' || c.is_whitespace() || c.is_control() { '_' } else { c };
            write!(self.out, "Tag={},", interval.tag.chars().map(kept).collect::<String>())?;
        }
        let maximum = interval.histogram.decode().map_err(io::Error::other)?.max() as f64 / MAXIMUM_DIVISOR;
        let (start, length) = (decimal(interval.start_ms), decimal(interval.length_ms));
        writeln!(self.out, "{start},{length},{maximum:.3},{}", STANDARD.encode(interval.histogram.as_bytes()))
    }

    /// Hands on what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Milliseconds as seconds with three decimals.
fn decimal(ms: u64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};

    fn interval(tag: &str, start_ms: u64, values: &[u64]) -> Interval {
        let mut histogram = histogram();
        values.iter().for_each(|value| histogram.saturating_record(*value));
        Interval {
            tag: tag.into(),
            start_ms,
            length_ms: 1_000,
            histogram: EncodedHistogram::new(&histogram).unwrap(),
        }
    }

    fn written(intervals: &[Interval]) -> String {
        let mut out = Vec::new();
        let mut writer =
            LogWriter::new(&mut out, &["made by a test\nof two lines"], 1_700_000_000_000).unwrap();
        intervals.iter().for_each(|interval| writer.write(interval).unwrap());
        writer.flush().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let intervals = [
            interval("enqueue", 1_700_000_000_250, &[1, 999, 5_000_000, u64::MAX]),
            interval("", 1_700_000_001_250, &[]),
        ];
        assert_eq!(read("x", written(&intervals).as_bytes()).unwrap().intervals, intervals);
    }

    #[test]
    fn the_server_is_told() {
        let log =
            |cores: &str| read("x", format!("#{cores}\n{}", written(&[interval("", 0, &[1])])).as_bytes());
        let said = log(&server_comments(Some(12), Some(3)).join("\n#")).unwrap();
        assert_eq!((said.server_cores, said.server_replicas), (Some(12), Some(3)));
        assert!(log("[ServerReplicas: 0]").unwrap_err().to_string().contains("not a number of copies"));
        assert_eq!(log("[Server: 12]").unwrap().server_cores, None);
        for bad in ["[ServerCores: 0]", "[ServerCores: many]", "[ServerCores:"] {
            assert!(log(bad).unwrap_err().to_string().contains("not a number of cores"), "{bad}");
        }
    }

    #[test]
    fn a_tag_cannot_break_a_line() {
        let text = written(&[interval("a,b c\nd", 0, &[1])]);
        assert_eq!(read("x", text.as_bytes()).unwrap().intervals[0].tag, "a_b_c_d");
    }

    #[test]
    fn more_tags_than_anybody_measures_are_refused() {
        let log = |tags: usize| {
            let intervals: Vec<_> = (0..tags).map(|tag| interval(&tag.to_string(), 0, &[1])).collect();
            read("x", written(&intervals).as_bytes())
        };
        assert_eq!(log(TAGS_MAX).unwrap().intervals.len(), TAGS_MAX);
        let error = log(TAGS_MAX + 1).unwrap_err();
        assert!(error.line == 5 + TAGS_MAX + 1 && error.what.contains("different tags"), "{error}");
    }

    #[test]
    fn starts_count_from_the_base_or_the_start_or_1970() {
        let line = written(&[interval("", 0, &[7])]).lines().last().unwrap().replace("0.000,", "2.500,");
        let start =
            |head: &str| read("x", format!("{head}\n{line}\n").as_bytes()).unwrap().intervals[0].start_ms;
        assert_eq!(start(""), 2_500);
        assert_eq!(
            start("#[StartTime: 1441812279.474 (seconds since epoch), Wed Sep 09]"),
            1_441_812_281_974
        );
        assert_eq!(start("#[BaseTime: 1441812279.474 (seconds since epoch)]"), 1_441_812_281_974);
        assert_eq!(start("#[BaseTime: 100]\n#[StartTime: 1441812279.474]"), 102_500);
        assert_eq!(start("#[StartTime: 3.000 (seconds since epoch)]"), 2_500);
    }

    #[test]
    fn damage_is_told_with_its_line() {
        let good = written(&[interval("a", 0, &[1, 2, 3])]);
        let (head, line) = good.trim_end().rsplit_once('\n').unwrap();
        let fails = |last: &str, says: &str| {
            let error = read("file.hlog", format!("{head}\n{last}\n").as_bytes()).unwrap_err();
            assert_eq!(error.line, 6, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        };
        fails(&line[..line.len() - 7], "is the line cut?");
        fails(&line.replace(",HIST", ",HISX"), "cannot be decoded");
        fails("Tag=a", "nothing follows the tag");
        fails("hello", "1 fields where an interval has 4");
        fails(&line.replacen("0.000", "yesterday", 1), "start is \"yesterday\"");
        fails(&line.replacen("1.000", "-1", 1), "length is \"-1\"");
        fails(&line.replacen("0.000,1.000,0.000", "0,1,NaN", 1), "maximum is \"NaN\"");
        fails(&line.replacen("Tag=a", &format!("Tag={}", "x".repeat(200)), 1), "128 at most");
        // A few bytes that ask for 50 MB of counters.
        let mut out = Vec::new();
        let wide = Histogram::<u64>::new_with_bounds(1, u64::MAX >> 1, 5).unwrap();
        V2DeflateSerializer::new().serialize(&wide, &mut out).unwrap();
        fails(
            &format!("0,1,0,{}", STANDARD.encode(out)),
            "it has 5 significant digits, where 4 are the most",
        );
        fails("#[StartTime: noon]", "StartTime is \"noon\"");
        assert!(read("x", b"\xff\xfe\n").unwrap_err().to_string().contains("x, line 1: not text"));
        for empty in ["", "#only a comment\n"] {
            assert!(read("x", empty.as_bytes()).unwrap_err().to_string().contains("holds no intervals"));
        }
    }

    #[test]
    fn no_damaged_byte_makes_it_panic() {
        let good = written(&[interval("a", 0, &[1, 20, 300, 4_000, 50_000])]).into_bytes();
        for at in 0..good.len() {
            for flip in [0x01, 0x10, 0x80] {
                let mut damaged = good.clone();
                damaged[at] ^= flip;
                let _ = read("x", &damaged);
            }
        }
    }
}
