//! Commands that run a server here: `serve`, `dev`, `gateway`; and `config`.

use super::{dev, remote, runtime, stop::Stop};
use crate::cli::Format;
use crate::cli::server::{ConfigCommand, DevArgs, GatewayArgs, MemberArgs, NodeArgs, ServeArgs};
use crate::config::{self, Member, Node, ZONE};
use crate::exit::{Exit, Failure, Outcome};
use crate::render::style::Style;
use crate::screen::Screen;
use crate::serve::{self, Addresses, ClusterOptions, NodeEvent, PeerOptions, ServeOptions};
use overtake_base::NodeId;
use overtake_config::{ConfigFile, EXAMPLE, Peer, Right, Tenant, Token};
use overtake_core::{Rights, TenantConfig, TokenConfig};
use overtake_gateway::{GatewayError, GatewayOptions};
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::Path;
use tracing_subscriber::EnvFilter;

/// Runs a node with what flags and file say.
pub fn serve(args: ServeArgs) -> Outcome {
    let file = match &args.config {
        Some(path) => config::read(path)?,
        None => ConfigFile::default(),
    };
    let node = Node::resolve(args.node, args.member, args.auto_create, file)?;
    run(node, |screen, node, addresses| {
        let member =
            node.member.as_ref().map_or_else(String::new, |member| format!(" as node {}", member.node_id));
        screen.note(&format!(
            "overtake serves {}{member} on http {} and quic {}",
            node.data.display(),
            addresses.http,
            addresses.quic
        ));
    })
}

/// Runs a node for development and says what to type next.
pub fn dev(args: DevArgs) -> Outcome {
    if args.nodes > 1 {
        return dev::run(&args);
    }
    let node = Node::resolve(args.node, MemberArgs::default(), true, ConfigFile::default())?;
    run(node, |screen, node, addresses| {
        // Nobody needs to read it: the server goes on all the same.
        let _ = screen.print(&welcome(&node.data, addresses, &own_name(), screen.view().style));
    })
}

fn run(node: Node, ready: impl Fn(&Screen, &Node, &Addresses)) -> Outcome {
    log_to_stderr();
    let screen = Screen::new(Format::Table);
    let options = serve_options(&node);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(cores) = node.cores.map(usize::from).filter(|cores| *cores > cpus) {
        screen.note(&format!(
            "overtake: {cores} cores on {cpus} CPUs: each takes about 128 MiB of disk from the start, and they slow \
             each other down"
        ));
    }
    let ended = serve::run(&options, |event| match event {
        NodeEvent::Ready(addresses) => ready(&screen, &node, addresses),
        NodeEvent::Waiting(away) => screen.note(&waiting(away)),
    });
    match ended {
        Ok(()) => Ok(Exit::Ok),
        Err(error) => {
            Err(Failure::new(Exit::Server, explain(&error.to_string(), "--http, --quic or --peer-listen")))
        }
    }
}

/// Why a node of a cluster does not serve yet.
fn waiting(away: &[NodeId]) -> String {
    if away.is_empty() {
        return "overtake: waiting for the other nodes: linked with all of them, no leaders yet".to_owned();
    }
    let away: Vec<String> = away.iter().map(|node| format!("node {node}")).collect();
    format!("overtake: waiting for a majority of the nodes: no link with {}", away.join(", "))
}

/// The error, and what to do about it.
fn explain(error: &str, flags: &str) -> String {
    if error.starts_with("address in use") {
        format!("{error}; stop that one, or choose another address with {flags}")
    } else {
        error.to_owned()
    }
}

fn serve_options(node: &Node) -> ServeOptions {
    ServeOptions {
        data: node.data.clone(),
        http: node.http,
        quic: node.quic,
        cores: node.cores,
        shards: node.shards,
        auto_create: node.auto_create,
        zone: node.zone.clone(),
        cluster: node.member.as_ref().map(cluster),
        tokens: node.tokens.iter().map(token).collect(),
        tenants: node.tenants.iter().map(tenant).collect(),
    }
}

fn cluster(member: &Member) -> ClusterOptions {
    let peer = |peer: &Peer| PeerOptions {
        node: NodeId(peer.id),
        address: peer.address.clone(),
        zone: peer.zone.clone().unwrap_or_else(|| ZONE.into()),
        cores: peer.cores,
        http: peer.http.clone().unwrap_or_default(),
    };
    ClusterOptions {
        node: NodeId(member.node_id),
        peers: member.peers.iter().map(peer).collect(),
        join: member.join.clone(),
        advertise: member.advertise.clone(),
        peer_listen: member.peer_listen,
        cert_dir: member.cert_dir.clone(),
        client_certificates: member.client_certificates,
    }
}

fn token(token: &Token) -> TokenConfig {
    let has = |right| token.rights.contains(&right);
    TokenConfig {
        token: token.token.get_ref().clone(),
        tenant: token.tenant.get_ref().clone(),
        rights: Rights {
            enqueue: has(Right::Enqueue),
            receive: has(Right::Receive),
            read: has(Right::Read),
            admin: has(Right::Admin),
        },
    }
}

fn tenant(tenant: &Tenant) -> TenantConfig {
    TenantConfig { name: tenant.name.get_ref().clone(), enqueue_per_s: tenant.enqueue_per_s }
}

/// Runs the HTTP front end alone until it is told to stop.
pub fn gateway(args: &GatewayArgs) -> Outcome {
    log_to_stderr();
    let connect = remote::options(&args.server)?;
    let options = GatewayOptions { listen: args.http, connect, auth: args.auth, ..GatewayOptions::default() };
    let screen = Screen::new(Format::Table);
    runtime()?.block_on(async {
        let stop = Stop::listen()?;
        let failed = |error: GatewayError| Failure::new(Exit::Server, explain(&error.to_string(), "--http"));
        let gateway = overtake_gateway::spawn(options).map_err(failed)?;
        screen
            .note(&format!("overtake gateway: http {} in front of {}", gateway.address, args.server.connect));
        stop.asked().await;
        let ended = tokio::task::spawn_blocking(move || {
            gateway.stop();
            gateway.join()
        });
        match ended.await {
            Ok(ended) => ended.map(|()| Exit::Ok).map_err(failed),
            Err(error) => Err(Failure::new(Exit::Server, error.to_string())),
        }
    })
}

/// Prints the example, or checks a file.
pub fn config(command: ConfigCommand) -> Outcome {
    let screen = Screen::new(Format::Table);
    match command {
        ConfigCommand::Example => screen.print(EXAMPLE)?,
        ConfigCommand::Check { file } => {
            Node::resolve(NodeArgs::default(), MemberArgs::default(), false, config::read(&file)?)?;
            screen.print(&format!("{}: fine\n", file.display()))?;
        }
    }
    Ok(Exit::Ok)
}

/// Warnings and errors on standard error; `OVERTAKE_LOG` asks for more, such as `info` or `overtake=debug`.
pub(super) fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("OVERTAKE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // A second server in one process would find the first one's log in place, which is as good.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = log.with_ansi(std::io::stderr().is_terminal()).try_init();
}

/// What a person types to run this binary: its name where the shell finds it, else its path from here.
pub(super) fn own_name() -> String {
    const NAME: &str = "overtake";
    let Ok(own) = std::env::current_exe() else { return NAME.to_owned() };
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join(NAME)).find(|candidate| candidate.is_file())
    });
    if found.and_then(|found| found.canonicalize().ok()) == own.canonicalize().ok() {
        return NAME.to_owned();
    }
    let here = std::env::current_dir().ok();
    match here.and_then(|here| own.strip_prefix(here).ok().map(Path::to_path_buf)) {
        Some(below) => format!("./{}", below.display()),
        None => own.display().to_string(),
    }
}

/// The screen of `overtake dev`.
fn welcome(data: &Path, addresses: &Addresses, own: &str, style: Style) -> String {
    let Addresses { http, quic } = addresses;
    let connect = if quic.port() == 7400 { String::new() } else { format!(" --connect {quic}") };
    format!(
        "\
{title}   HTTP {http}   QUIC {quic}   data {data}

{next}
{hint}
",
        title = style.bold("Overtake is running."),
        data = data.display(),
        next = next_steps(*http, &connect, own, style),
        hint = style.dim("The whole API: /openapi.json. Ctrl-C stops the server; the data stays."),
    )
}

/// What to type next; `connect` is what a command needs to find the server.
pub(super) fn next_steps(http: SocketAddr, connect: &str, own: &str, style: Style) -> String {
    let json = "-H 'content-type: application/json'";
    format!(
        "\
{with_curl}
  curl http://{http}/v1/queues/jobs/messages {json} -d '{{\"priority\": 1, \"body\": \"aGVsbG8=\"}}'
  curl http://{http}/v1/queues/jobs/receive {json} -d '{{\"max\": 1}}'
  curl http://{http}/v1/queues/jobs/ack {json} -d '{{\"ack\": [\"RECEIPT\"]}}'

{with_cli}
  {own} enqueue jobs 'hello' -p 1{connect}
  {own} receive jobs{connect}
  {own} ack jobs RECEIPT{connect}
  {own} stats jobs --watch{connect}
",
        with_curl = style.bold("With curl (bodies are base64):"),
        with_cli = style.bold("With the command line, in another terminal:"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_names_addresses_and_next_commands() {
        let addresses =
            Addresses { http: ([127, 0, 0, 1], 7401).into(), quic: ([127, 0, 0, 1], 7400).into() };
        let shown =
            welcome(Path::new("./overtake-data"), &addresses, "./target/release/overtake", Style::plain());
        for text in [
            "127.0.0.1:7401/v1/queues/jobs/receive",
            "  ./target/release/overtake ack jobs RECEIPT\n",
            "./overtake-data",
        ] {
            assert!(shown.contains(text), "{text}: {shown}");
        }
        let elsewhere = Addresses { quic: ([127, 0, 0, 1], 9).into(), ..addresses };
        assert!(
            welcome(Path::new("d"), &elsewhere, "overtake", Style::plain())
                .contains("-p 1 --connect 127.0.0.1:9\n")
        );
    }

    #[test]
    fn a_file_reaches_the_node_whole() {
        let file = ConfigFile::parse(
            "[[tokens]]\ntoken = 's'\ntenant = 'a'\nrights = ['read', 'admin']\n[[tenants]]\nname = 'a'\nenqueue_per_s = 7",
        );
        let node = Node::resolve(NodeArgs::default(), MemberArgs::default(), false, file.unwrap()).unwrap();
        let options = serve_options(&node);
        let rights = Rights { enqueue: false, receive: false, read: true, admin: true };
        assert_eq!(options.tokens, [TokenConfig { token: "s".into(), tenant: "a".into(), rights }]);
        assert_eq!(options.tenants, [TenantConfig { name: "a".into(), enqueue_per_s: Some(7) }]);
        assert!(!options.auto_create);
        assert_eq!((options.zone.as_str(), options.cluster), (ZONE, None));

        let file = ConfigFile::parse(
            "node_id = 1\nzone = 'a'\nclient_certificates = true\npeer_listen = '10.0.0.1:9'\ncert_dir = '/c'\n[[peers]]\nid = 2\n\
             address = 'two:7402'\nzone = 'b'\ncores = 3\nhttp = 'two:1'\n[[peers]]\nid = 3\naddress = 'three:7402'",
        );
        let node = Node::resolve(NodeArgs::default(), MemberArgs::default(), false, file.unwrap()).unwrap();
        let options = serve_options(&node);
        let peer = |node, address: &str, zone: &str, cores, http: &str| PeerOptions {
            node: NodeId(node),
            address: address.into(),
            zone: zone.into(),
            cores,
            http: http.into(),
        };
        let peers = vec![peer(2, "two:7402", "b", Some(3), "two:1"), peer(3, "three:7402", ZONE, None, "")];
        let expected = ClusterOptions {
            node: NodeId(1),
            peers,
            join: Vec::new(),
            advertise: "10.0.0.1:9".into(),
            peer_listen: ([10, 0, 0, 1], 9).into(),
            cert_dir: "/c".into(),
            client_certificates: true,
        };
        assert_eq!((options.zone.as_str(), options.cluster), ("a", Some(expected)));
    }
}
