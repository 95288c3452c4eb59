//! The data folder: one server has it at a time, and each core has a folder in it.

use crate::error::FolderError;
use overtake_base::CoreId;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const LOCK_FILE: &str = "LOCK";

/// The folder of one core.
#[must_use]
pub fn core_folder(data_folder: &Path, core: CoreId) -> PathBuf {
    data_folder.join(format!("core-{core:02}"))
}

/// The right to a data folder; ends when it is dropped, or with the process.
#[derive(Debug)]
pub struct FolderLock {
    /// None where a copy of a folder without its lock file is looked at.
    _file: Option<File>,
}

/// Makes the folder if it is not there, and takes it. A second process is refused, also after this one was killed and
/// another came first: the lock is the kernel's, not the file's content.
pub fn lock_folder(folder: &Path) -> Result<FolderLock, FolderError> {
    make_folder(folder)?;
    let path = folder.join(LOCK_FILE);
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open.map_err(|error| FolderError::of(&path, error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(folder, file)),
        Err(TryLockError::Error(error)) => return Err(FolderError::of(&path, error)),
    }
    let write = file.set_len(0).and_then(|()| file.rewind());
    let write = write.and_then(|()| writeln!(file, "{}", std::process::id()));
    write.map_err(|error| FolderError::of(&path, error))?;
    Ok(FolderLock { _file: Some(file) })
}

fn in_use(folder: &Path, mut lock: File) -> FolderError {
    let mut text = String::new();
    let process = lock.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
    FolderError::InUse { folder: folder.into(), process }
}

/// Takes the folder to look at it. Nothing is made or written; several may look at the same time; no server starts in it
/// meanwhile.
pub fn lock_folder_to_look(folder: &Path) -> Result<FolderLock, FolderError> {
    if !folder.is_dir() {
        let error = fs::metadata(folder).err().unwrap_or_else(|| ErrorKind::NotADirectory.into());
        return Err(FolderError::of(folder, error));
    }
    let path = folder.join(LOCK_FILE);
    let file = match open_regular(&path) {
        Ok(file) => file,
        Err(FolderError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
            return Ok(FolderLock { _file: None });
        }
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(FolderLock { _file: Some(file) }),
        Err(TryLockError::WouldBlock) => Err(in_use(folder, file)),
        Err(TryLockError::Error(error)) => Err(FolderError::of(&path, error)),
    }
}

/// Longest of the small files of a data folder.
const SMALL_FILE_BYTES_MAX: u64 = 64 * 1024;

/// Opens a file to read it, whatever stands in its place: nothing that waits for another process, or never ends.
pub(crate) fn open_regular(path: &Path) -> Result<File, FolderError> {
    let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let open = OpenOptions::new().read(true).custom_flags(no_wait).open(path);
    let file = open.map_err(|error| FolderError::of(path, error))?;
    let metadata = file.metadata().map_err(|error| FolderError::of(path, error))?;
    if !metadata.is_file() {
        return Err(FolderError::Damaged { path: path.into(), detail: NO_REGULAR_FILE });
    }
    Ok(file)
}

/// What is said of a folder, pipe or device in a file's place.
const NO_REGULAR_FILE: &str = "it is no regular file";

/// All of one of the folder's small files, if it is there.
pub(crate) fn read_small_file(path: &Path) -> Result<Option<Vec<u8>>, FolderError> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(FolderError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let read = file.take(SMALL_FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| FolderError::of(path, error))?;
    if bytes.len() as u64 > SMALL_FILE_BYTES_MAX {
        return Err(FolderError::Damaged { path: path.into(), detail: "the file is too long" });
    }
    Ok(Some(bytes))
}

/// Makes the folder and those above it, durably.
pub(crate) fn make_folder(folder: &Path) -> Result<(), FolderError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = match folder.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    make_folder(parent)?;
    match fs::create_dir(folder) {
        // Another process was faster; its name is made durable here all the same.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
        made => made.map_err(|error| FolderError::of(folder, error))?,
    }
    sync_folder(parent).map_err(|error| FolderError::of(parent, error))
}

/// Makes the names in the folder durable.
pub(crate) fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Replaces a file's whole content, atomically and durably.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    drop(file);
    if let Err(error) = written {
        // Give the room back; what is there is of no use.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Room of a folder's file system that is kept free for what must go on when no more messages are taken in: a 32nd of
/// it, but no less than what two cores take of it at worst (a journal segment, two lane files and checkpoints each) and no
/// more than 1 GiB. Were it used up, no checkpoint could be written, and nothing would ever make room.
pub fn kept_free_bytes(folder: &Path) -> std::io::Result<u64> {
    const BYTES_MIN: u64 = 256 * 1024 * 1024;
    // The folder may not be there yet.
    let there = folder.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(folder);
    let file_system = rustix::fs::statvfs(there)?;
    let bytes = file_system.f_blocks.saturating_mul(file_system.f_frsize);
    Ok((bytes / 32).clamp(BYTES_MIN, overtake_base::footprint::KEPT_FREE_BYTES_MAX))
}
