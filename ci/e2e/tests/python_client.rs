//! The Python client: its types are strict, and its tests pass against a real server. Skipped with a note on a machine
//! without Python; `.ci/run` does not let that pass.

use overtake_e2e::Server;
use overtake_e2e::python::python;
use std::path::Path;
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

#[test]
fn its_types_are_strict() {
    let Some(mut mypy) = python(folder()) else { return };
    mypy.args(["-m", "mypy", "--cache-dir"]).arg(folder().join("mypy"));
    passes(mypy);
}

#[test]
fn its_tests_pass() {
    let Some(mut pytest) = python(folder()) else { return };
    let server = Server::start();
    pytest.args(["-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]);
    pytest.env("OVERTAKE_HTTP", server.http().to_string());
    passes(pytest);
}

#[track_caller]
fn passes(mut command: Command) {
    let output = command.output().unwrap_or_else(|error| panic!("Python cannot be started: {error}"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
}
