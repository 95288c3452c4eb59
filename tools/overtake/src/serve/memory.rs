//! Gives memory back to the operating system. The allocator keeps what was freed: after a burst a node would look as large
//! as it was at the busiest moment for ever.

use std::time::Duration;

/// How often memory is looked at.
const EVERY: Duration = Duration::from_secs(10);
/// What must have come on top since the last time before it is worth the while: the allocator's lists are gone through.
const GROWN_BYTES: u64 = 32 << 20;

/// When it is worth it: memory has grown since the last time, and does not grow now.
#[derive(Default)]
struct Watch {
    after_last: u64,
    before: u64,
}

impl Watch {
    /// Takes what is resident now; says whether memory should be given back.
    fn look(&mut self, resident_bytes: u64) -> bool {
        let rests = resident_bytes <= self.before.saturating_add(GROWN_BYTES / 8);
        self.before = resident_bytes;
        rests && resident_bytes >= self.after_last.saturating_add(GROWN_BYTES)
    }

    /// So much is left.
    fn given_back(&mut self, resident_bytes: u64) {
        self.after_last = resident_bytes;
        self.before = resident_bytes;
    }
}

/// Looks now and then, for as long as the node runs.
pub(super) async fn give_back() {
    let mut watch = Watch::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(resident_bytes) = resident_bytes() else { return };
        if watch.look(resident_bytes) && tokio::task::spawn_blocking(trim).await.is_ok() {
            watch.given_back(self::resident_bytes().unwrap_or(resident_bytes));
        }
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1_024)
}

/// Other allocators give back by themselves.
#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: the function takes its own locks and touches no memory that is in use.
    #[allow(unsafe_code)]
    let _ = unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_given_back_after_growth_and_not_again_before_more() {
        let mut watch = Watch::default();
        assert!(!watch.look(40 * MIB), "the first look may be in the middle of a burst");
        assert!(watch.look(40 * MIB));
        watch.given_back(30 * MIB);
        assert!(!watch.look(35 * MIB) && !watch.look(35 * MIB), "too little");
        assert!(!watch.look(100 * MIB) && !watch.look(200 * MIB), "it still grows");
        assert!(watch.look(201 * MIB));
        watch.given_back(201 * MIB);
        assert!((0..100).all(|_| !watch.look(201 * MIB)), "nothing was to be had");
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > MIB));
        trim();
    }
}
