//! Every operation on a real disk, then a journal that is opened, written, closed and opened again. One test: an
//! executor is made once per process.

#![allow(clippy::expect_used, reason = "helpers of a test")]

use bytes::Bytes;
use glommio::{LocalExecutorBuilder, Placement};
use overtake_base::{CoreId, ShardId};
use overtake_device::Device;
use overtake_log::disk::{
    BLOCK_BYTES, DiskCompletion, DiskDone, DiskError, DiskOperation, DiskOperationKind, FileName,
};
use overtake_log::{Journal, JournalConfig, Record, Recovered, Recovery};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

fn fresh(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("device").join(name);
    let _ = fs::remove_dir_all(&folder);
    folder
}

#[test]
fn operations_reach_the_disk_and_a_journal_lives_on_it() {
    let executor =
        LocalExecutorBuilder::new(Placement::Unbound).io_memory(1 << 20).make().expect("an executor");
    executor.run(async {
        each_operation().await;
        a_journal_across_restarts().await;
    });
}

async fn one(device: &mut Device, kind: DiskOperationKind) -> Result<DiskDone, DiskError> {
    device.submit(DiskOperation { id: 7, kind });
    device.wait().await;
    let mut completions = Vec::new();
    device.drain(&mut completions);
    assert_eq!(completions.len(), 1);
    assert_eq!(completions[0].id, 7);
    assert_eq!(device.in_flight(), 0);
    completions.remove(0).result
}

async fn each_operation() {
    let folder = fresh("operations");
    let mut device = Device::open(&folder, 0).await.expect("open");
    let calls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&calls);
    device.on_completion(Rc::new(move || counted.set(counted.get() + 1)));
    let segment = FileName::Segment(3);
    let bytes = (1 << 20) + BLOCK_BYTES as u64;
    assert_eq!(one(&mut device, DiskOperationKind::List).await, Ok(DiskDone::Listed(Vec::new())));
    let allocate = DiskOperationKind::Allocate { file: segment, bytes, urgent: false };
    assert_eq!(one(&mut device, allocate.clone()).await, Ok(DiskDone::Done));
    let data = Bytes::from(vec![9; 2 * BLOCK_BYTES]);
    let write = DiskOperationKind::Write { file: segment, offset: BLOCK_BYTES as u64, data };
    assert_eq!(one(&mut device, write).await, Ok(DiskDone::Done));
    let read = DiskOperationKind::Read { file: segment, offset: 0, length: 3 * BLOCK_BYTES as u32 };
    let mut expected = vec![0; BLOCK_BYTES];
    expected.resize(3 * BLOCK_BYTES, 9);
    assert_eq!(one(&mut device, read.clone()).await, Ok(DiskDone::Read(expected.into())));

    // Past the end: an error, not fewer bytes.
    let past = DiskOperationKind::Read { file: segment, offset: bytes, length: BLOCK_BYTES as u32 };
    assert!(!one(&mut device, past).await.expect_err("past the end").full);
    // Longer than one part: everything in its place, and an end in a later part is an error too.
    let numbered: Vec<u8> = (0..160u8).flat_map(|number| [number; BLOCK_BYTES]).collect();
    let write = DiskOperationKind::Write { file: segment, offset: 0, data: numbered.clone().into() };
    assert_eq!(one(&mut device, write).await, Ok(DiskDone::Done));
    let length = 157 * BLOCK_BYTES as u32;
    let long = DiskOperationKind::Read { file: segment, offset: 2 * BLOCK_BYTES as u64, length };
    let expected = Bytes::from(numbered).slice(2 * BLOCK_BYTES..159 * BLOCK_BYTES);
    assert_eq!(one(&mut device, long).await, Ok(DiskDone::Read(expected)));
    let past = DiskOperationKind::Read { file: segment, offset: bytes - 100 * BLOCK_BYTES as u64, length };
    let detail = one(&mut device, past).await.expect_err("past the end").detail;
    assert!(detail.contains("409600 of 643072 bytes were read"), "{detail}");
    let absent = DiskOperationKind::Read { file: FileName::Segment(9), offset: 0, length: 4096 };
    let detail = one(&mut device, absent).await.expect_err("no such file").detail;
    assert!(detail.contains("reading 4096 bytes of journal-00000009.segment at 0"), "{detail}");

    let checkpoint = FileName::Checkpoint(2, 1);
    for text in [&b"first"[..], b"second one"] {
        let replace = DiskOperationKind::Replace { file: checkpoint, data: Bytes::from_static(text) };
        assert_eq!(one(&mut device, replace).await, Ok(DiskDone::Done));
        let read = DiskOperationKind::Read { file: checkpoint, offset: 1, length: text.len() as u32 - 1 };
        assert_eq!(one(&mut device, read).await, Ok(DiskDone::Read(Bytes::from_static(&text[1..]))));
    }
    let listed = vec![(segment, bytes), (checkpoint, 10)];
    assert_eq!(one(&mut device, DiskOperationKind::List).await, Ok(DiskDone::Listed(listed)));

    // Made anew while it was open.
    assert_eq!(one(&mut device, allocate).await, Ok(DiskDone::Done));
    assert_eq!(one(&mut device, read).await, Ok(DiskDone::Read(vec![0; 3 * BLOCK_BYTES].into())));
    for _ in 0..2 {
        assert_eq!(one(&mut device, DiskOperationKind::Remove { file: segment }).await, Ok(DiskDone::Done));
    }
    let left = vec![(checkpoint, 10)];
    assert_eq!(one(&mut device, DiskOperationKind::List).await, Ok(DiskDone::Listed(left)));
    assert_eq!(calls.get(), 19);
    device.close().await.expect("close");
}

fn config() -> JournalConfig {
    JournalConfig {
        store: 5,
        core: CoreId(0),
        begun: false,
        segment_bytes: 4 << 20,
        writes_in_flight_max: 4,
        record_bytes_max: overtake_log::record::DATA_BYTES_MAX,
        batch_bytes_max: 1 << 20,
        segments_ahead: 1,
        segments_free_max: 4,
    }
}

async fn completions(device: &mut Device) -> Vec<DiskCompletion> {
    device.wait().await;
    let mut completions = Vec::new();
    device.drain(&mut completions);
    completions
}

fn submit(device: &Device, out: &mut Vec<DiskOperation>) {
    out.drain(..).for_each(|operation| device.submit(operation));
}

async fn open(device: &mut Device) -> (Journal, Recovered) {
    let mut out = Vec::new();
    let mut recovery = Recovery::new(config());
    recovery.start(&mut out);
    let mut opened: Option<(Journal, Recovered)> = None;
    loop {
        submit(device, &mut out);
        for completion in completions(device).await {
            match &mut opened {
                Some((journal, _)) => {
                    journal.complete(completion, &mut out).expect("complete");
                }
                None => opened = recovery.complete(completion, &mut out).expect("recovery"),
            }
        }
        if let Some(opened) = opened {
            submit(device, &mut out);
            return opened;
        }
    }
}

fn body(index: u64) -> Vec<u8> {
    vec![index as u8; (index as usize * 7_919) % 60_000]
}

async fn a_journal_across_restarts() {
    let folder = fresh("journal");
    let shard = ShardId(1);
    let mut next = 1;
    for round in 0..3 {
        let mut device = Device::open(&folder, 0).await.expect("open");
        let (mut journal, recovered) = open(&mut device).await;
        let found = recovered.shards.get(&shard).map_or(&[][..], |shard| &shard.entries[..]);
        assert_eq!(found.len() as u64, next - 1);
        assert!(found.iter().all(|entry| entry.data == body(entry.index)));
        assert_eq!(recovered.report.cut_tail, None);
        let mut out = Vec::new();
        for _ in 0..120 {
            for _ in 0..2 {
                journal.append(Record::Entry { shard, term: 1, index: next, kind: 0, data: &body(next) });
                next += 1;
            }
            journal.flush(&mut out);
            submit(&device, &mut out);
            for completion in completions(&mut device).await {
                journal.complete(completion, &mut out).expect("complete");
            }
        }
        let token = 40 + round;
        assert!(journal.read_entry(shard, next - 1, token, &mut out));
        journal.seal(&mut out);
        let mut read = None;
        loop {
            submit(&device, &mut out);
            if journal.is_idle() {
                break;
            }
            for completion in completions(&mut device).await {
                let completed = journal.complete(completion, &mut out).expect("complete");
                read = completed.reads.into_iter().next().or(read);
            }
            journal.flush(&mut out);
        }
        let read = read.expect("the read is complete");
        assert_eq!((read.token, read.result), (token, Ok(Bytes::from(body(next - 1)))));
        device.close().await.expect("close");
    }
}
