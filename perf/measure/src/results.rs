//! Results files: what `bench`, `load`, `device` and `compare` measured, as JSON that `plan` and scripts read.
//!
//! Version 1. Fields may be added without a new version; a reader ignores those that it does not know. Numbers that were
//! not measured are absent.

use crate::table::Row;
use serde::{Deserialize, Serialize};

/// What the file says it is.
pub const FORMAT: &str = "overtake-perf results";
/// Version that is written, and the only one that is read.
pub const VERSION: u32 = 1;

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
            (Some(FORMAT), Some(VERSION)) => serde_json::from_str(text).map_err(|error| error.to_string()),
            (Some(FORMAT), Some(version)) => {
                Err(format!("a results file of version {version}; this tool reads version {VERSION}"))
            }
            _ => Err(format!("not a results file: \"format\" is not \"{FORMAT}\"")),
        }
    }

    /// The measurement with this key.
    #[must_use]
    pub fn measure(&self, key: &str) -> Option<&Measure> {
        self.measures.iter().find(|measure| measure.key == key)
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
