//! What goes wrong in a run, when, and how often it did.

use crate::disk::damage::Damage;
use crate::disk::{Failure, SimDisk};
use crate::history::{History, Outage};
use crate::swarm::FaultPlan;
use crate::workload::Workload;
use crate::world::World;
use overtake_base::random::Random;

/// Timers of faults have numbers from here.
pub const TIMERS_FROM: u64 = 1 << 32;
const NANOS_PER_MS: u64 = 1_000_000;
/// Longest additional way between two cores, in nanoseconds.
pub const MESH_SLOW_NS: u64 = 20 * NANOS_PER_MS;
/// Longest time for which a ring between two cores is full, in nanoseconds.
pub const STALL_NS_MAX: u64 = 2_000 * NANOS_PER_MS;
/// Bytes that are left of a full disk, and for how long it is full at most, in nanoseconds.
pub const ROOM_BYTES_MAX: u64 = 64 * 1024;
/// See above.
pub const FULL_NS_MAX: u64 = 8_000 * NANOS_PER_MS;
/// How often a node that was told to stop is looked at, in nanoseconds.
const STOP_LOOK_NS: u64 = 5 * NANOS_PER_MS;
/// A node that has nothing but its work to finish stops within this, in nanoseconds.
const STOP_NS_MAX: u64 = 60_000 * NANOS_PER_MS;
/// Disk operations that a power loss is aimed at.
const AIMED_OPERATIONS: u64 = 12;
/// The same where it is to hit a recovery.
const AIMED_AT_RECOVERY: u64 = 40;
/// What a core says of a disk that is damaged names a file or a shard.
const DAMAGE_NAMES: [&str; 3] = ["journal-", "lane-", "shard"];
/// What it says where the damage took the beginning of every segment: there is no file to name.
const NOTHING_LEFT: &str = "nothing of it is left";
/// What a core says of an operation that failed.
pub const FAILURE_NAME: &str = "input/output error of the simulated disk";

/// What a core says that cannot even start for want of room.
pub const NO_ROOM: &str = "no room";

/// The kinds of a run's faults and of their ends, and all of them in order.
macro_rules! kinds {
    ($($kind:ident,)+) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u64)]
        enum Kind {
            $($kind,)+
        }

        impl Kind {
            const ALL: &'static [Self] = &[$(Self::$kind),+];
        }
    };
}
pub(crate) use kinds;

kinds! {
    PowerLoss,
    Kill,
    Stop,
    StopLook,
    Restart,
    WallJump,
    WallFreeze,
    WallThaw,
    Hang,
    Full,
    Room,
    Disconnect,
    Damage,
    Failure,
    MeshStall,
    Pause,
}

/// How often each thing happened.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct FaultCounters {
    pub power_losses: u64,
    pub power_losses_while_down: u64,
    pub kills: u64,
    pub ends_in_recovery: u64,
    pub ends_for_failures: u64,
    pub ends_for_damage: u64,
    pub stops: u64,
    pub wall_jumps: u64,
    pub wall_freezes: u64,
    pub hangs: u64,
    pub full_disks: u64,
    pub full_disk_starts: u64,
    pub disconnects: u64,
    pub mesh_stalls: u64,
    pub pauses: u64,
}

/// How a life of the node ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LifeEnd {
    /// With the machine's power.
    Power,
    /// With the process.
    Process,
}

/// See the module's text.
#[derive(Debug)]
pub struct Faults {
    plan: FaultPlan,
    random: Random,
    asked_to_stop_ns: Option<u64>,
    full: bool,
    outage_from_ns: Option<u64>,
    /// The life that is to end aimed at an operation ends like this.
    aimed: LifeEnd,
    /// What happened.
    pub counters: FaultCounters,
    over: bool,
    /// What a disk that hung when the faults were over had been given by then comes at this virtual time at the latest.
    pub hangs_until_ns: u64,
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
            aimed: LifeEnd::Power,
            counters: FaultCounters::default(),
            over: false,
            hangs_until_ns: 0,
        }
    }

    /// Sets the first times.
    pub fn begin(&mut self, world: &mut World) {
        let plan = self.plan;
        world.mesh_slow.set(MESH_SLOW_NS, plan.mesh_slow_ppm);
        world.link_slow.set(plan.link_slow_ms_max * NANOS_PER_MS, plan.link_slow_ppm);
        world.node.wall_drift_ppm = plan.wall_drift_ppm;
        world.clocks.disturbed = !plan.wall_is_steady();
        for slot in &mut world.node.cores {
            slot.disk.profile.slow_ppm = plan.disk_slow_ppm;
            slot.disk.profile.slow_ns = 200 * NANOS_PER_MS;
        }
        for kind in Kind::ALL {
            self.again(*kind, world);
        }
    }

    fn mean_ms(&self, kind: Kind) -> u64 {
        let plan = &self.plan;
        match kind {
            Kind::PowerLoss => plan.power_loss_ms,
            Kind::Kill => plan.kill_ms,
            Kind::Stop => plan.stop_ms,
            Kind::WallJump => plan.wall_jump_ms,
            Kind::WallFreeze => plan.wall_freeze_ms,
            Kind::Hang => plan.disk_hang_ms,
            Kind::Full => plan.disk_full_ms,
            Kind::Disconnect => plan.disconnect_ms,
            Kind::Damage => plan.damage_ms,
            Kind::Failure => plan.failure_ms,
            Kind::MeshStall => plan.mesh_stall_ms,
            Kind::Pause => plan.pause_ms,
            Kind::StopLook | Kind::Restart | Kind::Room | Kind::WallThaw => 0,
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
        let Some(kind) = Kind::ALL.iter().copied().find(|kind| TIMERS_FROM + *kind as u64 == number) else {
            return Ok(());
        };
        if self.over && !matches!(kind, Kind::StopLook | Kind::Restart) {
            return Ok(());
        }
        self.again(kind, world);
        match kind {
            Kind::PowerLoss if world.node.is_running() => {
                self.life_ends_soon(LifeEnd::Power, world, work, history);
            }
            Kind::Kill if world.node.is_running() => {
                self.life_ends_soon(LifeEnd::Process, world, work, history);
            }
            Kind::Stop if world.node.is_running() && self.asked_to_stop_ns.is_none() => {
                self.asked_to_stop_ns = Some(world.time_ns());
                self.outage(world);
                world.ask_to_stop();
                world.set_timer(STOP_LOOK_NS, TIMERS_FROM + Kind::StopLook as u64);
            }
            Kind::StopLook => return self.look_at_stop(world, work, history),
            Kind::Restart if !world.node.is_running() => self.restart(world),
            Kind::WallJump => {
                let jump_ms = self.random.below(7_200_000).cast_signed() - 3_600_000;
                world.node.wall_offset_ms += jump_ms;
                self.counters.wall_jumps += 1;
                world.tale.tell(world.time_ns(), || format!("the wall clock jumps by {jump_ms} ms"));
            }
            Kind::WallFreeze if world.node.wall_frozen_ns.is_none() => {
                world.node.wall_frozen_ns = Some(world.time_ns());
                self.counters.wall_freezes += 1;
                world.tale.tell(world.time_ns(), || "the wall clock stands still".into());
                let after_ns = self.random.below(10_000 * NANOS_PER_MS);
                world.set_timer(after_ns, TIMERS_FROM + Kind::WallThaw as u64);
            }
            Kind::WallThaw => self.thaw(world),
            Kind::Hang if world.node.is_running() => self.hang(world, history),
            Kind::Full => self.fill(world),
            Kind::Room => self.make_room(world),
            Kind::Disconnect => {
                self.counters.disconnects += 1;
                work.disconnect_one(world, history);
            }
            Kind::Damage => self.damage(world),
            Kind::Failure => self.let_fail(world),
            Kind::MeshStall if world.node.is_running() => self.stall(world),
            Kind::Pause if world.node.is_running() => self.pause(world),
            _ => {}
        }
        Ok(())
    }

    fn a_core(&mut self, world: &World) -> usize {
        self.random.below(world.node.cores.len() as u64) as usize
    }

    /// Now, or aimed at a disk operation, so that writes under way are hit though they are short.
    fn life_ends_soon(
        &mut self,
        end: LifeEnd,
        world: &mut World,
        work: &mut Workload,
        history: &mut History,
    ) {
        if self.random.below(3) == 0 {
            self.life_ends(end, world, work, history);
        } else {
            self.aimed = end;
            world.crash_at_operation = Some(1 + self.random.below(AIMED_OPERATIONS));
        }
    }

    /// The operation that the end of a life was aimed at is under way.
    pub fn aim_reached(&mut self, world: &mut World, work: &mut Workload, history: &mut History) {
        self.life_ends(self.aimed, world, work, history);
    }

    fn life_ends(&mut self, end: LifeEnd, world: &mut World, work: &mut Workload, history: &mut History) {
        if !world.node.is_running() {
            return;
        }
        self.counters.ends_in_recovery += u64::from(!world.node.is_serving());
        world.expect_same_state();
        match end {
            LifeEnd::Power => self.counters.power_losses += 1,
            LifeEnd::Process => self.counters.kills += 1,
        }
        self.gone(end, world, work, history);
    }

    fn gone(&mut self, end: LifeEnd, world: &mut World, work: &mut Workload, history: &mut History) {
        self.asked_to_stop_ns = None;
        self.outage(world);
        let sessions = match end {
            LifeEnd::Power => world.crash(),
            LifeEnd::Process => world.halt(),
        };
        work.lost(sessions, history);
        // Nothing is wrong any more once the faults are over.
        let down_ms_max = if self.over { 1 } else { self.plan.down_ms_max.max(1) };
        let down_ns = self.random.below(down_ms_max * NANOS_PER_MS);
        world.set_timer(down_ns, TIMERS_FROM + Kind::Restart as u64);
    }

    fn restart(&mut self, world: &mut World) {
        if !self.over && self.plan.power_loss_ms > 0 && self.random.below(4) == 0 {
            self.counters.power_losses_while_down += 1;
            world.tale.tell(world.time_ns(), || "the power is lost while the node is down".into());
            world.node.cores.iter_mut().for_each(|slot| slot.disk.lose_power());
        }
        world.start();
        if !self.over && self.random.chance_ppm(self.plan.recovery_ends_ppm) {
            self.aimed = if self.plan.power_loss_ms > 0 { LifeEnd::Power } else { LifeEnd::Process };
            world.crash_at_operation = Some(1 + self.random.below(AIMED_AT_RECOVERY));
        }
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
            world.expect_same_state();
            self.gone(LifeEnd::Process, world, work, history);
            return Ok(());
        }
        if world.time_ns() - asked_ns > STOP_NS_MAX {
            return Err("a node that was told to stop a minute ago has not".into());
        }
        world.set_timer(STOP_LOOK_NS, TIMERS_FROM + Kind::StopLook as u64);
        Ok(())
    }

    fn thaw(&mut self, world: &mut World) {
        let catches_up = self.random.below(2) == 0;
        world.node.thaw_wall(world.time_ns(), catches_up);
        world.tale.tell(world.time_ns(), || "the wall clock goes on".into());
    }

    fn hang(&mut self, world: &mut World, history: &mut History) {
        self.counters.hangs += 1;
        let core = self.a_core(world);
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
            slot.disk.limit(self.random.below(ROOM_BYTES_MAX));
        }
        world.tale.tell(world.time_ns(), || "the disks are full".into());
        let after_ns = self.random.below(FULL_NS_MAX);
        world.set_timer(after_ns, TIMERS_FROM + Kind::Room as u64);
    }

    fn make_room(&mut self, world: &mut World) {
        self.full = false;
        world.node.cores.iter_mut().for_each(|slot| slot.disk.make_room());
        world.tale.tell(world.time_ns(), || "the disks have room".into());
    }

    fn damage(&mut self, world: &mut World) {
        // A recovery has looked at some of it already.
        if world.node.is_running() && !world.node.is_serving() {
            return;
        }
        let core = self.a_core(world);
        let damage = match self.plan.damage {
            Some(damage) => damage,
            None => Damage::ALL[self.random.below(Damage::ALL.len() as u64) as usize],
        };
        if let Some(what) = world.node.cores[core].disk.damage(damage) {
            world.tale.tell(world.time_ns(), || format!("core {core}: {what}"));
        }
    }

    fn let_fail(&mut self, world: &mut World) {
        let failure = Failure::ALL[self.random.below(4) as usize];
        let core = self.a_core(world);
        world.node.cores[core].disk.fails_next = Some(failure);
        world.tale.tell(world.time_ns(), || format!("core {core}: the next operation fails: {failure:?}"));
    }

    fn stall(&mut self, world: &mut World) {
        let (from, to) = (self.a_core(world), self.a_core(world));
        if from != to {
            self.counters.mesh_stalls += 1;
            let until_ns = world.time_ns() + self.random.below(STALL_NS_MAX);
            world.stall(from, to, until_ns);
            world.tale.tell(world.time_ns(), || format!("the ring from core {from} to {to} is full"));
        }
    }

    /// One core, or the process.
    fn pause(&mut self, world: &mut World) {
        self.counters.pauses += 1;
        let until_ns = world.time_ns() + self.random.below(self.plan.pause_ms_max * NANOS_PER_MS);
        let one = (self.random.below(2) == 0).then(|| self.a_core(world));
        for core in (0..world.node.cores.len()).filter(|core| one.is_none_or(|one| one == *core)) {
            world.pause(core, until_ns);
            world.tale.tell(world.time_ns(), || format!("core {core} is paused until {until_ns} ns"));
        }
    }

    /// A core gave up. Answers whether that ends the run; an error where nothing excuses it.
    pub fn fatal(
        &mut self,
        detail: &str,
        world: &mut World,
        work: &mut Workload,
        history: &mut History,
    ) -> Result<bool, String> {
        let disks = || world.node.cores.iter().map(|slot| &slot.disk);
        let damaged = disks().any(SimDisk::is_damaged);
        let named = DAMAGE_NAMES.iter().any(|named| detail.contains(named));
        let nothing_left =
            || detail.contains(NOTHING_LEFT) && disks().any(|disk| disk.is_damaged() && !disk.has_journal());
        if damaged && (named || nothing_left()) {
            self.counters.ends_for_damage += 1;
            return Ok(true);
        }
        if detail.contains(FAILURE_NAME) {
            self.counters.ends_for_failures += 1;
        } else if self.full && detail.contains(NO_ROOM) {
            self.counters.full_disk_starts += 1;
            self.make_room(world);
        } else {
            return Err(format!("a core gave up: {detail}"));
        }
        world.fatal = None;
        world.crash_at_operation = None;
        self.gone(LifeEnd::Process, world, work, history);
        Ok(false)
    }

    fn outage(&mut self, world: &World) {
        self.outage_from_ns.get_or_insert(world.time_ns());
    }

    /// Looks whether an outage is over. Call it after everything that happens.
    pub fn observe(&mut self, world: &mut World, history: &mut History) {
        let held_up = world.held_up.drain(..).map(|(from_ns, to_ns)| Outage { from_ns, to_ns });
        history.outages.extend(held_up);
        if let Some(from_ns) = self.outage_from_ns
            && world.node.is_serving()
            && self.asked_to_stop_ns.is_none()
            && !self.full
        {
            self.outage_from_ns = None;
            history.outages.push(Outage { from_ns, to_ns: world.time_ns() });
        }
    }

    /// The run is over, whatever is still wrong.
    pub fn close(&mut self, history: &mut History) {
        history.outages.extend(self.outage_from_ns.take().map(Outage::from_on));
    }

    /// True while the node does what it does before it stops.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.asked_to_stop_ns.is_some()
    }

    /// No more faults; what is under way comes to its end.
    pub fn end(&mut self, world: &mut World) {
        self.over = true;
        world.crash_at_operation = None;
        world.mesh_slow.set(0, 0);
        world.link_slow.set(0, 0);
        self.thaw(world);
        self.make_room(world);
        for slot in &mut world.node.cores {
            slot.disk.profile.slow_ppm = 0;
            slot.disk.fails_next = None;
            let hangs_until_ns = core::mem::take(&mut slot.disk.hangs_until_ns);
            self.hangs_until_ns = self.hangs_until_ns.max(hangs_until_ns);
        }
        if self.asked_to_stop_ns.is_none() && !world.node.is_running() {
            world.start();
        }
    }
}
