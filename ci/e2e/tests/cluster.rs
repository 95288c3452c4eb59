//! Three real processes that are one cluster: any node serves any queue, and nothing that was answered is lost when one of
//! them is killed, stands still, or is started anew.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_base::random::Random;
use overtake_client::ConnectOptions;
use overtake_e2e::cluster::Cluster;
use overtake_e2e::going::Going;
use overtake_e2e::history::{Enqueue, EnqueueOutcome, What};
use overtake_e2e::load;
use overtake_e2e::scratch::Scratch;
use overtake_e2e::sdk_load::SdkLoad;
use overtake_e2e::server::{free_address, kill_at_once, refused};
use overtake_e2e::time::sleep_ms;
use overtake_e2e::{Client, Queue, eventually, now_ms};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

#[test]
fn every_node_serves_every_queue() {
    let cluster = Cluster::start(3);
    cluster.create("jobs", json!({"levels": 3}));
    let mut ids = BTreeSet::new();
    for node in 0..3 {
        let queue = eventually("the queue on every node", || {
            let queue = cluster.queue(node, "jobs");
            let reply = queue.client().try_call("GET", &queue.path(""), &[], None);
            reply.is_ok_and(|reply| reply.status == 200).then_some(queue)
        });
        for number in 0..20 {
            ids.insert(queue.put(number % 3, &format!("{node}-{number}")));
        }
    }
    assert_eq!(ids.len(), 60);
    // What one node received another may settle; each sees what is left.
    for (node, left) in [(0, 40), (1, 20), (2, 0)] {
        let messages = cluster.queue(node, "jobs").receive_count(20, json!({"lease_s": 600}));
        for message in &messages {
            assert!(ids.remove(&message.id), "{message:?} came twice");
        }
        let receipts: Vec<&str> = messages.iter().map(|message| message.receipt.as_str()).collect();
        let settled = cluster.queue((node + 1) % 3, "jobs").settle(json!({"ack": receipts}));
        assert!(receipts.iter().all(|receipt| settled[*receipt] == "ok"), "{settled}");
        let counts = load::counts_of(&cluster.queue((node + 2) % 3, "jobs").stats());
        assert_eq!((counts.visible, counts.acked), (left, 60 - left));
    }
    // A receive that waits on one node is woken by a message from another.
    let waiter = {
        let queue = cluster.queue(1, "jobs");
        std::thread::spawn(move || queue.receive(json!({"wait_s": 20})))
    };
    sleep_ms(300);
    let id = cluster.queue(2, "jobs").put(0, "wake up");
    let woken = waiter.join().expect("a waiter");
    assert_eq!(woken.iter().map(|message| &message.id).collect::<Vec<_>>(), [&id]);
}

#[test]
fn a_cluster_tells_how_it_is() {
    let mut cluster = Cluster::start(3);
    let status = eventually("leaders on every node", || {
        let status = cluster.cli(&["cluster", "status"]);
        (status.code == Some(0) && cluster.leads(0) == [2, 2, 2]).then_some(status)
    });
    assert!(status.stdout.matches("alive").count() == 3, "{status:?}");
    let metrics = String::from_utf8(cluster.client(0).call("GET", "/metrics").body).expect("text");
    assert!(metrics.contains("\novertake_peer_links 2\n"), "{metrics}");
    assert!(metrics.contains("\novertake_shards_led 2\n"), "{metrics}");

    // Two of three go on, one alone does not, and says so.
    cluster.kill(2);
    eventually("the others to lead its shards", || {
        let leads = cluster.leads(0);
        (leads[2] == 0 && leads.iter().sum::<usize>() == 6).then_some(())
    });
    assert_eq!(cluster.ready_status(0), Some(200));
    eventually("the links to be missed", || {
        cluster.cli(&["cluster", "status"]).stdout.contains("away").then_some(())
    });
    cluster.kill(1);
    eventually("the last one to know that it is alone", || {
        (cluster.ready_status(0) == Some(503)).then_some(())
    });
    cluster.launch(1);
    cluster.launch(2);
    cluster.wait_until_all_are_ready();
}

/// A load on all nodes while `fault` is done again and again; gives how many enqueues were given up.
fn under_load(times: u32, pause_ms: u64, mut fault: impl FnMut(&mut Cluster, u32, &mut Random)) -> usize {
    let seed = now_ms();
    println!("seed {seed}");
    let mut cluster = Cluster::start(3);
    cluster.create("load", load::queue_config());
    let options = ConnectOptions {
        servers: cluster.servers().into_iter().map(Into::into).collect(),
        request_timeout: Duration::from_secs(5),
        ..ConnectOptions::default()
    };
    let clients = SdkLoad::start(options, "load", Duration::from_millis(4));
    let mut random = Random::new(seed, "faults");
    for time in 0..times {
        sleep_ms(pause_ms + random.below(pause_ms));
        clients.check_alive();
        fault(&mut cluster, time, &mut random);
    }
    sleep_ms(500);
    clients.stop_producing();
    cluster.wait_until_all_are_ready();
    let queue = cluster.queue(0, "load");
    let (history, counts) = clients.judge(&queue, &format!("seed {seed}"));
    let enqueued = |given_up: bool| {
        let is = |what: &What| match what {
            What::Enqueue(Enqueue { outcome, .. }) => (*outcome == EnqueueOutcome::Unknown) == given_up,
            _ => false,
        };
        history.iter().filter(|call| is(&call.what)).count()
    };
    assert!(enqueued(false) > 500, "the run tried too little");
    // Every node has the same to tell.
    for node in 1..3 {
        assert_eq!(load::counts_of(&cluster.queue(node, "load").stats()), counts);
    }
    enqueued(true)
}

#[test]
fn kill_9_of_any_node_breaks_no_promise() {
    let given_up = under_load(6, 500, |cluster, time, random| {
        let node = (time % 3) as usize;
        cluster.kill(node);
        sleep_ms(random.below(2_500));
        cluster.launch(node);
        cluster.wait_until_ready(node);
    });
    assert_eq!(given_up, 0, "a minute of trying is longer than any fault");
}

#[test]
fn a_node_that_stands_still_breaks_no_promise() {
    let given_up = under_load(3, 800, |cluster, time, _| cluster.freeze(time as usize, 3_000));
    assert_eq!(given_up, 0);
}

#[test]
fn a_rolling_restart_fails_no_request() {
    let given_up = under_load(3, 1_500, |cluster, time, _| {
        let node = time as usize;
        assert!(cluster.terminate(node).success());
        cluster.launch(node);
        cluster.wait_until_ready(node);
    });
    assert_eq!(given_up, 0);
}

#[test]
fn who_does_not_belong_stays_outside() {
    let mut cluster = Cluster::start(3);
    let foreign = Cluster::prepare(3, 6, 1);
    // With certificates of another cluster its own data folder is refused.
    cluster.terminate(2);
    let mut command = cluster.command(2);
    command.arg("--data").arg(cluster.data(2));
    let wrong_certificates = |command: &mut std::process::Command, data: &std::path::Path| {
        let mut changed = overtake_e2e::binary::command();
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--cert-dir") => {
                    words.next();
                    changed.arg(word).arg(foreign.cert_dir());
                }
                Some("--data") => {
                    words.next();
                }
                _ => {
                    changed.arg(word);
                }
            }
        }
        changed.arg("--data").arg(data);
        changed
    };
    let line = refused(wrong_certificates(&mut command, &cluster.data(2)));
    assert!(line.contains("node 3 of cluster"), "{line}");

    // With a folder of its own it starts, and is refused by the others; both sides say why.
    let other = cluster.scratch().join("other");
    let stranger = wrong_certificates(&mut command, &other);
    cluster.launch_as(2, stranger);
    eventually("both sides to say why", || {
        let theirs = cluster.log(2).contains("certificate");
        let ours = (0..2).all(|node| {
            cluster.log(node).contains("certificate is not taken")
                || cluster.log(node).contains("does not take this node's certificate")
        });
        (theirs && ours).then_some(())
    });
    assert_eq!(cluster.leads(0)[2], 0);
    cluster.kill(2);

    // The right node with an empty folder has forgotten what it promised: it is refused, too.
    let mut forgetful = cluster.command(2);
    let words: Vec<_> = forgetful.get_args().map(ToOwned::to_owned).collect();
    let at = words.iter().position(|word| word == "--data").expect("a data folder") + 1;
    forgetful = overtake_e2e::binary::command();
    for (index, word) in words.iter().enumerate() {
        if index == at {
            forgetful.arg(cluster.scratch().join("empty"))
        } else {
            forgetful.arg(word)
        };
    }
    cluster.launch_as(2, forgetful);
    eventually("the loss to be told", || {
        (0..3).all(|node| cluster.log(node).contains("another data folder than before")).then_some(())
    });
    assert_eq!(cluster.ready_status(0), Some(200));
    cluster.kill(2);
    cluster.launch(2);
    cluster.wait_until_ready(2);
}

#[test]
fn clients_without_a_certificate_stay_outside_where_one_is_wanted() {
    let mut cluster = Cluster::prepare(3, 6, 1);
    for node in 0..3 {
        let mut command = cluster.command(node);
        command.arg("--client-certificates");
        cluster.launch_as(node, command);
    }
    // Its own gateway is a client that has one.
    cluster.wait_until_all_are_ready();
    cluster.create("jobs", json!({}));
    let refused = cluster.cli(&["queue", "list"]);
    assert_eq!(refused.code, Some(7), "{refused:?}");
    assert!(refused.stderr.contains("--cert"), "{refused:?}");
    let folder = cluster.cert_dir();
    let issued =
        cluster.cli_alone(&["cert", "client", "tester", "--cert-dir", &folder.display().to_string()]);
    assert_eq!(issued.code, Some(0), "{issued:?}");
    let file = |name: &str| folder.join(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("client-tester.pem"), file("client-tester.key"));
    let listed = cluster.cli(&["queue", "list", "--ca", &ca, "--cert", &cert, "--key", &key]);
    assert!(listed.stdout.contains("jobs"), "{listed:?}");
}

/// Ends what a parent that was killed would leave behind.
struct Nodes(Vec<u32>);

impl Drop for Nodes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(|pid| kill_at_once(*pid));
        }
    }
}

#[test]
fn dev_runs_a_cluster_and_tells_of_a_node_that_ended() {
    let scratch = Scratch::new();
    let first = free_address();
    let at = |by| SocketAddr::new(first.ip(), first.port() + by).to_string();
    let mut command = overtake_e2e::binary::command();
    command.args([
        "dev",
        "--nodes",
        "3",
        "--cores",
        "1",
        "--shards",
        "3",
        "--quic",
        &at(0),
        "--http",
        &at(1),
    ]);
    command.arg("--data").arg(scratch.path().join("data"));
    let dev = Going::start(command);
    let nodes = eventually("three nodes", || {
        let children = dev.children();
        (children.len() == 3).then_some(Nodes(children))
    });
    dev.says("The cluster is running.");
    dev.says(&format!("--connect {},{},{}", at(0), at(10), at(20)));
    let third = Queue::new(Client::new(SocketAddr::new(first.ip(), first.port() + 21)), "jobs");
    let id = third.put(1, "hello");
    kill_at_once(nodes.0[1]);
    dev.says("node 2 ended (signal: 9 (SIGKILL)); 2 still run. Start it again with:");
    dev.says("--node-id 2 --zone zone-2");
    let first = Queue::new(Client::new(at(1).parse().expect("an address")), "jobs");
    eventually("the message from the nodes that are left", || {
        let reply = first.client().try_json("POST", &first.path("/receive"), &json!({})).ok()?;
        (reply.status == 200 && reply.text().contains(&id)).then_some(())
    });
    let ended = dev.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(nodes.0.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
}

#[test]
fn what_makes_no_node_of_a_cluster_is_refused_at_the_start() {
    let cluster = Cluster::prepare(3, 6, 1);
    let missing = cluster.cert_dir().join("node-1.key");
    let key = std::fs::read(&missing).expect("a key");
    std::fs::remove_file(&missing).expect("a key");
    assert!(refused(cluster.command(0)).contains("node-1.key"));
    std::fs::copy(cluster.cert_dir().join("node-2.key"), &missing).expect("a key");
    assert!(refused(cluster.command(0)).contains("certificate or its key"));
    std::fs::write(&missing, key).expect("a key");
    let other = cluster.cert_dir().join("node-1.pem");
    std::fs::copy(cluster.cert_dir().join("node-2.pem"), other).expect("a certificate");
    assert!(refused(cluster.command(0)).contains("certificate of node 2"));
}
