//! Which crate may import which: the direction of imports, as a table. What is not in it is not allowed.

use crate::Finding;
use serde_json::Value;

/// A package of the workspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder, from the top of the tree.
    pub folder: String,
    /// What it is built from: normal and build dependencies, by package name.
    pub normal: Vec<String>,
    /// What only its tests are built from.
    pub others: Vec<String>,
}

/// What a crate may import of ours.
enum May {
    /// These.
    Import(&'static [&'static str]),
    /// All that are not for tests.
    ImportAll,
}

const TABLE: [(&str, &str, May); 14] = [
    ("overtake-base", "engine/base", May::Import(&[])),
    ("overtake-queue", "engine/queue", May::Import(&["base"])),
    ("overtake-log", "engine/log", May::Import(&["base"])),
    ("overtake-replication", "replication", May::Import(&["base"])),
    ("overtake-wire", "net/wire", May::Import(&["base"])),
    ("overtake-transport", "net/transport", May::Import(&["base", "wire"])),
    ("overtake-core", "engine/core", May::Import(&["base", "queue", "log", "replication", "wire"])),
    ("overtake-board", "engine/board", May::Import(&["base"])),
    ("overtake-device", "engine/device", May::Import(&["base", "log"])),
    ("overtake-udp", "net/udp", May::Import(&["base", "wire"])),
    ("overtake-client", "net/client", May::Import(&["base", "wire"])),
    ("overtake-gateway", "net/gateway", May::Import(&["base", "wire", "client"])),
    ("overtake-config", "tools/config", May::Import(&["base"])),
    ("overtake", "tools/overtake", May::ImportAll),
];

/// The simulator is the same code as production, so it sees the deterministic crates and never a shell.
const SIMULATOR: (&str, &[&str]) =
    ("ci/sim", &["base", "queue", "log", "replication", "wire", "transport", "core"]);

/// Whether a folder holds what watches over the others: it may import anything, and nothing imports it.
fn watches(folder: &str) -> bool {
    folder.starts_with("ci/") || folder.starts_with("perf/")
}

fn is_ours(name: &str) -> bool {
    name == "overtake" || name.starts_with("overtake-")
}

/// Checks every package against the table.
#[must_use]
pub fn check(packages: &[Package]) -> Vec<Finding> {
    packages.iter().flat_map(|package| check_one(package, packages)).collect()
}

fn check_one(package: &Package, packages: &[Package]) -> Vec<Finding> {
    let refuse = |name: &str, why: &str| Finding::new(&package.name, format!("imports {name}: {why}"));
    let mut findings = Vec::new();
    let allowed: Option<&[&str]> = if package.folder == SIMULATOR.0 {
        Some(SIMULATOR.1)
    } else if watches(&package.folder) {
        None
    } else {
        match TABLE.iter().find(|(name, folder, _)| *name == package.name && *folder == package.folder) {
            Some((_, _, May::Import(allowed))) => Some(allowed),
            Some((_, _, May::ImportAll)) => None,
            None => {
                let problem = format!("is not in the table of layers with the folder {}", package.folder);
                return vec![Finding::new(&package.name, problem)];
            }
        }
    };
    for name in package.normal.iter().filter(|name| is_ours(name)) {
        let short = name.trim_start_matches("overtake-");
        if allowed.is_some_and(|allowed| !allowed.contains(&short)) {
            findings.push(refuse(name, "against the direction of imports"));
        }
    }
    for name in package.normal.iter().chain(&package.others) {
        let watcher = packages.iter().any(|other| other.name == *name && watches(&other.folder));
        if watcher && !watches(&package.folder) {
            findings.push(refuse(name, "nothing imports what is in ci and perf"));
        }
    }
    findings
}

/// The workspace's packages out of what `cargo metadata --no-deps` prints.
pub fn packages(metadata: &str) -> Result<Vec<Package>, String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|error| error.to_string())?;
    let root = metadata["workspace_root"].as_str().ok_or("no workspace_root")?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    packages.iter().map(|package| read_package(package, root)).collect()
}

fn read_package(package: &Value, root: &str) -> Result<Package, String> {
    let name = package["name"].as_str().ok_or("a package without a name")?;
    let manifest = package["manifest_path"].as_str().ok_or("a package without a manifest")?;
    let folder = manifest.trim_start_matches(root).trim_start_matches('/').trim_end_matches("/Cargo.toml");
    let mut read = Package { name: name.into(), folder: folder.into(), normal: vec![], others: vec![] };
    for dependency in package["dependencies"].as_array().ok_or("a package without dependencies")? {
        let name = dependency["name"].as_str().ok_or("a dependency without a name")?.to_owned();
        match dependency["kind"].as_str() {
            Some("dev") => read.others.push(name),
            _ => read.normal.push(name),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &str, name: &str, normal: &[&str], others: &[&str]) -> Package {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Package { name: name.into(), folder: folder.into(), normal: owned(normal), others: owned(others) }
    }

    fn count(package: Package) -> usize {
        let watchers = [self::package("perf/bench", "overtake-perf", &[], &[])];
        check(&[&[package][..], &watchers].concat()).len()
    }

    #[test]
    fn the_direction_of_imports_is_kept() {
        assert_eq!(count(package("engine/queue", "overtake-queue", &["bytes", "overtake-base"], &[])), 0);
        assert_eq!(count(package("engine/queue", "overtake-queue", &["overtake-log"], &[])), 1);
        assert_eq!(count(package("engine/base", "overtake-base", &["overtake-wire"], &[])), 1);
        assert_eq!(count(package("net/gateway", "overtake-gateway", &["overtake-core"], &[])), 1);
        assert_eq!(
            count(package("tools/overtake", "overtake", &["overtake-core", "overtake-device"], &[])),
            0
        );
        assert_eq!(count(package("net/wire", "overtake-wire", &["overtake"], &[])), 1);
    }

    #[test]
    fn the_simulator_sees_no_shell() {
        assert_eq!(count(package("ci/sim", "overtake-sim", &["overtake-core"], &[])), 0);
        assert_eq!(count(package("ci/sim", "overtake-sim", &["overtake-device"], &[])), 1);
    }

    #[test]
    fn nothing_imports_what_watches() {
        assert_eq!(count(package("ci/e2e", "overtake-e2e", &["overtake-perf", "overtake-core"], &[])), 0);
        assert_eq!(count(package("tools/overtake", "overtake", &["overtake-perf"], &[])), 1);
        assert_eq!(count(package("engine/core", "overtake-core", &[], &["overtake-perf"])), 1);
    }

    #[test]
    fn what_is_not_in_the_table_is_refused() {
        assert_eq!(count(package("engine/extra", "overtake-extra", &[], &[])), 1);
        assert_eq!(count(package("net/queue", "overtake-queue", &[], &[])), 1);
    }

    #[test]
    fn metadata_is_read() {
        let metadata = r#"{ "workspace_root": "/x", "packages": [ { "name": "overtake-log",
            "manifest_path": "/x/engine/log/Cargo.toml", "dependencies": [
                { "name": "bytes", "kind": null }, { "name": "cc", "kind": "build" },
                { "name": "proptest", "kind": "dev" } ] } ] }"#;
        let expected = package("engine/log", "overtake-log", &["bytes", "cc"], &["proptest"]);
        assert_eq!(packages(metadata), Ok(vec![expected]));
        assert!(packages("{}").is_err());
    }
}
