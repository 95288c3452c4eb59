//! The identity of a data folder: made once, with the numbers that its content depends on, and checked at every start.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `OVTKSTOR` |
//! | 8 | 2 | format of the data folder |
//! | 10 | 2 | cores |
//! | 12 | 2 | shards |
//! | 14 | 2 | zero |
//! | 16 | 16 | store: random, from the operating system |
//! | 32 | 8 | checksum of bytes 0..32 |

use crate::error::FolderError;
use crate::folder::{core_folder, make_folder, replace_file};
use overtake_base::checksum::checksum;
use overtake_base::limits::{CORES_MAX, SHARDS_MAX};
use overtake_base::{CoreId, Malformed, Reader, Writer};
use overtake_log::{Field, contiguous, field, layout_of};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

/// Format of data folders that this version makes and reads.
pub const STORE_FORMAT: u16 = 1;
/// Shards of a data folder that is made without saying, for a node by itself.
pub const SHARDS_DEFAULT: u16 = 8;
/// The same in a cluster.
pub const SHARDS_DEFAULT_CLUSTER: u16 = 32;

const MAGIC: &[u8; 8] = b"OVTKSTOR";
const IDENTITY_BYTES: usize = 40;
const FIELDS: [Field; 7] = [
    field("magic", 0, 8),
    field("format", 8, 2),
    field("cores", 10, 2),
    field("shards", 12, 2),
    field("zero", 14, 2),
    field("store", 16, 16),
    field("checksum", 32, 8),
];
const _: () = assert!(contiguous(&FIELDS) == IDENTITY_BYTES);
const DOMAIN: u64 = u64::from_le_bytes(*b"storeid1");
const IDENTITY_FILE: &str = "identity";

/// What a data folder is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreIdentity {
    /// Random; it is in every header of every file of the folder.
    pub store: u128,
    /// Cores that share the shards, 1 to [`CORES_MAX`]. Shard n is on core n % cores.
    pub cores: u16,
    /// Shards, 1 to [`SHARDS_MAX`].
    pub shards: u16,
    /// Format of the folder.
    pub format: u16,
}

impl StoreIdentity {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(IDENTITY_BYTES);
        let mut writer = Writer(&mut bytes);
        writer.raw(MAGIC);
        writer.u16(self.format);
        writer.u16(self.cores);
        writer.u16(self.shards);
        writer.u16(0);
        writer.u128(self.store);
        let sum = checksum(DOMAIN, writer.0);
        writer.u64(sum);
        bytes
    }

    /// `Err(Ok(format))`: the bytes are of another format.
    fn decode(bytes: &[u8]) -> Result<Self, Result<u16, Malformed>> {
        let mut reader = Reader::new(bytes);
        let magic = reader.raw(MAGIC.len(), "the file is too short").map_err(Err)?;
        if magic != MAGIC {
            return Err(Err(Malformed("it is not an identity file")));
        }
        let format = reader.u16("the file is too short").map_err(Err)?;
        if format != STORE_FORMAT {
            return Err(Ok(format));
        }
        Self::decode_rest(reader, bytes, format).map_err(Err)
    }

    fn decode_rest(mut reader: Reader<'_>, bytes: &[u8], format: u16) -> Result<Self, Malformed> {
        let cores = reader.u16("the file is too short")?;
        let shards = reader.u16("the file is too short")?;
        reader.u16("the file is too short")?;
        let store = reader.u128("the file is too short")?;
        let expected = checksum(DOMAIN, &bytes[..reader.position()]);
        if reader.u64("the file is too short")? != expected {
            return Err(Malformed("its checksum does not fit"));
        }
        reader.finish("the file is too long")?;
        if !(1..=CORES_MAX).contains(&cores) || !(1..=SHARDS_MAX).contains(&shards) {
            return Err(Malformed("its numbers of cores and shards are out of range"));
        }
        Ok(Self { store, cores, shards, format })
    }
}

/// Whether a data folder has been made.
pub(crate) fn is_made(folder: &Path) -> bool {
    folder.join(IDENTITY_FILE).exists() || core_folder(folder, CoreId(0)).exists()
}

/// Every size and offset of the identity file, as text.
#[must_use]
pub fn store_layout() -> String {
    layout_of("identity of a data folder", STORE_FORMAT, &FIELDS)
}

/// Reads the identity of a locked data folder, making it the first time. `None` takes what the folder has; the first
/// time, as many cores as the machine has, and `shards_new` shards.
pub fn open_store(
    folder: &Path,
    cores: Option<u16>,
    shards: Option<u16>,
    shards_new: u16,
) -> Result<StoreIdentity, FolderError> {
    for (what, asked, max) in [("cores", cores, CORES_MAX), ("shards", shards, SHARDS_MAX)] {
        if let Some(asked) = asked.filter(|asked| !(1..=max).contains(asked)) {
            return Err(FolderError::OutOfRange { what, asked, max });
        }
    }
    make_folder(folder)?;
    let Some(identity) = read_store(folder)? else {
        return make_store(folder, cores, shards.unwrap_or(shards_new));
    };
    for (what, found, asked) in [("cores", identity.cores, cores), ("shards", identity.shards, shards)] {
        if let Some(asked) = asked.filter(|asked| *asked != found) {
            return Err(FolderError::OtherNumber { folder: folder.into(), what, found, asked });
        }
    }
    Ok(identity)
}

/// The identity of a data folder, if it has one.
pub fn read_store(folder: &Path) -> Result<Option<StoreIdentity>, FolderError> {
    let path = folder.join(IDENTITY_FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FolderError::of(&path, error)),
    };
    StoreIdentity::decode(&bytes).map(Some).map_err(|error| match error {
        Ok(found) => FolderError::OtherFormat { folder: folder.into(), found, expected: STORE_FORMAT },
        Err(Malformed(detail)) => FolderError::Damaged { path, detail },
    })
}

fn make_store(folder: &Path, cores: Option<u16>, shards: u16) -> Result<StoreIdentity, FolderError> {
    let path = folder.join(IDENTITY_FILE);
    // A folder with content but without its identity is not a new one.
    if core_folder(folder, CoreId(0)).exists() {
        return Err(FolderError::Damaged { path, detail: "it is gone, but the folders of cores are there" });
    }
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let identity = StoreIdentity {
        store: random_store().map_err(|error| FolderError::of(Path::new("/dev/urandom"), error))?,
        cores: cores.unwrap_or_else(|| u16::try_from(available).unwrap_or(CORES_MAX).clamp(1, CORES_MAX)),
        shards,
        format: STORE_FORMAT,
    };
    replace_file(&path, &identity.encode()).map_err(|error| FolderError::of(&path, error))?;
    Ok(identity)
}

fn random_store() -> std::io::Result<u128> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: StoreIdentity = StoreIdentity { store: 0x0102, cores: 2, shards: 8, format: 1 };

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let hex: String = IDENTITY.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "4f56544b53544f52010002000800000002010000000000000000000000000000e129cdab5cfd5a69");
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let good = IDENTITY.encode();
        assert_eq!(good.len(), IDENTITY_BYTES);
        assert_eq!(StoreIdentity::decode(&good), Ok(IDENTITY));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(StoreIdentity::decode(&bad).is_err(), "byte {at}");
            assert!(StoreIdentity::decode(&good[..at]).is_err(), "{at} bytes");
        }
    }
}
