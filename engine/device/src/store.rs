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
//! | 32 | 8 | journals: bit n is set once the journal of core n was begun |
//! | 40 | 8 | checksum of bytes 0..40 |
//!
//! Format 1 has no journals: its checksum is at 32. It is read, and becomes format 2 when a journal is noted.
//!
//! A core's bit is set after its first journal is durable and before anything that it promises leaves it. A start that
//! is cut short before finds either nothing or a journal that promised nothing. A core whose bit is set and whose journal
//! is not there has lost it; without the bit such a folder would pass for a new one.

use crate::error::FolderError;
use crate::folder::{core_folder, make_folder, read_small_file, replace_file};
use overtake_base::checksum::checksum;
use overtake_base::limits::{CORES_MAX, SHARDS_MAX};
use overtake_base::{CoreId, Malformed, Reader, Writer};
use overtake_log::{Field, contiguous, field, layout_of};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Format of data folders that this version makes and reads.
pub const STORE_FORMAT: u16 = 2;
/// Shards of a data folder that is made without saying, for a node by itself.
pub const SHARDS_DEFAULT: u16 = 8;
/// The same in a cluster.
pub const SHARDS_DEFAULT_CLUSTER: u16 = 32;

const MAGIC: &[u8; 8] = b"OVTKSTOR";
/// The format that did not know of journals.
const FORMAT_WITHOUT_JOURNALS: u16 = 1;
const IDENTITY_BYTES: usize = 48;
const FIELDS: [Field; 8] = [
    field("magic", 0, 8),
    field("format", 8, 2),
    field("cores", 10, 2),
    field("shards", 12, 2),
    field("zero", 14, 2),
    field("store", 16, 16),
    field("journals", 32, 8),
    field("checksum", 40, 8),
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
    /// Cores whose journal was begun, as bits.
    journals: u64,
}

impl StoreIdentity {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(IDENTITY_BYTES);
        let mut writer = Writer(&mut bytes);
        writer.raw(MAGIC);
        writer.u16(STORE_FORMAT);
        writer.u16(self.cores);
        writer.u16(self.shards);
        writer.u16(0);
        writer.u128(self.store);
        writer.u64(self.journals);
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
        if ![FORMAT_WITHOUT_JOURNALS, STORE_FORMAT].contains(&format) {
            return Err(Ok(format));
        }
        Self::decode_rest(reader, bytes, format).map_err(Err)
    }

    fn decode_rest(mut reader: Reader<'_>, bytes: &[u8], format: u16) -> Result<Self, Malformed> {
        let cores = reader.u16("the file is too short")?;
        let shards = reader.u16("the file is too short")?;
        reader.u16("the file is too short")?;
        let store = reader.u128("the file is too short")?;
        let journals = match format {
            FORMAT_WITHOUT_JOURNALS => 0,
            _ => reader.u64("the file is too short")?,
        };
        let expected = checksum(DOMAIN, &bytes[..reader.position()]);
        if reader.u64("the file is too short")? != expected {
            return Err(Malformed("its checksum does not fit"));
        }
        reader.finish("the file is too long")?;
        if !(1..=CORES_MAX).contains(&cores) || !(1..=SHARDS_MAX).contains(&shards) {
            return Err(Malformed("its numbers of cores and shards are out of range"));
        }
        Ok(Self { store, cores, shards, format, journals })
    }

    /// Whether the journal of a core was begun.
    #[must_use]
    pub fn has_journal(&self, core: CoreId) -> bool {
        self.journals & journal_bit(core) != 0
    }

    /// Remembers durably that the journal of a core was begun.
    pub fn note_journal(&mut self, folder: &Path, core: CoreId) -> Result<(), FolderError> {
        if self.has_journal(core) {
            return Ok(());
        }
        let noted = Self { format: STORE_FORMAT, journals: self.journals | journal_bit(core), ..*self };
        let path = folder.join(IDENTITY_FILE);
        replace_file(&path, &noted.encode()).map_err(|error| FolderError::of(&path, error))?;
        *self = noted;
        Ok(())
    }
}

const _: () = assert!(CORES_MAX as u32 <= u64::BITS);

fn journal_bit(core: CoreId) -> u64 {
    1u64.checked_shl(core.0.into()).unwrap_or(0)
}

/// Whether a data folder has been made.
pub(crate) fn is_made(folder: &Path) -> bool {
    folder.join(IDENTITY_FILE).exists() || has_core_folder(folder)
}

fn has_core_folder(folder: &Path) -> bool {
    (0..CORES_MAX).any(|core| core_folder(folder, CoreId(core)).exists())
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
    let Some(bytes) = read_small_file(&path)? else { return Ok(None) };
    StoreIdentity::decode(&bytes).map(Some).map_err(|error| match error {
        Ok(found) => FolderError::OtherFormat { folder: folder.into(), found, expected: STORE_FORMAT },
        Err(Malformed(detail)) => FolderError::Damaged { path, detail },
    })
}

/// As many cores as a new data folder is made for where none are named.
#[must_use]
pub fn cores_of_machine() -> u16 {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(available).unwrap_or(CORES_MAX).clamp(1, CORES_MAX)
}

fn make_store(folder: &Path, cores: Option<u16>, shards: u16) -> Result<StoreIdentity, FolderError> {
    let path = folder.join(IDENTITY_FILE);
    // A folder with content but without its identity is not a new one.
    if has_core_folder(folder) {
        return Err(FolderError::Damaged { path, detail: "it is gone, but the folders of cores are there" });
    }
    let identity = StoreIdentity {
        store: random_store().map_err(|error| FolderError::of(Path::new("/dev/urandom"), error))?,
        cores: cores.unwrap_or_else(cores_of_machine),
        shards,
        format: STORE_FORMAT,
        journals: 0,
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

    const IDENTITY: StoreIdentity =
        StoreIdentity { store: 0x0102, cores: 2, shards: 8, format: STORE_FORMAT, journals: 0b10 };
    const FORMAT_1: &str = "4f56544b53544f52010002000800000002010000000000000000000000000000e129cdab5cfd5a69";

    #[test]
    fn the_bytes_are_the_golden_ones() {
        let hex: String = IDENTITY.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "4f56544b53544f520200020008000000020100000000000000000000000000000200000000000000";
        assert_eq!(hex, format!("{expected}39cc33608ce4990c"));
    }

    #[test]
    fn a_folder_of_format_1_is_read_and_becomes_format_2() {
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        let folder = std::env::temp_dir().join(format!("overtake-format-1-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(IDENTITY_FILE), bytes(FORMAT_1)).unwrap();
        let mut found = read_store(&folder).unwrap().unwrap();
        assert_eq!(found, StoreIdentity { format: 1, journals: 0, ..IDENTITY });
        found.note_journal(&folder, CoreId(1)).unwrap();
        assert_eq!(found, IDENTITY);
        assert_eq!(read_store(&folder).unwrap(), Some(IDENTITY));
        assert!(found.has_journal(CoreId(1)) && !found.has_journal(CoreId(0)));
        std::fs::remove_dir_all(&folder).unwrap();
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
