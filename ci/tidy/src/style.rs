//! Files, names, and the top of the tree.

use crate::Finding;
use crate::layers::Package;
use crate::source::tokens;

/// Most lines of a source file.
const LINES_MAX: usize = 900;

/// Words of unfinished work. (Put together here, so that this file passes its own rule.)
const UNFINISHED: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
/// Macros of unfinished work.
const UNFINISHED_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
/// Folders of the machines that people work on.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// The folders at the top, all of them.
const FOLDERS: [&str; 6] = ["ci", "engine", "net", "perf", "replication", "tools"];
/// The files that may be at the top.
const FILES: [&str; 11] = [
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "deny.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
];

/// Checks a Rust source.
#[must_use]
pub fn check_source(path: &str, source: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !source.starts_with("//!") {
        findings.push(Finding::new(path, "does not begin with `//!`: say what the file is about, and why"));
    }
    let lines = source.lines().count();
    if lines > LINES_MAX {
        findings.push(Finding::new(
            path,
            format!("{lines} lines; a file is about one thing, {LINES_MAX} at most"),
        ));
    }
    for pair in tokens(source).windows(2) {
        if UNFINISHED_MACROS.contains(&pair[0].text) && pair[1].text == "!" {
            let place = format!("{path}:{}", pair[0].line);
            findings.push(Finding::new(place, format!("`{}!` is unfinished work", pair[0].text)));
        }
    }
    findings
}

/// Checks any text file.
#[must_use]
pub fn check_text(path: &str, content: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(content.lines()) {
        let place = || format!("{path}:{number}");
        if line.split(|c: char| !c.is_alphanumeric()).any(|word| UNFINISHED.contains(&word)) {
            findings.push(Finding::new(
                place(),
                "a note of unfinished work: finish it, or write it down elsewhere",
            ));
        }
        if let Some(machine) = MACHINE_PATHS.iter().find(|machine| names(line, machine)) {
            findings.push(Finding::new(place(), format!("`{machine}` is a path of somebody's machine")));
        }
    }
    findings
}

/// Whether `line` holds the absolute path `folder`, and not only as a part of a longer one.
fn names(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        !line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '*' | ':'))
    })
}

/// Checks what lies at the top of the tree.
#[must_use]
pub fn check_top(folders: &[String], files: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for folder in folders.iter().filter(|folder| !FOLDERS.contains(&folder.as_str())) {
        findings.push(Finding::new(folder, "no folder of this name belongs at the top"));
    }
    for folder in FOLDERS.iter().filter(|folder| !folders.iter().any(|there| there == *folder)) {
        findings.push(Finding::new(*folder, "is missing at the top"));
    }
    for file in files.iter().filter(|file| !FILES.contains(&file.as_str())) {
        findings.push(Finding::new(file, "no file of this name belongs at the top"));
    }
    findings
}

/// Checks a package's name and manifest.
#[must_use]
pub fn check_package(package: &Package, manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_binary = package.name == "overtake" && package.folder == "tools/overtake";
    if !is_binary && !package.name.starts_with("overtake-") {
        findings.push(Finding::new(&package.name, "packages are named overtake-*"));
    }
    if !manifest.contains("[lints]\nworkspace = true") {
        findings.push(Finding::new(&package.name, "does not follow the workspace's lints"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_it_is_about_and_stays_short() {
        assert!(check_source("x.rs", "//! What.\nfn f() {}\n").is_empty());
        assert_eq!(check_source("x.rs", "use a;\n").len(), 1);
        assert_eq!(check_source("x.rs", "").len(), 1);
        let long = |lines: usize| format!("//! What.{}", "\n".repeat(lines));
        assert!(check_source("x.rs", &long(LINES_MAX)).is_empty());
        assert_eq!(check_source("x.rs", &long(LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn unfinished_work_is_found() {
        for name in UNFINISHED_MACROS {
            assert_eq!(check_source("x.rs", &format!("//! What.\nfn f() {{ {name}!() }}")).len(), 1);
        }
        assert!(check_source("x.rs", "//! What.\nfn f() { let todo = \"todo!\"; }").is_empty());
        for word in UNFINISHED {
            assert_eq!(check_text("x.md", &format!("a\n// {word}: b")).len(), 1);
            assert!(check_text("x.md", &format!("x{word}s")).is_empty());
        }
    }

    #[test]
    fn paths_of_machines_are_found() {
        for path in MACHINE_PATHS {
            assert_eq!(check_text("x.md", &format!("see {path}me")).len(), 1);
            assert_eq!(check_text("x.md", &format!("`{path}me`")).len(), 1);
            assert!(check_text("x.md", &format!("engine{path}x https://a.b{path}x")).is_empty());
        }
    }

    #[test]
    fn the_top_is_what_it_should_be() {
        let folders = FOLDERS.map(str::to_owned);
        assert!(check_top(&folders, &["Cargo.toml".into()]).is_empty());
        assert_eq!(check_top(&folders[1..], &[]).len(), 1);
        assert_eq!(check_top(&[&folders[..], &["docs".into()]].concat(), &[]).len(), 1);
        assert_eq!(check_top(&folders, &["notes.md".into()]).len(), 1);
    }

    #[test]
    fn packages_are_named_and_linted() {
        let package = |name: &str, folder: &str| Package {
            name: name.into(),
            folder: folder.into(),
            normal: vec![],
            others: vec![],
        };
        let linted = "[package]\n\n[lints]\nworkspace = true\n";
        assert!(check_package(&package("overtake-log", "engine/log"), linted).is_empty());
        assert!(check_package(&package("overtake", "tools/overtake"), linted).is_empty());
        assert_eq!(check_package(&package("overtake", "engine/log"), linted).len(), 1);
        assert_eq!(check_package(&package("log", "engine/log"), linted).len(), 1);
        assert_eq!(check_package(&package("overtake-log", "engine/log"), "[package]").len(), 1);
    }
}
