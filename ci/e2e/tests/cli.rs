//! The command line through the real binary: exit codes that scripts can trust, JSON that parses.

use overtake_e2e::scratch::Scratch;
use overtake_e2e::server::{Ended, run};
use overtake_e2e::shape::{count, list, text};
use overtake_e2e::{Server, eventually};
use serde_json::{Value, json};

const NOTHING: i32 = 3;
const NO_CONNECTION: i32 = 4;
const LATER: i32 = 6;

struct Cli {
    connect: String,
}

impl Cli {
    /// Runs `overtake {arguments} --connect … -o json`.
    #[track_caller]
    fn run(&self, arguments: &[&str], stdin: &[u8]) -> Ended {
        let mut command = overtake_e2e::binary::command();
        command.args(arguments).args(["--connect", &self.connect, "-o", "json"]);
        run(command, stdin)
    }

    /// The JSON of a command that must succeed.
    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.run(arguments, b"");
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {ended:?}"))
    }

    /// A command that must fail with this code and say why.
    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32) {
        let ended = self.run(arguments, b"");
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn a_message_goes_through_the_command_line() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    cli.json(&["queue", "create", "jobs", "--levels", "3", "--lease-s", "60"]);
    let queue = server.queue("jobs");
    assert_eq!((count(&queue.config(), "levels"), count(&queue.config(), "lease_s")), (3, 60));
    assert_eq!(cli.json(&["queue", "show", "jobs"]), queue.config());
    cli.json(&["queue", "update", "jobs", "--lease-s", "61"]);
    assert_eq!(count(&queue.config(), "lease_s"), 61);
    assert_eq!(list(&cli.json(&["queue", "list"]), "queues").len(), 1);

    let stored = cli.json(&["enqueue", "jobs", "hello", "-p", "2", "--header", "a=b", "--dedup-key", "k"]);
    let again = cli.json(&["enqueue", "jobs", "again", "-p", "p0", "--dedup-key", "k"]);
    assert_eq!((&again["id"], &again["duplicate"]), (&stored["id"], &json!(true)));
    let id = text(&stored, "id");
    assert_eq!(cli.json(&["inspect", "jobs", id])["state"], "visible");
    assert_eq!(list(&cli.json(&["peek", "jobs"]), "messages").len(), 1);

    let received = cli.json(&["receive", "jobs", "--worker", "cli"]);
    let message = &list(&received, "messages")[0];
    assert_eq!(
        (text(message, "id"), text(message, "body"), &message["headers"]),
        (id, "aGVsbG8=", &json!({"a": "b"}))
    );
    let stats = cli.json(&["stats", "jobs"]);
    assert_eq!((&stats["workers"], &stats["leased"]), (&json!({"cli": 1}), &json!(1)));
    overtake_e2e::stats::check_stats(&stats);
    let receipt = text(message, "receipt");
    cli.json(&["extend", "jobs", receipt, "--lease-s", "100"]);
    assert_eq!(cli.json(&["ack", "jobs", receipt])["results"][receipt], "ok");
    cli.fails(&["ack", "jobs", receipt], NOTHING);
    cli.fails(&["receive", "jobs"], NOTHING);
    cli.fails(&["inspect", "jobs", id], NOTHING);
    cli.fails(&["stats", "none"], NOTHING);
    assert_eq!(queue.stats()["totals"]["acked"], 1);

    let body = cli.run(&["enqueue", "jobs", "-p", "0"], b"from standard input\n\0");
    assert_eq!(body.code, Some(0), "{body:?}");
    assert_eq!(queue.receive_one(json!({})).body, b"from standard input\n\0");
    let lines = cli.run(&["enqueue", "jobs", "-p", "1", "--lines"], b"one\ntwo\nthree\n");
    assert_eq!(lines.code, Some(0), "{lines:?}");
    let mut bodies: Vec<String> = queue.receive_count(3, json!({})).iter().map(|m| m.text()).collect();
    bodies.sort();
    assert_eq!(bodies, ["one", "three", "two"]);
    assert!(!list(&cli.json(&["cluster", "status"]), "nodes").is_empty());
}

#[test]
fn exec_acks_what_succeeds_and_gives_back_what_fails() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let scratch = Scratch::new();
    let queue = server.create("work", json!({"max_deliveries": 1}));
    let id = queue.put(1, "the work");
    let out = scratch.path().join("out");
    let script =
        format!("cat > {0}; printf ' %s %s' \"$OVERTAKE_ID\" \"$OVERTAKE_PRIORITY\" >> {0}", out.display());
    let ended = cli.run(&["receive", "work", "--exec", &script], b"");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(std::fs::read_to_string(&out).unwrap_or_default(), format!("the work {id} 1"));
    assert_eq!(queue.stats()["totals"]["acked"], 1);

    queue.put(0, "fails");
    cli.run(&["receive", "work", "--exec", "echo it is broken >&2; exit 9"], b"");
    let dead = eventually("the dead letter", || queue.dlq().pop());
    assert!(text(&dead, "last_error").contains("it is broken"), "{dead}");
    let listed = cli.json(&["dlq", "list", "work"]);
    assert_eq!(list(&listed, "messages"), [dead]);
    assert_eq!(count(&cli.json(&["dlq", "redrive", "work", "--all", "--dry-run"]), "moved"), 1);
    assert_eq!(count(&cli.json(&["dlq", "redrive", "work", "--all"]), "moved"), 1);
    assert_eq!(queue.stats()["dlq"], 0);
    assert_eq!(count(&cli.json(&["queue", "purge", "work", "--yes"]), "purged"), 1);
    let deleted = cli.run(&["queue", "delete", "work", "--yes"], b"");
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    cli.fails(&["queue", "show", "work"], NOTHING);
}

#[test]
fn refusals_have_codes_of_their_own() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("full", json!({"max_depth": 1}));
    queue.put(0, "x");
    cli.fails(&["enqueue", "full", "y", "-p", "0"], LATER);
    cli.fails(&["enqueue", "full", "y", "-p", "7"], 1);
    cli.fails(&["queue", "create", "full"], 1);
    cli.fails(&["enqueue", "none", "y", "-p", "0"], NOTHING);
    cli.fails(&["receive", "full", "--max", "0"], 2);
    cli.fails(&["enqueue", "full", "y"], 2);
    let nowhere = Cli { connect: overtake_e2e::server::free_address().to_string() };
    let mut command = overtake_e2e::binary::command();
    command.args(["stats", "full", "--connect", &nowhere.connect, "--timeout", "2"]);
    let ended = run(command, b"");
    assert_eq!(ended.code, Some(NO_CONNECTION), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    for arguments in [&["--version"][..], &["--help"], &["completions", "bash"], &["config", "example"]] {
        let mut command = overtake_e2e::binary::command();
        command.args(arguments);
        let ended = run(command, b"");
        assert!(ended.code == Some(0) && !ended.stdout.is_empty(), "{arguments:?}: {ended:?}");
    }
}
