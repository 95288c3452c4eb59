//! Whatever the power loss leaves: what was durable is recovered in order, nothing is invented, nothing comes back.

use super::disk::Disk;
use super::world::{World, check, config, recover};
use crate::Record;
use crate::batch::BatchHeader;
use crate::disk::{DiskOperationKind, FileName};
use bytes::Bytes;
use overtake_base::ShardId;
use overtake_base::random::Random;

#[test]
fn what_was_durable_survives_any_crash() {
    for seed in 0..500 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            if world.random.below(60) == 0 {
                world.crash();
            } else {
                world.step();
            }
        }
        world.seal();
        let appended = world.model.appended.len();
        world.crash();
        assert_eq!(world.model.appended.len(), appended, "seed {seed}: a clean end loses nothing");
        assert!(world.segment_files().len() < 40);
    }
}

#[test]
fn a_crash_after_every_single_write_recovers() {
    let mut world = World::new(4711);
    for step in 0..2_500 {
        world.step();
        let mut disk = world.disk.clone();
        disk.random = Random::new(step, "crash");
        disk.lose_power();
        let (_, recovered) = recover(&mut disk, config()).expect("recovery");
        check(&world.model, &recovered);
        disk.lose_power();
        let (_, again) = recover(&mut disk, config()).expect("recovery after recovery");
        assert_eq!(again.shards, recovered.shards);
    }
}

/// Batches k and k+1 are under way, only k+1 survives. Then k is written again, byte for byte. What had been dropped
/// must not follow it.
#[test]
fn what_was_dropped_never_comes_back() {
    let entry = |index, data| Record::Entry { shard: ShardId(1), term: 1, index, kind: 0, data };
    let mut disk = Disk::new(1);
    let mut out = Vec::new();
    let (mut journal, _) = recover(&mut disk, config()).expect("open");
    while let Some(completion) = disk.complete_one() {
        journal.complete(completion, &mut out).expect("complete");
        disk.submit(&mut out);
    }
    for (index, data) in [(1, b"one"), (2, b"two")] {
        journal.append(entry(index, data));
        journal.flush(&mut out);
    }
    assert_eq!(out.len(), 2);
    let second = out.pop().expect("the second batch");
    disk.carry_out(second);
    out.clear();
    for round in 0..6 {
        let (mut journal, recovered) = recover(&mut disk, config()).expect("recovery");
        let entries = recovered.shards.get(&ShardId(1)).map_or(0, |shard| shard.entries.len());
        assert_eq!(entries, usize::from(round > 0));
        assert_eq!(recovered.report.cut_tail.is_some(), round == 0);
        if round == 0 {
            journal.append(entry(1, b"one"));
            journal.flush(&mut out);
            disk.submit(&mut out);
            while journal.durable() < 3 {
                let completion = disk.complete_one().expect("the write is under way");
                journal.complete(completion, &mut out).expect("complete");
                disk.submit(&mut out);
            }
        }
        disk.pending.clear();
    }
}

#[test]
fn an_idle_journal_writes_nothing_after_one_vouch() {
    let mut world = World::new(3);
    world.append_next(ShardId(0));
    for _ in 0..20 {
        world.flush();
        while world.complete_one().is_some() {}
        world.journal.vouch(&mut world.out);
        world.disk.submit(&mut world.out);
    }
    assert!(world.journal.is_idle());
    // The opening batch, the entry, the vouch.
    assert_eq!(world.journal.durable(), 3);
    assert_eq!(world.journal.usage().bytes_written, 3 * 4096);
}

#[test]
fn the_largest_record_is_a_batch_of_its_own_and_is_read_back() {
    let config = crate::JournalConfig {
        segment_bytes: crate::segment_bytes_min(crate::record::DATA_BYTES_MAX),
        record_bytes_max: crate::record::DATA_BYTES_MAX,
        batch_bytes_max: 4096,
        ..config()
    };
    let mut disk = Disk::new(9);
    let mut out = Vec::new();
    let open = |disk: &mut Disk| {
        let mut out = Vec::new();
        let mut recovery = crate::Recovery::new(config.clone());
        recovery.start(&mut out);
        loop {
            disk.submit(&mut out);
            let completion = disk.complete_one().expect("recovery goes on");
            if let Some(opened) = recovery.complete(completion, &mut out).expect("recovery") {
                disk.submit(&mut out);
                return opened;
            }
        }
    };
    let (mut journal, _) = open(&mut disk);
    let data = vec![7; crate::record::DATA_BYTES_MAX];
    for index in 1..=3 {
        journal.append(Record::Entry { shard: ShardId(0), term: 1, index, kind: 0, data: &data });
    }
    assert!(journal.read_entry(ShardId(0), 2, 1, &mut out), "reads wait for what is not durable");
    let mut reads = Vec::new();
    loop {
        journal.flush(&mut out);
        disk.submit(&mut out);
        let Some(completion) = disk.complete_one() else { break };
        reads.extend(journal.complete(completion, &mut out).expect("complete").reads);
    }
    assert_eq!(reads.len(), 1);
    assert_eq!(reads[0].result, Ok(Bytes::from(data.clone())));
    let (_, recovered) = open(&mut disk);
    assert_eq!(recovered.shards[&ShardId(0)].entries.len(), 3);
    assert_eq!(recovered.shards[&ShardId(0)].entries[2].data, data);
}

/// The only segment is full and wholly released; the first batch of the next one is under way. Were the first segment
/// freed now and that batch lost, the journal would begin nowhere.
#[test]
fn a_segment_is_not_freed_before_the_next_one_holds_the_chain() {
    let mut world = World::new(21);
    let shard = ShardId(0);
    let settle = |world: &mut World| while world.complete_one().is_some() {};
    for index in 1..=7 {
        world.append_entry(shard, index, vec![3; 8_000].into());
        world.flush();
        settle(&mut world);
    }
    world.checkpoint(shard);
    settle(&mut world);
    world.append_entry(shard, 8, vec![3; 8_000].into());
    world.flush();
    assert_eq!(world.journal.usage().segments_live, 2);
    world.journal.release_before(shard, 8);
    world.flush();
    // Everything but the batch.
    let is_batch = |kind: &DiskOperationKind| matches!(kind, DiskOperationKind::Write { offset: 4096.., .. });
    loop {
        let at = world.disk.pending.iter().position(|operation| !is_batch(&operation.kind));
        let Some(at) = at else { break };
        let operation = world.disk.pending.remove(at);
        let completion = world.disk.carry_out(operation);
        world.journal.complete(completion, &mut world.out).expect("complete");
        world.disk.submit(&mut world.out);
        world.flush();
    }
    assert_eq!(world.disk.pending.len(), 1);
    world.disk.pending.clear();
    let (_, recovered) = recover(&mut world.disk, config()).expect("recovery");
    assert_eq!(recovered.shards[&shard].checkpoint.as_ref().map(|found| found.index), Some(7));
    assert_eq!(recovered.shards[&shard].entries, []);
}

/// A killed process leaves the newest segment's header in the disk's cache: it can be read, and goes with the power. If
/// recovery built upon it, the segment would be missed then, or everything in it.
#[test]
fn the_newest_header_is_written_again_before_anything_is_built_upon_it() {
    let mut world = World::new(23);
    while world.complete_one().is_some() {}
    let mut recovery = crate::Recovery::new(config());
    let (mut out, mut written) = (Vec::new(), Vec::new());
    recovery.start(&mut out);
    let mut opened = None;
    while opened.is_none() {
        for operation in &out {
            if let DiskOperationKind::Write { file, offset, data } = &operation.kind {
                let same = world.disk.files[file][*offset as usize..][..data.len()] == data[..];
                assert!(same || *offset > 0, "a header is written as it was read");
                written.push(*file);
            }
        }
        world.disk.submit(&mut out);
        let completion = world.disk.complete_one().expect("recovery goes on");
        opened = recovery.complete(completion, &mut out).expect("recovery");
    }
    let sequence = |file: &FileName| {
        let header = crate::segment::SegmentHeader::decode(&world.disk.files[file]);
        header.map(|header| header.sequence).unwrap_or(0)
    };
    let newest = world.disk.files.keys().copied().max_by_key(sequence).expect("segments");
    assert_eq!(written.first(), Some(&newest));
}

/// Recovery writes: again what nothing vouches for, then the opening batch; after a clean end only the vouch again.
#[test]
fn what_nothing_vouches_for_is_written_again_and_each_opening_has_its_own_epoch() {
    let mut world = World::new(22);
    while world.complete_one().is_some() {}
    for _ in 0..3 {
        world.append_next(ShardId(0));
        world.journal.flush(&mut world.out);
    }
    // They reach the disk, but the journal does not learn of it.
    world.disk.submit(&mut world.out);
    for operation in std::mem::take(&mut world.disk.pending) {
        world.disk.carry_out(operation);
    }
    let mut last_epoch = 1;
    for written_again in [3, 1, 1] {
        let mut recovery = crate::Recovery::new(config());
        let (mut out, mut writes) = (Vec::new(), Vec::new());
        recovery.start(&mut out);
        let mut opened = None;
        while opened.is_none() {
            for operation in &out {
                if let DiskOperationKind::Write { file, offset: offset @ 4096.., data } = &operation.kind {
                    let before = &world.disk.files[file][*offset as usize..][..data.len()];
                    writes.push((before == data, data.clone()));
                }
            }
            world.disk.submit(&mut out);
            let completion = world.disk.complete_one().expect("recovery goes on");
            opened = recovery.complete(completion, &mut out).expect("recovery");
        }
        let (_, opening) = writes.pop().expect("the opening batch");
        assert_eq!(writes.iter().filter(|(same, _)| *same).count(), written_again);
        assert_eq!(writes.len(), written_again);
        let header = BatchHeader::decode(&opening).expect("a batch").header;
        assert_eq!(header.records, 0);
        assert!(header.epoch > last_epoch);
        last_epoch = header.epoch;
    }
}
