//! The operations that may take long or have no asynchronous form: they run on the executor's blocking thread, so that
//! the core's loop goes on. Plain calls of the standard library.

use crate::direct::{AlignedZeros, direct_flag};
use crate::folder::{replace_file, sync_folder};
use bytes::Bytes;
use overtake_log::disk::{DiskDone, DiskOperationKind, FileName};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Bytes of one write of zeros.
const ZEROS_BYTES: usize = 1 << 20;

/// Carries out an operation that is not a read or write of a segment.
pub(crate) fn carry_out(
    folder: &Path,
    kept_free_bytes: u64,
    kind: DiskOperationKind,
) -> io::Result<DiskDone> {
    match kind {
        DiskOperationKind::List => list(folder).map(DiskDone::Listed),
        DiskOperationKind::Allocate { file, bytes, urgent } => {
            if !urgent {
                check_room(folder, bytes, kept_free_bytes)?;
            }
            let path = folder.join(file.to_string());
            match file {
                FileName::Lane(_) => reserve(&path, bytes)?,
                _ => allocate(&path, bytes)?,
            }
            sync_folder(folder).map(|()| DiskDone::Done)
        }
        DiskOperationKind::Replace { file, data } => {
            replace_file(&folder.join(file.to_string()), &data).map(|()| DiskDone::Done)
        }
        DiskOperationKind::Remove { file } => {
            match fs::remove_file(folder.join(file.to_string())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            sync_folder(folder).map(|()| DiskDone::Done)
        }
        DiskOperationKind::Read { file, offset, length } => {
            let mut bytes = vec![0; length as usize];
            File::open(folder.join(file.to_string()))?.read_exact_at(&mut bytes, offset)?;
            Ok(DiskDone::Read(Bytes::from(bytes)))
        }
        DiskOperationKind::Write { file, offset, data } => {
            let file = OpenOptions::new().write(true).open(folder.join(file.to_string()))?;
            file.write_all_at(&data, offset)?;
            file.sync_data().map(|()| DiskDone::Done)
        }
    }
}

fn list(folder: &Path) -> io::Result<Vec<(FileName, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(file) = name.to_str().and_then(|name| name.parse().ok()) {
            // A link is followed: what it names is as good.
            let metadata = fs::metadata(entry.path())?;
            if !metadata.is_file() {
                return Err(io::Error::other(format!("{} is no regular file", entry.path().display())));
            }
            files.push((file, metadata.len()));
        }
    }
    files.sort();
    Ok(files)
}

/// Fails as a full disk does where the file would take the room that is kept free.
fn check_room(folder: &Path, bytes: u64, kept_free_bytes: u64) -> io::Result<()> {
    let file_system = rustix::fs::statvfs(folder)?;
    let free = file_system.f_bavail.saturating_mul(file_system.f_frsize);
    if free >= bytes.saturating_add(kept_free_bytes) {
        return Ok(());
    }
    let detail =
        format!("{free} bytes are free, of which {kept_free_bytes} are kept for acks and checkpoints");
    Err(io::Error::new(io::ErrorKind::StorageFull, detail))
}

/// Only reserves the room: a lane file's blocks are large and nobody waits for them, so zeros written first would only
/// wear the disk.
fn reserve(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => file.sync_all(),
        Err(rustix::io::Errno::OPNOTSUPP) => allocate(path, bytes),
        Err(error) => Err(error.into()),
    }
}

/// Writes the zeros instead of reserving room: writing into reserved but unwritten room later would cost a journal
/// commit of the file system each time.
fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(direct_flag()).open(path)?;
    let zeros = AlignedZeros::new(ZEROS_BYTES);
    let mut offset = 0;
    while offset < bytes {
        let length = (bytes - offset).min(ZEROS_BYTES as u64);
        file.write_all_at(&zeros.get()[..length as usize], offset)?;
        offset += length;
    }
    file.sync_all()
}
