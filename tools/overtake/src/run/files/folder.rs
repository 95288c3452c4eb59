//! A data folder that is only looked at: which files are there, and their bytes.

use overtake_base::CoreId;
use overtake_base::limits::CORES_MAX;
use overtake_device::{
    FolderError, FolderLock, Membership, StoreIdentity, core_folder, lock_folder_to_look, read_member,
    read_peers, read_store,
};
use overtake_log::disk::{BLOCK_BYTES, FileName};
use overtake_log::segment::SegmentHeader;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A locked data folder.
#[derive(Debug)]
pub struct DataFolder {
    _lock: FolderLock,
    /// What the folder says it is; else what is wrong.
    pub identity: Result<StoreIdentity, String>,
    /// Identity that the files' headers should have.
    pub store: u128,
    /// Whose it is, as far as the folder says; else what is wrong with what it says of nodes.
    pub member: Result<Option<Membership>, String>,
    /// The folders of cores, by number.
    pub cores: Vec<CoreFolder>,
}

/// The folder of one core.
#[derive(Debug)]
pub struct CoreFolder {
    /// The core.
    pub core: CoreId,
    path: PathBuf,
    /// Its files by name, with their lengths.
    pub files: Vec<(FileName, u64)>,
    /// Folders, pipes and the like, and links that lead nowhere, where files should be.
    pub unusable: Vec<FileName>,
    /// What else lies there.
    pub others: Vec<String>,
}

impl DataFolder {
    /// Takes the folder and lists its files.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let lock = lock_folder_to_look(path)?;
        let identity = match read_store(path) {
            Ok(Some(identity)) => Ok(identity),
            Ok(None) => Err("there is no identity file".to_owned()),
            Err(error @ (FolderError::Damaged { .. } | FolderError::OtherFormat { .. })) => {
                Err(error.to_string())
            }
            Err(error) => return Err(error),
        };
        let member = match (read_member(path), read_peers(path)) {
            (Ok(None), Ok(peers)) if !peers.is_empty() => {
                Err("member: it is gone, but the identities of other nodes are there".into())
            }
            (Ok(member), Ok(_)) => Ok(member),
            (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        };
        let mut cores = Vec::new();
        for core in (0..CORES_MAX).map(CoreId) {
            let folder = core_folder(path, core);
            if folder.is_dir() {
                cores.push(CoreFolder::list(core, folder)?);
            }
        }
        if let (Err(detail), true) = (&identity, cores.is_empty()) {
            let error = io::Error::new(io::ErrorKind::InvalidData, format!("it is no data folder: {detail}"));
            return Err(FolderError::Io { path: path.into(), error });
        }
        let store = match &identity {
            Ok(identity) => identity.store,
            // What the files say of themselves.
            Err(_) => cores.iter().find_map(CoreFolder::store_of_a_segment).unwrap_or_default(),
        };
        Ok(Self { _lock: lock, identity, store, member, cores })
    }

    /// Whether the folder says that the core has begun a journal.
    pub fn has_journal(&self, core: CoreId) -> bool {
        self.identity.as_ref().is_ok_and(|identity| identity.has_journal(core))
    }

    /// Shards of the node; as many as there can be where that is not known.
    pub fn shards(&self) -> u16 {
        self.identity.as_ref().map_or(overtake_base::limits::SHARDS_MAX, |identity| identity.shards)
    }
}

impl CoreFolder {
    fn list(core: CoreId, path: PathBuf) -> Result<Self, FolderError> {
        let error = |error| FolderError::Io { path: path.clone(), error };
        let (mut files, mut unusable, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for entry in fs::read_dir(&path).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match (name.parse(), fs::metadata(entry.path())) {
                (Ok(file), Ok(metadata)) if metadata.is_file() => files.push((file, metadata.len())),
                (Ok(file), _) => unusable.push(file),
                (Err(_), _) => others.push(name),
            }
        }
        files.sort_unstable();
        unusable.sort_unstable();
        others.sort_unstable();
        Ok(Self { core, path, files, unusable, others })
    }

    /// The file's name, from the data folder on.
    pub fn name(&self, file: FileName) -> String {
        format!("core-{:02}/{file}", self.core)
    }

    /// All of a file.
    pub fn read(&self, file: FileName) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(file.to_string()))
    }

    /// So many bytes of a file, or fewer where it ends.
    pub fn read_at(&self, file: FileName, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let opened = File::open(self.path.join(file.to_string()))?;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match opened.read_at(&mut bytes[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Length of a segment, as the first header that can be read says.
    pub fn segment_bytes(&self) -> Option<u64> {
        self.a_segment_header().map(|header| header.segment_bytes)
    }

    fn store_of_a_segment(&self) -> Option<u128> {
        self.a_segment_header().map(|header| header.store)
    }

    fn a_segment_header(&self) -> Option<SegmentHeader> {
        let segments = self.files.iter().filter(|(file, _)| matches!(file, FileName::Segment(_)));
        segments
            .filter_map(|(file, _)| self.read_at(*file, 0, BLOCK_BYTES).ok())
            .find_map(|block| SegmentHeader::decode(&block).ok())
    }
}
