//! Blocks of cold messages on disk: files that are written from front to back, one block after the other, each with one
//! durable write; read in whole blocks; freed block by block; cleaned and written anew when little of a file is needed.
//!
//! Read [`file`] and [`block`] (the formats), then [`Lanes`] (writing, reading, cleaning) and [`LanesRecovery`] (opening).
//! Where a block stands is known here and nowhere else: cleaning moves blocks and tells nobody.

pub mod block;
mod clean;
pub mod file;
mod inventory;
mod reads;
mod store;

pub use inventory::LanesRecovery;
pub use reads::{BlockPart, BlockRead};
pub use store::{Lanes, LanesCompleted, LanesUsage, NewBlock};

use crate::disk::BLOCK_BYTES;
use crate::error::JournalError;
use bytes::Bytes;
use file::LaneFileHeader;
use overtake_base::CoreId;

/// Operations of the lanes have this bit in their ids, those of the journal never do.
pub const LANES_OPERATION: u64 = 1 << 63;

/// How a core's lane files are laid out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LanesConfig {
    /// Identity of the data folder; it is in every header.
    pub store: u128,
    /// The core.
    pub core: CoreId,
    /// Length of a file in bytes: a multiple of 4,096, below 4 GiB. It cannot be changed for a folder that has some.
    pub file_bytes: u64,
    /// Files' worth of bytes that may be unneeded before anything is cleaned, besides half of what is needed.
    pub spare_files: u64,
}

impl LanesConfig {
    /// Longest block, header and padding included.
    #[must_use]
    pub fn block_bytes_max(&self) -> u64 {
        self.file_bytes - BLOCK_BYTES as u64
    }

    /// The first bytes of a file in use.
    fn file_header(&self, sequence: u64, previous_end: u64) -> Bytes {
        let Self { store, core, file_bytes, .. } = *self;
        let mut block = LaneFileHeader { core, store, sequence, file_bytes, previous_end }.encode();
        block.resize(BLOCK_BYTES, 0);
        block.into()
    }

    fn check(&self) -> Result<(), JournalError> {
        let whole = self.file_bytes.is_multiple_of(BLOCK_BYTES as u64);
        if whole && self.file_bytes > BLOCK_BYTES as u64 && self.file_bytes <= u64::from(u32::MAX) {
            return Ok(());
        }
        Err(JournalError::Config(format!(
            "a lane file of {} bytes; it must be a multiple of {BLOCK_BYTES}, from {} to {}",
            self.file_bytes,
            2 * BLOCK_BYTES,
            u32::MAX
        )))
    }
}
