//! Servers that must not start: one clear line on standard error, and an exit code that says so.

use overtake_base::checksum::checksum;
use overtake_e2e::scratch::Scratch;
use overtake_e2e::server::{free_address, refused, run};
use overtake_e2e::{Options, Server};
use serde_json::json;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

/// A start with default options on addresses of its own.
#[track_caller]
fn start_refused(data: &Path) -> String {
    refused(Options::default().command(data, free_address(), free_address()))
}

#[track_caller]
fn check_names(line: &str, what: &str) {
    assert!(line.contains(what), "the line should name {what}: {line}");
}

#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    let server = Server::start();
    let queue = server.create("q", json!({}));
    check_names(&start_refused(server.data()), &server.data().display().to_string());
    queue.put(0, "the first one goes on");
    assert_eq!(queue.receive_one(json!({})).deliveries, 1);
}

#[test]
fn an_address_in_use_is_refused() {
    let scratch = Scratch::new();
    let (free, taken) = (free_address(), free_address());
    let tcp = TcpListener::bind(taken).expect("a free address");
    let line = refused(Options::default().command(&scratch.path().join("a"), taken, free));
    check_names(&line, &taken.to_string());
    drop(tcp);
    let udp = UdpSocket::bind(taken).expect("a free address");
    let line = refused(Options::default().command(&scratch.path().join("b"), free, taken));
    check_names(&line, &taken.to_string());
    drop(udp);

    // Two servers must not share a port by reuse either.
    let server = Server::start();
    let line = refused(Options::default().command(&scratch.path().join("c"), free_address(), server.quic()));
    check_names(&line, &server.quic().to_string());
    let line = refused(Options::default().command(&scratch.path().join("d"), server.http(), free_address()));
    check_names(&line, &server.http().to_string());
    server.client().call("GET", "/readyz").expect_status(200);
}

#[test]
fn a_folder_that_cannot_be_used_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.path().join("file");
    fs::write(&file, "not a folder").expect("a file");
    check_names(&start_refused(&file), &file.display().to_string());
    check_names(&start_refused(&file), "cannot be a data folder");
    check_names(&start_refused(&file.join("below")), &file.display().to_string());
    // Nobody can make folders there, not even root.
    check_names(&start_refused(Path::new("/proc/overtake-data")), "/proc/overtake-data");
    assert_eq!(fs::read_to_string(&file).expect("a file"), "not a folder");
}

#[test]
fn a_file_system_in_memory_is_refused() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    if !mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
        return;
    }
    let data = PathBuf::from(format!("/dev/shm/overtake-e2e-{}", std::process::id()));
    let line = start_refused(&data);
    check_names(&line, &data.display().to_string());
    let _ = fs::remove_dir_all(&data);
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    for arguments in [
        vec!["serve", "--cores", "0"],
        vec!["serve", "--cores", "65"],
        vec!["serve", "--shards", "0"],
        vec!["serve", "--shards", "1025"],
        vec!["serve", "--http", "localhost"],
        vec!["serve", "--quic", "127.0.0.1:99999"],
        vec!["serve", "--data"],
        vec!["serve", "--fast"],
        vec!["server"],
        vec![],
    ] {
        let mut command = overtake_e2e::binary::command();
        command.args(&arguments);
        let ended = run(command, b"");
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        let flag = arguments.last().copied().unwrap_or("Usage");
        assert!(ended.stderr.contains(flag), "{arguments:?} should name {flag}: {ended:?}");
    }
    let scratch = Scratch::new();
    for config in ["colour = 'red'", "cores = 0", "http = 5", "[[tokens]]\ntoken = 'x'"] {
        let options = Options { config: Some(config), ..Options::default() };
        let ended = run(options.command(&scratch.path().join("data"), free_address(), free_address()), b"");
        assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{config}: {ended:?}");
        assert!(ended.stderr.contains("data.toml"), "{config}: {ended:?}");
    }
}

/// Gives a file's header the checksum that it has in every version: without, the version would be taken for damaged.
fn make_whole(file: &mut [u8]) {
    let (domain, at) = match &file[..8] {
        b"OVTKSEGM" => (b"segment1", 56),
        b"OVTKLANE" => (b"lanefil1", 56),
        b"OVTKCKPT" => (b"ckpthdr1", 72),
        _ => return,
    };
    let sum = checksum(u64::from_le_bytes(*domain), &file[..at]);
    file[at..at + 8].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_folder_of_another_format_or_shape_is_refused() {
    let mut server = Server::start();
    let queue = server.create("q", json!({}));
    queue.fill(&[0, 1], 20);
    assert!(server.terminate().success());

    let other = Options { shards: Some(3), ..Options::default() };
    check_names(&refused(other.command(server.data(), server.http(), server.quic())), "shards");

    // Every file with a format of its own starts with eight bytes that name it, then its version.
    let mut tried = 0;
    for path in files(server.data()) {
        let original = fs::read(&path).expect("a file");
        if original.starts_with(b"OVTK") {
            let mut changed = original.clone();
            changed[8] ^= 0x40;
            make_whole(&mut changed);
            fs::write(&path, changed).expect("a file");
            let line = server.start_refused();
            check_names(&line, "format");
            check_names(&line, "version");
            fs::write(&path, original).expect("a file");
            tried += 1;
        }
    }
    assert!(tried >= 2, "the folder's identity and a journal: {:?}", files(server.data()));

    let identity = server.data().join("identity");
    let original = fs::read(&identity).expect("the folder's identity");
    let mut damaged = original.clone();
    damaged[14] ^= 0x01;
    fs::write(&identity, damaged).expect("a file");
    check_names(&server.start_refused(), "identity");
    fs::remove_file(&identity).expect("a file");
    check_names(&server.start_refused(), "identity");
    fs::write(&identity, original).expect("a file");
    server.start_again();
    assert_eq!(queue.receive_count(40, json!({})).len(), 40, "the refusals changed nothing");
}

#[test]
fn another_number_of_cores_is_refused_or_serves_everything() {
    let mut server = Server::start();
    let queue = server.create("q", json!({}));
    queue.fill(&[0, 1, 2, 3, 4], 20);
    assert!(server.terminate().success());
    if let Err(status) = server.try_start_with(Options { cores: 2, ..Options::default() }) {
        assert!(!status.success());
        assert_eq!(server.try_start_with(Options::default()), Ok(()));
    }
    assert_eq!(queue.receive_count(100, json!({})).len(), 100);
}

#[test]
fn a_later_start_need_not_name_the_shards() {
    let mut server = Server::start();
    let queue = server.create("q", json!({}));
    queue.fill(&[0], 20);
    assert!(server.terminate().success());
    assert_eq!(server.try_start_with(Options { shards: None, ..Options::default() }), Ok(()));
    assert_eq!(queue.config()["shards"], 4);
    assert_eq!(queue.receive_count(20, json!({})).len(), 20);
}

/// All files below a folder, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path => found.push(path),
        }
    }
    found.sort();
    found
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "segment")
}

/// Where `marker` stands in the journal: file and place in it.
fn find_in_journal(data: &Path, marker: &[u8]) -> Vec<(PathBuf, usize)> {
    let segments = files(data).into_iter().filter(|path| is_segment(path));
    segments
        .filter_map(|path| {
            let bytes = fs::read(&path).ok()?;
            bytes.windows(marker.len()).position(|window| window == marker).map(|at| (path, at))
        })
        .collect()
}

#[test]
fn damage_in_the_middle_of_the_journal_is_refused_and_located() {
    let mut server = Options { shards: Some(1), ..Options::default() }.start();
    let queue = server.create("q", json!({}));
    let marker = b"<<<this body is damaged later on>>>";
    queue.put(0, std::str::from_utf8(marker).unwrap_or_default());
    for number in 0..300 {
        queue.put(number % 5, &"traffic ".repeat(1_000));
    }
    server.kill();
    let places = find_in_journal(server.data(), marker);
    let [(path, at)] = places.as_slice() else { panic!("the body is in the journal once: {places:?}") };
    let mut bytes = fs::read(path).expect("a segment");
    bytes[at + 7] ^= 0x01;
    fs::write(path, &bytes).expect("a segment");

    let line = server.start_refused();
    check_names(&line, path.file_name().and_then(|name| name.to_str()).unwrap_or_default());
    // The batch that holds it begins a little before it.
    let named = line.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<usize>().ok());
    let near =
        named.filter(|place| (at.saturating_sub(64 * 1024)..=*at).contains(place) && *place >= 64).count();
    assert!(near > 0, "the line should name the place, at or before {at}: {line}");
    check_names(&server.start_refused(), "journal-");

    bytes[at + 7] ^= 0x01;
    fs::write(path, &bytes).expect("a segment");
    server.start_again();
    assert_eq!(queue.receive_count(301, json!({"lease_s": 600})).len(), 301, "the refusals changed nothing");
}

#[test]
fn a_damaged_tail_is_cut() {
    let mut server = Options { shards: Some(1), ..Options::default() }.start();
    let queue = server.create("q", json!({}));
    for number in 0..50 {
        queue.put(number % 5, "stays");
    }
    let marker = b"<<<the last body, torn by a power failure>>>";
    let last = queue.put(0, std::str::from_utf8(marker).unwrap_or_default());
    server.kill();
    let places = find_in_journal(server.data(), marker);
    let [(path, at)] = places.as_slice() else { panic!("the body is in the journal once: {places:?}") };
    let mut bytes = fs::read(path).expect("a segment");
    // All that was written from there on never reached the disk whole.
    let end = bytes.len().min(at + 256 * 1024);
    bytes[at + 7..end].fill(0xA5);
    fs::write(path, &bytes).expect("a segment");

    server.start_again();
    let messages = queue.receive_count(50, json!({"lease_s": 600}));
    assert!(messages.iter().all(|message| message.text() == "stays" && message.id != last));
    assert_eq!(queue.receive(json!({})), []);
    let next = queue.put(0, "the journal goes on");
    server.restart();
    assert_eq!(queue.receive_one(json!({})).id, next);
    queue.stats();
}
