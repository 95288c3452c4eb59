//! The example programs of the Rust client, and the examples in its documentation, each run against a real server.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_client::{Client, ConnectOptions};
use overtake_e2e::binary::example;
use overtake_e2e::going::Going;
use overtake_e2e::server::{Ended, run};
use overtake_e2e::{Options, Queue, Server, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};

// What the documentation shows.
#[path = "../../../net/client/docs/client.rs"]
mod client_docs;
#[path = "../../../net/client/docs/consumer.rs"]
mod consumer_docs;
#[path = "../../../net/client/docs/producer.rs"]
mod producer_docs;
#[path = "../../../net/client/docs/worker.rs"]
mod worker_docs;

#[track_caller]
fn done(program: &str, server: &Server, arguments: &[&str], stdin: &str) -> Ended {
    let mut command = example(program);
    command.arg(server.quic().to_string()).args(arguments);
    let ended = run(command, stdin.as_bytes());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{program}: {ended:?}");
    ended
}

#[test]
fn the_producer_stores_each_line_once() {
    let server = Server::start();
    let queue = server.create("jobs", json!({}));
    let lines: String = (0..500).map(|number| format!("line {number}\n")).collect();
    let ended = done("producer", &server, &["jobs", "1"], &lines);
    let mut ids: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(ids.len(), 500);
    let mut messages = queue.receive(json!({"max": 1_000}));
    messages.sort_by_key(|message| message.id.clone());
    ids.sort_unstable();
    assert_eq!(messages.iter().map(|message| message.id.as_str()).collect::<Vec<_>>(), ids);
    assert!(messages.iter().all(|message| message.priority == 1 && message.headers["made-by"].is_string()));
}

#[test]
fn the_consumer_settles_by_hand() {
    let server = Server::start();
    let queue = server.create("jobs", json!({"shards": 1, "max_deliveries": 1, "scheduling": "strict"}));
    queue.put(3, "low");
    queue.put(0, "high");
    queue.enqueue(json!({"priority": 1, "body": "//79"}));
    let ended = done("consumer", &server, &["jobs", "3"], "");
    assert_eq!(ended.stdout, "P0 high\nP3 low\n");
    let dead = eventually("a dead letter", || queue.dlq().pop());
    assert!(dead["last_error"].as_str().is_some_and(|error| error.starts_with("the body is not UTF-8")));
    assert_eq!(queue.stats()["totals"]["acked"], 2);
}

#[test]
fn the_worker_works_and_gives_back_what_fails() {
    let server = Server::start();
    let queue = server.create("jobs", json!({"max_deliveries": 2}));
    for body in ["good", "fail one", "panic now", "slow", "later on"] {
        queue.put(2, body);
    }
    let mut command = example("worker");
    command.arg(server.quic().to_string()).arg("jobs").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let worker = command.spawn().expect("an example can be started");
    let dead = eventually("three dead letters and two done", || {
        let (dead, stats) = (queue.dlq(), queue.stats());
        (dead.len() == 3 && stats["totals"]["acked"] == 2).then_some(dead)
    });
    let mut errors: Vec<&str> = dead.iter().filter_map(|letter| letter["last_error"].as_str()).collect();
    errors.sort_unstable();
    let expected = ["not done within 500ms", "the handler panicked: told to panic", "told to fail"];
    assert_eq!(errors, expected);
    kill_process(Pid::from_child(&worker), Signal::TERM).expect("the signal is sent");
    let output = worker.wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains("P2 good\n") && said.contains("P2 later on\n"), "{said}");
    assert!(said.ends_with("Report { succeeded: 2, failed: 7, given_back: 0, lost: 0 }\n"), "{said}");
}

#[test]
fn the_administrator_leaves_nothing_behind() {
    let server = Server::start();
    let ended = done("admin", &server, &["tidy"], "");
    let expected =
        "created: true, 3 levels\ncreated: false, leases of 60 s\nkept for 345600 s\nlisted: 0 messages\n";
    assert!(ended.stdout.starts_with(expected), "{}", ended.stdout);
    for line in [
        "P2 Visible\n",
        "P1 Delayed\n",
        "released: [Ok]\n",
        "dead of: an example\n",
        "would come back: 1\ncame back: 1\ndead letters purged: 0\npurged: 2\n",
        "enqueued 3, cancelled 1, purged 2\n1 node, 4 shards\ncore 1 of 1\n",
    ] {
        assert!(ended.stdout.contains(line), "{line:?} is missing in {}", ended.stdout);
    }
    server.queue("tidy").client().call("GET", "/v1/queues/tidy").problem(404);
}

#[test]
fn the_quick_start_stores_and_works() {
    let server = Server::start();
    let queue = server.create("mail", json!({}));
    let mut command = example("quick_start");
    command.arg(server.quic().to_string());
    let started = Going::start(command);
    started.says("hello\n");
    eventually("an ack", || (queue.stats()["totals"]["acked"] == 1).then_some(()));
    let ended = started.interrupt();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("stored as m_") && ended.stdout.contains("succeeded: 1"), "{ended:?}");
}

const TOKENS: &str = r#"
[[tokens]]
token = "ours"
tenant = "we"
rights = ["enqueue", "receive", "read", "admin"]
"#;

#[test]
fn a_service_connects_to_several_servers_by_name_with_a_token_and_a_certificate() {
    let server = Options { config: Some(TOKENS), ..Options::default() }.start();
    let queue = Queue::new(server.client().with_token("ours"), "mail");
    queue.client().json("PUT", &queue.path(""), &json!({})).expect_status(201);
    // The server by number and by name, and one that is not there; a file with a certificate of somebody else, too.
    let servers = format!("nowhere.invalid:7400,{},localhost:{}", server.quic(), server.quic().port());
    let other = Server::start();
    let pem =
        |server: &Server| std::fs::read_to_string(server.data().join("tls/certificate.pem")).expect("PEM");
    let authorities = server.data().join("authorities.pem");
    std::fs::write(&authorities, pem(&other) + &pem(&server)).expect("a file");
    let start = |servers: &str, token: &str, authorities: &Path| {
        let mut command = example("several_servers");
        command.args([servers, &authorities.display().to_string(), "mail"]).env("OVERTAKE_TOKEN", token);
        command
    };
    let started = Going::start(start(&servers, "ours", &authorities));
    started.says("hello\n");
    eventually("an ack", || (queue.stats()["totals"]["acked"] == 1).then_some(()));
    let ended = started.interrupt();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("stored as m_") && ended.stdout.contains("succeeded: 1"), "{ended:?}");
    assert!(ended.stdout.contains(&format!("node 1 at {}", server.quic())), "{ended:?}");
    for (token, authorities, says) in [
        ("theirs", authorities, "the token is not known to this server"),
        ("ours", other.data().join("tls/certificate.pem"), "is not trusted: "),
        ("ours", server.data().join("nothing.pem"), "nothing.pem"),
    ] {
        // The error of the one that was tried last is told: here there is only one.
        let ended = run(start(&server.quic().to_string(), token, &authorities), b"");
        assert!(ended.code == Some(1) && ended.stderr.contains(says), "{says}: {ended:?}");
    }
}

/// A crate of its own that depends on the client as the README says.
#[test]
fn a_crate_can_depend_on_the_client() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("the README");
    let (_, block) = readme.split_once("```toml\n[dependencies]").expect("dependencies in the README");
    let (dependencies, _) = block.split_once("```").expect("the block's end");
    let dependencies = dependencies.replace("../overtake", &root.display().to_string());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dependent");
    std::fs::create_dir_all(folder.join("src")).expect("a folder");
    let manifest = format!(
        "[package]\nname = \"dependent\"\nedition = \"2024\"\n[workspace]\n[dependencies]{dependencies}"
    );
    std::fs::write(folder.join("Cargo.toml"), manifest).expect("a file");
    // What was downloaded for the project will do.
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).expect("the lock file");
    for main in ["quick_start.rs", "several_servers.rs"] {
        std::fs::copy(root.join("net/client/examples").join(main), folder.join("src/main.rs"))
            .expect("a file");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["check", "--quiet", "--offline"]).current_dir(&folder);
        let ended = run(
            {
                cargo.env("CARGO_TARGET_DIR", folder.join("target"));
                cargo
            },
            b"",
        );
        assert_eq!(ended.code, Some(0), "{main}: {ended:?}");
    }
}

#[tokio::test]
async fn what_the_documentation_shows_works() {
    let server = Server::start();
    let queue = server.create("mail", json!({}));
    let acked = |wanted: u64| move |queue: &overtake_e2e::Queue| queue.stats()["totals"]["acked"] == wanted;
    let options = ConnectOptions { servers: vec![server.quic().into()], ..ConnectOptions::default() };
    let client = Client::connect(options).await.expect("a connection");
    client_docs::store_and_take(&client).await.expect("a message goes through");
    assert!(acked(1)(&queue), "{}", queue.stats());
    producer_docs::produce(client.clone()).await.expect("two are stored");
    consumer_docs::consume(client.clone(), 2).await.expect("two are taken");
    assert!(acked(3)(&queue), "{}", queue.stats());
    queue.put(0, "for the worker");
    let done = async {
        while !acked(4)(&queue) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    assert_eq!(worker_docs::work(client.clone(), done).await.succeeded, 1);
    client.close().await;
}
