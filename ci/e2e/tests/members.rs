//! Nodes that come to a cluster of real processes and go from it while it works: nothing that was answered is lost, and no
//! request fails.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_client::ConnectOptions;
use overtake_e2e::cluster::Cluster;
use overtake_e2e::history::{Enqueue, EnqueueOutcome, What};
use overtake_e2e::load;
use overtake_e2e::sdk_load::SdkLoad;
use overtake_e2e::time::sleep_ms;
use overtake_e2e::{eventually, now_ms};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// The nodes that hold a replica of each shard, as one node says; none while anything moves.
fn holders(cluster: &Cluster, seen_by: usize) -> Option<Vec<BTreeSet<u64>>> {
    let node = cluster.servers()[seen_by].to_string();
    let status = cluster.cli_alone(&["cluster", "status", "--connect", &node]);
    // The page of the HTTP API does not say what moves.
    let moves = ["moves to", "is coming", "is going"].iter().any(|words| status.stdout.contains(words));
    let still = status.code == Some(0) && !moves;
    let status = cluster.client(seen_by).get("/v1/cluster");
    let shards = status["shards"].as_array()?.clone();
    let of = |shard: &Value| {
        shard["replicas"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    still.then(|| shards.iter().map(of).collect())
}

#[track_caller]
fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let ended = cluster.cli(arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended.stdout
}

#[test]
fn a_node_joins_and_another_is_drained_and_removed_under_load_and_no_request_fails() {
    let mut cluster = Cluster::start(3);
    cluster.create("load", load::queue_config());
    let options = ConnectOptions {
        servers: cluster.servers().into_iter().map(Into::into).collect(),
        request_timeout: Duration::from_secs(5),
        ..ConnectOptions::default()
    };
    let clients = SdkLoad::start(options, "load", Duration::from_millis(4));
    sleep_ms(1_000);
    let refused = cluster.cli(&["cluster", "drain", "1"]);
    assert!(refused.stderr.contains("add a node first"), "{refused:?}");
    let fourth = cluster.join(1);
    clients.check_alive();
    let refused = cluster.cli(&["cluster", "remove", "1"]);
    assert!(refused.stderr.contains("drain it first"), "{refused:?}");
    let drained = done(&cluster, &["cluster", "drain", "1"]);
    assert!(drained.contains("holds nothing any more"), "{drained}");
    clients.check_alive();
    assert_eq!(cluster.leads(1)[0], 0);
    done(&cluster, &["cluster", "remove", "1"]);
    cluster.wait_until_ended(0);
    assert!(cluster.log(0).contains("was removed from its cluster"), "{}", cluster.log(0));
    sleep_ms(1_000);
    clients.check_alive();
    // What it knows of the cluster is in its folder.
    assert!(cluster.terminate(fourth).success());
    cluster.launch(fourth);
    cluster.wait_until_ready(fourth);
    sleep_ms(500);
    clients.stop_producing();

    for node in 1..4 {
        let all = eventually("every shard on the three that stay", || holders(&cluster, node));
        assert!(all.iter().all(|nodes| *nodes == [2, 3, 4].into()), "{all:?}");
    }
    let queue = cluster.queue(fourth, "load");
    let (history, _) = clients.judge(&queue, "");
    let given_up =
        |what: &What| matches!(what, What::Enqueue(Enqueue { outcome: EnqueueOutcome::Unknown, .. }));
    assert_eq!(history.iter().filter(|call| given_up(&call.what)).count(), 0);
}

#[test]
fn a_node_that_lost_its_disk_is_replaced_by_one_with_another_id() {
    let mut cluster = Cluster::start(3);
    cluster.create("jobs", json!({}));
    let ids: BTreeSet<String> =
        (0..60).map(|n| cluster.queue(0, "jobs").put(n % 3, &format!("{n}"))).collect();
    assert_eq!(ids.len(), 60);
    cluster.kill(2);
    std::fs::remove_dir_all(cluster.data(2)).expect("its folder is gone");
    let since = now_ms();
    let fourth = cluster.join(0);
    let replaced = done(&cluster, &["cluster", "replace", "3", "4"]);
    println!("replaced after {} ms: {replaced}", now_ms() - since);
    let all = eventually("every shard on three nodes", || holders(&cluster, 0));
    assert!(all.iter().all(|nodes| *nodes == [1, 2, 4].into()), "{all:?}");
    // Now that the newcomer holds everything, another one may be away.
    cluster.kill(0);
    eventually("the others to lead everything", || {
        let leads = cluster.leads(fourth);
        (leads[0] == 0 && leads.iter().sum::<usize>() == 6).then_some(())
    });
    let found = cluster.queue(fourth, "jobs").receive_count(60, json!({"lease_s": 600}));
    assert_eq!(found.into_iter().map(|message| message.id).collect::<BTreeSet<_>>(), ids);
    // Who does not answer is missed after a second.
    eventually("node 1 to be missed", || {
        let status = done(&cluster, &["cluster", "status"]);
        (status.contains("alive") && status.contains("away")).then_some(())
    });
}
