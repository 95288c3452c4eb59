//! Clusters of three and five replicas of one shard, and what a partition does to a leader and a follower.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use overtake_base::NodeId;
use overtake_sim::groups::{CALM, Cluster, Faults, run};

#[test]
fn replicas_keep_one_log() {
    let mut committed = 0;
    for seed in 0..160 {
        let report = run(seed);
        assert!(report.violations.is_empty(), "seed {seed}: {:?}", report.violations);
        committed += report.committed;
    }
    assert!(committed > 20_000, "the worlds were so bad that nothing was tested: {committed}");
}

#[test]
fn a_run_repeats_exactly() {
    for seed in [3, 17, 40] {
        let (a, b) = (run(seed), run(seed));
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
