//! A disk of a node's own: an ext4 file system in a file, on a loop device. It hangs while the file system is frozen
//! (every write waits inside the kernel, as behind a controller that says nothing), runs full by a file that takes what is
//! left, stutters by being frozen again and again, and fails once the file system is told that it found itself damaged: it
//! takes no write any more.
//!
//! Why not a FUSE layer or the device-mapper: this needs neither, works with O_DIRECT and io_uring as they are used on a
//! real disk, and is there on every Linux. What it cannot do is hold back reads, or lose writes that were not synced.

use crate::machine::tool;
use overtake_e2e::small_disk::SmallDisk;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Enough for a journal, a few blocks, and the part that the server keeps free.
pub const DISK_MIB: u64 = 1024;
const FILLER: &str = "filler";
/// What a disk that stutters does, again and again: hold everything for so long, then let it pass for so long.
const HELD: Duration = Duration::from_millis(60);
const PASSING: Duration = Duration::from_millis(10);

/// A mounted disk; gone when it is dropped.
#[derive(Debug)]
pub struct Disk {
    disk: SmallDisk,
    stutter: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Disk {
    /// Makes and mounts one of so many MiB.
    ///
    /// # Errors
    /// What the system said.
    pub fn make(mib: u64) -> Result<Self, String> {
        Ok(Self { disk: SmallDisk::make(mib)?, stutter: None })
    }

    /// Tries whether it can be made and frozen here.
    ///
    /// # Errors
    /// Why not.
    pub fn can_be_made() -> Result<(), String> {
        let disk = Self::make(16)?;
        disk.fsfreeze("-f")?;
        disk.fsfreeze("-u")
    }

    fn root(&self) -> String {
        self.disk.path().display().to_string()
    }

    fn image(&self) -> String {
        self.disk.image().display().to_string()
    }

    /// A folder on it.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.disk.path().join("data")
    }

    /// No write ends any more.
    pub fn hang(&self) {
        self.fsfreeze("-f").expect("a file system that is not frozen");
    }

    /// They end again.
    pub fn go_on(&self) {
        self.fsfreeze("-u").expect("a frozen file system");
    }

    fn fsfreeze(&self, what: &str) -> Result<(), String> {
        tool(&["fsfreeze", what, &self.root()]).map(drop)
    }

    /// Hangs for a moment, again and again, until it is healed.
    pub fn stutter(&mut self) {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, root) = (stop.clone(), self.root());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if tool(&["fsfreeze", "-f", &root]).is_ok() {
                    std::thread::sleep(HELD);
                    let _ = tool(&["fsfreeze", "-u", &root]);
                }
                std::thread::sleep(PASSING);
            }
        });
        self.stutter = Some((stop, thread));
    }

    /// Takes all that is left on it but so many bytes.
    pub fn fill(&self, but_bytes: u64) {
        let free = self.free_bytes();
        let bytes = free.saturating_sub(but_bytes);
        let filler = self.disk.path().join(FILLER).display().to_string();
        tool(&["fallocate", "-l", &bytes.to_string(), &filler]).expect("the space is there");
    }

    fn free_bytes(&self) -> u64 {
        let said = tool(&["df", "--output=avail", "-B1", &self.root()]).expect("a mounted disk");
        said.lines().last().and_then(|line| line.trim().parse().ok()).expect("a number")
    }

    /// Takes no write any more.
    pub fn fail(&self) {
        let device = tool(&["losetup", "-n", "-O", "NAME", "-j", &self.image()]).expect("a mounted disk");
        let name = device.trim().rsplit('/').next().unwrap_or_default();
        let trigger = format!("/sys/fs/ext4/{name}/trigger_fs_error");
        std::fs::write(&trigger, "a test wants it").expect("ext4 can be told so");
    }

    /// What an operator does with a disk that failed and is well again. Nobody may use it.
    pub fn repair(&self) {
        tool(&["umount", &self.root()]).expect("nobody uses it");
        // It has an exit code other than 0 where it corrected something; whether that is well the mount tells.
        let _ = tool(&["e2fsck", "-f", "-y", &self.image()]);
        self.disk.mount().expect("a repaired disk");
    }

    /// Takes back all that was done to it.
    pub fn heal(&mut self) {
        if let Some((stop, thread)) = self.stutter.take() {
            stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
        // One that does not hang refuses, and there may be no filler.
        let _ = self.fsfreeze("-u");
        let _ = std::fs::remove_file(self.disk.path().join(FILLER));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // One that is frozen cannot be unmounted.
        self.heal();
    }
}
