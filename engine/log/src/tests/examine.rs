//! An examination finds whatever a start would refuse, wherever the damage is, and reads on behind it.

use super::disk::Disk;
use super::world::{World, config, recover};
use crate::checkpoint::CheckpointHeader;
use crate::disk::{DiskDone, DiskOperation, FileName};
use crate::examine::{Examination, Finding, Seen, Severity, would_open};
use crate::{JournalError, Record};
use overtake_base::{CoreId, ShardId};

/// Everything that is wrong, and how many records were seen.
fn examine(disk: &Disk) -> (Vec<Finding>, usize) {
    let mut examination = Examination::new(config().store, config().core);
    let mut records = 0;
    for (file, bytes) in &disk.files {
        examination
            .file(*file, bytes, &mut |_, seen| records += usize::from(matches!(seen, Seen::Record(_))));
    }
    (examination.finish(), records)
}

fn damages(findings: &[Finding]) -> Vec<&Finding> {
    findings.iter().filter(|finding| finding.severity == Severity::Damage).collect()
}

fn dry(disk: &Disk) -> Result<crate::RecoveryReport, JournalError> {
    let mut copy = disk.clone();
    would_open(config(), |kind| {
        let DiskDone::Read(bytes) = (match kind {
            crate::disk::DiskOperationKind::List => {
                return copy.carry_out(DiskOperation { id: 0, kind }).result;
            }
            kind => copy.carry_out(DiskOperation { id: 0, kind }).result?,
        }) else {
            panic!("a read reads")
        };
        Ok(DiskDone::Read(bytes))
    })
}

fn worked(seed: u64, steps: usize) -> World {
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step();
    }
    world.seal();
    world
}

#[test]
fn a_sound_folder_is_sound() {
    for seed in 0..20 {
        let world = worked(seed, 300);
        let (findings, records) = examine(&world.disk);
        assert_eq!(findings, [], "seed {seed}");
        assert!(records > 50);
        assert_eq!(dry(&world.disk).expect("it opens").cut_tail, None);
    }
}

/// A crash at any time, torn writes and all, is no damage; and looking changes nothing.
#[test]
fn a_crash_is_no_damage() {
    let mut notes = 0;
    for seed in 0..60 {
        let mut world = World::new(seed);
        for _ in 0..300 {
            world.step();
        }
        world.disk.lose_power();
        let before = world.disk.files.clone();
        let (findings, _) = examine(&world.disk);
        assert_eq!(damages(&findings), Vec::<&Finding>::new(), "seed {seed}");
        notes += findings.len();
        dry(&world.disk).expect("it opens");
        assert_eq!(world.disk.files, before);
        let (mut journal_disk, config) = (world.disk.clone(), config());
        recover(&mut journal_disk, config).expect("it opens");
        let (findings, _) = examine(&journal_disk);
        assert_eq!(damages(&findings), Vec::<&Finding>::new(), "seed {seed}, opened again");
    }
    assert!(notes > 0, "some tails were torn");
}

/// The state in this file is not read by a start: the shard's other slot has a newer one, and that is good.
fn is_spare_state(disk: &Disk, file: FileName) -> bool {
    let FileName::Checkpoint(shard, slot) = file else { return false };
    let header_of = |slot| CheckpointHeader::decode(disk.files.get(&FileName::Checkpoint(shard, slot))?).ok();
    let (Some(own), Some(other)) = (header_of(slot), header_of(1 - slot)) else { return false };
    own.serial < other.serial
}

/// Whatever a start refuses because of one changed byte, the examination finds; and the other way round, a start tells
/// of whatever the examination finds, but for the state of a checkpoint that it does not read since there is a newer one.
#[test]
fn a_changed_byte_is_found_as_a_start_finds_it() {
    let (mut found, mut harmless, mut spare) = (0, 0, 0);
    for seed in 0..12 {
        let world = worked(seed, 250);
        let files: Vec<FileName> = world.disk.files.keys().copied().collect();
        let mut random = world.random.clone();
        for _ in 0..150 {
            let mut disk = world.disk.clone();
            let file = files[random.below(files.len() as u64) as usize];
            let bytes = disk.files.get_mut(&file).expect("a file");
            let reach = if random.below(2) == 0 { bytes.len() } else { bytes.len().min(3 * 4096) };
            bytes[random.below(reach as u64) as usize] ^= 1 << random.below(8);
            let (findings, _) = examine(&disk);
            let damages = damages(&findings);
            match dry(&disk) {
                Ok(report) => {
                    let in_files: Vec<FileName> = damages.iter().map(|finding| finding.file).collect();
                    if is_spare_state(&disk, file) && damages.iter().any(|d| d.offset > 0) {
                        assert_eq!(
                            (in_files, report.damaged_checkpoints),
                            (vec![file], vec![]),
                            "{findings:?}"
                        );
                        spare += 1;
                    } else {
                        assert_eq!(in_files, report.damaged_checkpoints, "{file}: {findings:?}");
                    }
                    harmless += 1;
                }
                Err(error) => {
                    assert!(!damages.is_empty(), "{error}: {findings:?}");
                    if let JournalError::Damaged { file, offset, .. } = &error {
                        let same = damages.iter().any(|d| (d.file, d.offset) == (*file, *offset));
                        // Of what is between files a start names the neighbour, the examination the file itself.
                        let between = *offset == 0 || *offset == config().segment_bytes;
                        assert!(same || between, "{error}: {findings:?}");
                    }
                    found += 1;
                }
            }
        }
    }
    assert!(found > 100 && harmless > 100 && spare > 10, "{found} {harmless} {spare}");
}

/// Many changed bytes, cut and missing files: never a panic, and always told.
#[test]
fn heavy_damage_is_told() {
    for seed in 0..30 {
        let world = worked(seed, 200);
        let (mut disk, mut random) = (world.disk.clone(), world.random.clone());
        for bytes in disk.files.values_mut() {
            for _ in 0..random.below(60) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            if random.below(5) == 0 {
                bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            }
        }
        let gone = disk.files.keys().next().copied().filter(|_| random.below(2) == 0);
        gone.map(|gone| disk.files.remove(&gone));
        let (findings, _) = examine(&disk);
        if let Err(JournalError::Damaged { .. } | JournalError::OtherFormat { .. }) = dry_of_damaged(&disk) {
            assert!(!damages(&findings).is_empty(), "seed {seed}");
        }
    }
}

/// The same for files that may be too short to be read as asked.
fn dry_of_damaged(disk: &Disk) -> Result<crate::RecoveryReport, JournalError> {
    would_open(config(), |kind| match kind {
        crate::disk::DiskOperationKind::Read { file, offset, length } => {
            let bytes =
                disk.files.get(&file).and_then(|bytes| bytes.get(offset as usize..)?.get(..length as usize));
            let missing = crate::disk::DiskError { full: false, detail: format!("{file} is too short") };
            bytes.map(|bytes| DiskDone::Read(bytes::Bytes::copy_from_slice(bytes))).ok_or(missing)
        }
        kind => disk.clone().carry_out(DiskOperation { id: 0, kind }).result,
    })
}

#[test]
fn what_stands_behind_damage_is_read() {
    let mut world = World::new(5);
    for index in 1..=6 {
        world.append_entry(ShardId(0), index, bytes::Bytes::from(vec![index as u8; 100]));
        world.flush();
        while world.complete_one().is_some() {}
    }
    world.seal();
    // The header of the batch of entry 3, and the body of entry 5.
    let segment = world.disk.files.get_mut(&FileName::Segment(0)).expect("the first segment");
    segment[4096 * 4 + 50] ^= 1;
    segment[4096 * 6 + 200] ^= 1;
    let mut examination = Examination::new(config().store, config().core);
    let mut entries = Vec::new();
    for (file, bytes) in &world.disk.files {
        examination.file(*file, bytes, &mut |_, seen| {
            if let Seen::Record(Record::Entry { index, data, .. }) = seen {
                assert!(data.iter().all(|byte| u64::from(*byte) == index));
                entries.push(index);
            }
        });
    }
    assert_eq!(entries, [1, 2, 3, 4, 6], "a batch's header is not needed to read a record");
    let findings = examination.finish();
    let places: Vec<(u64, Severity)> = findings.iter().map(|f| (f.offset, f.severity)).collect();
    assert_eq!(places, [(4096 * 4, Severity::Damage), (4096 * 6, Severity::Damage)], "{findings:?}");
    assert!(findings[0].detail.starts_with("batch 4 should be here, but"), "{findings:?}");
}

#[test]
fn files_of_others_are_told() {
    let world = worked(1, 100);
    for (store, core) in [(78, config().core), (config().store, CoreId(1))] {
        let mut examination = Examination::new(store, core);
        for (file, bytes) in &world.disk.files {
            examination.file(*file, bytes, &mut |_, _| {});
        }
        let findings = examination.finish();
        assert!(findings.iter().all(|finding| finding.detail.starts_with("it belongs to")), "{findings:?}");
        assert_eq!(findings.len(), world.disk.files.len() - blank(&world.disk));
    }
}

fn blank(disk: &Disk) -> usize {
    disk.files.values().filter(|bytes| bytes.iter().all(|byte| *byte == 0)).count()
}
