//! Log entries and snapshots of shards and of the directory. What is taken must leave a state that can be written down
//! and read back.

use bytes::Bytes;
use overtake_base::ShardId;
use overtake_queue::directory::Directory;
use overtake_queue::entry::{decode_batch, encode_batch};
use overtake_queue::machine::Machine;

const SHARD: ShardId = ShardId(1);
/// Shards of the directory's shard set.
const SHARDS: u16 = 8;

/// The data is log entries, each with two bytes for its length.
pub(crate) fn shard(mut data: &[u8]) {
    let mut machine = Machine::new(SHARD);
    let mut answers = Vec::new();
    let mut index = 0;
    while let [low, high, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (entry, rest) = rest.split_at(length.min(rest.len()));
        data = rest;
        index += 1;
        let entry = Bytes::copy_from_slice(entry);
        if let Ok(batch) = decode_batch(&entry) {
            let mut again = Vec::new();
            encode_batch(&batch, &mut again);
            assert_eq!(decode_batch(&again.into()).ok(), Some(batch));
        }
        // What another version wrote, or a damaged disk: refused, with nothing done.
        let before = machine.digest();
        if machine.apply(index, &entry, &mut answers).is_err() {
            assert_eq!(machine.digest(), before);
        }
    }
    let mut bytes = Vec::new();
    machine.snapshot(&mut bytes);
    let restored = Machine::restore(SHARD, &bytes);
    assert_eq!(restored.map(|restored| restored.digest()).ok(), Some(machine.digest()));
}

/// The data is a snapshot without its checksum, so that what it says is looked at.
pub(crate) fn snapshot(data: &[u8]) {
    let mut bytes = data.to_vec();
    Machine::seal_snapshot(&mut bytes);
    if let Ok(machine) = Machine::restore(SHARD, &bytes) {
        let mut again = Vec::new();
        machine.snapshot(&mut again);
        assert!(Machine::restore(SHARD, &again).is_ok());
    }
}

pub(crate) fn directory(data: &[u8]) {
    let mut directory = Directory::new(SHARDS);
    if directory.apply(1, data).is_ok() {
        let restored = Directory::restore(SHARDS, &directory.snapshot());
        assert_eq!(restored.map(|restored| restored.snapshot()).ok(), Some(directory.snapshot()));
    }
}

pub(crate) fn directory_snapshot(data: &[u8]) {
    if let Ok(directory) = Directory::restore(SHARDS, data) {
        assert!(Directory::restore(SHARDS, &directory.snapshot()).is_ok());
    }
}
