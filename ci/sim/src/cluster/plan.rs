//! What a seed decides of a run with several nodes: that of a run with one, and what else can go wrong.

use crate::disk::damage::Damage;
use crate::swarm::{FaultPlan, Swarm};
use overtake_base::random::Random;

/// Shards at most, so that a run stays cheap: each has a replica on several nodes.
const SHARDS_MAX: u16 = 8;
/// Longest time of faults, in milliseconds.
const ACTIVE_MS_MAX: u64 = 20_000;
/// Furthest that a wall clock is off at the beginning, in milliseconds.
const WALL_OFFSET_MS_MAX: u64 = 40;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// Nodes.
    pub nodes: usize,
    /// Workload, queues and each node.
    pub swarm: Swarm,
    /// What goes wrong.
    pub faults: ClusterFaults,
    /// Mean virtual time between two changes of the cluster by an operator in milliseconds, 0 = never.
    pub change_ms: u64,
}

/// Mean virtual time between two faults of a kind in milliseconds, 0 = never; and what goes with them.
#[derive(Clone, Copy, Default, Debug)]
pub struct ClusterFaults {
    /// One node loses its power, or its process ends.
    pub kill_ms: u64,
    /// All do.
    pub kill_all_ms: u64,
    pub down_ms_max: u64,
    /// A node is told to stop.
    pub stop_ms: u64,
    /// Ways between nodes are cut.
    pub cut_ms: u64,
    pub heal_ms_max: u64,
    /// A stream breaks.
    pub reset_ms: u64,
    /// A node stands still.
    pub pause_ms: u64,
    pub pause_ms_max: u64,
    /// One core of a node stands still as often as the whole node.
    pub core_pauses: bool,
    /// How often a message between two cores of a node takes longer, in parts per million.
    pub mesh_slow_ppm: u32,
    /// A ring between two cores of a node is full.
    pub mesh_stall_ms: u64,
    pub wall_jump_ms: u64,
    /// How far wall clocks are off, and how far monotonic clocks drift, at most.
    pub wall_offset_ms: u64,
    pub drift_ppm: u64,
    pub disk_hang_ms: u64,
    pub disk_hang_ms_max: u64,
    pub disk_slow_ppm: u32,
    pub net_slow_ppm: u32,
    pub disconnect_ms: u64,
    /// A disk is damaged while its node is down.
    pub damage_ms: u64,
    /// The kind of damage; none = any.
    pub damage: Option<Damage>,
    /// An operation of a disk fails.
    pub failure_ms: u64,
    /// A node's disks are full for a while.
    pub disk_full_ms: u64,
}

impl ClusterPlan {
    /// The run of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut swarm = Swarm::of_seed(seed);
        let mut random = Random::new(seed, "cluster swarm");
        let mut of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        swarm.faults = FaultPlan::default();
        swarm.shape.cores = of(&[1, 2, 2, 3]) as u16;
        swarm.shape.shards = swarm.shape.shards.min(SHARDS_MAX);
        for queue in &mut swarm.queues {
            queue.shards = queue.shards.min(SHARDS_MAX);
            if let Some(patch) = &mut queue.patch {
                patch.shards = Some(Some(queue.shards));
            }
        }
        swarm.shape.checkpoint_bytes = of(&[4_096, 16_384, 16_384, 65_536, 1_048_576]);
        swarm.shape.log_keep_bytes = of(&[0, 0, 4_000, 60_000, u64::MAX]);
        swarm.shape.snapshot_part_bytes = of(&[200, 3_000, 256 * 1024]) as usize;
        swarm.active_ms = swarm.active_ms.min(ACTIVE_MS_MAX);
        let calm = of(&[0, 0, 0, 0, 0, 1]) == 1;
        let faults = ClusterFaults {
            kill_ms: of(&[0, 2_000, 5_000, 10_000]),
            kill_all_ms: of(&[0, 0, 0, 8_000]),
            down_ms_max: of(&[10, 500, 3_000, 15_000]),
            stop_ms: of(&[0, 0, 5_000]),
            cut_ms: of(&[0, 0, 3_000, 6_000]),
            heal_ms_max: of(&[100, 2_000, 8_000]),
            reset_ms: of(&[0, 0, 300, 2_000]),
            pause_ms: of(&[0, 0, 4_000]),
            pause_ms_max: of(&[50, 1_000, 6_000]),
            wall_jump_ms: of(&[0, 0, 0, 3_000]),
            wall_offset_ms: of(&[0, 0, WALL_OFFSET_MS_MAX]),
            drift_ppm: of(&[0, 100]),
            disk_hang_ms: of(&[0, 0, 4_000]),
            disk_hang_ms_max: of(&[50, 1_000, 5_000]),
            disk_slow_ppm: of(&[0, 0, 5_000]) as u32,
            net_slow_ppm: of(&[0, 0, 5_000, 100_000]) as u32,
            disconnect_ms: of(&[0, 0, 2_000]),
            // Drawn below.
            core_pauses: false,
            mesh_slow_ppm: 0,
            mesh_stall_ms: 0,
            damage_ms: 0,
            damage: None,
            failure_ms: 0,
            disk_full_ms: 0,
        };
        let mut faults = if calm { ClusterFaults::default() } else { faults };
        let nodes = of(&[3, 3, 3, 3, 2, 4, 5]) as usize;
        // Whoever looks at a queue looks from several nodes.
        swarm.admins.count = swarm.admins.count.max(3);
        if of(&[0, 0, 0, 1]) == 1 {
            // A storm: what needs several faults in a row is met only where they are many.
            faults.kill_ms = of(&[700, 1_500]);
            faults.kill_all_ms = of(&[0, 1_500, 4_000]);
            faults.cut_ms = of(&[0, 700, 2_000]);
            faults.heal_ms_max = of(&[300, 1_500]);
            faults.down_ms_max = of(&[10, 300, 1_000]);
            swarm.admins.pause_us = swarm.admins.pause_us.min(100_000);
        }
        if nodes > 2 && !calm {
            faults.damage_ms = of(&[0, 0, 0, 2_000, 5_000]);
            let kind = of(&[0, 1, 2, 3, 4, 5, 5]) as usize;
            faults.damage = Damage::ALL.get(kind).copied();
        }
        if nodes == 2 && faults.kill_ms + faults.kill_all_ms + faults.stop_ms > 0 {
            // When both start at once nobody knows which one is right.
            faults.wall_jump_ms = 0;
        }
        let mut random = Random::new(seed, "cluster changes");
        let change_ms = [0, 0, 300, 1_500][random.below(4) as usize];
        if change_ms > 0 {
            // A wall clock that jumps on a minority: who that is changes.
            faults.wall_jump_ms = 0;
        }
        if !calm && swarm.shape.cores > 1 {
            // From a stream of its own, so that the rest of a seed's plan is what it was without.
            let mut random = Random::new(seed, "faults between cores");
            let mut of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
            faults.core_pauses = of(&[0, 0, 1]) == 1;
            faults.mesh_slow_ppm = of(&[0, 0, 20_000, 300_000]) as u32;
            faults.mesh_stall_ms = of(&[0, 0, 3_000]);
        }
        if !calm {
            let mut random = Random::new(seed, "cluster disks");
            let mut of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
            faults.failure_ms = of(&[0, 0, 0, 0, 4_000]);
            faults.disk_full_ms = of(&[0, 0, 0, 0, 5_000]);
            swarm.faults.disk_full_ms = faults.disk_full_ms;
        }
        Self { nodes, swarm, faults, change_ms }
    }
}
