//! A system's processes: started in a folder of their own, accounted for with all their children, and ended.

use crate::job::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long an orderly end may take.
const END: Duration = Duration::from_secs(20);

/// Processes that run.
pub struct Processes(Vec<Child>);

/// What processes have used.
#[derive(Clone, Copy, Default, Debug)]
pub struct Used {
    /// CPU time.
    pub cpu: Duration,
    /// Bytes written to disks.
    pub written_bytes: u64,
    /// Memory of their own, page cache not counted.
    pub memory_bytes: u64,
}

impl Processes {
    /// Starts these commands; what they say goes to a file in the folder.
    pub fn start(commands: Vec<Command>, folder: &Path) -> Result<Self, Failure> {
        let mut started = Self(Vec::new());
        for mut command in commands {
            let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("output.log"))?;
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let program = command.get_program().to_string_lossy().into_owned();
            started.0.push(command.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?);
        }
        Ok(started)
    }

    /// Fails if the server has ended, with what it said last.
    pub fn check(&mut self, folder: &Path) -> Result<(), Failure> {
        let ended = self.0.last_mut().and_then(|child| child.try_wait().ok().flatten());
        let Some(status) = ended else { return Ok(()) };
        let log = fs::read_to_string(folder.join("output.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        Err(format!(
            "the server ended, {status}: {}",
            lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
        )
        .into())
    }

    /// Ids of all processes, children of children included.
    fn all(&self) -> Vec<u32> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit_once(')')
                .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse().ok());
            children.entry(parent.unwrap_or(0)).or_default().push(pid);
        }
        let mut all: Vec<u32> = self.0.iter().map(Child::id).collect();
        let mut at = 0;
        while at < all.len() {
            all.extend(children.get(&all[at]).into_iter().flatten());
            at += 1;
        }
        all
    }

    /// What they have used.
    pub fn used(&self) -> Used {
        let mut used = Used::default();
        let mut shared = 0;
        for pid in self.all() {
            used.cpu += overtake_perf::cpu::used_by(pid).unwrap_or_default();
            let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            used.written_bytes += field(&io, "write_bytes:");
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            used.memory_bytes += field(&status, "RssAnon:") * 1_024;
            // Shared by all of them: counted once.
            shared = shared.max(field(&status, "RssShmem:") * 1_024);
        }
        used.memory_bytes += shared;
        used
    }

    /// Ends all of them at once, as a power cut would.
    pub fn kill(mut self) {
        self.kill_all();
    }

    fn kill_all(&mut self) {
        for pid in self.all() {
            signal(pid, Signal::KILL);
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }

    /// Asks the server to end, then ends the rest.
    pub fn stop(mut self) {
        let start = Instant::now();
        if let Some(server) = self.0.last_mut() {
            signal(server.id(), Signal::TERM);
            while start.elapsed() < END && matches!(server.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.kill_all();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // One that has already ended cannot be signalled.
        let _ = kill_process(pid, signal);
    }
}

/// The number after a name in a file of `/proc`.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_counted_and_ended() {
        let folder = std::env::temp_dir().join(format!("overtake-compare-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & sleep 60"]);
        let processes = Processes::start(vec![shell], &folder).unwrap();
        let start = Instant::now();
        while processes.all().len() < 3 && start.elapsed() < END {
            std::thread::sleep(Duration::from_millis(5));
        }
        let all = processes.all();
        assert_eq!(all.len(), 3);
        processes.kill();
        let gone = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
        };
        while !all.iter().all(gone) && start.elapsed() < END {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(all.iter().all(gone));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn fields_are_read() {
        assert_eq!(field("a: 1\nRssAnon:\t  12 kB\n", "RssAnon:"), 12);
        assert_eq!(field("", "x:"), 0);
    }
}
