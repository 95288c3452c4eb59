//! Random bytes from the operating system, for what must not be guessed.

use std::fs::File;
use std::io::{self, Read as _};

/// Where they come from.
pub const SOURCE: &str = "/dev/urandom";

/// 32 of them.
pub fn bytes() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open(SOURCE)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A number that nobody else draws.
pub fn number() -> io::Result<u128> {
    let bytes = bytes()?;
    Ok(u128::from_le_bytes(core::array::from_fn(|i| bytes[i])))
}
