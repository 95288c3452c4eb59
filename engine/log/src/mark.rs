//! The mark of a folder that was given up: its journal was damaged, and its replicas are rebuilt from other nodes. While the
//! mark is there no replica of the folder may rely on what it promised before. It is a checkpoint file of a shard that
//! never is, so that it is written, found and checked like any other. A second one follows when the folder was begun anew
//! (a journal of which some files were removed can look like a whole one that ends earlier); both go when the last replica
//! is whole again.

use crate::checkpoint::{CheckpointHeader, state_checksum};
use crate::config::JournalConfig;
use crate::disk::{DiskOperationKind, FileName};
use bytes::Bytes;
use overtake_base::ShardId;

/// The shard that the mark claims to be of.
pub const MARK: ShardId = ShardId(0xfffe);
/// Index of the mark of a folder whose files are being removed; the next one is of a folder that was begun anew.
pub const GIVEN_UP: u64 = 1;
/// See there.
pub const BEGUN: u64 = 2;
/// The file of the first mark, and that of the second one, which goes before it.
pub const FILES: [FileName; 2] = [FileName::Checkpoint(MARK.0, 1), FileName::Checkpoint(MARK.0, 0)];

/// Writes the first mark.
#[must_use]
pub fn write(config: &JournalConfig) -> DiskOperationKind {
    let header = CheckpointHeader {
        core: config.core,
        store: config.store,
        shard: MARK,
        serial: 1,
        index: GIVEN_UP,
        term: 1,
        state_bytes: 0,
        state_checksum: state_checksum(&[]),
    };
    DiskOperationKind::Replace { file: FILES[0], data: Bytes::from(header.encode_file(&[])) }
}
