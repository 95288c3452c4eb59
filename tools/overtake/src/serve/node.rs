//! Starts the threads of a node, says when they serve, and ends them.

use super::cluster::{Cluster, keep_looking_up, names};
use super::core_loop::{self, CoreParts};
use super::join::join;
use super::mesh::Mesh;
use super::peers::PeerParts;
use super::secrets::{self, Secrets};
use super::wake::Bell;
use super::{Addresses, ServeError, ServeOptions};
use crate::certificates::{Files, NodeCertificates, is_readable_by_others};
use crate::exit::Exit;
use core::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use nix::sys::resource::{Resource, getrlimit};
use overtake_base::{CoreId, NodeId};
use overtake_board::Board;
use overtake_client::{ConnectOptions, Credentials, Trust};
use overtake_core::CoreConfig;
use overtake_core::cluster::ClusterMap;
use overtake_device::{
    FolderError, Membership, SHARDS_DEFAULT, SHARDS_DEFAULT_CLUSTER, StoreIdentity, claim_folder,
    core_folder, cores_of_machine, lock_folder, open_store, read_cluster, read_peers, write_cluster,
    write_peers,
};
use overtake_gateway::{GatewayHandle, GatewayOptions};
use overtake_queue::members::Members;
use overtake_transport::{AdmissionLimits, TransportConfig};
use overtake_wire::peer::PeerHello;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// How long what is under way may take when the node is told to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// When a node of a cluster that cannot serve yet says so first, and how often again.
const WAITING_FIRST: Duration = Duration::from_secs(3);
const WAITING_EVERY: Duration = Duration::from_secs(30);
/// Start of the names of the cores' threads.
const CORE_THREAD: &str = "overtake-core";

/// What a core tells the thread that started it.
#[derive(Debug)]
pub(super) enum Report {
    /// It answers requests.
    Serving,
    /// It could not start.
    Failed(CoreId, String),
    /// It has a link to a node, whose data folder has this identity.
    PeerSeen(NodeId, u128),
    /// The cluster is another one.
    Members(Arc<Members>),
    /// The node was removed from it.
    Removed,
}

/// Says that a core failed unless its loop came to run: what the executor says of itself is known only when its thread
/// is joined, and then it is too late.
pub(super) struct StartGuard {
    core: CoreId,
    shared: Option<Arc<Shared>>,
}

impl StartGuard {
    /// The core's loop runs.
    pub(super) fn started(mut self) {
        self.shared = None;
    }
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            let detail = "no executor; is io_uring allowed here (seccomp, sysctl kernel.io_uring_disabled)?";
            // The receiver is gone only where the node has ended.
            let _ = shared.reports.send(Report::Failed(self.core, detail.into()));
        }
    }
}

/// What all threads of a node share.
pub(super) struct Shared {
    /// Requests are to be refused and what is under way finished.
    pub(super) stopping: AtomicBool,
    /// Cores that have finished what was under way.
    pub(super) stopped: AtomicU16,
    pub(super) cores: u16,
    pub(super) bells: Vec<Arc<Bell>>,
    pub(super) reports: UnboundedSender<Report>,
    data: PathBuf,
    identity: Mutex<StoreIdentity>,
}

impl Shared {
    pub(super) fn ring_all(&self) {
        for bell in &self.bells {
            bell.ring();
        }
    }

    /// Remembers in the data folder that a core has begun its journal.
    pub(super) fn note_journal(&self, core: CoreId) -> Result<(), FolderError> {
        let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        identity.note_journal(&self.data, core)
    }
}

/// Runs a node until it is told to stop by SIGTERM or SIGINT. `on_event` is told once when it answers requests.
///
/// # Errors
/// Where the node cannot start, or had to be stopped by force. A core that can no longer be trusted ends the process.
pub fn run(options: &ServeOptions, mut on_event: impl FnMut(NodeEvent<'_>)) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| ServeError::Core { core: 0, detail: error.to_string() })?;
    end_process_when_a_core_panics();
    let ended = runtime.block_on(run_node(options, &mut on_event));
    // Does not wait for threads that did not end in time.
    runtime.shutdown_background();
    ended
}

/// A core that panicked may have half-done work in memory: no core may answer any more. All tasks of a core's thread
/// are covered, not only its loop.
fn end_process_when_a_core_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        if std::thread::current().name().is_some_and(|name| name.starts_with(CORE_THREAD)) {
            std::process::exit(Exit::Server as i32);
        }
    }));
}

async fn run_node(
    options: &ServeOptions,
    on_event: &mut impl FnMut(NodeEvent<'_>),
) -> Result<(), ServeError> {
    // From here on a signal is waited for instead of ending the process.
    let mut signals = Signals::new()?;
    let _lock = lock_folder(&options.data)?;
    let cluster = open_cluster(options).await?.map(Arc::new);
    let shards_new = if cluster.is_some() { SHARDS_DEFAULT_CLUSTER } else { SHARDS_DEFAULT };
    let told = cluster.as_ref().and_then(|cluster| cluster.members.as_ref());
    let shards = told.map(|members| members.shards.len() as u16).or(options.shards);
    let identity = open_store(&options.data, options.cores, shards, shards_new)?;
    let quic = overtake_udp::claim(options.quic)
        .map_err(|error| ServeError::Quic { address: options.quic, error })?;
    if let Some(cluster) = &cluster {
        for core in (0..identity.cores).map(CoreId) {
            let address = cluster.listen(core)?;
            overtake_udp::claim(address).map_err(|error| ServeError::Quic { address, error })?;
        }
    }
    let certificates = cluster.as_ref().map(|cluster| &cluster.certificates);
    let secrets = Secrets::open(&options.data, quic, certificates)?;
    let gateway = start_gateway(options, &secrets, quic, identity.cores)?;
    let addresses = Addresses { http: gateway.address, quic };

    let (reports, mut reported) = unbounded_channel();
    let shared = Arc::new(Shared {
        stopping: AtomicBool::new(false),
        stopped: AtomicU16::new(0),
        cores: identity.cores,
        bells: (0..identity.cores).map(|_| Arc::default()).collect(),
        reports,
        data: options.data.clone(),
        identity: Mutex::new(identity),
    });
    if let Some(cluster) = &cluster {
        let rouse = shared.clone();
        let named = cluster.names.subscribe();
        tokio::spawn(keep_looking_up(cluster.addresses.clone(), named, move || rouse.ring_all()));
    }
    let threads = start_cores(options, identity, &addresses, &secrets, cluster.as_deref(), &shared)?;
    tokio::spawn(super::memory::give_back());
    let mut watch = ReportWatch::new(options, cluster.as_deref(), identity.cores);
    loop {
        tokio::select! {
            report = reported.recv() => {
                // Some: `shared` holds a sender.
                match report.map_or(Ok(false), |report| watch.take(report)) {
                    Ok(true) => on_event(NodeEvent::Ready(&addresses)),
                    Ok(false) => {}
                    // What is under way here is answered yet.
                    Err(ServeError::Removed) => {
                        stop(gateway, threads, &shared).await?;
                        return Err(ServeError::Removed);
                    }
                    Err(error) => return Err(error),
                }
            }
            () = tokio::time::sleep_until(watch.complain_at.into()), if watch.is_waiting() => {
                watch.complain_at += WAITING_EVERY;
                let away = cluster.as_deref().map_or_else(Vec::new, |cluster| cluster.links.away());
                on_event(NodeEvent::Waiting(&away));
            }
            () = signals.wait() => break,
        }
    }
    stop(gateway, threads, &shared).await
}

/// What happens to a node that a person should hear of.
#[derive(Debug)]
pub enum NodeEvent<'a> {
    /// It answers requests.
    Ready(&'a Addresses),
    /// It cannot answer yet; these nodes of its cluster are not linked.
    Waiting(&'a [NodeId]),
}

/// Takes what cores report.
struct ReportWatch<'a> {
    options: &'a ServeOptions,
    cluster: Option<&'a Cluster>,
    cores: u16,
    serving: u16,
    complain_at: Instant,
    stores: BTreeMap<NodeId, u128>,
}

impl<'a> ReportWatch<'a> {
    fn new(options: &'a ServeOptions, cluster: Option<&'a Cluster>, cores: u16) -> Self {
        let stores = cluster.map(|cluster| cluster.stores.clone()).unwrap_or_default();
        Self { options, cluster, cores, serving: 0, complain_at: Instant::now() + WAITING_FIRST, stores }
    }

    /// Whether somebody may wonder why nothing is answered: a node by itself says all there is in its log.
    fn is_waiting(&self) -> bool {
        self.cluster.is_some() && self.serving < self.cores
    }

    /// True when the last core has come to serve.
    fn take(&mut self, report: Report) -> Result<bool, ServeError> {
        match report {
            Report::Serving => {
                self.serving += 1;
                return Ok(self.serving == self.cores);
            }
            Report::Failed(core, detail) => return Err(ServeError::Core { core: core.0, detail }),
            // The first one counts: a core that sees another one later refuses it.
            Report::PeerSeen(node, store) if !self.stores.contains_key(&node) => {
                self.stores.insert(node, store);
                // Known for as long as the process lives; a full disk must not end it.
                if let Err(error) = write_peers(&self.options.data, &self.stores) {
                    tracing::warn!("the data folder of node {node} cannot be remembered: {error}");
                }
            }
            Report::PeerSeen(..) => {}
            Report::Members(members) => {
                if let Some(cluster) = self.cluster {
                    cluster.names.send_replace(names(&cluster.options, &members));
                }
                // Known for as long as the process lives, and told again after that.
                if let Err(error) = write_cluster(&self.options.data, &members.to_bytes()) {
                    tracing::warn!("what the cluster is like now cannot be remembered: {error}");
                }
            }
            Report::Removed => return Err(ServeError::Removed),
        }
        Ok(false)
    }
}

/// What the node needs to be one of a cluster; checks that its data folder and its certificates are its own.
async fn open_cluster(options: &ServeOptions) -> Result<Option<Cluster>, ServeError> {
    let Some(asked) = &options.cluster else {
        claim_folder(&options.data, None)?;
        return Ok(None);
    };
    let certificates = NodeCertificates::open(&asked.cert_dir, asked.node)?;
    let key = Files::node(&asked.cert_dir, asked.node).key;
    if is_readable_by_others(&key) {
        tracing::warn!("{} is readable by others: chmod 600 it", key.display());
    }
    let cluster = certificates.cluster;
    claim_folder(&options.data, Some(Membership { node: asked.node, cluster }))?;
    let stores = read_peers(&options.data)?;
    let known = read_cluster(&options.data)?;
    let members = match known {
        Some(bytes) => Some(Members::of_bytes(&bytes).map_err(|error| ServeError::Join {
            detail: format!("what the data folder says of the cluster cannot be read: {error}"),
        })?),
        None if asked.join.is_empty() => None,
        None => {
            let cores = options.cores.unwrap_or_else(cores_of_machine);
            let members = join(options, asked, &certificates, cores).await?;
            write_cluster(&options.data, &members.to_bytes())?;
            Some(members)
        }
    };
    Ok(Some(Cluster::new(asked, certificates, stores, members.map(Arc::new))))
}

/// The gateway's requests end first, since they need the cores.
async fn stop(
    gateway: GatewayHandle,
    threads: Vec<ExecutorJoinHandle<()>>,
    shared: &Arc<Shared>,
) -> Result<(), ServeError> {
    let shared = shared.clone();
    let ending = tokio::task::spawn_blocking(move || {
        gateway.stop();
        // Long polls under way wait for a stopping core to end them, so both stop at the same time.
        shared.stopping.store(true, Ordering::Release);
        shared.ring_all();
        let gateway = gateway.join();
        for (core, thread) in threads.into_iter().enumerate() {
            let ended = thread.join();
            ended.map_err(|error| ServeError::Core { core: core as u16, detail: error.to_string() })?;
        }
        gateway.map_err(ServeError::Http)
    });
    match tokio::time::timeout(STOP_TIMEOUT, ending).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(_)) | Err(_) => Err(ServeError::StopTimeout),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, ServeError> {
        let listen = |kind| {
            signal(kind).map_err(|error| ServeError::Core { core: 0, detail: format!("no signals: {error}") })
        };
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn start_gateway(
    options: &ServeOptions,
    secrets: &Secrets,
    quic: SocketAddr,
    cores: u16,
) -> Result<GatewayHandle, ServeError> {
    let server = match quic {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, v6.port()).into(),
        own => own,
    };
    let connect = ConnectOptions {
        servers: vec![server.into()],
        trust: Trust::Certificates(secrets.certificates.clone()),
        credentials: Some(Credentials {
            certificates: secrets.certificates.clone(),
            private_key: secrets.private_key.clone(),
        }),
        connections: usize::from(cores),
        ..ConnectOptions::default()
    };
    let auth = !options.tokens.is_empty();
    let gateway = GatewayOptions { listen: options.http, connect, auth, ..GatewayOptions::default() };
    overtake_gateway::spawn(gateway).map_err(ServeError::Http)
}

fn start_cores(
    options: &ServeOptions,
    identity: StoreIdentity,
    addresses: &Addresses,
    secrets: &Secrets,
    cluster: Option<&Cluster>,
    shared: &Arc<Shared>,
) -> Result<Vec<ExecutorJoinHandle<()>>, ServeError> {
    check_locked_memory()?;
    let started = Instant::now();
    let cpus = allowed_cpus();
    let mesh = Mesh::between(&shared.bells);
    let boards = Board::for_cores(identity.cores);
    let mut threads = Vec::new();
    for (core, (mesh, (board, others))) in (0..).zip(mesh.into_iter().zip(boards)) {
        let seed = secrets::random_bytes()?;
        let config = core_config(options, identity, addresses, cluster, CoreId(core), &seed);
        let peers = cluster.map(|cluster| peer_parts(cluster, &config, secrets.secret)).transpose()?;
        let parts = CoreParts {
            config,
            peers,
            transport: TransportConfig {
                certificates: secrets.certificates.clone(),
                private_key: secrets.private_key.clone(),
                client_authorities: cluster.map_or_else(Vec::new, Cluster::client_authorities),
                wall: crate::screen::now(),
                core: CoreId(core),
                cores: identity.cores,
                secret: secrets.secret,
                seed,
                admission: AdmissionLimits::default(),
            },
            folder: core_folder(&options.data, CoreId(core)),
            quic: addresses.quic,
            started,
            mesh,
            board,
            others,
            shared: shared.clone(),
        };
        let guard = StartGuard { core: CoreId(core), shared: Some(shared.clone()) };
        let cpu = cpus[usize::from(core) % cpus.len()];
        let thread = LocalExecutorBuilder::new(Placement::Fixed(cpu))
            .name(CORE_THREAD)
            .spawn(move || core_loop::run(parts, guard))
            .map_err(|error| ServeError::Core { core, detail: error.to_string() })?;
        threads.push(thread);
    }
    Ok(threads)
}

/// The links of the core that `config` is for.
fn peer_parts(cluster: &Cluster, config: &CoreConfig, secret: [u8; 32]) -> Result<PeerParts, ServeError> {
    let map = ClusterMap::of(config);
    let founded = map.members().founded;
    let hello = PeerHello {
        node: config.node,
        core: config.core,
        cores: config.cores,
        cluster: cluster.certificates.cluster,
        store: config.store,
        map: founded,
    };
    let seed = secrets::random_bytes()?;
    Ok(PeerParts {
        config: cluster.peer_config(&map, hello, secret, seed, crate::screen::now()),
        listen: cluster.listen(config.core)?,
        addresses: cluster.addresses.clone(),
        links: cluster.links.clone(),
    })
}

fn core_config(
    options: &ServeOptions,
    identity: StoreIdentity,
    addresses: &Addresses,
    cluster: Option<&Cluster>,
    core: CoreId,
    seed: &[u8; 32],
) -> CoreConfig {
    let seed = u64::from_le_bytes(core::array::from_fn(|i| seed[i]));
    CoreConfig {
        node: cluster.map_or(NodeId(1), |cluster| cluster.options.node),
        zone: options.zone.clone(),
        http: addresses.http.to_string(),
        address: cluster.map_or_else(String::new, |cluster| cluster.options.advertise.clone()),
        peers: cluster.map_or_else(Vec::new, |cluster| cluster.core_peers(identity.cores)),
        members: cluster.and_then(|cluster| cluster.members.clone()),
        journal_begun: identity.has_journal(core),
        version: env!("CARGO_PKG_VERSION").into(),
        auto_create: options.auto_create,
        tokens: options.tokens.clone(),
        tenants: options.tenants.clone(),
        ..CoreConfig::alone(core, identity.cores, identity.shards, identity.store, seed)
    }
}

/// The CPUs that this process may run on; the first one where the system does not say.
fn allowed_cpus() -> Vec<usize> {
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).map(|set| {
        (0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect::<Vec<_>>()
    });
    allowed.ok().filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| vec![0])
}

/// What an executor's rings need of locked memory.
fn check_locked_memory() -> Result<(), ServeError> {
    const BYTES_MIN: u64 = 512 * 1024;
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft < BYTES_MIN => Err(ServeError::Core {
            core: 0,
            detail: format!(
                "{soft} bytes of memory may be locked, io_uring needs {BYTES_MIN}: raise the limit (`ulimit -l`, \
                 `LimitMEMLOCK=`)"
            ),
        }),
        _ => Ok(()),
    }
}
