//! Recovery of a journal from a folder whose files say anything, and the look through such files. Segments' headers and
//! batches are sealed with fitting checksums, so that what they say is looked at; the data decides what that is.

use bytes::Bytes;
use overtake_base::{CoreId, ShardId};
use overtake_log::batch::{BatchHeader, HEADER_BYTES};
use overtake_log::checkpoint::{CheckpointHeader, state_checksum};
use overtake_log::disk::{BLOCK_BYTES, DiskCompletion, DiskDone, DiskError, DiskOperationKind, FileName};
use overtake_log::examine::Examination;
use overtake_log::segment::SegmentHeader;
use overtake_log::{JournalConfig, Record, Recovery};
use std::collections::{BTreeMap, VecDeque};

pub(crate) const STORE: u128 = 5;
pub(crate) const CORE: CoreId = CoreId(0);
const SEGMENT_BYTES: u64 = 32 * 1024;
const RECORD_BYTES_MAX: usize = 9_000;
/// Operations that a recovery of so small a folder can need.
pub(crate) const OPERATIONS_MAX: usize = 1_000;

/// Draws small numbers from the data; zeros when it is used up.
pub(crate) struct Draw<'a>(pub(crate) &'a [u8]);

impl<'a> Draw<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Mostly what is right; else something near it, or anything.
    pub(crate) fn near(&mut self, right: u64) -> u64 {
        match self.byte() {
            0..=223 => right,
            224..=247 => right.wrapping_add(u64::from(self.byte() as i8 as u8)).wrapping_sub(8),
            _ => u64::from_le_bytes(core::array::from_fn(|_| self.byte())),
        }
    }

    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let length = (usize::from(self.byte()) * 16).min(most).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }
}

pub(crate) fn journal(data: &[u8]) {
    let mut draw = Draw(data);
    let mut files = BTreeMap::new();
    let mut chain = Chain { number: 1, previous: 0, indexes: [1; 3] };
    for sequence in 1..=1 + u64::from(draw.byte() % 3) {
        let segment = chain.segment(sequence, &mut draw);
        files.insert(FileName::Segment(draw.near(sequence) as u32), segment);
    }
    for slot in 0..draw.byte() % 3 {
        let shard = u16::from(draw.byte() % 3);
        let state = draw.bytes(400);
        let header = CheckpointHeader {
            core: CORE,
            store: STORE,
            shard: ShardId(shard),
            serial: draw.near(u64::from(slot)),
            index: draw.near(1),
            term: draw.near(1),
            state_bytes: draw.near(state.len() as u64),
            state_checksum: state_checksum(state),
        };
        files.insert(FileName::Checkpoint(shard, header.slot()), header.encode_file(state));
    }
    let mut examination = Examination::new(STORE, CORE);
    for (file, bytes) in &files {
        examination.file(*file, bytes, &mut |_, _| {});
    }
    let _ = examination.finish();
    recover(files);
}

/// One file of a data folder, as it is: which kind, the first byte says.
pub(crate) fn file(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let file = match kind % 3 {
        0 => FileName::Segment(1),
        1 => FileName::Checkpoint(u16::from(*kind), kind % 2),
        _ => FileName::Lane(1),
    };
    let mut examination = Examination::new(STORE, CORE);
    let length = bytes.len() as u64;
    examination.file(file, bytes, &mut |offset, _| assert!(offset < length));
    assert!(examination.finish().iter().all(|finding| finding.offset <= length));
}

/// What the next batch must say.
struct Chain {
    number: u64,
    previous: u64,
    indexes: [u64; 3],
}

impl Chain {
    fn segment(&mut self, sequence: u64, draw: &mut Draw<'_>) -> Vec<u8> {
        let header = SegmentHeader {
            core: CORE,
            store: STORE,
            sequence: draw.near(sequence),
            oldest: draw.near(1),
            segment_bytes: draw.near(SEGMENT_BYTES),
        };
        let mut segment = header.encode();
        segment.resize(BLOCK_BYTES, 0);
        for _ in 0..draw.byte() % 6 {
            let batch = self.batch(sequence, segment.len() as u64, draw);
            if segment.len() + batch.len() > SEGMENT_BYTES as usize {
                break;
            }
            segment.extend_from_slice(&batch);
        }
        // Bytes that fit nothing: a torn tail, or damage.
        let rest = draw.bytes(600);
        segment.extend_from_slice(rest);
        segment.resize(SEGMENT_BYTES as usize, 0);
        segment
    }

    fn batch(&mut self, sequence: u64, offset: u64, draw: &mut Draw<'_>) -> Vec<u8> {
        let mut batch = vec![0; HEADER_BYTES];
        let records = draw.byte() % 4;
        for _ in 0..records {
            let shard = usize::from(draw.byte() % 3);
            let index = draw.near(self.indexes[shard]);
            self.indexes[shard] = index.wrapping_add(1);
            let record = match draw.byte() % 4 {
                0 => Record::HardState {
                    shard: ShardId(shard as u16),
                    term: draw.near(1),
                    vote: draw.near(1),
                    commit: draw.near(1),
                },
                kind => Record::Entry {
                    shard: ShardId(shard as u16),
                    term: draw.near(1),
                    index,
                    kind: kind / 3,
                    data: draw.bytes(2_000),
                },
            };
            record.encode(&mut batch);
        }
        let header = BatchHeader {
            core: CORE,
            store: STORE,
            sequence: draw.near(sequence),
            offset: draw.near(offset),
            number: draw.near(self.number),
            durable: draw.near(self.number - 1),
            previous: draw.near(self.previous),
            epoch: draw.near(1),
            records: draw.near(u64::from(records)) as u32,
            payload_bytes: (batch.len() - HEADER_BYTES) as u32,
        };
        self.previous = header.seal(&mut batch);
        self.number += 1;
        batch
    }
}

fn recover(mut files: BTreeMap<FileName, Vec<u8>>) {
    let mut recovery = Recovery::new(JournalConfig {
        store: STORE,
        core: CORE,
        begun: false,
        segment_bytes: SEGMENT_BYTES,
        writes_in_flight_max: 2,
        record_bytes_max: RECORD_BYTES_MAX,
        batch_bytes_max: 8 * 1024,
        segments_ahead: 1,
        segments_free_max: 1,
    });
    let mut out = Vec::new();
    recovery.start(&mut out);
    let mut operations = VecDeque::from(out);
    for _ in 0..OPERATIONS_MAX {
        let Some(operation) = operations.pop_front() else { return };
        let result = carry_out(&mut files, operation.kind);
        let mut out = Vec::new();
        match recovery.complete(DiskCompletion { id: operation.id, result }, &mut out) {
            Ok(None) => operations.extend(out),
            // Damage that is told, or a journal that goes on.
            Ok(Some(_)) | Err(_) => return,
        }
    }
    panic!("the recovery never ends");
}

pub(crate) fn carry_out(
    files: &mut BTreeMap<FileName, Vec<u8>>,
    kind: DiskOperationKind,
) -> Result<DiskDone, DiskError> {
    let missing = || DiskError { full: false, detail: "no such place".into() };
    match kind {
        DiskOperationKind::List => {
            return Ok(DiskDone::Listed(
                files.iter().map(|(name, file)| (*name, file.len() as u64)).collect(),
            ));
        }
        DiskOperationKind::Read { file, offset, length } => {
            let bytes = files.get(&file).and_then(|file| file.get(offset as usize..)?.get(..length as usize));
            return bytes.map(|bytes| DiskDone::Read(Bytes::copy_from_slice(bytes))).ok_or_else(missing);
        }
        DiskOperationKind::Write { file, offset, data } => {
            let range = offset as usize..offset as usize + data.len();
            let place = files.get_mut(&file).and_then(|file| file.get_mut(range)).ok_or_else(missing)?;
            place.copy_from_slice(&data);
        }
        DiskOperationKind::Allocate { file, bytes, .. } => drop(files.insert(file, vec![0; bytes as usize])),
        DiskOperationKind::Replace { file, data } => drop(files.insert(file, data.to_vec())),
        DiskOperationKind::Remove { file } => drop(files.remove(&file)),
    }
    Ok(DiskDone::Done)
}
