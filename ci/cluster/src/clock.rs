//! A wall clock of a node's own, by libfaketime, which is put between the process and the C library. It reads how far it
//! is off from a file, each time it is asked; the monotonic clock is left alone, as it is where somebody sets a clock.

use std::path::{Path, PathBuf};

const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

/// The library.
#[derive(Clone, Debug)]
pub struct FakeTime {
    library: PathBuf,
}

impl FakeTime {
    /// Looks for it.
    ///
    /// # Errors
    /// What to install.
    pub fn find() -> Result<Self, String> {
        let library = LIBRARIES.iter().map(PathBuf::from).find(|path| path.exists());
        library.map(|library| Self { library }).ok_or_else(|| "libfaketime is not installed".to_owned())
    }

    /// What a process's environment needs so that its clock is the one of a file.
    #[must_use]
    pub fn environment(&self, file: &Path) -> Vec<(String, String)> {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// Sets the clock that a file is, to so many seconds off.
pub fn set(file: &Path, off_s: i64) {
    // By another file's name: whoever reads it meanwhile sees the old one or the new one.
    let next = file.with_extension("next");
    std::fs::write(&next, format!("{off_s:+}\n")).expect("a file can be written");
    std::fs::rename(next, file).expect("a file can be replaced");
}
