//! The command line through the real binary: exit codes that scripts can trust, JSON that parses.

use overtake_e2e::going::Going;
use overtake_e2e::scratch::Scratch;
use overtake_e2e::server::{Ended, free_address, run};
use overtake_e2e::shape::{count, list, text, time_ms};
use overtake_e2e::stats::total;

use overtake_e2e::{Options, Server, eventually, now_ms};
use serde_json::{Value, json};

const USAGE: i32 = 2;
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

    /// Runs `overtake {arguments} --connect …` as a person does, and gives all it said.
    #[track_caller]
    fn says(&self, arguments: &[&str], stdin: &[u8], code: i32) -> String {
        let mut command = overtake_e2e::binary::command();
        command.args(arguments).args(["--connect", &self.connect]);
        let ended = run(command, stdin);
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        ended.stdout + &ended.stderr
    }

    /// Starts a command that goes on until it is told to stop.
    fn starts(&self, arguments: &[&str]) -> Going {
        let mut command = overtake_e2e::binary::command();
        command.args(arguments).args(["--connect", &self.connect]);
        Going::start(command)
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
        // Where the answer itself says it, as outcomes do, there is nothing to add.
        if code != 0 && !ended.stderr.is_empty() && ended.stderr != "nothing to receive\n" {
            let told: Result<Value, _> = serde_json::from_str(&ended.stderr);
            let told = told.unwrap_or_else(|_| json!({"exit_code": clap_code(&ended.stderr)}));
            assert_eq!(told["exit_code"], code, "errors are JSON, too: {ended:?}");
        }
    }
}

/// Code of the errors that clap tells in its own words, before it knows of `-o json`.
fn clap_code(stderr: &str) -> Option<i32> {
    (stderr.starts_with("error: ") || stderr.starts_with("overtake: --max-per-s 0")).then_some(USAGE)
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
    // What only the server can judge is a wrong value all the same.
    for wrong in [
        &["enqueue", "full", "y", "-p", "7"][..],
        &["enqueue", "full", "y", "-p", "0", "--dedup-key", ""],
        &["queue", "create", ".bad"],
        &["queue", "create", "x", "--levels", "0"],
        &["queue", "create", "x", "--weights", "1,2"],
        &["queue", "create", "x", "--backoff-first-s", "100", "--backoff-max-s", "5"],
        &["dlq", "redrive", "full", "--all", "--max-per-s", "0", "--wait"],
    ] {
        cli.fails(wrong, USAGE);
    }
    cli.fails(&["dlq", "redrive", "full", "--all"], NOTHING);
    cli.fails(&["dlq", "list", "full"], 0);
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

#[test]
fn what_destroys_wants_a_yes_where_nobody_can_be_asked() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("precious", json!({"max_deliveries": 1}));
    queue.put(0, "x");
    queue.kill_all(1, "broken");
    queue.put(0, "y");
    for command in [["queue", "purge"], ["queue", "delete"], ["dlq", "purge"]] {
        for stdin in [&b""[..], b"y\n", b"x\n"] {
            let said = cli.says(&[command[0], command[1], "precious"], stdin, USAGE);
            assert!(said.contains("add --yes"), "{said}");
        }
    }
    assert_eq!((&queue.stats()["visible"]["p0"], &queue.stats()["dlq"]), (&json!(1), &json!(1)));
    let said = cli.says(&["queue", "delete", "nothere", "--yes"], b"", NOTHING);
    assert!(said.contains("no queue named 'nothere'") && !said.contains("create"), "{said}");
    assert_eq!(cli.json(&["dlq", "purge", "precious", "--yes"]), json!({"purged": 1}));
    assert_eq!(cli.json(&["queue", "delete", "precious", "--yes"]), json!({"deleted": "precious"}));
}

#[test]
fn a_worker_that_cannot_run_its_command_harms_no_message() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("wk", json!({"max_deliveries": 2}));
    queue.fill(&[0], 20);
    let said = cli.says(&["receive", "wk", "--follow", "--exec", "./nothere.sh"], b"", USAGE);
    assert!(said.contains("./nothere.sh"), "{said}");
    assert_eq!(total(&queue.stats(), "deliveries"), 0, "nothing was leased for it");
    // What is known only when it runs ends the worker with the first message.
    let said = cli.says(&["receive", "wk", "--follow", "--exec", "exit 126"], b"", 1);
    assert!(said.contains("cannot be run"), "{said}");
    let stats = queue.stats();
    assert_eq!(
        (total(&stats, "deliveries"), &stats["visible"]["p0"], &stats["dlq"]),
        (0, &json!(20), &json!(0)),
        "no message is at fault"
    );
}

#[test]
fn a_worker_whose_messages_all_fail_slows_down() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("wk", json!({}));
    queue.fill(&[0], 60);
    let worker = cli.starts(&["receive", "wk", "--follow", "--exec", "echo out of order >&2; exit 3"]);
    worker.says("2 failures in a row; the next message in 500 ms");
    let ended = worker.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (said, passed_on) =
        (ended.stderr.matches("out of order").count(), ended.stderr.matches("given back").count());
    assert_eq!(said + 1, passed_on, "what the command says is shown once, then the sum: {ended:?}");
}

#[test]
fn following_waits_for_a_queue_that_is_not_there_yet() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let said = cli.says(&["receive", "later"], b"", NOTHING);
    assert!(said.contains("`overtake queue create later`"), "{said}");
    let follower = cli.starts(&["receive", "later", "--follow", "--ack"]);
    follower.says("waiting for it");
    let queue = server.create("later", json!({}));
    for text in ["one", "two"] {
        queue.put(0, text);
        follower.says(text);
    }
    eventually("two acks", || (total(&queue.stats(), "acked") == 2).then_some(()));
    let ended = follower.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.matches("RECEIPT").count(), 1, "one heading for all: {ended:?}");
    assert!(ended.stdout.contains("one") && ended.stdout.contains("two"), "{ended:?}");
}

#[test]
fn an_extension_without_a_number_is_the_queues_lease() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("slow", json!({"lease_s": 600}));
    queue.put(0, "x");
    let message = queue.receive_one(json!({"lease_s": 60}));
    let said = cli.says(&["extend", "slow", &message.receipt], b"", 0);
    assert!(said.contains("extended, ends in 10 min"), "{said}");
    assert!(time_ms(&queue.inspect(&message.id), "lease_expires_at") > now_ms() + 500_000);
}

#[test]
fn a_paused_redrive_says_so_and_how_it_goes_on() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("rr", json!({"max_deliveries": 1}));
    queue.fill(&[0], 30);
    queue.kill_all(30, "away");
    let said = cli.says(&["queue", "list"], b"", 0);
    assert!(said.contains("DEAD LETTERS") && said.contains("30"), "{said}");
    let said = cli.says(&["dlq", "redrive", "rr", "--all", "--max-per-s", "0"], b"", 0);
    assert_eq!(said, "paused: 30 stay dead letters; `overtake dlq redrive rr --all` moves them now\n");
    assert_eq!(queue.stats()["dlq"], 30);
    assert_eq!(cli.says(&["dlq", "redrive", "rr", "--all"], b"", 0), "30 moved\n");
    queue.kill_all(30, "away");
    assert_eq!(
        cli.says(&["dlq", "redrive", "rr", "--all", "--max-per-s", "1000", "--wait"], b"", 0),
        "30 moved\n"
    );
    assert_eq!(queue.stats()["dlq"], 0);
}

#[test]
fn why_it_failed_is_told_while_it_lives_and_when_it_is_dead() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("mail", json!({"max_deliveries": 2}));
    let id = queue.put(0, "x");
    assert!(!cli.says(&["inspect", "mail", &id], b"", 0).contains("error"));
    for alive in [true, false] {
        let message = queue.receive_one(json!({}));
        let error = if alive { "mail server away" } else { "still away" };
        cli.json(&["release", "mail", &message.receipt, "--error", error]);
        let why = text(&cli.json(&["inspect", "mail", &id]), "why").to_owned();
        assert!(why.ends_with(&format!("; last error: {error}")), "{why}");
    }
    let said = cli.says(&["inspect", "mail", &id], b"", 0);
    assert!(said.contains("dead") && said.contains("ago: mail server away"), "the whole history: {said}");
    let said = cli.says(&["cancel", "mail", &id], b"", NOTHING);
    assert!(said.contains("dead letter") && said.contains("redrive"), "{said}");
    assert_eq!(queue.stats()["dlq"], 1);
}

#[test]
fn watching_stats_goes_on_over_a_restart_of_the_server() {
    let mut server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("rs", json!({}));
    let watch = cli.starts(&["stats", "rs", "--watch", "--interval", "0.1", "-o", "json"]);
    watch.says("\"enqueued\":0");
    server.restart();
    queue.put(0, "x");
    watch.says("\"enqueued\":1");
    let ended = watch.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn empty_input_is_no_message_by_accident() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let queue = server.create("jobs", json!({}));
    let said = cli.says(&["enqueue", "jobs", "-p", "1"], b"", USAGE);
    assert!(said.contains("standard input is empty"), "{said}");
    let said = cli.says(&["enqueue", "jobs", "-p", "1", "--lines"], b"one\n\n  \ntwo\n", 0);
    assert!(said.starts_with("2 stored") && said.contains("2 blank lines left out"), "{said}");
    cli.json(&["enqueue", "jobs", "", "-p", "1"]);
    assert_eq!(total(&queue.stats(), "enqueued"), 3);
    let said = cli.says(&["enqueue", "jobs", "-p", "1"], &[b'x'; 200_000], 1);
    assert!(said.contains("longer than 131072 bytes"), "{said}");
    let said = cli.says(&["enqueue", "none", "x", "-p", "1"], b"", NOTHING);
    assert!(said.contains("`overtake queue create none`"), "{said}");
    queue.update(json!({"max_depth": 3}));
    let said = cli.says(&["enqueue", "jobs", "-p", "1", "--lines", "--timeout", "4"], b"four\n", LATER);
    assert!(said.contains("1 lines wait: the queue is full"), "{said}");
}

#[test]
fn a_server_that_cannot_be_trusted_or_will_not_trust_is_named_in_plain_words() {
    let (server, other) = (Server::start(), Server::start());
    server.create("q", json!({}));
    let cli = Cli { connect: server.quic().to_string() };
    let certificate = |of: &Server| of.data().join("tls/certificate.pem").display().to_string();
    let (own, wrong) = (certificate(&server), certificate(&other));
    cli.says(&["stats", "q", "--ca", &own], b"", 0);
    let said = cli.says(&["stats", "q", "--ca", &wrong], b"", NO_CONNECTION);
    assert!(said.contains("is not the one in") && said.contains(&wrong), "{said}");
    let away = Cli { connect: "192.0.2.1:7400".to_owned() };
    assert!(away.says(&["stats", "q"], b"", USAGE).contains("tls/certificate.pem"));

    let config = "[[tokens]]\ntoken = 't'\ntenant = 'a'\nrights = ['read']";
    let guarded = Options { config: Some(config), ..Options::default() }.start();
    let guarded_cli = Cli { connect: guarded.quic().to_string() };
    let said = guarded_cli.says(&["stats", "q"], b"", 7);
    assert!(said.contains("--token"), "{said}");
    let gateway = overtake_e2e::Gateway::start(&guarded);
    let problem = gateway.client().call("GET", "/v1/queues").problem(401);
    assert!(text(&problem, "detail").contains("--auth"), "{problem}");
}

#[test]
fn a_gateway_says_that_it_is_ready_only_when_it_is() {
    let server = Server::start();
    let cli = Cli { connect: server.quic().to_string() };
    let said = cli.says(&["gateway", "--http", &server.http().to_string()], b"", 8);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("address in use") && said.contains("--http"), "{said}");
    let gateway = cli.starts(&["gateway", "--http", &free_address().to_string()]);
    gateway.says("overtake gateway: http 127.0.0.1:");
    assert_eq!(gateway.stop().code, Some(0));
}
