//! A data folder without its server: what is in it is shown, verified and exported, damaged or not, and never changed.

#![allow(clippy::expect_used, reason = "a failed expectation is how a test speaks")]

use overtake_base::random::Random;
use overtake_e2e::server::{Ended, run};
use overtake_e2e::shape::text;
use overtake_e2e::{Options, Queue, Server, binary, eventually, now_ms};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const OK: i32 = 0;
const DAMAGED: i32 = 1;
const UNUSABLE: i32 = 8;

fn inspect(what: &str, data: &Path) -> Ended {
    let mut command = binary::command();
    command.args(["inspect", what, "--data"]).arg(data);
    run(command, b"")
}

#[track_caller]
fn says(what: &str, data: &Path, code: i32) -> String {
    let ended = inspect(what, data);
    assert_eq!(ended.code, Some(code), "{what}: {ended:?}");
    ended.stdout
}

/// A server that has stored, delivered, failed and forgotten, and was stopped.
fn used(cores: u16) -> (Server, Queue) {
    let mut server = Options { cores, ..Options::default() }.start();
    let queue = server.create("work", json!({"max_deliveries": 1, "levels": 3}));
    server.create("other", json!({}));
    queue.fill(&[0, 1, 2], 20);
    queue.enqueue(json!({"priority": 1, "delay_s": 3_600, "body": "bGF0ZXI=", "headers": {"a": "b"}}));
    queue.put(0, "dies");
    for message in queue.receive_count(10, json!({"lease_s": 600})) {
        queue.ack(&message.receipt);
    }
    let dead = queue.receive_one(json!({}));
    queue.release_with(&dead.receipt, json!({"error": "no"}));
    eventually("a dead letter", || queue.dlq().pop());
    queue.receive_one(json!({"lease_s": 600, "worker": "w"}));
    server.create("gone", json!({}));
    server.queue("gone").client().call("DELETE", "/v1/queues/gone").expect_status(204);
    assert!(server.terminate().success());
    (server, queue)
}

fn files(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for folder in std::fs::read_dir(data).expect("a data folder") {
        let folder = folder.expect("an entry").path();
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        if name.starts_with("core-") {
            for file in std::fs::read_dir(&folder).expect("a core's folder") {
                let path = file.expect("an entry").path();
                let bytes = std::fs::read(&path).expect("a file");
                files.insert(path, bytes);
            }
        }
    }
    files
}

fn lines(exported: &str) -> Vec<Value> {
    exported
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn of<'a>(lines: &'a [Value], record: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["record"] == record).collect()
}

#[test]
fn a_folder_is_shown_verified_and_exported() {
    let (mut server, queue) = used(2);
    let data = server.data().to_owned();
    let before = files(&data);

    let headers = says("headers", &data, OK);
    assert!(headers.starts_with("store ") && headers.contains("format 2, 2 cores, 4 shards"), "{headers}");
    assert!(
        headers.contains("core-00/journal-00000000.segment") && headers.contains("segment 1, needed from 1")
    );
    let records = says("records", &data, OK);
    for part in ["batch 1, opening 1", "enqueue", "settle", "put queue", "hard state: term"] {
        assert!(records.contains(part), "{part}: {records}");
    }
    says("checkpoints", &data, OK);
    let verified = says("verify", &data, OK);
    assert!(verified.contains("sound: ") && verified.contains("a server would start"), "{verified}");
    let exported = lines(&says("export", &data, OK));
    assert!(files(&data) == before, "looking changed the folder");

    let layout = run(
        {
            let mut command = binary::command();
            command.args(["inspect", "layout"]);
            command
        },
        b"",
    );
    assert!(layout.stdout.contains("batch header, version 1, 104 bytes"), "{layout:?}");

    server.start_again();
    assert_eq!(
        of(&exported, "queue").iter().map(|line| text(line, "name")).collect::<Vec<_>>(),
        ["work", "other"]
    );
    let mut there = queue.pages("/messages?limit=1000", "messages");
    let mut told: Vec<Value> = of(&exported, "message").into_iter().cloned().collect();
    for message in &mut told {
        let fields = message.as_object_mut().expect("an object");
        assert_eq!(fields.remove("queue"), Some(json!("work")));
        for field in ["record", "tenant", "shard"] {
            assert!(fields.remove(field).is_some(), "{field}");
        }
    }
    for list in [&mut there, &mut told] {
        list.sort_by_key(|message| text(message, "id").to_owned());
    }
    assert_eq!(told, there);
    let dead: Vec<&str> = of(&exported, "dead_letter").iter().map(|line| text(line, "id")).collect();
    assert_eq!(dead, queue.dlq().iter().map(|letter| text(letter, "id")).collect::<Vec<_>>());

    // A folder that a server has is left alone.
    let refused = inspect("verify", &data);
    assert_eq!(refused.code, Some(UNUSABLE), "{refused:?}");
    assert!(
        refused.stderr.contains("in use by process") && refused.stderr.contains("stop it first"),
        "{refused:?}"
    );
    for wrong in ["nowhere", "core-00"] {
        let ended = inspect("verify", &data.join(wrong));
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(UNUSABLE), 1), "{ended:?}");
    }
    // The message of a running server, as before.
    let mut command = binary::command();
    command.args(["inspect", "--connect", &server.quic().to_string(), "work", dead[0]]);
    assert!(run(command, b"").stdout.contains("dead"));
}

#[test]
fn damage_is_named_and_the_rest_exported() {
    let (server, _) = used(1);
    let data = server.data();
    let sound = lines(&says("export", data, OK));
    let path = data.join("core-00/journal-00000000.segment");
    let mut bytes = std::fs::read(&path).expect("the journal");
    // A body in the middle.
    let body = b"1-7";
    let at = bytes.windows(body.len()).position(|window| window == body).expect("a body in the journal");
    bytes[at] ^= 0x20;
    std::fs::write(&path, bytes).expect("the journal");
    let verified = says("verify", data, DAMAGED);
    assert!(verified.contains("core-00/journal-00000000.segment at byte "), "{verified}");
    assert!(verified.contains("DAMAGED: batch ") && verified.contains("would NOT start"), "{verified}");
    let ended = inspect("export", data);
    assert_eq!(ended.code, Some(DAMAGED), "{ended:?}");
    let rest = lines(&ended.stdout);
    assert_eq!(of(&rest, "queue").len(), 2);
    let ids = |lines: &[Value]| -> BTreeSet<String> {
        let told = lines.iter().filter(|line| line["record"] != "queue" && line["body"].is_string());
        told.map(|line| text(line, "id").to_owned()).collect()
    };
    let lost: Vec<String> = ids(&sound).difference(&ids(&rest)).cloned().collect();
    assert!(lost.len() <= 60, "only messages of one batch are lost: {lost:?}");
    assert!(!of(&rest, "remnant").is_empty() || !of(&rest, "message").is_empty(), "{ended:?}");
}

/// Whatever is changed, cut or missing: no panic, and one of the codes that are meant.
#[test]
fn no_damage_is_too_much() {
    let (server, _) = used(1);
    let data = server.data();
    let sound = files(data);
    let seed = now_ms();
    println!("seed {seed}");
    let mut random = Random::new(seed, "damage");
    // Not the blocks that were never written: most of a segment is zeros.
    let written = |bytes: &[u8]| 1 + bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    for _ in 0..25 {
        for (path, bytes) in &sound {
            let mut bytes = bytes.clone();
            let reach = written(&bytes) as u64;
            for _ in 0..random.below(4) {
                bytes[random.below(reach) as usize] ^= 1 << random.below(8);
            }
            match random.below(12) {
                0 => bytes.truncate(random.below(reach) as usize),
                1 => bytes.clear(),
                _ => {}
            }
            std::fs::write(path, bytes).expect("a file");
        }
        if random.below(5) == 0 {
            let path = sound.keys().nth(random.below(sound.len() as u64) as usize).expect("a file");
            std::fs::remove_file(path).expect("a file");
        }
        for what in ["headers", "records", "checkpoints", "verify", "export"] {
            let ended = inspect(what, data);
            assert!(matches!(ended.code, Some(OK | DAMAGED)), "seed {seed}, {what}: {ended:?}");
        }
    }
    // Without its identity a folder is still read.
    std::fs::write(data.join("identity"), b"?").expect("the identity");
    for (path, bytes) in &sound {
        std::fs::write(path, bytes).expect("a file");
    }
    let ended = inspect("export", data);
    assert_eq!(ended.code, Some(DAMAGED), "{ended:?}");
    assert!(of(&lines(&ended.stdout), "message").len() > 40, "{ended:?}");
}

/// A folder remembers which cores have begun a journal: what is missing is not taken for new.
#[test]
fn a_journal_that_is_gone_is_an_error() {
    let (mut server, queue) = used(2);
    let data = server.data().to_owned();
    let (folder, aside) = (data.join("core-01"), data.join("aside"));
    std::fs::rename(&folder, &aside).expect("a core's folder");
    let verified = says("verify", &data, DAMAGED);
    assert!(verified.contains("core-01  DAMAGED: the folder is missing"), "{verified}");
    for made_anew in [false, true] {
        // The first refusal leaves an empty folder behind.
        assert_eq!(folder.is_dir(), made_anew);
        let line = server.start_refused();
        for part in ["core 1", "core-01", "nothing of it is left", "restore", "a new one"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    let verified = says("verify", &data, DAMAGED);
    assert!(verified.contains("core-01: a server would NOT start: the journal is damaged"), "{verified}");
    assert!(verified.contains("1 damaged places"), "{verified}");
    // All of them, and the first: a node by itself knows no more than one with some.
    std::fs::rename(data.join("core-00"), data.join("aside-00")).expect("a core's folder");
    std::fs::remove_dir(&folder).expect("an empty folder");
    let verified = says("verify", &data, DAMAGED);
    assert!(verified.contains("2 damaged places"), "{verified}");
    assert!(server.start_refused().contains("nothing of it is left"));
    // Nothing was lost by the refusals. One core ends the process while the other may still be at its folder.
    let _ = std::fs::remove_dir_all(data.join("core-00"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::rename(data.join("aside-00"), data.join("core-00")).expect("a core's folder");
    std::fs::rename(&aside, &folder).expect("a core's folder");
    assert!(says("verify", &data, OK).contains("sound: "));
    server.start_again();
    assert_eq!(queue.dlq().len(), 1);
}

/// What is no file where a file should be is named; nothing waits for it or reads it to its end.
#[test]
fn what_is_no_file_is_named() {
    let (server, _) = used(1);
    let data = server.data();
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo");
        assert!(made.success());
    };
    let segment = data.join("core-00/journal-00000000.segment");
    let bytes = std::fs::read(&segment).expect("the journal");
    std::fs::remove_file(&segment).expect("the journal");
    pipe(&segment);
    for what in ["headers", "records", "checkpoints", "export"] {
        let ended = inspect(what, data);
        assert!(matches!(ended.code, Some(OK | DAMAGED)), "{what}: {ended:?}");
    }
    let verified = says("verify", data, DAMAGED);
    assert!(verified.contains("journal-00000000.segment  DAMAGED: it is no regular file"), "{verified}");
    assert!(server.start_refused().contains("journal-00000000.segment is no regular file"));
    // A link to a file is as good as the file, and is left alone.
    std::fs::remove_file(&segment).expect("the pipe");
    std::fs::write(data.join("elsewhere"), bytes).expect("the journal");
    std::os::unix::fs::symlink(data.join("elsewhere"), &segment).expect("a link");
    says("verify", data, OK);

    let identity = data.join("identity");
    let good = std::fs::read(&identity).expect("the identity");
    let remove = || {
        let _ = std::fs::remove_file(&identity);
        let _ = std::fs::remove_dir(&identity);
    };
    for (what, said) in [("folder", "no regular file"), ("pipe", "no regular file"), ("huge", "too long")] {
        remove();
        match what {
            "folder" => std::fs::create_dir(&identity).expect("a folder"),
            "pipe" => pipe(&identity),
            _ => {
                let file = std::fs::File::create(&identity).expect("a file");
                file.set_len(1 << 40).expect("a file with a hole");
            }
        }
        let verified = says("verify", data, DAMAGED);
        let line = verified.lines().next().expect("a line");
        assert!(line.starts_with("identity  DAMAGED: ") && line.contains(said), "{what}: {verified}");
        assert!(server.start_refused().contains(said), "{what}");
    }
    remove();
    std::fs::write(&identity, good).expect("the identity");
    for (name, bytes) in [("member", &b"OVTKMEMB?"[..]), ("peers", b"")] {
        std::fs::write(data.join(name), bytes).expect("a file");
        let verified = says("verify", data, DAMAGED);
        assert!(verified.contains(&format!("{name} is damaged: ")), "{verified}");
        std::fs::remove_file(data.join(name)).expect("a file");
    }
    pipe(&data.join("member"));
    assert!(says("verify", data, DAMAGED).contains("member is damaged: it is no regular file"));
}
