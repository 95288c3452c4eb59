//! Segments are prepared ahead, freed, reused and removed; a full disk refuses growth but nothing else.

use super::world::{World, config, recover};
use crate::disk::{DiskCompletion, DiskError};
use crate::{JournalError, Record};
use overtake_base::ShardId;

fn settle(world: &mut World) {
    loop {
        world.flush();
        if world.complete_one().is_none() {
            break;
        }
    }
}

#[test]
fn released_segments_are_written_anew() {
    let mut world = World::new(11);
    // Lives only at the very beginning of the journal.
    let record = Record::HardState { shard: ShardId(9), term: 3, vote: 2, commit: 1 };
    world.journal.append(record);
    let mut most = 0;
    for _ in 0..400 {
        world.append_next(ShardId(0));
        settle(&mut world);
        if world.random.below(10) == 0 {
            world.checkpoint(ShardId(0));
            settle(&mut world);
            let checkpoint = world.model.known[&ShardId(0)].checkpoint.clone().expect("a checkpoint");
            world.journal.release_before(ShardId(0), checkpoint.index + 1);
            settle(&mut world);
        }
        most = most.max(world.segment_files().len());
    }
    let usage = world.journal.usage();
    assert!(usage.bytes_written > 20 * config().segment_bytes, "{usage:?}");
    assert!(most <= 8, "{most} files");
    let (_, recovered) = recover(&mut world.disk, config()).expect("recovery");
    assert_eq!(recovered.shards[&ShardId(9)].hard_state, Some((3, 2, 1)));
}

/// The last entry of an idle shard is kept for other replicas for ever, and keeps no segment.
#[test]
fn the_last_entry_of_an_idle_shard_is_moved() {
    let mut world = World::new(14);
    for shard in [1, 2] {
        world.append_next(ShardId(shard));
        world.append_next(ShardId(shard));
        world.write_checkpoint(ShardId(shard), 2, 1_000);
        world.journal.release_but_for_others(ShardId(shard), 3, 2);
    }
    let mut most = 0;
    for index in 1..=400 {
        world.append_next(ShardId(0));
        settle(&mut world);
        world.journal.release_before(ShardId(0), index);
        most = most.max(world.journal.usage().segments_live);
    }
    let usage = world.journal.usage();
    assert!(usage.bytes_written > 20 * config().segment_bytes, "{usage:?}");
    assert!(most <= 6, "{most} segments");
    for shard in [1, 2] {
        assert_eq!(world.journal.entry_range(ShardId(shard)), Some((2, 2)));
    }
    world.write_checkpoint(ShardId(0), 400, 1_000);
    settle(&mut world);
    let (mut journal, recovered) = recover(&mut world.disk, config()).expect("recovery");
    assert!(recovered.shards[&ShardId(1)].entries.is_empty(), "the checkpoint has it");
    for shard in [1, 2] {
        assert_eq!(journal.entry_range(ShardId(shard)), Some((2, 2)));
        assert!(journal.read_entry(ShardId(shard), 2, 1, &mut Vec::new()));
    }
}

#[test]
fn files_of_a_burst_are_removed_again() {
    let mut world = World::new(12);
    for _ in 0..200 {
        world.append_next(ShardId(0));
        settle(&mut world);
    }
    let burst = world.segment_files().len();
    assert_eq!(world.journal.pinning().len(), 1);
    world.journal.release_before(ShardId(0), 201);
    settle(&mut world);
    assert!(world.journal.pinning().is_empty());
    let left = world.segment_files().len();
    assert!(burst > 12 && left <= 6, "{burst} files, {left} left");
    assert_eq!(world.journal.usage().index_entries, 0);
    // Without a batch in between, and with the checkpoint that releasing implies.
    world.write_checkpoint(ShardId(0), 200, 1_000);
    settle(&mut world);
    assert!(recover(&mut world.disk, config()).is_ok());
}

#[test]
fn a_full_disk_leaves_a_reserve_and_recovers() {
    let mut world = World::new(13);
    world.disk.files_max = 4;
    while !world.journal.disk_full() {
        world.append_next(ShardId(0));
        settle(&mut world);
    }
    // At least one ready segment is left when it is first noticed.
    assert!(world.journal.usage().segments_ready >= 1);
    for _ in 0..100 {
        world.append_next(ShardId(0));
        settle(&mut world);
    }
    assert!(world.journal.backlog_bytes() > 0, "no room for all of it");
    world.disk.files_max = 100;
    world.journal.retry_allocation(&mut world.out);
    world.disk.submit(&mut world.out);
    settle(&mut world);
    assert!(!world.journal.disk_full());
    assert_eq!(world.journal.backlog_bytes(), 0);
    let appended = world.model.appended.len();
    world.crash();
    assert_eq!(world.model.appended.len(), appended);
}

#[test]
fn the_backlog_is_bounded_by_what_is_appended_and_batches_are_split() {
    let mut world = World::new(14);
    settle(&mut world);
    for _ in 0..50 {
        world.append_entry(ShardId(0), world.model.appended.len() as u64 + 1, vec![1; 5_000].into());
    }
    assert!(world.journal.backlog_bytes() > 250_000);
    world.journal.flush(&mut world.out);
    assert_eq!(world.journal.usage().writes_in_flight, config().writes_in_flight_max);
    world.disk.submit(&mut world.out);
    settle(&mut world);
    assert_eq!(world.journal.backlog_bytes(), 0);
    // Three entries fit a batch.
    assert!(world.journal.durable() >= 17);
}

#[test]
fn a_failed_write_is_final() {
    let mut world = World::new(15);
    settle(&mut world);
    world.append_next(ShardId(0));
    world.journal.flush(&mut world.out);
    let id = world.out.pop().expect("the write").id;
    let error = DiskError { full: false, detail: "fdatasync: input/output error".into() };
    let result = world.journal.complete(DiskCompletion { id, result: Err(error) }, &mut world.out);
    assert_eq!(result, Err(JournalError::Disk("fdatasync: input/output error".into())));
}
