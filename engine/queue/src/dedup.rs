//! What a queue remembers of dedup keys and client-made ids, each until the end of its own window. A window runs from
//! the first acceptance, whatever becomes of the message, and is that of the configuration of that moment.

use crate::answer::KeyState;
use crate::claims::Claims;
use overtake_base::hash::Map;
use overtake_base::planted::{Bug, is_planted};
use overtake_base::{Malformed, MessageId, Reader, UnixMillis, Writer};
use std::collections::VecDeque;
use std::sync::Arc;

struct Remembered {
    id: MessageId,
    until: UnixMillis,
}

struct RememberedId {
    until: UnixMillis,
    /// Hash of the dedup key, claimed on another shard, that the message was stored under; 0 = none.
    key: u64,
}

/// Remembered keys and ids. Looked up by hash; forgotten in the order in which they were remembered.
#[derive(Default)]
pub(crate) struct Dedup {
    keys: Map<Arc<[u8]>, Remembered>,
    key_ends: VecDeque<(UnixMillis, Arc<[u8]>)>,
    ids: Map<MessageId, RememberedId>,
    id_ends: VecDeque<(UnixMillis, MessageId)>,
    pub(crate) claims: Claims,
}

impl Dedup {
    /// The id that was first accepted with this key, while its window lasts.
    pub(crate) fn by_key(&self, key: &[u8], now: UnixMillis) -> Option<MessageId> {
        if self.keys.is_empty() {
            return None;
        }
        self.keys.get(key).filter(|remembered| remembered.until > now).map(|remembered| remembered.id)
    }

    /// Whether this client-made id is remembered.
    pub(crate) fn has_id(&self, id: MessageId, now: UnixMillis) -> bool {
        !self.ids.is_empty() && self.ids.get(&id).is_some_and(|remembered| remembered.until > now)
    }

    /// Until when this client-made id is remembered as stored under this key, which was claimed on another shard.
    pub(crate) fn id_under(&self, id: MessageId, key: &[u8], now: UnixMillis) -> Option<UnixMillis> {
        let remembered = self.ids.get(&id).filter(|remembered| remembered.until > now)?;
        (remembered.key == key_hash(key)).then_some(remembered.until)
    }

    /// What is known of a key.
    pub(crate) fn key_state(&self, key: &[u8], now: UnixMillis) -> KeyState {
        match self.by_key(key, now) {
            Some(first) => KeyState::Taken(first),
            None => self.claims.pending(key, now).map_or(KeyState::Free, KeyState::Pending),
        }
    }

    pub(crate) fn remember_key(&mut self, key: &[u8], id: MessageId, until: UnixMillis) {
        let key: Arc<[u8]> = key.into();
        self.key_ends.push_back((until, key.clone()));
        self.keys.insert(key, Remembered { id, until });
    }

    pub(crate) fn remember_id(&mut self, id: MessageId, until: UnixMillis, claimed_key: Option<&[u8]>) {
        self.keep_id(id, until, claimed_key.map_or(0, key_hash));
    }

    fn keep_id(&mut self, id: MessageId, until: UnixMillis, key: u64) {
        self.id_ends.push_back((until, id));
        self.ids.insert(id, RememberedId { until, key });
    }

    /// Forgets what is over, at most `max` of each kind. Where a window became shorter, a key may stay in memory behind
    /// one that ends later; look-ups go by its own end.
    pub(crate) fn forget(&mut self, now: UnixMillis, max: usize) {
        for _ in 0..max {
            let Some((until, key)) = self.key_ends.pop_front_if(|(until, _)| *until <= now) else { break };
            // The key may have been claimed again since.
            if self.keys.get(&key).is_some_and(|remembered| remembered.until == until) {
                self.keys.remove(&key);
            }
        }
        for _ in 0..max {
            let Some((until, id)) = self.id_ends.pop_front_if(|(until, _)| *until <= now) else { break };
            if self.ids.get(&id).is_some_and(|remembered| remembered.until == until) {
                self.ids.remove(&id);
            }
        }
        self.claims.forget(now, max);
    }

    /// When something can be forgotten next.
    pub(crate) fn next_end(&self) -> UnixMillis {
        let keys = self.key_ends.front().map_or(UnixMillis::NEVER, |(until, _)| *until);
        let ids = self.id_ends.front().map_or(UnixMillis::NEVER, |(until, _)| *until);
        keys.min(ids).min(self.claims.next_end())
    }

    /// Appends what is still remembered at `now`.
    pub(crate) fn encode(&self, out: &mut Writer<'_>, now: UnixMillis) {
        let keys = self.key_ends.iter().filter_map(|(until, key)| {
            let current = self.keys.get(key).filter(|remembered| remembered.until == *until && *until > now);
            current.map(|remembered| (key, remembered))
        });
        let count = keys.clone().count();
        out.u32(u32::try_from(count).unwrap_or(u32::MAX));
        for (key, remembered) in keys {
            out.bytes(key);
            out.u128(remembered.id.0);
            out.u64(remembered.until.0);
        }
        let ids = self.id_ends.iter().filter_map(|(until, id)| {
            let current = self.ids.get(id).filter(|remembered| remembered.until == *until && *until > now);
            current.map(|remembered| (id, remembered))
        });
        out.u32(u32::try_from(ids.clone().count()).unwrap_or(u32::MAX));
        for (id, remembered) in ids {
            out.u128(id.0);
            out.u64(remembered.until.0);
            out.u64(remembered.key);
        }
        self.claims.encode(out, now);
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut dedup = Self::default();
        for _ in 0..input.count(usize::MAX, 28, "dedup keys")? {
            let key = input.bytes(usize::MAX, "dedup key")?;
            let id = MessageId(input.u128("dedup id")?);
            dedup.remember_key(key, id, UnixMillis(input.u64("dedup end")?));
        }
        for _ in 0..input.count(usize::MAX, 32, "remembered ids")? {
            let id = MessageId(input.u128("remembered id")?);
            let until = UnixMillis(input.u64("remembered end")?);
            dedup.keep_id(id, until, input.u64("remembered key")?);
        }
        dedup.claims = Claims::decode(input)?;
        Ok(if is_planted(Bug::ForgetDedup) { Self::default() } else { dedup })
    }
}

/// What is remembered of the key that an id was stored under; never 0.
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    overtake_base::hash::stable(key).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> UnixMillis = UnixMillis;

    #[test]
    fn a_key_is_free_at_the_end_of_its_window_and_can_be_claimed_again() {
        let mut dedup = Dedup::default();
        dedup.remember_key(b"k", MessageId(1), AT(100));
        assert_eq!(dedup.by_key(b"k", AT(99)), Some(MessageId(1)));
        assert_eq!(dedup.by_key(b"k", AT(100)), None);
        // Claimed again before the first claim was forgotten: forgetting that one must not free the key.
        dedup.remember_key(b"k", MessageId(2), AT(200));
        dedup.forget(AT(100), 10);
        assert_eq!(dedup.by_key(b"k", AT(150)), Some(MessageId(2)));
        dedup.forget(AT(200), 10);
        assert!(dedup.keys.is_empty() && dedup.key_ends.is_empty());
    }

    #[test]
    fn a_shorter_window_ends_on_time_behind_a_longer_one() {
        let mut dedup = Dedup::default();
        dedup.remember_id(MessageId(1), AT(1_000), None);
        dedup.remember_id(MessageId(2), AT(10), None);
        dedup.forget(AT(10), 10);
        assert!(dedup.has_id(MessageId(1), AT(10)) && !dedup.has_id(MessageId(2), AT(10)));
    }

    #[test]
    fn bytes_hold_what_is_remembered() {
        let mut dedup = Dedup::default();
        dedup.remember_key(b"gone", MessageId(1), AT(5));
        dedup.remember_key(b"k", MessageId(2), AT(100));
        dedup.remember_id(MessageId(3), AT(50), Some(b"q"));
        let mut bytes = Vec::new();
        dedup.encode(&mut Writer(&mut bytes), AT(10));
        let restored = Dedup::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(restored.by_key(b"k", AT(99)), Some(MessageId(2)));
        assert!(restored.has_id(MessageId(3), AT(49)) && restored.keys.len() == 1);
        assert_eq!(restored.id_under(MessageId(3), b"q", AT(49)), Some(AT(50)));
        assert_eq!(restored.id_under(MessageId(3), b"k", AT(49)), None);
        for cut in 0..bytes.len() {
            assert!(Dedup::decode(&mut Reader::new(&bytes[..cut])).is_err());
        }
    }
}
