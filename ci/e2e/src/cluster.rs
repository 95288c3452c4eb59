//! Several server processes of one test that are one cluster: certificates made by the command itself, free loopback
//! ports, a folder for each node; killed on drop. Where the test fails, what each said last is printed.

use crate::client::Client;
use crate::queue::Queue;
use crate::scratch::Scratch;
use crate::server::{Ended, free_address, run, wait_for};
use crate::time::sleep_ms;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A node is given this long to become ready.
const READY_LIMIT: Duration = Duration::from_secs(60);
const TAIL_BYTES: usize = 6 * 1024;
/// Ports of a node that has an address of its own: QUIC, HTTP, other nodes.
const OWN_PORTS: [u16; 3] = [7_400, 7_401, 7_402];

/// Where a node runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its address. On loopback free ports are looked for; any other is the node's alone.
    pub address: IpAddr,
    /// Words of a command that starts it, such as `ip netns exec NAME`.
    pub started_by: Vec<String>,
    /// What its environment has more.
    pub environment: Vec<(String, String)>,
    /// Its data folder; in the cluster's own folder where absent.
    pub data: Option<PathBuf>,
}

impl Default for Place {
    /// This machine, without anything special.
    fn default() -> Self {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self { address, started_by: Vec::new(), environment: Vec::new(), data: None }
    }
}

/// One node.
#[derive(Debug)]
struct Node {
    id: u64,
    place: Place,
    http: SocketAddr,
    quic: SocketAddr,
    peers: SocketAddr,
    /// The server of the cluster that it joined.
    joined: Option<SocketAddr>,
    child: Option<Child>,
}

/// A running cluster. Nodes count from 0 here; their ids from 1.
#[derive(Debug)]
pub struct Cluster {
    scratch: Scratch,
    nodes: Vec<Node>,
    shards: u16,
    cores: u16,
}

impl Cluster {
    /// Starts so many nodes of one core each and waits until all are ready.
    #[track_caller]
    pub fn start(nodes: u64) -> Self {
        let mut cluster = Self::prepare(nodes, 6, 1);
        for node in 0..cluster.nodes.len() {
            cluster.launch(node);
        }
        cluster.wait_until_all_are_ready();
        cluster
    }

    /// A cluster that was not started yet; its certificates are made.
    #[track_caller]
    pub fn prepare(nodes: u64, shards: u16, cores: u16) -> Self {
        Self::prepare_at((0..nodes).map(|_| Place::default()).collect(), shards, cores)
    }

    /// The same with each node in a place of its own.
    #[track_caller]
    pub fn prepare_at(places: Vec<Place>, shards: u16, cores: u16) -> Self {
        let nodes = (1..).zip(places).map(|(id, place)| Node::new(id, place, cores, None)).collect();
        let cluster = Self { nodes, scratch: Scratch::new(), shards, cores };
        cluster.certificates(&["init"]);
        for node in &cluster.nodes {
            let (id, address) = (node.id.to_string(), node.place.address.to_string());
            cluster.certificates(&["node", &id, "--host", &address]);
        }
        cluster
    }

    /// Starts one more node, which joins the cluster by way of a node of it; gives its place.
    #[track_caller]
    pub fn join(&mut self, through: usize) -> usize {
        let (place, id) = (self.nodes.len(), self.nodes.len() as u64 + 1);
        self.certificates(&["node", &id.to_string()]);
        let joined = Some(self.nodes[through].quic);
        self.nodes.push(Node::new(id, Place::default(), self.cores, joined));
        self.launch(place);
        self.wait_until_ready(place);
        place
    }

    /// Waits for a process that ends by itself.
    #[track_caller]
    pub fn wait_until_ended(&mut self, node: usize) -> ExitStatus {
        let child = self.nodes[node].child.take().expect("a running node");
        wait_for(child).expect("it ends by itself")
    }

    #[track_caller]
    fn certificates(&self, arguments: &[&str]) {
        let mut command = crate::binary::command();
        command.arg("cert").args(arguments).arg("--cert-dir").arg(self.cert_dir());
        let ended = run(command, b"");
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// The folder of its certificates.
    pub fn cert_dir(&self) -> PathBuf {
        self.scratch.path().join("certs")
    }

    /// A node's data folder.
    pub fn data(&self, node: usize) -> PathBuf {
        let Node { id, place, .. } = &self.nodes[node];
        place.data.clone().unwrap_or_else(|| self.scratch.path().join(format!("node-{id}")))
    }

    /// The command that runs a node.
    pub fn command(&self, node: usize) -> Command {
        let own = &self.nodes[node];
        let mut command = crate::binary::command_by(&own.place.started_by);
        command.envs(own.place.environment.iter().map(|(name, value)| (name, value)));
        command.arg("serve").arg("--data").arg(self.data(node)).arg("--cert-dir").arg(self.cert_dir());
        command.args(["--cores", &self.cores.to_string()]);
        command.args(["--http", &own.http.to_string(), "--quic", &own.quic.to_string()]);
        command.args(["--node-id", &own.id.to_string(), "--peer-listen", &own.peers.to_string()]);
        if let Some(server) = own.joined {
            command.args(["--join", &server.to_string()]);
            command.env("OVERTAKE_LOG", "info").stdin(Stdio::null());
            return command;
        }
        command.args(["--shards", &self.shards.to_string()]);
        for other in self.nodes.iter().filter(|other| other.id != own.id && other.joined.is_none()) {
            command.args([
                "--peer",
                &format!("{}@{}/local,{},{}", other.id, other.peers, self.cores, other.http),
            ]);
        }
        command.env("OVERTAKE_LOG", "info").stdin(Stdio::null());
        command
    }

    /// Starts a node; it is ready when it is.
    #[track_caller]
    pub fn launch(&mut self, node: usize) {
        let command = self.command(node);
        self.launch_as(node, command);
    }

    /// Starts a node by another command.
    #[track_caller]
    pub fn launch_as(&mut self, node: usize, mut command: Command) {
        assert!(self.nodes[node].child.is_none(), "node {node} still runs");
        let log = OpenOptions::new().create(true).append(true).open(self.log_path(node)).expect("a log file");
        command.stdout(log.try_clone().expect("a second handle")).stderr(log);
        self.nodes[node].child = Some(command.spawn().expect("the binary can be started"));
    }

    /// Waits until every running node is ready.
    #[track_caller]
    pub fn wait_until_all_are_ready(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].child.is_some() {
                self.wait_until_ready(node);
            }
        }
    }

    /// Waits until a node is ready.
    #[track_caller]
    pub fn wait_until_ready(&mut self, node: usize) {
        let start = Instant::now();
        while self.ready_status(node) != Some(200) {
            let child = self.nodes[node].child.as_mut().expect("a running node");
            if let Some(status) = child.try_wait().expect("a child") {
                panic!("node {node} ended before it was ready, {status}");
            }
            assert!(start.elapsed() < READY_LIMIT, "node {node} is not ready within {READY_LIMIT:?}");
            sleep_ms(20);
        }
    }

    /// What `/readyz` of a node answers.
    pub fn ready_status(&self, node: usize) -> Option<u16> {
        self.client(node).try_call("GET", "/readyz", &[], None).ok().map(|reply| reply.status)
    }

    /// A client of one node.
    pub fn client(&self, node: usize) -> Client {
        Client::new(self.nodes[node].http)
    }

    /// A queue as one node serves it.
    pub fn queue(&self, node: usize, name: &str) -> Queue {
        Queue::new(self.client(node), name)
    }

    /// Creates a queue.
    #[track_caller]
    pub fn create(&self, name: &str, config: Value) {
        let queue = self.queue(0, name);
        queue.client().json("PUT", &queue.path(""), &config).expect_status(201);
    }

    /// The QUIC addresses of all nodes.
    pub fn servers(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.quic).collect()
    }

    /// A node's process.
    #[track_caller]
    pub fn pid(&self, node: usize) -> u32 {
        self.nodes[node].child.as_ref().expect("a running node").id()
    }

    /// How many shards each node leads, as one node sees it.
    #[track_caller]
    pub fn leads(&self, seen_by: usize) -> Vec<usize> {
        let cluster = self.client(seen_by).get("/v1/cluster");
        let shards = cluster["shards"].as_array().expect("a list").clone();
        let of = |id: u64| shards.iter().filter(|shard| shard["leader"] == id).count();
        self.nodes.iter().map(|node| of(node.id)).collect()
    }

    /// The shards that a node leads, as another one sees it.
    #[track_caller]
    pub fn led_by(&self, node: usize, seen_by: usize) -> BTreeSet<u16> {
        let cluster = self.client(seen_by).get("/v1/cluster");
        let shards = cluster["shards"].as_array().expect("a list").clone();
        let led = shards.iter().filter(|shard| shard["leader"] == self.nodes[node].id);
        led.map(|shard| shard["shard"].as_u64().and_then(|shard| shard.try_into().ok()).expect("a shard"))
            .collect()
    }

    /// SIGKILL; waits for the end.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].child.take() {
            // One that has already ended cannot be killed; it is reaped all the same.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM; waits for the end.
    #[track_caller]
    pub fn terminate(&mut self, node: usize) -> ExitStatus {
        let child = self.nodes[node].child.take().expect("a running node");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("the signal is sent");
        wait_for(child).expect("it ends after SIGTERM")
    }

    /// SIGSTOP, then SIGCONT after so long.
    #[track_caller]
    pub fn freeze(&mut self, node: usize, ms: u64) {
        self.pause(node);
        sleep_ms(ms);
        self.resume(node);
    }

    /// SIGSTOP.
    #[track_caller]
    pub fn pause(&self, node: usize) {
        self.signal(node, Signal::STOP);
    }

    /// SIGCONT.
    #[track_caller]
    pub fn resume(&self, node: usize) {
        self.signal(node, Signal::CONT);
    }

    #[track_caller]
    fn signal(&self, node: usize, signal: Signal) {
        let pid = Pid::from_child(self.nodes[node].child.as_ref().expect("a running node"));
        kill_process(pid, signal).expect("the signal is sent");
    }

    /// Runs the command line against all nodes.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> Ended {
        let servers: Vec<String> = self.servers().iter().map(ToString::to_string).collect();
        let mut command = crate::binary::command();
        command.args(arguments).args(["--connect", &servers.join(",")]);
        run(command, b"")
    }

    /// Runs the command line, which needs no node for this.
    #[track_caller]
    pub fn cli_alone(&self, arguments: &[&str]) -> Ended {
        let mut command = crate::binary::command();
        command.args(arguments);
        run(command, b"")
    }

    /// All that a node has said.
    pub fn log(&self, node: usize) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path(node)).unwrap_or_default()).into_owned()
    }

    fn log_path(&self, node: usize) -> PathBuf {
        self.scratch.path().join(format!("node-{}.log", self.nodes[node].id))
    }

    /// A folder for what else a test needs.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill(node);
            if std::thread::panicking() {
                let log = self.log(node);
                let mut from = log.len().saturating_sub(TAIL_BYTES);
                while !log.is_char_boundary(from) {
                    from += 1;
                }
                eprintln!("--- the last words of node {node} ---\n{}\n---", &log[from..]);
            }
        }
    }
}

impl Node {
    fn new(id: u64, place: Place, cores: u16, joined: Option<SocketAddr>) -> Self {
        let [quic, http, peers] = if place.address.is_loopback() {
            [free_address(), free_address(), free_peers(cores)]
        } else {
            OWN_PORTS.map(|port| SocketAddr::new(place.address, port))
        };
        Self { id, place, http, quic, peers, joined, child: None }
    }
}

/// A loopback address with a free port for each core.
fn free_peers(cores: u16) -> SocketAddr {
    loop {
        let first = free_address();
        let free = |by| std::net::UdpSocket::bind(SocketAddr::new(first.ip(), first.port() + by)).is_ok();
        if (0..cores).all(free) {
            return first;
        }
    }
}
