//! The disk seam as types: what the log asks of a disk, and what a disk answers. The production shell carries these
//! to io_uring, the simulator to a simulated disk that loses power; neither decides anything.
//!
//! Every core has one folder of its own; [`FileName`] names the files in it. Operations may complete in any order. An
//! operation is not started before the log hands it over and is never retried by a shell.

use bytes::Bytes;
use core::fmt;
use core::str::FromStr;

/// Unit of segment reads and writes: their offsets and lengths are multiples of it.
pub const BLOCK_BYTES: usize = 4_096;

/// A file of a core's folder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileName {
    /// A journal segment: `journal-{number:08}.segment`. The number is the file's, not its place in the journal: a
    /// recycled file keeps it.
    Segment(u32),
    /// A shard's checkpoint: `shard-{shard:05}-{slot}.checkpoint`, slot 0 or 1.
    Checkpoint(u16, u8),
    /// A file of blocks of cold messages: `lane-{number:08}.segment`. The number is the file's, as of a journal segment.
    Lane(u32),
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(number) => write!(f, "journal-{number:08}.segment"),
            Self::Lane(number) => write!(f, "lane-{number:08}.segment"),
            Self::Checkpoint(shard, slot) => write!(f, "shard-{shard:05}-{slot}.checkpoint"),
        }
    }
}

/// The name is not one of the log's; such files are none of its business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotALogFile;

impl FromStr for FileName {
    type Err = NotALogFile;
    /// Only the spelling that [`fmt::Display`] writes: a file has one name.
    fn from_str(text: &str) -> Result<Self, NotALogFile> {
        let name = if let Some(number) = text.strip_prefix("journal-") {
            let number = number.strip_suffix(".segment").ok_or(NotALogFile)?;
            Self::Segment(number.parse().map_err(|_| NotALogFile)?)
        } else if let Some(number) = text.strip_prefix("lane-") {
            let number = number.strip_suffix(".segment").ok_or(NotALogFile)?;
            Self::Lane(number.parse().map_err(|_| NotALogFile)?)
        } else {
            let rest = text.strip_prefix("shard-").and_then(|t| t.strip_suffix(".checkpoint"));
            let (shard, slot) = rest.and_then(|t| t.split_once('-')).ok_or(NotALogFile)?;
            let slot = slot.parse().map_err(|_| NotALogFile)?;
            if slot > 1 {
                return Err(NotALogFile);
            }
            Self::Checkpoint(shard.parse().map_err(|_| NotALogFile)?, slot)
        };
        if name.to_string() == text { Ok(name) } else { Err(NotALogFile) }
    }
}

/// One thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskOperation {
    /// Named again by the completion.
    pub id: u64,
    /// What to do.
    pub kind: DiskOperationKind,
}

/// Kinds of operation. Offsets and lengths of segment reads and writes are multiples of [`BLOCK_BYTES`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskOperationKind {
    /// Which files are there, with their lengths.
    List,
    /// Make a file of zero bytes, durable with its name and with room on the disk. Of a journal segment they are really
    /// written (no unwritten extents), so that later writes are fast; of a lane file they need not be.
    Allocate {
        /// The file; one that is there is replaced.
        file: FileName,
        /// Its length.
        bytes: u64,
        /// What must go on hangs on it: it may use the room that is kept free for that on a disk that is nearly full.
        urgent: bool,
    },
    /// Write, and complete only when it is durable.
    Write {
        /// The file; it is there.
        file: FileName,
        /// First byte.
        offset: u64,
        /// What to write.
        data: Bytes,
    },
    /// Read exactly `length` bytes.
    Read {
        /// The file.
        file: FileName,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
    /// Make the file's whole content `data`, atomically and durably (other name, sync, rename, sync of the folder).
    Replace {
        /// The file; it need not be there.
        file: FileName,
        /// Its content.
        data: Bytes,
    },
    /// Remove the file, durably. A file that is not there is no error.
    Remove {
        /// The file.
        file: FileName,
    },
}

/// What became of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskCompletion {
    /// The operation's.
    pub id: u64,
    /// Its result.
    pub result: Result<DiskDone, DiskError>,
}

/// A success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskDone {
    /// To `List`, sorted by name.
    Listed(Vec<(FileName, u64)>),
    /// To `Read`.
    Read(Bytes),
    /// To the others.
    Done,
}

/// A failure. After one of a write, replace or allocation nothing is known about the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskError {
    /// No room is left (also a short write).
    pub full: bool,
    /// For the operator: file, call, system error.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::FileName;

    #[test]
    fn names_have_one_spelling() {
        for name in [
            FileName::Segment(7),
            FileName::Segment(u32::MAX),
            FileName::Lane(9),
            FileName::Checkpoint(65_535, 1),
        ] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for other in [
            "journal-7.segment",
            "lane-7.segment",
            "journal-00000007.segmen",
            "shard-00001-2.checkpoint",
            "LOCK",
            "shard-1",
        ] {
            assert!(other.parse::<FileName>().is_err(), "{other}");
        }
    }
}
