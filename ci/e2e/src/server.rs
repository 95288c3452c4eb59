//! One server process of a test: started on free loopback ports with a folder of its own, killed on drop. Where the
//! test fails, what the server said last is printed.

use crate::client::Client;
use crate::queue::Queue;
use crate::scratch::Scratch;
use crate::time::sleep_ms;
use overtake_base::random::Random;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// A server is given this long to become ready, or to end.
const LIFE_LIMIT: Duration = Duration::from_secs(60);
const TAIL_BYTES: usize = 8 * 1024;

/// How a server is started. The default is light: one core, four shards, no auto-create.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--cores`.
    pub cores: u16,
    /// `--shards`; the server's own choice where absent.
    pub shards: Option<u16>,
    /// `--auto-create`.
    pub auto_create: bool,
    /// Text of a configuration file, given with `--config`.
    pub config: Option<&'static str>,
    /// `overtake dev` instead of `overtake serve`.
    pub dev: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { cores: 1, shards: Some(4), auto_create: false, config: None, dev: false }
    }
}

impl Options {
    /// The command that serves `data` on these addresses.
    pub fn command(&self, data: &Path, http: SocketAddr, quic: SocketAddr) -> Command {
        let mut command = crate::binary::command();
        command.arg(if self.dev { "dev" } else { "serve" }).arg("--data").arg(data);
        command.args(["--http", &http.to_string(), "--quic", &quic.to_string()]);
        command.args(["--cores", &self.cores.to_string()]);
        if let Some(shards) = self.shards {
            command.args(["--shards", &shards.to_string()]);
        }
        if self.auto_create {
            command.arg("--auto-create");
        }
        if let Some(config) = self.config {
            let path = data.with_extension("toml");
            std::fs::write(&path, config).expect("a configuration file");
            command.arg("--config").arg(path);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Starts a server with these options and waits until it is ready.
    #[track_caller]
    pub fn start(self) -> Server {
        let scratch = Scratch::new();
        let data = scratch.path().join("data");
        self.start_with(scratch, data)
    }

    /// The same, with its data in this folder.
    #[track_caller]
    pub fn start_on(self, data: &Path) -> Server {
        self.start_with(Scratch::new(), data.into())
    }

    #[track_caller]
    fn start_with(self, scratch: Scratch, data: PathBuf) -> Server {
        let (http, quic) = (free_address(), free_address());
        let mut server = Server { options: self, scratch, data, http, quic, child: None };
        server.start_again();
        server
    }
}

/// A running (or ended) server.
#[derive(Debug)]
pub struct Server {
    options: Options,
    scratch: Scratch,
    data: PathBuf,
    http: SocketAddr,
    quic: SocketAddr,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with the default options and waits until it is ready.
    #[track_caller]
    pub fn start() -> Self {
        Options::default().start()
    }

    /// Its HTTP address.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Its QUIC address.
    pub fn quic(&self) -> SocketAddr {
        self.quic
    }

    /// Its process.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running server").id()
    }

    /// Its data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Memory that the running process has now, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let process = self.child.as_ref().expect("a running server").id();
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("Linux");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        let kib = resident.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number");
        kib * 1024
    }

    /// A new client of it, with connections of its own.
    pub fn client(&self) -> Client {
        Client::new(self.http)
    }

    /// A queue of it, created with this configuration.
    #[track_caller]
    pub fn create(&self, name: &str, config: Value) -> Queue {
        let queue = self.queue(name);
        queue.client().json("PUT", &queue.path(""), &config).expect_status(201);
        queue
    }

    /// A queue of it, which may not exist.
    pub fn queue(&self, name: &str) -> Queue {
        Queue::new(self.client(), name)
    }

    /// Starts the process on the same folder and addresses and waits until it is ready.
    #[track_caller]
    pub fn start_again(&mut self) {
        if let Err(status) = self.try_start() {
            panic!("the server ended before it was ready, {status}: {}", self.log_tail());
        }
    }

    /// Starts the process as other options say; gives how it ended if it ended before it was ready.
    #[track_caller]
    pub fn try_start_with(&mut self, options: Options) -> Result<(), ExitStatus> {
        self.options = options;
        self.try_start()
    }

    #[track_caller]
    fn try_start(&mut self) -> Result<(), ExitStatus> {
        assert!(self.child.is_none(), "the server still runs");
        let log = OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a log file");
        let mut command = self.options.command(&self.data, self.http, self.quic);
        command.stdout(log.try_clone().expect("a second handle")).stderr(log);
        let child = self.child.insert(command.spawn().expect("the binary can be started"));
        let (client, start) = (Client::new(self.http), Instant::now());
        loop {
            if client.try_call("GET", "/readyz", &[], None).is_ok_and(|reply| reply.status == 200) {
                return Ok(());
            }
            if let Some(status) = child.try_wait().expect("a child") {
                self.child = None;
                return Err(status);
            }
            assert!(start.elapsed() < LIFE_LIMIT, "not ready within {LIFE_LIMIT:?}");
            sleep_ms(10);
        }
    }

    /// SIGTERM; waits for the end.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        let child = self.child.take().expect("a running server");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("the signal is sent");
        wait_for(child).unwrap_or_else(|| panic!("still running {LIFE_LIMIT:?} after SIGTERM"))
    }

    /// SIGKILL; waits for the end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A process that has already ended cannot be killed; it is reaped all the same.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, which must end the process with code 0, and a new start on the same folder.
    #[track_caller]
    pub fn restart(&mut self) {
        let status = self.terminate();
        assert!(status.success(), "after SIGTERM: {status}");
        self.start_again();
    }

    /// Starts the process on the same folder where that must fail, and gives what it said.
    #[track_caller]
    pub fn start_refused(&self) -> String {
        assert!(self.child.is_none(), "the server still runs");
        refused(self.options.command(&self.data, self.http, self.quic))
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("server.log")
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(TAIL_BYTES)..]).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- the server's last words ---\n{}\n---", self.log_tail());
        }
    }
}

/// Code of a server that could not start.
pub const EXIT_SERVER: i32 = 8;

/// Runs a server that must refuse to start, with one clear line on stderr; gives that line.
#[track_caller]
pub fn refused(command: Command) -> String {
    let ended = run(command, b"");
    assert_eq!(ended.code, Some(EXIT_SERVER), "{ended:?}");
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(lines.len(), 1, "one line on stderr: {ended:?}");
    lines[0].to_owned()
}

/// What a command that ended by itself left.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit code; None where a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// Runs a command with this standard input until it ends by itself, which it must without a panic.
#[track_caller]
pub fn run(mut command: Command, stdin: &[u8]) -> Ended {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary can be started");
    let mut input = child.stdin.take().expect("piped");
    // A command that does not read its input may be gone before it is written.
    let _ = input.write_all(stdin);
    drop(input);
    let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let stdout = std::thread::spawn(move || std::io::read_to_string(stdout).unwrap_or_default());
    let stderr = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
    let status = wait_for(child);
    let (stdout, stderr) = (stdout.join().expect("a reader"), stderr.join().expect("a reader"));
    let Some(status) = status else { panic!("{command:?} does not end: {stdout}{stderr}") };
    assert!(!stderr.contains("panicked at"), "{command:?} panicked: {stderr}");
    Ended { code: status.code(), stdout, stderr }
}

/// Waits for a child's end; kills one that goes on for too long.
pub(crate) fn wait_for(mut child: Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < LIFE_LIMIT {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        sleep_ms(5);
    }
    child.kill().expect("the child can be killed");
    child.wait().expect("the child ends");
    None
}

/// SIGKILL to a process that a test's own process has started.
pub fn kill_at_once(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended already.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// A loopback address whose port nobody listens on, neither for TCP nor for UDP. Below the range from which the system
/// takes ports for outgoing connections, so that no client gets it in between.
pub fn free_address() -> SocketAddr {
    static PORTS: OnceLock<Mutex<Random>> = OnceLock::new();
    let seed = u64::from(std::process::id()) ^ crate::time::now_ms() << 20;
    let ports = PORTS.get_or_init(|| Mutex::new(Random::new(seed, "ports")));
    let mut ports = ports.lock().expect("drawing a port does not panic");
    loop {
        let port = 10_240 + u16::try_from(ports.below(20_000)).expect("below 20,000");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}
