//! Looks through the files of a core's folder without changing any: what stands where, what is wrong, and what can
//! still be read behind it. For operators and their tools. A server opens a folder by [`crate::Recovery`], which trusts
//! nothing behind the first fault; [`would_open`] asks it what it would do.
//!
//! Each kind of file has one function here. What is wrong with a single file is found when it is looked at; what is
//! missing between files is found by [`Examination::finish`].

use crate::batch::{self, BatchHeader, SealedHeader};
use crate::checkpoint::{self, CheckpointHeader, NotACheckpoint};
use crate::disk::{BLOCK_BYTES, DiskCompletion, DiskDone, DiskError, DiskOperationKind, FileName};
use crate::header::NotAHeader;
use crate::lanes;
use crate::lanes::block::BlockHeader;
use crate::lanes::file::LaneFileHeader;
use crate::record::Record;
use crate::segment::{self, SegmentHeader};
use crate::{JournalConfig, JournalError, Recovery, RecoveryReport};
use bytes::Bytes;
use overtake_base::{CoreId, Reader, ShardId};
use std::collections::{BTreeMap, VecDeque};

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// To be expected after a crash; a start makes it good.
    Note,
    /// Bytes that had been durable are not what was written.
    Damage,
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Where: the file.
    pub file: FileName,
    /// And the byte in it.
    pub offset: u64,
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    pub detail: String,
}

/// Something that was found at a place of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen<'a> {
    /// A journal segment begins.
    Segment(SegmentHeader),
    /// A journal segment that was prepared and never used.
    Blank,
    /// A batch begins.
    Batch {
        /// Its header.
        header: BatchHeader,
        /// Its checksum fits.
        whole: bool,
    },
    /// A record whose own checksum fits. It may stand in a batch that is damaged, or in one that was never committed.
    Record(Record<'a>),
    /// A block of cold messages whose header fits; its content may be damaged.
    Block(BlockHeader),
    /// A checkpoint.
    Checkpoint {
        /// Its header.
        header: CheckpointHeader,
        /// The state, where its checksum fits.
        state: Option<&'a [u8]>,
    },
}

/// Takes what was found, with its offset in the file.
pub type See<'a> = dyn FnMut(u64, Seen<'_>) + 'a;

/// See the module.
#[derive(Debug)]
pub struct Examination {
    store: u128,
    core: CoreId,
    segments: BTreeMap<u32, Segment>,
    checkpoints: Vec<FileName>,
    findings: Vec<Finding>,
}

#[derive(Debug, Default)]
struct Segment {
    header: Option<SegmentHeader>,
    /// It may be one that is needed: its header is there and cannot be read.
    unreadable: Option<&'static str>,
    batches: Vec<Batch>,
    /// Where something else stands than a batch could be expected, and why it is none.
    faults: BTreeMap<u64, &'static str>,
}

#[derive(Debug)]
struct Batch {
    sealed: SealedHeader,
    whole: bool,
}

impl Examination {
    /// An examination of the folder of one core of the data folder that this is.
    #[must_use]
    pub fn new(store: u128, core: CoreId) -> Self {
        Self { store, core, segments: BTreeMap::new(), checkpoints: Vec::new(), findings: Vec::new() }
    }

    /// Looks at one whole file.
    pub fn file(&mut self, file: FileName, bytes: &[u8], see: &mut See<'_>) {
        match file {
            FileName::Segment(number) => self.segment(number, bytes, see),
            FileName::Checkpoint(shard, slot) => self.checkpoint(file, (shard, slot), bytes, see),
            FileName::Lane(_) => self.lane(file, bytes, see),
        }
    }

    fn find(&mut self, file: FileName, offset: u64, severity: Severity, detail: impl Into<String>) {
        self.findings.push(Finding { file, offset, severity, detail: detail.into() });
    }

    fn is_ours(&mut self, file: FileName, store: u128, core: CoreId) -> bool {
        if store != self.store {
            let expected = self.store;
            let detail = format!("it belongs to data folder {store:032x}, this one is {expected:032x}");
            self.find(file, 0, Severity::Damage, detail);
        } else if core != self.core {
            let detail = format!("it belongs to core {core}, this is the folder of core {}", self.core);
            self.find(file, 0, Severity::Damage, detail);
        }
        (store, core) == (self.store, self.core)
    }

    fn other_version(&mut self, file: FileName, found: u16, expected: u16) {
        let detail = format!("it has format version {found}, this program reads version {expected}");
        self.find(file, 0, Severity::Damage, detail);
    }

    fn segment(&mut self, number: u32, bytes: &[u8], see: &mut See<'_>) {
        let file = FileName::Segment(number);
        let mut seen = Segment::default();
        let Some(first) = bytes.get(..BLOCK_BYTES) else {
            let detail = "it was being made when the server ended; a start removes it";
            return self.find(file, bytes.len() as u64, Severity::Note, detail);
        };
        match SegmentHeader::decode(first) {
            Ok(header) => {
                see(0, Seen::Segment(header));
                if self.is_ours(file, header.store, header.core) {
                    seen.header = Some(header);
                    if header.segment_bytes != bytes.len() as u64 {
                        let detail = format!(
                            "the file is {} bytes long instead of {}",
                            bytes.len(),
                            header.segment_bytes
                        );
                        self.find(file, bytes.len() as u64, Severity::Damage, detail);
                    }
                }
            }
            Err(NotAHeader::Blank) => see(0, Seen::Blank),
            Err(NotAHeader::Version(found)) => return self.other_version(file, found, segment::VERSION),
            Err(NotAHeader::Damaged(detail)) => seen.unreadable = Some(detail),
        }
        let mut walk =
            Walk { store: self.store, core: self.core, file, seen: &mut seen, findings: &mut self.findings };
        walk.batches(bytes, see);
        if seen.header.is_none() && !seen.batches.is_empty() {
            seen.unreadable.get_or_insert("its header is not there");
        }
        self.segments.insert(number, seen);
    }

    /// Blocks of cold messages: each must be what its header says. Where they end nothing of the file's life follows.
    fn lane(&mut self, file: FileName, bytes: &[u8], see: &mut See<'_>) {
        let Some(first) = bytes.get(..BLOCK_BYTES) else {
            let detail = "it was being made when the server ended; a start removes it";
            return self.find(file, bytes.len() as u64, Severity::Note, detail);
        };
        let header = match LaneFileHeader::decode(first) {
            Ok(header) => header,
            Err(NotAHeader::Blank) => return,
            Err(NotAHeader::Version(found)) => {
                return self.other_version(file, found, lanes::file::VERSION);
            }
            Err(NotAHeader::Damaged(detail)) => return self.find(file, 0, Severity::Damage, detail),
        };
        if !self.is_ours(file, header.store, header.core) {
            return;
        }
        let block_at = |at: usize| {
            let found = BlockHeader::decode(bytes.get(at..)?).ok()?;
            let here = (found.store, found.core, found.sequence, found.offset)
                == (header.store, header.core, header.sequence, at as u64);
            here.then_some(found)
        };
        let mut at = BLOCK_BYTES;
        while at < bytes.len() {
            let Some(block) = block_at(at) else { break };
            see(at as u64, Seen::Block(block));
            let next = at.saturating_add(block.padded() as usize).min(bytes.len());
            if let Err(malformed) = block.content(&Bytes::copy_from_slice(&bytes[at..next])) {
                let detail = format!("block {} of shard {}: {}", block.block, block.shard, malformed.0);
                // Blocks are written one at a time: only the last one can be torn.
                let last = block_at(next).is_none();
                let detail = if last { format!("{detail}; torn, if it was the last write") } else { detail };
                self.find(file, at as u64, if last { Severity::Note } else { Severity::Damage }, detail);
            }
            at = next;
        }
        if let Some(later) = (at..bytes.len()).step_by(BLOCK_BYTES).skip(1).find_map(block_at) {
            let detail = format!(
                "no block is here, but block {} of shard {} follows at {}",
                later.block, later.shard, later.offset
            );
            self.find(file, at as u64, Severity::Damage, detail);
        }
    }

    fn checkpoint(&mut self, file: FileName, (shard, slot): (u16, u8), bytes: &[u8], see: &mut See<'_>) {
        self.checkpoints.push(file);
        let header = match CheckpointHeader::decode(bytes) {
            Ok(header) => header,
            Err(NotACheckpoint::Version(found)) => {
                return self.other_version(file, found, checkpoint::VERSION);
            }
            Err(NotACheckpoint::Damaged(detail)) => return self.find(file, 0, Severity::Damage, detail),
        };
        if !self.is_ours(file, header.store, header.core) {
            return;
        }
        let state = bytes.get(checkpoint::HEADER_BYTES..).unwrap_or_default();
        let offset = checkpoint::HEADER_BYTES as u64;
        let fault = if (header.shard, header.slot()) != (ShardId(shard), slot) {
            Some((0, "it holds the checkpoint of another shard or slot".to_owned()))
        } else if header.state_bytes != state.len() as u64 {
            let detail = format!("its state has {} bytes instead of {}", state.len(), header.state_bytes);
            Some((bytes.len() as u64, detail))
        } else if checkpoint::state_checksum(state) != header.state_checksum {
            Some((offset, "the state's checksum does not fit".into()))
        } else {
            None
        };
        see(0, Seen::Checkpoint { header, state: fault.is_none().then_some(state) });
        if let Some((offset, detail)) = fault {
            self.find(file, offset, Severity::Damage, detail);
        }
    }

    /// Everything that is wrong, once all files were looked at: by file and offset.
    #[must_use]
    pub fn finish(mut self) -> Vec<Finding> {
        let segments = core::mem::take(&mut self.segments);
        let oldest = segments.values().filter_map(|seen| seen.header).map(|header| header.oldest).max();
        let oldest = oldest.unwrap_or(1);
        let mut journal: BTreeMap<u64, u32> = BTreeMap::new();
        for (number, seen) in &segments {
            let Some(header) = seen.header.filter(|header| header.sequence >= oldest) else { continue };
            if let Some(other) = journal.insert(header.sequence, *number) {
                let other = FileName::Segment(other);
                let detail = format!("it and {other} both claim to be segment {}", header.sequence);
                self.find(FileName::Segment(*number), 0, Severity::Damage, detail);
            }
        }
        self.place_unreadable(&segments, oldest, &mut journal);
        self.check_complete(&journal, oldest);
        self.check_chain(&segments, &journal, oldest);
        self.findings.sort_by(|a, b| (a.file, a.offset, &a.detail).cmp(&(b.file, b.offset, &b.detail)));
        self.findings.dedup();
        self.findings
    }

    /// A file without a readable header is told by the batches in it.
    fn place_unreadable(
        &mut self,
        segments: &BTreeMap<u32, Segment>,
        oldest: u64,
        journal: &mut BTreeMap<u64, u32>,
    ) {
        for (number, seen) in segments {
            let Some(detail) = seen.unreadable else { continue };
            let file = FileName::Segment(*number);
            let newest = seen.batches.iter().map(|batch| batch.sealed.header.sequence).max();
            match newest.filter(|newest| *newest >= oldest && !journal.contains_key(newest)) {
                Some(sequence) => {
                    journal.insert(sequence, *number);
                    let detail = format!("{detail}; the file holds batches of segment {sequence}");
                    self.find(file, 0, Severity::Damage, detail);
                }
                None => {
                    let detail =
                        format!("{detail}; no batch in the file is needed, and a start makes it anew");
                    self.find(file, 0, Severity::Note, detail);
                }
            }
        }
    }

    /// Every segment from the oldest needed to the newest must be there.
    fn check_complete(&mut self, journal: &BTreeMap<u64, u32>, oldest: u64) {
        let mut expected = oldest;
        for (sequence, number) in journal {
            if *sequence != expected {
                let detail = format!("it is segment {sequence}, and segment {expected} before it is missing");
                self.find(FileName::Segment(*number), 0, Severity::Damage, detail);
            }
            expected = sequence + 1;
        }
        if let Some(file) = self.checkpoints.first().copied().filter(|_| journal.is_empty()) {
            let detail = "there are checkpoints but no journal: its segments were removed";
            self.find(file, 0, Severity::Damage, detail);
        }
    }

    /// The batches must follow each other; what is missing was durable if a later batch says so.
    fn check_chain(&mut self, segments: &BTreeMap<u32, Segment>, journal: &BTreeMap<u64, u32>, oldest: u64) {
        let chain: Vec<(u32, &Batch)> = journal
            .iter()
            .flat_map(|(sequence, number)| {
                let batches = segments.get(number).map_or(&[][..], |seen| &seen.batches);
                let of_segment = batches.iter().filter(|batch| batch.sealed.header.sequence == *sequence);
                of_segment.map(|batch| (*number, batch))
            })
            .collect();
        // Highest batch that those from here on say was durable.
        let mut vouched = vec![0; chain.len() + 1];
        for (at, (_, batch)) in chain.iter().enumerate().rev() {
            vouched[at] = vouched[at + 1].max(batch.sealed.header.durable);
        }
        let fault_at = |number: u32, offset: u64| {
            segments.get(&number).and_then(|seen| seen.faults.get(&offset)).copied()
        };
        let start = BLOCK_BYTES as u64;
        let Some(first) = journal.values().next().copied() else { return };
        // Where the next batch should begin, and which one it is; none before the first of a recycled beginning.
        let mut next = (first, start);
        let mut last = (oldest == 1).then_some((0, 0, 1));
        if last.is_none()
            && chain.first().is_none_or(|(number, batch)| (*number, batch.sealed.header.offset) != next)
        {
            let reason = fault_at(first, start).unwrap_or("no batch starts here");
            let detail = format!("the journal begins here, but {reason}");
            self.find(FileName::Segment(first), start, Severity::Damage, detail);
        }
        for (at, (number, Batch { sealed, whole })) in chain.iter().enumerate() {
            let header = &sealed.header;
            let missing = last.map_or(header.number, |(number, ..)| number + 1);
            let follows = last.is_none_or(|(_, checksum, epoch)| {
                header.number == missing && header.previous == checksum && header.epoch >= epoch
            });
            if !follows && header.number < missing {
                // Dropped by an earlier start, and not overwritten yet.
                continue;
            }
            if !follows || !whole {
                let (file, offset) = if follows { (*number, header.offset) } else { next };
                let reason =
                    fault_at(file, offset).unwrap_or("the batch here does not follow the one before");
                // A batch says nothing of itself.
                let by_later = vouched[at + usize::from(follows)];
                if by_later < missing {
                    let detail =
                        format!("batch {missing} never became durable ({reason}); a start cuts it off");
                    self.find(FileName::Segment(file), offset, Severity::Note, detail);
                    return;
                }
                let detail = format!(
                    "batch {missing} should be here, but {reason}; what was written later says that batch {by_later} \
                     was durable"
                );
                self.find(FileName::Segment(file), offset, Severity::Damage, detail);
            }
            last = Some((header.number, sealed.checksum, header.epoch));
            next = (*number, header.offset + header.batch_bytes() as u64);
        }
    }
}

/// A walk through one segment.
struct Walk<'a> {
    store: u128,
    core: CoreId,
    file: FileName,
    seen: &'a mut Segment,
    findings: &'a mut Vec<Finding>,
}

impl Walk<'_> {
    fn batches(&mut self, bytes: &[u8], see: &mut See<'_>) {
        let mut offset = BLOCK_BYTES;
        let mut expected = true;
        while offset < bytes.len() {
            let rest = &bytes[offset..];
            let at = offset as u64;
            match BatchHeader::decode(rest) {
                Ok(sealed) if self.belongs(&sealed.header, at) => {
                    let whole = sealed.payload(rest).map(drop);
                    see(at, Seen::Batch { header: sealed.header, whole: whole.is_ok() });
                    if let Err(malformed) = whole {
                        self.seen.faults.insert(at, malformed.0);
                    }
                    let end = sealed.header.batch_bytes().min(rest.len());
                    self.records(&rest[batch::HEADER_BYTES..end], &sealed.header, whole.is_ok(), at, see);
                    self.seen.batches.push(Batch { sealed, whole: whole.is_ok() });
                    offset += end;
                    expected = true;
                }
                decoded => {
                    if core::mem::take(&mut expected) {
                        let reason =
                            decoded.err().map_or("the batch here belongs elsewhere", |error| error.0);
                        self.seen.faults.insert(at, reason);
                    }
                    if decoded.is_err() && rest.starts_with(batch::MAGIC) {
                        let header_only = rest.get(batch::HEADER_BYTES..).unwrap_or_default();
                        salvage(header_only, at, see);
                    }
                    offset += BLOCK_BYTES;
                }
            }
        }
    }

    /// A batch of this life of the segment. Without the segment's header, of any.
    fn belongs(&self, header: &BatchHeader, offset: u64) -> bool {
        let sequence = self.seen.header.map_or(header.sequence, |segment| segment.sequence);
        (header.store, header.core, header.sequence, header.offset)
            == (self.store, self.core, sequence, offset)
            && header.durable < header.number
    }

    fn records(&mut self, records: &[u8], header: &BatchHeader, whole: bool, at: u64, see: &mut See<'_>) {
        if !whole {
            return salvage(records, at, see);
        }
        let records = records.get(..header.payload_bytes as usize).unwrap_or(records);
        let mut reader = Reader::new(records);
        for _ in 0..header.records {
            let offset = at + (batch::HEADER_BYTES + reader.position()) as u64;
            match Record::decode(&mut reader) {
                Ok(record) => see(offset, Seen::Record(record)),
                Err(malformed) => {
                    let detail = format!("the batch is whole, but a record is not: {}", malformed.0);
                    let severity = Severity::Damage;
                    self.findings.push(Finding { file: self.file, offset, severity, detail });
                    return;
                }
            }
        }
    }
}

/// Records from the start of a damaged batch up to the first that is not one.
fn salvage(records: &[u8], batch_at: u64, see: &mut See<'_>) {
    let mut reader = Reader::new(records);
    loop {
        let offset = batch_at + (batch::HEADER_BYTES + reader.position()) as u64;
        match Record::decode(&mut reader) {
            Ok(record) => see(offset, Seen::Record(record)),
            Err(_) => return,
        }
    }
}

/// What a server would say on opening this folder. Nothing is written: `read` carries out the operations that look,
/// [`DiskOperationKind::List`] and [`DiskOperationKind::Read`]; all others are said to be done.
pub fn would_open(
    config: JournalConfig,
    mut read: impl FnMut(DiskOperationKind) -> Result<DiskDone, DiskError>,
) -> Result<RecoveryReport, JournalError> {
    let mut recovery = Recovery::new(config);
    let mut out = Vec::new();
    recovery.start(&mut out);
    let mut operations: VecDeque<_> = out.drain(..).collect();
    while let Some(operation) = operations.pop_front() {
        let result = match operation.kind {
            kind @ (DiskOperationKind::List | DiskOperationKind::Read { .. }) => read(kind),
            _ => Ok(DiskDone::Done),
        };
        let completion = DiskCompletion { id: operation.id, result };
        if let Some((_, recovered)) = recovery.complete(completion, &mut out)? {
            return Ok(recovered.report);
        }
        operations.extend(out.drain(..));
    }
    Err(JournalError::Disk("the recovery waits for nothing".into()))
}
