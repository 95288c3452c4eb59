//! What this machine lets us do to a cluster, found by trying, and the words that say what is left out and why.

use crate::clock::FakeTime;
use crate::disk::Disk;
use crate::network::Network;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// What can be done here; else the reason why not.
#[derive(Clone, Debug)]
pub struct Machine {
    /// A network namespace for each node, so that cables can be pulled.
    pub namespaces: Result<(), String>,
    /// A disk for each node, so that it can hang, run full and fail.
    pub disks: Result<(), String>,
    /// A clock for each node, so that it can jump.
    pub clocks: Result<FakeTime, String>,
}

impl Machine {
    /// Tries everything once.
    #[must_use]
    pub fn look() -> Self {
        let tried = Self {
            namespaces: Network::make(1).map(drop),
            disks: Disk::can_be_made(),
            clocks: FakeTime::find(),
        };
        for (what, reason) in [
            ("a network of its own for each node", tried.namespaces.clone().err()),
            ("a disk of its own for each node", tried.disks.clone().err()),
            ("a clock of its own for each node", tried.clocks.clone().err()),
        ] {
            if let Some(reason) = reason {
                say(&format!("NOTE: no {what}: {reason}"));
            }
        }
        tried
    }
}

/// Says something on standard error also where a test's output is held back.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs a tool of the system; what it said where it failed.
pub(crate) fn tool(words: &[&str]) -> Result<String, String> {
    let (name, arguments) = words.split_first().ok_or("no command")?;
    let output = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{}: {}",
        words.join(" "),
        said.trim().lines().next().unwrap_or("it failed and said nothing")
    ))
}
