//! What goes wrong in a run, when, and how often it did.

use crate::history::{History, Outage};
use crate::swarm::FaultPlan;
use crate::workload::Workload;
use crate::world::World;
use overtake_base::random::Random;

/// Timers of faults have numbers from here.
pub const TIMERS_FROM: u64 = 1 << 32;
const NANOS_PER_MS: u64 = 1_000_000;
/// How often a node that was told to stop is looked at, in nanoseconds.
const STOP_LOOK_NS: u64 = 5 * NANOS_PER_MS;
/// A node that has nothing but its work to finish stops within this, in nanoseconds.
const STOP_NS_MAX: u64 = 60_000 * NANOS_PER_MS;
/// Disk operations that a power loss is aimed at.
const AIMED_OPERATIONS: u64 = 12;

/// Kinds of fault and of their ends; the number is that of the timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
enum Kind {
    PowerLoss,
    Stop,
    StopLook,
    Restart,
    WallJump,
    Hang,
    Full,
    Room,
    Disconnect,
    Rot,
    ReadError,
}

const KINDS: [Kind; 11] = [
    Kind::PowerLoss,
    Kind::Stop,
    Kind::StopLook,
    Kind::Restart,
    Kind::WallJump,
    Kind::Hang,
    Kind::Full,
    Kind::Room,
    Kind::Disconnect,
    Kind::Rot,
    Kind::ReadError,
];

/// How often each thing happened.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct FaultCounters {
    pub power_losses: u64,
    pub stops: u64,
    pub wall_jumps: u64,
    pub hangs: u64,
    pub full_disks: u64,
    pub disconnects: u64,
    pub rotten_bits: u64,
    pub read_errors: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Faults {
    plan: FaultPlan,
    random: Random,
    asked_to_stop_ns: Option<u64>,
    full: bool,
    outage_from_ns: Option<u64>,
    /// What happened.
    pub counters: FaultCounters,
    over: bool,
}

impl Faults {
    /// The faults of a run; none has happened.
    #[must_use]
    pub fn new(seed: u64, plan: FaultPlan) -> Self {
        Self {
            plan,
            random: Random::new(seed, "faults"),
            asked_to_stop_ns: None,
            full: false,
            outage_from_ns: None,
            counters: FaultCounters::default(),
            over: false,
        }
    }

    /// Sets the first times.
    pub fn begin(&mut self, world: &mut World) {
        let plan = self.plan;
        world.mesh_slow = (20 * NANOS_PER_MS, plan.mesh_slow_ppm);
        world.node.wall_drift_ppm = plan.wall_drift_ppm;
        world.clocks.disturbed = !plan.wall_is_steady();
        for slot in &mut world.node.cores {
            slot.disk.profile.slow_ppm = plan.disk_slow_ppm;
            slot.disk.profile.slow_ns = 200 * NANOS_PER_MS;
        }
        for kind in KINDS {
            self.again(kind, world);
        }
    }

    fn mean_ms(&self, kind: Kind) -> u64 {
        let plan = &self.plan;
        match kind {
            Kind::PowerLoss => plan.power_loss_ms,
            Kind::Stop => plan.stop_ms,
            Kind::WallJump => plan.wall_jump_ms,
            Kind::Hang => plan.disk_hang_ms,
            Kind::Full => plan.disk_full_ms,
            Kind::Disconnect => plan.disconnect_ms,
            Kind::Rot => plan.rot_ms,
            Kind::ReadError => plan.read_error_ms,
            Kind::StopLook | Kind::Restart | Kind::Room => 0,
        }
    }

    fn again(&mut self, kind: Kind, world: &mut World) {
        let mean_ms = self.mean_ms(kind);
        if mean_ms > 0 {
            let after_ns = self.random.below(2 * mean_ms * NANOS_PER_MS);
            world.set_timer(after_ns, TIMERS_FROM + kind as u64);
        }
    }

    /// A fault's time has come.
    pub fn timer(
        &mut self,
        number: u64,
        world: &mut World,
        work: &mut Workload,
        history: &mut History,
    ) -> Result<(), String> {
        let Some(kind) = KINDS.into_iter().find(|kind| TIMERS_FROM + *kind as u64 == number) else {
            return Ok(());
        };
        if self.over && !matches!(kind, Kind::StopLook | Kind::Restart) {
            return Ok(());
        }
        self.again(kind, world);
        match kind {
            Kind::PowerLoss if world.node.is_running() => {
                if self.random.below(3) == 0 {
                    self.power_loss(world, work, history);
                } else {
                    // Aimed at an operation, so that writes under way are hit though they are short.
                    world.crash_at_operation = Some(1 + self.random.below(AIMED_OPERATIONS));
                }
            }
            Kind::Stop if world.node.is_serving() && self.asked_to_stop_ns.is_none() => {
                self.asked_to_stop_ns = Some(world.time_ns());
                self.outage(world);
                world.ask_to_stop();
                world.set_timer(STOP_LOOK_NS, TIMERS_FROM + Kind::StopLook as u64);
            }
            Kind::StopLook => return self.look_at_stop(world, work, history),
            Kind::Restart if !world.node.is_running() => world.start(),
            Kind::WallJump => {
                let jump_ms = self.random.below(7_200_000).cast_signed() - 3_600_000;
                world.node.wall_offset_ms += jump_ms;
                self.counters.wall_jumps += 1;
            }
            Kind::Hang if world.node.is_running() => self.hang(world, history),
            Kind::Full => self.fill(world),
            Kind::Room => self.make_room(world),
            Kind::Disconnect => {
                self.counters.disconnects += 1;
                work.disconnect_one(world, history);
            }
            Kind::Rot => {
                let core = self.random.below(world.node.cores.len() as u64) as usize;
                if let Some(what) = world.node.cores[core].disk.rot() {
                    self.counters.rotten_bits += 1;
                    world.tale.tell(world.time_ns(), || format!("core {core}: {what} rots"));
                }
            }
            Kind::ReadError => {
                let core = self.random.below(world.node.cores.len() as u64) as usize;
                world.node.cores[core].disk.fails_next_read = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// The power is lost, now.
    pub fn power_loss(&mut self, world: &mut World, work: &mut Workload, history: &mut History) {
        if !world.node.is_running() {
            return;
        }
        self.counters.power_losses += 1;
        self.asked_to_stop_ns = None;
        self.outage(world);
        world.expect_same_state();
        let sessions = world.crash();
        work.lost(sessions, history);
        self.restart_later(world);
    }

    fn restart_later(&mut self, world: &mut World) {
        let down_ns = self.random.below(self.plan.down_ms_max.max(1) * NANOS_PER_MS);
        world.set_timer(down_ns, TIMERS_FROM + Kind::Restart as u64);
    }

    fn look_at_stop(
        &mut self,
        world: &mut World,
        work: &mut Workload,
        history: &mut History,
    ) -> Result<(), String> {
        let Some(asked_ns) = self.asked_to_stop_ns else { return Ok(()) };
        if world.node.is_stopped() {
            self.counters.stops += 1;
            self.asked_to_stop_ns = None;
            world.expect_same_state();
            let sessions = world.halt();
            work.lost(sessions, history);
            self.restart_later(world);
            return Ok(());
        }
        if world.time_ns() - asked_ns > STOP_NS_MAX {
            return Err("a node that was told to stop a minute ago has not".into());
        }
        world.set_timer(STOP_LOOK_NS, TIMERS_FROM + Kind::StopLook as u64);
        Ok(())
    }

    fn hang(&mut self, world: &mut World, history: &mut History) {
        self.counters.hangs += 1;
        let core = self.random.below(world.node.cores.len() as u64) as usize;
        let until_ns = world.time_ns() + self.random.below(self.plan.disk_hang_ms_max * NANOS_PER_MS);
        world.node.cores[core].disk.hangs_until_ns = until_ns;
        world.tale.tell(world.time_ns(), || format!("the disk of core {core} hangs until {until_ns} ns"));
        history.outages.push(Outage { from_ns: world.time_ns(), to_ns: until_ns });
    }

    fn fill(&mut self, world: &mut World) {
        if core::mem::replace(&mut self.full, true) {
            return;
        }
        self.counters.full_disks += 1;
        self.outage(world);
        for slot in &mut world.node.cores {
            slot.disk.profile.capacity_bytes = slot.disk.used() + self.random.below(64 * 1024);
        }
        world.tale.tell(world.time_ns(), || "the disks are full".into());
        let after_ns = self.random.below(8_000 * NANOS_PER_MS);
        world.set_timer(after_ns, TIMERS_FROM + Kind::Room as u64);
    }

    fn make_room(&mut self, world: &mut World) {
        self.full = false;
        world.node.cores.iter_mut().for_each(|slot| slot.disk.profile.capacity_bytes = u64::MAX);
        world.tale.tell(world.time_ns(), || "the disks have room".into());
    }

    /// A core gave up. Answers whether that ends the run; an error where nothing excuses it.
    pub fn fatal(
        &mut self,
        detail: &str,
        world: &mut World,
        work: &mut Workload,
        history: &mut History,
    ) -> Result<bool, String> {
        let hurt = world
            .node
            .cores
            .iter()
            .any(|slot| slot.disk.counters.rotten_bits + slot.disk.counters.read_errors > 0);
        if hurt && ["journal-", "shard-", "read error"].iter().any(|named| detail.contains(named)) {
            return Ok(true);
        }
        if self.full && detail.contains("no room") {
            world.fatal = None;
            self.outage(world);
            let sessions = world.crash();
            work.lost(sessions, history);
            self.make_room(world);
            self.restart_later(world);
            return Ok(false);
        }
        Err(format!("a core gave up: {detail}"))
    }

    fn outage(&mut self, world: &World) {
        self.outage_from_ns.get_or_insert(world.time_ns());
    }

    /// Looks whether an outage is over. Call it after everything that happens.
    pub fn observe(&mut self, world: &World, history: &mut History) {
        if let Some(from_ns) = self.outage_from_ns
            && world.node.is_serving()
            && self.asked_to_stop_ns.is_none()
            && !self.full
        {
            self.outage_from_ns = None;
            history.outages.push(Outage { from_ns, to_ns: world.time_ns() });
        }
    }

    /// No more faults; what is under way comes to its end.
    pub fn end(&mut self, world: &mut World) {
        self.over = true;
        world.crash_at_operation = None;
        world.mesh_slow = (0, 0);
        self.make_room(world);
        for slot in &mut world.node.cores {
            slot.disk.profile.slow_ppm = 0;
            slot.disk.fails_next_read = false;
            slot.disk.hangs_until_ns = 0;
        }
        if self.asked_to_stop_ns.is_none() && !world.node.is_running() {
            world.start();
        }
    }
}
