//! Whether a folder's file system writes past the page cache. The reactor silently falls back to buffered files where
//! it does not, and then nothing that is measured or promised about durable writes would be true.

use crate::error::FolderError;
use rustix::fs::{OFlags, statfs};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// File systems in memory accept the flag for direct I/O and ignore it.
const IN_MEMORY: [(u64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];
const BLOCK_BYTES: usize = overtake_log::disk::BLOCK_BYTES;

/// Flag that opens a file for direct I/O.
pub(crate) fn direct_flag() -> i32 {
    // The bits are the kernel's, which fit an int.
    OFlags::DIRECT.bits() as i32
}

/// Zeros that direct writes accept: aligned in memory.
pub(crate) struct AlignedZeros {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedZeros {
    pub(crate) fn new(length: usize) -> Self {
        let bytes = vec![0; length + BLOCK_BYTES];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Self { bytes, start }
    }

    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.bytes.len() - BLOCK_BYTES + self.start]
    }
}

/// Fails with one line if the folder, which must be there, cannot be used for direct I/O.
pub fn check_direct_io(folder: &Path) -> Result<(), FolderError> {
    let system = statfs(folder).map_err(|error| FolderError::of(folder, error.into()))?;
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)] // The field's type depends on the architecture.
    let kind = system.f_type as u64 & 0xffff_ffff;
    if let Some((_, name)) = IN_MEMORY.iter().find(|(magic, _)| *magic == kind) {
        return Err(FolderError::NoDirectIo { folder: folder.into(), detail: (*name).into() });
    }
    let path = folder.join("direct-io.probe");
    match probe(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(FolderError::NoDirectIo {
            folder: folder.into(),
            detail: format!("writing past the page cache: {error}"),
        }),
        Err(error) => Err(FolderError::of(&path, error)),
    }
}

fn probe(path: &Path) -> io::Result<()> {
    let opened =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(direct_flag()).open(path);
    // Before the write: another core may end the process at any moment, and a name would stay behind. A file system may
    // also make the file and then refuse to open it.
    let removed = fs::remove_file(path);
    let file: File = opened?;
    removed?;
    file.write_all_at(AlignedZeros::new(BLOCK_BYTES).get(), 0)
}
