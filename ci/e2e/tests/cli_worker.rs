//! `overtake receive --exec` against a real server: a worker that can be stopped, keeps its leases, and waits for a
//! server that is away.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_e2e::scratch::Scratch;
use overtake_e2e::{Queue, Server, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::process::{Child, ExitStatus, Stdio};

struct Worker(Child);

impl Worker {
    /// Starts `overtake receive jobs {arguments}`.
    fn start(server: &Server, arguments: &[&str]) -> Self {
        let mut command = overtake_e2e::binary::command();
        command.args(["receive", "jobs", "--connect", &server.quic().to_string()]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("the binary can be started"))
    }

    fn signal(&self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("the signal is sent");
    }

    fn ended(mut self) -> ExitStatus {
        eventually("the worker to end", || self.0.try_wait().expect("a child"))
    }
}

fn total(queue: &Queue, name: &str) -> u64 {
    overtake_e2e::stats::total(&queue.stats(), name)
}

/// A command that tells that it runs, then works as `then` says; and a wait for it.
fn telling(scratch: &Scratch, then: &str) -> (String, impl Fn()) {
    let told = scratch.path().join("told");
    let command = format!("touch {}; {then}", told.display());
    (command, move || eventually("the command to run", || told.exists().then_some(())))
}

#[test]
fn a_stop_finishes_the_running_message_and_gives_the_others_back() {
    let (server, scratch) = (Server::start(), Scratch::new());
    // One shard, so that one receive gives all.
    let queue = server.create("jobs", json!({"shards": 1}));
    queue.fill(&[0], 3);
    let (command, running) = telling(&scratch, "sleep 1");
    let worker = Worker::start(&server, &["--follow", "--max", "3", "--exec", &command]);
    running();
    worker.signal();
    assert_eq!(worker.ended().code(), Some(0));
    assert_eq!((total(&queue, "acked"), total(&queue, "releases")), (1, 0));
    assert_eq!(queue.stats()["leased"], 0);
}

#[test]
fn a_second_stop_ends_the_running_message() {
    let (server, scratch) = (Server::start(), Scratch::new());
    let queue = server.create("jobs", json!({"max_deliveries": 1}));
    queue.put(0, "endless");
    let (command, running) = telling(&scratch, "sleep 600; true");
    let worker = Worker::start(&server, &["--exec", &command]);
    running();
    worker.signal();
    // Two signals at once are one to a process: the second only counts when the first was taken.
    let ended = eventually("the worker to end", || {
        overtake_e2e::time::sleep_ms(100);
        let dead = queue.dlq().pop();
        if dead.is_none() {
            worker.signal();
        }
        dead
    });
    assert_eq!(ended["last_error"], "interrupted");
    assert_eq!(worker.ended().code(), Some(1));
}

#[test]
fn leases_are_kept_while_it_runs_and_while_messages_wait() {
    let server = Server::start();
    let queue = server.create("jobs", json!({"shards": 1}));
    queue.fill(&[0], 2);
    let worker = Worker::start(&server, &["--max", "2", "--lease-s", "1", "--exec", "sleep 1.6"]);
    assert_eq!(worker.ended().code(), Some(0));
    let totals = ["acked", "deliveries", "lease_expirations", "releases"].map(|name| total(&queue, name));
    assert_eq!(totals, [2, 2, 0, 0]);
}

#[test]
fn a_server_that_is_away_is_waited_for() {
    let (mut server, scratch) = (Server::start(), Scratch::new());
    let queue = server.create("jobs", json!({}));
    queue.put(0, "first");
    let (command, running) = telling(&scratch, "sleep 1");
    let worker = Worker::start(&server, &["--follow", "--exec", &command]);
    running();
    server.kill();
    server.start_again();
    queue.put(0, "second");
    eventually("both to be acked", || (total(&queue, "acked") == 2).then_some(()));
    assert_eq!(total(&queue, "deliveries"), 2, "the first one's ack was repeated, not its work");
    worker.signal();
    assert_eq!(worker.ended().code(), Some(0));
}

#[test]
fn nothing_there_and_no_such_queue_have_their_exit_code() {
    let server = Server::start();
    assert_eq!(Worker::start(&server, &["--exec", "true"]).ended().code(), Some(3));
    server.create("jobs", json!({}));
    assert_eq!(Worker::start(&server, &["--exec", "true"]).ended().code(), Some(3));
}
