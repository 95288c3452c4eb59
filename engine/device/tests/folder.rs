//! The data folder: locked, identified, and refused with one clear line where it cannot be used.

use overtake_base::CoreId;
use overtake_device::{
    FolderError, SHARDS_DEFAULT, STORE_FORMAT, check_direct_io, core_folder, lock_folder, open_store,
};
use std::fs;
use std::path::{Path, PathBuf};

fn fresh(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("folder").join(name);
    let _ = fs::remove_dir_all(&folder);
    folder
}

#[test]
fn a_second_server_is_refused_and_told_who_has_it() {
    let folder = fresh("lock");
    let lock = lock_folder(&folder).expect("free");
    let error = lock_folder(&folder).expect_err("taken");
    let expected = format!("data folder {} is in use by process {}", folder.display(), std::process::id());
    assert_eq!(error.to_string(), expected);
    drop(lock);
    lock_folder(&folder).expect("free again");
}

#[test]
fn the_identity_is_made_once_and_checked() {
    let folder = fresh("identity");
    let made = open_store(&folder, Some(2), Some(32), SHARDS_DEFAULT).expect("made");
    assert_eq!((made.cores, made.shards, made.format), (2, 32, STORE_FORMAT));
    assert_ne!(made.store, 0);
    assert_eq!(open_store(&folder, None, None, SHARDS_DEFAULT).expect("read"), made);
    assert_eq!(open_store(&folder, Some(2), Some(32), SHARDS_DEFAULT).expect("read"), made);
    let error = open_store(&folder, Some(4), None, SHARDS_DEFAULT).expect_err("other cores").to_string();
    assert!(error.contains("was made with cores = 2, asked for is cores = 4: start it with 2"), "{error}");
    let error = open_store(&folder, None, Some(8), SHARDS_DEFAULT).expect_err("other shards").to_string();
    assert!(error.contains("was made with shards = 32, asked for is shards = 8"), "{error}");
    let other = open_store(&fresh("another"), None, None, SHARDS_DEFAULT).expect("made");
    assert_ne!(other.store, made.store);
    assert!(other.cores >= 1);
}

#[test]
fn an_identity_that_is_damaged_gone_or_newer_is_told_apart() {
    let folder = fresh("damaged");
    open_store(&folder, Some(1), None, SHARDS_DEFAULT).expect("made");
    let path = folder.join("identity");
    let good = fs::read(&path).expect("identity");
    for (at, expected) in [(8, "has format 3"), (16, "is damaged: its checksum does not fit")] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).expect("write");
        let error = open_store(&folder, None, None, SHARDS_DEFAULT).expect_err("damaged").to_string();
        assert!(error.contains(expected), "{error}");
    }
    fs::remove_file(&path).expect("remove");
    fs::create_dir(core_folder(&folder, CoreId(0))).expect("a core's folder");
    let error = open_store(&folder, None, None, SHARDS_DEFAULT).expect_err("gone").to_string();
    assert!(error.contains("it is gone, but the folders of cores are there"), "{error}");
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (cores, shards) in [(Some(0), None), (Some(65), None), (None, Some(0)), (None, Some(1_025))] {
        let error = open_store(&fresh("range"), cores, shards, SHARDS_DEFAULT).expect_err("out of range");
        assert!(matches!(error, FolderError::OutOfRange { .. }), "{error}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let error = lock_folder(Path::new("/sys/overtake-test")).expect_err("nobody may write there");
    assert!(matches!(error, FolderError::NotAllowed { .. }), "{error:?}");
    assert!(error.to_string().starts_with("no right to write /sys/overtake-test: "), "{error}");
}

#[test]
fn direct_io_is_checked() {
    let folder = fresh("direct");
    fs::create_dir_all(&folder).expect("make");
    check_direct_io(&folder).expect("the tests run on a disk");
    assert_eq!(fs::read_dir(&folder).expect("list").count(), 0, "the probe is gone");
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        let error = check_direct_io(memory).expect_err("tmpfs");
        assert!(error.to_string().contains("is on a file system without direct I/O (tmpfs)"), "{error}");
    }
}
