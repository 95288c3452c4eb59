//! Ctrl-C while the load tool sends. A signal reaches every run of a process, so this one has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../net/client/tests/common/mod.rs"]
mod common;

#[path = "support/answers.rs"]
mod answers;

use clap::Parser;
use common::Fake;
use overtake_perf::load::{LoadOptions, run};
use std::time::Duration;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: LoadOptions,
}

#[tokio::test]
async fn what_was_sent_before_has_an_outcome() {
    let fake = Fake::start();
    fake.hook(|request| answers::common_answers(request, 5));
    let connect = fake.address.to_string();
    let arguments = ["load", "--connect", &connect, "--concurrency", "50", "--duration", "60s"];
    let options = Arguments::parse_from(arguments).options;
    tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let own = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &own]).status().unwrap().success());
    });
    let outcome = run(&options, &mut |_| {}).await.unwrap();
    let counts = outcome.text.lines().find(|line| line.starts_with("sent ")).unwrap();
    let number = |name: &str| -> u64 {
        let at = counts.find(&format!("{name} ")).unwrap() + name.len() + 1;
        let number = counts[at..].split([';', ' ']).next().unwrap();
        number.replace(',', "").parse().unwrap()
    };
    assert!(number("sent") > 50, "{}", outcome.text);
    assert_eq!(number("sent"), number("confirmed"), "{}", outcome.text);
    assert_eq!((number("refused"), number("fate unknown")), (0, 0), "{}", outcome.text);
}
