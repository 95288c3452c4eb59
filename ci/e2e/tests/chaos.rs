//! A producer and a worker of the Rust client while the server is killed and the network fails: nothing that was
//! confirmed is lost, and nothing comes twice but as the contract allows.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_base::random::Random;
use overtake_client::ConnectOptions;
use overtake_e2e::checker::check;
use overtake_e2e::history::{End, Enqueue, EnqueueOutcome, What};
use overtake_e2e::load;
use overtake_e2e::sdk_load::SdkLoad;
use overtake_e2e::shape::text;
use overtake_e2e::time::sleep_ms;
use overtake_e2e::udp_proxy::UdpProxy;
use overtake_e2e::{Options, now_ms};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const FAULTS: u32 = 16;
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
        servers: vec![proxy.address()],
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
    overtake_e2e::eventually("the worker to be done with everything", || {
        let stats = load::counts_of(&queue.stats());
        (stats.visible + stats.delayed + stats.leased == 0).then_some(())
    });
    let (mut history, report) = clients.finish();
    let (rest, counts) = load::drain(&queue);
    history.extend(rest);
    let dead: BTreeSet<String> = queue.dlq().iter().map(|letter| text(letter, "id").to_owned()).collect();
    let end = End { live: BTreeSet::new(), dead, counts, max_deliveries: load::MAX_DELIVERIES };
    let violations = check(&history, &end);
    println!("{} calls, {report:?}, {counts:?}", history.len());
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
    assert!(of("stored") > 500 && of("delivered again") > 10, "the run tried too little: {count:?}");
}
