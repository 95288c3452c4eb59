//! Opening lane files that say anything, and reading every block that there is then. Headers are sealed with fitting
//! checksums, so that what they say is looked at; the data decides what that is.

use crate::disk::{CORE, Draw, OPERATIONS_MAX, STORE, carry_out};
use bytes::Bytes;
use overtake_base::{BlockId, ShardId};
use overtake_log::disk::{BLOCK_BYTES, DiskCompletion, DiskOperation, FileName};
use overtake_log::examine::Examination;
use overtake_log::lanes::block::{BlockHeader, join_payloads};
use overtake_log::lanes::file::LaneFileHeader;
use overtake_log::lanes::{BlockPart, Lanes, LanesConfig, LanesRecovery};
use std::collections::{BTreeMap, VecDeque};

const FILE_BYTES: u64 = 32 * 1024;
const SHARDS: u16 = 3;
/// Blocks of one shard and file.
const BLOCKS: u8 = 4;

type Files = BTreeMap<FileName, Vec<u8>>;

pub(crate) fn lanes(data: &[u8]) {
    let mut draw = Draw(data);
    let mut files = Files::new();
    let mut previous_end = 0;
    for sequence in 1..=1 + u64::from(draw.byte() % 3) {
        let (file, end) = lane_file(sequence, previous_end, &mut draw);
        previous_end = end;
        files.insert(FileName::Lane(draw.near(sequence) as u32), file);
    }
    let mut examination = Examination::new(STORE, CORE);
    for (file, bytes) in &files {
        examination.file(*file, bytes, &mut |_, _| {});
    }
    let _ = examination.finish();
    if let Some(lanes) = open(&mut files) {
        read_all(lanes, &mut files, &mut draw);
    }
}

/// A file, and where its blocks end.
fn lane_file(sequence: u64, previous_end: u64, draw: &mut Draw<'_>) -> (Vec<u8>, u64) {
    let header = LaneFileHeader {
        core: CORE,
        store: STORE,
        sequence: draw.near(sequence),
        file_bytes: draw.near(FILE_BYTES),
        previous_end: draw.near(previous_end),
    };
    let mut file = header.encode();
    file.resize(BLOCK_BYTES, 0);
    for _ in 0..draw.byte() % BLOCKS {
        let (shard, block) = (ShardId(u16::from(draw.byte()) % SHARDS), BlockId(draw.near(1)));
        let records = draw.bytes(2_000);
        let payloads: Vec<Bytes> =
            (0..draw.byte() % 3).map(|_| Bytes::copy_from_slice(draw.bytes(500))).collect();
        let payloads = join_payloads(block, &payloads);
        let mut header = BlockHeader::of(CORE, STORE, shard, block, records, &payloads);
        header.sequence = draw.near(sequence);
        header.offset = draw.near(file.len() as u64);
        // Not longer than what is put there: the rest would be made here, not read.
        header.records_bytes = header.records_bytes.min(draw.near(u64::from(header.records_bytes)) as u32);
        header.payloads_bytes = header.payloads_bytes.min(draw.near(u64::from(header.payloads_bytes)) as u32);
        let block = header.encode_block(&[records, &payloads]);
        if file.len() + block.len() > FILE_BYTES as usize {
            break;
        }
        file.extend_from_slice(&block);
    }
    let end = file.len() as u64;
    // Bytes that fit nothing: a torn block, or damage.
    file.extend_from_slice(draw.bytes(600));
    file.resize(FILE_BYTES as usize, 0);
    (file, end)
}

/// The lanes, where nothing speaks against opening them.
fn open(files: &mut Files) -> Option<Lanes> {
    let config = LanesConfig { store: STORE, core: CORE, file_bytes: FILE_BYTES, spare_files: 1 };
    let mut recovery = LanesRecovery::new(config);
    let mut out = Vec::new();
    recovery.start(&mut out);
    let mut operations = VecDeque::from(out);
    for _ in 0..OPERATIONS_MAX {
        let operation = operations.pop_front()?;
        let result = carry_out(files, operation.kind);
        let mut out = Vec::new();
        match recovery.complete(DiskCompletion { id: operation.id, result }, &mut out) {
            Ok(None) => operations.extend(out),
            Ok(Some(lanes)) => return Some(lanes),
            // Damage that is told.
            Err(_) => return None,
        }
    }
    panic!("the recovery never ends");
}

fn read_all(mut lanes: Lanes, files: &mut Files, draw: &mut Draw<'_>) {
    let mut out = Vec::new();
    for shard in (0..SHARDS).map(ShardId) {
        for block in lanes.blocks_of(shard).collect::<Vec<_>>() {
            let (offset, length) = (draw.near(8) as u32, draw.near(16) as u32);
            for part in [BlockPart::Whole, BlockPart::Records, BlockPart::Payload { offset, length }] {
                assert!(lanes.read(shard, block, part, 1, &mut out));
            }
        }
    }
    while lanes.scrub(&mut out) {}
    lanes.flush(&mut out);
    for _ in 0..OPERATIONS_MAX {
        if out.is_empty() {
            return;
        }
        let operations: Vec<DiskOperation> = core::mem::take(&mut out);
        for operation in operations {
            let result = carry_out(files, operation.kind);
            if lanes.complete(DiskCompletion { id: operation.id, result }, &mut out).is_err() {
                return;
            }
        }
        lanes.flush(&mut out);
    }
    panic!("the lanes never come to rest");
}
