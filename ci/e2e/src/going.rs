//! A command that goes on until it is told to stop: what it says is read along, so that a test can wait for it.

use crate::server::Ended;
use crate::time::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What was read so far, and its reader.
type Along = (Arc<Mutex<String>>, JoinHandle<()>);

fn read_along(pipe: impl Read + Send + 'static) -> Along {
    let so_far = Arc::new(Mutex::new(String::new()));
    let shared = so_far.clone();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            shared.lock().expect("no reader panics").push_str(&(line + "\n"));
        }
    });
    (so_far, reader)
}

/// A command that goes on; killed on drop.
#[derive(Debug)]
pub struct Going {
    child: Option<Child>,
    stdout: Along,
    stderr: Along,
}

impl Going {
    /// Starts it, without standard input.
    #[track_caller]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be started");
        let stdout = read_along(child.stdout.take().expect("piped"));
        let stderr = read_along(child.stderr.take().expect("piped"));
        Self { child: Some(child), stdout, stderr }
    }

    /// Waits until it has said this, on either output.
    #[track_caller]
    pub fn says(&self, what: &str) {
        eventually(what, || {
            let said = |along: &Along| along.0.lock().expect("no reader panics").contains(what);
            (said(&self.stdout) || said(&self.stderr)).then_some(())
        });
    }

    /// Processes that it has started and that still run.
    #[track_caller]
    pub fn children(&self) -> Vec<u32> {
        let own = self.child.as_ref().expect("it runs").id();
        let listed = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).expect("Linux");
        listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Asks it to stop with SIGTERM, and gives how it ended.
    #[track_caller]
    pub fn stop(self) -> Ended {
        self.end(Signal::TERM)
    }

    /// Interrupts it as Ctrl-C does, and gives how it ended.
    #[track_caller]
    pub fn interrupt(self) -> Ended {
        self.end(Signal::INT)
    }

    #[track_caller]
    fn end(mut self, signal: Signal) -> Ended {
        let mut child = self.child.take().expect("it runs");
        kill_process(Pid::from_child(&child), signal).expect("the signal is sent");
        let code = child.wait().expect("it ends").code();
        let all = |along: &mut Along| {
            let reader = std::mem::replace(&mut along.1, std::thread::spawn(|| {}));
            reader.join().expect("no reader panics");
            along.0.lock().expect("no reader panics").clone()
        };
        Ended { code, stdout: all(&mut self.stdout), stderr: all(&mut self.stderr) }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
