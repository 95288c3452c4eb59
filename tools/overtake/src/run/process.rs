//! One command for one message: body on standard input, facts in the environment, exit status as the verdict.
//!
//! The command runs in a process group of its own: Ctrl-C on the terminal reaches us and not the command, so that
//! the running message can be finished; and a command that must end is ended with all it started.

use bytes::Bytes;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use overtake_wire::message::Delivered;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// How much of standard error goes into a message's error text, in bytes and lines, from its end.
const TAIL_BYTES: usize = 2_000;
const TAIL_LINES: usize = 10;
/// A command that ended may have left something running that holds its standard error open; so long is waited for it.
const STDERR_GRACE: Duration = Duration::from_millis(200);
const HEADER_PREFIX: &str = "OVERTAKE_HEADER_";

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Exit status 0.
    Done,
    /// Anything else: status and the last lines of standard error.
    Failed(String),
    /// The shell found no such command, or may not run it: no message is at fault.
    CannotRun(String),
}

/// Refuses a command that the shell would not find, before any message is leased for it. Only a first word that means
/// itself can be asked for; what else a command needs is known when it runs.
pub async fn check(command: &str) -> Result<(), String> {
    let word = command.split_whitespace().next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-' | '+');
    if word.is_empty() {
        return Err("--exec names no command".to_owned());
    }
    if !word.chars().all(plain) {
        return Ok(());
    }
    let found = if word.contains('/') {
        std::fs::metadata(word).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    } else {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "command -v -- \"$1\"", "sh", word]);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.status().await.map_err(|error| format!("--exec: cannot start /bin/sh: {error}"))?.success()
    };
    if found {
        Ok(())
    } else {
        Err(format!("--exec: there is no command {word} here that can be run; nothing was received"))
    }
}

/// A running command.
#[derive(Debug)]
pub struct Process {
    child: Child,
    body: Bytes,
}

impl Process {
    /// Starts `command` through the shell for `message` of `queue`.
    pub fn start(command: &str, queue: &str, message: &Delivered) -> Result<Self, Verdict> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(HEADER_PREFIX) {
                shell.env_remove(name);
            }
        }
        shell.envs(environment(queue, message));
        shell.stdin(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        match shell.spawn() {
            Ok(child) => Ok(Self { child, body: message.body.clone() }),
            Err(error) => Err(Verdict::CannotRun(format!("cannot start the command: {error}"))),
        }
    }

    /// The process group, for [`end`].
    pub fn group(&self) -> Option<u32> {
        self.child.id()
    }

    /// Feeds it, passes its standard error on, and waits for its end.
    pub async fn wait(mut self) -> Verdict {
        let (stdin, stderr) = (self.child.stdin.take(), self.child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A command that does not read its input closes the pipe; that is its choice.
                let _ = stdin.write_all(&self.body).await;
            }
        };
        let mut tail = Tail::default();
        let watch = async {
            if let Some(stderr) = stderr {
                tail.follow(stderr).await;
            }
        };
        let child = &mut self.child;
        let end = async {
            let work = async { tokio::join!(feed, watch) };
            tokio::pin!(work);
            tokio::select! {
                status = child.wait() => {
                    let _ = tokio::time::timeout(STDERR_GRACE, work).await;
                    status
                }
                _ = &mut work => child.wait().await,
            }
        };
        match end.await {
            Ok(status) if status.success() => Verdict::Done,
            Ok(status) if matches!(status.code(), Some(126 | 127)) => Verdict::CannotRun(tail.error(status)),
            Ok(status) => Verdict::Failed(tail.error(status)),
            Err(error) => Verdict::Failed(format!("cannot wait for the command: {error}")),
        }
    }
}

/// Ends a process group at once.
pub fn end(group: Option<u32>) {
    if let Some(group) = group.and_then(|group| i32::try_from(group).ok()) {
        // It may have ended by itself in between.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}

/// What the command finds in its environment.
fn environment(queue: &str, message: &Delivered) -> Vec<(String, String)> {
    let mut all = vec![
        ("OVERTAKE_QUEUE".to_owned(), queue.to_owned()),
        ("OVERTAKE_ID".to_owned(), message.id.to_string()),
        ("OVERTAKE_PRIORITY".to_owned(), message.priority.to_string()),
        ("OVERTAKE_RECEIPT".to_owned(), message.receipt.to_string()),
        ("OVERTAKE_DELIVERIES".to_owned(), message.deliveries.to_string()),
    ];
    // An environment cannot hold a NUL; a header with one is left out rather than failing the message.
    let headers = message.headers.iter().filter(|(_, value)| !value.contains('\0'));
    all.extend(headers.map(|(name, value)| (variable(name), value.clone())));
    all
}

/// `Trace-Id` → `OVERTAKE_HEADER_TRACE_ID`.
fn variable(header: &str) -> String {
    let name = header.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    HEADER_PREFIX.chars().chain(name).collect()
}

/// The end of what a command says on standard error.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    /// Passes everything on and keeps the end.
    async fn follow(&mut self, mut stderr: impl AsyncRead + Unpin) {
        let mut chunk = [0; 4_096];
        let mut ours = tokio::io::stderr();
        while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
            // Nobody may listen to us; the command goes on all the same.
            let _ = ours.write_all(&chunk[..length]).await;
            self.keep(&chunk[..length]);
        }
        let _ = ours.flush().await;
    }

    fn keep(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
        let over = self.bytes.len().saturating_sub(TAIL_BYTES);
        self.bytes.drain(..over);
    }

    fn error(&self, status: ExitStatus) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        if last.is_empty() { status.to_string() } else { format!("{status}: {last}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overtake_base::{MessageId, Receipt, Sequence, ShardId, UnixMillis};

    fn message(body: &str, headers: &[(&str, &str)]) -> Delivered {
        Delivered {
            id: MessageId(7),
            priority: 3,
            receipt: Receipt { shard: ShardId(5), sequence: Sequence(12), deliveries: 2 },
            deliveries: 2,
            enqueued_at: UnixMillis(0),
            lease_expires_at: UnixMillis(30_000),
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            share: false,
            body: Bytes::copy_from_slice(body.as_bytes()),
        }
    }

    async fn run(command: &str, message: &Delivered) -> Verdict {
        match Process::start(command, "jobs", message) {
            Ok(process) => process.wait().await,
            Err(verdict) => verdict,
        }
    }

    #[tokio::test]
    async fn the_body_comes_on_standard_input_and_the_facts_in_the_environment() {
        let message = message("pay 7", &[("Trace-Id", "abc"), ("nul", "a\0b")]);
        let check = "test \"$(cat)\" = 'pay 7' && test $OVERTAKE_QUEUE = jobs && test $OVERTAKE_PRIORITY = 3 \
                     && test $OVERTAKE_RECEIPT = r_5_12_2 && test $OVERTAKE_DELIVERIES = 2 \
                     && test $OVERTAKE_ID = m_00000000000000000000000007 \
                     && test $OVERTAKE_HEADER_TRACE_ID = abc && test -z \"$OVERTAKE_HEADER_NUL\"";
        assert_eq!(run(check, &message).await, Verdict::Done);
    }

    #[tokio::test]
    async fn a_failure_tells_its_status_and_last_words() {
        let Verdict::Failed(error) = run("echo one >&2; echo two >&2; exit 3", &message("", &[])).await
        else {
            panic!("it must fail")
        };
        assert_eq!(error, "exit status: 3: one\ntwo");
        let Verdict::Failed(error) = run("exit 4", &message("", &[])).await else { panic!("it must fail") };
        assert_eq!(error, "exit status: 4");
    }

    #[tokio::test]
    async fn a_command_that_cannot_run_is_no_messages_fault() {
        for command in ["./not-there.sh", "not-there-at-all --now", "/", "/etc/passwd x"] {
            let refused = check(command).await.unwrap_err();
            assert!(refused.contains(command.split(' ').next().unwrap()), "{refused}");
            let verdict = run(command, &message("", &[])).await;
            assert!(matches!(verdict, Verdict::CannotRun(_)), "{command}: {verdict:?}");
        }
        assert!(check(" ").await.is_err());
        // What the shell alone understands is left to it.
        for command in
            ["true", "cat > /dev/null", "cd /; ./x", "if true; then :; fi", "A=1 x", "\"$X\" y", "(x)"]
        {
            assert_eq!(check(command).await, Ok(()), "{command}");
        }
    }

    #[tokio::test]
    async fn a_large_body_nobody_reads_blocks_nothing() {
        let body = "x".repeat(131_072);
        assert_eq!(run("true", &message(&body, &[])).await, Verdict::Done);
        assert_eq!(run("test $(wc -c) = 131072", &message(&body, &[])).await, Verdict::Done);
    }

    #[tokio::test]
    async fn what_a_command_leaves_running_does_not_hold_us() {
        assert_eq!(run("sleep 60 & true", &message("", &[])).await, Verdict::Done);
    }

    #[tokio::test]
    async fn ending_a_group_ends_all_of_it() {
        let process = Process::start("sleep 60 | sleep 60", "jobs", &message("", &[])).unwrap();
        end(process.group());
        let Verdict::Failed(error) = process.wait().await else { panic!("it must fail") };
        assert!(error.contains("signal: 9"), "{error}");
    }

    #[test]
    fn long_errors_keep_their_end() {
        let mut tail = Tail::default();
        tail.keep(&[b'a'; 5_000]);
        tail.keep(b"\nlast");
        assert!(tail.bytes.len() <= TAIL_BYTES && tail.bytes.ends_with(b"last"));
    }
}
