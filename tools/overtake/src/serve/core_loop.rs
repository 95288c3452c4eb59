//! The loop of one core: gather → step → drain → carry out → sleep. It moves bytes and events between the sockets, the
//! disk, the other cores and the deterministic core, and decides nothing.
//!
//! Two orders matter, and are why a client that got an answer from one core finds what it was told about at another:
//! - out: publishes on the board first, then messages to other cores and disk operations, then frames, then datagrams;
//! - in: datagrams are read first, then the mesh, then the board. What a client was told before it sent a datagram is
//!   then on the board by the time the board is read; and the core takes board and mesh before the client's frames.

use super::mesh::{Datagram, Mesh, Parcel};
use super::node::{Report, Shared, StartGuard};
use super::peers::{PeerParts, Peers};
use super::port::{Port, ecn_of};
use super::wake::Bell;
use crate::exit::Exit;
use bytes::BytesMut;
use core::future::Future as _;
use core::pin::pin;
use core::sync::atomic::Ordering;
use core::task::Poll;
use glommio::timer::Timer;
use overtake_base::{CoreId, Level, NodeId, Now, QueueId, ShardId, UnixMillis};
use overtake_board::{BoardLevel, BoardSummary, Reader, Writer};
use overtake_core::{Address, ConnectionId, Core, CoreConfig, Event, Output, SessionId};
use overtake_device::{Device, kept_free_bytes};
use overtake_log::disk::DiskCompletion;
use overtake_queue::answer::{LevelSummary, Summary};
use overtake_transport::{Routed, Transport, TransportConfig, TransportEvent};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How soon the loop looks again where nothing will wake it: a full ring, a full socket.
const RETRY: Duration = Duration::from_micros(500);
/// The shortest sleep. The executor looks for completed I/O only when no task is ready, so the loop must really wait
/// once a turn: a timer that is not over yet when it is first polled, and is by the time the executor has looked.
const YIELD: Duration = Duration::from_micros(1);
/// A turn that takes longer is told in the log, at level debug.
const SLOW_TURN: Duration = Duration::from_millis(2);
/// How long answers may take to reach their clients when the node stops. A client that is gone does not hold it up for
/// longer.
const FAREWELL: Duration = Duration::from_millis(300);

/// What a core is made of.
pub(super) struct CoreParts {
    pub(super) config: CoreConfig,
    pub(super) transport: TransportConfig,
    pub(super) folder: PathBuf,
    pub(super) quic: SocketAddr,
    /// In a cluster.
    pub(super) peers: Option<PeerParts>,
    /// Zero of the node's monotonic clock.
    pub(super) started: Instant,
    pub(super) mesh: Mesh,
    /// What this core shows.
    pub(super) board: Writer,
    /// What the others show.
    pub(super) others: Reader,
    pub(super) shared: Arc<Shared>,
}

/// Runs a core until the node stops. A core that cannot go on ends the process here and now: another turn of any core
/// could answer from what is no longer true.
pub(super) async fn run(parts: CoreParts, guard: StartGuard) {
    guard.started();
    let core = parts.config.core;
    let shared = parts.shared.clone();
    match CoreLoop::start(parts).await {
        Ok(running) => running.run().await,
        // The node's thread says why and ends the process in order: nothing was answered yet.
        Err(detail) => drop(shared.reports.send(Report::Failed(core, detail))),
    }
}

fn end_process(core: CoreId, detail: &str) -> ! {
    eprintln!("overtake: core {core} cannot go on: {detail}");
    std::process::exit(Exit::Server as i32)
}

/// The two clocks of one moment.
#[derive(Clone, Copy)]
struct Moment {
    now: Now,
    instant: Instant,
}

struct CoreLoop {
    core: Core,
    node: NodeId,
    id: CoreId,
    started: Instant,
    port: Port,
    transport: Transport,
    /// The links to other nodes; none for a node by itself.
    peers: Option<Peers>,
    device: Device,
    mesh: Mesh,
    board: Writer,
    others: Reader,
    bell: Arc<Bell>,
    shared: Arc<Shared>,
    outputs: Vec<Output>,
    stop: Stop,
}

/// How far stopping has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    No,
    /// The core was told.
    Told,
    /// Every core has finished; answers are on their way to clients.
    Farewell(Instant),
}

impl CoreLoop {
    async fn start(parts: CoreParts) -> Result<Self, String> {
        // The first sleep of an executor takes tens of milliseconds.
        glommio::timer::sleep(Duration::from_millis(1)).await;
        let kept_free_bytes = kept_free_bytes(&parts.folder).map_err(|error| error.to_string())?;
        let device = Device::open(&parts.folder, kept_free_bytes).await.map_err(|error| error.to_string())?;
        let moment = read_clocks(parts.started);
        let transport =
            Transport::new(&parts.transport, moment.instant).map_err(|error| error.to_string())?;
        let id = parts.config.core;
        let bell = parts.shared.bells[usize::from(id.0)].clone();
        let completed = bell.clone();
        device.on_completion(Rc::new(move || completed.ring()));
        let port = Port::bind(parts.quic, bell.clone(), move |error| socket_broken(id, &error))
            .map_err(|error| format!("cannot listen on {} for QUIC: {error}", parts.quic))?;
        let peers = parts.peers.map(|peers| {
            Peers::open(peers, id, moment.instant, parts.shared.clone(), move |error| {
                socket_broken(id, &error)
            })
        });
        Ok(Self {
            node: parts.config.node,
            core: Core::new(parts.config, moment.now),
            id,
            started: parts.started,
            port,
            transport,
            peers: peers.transpose()?,
            device,
            mesh: parts.mesh,
            board: parts.board,
            others: parts.others,
            bell,
            shared: parts.shared,
            outputs: Vec::new(),
            stop: Stop::No,
        })
    }

    async fn run(mut self) {
        loop {
            let more = self.receive_datagrams(Instant::now());
            // After the datagrams: a time to live must not outlast the moment at which a receive was sent.
            let moment = read_clocks(self.started);
            self.gather(moment);
            let gathered = Instant::now();
            self.core.drain(moment.now, &mut self.outputs);
            let stepped = Instant::now();
            self.carry_out(moment.instant);
            self.transmit(moment.instant);
            note_slow_turn(self.id, [moment.instant, gathered, stepped, Instant::now()]);
            if self.farewell(moment.instant) {
                break;
            }
            self.sleep(moment, more).await;
        }
        // What could not be closed is closed by the end of the process; everything is durable already.
        let _ = self.device.close().await;
    }

    /// Takes in what else has come and steps the core with all of it.
    fn gather(&mut self, moment: Moment) {
        self.transport.set_wall(moment.now.wall);
        self.transport.begin_turn();
        self.transport.timeout(moment.instant);
        if let Some(peers) = &mut self.peers {
            peers.timeout(moment.instant, moment.now.wall);
        }
        let messages = self.receive_parcels(moment.instant);
        let Self { core, others, outputs, .. } = self;
        others.changed(|shown| {
            // That a queue is gone the directory says, to everybody at once.
            if !shown.gone {
                core.step(moment.now, summary_event(shown), outputs);
            }
        });
        for (from, message) in messages {
            let from = Address { node: self.node, core: from };
            self.step(moment, Event::Mesh { from, message });
        }
        while let Some(event) = self.peers.as_mut().and_then(|peers| peers.poll_event(moment.instant)) {
            self.step(moment, event);
        }
        let mut completions: Vec<DiskCompletion> = Vec::new();
        self.device.drain(&mut completions);
        for completion in completions {
            self.step(moment, Event::Disk(completion));
        }
        while let Some(event) = self.transport.poll_event(moment.instant) {
            self.step(moment, client_event(event));
        }
        if self.stop == Stop::No && self.shared.stopping.load(Ordering::Acquire) {
            self.stop = Stop::Told;
            self.step(moment, Event::Stop);
        }
    }

    fn step(&mut self, moment: Moment, event: Event) {
        self.core.step(moment.now, event, &mut self.outputs);
    }

    /// Returns true where more may be there already.
    fn receive_datagrams(&mut self, instant: Instant) -> bool {
        let Self { port, transport, mesh, peers, id, .. } = self;
        let received = port.receive(|datagram| {
            let ecn = ecn_of(&datagram);
            let data = BytesMut::from(datagram.data);
            let routed = transport.datagram(instant, datagram.from, datagram.to, ecn, data);
            if let Routed::Elsewhere { core, data } = routed {
                mesh.hand_over(core, Datagram { from: datagram.from, to: datagram.to, ecn, data });
            }
        });
        let linked = peers.as_mut().map_or(Ok(false), |peers| peers.receive(instant));
        let broken = |error| end_process(*id, &format!("receiving from a UDP socket: {error}"));
        received.unwrap_or_else(broken) | linked.unwrap_or_else(broken)
    }

    /// Datagrams go on to the transport at once; messages are for after the board.
    fn receive_parcels(&mut self, instant: Instant) -> Vec<(CoreId, overtake_core::mesh::MeshMessage)> {
        let Self { mesh, transport, .. } = self;
        let mut messages = Vec::new();
        mesh.receive(|from, parcel| match parcel {
            Parcel::Message(message) => messages.push((from, message)),
            Parcel::Datagram(Datagram { from, to, ecn, data }) => {
                // Two cores that disagree would pass it on for ever: it is handed over once.
                let _ = transport.datagram(instant, from, to, ecn, data);
            }
        });
        messages
    }

    /// Does what the core put out, in the order that [`Output`] asks for.
    fn carry_out(&mut self, instant: Instant) {
        let mut outputs = core::mem::take(&mut self.outputs);
        outputs.sort_by_key(|output| match output {
            Output::Fatal(_) => 0,
            Output::JournalBegun | Output::Members(_) => 1,
            Output::Publish { .. } => 2,
            Output::Mesh { .. } | Output::Disk(_) => 3,
            Output::Frame { .. } | Output::CloseSession { .. } => 4,
            Output::Warning(_) | Output::Serving | Output::Stopped | Output::Removed => 5,
        });
        for output in outputs.drain(..) {
            match output {
                Output::Fatal(detail) => end_process(self.id, &detail),
                // Waits for the disk, once in the life of a data folder, with nobody served yet.
                Output::JournalBegun => {
                    if let Err(error) = self.shared.note_journal(self.id) {
                        end_process(self.id, &error.to_string());
                    }
                }
                Output::Publish { shard, version, summary, gone } => {
                    self.publish(shard, version, &summary, gone);
                }
                Output::Mesh { to, message } if to.node == self.node => self.mesh.send(to.core, message),
                Output::Mesh { to, message } => {
                    if let Some(peers) = &mut self.peers {
                        peers.send(instant, to, &message);
                    }
                }
                Output::Disk(operation) => self.device.submit(operation),
                Output::Frame { session, frame } => self.transport.send(session.0, frame),
                Output::CloseSession { session, code, reason } => {
                    tracing::debug!(session = session.0, code, reason, "session closed by the core");
                    self.transport.close_session(session.0, code);
                }
                Output::Members(members) => {
                    if let Some(peers) = &mut self.peers {
                        peers.set_members(instant, &members);
                    }
                    if self.id == CoreId(0) {
                        // The receiver is gone only where the node has ended.
                        let _ = self.shared.reports.send(Report::Members(members));
                    }
                }
                Output::Removed => drop(self.shared.reports.send(Report::Removed)),
                Output::Warning(text) => tracing::warn!("{text}"),
                // The receiver is gone only where the node has ended.
                Output::Serving => drop(self.shared.reports.send(Report::Serving)),
                Output::Stopped => {
                    self.shared.stopped.fetch_add(1, Ordering::AcqRel);
                    self.shared.ring_all();
                }
            }
        }
        self.outputs = outputs;
        self.mesh.flush();
    }

    fn publish(&mut self, shard: ShardId, version: u64, summary: &Summary, gone: bool) {
        let level = |level: &LevelSummary| BoardLevel {
            level: level.level.0,
            visible: level.visible,
            head_since_ms: level.head_since.0,
        };
        let shown = BoardSummary {
            queue: summary.queue.0,
            shard: shard.0,
            gone,
            version,
            depth: summary.depth,
            body_bytes: summary.body_bytes,
            levels: summary.levels.iter().map(level).collect(),
        };
        if let Err(full) = self.board.publish(&shown) {
            tracing::error!(core = self.id.0, queue = summary.queue.0, shard = shard.0, "{full}");
        }
        self.mesh.rouse_all();
    }

    /// Peers first: an answer may wait for what they are told.
    fn transmit(&mut self, instant: Instant) {
        if let Some(peers) = &mut self.peers {
            peers.transmit(instant);
        }
        let Self { port, transport, .. } = self;
        port.transmit(|segments_max, buffer| transport.poll_transmit(instant, segments_max, buffer));
    }

    /// Once every core has finished, sees clients off. Returns true when that is done.
    fn farewell(&mut self, instant: Instant) -> bool {
        match self.stop {
            Stop::No => false,
            Stop::Told => {
                if self.shared.stopped.load(Ordering::Acquire) == self.shared.cores {
                    self.transport.stop();
                    if let Some(peers) = &mut self.peers {
                        peers.stop(instant);
                    }
                    self.stop = Stop::Farewell(instant + FAREWELL);
                }
                false
            }
            Stop::Farewell(until) => {
                if instant >= until {
                    self.transport.abort(instant);
                    self.transmit(instant);
                    return true;
                }
                self.transport.is_stopped() && !self.port.is_full() && !self.transport.has_transmits()
            }
        }
    }

    /// Waits for the next thing to do. Always gives the executor its turn, on which disk and timers depend.
    async fn sleep(&self, moment: Moment, more: bool) {
        let after = if self.bell.take() || more { Some(YIELD) } else { self.next_turn(moment) };
        let mut timer = pin!(after.map(|after| Timer::new(after.max(YIELD))));
        core::future::poll_fn(|context| {
            if self.bell.poll(context).is_ready() {
                return Poll::Ready(());
            }
            timer.as_mut().as_pin_mut().map_or(Poll::Pending, |timer| timer.poll(context).map(drop))
        })
        .await;
    }

    /// After how long the next turn is due though nothing rings; `None`: never.
    fn next_turn(&self, moment: Moment) -> Option<Duration> {
        let sends = !self.port.is_full() && self.transport.has_transmits();
        let links = self.peers.as_ref();
        if sends || self.transport.has_events() || links.is_some_and(Peers::is_busy) {
            return Some(YIELD);
        }
        let full = self.port.is_full() || links.is_some_and(Peers::is_full);
        let retry = (full || self.mesh.is_backed_up()).then_some(RETRY);
        let links = links.and_then(|peers| peers.next_turn(moment.instant));
        let core = self.core.next_wake();
        let core = core.map(|at| Duration::from_nanos(at.saturating_sub(moment.now.monotonic_ns)));
        let quic = self.transport.next_timeout();
        let quic = quic.map(|at| at.saturating_duration_since(moment.instant));
        let farewell = match self.stop {
            Stop::Farewell(until) => Some(until.saturating_duration_since(moment.instant)),
            Stop::No | Stop::Told => None,
        };
        [retry, core, quic, links, farewell].into_iter().flatten().min()
    }
}

/// A turn that takes long makes everybody at this core wait.
fn note_slow_turn(core: CoreId, [began, gathered, stepped, ended]: [Instant; 4]) {
    if ended.duration_since(began) >= SLOW_TURN {
        tracing::debug!(
            core = core.0,
            gather_us = gathered.duration_since(began).as_micros(),
            step_us = stepped.duration_since(gathered).as_micros(),
            drain_us = ended.duration_since(stepped).as_micros(),
            "slow turn"
        );
    }
}

fn socket_broken(core: CoreId, error: &io::Error) {
    end_process(core, &format!("waiting on a UDP socket: {error}"));
}

fn read_clocks(started: Instant) -> Moment {
    let instant = Instant::now();
    let since = instant.saturating_duration_since(started);
    // A wall clock before 1970 is no clock; the core copes with a wall that jumps.
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Now {
        monotonic_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        wall: UnixMillis(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
    };
    Moment { now, instant }
}

fn client_event(event: TransportEvent) -> Event {
    match event {
        TransportEvent::SessionOpened { session, connection, .. } => {
            Event::SessionOpened { session: SessionId(session), connection: ConnectionId(connection) }
        }
        TransportEvent::Frame { session, frame } => Event::Frame { session: SessionId(session), frame },
        TransportEvent::SessionClosed { session } => Event::SessionClosed { session: SessionId(session) },
        TransportEvent::Taken { session, bytes } => Event::Taken { session: SessionId(session), bytes },
    }
}

fn summary_event(shown: &BoardSummary) -> Event {
    let level = |level: &BoardLevel| LevelSummary {
        level: Level(level.level),
        visible: level.visible,
        head_since: UnixMillis(level.head_since_ms),
    };
    Event::Summary {
        shard: ShardId(shown.shard),
        version: shown.version,
        summary: Summary {
            queue: QueueId(shown.queue),
            depth: shown.depth,
            body_bytes: shown.body_bytes,
            levels: shown.levels.iter().map(level).collect(),
        },
    }
}
