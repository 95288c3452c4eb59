//! A slow look at everything that is on disk, so that damage is known before it is needed. Somebody asks for one piece
//! after the other and decides how fast; each piece is read and must be what was written.

use crate::error::JournalError;

/// What came of one piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scrubbed {
    /// Bytes that were read.
    pub bytes: u64,
    /// What is wrong with it. It has not been needed yet, and may never be.
    pub damage: Option<JournalError>,
}
