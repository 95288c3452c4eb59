//! The commands on histogram logs, through the binary: what they print, what they write, and their exit codes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use overtake_measure::encoding::EncodedHistogram;
use overtake_measure::hlog::{Interval, LogWriter, histogram};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("overtake-hist-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A log with these tags, each with values 1..=1000 times `scale` microseconds.
    fn log(&self, name: &str, tags: &[&str], scale: u64) -> String {
        let path = self.0.join(name);
        let mut writer = LogWriter::new(std::fs::File::create(&path).unwrap(), &[], 1_000).unwrap();
        for tag in tags {
            let mut histogram = histogram();
            (1..=1_000).for_each(|n| histogram.saturating_record(n * scale * 1_000));
            let histogram = EncodedHistogram::new(&histogram).unwrap();
            writer
                .write(&Interval { tag: (*tag).into(), start_ms: 1_000, length_ms: 1_000, histogram })
                .unwrap();
        }
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `overtake-perf hist` and gives its exit code and both outputs.
fn hist(arguments: &[&str]) -> (i32, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_overtake-perf")).arg("hist").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn logs_of_two_processes_are_merged_and_printed() {
    let folder = Folder::new("merge");
    let (a, b) = (folder.log("a.hlog", &["enqueue", "settle"], 1), folder.log("b.hlog", &["enqueue"], 2));
    let merged = folder.path("ab.hlog");
    assert_eq!(hist(&["merge", "-o", &merged, &a, &b]).0, 0);
    let (code, printed, _) = hist(&["print", &merged]);
    assert_eq!((code, &printed), (0, &hist(&["print", &a, &b]).1));
    let line = printed.lines().find(|line| line.starts_with("enqueue")).unwrap();
    assert!(line.contains("2,000") && line.contains("2.001"), "{printed}");
    let (_, only, _) = hist(&["print", &merged, "--tag", "settle"]);
    let lines: Vec<&str> = only.lines().collect();
    assert!(lines.len() == 4 && lines[2].starts_with("settle"), "{only}");
    // Of a thousand values none is above the 99.99th percentile.
    assert!(lines[2].contains("1.000*") && lines[3].starts_with("* the highest value"), "{only}");
}

#[test]
fn nothing_is_counted_twice_or_overwritten() {
    let folder = Folder::new("twice");
    let (a, b) = (folder.log("a.hlog", &["enqueue"], 1), folder.log("b.hlog", &["settle"], 2));
    let all = folder.path("all.hlog");
    assert_eq!(hist(&["merge", "-o", &all, &a, &b]).0, 0);
    let before = std::fs::read(&all).unwrap();
    let (code, _, error) = hist(&["merge", "-o", &all, &a, &all, &b]);
    assert!(code == 2 && error.contains("all.hlog is one of the files to merge"), "{code} {error}");
    assert_eq!(std::fs::read(&all).unwrap(), before);
    let (code, _, error) = hist(&["merge", "-o", &folder.path("new.hlog"), &a, &all, &b]);
    assert!(code == 2 && error.contains("hold the same measurements"), "{code} {error}");
    assert!(!folder.0.join("new.hlog").exists());
    let again = folder.0.join(".").join("a.hlog").display().to_string();
    let (code, _, error) = hist(&["print", &a, &again]);
    assert!(code == 2 && error.contains("a.hlog is named twice"), "{code} {error}");
}

#[test]
fn a_regression_has_an_exit_code_of_its_own() {
    let folder = Folder::new("compare");
    let (a, b) = (folder.log("a.hlog", &["enqueue"], 100), folder.log("b.hlog", &["enqueue"], 120));
    let (code, text, _) = hist(&["compare", &a, &b, "--max-regression", "10%", "--percentile", "99"]);
    assert!(code == 1 && text.contains("+20.0 %") && text.contains("REGRESSION"), "{code} {text}");
    assert_eq!(hist(&["compare", &a, &b, "--max-regression", "25%"]).0, 0);
    assert_eq!(hist(&["compare", &b, &a]).0, 0);
    assert_eq!(hist(&["compare", &a, &b, "--ignore-below", "30ms"]).0, 0);
    let both = folder.log("both.hlog", &["enqueue", "settle"], 100);
    let (code, text, _) = hist(&["compare", &both, &a, "--percentile", "50", "99.9"]);
    assert!(code == 0 && text.contains("no longer measured, and so not compared: settle"), "{code} {text}");
    assert!(text.contains("p50") && text.contains("p99.9"), "{text}");
    let settle = folder.log("settle.hlog", &["settle"], 1);
    let (code, _, error) = hist(&["compare", &a, &settle]);
    assert!(code == 2 && error.contains("have no tag in common"), "{code} {error}");
    let (code, _, error) = hist(&["compare", &a, &settle, "--tag", "enqueue"]);
    assert!(code == 2 && error.contains("settle.hlog: no interval has the tag"), "{code} {error}");
    let (code, _, error) = hist(&["compare", &a, &b, "--max-regression", "10"]);
    assert!(code == 2 && error.contains("like 10% (with the sign)"), "{code} {error}");
}

#[test]
fn plots_are_svg_or_png_by_name() {
    let folder = Folder::new("plot");
    let (a, b) = (folder.log("a.hlog", &["enqueue"], 1), folder.log("b.hlog", &["enqueue"], 2));
    let (svg, png) = (folder.path("x.svg"), folder.path("x.png"));
    assert_eq!(hist(&["plot", &a, "-o", &svg]), (0, String::new(), String::new()));
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    assert_eq!(hist(&["plot", &a, &b, "-o", &png, "--chart", "rate"]).0, 0);
    assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    let (code, _, error) = hist(&["plot", &a, "-o", &folder.path("x.pdf")]);
    assert!(code == 2 && error.contains(".svg or .png"), "{error}");
}

/// With counters laid out for each interval this log took 1 GB; its file has a few hundred KB.
#[test]
fn a_log_of_hours_fits_into_little_memory() {
    let folder = Folder::new("long");
    let (path, other) = (folder.path("long.hlog"), folder.path("other.hlog"));
    for (path, values) in [(&path, 100), (&other, 90)] {
        let mut writer = LogWriter::new(std::fs::File::create(path).unwrap(), &[], 1_000).unwrap();
        let mut histogram = histogram();
        (1..=values).for_each(|n| histogram.saturating_record(n * 100_000));
        let histogram = EncodedHistogram::new(&histogram).unwrap();
        for interval in 0..4_000 {
            let tag = ["enqueue", "deliver.P0"][interval % 2].into();
            let start_ms = 1_000 * (interval / 2) as u64;
            let interval = Interval { tag, start_ms, length_ms: 1_000, histogram: histogram.clone() };
            writer.write(&interval).unwrap();
        }
    }
    let (merged, plot) = (folder.path("merged.hlog"), folder.path("long.svg"));
    for arguments in [
        ["hist", "print", &path].as_slice(),
        &["hist", "merge", "-o", &merged, &path, &other],
        &["hist", "compare", &path, &other],
        &["hist", "plot", "-o", &plot, &path],
        &["plan", "--hlog", &path],
    ] {
        let limited = Command::new("sh")
            .args(["-c", "ulimit -v 300000 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_overtake-perf")])
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&limited.stderr);
        // A plan may find its load impossible; without memory there is no code at all.
        assert!(matches!(limited.status.code(), Some(0 | 1)) && error.is_empty(), "{arguments:?}: {error}");
    }
}

#[test]
fn damaged_and_foreign_files_are_told_with_their_line() {
    let folder = Folder::new("damage");
    let good = folder.log("a.hlog", &["enqueue", "settle"], 1);
    let text = std::fs::read_to_string(&good).unwrap();
    let cut = folder.path("cut.hlog");
    std::fs::write(&cut, &text[..text.len() - 20]).unwrap();
    let (code, out, error) = hist(&["print", &good, &cut]);
    assert!(code == 2 && out.is_empty() && error.contains("cut.hlog, line 5:"), "{error}");
    let foreign = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").display().to_string();
    let (code, _, error) = hist(&["print", &foreign]);
    assert!(code == 2 && error.contains("Cargo.toml, line 1:"), "{error}");
    let (code, _, error) = hist(&["print", &folder.path("missing.hlog")]);
    assert!(code == 2 && error.contains("No such file"), "{error}");
    let (code, _, error) = hist(&["print", &good, "--tag", "other"]);
    assert!(code == 2 && error.contains("there are: enqueue, settle"), "{error}");
}
