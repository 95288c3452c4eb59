//! Results files: what `bench`, `load`, `device` and `compare` measured, as JSON that `plan` and scripts read.
//!
//! Version 1. Fields may be added without a new version; a reader ignores those that it does not know. Numbers that were
//! not measured are absent.

use crate::hlog::VALUE_NS_MAX;
use crate::table::Row;
use core::ops::RangeInclusive;
use serde::{Deserialize, Serialize};

/// What the file says it is.
pub const FORMAT: &str = "overtake-perf results";
/// Version that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// What figures can be. A file may be damaged, or written by hand; a plan would take any number for a measured one. Costs
/// are told to a thousandth, and latencies of a histogram are up to a thousandth above what was recorded.
const SERVER_REPLICAS: RangeInclusive<f64> = 1.0..=9.0;
const CORES: RangeInclusive<f64> = 1.0..=10_000.0;
const PER_SECOND: RangeInclusive<f64> = 0.0..=1e12;
const BYTES_PER_SECOND: RangeInclusive<f64> = 0.0..=1e15;
const CPU_S_PER_MILLION: RangeInclusive<f64> = 0.001..=1e6;
const RETRIES: RangeInclusive<f64> = 0.0..=10_000.0;
/// The difference of two measurements, and so below nothing where memory was given back meanwhile.
const MEMORY_BYTES_PER_MESSAGE: RangeInclusive<f64> = -1e9..=1e9;
const LATENCY_MS: RangeInclusive<f64> = 0.0..=VALUE_NS_MAX as f64 / 1e6 * 1.001;

/// One run of one tool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// `bench`, `load`, `device` or `compare`.
    pub tool: String,
    /// When it ended, in seconds since 1970.
    pub at_s: u64,
    /// CPU cores of the machine.
    pub cores: u32,
    /// Copies that the server kept of each message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_replicas: Option<u32>,
    /// What was measured.
    pub measures: Vec<Measure>,
}

/// One measurement.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Measure {
    /// Name for tools: the same whatever the options.
    pub key: String,
    /// Name for people.
    pub name: String,
    /// Messages, cycles, writes or packets a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
    /// Bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
    /// CPU seconds of the server for a million messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_million: Option<f64>,
    /// Deliveries of a message beyond its first one, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<f64>,
    /// Resident memory of the server for a message more that waits, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_per_message: Option<f64>,
    /// Latencies in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<LatencyMs>,
}

/// Percentiles, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LatencyMs {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Results {
    /// The results of one run.
    #[must_use]
    pub fn new(tool: &str, at_s: u64, cores: u32, rows: &[Row]) -> Self {
        let measures = rows.iter().map(Measure::from).collect();
        Self {
            format: FORMAT.into(),
            version: VERSION,
            tool: tool.into(),
            at_s,
            cores,
            server_replicas: None,
            measures,
        }
    }

    /// The file's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Reads a file's text; the error says what is wrong with it.
    pub fn from_json(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            format: Option<String>,
            version: Option<u32>,
        }
        let head: Head =
            serde_json::from_str(text).map_err(|error| format!("not a results file: {error}"))?;
        match (head.format.as_deref(), head.version) {
            (Some(FORMAT), Some(VERSION)) => {
                let results: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
                results.check()?;
                Ok(results)
            }
            (Some(FORMAT), Some(version)) => {
                Err(format!("a results file of version {version}; this tool reads version {VERSION}"))
            }
            _ => Err(format!("not a results file: \"format\" is not \"{FORMAT}\"")),
        }
    }

    /// Refuses figures that nothing can have measured.
    fn check(&self) -> Result<(), String> {
        within("cores", Some(self.cores.into()), &CORES)?;
        within("server_replicas", self.server_replicas.map(Into::into), &SERVER_REPLICAS)?;
        for measure in &self.measures {
            measure.check().map_err(|error| format!("measure {:?}: {error}", measure.key))?;
        }
        Ok(())
    }

    /// The measurement with this key.
    #[must_use]
    pub fn measure(&self, key: &str) -> Option<&Measure> {
        self.measures.iter().find(|measure| measure.key == key)
    }
}

impl Measure {
    fn check(&self) -> Result<(), String> {
        within("per_second", self.per_second, &PER_SECOND)?;
        within("bytes_per_second", self.bytes_per_second, &BYTES_PER_SECOND)?;
        within("cpu_s_per_million", self.cpu_s_per_million, &CPU_S_PER_MILLION)?;
        within("retries", self.retries, &RETRIES)?;
        within("memory_bytes_per_message", self.memory_bytes_per_message, &MEMORY_BYTES_PER_MESSAGE)?;
        let Some(LatencyMs { p50, p99, p999, max }) = self.latency_ms else { return Ok(()) };
        for (name, value) in [("p50", p50), ("p99", p99), ("p999", p999), ("max", max)] {
            within(&format!("latency_ms.{name}"), Some(value), &LATENCY_MS)?;
        }
        Ok(())
    }
}

fn within(field: &str, value: Option<f64>, possible: &RangeInclusive<f64>) -> Result<(), String> {
    match value.filter(|value| !possible.contains(value)) {
        None => Ok(()),
        Some(value) => {
            let (least, most) = (possible.start(), possible.end());
            Err(format!("{field} is {value:?}, and cannot be: it is {least} to {most}; measure again"))
        }
    }
}

impl From<&Row> for Measure {
    fn from(row: &Row) -> Self {
        let latency = row.latencies.as_ref().filter(|latencies| latencies.count() > 0).map(|latencies| {
            let values = latencies.histogram();
            let ms = |ns: u64| ns as f64 / 1e6;
            LatencyMs {
                p50: ms(values.value_at_quantile(0.5)),
                p99: ms(values.value_at_quantile(0.99)),
                p999: ms(values.value_at_quantile(0.999)),
                max: ms(values.max()),
            }
        });
        Self {
            key: row.key.clone(),
            name: row.name.clone(),
            per_second: row.per_second,
            bytes_per_second: row.bytes_per_second,
            cpu_s_per_million: row.cpu_s_per_million,
            retries: row.retries,
            memory_bytes_per_message: row.memory_bytes_per_message,
            latency_ms: latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Latencies;
    use std::time::Duration;

    fn results() -> Results {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_millis(2));
        let row = Row {
            key: "confirm".into(),
            name: "confirm at 2/s".into(),
            per_second: Some(2.0),
            latencies: Some(latencies),
            ..Row::default()
        };
        Results::new("bench", 1_700_000_000, 2, &[row])
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let read = Results::from_json(&results().to_json()).unwrap();
        assert_eq!(read, results());
        let measure = read.measure("confirm").unwrap();
        assert_eq!((measure.per_second, measure.bytes_per_second), (Some(2.0), None));
        assert!((measure.latency_ms.unwrap().p99 - 2.0).abs() < 0.01);
        assert!(read.measure("other").is_none());
    }

    #[test]
    fn figures_that_nothing_can_have_measured_are_refused_with_their_field() {
        let mut results = results();
        results.server_replicas = Some(3);
        let measure = &mut results.measures[0];
        measure.bytes_per_second = Some(8e6);
        measure.cpu_s_per_million = Some(10.5);
        measure.retries = Some(0.125);
        measure.memory_bytes_per_message = Some(-0.5);
        measure.latency_ms = Some(LatencyMs { p50: 1.5, p99: 2.5, p999: 3.5, max: 4.5 });
        let good = results.to_json();
        assert_eq!(Results::from_json(&good).unwrap(), results);
        for (field, is, bad) in [
            ("cores", "2", "0"),
            ("server_replicas", "3", "0"),
            ("server_replicas", "3", "4000000000"),
            ("per_second", "2.0", "-1.0"),
            ("per_second", "2.0", "1e300"),
            ("bytes_per_second", "8000000.0", "-1.0"),
            ("cpu_s_per_million", "10.5", "-1.0"),
            ("cpu_s_per_million", "10.5", "0.0"),
            ("cpu_s_per_million", "10.5", "1e-300"),
            ("cpu_s_per_million", "10.5", "1e300"),
            ("retries", "0.125", "1e300"),
            ("retries", "0.125", "-0.1"),
            ("memory_bytes_per_message", "-0.5", "1e300"),
            ("latency_ms.p50", "1.5", "-1.0"),
            ("latency_ms.p99", "2.5", "1e300"),
            ("latency_ms.p999", "3.5", "-1.0"),
            ("latency_ms.max", "4.5", "1e9"),
        ] {
            let name = field.rsplit('.').next().unwrap();
            let text = good.replace(&format!("\"{name}\": {is}"), &format!("\"{name}\": {bad}"));
            assert_ne!(text, good, "{field}");
            let error = Results::from_json(&text).unwrap_err();
            assert!(error.contains(&format!("{field} is ")) && error.contains("cannot be"), "{bad}: {error}");
        }
        let latest = Results::from_json(&good.replace("\"max\": 4.5", "\"max\": 3600000.5"));
        assert!(latest.is_ok(), "an hour as a histogram rounds it");
    }

    #[test]
    fn other_files_and_versions_are_refused_and_new_fields_are_not() {
        let fails = |text: &str| Results::from_json(text).unwrap_err();
        assert!(fails("hello").contains("not a results file"));
        assert!(fails("{}").contains("\"format\" is not"));
        assert!(
            fails(&results().to_json().replace("\"version\": 1", "\"version\": 2")).contains("version 2")
        );
        assert!(fails("{\"format\":\"overtake-perf results\",\"version\":1}").contains("tool"));
        let later = results().to_json().replace("\"cores\": 2", "\"cores\": 2, \"colour\": \"red\"");
        assert_eq!(Results::from_json(&later).unwrap(), results());
    }
}
