//! Damage to what a disk holds: rotten bits, writes that were answered and never arrived or arrived elsewhere, sectors
//! and checkpoints that are older than they should be. It is done to what was written some time ago, which is the same as
//! having done it then, as long as nobody looked.

use super::{SECTOR_BYTES, SimDisk, SimFile, Written};
use bytes::Bytes;
use overtake_log::disk::FileName;
use overtake_log::segment::SegmentHeader;

/// The newest writes are spared: until a later batch vouches for them, damage there looks like a torn tail, and within
/// that moment cannot be told from one.
const WRITES_SPARED: usize = 24;
/// Tries to find a place for a misdirected write.
const PLACES_TRIED: u64 = 20;
const BLOCK_BYTES: u64 = 4_096;

/// A kind of damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// One bit flips.
    Rot,
    /// A write never arrived.
    Vanished,
    /// A write arrived elsewhere.
    Misdirected,
    /// Some sectors of a write never arrived.
    Stale,
    /// A bit of a checkpoint flips, or its file is the one before.
    Checkpoint,
    /// Somebody removed every file.
    Gone,
}

impl Damage {
    /// What a disk does by itself.
    pub const ALL: [Self; 5] = [Self::Rot, Self::Vanished, Self::Misdirected, Self::Stale, Self::Checkpoint];
}

impl SimDisk {
    /// Does damage; says what. None where nothing is there that may be damaged.
    pub fn damage(&mut self, damage: Damage) -> Option<String> {
        match damage {
            Damage::Rot => self.rot(),
            Damage::Vanished => self.vanish(),
            Damage::Misdirected => self.misdirect(),
            Damage::Stale => self.stale(),
            Damage::Checkpoint => self.damage_checkpoint(),
            Damage::Gone => {
                self.files.clear();
                Some("its files were removed".into())
            }
        }
    }

    /// True where this disk was damaged: it may be found so at any time.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        let counters = &self.counters;
        counters.rotten_bits
            + counters.vanished_writes
            + counters.misdirected_writes
            + counters.stale_sectors
            + counters.damaged_checkpoints
            > 0
    }

    /// True where a block of messages may be damaged: a start does not read it, and finds nothing wrong.
    #[must_use]
    pub fn has_hurt_lanes(&self) -> bool {
        !self.hurt.is_empty()
    }

    fn note_hurt(&mut self, written: &Written) {
        if matches!(written.file, FileName::Lane(_)) {
            self.hurt.push(written.clone());
        }
    }

    /// True where a segment of a journal is there that begins as one.
    #[must_use]
    pub fn has_journal(&self) -> bool {
        let is_segment = |name: &FileName| matches!(name, FileName::Segment(_));
        let begins = |file: &SimFile| {
            file.read(0, BLOCK_BYTES as usize).is_some_and(|block| SegmentHeader::decode(&block).is_ok())
        };
        self.files.iter().any(|(name, file)| is_segment(name) && begins(file))
    }

    /// A write that is old enough and that no later one has overwritten.
    fn an_old_write(&mut self) -> Option<Written> {
        let old = self.written.len().checked_sub(WRITES_SPARED)?;
        let at = self.random.below(old as u64) as usize;
        let chosen = self.written.get(at)?.clone();
        let length = chosen.before.len();
        let overwritten =
            self.written.iter().skip(at + 1).any(|later| later.overlaps(chosen.file, chosen.offset, length));
        (!overwritten).then_some(chosen)
    }

    fn now_at(&self, written: &Written) -> Option<Bytes> {
        self.files.get(&written.file)?.read(written.offset, written.before.len())
    }

    fn rot(&mut self) -> Option<String> {
        let written = self.an_old_write()?;
        let now = self.now_at(&written)?;
        let Written { file, offset, .. } = written;
        // Most of a batch is padding: what says something is hit more often than by its share.
        let said: Vec<usize> = (0..now.len()).filter(|at| now[*at] != 0).collect();
        let at = match self.random.below(4) {
            0 => self.random.below(now.len() as u64),
            _ => *said.get(self.random.below(said.len() as u64) as usize)? as u64,
        };
        let at = offset + at;
        let bit = self.random.below(8);
        self.flip(file, at, bit)?;
        self.note_hurt(&written);
        self.counters.rotten_bits += 1;
        Some(format!("bit {bit} of byte {at} of {file} rots"))
    }

    fn flip(&mut self, file: FileName, at: u64, bit: u64) -> Option<()> {
        let bytes = self.files.get_mut(&file)?;
        let byte = bytes.read(at, 1)?[0];
        bytes.write(at, &[byte ^ 1 << bit]).then_some(())
    }

    fn vanish(&mut self) -> Option<String> {
        let written = self.an_old_write()?;
        self.undo(&written)?;
        self.note_hurt(&written);
        self.counters.vanished_writes += 1;
        Some(format!("the write at {} of {} never arrived", written.offset, written.file))
    }

    /// Puts back what was there before the write; none where that changes nothing.
    fn undo(&mut self, written: &Written) -> Option<()> {
        if self.now_at(written)? == written.before {
            return None;
        }
        self.files.get_mut(&written.file)?.write(written.offset, &written.before).then_some(())
    }

    fn misdirect(&mut self) -> Option<String> {
        let written = self.an_old_write()?;
        let data = self.now_at(&written)?;
        let segments: Vec<(FileName, u64)> = (self.files.iter())
            .filter(|(name, _)| matches!(name, FileName::Segment(_)))
            .map(|(name, file)| (*name, file.length))
            .collect();
        for _ in 0..PLACES_TRIED {
            let (file, length) = *segments.get(self.random.below(segments.len() as u64) as usize)?;
            let blocks = (length.checked_sub(data.len() as u64)? / BLOCK_BYTES) + 1;
            let offset = BLOCK_BYTES * self.random.below(blocks);
            let spared = self.written.iter().rev().take(WRITES_SPARED);
            if written.overlaps(file, offset, data.len())
                || spared.chain(&self.cached).any(|newest| newest.overlaps(file, offset, data.len()))
            {
                continue;
            }
            self.undo(&written)?;
            self.note_hurt(&written);
            self.files.get_mut(&file)?.write(offset, &data);
            self.counters.misdirected_writes += 1;
            return Some(format!(
                "the write at {} of {} arrived at {offset} of {file}",
                written.offset, written.file
            ));
        }
        None
    }

    fn stale(&mut self) -> Option<String> {
        let written = self.an_old_write()?;
        let now = self.now_at(&written)?;
        let mut sectors = Vec::new();
        for (sector, before) in written.before.chunks(SECTOR_BYTES).enumerate() {
            let at = sector * SECTOR_BYTES;
            if now[at..at + before.len()] != *before && self.random.below(2) == 0 {
                self.files.get_mut(&written.file)?.write(written.offset + at as u64, before);
                sectors.push(sector);
            }
        }
        if sectors.is_empty() {
            return None;
        }
        self.note_hurt(&written);
        self.counters.stale_sectors += 1;
        Some(format!("sectors {sectors:?} at {} of {} are stale", written.offset, written.file))
    }

    fn damage_checkpoint(&mut self) -> Option<String> {
        let names: Vec<FileName> =
            self.files.keys().filter(|name| matches!(name, FileName::Checkpoint(..))).copied().collect();
        let file = *names.get(self.random.below(names.len().max(1) as u64) as usize)?;
        let before: Option<SimFile> =
            if self.random.below(2) == 0 { self.replaced.remove(&file) } else { None };
        self.counters.damaged_checkpoints += 1;
        if let Some(before) = before {
            self.files.insert(file, before);
            return Some(format!("{file} is the one that was there before"));
        }
        let length = self.files.get(&file)?.length;
        let (at, bit) = (self.random.below(length), self.random.below(8));
        self.flip(file, at, bit)?;
        Some(format!("bit {bit} of byte {at} of {file} rots"))
    }
}
