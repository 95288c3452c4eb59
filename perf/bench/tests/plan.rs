//! `plan`, and what the program says where it cannot do what it was asked for, through the binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use overtake_measure::encoding::EncodedHistogram;
use overtake_measure::hlog::{Interval, LogWriter, histogram};
use std::process::Command;

/// Runs `overtake-perf` and gives its exit code and both outputs.
fn perf(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overtake-perf"));
    let output = command.args(arguments).env("PATH", "").output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn without_flags_it_is_the_load_of_the_design() {
    let (code, text, _) = perf(&["plan"]);
    assert_eq!(code, 0);
    for line in
        ["about 56,000/s", "1.2 TB, 3.6 TB on three replicas", "32, room to double", "assumed, not measured"]
    {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn flags_change_the_load() {
    let (_, text, _) = perf(&[
        "plan",
        "--messages-per-day",
        "86400000",
        "--growth",
        "100%",
        "--mix",
        "1,1",
        "--outage-hours",
        "6",
    ]);
    for line in ["about 2,000/s", "P0 50 %, P1 50 %", "consumers down for 6 hours"] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn growth_is_a_percentage_or_a_factor_a_year() {
    let grown = |growth: &[&str]| {
        let (code, text, _) = perf(&[&["plan", "--messages-per-day", "1000000"], growth].concat());
        assert_eq!(code, 0, "{text}");
        let line = text.lines().find(|line| line.starts_with("growth ")).unwrap().to_owned();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(grown(&["--growth", "50%"]), "growth 1 M × 1.5, 1 year 1.5 million a day");
    assert_eq!(
        grown(&["--growth", "1.5x", "--years", "2"]),
        "growth 1 M × 1.5 × 1.5, 2 years 2.25 million a day"
    );
}

#[test]
fn a_plan_that_cannot_be_says_what_rules_it_out_and_fails() {
    for (arguments, says) in [
        (["--memory-gb-per-node", "2"].as_slice(), "- the memory: no number of such nodes gives it"),
        (&["--disk-gb-per-node", "20"], "- the disk's size: takes "),
        (
            &["--nodes", "3", "--network-gbit-per-node", "1"],
            "- the network: takes 5 nodes, and --nodes says 3",
        ),
        (&["--zones", "2"], "- zones: with three replicas in 2 zones"),
    ] {
        let (code, text, _) = perf(&[&["plan"], arguments].concat());
        assert!(code == 1 && text.contains("IMPOSSIBLE as it is:\n"), "{arguments:?}: {code} {text}");
        assert!(text.contains(says), "{says} in {text}");
    }
}

#[test]
fn wrong_values_and_files_are_refused_with_what_is_expected() {
    for (arguments, says) in [
        (["plan", "--peak-factor", "x"], "is not a number like 4 or 0.25"),
        (["plan", "--peak-factor", "10001"], "is above 10000"),
        (["plan", "--peak-factor", "0"], "\"0\" is below 1: no peak is below the average"),
        (["plan", "--retention-days", "0"], "messages must be kept for some time"),
        (["plan", "--growth", "50"], "write 50% for half more, or 1.5x for the same"),
        (["plan", "--growth", "0.5x"], "no less than today"),
        (["plan", "--growth", "1001%"], "is above 1000% a year"),
        (["plan", "--memory-gb-per-node", "0"], "is not a size above 0"),
        (["plan", "--nodes", "65"], "65 is not in 1..=64"),
        (["plan", "--measured-cores", "0"], "0 is not in 1..=10000"),
        (["plan", "--mix", "0"], "is not a mix"),
        (["plan", "--hlog", "missing.hlog"], "missing.hlog: No such file"),
        (["plan", "--results", "Cargo.toml"], "Cargo.toml: not a results file"),
        (["load", "--shape", "flat"], "is not a shape"),
    ] {
        let (code, _, error) = perf(&arguments);
        assert!(code == 2 && error.contains(says), "{arguments:?}: {code} {error}");
    }
    let (code, _, error) = perf(&["load", "--hlog", "one", "--results", "one"]);
    assert!(code == 2 && error.contains("--hlog and --results both name one"), "{code} {error}");
}

#[test]
fn results_of_a_producer_lead_to_those_of_the_consumers() {
    let row = |key: &str| overtake_measure::table::Row { key: key.into(), ..Default::default() };
    let file = std::env::temp_dir().join(format!("overtake-plan-producer-{}.json", std::process::id()));
    let refused = |keys: &[&str]| {
        let rows: Vec<_> = keys.iter().map(|key| row(key)).collect();
        let results = overtake_measure::results::Results::new("load", 0, 2, &rows);
        std::fs::write(&file, results.to_json()).unwrap();
        let (code, _, error) = perf(&["plan", "--results", file.to_str().unwrap()]);
        assert_eq!(code, 2, "{error}");
        error
    };
    let error = refused(&["load.enqueue", "load.send.late"]);
    assert!(error.contains("the process of load that consumed, run with --server-pid"), "{error}");
    let error = refused(&["load.enqueue", "load.settle"]);
    assert!(error.contains("load or bench with --server-pid"), "{error}");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn files_of_another_kind_lead_to_the_right_ones() {
    let folder = std::env::temp_dir().join(format!("overtake-plan-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).display().to_string();
    let mut writer = LogWriter::new(std::fs::File::create(path("consumers.hlog")).unwrap(), &[], 0).unwrap();
    let mut histogram = histogram();
    histogram.record_n(1_000, 50).unwrap();
    let histogram = EncodedHistogram::new(&histogram).unwrap();
    writer.write(&Interval { tag: "deliver.P0".into(), start_ms: 0, length_ms: 1_000, histogram }).unwrap();
    let (code, _, error) = perf(&["plan", "--hlog", &path("consumers.hlog")]);
    assert!(code == 2 && error.contains("consumers.hlog PRODUCERS.hlog"), "{code} {error}");
    std::fs::write(path("load.png"), b"\x89PNG\r\n").unwrap();
    let (code, _, error) = perf(&["plan", "--results", &path("load.png")]);
    assert!(code == 2 && error.contains("load.png: not a results file, not even text"), "{code} {error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn results_that_cannot_be_are_refused_with_file_and_field() {
    let path = std::env::temp_dir().join(format!("overtake-plan-{}.json", std::process::id()));
    let text = r#"{"format": "overtake-perf results", "version": 1, "tool": "load", "at_s": 1, "cores": 2,
        "measures": [{"key": "load.settle", "name": "settle", "cpu_s_per_million": -3.0}]}"#;
    std::fs::write(&path, text).unwrap();
    let name = path.display().to_string();
    let (code, _, error) = perf(&["plan", "--results", &name]);
    std::fs::remove_file(&path).unwrap();
    assert!(code == 2 && error.contains(&name), "{code} {error}");
    assert!(error.contains("\"load.settle\": cpu_s_per_million is -3.0"), "{error}");
}

#[test]
fn a_missing_server_or_program_has_its_own_code() {
    let (code, _, error) = perf(&["load", "--connect", "127.0.0.1:1", "--duration", "100ms"]);
    assert!(code == 3 && error.contains("127.0.0.1:1"), "{code} {error}");
    let (code, _, error) = perf(&["load", "--ca", "/nowhere.pem", "--duration", "100ms"]);
    assert!(code == 2 && error.contains("/nowhere.pem"), "{code} {error}");
    let (code, _, error) = perf(&["compare", "--duration", "1s"]);
    assert!(code == 3 && error.contains("--manifest-path perf/compare/Cargo.toml"), "{code} {error}");
    let (code, _, error) = perf(&["device", "--dir", "/nowhere"]);
    assert!(code == 3 && error.contains("choose a folder on a disk with --dir"), "{code} {error}");
}
