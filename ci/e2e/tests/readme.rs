//! Every command that the README shows, run as it stands there, but for addresses, folders and sizes.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_e2e::cluster::Cluster;
use overtake_e2e::going::Going;
use overtake_e2e::readme::{Example, examples};
use overtake_e2e::scratch::Scratch;
use overtake_e2e::server::{Ended, free_address, run};
use overtake_e2e::{Client, Options, Queue, Server, binary, eventually};
use serde_json::json;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const README: &str = include_str!("../../../README.md");
/// What makes the programs; the harness has made them.
const BUILDS: [&str; 3] = ["cargo build ", "cargo install ", "export PATH="];
/// A refusal of the server fails the command.
const PRELUDE: &str = "curl() { command curl --fail-with-body \"$@\"; }";
/// Where this is set to 1, as `.ci/run` does, a machine without curl fails the test instead of leaving commands out.
const REQUIRED: &str = "OVERTAKE_REQUIRE_CURL";

/// Where the commands are typed.
struct Shell {
    scratch: Scratch,
    server: Server,
    has_curl: bool,
}

impl Shell {
    fn new() -> Self {
        let scratch = Scratch::new();
        let bin = scratch.path().join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        for program in [binary::overtake(), binary::overtake_perf()] {
            let program = program.canonicalize().expect("a program that was built");
            symlink(&program, bin.join(program.file_name().expect("a file"))).expect("a link");
        }
        let has_curl = Command::new("curl").arg("--version").output().is_ok();
        let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
        assert!(has_curl || !required, "{REQUIRED} is set, and there is no curl");
        Self { scratch, server: Options { dev: true, ..Options::default() }.start(), has_curl }
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    /// The command with what is true here in the place of what the README takes for granted.
    fn here(&self, example: &Example) -> String {
        let producer = binary::example("producer").get_program().to_string_lossy().into_owned();
        let worker = binary::example("worker").get_program().to_string_lossy().into_owned();
        let mut command = example.command.clone();
        for (there, here) in [
            ("localhost:7401", self.server.http().to_string()),
            ("127.0.0.1:7400", self.server.quic().to_string()),
            ("$(pidof overtake)", self.server.pid().to_string()),
            ("cargo run -p overtake-client --example producer --", producer),
            ("cargo run -p overtake-client --example worker --", worker),
            ("/var/lib/overtake", self.scratch.path().display().to_string()),
            // A debug build on a machine that runs other tests.
            ("--rate 2000 --duration 5s", "--rate 200 --duration 1s".into()),
            ("overtake-perf device ", "overtake-perf device --duration 20ms --file-mib 8 ".into()),
        ] {
            command = command.replace(there, &here);
        }
        let jobs = self.server.queue("jobs");
        if command.contains("RECEIPT") {
            jobs.put(0, "for its receipt");
            command = command.replace("RECEIPT", &jobs.receive_one(json!({"lease_s": 600})).receipt);
        }
        if command.contains(" ID") {
            command = command.replace(" ID", &format!(" {}", jobs.put(0, "for its id")));
        }
        if command.contains("receive jobs") || command.contains("jobs/receive") {
            jobs.put(0, "to be received");
        }
        command
    }

    fn command(&self, text: &str) -> Command {
        let mut command = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OVERTAKE_") {
                command.env_remove(name);
            }
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.path("bin")));
        command.env("OVERTAKE_CONNECT", self.server.quic().to_string());
        command.current_dir(self.scratch.path());
        command.args(["-euo", "pipefail", "-c"]).arg(format!("{PRELUDE}\n{text}"));
        command
    }

    #[track_caller]
    fn done(&self, text: &str) -> Ended {
        let ended = run(self.command(text), b"");
        assert_eq!(ended.code, Some(0), "{text}: {ended:?}");
        ended
    }

    /// A command that goes on until Ctrl-C; `until` says when it has done what it should.
    #[track_caller]
    fn goes_on(&self, text: &str, until: impl Fn() -> bool) -> Ended {
        let started = Going::start(self.command(&format!("exec {text}")));
        eventually(text, || until().then_some(()));
        let ended = started.interrupt();
        assert_eq!(ended.code, Some(0), "{text}: {ended:?}");
        ended
    }

    /// A command that is a server.
    #[track_caller]
    fn serves(&self, text: &str, name: &str) {
        let (http, quic) = (free_address(), free_address());
        let flags = format!("--data {} --http {http} --quic {quic} --cores 1 --shards 4", self.path(name));
        let subcommand = format!("overtake {name}");
        let text = text.replace(&subcommand, &format!("{subcommand} {flags}"));
        let client = Client::new(http);
        self.goes_on(&text, || {
            client.try_call("GET", "/readyz", &[], None).is_ok_and(|reply| reply.status == 200)
        });
    }

    /// The cluster of the README, and how its nodes' addresses begin there and here.
    fn cluster(&self, text: &str) -> (Going, Vec<(String, String)>) {
        let base = free_ports();
        let port = |there: u16| (format!("127.0.0.1:{there}"), format!("127.0.0.1:{}", base + there - 7_400));
        let addresses: Vec<_> = [7_400, 7_401, 7_410, 7_411, 7_420, 7_421].map(port).to_vec();
        let flags = format!("--http {} --quic {} --cores 1 --shards 4", addresses[1].1, addresses[0].1);
        let text = text.replace("overtake dev", &format!("exec overtake dev {flags}"));
        let started = Going::start(self.command(&text));
        for http in [1, 3, 5] {
            let client = Client::new(addresses[http].1.parse().expect("an address"));
            eventually(&text, || {
                let ready =
                    client.try_call("GET", "/readyz", &[], None).is_ok_and(|reply| reply.status == 200);
                ready.then_some(())
            });
        }
        (started, addresses)
    }

    /// One node of the cluster, which waits for the others.
    fn node(&self, text: &str) {
        let http = free_address();
        let flags = format!("--data {} --peer-listen {}", self.path("node"), free_address());
        let mut text = text.replace("overtake serve", &format!("overtake serve {flags}"));
        for (there, here) in [
            ("10.0.0.1:7400", free_address().to_string()),
            ("10.0.0.1:7401", http.to_string()),
            ("/etc/overtake", self.path("overtake-certs")),
            ("node2.example:7402", free_address().to_string()),
            ("node3.example:7402", free_address().to_string()),
        ] {
            text = text.replace(there, &here);
        }
        let client = Client::new(http);
        self.goes_on(&text, || {
            client.try_call("GET", "/healthz", &[], None).is_ok_and(|reply| reply.status == 200)
        });
    }

    /// A node that joins a cluster, as the README starts one; it goes on.
    fn joins(&self, text: &str, cluster: &Cluster) -> Going {
        let id = text.split("--node-id ").nth(1).and_then(|rest| rest.split(' ').next()).expect("an id");
        let certificates = cluster.cert_dir().display().to_string();
        let made = cluster.cli_alone(&["cert", "node", id, "--cert-dir", &certificates]);
        assert_eq!(made.code, Some(0), "{made:?}");
        let (http, peers) = (free_address(), format!("127.0.0.1:{}", free_ports()));
        let flags = format!("--data {} --peer-listen {peers}", self.path(&format!("node-{id}")));
        let mut here = text.replace("overtake serve", &format!("exec overtake serve {flags}"));
        for (there, now) in [
            ("10.0.0.4:7400", free_address().to_string()),
            ("10.0.0.4:7401", http.to_string()),
            ("/etc/overtake", certificates),
            ("10.0.0.2:7400", cluster.servers()[1].to_string()),
        ] {
            here = here.replace(there, &now);
        }
        let joined = Going::start(self.command(&here));
        let client = Client::new(http);
        eventually(text, || {
            let ready = client.try_call("GET", "/readyz", &[], None).is_ok_and(|reply| reply.status == 200);
            ready.then_some(())
        });
        joined
    }

    fn queue(&self, name: &str) -> Queue {
        self.server.queue(name)
    }
}

/// The cluster whose nodes come and go, and those of its nodes that joined it.
struct Changing {
    cluster: Cluster,
    joined: Vec<Going>,
}

impl Changing {
    /// Does what the README does; false where it is not about that.
    fn takes(changing: &mut Option<Self>, shell: &Shell, text: &str) -> bool {
        let joins = text.contains(" --join ");
        if joins {
            let cluster = Cluster::start(3);
            let joined = vec![shell.joins(text, &cluster)];
            *changing = Some(Self { cluster, joined });
            return true;
        }
        let verbs = ["drain", "remove", "replace", "rebalance"];
        let Some(changing) = changing.as_mut() else { return false };
        if !verbs.iter().any(|verb| text.starts_with(&format!("overtake cluster {verb}"))) {
            return false;
        }
        if text.contains("replace 3 5") {
            changing.cluster.kill(2);
            let fifth = "overtake serve --node-id 5 --zone c --cert-dir /etc/overtake --quic 10.0.0.4:7400 \
                         --http 10.0.0.4:7401 --join 10.0.0.2:7400";
            changing.joined.push(shell.joins(fifth, &changing.cluster));
        }
        let servers: Vec<String> = changing.cluster.servers().iter().map(ToString::to_string).collect();
        let (command, comment) = text.split_once('#').unwrap_or((text, ""));
        println!("{command}: {comment}");
        let here = format!("{command} --connect {}", servers.join(","));
        if text.contains("remove 3 --force") {
            // Another way to the same end, which the replacement has come to.
            let ended = run(shell.command(&here), b"");
            assert!(
                ended.code == Some(3) && ended.stderr.contains("there is no node 3"),
                "{here}: {ended:?}"
            );
            return true;
        }
        shell.done(&here);
        if text.contains("remove 1") {
            let ended = changing.cluster.wait_until_ended(0);
            assert_eq!(ended.code(), Some(8), "its process ends by itself, as README says");
        }
        true
    }
}

/// The first of thirty ports that nobody uses.
fn free_ports() -> u16 {
    loop {
        let first = free_address().port();
        let free = |port: u16| {
            std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok()
                && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
        };
        if (first..first + 30).all(free) {
            return first;
        }
    }
}

fn acked(queue: &Queue) -> u64 {
    queue.stats()["totals"]["acked"].as_u64().unwrap_or_default()
}

#[test]
fn every_command_works() {
    let shell = Shell::new();
    let examples = examples(README);
    assert!(examples.len() > 40, "the README was read: {}", examples.len());
    let mut left_out = 0;
    let mut cluster = None;
    let mut changing = None;
    for example in &examples {
        let text = &example.command;
        if BUILDS.iter().any(|build| text.starts_with(build)) {
            continue;
        }
        if text.starts_with("curl") && !shell.has_curl {
            left_out += 1;
            continue;
        }
        if text.starts_with("overtake dev --nodes") {
            cluster = Some(shell.cluster(text));
            continue;
        }
        if let (true, Some((nodes, addresses))) =
            (text.starts_with("overtake cluster status"), cluster.take())
        {
            let here = addresses.iter().fold(text.clone(), |here, (there, now)| here.replace(there, now));
            let status = shell.done(&here).stdout;
            assert_eq!(status.matches("alive").count(), 3, "{status}");
            assert_eq!(nodes.interrupt().code, Some(0));
            continue;
        }
        if Changing::takes(&mut changing, &shell, text) {
            continue;
        }
        let here = shell.here(example);
        println!("README:{} {here}", example.line);
        match text {
            _ if text.starts_with("overtake dev") => shell.serves(&here, "dev"),
            _ if text.starts_with("overtake serve --node-id") => shell.node(text),
            _ if text.starts_with("overtake serve") => shell.serves(&here, "serve"),
            _ if text.starts_with("overtake receive work --follow") => {
                let ended = shell.goes_on(&here, || acked(&shell.queue("work")) == 1);
                assert!(ended.stdout.contains("print me"), "{ended:?}");
            }
            _ if text.contains("--example worker") => {
                let before = acked(&shell.queue("jobs"));
                shell.goes_on(&here, || acked(&shell.queue("jobs")) > before + 100);
            }
            // Nothing has died so far, which is no mistake.
            _ if text.starts_with("overtake dlq redrive") => {
                let ended = run(shell.command(&here), b"");
                assert_eq!(ended.code, Some(3), "{here}: {ended:?}");
            }
            _ if text.contains("hist merge") => {
                several_loads(&shell);
                shell.done(&here);
                assert!(Path::new(&shell.path("all.hlog")).is_file());
            }
            _ if text.contains("hist plot") => {
                shell.done(&here);
                let plot = std::fs::read(shell.path("load.png")).unwrap_or_default();
                assert!(plot.starts_with(b"\x89PNG"));
            }
            _ if text.contains("hist compare") => {
                std::fs::copy(shell.path("load.hlog"), shell.path("before.hlog")).expect("a log");
                shell.done(&here);
            }
            // What a debug build holds on a machine that runs other tests is not for the README to promise.
            _ if text.starts_with("overtake-perf plan") => {
                let ended = run(shell.command(&here), b"");
                assert!(matches!(ended.code, Some(0 | 1)), "{here}: {ended:?}");
                assert!(ended.stdout.contains("head-room at p99"), "{ended:?}");
            }
            _ if text.starts_with("overtake-perf load") => {
                let ended = shell.done(&here);
                assert!(ended.stdout.contains("violations: 0"), "{ended:?}");
            }
            _ => {
                let ended = shell.done(&here);
                let settles = text.contains("RECEIPT") && text.starts_with("curl");
                assert!(!settles || ended.stdout.contains(r#":"ok""#), "{here}: {ended:?}");
            }
        }
    }
    let note = format!("\nnote: {left_out} commands of the README are LEFT OUT: there is no curl\n");
    if left_out > 0 {
        // Past the test harness, which shows what a passing test prints to nobody.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), note.as_bytes());
    }
}

/// Several processes that load one server, each with a log of its own.
fn several_loads(shell: &Shell) {
    let load = |arguments: &str| {
        let text = format!("exec overtake-perf load --queue shared --rate 100 --duration 1s {arguments}");
        let mut command = shell.command(&text);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        command.spawn().expect("bash starts")
    };
    shell.server.create("shared", json!({}));
    let running = [
        load("--produce --hlog producer-1.hlog"),
        load("--produce --hlog producer-2.hlog"),
        load("--consume --hlog consumers.hlog"),
    ];
    for mut child in running {
        let status = child.wait().expect("a child");
        assert!(status.success(), "{status}");
    }
}
