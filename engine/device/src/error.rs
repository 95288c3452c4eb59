//! Why a data folder cannot be used: one line each, that says what to do.

use crate::membership::Membership;
use core::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A data folder that cannot be used.
#[derive(Debug)]
pub enum FolderError {
    /// Another process has it.
    InUse {
        /// The folder.
        folder: PathBuf,
        /// Its process id, as far as it could be read.
        process: Option<u32>,
    },
    /// This user may not write there.
    NotAllowed {
        /// What could not be made or opened.
        path: PathBuf,
    },
    /// A file stands where the folder, or one above it, should be.
    NotAFolder {
        /// What could not be made.
        path: PathBuf,
    },
    /// The file system cannot write past the page cache.
    NoDirectIo {
        /// The folder.
        folder: PathBuf,
        /// What was found.
        detail: String,
    },
    /// Made by another version.
    OtherFormat {
        /// The folder.
        folder: PathBuf,
        /// Its format.
        found: u16,
        /// This program's.
        expected: u16,
    },
    /// Made with another number of cores or shards.
    OtherNumber {
        /// The folder.
        folder: PathBuf,
        /// `cores` or `shards`.
        what: &'static str,
        /// The folder's.
        found: u16,
        /// What was asked for.
        asked: u16,
    },
    /// It is another node's.
    OtherMember {
        /// The folder.
        folder: PathBuf,
        /// Whose it is; none: a node by itself.
        found: Option<Box<Membership>>,
        /// Who asked.
        asked: Option<Box<Membership>>,
    },
    /// A number that no folder can be made with.
    OutOfRange {
        /// `cores` or `shards`.
        what: &'static str,
        /// What was asked for.
        asked: u16,
        /// The most there can be.
        max: u16,
    },
    /// The folder's identity is damaged or gone.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: &'static str,
    },
    /// Another failure of the system.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What failed.
        error: io::Error,
    },
}

impl FolderError {
    /// The error of a call on `path`.
    pub(crate) fn of(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::NotAllowed { path: path.into() }
            }
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                Self::NotAFolder { path: path.into() }
            }
            _ => Self::Io { path: path.into(), error },
        }
    }
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { folder, process: Some(process) } => {
                write!(f, "data folder {} is in use by process {process}", folder.display())
            }
            Self::InUse { folder, process: None } => {
                write!(f, "data folder {} is in use by another process", folder.display())
            }
            Self::NotAllowed { path } => {
                write!(
                    f,
                    "no right to write {}: run as its owner, or choose another data folder",
                    path.display()
                )
            }
            Self::NotAFolder { path } => {
                write!(f, "{} cannot be a data folder: a file stands in its place", path.display())
            }
            Self::NoDirectIo { folder, detail } => write!(
                f,
                "data folder {} is on a file system without direct I/O ({detail}): choose one on a disk, for example \
                 ext4 or xfs",
                folder.display()
            ),
            Self::OtherFormat { folder, found, expected } => write!(
                f,
                "data folder {} has format {found}, this version reads format {expected}: run the version that made it",
                folder.display()
            ),
            Self::OtherNumber { folder, what, found, asked } => write!(
                f,
                "data folder {} was made with {what} = {found}, asked for is {what} = {asked}: start it with {found}, \
                 or leave that out, or take another data folder",
                folder.display()
            ),
            Self::OtherMember { folder, found, asked } => {
                let is = |member: &Option<Box<Membership>>| match member.as_deref() {
                    Some(Membership { node, cluster }) => format!("node {node} of cluster {cluster:032x}"),
                    None => "a node by itself".to_owned(),
                };
                write!(
                    f,
                    "data folder {} is that of {}, and cannot be taken by {}: start it as that, or take another data folder",
                    folder.display(),
                    is(found),
                    is(asked)
                )
            }
            Self::OutOfRange { what, asked, max } => {
                write!(f, "{what} must be 1..={max}, asked for is {asked}")
            }
            Self::Damaged { path, detail } => {
                write!(f, "{} is damaged: {detail}; restore the data folder from a backup", path.display())
            }
            Self::Io { path, error } => {
                write!(f, "cannot use {}: {error}; choose another data folder with --data", path.display())
            }
        }
    }
}

impl core::error::Error for FolderError {}
