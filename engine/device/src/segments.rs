//! Reads and writes of journal segments and lane files: direct I/O on files that stay open.

use bytes::Bytes;
use core::cell::RefCell;
use glommio::io::{DmaFile, OpenOptions};
use overtake_log::disk::{DiskDone, FileName};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Long reads go to the disk in parts: what is written meanwhile waits for one of them at most.
const READ_BYTES: usize = 256 * 1024;

/// The open segments of a core's folder.
#[derive(Debug)]
pub(crate) struct SegmentFiles {
    folder: PathBuf,
    open: RefCell<BTreeMap<FileName, Rc<DmaFile>>>,
}

impl SegmentFiles {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.into(), open: RefCell::default() }
    }

    async fn file(&self, name: FileName) -> io::Result<Rc<DmaFile>> {
        if let Some(file) = self.open.borrow().get(&name) {
            return Ok(Rc::clone(file));
        }
        let path = self.folder.join(name.to_string());
        let file = Rc::new(OpenOptions::new().read(true).write(true).dma_open(path).await?);
        // Two operations may have opened it at the same time; the first stays, the other is closed when dropped.
        Ok(Rc::clone(self.open.borrow_mut().entry(name).or_insert(file)))
    }

    /// Writes and makes it durable. Fewer bytes than asked for means that the disk is full.
    pub(crate) async fn write(&self, name: FileName, offset: u64, data: Bytes) -> io::Result<DiskDone> {
        let file = self.file(name).await?;
        let mut buffer = file.alloc_dma_buffer(data.len());
        // The kernel wants aligned memory that stays its own until the write is complete: the one copy.
        buffer.as_bytes_mut().copy_from_slice(&data);
        let length = data.len();
        drop(data);
        let written = file.write_at(buffer, offset).await?;
        if written != length {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("{written} of {length} bytes were written"),
            ));
        }
        file.fdatasync().await?;
        Ok(DiskDone::Done)
    }

    /// Reads exactly so many bytes.
    pub(crate) async fn read(&self, name: FileName, offset: u64, length: u32) -> io::Result<DiskDone> {
        let file = self.file(name).await?;
        // The result's memory belongs to the executor; what goes to the core must not hold on to it.
        let mut bytes = Vec::with_capacity(length as usize);
        while bytes.len() < length as usize {
            let wanted = (length as usize - bytes.len()).min(READ_BYTES);
            let part = file.read_at_aligned(offset + bytes.len() as u64, wanted).await?;
            bytes.extend_from_slice(&part);
            if part.len() != wanted {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("{} of {length} bytes were read", bytes.len()),
                ));
            }
        }
        Ok(DiskDone::Read(Bytes::from(bytes)))
    }

    /// Closes the file, which is to be removed or made anew.
    pub(crate) async fn close(&self, name: FileName) -> io::Result<()> {
        let file = self.open.borrow_mut().remove(&name);
        if let Some(file) = file {
            file.close_rc().await?;
        }
        Ok(())
    }

    /// Closes all files.
    pub(crate) async fn close_all(&self) -> io::Result<()> {
        let names: Vec<FileName> = self.open.borrow().keys().copied().collect();
        for name in names {
            self.close(name).await?;
        }
        Ok(())
    }
}
