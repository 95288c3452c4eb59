//! The last events of a run in words, kept only where somebody will read them.

use core::fmt::Debug;
use std::collections::VecDeque;

/// Lines that are kept: all of a run, but for one that does not end.
const LINES_MAX: usize = 1_000_000;
/// Characters of a request or response that are shown.
const SHORT_CHARACTERS: usize = 600;

/// See the module's text.
#[derive(Default, Debug)]
pub struct Tale {
    /// Whether anything is kept.
    pub wanted: bool,
    lines: VecDeque<String>,
}

impl Tale {
    /// Adds a line; the text is made only where it is kept.
    pub fn tell(&mut self, time_ns: u64, text: impl FnOnce() -> String) {
        if self.wanted {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(format!("{:>12.3} ms  {}", time_ns as f64 / 1_000_000.0, text()));
        }
    }

    /// What was told last.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

/// A value's debug text, cut.
pub fn short(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(SHORT_CHARACTERS) {
        Some((at, _)) => format!("{}... ({} bytes)", &text[..at], text.len()),
        None => text,
    }
}
