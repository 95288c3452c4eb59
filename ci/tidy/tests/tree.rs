//! The rules, applied to the tree. Each test names every violation it finds, with its place.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use overtake_tidy::iteration::{self, Fields};
use overtake_tidy::layers::{self, Package};
use overtake_tidy::source::{Production, tokens, without_tests};
use overtake_tidy::tree::{self, SourceFile};
use overtake_tidy::{DETERMINISTIC, Finding, floors, purity, report, style};
use std::process::Command;

fn assert_none(findings: &[Finding]) {
    assert!(findings.is_empty(), "{} violations:\n{}", findings.len(), report(findings));
}

/// Runs cargo at the top of the tree; what it prints, and whether it succeeded.
fn cargo(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(tree::root()).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn packages() -> Vec<Package> {
    let (ok, metadata, errors) = cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    assert!(ok, "{errors}");
    layers::packages(&metadata).unwrap()
}

#[test]
fn imports_have_one_direction() {
    let packages = packages();
    assert!(packages.len() > 12, "the workspace was read");
    assert_none(&layers::check(&packages));
}

#[test]
fn deterministic_crates_have_no_impure_dependency() {
    let packages = packages();
    let deterministic: Vec<_> =
        packages.iter().filter(|p| DETERMINISTIC.contains(&p.folder.as_str())).collect();
    assert_eq!(deterministic.len(), DETERMINISTIC.len(), "every deterministic crate is there");
    assert_none(&deterministic.into_iter().flat_map(purity::check_dependencies).collect::<Vec<_>>());
}

/// A module `name` declared in the file `parent` lies in one of these files, or under one of these folders.
fn is_module(path: &str, parent: &str, name: &str) -> bool {
    let folder = parent.rsplit_once('/').map_or("", |(folder, _)| folder);
    let own = parent.trim_end_matches(".rs");
    [folder, own]
        .iter()
        .any(|base| path == format!("{base}/{name}.rs") || path.starts_with(&format!("{base}/{name}/")))
}

#[test]
fn deterministic_crates_are_pure() {
    let all = tree::texts(&tree::root()).unwrap();
    let mut findings = Vec::new();
    for folder in DETERMINISTIC {
        let prefix = format!("{folder}/src/");
        let files: Vec<&SourceFile> =
            all.iter().filter(|f| f.path.starts_with(&prefix) && f.path.ends_with(".rs")).collect();
        assert!(!files.is_empty(), "{folder} has sources");
        let parts: Vec<(&str, Production<'_>)> =
            files.iter().map(|file| (file.path.as_str(), without_tests(&tokens(&file.text)))).collect();
        let is_test = |path: &str| {
            parts
                .iter()
                .any(|(parent, part)| part.test_modules.iter().any(|name| is_module(path, parent, name)))
        };
        let production: Vec<_> = parts.iter().filter(|(path, _)| !is_test(path)).collect();
        let fields: Vec<_> = production.iter().map(|(_, part)| iteration::fields(&part.tokens)).collect();
        let krate = fields.iter().fold(Fields::default(), |mut krate, file| {
            krate.hashed.extend(&file.hashed);
            krate.others.extend(&file.others);
            krate
        });
        for ((path, part), file) in production.iter().zip(&fields) {
            findings.extend(purity::check_source(path, &part.tokens));
            findings.extend(iteration::check(path, &part.tokens, file, &krate));
        }
    }
    assert_none(&findings);
}

/// The workspace, and the one of its own that compares us with other systems.
const LOCKS: [&str; 2] = ["Cargo.lock", "perf/compare/Cargo.lock"];

#[test]
fn dependencies_are_above_their_floors() {
    for lock in LOCKS {
        assert_none(&floors::check(&std::fs::read_to_string(tree::root().join(lock)).unwrap()));
    }
}

#[test]
fn clients_of_other_systems_stay_out_of_the_product() {
    let [ours, compare] = LOCKS.map(|lock| std::fs::read_to_string(tree::root().join(lock)).unwrap());
    for client in ["async-nats", "lapin", "redis", "tokio-postgres"] {
        let package = format!("name = \"{client}\"\n");
        assert!(compare.contains(&package) && !ours.contains(&package), "{client}");
    }
}

#[test]
fn files_are_in_order() {
    let all = tree::texts(&tree::root()).unwrap();
    let sources = all.iter().filter(|file| file.path.ends_with(".rs"));
    let mut findings: Vec<_> = sources.flat_map(|file| style::check_source(&file.path, &file.text)).collect();
    findings.extend(all.iter().flat_map(|file| style::check_text(&file.path, &file.text)));
    assert_none(&findings);
}

#[test]
fn the_top_of_the_tree_is_in_order() {
    let (folders, files) = tree::top(&tree::root()).unwrap();
    assert_none(&style::check_top(&folders, &files));
}

#[test]
fn packages_are_in_order() {
    let check = |package: &Package| {
        let manifest = tree::root().join(&package.folder).join("Cargo.toml");
        style::check_package(package, &std::fs::read_to_string(manifest).unwrap())
    };
    assert_none(&packages().iter().flat_map(check).collect::<Vec<_>>());
}

#[test]
fn everything_is_formatted() {
    for manifest in ["Cargo.toml", "perf/compare/Cargo.toml"] {
        let (ok, files, errors) =
            cargo(&["fmt", "--all", "--manifest-path", manifest, "--", "--check", "--files-with-diff"]);
        assert!(ok, "run `cargo fmt --all --manifest-path {manifest}`; it would change:\n{files}{errors}");
    }
}

#[test]
fn clippy_has_nothing_to_say() {
    let (ok, _, errors) =
        cargo(&["clippy", "--workspace", "--all-targets", "--offline", "--quiet", "--", "-D", "warnings"]);
    assert!(ok, "{errors}");
}
