//! Log entries of a core's shards with payloads of messages in memory, and payloads of blocks that were read, so that a
//! message delivered soon after it came (or after its run came back) is not read from disk. What no message needs any
//! more is taken out; the rest is bounded in bytes, and the oldest go first.

use bytes::Bytes;
use overtake_base::ShardId;
use overtake_base::hash::Map;
use overtake_base::planted::{Bug, is_planted};
use overtake_queue::answer::Place;
use std::collections::BTreeMap;

/// What one entry costs besides its bytes.
const ENTRY_OVERHEAD_BYTES: usize = 96;

/// See the module's text.
#[derive(Debug)]
pub struct EntryCache {
    /// With the number that each has in `oldest_first`.
    entries: Map<(ShardId, Place), (u64, Bytes)>,
    oldest_first: BTreeMap<u64, (ShardId, Place)>,
    last_number: u64,
    bytes: usize,
    bytes_max: usize,
}

impl EntryCache {
    /// An empty cache of at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { entries: Map::default(), oldest_first: BTreeMap::new(), last_number: 0, bytes: 0, bytes_max }
    }

    /// Keeps what payloads stand in, and drops old ones to make room.
    pub fn insert(&mut self, shard: ShardId, place: Place, entry: Bytes) {
        let key = (shard_of_key(shard), place);
        self.remove(shard, place);
        self.last_number += 1;
        self.bytes += entry.len() + ENTRY_OVERHEAD_BYTES;
        self.entries.insert(key, (self.last_number, entry));
        self.oldest_first.insert(self.last_number, key);
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.oldest_first.pop_first() else { break };
            if let Some((_, entry)) = self.entries.remove(&oldest) {
                self.bytes -= entry.len() + ENTRY_OVERHEAD_BYTES;
            }
        }
    }

    /// Drops what nobody needs any more.
    pub fn remove(&mut self, shard: ShardId, place: Place) {
        if let Some((number, entry)) = self.entries.remove(&(shard_of_key(shard), place)) {
            self.oldest_first.remove(&number);
            self.bytes -= entry.len() + ENTRY_OVERHEAD_BYTES;
        }
    }

    /// What payloads stand in, if it is still here.
    #[must_use]
    pub fn get(&self, shard: ShardId, place: Place) -> Option<&Bytes> {
        Some(&self.entries.get(&(shard_of_key(shard), place))?.1)
    }

    /// Bytes kept now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn shard_of_key(shard: ShardId) -> ShardId {
    if is_planted(Bug::CacheWithoutShard) { ShardId(0) } else { shard }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_base::BlockId;

    #[test]
    fn the_oldest_go_first_and_the_bound_holds() {
        let mut cache = EntryCache::new(1_000);
        for index in 0..100 {
            cache.insert(ShardId(0), Place::Entry(index), Bytes::from(vec![0; 100]));
            assert!(cache.bytes() <= 1_000);
        }
        assert!(cache.get(ShardId(0), Place::Entry(99)).is_some());
        assert!(cache.get(ShardId(0), Place::Entry(90)).is_none());
        assert_eq!(cache.oldest_first.len(), cache.entries.len());
    }

    #[test]
    fn what_is_taken_out_leaves_nothing_behind() {
        let mut cache = EntryCache::new(1_000);
        for _ in 0..10 {
            cache.insert(ShardId(0), Place::Entry(1), Bytes::from(vec![0; 100]));
            cache.insert(ShardId(0), Place::Block(BlockId(1)), Bytes::from(vec![1; 50]));
            cache.remove(ShardId(0), Place::Entry(1));
            cache.remove(ShardId(0), Place::Entry(1));
            assert!(cache.get(ShardId(0), Place::Entry(1)).is_none());
            assert!(cache.get(ShardId(0), Place::Block(BlockId(1))).is_some());
        }
        assert_eq!(cache.bytes(), 50 + ENTRY_OVERHEAD_BYTES);
        assert_eq!((cache.oldest_first.len(), cache.entries.len()), (1, 1));
    }
}
