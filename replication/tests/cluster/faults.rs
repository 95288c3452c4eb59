//! Clusters of three and five nodes under crashes, partitions, and loss, reordering and duplication of messages; then
//! the faults stop and work must go on.

use crate::sim::{CALM, Cluster, Faults};
use overtake_base::NodeId;
use overtake_base::random::Random;

/// A mix of faults drawn from a seed: some worlds only lose messages, some only crash.
fn world(seed: u64) -> Faults {
    let mut random = Random::new(seed, "world");
    let mut chance = |most_ppm: u64| {
        let drawn = random.below(most_ppm) as u32;
        if random.chance_ppm(400_000) { 0 } else { drawn }
    };
    Faults {
        loss: chance(300_000),
        duplication: chance(300_000),
        delay_rounds: 1 + u64::from(chance(6)),
        crash: chance(20_000),
        restart: 50_000 + chance(200_000),
        partition: chance(30_000),
        heal: 10_000 + chance(100_000),
        slow_disk: chance(800_000),
        slow_clock: chance(500_000),
    }
}

fn settle(cluster: &mut Cluster, seed: u64) {
    let before = cluster.committed.len();
    for _ in 0..400 {
        cluster.round(CALM);
    }
    assert!(cluster.committed.len() > before + 100, "seed {seed}: no progress after the faults stopped");
    cluster.busy = false;
    for _ in 0..40 {
        cluster.round(CALM);
    }
    assert!(cluster.is_settled(), "seed {seed}: the nodes do not agree in the end");
}

fn run(size: u64, seed: u64, rounds: u64) -> Cluster {
    let mut cluster = Cluster::new(size, seed);
    let faults = world(seed);
    for _ in 0..rounds {
        cluster.round(faults);
    }
    settle(&mut cluster, seed);
    cluster
}

#[test]
fn three_nodes_keep_one_log() {
    let committed: usize = (0..120).map(|seed| run(3, seed, 400).committed.len()).sum();
    assert!(committed > 20_000, "the worlds were so bad that nothing was tested: {committed}");
}

#[test]
fn five_nodes_keep_one_log() {
    for seed in 1_000..1_060 {
        run(5, seed, 400);
    }
}

#[test]
fn a_run_repeats_exactly() {
    for seed in [3, 17, 40] {
        let (a, b) = (run(3, seed, 300), run(3, seed, 300));
        assert_eq!((a.trace, a.committed), (b.trace, b.committed), "seed {seed}");
    }
}

fn calm_cluster() -> (Cluster, NodeId) {
    let mut cluster = Cluster::new(3, 5);
    for _ in 0..100 {
        cluster.round(CALM);
    }
    let leader = cluster.leader().unwrap();
    (cluster, leader)
}

/// The faults' chances of a world where nothing heals or restarts by itself.
const STILL: Faults = Faults { heal: 0, restart: 0, ..CALM };

#[test]
fn a_leader_that_loses_its_quorum_steps_down_and_another_serves() {
    for both in [true, false] {
        let (mut cluster, old) = calm_cluster();
        cluster.isolate(old, both);
        for _ in 0..100 {
            cluster.round(STILL);
        }
        assert!(!cluster.is_leader(old), "a leader that hears nobody must not go on leading");
        assert!(cluster.leader().is_some(), "the others elect a leader");
    }
}

#[test]
fn a_node_that_comes_back_disturbs_nobody() {
    let (mut cluster, leader) = calm_cluster();
    let follower = NodeId(leader.0 % 3 + 1);
    let term = cluster.terms();
    cluster.isolate(follower, true);
    for _ in 0..200 {
        cluster.round(STILL);
    }
    for _ in 0..100 {
        cluster.round(CALM);
    }
    assert_eq!((cluster.leader(), cluster.terms()), (Some(leader), term), "pre-votes change no term");
}
