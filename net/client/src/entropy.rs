//! Random bits of the operating system and client-made message ids.

use overtake_base::random::Random;
use overtake_base::{MessageId, routing};
use std::time::{SystemTime, UNIX_EPOCH};

/// 64 bits that no other process has.
pub(crate) fn seed() -> u64 {
    let mut bytes = [0; 8];
    if rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).is_ok() {
        return u64::from_le_bytes(bytes);
    }
    // No random device: time and process still tell clients of one machine apart.
    now_ms().rotate_left(32) ^ u64::from(std::process::id())
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Makes message ids of the current time and 80 random bits.
///
/// ```
/// let mut ids = overtake_client::MessageIds::new();
/// assert_ne!(ids.next_id(), ids.next_id());
/// ```
#[derive(Debug)]
pub struct MessageIds {
    high: Random,
    low: Random,
}

impl MessageIds {
    /// A source seeded by the operating system with 128 bits, so that two sources do not meet.
    #[must_use]
    pub fn new() -> Self {
        Self { high: Random::new(seed(), "message id, high"), low: Random::new(seed(), "message id, low") }
    }

    /// The next id.
    pub fn next_id(&mut self) -> MessageId {
        let random = (u128::from(self.high.next_u64()) << 64) | u128::from(self.low.next_u64());
        MessageId::new(now_ms(), random)
    }

    /// The next id for a message with this dedup key. A message lives on its id's shard and its key is looked after on the
    /// key's; this id brings both to one shard, so that storing takes one durable write in place of two.
    pub fn next_id_for(&mut self, dedup_key: Option<&[u8]>) -> MessageId {
        let id = self.next_id();
        dedup_key.map_or(id, |key| id.routed(routing::of_key(key)))
    }
}

impl Default for MessageIds {
    fn default() -> Self {
        Self::new()
    }
}
