//! Oldest versions of dependencies that are free of faults known to matter here, held against `Cargo.lock`. A
//! dependency that is not in it has nothing to keep.

use crate::Finding;

/// Name, and oldest version.
const FLOORS: [(&str, [u64; 3]); 11] = [
    ("quinn-proto", [0, 11, 15]),
    ("rustls", [0, 23, 18]),
    ("rustls-webpki", [0, 103, 13]),
    ("aws-lc-sys", [0, 39, 0]),
    ("rkyv", [0, 8, 17]),
    ("lz4_flex", [0, 12, 1]),
    ("h2", [0, 4, 16]),
    ("lru", [0, 18, 2]),
    ("crossbeam-channel", [0, 5, 15]),
    ("bytes", [1, 11, 1]),
    ("tracing-subscriber", [0, 3, 20]),
];

/// Checks the text of a `Cargo.lock`.
#[must_use]
pub fn check(lock: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, version) in locked(lock) {
        let Some((_, floor)) = FLOORS.iter().find(|(floored, _)| *floored == name) else { continue };
        match parse(version) {
            Some(parsed) if parsed >= *floor => {}
            _ => {
                let [a, b, c] = floor;
                let problem = format!("{name} {version} has known faults; {a}.{b}.{c} is the oldest without");
                findings.push(Finding::new("Cargo.lock", problem));
            }
        }
    }
    findings
}

/// Names and versions of all locked packages.
fn locked(lock: &str) -> impl Iterator<Item = (&str, &str)> {
    lock.split("[[package]]").skip(1).filter_map(|package| {
        let field = |key: &str| {
            package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        Some((field("name")?, field("version")?))
    })
}

/// A version without what follows `-` or `+`; a pre-release counts as older than all.
fn parse(version: &str) -> Option<[u64; 3]> {
    let version = version.split('+').next()?;
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let parsed = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(name: &str, version: &str) -> String {
        format!(
            "version = 4\n\n[[package]]\nname = \"bytes\"\nversion = \"1.12.0\"\n\n[[package]]\nname = \"{name}\"\nversion = \"{version}\"\ndependencies = [\n \"x\",\n]\n"
        )
    }

    #[test]
    fn a_version_below_its_floor_is_found() {
        for (name, [a, b, c]) in FLOORS {
            assert!(check(&lock(name, &format!("{a}.{b}.{c}"))).is_empty(), "{name}");
            assert!(check(&lock(name, &format!("{a}.{b}.{}", c + 1))).is_empty(), "{name}");
            let below = if c > 0 { [a, b, c - 1] } else { [a, b - 1, 99] }.map(|n| n.to_string()).join(".");
            assert_eq!(check(&lock(name, &below)).len(), 1, "{name} {below}");
        }
        assert_eq!(check(&lock("h2", "0.3.99")).len(), 1);
        assert!(check(&lock("rustls-webpki", "0.103.13+x")).is_empty());
        assert_eq!(check(&lock("rustls", "0.24.0-dev.0")).len(), 1, "a pre-release is for people to judge");
    }

    #[test]
    fn others_are_let_be() {
        assert!(check(&lock("rand", "0.0.1")).is_empty());
    }
}
