//! The tree that this crate lies in: its files, read once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders that hold what was built or run, not what was written.
const NOT_SOURCE: [&str; 2] = ["target", "overtake-data"];
/// Ends of names of text files.
const TEXTS: [&str; 9] = ["rs", "toml", "lock", "md", "sh", "yml", "yaml", "json", "txt"];

/// A text file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    /// From the top of the tree, with `/`.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// The top of the tree.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names of the folders and of the files at the top, hidden folders and what is not source left out.
pub fn top(root: &Path) -> io::Result<(Vec<String>, Vec<String>)> {
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    for entry in sorted(root)? {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_folder = entry.file_type()?.is_dir();
        if is_folder && !is_source(&name) {
            continue;
        }
        if is_folder { folders.push(name) } else { files.push(name) }
    }
    Ok((folders, files))
}

/// All text files under `root`, sorted.
pub fn texts(root: &Path) -> io::Result<Vec<SourceFile>> {
    let mut out = Vec::new();
    collect(root, "", &mut out)?;
    Ok(out)
}

fn collect(folder: &Path, prefix: &str, out: &mut Vec<SourceFile>) -> io::Result<()> {
    for entry in sorted(folder)? {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            if is_source(&name) {
                collect(&entry.path(), &format!("{path}/"), out)?;
            }
        } else if Path::new(&name).extension().is_some_and(|end| TEXTS.iter().any(|text| end == *text)) {
            out.push(SourceFile { path, text: fs::read_to_string(entry.path())? });
        }
    }
    Ok(())
}

fn is_source(folder: &str) -> bool {
    !folder.starts_with('.') && !NOT_SOURCE.contains(&folder)
}

fn sorted(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    Ok(entries)
}
