//! How the command ends: exit codes that scripts can trust, declared here and nowhere else, and the one line on
//! standard error that goes with each failure.

use std::fmt;

/// Exit codes. The numbers are an interface: they never change their meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Everything asked for was done.
    Ok = 0,
    /// Refused, or failed in a way that a retry does not mend.
    Failed = 1,
    /// Wrong flag, value or configuration file. clap uses the same number.
    Usage = 2,
    /// Nothing there: an empty receive or redrive, no such queue or message, a stale or unknown receipt.
    Nothing = 3,
    /// No connection to the server.
    NoConnection = 4,
    /// Nobody knows whether it was stored; safe to repeat with the same id or dedup key.
    Unknown = 5,
    /// Refused for now, nothing stored: a limit, a rate, no quorum, a full disk. Try again later.
    Later = 6,
    /// The token is missing, unknown, or lacks the right.
    NotAllowed = 7,
    /// A server could not start or had to stop: address or data folder in use, damaged data, a failed disk.
    Server = 8,
}

/// The table of `--help` and README.
pub const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done
  1  refused, or failed
  2  wrong flag, value or configuration file
  3  nothing there: empty receive or redrive, no such queue or message, stale or unknown receipt
  4  cannot connect
  5  fate unknown: it may have been stored; repeat it with the same id or dedup key
  6  refused for now, nothing stored (limit, rate, no quorum, full disk): try again later
  7  not allowed: token missing, unknown or without the right
  8  a server could not start, or had to stop
  130  interrupted with Ctrl-C before there was anything to end well";

/// A failure: what the script gets and what the person reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The process's exit code.
    pub exit: Exit,
    /// What is wrong and what to do next, in one line. Empty: everything was said already.
    pub message: String,
}

impl Failure {
    /// A failure with its message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// A failure whose story is already on the screen.
    pub fn silent(exit: Exit) -> Self {
        Self { exit, message: String::new() }
    }

    /// Wrong usage that clap could not see.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// What every command returns.
pub type Outcome = Result<Exit, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_code_once_and_in_order() {
        let codes = [
            Exit::Ok,
            Exit::Failed,
            Exit::Usage,
            Exit::Nothing,
            Exit::NoConnection,
            Exit::Unknown,
            Exit::Later,
            Exit::NotAllowed,
            Exit::Server,
        ];
        let listed: Vec<u8> = EXIT_CODES_HELP
            .lines()
            .skip(1)
            .filter_map(|line| line.trim_start().split(' ').next()?.parse().ok())
            .collect();
        // The last one is the shell's: a process that SIGINT ended.
        let expected: Vec<u8> = codes.map(|code| code as u8).into_iter().chain([130]).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn the_readme_has_the_same_table() {
        let readme = include_str!("../../../README.md");
        for line in EXIT_CODES_HELP.lines().skip(1) {
            let (code, meaning) = line.trim_start().split_once("  ").unwrap();
            assert!(readme.contains(&format!("| {code} | {meaning} |")), "{line}");
        }
    }
}
