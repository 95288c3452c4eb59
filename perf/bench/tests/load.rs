//! The load tool against a server that does not keep its promises: it says so. (Against the real one it runs in
//! `ci/e2e`.)

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../net/client/tests/common/mod.rs"]
mod common;

#[path = "support/answers.rs"]
mod answers;

use answers::common_answers;
use clap::Parser;
use common::{Act, Fake};
use overtake_base::{MessageId, UnixMillis};
use overtake_client::{
    EnqueueMessage, Enqueued, ErrorCode, MessageState, PeekedMessage, Refusal, Request, Response, Stats,
    Totals,
};
use overtake_perf::load::{LoadError, LoadOptions, Outcome, run};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: LoadOptions,
}

async fn load(fake: &Fake, more: &str) -> Result<Outcome, LoadError> {
    let connect = fake.address.to_string();
    let fixed =
        ["test", "--connect", &connect, "--duration", "300ms", "--interval", "100ms", "--drain", "200ms"];
    run(&Arguments::parse_from(fixed.into_iter().chain(more.split_whitespace())).options, &mut |_| {}).await
}

#[tokio::test]
async fn messages_that_are_confirmed_and_not_stored_are_told() {
    let fake = Fake::start();
    let mut count = 0;
    fake.hook(move |request| match request {
        Request::Enqueue { messages, .. } => {
            count += messages.len();
            // All but the first fifty are thrown away.
            if count <= 50 {
                return Act::Serve;
            }
            let stored = |m: &EnqueueMessage| Ok(Enqueued { id: m.id.unwrap(), shard: 0, duplicate: false });
            Act::Answer(Response::Enqueued { results: messages.iter().map(stored).collect() })
        }
        other => common_answers(other, 5),
    });
    let outcome = load(&fake, "--rate 1000").await.unwrap();
    assert!((200..300).contains(&outcome.violations), "{}", outcome.text);
    assert!(outcome.text.contains("VIOLATED: lost: "), "{}", outcome.text);
    assert!(outcome.text.contains("was confirmed and is not there"), "{}", outcome.text);
    let unverified = load(&fake, "--rate 1000 --no-verify").await.unwrap();
    assert!(unverified.violations == 0 && unverified.text.contains("not verified"), "{}", unverified.text);
}

/// Confirmed messages that are not there: they are lost, unless somebody else can have taken them; and where somebody else
/// can also have taken his own, nobody knows.
#[tokio::test]
async fn who_else_uses_the_queue_decides_what_is_lost() {
    for (more, enqueued, violations, says) in [
        ("--rate 1000", 300, 300, "VIOLATED: lost: 300"),
        ("--rate 1000", 5_000, 0, "or are lost, which cannot be told apart"),
        ("--rate 1000 --produce", 300, 0, "300 were taken by other processes; "),
        ("--rate 1000 --produce", 5_000, 0, "or are lost, which cannot be told apart"),
    ] {
        let fake = Fake::start();
        let mut looks = 0;
        fake.hook(move |request| match request {
            Request::Enqueue { messages, .. } => {
                let stored =
                    |m: &EnqueueMessage| Ok(Enqueued { id: m.id.unwrap(), shard: 0, duplicate: false });
                Act::Answer(Response::Enqueued { results: messages.iter().map(stored).collect() })
            }
            Request::Stats { .. } => {
                looks += 1;
                let after = Totals { enqueued, acked: 1_000, ..Totals::default() };
                let totals = if looks == 1 { Totals::default() } else { after };
                Act::Answer(Response::Stats(Stats { totals, ..Stats::default() }))
            }
            other => common_answers(other, 5),
        });
        let outcome = load(&fake, more).await.unwrap();
        assert_eq!(outcome.violations, violations, "{more}: {}", outcome.text);
        assert!(outcome.text.contains(says), "{more}: {}", outcome.text);
    }
}

#[tokio::test]
async fn an_open_loop_holds_a_bounded_number_of_bytes() {
    let fake = Fake::start();
    fake.hook(|request| match request {
        Request::Enqueue { .. } => Act::Swallow,
        other => common_answers(other, 5),
    });
    let outcome = load(&fake, "--rate 1000000 --body 131072 --produce").await.unwrap();
    assert!(matches!(outcome.failed, Some(LoadError::Overloaded(count)) if count < 10_000), "{outcome:?}");
}

#[tokio::test]
async fn callers_stay_away_for_as_long_as_they_are_asked_to() {
    let fake = Fake::start();
    fake.hook(|request| match request {
        Request::Enqueue { .. } => Act::Answer(Response::Refused(Refusal::depth("full", 50))),
        other => common_answers(other, 5),
    });
    let outcome = load(&fake, "--produce --concurrency 1 --batch 1").await.unwrap();
    let sent: usize =
        outcome.text.split("\nsent ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!((1..=7).contains(&sent), "300 ms, a pause of 50 ms after each: {}", outcome.text);
}

#[tokio::test]
async fn an_id_that_was_not_sent_is_told() {
    let fake = Fake::start();
    fake.hook(|request| match request {
        Request::Enqueue { messages, .. } => {
            let other = messages.iter().map(|_| Ok(Enqueued { id: MessageId(7), shard: 0, duplicate: true }));
            Act::Answer(Response::Enqueued { results: other.collect() })
        }
        other => common_answers(other, 5),
    });
    let outcome = load(&fake, "--produce --concurrency 1 --batch 10").await.unwrap();
    assert!(outcome.text.contains("deduplication failed"), "{}", outcome.text);
}

#[tokio::test]
async fn refusals_are_counted_and_are_no_violation() {
    let fake = Fake::start();
    fake.hook(|request| match request {
        Request::Enqueue { .. } => Act::Answer(Response::Refused(Refusal::depth("full", 1))),
        other => common_answers(other, 5),
    });
    let outcome = load(&fake, "--rate 1000").await.unwrap();
    assert_eq!(outcome.violations, 0, "{}", outcome.text);
    assert!(outcome.text.contains("sent 300, confirmed 0, duplicates 0, refused 300"), "{}", outcome.text);
    assert!(outcome.text.contains("refused 300, like this one: "), "{}", outcome.text);
    assert!(outcome.text.contains("full"), "{}", outcome.text);
}

/// Else an outage would vanish from the measurement: just what it held up would be left out.
#[tokio::test]
async fn what_finds_the_server_away_for_a_moment_is_sent_again() {
    let fake = Fake::start();
    let mut calls = 0;
    fake.hook(move |request| match request {
        Request::Enqueue { messages, .. } => {
            calls += 1;
            let away = |code| Refusal::new(code, "come back later".to_owned());
            match calls {
                1..=20 => Act::Answer(Response::Refused(away(ErrorCode::NoQuorum))),
                21..=40 => {
                    let results = messages.iter().map(|_| Err(away(ErrorCode::Stopping))).collect();
                    Act::Answer(Response::Enqueued { results })
                }
                _ => Act::Serve,
            }
        }
        other => common_answers(other, 5),
    });
    let outcome = load(&fake, "--rate 1000").await.unwrap();
    assert_eq!(outcome.violations, 0, "{}", outcome.text);
    assert!(
        outcome.text.contains("sent 300, confirmed 300, duplicates 0, refused 0, fate unknown 0"),
        "{}",
        outcome.text
    );
    assert!(outcome.text.contains("come back later"), "why it took longer is told: {}", outcome.text);
}

#[tokio::test]
async fn messages_of_others_end_the_run() {
    let fake = Fake::start();
    fake.hook(|request| common_answers(request, 5));
    let client = overtake_client::Client::connect(overtake_client::ConnectOptions {
        servers: vec![fake.address.into()],
        ..Default::default()
    });
    let message = EnqueueMessage { body: "somebody's work".into(), ..EnqueueMessage::default() };
    client.await.unwrap().enqueue("load", vec![message]).await.unwrap();
    let outcome = load(&fake, "--consume").await.unwrap();
    assert!(outcome.text.contains("not verified (the run ended with an error)"), "{}", outcome.text);
    let error = outcome.failed.unwrap();
    assert!(matches!(error, LoadError::Foreign(..)), "{error}");
    assert!(error.to_string().contains("which the load tool did not send"), "{error}");
}

#[tokio::test]
async fn messages_of_others_are_seen_before_anything_is_done() {
    let fake = Fake::start();
    fake.hook(|request| match request {
        Request::Peek { .. } => {
            let message = PeekedMessage {
                id: MessageId(7),
                priority: 0,
                state: MessageState::Visible,
                deliveries: 0,
                enqueued_at: UnixMillis(1),
                deliver_at: None,
                lease_expires_at: None,
                headers: Vec::new(),
                body: "somebody's work".into(),
            };
            Act::Answer(Response::Peeked { messages: vec![message], next: None })
        }
        Request::Enqueue { .. } | Request::Receive(_) => panic!("nothing is to be done: {request:?}"),
        other => common_answers(other, 5),
    });
    let error = load(&fake, "--rate 100").await.unwrap_err();
    assert!(matches!(error, LoadError::Options(_)), "{error}");
    assert!(error.to_string().contains("which the load tool did not send"), "{error}");
}

#[tokio::test]
async fn options_that_do_not_fit_the_queue_are_refused() {
    let fake = Fake::start();
    fake.hook(|request| common_answers(request, 3));
    let error = load(&fake, "--rate 100").await.unwrap_err();
    assert!(matches!(error, LoadError::Options(_)), "{error}");
    assert!(error.to_string().contains("--mix has 5 levels and queue load has 3"), "{error}");
}

/// Work that takes longer than the drain is given back, and does not hold the tool up.
#[tokio::test]
async fn consumers_that_are_at_work_when_the_drain_ends_give_back() {
    let fake = Fake::start();
    fake.hook(|request| common_answers(request, 5));
    let ends = load(&fake, "--rate 100 --work 1h --consumers 2");
    let outcome = tokio::time::timeout(std::time::Duration::from_secs(60), ends).await;
    let outcome = outcome.expect("it ends with the drain").unwrap();
    assert!(outcome.text.contains("acked 0, released "), "{}", outcome.text);
    assert!(!outcome.text.contains("released 0"), "{}", outcome.text);
    // The longest that can be said.
    let ends = load(&fake, "--rate 100 --work 24h --take 1000 --consumers 1");
    tokio::time::timeout(std::time::Duration::from_secs(60), ends).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn a_server_process_that_is_not_there_is_refused() {
    let fake = Fake::start();
    fake.hook(|request| common_answers(request, 5));
    let own = std::process::id();
    let error = load(&fake, &format!("--server-pid {own} 4294967295")).await.unwrap_err();
    assert_eq!(error.to_string(), "--server-pid 4294967295: there is no such process");
    let outcome = load(&fake, &format!("--rate 100 --server-pid {own} {own}")).await.unwrap();
    assert!(outcome.text.contains(", server "), "{}", outcome.text);
}

/// It may be one of several: its own messages are not all that the server had to do.
#[tokio::test]
async fn a_producer_does_not_tell_what_a_message_costs() {
    let fake = Fake::start();
    fake.hook(|request| common_answers(request, 5));
    let own = std::process::id();
    let outcome = load(&fake, &format!("--produce --rate 500 --server-pid {own}")).await.unwrap();
    assert!(!outcome.text.contains("per million"), "{}", outcome.text);
    assert!(outcome.text.contains("told by the process that consumes"), "{}", outcome.text);
}

/// The server is gone at the end: what was measured until then is told and written, and so is what could not be asked.
#[tokio::test]
async fn a_server_that_is_gone_at_the_end_costs_no_figures() {
    let fake = Fake::start();
    fake.hook(|request| match request {
        Request::Receive(_) => Act::Answer(Response::Received { messages: Vec::new() }),
        Request::Inspect { .. } => Act::Answer(Response::Refused(Refusal::conflict("gone"))),
        other => common_answers(other, 5),
    });
    let folder = std::env::temp_dir().join(format!("overtake-load-gone-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).display().to_string();
    let (hlog, results) = (path("a.hlog"), path("a.json"));
    let outcome = load(&fake, &format!("--rate 500 --hlog {hlog} --results {results}")).await.unwrap();
    assert!(outcome.failed.is_some());
    assert!(outcome.text.contains("the server cannot be asked about them"), "{}", outcome.text);
    let log = overtake_measure::hlog::read("a", &std::fs::read(&hlog).unwrap()).unwrap();
    let confirmed: u64 = log.intervals.iter().filter(|i| i.tag == "enqueue").map(|i| i.histogram.len()).sum();
    assert_eq!(confirmed, 150, "{}", outcome.text);
    let results = std::fs::read_to_string(&results).unwrap();
    assert!(results.contains("load.enqueue"), "{results}");
    std::fs::remove_dir_all(&folder).unwrap();
}
