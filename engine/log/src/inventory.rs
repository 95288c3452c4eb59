//! The first look of recovery: which files are there and what their headers say; whether all of them are this core's;
//! and in which order they are to be read.

use crate::checkpoint::{self, CheckpointHeader, NotACheckpoint};
use crate::config::JournalConfig;
use crate::disk::{BLOCK_BYTES, DiskDone, DiskOperationKind, FileName};
use crate::error::JournalError;
use crate::header::NotAHeader;
use crate::segment::{self, SegmentHeader};
use crate::segments::Free;
use overtake_base::{CoreId, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// The two slots of a shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    /// Headers that can be read, newest first.
    pub(crate) headers: Vec<CheckpointHeader>,
    /// A slot that cannot.
    pub(crate) damaged: Option<(FileName, String)>,
}

/// What to read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Checkpoints by shard.
    pub(crate) checkpoints: BTreeMap<ShardId, Slots>,
    /// Files of the segments that are needed or ready, by sequence, without gaps.
    pub(crate) segments: BTreeMap<u64, u32>,
    /// Files that are not needed, oldest first.
    pub(crate) free: Vec<Free>,
    /// Files with a header that cannot be read, or with none: what was written after it may be there.
    pub(crate) unreadable: Vec<u32>,
    /// Where the journal begins.
    pub(crate) oldest: u64,
    /// The header that was written last.
    pub(crate) newest: Option<(u32, SegmentHeader)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Inventory {
    store: u128,
    core: CoreId,
    begun: bool,
    segment_bytes: u64,
    lengths: BTreeMap<FileName, u64>,
    asked: BTreeMap<u64, FileName>,
    removing: BTreeSet<u64>,
    headers: BTreeMap<u32, SegmentHeader>,
    blank: Vec<u32>,
    unreadable: Vec<u32>,
    slots: BTreeMap<ShardId, Slots>,
}

impl Inventory {
    pub(crate) fn new(config: &JournalConfig) -> Self {
        Self {
            store: config.store,
            core: config.core,
            begun: config.begun,
            segment_bytes: config.segment_bytes,
            lengths: BTreeMap::new(),
            asked: BTreeMap::new(),
            removing: BTreeSet::new(),
            headers: BTreeMap::new(),
            blank: Vec::new(),
            unreadable: Vec::new(),
            slots: BTreeMap::new(),
        }
    }

    /// A file of the folder; answers how to look at it.
    pub(crate) fn file(&mut self, file: FileName, bytes: u64) -> Option<DiskOperationKind> {
        if !matches!(file, FileName::Lane(_)) {
            self.lengths.insert(file, bytes);
        }
        match file {
            // Lane files have a recovery of their own.
            FileName::Lane(_) => None,
            // An allocation that did not get far.
            FileName::Segment(_) if bytes < BLOCK_BYTES as u64 => Some(DiskOperationKind::Remove { file }),
            FileName::Segment(_) => {
                Some(DiskOperationKind::Read { file, offset: 0, length: BLOCK_BYTES as u32 })
            }
            FileName::Checkpoint(..) if bytes < checkpoint::HEADER_BYTES as u64 => {
                self.damaged_slot(file, "it is shorter than its header".into());
                None
            }
            FileName::Checkpoint(..) => {
                Some(DiskOperationKind::Read { file, offset: 0, length: checkpoint::HEADER_BYTES as u32 })
            }
        }
    }

    /// The operation that looks at the file.
    pub(crate) fn asked(&mut self, id: u64, file: FileName) {
        self.asked.insert(id, file);
    }

    /// The operation that removes a file.
    pub(crate) fn removal_started(&mut self, id: u64) {
        self.removing.insert(id);
    }

    /// What became of an operation; answers the removal of a file that is of no use.
    pub(crate) fn answered(
        &mut self,
        id: u64,
        done: &DiskDone,
    ) -> Result<Option<DiskOperationKind>, JournalError> {
        if self.removing.remove(&id) {
            return Ok(None);
        }
        match (self.asked.remove(&id), done) {
            (Some(FileName::Segment(number)), DiskDone::Read(block)) => self.segment(number, block),
            (Some(file @ FileName::Checkpoint(..)), DiskDone::Read(header)) => {
                self.checkpoint(file, header)?;
                Ok(None)
            }
            (Some(_), DiskDone::Done) => Ok(None),
            _ => Err(JournalError::Disk("an operation answered something else".into())),
        }
    }

    fn segment(&mut self, number: u32, block: &[u8]) -> Result<Option<DiskOperationKind>, JournalError> {
        let file = FileName::Segment(number);
        let bytes = self.lengths.get(&file).copied().unwrap_or(0);
        let whole = bytes == self.segment_bytes;
        match SegmentHeader::decode(block) {
            Ok(header) => {
                self.check_owner(file, header.store, header.core)?;
                if header.segment_bytes != self.segment_bytes {
                    return Err(JournalError::Config(format!(
                        "{file} has segments of {} bytes, {} are configured: the length of segments cannot be \
                         changed for a data folder; configure {} again",
                        header.segment_bytes, self.segment_bytes, header.segment_bytes
                    )));
                }
                if !whole {
                    let detail =
                        format!("the file is {bytes} bytes long instead of {}", header.segment_bytes);
                    return Err(JournalError::Damaged { file, offset: bytes, detail });
                }
                self.headers.insert(number, header);
            }
            Err(NotAHeader::Version(found)) => {
                return Err(JournalError::OtherFormat { file, found, expected: segment::VERSION });
            }
            Err(NotAHeader::Blank) if whole => self.blank.push(number),
            // An allocation that the power failed in.
            Err(NotAHeader::Blank) => return Ok(Some(DiskOperationKind::Remove { file })),
            Err(NotAHeader::Damaged(_)) if whole => self.unreadable.push(number),
            Err(NotAHeader::Damaged(detail)) => {
                return Err(JournalError::Damaged { file, offset: 0, detail: detail.into() });
            }
        }
        Ok(None)
    }

    fn checkpoint(&mut self, file: FileName, header: &[u8]) -> Result<(), JournalError> {
        let FileName::Checkpoint(shard, slot) = file else { return Ok(()) };
        let bytes = self.lengths.get(&file).copied().unwrap_or(0);
        let header = match CheckpointHeader::decode(header) {
            Ok(header) => header,
            Err(NotACheckpoint::Version(found)) => {
                return Err(JournalError::OtherFormat { file, found, expected: checkpoint::VERSION });
            }
            Err(NotACheckpoint::Damaged(detail)) => {
                self.damaged_slot(file, detail.into());
                return Ok(());
            }
        };
        self.check_owner(file, header.store, header.core)?;
        let fits = header.state_bytes.checked_add(checkpoint::HEADER_BYTES as u64) == Some(bytes);
        if (header.shard, header.slot()) != (ShardId(shard), slot) {
            self.damaged_slot(file, "it holds the checkpoint of another shard or slot".into());
        } else if !fits {
            self.damaged_slot(file, format!("it is {bytes} bytes long, which its header does not say"));
        } else {
            let slots = self.slots.entry(ShardId(shard)).or_default();
            slots.headers.push(header);
            slots.headers.sort_by_key(|header| core::cmp::Reverse(header.serial));
        }
        Ok(())
    }

    fn damaged_slot(&mut self, file: FileName, detail: String) {
        if let FileName::Checkpoint(shard, _) = file {
            self.slots.entry(ShardId(shard)).or_default().damaged = Some((file, detail));
        }
    }

    fn check_owner(&self, file: FileName, store: u128, core: CoreId) -> Result<(), JournalError> {
        if store != self.store {
            return Err(JournalError::OtherStore { file, found: store, expected: self.store });
        }
        if core != self.core {
            return Err(JournalError::OtherCore { file, found: core.0, expected: self.core.0 });
        }
        Ok(())
    }

    /// Nothing is left to be looked at.
    pub(crate) fn is_complete(&self) -> bool {
        self.asked.is_empty() && self.removing.is_empty()
    }

    /// What to read, once every file was looked at.
    pub(crate) fn plan(&mut self) -> Result<Plan, JournalError> {
        let oldest = self.headers.values().map(|header| header.oldest).max().unwrap_or(1);
        let mut segments: BTreeMap<u64, u32> = BTreeMap::new();
        let mut free: Vec<Free> = Vec::new();
        for (number, header) in &self.headers {
            if header.sequence < oldest {
                free.push(Free { file: *number, sequence: header.sequence });
            } else if let Some(other) = segments.insert(header.sequence, *number) {
                let other = FileName::Segment(other);
                return Err(missing(
                    *number,
                    format!("it and {other} both claim to be segment {}", header.sequence),
                ));
            }
        }
        free.sort_by_key(|free| free.sequence);
        self.check_complete(oldest, &segments)?;
        let mut unreadable = core::mem::take(&mut self.unreadable);
        unreadable.append(&mut self.blank);
        Ok(Plan {
            checkpoints: core::mem::take(&mut self.slots),
            segments,
            free,
            unreadable,
            oldest,
            newest: self
                .headers
                .iter()
                .map(|(file, header)| (*file, *header))
                .max_by_key(|(_, h)| h.sequence),
        })
    }

    /// Every segment from the oldest needed to the newest must be there.
    fn check_complete(&self, oldest: u64, segments: &BTreeMap<u64, u32>) -> Result<(), JournalError> {
        for (expected, (sequence, file)) in (oldest..).zip(segments) {
            if expected != *sequence {
                let hint = self.unreadable.first().map_or_else(String::new, |file| {
                    format!(" ({} has a damaged header and may be it)", FileName::Segment(*file))
                });
                return Err(missing(
                    *file,
                    format!("it is segment {sequence}, but segment {expected} before it is missing{hint}"),
                ));
            }
        }
        if !segments.is_empty() {
            return Ok(());
        }
        if let Some(file) = self.unreadable.first() {
            return Err(missing(*file, "its header is damaged, and no other segment has a good one".into()));
        }
        let checkpoint =
            |file: &&FileName| matches!(file, FileName::Checkpoint(..)) && !crate::mark::FILES.contains(file);
        if let Some(file) = self.lengths.keys().find(checkpoint) {
            let detail = String::from("there are checkpoints but no journal: its segments were removed");
            return Err(JournalError::Damaged { file: *file, offset: 0, detail });
        }
        self.check_not_gone()
    }

    /// Fails where a journal was begun here before; called where nothing of one was found. A folder with the mark of
    /// one that was given up is on its way to be begun anew.
    pub(crate) fn check_not_gone(&self) -> Result<(), JournalError> {
        if self.begun && !self.lengths.contains_key(&crate::mark::FILES[0]) {
            return Err(JournalError::Gone { core: self.core.0 });
        }
        Ok(())
    }
}

fn missing(file: u32, detail: String) -> JournalError {
    JournalError::Damaged { file: FileName::Segment(file), offset: 0, detail }
}
