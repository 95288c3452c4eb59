//! `dev --nodes N`: a cluster on this machine, each node a process of its own, started as anybody would start it. The
//! parent shows what they say, tells of those that ended, and ends all; it restarts none, so that what a lost node does to
//! the others can be seen.

use super::server::{next_steps, own_name};
use super::{runtime, stop::Stop};
use crate::certificates::{Files, issue_node, make_authority};
use crate::cli::Format;
use crate::cli::server::DevArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::render::style::Style;
use crate::screen::Screen;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use overtake_base::NodeId;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Folder of a cluster that names none.
const DATA: &str = "./overtake-cluster";
/// Ports from one node to the next.
const PORT_STEP: u16 = 10;
/// Cores of a node, at most: its ports for the other nodes lie between its own and the next one's.
const CORES_MAX: u16 = 8;
/// Days that its certificates are good.
const DAYS: u32 = 3_650;
/// How a node says that it serves.
const SERVES: &str = "overtake serves ";

/// One node of the cluster to be.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Planned {
    id: u64,
    http: SocketAddr,
    quic: SocketAddr,
    peers: SocketAddr,
    arguments: Vec<String>,
}

/// Runs the cluster until it is told to stop.
pub fn run(args: &DevArgs) -> Outcome {
    let screen = Screen::new(Format::Table);
    let data = args.node.data.clone().unwrap_or_else(|| DATA.into());
    let planned = plan(args, &data)?;
    let certificates = certificates_of(&data);
    make_certificates(&certificates, &planned)
        .map_err(|error| Failure::new(Exit::Server, error.to_string()))?;
    runtime()?.block_on(watch(&screen, &data, &planned))
}

fn certificates_of(data: &Path) -> PathBuf {
    data.join("certs")
}

fn make_certificates(
    folder: &Path,
    planned: &[Planned],
) -> Result<(), crate::certificates::CertificateError> {
    if !Files::authority(folder).certificate.exists() {
        make_authority(folder, DAYS)?;
    }
    for Planned { id, .. } in planned {
        if !Files::node(folder, NodeId(*id)).certificate.exists() {
            issue_node(folder, NodeId(*id), &[], DAYS)?;
        }
    }
    Ok(())
}

/// Who listens where, and the arguments that say so.
fn plan(args: &DevArgs, data: &Path) -> Result<Vec<Planned>, Failure> {
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (http, quic) = (args.node.http.unwrap_or(local(7401)), args.node.quic.unwrap_or(local(7400)));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = args.node.cores.unwrap_or_else(|| {
        u16::try_from(cpus / usize::from(args.nodes)).unwrap_or(CORES_MAX).clamp(1, CORES_MAX)
    });
    if cores > CORES_MAX {
        return Err(Failure::usage(format!(
            "--cores: with --nodes at most {CORES_MAX}, each has a port of its own"
        )));
    }
    let shifted = |base: SocketAddr, by: u16| {
        let port = base.port().checked_add(by).filter(|_| base.port() > 0);
        port.map(|port| SocketAddr::new(base.ip(), port)).ok_or_else(|| {
            Failure::usage(format!("{base}: no port is left for every node; name a lower one"))
        })
    };
    let mut planned = Vec::new();
    for number in 0..args.nodes {
        let by = number * PORT_STEP;
        let (http, quic) = (shifted(http, by)?, shifted(quic, by)?);
        let peers = shifted(SocketAddr::new(quic.ip(), quic.port().max(http.port())), 1)?;
        planned.push(Planned { id: u64::from(number) + 1, http, quic, peers, arguments: Vec::new() });
    }
    let all = planned.clone();
    for node in &mut planned {
        let folder = data.join(format!("node-{}", node.id));
        let mut say = |name: &str, value: &dyn std::fmt::Display| {
            node.arguments.extend([format!("--{name}"), value.to_string()]);
        };
        say("data", &folder.display());
        say("http", &node.http);
        say("quic", &node.quic);
        say("cores", &cores);
        if let Some(shards) = args.node.shards {
            say("shards", &shards);
        }
        say("node-id", &node.id);
        say("zone", &zone(node.id));
        say("peer-listen", &node.peers);
        say("cert-dir", &certificates_of(data).display());
        for other in all.iter().filter(|other| other.id != node.id) {
            let Planned { id, http, peers, .. } = other;
            say("peer", &format!("{id}@{peers}/{},{cores},{http}", zone(*id)));
        }
        node.arguments.insert(0, "serve".into());
        node.arguments.push("--auto-create".into());
    }
    Ok(planned)
}

fn zone(id: u64) -> String {
    format!("zone-{id}")
}

/// What a node's process did.
enum Happened {
    Said(u64, String),
    Ended(u64, ExitStatus),
}

async fn watch(screen: &Screen, data: &Path, planned: &[Planned]) -> Outcome {
    let stop = Stop::listen()?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Server, format!("cannot find this program: {error}")))?;
    let (sender, mut happened) = unbounded_channel();
    let mut running: Vec<(u64, i32)> = Vec::new();
    for node in planned {
        match start(&program, node, &sender) {
            Ok(process) => running.push((node.id, process)),
            Err(error) => {
                signal_all(&running, Signal::SIGTERM);
                return Err(Failure::new(Exit::Server, format!("cannot start node {}: {error}", node.id)));
            }
        }
    }
    drop(sender);
    let style = screen.view().style;
    let (mut serving, mut asked, mut failed) = (0, 0, false);
    loop {
        let happened = tokio::select! {
            happened = happened.recv() => happened,
            () = stop.asked(), if asked == 0 => {
                asked = 1;
                signal_all(&running, Signal::SIGTERM);
                continue;
            }
            () = stop.insisted(), if asked == 1 => {
                asked = 2;
                signal_all(&running, Signal::SIGKILL);
                continue;
            }
        };
        match happened {
            // Every process has ended.
            None => break,
            Some(Happened::Said(id, line)) => {
                let serves = line.starts_with(SERVES);
                // Once all serve the banner says more.
                if !serves || serving >= planned.len() {
                    screen.note(&format!("{} {line}", style.dim(&format!("node {id} |"))));
                }
                serving += usize::from(serves);
                if serves && serving == planned.len() {
                    // Nobody needs to read it: the cluster goes on all the same.
                    let _ = screen.print(&welcome(data, planned, &own_name(), style));
                }
            }
            Some(Happened::Ended(id, status)) => {
                running.retain(|(running, _)| *running != id);
                let node = planned.iter().find(|node| node.id == id);
                if let Some(node) = node.filter(|_| asked == 0) {
                    screen.note(&obituary(node, status, running.len(), &own_name()));
                    if serving < planned.len() {
                        // A cluster that never was: one that lacks a node from the start is a mistake to be mended.
                        failed = true;
                        asked = 1;
                        signal_all(&running, Signal::SIGTERM);
                    }
                }
            }
        }
    }
    if asked > 0 && !failed { Ok(Exit::Ok) } else { Err(Failure::silent(Exit::Server)) }
}

/// Starts a node in a process group of its own: Ctrl-C on the terminal reaches the parent, which ends the nodes in order.
fn start(program: &Path, node: &Planned, sender: &UnboundedSender<Happened>) -> std::io::Result<i32> {
    let mut command = Command::new(program);
    command.args(&node.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("OVERTAKE_CONFIG").process_group(0);
    let mut child = command.spawn()?;
    let process = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
    tokio::spawn(follow(node.id, child.stdout.take(), child.stderr.take(), child, sender.clone()));
    Ok(process)
}

async fn follow(
    id: u64,
    stdout: Option<impl AsyncRead + Unpin>,
    stderr: Option<impl AsyncRead + Unpin>,
    mut child: Child,
    sender: UnboundedSender<Happened>,
) {
    tokio::join!(pass_on(id, stdout, &sender), pass_on(id, stderr, &sender));
    if let Ok(status) = child.wait().await {
        // The receiver is gone only where the parent ends.
        let _ = sender.send(Happened::Ended(id, status));
    }
}

async fn pass_on(id: u64, pipe: Option<impl AsyncRead + Unpin>, sender: &UnboundedSender<Happened>) {
    let Some(pipe) = pipe else { return };
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let _ = sender.send(Happened::Said(id, line));
    }
}

fn signal_all(running: &[(u64, i32)], signal: Signal) {
    for (_, process) in running.iter().filter(|(_, process)| *process > 0) {
        // It may have ended in between; it is waited for, so its number is still its own.
        let _ = kill(Pid::from_raw(*process), signal);
    }
}

/// What to say of a node that ended by itself.
fn obituary(node: &Planned, status: ExitStatus, left: usize, own: &str) -> String {
    let command: Vec<String> = node.arguments.iter().map(|argument| quoted(argument)).collect();
    format!(
        "overtake: node {} ended ({status}); {left} still run. Start it again with:\n  {} {}",
        node.id,
        quoted(own),
        command.join(" ")
    )
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-:,@+=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The screen once all nodes serve.
fn welcome(data: &Path, planned: &[Planned], own: &str, style: Style) -> String {
    let mut out = format!("{}   data {}\n\n", style.bold("The cluster is running."), data.display());
    for Planned { id, http, quic, .. } in planned {
        out.push_str(&format!("  node {id}   HTTP {http}   QUIC {quic}\n"));
    }
    let servers: Vec<String> = planned.iter().map(|node| node.quic.to_string()).collect();
    let connect = format!(" --connect {}", servers.join(","));
    let first = planned.first().map_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 7401)), |node| node.http);
    out.push_str(&format!(
        "\nEvery node serves every queue.\n\n{}  {own} cluster status{connect}\n\n{}\n",
        next_steps(first, &connect, own, style),
        style.dim(
            "Ctrl-C stops all nodes; the data stays. A node that ends by itself is told, not restarted."
        )
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser as _;
    use std::os::unix::process::ExitStatusExt as _;

    fn planned(line: &str) -> Result<Vec<Planned>, Failure> {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let crate::cli::Command::Dev(args) = cli.command else { panic!("another command") };
        plan(&args, Path::new("data"))
    }

    #[test]
    fn nodes_are_told_of_each_other_as_serve_takes_it() {
        let nodes = planned("overtake dev --nodes 3 --cores 2").unwrap();
        let http: Vec<u16> = nodes.iter().map(|node| node.http.port()).collect();
        assert_eq!(http, [7401, 7411, 7421]);
        assert_eq!(nodes[2].peers.port(), 7422);
        for node in &nodes {
            let words = std::iter::once("overtake".to_owned()).chain(node.arguments.iter().cloned());
            let cli = Cli::try_parse_from(words).unwrap();
            let crate::cli::Command::Serve(serve) = cli.command else { panic!("another command") };
            let node =
                crate::config::Node::resolve(serve.node, serve.member, serve.auto_create, Default::default());
            let node = node.unwrap();
            assert!(node.auto_create && node.cores == Some(2));
            assert_eq!(node.member.unwrap().peers.len(), 2);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(planned("overtake dev --nodes 3 --cores 9").is_err());
        assert!(planned("overtake dev --nodes 3 --http 127.0.0.1:65530").is_err());
        assert!(planned("overtake dev --nodes 3 --quic 127.0.0.1:0").is_err());
    }

    #[test]
    fn a_node_that_ended_is_told_with_the_command_that_starts_it() {
        let nodes = planned("overtake dev --nodes 3 --cores 1").unwrap();
        let told = obituary(&nodes[1], ExitStatus::from_raw(9), 2, "./over take");
        assert!(told.contains("node 2 ended (signal: 9"), "{told}");
        assert!(told.contains("\n  './over take' serve --data data/node-2 --http 127.0.0.1:7411"), "{told}");
        assert!(told.contains("--peer 1@127.0.0.1:7402/zone-1,1,127.0.0.1:7401"), "{told}");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn the_welcome_names_all_servers() {
        let nodes = planned("overtake dev --nodes 3").unwrap();
        let shown = welcome(Path::new("data"), &nodes, "overtake", Style::plain());
        for text in
            ["node 3   HTTP 127.0.0.1:7421", "-p 1 --connect 127.0.0.1:7400,127.0.0.1:7410,127.0.0.1:7420\n"]
        {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }
}
