//! Python with what the Python client's tests need, in a virtual environment under the target folder that is made once.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Where this is set to 1, as `.ci/run` does, a machine without Python fails the tests instead of skipping them.
const REQUIRED: &str = "OVERTAKE_REQUIRE_PYTHON";

/// What the environment is made from: a change makes it anew.
const PROJECT: &str = include_str!("../../../net/python/pyproject.toml");

/// The folder of the Python client.
pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../net/python")
}

/// A Python that has the client and its test tools, in the environment below `folder`. None, with a note on standard
/// error, where this machine has no Python that can make one, or no way to its packages.
pub fn python(folder: &Path) -> Option<Command> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(|| environment(&folder.join("python"))) {
        Ok(python) => {
            let mut command = Command::new(python);
            command.current_dir(project()).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
            Some(command)
        }
        Err(reason) => {
            let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
            assert!(!required, "{REQUIRED} is set: {reason}");
            // Past the test harness, which shows what a passing test prints to nobody.
            let note = format!("\nnote: tests of the Python client are SKIPPED: {reason}\n");
            let _ = std::io::stderr().write_all(note.as_bytes());
            None
        }
    }
}

fn environment(folder: &Path) -> Result<PathBuf, String> {
    let (python, stamp) = (folder.join("bin/python"), folder.join("made-from.toml"));
    // It runs the client where the client's sources are: an environment that came here with a copied target folder runs
    // those of another tree.
    let from =
        format!("# {}\n{PROJECT}", project().canonicalize().map_err(|error| error.to_string())?.display());
    if std::fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == from) {
        return Ok(python);
    }
    let program = ["python3", "python"]
        .into_iter()
        .find(|program| {
            run(Command::new(program).args(["-c", "import sys; sys.exit(sys.version_info < (3, 10))"]))
                .is_ok()
        })
        .ok_or("there is no Python 3.10 or newer (Debian: apt-get install python3 python3-venv)")?;
    run(Command::new(program).args(["-m", "venv", "--clear"]).arg(folder)).map_err(|error| {
        format!("{program} cannot make an environment (Debian: apt-get install python3-venv): {error}")
    })?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", ".[test]"]);
    run(install.current_dir(project())).map_err(|error| format!("pip cannot install: {error}"))?;
    std::fs::write(&stamp, from).map_err(|error| error.to_string())?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
