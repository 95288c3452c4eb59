//! Why a journal cannot be opened or cannot go on. Every text says which file, what is wrong and what to do.

use crate::disk::FileName;
use core::fmt;

/// What to do where a data folder lacks something, or holds it damaged.
pub const RESTORE: &str =
    "restore the data folder from a backup, or remove it and let the peers repair this node";

/// A reason to stop. None of them is retried: the core stops loudly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JournalError {
    /// The configuration cannot work; says which value.
    Config(String),
    /// The disk failed; nothing may be answered from it any more.
    Disk(String),
    /// Bytes that had been durable are not what was written.
    Damaged {
        /// The file.
        file: FileName,
        /// Where in it, in bytes.
        offset: u64,
        /// What is wrong.
        detail: String,
    },
    /// A journal was begun in the folder, and nothing of it is left.
    Gone {
        /// The core whose folder it is.
        core: u16,
    },
    /// A file of another format version.
    OtherFormat {
        /// The file.
        file: FileName,
        /// Its version.
        found: u16,
        /// This program's.
        expected: u16,
    },
    /// A file of another data folder.
    OtherStore {
        /// The file.
        file: FileName,
        /// Its store.
        found: u128,
        /// This folder's.
        expected: u128,
    },
    /// A file of another core.
    OtherCore {
        /// The file.
        file: FileName,
        /// Its core.
        found: u16,
        /// This one.
        expected: u16,
    },
}

impl JournalError {
    /// What had been durable is not there, or is not what was written: others that hold it can rebuild it.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Gone { .. })
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(detail) => write!(f, "journal configuration: {detail}"),
            Self::Disk(detail) => write!(
                f,
                "the disk failed: {detail}; nothing was lost that was answered, but this node must stop: check the disk"
            ),
            Self::Damaged { file, offset, detail } => write!(
                f,
                "{file} is damaged at byte {offset}: {detail}; this is not a torn tail, so it is not repaired by \
                 guessing: {RESTORE}"
            ),
            Self::Gone { core } => write!(
                f,
                "the journal is damaged: one was begun in core-{core:02} before, and nothing of it is left; put its \
                 files back, or restore the whole data folder from a backup. Where losing all that is in the data folder \
                 is accepted, start with a new one: a node of a cluster under a new node id"
            ),
            Self::OtherFormat { file, found, expected } => write!(
                f,
                "{file} has format version {found}, this program reads version {expected}: run the version that \
                 wrote it"
            ),
            Self::OtherStore { file, found, expected } => write!(
                f,
                "{file} belongs to data folder {found:032x}, this one is {expected:032x}: it was copied here from \
                 elsewhere; put back the right file"
            ),
            Self::OtherCore { file, found, expected } => write!(
                f,
                "{file} belongs to core {found}, this is the folder of core {expected}: put the folders of the \
                 cores back in their places"
            ),
        }
    }
}

impl core::error::Error for JournalError {}
