//! Hashing. [`stable`] is part of the contract (which shard a key belongs to) and must never change. [`Map`] and
//! [`Set`] are for look-ups only: their seeds are fixed, but their order is arbitrary, so deterministic crates never
//! iterate over them (checked by the layer test).

use core::hash::BuildHasher;

/// Hash that decides a message's shard; the same on every machine and in every version.
#[must_use]
pub fn stable(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Fixed-seed hasher of [`Map`] and [`Set`].
#[derive(Clone, Copy, Default, Debug)]
pub struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = ahash::AHasher;
    fn build_hasher(&self) -> Self::Hasher {
        ahash::RandomState::with_seeds(0x6f76_6572, 0x7461_6b65, 0x7072_696f, 0x7269_7479).build_hasher()
    }
}

/// A hash map with fixed seeds. Look up, never iterate.
#[allow(clippy::disallowed_types)]
pub type Map<K, V> = std::collections::HashMap<K, V, FixedState>;
/// A hash set with fixed seeds. Look up, never iterate.
#[allow(clippy::disallowed_types)]
pub type Set<K> = std::collections::HashSet<K, FixedState>;
