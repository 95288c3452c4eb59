//! One simulated node: its cores, each with a disk of its own, and the clocks they are shown.

use crate::disk::{DiskProfile, SimDisk};
use overtake_base::{CoreId, NodeId, Now, UnixMillis};
use overtake_core::{ColdConfig, Core, CoreConfig, Event};
use std::collections::VecDeque;

/// Wall time at virtual time 0: a fixed day, so that a seed always means the same.
pub const WALL_START_MS: u64 = 1_800_000_000_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct NodeShape {
    /// Cores.
    pub cores: u16,
    /// Shards.
    pub shards: u16,
    /// Bytes of recent entries kept in memory by each core.
    pub cache_bytes: usize,
    /// Journal bytes between checkpoints.
    pub checkpoint_bytes: u64,
    /// Batches written at once.
    pub writes_in_flight_max: usize,
    /// What stays in memory.
    pub cold: ColdConfig,
    /// The disks.
    pub disk: DiskProfile,
}

/// A core and what is on its way to it.
pub struct SimCore {
    /// None while the node is down.
    pub core: Option<Core>,
    /// Survives crashes.
    pub disk: SimDisk,
    /// Taken up at the core's next turn.
    pub inbox: VecDeque<Event>,
    /// Virtual time and number of the next turn in the event heap; any other turn there is void.
    pub turn: Option<(u64, u64)>,
    /// This core said that it serves.
    pub serving: bool,
    /// This core said that everything is finished and durable.
    pub stopped: bool,
}

/// See the module's text.
pub struct SimNode {
    shape: NodeShape,
    seed: u64,
    /// Its cores.
    pub cores: Vec<SimCore>,
    /// Counts starts; events of an earlier life are dropped.
    pub life: u64,
    /// What its wall clock is ahead (or behind) by.
    pub wall_offset_ms: i64,
    /// What its wall clock gains (or loses), in parts per million of virtual time.
    pub wall_drift_ppm: i64,
}

impl SimNode {
    /// A node that is down, with empty disks.
    #[must_use]
    pub fn new(seed: u64, shape: NodeShape) -> Self {
        let cores = (0..shape.cores)
            .map(|core| SimCore {
                core: None,
                disk: SimDisk::new(seed ^ (u64::from(core) << 32), shape.disk),
                inbox: VecDeque::new(),
                turn: None,
                serving: false,
                stopped: false,
            })
            .collect();
        Self { shape, seed, cores, life: 0, wall_offset_ms: 0, wall_drift_ppm: 0 }
    }

    /// What its clocks show at a virtual time.
    #[must_use]
    pub fn now(&self, time_ns: u64) -> Now {
        let true_ms = time_ns / NANOS_PER_MS;
        let drift_ms = (true_ms.cast_signed() / 1_000) * self.wall_drift_ppm / 1_000;
        let wall_ms = (WALL_START_MS + true_ms).saturating_add_signed(self.wall_offset_ms + drift_ms);
        Now { monotonic_ns: time_ns, wall: UnixMillis(wall_ms) }
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
        }
    }

    /// The power is lost on all cores at once.
    pub fn crash(&mut self) {
        self.halt();
        self.cores.iter_mut().for_each(|slot| slot.disk.lose_power());
    }

    /// The process is gone; what the disks were asked is the caller's concern.
    pub fn halt(&mut self) {
        // What was under way of this life is of no concern to the next one.
        self.life += 1;
        for slot in &mut self.cores {
            slot.core = None;
            slot.inbox.clear();
            slot.turn = None;
            slot.serving = false;
            slot.stopped = false;
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
            node: NodeId(1),
            zone: "simulated".into(),
            http: String::new(),
            core,
            cores: self.shape.cores,
            shards: self.shape.shards,
            store: 0x0073_696d,
            seed: self.seed ^ self.life.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            version: "simulated".into(),
            auto_create: true,
            tokens: Vec::new(),
            tenants: Vec::new(),
            segment_bytes: 4 * 1024 * 1024,
            writes_in_flight_max: self.shape.writes_in_flight_max,
            batch_bytes_max: 1024 * 1024,
            cache_bytes: self.shape.cache_bytes,
            checkpoint_bytes: self.shape.checkpoint_bytes,
            backlog_bytes_max: 64 * 1024 * 1024,
            cold: self.shape.cold,
        }
    }
}
