//! A file system of its own size, in a file that is mounted as a loop device: what fills up is then the test's own.

use crate::scratch::Scratch;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set where a test must not be skipped because file systems cannot be mounted.
const REQUIRED: &str = "OVERTAKE_REQUIRE_MOUNT";

/// A mounted ext4 file system, unmounted and removed on drop.
#[derive(Debug)]
pub struct SmallDisk {
    image: PathBuf,
    root: PathBuf,
    _scratch: Scratch,
}

impl SmallDisk {
    /// Makes one of so many MiB; none where this process may not mount, which is said on standard error.
    #[track_caller]
    pub fn new(mib: u64) -> Option<Self> {
        match Self::make(mib) {
            Ok(disk) => Some(disk),
            Err(reason) => {
                assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, but {reason}");
                eprintln!("skipped: a file system of its own is needed, and {reason}");
                None
            }
        }
    }

    /// Makes one of so many MiB; why not, where this process may not mount.
    ///
    /// # Errors
    /// What the system said.
    pub fn make(mib: u64) -> Result<Self, String> {
        let scratch = Scratch::new();
        let (image, root) = (scratch.path().join("image"), scratch.path().join("disk"));
        File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("an image");
        std::fs::create_dir(&root).expect("a mount point");
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))?;
        let disk = Self { image, root, _scratch: scratch };
        disk.mount()?;
        Ok(disk)
    }

    /// Mounts it. Once it finds itself damaged it takes no write any more.
    ///
    /// # Errors
    /// What the system said.
    pub fn mount(&self) -> Result<(), String> {
        let mut command = Command::new("mount");
        run(command.args(["-o", "loop,errors=remount-ro"]).arg(&self.image).arg(&self.root))
    }

    /// The file that it is in.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A file that takes so many MiB of it, until it is dropped.
    #[track_caller]
    pub fn ballast(&self, mib: usize) -> Ballast {
        let path = self.root.join("ballast");
        let mut file = File::create(&path).expect("a file");
        for _ in 0..mib {
            file.write_all(&[7; 1 << 20]).expect("room for the ballast");
        }
        file.sync_all().expect("the ballast is on the disk");
        Ballast(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A server that was killed may be gone a moment later; a mount that stays behind is litter, not a failed test.
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.root));
    }
}

/// See [`SmallDisk::ballast`].
#[derive(Debug)]
pub struct Ballast(PathBuf);

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("the ballast can be removed");
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let ended = command.stdin(Stdio::null()).output();
    match ended {
        Ok(ended) if ended.status.success() => Ok(()),
        Ok(ended) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&ended.stderr).trim())),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
