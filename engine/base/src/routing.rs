//! Which of its queue's shards a message lives on. Part of the contract: the same on every machine, in every version and
//! in clients.
//!
//! The low 16 of an id's random bits are its *routing*. A dedup key has a routing too, the low 16 bits of its hash. A
//! message lives where its id's routing says; its key is looked after where the key's routing says. An id that is made
//! with the routing of its message's key ([`MessageId::routed`]) brings both to one shard, whatever the number of shards.

use crate::ids::MessageId;

const ROUTING_BITS: u128 = 0xffff;

/// The routing of a dedup key.
#[must_use]
pub fn of_key(key: &[u8]) -> u16 {
    (crate::hash::stable(key) & ROUTING_BITS as u64) as u16
}

/// The place, among a queue's `shards`, of what has this routing.
#[must_use]
pub fn shard_index(routing: u16, shards: usize) -> usize {
    usize::from(routing) % shards.max(1)
}

impl MessageId {
    /// Where the message lives.
    #[must_use]
    pub const fn routing(self) -> u16 {
        (self.0 & ROUTING_BITS) as u16
    }

    /// The id with this routing in place of its own.
    #[must_use]
    pub const fn routed(self, routing: u16) -> Self {
        Self(self.0 & !ROUTING_BITS | routing as u128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routed_id_is_on_its_keys_shard_whatever_their_number() {
        let id = MessageId::new(1_700_000_000_000, u128::MAX);
        for key in [&b"order-42"[..], b"k", &[0xff; 256]] {
            let routed = id.routed(of_key(key));
            assert_eq!((routed.time_ms(), routed.0 >> 16), (id.time_ms(), id.0 >> 16));
            for shards in [1, 2, 3, 8, 1_024] {
                assert_eq!(shard_index(routed.routing(), shards), shard_index(of_key(key), shards));
            }
        }
    }

    #[test]
    fn routings_never_change() {
        assert_eq!(MessageId(0x1234_5678).routing(), 0x5678);
        assert_eq!((of_key(b""), of_key(b"order-42")), ROUTINGS);
        assert_eq!((shard_index(0x5678, 5), shard_index(7, 0)), (0x5678 % 5, 0));
    }

    const ROUTINGS: (u16, u16) = (38_082, 52_796);

    #[test]
    fn keys_spread_evenly() {
        let mut counts = [0u32; 8];
        (0..8_000).for_each(|n| counts[shard_index(of_key(format!("key-{n}").as_bytes()), 8)] += 1);
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }
}
