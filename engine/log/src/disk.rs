//! The disk seam as types: what the log asks of a disk, and what a disk answers. The production shell carries these
//! to io_uring, the simulator to a simulated disk that loses power; neither decides anything.
//!
//! Every core has one folder of its own; [`FileName`] names the files in it. Operations may complete in any order. An
//! operation is not started before the log hands it over and is never retried by a shell.

use bytes::Bytes;

/// A file of a core's folder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileName {
    /// A journal segment: `journal-{number:08}.segment`. The number is the file's, not its place in the journal: a
    /// recycled file keeps it.
    Segment(u32),
    /// A shard's checkpoint: `shard-{shard:05}-{slot}.checkpoint`, slot 0 or 1.
    Checkpoint(u16, u8),
}

/// One thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskOperation {
    /// Named again by the completion.
    pub id: u64,
    /// What to do.
    pub kind: DiskOperationKind,
}

/// Kinds of operation. Offsets and lengths of segment reads and writes are multiples of `BLOCK_BYTES`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskOperationKind {
    /// Which files are there, with their lengths.
    List,
    /// Make a file of `bytes` zero bytes that are really written (no unwritten extents), durable with its name.
    Allocate { file: FileName, bytes: u64 },
    /// Write, and complete only when it is durable.
    Write { file: FileName, offset: u64, data: Bytes },
    /// Read exactly `length` bytes.
    Read { file: FileName, offset: u64, length: u32 },
    /// Make the file's whole content `data`, atomically and durably (other name, sync, rename, sync of the folder).
    Replace { file: FileName, data: Bytes },
    /// Remove the file, durably. A file that is not there is no error.
    Remove { file: FileName },
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
