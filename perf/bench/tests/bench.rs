//! Every measurement runs to its end against a server in memory, and what it prints is what happened.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../net/client/tests/common/mod.rs"]
mod common;

use clap::Parser;
use common::{Act, Fake};
use overtake_perf::bench::{BenchOptions, run};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: BenchOptions,
}

fn options(fake: &Fake, more: &str) -> BenchOptions {
    let connect = fake.address.to_string();
    let fixed = ["test", "--connect", &connect, "--duration", "150ms"];
    Arguments::parse_from(fixed.into_iter().chain(more.split_whitespace())).options
}

/// The words of the line that starts with `name`.
fn line<'a>(table: &'a str, name: &str) -> &'a str {
    table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{table}"))
}

#[tokio::test]
async fn all_sections_make_one_table() {
    let fake = Fake::start();
    let pid = std::process::id();
    let more = format!(
        "--server-pid {pid} --callers 2,4 --confirm-rate 500 --p0-rate 1000 --backlog 1200 --waiting 20 --batch 30"
    );
    let mut sections = Vec::new();
    let table = run(&options(&fake, &more), &mut |section| sections.push(section.to_owned())).await.unwrap();
    assert_eq!(sections, ["batched", "single", "confirm", "p0", "p0-backlog", "idle"]);
    let lines = table.lines().filter(|line| !line.starts_with("* the highest value"));
    assert_eq!(lines.count(), 2 + sections.len());
    let batched = line(&table, "full cycles, 30 a call, 4 producers, 4 consumers");
    assert!(batched.contains("s per 1 M cycles"), "{batched}");
    assert!(line(&table, "full cycles, one message a call").contains("by callers 2: "));
    line(&table, "confirm of single enqueues at 500/s");
    for name in ["P0 delivered at 1,000/s, consumers waiting", "P0 delivered at 1,000/s behind 1,200 P4"] {
        assert!(!line(&table, name).contains("not delivered"), "{table}");
    }
    assert!(line(&table, "CPU while 20 receives wait").contains("% of one core"));
    // Queues are deleted afterwards, so that nothing is left on the server.
    assert!(fake.state.lock().unwrap().queues.keys().all(|queue| queue.is_empty()));
}

/// The limits are measured from within a runtime, and leave nothing behind.
#[tokio::test]
async fn the_limits_of_the_machine_stand_above() {
    let fake = Fake::start();
    let dir =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("limits-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (results, folder) = (dir.join("results.json"), dir.display().to_string());
    let more = format!("--only single --callers 1 --device-dir {folder} --results {}", results.display());
    let table = run(&options(&fake, &more), &mut |_| {}).await.unwrap();
    line(&table, "limit: write 64 KiB + fdatasync, 1 under way");
    line(&table, "limit: QUIC over loopback");
    let text = std::fs::read_to_string(&results).unwrap();
    assert!(text.contains("device.write.64k.depth1") && text.contains("bench.single"), "{text}");
    let left = std::fs::read_dir(&dir).unwrap().count();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(left, 1, "only the results are left");
}

#[tokio::test]
async fn sections_can_be_chosen() {
    let fake = Fake::start();
    let table = run(&options(&fake, "--only idle,single --callers 1"), &mut |_| {}).await.unwrap();
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains("give --server-pid"));
}

#[tokio::test]
async fn a_refusal_ends_the_measurement_with_its_reason() {
    let fake = Fake::start();
    fake.hook(|request| match request {
        overtake_wire::message::Request::Enqueue { .. } => {
            Act::Answer(overtake_wire::message::Response::Refused(overtake_wire::message::Refusal::depth(
                "the queue is full",
                1,
            )))
        }
        _ => Act::Serve,
    });
    for section in ["batched", "single", "confirm", "p0", "p0-backlog"] {
        let error = run(&options(&fake, &format!("--only {section}")), &mut |_| {}).await.unwrap_err();
        assert!(error.to_string().contains("the queue is full"), "{section}: {error}");
    }
}

/// What others keep in a queue of that name is not deleted, and what an earlier run left there is, with a word.
#[tokio::test]
async fn queues_of_others_are_left_alone() {
    let fake = Fake::start();
    let client = overtake_client::Client::connect(overtake_client::ConnectOptions {
        servers: vec![fake.address.into()],
        ..Default::default()
    });
    let client = client.await.unwrap();
    let store = async |body: &[u8]| {
        let body = body.to_vec().into();
        let message = overtake_client::EnqueueMessage { body, ..Default::default() };
        client.enqueue("bench-single", vec![message]).await.unwrap();
    };
    store(&[b'x'; 64]).await;
    let mut said = Vec::new();
    let single = "--only single --callers 1";
    run(&options(&fake, single), &mut |line| said.push(line.to_owned())).await.unwrap();
    assert!(said.iter().any(|line| line.starts_with("deleting queue bench-single")), "{said:?}");
    store(b"somebody's work").await;
    let error = run(&options(&fake, single), &mut |_| {}).await.unwrap_err();
    assert!(error.to_string().contains("use another --queue"), "{error}");
    assert_eq!(fake.with_queue("bench-single", |queue| queue.lanes[&0].len()), 1);
}
