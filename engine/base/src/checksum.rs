//! The checksum of everything written to disk: XXH3, 64 bits, seeded with a domain so that a block of one kind never
//! passes for a block of another kind.

/// Checksum of `bytes` for the format named by `domain` (a constant of that format).
#[must_use]
pub fn checksum(domain: u64, bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(bytes, domain)
}
