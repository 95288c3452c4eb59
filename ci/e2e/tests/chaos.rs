//! A producer and a worker of the Rust client, and of the Python client, while the server is killed and the network
//! fails: nothing that was confirmed is lost, and nothing comes twice but as the contract allows.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_base::random::Random;
use overtake_client::ConnectOptions;
use overtake_e2e::checker::check;
use overtake_e2e::history::{
    Action, Call, Delivery, End, Enqueue, EnqueueOutcome, Settle, SettleOutcome, What,
};
use overtake_e2e::load;
use overtake_e2e::python::python;
use overtake_e2e::sdk_load::SdkLoad;
use overtake_e2e::shape::{count, text};
use overtake_e2e::tcp_proxy::TcpProxy;
use overtake_e2e::time::sleep_ms;
use overtake_e2e::udp_proxy::UdpProxy;
use overtake_e2e::{Options, Queue, now_ms};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const FAULTS: u32 = 16;
/// Lease of the Python worker's messages.
const LEASE_S: u32 = 2;
/// Longer than a client waits for a sign of life, so that it gives up its connections.
const OUTAGE_MS: u64 = 6_000;

#[test]
fn a_producer_and_a_worker_lose_nothing_while_everything_fails() {
    let seed = now_ms();
    println!("seed {seed}");
    let mut server = Options { cores: 2, ..Options::default() }.start();
    let queue = server.create("chaos", load::queue_config());
    let proxy = UdpProxy::start(server.quic(), seed);
    let options = ConnectOptions {
        servers: vec![proxy.address().into()],
        connections: 2,
        request_timeout: Duration::from_secs(3),
        ..ConnectOptions::default()
    };
    let clients = SdkLoad::start(options, "chaos", Duration::from_millis(3));
    let mut random = Random::new(seed, "faults");
    for fault in 0..FAULTS {
        sleep_ms(200 + random.below(500));
        clients.check_alive();
        match fault % 8 {
            0 | 2 | 4 | 6 => {
                server.kill();
                sleep_ms(random.below(300));
                server.start_again();
            }
            1 => proxy.move_clients(),
            3 => {
                proxy.lose(1_000_000);
                sleep_ms(200 + random.below(1_000));
                proxy.lose(0);
            }
            5 => {
                proxy.lose(100_000);
                sleep_ms(1_000);
                proxy.lose(0);
            }
            _ => {
                proxy.lose(1_000_000);
                sleep_ms(if fault < 8 { OUTAGE_MS } else { 300 });
                proxy.lose(0);
            }
        }
    }
    clients.stop_producing();
    wait_until_done(&queue);
    let (history, report) = clients.finish();
    println!("{report:?}");
    judge(seed, &queue, history, 500);
}

/// Waits until the worker has nothing left to do.
#[track_caller]
fn wait_until_done(queue: &Queue) {
    overtake_e2e::eventually("the worker to be done with everything", || {
        let stats = load::counts_of(&queue.stats());
        (stats.visible + stats.delayed + stats.leased == 0).then_some(())
    });
}

/// Holds what the clients saw, and what is left, against the contract. A run that stored less proves nothing.
#[track_caller]
fn judge(seed: u64, queue: &Queue, mut history: Vec<Call>, stored_min: u64) {
    let (rest, counts) = load::drain(queue);
    history.extend(rest);
    let dead: BTreeSet<String> = queue.dlq().iter().map(|letter| text(letter, "id").to_owned()).collect();
    let end = End { live: BTreeSet::new(), dead, counts, max_deliveries: load::MAX_DELIVERIES };
    let violations = check(&history, &end);
    println!("{} calls, {counts:?}", history.len());
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");

    let mut count: BTreeMap<&str, u64> = BTreeMap::new();
    for call in &history {
        let what = match &call.what {
            What::Enqueue(Enqueue { outcome: EnqueueOutcome::Accepted { duplicate: true, .. }, .. }) => {
                "stored by a try whose answer was lost"
            }
            What::Enqueue(Enqueue { outcome: EnqueueOutcome::Accepted { .. }, .. }) => "stored",
            What::Enqueue(_) => "given up",
            What::Receive(deliveries) if deliveries.iter().any(|d| d.deliveries > 1) => "delivered again",
            _ => continue,
        };
        *count.entry(what).or_default() += 1;
    }
    println!("{count:?}");
    let of = |what| count.get(what).copied().unwrap_or(0);
    assert_eq!(of("given up"), 0, "a minute of trying is longer than any fault: {count:?}");
    let enough = of("stored") > stored_min && of("delivered again") > stored_min / 50;
    assert!(enough, "the run tried too little: {count:?}");
}

#[test]
fn python_threads_lose_nothing_while_everything_fails() {
    python_clients("threads");
}

#[test]
fn python_tasks_lose_nothing_while_everything_fails() {
    python_clients("tasks");
}

/// What `python/chaos.py` says it saw.
fn calls_of(said: &Value) -> Vec<Call> {
    let (start_ms, end_ms) = (count(said, "start_ms"), count(said, "end_ms"));
    let call = |what| Call { start_ms, end_ms, what };
    let key = said["key"].as_str().map(str::to_owned);
    let enqueue = |outcome| {
        let id = said["id"].as_str().unwrap_or("by a key").to_owned();
        vec![call(What::Enqueue(Enqueue { id, key: key.clone(), due_ms: 0, expires_in_ms: None, outcome }))]
    };
    match text(said, "what") {
        "stored" => enqueue(EnqueueOutcome::Accepted {
            id: text(said, "id").to_owned(),
            duplicate: said["duplicate"] == true,
        }),
        "unknown" => {
            println!("{said}");
            enqueue(EnqueueOutcome::Unknown)
        }
        "delivered" => {
            let (id, deliveries) = (text(said, "id").to_owned(), count(said, "deliveries"));
            let delivery = Delivery {
                receipt: text(said, "receipt").to_owned(),
                deliveries,
                lease_expires_at_ms: count(said, "lease_expires_at_ms"),
                intact: said["intact"] == true,
                id: id.clone(),
            };
            let action = match text(said, "settles") {
                "release" => Action::Release { delay_ms: 0 },
                _ => Action::Ack,
            };
            let settle = Settle { id, deliveries, action, outcome: SettleOutcome::Unknown };
            // Told to the server by the worker, at some time, and again until it is heard.
            let settle = Call { start_ms: end_ms, end_ms: u64::MAX, what: What::Settle(settle) };
            vec![call(What::Receive(vec![delivery])), settle]
        }
        other => panic!("{other} in {said}"),
    }
}

fn python_clients(kind: &str) {
    let Some(mut python) = python(Path::new(env!("CARGO_TARGET_TMPDIR"))) else { return };
    let seed = now_ms();
    println!("seed {seed}");
    let mut server = Options { cores: 2, ..Options::default() }.start();
    let queue = server.create("chaos", load::queue_config());
    let proxy = TcpProxy::start(server.http());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/chaos.py");
    python.arg(program).args([kind, &format!("http://{}", proxy.address()), "chaos", &LEASE_S.to_string()]);
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut clients = python.spawn().expect("Python starts");
    let (stdout, stderr) = (clients.stdout.take().expect("piped"), clients.stderr.take().expect("piped"));
    let warnings = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
    let (produced, all_produced) = std::sync::mpsc::channel();
    let said = std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let mut said = Vec::new();
        for line in lines {
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if line["what"] == "produced" {
                let _ = produced.send(());
            } else {
                said.push(line);
            }
        }
        said
    });

    let mut random = Random::new(seed, "faults");
    for fault in 0..FAULTS {
        sleep_ms(200 + random.below(500));
        match fault % 8 {
            0 | 2 | 4 | 6 => {
                server.kill();
                sleep_ms(random.below(300));
                server.start_again();
            }
            1 => proxy.cut(),
            3 => {
                proxy.refuse(true);
                proxy.cut();
                sleep_ms(200 + random.below(1_000));
                proxy.refuse(false);
            }
            5 => {
                proxy.hold_back(true);
                sleep_ms(200 + random.below(1_000));
                proxy.hold_back(false);
            }
            _ => {
                proxy.hold_back(true);
                sleep_ms(if fault < 8 { OUTAGE_MS } else { 300 });
                proxy.cut();
                proxy.hold_back(false);
            }
        }
    }
    let mut stdin = clients.stdin.take().expect("piped");
    let told = stdin.write_all(b"\n");
    if told.is_err() || all_produced.recv_timeout(Duration::from_secs(90)).is_err() {
        let _ = clients.kill();
        panic!("the clients ended or hang: {}", warnings.join().expect("a reader"));
    }
    wait_until_done(&queue);
    drop(stdin);
    let status = clients.wait().expect("a child");
    let (mut said, warnings) = (said.join().expect("a reader"), warnings.join().expect("a reader"));
    assert!(status.success(), "{warnings}");
    println!("{} warnings, {}", warnings.lines().count(), said.pop().unwrap_or_default());
    judge(seed, &queue, said.iter().flat_map(calls_of).collect(), 100);
}
