//! Cleaning: the blocks of a file of which little is needed are copied into the current file, so that the file is free.
//! One block at a time, and only when nothing waits to be written.

use crate::disk::{BLOCK_BYTES, DiskOperation};
use crate::lanes::block::BlockHeader;
use crate::lanes::store::{Key, Lanes, Location, Outgoing};
use bytes::Bytes;
use std::collections::VecDeque;

/// A file is cleaned when less than this part of it is needed, in percent.
const LIVE_PERCENT_MAX: u64 = 60;

/// What is being cleaned.
#[derive(Debug, Default)]
pub(super) struct Cleaning {
    /// Blocks of the file that are still to be copied.
    left: VecDeque<Key>,
    reading: bool,
    ready: Option<Outgoing>,
}

impl Cleaning {
    pub(super) fn is_reading(&self) -> bool {
        self.reading
    }

    /// Nothing is being cleaned.
    pub(super) fn is_idle(&self) -> bool {
        self.left.is_empty() && !self.reading && self.ready.is_none()
    }

    /// A block that was read, to be written.
    pub(super) fn take_ready(&mut self) -> Option<Outgoing> {
        self.ready.take()
    }

    pub(super) fn put_back(&mut self, outgoing: Outgoing) {
        self.ready = Some(outgoing);
    }

    pub(super) fn read(&mut self, header: BlockHeader, content: Vec<Bytes>, copy_of: Location) {
        self.reading = false;
        self.ready = Some(Outgoing { header, content, copy_of: Some(copy_of) });
    }
}

impl Lanes {
    /// Reads the next block to be copied, if it is time to clean.
    pub(super) fn clean(&mut self, out: &mut Vec<DiskOperation>) {
        if self.cleaning.reading || self.cleaning.ready.is_some() {
            return;
        }
        if self.cleaning.left.is_empty() {
            let Some(victim) = self.victim() else { return };
            let of_victim = self.blocks.iter().filter(|(_, location)| location.file == victim);
            self.cleaning.left = of_victim.map(|(key, _)| *key).collect();
        }
        while let Some(key) = self.cleaning.left.pop_front() {
            // It may have been freed since.
            if let Some(location) = self.blocks.get(&key).copied() {
                self.cleaning.reading = true;
                return self.read_to_copy(key, location, out);
            }
        }
    }

    /// The sealed file of which the least is needed, where cleaning it is worth it.
    fn victim(&self) -> Option<u32> {
        let usable = self.config.file_bytes - BLOCK_BYTES as u64;
        let used = self.files.values().filter(|file| !file.free);
        let (live, unneeded) = used.fold((0, 0), |(live, unneeded), file| {
            (live + file.live_bytes, unneeded + (usable - file.live_bytes))
        });
        if unneeded <= live / 2 + self.config.spare_files * usable {
            return None;
        }
        let sealed = self.files.iter().filter(|(number, file)| !file.free && self.current != Some(**number));
        let sparse =
            sealed.filter(|(_, file)| file.live > 0 && file.live_bytes * 100 < usable * LIVE_PERCENT_MAX);
        sparse.min_by_key(|(number, file)| (file.live_bytes, **number)).map(|(number, _)| *number)
    }
}
