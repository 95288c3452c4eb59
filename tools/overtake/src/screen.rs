//! Standard output and standard error. A reader that goes away (`| head`) ends the command quietly.

use crate::cli::Format;
use crate::exit::{Exit, Failure};
use crate::render::View;
use crate::render::style::Style;
use overtake_base::UnixMillis;
use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where answers go, and in which form.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    format: Format,
    out_is_terminal: bool,
    out: Style,
    err: Style,
}

impl Screen {
    /// As the environment says.
    pub fn new(format: Format) -> Self {
        let style = |is_terminal| {
            let (no_color, term) = (env::var("NO_COLOR").ok(), env::var("TERM").ok());
            Style::decide(is_terminal, no_color.as_deref(), term.as_deref())
        };
        let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        Self { format, out_is_terminal: out, out: style(out), err: style(err) }
    }

    /// True where answers are JSON.
    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// One answer: the one form or the other. JSON is indented for a person and one line for a script.
    pub fn answer<J: serde::Serialize>(
        &self,
        json: impl FnOnce() -> J,
        table: impl FnOnce(View) -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Table => self.print(&table(self.view())),
            Format::Json => {
                let value = json();
                let text = if self.out_is_terminal {
                    serde_json::to_string_pretty(&value)
                } else {
                    serde_json::to_string(&value)
                };
                let text = text.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
                self.print(&(text + "\n"))
            }
        }
    }

    /// Text as it is.
    pub fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }

    /// What `print` shows next starts on an empty terminal; elsewhere nothing happens.
    pub fn clear(&self) -> Result<(), Failure> {
        if self.out_is_terminal { self.print("\x1b[H\x1b[2J") } else { Ok(()) }
    }

    /// A remark to the person, on standard error. It cannot fail: nobody may listen there.
    pub fn note(&self, text: &str) {
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// How far long work is: one line that is written over, only where standard error is a terminal.
    pub fn progress(&self, text: &str) {
        let mut err = io::stderr().lock();
        if err.is_terminal() {
            let _ = write!(err, "\r\x1b[K{}", self.err.dim(text)).and_then(|()| err.flush());
        }
    }

    /// A question to the person, where nothing that is kept goes: the answer is typed behind it.
    pub fn ask(&self, text: &str) {
        let mut err = io::stderr().lock();
        let _ = write!(err, "{text} ").and_then(|()| err.flush());
    }

    /// True where [`Screen::progress`] is seen.
    pub fn shows_progress(&self) -> bool {
        io::stderr().is_terminal()
    }

    /// Takes the line of [`Screen::progress`] away.
    pub fn progress_done(&self) {
        let mut err = io::stderr().lock();
        if err.is_terminal() {
            let _ = write!(err, "\r\x1b[K").and_then(|()| err.flush());
        }
    }

    /// Why the command failed: one line, `overtake: ` first, or a JSON object.
    pub fn failure(&self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        if self.is_json() {
            let error = serde_json::json!({ "error": failure.message, "exit_code": failure.exit as u8 });
            return self.note(&error.to_string());
        }
        let message = crate::render::text::one_line(&failure.message);
        self.note(&format!("{} {message}", self.err.red("overtake:")));
    }

    /// How answers look now.
    pub fn view(&self) -> View {
        let size = self.out_is_terminal.then(|| terminal_size::terminal_size_of(io::stdout())).flatten();
        // A terminal that does not know its size says 0.
        let width = size.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0);
        View { now: now(), style: self.out, width }
    }
}

/// The wall clock.
pub fn now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A closed pipe is the reader's choice, not a failure: the command ends, silently and with 0.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::silent(Exit::Ok),
        _ => Failure::new(Exit::Failed, format!("cannot write to standard output: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_quiet_and_a_full_disk_is_not() {
        let quiet = written(Err(ErrorKind::BrokenPipe.into())).unwrap_err();
        assert_eq!(quiet, Failure::silent(Exit::Ok));
        let loud = written(Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(loud.exit, Exit::Failed);
        assert!(loud.message.contains("standard output"));
    }
}
