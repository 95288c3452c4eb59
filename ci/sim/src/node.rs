//! One simulated node: its cores, each with a disk of its own, and the clocks they are shown.

use crate::disk::{DiskProfile, SimDisk};
use overtake_base::{CoreId, NodeId, Now, UnixMillis};
use overtake_core::{
    AnswerConfig, ColdConfig, Core, CoreConfig, Event, PeerConfig, ScrubConfig, TenantConfig,
};
use overtake_queue::members::Members;
use std::collections::VecDeque;
use std::sync::Arc;

/// Wall time at virtual time 0: a fixed day, so that a seed always means the same.
pub const WALL_START_MS: u64 = 1_800_000_000_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// What a true wall clock shows at a virtual time.
#[must_use]
pub fn true_wall(time_ns: u64) -> UnixMillis {
    UnixMillis(WALL_START_MS + time_ns / NANOS_PER_MS)
}

fn drifted(time_ns: u64, ppm: i64) -> u64 {
    let gained = i128::from(time_ns) * i128::from(ppm) / 1_000_000;
    time_ns.saturating_add_signed(i64::try_from(gained).unwrap_or(0))
}

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct NodeShape {
    /// Cores.
    pub cores: u16,
    /// Shards.
    pub shards: u16,
    /// Bytes of a journal segment.
    pub segment_bytes: u64,
    /// Bytes of a log entry, at most.
    pub entry_bytes_max: usize,
    /// Messages that the tenant may enqueue a second.
    pub enqueue_per_s: Option<u64>,
    /// Bytes of recent entries kept in memory by each core.
    pub cache_bytes: usize,
    /// Journal bytes between checkpoints.
    pub checkpoint_bytes: u64,
    /// Bytes of log kept for replicas that are away.
    pub log_keep_bytes: u64,
    /// Bytes of one part of a snapshot.
    pub snapshot_part_bytes: usize,
    /// Batches written at once.
    pub writes_in_flight_max: usize,
    /// What stays in memory.
    pub cold: ColdConfig,
    /// How much of its answers a client may leave unread.
    pub answers: AnswerConfig,
    /// How fast the disk is looked through.
    pub scrub: ScrubConfig,
    /// The disks.
    pub disk: DiskProfile,
}

impl NodeShape {
    /// Clients may leave so little unread that reads wait, and received messages go back.
    #[must_use]
    pub fn has_little_room(&self) -> bool {
        self.answers != AnswerConfig::default()
    }
}

/// A core and what is on its way to it.
pub struct SimCore {
    /// None while the node is down.
    pub core: Option<Core>,
    /// Survives crashes.
    pub disk: SimDisk,
    /// The data folder remembers that the core's journal was begun.
    pub journal_begun: bool,
    /// Taken up at the core's next turn.
    pub inbox: VecDeque<Event>,
    /// Virtual time of the next turn; one that comes at another time is void.
    turn_ns: Option<u64>,
    /// Virtual times at which a turn will come, void or not.
    turns_coming_ns: Vec<u64>,
    /// This core said that it serves.
    pub serving: bool,
    /// This core said that everything is finished and durable.
    pub stopped: bool,
    /// No turn before this virtual time: the process, or this thread of it, gets no CPU.
    pub paused_until_ns: u64,
    /// A write or sync of its disk failed in this life: it must give up.
    pub disk_failed: bool,
    /// Failed writes and syncs that were noticed so far.
    disk_failures: u64,
}

impl SimCore {
    /// The core wants a turn at a virtual time. True where that is to be scheduled: where none comes earlier, or then.
    pub fn wants_turn(&mut self, at_ns: u64) -> bool {
        if self.turn_ns.is_some_and(|next_ns| next_ns <= at_ns) {
            return false;
        }
        self.turn_ns = Some(at_ns);
        let comes = self.turns_coming_ns.contains(&at_ns);
        if !comes {
            self.turns_coming_ns.push(at_ns);
        }
        !comes
    }

    /// An operation of its disk is complete: from a failed write on it must give up.
    pub fn note_failures(&mut self) {
        let counters = &self.disk.counters;
        let failed = counters.write_errors + counters.sync_errors + counters.file_errors;
        self.disk_failed |= failed > self.disk_failures;
        self.disk_failures = failed;
    }

    /// A turn has come. False where it is void, since an earlier one was wanted meanwhile.
    pub fn turn_comes(&mut self, now_ns: u64) -> bool {
        self.turns_coming_ns.retain(|at_ns| *at_ns != now_ns);
        self.turn_ns.take_if(|at_ns| *at_ns == now_ns).is_some()
    }
}

/// See the module's text.
pub struct SimNode {
    /// What it was made as.
    pub shape: NodeShape,
    seed: u64,
    /// Its cores.
    pub cores: Vec<SimCore>,
    /// Counts starts; events of an earlier life are dropped.
    pub life: u64,
    /// What its wall clock is ahead (or behind) by.
    pub wall_offset_ms: i64,
    /// What it was before it jumped.
    pub honest_offset_ms: i64,
    /// While its wall clock stands still: the virtual time at which it stopped.
    pub wall_frozen_ns: Option<u64>,
    /// What its wall clock gains (or loses), in parts per million of virtual time.
    pub wall_drift_ppm: i64,
    /// What its monotonic clock gains (or loses), in parts per million.
    pub monotonic_drift_ppm: i64,
    id: NodeId,
    peers: Vec<PeerConfig>,
    /// The cluster, as its data folder has it.
    pub members: Option<Arc<Members>>,
}

impl SimNode {
    /// A node by itself that is down, with empty disks.
    #[must_use]
    pub fn new(seed: u64, shape: NodeShape) -> Self {
        Self::of_cluster(seed, shape, NodeId(1), Vec::new())
    }

    /// The same of a node of a cluster.
    #[must_use]
    pub fn of_cluster(seed: u64, shape: NodeShape, id: NodeId, peers: Vec<PeerConfig>) -> Self {
        let cores = (0..shape.cores)
            .map(|core| SimCore {
                core: None,
                disk: SimDisk::new(seed ^ (u64::from(core) << 32), shape.disk),
                journal_begun: false,
                inbox: VecDeque::new(),
                turn_ns: None,
                turns_coming_ns: Vec::new(),
                serving: false,
                stopped: false,
                paused_until_ns: 0,
                disk_failed: false,
                disk_failures: 0,
            })
            .collect();
        Self {
            shape,
            seed,
            cores,
            life: 0,
            wall_offset_ms: 0,
            honest_offset_ms: 0,
            wall_frozen_ns: None,
            wall_drift_ppm: 0,
            monotonic_drift_ppm: 0,
            id,
            peers,
            members: None,
        }
    }

    /// What its clocks show at a virtual time.
    #[must_use]
    pub fn now(&self, time_ns: u64) -> Now {
        let true_ms = self.wall_frozen_ns.unwrap_or(time_ns) / NANOS_PER_MS;
        let drift_ms = (true_ms.cast_signed() / 1_000) * self.wall_drift_ppm / 1_000;
        let wall_ms = (WALL_START_MS + true_ms).saturating_add_signed(self.wall_offset_ms + drift_ms);
        Now { monotonic_ns: drifted(time_ns, self.monotonic_drift_ppm), wall: UnixMillis(wall_ms) }
    }

    /// The virtual time at which its monotonic clock shows at least this.
    #[must_use]
    pub fn time_of(&self, monotonic_ns: u64) -> u64 {
        let ppm = self.monotonic_drift_ppm;
        if ppm == 0 { monotonic_ns } else { drifted(monotonic_ns, -ppm - ppm.signum()) + 2_000 }
    }

    /// The wall clock goes on where it stopped, or shows at once what it has missed.
    pub fn thaw_wall(&mut self, time_ns: u64, catches_up: bool) {
        if let Some(frozen_ns) = self.wall_frozen_ns.take()
            && !catches_up
        {
            self.wall_offset_ms -= ((time_ns - frozen_ns) / NANOS_PER_MS).cast_signed();
        }
    }

    /// Starts all cores.
    pub fn start(&mut self, time_ns: u64) {
        self.life += 1;
        let now = self.now(time_ns);
        for core in 0..self.shape.cores {
            let config = self.config(CoreId(core));
            let slot = &mut self.cores[usize::from(core)];
            slot.core = Some(Core::new(config, now));
            slot.serving = false;
            slot.stopped = false;
            slot.disk_failed = false;
        }
    }

    /// The power is lost on all cores at once.
    pub fn crash(&mut self) {
        self.end();
        self.cores.iter_mut().for_each(|slot| slot.disk.lose_power());
    }

    /// The process is gone, the machine goes on.
    pub fn halt(&mut self) {
        self.end();
        self.cores.iter_mut().for_each(|slot| slot.disk.lose_process());
    }

    fn end(&mut self) {
        // What was under way of this life is of no concern to the next one.
        self.life += 1;
        for slot in &mut self.cores {
            slot.core = None;
            slot.inbox.clear();
            slot.turn_ns = None;
            slot.turns_coming_ns.clear();
            slot.serving = false;
            slot.stopped = false;
            slot.paused_until_ns = 0;
        }
    }

    /// True between a start and a halt.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.cores.iter().all(|slot| slot.core.is_some())
    }

    /// True where every core finished its work after being told to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.cores.iter().all(|slot| slot.stopped)
    }

    /// True where every core serves.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.cores.iter().all(|slot| slot.serving)
    }

    fn config(&self, core: CoreId) -> CoreConfig {
        CoreConfig {
            node: self.id,
            zone: "simulated".into(),
            http: String::new(),
            address: String::new(),
            core,
            cores: self.shape.cores,
            peers: self.peers.clone(),
            members: self.members.clone(),
            shards: self.shape.shards,
            store: 0x0073_696d,
            journal_begun: self.cores[usize::from(core.0)].journal_begun,
            seed: self.seed ^ self.life.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            version: "simulated".into(),
            auto_create: true,
            tokens: Vec::new(),
            tenants: vec![TenantConfig { name: "default".into(), enqueue_per_s: self.shape.enqueue_per_s }],
            segment_bytes: self.shape.segment_bytes,
            writes_in_flight_max: self.shape.writes_in_flight_max,
            entry_bytes_max: self.shape.entry_bytes_max,
            batch_bytes_max: 1024 * 1024,
            cache_bytes: self.shape.cache_bytes,
            checkpoint_bytes: self.shape.checkpoint_bytes,
            log_keep_bytes: self.shape.log_keep_bytes,
            snapshot_part_bytes: self.shape.snapshot_part_bytes,
            backlog_bytes_max: 64 * 1024 * 1024,
            cold: self.shape.cold,
            answers: self.shape.answers,
            scrub: self.shape.scrub,
        }
    }
}
