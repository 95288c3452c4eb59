//! Ways to make a plan smaller, by name: what shrinking tries, and what the command that replays a shrunk plan says.

use crate::cluster::plan::ClusterPlan;
use crate::run::Report;
use crate::swarm::Swarm;
use core::fmt;
use core::str::FromStr;

/// Shortest active time that is tried, in milliseconds.
const ACTIVE_MS_MIN: u64 = 50;

macro_rules! reductions {
    ($($reduction:ident $name:literal $change:expr,)+) => {
        /// One way to make a plan smaller.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Reduction {
            $(#[doc = $name] $reduction,)+
        }

        impl Reduction {
            /// All, the ones that take most away first.
            pub const ALL: &'static [Self] = &[$(Self::$reduction),+];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$reduction => $name,)+ }
            }

            fn apply(self, plan: &mut Swarm) {
                match self {
                    $(Self::$reduction => {
                        let change: fn(&mut Swarm) = $change;
                        change(plan);
                    })+
                }
            }
        }
    };
}

reductions! {
    ThreeNodes "three-nodes" |_| {},
    TwoNodes "two-nodes" |_| {},
    NoChanges "no-changes" |_| {},
    HalfTime "half-time" |plan| plan.active_ms = (plan.active_ms / 2).max(ACTIVE_MS_MIN),
    FirstQueue "first-queue" |plan| plan.queues.truncate(1),
    LastQueue "last-queue" |plan| { let last = plan.queues.len() - 1; plan.queues.drain(..last); },
    FewerQueues "fewer-queues" |plan| { let half = plan.queues.len().div_ceil(2); plan.queues.truncate(half); },
    NoPowerLosses "no-power-losses" |plan| plan.faults.power_loss_ms = 0,
    NoKills "no-kills" |plan| plan.faults.kill_ms = 0,
    NoStops "no-stops" |plan| plan.faults.stop_ms = 0,
    NoEndsInRecovery "no-ends-in-recovery" |plan| plan.faults.recovery_ends_ppm = 0,
    NoWallJumps "no-wall-jumps" |plan| plan.faults.wall_jump_ms = 0,
    NoWallFreezes "no-wall-freezes" |plan| plan.faults.wall_freeze_ms = 0,
    NoWallDrift "no-wall-drift" |plan| plan.faults.wall_drift_ppm = 0,
    NoHangs "no-hangs" |plan| plan.faults.disk_hang_ms = 0,
    NoSlowDisk "no-slow-disk" |plan| plan.faults.disk_slow_ppm = 0,
    NoFullDisk "no-full-disk" |plan| plan.faults.disk_full_ms = 0,
    NoSlowMesh "no-slow-mesh" |plan| plan.faults.mesh_slow_ppm = 0,
    NoFullRings "no-full-rings" |plan| plan.faults.mesh_stall_ms = 0,
    NoSlowLinks "no-slow-links" |plan| plan.faults.link_slow_ppm = 0,
    NoPauses "no-pauses" |plan| plan.faults.pause_ms = 0,
    NoDisconnects "no-disconnects" |plan| plan.faults.disconnect_ms = 0,
    NoDamage "no-damage" |plan| plan.faults.damage_ms = 0,
    NoFailures "no-failures" |plan| plan.faults.failure_ms = 0,
    NoKillsOfAll "no-kills-of-all" |_| {},
    NoCuts "no-cuts" |_| {},
    NoResets "no-resets" |_| {},
    NoSlowNet "no-slow-net" |_| {},
    NoWallOffsets "no-wall-offsets" |_| {},
    NoDrift "no-drift" |_| {},
    OneCore "one-core" |plan| plan.shape.cores = 1,
    TwoCores "two-cores" |plan| plan.shape.cores = plan.shape.cores.min(2),
    OneShard "one-shard" |plan| {
        plan.shape.shards = 1;
        plan.queues.iter_mut().for_each(|queue| queue.set_shards(1));
    },
    NoAdmins "no-admins" |plan| plan.admins.count = 0,
    NoConsumers "no-consumers" |plan| plan.consumers.count = 0,
    OneConsumer "one-consumer" |plan| plan.consumers.count = plan.consumers.count.min(1),
    NoProducers "no-producers" |plan| plan.producers.count = 0,
    OneProducer "one-producer" |plan| plan.producers.count = plan.producers.count.min(1),
    OneAfterTheOther "one-after-the-other" |plan| {
        for clients in [&mut plan.producers, &mut plan.consumers, &mut plan.admins] {
            clients.depth = 1;
        }
    },
    OneWriteAtATime "one-write-at-a-time" |plan| plan.shape.writes_in_flight_max = 1,
    NoRate "no-rate" |plan| plan.shape.enqueue_per_s = None,
    NoIds "no-ids" |plan| plan.messages.client_ids_ppm = 0,
    NoKeys "no-keys" |plan| plan.messages.dedup_keys_ppm = 0,
    NoDelays "no-delays" |plan| plan.messages.delays_ppm = 0,
    NoExpiry "no-expiry" |plan| plan.messages.expiry_ppm = 0,
    NoHeaders "no-headers" |plan| plan.messages.headers_ppm = 0,
    NoHugeBodies "no-huge-bodies" |plan| plan.messages.huge_bodies_ppm = 0,
    SmallBodies "small-bodies" |plan| plan.messages.body_bytes_max = plan.messages.body_bytes_max.min(20),
    NoBatches "no-batches" |plan| plan.messages.batches_ppm = 0,
    NoRepeats "no-repeats" |plan| plan.messages.repeats_ppm = 0,
    NoWaits "no-waits" |plan| plan.work.waits_ppm = 0,
    NoCeilings "no-ceilings" |plan| plan.work.ceilings_ppm = 0,
    NoExtends "no-extends" |plan| plan.work.extend_ppm = 0,
    NoReleases "no-releases" |plan| plan.work.release_ppm = 0,
    NoStaleReceipts "no-stale-receipts" |plan| plan.work.stale_ppm = 0,
    NoCancelledReceives "no-cancelled-receives" |plan| plan.work.cancel_receive_ppm = 0,
    OneAtATime "one-at-a-time" |plan| plan.work.receive_max = 1,
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reduction {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().copied().find(|reduction| reduction.name() == name);
        known.ok_or_else(|| format!("there is no reduction {name}; a failing seed prints those that fit"))
    }
}

/// A run before it happens, of one node or of several.
pub trait Plan: fmt::Debug + Sized {
    /// That of a seed.
    fn of_seed(seed: u64) -> Self;
    /// Makes it smaller.
    fn reduce(&mut self, reduction: Reduction);
    /// Runs it. With `told`, the last events are kept in words.
    fn run(self, seed: u64, told: bool) -> Report;
}

impl Plan for Swarm {
    fn of_seed(seed: u64) -> Self {
        Self::of_seed(seed)
    }

    fn reduce(&mut self, reduction: Reduction) {
        reduction.apply(self);
    }

    fn run(self, seed: u64, told: bool) -> Report {
        crate::run::run_plan(seed, self, told)
    }
}

impl Plan for ClusterPlan {
    fn of_seed(seed: u64) -> Self {
        Self::of_seed(seed)
    }

    fn reduce(&mut self, reduction: Reduction) {
        reduction.apply(&mut self.swarm);
        let faults = &mut self.faults;
        match reduction {
            Reduction::ThreeNodes => self.nodes = self.nodes.min(3),
            Reduction::TwoNodes => {
                self.nodes = self.nodes.min(2);
                // With one of two gone nobody knows what is right.
                (faults.damage_ms, faults.wall_jump_ms) = (0, 0);
            }
            Reduction::NoChanges => self.change_ms = 0,
            Reduction::NoKills => faults.kill_ms = 0,
            Reduction::NoKillsOfAll => faults.kill_all_ms = 0,
            Reduction::NoStops => faults.stop_ms = 0,
            Reduction::NoCuts => faults.cut_ms = 0,
            Reduction::NoResets => faults.reset_ms = 0,
            Reduction::NoPauses => faults.pause_ms = 0,
            Reduction::NoWallJumps => faults.wall_jump_ms = 0,
            Reduction::NoWallOffsets => faults.wall_offset_ms = 0,
            Reduction::NoDrift => faults.drift_ppm = 0,
            Reduction::NoHangs => faults.disk_hang_ms = 0,
            Reduction::NoSlowDisk => faults.disk_slow_ppm = 0,
            Reduction::NoSlowNet => faults.net_slow_ppm = 0,
            Reduction::NoSlowMesh => faults.mesh_slow_ppm = 0,
            Reduction::NoFullRings => faults.mesh_stall_ms = 0,
            Reduction::NoDisconnects => faults.disconnect_ms = 0,
            Reduction::NoDamage => faults.damage_ms = 0,
            Reduction::NoFailures => faults.failure_ms = 0,
            Reduction::NoFullDisk => faults.disk_full_ms = 0,
            _ => {}
        }
    }

    fn run(self, seed: u64, told: bool) -> Report {
        crate::cluster::run::run_plan(seed, self, told)
    }
}

/// The plan of a seed, made smaller.
#[must_use]
pub fn reduced<P: Plan>(seed: u64, reductions: &[Reduction]) -> P {
    let mut plan = P::of_seed(seed);
    reductions.iter().for_each(|reduction| plan.reduce(*reduction));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes<P: Plan>(reduction: Reduction) -> bool {
        let text = |seed, reductions: &[Reduction]| format!("{:?}", reduced::<P>(seed, reductions));
        (0..300).any(|seed| text(seed, &[reduction]) != text(seed, &[]))
    }

    #[test]
    fn names_are_read_back_and_each_reduction_reduces_some_plan() {
        for reduction in Reduction::ALL {
            assert_eq!(reduction.to_string().parse(), Ok(*reduction));
            let reduces = changes::<Swarm>(*reduction) || changes::<ClusterPlan>(*reduction);
            assert!(reduces, "{reduction} changes nothing");
        }
        assert!("no-such-thing".parse::<Reduction>().is_err());
    }
}
