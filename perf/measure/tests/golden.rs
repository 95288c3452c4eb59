//! Files of the past and of others stay readable, and what is made of them stays the same. `data/python.hlog` was written
//! by hdrhistogram 0.10.8 for Python, its tags put in by hand, since that writer has none.
//!
//! With `OVERTAKE_GOLDEN_WRITE` set the expected files are made anew, to be looked at before they are committed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use overtake_measure::hlog::{Log, LogWriter, read};
use overtake_measure::merge::merge;
use overtake_measure::plot::{Kind, Named, plot};
use overtake_measure::summary::{render, totals};
use proptest::prelude::*;
use std::path::PathBuf;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn python() -> Log {
    read("python.hlog", &std::fs::read(data("python.hlog")).unwrap()).unwrap()
}

#[track_caller]
fn golden(name: &str, text: &str) {
    if std::env::var_os("OVERTAKE_GOLDEN_WRITE").is_some() {
        std::fs::write(data(name), text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(data(name)).unwrap(), "{name}");
}

#[test]
fn a_log_of_another_implementation_is_read() {
    let log = python();
    let starts: Vec<_> = log.intervals.iter().map(|i| (i.tag.as_str(), i.start_ms, i.length_ms)).collect();
    assert_eq!(starts[..2], [("", 1_700_000_000_000, 1_000), ("enqueue", 1_700_000_000_000, 1_000)]);
    // What the other implementation tells of its own file.
    let all = merge(&[Log {
        intervals: log
            .intervals
            .iter()
            .map(|i| {
                let mut i = i.clone();
                i.tag.clear();
                i
            })
            .collect(),
        ..Log::default()
    }]);
    let total = &totals(&all.unwrap()).unwrap()[""].histogram;
    let told = (total.len(), total.value_at_percentile(50.0), total.value_at_percentile(99.0), total.max());
    assert_eq!(told, (9_009, 334_233_599, 2_736_783_359, 3_001_024_511));
    golden("python.print.txt", &render(&totals(&log).unwrap()));
}

#[test]
fn a_log_is_the_same_after_it_was_written_and_read() {
    let log = python();
    let mut bytes = Vec::new();
    let mut writer = LogWriter::new(&mut bytes, &[], 1_700_000_000_000).unwrap();
    log.intervals.iter().for_each(|interval| writer.write(interval).unwrap());
    assert_eq!(read("again", &bytes).unwrap(), log);
}

#[test]
fn plots_stay_as_they_were_looked_at() {
    let log = python();
    let kinds = [Kind::Percentiles, Kind::OverTime(99.0), Kind::Rate];
    let picture = plot(&[Named { name: "python", log: &log }], &kinds, "golden").unwrap();
    golden("python.plot.svg", &picture.to_svg());
    assert!(picture.to_png().unwrap().starts_with(b"\x89PNG"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_reader_panic(text in "(#|Tag=|\"|[0-9.,eE+-]|HISTFAAAA|[A-Za-z/=]|\n| |é){0,200}") {
        let _ = read("x", text.as_bytes());
    }
}
