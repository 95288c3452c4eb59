//! Blocks on a simulated disk next to a model of what must be there: random runs with power losses after every single
//! step, damage, cleaning, a full disk.

use super::disk::Disk;
use crate::JournalError;
use crate::disk::{DiskOperation, DiskOperationKind, FileName};
use crate::lanes::block::BlockHeader;
use crate::lanes::{BlockPart, Lanes, LanesCompleted, LanesConfig, LanesRecovery, NewBlock};
use bytes::Bytes;
use overtake_base::random::Random;
use overtake_base::{BlockId, CoreId, ShardId};
use std::collections::{BTreeMap, BTreeSet};

type Key = (ShardId, BlockId);

fn config() -> LanesConfig {
    LanesConfig { store: 77, core: CoreId(2), file_bytes: 64 * 1024, spare_files: 1 }
}

fn recover(disk: &mut Disk, config: LanesConfig) -> Result<Lanes, JournalError> {
    let mut recovery = LanesRecovery::new(config);
    let mut out = Vec::new();
    recovery.start(&mut out);
    loop {
        disk.submit(&mut out);
        let completion = disk.complete_one().expect("recovery waits for nothing");
        if let Some(lanes) = recovery.complete(completion, &mut out)? {
            disk.submit(&mut out);
            return Ok(lanes);
        }
    }
}

/// The same, but the power fails after so many completions.
fn recover_until(disk: &mut Disk, completions: u64) {
    let mut recovery = LanesRecovery::new(config());
    let mut out = Vec::new();
    recovery.start(&mut out);
    for _ in 0..completions {
        disk.submit(&mut out);
        let Some(completion) = disk.complete_one() else { break };
        if recovery.complete(completion, &mut out).expect("recovery").is_some() {
            break;
        }
    }
    disk.submit(&mut out);
    disk.lose_power();
}

struct World {
    disk: Disk,
    lanes: Lanes,
    random: Random,
    out: Vec<DiskOperation>,
    /// Everything that was ever written and not freed.
    wanted: BTreeMap<Key, NewBlock>,
    durable: BTreeSet<Key>,
    reads: BTreeMap<u64, (Key, BlockPart)>,
    next: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut disk = Disk::new(seed);
        let lanes = recover(&mut disk, config()).expect("an empty folder opens");
        Self {
            disk,
            lanes,
            random: Random::new(seed, "lanes"),
            out: Vec::new(),
            wanted: BTreeMap::new(),
            durable: BTreeSet::new(),
            reads: BTreeMap::new(),
            next: 0,
        }
    }

    fn bytes(&mut self, max: u64) -> Bytes {
        let length = self.random.below(max);
        (0..length).map(|_| self.random.next_u64() as u8).collect()
    }

    fn write(&mut self) -> Key {
        self.next += 1;
        let (shard, block) = (ShardId(self.random.below(3) as u16), BlockId(self.next));
        let records = if self.random.below(3) == 0 { Bytes::new() } else { self.bytes(2_000) };
        let most = if self.random.below(4) == 0 { 9_000 } else { 500 };
        let payloads = (0..1 + self.random.below(4)).map(|_| self.bytes(most)).collect();
        let new = NewBlock { shard, block, records, payloads };
        self.lanes.write(&new);
        self.wanted.insert((shard, block), new);
        (shard, block)
    }

    fn flush(&mut self) {
        self.lanes.flush(&mut self.out);
        self.disk.submit(&mut self.out);
    }

    fn some(&mut self) -> Option<Key> {
        let at = self.random.below(self.wanted.len().max(1) as u64) as usize;
        self.wanted.keys().nth(at).copied()
    }

    fn free(&mut self, key: Key) {
        self.lanes.free(key.0, key.1);
        self.wanted.remove(&key);
        self.durable.remove(&key);
        self.reads.retain(|_, (read, _)| *read != key);
    }

    fn read(&mut self, key: Key) {
        let new = &self.wanted[&key];
        let part = match self.random.below(3) {
            0 => BlockPart::Whole,
            1 => BlockPart::Records,
            _ => {
                let at = self.random.below(new.payloads.len() as u64) as usize;
                let before: usize = new.payloads[..at].iter().map(|payload| payload.len() + 8).sum();
                BlockPart::Payload { offset: before as u32 + 8, length: new.payloads[at].len() as u32 }
            }
        };
        self.next += 1;
        let there = self.lanes.read(key.0, key.1, part, self.next, &mut self.out);
        self.disk.submit(&mut self.out);
        assert_eq!(there, self.durable.contains(&key));
        if there {
            self.reads.insert(self.next, (key, part));
        }
    }

    fn complete_one(&mut self) -> bool {
        let Some(completion) = self.disk.complete_one() else { return false };
        let completed = self.lanes.complete(completion, &mut self.out).expect("no disk fails here");
        self.disk.submit(&mut self.out);
        self.take(completed);
        true
    }

    fn take(&mut self, completed: LanesCompleted) {
        self.durable.extend(completed.written);
        for read in completed.reads {
            // A block that was freed meanwhile was still what it is.
            let Some((key, part)) = self.reads.remove(&read.token) else { continue };
            assert_eq!(key, (read.shard, read.block));
            let new = &self.wanted[&key];
            let (records, payloads) =
                (new.records.clone(), crate::lanes::block::join_payloads(key.1, &new.payloads));
            match part {
                BlockPart::Whole => assert_eq!((read.records, read.payloads), (records, payloads.into())),
                BlockPart::Records => assert_eq!(read.records, records),
                BlockPart::Payload { offset, length } => {
                    assert_eq!(read.payloads, payloads[offset as usize..(offset + length) as usize]);
                }
            }
        }
    }

    fn settle(&mut self) {
        loop {
            self.flush();
            if !self.complete_one() {
                break;
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..25 => drop(self.write()),
            25..45 => {
                if let Some(key) = self.some() {
                    self.free(key);
                }
            }
            45..55 => {
                if let Some(key) = self.some() {
                    self.read(key);
                }
            }
            55..65 => self.flush(),
            _ => drop(self.complete_one()),
        }
    }

    fn crash(&mut self) {
        self.disk.lose_power();
        for _ in 0..self.random.below(3) {
            let completions = self.random.below(40);
            recover_until(&mut self.disk, completions);
        }
        self.lanes = recover(&mut self.disk, config()).expect("recovery");
        self.reads.clear();
        // What was durable is there; what was not may be.
        let wanted = &self.wanted;
        for key in &self.durable {
            assert!(self.lanes.contains(key.0, key.1), "block {key:?} is lost");
        }
        let there: BTreeSet<Key> =
            wanted.keys().filter(|key| self.lanes.contains(key.0, key.1)).copied().collect();
        self.durable = there;
        self.wanted.retain(|key, _| self.durable.contains(key));
        // What was freed may be there again: it is freed again.
        for shard in (0..3).map(ShardId) {
            let found: Vec<BlockId> = self.lanes.blocks_of(shard).collect();
            for block in found.into_iter().filter(|block| !self.wanted.contains_key(&(shard, *block))) {
                self.lanes.free(shard, block);
            }
        }
        self.read_everything();
    }

    fn read_everything(&mut self) {
        for key in self.durable.clone() {
            self.next += 1;
            assert!(self.lanes.read(key.0, key.1, BlockPart::Whole, self.next, &mut self.out));
            self.reads.insert(self.next, (key, BlockPart::Whole));
        }
        self.disk.submit(&mut self.out);
        while !self.reads.is_empty() {
            assert!(self.complete_one(), "reads are under way");
        }
    }

    fn lane_files(&self) -> Vec<FileName> {
        self.disk.files.keys().copied().collect()
    }
}

#[test]
fn what_was_durable_survives_any_crash() {
    let (mut copied, mut written) = (0, 0);
    for seed in 0..80 {
        let mut world = World::new(seed);
        for _ in 0..1_200 {
            if world.random.below(80) == 0 {
                let usage = world.lanes.usage();
                (copied, written) = (copied + usage.bytes_copied, written + usage.bytes_written);
                world.crash();
            } else {
                world.step();
            }
        }
        world.settle();
        assert_eq!(world.durable.len(), world.wanted.len(), "all is written in the end");
        let usage = world.lanes.usage();
        (copied, written) = (copied + usage.bytes_copied, written + usage.bytes_written);
        world.crash();
        assert_eq!(world.durable.len(), world.wanted.len());
    }
    assert!(copied > 300_000 && written > 2 * copied, "{copied} bytes copied, {written} written");
}

#[test]
fn a_crash_after_every_single_step_recovers() {
    let mut world = World::new(4711);
    for step in 0..2_500 {
        world.step();
        let mut disk = world.disk.clone();
        disk.random = Random::new(step, "crash");
        disk.lose_power();
        let lanes = recover(&mut disk, config()).expect("recovery");
        let lost = world.durable.iter().find(|key| !lanes.contains(key.0, key.1));
        assert_eq!(lost, None, "step {step}");
        // What recovery wrote again is durable by now, so nothing changes once more.
        disk.lose_power();
        let again = recover(&mut disk, config()).expect("recovery after recovery");
        for shard in (0..3).map(ShardId) {
            assert!(again.blocks_of(shard).eq(lanes.blocks_of(shard)));
        }
    }
}

#[test]
fn disk_use_is_bounded_by_what_is_needed() {
    let mut world = World::new(1);
    // One block of each twenty stays for ever.
    for round in 0..1_500 {
        let key = world.write();
        world.settle();
        if round % 20 != 0 {
            world.free(key);
        }
        let usage = world.lanes.usage();
        let bound = usage.live_bytes * 2 + 10 * config().file_bytes;
        assert!(usage.file_bytes <= bound, "round {round}: {usage:?}");
    }
    let usage = world.lanes.usage();
    assert!(usage.bytes_copied < usage.bytes_written / 2, "{usage:?}");
    world.crash();
}

#[test]
fn a_full_disk_stops_writing_but_not_freeing_and_cleaning() {
    let mut world = World::new(2);
    world.disk.files_max = 8;
    let mut keys = Vec::new();
    while !world.lanes.disk_full() {
        keys.push(world.write());
        world.settle();
    }
    // What waits stays waiting; a file is left for cleaning.
    for _ in 0..20 {
        keys.push(world.write());
        world.settle();
    }
    assert!(world.lanes.usage().waiting > 0 && world.lanes.usage().files_free >= 1);
    assert!(world.lanes.is_idle(), "nothing can go on by itself");
    // Most of all files is freed, nowhere all of one: cleaning makes room for what waits.
    let waiting = world.lanes.usage().waiting;
    let stays = |at: usize| at.is_multiple_of(6);
    for (_, key) in keys.iter().enumerate().filter(|(at, _)| !stays(*at)) {
        if world.durable.contains(key) {
            world.free(*key);
        }
    }
    world.settle();
    assert!(world.lanes.usage().waiting < waiting, "{:?}", world.lanes.usage());
    while world.lanes.usage().waiting == 0 || !world.lanes.disk_full() {
        world.write();
        world.settle();
    }
    // Trying again is no reason to believe that there is room.
    world.lanes.retry_allocation(&mut world.out);
    assert!(world.lanes.disk_full());
    world.settle();
    assert!(world.lanes.disk_full());
    world.disk.files_max = 100;
    world.lanes.retry_allocation(&mut world.out);
    world.settle();
    assert_eq!(world.lanes.usage().waiting, 0);
    assert!(!world.lanes.disk_full());
    world.crash();
    assert_eq!(world.durable.len(), world.wanted.len());
}

/// What makes the journal shorter gets of the room that is kept free, and is told when that is used up as well.
#[test]
fn a_full_disk_makes_room_for_a_block_of_what_is_kept_free() {
    let mut world = World::new(3);
    (world.disk.files_max, world.disk.kept_free) = (10, 2);
    while !world.lanes.disk_full() {
        world.write();
        world.settle();
    }
    let mut made = 0;
    for _ in 0..200 {
        if world.lanes.make_room(&mut world.out) {
            made += 1;
            let key = world.write();
            world.settle();
            assert!(world.lanes.contains(key.0, key.1), "there was room");
        }
        world.settle();
        assert!(world.lanes.disk_full(), "for ordinary blocks there is none");
    }
    assert!(made > 0 && !world.lanes.make_room(&mut world.out), "{made}");
    assert_eq!(world.lane_files().len(), 10);
    world.crash();
}

/// Several files, nothing under way.
fn filled(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..60 {
        world.write();
        world.settle();
    }
    assert!(world.lane_files().len() > 4);
    world
}

/// A changed byte is found when the block is read, or when its file is opened; never believed, and always named.
#[test]
fn no_changed_byte_is_believed() {
    let (mut at_open, mut at_read, mut cut, mut harmless) = (0, 0, 0, 0);
    for seed in 0..10 {
        let world = filled(seed);
        let files = world.lane_files();
        let mut random = world.random.clone();
        for _ in 0..100 {
            let mut disk = world.disk.clone();
            let file = files[random.below(files.len() as u64) as usize];
            let bytes = disk.files.get_mut(&file).expect("a file");
            let unit = random.below(16) * 4_096;
            let reach = if random.below(2) == 0 { 88 } else { 4_096 };
            let at = unit + random.below(reach);
            bytes[at as usize] ^= 1 << random.below(8);
            let lanes = match recover(&mut disk, config()) {
                Ok(lanes) => lanes,
                Err(error) => {
                    let named = match &error {
                        JournalError::Damaged { file: named, offset, .. } => *named == file && *offset <= at,
                        JournalError::OtherFormat { file: named, .. } => *named == file,
                        _ => false,
                    };
                    assert!(named, "byte {at} of {file}: {error}");
                    at_open += 1;
                    continue;
                }
            };
            let missing: Vec<&Key> =
                world.durable.iter().filter(|key| !lanes.contains(key.0, key.1)).collect();
            if !missing.is_empty() {
                // The last block looks torn; a file without its header is set aside, and said.
                let last = last_written(&world.disk);
                assert!(missing == [&last] || lanes.unreadable() == [file], "{missing:?}");
                cut += 1;
                continue;
            }
            let damaged = world.durable.iter().filter(|key| read_one(&mut disk.clone(), **key).is_err());
            match damaged.count() {
                0 => harmless += 1,
                1 => at_read += 1,
                more => panic!("{more} blocks are damaged by one byte"),
            }
        }
    }
    assert!(at_open > 50 && at_read > 50 && cut > 5 && harmless > 50, "{at_open} {at_read} {cut} {harmless}");
}

/// The block that stands last in the newest file; it may be a copy.
fn last_written(disk: &Disk) -> Key {
    let headers = disk.files.values().flat_map(|bytes| bytes.chunks(4_096).skip(1));
    let headers = headers.filter_map(|unit| BlockHeader::decode(unit).ok());
    let last = headers.max_by_key(|header| (header.sequence, header.offset)).expect("a block");
    (last.shard, last.block)
}

fn read_one(disk: &mut Disk, key: Key) -> Result<(), JournalError> {
    let mut lanes = recover(disk, config())?;
    let mut out = Vec::new();
    assert!(lanes.read(key.0, key.1, BlockPart::Whole, 1, &mut out));
    disk.submit(&mut out);
    while let Some(completion) = disk.complete_one() {
        lanes.complete(completion, &mut out)?;
        disk.submit(&mut out);
    }
    Ok(())
}

#[test]
fn a_damaged_block_is_named_with_its_file_and_place() {
    let mut world = World::new(3);
    let key = world.write();
    world.settle();
    world.write();
    world.settle();
    let file = world.disk.files.get_mut(&FileName::Lane(0)).expect("the first file");
    file[4_096 + 100] ^= 1;
    assert!(world.lanes.read(key.0, key.1, BlockPart::Whole, 1, &mut world.out));
    let operation = world.out.pop().expect("the read");
    let completion = world.disk.carry_out(operation);
    let error = world.lanes.complete(completion, &mut world.out).expect_err("damage");
    let text = error.to_string();
    assert!(text.contains("lane-00000000.segment is damaged at byte 4096"), "{text}");
    assert!(text.contains(&format!("block {} of shard {}", key.1, key.0)), "{text}");
    // Its header is gone, another block follows.
    world.disk.files.get_mut(&FileName::Lane(0)).expect("the first file")[4_096] ^= 1;
    let error = recover(&mut world.disk, config()).expect_err("damage");
    assert!(matches!(error, JournalError::Damaged { offset: 4_096, .. }), "{error}");
}

#[test]
fn files_of_others_are_told_apart() {
    let world = filled(5);
    let open = |change: fn(&mut LanesConfig)| {
        let mut other = config();
        change(&mut other);
        recover(&mut world.disk.clone(), other).expect_err("not ours")
    };
    assert!(matches!(open(|c| c.store = 78), JournalError::OtherStore { found: 77, expected: 78, .. }));
    assert!(matches!(open(|c| c.core = CoreId(1)), JournalError::OtherCore { found: 2, expected: 1, .. }));
    assert!(matches!(open(|c| c.file_bytes *= 2), JournalError::Config(_)));
    assert!(matches!(open(|c| c.file_bytes = 5_000), JournalError::Config(_)));
    let mut disk = world.disk.clone();
    let header = disk.files.get_mut(&FileName::Lane(0)).expect("a file");
    header[8] = 9;
    crate::lanes::file::KIND.seal(header);
    let error = recover(&mut disk, config()).expect_err("format 9");
    assert!(matches!(error, JournalError::OtherFormat { found: 9, expected: 1, .. }), "{error}");
}

/// A block whose write was under way when the process ended is whole, but may not be durable: it is written again.
#[test]
fn the_last_block_is_written_again_before_it_is_believed() {
    let mut world = World::new(6);
    world.write();
    world.settle();
    let mut recovery = LanesRecovery::new(config());
    let (mut out, mut written) = (Vec::new(), Vec::new());
    recovery.start(&mut out);
    loop {
        for operation in &out {
            if let DiskOperationKind::Write { file, offset, data } = &operation.kind {
                assert_eq!(world.disk.files[file][*offset as usize..][..data.len()], data[..]);
                written.push(BlockHeader::decode(data).expect("a block").block);
            }
        }
        world.disk.submit(&mut out);
        let completion = world.disk.complete_one().expect("recovery goes on");
        if recovery.complete(completion, &mut out).expect("recovery").is_some() {
            break;
        }
    }
    assert_eq!(written, [BlockId(1)]);
}

#[test]
fn nothing_is_written_without_need() {
    let mut world = World::new(7);
    world.settle();
    assert_eq!(world.disk.files.len(), 0, "no file before there is a block");
    let key = world.write();
    world.settle();
    let written = world.lanes.usage().bytes_written;
    world.free(key);
    for _ in 0..10 {
        world.settle();
    }
    assert_eq!(world.lanes.usage().bytes_written, written);
    // One that was freed before it was written is not written.
    let key = world.write();
    world.free(key);
    world.settle();
    assert_eq!(world.lanes.usage().bytes_written, written);
    assert!(world.lanes.is_idle());
}

/// One pass of the scrub: every block that is needed is read; the one that was changed is named, and nothing stops.
#[test]
fn the_scrub_reads_every_block_and_names_the_one_that_was_changed() {
    for seed in 0..8 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
        }
        world.settle();
        let pass = |world: &mut World| {
            let mut pieces = Vec::new();
            while world.lanes.scrub(&mut world.out) {
                world.disk.submit(&mut world.out);
                while let Some(completion) = world.disk.complete_one() {
                    let completed = world.lanes.complete(completion, &mut world.out).expect("nothing stops");
                    world.disk.submit(&mut world.out);
                    pieces.extend(completed.scrubbed);
                }
            }
            pieces
        };
        let clean = pass(&mut world);
        assert_eq!(clean.len(), world.durable.len());
        assert!(clean.len() > 3 && clean.iter().all(|piece| piece.damage.is_none()), "{clean:?}");
        let key = world.some().expect("a block");
        let (file, at) = world.lanes.place(key.0, key.1).expect("it is on disk");
        world.disk.files.get_mut(&file).expect("its file")[at as usize + 90] ^= 1;
        let pieces = pass(&mut world);
        let damage: Vec<String> =
            pieces.iter().filter_map(|piece| piece.damage.as_ref()).map(ToString::to_string).collect();
        let named = format!("{file} is damaged at byte {at}: block {} of shard {}", key.1, key.0);
        assert!(damage.len() == 1 && damage[0].starts_with(&named), "{named}: {damage:?}");
    }
}
