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
        None => build(),
    })
}

/// A command of the binary that inherits none of the caller's `OVERTAKE_` settings.
pub fn command() -> Command {
    let mut command = Command::new(overtake());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OVERTAKE_") {
            command.env_remove(name);
        }
    }
    command
}

/// Selects the whole workspace and a test beside the binary: so the choice of features, those of test dependencies
/// included, is that of `cargo test --workspace`, and nothing is compiled a second time.
fn build() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--workspace", "--bin", "overtake", "--test", "bad_starts"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--manifest-path")
        .arg(manifest)
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "building overtake failed: {}", output.status);
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "overtake")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo names the executable it built")
}
