//! Damage to what was durable is found, and says where it is and what to do; files of others are told apart.

use super::world::{World, check, config, recover, sealed};
use crate::batch::{self, BatchHeader};
use crate::disk::FileName;
use crate::examine::{Examination, Finding, Severity};
use crate::{JournalConfig, JournalError};
use overtake_base::{CoreId, ShardId};

#[test]
fn no_changed_byte_is_believed() {
    let (mut found, mut harmless) = (0, 0);
    for seed in 0..12 {
        let world = sealed(seed);
        let files = world.segment_files();
        let mut random = world.random.clone();
        for _ in 0..120 {
            let mut disk = world.disk.clone();
            let file = files[random.below(files.len() as u64) as usize];
            let bytes = disk.files.get_mut(&file).expect("a segment");
            // Half of them in the first blocks, where headers are.
            let reach = if random.below(2) == 0 { bytes.len() as u64 } else { 3 * 4096 };
            bytes[random.below(reach) as usize] ^= 1 << random.below(8);
            match recover(&mut disk, config()) {
                // The byte was in a part that holds nothing, or in the batch that vouches.
                Ok((_, recovered)) => {
                    let mut model = world.model.clone();
                    model.durable = model.appended.iter().map(|(batch, _)| *batch).max().unwrap_or(0);
                    check(&model, &recovered);
                    harmless += 1;
                }
                Err(error) => {
                    let told =
                        matches!(error, JournalError::Damaged { .. } | JournalError::OtherFormat { .. });
                    assert!(told, "{error}");
                    found += 1;
                }
            }
        }
    }
    assert!(found > 100 && harmless > 100, "{found} {harmless}");
}

/// Six entries, each a batch of one block, everything durable: batches 2 to 7 from offset 8192 on.
fn six_batches() -> World {
    let mut world = World::new(5);
    for index in 1..=6 {
        world.append_entry(ShardId(0), index, bytes::Bytes::from_static(b"x"));
        world.flush();
        while world.complete_one().is_some() {}
    }
    world
}

/// The batch at this offset of the first segment, changed and sealed again.
fn forge(world: &mut World, offset: usize, change: fn(&mut BatchHeader)) {
    let file = world.disk.files.get_mut(&FileName::Segment(0)).expect("the first segment");
    let block = &mut file[offset..offset + 4096];
    let mut header = BatchHeader::decode(block).expect("a batch").header;
    let mut forged = block[..batch::HEADER_BYTES + header.payload_bytes as usize].to_vec();
    change(&mut header);
    header.seal(&mut forged);
    block.copy_from_slice(&forged);
}

/// The last batch is whole, but not the one that comes next: whatever it says wrongly of itself, it is not taken.
#[test]
fn a_batch_that_belongs_elsewhere_is_not_taken() {
    let forgeries: [fn(&mut BatchHeader); 8] = [
        |header| header.store += 1,
        |header| header.core = CoreId(9),
        |header| header.sequence += 1,
        |header| header.offset += 4096,
        |header| header.number += 1,
        |header| header.previous ^= 1,
        |header| header.epoch -= 1,
        |header| header.durable = header.number,
    ];
    for (at, change) in forgeries.into_iter().enumerate() {
        let mut world = six_batches();
        forge(&mut world, 4096 * 7, change);
        if let Ok((_, recovered)) = recover(&mut world.disk, config()) {
            assert_eq!(recovered.shards[&ShardId(0)].entries.len(), 5, "forgery {at}");
        }
    }
}

/// A whole batch in its place, but not the one that was written: the next one does not name it.
#[test]
fn a_batch_that_the_next_one_does_not_name_is_found() {
    let mut world = six_batches();
    forge(&mut world, 4096 * 3, |header| header.durable -= 1);
    let error = recover(&mut world.disk, config()).expect_err("a batch of another history");
    assert!(matches!(error, JournalError::Damaged { offset: 16_384, .. }), "{error}");
}

/// The newest segment's header is gone and no ready one comes after it, so that nothing else shows that it was there.
#[test]
fn the_newest_segment_is_missed_without_its_header() {
    let mut world = World::new(7);
    world.disk.files_max = 3;
    // Five of them fill a segment to its last block.
    for index in 1..=15 {
        world.append_entry(ShardId(0), index, vec![1; 9_000].into());
        world.flush();
        while world.complete_one().is_some() {
            world.flush();
        }
    }
    assert_eq!(world.journal.usage().segments_live, 4, "the fourth has no file yet");
    world.disk.pending.clear();
    assert!(
        recover(&mut world.disk.clone(), config()).is_err_and(|error| matches!(error, JournalError::Disk(_)))
    );
    for change in [|header: &mut [u8]| header[40] ^= 1, |header: &mut [u8]| header.fill(0)] {
        let mut disk = world.disk.clone();
        change(&mut disk.files.get_mut(&FileName::Segment(2)).expect("the newest")[..4096]);
        let mut examination = Examination::new(config().store, config().core);
        disk.files.iter().for_each(|(file, bytes)| examination.file(*file, bytes, &mut |_, _| {}));
        let findings = examination.finish();
        let told = |finding: &Finding| {
            finding.severity == Severity::Damage && finding.detail.contains("holds batches of segment 3")
        };
        assert!(findings.iter().any(told), "{findings:?}");
        let error = recover(&mut disk, config()).expect_err("the header is damaged");
        assert!(error.to_string().contains("the file holds batches of segment 3"), "{error}");
    }
}

/// No segment has its header any more: that is no new journal.
#[test]
fn a_journal_without_any_header_is_not_taken_for_a_new_one() {
    let mut world = six_batches();
    for bytes in world.disk.files.values_mut() {
        bytes[..4096].fill(0);
    }
    let error = recover(&mut world.disk, config()).expect_err("batches without a header");
    assert!(matches!(error, JournalError::Damaged { file: FileName::Segment(0), .. }), "{error}");
}

#[test]
fn a_batch_overwritten_by_an_older_one_is_found() {
    let mut world = six_batches();
    let file = world.disk.files.get_mut(&FileName::Segment(0)).expect("the first segment");
    file.copy_within(4096 * 2..4096 * 3, 4096 * 4);
    let error = recover(&mut world.disk, config()).expect_err("a misdirected write");
    let JournalError::Damaged { file: FileName::Segment(0), offset: 16_384, detail } = &error else {
        panic!("{error}")
    };
    assert!(detail.contains("batch 4 should be here"), "{detail}");
    assert!(error.to_string().contains("journal-00000000.segment is damaged at byte 16384"), "{error}");
}

#[test]
fn a_missing_segment_is_found() {
    let mut world = World::new(6);
    for _ in 0..60 {
        world.append_next(ShardId(0));
        world.flush();
        while world.complete_one().is_some() {}
    }
    assert!(world.journal.usage().segments_live > 2);
    for number in 0..2 {
        let mut disk = world.disk.clone();
        disk.files.remove(&FileName::Segment(number));
        let error = recover(&mut disk, config()).expect_err("a segment is gone");
        assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    }
}

#[test]
fn files_of_others_are_told_apart() {
    let world = sealed(1);
    let open = |change: fn(&mut JournalConfig)| {
        let mut other = config();
        change(&mut other);
        recover(&mut world.disk.clone(), other).expect_err("not ours")
    };
    assert!(matches!(open(|c| c.store = 78), JournalError::OtherStore { found: 77, expected: 78, .. }));
    assert!(matches!(open(|c| c.core = CoreId(1)), JournalError::OtherCore { found: 2, expected: 1, .. }));
    assert!(matches!(open(|c| c.segment_bytes *= 2), JournalError::Damaged { .. } | JournalError::Config(_)));
    assert!(matches!(open(|c| c.segment_bytes = 5000), JournalError::Config(_)));
    assert!(matches!(open(|c| c.writes_in_flight_max = 0), JournalError::Config(_)));
    let mut disk = world.disk.clone();
    let header = disk.files.get_mut(&FileName::Segment(0)).expect("a segment");
    header[8] = 9;
    let error = recover(&mut disk.clone(), config()).expect_err("a damaged version");
    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    let header = disk.files.get_mut(&FileName::Segment(0)).expect("a segment");
    crate::segment::KIND.seal(header);
    let error = recover(&mut disk, config()).expect_err("format 9");
    assert!(matches!(error, JournalError::OtherFormat { found: 9, expected: 1, .. }), "{error}");
}

/// A journal that was begun here is missed, whatever is left in its place; where none was begun, the same folder is new.
#[test]
fn a_journal_that_is_gone_is_missed() {
    let begun = JournalConfig { begun: true, ..config() };
    let world = six_batches();
    assert!(recover(&mut world.disk.clone(), begun.clone()).is_ok());
    type Loss = fn(&mut Vec<u8>);
    let losses: [(&str, Option<Loss>); 5] = [
        ("removed", None),
        ("emptied", Some(Vec::clear)),
        ("cut", Some(|bytes| bytes.truncate(100))),
        ("blank", Some(|bytes| bytes.fill(0))),
        ("blank behind its header", Some(|bytes| bytes[4096..].fill(0))),
    ];
    for (what, loss) in losses {
        let mut disk = world.disk.clone();
        match loss {
            None => disk.files.clear(),
            Some(loss) => disk.files.values_mut().for_each(loss),
        }
        let mut new = disk.clone();
        let error = recover(&mut disk, begun.clone()).map(drop).expect_err(what);
        assert_eq!(error, JournalError::Gone { core: 2 }, "{what}");
        assert!(error.to_string().contains("one was begun in core-02 before"), "{error}");
        assert!(recover(&mut new, config()).is_ok(), "{what}");
    }
    // A journal that was given up is begun anew.
    let mut disk = world.disk.clone();
    disk.files.clear();
    let crate::disk::DiskOperationKind::Replace { file, data } = crate::mark::write(&begun) else { return };
    disk.files.insert(file, data.to_vec());
    assert!(recover(&mut disk, begun).is_ok());
}
