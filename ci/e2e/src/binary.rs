//! Where the binary under test is: `OVERTAKE_BIN`, else what the workspace builds, once for each test process.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// The binary. Builds it on first use where `OVERTAKE_BIN` does not name one.
pub fn overtake() -> &'static Path {
    BINARY.get_or_init(|| match std::env::var_os("OVERTAKE_BIN") {
        Some(path) => PathBuf::from(path),
        None => build("overtake"),
    })
}

/// The performance tools. Builds them on first use.
pub fn overtake_perf() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("overtake-perf"))
}

/// A command of the binary that inherits none of the caller's `OVERTAKE_` settings.
pub fn command() -> Command {
    command_by(&[])
}

/// The same, started by another command whose words come first, such as `ip netns exec NAME`.
pub fn command_by(words: &[String]) -> Command {
    let mut command = match words.split_first() {
        None => Command::new(overtake()),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(overtake());
            command
        }
    };
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OVERTAKE_") {
            command.env_remove(name);
        }
    }
    command
}

/// An example program of the Rust client. Builds all of them on first use.
pub fn example(name: &str) -> Command {
    static EXAMPLES: OnceLock<Vec<(String, PathBuf)>> = OnceLock::new();
    let built = EXAMPLES.get_or_init(|| cargo_build(&["--examples"]));
    let path = built.iter().find(|(target, _)| target == name).map(|(_, path)| path);
    Command::new(path.unwrap_or_else(|| panic!("there is no example {name}: {built:?}")))
}

fn build(name: &str) -> PathBuf {
    let built = cargo_build(&["--bin", name]);
    built.into_iter().find(|(target, _)| target == name).expect("cargo names the executable it built").1
}

/// Builds targets; gives their names and executables. Selects the whole workspace and a test beside them: so the choice
/// of features, those of test dependencies included, is that of `cargo test --workspace`, and nothing is compiled a
/// second time.
fn cargo_build(targets: &[&str]) -> Vec<(String, PathBuf)> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--workspace", "--test", "bad_starts"])
        .args(targets)
        .arg("--message-format=json-render-diagnostics")
        .arg("--manifest-path")
        .arg(manifest)
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "building {targets:?} failed: {}", output.status);
    let executable = |message: Value| {
        let path = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(path)))
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok().and_then(executable))
        .collect()
}
