//! Damage to what was durable is found, and says where it is and what to do; files of others are told apart.

use super::disk::Disk;
use super::world::{World, check, config, recover};
use crate::disk::FileName;
use crate::{JournalConfig, JournalError};
use overtake_base::{CoreId, ShardId};

/// A journal of several segments with everything vouched for.
fn sealed(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..250 {
        world.step();
    }
    world.seal();
    world
}

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

#[test]
fn a_batch_overwritten_by_an_older_one_is_found() {
    let mut world = World::new(5);
    for _ in 0..6 {
        world.append_entry(
            ShardId(0),
            world.model.appended.len() as u64 + 1,
            bytes::Bytes::from_static(b"x"),
        );
        world.flush();
        while world.complete_one().is_some() {}
    }
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
    disk.files.get_mut(&FileName::Segment(0)).expect("a segment")[8] = 9;
    let error = recover(&mut disk, config()).expect_err("format 9");
    assert!(matches!(error, JournalError::OtherFormat { found: 9, expected: 1, .. }), "{error}");
}

/// A shard with a checkpoint at 10 and one at 20.
fn with_two_checkpoints(released: u64) -> World {
    let mut world = World::new(8);
    for index in 1..=25 {
        world.append_next(ShardId(0));
        world.flush();
        while world.complete_one().is_some() {}
        if index == 10 || index == 20 {
            world.checkpoint(ShardId(0));
            while world.complete_one().is_some() {}
        }
    }
    world.journal.release_before(ShardId(0), released);
    while world.complete_one().is_some() {
        world.flush();
    }
    // Segments go only when they are written anew.
    for _ in 0..60 {
        let released = world.model.appended.len() as u64 + 1;
        world.append_next(ShardId(1));
        world.journal.release_before(ShardId(1), released);
        world.flush();
        while world.complete_one().is_some() {}
    }
    world
}

fn damage_checkpoint(disk: &mut Disk, slot: u8, at: usize) {
    disk.files.get_mut(&FileName::Checkpoint(0, slot)).expect("a checkpoint")[at] ^= 1;
}

#[test]
fn the_older_checkpoint_stands_in_for_a_damaged_one() {
    for at in [0, 40, 85] {
        let mut world = with_two_checkpoints(11);
        damage_checkpoint(&mut world.disk, 0, at);
        let (_, recovered) = recover(&mut world.disk, config()).expect("the older one is good");
        let shard = &recovered.shards[&ShardId(0)];
        assert_eq!(shard.checkpoint.as_ref().map(|found| found.index), Some(10));
        assert_eq!(shard.entries.first().map(|entry| entry.index), Some(11));
        assert_eq!(shard.entries.len(), 15);
        assert_eq!(recovered.report.damaged_checkpoints, [FileName::Checkpoint(0, 0)]);
    }
}

#[test]
fn a_damaged_checkpoint_whose_entries_are_gone_is_an_error() {
    let mut world = with_two_checkpoints(26);
    damage_checkpoint(&mut world.disk, 0, 85);
    let error = recover(&mut world.disk, config()).expect_err("entries 11 to 20 are gone");
    assert!(matches!(&error, JournalError::Damaged { file: FileName::Checkpoint(0, 0), .. }), "{error}");
}

#[test]
fn a_journal_that_was_removed_is_not_an_empty_one() {
    let mut world = with_two_checkpoints(1);
    world.disk.files.retain(|file, _| matches!(file, FileName::Checkpoint(..)));
    let error = recover(&mut world.disk, config()).expect_err("the journal is gone");
    assert!(error.to_string().contains("there are checkpoints but no journal"), "{error}");
}
