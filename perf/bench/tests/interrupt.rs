//! Ctrl-C while the load tool sends. A signal reaches every run of a process, so this one has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../net/client/tests/common/mod.rs"]
mod common;

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
    let connect = fake.address.to_string();
    let arguments = ["load", "--connect", &connect, "--produce", "--concurrency", "50", "--duration", "60s"];
    let options = Arguments::parse_from(arguments).options;
    tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let own = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &own]).status().unwrap().success());
    });
    let outcome = run(&options, &mut |_| {}).await.unwrap();
    let number = |name: &str| -> u64 {
        let at = outcome.text.find(&format!("{name} ")).unwrap() + name.len() + 1;
        let digits = outcome.text[at..].chars().take_while(|c| c.is_ascii_digit() || *c == ',');
        digits.filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
    };
    assert!(number("\nsent") > 50, "{}", outcome.text);
    assert_eq!(number("\nsent"), number("confirmed"), "{}", outcome.text);
    assert_eq!((number("refused"), number("fate unknown")), (0, 0), "{}", outcome.text);
}
