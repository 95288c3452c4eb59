//! CPU time of another process, from `/proc`.

use std::time::Duration;

/// Ticks a second of the times in `/proc/*/stat`: the kernel's interface fixes it to 100 on the machines we run on.
const TICKS_PER_S: u64 = 100;

/// CPU time that the process has used so far, in user and kernel. None where there is no such process.
#[must_use]
pub fn used_by(pid: u32) -> Option<Duration> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `utime` and `stime`. The command's name before them may hold spaces and brackets.
fn parse(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || times.next()?.parse::<u64>().ok();
    let total = ticks()?.checked_add(ticks()?)?;
    Some(Duration::from_millis(total.checked_mul(1_000 / TICKS_PER_S)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_kernel_time_are_added() {
        let stat = "42 (a b) c)) S 1 42 42 0 -1 4194304 500 0 3 0 150 25 0 0 20 0 3 0 100 1 2";
        assert_eq!(parse(stat), Some(Duration::from_millis(1_750)));
        assert_eq!(parse("42 (x) S 1 2"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_is_found_and_a_missing_one_is_not() {
        assert!(used_by(std::process::id()).is_some());
        assert_eq!(used_by(u32::MAX), None);
    }
}
