//! What goes wrong in a run with several nodes, when, and how often it did.

use super::plan::ClusterFaults;
use super::world::{ClusterWorld, READING_ERROR_MS};
use crate::arena::Arena;
use crate::disk::Failure;
use crate::disk::damage::Damage;
use crate::faults::{FULL_NS_MAX, MESH_SLOW_NS, ROOM_BYTES_MAX, STALL_NS_MAX, TIMERS_FROM, kinds};
use crate::history::{History, Outage};
use crate::workload::Workload;
use overtake_base::random::Random;

const NANOS_PER_MS: u64 = 1_000_000;
/// How often what is not yet over is looked at, in nanoseconds.
const LOOK_NS: u64 = 5 * NANOS_PER_MS;
/// A node that is told to stop has stopped within this, in nanoseconds.
const STOP_NS_MAX: u64 = 60_000 * NANOS_PER_MS;
/// Disk operations that a kill is aimed at.
pub const AIMED_OPERATIONS: u64 = 12;
/// Nodes of one run at most; the timers of a kind are numbered by node.
const NODES_MAX: u64 = 16;

kinds! {
    Kill,
    KillAll,
    Stop,
    StopLook,
    Restart,
    Cut,
    Heal,
    Reset,
    Pause,
    WallJump,
    Hang,
    Disconnect,
    Damage,
    Look,
    MeshStall,
    Failure,
    Full,
    Room,
}

/// How often each thing happened.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ClusterCounters {
    pub kills: u64,
    pub kills_of_all: u64,
    pub stops: u64,
    pub cuts: u64,
    pub resets: u64,
    pub pauses: u64,
    pub core_pauses: u64,
    pub mesh_stalls: u64,
    pub wall_jumps: u64,
    pub hangs: u64,
    pub disconnects: u64,
    pub damages: u64,
    pub ends_for_failures: u64,
    pub full_disks: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Faults {
    plan: ClusterFaults,
    random: Random,
    /// When each node was asked to stop.
    asked_to_stop_ns: Vec<Option<u64>>,
    outage_from_ns: Option<u64>,
    /// What happened.
    pub counters: ClusterCounters,
    over: bool,
    /// What a disk that hung or a ring that was full when the faults were over had been given by then comes at this virtual
    /// time at the latest.
    pub hangs_until_ns: u64,
}

impl Faults {
    /// The faults of a run; none has happened.
    #[must_use]
    pub fn new(seed: u64, plan: ClusterFaults, nodes: usize) -> Self {
        Self {
            plan,
            random: Random::new(seed, "cluster faults"),
            asked_to_stop_ns: vec![None; nodes],
            outage_from_ns: None,
            counters: ClusterCounters::default(),
            over: false,
            hangs_until_ns: 0,
        }
    }

    /// Clocks that are off from the start.
    pub fn set_clocks(&mut self, world: &mut ClusterWorld) {
        let plan = self.plan;
        let mut spread = |most: u64| self.random.below(2 * most + 1).cast_signed() - most.cast_signed();
        for node in &mut world.nodes {
            node.wall_offset_ms = spread(plan.wall_offset_ms);
            node.honest_offset_ms = node.wall_offset_ms;
            node.monotonic_drift_ppm = spread(plan.drift_ppm);
        }
        // Of two nodes one may be ahead and one behind; and while they run they drift apart.
        const RUN_MS_MAX: u64 = 1_000_000;
        world.clocks.spread_ms = 2 * plan.wall_offset_ms + 2 * plan.drift_ppm * RUN_MS_MAX / 1_000_000;
        // A reading is wrong by half of its way at most, and one that took more than 10 ms is used only at need.
        world.clocks.error_ms = if plan.net_slow_ppm > 0 { 2 * READING_ERROR_MS } else { READING_ERROR_MS };
        world.clocks.spread_ms += 2 * world.clocks.error_ms;
        world.clocks.drift_ppm = plan.drift_ppm;
        world.clocks_were_set();
        world.clocks.disturbed = plan.wall_jump_ms > 0 || plan.wall_offset_ms > 0 || plan.drift_ppm > 0;
    }

    /// Sets the first times.
    pub fn begin(&mut self, world: &mut ClusterWorld) {
        world.net_slow.set(20 * NANOS_PER_MS, self.plan.net_slow_ppm);
        world.mesh_slow.set(MESH_SLOW_NS, self.plan.mesh_slow_ppm);
        for slot in world.nodes.iter_mut().flat_map(|node| &mut node.cores) {
            slot.disk.profile.slow_ppm = self.plan.disk_slow_ppm;
            slot.disk.profile.slow_ns = 200 * NANOS_PER_MS;
        }
        for kind in Kind::ALL {
            self.again(*kind, world);
        }
        world.aims_at_drops = (self.plan.kill_all_ms > 0).then(|| Random::new(world.seed, "aimed at drops"));
    }

    fn mean_ms(&self, kind: Kind) -> u64 {
        let plan = &self.plan;
        match kind {
            Kind::Kill => plan.kill_ms,
            Kind::KillAll => plan.kill_all_ms,
            Kind::Stop => plan.stop_ms,
            Kind::Cut => plan.cut_ms,
            Kind::Reset => plan.reset_ms,
            Kind::Pause => plan.pause_ms,
            Kind::WallJump => plan.wall_jump_ms,
            Kind::Hang => plan.disk_hang_ms,
            Kind::Disconnect => plan.disconnect_ms,
            Kind::Damage => plan.damage_ms,
            Kind::MeshStall => plan.mesh_stall_ms,
            Kind::Failure => plan.failure_ms,
            Kind::Full => plan.disk_full_ms,
            Kind::StopLook | Kind::Restart | Kind::Heal | Kind::Look | Kind::Room => 0,
        }
    }

    fn again(&mut self, kind: Kind, world: &mut ClusterWorld) {
        let mean_ms = self.mean_ms(kind);
        if mean_ms > 0 {
            let after_ns = self.random.below(2 * mean_ms * NANOS_PER_MS);
            set(world, after_ns, kind, 0);
        }
    }

    /// A fault's time has come.
    pub fn timer(
        &mut self,
        number: u64,
        world: &mut ClusterWorld,
        work: &mut Workload,
        history: &mut History,
    ) -> Result<(), String> {
        let Some(number) = number.checked_sub(TIMERS_FROM) else { return Ok(()) };
        let Some(kind) = Kind::ALL.get((number / NODES_MAX) as usize).copied() else { return Ok(()) };
        let node = (number % NODES_MAX) as usize;
        if self.over && !matches!(kind, Kind::StopLook | Kind::Restart | Kind::Look) {
            return Ok(());
        }
        self.again(kind, world);
        let any = self.random.below(world.nodes.len() as u64) as usize;
        self.asked_to_stop_ns.resize(world.nodes.len(), None);
        match kind {
            // Aimed at an operation, so that writes under way are hit though they are short.
            Kind::Kill if self.random.below(3) > 0 => {
                let operations = 1 + self.random.below(AIMED_OPERATIONS);
                world.crash_at_operation.get_or_insert((any, operations));
            }
            Kind::Kill => {
                self.counters.kills += 1;
                self.kill(any, world, work, history);
            }
            Kind::KillAll => {
                self.counters.kills_of_all += 1;
                (0..world.nodes.len()).for_each(|node| self.kill(node, world, work, history));
            }
            Kind::Stop if world.nodes[any].is_serving() && self.asked_to_stop_ns[any].is_none() => {
                self.asked_to_stop_ns[any] = Some(world.time_ns());
                self.outage(world);
                world.ask_to_stop(any);
                set(world, LOOK_NS, Kind::StopLook, any);
            }
            Kind::StopLook => return self.look_at_stop(node, world, work, history),
            Kind::Restart if !world.nodes[node].is_running() && !world.gone[node] => world.start(node),
            Kind::Cut => self.cut(any, world),
            Kind::Heal => world.heal(),
            Kind::Reset => {
                self.counters.resets += 1;
                self.outage(world);
                world.reset_one();
            }
            Kind::Pause if world.nodes[any].is_running() => {
                self.outage(world);
                let until_ns = world.time_ns() + self.random.below(self.plan.pause_ms_max * NANOS_PER_MS);
                let one = self.plan.core_pauses && self.random.below(2) == 0;
                let core = one.then(|| self.a_core(any, world));
                match core {
                    Some(_) => self.counters.core_pauses += 1,
                    None => self.counters.pauses += 1,
                }
                world.pause(any, core, until_ns);
            }
            Kind::Failure => {
                let failure = Failure::ALL[self.random.below(4) as usize];
                let core = self.a_core(any, world);
                world.nodes[any].cores[core].disk.fails_next = Some(failure);
                let now_ns = world.time_ns();
                world.tale.tell(now_ns, || {
                    format!("node {} core {core}: the next operation fails: {failure:?}", any + 1)
                });
            }
            Kind::Full => self.fill(any, world),
            Kind::Room => make_room(node, world),
            Kind::MeshStall if world.nodes[any].is_running() => self.stall(any, world, history),
            Kind::WallJump => {
                self.counters.wall_jumps += 1;
                // A minority: of three clocks two that agree are right.
                let few = (world.nodes.len() as u64 - 1) / 2;
                let jumps = self.random.below(few.max(1)) as usize;
                let jump_ms = self.random.below(7_200_000).cast_signed() - 3_600_000;
                world.nodes[jumps].wall_offset_ms += jump_ms;
            }
            Kind::Hang => {
                self.counters.hangs += 1;
                self.outage(world);
                let until_ns = world.time_ns() + self.random.below(self.plan.disk_hang_ms_max * NANOS_PER_MS);
                let core = self.a_core(any, world);
                world.nodes[any].cores[core].disk.hangs_until_ns = until_ns;
            }
            Kind::Disconnect => {
                self.counters.disconnects += 1;
                work.disconnect_one(world, history);
            }
            Kind::Damage => self.damage(any, world, work, history),
            Kind::Look => self.look(world, history),
            _ => {}
        }
        Ok(())
    }

    /// The operation that a kill was aimed at is under way.
    pub fn crash_due(&mut self, world: &mut ClusterWorld, work: &mut Workload, history: &mut History) {
        let Some((node, _)) = world.crash_at_operation.take() else { return };
        let of_all = core::mem::take(&mut world.crash_of_all);
        if world.failed.take() == Some(node) {
            self.counters.ends_for_failures += 1;
            make_room(node, world);
            return self.kill(node, world, work, history);
        }
        if !self.over || world.damaged == Some(node) {
            if !self.over && self.plan.kill_all_ms > 0 && (of_all || self.random.below(3) == 0) {
                self.counters.kills_of_all += 1;
                world.dropped_and_dark = of_all;
                return (0..world.nodes.len()).for_each(|node| self.kill(node, world, work, history));
            }
            self.counters.kills += 1;
            self.kill(node, world, work, history);
        }
    }

    fn kill(&mut self, node: usize, world: &mut ClusterWorld, work: &mut Workload, history: &mut History) {
        if !world.nodes[node].is_running() {
            return;
        }
        self.asked_to_stop_ns.resize(world.nodes.len(), None);
        self.asked_to_stop_ns[node] = None;
        self.outage(world);
        let halted = self.random.below(2) == 0;
        let sessions = world.end(node, halted);
        work.lost(sessions, history);
        self.restart_later(node, world);
    }

    fn a_core(&mut self, node: usize, world: &ClusterWorld) -> usize {
        self.random.below(world.nodes[node].cores.len() as u64) as usize
    }

    /// A node's disks have next to no room for a while.
    fn fill(&mut self, node: usize, world: &mut ClusterWorld) {
        if is_full(node, world) {
            return;
        }
        self.counters.full_disks += 1;
        self.outage(world);
        for slot in &mut world.nodes[node].cores {
            slot.disk.limit(self.random.below(ROOM_BYTES_MAX));
        }
        let now_ns = world.time_ns();
        world.tale.tell(now_ns, || format!("the disks of node {} are full", node + 1));
        set(world, self.random.below(FULL_NS_MAX), Kind::Room, node);
    }

    fn stall(&mut self, node: usize, world: &mut ClusterWorld, history: &mut History) {
        let (from, to) = (self.a_core(node, world), self.a_core(node, world));
        if from != to {
            self.counters.mesh_stalls += 1;
            let (from_ns, to_ns) = (world.time_ns(), world.time_ns() + self.random.below(STALL_NS_MAX));
            world.stall(node, from, to, to_ns);
            history.outages.push(Outage { from_ns, to_ns });
            self.hangs_until_ns = self.hangs_until_ns.max(to_ns);
        }
    }

    /// A node loses its power, and its disk is not what it was when it comes back. One at a time: the atlas of what can be
    /// survived is one replica of each shard.
    fn damage(&mut self, node: usize, world: &mut ClusterWorld, work: &mut Workload, history: &mut History) {
        let is_mended = |node| world.is_whole(node) && !world.has_hurt_lanes(node);
        if world.damaged.is_some_and(is_mended) {
            world.damaged = None;
        }
        if world.damaged.is_some() || !world.is_whole(node) {
            return;
        }
        self.kill(node, world, work, history);
        let mut any = false;
        for _ in 0..=self.random.below(3) {
            let damage = self.plan.damage.unwrap_or(Damage::ALL[self.random.below(5) as usize]);
            let core = self.a_core(node, world);
            if let Some(what) = world.nodes[node].cores[core].disk.damage(damage) {
                any = true;
                let now_ns = world.time_ns();
                world.tale.tell(now_ns, || format!("node {} core {core}: {what}", node + 1));
            }
        }
        if any {
            self.counters.damages += 1;
            world.damaged = Some(node);
        }
    }

    /// The run is over, whatever is still wrong.
    pub fn close(&mut self, history: &mut History) {
        history.outages.extend(self.outage_from_ns.take().map(Outage::from_on));
    }

    /// True while a node does what it does before it stops.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.asked_to_stop_ns.iter().any(Option::is_some)
    }

    fn restart_later(&mut self, node: usize, world: &mut ClusterWorld) {
        // Nothing is wrong any more once the faults are over.
        let down_ms_max = if self.over { 1 } else { self.plan.down_ms_max.max(1) };
        let down_ns = self.random.below(down_ms_max * NANOS_PER_MS);
        set(world, down_ns, Kind::Restart, node);
    }

    /// A node alone, one way of it, or one way between two.
    fn cut(&mut self, node: usize, world: &mut ClusterWorld) {
        self.counters.cuts += 1;
        self.outage(world);
        let one_way = self.random.below(2) == 0;
        let backwards = self.random.below(2) == 0;
        let others: Vec<usize> = (0..world.nodes.len()).filter(|other| *other != node).collect();
        let only = self.random.below(2 * others.len() as u64) as usize;
        for (place, other) in others.iter().enumerate() {
            if only >= others.len() || only == place {
                let (from, to) = if backwards { (*other, node) } else { (node, *other) };
                world.cut(from, to, one_way);
            }
        }
        let after_ns = self.random.below(self.plan.heal_ms_max * NANOS_PER_MS);
        set(world, after_ns, Kind::Heal, 0);
    }

    fn look_at_stop(
        &mut self,
        node: usize,
        world: &mut ClusterWorld,
        work: &mut Workload,
        history: &mut History,
    ) -> Result<(), String> {
        let Some(asked_ns) = self.asked_to_stop_ns[node] else { return Ok(()) };
        if world.gone[node] {
            // It was lost before it had stopped.
            self.asked_to_stop_ns[node] = None;
            return Ok(());
        }
        if world.nodes[node].is_stopped() {
            self.counters.stops += 1;
            self.asked_to_stop_ns[node] = None;
            let sessions = world.end(node, true);
            work.lost(sessions, history);
            self.restart_later(node, world);
            return Ok(());
        }
        if world.time_ns() - asked_ns > STOP_NS_MAX {
            return Err(format!("node {} was told to stop a minute ago and has not", node + 1));
        }
        set(world, LOOK_NS, Kind::StopLook, node);
        Ok(())
    }

    pub fn outage(&mut self, world: &mut ClusterWorld) {
        if self.outage_from_ns.is_none() {
            self.outage_from_ns = Some(world.time_ns());
            set(world, LOOK_NS, Kind::Look, 0);
        }
    }

    /// Looks whether an outage is over.
    fn look(&mut self, world: &mut ClusterWorld, history: &mut History) {
        let Some(from_ns) = self.outage_from_ns else { return };
        let full = (0..world.nodes.len()).any(|node| is_full(node, world));
        let stopping = self.asked_to_stop_ns.iter().any(Option::is_some);
        if world.is_well() && world.unsettled().is_none() && !stopping && !full {
            self.outage_from_ns = None;
            history.outages.push(Outage { from_ns, to_ns: world.time_ns() });
        } else {
            set(world, LOOK_NS, Kind::Look, 0);
        }
    }

    /// No more faults; what is under way comes to its end.
    pub fn end(&mut self, world: &mut ClusterWorld) {
        self.over = true;
        if world.crash_at_operation.is_some_and(|(_, left)| left > 0) {
            world.crash_at_operation = None;
        }
        world.net_slow.set(0, 0);
        world.mesh_slow.set(0, 0);
        world.heal();
        for node in 0..world.nodes.len() {
            world.pause(node, None, 0);
            make_room(node, world);
            for slot in &mut world.nodes[node].cores {
                slot.disk.fails_next = None;
                slot.disk.profile.slow_ppm = 0;
                let hangs_until_ns = core::mem::take(&mut slot.disk.hangs_until_ns);
                self.hangs_until_ns = self.hangs_until_ns.max(hangs_until_ns);
            }
            let stopping = self.asked_to_stop_ns.get(node).is_some_and(Option::is_some);
            if !stopping && !world.nodes[node].is_running() && !world.gone[node] {
                world.start(node);
            }
        }
    }
}

fn is_full(node: usize, world: &ClusterWorld) -> bool {
    world.nodes[node].cores.iter().any(|slot| slot.disk.is_limited())
}

fn make_room(node: usize, world: &mut ClusterWorld) {
    if is_full(node, world) {
        let now_ns = world.time_ns();
        world.tale.tell(now_ns, || format!("the disks of node {} have room", node + 1));
        world.nodes[node].cores.iter_mut().for_each(|slot| slot.disk.make_room());
    }
}

fn set(world: &mut ClusterWorld, after_ns: u64, kind: Kind, node: usize) {
    world.set_timer(after_ns, TIMERS_FROM + kind as u64 * NODES_MAX + node as u64);
}
