//! Folders for data, under the target folder: they must be on a real file system, since a server refuses one without
//! O_DIRECT.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder that is removed on drop, unless `OVERTAKE_E2E_KEEP` is set.
#[derive(Debug)]
pub struct Scratch(PathBuf);

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    /// Makes a folder that no other test has.
    pub fn new() -> Self {
        let executable = std::env::current_exe().expect("a test knows its own executable");
        // <target>/<profile>/deps/<test>, or examples/; a program lies one folder higher.
        let is_below = |folder: &Path| folder.ends_with("deps") || folder.ends_with("examples");
        let depth = if executable.parent().is_some_and(is_below) { 3 } else { 2 };
        let target = executable.ancestors().nth(depth).expect("tests run from the target folder");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = target.join("tmp").join(format!("e2e-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the target folder can be written");
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("OVERTAKE_E2E_KEEP").is_none() {
            // A folder that stays behind is litter, not a failed test.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
