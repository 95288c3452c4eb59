//! The command line as an interface: its whole help text is held in `help.golden.txt`, so that a change is seen in
//! review. `UPDATE_GOLDEN=1 cargo test -p overtake` writes it anew.

use super::{Cli, Command, queue::QueueCommand};
use clap::{CommandFactory, Parser};
use overtake_base::queue_config::{Backoff, QueueConfigPatch, RateCaps, Scheduling, Starvation};
use std::path::Path;

fn help_of(command: &clap::Command, path: &str, out: &mut String) {
    // As `--help` shows it: clap chooses between its two layouts there.
    let help = Cli::command()
        .term_width(100)
        .try_get_matches_from(path.split(' ').chain(["--help"]))
        .expect_err("help is asked for");
    out.push_str(&format!("==== {path}\n\n{help}\n"));
    for child in command.get_subcommands().filter(|child| child.get_name() != "help") {
        help_of(child, &format!("{path} {}", child.get_name()), out);
    }
}

#[test]
fn the_whole_help_is_as_written_down() {
    let mut help = String::new();
    let mut tree = Cli::command();
    tree.build();
    help_of(&tree, "overtake", &mut help);
    let help: String = help.lines().map(|line| line.trim_end().to_owned() + "\n").collect();

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/help.golden.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &help).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = help.lines().zip(golden.lines()).find(|(is, was)| is != was);
    assert!(
        help == golden,
        "the command line changed, first at {differs:?}; where that is meant, run UPDATE_GOLDEN=1 cargo test -p overtake"
    );
}

#[test]
fn the_tree_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn completions_know_the_commands() {
    for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "overtake", &mut script);
        let script = String::from_utf8(script).unwrap();
        for word in ["overtake", "redrive", "dedup-key"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn create_takes_every_field_of_a_configuration() {
    let cli = parse(
        "overtake queue create jobs --levels 3 --shards 1 --scheduling aging --weights 50,25,12.5 --reserve 0.2 \
         --floor 0 --aging-s 60 --max-deliveries 7 --lease-s 45 --dedup-window-s 0 --retention-s 3600 \
         --max-depth 1000 --max-bytes default --rate-cap queue=100 --rate-cap p0=5 --dead-letter-expired \
         --backoff-first-s 2 --backoff-factor 1.5 --backoff-max-s 60 --starvation-s 5,60,600",
    );
    let Command::Queue(QueueCommand::Create(create)) = cli.unwrap().command else {
        panic!("another command")
    };
    assert_eq!(create.args.queue, "jobs");
    // Every field is written out, so that a new one must get its flag.
    let all = QueueConfigPatch {
        levels: Some(Some(3)),
        shards: Some(Some(1)),
        scheduling: Some(Some(Scheduling::Aging)),
        weights_micro: Some(Some(vec![50_000_000, 25_000_000, 12_500_000])),
        reserve_ppm: Some(Some(200_000)),
        floor_ppm: Some(Some(0)),
        aging_s: Some(Some(60)),
        max_deliveries: Some(Some(7)),
        lease_s: Some(Some(45)),
        dedup_window_s: Some(Some(0)),
        retention_s: Some(Some(3_600)),
        max_depth: Some(Some(1_000)),
        max_bytes: Some(None),
        rate_caps: Some(Some(RateCaps { queue: Some(100), levels: [(0, 5)].into() })),
        dead_letter_expired: Some(Some(true)),
        backoff: Some(Some(Backoff { first_s: 2, factor_micro: 1_500_000, max_s: 60 })),
        starvation: Some(Some(Starvation::PerLevel(vec![5, 60, 600]))),
    };
    assert_eq!(create.args.patch(), Ok(all));
}

#[test]
fn update_changes_only_what_it_names() {
    let patch = |flags: &str| {
        let cli = parse(&format!("overtake queue update jobs {flags}")).unwrap();
        let Command::Queue(QueueCommand::Update(update)) = cli.command else { panic!("another command") };
        update.args.settings.patch().unwrap()
    };
    assert_eq!(patch(""), QueueConfigPatch::default());
    assert_eq!(patch("--no-backoff"), QueueConfigPatch { backoff: Some(None), ..Default::default() });
    assert_eq!(patch("--lease-s default"), QueueConfigPatch { lease_s: Some(None), ..Default::default() });
    assert!(parse("overtake queue update jobs --levels 3").is_err(), "levels are fixed");
}

#[test]
fn lines_that_make_no_sense_are_refused() {
    for line in [
        "overtake enqueue jobs hello",
        "overtake enqueue jobs hello -p 100",
        "overtake enqueue jobs hello -p 0 --file x",
        "overtake enqueue jobs hello -p 0 --lines",
        "overtake enqueue jobs -p 0 --lines --dedup-key x",
        "overtake enqueue jobs hello -p 0 --delay-s 1 --deliver-at 1900000000000",
        "overtake enqueue jobs hello -p 0 --deliver-at tomorrow",
        "overtake enqueue jobs hello -p 0 --id m_1",
        "overtake enqueue jobs hello -p 0 --header x",
        "overtake receive jobs --max 0",
        "overtake receive jobs --wait-s 21",
        "overtake receive jobs --lease-s 43201",
        "overtake receive jobs --exec true --ack",
        "overtake ack jobs",
        "overtake dlq redrive jobs",
        "overtake dlq redrive jobs --all --from-priority 1",
        "overtake dlq redrive jobs --all --wait",
        "overtake peek jobs --state dead",
        "overtake queue update jobs --backoff-first-s 1",
        "overtake queue update jobs --backoff-first-s 1 --backoff-max-s 2 --no-backoff",
        "overtake serve --cores 0",
        "overtake serve --shards 1025",
        "overtake serve --http localhost",
        "overtake serve --http localhost:7401",
        "overtake stats jobs --timeout 0",
    ] {
        let error = parse(line).map(|_| ()).expect_err(line);
        assert_eq!(error.exit_code(), crate::exit::Exit::Usage as i32, "{line}");
    }
}

#[test]
fn help_is_short_and_fits_a_terminal() {
    let golden =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/help.golden.txt"));
    let golden = golden.unwrap();
    for line in golden.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    // The other layout of clap takes three lines for each flag.
    let stats = golden.split("==== ").find(|help| help.starts_with("overtake stats\n")).unwrap();
    assert!(stats.lines().count() < 40, "{stats}");
    let missing = parse("overtake enqueue jobs").map(|_| ()).unwrap_err().to_string();
    assert!(missing.contains("--priority <LEVEL>") && missing.contains("[BODY |"), "{missing}");
}

#[test]
fn common_flags_stand_after_the_command() {
    let cli = parse("overtake stats jobs --connect 10.0.0.1:7400 --token t -o json --timeout 0.5").unwrap();
    let Command::Stats(stats) = cli.command else { panic!("another command") };
    assert_eq!(stats.remote.server.connect, "10.0.0.1:7400");
    assert_eq!(stats.remote.server.timeout.as_millis(), 500);
    assert_eq!(stats.remote.output, super::Format::Json);
}
