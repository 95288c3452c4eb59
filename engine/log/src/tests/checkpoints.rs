//! Two checkpoints of each shard: one stands in for the other, and neither lets go of what is needed.

use super::disk::Disk;
use super::world::{World, config, recover};
use crate::JournalError;
use crate::disk::FileName;
use bytes::Bytes;
use overtake_base::ShardId;

/// A snapshot of term 9 replaced a log of term 1 that had gone on for longer: its entries after the snapshot are not
/// part of any log.
#[test]
fn entries_older_than_a_snapshot_do_not_follow_it() {
    let mut world = World::new(20);
    for index in 1..=8 {
        world.append_entry(ShardId(0), index, Bytes::from_static(b"old"));
    }
    world.write_checkpoint(ShardId(0), 5, 9);
    world.flush();
    while world.complete_one().is_some() {}
    let (journal, recovered) = recover(&mut world.disk, config()).expect("recovery");
    let shard = &recovered.shards[&ShardId(0)];
    assert_eq!(shard.checkpoint.as_ref().map(|found| (found.index, found.term)), Some((5, 9)));
    assert_eq!(shard.entries, []);
    assert_eq!(journal.entry_range(ShardId(0)), Some((1, 5)));
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

/// The state of a shard whose entries are all gone is in its checkpoints alone. Where both are older ones again, nothing
/// but the journal can tell that there was more.
#[test]
fn the_journal_remembers_how_far_checkpoints_had_come() {
    for (told, known) in [(false, 0), (true, 20)] {
        let mut world = with_two_checkpoints(21);
        if told {
            world.journal.append(crate::Record::HardState { shard: ShardId(0), term: 1, vote: 1, commit: 0 });
            world.journal.note_committed(ShardId(0), 20);
            world.journal.note_committed(ShardId(0), 10);
        } else {
            // One that never promised anything promises nothing now.
            world.journal.note_committed(ShardId(0), 20);
        }
        world.flush();
        while world.complete_one().is_some() {}
        let (_, recovered) = recover(&mut world.disk, config()).expect("recovery");
        let hard_state = recovered.shards[&ShardId(0)].hard_state;
        assert_eq!(hard_state.map_or(0, |(_, _, commit)| commit), known);
    }
}
