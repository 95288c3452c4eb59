//! Recent log entries of a core's shards, and payloads of blocks that were read, so that a message delivered soon after
//! it came (or after its run came back) is not read from disk. Bounded in bytes; the oldest go first.

use bytes::Bytes;
use overtake_base::ShardId;
use overtake_base::hash::Map;
use overtake_base::planted::{Bug, is_planted};
use overtake_queue::answer::Place;
use std::collections::VecDeque;

/// What one entry costs besides its bytes.
const ENTRY_OVERHEAD_BYTES: usize = 96;

/// See the module's text.
#[derive(Debug)]
pub struct EntryCache {
    entries: Map<(ShardId, Place), Bytes>,
    oldest_first: VecDeque<(ShardId, Place)>,
    bytes: usize,
    bytes_max: usize,
}

impl EntryCache {
    /// An empty cache of at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { entries: Map::default(), oldest_first: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Keeps what payloads stand in, and drops old ones to make room.
    pub fn insert(&mut self, shard: ShardId, place: Place, entry: Bytes) {
        let shard = if is_planted(Bug::CacheWithoutShard) { ShardId(0) } else { shard };
        self.bytes += entry.len() + ENTRY_OVERHEAD_BYTES;
        if let Some(before) = self.entries.insert((shard, place), entry) {
            self.bytes -= before.len() + ENTRY_OVERHEAD_BYTES;
        } else {
            self.oldest_first.push_back((shard, place));
        }
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.oldest_first.pop_front() else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.len() + ENTRY_OVERHEAD_BYTES;
            }
        }
    }

    /// What payloads stand in, if it is still here.
    #[must_use]
    pub fn get(&self, shard: ShardId, place: Place) -> Option<&Bytes> {
        let shard = if is_planted(Bug::CacheWithoutShard) { ShardId(0) } else { shard };
        self.entries.get(&(shard, place))
    }

    /// Bytes kept now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
